"""The page and its data over HTTP: for whoever may look, and read-only.

    GET  /, /page.js, /page.css, /icon.svg          the page itself; it holds no secret
    GET  /plots.js                                  plotly's own script, from its wheel
    POST /api/v1/look                               a link's secret for a cookie
    GET  /api/v1/run, peers, rounds, rounds/N, events, openapi.json, qr.svg
    GET  /api/v1/stream                             the run once a second (server-sent events)
    GET  /metrics                                   the same numbers for Prometheus

One view is computed for all who look, and only while somebody does. Whoever may not look costs a
file or a refusal. What peers say of themselves, their names first, is text and never markup: the
page builds no HTML of it, and no script but its own runs there.

Not here: who may look (`coordinator.door.viewing`), and connections (`door.listener`).
"""

import asyncio
import contextlib
import csv
import gzip
import hashlib
import io
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from swarmtrain.foundation.errors import UserError
from swarmtrain.page import plots
from swarmtrain.page.api import OPENAPI
from swarmtrain.page.history import History, Round
from swarmtrain.page.view import (
    POINTS_MAX,
    Meter,
    RoundColumns,
    RunView,
    Viewed,
    event_rows,
    numbers_of,
    round_columns,
    run_view,
)
from swarmtrain.why.story import Teller
from swarmtrain_transport.coordinator.status import CoordinatorStatus
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.wire.records import BodyReader, Record

logger = logging.getLogger(__name__)

COOKIE = "swarmtrain_viewer"
COOKIE_S = 30 * 24 * 3600

STREAMS_MAX = 128
"""Pages that are live at once; each is a connection, and a task that waits."""

STREAMS_PER_VIEWER = 4

TICK_S = 1.0
"""Pause between two views of the run."""

SEND_S = 10.0
"""A page that takes nothing for so long is let go."""

RECORDS_AT_ONCE = 200
"""Records that are read before the loop has its turn: a few milliseconds."""

STORIES_MAX = 64
"""Stories of ended rounds that are kept, as each is read from the whole ledger."""

STORIES_WAITING_MAX = 8
HOST_CHARS_MAX = 255
LOOK_BYTES_MAX = 1024
NUMBERS_S = 1.0
"""Time that `status` waits for numbers of the ledger: whoever asks gives up after five seconds."""

BODY_S = 10.0
"""A body that takes longer is none: the page's own have a few bytes."""

PAUSE = 4.0
"""Work on the whole ledger is followed by pauses so many times as long: however many ask, rounds
have most of the processor."""

ANSWERS_MAX = 16
PROMPT_BYTES_MAX = 4096

_FILES = Path(__file__).parent / "files"
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css",
          ".svg": "image/svg+xml"}  # fmt: skip
