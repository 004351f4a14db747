"""Sums of cells: what a cell gives for a chunk, and what two owners say of the same sum.

A cell's *sum* of a chunk is, as it travels and as it is hashed, what the others of the cell have
given, unrounded in float64, and behind it the encoded part of its owner, if that contributes. The
owner cannot deny it that way: the sum follows from parts that others hold and have signed.

In SLICE_DONE an owner names sums by their roots, the hashes over those of their chunks: first, per
cell, those that its mean is made of; then, per slice of its range, those that it has given. In its
own place there stands what it keeps for audits, the sum that the owner of the slice before has made
of its own cell (`cells.Cells.taker`). So each sum is named twice, by its owner and by who was sent
it. The coordinator compares before COMMIT, and afterwards either of the two can show it to an
auditor (protocol.md, Trust).
"""

from collections.abc import Sequence

from swarmtrain_transport.arithmetic import Arithmetic, Buffer
from swarmtrain_transport.ledger.fold import OpView, chunk_range, window_of

SUM_BYTES = 8
"""Bytes of one value of a sum."""

Named = tuple[int, int]
"""A piece of a range, and a place among the roots that its owner names."""


def num_named(count: int) -> int:
    """Return how many roots an owner names in an op of so many cells; none without cells."""
    return 2 * count if count > 1 else 0


def named_twice(piece: int, cell: int, count: int) -> tuple[Named, Named]:
    """Return where the sum of a cell for a piece of a range is named: by the owner of the piece,
    and by the owner in that cell; of the piece's own cell by who keeps it."""
    if piece != cell:
        return (piece, cell), (cell, count + piece)
    keeper = (piece + 1) % count
    return (piece, cell), (keeper, count + keeper)


def named_by_maker(piece: int, cell: int, count: int) -> int:
    """Return the place of a sum among the roots that whoever has made it names."""
    return cell if piece == cell else count + piece


def differences(named: Sequence[Sequence[bytes] | None]) -> list[tuple[int, int]]:
    """Pairs of pieces of one range whose owners name the same sum differently.

    Args:
        named: the roots that the owner of each piece names; None while it has named none.
    """
    count, found = len(named), list[tuple[int, int]]()
    for number in range(count * count):
        (one, at), (other, there) = named_twice(*divmod(number, count), count)
        mine, theirs = named[one], named[other]
        if mine is not None and theirs is not None and mine[at] != theirs[there]:
            found.append((one, other))
    return found


def check_sum(
    view: OpView, index: int, cell: int, chunk: int, data: Buffer, arithmetic: Arithmetic
) -> None:
    """Check that legal parts of a cell can make this sum of a chunk of a slice.

    Raises:
        RemoteFault: reason ``length`` or ``sum``; or that of the part behind the sum.
    """
    summed, part = _parted(view, index, chunk, data)
    place, window = view.cells.owned(cell, index), window_of(view.plan)
    owner = view.owners[place]
    weight = sum(view.weights[peer] for peer in view.givers(place) if peer != owner)
    start, stop = chunk_range(view.plan, index, chunk)
    arithmetic.check_sum(summed, stop - start, window, weight)
    if part:
        arithmetic.check(part, stop - start, window)


def mean_of_sums(
    view: OpView, index: int, chunk: int, sums: Sequence[tuple[int, Buffer]], arithmetic: Arithmetic
) -> bytes:
    """Make a chunk of the mean of the sums of cells, all of them checked. The part of a sum's owner
    counts where it is one of the contributors."""
    start, stop = chunk_range(view.plan, index, chunk)
    window, added = window_of(view.plan), list[Buffer]()
    own = arithmetic.accumulator(stop - start, window)
    for cell, data in sums:
        summed, part = _parted(view, index, chunk, data)
        added.append(summed)
        place = view.cells.owned(cell, index)
        owner, given = view.owners[place], view.given_sets[place]
        if part and owner in (view.givers(place) if given is None else given):
            own.add(part, view.weights[owner])
    added.append(own.unrounded())
    return arithmetic.finish_sums(added, stop - start, window, _weight(view, index))


def _weight(view: OpView, index: int) -> int:
    named = view.slice_sets[index]
    return sum(view.weights[peer] for peer in (view.weights if named is None else named))


def others_in(view: OpView, index: int, chunk: int, data: Buffer) -> bytes:
    """Return what a sum has of the others than its owner."""
    return bytes(_parted(view, index, chunk, data)[0])


def _parted(view: OpView, index: int, chunk: int, data: Buffer) -> tuple[Buffer, Buffer]:
    start, stop = chunk_range(view.plan, index, chunk)
    whole = memoryview(data)
    return whole[: SUM_BYTES * (stop - start)], whole[SUM_BYTES * (stop - start) :]
