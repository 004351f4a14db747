"""The exchange of replicas: the production coordinator, participants and training machines of a
run.

Nobody waits by a clock. While somebody can make an inner step no time passes; an op moves in no
time; and time passes when all wait for the coordinator, or where peers go apart. The bytes that
moved are counted here, and their seconds are modelled elsewhere.

A contribution that is lost comes too late: its peer is not in the op's plan, unless the op waits
for as many as it needs.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Protocol

from swarmtrain.compare.costs import Traffic
from swarmtrain.compare.crowd import Crowd, Keys, Member
from swarmtrain.compare.plan import NETS, Pace, Plan
from swarmtrain.config.asked import planned_by
from swarmtrain.config.file import canonical, config_hash
from swarmtrain.config.values import TELLABLE, WHOLE_VECTOR_RULES
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.arithmetic import CodecArithmetic
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.machine import (
    Actions,
    Applied,
    Ended,
    GiveAhead,
    Outcome,
    Ready,
    TrainingMachine,
    tell,
)
from swarmtrain.simulate.ground.quick_keys import RUN_KEY, quick_sign, quick_verify
from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_optimizers.strategies.base import OpKind
from swarmtrain_optimizers.strategies.registry import facts_named
from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ops.planning import RunTerms
from swarmtrain_transport.kinds import CLOCKS, GATHER, MEAN, PAIR
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.records import BodyReader, Commit, Freeze, Record, Skip
from swarmtrain_transport.wire.records import Plan as PlanRecord

_BOOT = b"compared"
_CHUNK_VALUES = 262_144
_WAIT_READY_S = 1.0
_ENDLESS = 1 << 30
"""Ops of a run, and between two checkpoints: the schedule ends it, and nobody joins or returns."""

_KINDS = {OpKind.MEAN: MEAN, OpKind.GATHER: GATHER, OpKind.PAIR: PAIR}

_PAYLOAD = frozenset(
    {FrameKind.PART, FrameKind.RESULT, FrameKind.BLOB, FrameKind.PIECE, FrameKind.AHEAD}
)

_ALIKE: Mapping[PeerId, float] = MappingProxyType({})

_ALONE = "alone"
"""FREEZE's word for the odd one of a pair op, who gave what nobody could take."""


@dataclass(slots=True)
class OpTold:
    """One op so far.

    Attributes:
        up, down: payload bytes of each peer.
        ahead: bytes of all peers that went before the op was planned.
        gave: tick in which each peer gave its part.
        began: the tick in which the last of those that the plan names gave theirs.
        waits: share of all inner steps a second that are not made while it is under way.
        left_out: contributions that are in no result: too late, or refused.
        is_committed: True if it has a result.
    """

    up: dict[PeerId, int]
    down: dict[PeerId, int]
    ahead: int = 0
    gave: dict[PeerId, int] = field(default_factory=dict)
    began: int = 0
    waits: float = 1.0
    left_out: int = 0
    is_committed: bool = False

    def traffic(self, links: Mapping[PeerId, float] = _ALIKE) -> Traffic:
        """Bytes of all peers, with each one's part of the link."""
        total = sum(self.up.values())
        return Traffic(self.up, self.down, self.ahead / total if total else 0.0, links)


class Trained(Protocol):
    """A replica, or a peer of a stage."""

    @property
    def peer(self) -> PeerId:
        """Id of the peer."""

    @property
    def driver(self) -> Driver:
        """Strategy and weights."""

    @property
    def layout(self) -> Layout:
        """Length of the vector that is exchanged."""

    @property
    def speed(self) -> float:
        """Inner steps in the time of one of the fastest peer's."""


