"""The coordinator's life: open or resume a state directory, serve until told or done, close.

A state directory belongs to one run: its settings are hashed into the ledger's first record, so a
changed run file is refused instead of changing the run under its peers. Whatever ends this life,
the next one goes on from the last durable record with the same keys and the same invite.
"""

import asyncio
import contextlib
import errno
import ipaddress
import itertools
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from swarmtrain import config_file, descriptors
from swarmtrain.config import RunConfig
from swarmtrain.config_pairs import PAIRED
from swarmtrain.config_values import GATHERING, WHOLE_VECTOR_RULES
from swarmtrain.control_lane import CLOSE_TIMEOUT_S
from swarmtrain.coordinator import notices
from swarmtrain.coordinator.admission import Door, standing_invite
from swarmtrain.coordinator.app import CoordinatorApp
from swarmtrain.coordinator.certificate import (
    FRESH_KEY_FILE,
    RUN_KEY_FILE,
    TLS_FILE,
    RunKeys,
    load_or_create,
    note_begun,
)
from swarmtrain.coordinator.corpus_service import CorpusService
from swarmtrain.coordinator.orders import Desk
from swarmtrain.coordinator.porch import Porch
from swarmtrain.coordinator.shell import Shell
from swarmtrain.coordinator.store import SIDE_FILES, Store
from swarmtrain.coordinator.store_errors import StoreDamaged, damaged
from swarmtrain.data.corpus import CorpusMissing, build_corpus
from swarmtrain.errors import UserError, port_in_use, translate
from swarmtrain.status import StatusServer
from swarmtrain.why import explain_round
from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.identity import verify
from swarmtrain_transport.invite import Invite
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR
from swarmtrain_transport.ledger import Record, Run, body_of
from swarmtrain_transport.planning import RunTerms
from swarmtrain_transport.rendezvous import Rendezvous

logger = logging.getLogger(__name__)

Tell = Callable[[str], None]
Watched = Callable[[Rendezvous], contextlib.AbstractAsyncContextManager[None]]
Adoption = Callable[[tuple[Record, ...], int], None]

_LOG = "The run's log"

_LEDGER_LOST = (
    "The ledger is missing: {} holds the keys of a run that has begun, and not its log.\n"
    "Waiting for a peer that has a copy; the run goes on from there. Nothing is decided before.\n"
    "If no peer is left, `swarmtrain up --new-run` begins another run here, with a new invite."
)

ROUTE_PROBE = ("192.0.2.1", 9)
"""An address that belongs to nobody (RFC 5737): asking for the route to it sends nothing."""


async def serve(
    config: RunConfig,
    state_dir: Path,
    host: str,
    port: int,
    public_host: str,
    *,
    on_ready: Callable[[Invite], None],
    stop: asyncio.Event,
    tell: Tell = logger.info,
    watched: Watched | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
) -> None:
    """Coordinate one run until `stop` is set, or the run is finished and everybody has left.

    Args:
        state_dir: made if it is missing; one coordinator at a time.
        host, port: address and TCP port to listen on, 0 for any free one.
        public_host: name that invites carry; "" for the address listened on.
        on_ready: called once with the run's invite when peers may come.
        tell: hears what the organiser must know, in sentences; `watched` is open meanwhile.
        clock, wall_clock: monotonic seconds, and seconds since 1970.

    Raises:
        UserError: SWT-E404 directory in use, E606 settings changed, E805 log or keys damaged,
            E402 disk full, E403 not writable, E201 or E202 cannot listen, E801 no text.
    """
    with contextlib.closing(Store.open(state_dir)) as store:
        records = store.records()
        keys = _keys(state_dir, wall_clock(), may_create=not records)
        _check_same_run(records, config, keys)
        machine = _machine(config, keys, records, store.term, clock())
        shell = _shell(machine, store, clock, _adoption(store, config, keys, tell))
        door = _door(store, keys, config, machine, shell, wall_clock)
        texts = await asyncio.to_thread(_texts, config)
        app = CoordinatorApp(shell, door, texts, keys.cert_sha256)
        runner = web.AppRunner(app.build(), access_log=None, shutdown_timeout=2 * CLOSE_TIMEOUT_S)
        porch = await _porch(runner, keys)
        invite_with = _invites(porch, public_host or reachable_host(host), config, keys)
        desk = Desk(machine, shell, store, config.admission, invite_with, wall_clock)
        status = _status(state_dir, machine, desk)
        try:
            await _listen(porch, host, port)
            await status.open()
            secret = standing_invite(store, keys, config.admission, wall_clock())
            shell.start()
            if not shell.has_failed:
                _note_begun(state_dir, machine, keys, tell)
                app.is_ready = True
                on_ready(invite_with(secret))
            async with watched(machine) if watched is not None else contextlib.nullcontext():
                await _until_over(shell, stop, tell)
        finally:
            app.is_ready = False
            shell.stop()
            await status.close()
            await porch.close()
            await runner.cleanup()


