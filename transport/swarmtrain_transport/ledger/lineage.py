"""Lineage: the states that the ledger knows, what led to each, and who holds which.

Where ops are means or gathers there is one state after each op, and ATTEST says its root. Where
they go by pairs states are each peer's own: ATTEST says who has reported which, and all of these
are the run's. Two partners can only compare what they have exchanged: their *chains*, which grow by
the same link with each op that both are in.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.pairing import link_of, whole_pairs
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Attest, Commit, Plan, Skip

OPS_KEPT = 256
"""For so many ops it is remembered who held which state, and what chains were before. A REWIND that
goes further back begins all chains anew."""


ENDS_KEPT = 4096
"""For so many ops it is remembered whether they were skipped, and which state followed. Nobody goes
on from an older one: results to catch up with are long gone."""


@dataclass(slots=True)
class Lineage:
    """The fold of the ledger, as far as it is about states.

    Attributes:
        goes_by_pairs: True if the newest PLAN is of a pair op: then all are, and no state but that
            after op 0 is shared.
        last_op: newest op that has an outcome (0 once op 0 is attested, -1 before).
        skips: ops that have changed nothing.
        attests: attested state roots by op.
        roots: state root of each peer after a pair op, by op; of the newest ops.
        chains: per peer the newest link of its exchanges in pairs.
        links: per pair op, per peer that has exchanged, its chain before and after.
        cancelled_op: newest op whose outcome a REWIND has cancelled, 0 without one.
    """

    goes_by_pairs: bool = False
    last_op: int = -1
    skips: dict[int, Skip] = field(default_factory=dict)
    attests: dict[int, bytes] = field(default_factory=dict)
    roots: dict[int, dict[PeerId, bytes]] = field(default_factory=dict)
    chains: dict[PeerId, bytes] = field(default_factory=dict)
    links: dict[int, dict[PeerId, tuple[bytes, bytes]]] = field(default_factory=dict)
    cancelled_op: int = 0

    # ---- records

    def attested(self, body: Attest) -> None:
        """ATTEST. A pair op may have several, each with roots of others.

        Raises:
            RemoteFault: reason ``order``: it contradicts an earlier one, or is none.
        """
        named = dict(body.roots)
        are_roots = all(len(root) == limits.HASH_BYTES for root in named.values())
        if bool(named) != (self.goes_by_pairs and body.op > 0) or not are_roots:
            raise RemoteFault("order", f"ATTEST of op {body.op} is of another kind of op")
        if named and body.state_root not in named.values():
            raise RemoteFault("order", f"ATTEST of op {body.op} names a root that nobody has")
        if body.op in self.attests and not named:
            raise RemoteFault("order", f"second ATTEST of op {body.op}")
        self.attests.setdefault(body.op, body.state_root)
        self.forget_before(body.op)
        if named:
            self.roots.setdefault(body.op, {}).update(named)

    def forget_before(self, op: int) -> None:
        """Forget how ops long before this one ended."""
        stores: tuple[dict[int, Any], ...] = (self.attests, self.skips)
        for store in stores:
            while (oldest := next(iter(store), op)) <= op - ENDS_KEPT:
                del store[oldest]

    def exchanged(self, plan: Plan, commit: Commit) -> None:
        """COMMIT of a pair op: the chains of those that it names grow."""
        roots = {
            spec.owner: done.root for spec, done in zip(plan.slices, commit.slices, strict=True)
        }
        links: dict[PeerId, tuple[bytes, bytes]] = {}
        for first, second in whole_pairs(plan, commit):
            before = self.chains.get(first, b""), self.chains.get(second, b"")
            after = link_of(plan.op, before, (roots[first], roots[second]))
            links[first], links[second] = (before[0], after), (before[1], after)
        self.links[plan.op] = links
        self.chains.update({peer: after for peer, (_, after) in links.items()})
        self.links.pop(plan.op - OPS_KEPT, None)
        self.roots.pop(plan.op - OPS_KEPT, None)

    def cancelled(self, ops: Iterable[int]) -> None:
        """REWIND: these ops, in order, have no outcome any more."""
        for op in sorted(ops, reverse=True):
            if self.goes_by_pairs and op > 0 and op not in self.skips and op not in self.links:
                self.chains.clear()
            for peer, (before, _) in self.links.pop(op, {}).items():
                self.chains[peer] = before
            for store in (self.skips, self.attests, self.roots):
                store.pop(op, None)
        self.cancelled_op = max(self.cancelled_op, self.last_op)

    # ---- questions

    def is_trusted(self, op: int, root: bytes, peer: PeerId = b"") -> bool:
        """Return True if a peer may go on from a state that it kept from an earlier life.

        An op whose contributors went before a majority of them had reported has no ATTEST. Its
        state follows from the committed results, so it counts, unless a REWIND may have cancelled
        the very op that led to it. So does a peer's own state that ATTEST does not name.
        """
        roots = self.roots.get(self.commit_at(op), {})
        if roots:
            return root in roots.values() or (peer not in roots and op > self.cancelled_op)
        attested = self.root_after(op)
        settled = max(self.cancelled_op, self.last_op - ENDS_KEPT)
        return attested == root or (attested is None and op > settled)

    def may_hold(self, op: int, root: bytes) -> bool:
        """Return True if a peer that reports this state after `op` has the run's, as far as the
        ledger says: where states are each peer's own it does not."""
        is_own = self.goes_by_pairs and self.commit_at(op) > 0
        return is_own or self.root_after(op) in (None, root)

    def commit_at(self, op: int) -> int:
        """The op whose result made the state after `op`: skipped ops change nothing."""
        while op in self.skips:
            op -= 1
        return op

    def next_commit(self, op: int) -> int | None:
        """The first op after `op` that was committed, None if all that follow were skipped."""
        later = range(op + 1, self.last_op + 1)
        return next((number for number in later if number not in self.skips), None)

    def root_after(self, op: int) -> bytes | None:
        """Attested root of the state after `op`; skipped ops leave the state before them."""
        return self.attests.get(self.commit_at(op))