_HEADERS = {
    # plotly sets styles of what it draws; script stays our own alone.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline';"
        " img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_FORMULA = re.compile(r"^[=+\-@\t\r]")


class Source(Protocol):
    """The run, to be read."""

    def status(self) -> CoordinatorStatus:
        """The run now."""

    def num_records(self) -> int:
        """Length of the ledger."""

    def records(self, first: int) -> Iterator[Record]:
        """Records from this one on."""

    def losses(self) -> Mapping[int, float]:
        """Validation losses by round, of all rounds."""

    def begins(self) -> tuple[LedgerView, BodyReader, int] | None:
        """The fold of the records before the first one that is here, what reads it, and its index;
        None where all are here."""


class Guard(Protocol):
    """Judge of viewers."""

    is_public: bool

    def enter(self, secret: str, address: str, now_s: float) -> str | None:
        """Return a cookie for a link's secret."""

    def judge(self, cookie: str) -> bytes | None:
        """Return the viewer's id, None for whom the cookie shows nothing."""


class Page:
    """Serves one run.

    Args:
        history: an empty one.
        facts: settings of the run that views need.
        clock, wall_clock: monotonic seconds, and seconds since 1970.
        own: facts of the peer whose page it is, in words.
        meters: bytes of that peer beside its limits.
        write: lets the trained model write on after a prompt; None where no page may ask that.
    """

    def __init__(
        self,
        source: Source,
        history: History,
        facts: Viewed,
        guard: Guard,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        own: Callable[[], tuple[tuple[str, str], ...]] = tuple,
        meters: Callable[[], tuple[Meter, ...]] = tuple,
        write: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        self._own, self._meters = own, meters
        self._write, self._writing = write, asyncio.Lock()
        if (begins := source.begins()) is not None:
            history.begins(*begins)
        self._source, self._history, self._facts, self._guard = source, history, facts, guard
        self._welcome: Callable[[web.Request, bytes], None] = lambda request, viewer: None
        self._charge: Callable[[bytes, int], Awaitable[None]] = _charge_nothing
        self._clock, self._wall_clock = clock, wall_clock
        self._view: tuple[float, RunView] | None = None
        self._streams: dict[asyncio.Queue[bytes], bytes] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._stories: dict[tuple[int, int | None], dict[str, Any]] = {}
        self._columned: dict[tuple[int, int, int], RoundColumns] = {}
        self._telling = asyncio.Lock()
        self._waiting = 0
        self._telling_numbers: asyncio.Task[RunView] | None = None

    def opened_by(
        self,
        welcome: Callable[[web.Request, bytes], None],
        charge: Callable[[bytes, int], Awaitable[None]],
    ) -> None:
        """Take what knows the connections.

        Args:
            welcome: hears whose connection a request came by, before it is answered.
            charge: waits as long as a viewer has to who has asked for so many bytes.
        """
        self._welcome, self._charge = welcome, charge

    def add_to(self, app: web.Application) -> None:
        """Add the routes, and headers to their answers."""
        router = app.router
        for path, name in (("/", "index.html"), ("/page.js", ""), ("/page.css", ""),
                           ("/icon.svg", "")):  # fmt: skip
            router.add_get(path, _file(name or path[1:]))
        router.add_get("/plots.js", self._plots)
        router.add_post("/api/v1/look", self._look)
        if self._write is not None:
            router.add_post("/api/v1/prompt", self._for_viewers(self._prompt))
        for path, answer in (
            ("run", self._run), ("peers", self._peers), ("rounds", self._rounds),
            ("rounds/{number}", self._round), ("events", self._events),
            ("stream", self._stream), ("qr.svg", self._qr),
        ):  # fmt: skip
            router.add_get(f"/api/v1/{path}", self._for_viewers(answer))
        router.add_get("/api/v1/openapi.json", self._openapi)
        router.add_get("/metrics", self._for_viewers(self._metrics))
        app.on_response_prepare.append(_with_headers)

    async def close(self) -> None:
        """Let all pages go."""
        tasks = [task for task in (self._ticking, self._telling_numbers) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for queue in self._streams:
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(b"")

    # ---- who may look

    def _viewer(self, request: web.Request) -> bytes | None:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer"
        if is_bearer:
            address = request.remote or ""
            cookie = self._guard.enter(secret.strip(), address, self._clock())
        else:
            cookie = request.cookies.get(_cookie_name(request), "")
        viewer = self._guard.judge(cookie) if cookie else None
        if viewer is not None and is_bearer:  # the same at each request
            return hashlib.sha256(f"{secret} {request.remote}".encode()).digest()
        return viewer

    def _for_viewers(self, answer: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            if not _is_own(request):
                return _refusal(403, "Requests from other sites are not answered.")
            viewer = self._viewer(request)
            if viewer is None:
                return _refusal(
                    401, "Open the viewing link that the organiser has given you, or send its"
                    " secret as a bearer token.",
                )  # fmt: skip
            self._welcome(request, viewer)
            if request.query.get("format", "json") not in ("json", "csv"):
                return _refusal(400, "format is json or csv.")
            response = await answer(request)
            await self._charge(viewer, response.content_length or 0)
            return response

        return guarded

    async def _look(self, request: web.Request) -> web.Response:
        if not _is_own(request):
            return _refusal(403, "Requests from other sites are not answered.")
        try:
            data = await _body(request, LOOK_BYTES_MAX)
            secret = msgspec.json.decode(data, type=_Look).secret
        except (TimeoutError, ValueError):  # also text that is no UTF-8
            return _refusal(400, 'Send {"secret": "..."}.')
        cookie = self._guard.enter(secret, request.remote or "", self._clock())
        if cookie is None:
            return _refusal(
                401, "This link shows nothing: it was withdrawn, has expired, or was never given"
                " out.",
            )  # fmt: skip
        response = _json({"ok": True})
        response.set_cookie(
            _cookie_name(request), cookie, max_age=COOKIE_S, httponly=True,
            secure=not _is_loopback(request), samesite="Strict", path="/",
        )  # fmt: skip
        return response

    # ---- the run

    async def _read(self) -> None:
        """Bring the history up to date, in portions: a ledger may have a million records."""
        history = self._history
        while history.num_read < self._source.num_records():
            history.read(islice(self._source.records(history.num_read), RECORDS_AT_ONCE))
            await asyncio.sleep(0)

    @property
    def rounds(self) -> Sequence[Round]:
        """Rounds that have ended, as of the newest view."""
        return self._history.rounds

    async def view(self, *, is_new: bool = False) -> RunView:
        """The run, no older than half a tick; or as it is now."""
        now_s = self._clock()
        if is_new or self._view is None or now_s - self._view[0] >= TICK_S / 2:
            await self._read()
            status = self._source.status()
            losses = [peer.loss for peer in status.peers if peer.loss > 0]
            moved = {peer.peer: (peer.bytes_up, peer.bytes_down) for peer in status.peers}
            norms = {peer.peer: peer.norm for peer in status.peers if peer.norm is not None}
            self._history.saw(moved, losses, norms)
            view = run_view(
                status, self._history, self._facts, self._wall_clock(), you=self._own(),
                can_write=self._write is not None, meters=self._meters(),
            )  # fmt: skip
            self._view = now_s, view
        return self._view[1]

    async def numbers(self) -> dict[str, Any]:
        """The view's numbers for `status`; none while a long ledger is being read."""
        if self._telling_numbers is None or self._telling_numbers.done():
            self._telling_numbers = asyncio.create_task(self.view())
        try:
            view = await asyncio.wait_for(asyncio.shield(self._telling_numbers), NUMBERS_S)
        except TimeoutError:
            return {}
        return {"numbers": msgspec.to_builtins(numbers_of(view))}

    async def _run(self, request: web.Request) -> web.Response:
        return _json(await self.view())

    async def _peers(self, request: web.Request) -> web.Response:
        view = await self.view()
        return _table(request, view.peers)

    async def _rounds(self, request: web.Request) -> web.Response:
        first, points = _count(request, "first", 0), _count(request, "points", POINTS_MAX)
        if first is None or points is None:
            return _refusal(400, "first and points are whole numbers.")
        columns = await self._columns(first, points)
        if request.query.get("format") != "csv":
            return _json(columns)
        told = msgspec.to_builtins(columns)
        rows = [dict(zip(told, values, strict=True)) for values in zip(*told.values(), strict=True)]
        return _csv(list(told), rows)

    async def _columns(self, first: int, points: int) -> RoundColumns:
        """Rounds as columns: those that were asked for lately are still as they were."""
        await self._read()
        key = first, points, self._history.num_read
        async with self._telling:
            if key not in self._columned:
                begun_s = time.perf_counter()
                found = round_columns(self._history, self._source.losses(), first, points)
                self._columned[key] = found
                if len(self._columned) > ANSWERS_MAX:
                    del self._columned[next(iter(self._columned))]
                await asyncio.sleep(PAUSE * (time.perf_counter() - begun_s))
            return self._columned[key]

    async def _round(self, request: web.Request) -> web.Response:
        said, group = request.match_info["number"], _count(request, "group", None)
        if group is None and "group" in request.query:
            return _refusal(400, "group is a whole number.")
        if _WHOLE.fullmatch(said) is None:
            return _refusal(404, "Rounds have whole numbers, of nine digits at most.")
        number = int(said)
        key = number, group
        if key in self._stories:
            return _json(self._stories[key])
        if self._waiting >= STORIES_WAITING_MAX:
            return _refusal(503, "Too many rounds are being told; ask again in a second.")
        self._waiting += 1
        try:
            async with self._telling:
                told = await self._tell(number, group)
        finally:
            self._waiting -= 1
        if not told["story"]:
            return _refusal(404, f"The ledger has no round {number}.")
        return _json(told)

    async def _tell(self, number: int, group: int | None) -> dict[str, Any]:
        key = number, group
        if key in self._stories:
            return self._stories[key]
        begins = self._source.begins()
        known, read = (begins[:2], begins[2]) if begins is not None else (None, 0)
        teller, stop = Teller(number, group, known), self._source.num_records()
        while read < stop:
            begun_s = time.perf_counter()
            for record in islice(self._source.records(read), RECORDS_AT_ONCE):
                teller.take(record)
                read = record.index + 1
            await asyncio.sleep(PAUSE * (time.perf_counter() - begun_s))
        told = {"round": number, **teller.story().fields()}
        # What is behind the newest outcomes changes no more, but for a REWIND or a conviction.
        if told["story"] and number + 1 < self._source.status().round:
            self._stories[key] = told
            if len(self._stories) > STORIES_MAX:
                del self._stories[next(iter(self._stories))]
        return told

    async def _events(self, request: web.Request) -> web.Response:
        after, count = _count(request, "after", -1), _count(request, "count", 200)
        if after is None or count is None:
            return _refusal(400, "after and count are whole numbers.")
        await self._read()
        return _table(request, event_rows(self._history, after, count))

    async def _prompt(self, request: web.Request) -> web.Response:
        try:
            data = await _body(request, PROMPT_BYTES_MAX)
            text = msgspec.json.decode(data, type=_Prompt).text
        except (TimeoutError, ValueError):  # also text that is no UTF-8
            return _refusal(400, 'Send {"text": "..."}, of at most 4 KiB.')
        if self._write is None or self._writing.locked():
            return _refusal(503, "The model is writing already; ask again when it has.")
        async with self._writing:
            try:
                return _json({"text": await self._write(text)})
            except UserError as error:
                return _refusal(409, f"{error.what} {error.remedy}")
            except Exception:
                logger.exception("the model could not write")
                return _refusal(500, "The model could not write; the reason is where this runs.")

    async def _metrics(self, request: web.Request) -> web.Response:
        from swarmtrain.page import metrics  # seldom asked for, and slow to import

        text = metrics.text_of(await self.view())
        return web.Response(body=text, headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _openapi(self, request: web.Request) -> web.Response:
        return _json(OPENAPI)

    async def _qr(self, request: web.Request) -> web.Response:
        import segno

        if len(request.host) > HOST_CHARS_MAX:
            return _refusal(400, "No host has so long a name.")
        drawn = io.BytesIO()
        segno.make(f"https://{request.host}/", error="m").save(
            drawn, kind="svg", scale=4, border=2, dark="#111", light="#fff"
        )
        return web.Response(body=drawn.getvalue(), content_type="image/svg+xml")

    async def _plots(self, request: web.Request) -> web.Response:
        viewer = self._viewer(request)
        if viewer is None:  # it is large, and strangers are many
            return _refusal(401, "Open the viewing link first.")
        self._welcome(request, viewer)
        try:
            script = await asyncio.to_thread(_packed_script)
        except UserError as error:
            return _refusal(404, f"{error.what} {error.remedy}")
        return web.Response(
            body=script, content_type="text/javascript",
            headers={"Content-Encoding": "gzip", "Cache-Control": "private, max-age=86400"},
        )  # fmt: skip

    # ---- live

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        viewer = self._viewer(request) or b""
        own = sum(other == viewer for other in self._streams.values())
        if own >= STREAMS_PER_VIEWER or len(self._streams) >= STREAMS_MAX:
            return _refusal(503, "Too many pages are open; close one.")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
        queue.put_nowait(_message(await self.view()))
        self._streams[queue] = viewer
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick())
        try:
            with contextlib.suppress(ConnectionError, TimeoutError):
                while (data := await queue.get()) and self._viewer(request) is not None:
                    await self._charge(viewer, len(data))
                    async with asyncio.timeout(SEND_S):
                        await response.write(data)
        finally:
            del self._streams[queue]
        if request.transport is not None:
            request.transport.abort()
        return response

    async def _tick(self) -> None:
        """Make a view a second for all live pages, until there is none."""
        while self._streams:
            await asyncio.sleep(TICK_S)
            data = _message(await self.view())
            for queue in self._streams:
                if not queue.full():  # it takes the next one
                    queue.put_nowait(data)


async def _charge_nothing(viewer: bytes, num_bytes: int) -> None:
    pass


async def _body(request: web.Request, bytes_max: int) -> bytes:
    """The body of a request, or more than so many bytes of it.

    Raises:
        TimeoutError: it does not come.
    """
    data = b""
    async with asyncio.timeout(BODY_S):
        while len(data) <= bytes_max and (more := await request.content.readany()):
            data += more
    return data if len(data) <= bytes_max else b""


class _Prompt(msgspec.Struct, forbid_unknown_fields=True):
    text: Annotated[str, msgspec.Meta(min_length=1)]


class _Look(msgspec.Struct, forbid_unknown_fields=True):
    secret: str = ""


def _message(view: RunView) -> bytes:
    return b"event: run\ndata: " + msgspec.json.encode(view) + b"\n\n"


def _cookie_name(request: web.Request) -> str:
    """Return a name for each page of a machine: cookies of a host are those of all its ports."""
    name = request.transport.get_extra_info("sockname") if request.transport else None
    return f"{COOKIE}_{name[1]}" if isinstance(name, tuple) else COOKIE


def _is_loopback(request: web.Request) -> bool:
    """Return True for a page on this machine, which needs no TLS: some browsers keep a cookie for
    TLS from it."""
    return request.scheme == "http" and request.remote == "127.0.0.1"


def _is_own(request: web.Request) -> bool:
    """Return True for a request of the page itself, or of a program: browsers name other sites."""
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2] == request.host


def _count(request: web.Request, name: str, default: int | None) -> int | None:
    said = request.query.get(name)
    if said is None:
        return default
    return int(said) if _WHOLE.fullmatch(said) else None


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _refusal(status: int, text: str) -> web.Response:
    response = _json({"error": text})
    response.set_status(status)
    return response


def _table(request: web.Request, rows: Sequence[msgspec.Struct]) -> web.Response:
    if request.query.get("format") != "csv":
        return _json(rows)
    told = [msgspec.to_builtins(row) for row in rows]
    return _csv(list(told[0]) if told else [], told)


def _csv(titles: list[str], rows: Iterable[dict[str, Any]]) -> web.Response:
    out = io.StringIO()
    writer = csv.DictWriter(out, titles)
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _cell(value) for key, value in row.items()})
    return web.Response(text=out.getvalue(), content_type="text/csv")


def _cell(value: Any) -> Any:
    """Return a value as a cell that no spreadsheet takes for a formula: names are peers' own."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{key}:{count}" for key, count in value.items())
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _file(name: str) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(
            body=_content(name), content_type=_KINDS[Path(name).suffix], charset="utf-8"
        )

    return answer


@cache
def _content(name: str) -> bytes:
    return (_FILES / name).read_bytes()


@cache
def _packed_script() -> bytes:
    return gzip.compress(plots.script(), 6, mtime=0)


async def _with_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