async def _until_over(shell: Shell, stop: asyncio.Event, tell: Tell) -> None:
    """Wait for the end, and raise what ended it unless it was meant."""
    own = [
        asyncio.ensure_future(stop.wait()),
        asyncio.ensure_future(shell.finished.wait()),
        asyncio.ensure_future(notices.watch(shell, notices.Notices(tell))),
    ]
    ends: list[asyncio.Future[Any]] = [*own, shell.failure]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in own:
            future.cancel()
        *_, watching = await asyncio.gather(*own, return_exceptions=True)
    if isinstance(watching, Exception):
        raise watching
    if shell.has_failed:
        shell.failure.result()


async def _porch(runner: web.AppRunner, keys: RunKeys) -> Porch:
    await runner.setup()
    assert runner.server is not None
    return Porch(runner.server, keys.server_context())


async def _listen(porch: Porch, host: str, port: int) -> None:
    """Bind; the porch knows the port that it became."""
    # No higher limit: few strangers stand there at once, and no decision opens a file.
    descriptors.log_shortage_once(asyncio.get_running_loop())
    try:
        await porch.open(host, port)
    except OSError as exc:
        raise _cannot_listen(host, port, exc) from exc


def _invites(
    porch: Porch, host: str, config: RunConfig, keys: RunKeys
) -> Callable[[bytes], Invite]:
    """The run's invite with any secret, once the port is known."""
    return lambda secret: Invite(host, porch.port, config.run.name, keys.cert_sha256, secret)


def reachable_host(host: str) -> str:
    """What an invite says when no public host is given.

    A listening address as it is; for "everywhere" the address by which this machine reaches
    other networks, or its name when it reaches none.
    """
    if host not in ("", "0.0.0.0", "::", "*"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ROUTE_PROBE)
            found: str = probe.getsockname()[0]
        except OSError:
            return socket.gethostname()
    return socket.gethostname() if ipaddress.ip_address(found).is_unspecified else found


# ---- the parts


def _shell(machine: Rendezvous, store: Store, clock: Callable[[], float], adopt: Adoption) -> Shell:
    return Shell(machine, store.append, adopt, roster=machine.view.roster.keys, clock=clock)


def _door(
    store: Store,
    keys: RunKeys,
    config: RunConfig,
    machine: Rendezvous,
    shell: Shell,
    wall_clock: Callable[[], float],
) -> Door:
    return Door(
        store, keys.cert_sha256, peers_max=config.admission.peers_max,
        others_in=shell.others_in, is_banned=machine.view.banned.__contains__,
        wall_clock=wall_clock, takes_copies=lambda: machine.history.takes_copies,
    )  # fmt: skip


def _adoption(store: Store, config: RunConfig, keys: RunKeys, tell: Tell) -> Adoption:
    """How records become durable that a peer has brought. A whole ledger must be of this run file,
    as one on the disk must."""

    def adopt(records: tuple[Record, ...], term: int) -> None:
        if not records[0].index:
            _check_same_run(records, config, keys)
            tell("A peer has brought a copy of the lost ledger; others may have a longer one.")
        store.adopt(records, term)

    return adopt


def _note_begun(state_dir: Path, machine: Rendezvous, keys: RunKeys, tell: Tell) -> None:
    """From the first record on a ledger that is missing is a lost one."""
    if machine.history.is_missing:
        tell(_LEDGER_LOST.format(state_dir))
    else:
        note_begun(keys)


def _keys(state_dir: Path, wall_s: float, *, may_create: bool) -> RunKeys:
    try:
        return load_or_create(state_dir, may_create=may_create, wall_s=wall_s)
    except OSError as exc:
        raise translate(exc, at_coordinator=True) or _unwritable(state_dir, exc) from exc


def set_aside(state_dir: Path, tell: Tell) -> None:
    """Make room for another run: what an earlier one left moves into a folder of its own.

    Raises:
        UserError: SWT-E404, its coordinator runs; E403, the directory cannot be written.
    """
    with contextlib.suppress(StoreDamaged):
        Store.open(state_dir).close()
    # The ledger first: keys that stay behind wait for it, a ledger without keys is of no use.
    names = (*SIDE_FILES, RUN_KEY_FILE, FRESH_KEY_FILE, TLS_FILE)
    numbers = itertools.count(1)
    folder = next(f for n in numbers if not (f := state_dir / f"before-{n}").exists())
    try:
        folder.mkdir(mode=0o700)
        for name in names:
            if (state_dir / name).exists():
                (state_dir / name).rename(folder / name)
    except OSError as exc:
        raise translate(exc, at_coordinator=True) or _unwritable(state_dir, exc) from exc
    tell(f"Another run begins in {state_dir}. Keys and log of the one before are in {folder}.")


