"""The fate of a peer's work in an op on a part of the vector: protocol.md rules 9 and 10.

Every peer keeps the anchor phi and the outer optimizer's state and makes the outer step itself from
the same decoded bytes, so there is no parameter server and nothing to broadcast. All of it is done
piece by piece in place: anchor, outer state and error feedback if any are the only whole vectors
beside the weights as they were in the op's ranges when it began. Not here: when an op begins, the
exchange, and the inner optimizer, whose state stays with its peer from round to round.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import (
    DecodeOwn,
    ErrorFeedback,
    check_cover,
    check_decoded,
)
from swarmtrain_optimizers.outer import OuterTransform
from swarmtrain_optimizers.strategies.anchored import Giving, InPlace, carried, is_same, within
from swarmtrain_optimizers.strategies.base import Moved, Values
from swarmtrain_optimizers.strategies.checks import check_lengths, is_finite
from swarmtrain_optimizers.strategies.fragments import Ranges
from swarmtrain_optimizers.vectors import copied, fresh, lying, parts_of, taken


class Contribution:
    """This peer's contribution to an op under way, made when it is asked for.

    Args:
        anchor: (num_values,) phi, not changed in the op's ranges while it lasts.
        ranges: (start, stop) parts of the vector that the op is about.
        snapshot: theta_s, the weights there when the op started, one part after the other.
        feedback: None without it.
    """

    def __init__(
        self, anchor: Tensor, ranges: Ranges, snapshot: Tensor, feedback: ErrorFeedback | None
    ) -> None:
        self.ranges, self.snapshot = ranges, snapshot
        self._anchor, self._feedback = anchor, feedback

    def numel(self) -> int:
        """Length of the op's vector."""
        return self.snapshot.numel()

    def plain(self, part: slice, place: slice) -> Tensor:
        """Delta = phi - theta_s at a place in the vector and in the op's, a new tensor."""
        return torch.sub(self._anchor[place], self.snapshot[part])

    def whole(self, part: slice, place: slice) -> Tensor:
        """Delta there, with error feedback plus beta e, a new tensor: what is encoded."""
        delta = self.plain(part, place)
        return delta if self._feedback is None else self._feedback.correct_(delta, place)

    def __getitem__(self, places: slice) -> Tensor:
        """Make it for places in the op's vector."""
        start, stop, _ = places.indices(self.numel())
        made = [self.whole(part, place) for part, place in lying(self.ranges, start, stop)]
        return made[0] if len(made) == 1 else torch.cat([self.snapshot[:0], *made])


