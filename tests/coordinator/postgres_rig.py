"""A PostgreSQL server of Debian's packages for tests, on a socket in a folder of its own."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PLACES = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin")
USER = "postgres"


def found() -> Path | None:
    """The folder of the newest server's programs, None where there is none."""
    if (known := shutil.which("pg_ctl")) is not None:
        return Path(known).resolve().parent
    places = [one for place in PLACES for one in Path("/").glob(f"{place[1:]}/pg_ctl")]
    return max(places, default=Path()).parent if places else None


class Server:
    """One server, stopped and started again at will.

    Args:
        is_safe: False to let it skip syncs, for tests that kill no machine.
    """

    def __init__(self, programs: Path, folder: Path, *, is_safe: bool = False) -> None:
        self._programs, self.folder = programs, folder
        self._options = "-c fsync=off" if not is_safe else ""
        self._run("initdb", "-D", str(folder / "data"), "-U", USER, "--auth=trust", "-E", "UTF8")
        self.start()

    def url(self, name: str = "postgres") -> str:
        return f"postgresql://{USER}@/{name}?host={self.folder}"

    def start(self) -> None:
        options = f"-c listen_addresses='' -k {self.folder} {self._options}"
        self._control("start", "-o", options, "-l", str(self.folder / "log"))

    def stop(self, mode: str = "immediate") -> None:
        """`immediate` is a crash: no checkpoint, all sessions cut."""
        self._control("stop", "-m", mode)

    @property
    def process(self) -> int:
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def freeze(self) -> None:
        """Let no process of the server answer, with all its connections open."""
        for one in (self.process, *self._children()):
            os.kill(one, signal.SIGSTOP)

    def thaw(self) -> None:
        for one in (self.process, *self._children()):
            os.kill(one, signal.SIGCONT)

    def _children(self) -> list[int]:
        listed = Path(f"/proc/{self.process}/task/{self.process}/children").read_text()
        return [int(one) for one in listed.split()]

    def _control(self, *words: str) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-t", "60", *words)

    def _run(self, program: str, *words: str) -> None:
        user = USER if os.geteuid() == 0 else None  # it refuses to run as root
        subprocess.run(
            [str(self._programs / program), *words], user=user, group=user, cwd=self.folder,
            check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TZ": "UTC"},
        )  # fmt: skip


@contextmanager
def server(*, is_safe: bool = False) -> Iterator[Server]:
    """A running server; the test is skipped where there is no PostgreSQL."""
    programs = found()
    if programs is None:
        pytest.skip("no PostgreSQL server here (Debian: apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="swarmtrain-pg-"))
    try:
        if os.geteuid() == 0:
            owner = pwd.getpwnam(USER)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        one = Server(programs, folder, is_safe=is_safe)
        try:
            yield one
        finally:
            if (folder / "data" / "postmaster.pid").exists():
                one.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
