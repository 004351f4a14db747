"""The common part of strategies whose ops go by pairs: an anchor of each peer's own, and its half.

Both partners compute with the decoded halves, their own too. A step is made piece by piece in
place, and a half is there only in the pieces that are asked for: weights as they were when the op
began are the only whole vector beside anchor and outer state. Not here: which half a strategy
gives, and how two halves become one step.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn, check_cover
from swarmtrain_optimizers.strategies.anchored import Anchored, InPlace, is_same, within
from swarmtrain_optimizers.strategies.base import Moved, Values
from swarmtrain_optimizers.strategies.checks import check_lengths
from swarmtrain_optimizers.vectors import copied, pieces, taken


class Half:
    """This peer's half of an op, made when it is asked for.

    Args:
        num_values: length of the op's vector.
        make: makes the values of some places; they are only read.
    """

    def __init__(self, num_values: int, make: Callable[[slice], Tensor]) -> None:
        self._num_values, self._make = num_values, make

    def numel(self) -> int:
        """Length of the vector."""
        return self._num_values

    def __getitem__(self, places: slice) -> Tensor:
        """(stop - start,) the values there; only read."""
        start, stop, _ = places.indices(self._num_values)
        return self._make(slice(start, stop))


@dataclass(frozen=True, slots=True)
class Halves:
    """Both halves of an op, for a step that is made piece by piece.

    Attributes:
        partner: the partner's half, decoded; read in order.
        both: (start, stop) parts of the op's vector in which both halves count.
        decoded_own: our half as the partner decoded it; None where the codec loses nothing.
    """

    partner: Values
    both: Sequence[tuple[int, int]]
    decoded_own: DecodeOwn | None

    def within(self, kept: Tensor, places: slice) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield the places in a piece where both halves count, our half there and the partner's.

        Args:
            kept: (stop - start,) our half in the piece, as we gave it.
            places: the piece's place in the op's vector.
        """
        for start, stop in within(self.both, places):
            low, high = places.start + start, places.start + stop
            own = kept[start:stop] if self.decoded_own is None else self.decoded_own(low, high)
            yield slice(start, stop), own, self.partner[low:high]


class Paired(Anchored, InPlace):
    """An anchored strategy of pair ops."""

    _begun: tuple[Tensor, Half] | None = None
    """(num_values,) the weights when the op under way began, and our half of it."""

    @abstractmethod
    def _half(self, weights: Tensor) -> Half:
        """Our half, which holds until the op ends."""

    @abstractmethod
    def _merge(self, half: Half, halves: Halves) -> None:
        """Move anchor and outer state, in place: each place after what our half takes from it was
        read, as a peer encodes its half again to know what the partner decoded."""

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """Return our half as a whole.

        Raises:
            RuntimeError: the last op was ended by neither `apply`, `solo` nor `skip`.
        """
        return copied(self.difference(copied(weights), op)[:])

    def difference(self, weights: Values, op: int = 1) -> Values:
        """Make the part of our half that is asked for; see `StepsInPlace`.

        Raises:
            RuntimeError: as `pseudo_gradient`.
        """
        if self._begun is not None:
            raise RuntimeError("an op is under way: end it with apply(), solo() or skip() first")
        if not isinstance(weights, Tensor):
            weights = taken(weights, ((0, weights.numel()),), self._dtype)
        self._check(weights, "weights")
        snapshot = weights.detach()
        half = self._half(snapshot)
        self._begun = snapshot, half
        return half

    def land(
        self,
        mean: Values,
        included: Sequence[tuple[int, int, bool]],
        weights_now: Values | None,
        decoded_own: DecodeOwn | None = None,
        *,
        op: int = 1,
        own_share: float | None = None,
    ) -> Tensor | Moved:
        """End the op with the partner's half; see `StepsInPlace`.

        Args:
            mean: (values of the op,) what the partner gave, decoded.
            included: parts of the op's vector in which both halves count; elsewhere a peer goes on
                as if it had no partner.
            weights_now: (num_values,) with steps made since, which are kept (rule 10).
            decoded_own: our half as the partner decoded it; None where the codec loses nothing.
            op: ignored.
            own_share: ignored, as it is a half.

        Returns:
            (num_values,) the weights to go on from; none moved for a peer that gave nothing, as a
            pair's op says nothing to others.

        Raises:
            ValueError: shapes or ranges do not fit; nothing changed.
        """
        check_lengths(self._num_values, weights_now=weights_now)
        if self._begun is None:
            return Moved((), self._anchor[:0])
        snapshot, half = self._begun
        check_lengths(half.numel(), mean=mean)
        check_cover(included, half.numel())
        if weights_now is not None and is_same(weights_now, snapshot, ((0, self._num_values),)):
            weights_now = None
        both = [(start, stop) for start, stop, here in included if here]
        self._merge(half, Halves(mean, both, decoded_own))
        self._begun = None
        if weights_now is None:
            return self._anchor
        for piece in pieces(self._num_values):
            torch.add(
                self._anchor[piece], weights_now[piece] - snapshot[piece], out=snapshot[piece]
            )
        return snapshot

    def skip(self) -> None:
        """End the op without any step; what was pending is computed anew for the next one."""
        self._begun = None

    def _forget(self) -> None:
        self._begun = None


class PairedOrAlone(Paired):
    """One whose peer makes a step of a group of one where it has no partner."""

    def solo(self, weights_now: Tensor) -> Tensor:
        """End the op alone: a group of one, which both of a failed pair are.

        Args:
            weights_now: see `apply`.

        Returns:
            (num_values,) the weights to go on from.

        Raises:
            RuntimeError: no op is under way.
        """
        if self._begun is None:
            raise RuntimeError("no op is under way: call pseudo_gradient() first")
        half = self._begun[1]
        landed = self.land(half, [(0, half.numel(), True)], copied(weights_now))
        assert isinstance(landed, Tensor)
        return copied(landed)


def midway(kept: Tensor, own: Tensor, partner: Tensor) -> Tensor:
    """The mean of two partners' weights, a new tensor.

    What one moves the other moves back. What the codec lost of the own half stays; where it loses
    nothing the two have the same bits.

    Args:
        kept: (n,) our half as we gave it.
        own: (n,) it as the partner decoded it.
        partner: (n,) the partner's half, decoded.
    """
    return torch.add(partner, own).mul_(0.5).add_(torch.sub(kept, own))
