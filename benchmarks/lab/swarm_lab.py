"""Parts that this project's peer scripts share: where the code is, a coordinator, coming in."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "transport"), str(ROOT / "optimizers")]
sys.path.append(str(ROOT / "benchmarks"))

import lab_peer  # noqa: E402  the paths come first
import torch  # noqa: E402

from swarmtrain.config.caps import Caps, parse_rate  # noqa: E402
from swarmtrain.config.options import Endpoint, JoinOptions  # noqa: E402
from swarmtrain.peer.membership import Membership  # noqa: E402
from swarmtrain_transport.credentials.invite import Invite  # noqa: E402

torch.set_num_threads(1)
CODEC = {"fp32": "none"}.get(lab_peer.MODE, lab_peer.MODE)
CAPS = Caps(parse_rate(os.environ.get("UP", "")), parse_rate(os.environ.get("DOWN", "")))
INVITE_FILE = lab_peer.RUN_DIR / "invite"


def start_coordinator(words: list[str]) -> "subprocess.Popen[str]":
    """A process beside rank 0 that prints its invite, which everybody then finds in RUN_DIR."""
    serving = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:3])},
    )  # fmt: skip
    assert serving.stdout is not None
    part = INVITE_FILE.with_suffix(".part")
    part.write_text(serving.stdout.readline())
    part.rename(INVITE_FILE)
    return serving


def start_exchange_coordinator(rounds: int, min_contributors: int) -> "subprocess.Popen[str]":
    """One for peers that exchange vectors and train nothing."""
    return start_coordinator([
        str(ROOT / "benchmarks" / "allreduce.py"), "coordinator",
        f"--peers={lab_peer.WORLD}", f"--codec={CODEC}", f"--repeat={rounds}", "--warmup=0",
        f"--listen={lab_peer.IP0}:0", f"--slices={os.environ.get('SLICES', 'measured')}",
        f"--min-contributors={min_contributors}",
    ])  # fmt: skip


def invite() -> str:
    """The invite, once it is there."""
    while not INVITE_FILE.exists():
        time.sleep(0.05)
    return INVITE_FILE.read_text().strip()


def enter(directory: Path) -> Membership:
    """Come in as rank-R with an empty directory."""
    there = Endpoint(lab_peer.IP, 0)
    name = f"rank-{lab_peer.RANK}"
    return Membership.enter(
        JoinOptions(Invite.parse(invite()), name, there, (directory,), caps=CAPS)
    )
