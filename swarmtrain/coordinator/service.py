"""The coordinator's life: open or resume a state directory, serve until told or done, close.

A state directory belongs to one run: its settings are hashed into the ledger's first record, so a
changed run file is refused instead of changing the run under its peers. Whatever ends this life,
the next one goes on from the last durable record with the same keys and the same invite.
"""

import asyncio
import contextlib
import errno
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from swarmtrain.config import file as config_file
from swarmtrain.config.asked import planned_by
from swarmtrain.config.built_in import width_of
from swarmtrain.config.settings import OWN_TEXT, RunConfig
from swarmtrain.config.stages import rank_of, stage_layouts
from swarmtrain.config.values import WHOLE_VECTOR_RULES
from swarmtrain.coordinator.app import CoordinatorApp
from swarmtrain.coordinator.collecting import seldom_collected
from swarmtrain.coordinator.corpus_service import CorpusService, Parted, Text
from swarmtrain.coordinator.disk.certificate import RunKeys
from swarmtrain.coordinator.disk.run_directory import (
    LOG,
    Tell,
    adoption,
    check_same_run,
    keys_of,
    note_run_begun,
)
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.disk.store_errors import damaged, of_earlier_version
from swarmtrain.coordinator.door.admission import Door, standing_invite
from swarmtrain.coordinator.door.compatibility import misfit, no_place
from swarmtrain.coordinator.door.listener import Porch
from swarmtrain.coordinator.door.viewing import Viewers, page_link, standing_link
from swarmtrain.coordinator.initial import Initial, keep
from swarmtrain.coordinator.lead import Lead, alone
from swarmtrain.coordinator.meeting_place import MeetingPlace
from swarmtrain.coordinator.organiser import notices
from swarmtrain.coordinator.organiser.orders import Desk, check_more
from swarmtrain.coordinator.outside import Outside
from swarmtrain.coordinator.shell import Addresses, Shell
from swarmtrain.coordinator.text_source import check_same_text, text_of, unreadable
from swarmtrain.data.places import NOWHERE, Places
from swarmtrain.data.tokenizer import FILE as TOKENIZER_FILE
from swarmtrain.foundation import atomic_file
from swarmtrain.foundation import file_descriptors as descriptors
from swarmtrain.foundation.errors import UserError, misuse, port_in_use, translate
from swarmtrain.page.server import Page
from swarmtrain.page.tracking import Tracking
from swarmtrain.page.view import beginning
from swarmtrain.pipeline.costs import stage_needs
from swarmtrain.status import StatusServer
from swarmtrain.why.story import story_of
from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_optimizers.strategies.facts import OpKind
from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.meetings import Means
from swarmtrain_transport.coordinator.members.validation import shown
from swarmtrain_transport.coordinator.ops.guard import GuardTerms
from swarmtrain_transport.coordinator.ops.planning import RunTerms
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.coordinator.stages.stage_rounds import PipelineTerms
from swarmtrain_transport.coordinator.status import CoordinatorStatus
from swarmtrain_transport.credentials.identity import verify
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import PAIR, WHOLE, constant_of
from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.ledger.turns import most_units
from swarmtrain_transport.links.ways import TOKEN_BYTES
from swarmtrain_transport.wire.messages import FIRST_GROUP, Brings
from swarmtrain_transport.wire.records import Record

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Pause between two looks for trackers."""

FILES_BESIDE = 512
"""Descriptors of strangers, viewers and files, beside those of peers."""

Part = Callable[[Text, Path, Tell], Parted]

Watched = Callable[[Rendezvous], contextlib.AbstractAsyncContextManager[None]]


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
    places: Places = NOWHERE,
    takes_changed_text: bool = False,
    rounds: int = 0,
    initial: Initial | None = None,
    linger_s: float = 0.0,
    public_port: int = 0,
    maps: bool = False,
    relay_bytes_per_s: int = 0,
    part: Part | None = None,
    on_page: Callable[[str], None] = lambda link: None,
    tracking: Tracking | None = None,
    lead: Lead | None = None,
    read_text: Callable[[], Text | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
) -> str:
    """Coordinate one run until `stop` is set, or the run is finished and everybody has left. Return
    its result in words, "" if it is not finished. `rounds` moves the end of a run that has begun;
    0 leaves it. `initial` are the weights that the settings name; a member that was here lately and
    slept as the run ended is waited for until it has been away for `linger_s`. Invites name
    `public_host` and `public_port`; with `maps` the router is asked for what is left out. For
    peers that cannot dial each other bytes are passed on, at `relay_bytes_per_s` at most. `part`
    parts the text of a run of experts. `on_page` hears the address of the run's page
    first. `tracking` is told each round's numbers. `lead` is where the log lies, and the keys; None
    for the state directory. `read_text` is `text_of` with its arguments."""
    lead = lead or alone(state_dir)
    with contextlib.closing(lead.store) as store, seldom_collected() as ended:
        groups = group_terms(config)
        if initial is not None:
            roots = await asyncio.to_thread(initial.first_roots, config)
            of_all = config.experts.count > 1  # all begin with the same weights
            groups = tuple(
                replace(one, first_root=roots[0 if of_all else one.group]) for one in groups
            )
        means = Means(partial(secrets.token_bytes, TOKEN_BYTES), True, relay_bytes_per_s)
        now = clock(), wall_clock()
        keys, machine = _resumed(lead, config, groups, *now, rounds, means)
        machine.linger_s = linger_s
        adopt = adoption(store, config, keys, tell)
        shell = Shell(machine, store.append, adopt, roster=machine.view.roster.keys, clock=clock)
        door = _door(store, keys, config, machine, shell, wall_clock)
        if places.tokenizer:
            _keep(state_dir / TOKENIZER_FILE, places.tokenizer)
        read_text = read_text or partial(text_of, config, places, state_dir / "text", tell)
        text = await asyncio.to_thread(read_text)
        check_same_text(store, text, takes_changed_text, tell)
        parted: Parted | None = None
        if config.experts.count > 1 and text is not None:
            assert part is not None, "a run of experts needs its text parted"
            parted = await asyncio.to_thread(part, text, state_dir, tell)
        texts = _texts(config, text, places.tokenizer, initial, store, parted, machine)
        outside = Outside(host, public_host, public_port, tell, maps=maps)
        invite_with = _invites(outside, config, keys, lead)
        desk = Desk(
            machine, shell, store, config.admission, invite_with, wall_clock,
            lambda: texts.progress,
        )  # fmt: skip
        is_shown = config.admission.page != "off"
        page = _page(store, keys, config, machine, desk, clock, wall_clock)
        app = CoordinatorApp(
            shell, door, texts, keys.cert_sha256, machine.note, page if is_shown else None
        )
        runner = app.runner()
        await runner.setup()
        assert runner.server is not None
        porch = Porch(runner.server, keys.server_context())
        meetings = MeetingPlace(shell, relay_bytes_per_s)
        porch.greet, porch.ended = meetings.greet, ended
        status = _status(state_dir, machine, desk, page)
        told: asyncio.Task[None] | None = None
        try:
            _make_room(config.admission.peers_max, tell)
            await _listen(porch, host, port)
            outside.begin(porch.port)
            await status.open()
            shell.start()
            if not shell.has_failed:
                note_run_begun(state_dir, machine, keys, tell)
                if initial is not None:
                    keep(state_dir, initial)
                app.is_ready = True
            await outside.settle(stop)
            lead.found_at(outside.address)
            if app.is_ready and not machine.is_finished:
                secret = standing_invite(store, keys, config.admission, wall_clock())
                if is_shown:
                    on_page(_link(outside, store, keys, config, wall_clock))
                on_ready(invite_with(secret))
            if tracking is not None:
                told = asyncio.create_task(_track(machine, page, tracking))
            others = partial(_others, lead, outside)
            life = _until_over(shell, machine, store, stop, tell, others)
            return await _told_of(watched, life, machine, shell, tell)
        finally:
            app.is_ready = False
            shell.stop()
            if told is not None:
                told.cancel()
                await asyncio.gather(told, return_exceptions=True)
            await page.close()
            await outside.close()
            await status.close(keeps_answering=machine.is_finished)
            await porch.close()
            meetings.close()
            await runner.cleanup()


def _finished_words(machine: Rendezvous, now_s: float) -> str:
    said = f"The run is finished: {machine.status(now_s).result}."
    late = [shown(join.name, limits.NAME_CHARS_MAX) for join in machine.view.roster.values()]
    if late:
        minutes = limits.LINGER_S / 60.0
        said += f"\nIts last round may still be needed by {', '.join(late)}: staying until they"
        said += f" have left, {minutes:.0f} minutes at most."
    return said


async def _told_of(
    watched: Watched | None,
    life: Coroutine[Any, Any, str],
    machine: Rendezvous,
    shell: Shell,
    tell: Tell,
) -> str:
    """Say that the run is finished: before all else if it was, else after its last round's news."""
    was_finished = machine.is_finished
    if was_finished:
        tell(_finished_words(machine, shell.now_s()))
    async with watched(machine) if watched is not None else contextlib.nullcontext():
        result = await life
    if result and not was_finished:
        tell(_finished_words(machine, shell.now_s()))
    return result


