"""Answers of a running process to `swarmtrain status`: JSON over a socket on this machine only.

Coordinator and peers serve the same way from their state directory, `status.sock` beside
`status.json`, which says where the socket is: a path that is too long for a unix socket moves to
a private folder under the temporary directory. A coordinator takes its organiser's orders there
too. Rights of the file system decide who may ask and order: the socket is its owner's alone from
the moment it exists. No port is opened.

The asking side uses the standard library alone, so that `status` answers at once.
"""

import contextlib
import hashlib
import http.client
import itertools
import json
import os
import socket
import stat
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from swarmtrain.foundation import atomic_file, dirs, regular_file
from swarmtrain.foundation.error_table import TABLE
from swarmtrain.foundation.errors import UserError

if TYPE_CHECKING:
    from aiohttp import web

    from swarmtrain_transport.coordinator.status import CoordinatorStatus

SOCKET_FILE = "status.sock"
WHERE_FILE = "status.json"
STATUS_PATH = "/status"
_LAST = "last"
"""The last answer of a process whose run is finished, in WHERE_FILE."""

SOCKET_PATH_BYTES_MAX = 100
"""Linux allows 107 bytes, macOS 103; a few are left for those who count the final zero."""

_NEAR_MAX = 3
"""Directories that are named to whoever has taken the wrong one."""

ASK_TIMEOUT_S = 5.0
"""The answer is a snapshot from memory; a process that needs longer is stuck."""

ORDER_TIMEOUT_S = 60.0
"""An order may wait until a restarted coordinator decides again."""

ORDER_PATH = "/order"

ANSWER_BYTES_MAX = 16 << 20


class NotRunning(UserError):
    """No process answers for the state directory."""


