"""The rules of means in cells (protocol.md rule 8), broken one at a time as in `broken_rules`, in
worlds of two cells.

| what is broken | mutant |
|---|---|
| a finisher adds another set's, twice, not all, illegal, a stranger's | C1, C2, C3, C13, C14 |
| an owner passes on what is rounded, or over others than it names | C4, C11 |
| the weight is of one cell, of all planned | C7, C12 |
| another cell's owner, sets not joined again, the same cells in each op | C5, C6, C15 |
| results to everybody; sums that were lost not asked for, not given | C8, C9, C10 |
| what owners say of the same sum is not compared | C16 |
"""

import contextlib
from collections.abc import Iterator

import numpy as np
from broken_rules import Mutant, replaced

from swarmtrain.peer.arithmetic import ChunkSum, CodecArithmetic
from swarmtrain.simulate.faults.troubles import HOSTILE_SUMS, LATE, LOST_SUMS, OWNER_DEATH
from swarmtrain.simulate.ground.misbehaviour import MISADDS, Deed
from swarmtrain.simulate.seeds import world_of
from swarmtrain.simulate.world import World
from swarmtrain_transport.collective.exchange import Exchange
from swarmtrain_transport.collective.finisher import NO_SUM, Finisher
from swarmtrain_transport.collective.reducer import Reducer
from swarmtrain_transport.coordinator.ops import planning, reassignment
from swarmtrain_transport.coordinator.ops.reports import Reports
from swarmtrain_transport.ledger import cell_sums, cells
from swarmtrain_transport.ledger.cells import Cells
from swarmtrain_transport.ledger.fold import OpView, chunk_range

PEERS, CELLS, OPS = 8, 2, 4

_FAULTS = ("death", "restart", "stop", "one-way cut", LOST_SUMS, OWNER_DEATH)


def in_cells(seed: int) -> World:
    return world_of(seed, PEERS, OPS, kinds=_FAULTS, cells=CELLS)


def with_lost_sums(seed: int) -> World:
    return world_of(seed, PEERS, OPS, kinds=(LOST_SUMS,), cells=CELLS)


def with_late_frames(seed: int) -> World:
    return world_of(seed, 12, OPS, kinds=(LATE, LOST_SUMS), cells=3)


def with_strangers(seed: int) -> World:
    return world_of(seed, PEERS, OPS, kinds=("hostile frame",), cells=CELLS)


def with_other_words(seed: int) -> World:
    """One owner sends other sums than it names, or names others than it was given."""
    world = world_of(seed, PEERS, OPS, kinds=(LOST_SUMS,), cells=CELLS)

    def lies() -> None:
        world.scene.misbehave(next(iter(world.swarm.peers)), Deed(MISADDS))

    world.scene.clock.after(0.1, lies)
    return world


def with_hostile_owners(seed: int) -> World:
    return world_of(seed, PEERS, OPS, kinds=(HOSTILE_SUMS,), cells=CELLS)


# ---- what a finisher adds


def a_sum_of_another_set_is_added():
    def make(name):
        def any_name(self, source, chunk):
            is_here = (source, chunk) in self._sums
            return self._expected(source) if is_here else name(self, source, chunk)

        return any_name

    return replaced(Finisher, "_name", make)


def a_sum_that_comes_twice_counts_twice():
    def make(take):
        def greedy(self, source, chunk, name, data, digest=b""):
            known = self._sums.get((source, chunk))
            if known is None or known.name != name or chunk in self.result:
                return take(self, source, chunk, name, data, digest)
            start, stop = chunk_range(self._view.plan, source[0], chunk)
            size = 8 * (stop - start)
            twice = 2 * np.frombuffer(bytes(data[:size]), "<f8")
            kept = self._retention.keep(twice.tobytes() + bytes(data[size:]))
            self._sums[source, chunk] = known._replace(kept=kept)
            return False

        return greedy

    return replaced(Finisher, "take", make)


def a_late_cell_is_left_out():
    def make(expected):
        def hasty(self, source):
            is_late = self._view.frozen is not None and (source, 0) not in self._sums
            return NO_SUM if is_late else expected(self, source)

        return hasty

    return replaced(Finisher, "_expected", make)


@contextlib.contextmanager
def any_sum_is_taken() -> Iterator[None]:
    """And nobody compares: else a sum that its owner names otherwise is in no result anyway."""
    with (
        nobody_compares(),
        replaced(CodecArithmetic, "check_sum", lambda check: lambda self, *of: None),
    ):
        yield


@contextlib.contextmanager
def a_strangers_sum_is_taken() -> Iterator[None]:
    """And nobody compares, as above."""

    def make(on_sum):
        def credulous(self, peer, frame):
            finisher, mine = (
                self._finishers.get(frame.slice_index),
                self.view.cells.cell_of(self._me),
            )
            if finisher is None or finisher.attempt != frame.attempt:
                return on_sum(self, peer, frame)
            source = frame.slice_index, (mine + 1) % self.view.cells.count
            if not finisher.take(source, frame.chunk, frame.set_id, frame.body):
                return []
            return self._finish_more(finisher)

        return credulous

    with nobody_compares(), replaced(Exchange, "_on_sum", make):
        yield


# ---- what an owner passes on


