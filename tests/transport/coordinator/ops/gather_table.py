"""One gather op at the coordinator: contributors publish, members hold, decisions are folded."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ops.op_decider import OpDecider
from swarmtrain_transport.kinds import GATHER
from swarmtrain_transport.ledger.fold import OpDecision, OpView, num_chunks, slice_root
from swarmtrain_transport.ledger.signed_roots import result_payload
from swarmtrain_transport.ledger.transfers import NOTHING_SUMMED, content_name, gathered_slices
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Hashes, Have, SliceDone
from swarmtrain_transport.wire.records import Commit, Freeze, Plan
from tests.transport.rig import A, B, C, plan_body, sign_as, view_of

DEADLINE_S = 100.0
SCATTER_S = limits.D_SCATTER * DEADLINE_S
GATHER_S = limits.D_GATHER * DEADLINE_S


def gather_plan(peers: tuple[PeerId, ...] = (A, B, C), num_values: int = 8, **changes: Any) -> Plan:
    """Each of `peers` contributes eight values, which are two chunks."""
    slices = gathered_slices(peers, num_values)
    return plan_body(peers, **{"slices": slices, "kind": GATHER, "exact": False, **changes})


def hashes_of(view: OpView, peer: PeerId, version: int = 0) -> tuple[bytes, ...]:
    """Made-up hashes of what a peer gives."""
    count = num_chunks(view.plan, view.owners.index(peer))
    return tuple(bytes([peer[0], version, chunk]) + bytes(29) for chunk in range(count))


def published_by(view: OpView, peer: PeerId, version: int = 0, **changes: Any) -> SliceDone:
    """SLICE_DONE of a contributor, signed."""
    index, hashes = view.owners.index(peer), hashes_of(view, peer, version)
    root = slice_root(hashes)
    payload = result_payload(view.plan_hash, index, 0, root, NOTHING_SUMMED)
    done = SliceDone(
        view.plan_id, index, 0, content_name(root), hashes, NOTHING_SUMMED, sign_as(peer)(payload)
    )
    return msgspec.structs.replace(done, **changes)


@dataclass
class GatherTable:
    """One gather op with peers that are alive and report; decisions are folded as they fall."""

    plan: Plan
    alive: set[PeerId] = field(default_factory=set)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.view = view_of(self.plan)
        self.restart()
        self.alive = self.alive or {member.peer for member in self.plan.members}

    def restart(self) -> None:
        """The coordinator dies and is back: what is logged is all that it knows."""
        self.op = OpDecider(self.view, self.now_s)

    def decide(self, now_s: float | None = None) -> OpDecision | None:
        """The next decision, folded."""
        if now_s is not None:
            self.now_s = now_s
        decision = self.op.decide(self.alive, self.now_s)
        if decision is not None:
            self.view.apply(decision)
        return decision

    def publish(self, *peers: PeerId, version: int = 0) -> list[Hashes | None]:
        return [
            self.op.reports.hear(peer, published_by(self.view, peer, version), self.now_s)
            for peer in peers
        ]

    def have(
        self, peer: PeerId, *contributors: PeerId, flags: tuple[bool, ...] = (), version: int = 0
    ) -> None:
        """A member holds these contributions, or some chunks of them."""
        for contributor in contributors:
            index = self.view.owners.index(contributor)
            hashes = hashes_of(self.view, contributor, version)
            name = content_name(slice_root(hashes))
            held = flags or (True,) * len(hashes)
            self.op.reports.hear(peer, Have(self.view.plan_id, index, 0, name, held), self.now_s)

    def frozen(self, *peers: PeerId) -> Freeze:
        """All publish, and FREEZE falls."""
        self.publish(*(peers or self.view.weights))
        decision = self.decide()
        assert isinstance(decision, Freeze)
        return decision

    def lose(self, *peers: PeerId) -> None:
        """They are held for dead."""
        self.alive -= set(peers)

    def committed(self, now_s: float | None = None) -> tuple[PeerId, ...] | None:
        """Return whom COMMIT names, None if nothing is decided."""
        decision = self.decide(now_s)
        if decision is None:
            return None
        assert isinstance(decision, Commit), decision
        return decision.contributors


def gather_table(*peers: PeerId, **changes: Any) -> GatherTable:
    return GatherTable(gather_plan(peers or (A, B, C), **changes))
