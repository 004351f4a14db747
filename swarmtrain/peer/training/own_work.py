"""A peer's own part of an op: how it is rounded, what others decode of it, when it is dropped.

Work that is not finite can be in no mean, now or later, and would spoil every later part: waiting
for its third exclusion (protocol.md rule 9) gains nothing, and an op that is skipped counts none.
So it is dropped at the end of the first op that it was given to and is not in. Finite work is not
dropped here: strategies keep it by their own rules.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from swarmtrain.peer.arithmetic import Chunked, result_cuts
from swarmtrain.peer.training.state_image import anchor_of, forget_own
from swarmtrain_optimizers.strategies.base import DropsBroken, Strategy, Values
from swarmtrain_optimizers.strategies.checks import is_finite
from swarmtrain_transport.arithmetic import Contribution, Window
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult

_PIECE_VALUES = 262_144
"""Values looked at at a time."""


class OwnContribution(Contribution, Protocol):
    """A contribution to an op that can be decoded as the others decode it, as `TensorContribution`
    can."""

    def decoded(self, start: int, stop: int, window: Window) -> Tensor:
        """(stop - start,) float32, for error feedback."""


@dataclass(frozen=True, slots=True)
class OwnPart:
    """This peer's contribution to the next op."""

    op: int
    contribution: OwnContribution
    samples: int
    since: int = -1
    """Op of the anchor that the work began from, where that may be an older one; else -1."""


@dataclass(frozen=True, slots=True)
class Known:
    """The part of a contribution that is known when its round begins; a `Contribution` for values
    from `start` on. NoLoCo's anchor, for instance, does not change while its round lasts: it goes
    to the expected partner meanwhile, and only the difference is left to exchange at the end.

    Attributes:
        start: first value that is known.
        inner: encodes them, counted from there.
    """

    start: int
    inner: Contribution

    def encode(self, start: int, stop: int, window: Window) -> bytes:
        """Encode values [start, stop) as the whole contribution will."""
        return self.inner.encode(start - self.start, stop - self.start, window)


def rounding_seed(run: bytes, op: int, peer: PeerId) -> int:
    """Seed of a peer's stochastic rounding in one op of one run: a restarted peer that encodes
    its part again makes the same bytes, and anybody could.

    Args:
        run: hash of the run's settings, which names it.
        op: number of the op.
        peer: the peer's key.
    """
    digest = hashlib.sha256(b"swarmtrain rounding 1" + run + op.to_bytes(8, "big") + peer)
    return int.from_bytes(digest.digest()[:8], "big")


def decoded_own(
    own: OwnContribution, result: OpResult, zeros: Sequence[tuple[int, int]] = ()
) -> Chunked:
    """Our part of an op as the others decode it, (num_values,), each chunk when it is asked for.

    Args:
        own: our part.
        result: result of the op.
        zeros: (start, stop) places that are 0 whatever was sent.
    """

    def make(start: int, stop: int, out: Tensor | None) -> Tensor:
        values = own.decoded(start, stop, result.window)
        return values if out is None else out.copy_(values)

    return Chunked(result_cuts(result), make, zeros)


def is_lost(values: Values, included: Sequence[tuple[int, int, bool]] = ()) -> bool:
    """Return True if a part can never be sent and was not: where all went well this costs nothing.

    Args:
        values: the values that the part was made of.
        included: (start, stop, True if it is in the result); empty where there is no result.
    """
    was_sent = bool(included) and all(here for _, _, here in included)
    if was_sent:
        return False
    size = values.numel()
    pieces = (slice(start, start + _PIECE_VALUES) for start in range(0, size, _PIECE_VALUES))
    return not all(is_finite(values[piece]) for piece in pieces)


def without_broken(strategy: Strategy, weights: Tensor) -> Tensor:
    """Drop what is not finite, between two ops.

    Args:
        strategy: strategy whose pending work goes; all of it, if it cannot tell what is broken.
        weights: (padded,) float32, the weights now.

    Returns:
        (padded,) float32, the weights to go on from, a new tensor.
    """
    if isinstance(strategy, DropsBroken):
        return strategy.drop_broken(weights)
    forget_own(strategy)
    return anchor_of(strategy).clone()