def a_sum_is_rounded():
    def make(sum_of):
        def rounded(self):
            values = np.frombuffer(sum_of(self), dtype="<f8")
            return values.astype("<f4").astype("<f8").tobytes()

        return rounded

    return replaced(ChunkSum, "unrounded", make)


def an_early_sum_stands():
    def make(sum_again):
        def stubborn(self, contributors):
            if len(self._sums) < self._num_chunks:
                sum_again(self, contributors)

        return stubborn

    return replaced(Reducer, "_sum_again", make)


# ---- weights


def the_weight_is_one_cells():
    return replaced(
        cell_sums, "_weight", lambda _: lambda view, index: _sum(view, view.givers(index))
    )


def the_weight_is_of_all_planned():
    return replaced(cell_sums, "_weight", lambda _: lambda view, index: _sum(view, view.weights))


def _sum(view, peers):
    return sum(view.weights[peer] for peer in peers)


# ---- records


def nobody_compares():
    return replaced(Reports, "differences", lambda _: lambda self, index: [])


def _anywhere(decide):
    def everybody(*of, **more):
        with replaced(Cells, "among", lambda _: lambda self, peers, index: tuple(peers)):
            return decide(*of, **more)

    return everybody


@contextlib.contextmanager
def a_slice_goes_to_another_cell() -> Iterator[None]:
    """Neither the coordinator nor who reads the record looks at the cell."""
    with (
        replaced(reassignment, "_reassign", _anywhere),
        replaced(OpView, "_reassign", _anywhere),
    ):
        yield


def sets_are_joined_once():
    def make(join):
        def once(self):
            if None in getattr(self, "slice_sets", [None]):
                join(self)

        return once

    return replaced(OpView, "_join_sets", make)


@contextlib.contextmanager
def cells_are_the_same_in_each_op() -> Iterator[None]:
    def make(_):
        return lambda previous_outcome, op: b""

    with replaced(cells, "seed_of", make), replaced(planning, "seed_of", make):
        yield


# ---- what is sent


def a_relay_tells_everybody():
    def make(relay):
        def loud(self, peer, frame):
            with replaced(self, "_near", lambda _: self._others):
                return relay(self, peer, frame)

        return loud

    return replaced(Exchange, "_relay", make)


def nobody_asks_for_sums():
    return replaced(Exchange, "_ask_for_sums", lambda ask: lambda self, finisher: [])


def nobody_gives_sums_again():
    return replaced(Exchange, "_on_sums", lambda on_sums: lambda self, peer, frame: [])


_NOT_THE_MEAN = (("I3", ""),)

CELL_MUTANTS = {
    "C1": Mutant(
        "a finisher adds a cell's sum over another set than was decided",
        a_sum_of_another_set_is_added, _NOT_THE_MEAN, world=in_cells,
    ),
    "C2": Mutant(
        "a sum that comes twice counts twice",
        a_sum_that_comes_twice_counts_twice, _NOT_THE_MEAN, world=with_late_frames,
    ),
    "C3": Mutant(
        "after FREEZE a cell whose sum is late is left out",
        a_late_cell_is_left_out, _NOT_THE_MEAN, world=in_cells,
    ),
    "C4": Mutant(
        "sums are passed on as float32", a_sum_is_rounded, (("C5", ""),), world=in_cells,
    ),
    "C5": Mutant(
        "a slice goes to a peer of another cell",
        a_slice_goes_to_another_cell, (("C1", "goes to"),), world=in_cells,
    ),
    "C6": Mutant(
        "a range's set stays what it was at FREEZE, whoever its new owners sum",
        sets_are_joined_once, (("I3", ""), ("C4", ""), ("raised", ""), ("L3", "")), world=in_cells,
    ),
    "C7": Mutant(
        "the mean is divided by the weight of one cell",
        the_weight_is_one_cells, _NOT_THE_MEAN, world=in_cells,
    ),
    "C8": Mutant(
        "a relay passes results on to all cells",
        a_relay_tells_everybody, (("C3", ""),), world=in_cells,
    ),
    "C9": Mutant(
        "sums that do not come are not asked for",
        nobody_asks_for_sums, (("L3", ""),), world=with_lost_sums,
    ),
    "C10": Mutant(
        "who is asked for sums gives none",
        nobody_gives_sums_again, (("L3", ""),), world=with_lost_sums,
    ),
    "C11": Mutant(
        "a sum over all planned stands, whoever is left out",
        an_early_sum_stands, (("C5", ""),), world=in_cells,
    ),
    "C12": Mutant(
        "the mean is divided by the weight of all planned",
        the_weight_is_of_all_planned, _NOT_THE_MEAN, world=in_cells,
    ),
    "C13": Mutant(
        "any sum is added, whether parts can have it or not",
        any_sum_is_taken, (("I3", ""), ("raised", ""), ("fault", "")), world=with_hostile_owners,
    ),
    "C14": Mutant(
        "a sum is taken from who does not own the range",
        a_strangers_sum_is_taken, (("I3", ""), ("raised", "")), world=with_strangers,
    ),
    "C15": Mutant(
        "members are in the same cells in each op",
        cells_are_the_same_in_each_op, (("C1", "is owned by"),), world=in_cells,
    ),
    "C16": Mutant(
        "nobody compares what owners say of the same sum",
        nobody_compares, (("I3", ""), ("fault", "the one that was named")),
        world=with_other_words,
    ),
}  # fmt: skip
