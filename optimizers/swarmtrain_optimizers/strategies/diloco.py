"""DiLoCo: inner steps alone, then one outer Nesterov step on the mean pseudo-gradient.

Every peer keeps the anchor phi and the outer momentum m and makes the outer step itself from the
same decoded bytes, so there is no parameter server and nothing to broadcast. What happens to a
peer whose part was left out follows protocol.md rules 9 and 10. Not here: the exchange, and the
inner optimizer, whose state stays with its peer from round to round.

References:
    Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models,
    arXiv 2311.08105, Alg. 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn, ErrorFeedback, check_cover
from swarmtrain_optimizers.exclusions import Exclusions
from swarmtrain_optimizers.outer import nesterov, outer_step
from swarmtrain_optimizers.strategies.base import Exchange, OpKind


@dataclass(frozen=True, slots=True)
class _Pending:
    """This peer's contribution to the op under way.

    Attributes:
        snapshot: (num_values,) theta_s, the weights when the op started.
        contribution: (num_values,) what is encoded: Delta, or e + Delta.
    """

    snapshot: Tensor
    contribution: Tensor


class DiLoCo:
    """DiLoCo with optional error feedback.

    With phi the anchor, theta the weights after the inner steps, mu the momentum and eta the
    learning rate: Delta = phi - theta; d = weighted mean of the included Delta; m <- mu m + d;
    phi' = phi - eta (mu m + d); theta <- phi'.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round.
        lr: eta.
        momentum: mu; 0 is plain averaging scaled by eta (FedAvg with eta 1).
        error_feedback: keep what compression lost, or an exclusion held back, for the next op.
        dtype: float32; float64 for oracles.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        lr: float,
        momentum: float,
        error_feedback: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._num_values = num_values
        self._inner_steps = inner_steps
        self._outer = nesterov(lr, momentum)
        self._dtype = dtype
        self._anchor, self._spare_anchor = (torch.zeros(num_values, dtype=dtype) for _ in "ab")
        self._state = self._outer.init(self._anchor)
        self._spare_state = self._outer.init(self._anchor)
        self._feedback = ErrorFeedback(num_values, dtype=dtype) if error_feedback else None
        self._exclusions = Exclusions(num_values)
        self._pending: _Pending | None = None
        self._dropped: tuple[tuple[int, int], ...] = ()

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

    @property
    def exclusions_in_row(self) -> int:
        """Most exclusions in a row that any part of the vector has seen; 0 when all is sent."""
        return self._exclusions.longest

    @property
    def dropped(self) -> tuple[tuple[int, int], ...]:
        """Ranges whose pending work the last `apply` dropped, after three exclusions in a row."""
        return self._dropped

    def exchange(self, op: int) -> Exchange:
        """The mean of the whole vector, waited for."""
        return Exchange(OpKind.MEAN, ((0, self._num_values),))

    def is_due(self, steps_since_outer: int) -> bool:
        """True from `inner_steps` on; a peer may have made more while an op was under way."""
        return steps_since_outer >= self._inner_steps

    def set_initial(self, weights: Tensor) -> None:
        """Begin as op 0: anchor = weights, momentum and error feedback zero."""
        self._check(weights, "weights")
        zero = torch.zeros_like(self._anchor)
        self.load_state({"anchor": weights, "momentum": zero})

    def state_arrays(self) -> list[tuple[str, Tensor]]:
        """[("anchor", ...), ("momentum", ...)], live buffers."""
        return [("anchor", self._anchor), ("momentum", self._state[0])]

    def load_state(self, arrays: Mapping[str, Tensor]) -> None:
        """Take over shared state; error feedback and pending work are dropped (rule 9).

        Raises:
            ValueError: names or shapes differ; nothing changed.
        """
        self._check_names(arrays, [name for name, _ in self.state_arrays()])
        self._anchor.copy_(arrays["anchor"])
        self._state[0].copy_(arrays["momentum"])
        self._pending = None
        self._dropped = ()
        self._exclusions.reset()
        if self._feedback is not None:
            self._feedback.drop()

    def local_arrays(self) -> list[tuple[str, Tensor]]:
        """[("error_feedback", e)], or [] without error feedback."""
        return [] if self._feedback is None else [("error_feedback", self._feedback.residual)]

    def load_local(self, arrays: Mapping[str, Tensor]) -> None:
        """Take back e.

        Raises:
            ValueError: names or shapes differ; nothing changed.
        """
        self._check_names(arrays, [name for name, _ in self.local_arrays()])
        if self._feedback is not None:
            self._feedback.residual = arrays["error_feedback"].detach().clone()

    def pseudo_gradient(self, weights: Tensor) -> Tensor:
        """Delta = phi - theta, plus e with error feedback; kept with the weights until the end.

        Raises:
            RuntimeError: the last op was ended by neither `apply` nor `skip`.
        """
        if self._pending is not None:
            raise RuntimeError("an op is under way: end it with apply() or skip() first")
        self._check(weights, "weights")
        snapshot = weights.detach().clone()
        delta = torch.sub(self._anchor, snapshot)
        contribution = delta if self._feedback is None else self._feedback.corrected(delta)
        self._pending = _Pending(snapshot, contribution)
        return contribution

    def apply(
        self,
        mean: Tensor,
        included: Sequence[tuple[int, int, bool]],
        weights_now: Tensor,
        decoded_own: DecodeOwn | Tensor | None = None,
    ) -> Tensor:
        """Outer step, then error feedback and weights by rules 9 and 10; see `Strategy.apply`.

        Without a step since `pseudo_gradient`, included weights are exactly the new anchor.

        Raises:
            ValueError: shapes or ranges do not fit, or error feedback has nothing to settle
                with; nothing changed.
        """
        self._check(mean, "mean")
        self._check(weights_now, "weights_now")
        now = weights_now.detach()
        residual = self._settled(included, decoded_own)
        outer_step(
            self._outer, mean, self._anchor, self._state, self._spare_anchor, self._spare_state
        )
        # Nothing below can fail: from here on the op counts.
        if self._pending is None:
            self._dropped = ()
            weights = self._carried(now)
        else:
            self._dropped = self._exclusions.record(included)
            weights = self._landed(self._pending, included, now)
        if residual is not None and self._feedback is not None:
            for start, stop in self._dropped:
                residual[start:stop] = 0
            self._feedback.residual = residual
        self._anchor, self._spare_anchor = self._spare_anchor, self._anchor
        self._state, self._spare_state = self._spare_state, self._state
        self._pending = None
        return weights

    def skip(self) -> None:
        """End the op without a result; what was pending is computed anew for the next one."""
        self._pending = None

    def _settled(
        self,
        included: Sequence[tuple[int, int, bool]],
        decoded_own: DecodeOwn | Tensor | None,
    ) -> Tensor | None:
        """The residual after this op, or None when there is none to settle."""
        if self._pending is None:
            return None
        check_cover(included, self._num_values)
        if self._feedback is None:
            return None
        if decoded_own is None:
            if any(was_included for _, _, was_included in included):
                raise ValueError("error feedback needs decoded_own: what the others decoded of us")
            return self._pending.contribution.clone()
        if isinstance(decoded_own, Tensor):
            self._check(decoded_own, "decoded_own")
            whole = decoded_own
            return self._feedback.settled(
                self._pending.contribution, included, lambda start, stop: whole[start:stop]
            )
        return self._feedback.settled(self._pending.contribution, included, decoded_own)

    def _landed(
        self, pending: _Pending, included: Sequence[tuple[int, int, bool]], now: Tensor
    ) -> Tensor:
        """theta of a peer that contributed; the new anchor is still in the spare buffer."""
        weights = self._spare_anchor.clone()
        if self._feedback is None:
            for start, stop, was_included in included:
                if not was_included:
                    # Local rebase: theta <- phi' - Delta, the work goes into the next Delta.
                    weights[start:stop].sub_(pending.contribution[start:stop])
        for start, stop in self._dropped:
            weights[start:stop] = self._spare_anchor[start:stop]
        if not torch.equal(now, pending.snapshot):
            weights.add_(now - pending.snapshot)
        for start, stop in self._dropped:
            # NaN minus NaN is no step: without this, dropping would not heal what it is there for.
            part, anchor = weights[start:stop], self._spare_anchor[start:stop]
            weights[start:stop] = torch.where(torch.isfinite(part), part, anchor)
        return weights

    def _carried(self, now: Tensor) -> Tensor:
        """theta of a peer that did not contribute: it moves along with the anchor.

        Where theta was the anchor it becomes the new anchor exactly, without a rounding.
        """
        moved = now + (self._spare_anchor - self._anchor)
        return torch.where(now == self._anchor, self._spare_anchor, moved)

    def _check(self, tensor: Tensor, name: str) -> None:
        """Refuse what is not a flat vector of this length, dtype and device."""
        wanted = (self._num_values,)
        if tensor.shape != wanted or tensor.dtype != self._dtype or tensor.device.type != "cpu":
            raise ValueError(
                f"{name} is {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}; "
                f"wanted {wanted} {self._dtype} on cpu"
            )

    def _check_names(self, arrays: Mapping[str, Tensor], names: list[str]) -> None:
        """Refuse arrays that are not exactly these, each of the right shape."""
        if sorted(arrays) != sorted(names):
            raise ValueError(f"arrays are {sorted(arrays)}, wanted {sorted(names)}")
        for name in names:
            self._check(arrays[name], name)