async def _until_over(
    shell: Shell,
    machine: Rendezvous,
    store: Store,
    stop: asyncio.Event,
    tell: Tell,
    others: Callable[[], Addresses],
) -> str:
    """Wait for the end, and raise what ended it unless it was meant; the finished run's result."""
    keep = partial(store.keep_losses, machine.first.chronicle.losses)
    own = [
        asyncio.ensure_future(stop.wait()),
        asyncio.ensure_future(shell.finished.wait()),
        asyncio.ensure_future(notices.watch(shell, notices.Notices(tell), keep, others)),
    ]
    ends: list[asyncio.Future[Any]] = [*own, shell.failure]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in own:
            future.cancel()
        *_, watched = await asyncio.gather(*own, return_exceptions=True)
    if isinstance(watched, Exception):
        raise watched
    if shell.has_failed:
        shell.failure.result()
    keep()
    return machine.status(shell.now_s()).result


def _make_room(peers_max: int, tell: Tell) -> None:
    """Allow a connection for each peer of the run, and say so where the system does not."""
    files, needed = descriptors.raise_limit(), peers_max + FILES_BESIDE
    if files < needed:
        tell(
            f"This system lets a process have {files} files open, and {peers_max} peers need"
            f" {needed}: beyond {max(0, files - FILES_BESIDE)} they may find no room. Raise the"
            f" limit ('ulimit -n {needed}', or LimitNOFILE of a service)."
        )


