"""One op at the coordinator: reports go in, decisions fall and are folded."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ops.op_decider import OpDecider
from swarmtrain_transport.ledger.fold import OpDecision, OpView, num_chunks, set_id
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Got, Hashes, Have
from swarmtrain_transport.wire.records import (
    Freeze,
    Member,
    Plan,
    Reassign,
    SignedRoot,
    SliceFreeze,
    Times,
)
from tests.transport.rig import (
    BOOT,
    A,
    B,
    C,
    done_of,
    plan_body,
    received,
    roots_of,
    view_of,
)

DEADLINE_S = 100.0
SCATTER_S = limits.D_SCATTER * DEADLINE_S
GATHER_S = limits.D_GATHER * DEADLINE_S
REPAIR_S = limits.D_REPAIR * DEADLINE_S


@dataclass
class Table:
    """One op with peers that are alive and report; decisions are folded as they fall."""

    plan: Plan
    alive: set[PeerId] = field(default_factory=set)
    now_s: float = 0.0
    log: list[OpDecision] = field(default_factory=list)
    times: dict[PeerId, Times] = field(default_factory=dict)
    roots: dict[PeerId, SignedRoot] = field(default_factory=dict)
    unsigned: set[PeerId] = field(default_factory=set)
    accusers: dict[PeerId, tuple[PeerId, ...]] = field(default_factory=dict)
    lacked: dict[PeerId, str] = field(default_factory=dict)
    detours: dict[tuple[PeerId, PeerId], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.view: OpView = view_of(self.plan)
        self.op = OpDecider(self.view, 0.0)
        self.alive = self.alive or {member.peer for member in self.plan.members}
        for peer in set(self.view.weights) - self.unsigned:
            self.op.reports.hear(peer, roots_of(self.view, peer), 0.0)

    @property
    def indexes(self) -> range:
        return range(len(self.plan.slices))

    def decide(self, now_s: float | None = None) -> OpDecision | None:
        """The next decision, folded; what it tells besides stands in `times`, `roots`, `accusers`
        and `lacked`."""
        if now_s is not None:
            self.now_s = now_s
        decision = self.op.decide(self.alive, self.now_s, detours=lambda: self.detours)
        if decision is not None:
            self.view.apply(decision)
            self.log.append(decision)
        if isinstance(decision, Freeze):
            self.times, self.roots = decision.times, decision.roots
            self.accusers = decision.accusers
            return msgspec.structs.replace(decision, times={}, roots={}, accusers={})
        if isinstance(decision, Reassign | SliceFreeze):
            self.lacked = decision.lacked
            return msgspec.structs.replace(decision, lacked={})
        return decision

    def decide_all(self, now_s: float | None = None) -> list[OpDecision]:
        decisions = []
        while (decision := self.decide(now_s)) is not None:
            decisions.append(decision)
        return decisions

    def got(self, index: int, *peers: PeerId, refused: dict[PeerId, str] | None = None) -> None:
        """The current owner of a slice says whose contribution it has whole."""
        attempt = self.view.attempts[index]
        report = Got(self.view.plan_id, index, attempt, received(index, peers), refused or {})
        assert self.op.reports.hear(self.view.owners[index], report, self.now_s) is None

    def got_all(self, *indexes: int) -> None:
        for index in indexes or self.indexes:
            self.got(index, *self.view.weights)

    def hashes(self, index: int) -> tuple[bytes, ...]:
        attempt = self.view.attempts[index]
        return tuple(
            bytes([index, attempt, chunk]) + bytes(29)
            for chunk in range(num_chunks(self.plan, index))
        )

    def done(self, index: int) -> Hashes | None:
        contributors = self.view.slice_sets[index]
        assert contributors is not None
        message = done_of(self.view, index, contributors, self.hashes(index))
        return self.op.reports.hear(self.view.owners[index], message, self.now_s)

    def have(self, index: int, *peers: PeerId, chunks: tuple[bool, ...] | None = None) -> None:
        contributors = self.view.slice_sets[index]
        assert contributors is not None
        flags = chunks or (True,) * num_chunks(self.plan, index)
        attempt = self.view.attempts[index]
        for peer in peers:
            report = Have(self.view.plan_id, index, attempt, set_id(contributors), flags)
            self.op.reports.hear(peer, report, self.now_s)

    def freeze(self) -> None:
        """Everybody is complete everywhere."""
        self.got_all()
        assert isinstance(self.decide(), Freeze)

    def publish(self, *holders: PeerId) -> None:
        """All owners publish, and these members have everything."""
        for index in self.indexes:
            self.done(index)
            self.have(index, *holders)

    def lose(self, peer: PeerId) -> None:
        self.alive.discard(peer)


def table(*peers: PeerId, **changes: Any) -> Table:
    return Table(plan_body(peers or (A, B, C), **changes))


def with_receivers(*receivers: PeerId) -> Table:
    members = tuple(Member(peer, BOOT, 1) for peer in (A, B, C))
    return table(members=members + tuple(Member(peer, BOOT, 0) for peer in receivers))
