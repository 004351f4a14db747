"""What must hold after every event (protocol.md part 2, INVARIANTS), checked as things happen.

The checker hears of every record that is logged, every result that is applied and every part that
is given, and recomputes with plain sums what the machines did with exact ones. It shares nothing
with them but the codec.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from swarmtrain.peer.arithmetic import CodecArithmetic
from swarmtrain.peer.driver import OwnPart
from swarmtrain_transport import limits
from swarmtrain_transport.fold import chunk_range, window_of
from swarmtrain_transport.ledger import (
    Commit,
    Freeze,
    Plan,
    Record,
    Skip,
    SliceFreeze,
    body_of,
)
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.result import OpResult

if TYPE_CHECKING:
    from swarmtrain.simulate.sim_peer import SimPeer
    from swarmtrain.simulate.world import World

_BOOKS_TOLERANCE = 1e-7
"""Float32 rounding of a = e + Delta is below 2e-9 here; half a quantisation step is above 1e-5."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold, and when."""

    invariant: str
    time_s: float
    boundary: int
    story: str


@dataclass(slots=True)
class _Books:
    """One peer's error feedback, kept beside it in float64 (I9): what its inner steps gave to ops
    that were committed, what of it is in results, and the difference waiting for the next op."""

    given: Tensor
    sent: Tensor
    waiting: Tensor | None = None