def _check_same_run(records: tuple[Record, ...], config: RunConfig, keys: RunKeys) -> None:
    """The ledger's first record must name these settings, this key and this protocol."""
    if not records:
        return
    run = body_of(records[0])
    if not isinstance(run, Run):
        raise damaged(_LOG, "its first record is not RUN")
    if run.config_hash != config_file.config_hash(config):
        raise UserError(
            "SWT-E606",
            f"The run file differs from the one that run {run.run_id} began with.",
            "Every peer checks its hash, so a run keeps its settings for life.",
            "Bring back the old run file, or start a new run with --new-run or --state-dir.",
        )
    if run.run_key != keys.run_key_public:
        raise damaged(_LOG, "its records are signed by another key than the one beside it")
    if run.protocol != limits.PROTOCOL_VERSION:
        raise UserError(
            "SWT-E703",
            f"The run speaks protocol {run.protocol}, this version {limits.PROTOCOL_VERSION}.",
            "Its peers would not understand this coordinator.",
            "Start it with the version of swarmtrain that it began with.",
        )


def _machine(
    config: RunConfig, keys: RunKeys, records: tuple[Record, ...], term: int, now_s: float
) -> Rendezvous:
    try:
        return Rendezvous(
            run_terms(config), keys.run_key_public, records, keys.sign, verify, term, now_s,
            is_lost=keys.have_begun and not records,
        )  # fmt: skip
    except RemoteFault as exc:
        raise damaged(_LOG, str(exc)) from exc


def run_terms(config: RunConfig) -> RunTerms:
    """What the exchange must know of a run file."""
    exchange = config.exchange
    parts = facts_of(exchange.codec)
    result = facts_of(parts.result)
    rule = "" if config.outer.robust == "none" else config.outer.robust
    gathers = config.outer.strategy in GATHERING
    pairs = config.outer.strategy in PAIRED
    return RunTerms(
        run_id=config.run.name,
        config=config_file.canonical(config),
        config_hash=config_file.config_hash(config),
        rounds=config.run.rounds,
        codec=exchange.codec,
        exact=parts.exact and not rule,
        block=exchange.block,
        chunk_values=exchange.chunk_values,
        e_max=exchange.e_max,
        equal_slices=exchange.slices == "equal",
        counts_samples=config.inner.schedule == "tokens",
        min_contributors=exchange.min_contributors,
        start_peers=exchange.start_peers,
        wait_ready_s=exchange.wait_ready_s,
        deadline_floor_s=exchange.deadline_floor_s,
        deadline_cap_s=exchange.deadline_cap_s,
        checkpoint_rounds=config.checkpoint.every_rounds,
        snapshot_rounds=config.checkpoint.snapshot_rounds,
        result_codec="" if gathers or pairs or result == parts else result.name,
        rule=rule,
        value_bytes=max(one.bytes_per_value(exchange.block) for one in (parts, result)),
        kind=GATHER if gathers else PAIR if pairs else MEAN,
        scalars=WHOLE_VECTOR_RULES.get(rule, ""),
    )


def _texts(config: RunConfig) -> CorpusService:
    """About half a second of reading and hashing, so it runs beside the loop that hears Ctrl+C."""
    data, seed = config.data, config.run.seed
    if data.source == "own":
        return CorpusService(None, seed=seed, lease_pieces_max=data.lease_pieces)
    try:
        text = build_corpus(data.piece_bytes, validation_pieces=data.validation_pieces)
    except CorpusMissing as exc:
        raise UserError(
            "SWT-E801",
            "No training text was found on this machine.",
            "The built-in text is the standard library's own sources, which this Python lacks.",
            str(exc),
        ) from exc
    # A model that peers bring themselves has samples of its own kind.
    window = 0 if config.model.kind == "custom" else config.model.context
    return CorpusService(
        text, seed=seed, lease_pieces_max=data.lease_pieces,
        piece_samples=data.piece_bytes // window if window else 0,
    )  # fmt: skip


# ---- the errors


def _unwritable(state_dir: Path, error: OSError) -> UserError:
    return UserError(
        "SWT-E403",
        f"{state_dir} cannot be used: {error.strerror or error}.",
        "Without its state directory the coordinator could not come back after a stop.",
        "Name a directory that you own with --state-dir.",
    )


def _cannot_listen(host: str, port: int, error: OSError) -> UserError:
    if error.errno == errno.EADDRINUSE:
        return port_in_use(host, port)
    return UserError(
        "SWT-E202",
        f"Cannot listen on {host} port {port}: {error.strerror or error}.",
        "The address is not one of this machine, or the system does not allow it.",
        "Use 127.0.0.1 for this machine alone or 0.0.0.0 for all its networks, and a port"
        " above 1023.",
    )


def _status(state_dir: Path, machine: Rendezvous, desk: Desk) -> StatusServer:
    ledger = machine.scribe.ledger
    return StatusServer(
        state_dir, desk.status, lambda number: explain_round(ledger.since(0), number), desk.hear
    )