class Peer(Member):
    """A replica and its place in the run.

    Attributes:
        is_held: outcomes are decided, and not here yet.
    """

    def __init__(
        self, exchange: "Exchange", replica: Trained, step_s: float, boot: bytes = _BOOT
    ) -> None:
        super().__init__(exchange, replica.peer, boot, CodecArithmetic())
        self.replica = replica
        self._exchange = exchange
        self._step_s, self._clock_s = step_s, 0.0
        self.is_held = False
        self.machine = TrainingMachine(
            replica.peer, replica.driver, rounds=_ENDLESS, steps_per_round=_ENDLESS,
            ends_by_word=exchange.is_staged,
        )  # fmt: skip

    def attach(self) -> None:
        """Offer the replica's own weights as the run's first."""
        driver = self.replica.driver
        image = driver.offer()
        self.tell(
            lambda participant, now_s: participant.attach(
                image.op, image.manifest, image.chunks or (), _ENDLESS, now_s, driver.fragments
            )
        )

    def step(self, inner_step: Callable[[], int]) -> None:
        """Make an inner step and return its samples."""
        self.machine.begins_step(self._clock_s)
        samples = inner_step()
        self._clock_s += self._step_s
        self.machine.stepped(samples, self._clock_s)
        self.advance()

    def give(self, samples: int) -> None:
        """Give the work of a round of a pipeline, over so many samples."""
        self._do(self.machine.give(samples, self._clock_s))

    def finish_round(self) -> None:
        """Give what there is."""
        self._do(self.machine.finish_round(self._clock_s))
        self.advance()

    def heard(self, news: Outcome | do.RecordAccepted) -> None:
        """The network side says what became of an op; `advance` handles it."""
        if not isinstance(news, do.RecordAccepted):
            self.machine.heard(news)

    def advance(self) -> int:
        """Do what the training machine asks now; how much that was."""
        count = 0
        while not self.is_held and (actions := self.machine.advance(self._clock_s)):
            self._do(actions)
            count += 1
        return count

    def _do(self, actions: Actions) -> None:
        for action in actions:
            match action:
                case Ready():
                    self._exchange.gives(self, action)
                case GiveAhead() | Applied():
                    self.tell(partial(tell, action))
                case Ended(report):
                    self._exchange.placed(self, report.round)

    def sends(self, peer: PeerId, frame: Frame) -> None:
        """A frame goes to a peer, who gets it."""
        if frame.kind in _PAYLOAD:
            self._exchange.moves(self.peer, peer, frame)
        super().sends(peer, frame)


