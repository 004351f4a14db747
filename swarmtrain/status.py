"""How a running process answers `swarmtrain status`: JSON over a socket on this machine only.

Coordinator and peers serve the same way from their state directory, `status.sock` beside
`status.json`, which says where the socket is: a path that is too long for a unix socket moves to
a private folder under the temporary directory. Rights of the file system decide who may ask; no
port is opened. Nothing can be changed over it.

The asking side uses the standard library alone, so that `status` answers at once.
"""

import contextlib
import hashlib
import http.client
import json
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from swarmtrain import dirs
from swarmtrain.errors import UserError

if TYPE_CHECKING:
    from aiohttp import web

SOCKET_FILE = "status.sock"
WHERE_FILE = "status.json"

SOCKET_PATH_BYTES_MAX = 100
"""Linux allows 107 bytes, macOS 103; a few are left for those who count the final zero."""

ASK_TIMEOUT_S = 5.0
"""The answer is a snapshot from memory; a process that needs longer is stuck."""

ANSWER_BYTES_MAX = 16 << 20


class NotRunning(UserError):
    """No process answers for the state directory."""


class StatusServer:
    """Answers `status` for one state directory while it is open.

    Args:
        state_dir: exists and belongs to this process alone.
        view: the snapshot to answer with; called on the event loop for each question.
        why: the story of a round, if this process can tell it.
    """

    def __init__(
        self,
        state_dir: Path,
        view: Callable[[], msgspec.Struct],
        why: Callable[[int], list[str]] | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._view = view
        self._why = why
        self._runner: web.AppRunner | None = None
        self.path = socket_path(state_dir)

    async def open(self) -> None:
        """Begin to answer.

        Raises:
            OSError: the socket cannot be made.
        """
        # Imported here so that whoever only asks does not wait for aiohttp.
        from aiohttp import web

        app = web.Application()
        app.router.add_get("/status", self._answer)
        if self._why is not None:
            app.router.add_get("/why/{number:[0-9]{1,9}}", self._answer_why)
        if self.path.parent != self._state_dir:
            _make_own_folder(self.path.parent)
        # The directory is ours alone, so a socket that is there is left from a killed process.
        self.path.unlink(missing_ok=True)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runner = runner
        await web.UnixSite(runner, str(self.path)).start()
        os.chmod(self.path, stat.S_IRUSR | stat.S_IWUSR)
        _write_where(self._state_dir, self.path)

    async def close(self) -> None:
        """Stop answering and remove the socket. Closing twice is allowed."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
            self.path.unlink(missing_ok=True)

    async def _answer(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        return web.Response(body=msgspec.json.encode(self._view()), content_type="application/json")

    async def _answer_why(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        assert self._why is not None
        story = self._why(int(request.match_info["number"]))
        body = msgspec.json.encode({"story": story})
        return web.Response(body=body, content_type="application/json")


def socket_path(state_dir: Path) -> Path:
    """Where the socket of a state directory is: inside it, unless that path is too long."""
    inside = state_dir.absolute() / SOCKET_FILE
    if len(os.fsencode(inside)) <= SOCKET_PATH_BYTES_MAX:
        return inside
    name = hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"swarmtrain-{os.getuid()}" / f"{name}.sock"


def ask(state_dir: Path, question: str = "/status") -> dict[str, Any]:
    """What the process of this state directory says of itself.

    Args:
        state_dir: of a coordinator or a peer.
        question: path of the request.

    Raises:
        NotRunning: nothing has run there, or it runs no more.
        UserError: SWT-E806, there is no such directory; SWT-E501, the answer makes no sense.
    """
    if not state_dir.is_dir():
        raise no_directory(state_dir)
    path = _read_where(state_dir)
    connection = _UnixConnection(path)
    try:
        connection.request("GET", question)
        answer = connection.getresponse()
        data = answer.read(ANSWER_BYTES_MAX)
        found = json.loads(data) if answer.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException) as exc:
        raise _not_running(state_dir, "No process answers there.") from exc
    except ValueError:
        found = None
    finally:
        connection.close()
    if not isinstance(found, dict):
        raise UserError(
            "SWT-E501",
            f"The process of {state_dir} gave no sensible answer.",
            "It may be of another version.",
            "Compare `swarmtrain --version` with the version it was started with.",
        )
    return found


def no_directory(state_dir: Path) -> UserError:
    """A command was pointed at a state directory that is none."""
    return UserError(
        "SWT-E806",
        f"There is no state directory {state_dir}.",
        "Nothing has run there yet, or it was removed.",
        "Start a coordinator or a peer, or name another directory with --state-dir.",
    )


def newest_state_dir(root: Path | None = None) -> Path:
    """The state directory whose process began to answer last, whether or not it still runs.

    Args:
        root: where to look; None means the default place of all runs.

    Raises:
        UserError: SWT-E806, there is none.
    """
    root = dirs.runs_dir() if root is None else root
    newest: tuple[float, Path] | None = None
    for found in root.rglob(WHERE_FILE):
        # A directory may vanish while we look.
        with contextlib.suppress(OSError):
            began = found.stat().st_mtime
            if newest is None or began > newest[0]:
                newest = (began, found.parent)
    if newest is None:
        raise UserError(
            "SWT-E806",
            f"No state directory was found under {root}.",
            "Nothing has run yet in the default place.",
            "Start a coordinator or a peer, or name its directory with --state-dir.",
        )
    return newest[1]


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket; the host name is only for the header."""

    def __init__(self, path: Path) -> None:
        super().__init__("swarmtrain", timeout=ASK_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Reach the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ASK_TIMEOUT_S)
        self.sock.connect(str(self._path))


def _not_running(state_dir: Path, why: str) -> NotRunning:
    return NotRunning(
        "SWT-E204",
        f"Not running: {state_dir}. {why}",
        "What it saved is intact.",
        "Start it again with `swarmtrain up` or `swarmtrain join` and the same --state-dir.",
    )


def _write_where(state_dir: Path, path: Path) -> None:
    aside = state_dir / (WHERE_FILE + ".new")
    aside.write_text(json.dumps({"socket": str(path), "pid": os.getpid()}) + "\n")
    os.replace(aside, state_dir / WHERE_FILE)


def _read_where(state_dir: Path) -> Path:
    try:
        where = json.loads((state_dir / WHERE_FILE).read_bytes())
        return Path(where["socket"])
    except FileNotFoundError as exc:
        raise _not_running(state_dir, "Nothing has answered there yet.") from exc
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise _not_running(state_dir, f"Its {WHERE_FILE} cannot be read.") from exc


def _make_own_folder(folder: Path) -> None:
    """A folder in a place where everybody may write: it must be ours, or it is not used."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UserError(
            "SWT-E403",
            f"{folder} belongs to somebody else or is open to others.",
            "The socket for `swarmtrain status` would not be private there.",
            "Remove it, or choose a shorter --state-dir.",
        )