@dataclass(slots=True)
class Invariants:
    """Checks one world."""

    world: "World"
    outcomes: dict[int, Commit | Skip] = field(default_factory=dict)
    plans: dict[int, Plan] = field(default_factory=dict)
    frozen: dict[int, Freeze] = field(default_factory=dict)
    parts: dict[tuple[int, PeerId], OwnPart] = field(default_factory=dict)
    roots: dict[int, bytes] = field(default_factory=dict)
    results: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    books: dict[PeerId, _Books] = field(default_factory=dict)
    commits: int = 0
    skips: int = 0

    def logged(self, record: Record) -> None:
        """A record became durable: I1, I6, I8."""
        body = body_of(record)
        if isinstance(body, Plan):
            self.plans[body.op] = body
        elif isinstance(body, Freeze):
            if body.op in self.frozen:
                self._violated("I6", f"second FREEZE of op {body.op}")
            self.frozen[body.op] = body
        elif isinstance(body, SliceFreeze):
            freeze = self.frozen.get(body.op)
            if freeze is None or not set(body.contributors) <= set(freeze.contributors):
                self._violated("I6", f"slice {body.slice_index}: contributors not in FREEZE")
        elif isinstance(body, Commit | Skip):
            if body.op in self.outcomes:
                self._violated("I1", f"second outcome of op {body.op}")
            self.outcomes[body.op] = body
            self.commits += isinstance(body, Commit)
            self.skips += isinstance(body, Skip)
            if isinstance(body, Commit):
                self._check_commit(body)

    def _check_commit(self, commit: Commit) -> None:
        plan = self.plans[commit.op]
        for index, outcome in enumerate(commit.slices):
            if len(outcome.contributors) < plan.min_contributors:
                self._violated("I6", f"op {commit.op} slice {index}: too few contributors")
            holders = self._holders(commit, index)
            live = {peer.peer_id for peer in self.world.survivors} & set(commit.contributors)
            needed = min(limits.RESULT_HOLDERS, max(1, len(live)))
            if live and len(holders) < needed:
                self._violated("I8", f"op {commit.op} slice {index}: {len(holders)} holders")

    def _holders(self, commit: Commit, index: int) -> list["SimPeer"]:
        """Live peers that hold every chunk of a slice."""
        root = commit.slices[index].root
        holders = []
        for peer in self.world.survivors:
            joined = peer.machine.blobs.get(root)
            if joined is None:
                continue
            data = bytes(joined)
            hashes = [data[start : start + 32] for start in range(0, len(data), 32)]
            if all(peer.machine.blobs.get(digest) is not None for digest in hashes):
                holders.append(peer)
        return holders

    def accepted(self, peer: "SimPeer", record: Record) -> None:
        """A peer took a record into its ledger: it must be the coordinator's."""
        disk = self.world.coordinator.disk
        if record.index >= len(disk) or disk[record.index].hash != record.hash:
            self._violated("I1", f"peer {peer.number} holds record {record.index} that is not ours")

    def contributed(self, peer: "SimPeer", part: OwnPart) -> None:
        """A peer gave its part to an op."""
        self.parts[(part.op, peer.peer_id)] = part
        books = self.books.get(peer.peer_id)
        if books is not None:
            anchor = dict(peer.strategy.state_arrays())["anchor"]
            books.waiting = (anchor - peer.trainer.read_weights()).double()

    def loaded(self, peer: "SimPeer") -> None:
        """A peer took over shared state; its books begin anew."""
        size = peer.strategy.num_values
        zero = torch.zeros(size, dtype=torch.float64)
        self.books[peer.peer_id] = _Books(zero.clone(), zero.clone())

    def skipped(self, peer: "SimPeer", op: int, before: list[tuple[str, Tensor]]) -> None:
        """I7: SKIP changes nothing: neither what is shared nor what is kept."""
        books = self.books.get(peer.peer_id)
        if books is not None:
            books.waiting = None
        after = peer.strategy.state_arrays()
        if any(not torch.equal(old[1], new[1]) for old, new in zip(before, after, strict=True)):
            self._violated("I7", f"peer {peer.number}: op {op} was skipped but changed state")
        self._check_books(peer)

    def applying(self, peer: "SimPeer", result: OpResult) -> None:
        """I1, I2, I3: the result is the commit's, the same everywhere, and the exact sum."""
        commit = self.outcomes.get(result.op)
        if not isinstance(commit, Commit):
            self._violated("I1", f"peer {peer.number} applies op {result.op} without a COMMIT")
            return
        content = tuple(chunk for piece in result.slices for chunk in piece.chunks)
        if result.op not in self.results:
            self.results[result.op] = content
            self._check_sum(commit, result)
        elif self.results[result.op] != content:
            self._violated("I2", f"peer {peer.number} applies other bytes for op {result.op}")

    def _check_sum(self, commit: Commit, result: OpResult) -> None:
        plan = self.plans[commit.op]
        window = window_of(plan)
        weights = {member.peer: member.weight for member in plan.members}
        arithmetic = CodecArithmetic()
        for index, (piece, outcome) in enumerate(zip(result.slices, commit.slices, strict=True)):
            for chunk, encoded in enumerate(piece.chunks):
                start, stop = chunk_range(plan, index, chunk)
                total = arithmetic.accumulator(stop - start, window)
                for peer in outcome.contributors:
                    part = self.parts[(commit.op, peer)]
                    total.add(part.contribution.encode(start, stop, window), weights[peer])
                named = sum(weights[peer] for peer in outcome.contributors)
                if total.finish(named) != encoded:
                    self._violated("I3", f"op {commit.op} slice {index} is not its named sum")
                    return

    def applied(self, peer: "SimPeer", result: OpResult) -> None:
        """I9: what was sent and what was kept add up to what was given."""
        books = self.books.get(peer.peer_id)
        if books is None or books.waiting is None:
            return
        books.given += books.waiting
        books.waiting = None
        for piece in result.slices:
            if peer.peer_id not in piece.contributors:
                continue
            part = self.parts[(result.op, peer.peer_id)]
            for start in range(piece.start, piece.stop, result.chunk_values):
                stop = min(start + result.chunk_values, piece.stop)
                decoded = part.contribution.decoded(start, stop, result.window)
                books.sent[start:stop] += decoded.double()
        for start, stop in peer.strategy.dropped:
            books.given[start:stop] = books.sent[start:stop]
        self._check_books(peer)

    def _check_books(self, peer: "SimPeer") -> None:
        books = self.books.get(peer.peer_id)
        residual = dict(peer.strategy.local_arrays()).get("error_feedback")
        if books is None or residual is None:
            return
        error = (books.sent + residual.double() - books.given).abs().max().item()
        if not error < _BOOKS_TOLERANCE:
            self._violated("I9", f"peer {peer.number}: sent plus kept misses {error:.1e} of given")

    def rooted(self, peer: "SimPeer", op: int, root: bytes) -> None:
        """I2: one state root per op."""
        known = self.roots.setdefault(op, root)
        if known != root and op > 0:
            self._violated("I2", f"peer {peer.number} has another state root after op {op}")

    def at_end(self) -> None:
        """L1, L2: after the faults everybody reaches the end."""
        survivors = self.world.survivors
        if not survivors:
            return
        late = [peer.number for peer in survivors if not peer.is_finished]
        if late:
            ops = {peer.number: peer.machine.applied_op for peer in survivors}
            self._violated("L2", f"peers {late} do not reach the end: applied {ops}")

    def _violated(self, invariant: str, story: str) -> None:
        self.world.violation(invariant, story)