class Rebasing(Giving, InPlace):
    """An op on ranges of the vector, an outer step, and weights that go on from it; with optional
    error feedback.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round.
        outer: the outer optimizer.
        feedback_beta: None without error feedback; else how much of what compression lost, or an
            exclusion held back, is sent with the next op, 1 for all.
        dtype: float32; float64 for oracles.
    """

    _ops_at_once = 1
    """Ops that may be under way, each on other ranges."""

    _rebases = True
    """True if steps made since an op began are made again from where it ends."""

    _mixes = False
    """True if `_mixed` keeps anything of the own weights."""

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        outer: OuterTransform,
        feedback_beta: float | None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(num_values, inner_steps=inner_steps, outer=outer, dtype=dtype)
        self._feedback = (
            None
            if feedback_beta is None
            else ErrorFeedback(num_values, beta=feedback_beta, dtype=dtype)
        )
        self._pending = deque[Contribution]()  # in the order of their ops

    def local_arrays(self) -> list[tuple[str, Tensor]]:
        """[("error_feedback", e)], or [] without error feedback."""
        return [] if self._feedback is None else [("error_feedback", self._feedback.residual)]

    def load_local(self, arrays: Mapping[str, Tensor]) -> None:
        """Take back e.

        Raises:
            ValueError: names or shapes differ; nothing changed.
        """
        super().load_local(arrays)
        if self._feedback is not None:
            self._feedback.residual = arrays["error_feedback"].detach().clone()

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """Delta = phi - theta in the op's ranges, with error feedback plus beta e; the weights
        there are kept.

        Raises:
            RuntimeError: too many ops were ended by neither `apply` nor `skip`, or one of these
                ranges.
        """
        return self.difference(copied(weights), op)[:]

    def difference(self, weights: Values, op: int = 1) -> Values:
        """Make the part of `pseudo_gradient` when it is asked for; see `StepsInPlace`.

        Raises:
            RuntimeError: as `pseudo_gradient`.
        """
        ranges, pending = self.exchange(op).ranges, self._pending
        if len(pending) >= self._ops_at_once or any(one.ranges == ranges for one in pending):
            raise RuntimeError("an op is under way: end it with apply() or skip() first")
        check_lengths(self._num_values, weights=weights)
        if isinstance(weights, Tensor):
            self._check(weights, "weights")
        if isinstance(weights, Tensor) and self._is_whole(ranges):
            snapshot = weights.detach()
        else:
            snapshot = taken(weights, ranges, self._dtype)
        self._pending.append(Contribution(self._anchor, ranges, snapshot, self._feedback))
        return self._pending[-1]

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
        """Outer step, then error feedback and weights by rules 9 and 10; see `StepsInPlace`.

        Without a step since `difference`, included weights are exactly the new anchor.

        Raises:
            ValueError: shapes or ranges do not fit, or error feedback has nothing to settle
                with; nothing changed.
        """
        exchange, outer = self.exchange(op), self._outer_of(op)
        ranges, is_whole = exchange.ranges, self._is_whole(exchange.ranges)
        check_lengths(exchange.num_values, mean=mean)
        check_lengths(self._num_values, weights_now=weights_now)
        if not self._pending:
            weights = self._carry(mean, outer, weights_now, ranges)
            return weights if is_whole else Moved(ranges, weights)
        pending = self._pending[0]
        check_cover(included, pending.numel())
        if self._feedback is not None:
            check_decoded(included, decoded_own)
        if (
            weights_now is not None
            and self._rebases
            and is_same(weights_now, pending.snapshot, ranges)
        ):
            weights_now = None
        # Nothing below can fail: from here on the op counts.
        placed = [
            (place.start, place.stop, here)
            for start, stop, here in included
            for _, place in lying(ranges, start, stop)
        ]
        self._dropped = self._exclusions.record(placed)
        waits = self._feedback is None and not all(here for _, _, here in included)
        is_anchor = weights_now is None and not (waits or self._dropped or self._mixes)
        for part, place in parts_of(ranges):
            delta = pending.plain(part, place) if waits else None
            if self._feedback is not None:
                self._settle(self._feedback, pending, placed, decoded_own, part, place)
            self._step_in_place(outer, mean[part], place)
            if is_anchor and is_whole:
                continue
            before = pending.snapshot[part]
            now = before if weights_now is None else weights_now[place]
            weights = self._landed(delta, placed, place)
            if weights_now is not None and self._rebases:
                weights.add_(now - before)
            for start, stop in within(self._dropped, place):
                # NaN minus NaN is no step: without this, dropping would not heal what it is for.
                values, anchor = weights[start:stop], self._anchor[place][start:stop]
                weights[start:stop] = torch.where(torch.isfinite(values), values, anchor)
            before.copy_(self._mixed(now, weights, place))
        self._pending.popleft()
        if is_whole:
            return self._anchor if is_anchor else pending.snapshot
        return Moved(ranges, pending.snapshot)

    def skip(self) -> None:
        """End the oldest op without a result; what was pending is computed anew for the next one of
        its ranges."""
        if self._pending:
            self._pending.popleft()

    def drop_broken(self, weights: Tensor) -> Tensor:
        """See `Anchored.drop_broken`; error feedback that is not finite becomes 0."""
        if self._feedback is not None and not is_finite(self._feedback.residual):
            self._feedback.drop()
        return super().drop_broken(weights)

    def _mixed(self, own: Tensor, landed: Tensor, place: slice) -> Tensor:
        """theta of a piece at that place, of the own weights and those that the op has led to."""
        return landed

    def _is_whole(self, ranges: Ranges) -> bool:
        return ranges == ((0, self._num_values),)

    def _carry(
        self, mean: Values, outer: OuterTransform, weights_now: Values | None, ranges: Ranges
    ) -> Tensor:
        """theta of a peer that did not contribute: it moves along with the anchor. Where it was the
        anchor it becomes the new one, exactly."""
        if weights_now is None:
            raise ValueError("a peer that contributed nothing must say where its weights are")
        self._dropped = ()
        if isinstance(weights_now, Tensor) and self._is_whole(ranges) and not self._mixes:
            weights = weights_now
        else:
            weights = fresh(sum(stop - start for start, stop in ranges), self._dtype)
        for part, place in parts_of(ranges):
            old, now = self._anchor[place].clone(), weights_now[place]
            self._step_in_place(outer, mean[part], place)
            weights[part] = carried(now, old, self._anchor[place])
        return weights

    def _settle(
        self,
        feedback: ErrorFeedback,
        pending: Contribution,
        placed: Sequence[tuple[int, int, bool]],
        decoded_own: DecodeOwn | None,
        part: slice,
        place: slice,
    ) -> None:
        """The residual of a piece after the op; the anchor there is still the old one."""
        residual = pending.whole(part, place)
        if decoded_own is not None:
            given = [(start, stop) for start, stop, here in placed if here]
            for start, stop in within(given, place):
                residual[start:stop].sub_(decoded_own(part.start + start, part.start + stop))
        for start, stop in within(self._dropped, place):
            residual[start:stop] = 0
        feedback.residual[place] = residual

    def _landed(
        self, delta: Tensor | None, placed: Sequence[tuple[int, int, bool]], place: slice
    ) -> Tensor:
        """theta of a piece where no step was made meanwhile; the anchor is the new one.

        Args:
            delta: the piece's Delta, where what is left out is not in error feedback.
            placed: (start, stop, whether our part is in the mean) in the vector.
            place: place of the piece in the vector.
        """
        weights = self._anchor[place].clone()
        if delta is not None:
            out = [(start, stop) for start, stop, here in placed if not here]
            for start, stop in within(out, place):
                # Local rebase: theta <- phi' - Delta, the work goes into the next Delta.
                weights[start:stop].sub_(delta[start:stop])
        for start, stop in within(self._dropped, place):
            weights[start:stop] = self._anchor[place][start:stop]
        return weights

    def _forget(self) -> None:
        super()._forget()
        self._pending.clear()
        if self._feedback is not None:
            self._feedback.drop()
