"""The script that measures codecs runs, and forgets none."""

import json
import subprocess
import sys
from pathlib import Path

from swarmtrain_optimizers.codecs import CODECS

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "codecs.py"


def test_every_codec_has_a_line_with_all_its_speeds() -> None:
    finished = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", "--repeat", "1", "--chunks", "1"],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    rows = json.loads(finished.stdout)["codecs"]
    assert {row["codec"].partition(",")[0] for row in rows} == set(CODECS)
    for row in rows:
        wanted = {"codec", "block", "bytes", "encode", "check", "decode_and_add", "decode"}
        assert wanted <= row.keys()
        assert row["bytes"] <= 4
