"""Promises of means that are summed in cells (protocol.md rule 8), from the ledger and from what is
sent.

- C1: cells are dealt by lot; a slice is owned in its cell, whoever takes it over, and its owner's
  set is of that cell.
- C2: a contributor gives its parts to owners of its cell alone; a cell's sum goes from an owner of
  the range there to the owner of the piece, under the attempt that it names; that of its own piece
  to the owner of the next one.
- C3: a result goes to its owner's cell, and to those who own the same range in the others, who pass
  it on to theirs: nobody sends to everybody.
- C4: all pieces of a range have the same contributors.
- C5: what an owner passes on is, to the bit, the sum of what the others have given whom it names.

The deal is made again here, from the PLAN's members and the outcome before it alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.checks.sums import NamedSums
from swarmtrain.simulate.ground.scene import Scene
from swarmtrain_transport.ledger.fold import chunk_range, edition, set_id
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.records import Commit, Freeze, Plan, Reassign, SliceFreeze

_OPS_KEPT = 8
"""Ops of which frames may be under way."""


@dataclass(slots=True)
class _Op:
    """An op in cells.

    Attributes:
        plan: PLAN of the op.
        of: cell of each member.
        owners: every owner that each slice has had, by attempt.
        sets: sets that an owner may sum, by name.
        totals: whole vectors' sums made again, by name.
        sums: chunks of these without the part of who gives them, by giver, slice, chunk and name.
    """

    plan: Plan
    of: Mapping[PeerId, int]
    owners: list[list[PeerId]] = field(default_factory=list)
    sets: dict[int, tuple[PeerId, ...]] = field(default_factory=dict)
    totals: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)
    sums: dict[tuple[PeerId, int, int, int], bytes] = field(default_factory=dict)

    def cell_of(self, index: int) -> int:
        """Return the cell in which a slice is owned."""
        return index % self.plan.cells

    def name(self, peers: Iterable[PeerId]) -> None:
        """Note the cells' sets of some contributors."""
        for cell in range(self.plan.cells):
            named = tuple(sorted(peer for peer in peers if self.of.get(peer) == cell))
            self.sets[set_id(named)] = named

    def takers(self, cell: int, index: int) -> list[PeerId]:
        """Return every owner to whom a cell's sum of a slice may have gone."""
        first = index - index % self.plan.cells
        is_own = cell == self.cell_of(index)
        return self.owners[first + (cell + 1) % self.plan.cells if is_own else index]

    def near(self, cell: int, index: int) -> list[PeerId]:
        """Return every owner that a slice's range has had in a cell."""
        return self.owners[index - index % self.plan.cells + cell]