async def _listen(porch: Porch, host: str, port: int) -> None:
    """Bind; the porch knows the port that it became."""
    descriptors.log_shortage_once(asyncio.get_running_loop())
    try:
        await porch.open(host, port)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise port_in_use(host, port) from exc
        raise UserError(
            "SWT-E202",
            f"Cannot listen on {host} port {port}: {exc.strerror or exc}.",
            "The address is not one of this machine, or the system does not allow it.",
            "Use 127.0.0.1 for this machine alone or 0.0.0.0 for all its networks, and a port"
            " above 1023.",
        ) from exc


def _invites(
    outside: Outside, config: RunConfig, keys: RunKeys, lead: Lead
) -> Callable[[bytes], Invite]:
    """The run's invite with any secret, once the port is known."""

    def invite(secret: bytes) -> Invite:
        here, others = outside.address, _others(lead, outside)
        return Invite(*here, config.run.name, keys.cert_sha256, secret).at(here, *others)

    return invite


def _others(lead: Lead, outside: Outside) -> Addresses:
    """Addresses of coordinators that stand by."""
    return tuple(one for one in lead.others() if one != outside.address)


async def _track(machine: Rendezvous, page: Page, tracking: Tracking) -> None:
    """Tell trackers of each round when the next one has ended, so that its loss could come; of the
    last one at the end."""
    told = machine.first.view.last_op  # an earlier life has told of those
    is_over = False
    while not is_over:
        try:
            await asyncio.sleep(LOOK_S)
        except asyncio.CancelledError:
            is_over = True
        if machine.first.view.last_op - told > (not is_over):
            view = await page.view(is_new=True)
            rounds = [one for one in page.rounds if one.number > told]
            ended = rounds if is_over else rounds[:-1]
            if ended:
                told = ended[-1].number
                tracking.tell(view, ended, machine.first.chronicle.losses)


def _link(
    outside: Outside,
    store: Store,
    keys: RunKeys,
    config: RunConfig,
    wall_clock: Callable[[], float],
) -> str:
    """The address of the run's page, with the viewing link's secret where it takes one."""
    is_public = config.admission.page == "public"
    secret = "" if is_public else standing_link(store, keys, wall_clock()).hex()
    return page_link(*outside.address, secret)


# ---- the parts


