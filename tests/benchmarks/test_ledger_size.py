"""The benchmark of the ledger runs from end to end, and its run is one that peers accept."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "ledger.py"


def row_of(*words: str) -> dict[str, float]:
    command = [sys.executable, str(SCRIPT), *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    row: dict[str, float] = json.loads(done.stdout)
    return row


def test_a_small_run_is_planned_committed_followed_and_joined() -> None:
    row = row_of("--peers=3", "--rounds=6")
    assert 500 < row["bytes_per_op"] < 5000
    assert 6 * row["bytes_per_op"] < row["joiner_bytes"] < 10 * row["bytes_per_op"]
    assert row["joiner_seconds"] > 0
    assert 10 < row["coordinator_rss_mb"] < 500 and 10 < row["peer_rss_mb"] < 500
