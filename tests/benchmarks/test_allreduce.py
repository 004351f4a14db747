"""The benchmark of the exchange runs from end to end: it is how the exchange is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "allreduce.py"


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


def report(rank: int, **changes: object) -> dict[str, object]:
    exchange = {
        "seconds": 1.0 + rank, "cpu_seconds": 0.5, "bytes_up": 1_000_000, "bytes_down": 900_000,
        "relative_error": 0.01,
    }  # fmt: skip
    return {
        "rank": rank, "peers": 2, "numel": 10, "codec": "int8", "block": 16, "chunk_values": 16,
        "threads": 1, "cores": 2, "torch": "2", "peak_rss_mib": 100 + rank,
        "exchanges": [{**exchange, **changes}],
    }  # fmt: skip


def test_two_processes_average_a_vector_that_is_no_multiple_of_the_block():
    done = run("--peers=2", "--numel=5000", "--repeat=1", "--warmup=1", "--rate-mbit=8", "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    # Half of the vector to the other's slice, the other half as result: a byte per value.
    assert 5000 < row["bytes_up_per_peer"] < 20_000
    assert 0 < row["relative_error"] < 0.02
    assert row["limit_seconds"] == pytest.approx(row["bytes_up_per_peer"] / 1e6, abs=1e-4)
    assert row["seconds"] > 0 and row["cpu_seconds_per_peer"] > 0


def test_reports_of_several_hosts_become_one_row_of_the_slowest_peer(tmp_path):
    files = []
    for rank in range(2):
        files.append(tmp_path / f"{rank}.json")
        files[-1].write_text(json.dumps(report(rank)))
    done = run("summary", *map(str, files), "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["seconds"], row["peak_rss_mib"], row["bytes_up_per_peer"]) == (2.0, 101, 1_000_000)
    assert run("summary", str(files[0])).returncode != 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"relative_error": 0.5}, "the mean is wrong"), ({"bytes_up": 9}, "the payload has 10")],
)
def test_a_wrong_mean_or_too_few_bytes_are_no_result(tmp_path, changes, words):
    files = []
    for rank in range(2):
        files.append(tmp_path / f"{rank}.json")
        files[-1].write_text(json.dumps(report(rank, **changes)))
    done = run("summary", *map(str, files))
    assert done.returncode != 0 and words in done.stderr
