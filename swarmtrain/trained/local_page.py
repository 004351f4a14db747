"""The run's page on a peer's own machine: the same page, read from a state directory.

Nothing is asked of the peer but its `status`; the rest is its copy of the ledger, on the disk. So a
peer that was stopped is shown, too, and no port is open while nobody looks. Validation losses and
other peers' rates are with the coordinator, and on its page.

Only whoever has the link that was printed here may look: other users of the machine reach loopback.
"""

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from swarmtrain import status
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig
from swarmtrain.console.units import human_bytes
from swarmtrain.credit.lifetime import kept_in, total_words
from swarmtrain.foundation import dirs, regular_file
from swarmtrain.foundation.errors import UserError, port_in_use
from swarmtrain.page.server import Page
from swarmtrain.page.view import Meter, beginning
from swarmtrain.peer.disk.group_storage import RUN_FILE
from swarmtrain.peer.disk.ledger_file import FILE_NAME, read
from swarmtrain.peer.disk.storage import beginning_in
from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_transport.coordinator.status import CoordinatorStatus, PeerStatus
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.ledger.snapshots import from_image
from swarmtrain_transport.wire.records import BodyReader, Record

LOOK_S = 1.0
"""Pause between two looks into the directory."""

METER_S = 10.0
"""Time over which a rate is told."""

COOKIES_MAX = 64
PROMPT_TOKENS = 120
STOPPED = "is not running"
STOPPED_WORDS = "this peer, which is not running"


class LinkGuard:
    """Lets in who has the link of this process."""

    is_public = False

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)
        self._cookies: dict[str, bytes] = {}

    def enter(self, secret: str, address: str, now_s: float) -> str | None:
        """Return a cookie for the link's secret."""
        if not (secret.isascii() and hmac.compare_digest(secret, self.secret)):
            return None
        cookie = secrets.token_hex(16)
        self._cookies[cookie] = hashlib.sha256(cookie.encode()).digest()
        if len(self._cookies) > COOKIES_MAX:
            del self._cookies[next(iter(self._cookies))]
        return cookie

    def judge(self, cookie: str) -> bytes | None:
        """Return the viewer's id, None for a cookie that was not given out here."""
        return self._cookies.get(cookie)


class LocalRun:
    """A run as a peer's state directory knows it.

    Args:
        directory: state directory of a peer.

    Raises:
        UserError: there is no run in it, or its ledger cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._path = directory, directory / FILE_NAME
        self.config = _config_of(directory)
        self._records: list[Record] = []
        self._num_bytes, self._in_all = -1, ""
        self._image: bytes | None = None
        self._view, self._reader, self.begins_at = LedgerView(), BodyReader(), 0
        self._peer: Mapping[str, Any] = {}
        self._moved: deque[tuple[float, ...]] = deque(maxlen=round(METER_S / LOOK_S) + 1)
        self.take(self.heard())

    def heard(self) -> tuple[Mapping[str, Any] | None, int, list[Record]]:
        """Ask the peer how it is, and read its ledger if that has grown. Changes nothing."""
        try:
            told: Mapping[str, Any] | None = status.ask(self._directory)
        except UserError:
            told = None
        num_bytes = self._path.stat().st_size
        return told, num_bytes, read(self._path).records if num_bytes != self._num_bytes else []

    def take(self, heard: tuple[Mapping[str, Any] | None, int, list[Record]]) -> None:
        """Take what was heard."""
        told, num_bytes, records = heard
        self._peer = told or {**self._peer, "state": STOPPED, "connected": False}
        moved = tuple(int(self._peer.get(key, 0)) for key in ("bytes_up", "bytes_down"))
        if self._moved and any(a < b for a, b in zip(moved, self._moved[-1][1:], strict=True)):
            self._moved.clear()  # another process of the peer
        self._moved.append((time.monotonic(), *moved))
        if num_bytes == self._num_bytes:
            return
        if not self._records and (begins := beginning_in(self._directory, records)) is not None:
            self._image = begins.image
            self._view, self._reader = from_image(begins.image)
            self.begins_at = begins.snapshot.index + 1
        done = self.num_records()
        fresh = [record for record in records if record.index >= done]
        for record in fresh:
            self._view.apply(record, self._reader.read(record))
        self._records += fresh
        self._num_bytes = num_bytes
        self._in_all = total_words(kept_in(dirs.lifetime_dir())[0])

    def status(self) -> CoordinatorStatus:
        """The run as far as this peer knows it."""
        view, first = self._view, self._view.first
        me, rounds = str(self._peer.get("peer", "")), view.rounds or self.config.num_ops
        is_over = first.committed >= rounds
        root = first.root_after(first.last_op)
        return CoordinatorStatus(
            run=self.config.run.name, term=self._records[-1].term if self._records else 0,
            round=max(0, first.last_op), committed=first.committed, rounds=rounds,
            phase="finished" if is_over else "training", wanted_root=root.hex() if root else "",
            num_values=first.genesis.num_values if first.genesis else 0,
            peers=tuple(
                _row(peer.hex(), join.name, first.last_op, self._peer if peer.hex() == me else {})
                for peer, join in view.roster.items()
            ),
            losses={}, exclusions=(), events=(),
            checkpoint_op=first.checkpoint.op if first.checkpoint else -1,
            waiting_for=STOPPED_WORDS if self._peer["state"] == STOPPED and not is_over
            else str(self._peer.get("waiting_for", "")),
            unit=self.config.counted_unit,
        )  # fmt: skip

    def num_records(self) -> int:
        """Index behind the newest record."""
        return self._records[-1].index + 1 if self._records else self.begins_at

    def records(self, first: int) -> Iterator[Record]:
        """Records from this one on."""
        return iter(self._records[max(0, first - self.begins_at) :])

    def losses(self) -> Mapping[int, float]:
        """None: peers do not keep the others' evaluations."""
        return {}

    def begins(self) -> tuple[LedgerView, BodyReader, int] | None:
        """The fold before the first record that is here, anew each time."""
        return None if self._image is None else (*from_image(self._image), self.begins_at)

    def own(self) -> tuple[tuple[str, str], ...]:
        """Facts of the peer itself, in words."""
        told = self._peer
        facts = (
            ("peer", f"{told['name']} ({str(told['peer'])[:8]})" if "peer" in told else ""),
            ("state", str(told.get("state", STOPPED))),
            ("round", str(told.get("round", ""))),
            ("training loss", f"{told['loss']:.3f}" if told.get("loss") else ""),
            ("speed", f"{told['tokens_per_s']:.0f} {told['unit']}/s" if told.get("step") else ""),
            ("trained on", f"{told['tokens']:,} {told['unit']}" if told.get("tokens") else ""),
            ("sent", human_bytes(told["bytes_up"]) if "bytes_up" in told else ""),
            ("received", human_bytes(told["bytes_down"]) if "bytes_down" in told else ""),
            ("merged in all runs", self._in_all),
            ("limits", str(told.get("limits", ""))), ("ways", str(told.get("ways", ""))),
            ("cannot be reached by", str(told.get("unreachable", ""))),
            ("result", str(told.get("result", ""))),
        )  # fmt: skip
        return tuple((label, words) for label, words in facts if words)

    def meters(self) -> tuple[Meter, ...]:
        """Bytes of the peer beside its limits on the link."""
        caps = self._peer.get("caps") or {}
        (begun_s, *before), (ended_s, *now) = self._moved[0], self._moved[-1]
        passed_s = max(ended_s - begun_s, 1e-3)
        up, down = (round((b - a) / passed_s) for a, b in zip(before, now, strict=True))
        found = (
            Meter("sent a second", up, int(caps.get("up", 0)), "B/s"),
            Meter("received a second", down, int(caps.get("down", 0)), "B/s"),
            Meter("moved today", int(self._peer.get("today", 0)), int(caps.get("daily", 0)), "B"),
        )
        return tuple(one for one in found if one.most and self._peer["state"] != STOPPED)

    def page(self, guard: LinkGuard) -> Page:
        """The page of this run, for who has the link."""
        config = self.config
        value_bytes = facts_of(config.exchange.codec).bytes_per_value(config.exchange.block)
        return Page(
            self, *beginning(config, value_bytes), guard, time.monotonic, time.time,
            own=self.own, meters=self.meters, write=self._write,
        )  # fmt: skip

    async def _write(self, prompt: str) -> str:
        """Let the newest checkpoint of this directory write on."""
        return await asyncio.to_thread(_written, str(self._directory), prompt)