class Exchange(Crowd[Peer]):
    """All replicas of a run, and what goes on between them.

    Args:
        plan: plan of the run.
        replicas: everybody's training.
        stage: number of the pipeline's stage; its peers give their parts when a round is closed.

    Attributes:
        tick: the time in inner steps of the fastest peer, told by whoever steps.
        left_out: indices of replicas that are late now, and for whom nobody waits; so told.
        is_staged: True for a stage of a pipeline.
        peers: everybody, in the order of replicas.
        links: each peer's part of the link's rates, where they differ.
    """

    def __init__(self, plan: Plan, replicas: Sequence[Trained], stage: int | None = None) -> None:
        self.tick = 0
        self.left_out: Sequence[int] = ()
        self._ended: list[int] = []
        self._plan = plan
        self._ids = [replica.peer for replica in replicas]
        self._ops: dict[int, OpTold] = {}
        self._newest_op = self._decided_op = 0
        self._gave: dict[PeerId, int] = {}
        self._reader = BodyReader()
        self._under_way: dict[int, int] = {}
        self._is_finishing = False
        self.is_staged = stage is not None
        self._rng = random.Random(f"losses {plan.seed}" + f" {stage}" * self.is_staged)
        self._late: list[tuple[Peer, Ready]] = []
        keys = Keys(
            RUN_KEY, partial(quick_sign, RUN_KEY), lambda peer: partial(quick_sign, peer),
            quick_verify,
        )  # fmt: skip
        fastest = sum(replica.speed == 1 for replica in replicas)
        start_peers = fastest if plan.pace is Pace.APART else len(replicas)
        if self.is_staged:
            start_peers = 1  # who counted nothing in a round gives nothing
        terms = _terms_of(plan, replicas[0], start_peers, is_staged=self.is_staged)
        self._has_buffer, self._by_clocks = terms.buffer > 0, terms.graph == CLOCKS
        super().__init__(terms, keys)
        is_paced = plan.pace is Pace.DYNAMIC
        self.peers = [
            Peer(self, replica, 1 / replica.speed if is_paced else 1.0) for replica in replicas
        ]
        self._leader = max(self.peers, key=lambda one: one.replica.speed)
        self.links = dict(zip(self._ids, plan.links, strict=False))
        for one in self.peers if plan.links else ():  # as it measures them in a run
            net, part, stats = NETS[plan.net], self.links[one.peer], one.participant.stats
            stats.up_bytes_per_s = int(net.up_bytes_s * part)
            stats.down_bytes_per_s = int(net.down_bytes_s * part)

    # ---- what whoever steps asks for

    def begin(self) -> None:
        """Let every peer in; the first one's weights become the run's."""
        for one in self.peers:
            self.connect(one)
        self.settle()
        for one in self.peers:
            one.attach()
            self.settle()
        self.run(lambda: all(one.replica.driver.op >= 0 for one in self.peers))

    def died(self, peer: Peer) -> None:
        """A peer's process is gone."""
        self.peers.remove(peer)
        self.disconnect(peer)
        self._leader = self.peers[0]

    def returned(self, replica: Trained, boot: bytes) -> Peer:
        """A peer comes back as another process, and gets the state from the others."""
        peer = Peer(self, replica, 1.0, boot)
        self.peers.append(peer)
        self.connect(peer)
        self.settle()
        peer.attach()
        newest = 0 if self._by_clocks else self._leader.replica.driver.op
        self.run(lambda: replica.driver.op >= newest)
        return peer

    def settle_ops(self) -> None:
        """Let all happen that can before the next inner step."""
        self.settle()
        while self._under_way or self._is_awaited:
            if self._under_way:
                self.run(lambda: not self._under_way)
            else:
                self._await_op()
            self.settle()

    def finish(self) -> None:
        """The last round may be shorter: what was trained is merged. Of a strategy that exchanges
        fragments in turn it is the next one's, as where a run ends."""
        self._is_finishing = True
        for one in self.peers:
            one.machine.leave_soon()
            one.advance()
        self.settle_ops()
        for one in self.peers:
            one.finish_round()
        self.settle_ops()

    def take_ended(self) -> list[tuple[int, OpTold]]:
        """Ops whose outcome has taken its place since this was asked last, by number; of a stage
        those that are decided."""
        ended, self._ended = self._ended, []
        return [(op, self._ops.pop(op)) for op in ended]

    # ---- what peers tell

    def gives(self, peer: Peer, part: Ready) -> None:
        """A part is given; it may be lost."""
        self._gave[peer.peer] = self.tick
        if not self._by_clocks:  # of which an op may take it that is planned later
            self._told_of(part.part.op).gave[peer.peer] = self.tick
        is_late = any(peer is self.peers[index] for index in self.left_out)
        if self._rng.random() < self._plan.drop or is_late:
            self._late.append((peer, part))
        else:
            peer.tell(partial(tell, part))

    def placed(self, peer: Peer, op: int) -> None:
        """An op's outcome has taken its place at a peer."""
        if peer is self._leader and not (self.is_staged or self._by_clocks):
            self._ended.append(op)

    def moves(self, source: PeerId, target: PeerId, frame: Frame) -> None:
        """Payload goes from one to another."""
        size, is_ahead = len(frame.body), frame.kind is FrameKind.AHEAD
        op = frame.set_id if is_ahead else self._under_way.get(frame.plan_id, self._newest_op)
        told = self._told_of(op)
        told.up[source] += size
        told.down[target] += size
        told.ahead += size * is_ahead

    def logged(self, record: Record) -> None:
        """The coordinator has decided something."""
        body = self._reader.read(record)
        match body:
            case PlanRecord():
                plan_id = int.from_bytes(record.hash[:8], "little")
                self._newest_op = self._under_way[plan_id] = body.op
                told = self._told_of(body.op)
                planned = [member.peer for member in body.members if member.weight]
                if self._by_clocks:
                    told.gave = {peer: self._gave[peer] for peer in planned}
                    told.left_out = len(self._late)
                else:
                    told.left_out = len(told.gave) - len(planned)
                told.began = max(told.gave[peer] for peer in planned)
                if self._has_buffer:
                    speeds = {one.peer: one.replica.speed for one in self.peers}
                    told.waits = sum(map(speeds.__getitem__, planned)) / sum(speeds.values())
            case Freeze():
                refused = [reason for reason in body.excluded.values() if reason != _ALONE]
                self._told_of(body.op).left_out += len(refused)
            case Commit() | Skip():
                self._under_way = {
                    plan: op for plan, op in self._under_way.items() if op != body.op
                }
                self._decided_op = body.op
                if self.is_staged or self._by_clocks:
                    self._ended.append(body.op)
                self._told_of(body.op).is_committed = isinstance(body, Commit)
                late, self._late = self._late, []
                for one, part in late:
                    if self._by_clocks:  # what nobody has heard of is told again
                        one.tell(partial(tell, part))
                    elif part.part.op > body.op:
                        self._late.append((one, part))

    # ---- parts

    def deliver(self) -> int:
        """Crowd; and whoever trains handles what came."""
        count = super().deliver()
        while sum([one.advance() for one in self.peers]):
            count += 1 + super().deliver()
        return count

    @property
    def _is_awaited(self) -> bool:
        """Return True if an op must begin, however few are ready, before anybody goes on."""
        waiting = [one.replica.driver for one in self.peers if one.replica.driver.is_waiting]
        if self.is_staged:
            return any(driver.op >= self._decided_op for driver in waiting)
        if self._is_finishing:  # who seeks a partner and is the last finds none
            seeks = self._has_buffer and self._leader.replica.driver.is_paired
            return len(waiting) > seeks
        held = [one.machine.holds_back for one in self.peers]
        begins_late = self._plan.pace is Pace.APART and not self._has_buffer
        return any(held) if begins_late else all(held)

    def _await_op(self) -> None:
        began = self._newest_op
        until_s = self.now_s + 2 * _WAIT_READY_S
        if self._plan.returns:  # one that is gone is waited for until it is suspected
            until_s += limits.SUSPECT_CLOSED_S
        self.run(lambda: self._newest_op > began or self.now_s >= until_s)
        if self._newest_op == began:
            if not self._late:
                raise RuntimeError("this run stands still")
            peer, part = self._late.pop(self._rng.randrange(len(self._late)))
            peer.tell(partial(tell, part))

    def _told_of(self, op: int) -> OpTold:
        if op not in self._ops:
            self._ops[op] = OpTold(dict.fromkeys(self._ids, 0), dict.fromkeys(self._ids, 0))
        return self._ops[op]


