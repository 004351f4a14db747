"""Streaming DiLoCo: one fragment of the vector after the other, merged while training goes on.

Each fragment p is a DiLoCo of its own (anchor, momentum, error feedback), and op n moves fragment
(n - 1) mod P, so the link carries a P-th of the vector at a time and every fragment is exchanged
once in H inner steps, the fragments H / P apart. An op's result takes its place tau inner steps
after the contribution and is mixed with what the peer has become meanwhile; the anchor is what the
outer step made, never the mixture, which is this peer's own. With tau above H / P the next
fragments are exchanged before that place is reached: so many ops are under way at once, each on a
fragment of its own. A skipped op's fragment waits for its next turn. Not here: which layers make a
fragment (`fragments`).

References:
    Douillard et al., Streaming DiLoCo with overlapping communication, arXiv 2501.18512, Alg. 2.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn
from swarmtrain_optimizers.strategies.anchored import InPlace
from swarmtrain_optimizers.strategies.base import Exchange, Moved, OpKind, Values
from swarmtrain_optimizers.strategies.checks import check_arrays, check_lengths, check_vector
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_optimizers.strategies.fragments import Ranges, check_fragments
from swarmtrain_optimizers.vectors import copied, fresh, pieces, taken


class Streaming(InPlace):
    """With phi_p the anchor of fragment p, theta_p the peer's weights there, m_p the fragment's
    outer momentum buffer, zero in op 0, mu its decay and eta the outer learning rate: Delta_p =
    phi_p - theta_p; tau steps later d = weighted mean of the included Delta_p; m_p <- mu m_p + d;
    phi_p' = phi_p - eta (mu m_p + d), with the new m_p; then
    theta_p <- alpha theta_p + (1 - alpha) phi_p'.

    With one fragment, tau 0 and alpha 0 this is DiLoCo bit for bit; with alpha 1 peers are
    independent. Work that was left out of an op is rebased as in DiLoCo before it is mixed; with
    tau above 0 and alpha 0 the tau steps are thrown away, as in the paper. The first exchange of
    fragment p comes after (p + 1) H / P steps.

    Args:
        num_values: length of the padded vector.
        fragments: the ranges of each fragment, see `fragments.fragments_of`; their number is P.
        inner_steps: H, inner steps between two exchanges of one fragment; a multiple of P.
        delay_steps: tau, at most H: the fragment's result is there before its next exchange.
        mixing: alpha, how much of its own weights a peer keeps, 0..1.
        lr: eta.
        momentum: mu.
        error_feedback: keep what compression lost, or an exclusion held back.
        dtype: float32; float64 for oracles.

    Raises:
        ValueError: the fragments do not cover the vector, or a number is out of its range.
    """

    takes_gradients = False

    def __init__(
        self,
        num_values: int,
        *,
        fragments: Sequence[Ranges],
        inner_steps: int,
        delay_steps: int,
        mixing: float,
        lr: float,
        momentum: float,
        error_feedback: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_fragments(fragments, num_values)
        if inner_steps % len(fragments):
            raise ValueError(f"inner_steps {inner_steps} is no multiple of {len(fragments)}")
        self._interval = inner_steps // len(fragments)
        if self._interval < 1 or not 0 <= delay_steps <= inner_steps or not 0 <= mixing <= 1:
            raise ValueError(
                f"delay_steps {delay_steps} must be in 0..{inner_steps}, the steps from a "
                f"fragment's exchange to its next, and mixing {mixing} in 0..1"
            )
        self._num_values = num_values
        self._fragments = tuple(tuple(ranges) for ranges in fragments)
        self._delay_steps = delay_steps
        self._alpha = mixing
        self._dtype = dtype
        self._parts = tuple(
            DiLoCo(
                sum(stop - start for start, stop in ranges),
                inner_steps=inner_steps,
                lr=lr,
                momentum=momentum,
                error_feedback=error_feedback,
                dtype=dtype,
            )
            for ranges in self._fragments
        )
        # Fragment and place in it of each range, in the vector's order.
        self._in_order = [
            (index, slice(position, position + stop - start))
            for start, stop, index, position in sorted(_lying(self._fragments))
        ]
        self._under_way: list[int] = []  # fragments that we gave, in the order of their ops
        self._applied: int | None = None

    @property
    def num_values(self) -> int:
        """Length of the padded vector."""
        return self._num_values

    @property
    def inner_steps(self) -> int:
        """Inner steps of one round, H / P: from one op to the next."""
        return self._interval

    @property
    def anchor(self) -> Tensor:
        """(num_values,) the anchors of all fragments, a new tensor."""
        return dict(self.state_arrays())["anchor"]

    @property
    def exclusions_in_row(self) -> int:
        """Most exclusions in a row that any part of the vector has seen; 0 when all is sent."""
        return max(part.exclusions_in_row for part in self._parts)

    @property
    def dropped(self) -> tuple[tuple[int, int], ...]:
        """Ranges of the whole vector whose pending work the last `apply` dropped."""
        if self._applied is None:
            return ()
        ranges = self._fragments[self._applied]
        dropped = self._parts[self._applied].dropped
        return tuple(piece for start, stop in dropped for piece in _lying_at(ranges, start, stop))

    def exchange(self, op: int) -> Exchange:
        """Fragment (op - 1) mod P, its result tau steps later."""
        ranges = self._fragments[self._fragment(op)]
        return Exchange(OpKind.MEAN, ranges, self._delay_steps)

    def is_due(self, steps_since_outer: int) -> bool:
        """True from H / P steps on."""
        return steps_since_outer >= self._interval

    def set_initial(self, weights: Tensor) -> None:
        """Begin as op 0: anchor = weights, momentum and error feedback zero."""
        self._check(weights, "weights")
        for part, ranges in zip(self._parts, self._fragments, strict=True):
            part.set_initial(taken(weights, ranges, self._dtype))
        self._under_way.clear()

    def state_arrays(self) -> list[tuple[str, Tensor]]:
        """[("anchor", ...), ("momentum", ...)] in the vector's order, new tensors."""
        return self._joined([part.state_arrays() for part in self._parts])

    def state_pieces(self) -> list[tuple[str, list[Tensor]]]:
        """Live buffers of each of these arrays, in the vector's order; see `LiesInPieces`."""
        arrays = [part.state_arrays() for part in self._parts]
        return [
            (name, [arrays[index][number][1][places] for index, places in self._in_order])
            for number, (name, _) in enumerate(arrays[0])
        ]

    def load_state(self, arrays: Mapping[str, Tensor]) -> None:
        """Take over shared state; error feedback and pending work are dropped (rule 9).

        Raises:
            ValueError: names or shapes differ; nothing changed.
        """
        self._check_arrays(arrays, ["anchor", "momentum"])
        for part, ranges in zip(self._parts, self._fragments, strict=True):
            part.load_state(
                {name: taken(array, ranges, self._dtype) for name, array in arrays.items()}
            )
        self._under_way.clear()

    def local_arrays(self) -> list[tuple[str, Tensor]]:
        """[("error_feedback", e)], a new tensor, or [] without error feedback."""
        return self._joined([part.local_arrays() for part in self._parts])

    def load_local(self, arrays: Mapping[str, Tensor]) -> None:
        """Take back e.

        Raises:
            ValueError: names or shapes differ; nothing changed.
        """
        self._check_arrays(arrays, [name for name, _ in self._parts[0].local_arrays()])
        for part, ranges in zip(self._parts, self._fragments, strict=True):
            part.load_local(
                {name: taken(array, ranges, self._dtype) for name, array in arrays.items()}
            )

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """Delta_p of the op's fragment, plus e_p with error feedback.

        Raises:
            RuntimeError: too many ops were ended by neither `apply` nor `skip`.
        """
        self._check(weights, "weights")
        return self.difference(weights.detach(), op)[:]

    def difference(self, weights: Values, op: int = 1) -> Values:
        """Make the part of `pseudo_gradient` when it is asked for; see `StepsInPlace`.

        Raises:
            RuntimeError: as `pseudo_gradient`.
        """
        if self._under_way and len(self._under_way) * self._interval >= self._delay_steps:
            raise RuntimeError("an op is under way: end it with apply() or skip() first")
        check_lengths(self._num_values, weights=weights)
        index = self._fragment(op)
        values = self._parts[index].difference(self._taken(weights, index), op)
        self._under_way.append(index)
        return values

    def weights_under_way(self) -> Tensor | None:
        """None: an op under way changes no weights."""
        return None

    def land(
        self,
        mean: Values,
        included: Sequence[tuple[int, int, bool]],
        weights_now: Values | None,
        decoded_own: DecodeOwn | None = None,
        *,
        op: int = 1,
        own_share: float | None = None,
    ) -> Moved:
        """Outer step of the op's fragment, then its weights mixed; see `StepsInPlace`. Ops end in
        their order.

        Raises:
            RuntimeError: we contributed another fragment before this op's; nothing changed.
            ValueError: shapes or ranges do not fit; nothing changed.
        """
        index = self._fragment(op)
        if self._under_way and self._under_way[0] != index:
            raise RuntimeError(f"op {op} moves fragment {index}, we gave {self._under_way[0]}")
        check_lengths(self._num_values, weights_now=weights_now)
        ranges, part = self._fragments[index], self._parts[index]
        snapshot, own = part.snapshot, None
        # With a delay the steps made meanwhile are alpha's matter, not rule 10's.
        now = None if snapshot is not None and self._delay_steps else weights_now
        if snapshot is not None and 0 < self._alpha < 1:
            own = copied(snapshot) if weights_now is None else self._taken(weights_now, index)
        base = None if now is None else self._taken(now, index)
        landed = part.land(mean, included, base, decoded_own, op=op)
        del self._under_way[:1]
        self._applied = index
        if own is not None:
            landed = self._mixed(part, own, landed)
        moved = Moved(() if self._alpha == 1 else ranges, landed)
        if not part.dropped or weights_now is None:
            return moved
        # NaN in another fragment would be back in this one after a step.
        whole = ((0, self._num_values),)
        weights = moved.put_in(taken(weights_now, whole, self._dtype))
        return Moved(whole, self.drop_broken(weights))

    def skip(self) -> None:
        """End the oldest op without a result; its fragment's work is given in its next turn."""
        if self._under_way:
            self._parts[self._under_way.pop(0)].skip()

    def drop_broken(self, weights: Tensor) -> Tensor:
        """Each fragment by itself: one that is finite keeps its work and its error feedback.

        Raises:
            ValueError: `weights` is not (num_values,).
        """
        self._check(weights, "weights")
        kept = copied(weights)
        for part, ranges in zip(self._parts, self._fragments, strict=True):
            Moved(ranges, part.drop_broken(taken(kept, ranges, self._dtype))).put_in(kept)
        return kept

    def _mixed(self, part: DiLoCo, now: Tensor, landed: Tensor) -> Tensor:
        """theta of the fragment, made in `now`."""
        for piece in pieces(now.numel()):
            now[piece].mul_(self._alpha).add_(torch.mul(landed[piece], 1 - self._alpha))
        for start, stop in part.dropped:
            now[start:stop] = landed[start:stop]
        return now

    def _fragment(self, op: int) -> int:
        return (op - 1) % len(self._fragments)

    def _joined(self, lists: Sequence[list[tuple[str, Tensor]]]) -> list[tuple[str, Tensor]]:
        """The fragments' arrays of one name as one vector."""
        joined = [(name, fresh(self._num_values, self._dtype)) for name, _ in lists[0]]
        for arrays, ranges in zip(lists, self._fragments, strict=True):
            for (_, array), (_, whole) in zip(arrays, joined, strict=True):
                Moved(ranges, array).put_in(whole)
        return joined

    def _taken(self, weights: Values, index: int) -> Tensor:
        """A fragment's weights, a new tensor."""
        return taken(weights, self._fragments[index], self._dtype)

    def _check(self, tensor: Tensor, name: str) -> None:
        check_vector(tensor, name, self._num_values, self._dtype)

    def _check_arrays(self, arrays: Mapping[str, Tensor], names: list[str]) -> None:
        check_arrays(arrays, names, self._num_values, self._dtype)


def _lying(fragments: Sequence[Ranges]) -> Iterator[tuple[int, int, int, int]]:
    """Return (start, stop, fragment, place in the fragment) of all ranges."""
    for index, ranges in enumerate(fragments):
        position = 0
        for start, stop in ranges:
            yield start, stop, index, position
            position += stop - start


def _lying_at(ranges: Ranges, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Return the places of values [start, stop) of a fragment in the whole vector."""
    position = 0
    for low, high in ranges:
        first, last = max(start - position, 0), min(stop - position, high - low)
        if first < last:
            yield low + first, low + last
        position += high - low