async def serve(directory: Path, port: int, stop: asyncio.Event, on_ready: Any) -> None:
    """Show the page of a peer's directory on loopback until `stop` is set.

    Args:
        directory: state directory of a peer.
        port: 0 for a free one.
        stop: asks for the end.
        on_ready: hears the link.

    Raises:
        UserError: there is no run, or the port is taken.
    """
    run, guard = await asyncio.to_thread(LocalRun, directory), LinkGuard()
    page, app = run.page(guard), web.Application()
    page.add_to(app)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError as error:
            raise port_in_use("127.0.0.1", port) from error
        on_ready(f"http://127.0.0.1:{runner.addresses[0][1]}/#{guard.secret}")
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), LOOK_S)
            except TimeoutError:
                with contextlib.suppress(OSError, UserError, RemoteFault):  # looked at again
                    run.take(await asyncio.to_thread(run.heard))
    finally:
        await page.close()
        await runner.cleanup()


def _row(peer: str, name: str, newest: int, told: Mapping[str, Any]) -> PeerStatus:
    """A peer that is in; of others than this one only the ledger tells."""
    return PeerStatus(
        peer=peer, name=name, state=str(told.get("state", "in the run")),
        round=int(told.get("round", max(0, newest))), step=int(told.get("step", 0)),
        loss=float(told.get("loss", 0.0)), tokens_per_s=float(told.get("tokens_per_s", 0.0)),
        tokens=int(told.get("tokens", 0)), bytes_up=int(told.get("bytes_up", 0)),
        bytes_down=int(told.get("bytes_down", 0)), replayed_ops=0,
        state_root=str(told.get("state_root", "")), silent_s=0.0,
    )  # fmt: skip


def _config_of(directory: Path) -> RunConfig:
    try:
        data = regular_file.read(directory / RUN_FILE, config_file.FILE_BYTES_MAX)
        return config_file.from_canonical(data)
    except OSError as error:
        raise status.nothing_ran_in(directory) from error


def _written(directory: str, prompt: str) -> str:
    """The prompt and what the newest checkpoint writes after it."""
    from swarmtrain.models.device import device_of
    from swarmtrain.trained.opened import open_trained, use_threads
    from swarmtrain.trained.tokens import TextStream
    from swarmtrain.trained.writing import Taste, written

    trained = open_trained(directory)
    model = trained.model(device_of("cpu"))
    use_threads(trained)
    ids, context = trained.tokenizer.encode(prompt), trained.config.model.context
    stream, parts = TextStream(trained.tokenizer, ids), [prompt]
    vocabulary = trained.tokenizer.vocabulary
    for token in written(model, ids, PROMPT_TOKENS, context, Taste(), vocabulary):
        if token in trained.tokenizer.end:
            break
        parts.append(stream.take(token))
    return "".join([*parts, stream.rest()])
