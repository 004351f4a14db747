"""What the owners of an op say has come, held against what the contributors have signed.

A contribution is complete at an owner when the owner reports its slice root and that is the one
which the contributor has signed. Either message may come first. Where the plan's rule needs scalars
of whole vectors, complete is who was also measured, with all who are complete, and found as long as
it says itself (`scalars`). Who is not complete at an owner may be slow, or send it other bytes than
it has signed; or the owner may lie. It is one's word against the other's (`matrix`).
"""

from collections.abc import Mapping

from swarmtrain_transport.coordinator.claims import shown
from swarmtrain_transport.coordinator.timers import most_of
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import OpView
from swarmtrain_transport.ledger.matrix import ABSENT, REFUSED, ROOTS, SCALARS
from swarmtrain_transport.ledger.scalars import Table, are_norms, totals, vectors
from swarmtrain_transport.ledger.signed import inputs_of, root_over
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Roots
from swarmtrain_transport.wire.records import SignedRoot

SliceTry = tuple[int, int]
"""(slice, attempt)."""


class Arrivals:
    """One op's contributions, as far as this term has heard of them.

    Args:
        view: the ledger's view of the op.

    Attributes:
        got: contributors that are complete, per (slice, attempt).
        withdrawn: who cannot send its own values, as it says itself, and why.
        signed: the roots that contributors have signed.
        last_s: when an owner last had something of a contributor whole.
        whole_s: when it was whole with most owners: one that is slow to say so sets no pace.
    """

    def __init__(self, view: OpView) -> None:
        self.got: dict[SliceTry, set[PeerId]] = {}
        self.withdrawn: dict[PeerId, str] = {}
        self.signed: dict[PeerId, Roots] = {}
        self.last_s: dict[PeerId, float] = {}
        self.whole_s: dict[PeerId, float] = {}
        self._view = view
        self._claims: dict[SliceTry, dict[PeerId, bytes]] = {}
        self._refusals: dict[SliceTry, dict[PeerId, str]] = {}
        self._inputs: dict[tuple[int, tuple[PeerId, ...]], bytes] = {}
        self._tables: dict[SliceTry, Table] = {}

    def report_roots(self, peer: PeerId, message: Roots, now_s: float) -> None:
        """A contributor has signed its contribution; the first word stands.

        Raises:
            RemoteFault: reason ``roots``: it has signed another one before; or ``scalars``: it
                says no norms where the plan asks for them, or others than there can be.
        """
        if len(message.norms) != len(self._view.owners) * bool(self._view.plan.scalars):
            raise RemoteFault("scalars", f"{len(message.norms)} norms")
        if not are_norms(message.norms):
            raise RemoteFault("scalars", "a norm that nothing can have")
        known = self.signed.setdefault(peer, message)
        if known.slice_roots != message.slice_roots:
            raise RemoteFault("roots", "two contributions to one op are signed")
        for slice_try, claims in self._claims.items():
            if peer in claims:
                self._compare(peer, slice_try, now_s)

    def report_got(
        self, slice_try: SliceTry, complete: Mapping[PeerId, bytes],
        refused: Mapping[PeerId, str], scalars: Mapping[PeerId, bytes], now_s: float,
    ) -> None:  # fmt: skip
        """The owner of (slice, attempt) has these contributions whole and legal, with these slice
        roots, and has measured them.

        Raises:
            RemoteFault: reason ``scalars``; nothing of the report is used.
        """
        self._table(slice_try).report(scalars)
        self.got.setdefault(slice_try, set())
        claims = self._claims.setdefault(slice_try, {})
        for peer in complete.keys() & self._view.weights.keys():
            if claims.setdefault(peer, complete[peer]) == complete[peer]:
                self._compare(peer, slice_try, now_s)
        refusals = self._refusals.setdefault(slice_try, {})
        for peer, reason in refused.items():
            if peer in self._view.weights:
                refusals.setdefault(peer, REFUSED + shown(reason, 32))

    def _compare(self, peer: PeerId, slice_try: SliceTry, now_s: float) -> None:
        signed, row = self.signed.get(peer), self.got[slice_try]
        if peer in row or signed is None:
            return
        if signed.slice_roots[slice_try[0]] != self._claims[slice_try][peer]:
            return
        if not self._is_measured(peer, signed, slice_try):
            return
        row.add(peer)
        self.last_s[peer] = now_s
        rows = self.rows()
        if sum(peer in one for one in rows) >= most_of(len(rows)):
            self.whole_s.setdefault(peer, now_s)

    def _table(self, slice_try: SliceTry) -> Table:
        plan = self._view.plan
        planned = vectors(self._view.weights, plan.centre)
        return self._tables.setdefault(slice_try, Table(plan.scalars, planned))

    def _is_measured(self, peer: PeerId, signed: Roots, slice_try: SliceTry) -> bool:
        """Whether FREEZE may count on what the owner has measured; after it nobody measures."""
        if not self._view.plan.scalars or self._view.frozen is not None:
            return True
        norm, row = signed.norms[slice_try[0]], self.got[slice_try]
        return self._table(slice_try).fits(peer, norm, vectors(row, self._view.plan.centre))

    def totals(self, contributors: tuple[PeerId, ...]) -> bytes:
        """What FREEZE carries of contributors who are complete with every owner there is."""
        if not self._view.plan.scalars:
            return b""
        tables = [self._table(slice_try) for slice_try in enumerate(self._view.attempts)]
        named = vectors(contributors, self._view.plan.centre)
        return totals(self._view.plan.scalars, named, tables)

    def word(self, peer: PeerId, slice_index: int) -> str:
        """Return the owner's word on a contribution that is not complete at its slice (`matrix`);
        only what is absent may still come."""
        slice_try = (slice_index, self._view.attempts[slice_index])
        refusal = self._refusals.get(slice_try, {}).get(peer)
        if refusal is not None:
            return refusal
        claim, signed = self._claims.get(slice_try, {}).get(peer), self.signed.get(peer)
        if claim is None or signed is None:
            return ABSENT
        if signed.slice_roots[slice_index] != claim:
            return ROOTS
        if not self._view.plan.scalars:
            return ABSENT
        is_other = self._table(slice_try).contradicts(peer, signed.norms[slice_index])
        return SCALARS if is_other else ABSENT

    def has_come(self, peer: PeerId, slice_index: int) -> bool:
        """Whether the slice's owner has the contributor's bytes whole, right or wrong."""
        return peer in self._claims.get((slice_index, self._view.attempts[slice_index]), {})

    def rows(self) -> list[set[PeerId]]:
        """Who is complete per slice, under its current attempt."""
        return [
            self.got.get((index, attempt), set())
            for index, attempt in enumerate(self._view.attempts)
        ]

    def report_withdrawn(self, peer: PeerId, reason: str) -> None:
        """A contributor cannot send its own values."""
        self.withdrawn.setdefault(peer, f"withdrew:{shown(reason, 32)}")

    def is_late(self, peer: PeerId) -> bool:
        """Whether something of it has not come. If all has, it is not what it has signed, or it
        has signed nothing."""
        return not all(self.has_come(peer, index) for index in range(len(self._view.owners)))

    def signed_roots(self, peers: tuple[PeerId, ...]) -> dict[PeerId, SignedRoot]:
        """What FREEZE keeps of these contributors."""
        known = {peer: self.signed[peer] for peer in peers if peer in self.signed}
        return {
            peer: SignedRoot(root_over(message.slice_roots), message.signature)
            for peer, message in known.items()
        }

    def inputs(self, slice_index: int, contributors: tuple[PeerId, ...]) -> bytes | None:
        """What an owner must say that it has summed, None if not all have signed in this term."""
        key = (slice_index, contributors)
        if key not in self._inputs:
            if not self.signed.keys() >= set(contributors):
                return None
            named = {peer: self.signed[peer].slice_roots[slice_index] for peer in contributors}
            self._inputs[key] = inputs_of(named)
        return self._inputs[key]
