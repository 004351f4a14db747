"""A job of two ranks is at every op where a plain peer of the same weights is: bytes, roots, copies
for others, checkpoints and weights, however the model is shared."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

WORKER = Path(__file__).with_name("job_worker.py")


def test_two_ranks_stand_where_a_plain_peer_stands(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, WORKER, str(rank), "2", tmp_path / "store"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for rank, process in enumerate(ranks):
            said, _ = process.communicate(timeout=240)
            assert process.returncode == 0, said
            for way in ("fsdp", "tensor-parallel", "ddp"):
                assert f"rank {rank}: {way} int8 ok\nrank {rank}: {way} none ok\n" in said
    finally:
        for process in ranks:
            process.kill()
            process.wait()