def _terms_of(plan: Plan, replica: Trained, start_peers: int, *, is_staged: bool) -> RunTerms:
    """Return the part of this plan that a run file would say of the exchange."""
    config = plan.run_config()
    kind = replica.driver.strategy.exchange(1).kind
    result = facts_of(plan.codec).result if kind is OpKind.MEAN else plan.codec
    return RunTerms(
        run_id=config.run.name,
        config=canonical(config),
        config_hash=config_hash(config),
        rounds=_ENDLESS,
        codec=plan.codec,
        exact=facts_of(plan.codec).exact and not plan.robust,
        block=plan.block,
        # A chunk goes ahead whole or not at all: a small model's anchor should be one.
        chunk_values=min(_CHUNK_VALUES, replica.layout.padded),
        e_max=0,
        min_contributors=TELLABLE if plan.robust else 1,
        start_peers=start_peers,
        wait_ready_s=_WAIT_READY_S,
        deadline_floor_s=config.exchange.deadline_floor_s,
        deadline_cap_s=config.exchange.deadline_cap_s,
        checkpoint_rounds=_ENDLESS,
        snapshot_rounds=1 if plan.returns else _ENDLESS,
        equal_slices=not plan.links,
        result_codec=result if result != plan.codec else "",
        rule=plan.robust,
        kind=_KINDS[kind],
        scalars=WHOLE_VECTOR_RULES.get(plan.robust, ""),
        ops_at_once=replica.driver.ops_at_once,
        hurries=plan.pace is Pace.DYNAMIC,
        **planned_by(facts_named(plan.strategy), dict(plan.own)),
        steps_alone=is_staged and kind is OpKind.PAIR,
    )
