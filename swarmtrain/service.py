"""A peer as a service of its user: a systemd user unit, a launchd agent, or a scheduled task.

The text of each is made here, and nothing of it needs rights beyond the user's own. Which end of a
peer is one to start it again for is said by exit codes: a fault of the machine or the network is, a
wrong invite or setting is not.
"""

import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from swarmtrain.foundation import atomic_file
from swarmtrain.foundation.error_table import (
    EXIT_BAD_DATA,
    EXIT_CANNOT_WRITE,
    EXIT_INPUT_MISSING,
    EXIT_MUST_CHANGE,
    EXIT_NOT_ALLOWED,
    EXIT_USAGE,
)
from swarmtrain.foundation.errors import UserError, cleaned, misuse

NAME = "swarmtrain"
STAY_STOPPED = (
    EXIT_USAGE, EXIT_BAD_DATA, EXIT_INPUT_MISSING, EXIT_CANNOT_WRITE, EXIT_NOT_ALLOWED,
    EXIT_MUST_CHANGE,
)  # fmt: skip
"""Exit codes after which nothing gets better by itself: a wrong word, file, invite or version."""

WATCHDOG_S = 180
STOP_S = 180
"""A peer that leaves finishes its round and hands over."""

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, slots=True)
class Service:
    """A peer's command, and the place of what it says.

    Attributes:
        words: program and arguments.
        folder: folder of its log, where the system keeps none.
    """

    words: tuple[str, ...]
    folder: Path


def systemd_unit(service: Service) -> str:
    """A user unit (systemd.service(5)); the peer tells when it is in, and that it lives."""
    words = " ".join(_quoted(word) for word in service.words)
    stay = " ".join(map(str, STAY_STOPPED))
    return f"""\
[Unit]
Description=swarmtrain: a peer of a run
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={words}
WatchdogSec={WATCHDOG_S}
TimeoutStartSec=infinity
TimeoutStopSec={STOP_S}
Restart=on-failure
RestartSec=30
RestartPreventExitStatus={stay}
SuccessExitStatus=143 130
Nice=10
IOSchedulingClass=idle
Environment=PYTHONUNBUFFERED=1

[Install]
WantedBy=default.target
"""


def launchd_agent(service: Service) -> bytes:
    """A launchd agent (launchd.plist(5)): started at login, and again after a fault."""
    log = str(service.folder / "service.log")
    return plistlib.dumps(
        {
            "Label": NAME, "ProgramArguments": list(service.words), "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False}, "ThrottleInterval": 30, "Nice": 10,
            "ProcessType": "Background", "LowPriorityIO": True, "ExitTimeOut": STOP_S,
            "StandardOutPath": log, "StandardErrorPath": log,
        }
    )  # fmt: skip


def scheduled_task(service: Service) -> str:
    """A task of Windows (Task Scheduler schema 1.4) at logon, where a GPU can be seen; a service of
    session 0 sees none in many set-ups."""
    program, *arguments = service.words
    return f"""\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.4" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo><Description>swarmtrain: a peer of a run</Description></RegistrationInfo>
  <Triggers><LogonTrigger><Enabled>true</Enabled></LogonTrigger></Triggers>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Priority>8</Priority>
    <RestartOnFailure><Interval>PT1M</Interval><Count>999</Count></RestartOnFailure>
  </Settings>
  <Actions>
    <Exec>
      <Command>{escape(program)}</Command>
      <Arguments>{escape(subprocess.list2cmdline(arguments))}</Arguments>
    </Exec>
  </Actions>
</Task>
"""


class Installed:
    """The service of this user on this system.

    Args:
        system: `sys.platform`.
        home: the user's home.
        run: runs a program of the system.

    Raises:
        UserError: SWT-E610, services of this system are not known here.
    """

    def __init__(
        self, system: str = sys.platform, home: Path | None = None, run: Run | None = None
    ) -> None:
        self._home, self._run = home or Path.home(), run or _ran
        config = Path(os.environ.get("XDG_CONFIG_HOME") or self._home / ".config")
        places = {
            "linux": config / "systemd" / "user" / f"{NAME}.service",
            "darwin": self._home / "Library" / "LaunchAgents" / f"{NAME}.plist",
            "win32": self._home / "AppData" / "Local" / NAME / "task.xml",
        }
        if system not in places:
            raise misuse(f"Services of {system} are not known.", "Start `swarmtrain join` by hand.")
        self._system, self.path = system, places[system]

    def install(self, service: Service) -> None:
        """Write the service, and start it now and at each login.

        Raises:
            UserError: SWT-E411, the system does not take it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._system == "linux":
            atomic_file.write(self.path, systemd_unit(service).encode(), mode=0o600)
            self._ask("systemctl", "--user", "daemon-reload")
            self._ask("systemctl", "--user", "enable", NAME)
            self._ask("systemctl", "--user", "restart", NAME)  # also one that runs with other words
        elif self._system == "darwin":
            atomic_file.write(self.path, launchd_agent(service), mode=0o600)
            self._run(("launchctl", "bootout", f"gui/{os.getuid()}/{NAME}"))  # if it was there
            self._ask("launchctl", "bootstrap", f"gui/{os.getuid()}", str(self.path))
        else:
            atomic_file.write(self.path, scheduled_task(service).encode("utf-16"), mode=0o600)
            self._ask("schtasks", "/Create", "/F", "/TN", NAME, "/XML", str(self.path))
            self._ask("schtasks", "/Run", "/TN", NAME)

    def remove(self) -> bool:
        """Stop the service, which leaves after its round, and forget it; False if there is none."""
        if not self.path.exists():
            return False
        if self._system == "linux":
            self._ask("systemctl", "--user", "disable", "--now", NAME)
        elif self._system == "darwin":
            self._ask("launchctl", "bootout", f"gui/{os.getuid()}/{NAME}")
        else:
            self._ask("schtasks", "/Delete", "/F", "/TN", NAME)
        self.path.unlink(missing_ok=True)
        return True

    def status(self) -> str:
        """The system's own words on the service, "" where there is none."""
        if not self.path.exists():
            return ""
        words = {
            "linux": ("systemctl", "--user", "--no-pager", "status", NAME),
            "darwin": ("launchctl", "print", f"gui/{os.getuid()}/{NAME}"),
            "win32": ("schtasks", "/Query", "/TN", NAME, "/V", "/FO", "LIST"),
        }
        done = self._run(words[self._system])
        return done.stdout or done.stderr

    def _ask(self, *words: str) -> None:
        done = self._run(words)
        if done.returncode:
            raise UserError(
                "SWT-E411",
                f"`{shlex.join(words)}` failed: {cleaned((done.stderr or done.stdout).strip())}",
                f"The service is written to {self.path}, and was not started or stopped.",
                "On a machine without a session of its own, `loginctl enable-linger` starts one.",
            )


def _quoted(word: str) -> str:
    """Quote a word as systemd reads it (systemd.syntax(7)): no specifier, no variable."""
    plain = word.replace("%", "%%").replace("$", "$$")
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _ran(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))
