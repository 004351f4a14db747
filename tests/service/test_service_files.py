"""Files of a service: what each system would read, and which words are told to it."""

import plistlib
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from swarmtrain.foundation.error_table import EXIT_BUG, EXIT_TRY_LATER, EXIT_UNREACHABLE
from swarmtrain.foundation.errors import UserError
from swarmtrain.service import (
    Installed,
    Service,
    launchd_agent,
    scheduled_task,
    systemd_unit,
)

WORDS = ("/opt/my python/bin/python", "-m", "swarmtrain", "join", "--name", 'a "b" 100% $HOME \\')
SERVICE = Service(WORDS, Path("/home/ann/state"))


def test_systemd_reads_the_unit_and_finds_no_fault(tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / "swarmtrain.service"
    unit.write_text(systemd_unit(Service(("/bin/true", *WORDS[1:]), tmp_path)))
    done = subprocess.run(
        [analyze, "--user", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    told = [line for line in done.stderr.splitlines() if unit.name in line]
    assert not told, done.stderr


def test_the_unit_quotes_words_and_stays_stopped_after_what_does_not_mend_itself():
    unit = systemd_unit(SERVICE)
    assert '"/opt/my python/bin/python" "-m" "swarmtrain" "join"' in unit
    assert r'"a \"b\" 100%% $$HOME \\"' in unit
    assert "Type=notify" in unit and "WatchdogSec=180" in unit and "Restart=on-failure" in unit
    stay = unit.partition("RestartPreventExitStatus=")[2].splitlines()[0].split()
    assert not {str(EXIT_BUG), str(EXIT_UNREACHABLE), str(EXIT_TRY_LATER)} & {*stay}


def test_launchd_and_windows_get_the_same_words():
    told = plistlib.loads(launchd_agent(SERVICE))
    assert told["ProgramArguments"] == list(WORDS) and told["KeepAlive"] == {
        "SuccessfulExit": False
    }
    task = ET.fromstring(scheduled_task(SERVICE).partition("?>")[2])
    space = {"t": task.tag[1:].partition("}")[0]}
    assert task.findtext(".//t:Command", namespaces=space) == WORDS[0]
    assert '"a \\"b\\" 100% $HOME \\\\"' in (
        task.findtext(".//t:Arguments", namespaces=space) or ""
    )


class System:
    def __init__(self, status: int = 0) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._status = status

    def __call__(self, words):
        self.asked.append(tuple(words))
        return subprocess.CompletedProcess(words, self._status, "told", "no session")


@pytest.mark.parametrize("name", ["linux", "darwin", "win32"])
def test_a_service_is_installed_told_of_and_removed(tmp_path, monkeypatch, name):
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    system = System()
    one = Installed(name, tmp_path, system)
    assert one.status() == "" and not one.remove() and not system.asked
    one.install(SERVICE)
    assert one.path.is_relative_to(tmp_path) and one.path.exists() and system.asked
    assert one.path.stat().st_mode & 0o077 == 0
    assert one.status() == "told"
    assert one.remove() and not one.path.exists()


def test_a_system_that_refuses_is_quoted_with_what_to_do(tmp_path):
    with pytest.raises(UserError) as caught:
        Installed("linux", tmp_path, System(1)).install(SERVICE)
    assert caught.value.code == "SWT-E411" and "no session" in caught.value.what
    with pytest.raises(UserError, match="not known"):
        Installed("plan9", tmp_path)
