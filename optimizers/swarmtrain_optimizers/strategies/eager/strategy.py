"""Eager updates: one's own share of the mean at once, the others' a round later.

As `delayed`, but the next round begins from an anchor that has this peer's fresh difference in it
already, scaled by its share of the mean; when the mean arrives the share is taken out again. The
outer step is linear in what it is given, so the two are kept apart: the shared anchor and momentum
take the committed means alone and are the same on every peer, the lead takes the differences
between own shares and is this peer's own. Not here: how large the share is; an op tells it.

References:
    Kale et al., Eager Updates for Overlapped Communication and Computation in DiLoCo, arXiv
    2502.12996, tables 2 and 3. The paper's tables were read, no section; the formula is as others
    state it, and its two limits (one peer is DiLoCo, many peers are the naive delay) are tested.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn
from swarmtrain_optimizers.outer import outer_step
from swarmtrain_optimizers.strategies.base import Moved, Values
from swarmtrain_optimizers.strategies.checks import is_finite
from swarmtrain_optimizers.strategies.delayed.strategy import Delayed
from swarmtrain_optimizers.vectors import zeros


class Eager(Delayed):
    """With Delta(t) this peer's difference of round t, d(t) the mean, s the share, 1 / peers, eta
    and mu learning rate and decay of the outer step: the peer's own anchor takes
    u(t) = s Delta(t) + (d(t-1) - s Delta(t-1)) by DiLoCo's outer step, m <- mu m + u(t),
    then - eta (mu m + u(t)). Kept as phi + psi, each with a momentum m of its own, zero at first:
    phi, the shared anchor, takes d(t-1); psi, which begins with 0, takes s Delta(t) - s Delta(t-1).

    With one peer this is DiLoCo. Whatever share was guessed when a difference was given is taken
    out with the next one, so a wrong guess costs nothing but one round's precision. A state that
    was loaded begins without a lead.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round.
        lr: eta of the outer step.
        momentum: mu of the outer step.
        error_feedback: keep what compression lost for the next op.
        first_share: s before the first op has told it; 0 waits for the op.
        dtype: float32; float64 for oracles.

    Raises:
        ValueError: `first_share` is outside 0..1.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        lr: float,
        momentum: float,
        error_feedback: bool,
        first_share: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not 0 <= first_share <= 1:
            raise ValueError(f"first_share is {first_share}, a part of a mean is in 0..1")
        super().__init__(
            num_values,
            inner_steps=inner_steps,
            lr=lr,
            momentum=momentum,
            error_feedback=error_feedback,
            dtype=dtype,
        )
        self._share = first_share
        self._lead = zeros(num_values, dtype)
        self._lead_state = self._outer.init(self._lead)
        self._ahead = zeros(num_values, dtype)  # (num_values,) s Delta(t-1)

    @property
    def lead(self) -> Tensor:
        """(num_values,) psi, what this peer's own anchor is ahead of the shared one; only read."""
        return self._lead

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
        """See `Delayed.land`; `own_share` holds from the next contribution on.

        Raises:
            ValueError: as there, or `own_share` is outside 0..1; nothing changed.
        """
        if own_share is not None and not 0 <= own_share <= 1:
            raise ValueError(f"own_share is {own_share}, a part of a mean is in 0..1")
        moved = super().land(mean, included, weights_now, decoded_own, op=op)
        if own_share is not None:
            self._share = own_share
        anew = []
        for start, stop in self.dropped:
            # NaN would stay in the lead for ever: where work was dropped the peer begins anew.
            anchor, base = self._anchor[start:stop], self._base[start:stop]
            now = base if weights_now is None else weights_now[start:stop]
            went = anchor + (now.detach() - base)
            anew.append(torch.where(torch.isfinite(went), went, anchor))
            base.copy_(anchor)
            for tensor in (self._lead, *self._lead_state, self._ahead):
                tensor[start:stop] = 0
        return Moved(self.dropped, torch.cat(anew)) if anew else moved

    def drop_broken(self, weights: Tensor) -> Tensor:
        """See `Delayed.drop_broken`; a lead that is not finite is dropped."""
        if not is_finite(self._base):
            self._drop_lead()
        return super().drop_broken(weights)

    def _forget(self) -> None:
        super()._forget()
        self._drop_lead()

    def _drop_lead(self) -> None:
        for tensor in (self._lead, *self._lead_state, self._ahead):
            if tensor.any():  # zeros of the system's own take no memory
                tensor.zero_()

    def _restart(self, piece: slice) -> None:
        ahead, lead = torch.mul(self._held[piece], self._share), self._lead[piece]
        state = tuple(array[piece] for array in self._lead_state)
        outer_step(self._outer, ahead - self._ahead[piece], lead, state, lead, state)
        self._ahead[piece] = ahead
        torch.add(self._anchor[piece], lead, out=self._base[piece])