class StatusServer:
    """Answers `status` for one state directory while it is open.

    Args:
        state_dir: exists and belongs to this process alone.
        view: the snapshot to answer with; called on the event loop for each question.
        why: the story of a round, if this process can tell it.
        more: facts beside the snapshot, which may take a moment.
        obey: carries out an order and returns what is answered, if this process takes any. A
            UserError is what is answered instead.
    """

    def __init__(
        self,
        state_dir: Path,
        view: Callable[[], msgspec.Struct],
        why: Callable[[int, int | None], Mapping[str, Any]] | None = None,
        obey: Callable[[bytes], Awaitable[Any]] | None = None,
        more: Callable[[], Awaitable[dict[str, Any]]] | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._view = view
        self._why = why
        self._obey, self._more = obey, more
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
        app.router.add_get(STATUS_PATH, self._answer)
        if self._why is not None:
            app.router.add_get("/why/{number:[0-9]{1,9}}", self._answer_why)
        if self._obey is not None:
            app.router.add_post(ORDER_PATH, self._answer_order)
        if self.path.parent != self._state_dir.absolute():
            _make_own_folder(self.path.parent)
        # The directory is ours alone, so a socket that is there is left from a killed process.
        self.path.unlink(missing_ok=True)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runner = runner
        await web.SockSite(runner, _own_socket(self.path)).start()
        _write_where(self._state_dir, self.path)

    async def close(self, *, keeps_answering: bool = False) -> None:
        """Stop answering and remove the socket. Closing twice is allowed.

        Args:
            keeps_answering: leave the last answer behind for who asks later: it was the end.
        """
        if self._runner is not None:
            if keeps_answering:
                with contextlib.suppress(OSError):
                    _write_where(self._state_dir, self.path, await self._told())
            await self._runner.cleanup()
            self._runner = None
            self.path.unlink(missing_ok=True)

    async def _answer(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        body = msgspec.json.encode(await self._told())
        return web.Response(body=body, content_type="application/json")

    async def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = msgspec.to_builtins(self._view())
        return told if self._more is None else {**told, **await self._more()}

    async def _answer_why(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        assert self._why is not None
        group = request.query.get("group", "")
        number = int(request.match_info["number"])
        body = msgspec.json.encode(self._why(number, int(group) if group.isdecimal() else None))
        return web.Response(body=body, content_type="application/json")

    async def _answer_order(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        assert self._obey is not None
        try:
            answer, status = await self._obey(await request.read()), http.HTTPStatus.OK
        except UserError as error:
            answer = {"code": error.code, "what": error.what, "meaning": error.meaning,
                      "remedy": error.remedy}  # fmt: skip
            status = http.HTTPStatus.CONFLICT
        body = msgspec.json.encode(answer)
        return web.Response(body=body, status=status, content_type="application/json")


def _own_socket(path: Path) -> socket.socket:
    """A listening place that nobody else can open, not even before its rights could be changed."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(stat.S_IRWXG | stat.S_IRWXO)
    try:
        made.bind(str(path))
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    except BaseException:
        made.close()
        raise
    finally:
        os.umask(mask)
    return made


def socket_path(state_dir: Path) -> Path:
    """Return the path of a state directory's socket: inside it, unless that path is too long."""
    inside = state_dir.absolute() / SOCKET_FILE
    if len(os.fsencode(inside)) <= SOCKET_PATH_BYTES_MAX:
        return inside
    name = hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"swarmtrain-{os.getuid()}" / f"{name}.sock"


def ask(state_dir: Path, question: str = STATUS_PATH) -> dict[str, Any]:
    """Ask the process of this state directory about itself.

    Args:
        state_dir: state directory of a coordinator or a peer.
        question: path of the request.

    Raises:
        NotRunning: nothing has run there, or it runs no more.
        UserError: SWT-E806, there is no such directory; SWT-E501, the answer makes no sense.
    """
    try:
        status, found = _exchange(state_dir, "GET", question)
    except NotRunning:
        last = _read_where(state_dir).get(_LAST) if question == STATUS_PATH else None
        if not isinstance(last, dict):
            raise
        return {"process": "has ended", **last}
    if status != http.HTTPStatus.OK or found is None:
        raise no_sense(state_dir)
    return found


def ask_coordinator(state_dir: Path) -> "CoordinatorStatus":
    """Ask a running coordinator for its status, as a value.

    Raises:
        UserError: as above.
    """
    from swarmtrain_transport.coordinator.status import CoordinatorStatus

    return msgspec.convert(ask(state_dir), CoordinatorStatus)


def order(state_dir: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """Have the coordinator or the peer of this state directory do something; its answer.

    Args:
        state_dir: state directory of a coordinator or a peer.
        said: order, one of `coordinator.organiser.order_forms` or `peer.wishes`, as JSON has it.

    Raises:
        NotRunning: it does not run.
        UserError: SWT-E806, there is no such directory; SWT-E610, it is no coordinator's; or why
            the order was not carried out.
    """
    status, found = _exchange(state_dir, "POST", ORDER_PATH, json.dumps(said).encode())
    if status == http.HTTPStatus.OK and found is not None:
        return found
    if status == http.HTTPStatus.NOT_FOUND:
        raise UserError(
            "SWT-E610",
            f"The process of {state_dir} takes no orders.",
            "It is a peer's, or of an older version: only a coordinator decides who is in.",
            "Name the coordinator's directory with --state-dir.",
        )
    words = [str((found or {}).get(key, "")) for key in ("code", "what", "meaning", "remedy")]
    if words[0] not in TABLE:
        raise no_sense(state_dir)
    raise UserError(*words)


def _exchange(
    state_dir: Path, verb: str, path: str, body: bytes | None = None
) -> tuple[int, dict[str, Any] | None]:
    """Status and JSON object of the answer, None where it is no such thing."""
    if not state_dir.is_dir():
        raise no_directory(state_dir)
    timeout_s = ASK_TIMEOUT_S if body is None else ORDER_TIMEOUT_S
    connection = _UnixConnection(Path(_read_where(state_dir)["socket"]), timeout_s)
    try:
        connection.request(verb, path, body)
        answer = connection.getresponse()
        data = answer.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as exc:
        raise _not_running(state_dir, "No process answers there.") from exc
    finally:
        connection.close()
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    return answer.status, found if isinstance(found, dict) else None


def no_sense(state_dir: Path) -> UserError:
    """A process said something that none of this version says."""
    return UserError(
        "SWT-E501",
        f"The process of {state_dir} gave no sensible answer.",
        "It may be of another version.",
        "Compare `swarmtrain --version` with the version it was started with.",
    )


def waiting_words(text: str, seen_s: float | None, wall_s: float) -> str:
    """Say why a run stands still, with this machine's time of the moment at which that was here
    last.

    Args:
        text: the coordinator's words.
        seen_s: seconds since then; None if nobody knows.
        wall_s: now, seconds since 1970.
    """
    if not text or seen_s is None or not 0 <= seen_s < wall_s:
        return text
    seen, now = time.localtime(wall_s - seen_s), time.localtime(wall_s)
    is_today = seen[:3] == now[:3]
    return f"{text}, {time.strftime('%H:%M' if is_today else '%Y-%m-%d %H:%M', seen)}"


def no_directory(state_dir: Path) -> UserError:
    """A command was pointed at a state directory that is none."""
    return UserError(
        "SWT-E806",
        f"There is no state directory {state_dir}.",
        "Nothing has run there yet, or it was removed.",
        "Start a coordinator or a peer, or name another directory with --state-dir.",
    )


def nothing_ran_in(directory: Path) -> NotRunning:
    """A command was pointed at a directory in which no coordinator and no peer has been."""
    below = (found for depth in ("*", "*/*") for found in directory.glob(f"{depth}/{WHERE_FILE}"))
    near = [str(found.parent) for found in itertools.islice(below, _NEAR_MAX)]
    remedy = "Name the directory that was given as --state-dir, or leave it out for the newest."
    if near:
        remedy = "Below it are some, for instance:\n" + "\n".join(f"  {place}" for place in near)
    return NotRunning(
        "SWT-E806",
        f"{directory} is no state directory: neither a coordinator nor a peer has run in it.",
        f"There is no {WHERE_FILE} and no ledger in it.",
        remedy,
    )


def newest_state_dir(root: Path | None = None, *, beside: tuple[str, ...] = ()) -> Path:
    """The state directory whose process began to answer last, whether or not it still runs.

    Args:
        root: folder to look in; None means the default place of all runs.
        beside: only directories that hold a file of one of these names; none for any.

    Raises:
        UserError: SWT-E806, there is none.
    """
    root = dirs.runs_dir() if root is None else root
    newest: tuple[float, Path] | None = None
    for found in root.rglob(WHERE_FILE):
        # A directory may vanish while we look.
        with contextlib.suppress(OSError):
            if beside and not any(found.with_name(name).exists() for name in beside):
                continue
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

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("swarmtrain", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Reach the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _not_running(state_dir: Path, why: str) -> NotRunning:
    return NotRunning(
        "SWT-E204",
        f"Not running: {state_dir}. {why}",
        "All that it saved is intact.",
        "Start it again with `swarmtrain up` or `swarmtrain join` and the same --state-dir.",
    )


def _write_where(state_dir: Path, path: Path, last: Any = None) -> None:
    where = {"socket": str(path), "pid": os.getpid(), **({} if last is None else {_LAST: last})}
    atomic_file.write(state_dir / WHERE_FILE, f"{json.dumps(where)}\n".encode())


def _read_where(state_dir: Path) -> dict[str, Any]:
    try:
        where = json.loads(regular_file.read(state_dir / WHERE_FILE, ANSWER_BYTES_MAX))
        return {**where, "socket": str(where["socket"])}
    except FileNotFoundError as exc:
        if not any(state_dir.glob("ledger.*")):
            raise nothing_ran_in(state_dir) from exc
        raise _not_running(state_dir, "Nothing has answered there yet.") from exc
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as exc:
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