@dataclass(frozen=True, slots=True)
class _Run:
    """The run as its page reads it."""

    desk: Desk
    ledger: Ledger
    store: Store
    newest: Mapping[int, float]

    def status(self) -> CoordinatorStatus:
        return self.desk.status()

    def num_records(self) -> int:
        return len(self.ledger)

    def records(self, first: int) -> Iterator[Record]:
        return self.ledger.since(first)

    def losses(self) -> Mapping[int, float]:
        return {**self.store.losses(), **self.newest}

    def begins(self) -> None:
        """All records are here."""


def _page(
    store: Store,
    keys: RunKeys,
    config: RunConfig,
    machine: Rendezvous,
    desk: Desk,
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
) -> Page:
    is_public = config.admission.page == "public"
    return Page(
        _Run(desk, machine.writer.ledger, store, machine.first.chronicle.losses),
        *beginning(config, machine.terms.value_bytes),
        Viewers(store, keys, is_public=is_public, wall_clock=wall_clock),
        clock,
        wall_clock,
    )


def _door(
    store: Store,
    keys: RunKeys,
    config: RunConfig,
    machine: Rendezvous,
    shell: Shell,
    wall_clock: Callable[[], float],
) -> Door:
    needs = stage_needs(config)

    def refusal(brings: Brings) -> tuple[str, str] | None:
        # Of a finished run everybody hears that it is finished.
        if machine.is_finished:
            return None
        genesis = machine.view.first.genesis
        return misfit(brings, config, genesis) or no_place(brings, config, needs)

    return Door(
        store, keys.cert_sha256, peers_max=config.admission.peers_max,
        others_in=shell.others_in, is_banned=machine.view.banned.__contains__,
        wall_clock=wall_clock, proves=machine.recovery.proves_membership,
        misfit=refusal,
    )  # fmt: skip


def _resumed(
    lead: Lead,
    config: RunConfig,
    groups: Sequence[RunTerms],
    now_s: float,
    wall_s: float,
    rounds: int = 0,
    means: Means | None = None,
) -> tuple[RunKeys, Rendezvous]:
    """The run of this store where it was left; a new one where there was none."""
    store = lead.store
    first = next(store.replay(), None)
    if rounds and first is None:
        raise misuse(
            "--rounds adds rounds to a run that has begun, and none has begun here.",
            f"Leave it out; the run file says how many there are: rounds = {config.num_ops}.",
        )
    keys = keys_of(lead.keys, wall_s, may_create=first is None)
    if first is not None:
        check_same_run(first, config, keys)
    terms, *more = groups
    try:
        machine = Rendezvous(
            terms, keys.run_key_public, lead.replayed or store.replay(), keys.sign, verify,
            store.term, now_s,
            is_lost=keys.have_begun and first is None, more_groups=more,
            needs=stage_needs(config) if config.pipeline.num_stages > 1 else (),
            has_experts=config.experts.count > 1, pipeline=pipeline_terms(config),
            archive=store, rounds=rounds, places=config.admission.peers_max,
            means=means,
        )  # fmt: skip
    except RemoteFault as exc:
        # The chain is whole and signed: only another version makes other images of it.
        is_old = exc.reason == "snapshot"
        raise (of_earlier_version(LOG) if is_old else damaged(LOG, str(exc))) from exc
    if rounds:
        check_more(rounds, machine)
    _check_layouts(groups, machine)
    machine.first.chronicle.losses.update(store.losses())
    return keys, machine


def _check_layouts(groups: Sequence[RunTerms], machine: Rendezvous) -> None:
    """The states of this directory must be of the layouts that this version works out.

    Raises:
        UserError: SWT-E703.
    """
    for terms in groups:
        view = machine.view.groups.get(terms.group)
        genesis = view.genesis if view is not None else None
        if genesis is not None and terms.layout and genesis.layout != terms.layout:
            of = f"stage {terms.group} of " if len(groups) > 1 else ""
            raise UserError(
                "SWT-E703",
                f"The run's state of {of}its model has another layout than this version gives it.",
                "Names, shapes or the cut into stages differ, so peers could not exchange.",
                "Start it with the version of swarmtrain that it began with.",
            )


