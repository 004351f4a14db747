"""Cost of importing: nothing starts, nothing heavy is loaded before it is used."""

import json
import os
import subprocess
import sys

import pytest
from source import PACKAGE_ROOTS

HEAVY = ("torch", "numpy", "aiohttp", "zmq", "cryptography", "rich", "safetensors")

PROBE = """
import json, sys
started = []
sys.addaudithook(
    lambda event, args: started.append(event)
    if event in ("socket.__new__", "_thread.start_new_thread", "subprocess.Popen") else None
)
{action}
print(json.dumps([sorted(m for m in sys.modules if "." not in m), started]), file=sys.stderr)
"""

HELP = """
from swarmtrain.cli.main import main
assert main({words}) == 0
"""


def loaded(action: str) -> tuple[list[str], list[str]]:
    """Top-level modules loaded, and threads, sockets and processes started, by this code."""
    folders = dict.fromkeys(str(path.parent) for path in PACKAGE_ROOTS.values())
    answer = subprocess.run(
        [sys.executable, "-c", PROBE.format(action=action)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=True,
    )
    names, started = json.loads(answer.stderr.splitlines()[-1])
    return [name for name in HEAVY if name in names], started


@pytest.mark.parametrize(
    "words", [["--help"], ["join", "--help"], ["--version"], ["explain", "SWT-E203"]]
)
def test_asking_the_command_line_for_help_loads_nothing_heavy(words):
    assert loaded(HELP.format(words=words)) == ([], [])


def test_importing_swarmtrain_starts_nothing_and_loads_nothing_heavy():
    assert loaded("import swarmtrain") == ([], [])


def test_importing_the_parts_starts_no_thread_and_no_socket():
    parts = "swarmtrain_transport.wire.messages, swarmtrain_transport.wire.frames"
    assert loaded(f"import {parts}, swarmtrain.config.settings")[1] == []
