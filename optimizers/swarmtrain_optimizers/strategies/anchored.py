"""The common part of strategies with one anchor: their buffers, and the checks of these.

An outer step is made piece by piece in place, once nothing can fail any more. Not here: the fate of
a peer's own work, which every strategy decides for itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn
from swarmtrain_optimizers.exclusions import Exclusions
from swarmtrain_optimizers.outer import OuterTransform, outer_step
from swarmtrain_optimizers.strategies.base import Exchange, Moved, OpKind, Values
from swarmtrain_optimizers.strategies.checks import check_arrays, check_vector, is_finite
from swarmtrain_optimizers.strategies.fragments import Ranges
from swarmtrain_optimizers.vectors import copied, parts_of, zeros


class InPlace(ABC):
    """A strategy of which `apply` is `land` with copies of what it is given, see `StepsInPlace`."""

    _num_values: int
    _dtype: torch.dtype

    @abstractmethod
    def exchange(self, op: int) -> Exchange:
        """See `Strategy.exchange`."""

    @abstractmethod
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
        """See `StepsInPlace.land`."""

    def apply(
        self,
        mean: Tensor,
        included: Sequence[tuple[int, int, bool]],
        weights_now: Tensor,
        decoded_own: DecodeOwn | None = None,
        *,
        op: int = 1,
        own_share: float | None = None,
    ) -> Tensor:
        """End the op with its result; see `Strategy.apply`.

        Raises:
            RuntimeError: as `land`.
            ValueError: shapes or ranges do not fit, or error feedback has nothing to settle
                with; nothing changed.
        """
        check_vector(mean, "mean", self.exchange(op).num_values, self._dtype)
        check_vector(weights_now, "weights_now", self._num_values, self._dtype)
        now = copied(weights_now)
        moved = self.land(mean, included, now, decoded_own, op=op, own_share=own_share)
        return moved.put_in(now) if isinstance(moved, Moved) else copied(moved)


class Anchored:
    """An anchor, the state of an outer optimizer, and one op at a time on the whole vector.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round.
        outer: the outer optimizer.
        dtype: float32; float64 for oracles.
    """

    takes_gradients = False

    def __init__(
        self, num_values: int, *, inner_steps: int, outer: OuterTransform, dtype: torch.dtype
    ) -> None:
        if inner_steps < 1:
            raise ValueError(f"inner_steps is {inner_steps}; a round has at least one")
        self._num_values = num_values
        self._inner_steps = inner_steps
        self._outer = outer
        self._dtype = dtype
        self._anchor = zeros(num_values, dtype)
        self._state = outer.init(self._anchor)

    @property
    def num_values(self) -> int:
        """Length of the padded vector."""
        return self._num_values

    @property
    def inner_steps(self) -> int:
        """Inner steps of one round."""
        return self._inner_steps

    @property
    def anchor(self) -> Tensor:
        """(num_values,) the anchor phi; a live buffer, never write to it."""
        return self._anchor

    def exchange(self, op: int) -> Exchange:
        """The mean of the whole vector, waited for."""
        return Exchange(OpKind.MEAN, ((0, self._num_values),))

    def is_due(self, steps_since_outer: int) -> bool:
        """True from `inner_steps` on; a peer may have made more while an op was under way."""
        return steps_since_outer >= self._inner_steps

    def set_initial(self, weights: Tensor) -> None:
        """Begin as op 0: anchor = weights, everything else zero."""
        self._check(weights, "weights")
        self._anchor.copy_(weights)
        for array in self._state:
            if array.any():  # zeros of the system's own take no memory
                array.zero_()
        self._forget()

    def state_arrays(self) -> list[tuple[str, Tensor]]:
        """[("anchor", ...), then the outer optimizer's state by name], live buffers."""
        names = self._outer.state_names
        return [("anchor", self._anchor), *zip(names, self._state, strict=True)]

    def load_state(self, arrays: Mapping[str, Tensor]) -> None:
        """Take over shared state; what is this peer's own is dropped (rule 9).

        Raises:
            ValueError: names or shapes differ; nothing changed.
        """
        buffers = self.state_arrays()
        self._check_names(arrays, [name for name, _ in buffers])
        for name, buffer in buffers:
            buffer.copy_(arrays[name])
        self._forget()

    def local_arrays(self) -> list[tuple[str, Tensor]]:
        """Return no arrays."""
        return []

    def load_local(self, arrays: Mapping[str, Tensor]) -> None:
        """Take back `local_arrays`.

        Raises:
            ValueError: names or shapes differ; nothing changed.
        """
        self._check_names(arrays, [name for name, _ in self.local_arrays()])

    def weights_under_way(self) -> Tensor | None:
        """None: an op under way changes no weights."""
        return None

    def drop_broken(self, weights: Tensor) -> Tensor:
        """The weights, or the anchor where they are not finite; see `DropsBroken`.

        Raises:
            ValueError: `weights` is not (num_values,).
        """
        self._check(weights, "weights")
        now = weights.detach()
        return copied(now if is_finite(now) else self._anchor)

    def _forget(self) -> None:
        """Drop this peer's own work, after new state was loaded."""

    def _outer_of(self, op: int) -> OuterTransform:
        """The outer optimizer as it is for this op; the state is the same for all of them."""
        return self._outer

    def _step_in_place(self, outer: OuterTransform, mean: Tensor, piece: slice) -> None:
        """Make the outer step of a piece with the mean there."""
        anchor, state = self._anchor[piece], tuple(array[piece] for array in self._state)
        outer_step(outer, mean, anchor, state, anchor, state)

    def _check(self, tensor: Tensor, name: str) -> None:
        check_vector(tensor, name, self._num_values, self._dtype)

    def _check_names(self, arrays: Mapping[str, Tensor], names: list[str]) -> None:
        check_arrays(arrays, names, self._num_values, self._dtype)


class Giving(Anchored):
    """An anchored strategy whose parts may be left out of an op, and that counts how often.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round.
        outer: the outer optimizer.
        dtype: float32; float64 for oracles.
    """

    def __init__(
        self, num_values: int, *, inner_steps: int, outer: OuterTransform, dtype: torch.dtype
    ) -> None:
        super().__init__(num_values, inner_steps=inner_steps, outer=outer, dtype=dtype)
        self._exclusions = Exclusions(num_values)
        self._dropped: tuple[tuple[int, int], ...] = ()

    @property
    def exclusions_in_row(self) -> int:
        """Most exclusions in a row that any part of the vector has seen; 0 when all is sent."""
        return self._exclusions.longest

    @property
    def dropped(self) -> tuple[tuple[int, int], ...]:
        """Ranges whose pending work the last `apply` dropped, after three exclusions in a row."""
        return self._dropped

    def _forget(self) -> None:
        self._dropped = ()
        self._exclusions.reset()


def carried(now: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """theta of a peer that did not contribute, a new tensor: it moves along with the anchor, and
    where it was the old one it becomes the new one, exactly."""
    return torch.where(now == old, new, now + (new - old))


def is_same(whole: Values, parts: Tensor, ranges: Ranges) -> bool:
    """Return True if all values of these ranges are the given ones; NaN is not."""
    return all(torch.equal(whole[place], parts[part]) for part, place in parts_of(ranges))


def within(ranges: Sequence[tuple[int, int]], piece: slice) -> Iterator[tuple[int, int]]:
    """The parts of these ranges that lie in a piece, counted from its begin."""
    for start, stop in ranges:
        low, high = max(start, piece.start), min(stop, piece.stop)
        if low < high:
            yield low - piece.start, high - piece.start