def group_terms(config: RunConfig) -> tuple[RunTerms, ...]:
    """Return the terms of each group: a model in stages has one group for each, in their order."""
    first = run_terms(config)
    if (count := config.experts.count) > 1:
        start = max(first.min_contributors, first.start_peers // count)
        return tuple(replace(first, group=expert, start_peers=start) for expert in range(count))
    if config.pipeline.num_stages == 1:
        return (first,)
    return tuple(
        # The pipeline waits for start_peers: with fewer in a stage its round has no books.
        replace(
            first,
            group=stage,
            layout=layout,
            start_peers=1,
            holders=limits.HOLDERS,
            steps_alone=first.kind == PAIR,
        )
        for stage, layout in enumerate(stage_layouts(config))
    )


def pipeline_terms(config: RunConfig) -> PipelineTerms | None:
    """Return the terms of a pipeline's rounds, None for a model in one piece."""
    pipeline, inner = config.pipeline, config.inner
    if pipeline.num_stages == 1:
        return None
    flushes = pipeline.schedule == "flush"
    step = inner.batch // pipeline.micro_batch
    return PipelineTerms(
        share=step if flushes else step * config.steps_per_round,
        steps=config.steps_per_round if flushes else 0,
        clips=flushes and inner.grad_clip > 0,
        start_peers=config.exchange.start_peers,
        tokens=pipeline.micro_batch * config.model.context,
        round_steps=config.steps_per_round,
        step_micro_batches=(
            config.tokens_per_step // (pipeline.micro_batch * config.model.context)
            if inner.schedule == "tokens" else 0
        ),
        evaluates=config.model.kind != "custom",
        visit=pipeline.visit,
        turn_rounds=pipeline.turn_rounds,
        rank=rank_of(pipeline.activations),
        width=config.model.width,
        most_units=most_units(pipeline.turn_angle),
    )  # fmt: skip


def run_terms(config: RunConfig) -> RunTerms:
    """Return the part of a run file that the exchange of its first group must know."""
    exchange, guard = config.exchange, config.guard
    parts = facts_of(exchange.codec)
    result = facts_of(parts.result)
    rule = "" if config.outer.robust == "none" else config.outer.robust
    kind = constant_of((config.facts.kind or OpKind.MEAN).value)
    return RunTerms(
        run_id=config.run.name,
        config=config_file.canonical(config),
        config_hash=config_file.config_hash(config),
        rounds=config.num_ops,
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
        result_codec="" if kind in WHOLE or result == parts else result.name,
        rule=rule,
        value_bytes=max(one.bytes_per_value(exchange.block) for one in (parts, result)),
        kind=kind,
        scalars=WHOLE_VECTOR_RULES.get(rule, ""),
        layout=stage_layouts(config)[FIRST_GROUP],
        ops_at_once=config.ops_at_once,
        hurries=config.facts.hurries,
        **planned_by(config.facts, config.strategy.get(config.outer.strategy, {})),
        unit=config.counted_unit,
        guard=GuardTerms(guard.spike, guard.window, guard.back, guard.limit),
    )


def _keep(path: Path, data: bytes) -> None:
    """Have a file in the state directory, where other commands find it."""
    try:
        if not path.exists() or path.read_bytes() != data:
            atomic_file.write(path, data, mode=0o600)
    except OSError as exc:
        raise translate(exc, at_coordinator=True) or unreadable(exc) from exc


def _texts(
    config: RunConfig,
    text: Text | None,
    tokenizer: bytes,
    initial: Initial | None,
    store: Store,
    parted: Parted | None,
    machine: Rendezvous,
) -> CorpusService:
    data, width, context = config.data, width_of(config), config.model.context
    # Peers that bring a model or text have samples of their own kind.
    is_known = config.model.kind != "custom" and data.source != OWN_TEXT
    return CorpusService(
        text, seed=config.run.seed, lease_pieces_max=data.lease_pieces,
        piece_samples=data.piece_bytes // (context * width) if is_known else 0,
        example_bytes=(context + 1) * width if is_known else 0,
        tokenizer=tokenizer, initial=initial, uses=store.text_uses(), keep=store.keep_uses,
        parted=parted, group_of=lambda peer: (*machine.view.groups_of(peer), 0)[0],
    )  # fmt: skip


def _status(state_dir: Path, machine: Rendezvous, desk: Desk, page: Page) -> StatusServer:
    ledger = machine.writer.ledger
    return StatusServer(
        state_dir,
        desk.status,
        lambda number, group: story_of(ledger.since(0), number, group).fields(),
        desk.hear,
        page.numbers,
    )