class CellChecks:
    """Judges one group's ops that have cells.

    Args:
        scene: world, which is told of violations.
        decided: decisions of the group that were logged.
        sums: parts that peers have given.
    """

    def __init__(self, scene: Scene, decided: Decided, sums: NamedSums) -> None:
        self._scene, self._decided, self._sums = scene, decided, sums
        self._ops: dict[int, _Op] = {}

    # ---- the ledger

    def planned(self, plan: Plan, plan_id: int) -> None:
        """C1 of a PLAN."""
        if plan.cells == 1:
            return
        op = self._ops[plan_id] = _Op(plan, self._decided.cells[plan.op])
        if len(self._ops) > _OPS_KEPT:
            del self._ops[next(iter(self._ops))]
        if len(plan.slices) % plan.cells:
            self._violated("C1", f"op {plan.op}: a range has no piece for each cell")
            return
        op.owners = [[spec.owner] for spec in plan.slices]
        op.name([member.peer for member in plan.members if member.weight])
        for index, spec in enumerate(plan.slices):
            self._check_cell(op, index, [spec.owner], "is owned by")

    def reassigned(self, body: Reassign) -> None:
        """C1 of a new owner."""
        for op in self._named(body.op):
            op.owners[body.slice_index].append(body.owner)
            self._check_cell(op, body.slice_index, [body.owner], "goes to")

    def froze(self, freeze: Freeze) -> None:
        """Each owner sums those of its cell."""
        for op in self._named(freeze.op):
            op.name(freeze.contributors)

    def slice_frozen(self, body: SliceFreeze) -> None:
        """C1 of the set that a new owner sums."""
        for op in self._named(body.op):
            self._check_cell(op, body.slice_index, body.contributors, "sums")
            name = set_id(body.contributors)
            op.sets[edition(name, (body.attempt,))] = body.contributors

    def committed(self, commit: Commit, frozen: Freeze) -> None:
        """C4, and what was not made again is of all of FREEZE."""
        for op in self._named(commit.op):
            count = op.plan.cells
            for first in range(0, len(commit.slices), count):
                pieces = commit.slices[first : first + count]
                if len({piece.contributors for piece in pieces}) > 1:
                    self._violated("C4", f"op {commit.op}: range {first // count} has several sets")
                is_first = not any(piece.attempt for piece in pieces)
                if is_first and set(pieces[0].contributors) != set(frozen.contributors):
                    self._violated("C4", f"op {commit.op}: range {first // count} is not FREEZE's")

    def of_cell(self, op: int, index: int, peers: Iterable[PeerId]) -> set[PeerId]:
        """Return those of some members of an op that a slice's owner sums."""
        of, count = self._decided.cells[op], self._decided.plans[op].cells
        return {peer for peer in peers if not of or of.get(peer) == index % count}

    def _named(self, number: int) -> list[_Op]:
        """The newest PLAN of an op, if it has cells."""
        plan = self._decided.plans.get(number)
        return [op for op in self._ops.values() if op.plan is plan]

    def _check_cell(self, op: _Op, index: int, peers: Iterable[PeerId], does: str) -> None:
        strangers = [peer for peer in peers if op.of.get(peer) != op.cell_of(index)]
        if strangers:
            names = ", ".join(map(self._scene.name_of, strangers))
            story = f"op {op.plan.op}: slice {index} {does} {names}, of another cell"
            self._violated("C1", story)

    # ---- what is sent

    def sends(self, peer: PeerId, target: PeerId, frame: Frame) -> None:
        """C2 and C3 of a frame. Peers act on what they know of the ledger, so it counts who has
        owned a slice at any time; who says what it should not may do so."""
        op = self._ops.get(frame.plan_id)
        if op is None or peer in self._scene.hostile or not 0 <= frame.slice_index < len(op.owners):
            return
        index, cell = frame.slice_index, op.of.get(peer, -1)
        named = op.owners[index][frame.attempt : frame.attempt + 1]
        if frame.kind is FrameKind.PART:
            is_right = named == [target] and cell == op.cell_of(index)
        elif frame.kind is FrameKind.SUM:
            is_named = named == [peer if cell == op.cell_of(index) else target]
            is_near = peer in op.near(cell, index)
            is_right = is_named and is_near and target in op.takers(cell, index)
        elif frame.kind is FrameKind.SUMS:
            of = op.of.get(target, -1)
            is_named = named == [target if of == op.cell_of(index) else peer]
            is_right = is_named and target in op.near(of, index) and peer in op.takers(of, index)
        elif frame.kind is FrameKind.RESULT:
            is_owner, is_near = named == [peer], op.of.get(target) == cell
            relays = is_owner and target in op.near(op.of.get(target, -1), index)
            is_right = (is_near and (is_owner or peer in op.near(cell, index))) or relays
        else:
            return
        if frame.kind is FrameKind.SUM and not self._is_sum(op, peer, frame):
            name = self._scene.name_of(peer)
            self._violated("C5", f"op {op.plan.op}: {name} passes on another sum for {index}")
        if not is_right:
            names = self._scene.name_of(peer), self._scene.name_of(target)
            what = f"{frame.kind.name} of slice {index}.{frame.attempt}"
            name = "C3" if frame.kind is FrameKind.RESULT else "C2"
            self._violated(name, f"op {op.plan.op}: {names[0]} sends {names[1]} {what}")

    def _is_sum(self, op: _Op, owner: PeerId, frame: Frame) -> bool:
        """Make a sum of the others' parts again. Of whoever gives other bytes than it has signed
        none knows before FREEZE."""
        key = owner, frame.slice_index, frame.chunk, frame.set_id
        named = op.sets.get(frame.set_id)
        if named is None:
            return False
        if self._scene.deeds.keys() & named:
            return True
        if key not in op.sums:
            plan = op.plan
            if frame.set_id not in op.totals:
                op.totals[frame.set_id] = self._sums.total_of(plan.op, named, plan).numpy()
            start, stop = chunk_range(plan, frame.slice_index, frame.chunk)
            total = op.totals[frame.set_id][start:stop]
            if owner in named:  # sums are exact, so it comes out again to the bit
                weight = next(one.weight for one in plan.members if one.peer == owner)
                own = self._sums.decoded(plan.op, owner, plan)[start:stop]
                total = total - own.numpy() * weight
            op.sums[key] = total.astype("<f8").tobytes()
        return bytes(frame.body[: len(op.sums[key])]) == op.sums[key]

    def _violated(self, invariant: str, story: str) -> None:
        self._decided.violated(invariant, story)
