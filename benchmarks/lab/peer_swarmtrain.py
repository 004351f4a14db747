"""This project's exchange, with everything on: TLS, CURVE, ledger on disk. MODE: int8 or none.

Rank 0's machine runs the coordinator too, as a process of its own whose CPU time and bytes count
as rank 0's. One round is `Averager.all_reduce`, from the call to the committed mean. SLICES=equal
cuts slices without regard to rates; UP and DOWN cap every peer, for instance UP=20mbit.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "transport"), str(ROOT / "optimizers")]

import lab_peer  # noqa: E402  the paths come first
import numpy as np  # noqa: E402
import torch  # noqa: E402

from swarmtrain.cli.caps import Caps, parse_rate  # noqa: E402
from swarmtrain.peer.averager import Averager  # noqa: E402
from swarmtrain.peer.membership import Membership  # noqa: E402
from swarmtrain_transport.invite import Invite  # noqa: E402

torch.set_num_threads(1)
CODEC = {"fp32": "none"}.get(lab_peer.MODE, lab_peer.MODE)
CAPS = Caps(parse_rate(os.environ.get("UP", "")), parse_rate(os.environ.get("DOWN", "")))
invite_file = lab_peer.RUN_DIR / "invite"
rounds = 0


def start_coordinator() -> "subprocess.Popen[str]":
    script = ROOT / "benchmarks" / "allreduce.py"
    words = [
        "coordinator", f"--peers={lab_peer.WORLD}", f"--codec={CODEC}",
        f"--repeat={lab_peer.REPS}", f"--warmup={lab_peer.WARM}", f"--listen={lab_peer.IP0}:0",
        f"--slices={os.environ.get('SLICES', 'measured')}",
        f"--min-contributors={os.environ.get('MIN_CONTRIBUTORS', lab_peer.WORLD)}",
    ]  # fmt: skip
    serving = subprocess.Popen(
        [sys.executable, str(script), *words], stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    part = invite_file.with_suffix(".part")
    part.write_text(serving.stdout.readline())
    part.rename(invite_file)
    return serving


def run_round(x: np.ndarray) -> np.ndarray:
    """One exchange. Results are found by their hash: one of an earlier round may not serve."""
    global rounds
    rounds += 1
    scale = np.float32(1.0)
    if not hasattr(lab_peer, "FRESH_ROUNDS"):
        scale = np.float32(2.0 ** -(rounds % 16))
        x *= scale
    values = torch.from_numpy(x)
    mean = averager.all_reduce(values, out=values).numpy()
    if not averager.included:
        raise SystemExit("this peer's vector was left out")
    if scale != 1.0:
        mean /= scale
    return mean


coordinator = start_coordinator() if lab_peer.RANK == 0 else None
while not invite_file.exists():
    time.sleep(0.05)
with tempfile.TemporaryDirectory(prefix="lab-") as directory:
    invite = Invite.parse(invite_file.read_text().strip())
    membership = Membership.enter(
        invite, Path(directory), f"rank-{lab_peer.RANK}", lab_peer.IP, 0,
        caps=CAPS,
    )  # fmt: skip
    try:
        averager = Averager.of(membership, lab_peer.NUMEL)
        averager.start()
        lab_peer.measure(run_round)
    finally:
        membership.close()
if coordinator is not None:
    coordinator.terminate()
    coordinator.wait()
