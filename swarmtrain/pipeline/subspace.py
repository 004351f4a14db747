"""Thin ways between stages: what goes from one to the next lies in a subspace that all peers know.

Protocol Models (arXiv 2506.01260, later Subspace Networks) keep all that is written to the residual
stream inside the span of a matrix U, (width, rank), beside a fixed part by token that everybody
makes again: x = U c + F[token]. So c goes on the way in place of x, its gradient comes back, and
nothing is lost. Constrained are the embedding and what attention and feed-forward parts write, in
all stages but the last; whatever reads is free.

Here U writes each coordinate into every rank-th channel, and the first `rank` channels have no
fixed part, so that they are c. A weight is in the span if its rows repeat. It is brought there by
copying, which gives the same bits everywhere; and there it stays in steps of an optimizer with
moments by value, as equal gradients make equal steps, which they do not along another U. A
coordinate is in many channels so that it is read as well as it would be along any U: in one channel
Adam learns it as many times slower. Parameters keep their names and shapes, and what is trained is
an ordinary model.

It needs norms before the parts, not after them, and positions that are not added to the stream: so
it is with both built-in kinds. U stays where it is: the paper also moves it now and then.

Not here: bytes (`activations`).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from swarmtrain.config.built_in import tokens_of
from swarmtrain.config.settings import RunConfig
from swarmtrain.config.stages import rank_of
from swarmtrain.models.tensors import Layout

_WRITERS = ("attention_out.weight", "mlp_down.weight")
_TABLE, _HEAD = "embedding.weight", "head.weight"

_STEP = 2.0**-6
"""Unit of whole numbers from -128 to 127, evenly drawn: a deviation of 1.2. Coordinates begin small
beside it and grow; with a fixed part as small as a fresh embedding the model forgets its tokens."""


class Subspace:
    """Coordinates of the residual stream, and the fixed part beside them.

    Args:
        rank: number of coordinates.
        width: number of channels.
        tokens: tokens that there are.
        seed: seed of the run, which the fixed part is drawn from.
    """

    def __init__(self, rank: int, width: int, tokens: int, seed: int) -> None:
        self.rank, self.tokens = rank, tokens
        self._places = torch.arange(width, device="cpu") % rank  # coordinate of each channel
        self._table = _drawn(tokens, width, rank, seed)

    def whole(self, coordinates: Tensor, tokens: Tensor) -> Tensor:
        """Make again what a stage gave.

        Args:
            coordinates: (..., rank) float32 on the CPU.
            tokens: (...) token ids.

        Returns:
            (..., width).
        """
        return coordinates[..., self._places] + self._table[tokens].to(torch.float32) * _STEP

    def gradient(self, gradient: Tensor) -> Tensor:
        """The gradient of the coordinates, (..., rank), by that of the channels, (..., width)."""
        short = -gradient.shape[-1] % self.rank
        copies: Tensor = F.pad(gradient, (0, short)).unflatten(-1, (-1, self.rank))
        return copies.sum(-2)

    def confine(self, named: Mapping[str, Tensor]) -> None:
        """Bring weights of a stage back into the span, in place; those in it keep their bits.

        Args:
            named: parameters, or views of a vector, by their names in the unsplit model.
        """
        with torch.no_grad():
            for name, axis in self._held(named):
                values = named[name]
                repeated = values.index_select(axis, self._places.to(values.device))
                if name == _TABLE:
                    repeated += self._table.to(values.device, torch.float32) * _STEP
                values.copy_(repeated)

    def confine_gradients(self, named: Mapping[str, Tensor]) -> None:
        """Take the part in the span of gradients of a stage's parameters: means over channels."""
        for name, axis in self._held(named):
            if (gradient := named[name].grad) is not None:
                by_channel = gradient.movedim(axis, -1)
                places = self._places.to(gradient.device)
                mean = self.gradient(by_channel) / places.bincount()
                by_channel.copy_(mean[..., places])

    def confining(self, layout: Layout) -> Callable[[Tensor], None]:
        """Return `confine` for vectors of a stage's layout."""
        return lambda vector: self.confine(layout.named_views(vector))

    def _held(self, named: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Parameters of a stage that write to the stream, and their axis of channels. The stage
        with the head is free, as nothing goes on from there."""
        names = tuple(named)
        for name in names if _HEAD not in names else ():
            if name == _TABLE or name.endswith(_WRITERS):
                yield name, int(name == _TABLE)


def subspace_of(config: RunConfig) -> Subspace | None:
    """The subspace of a run; None where what goes between stages has its whole width."""
    rank, model = rank_of(config.pipeline.activations), config.model
    return Subspace(rank, model.width, tokens_of(model), config.run.seed) if rank else None


def confining(config: RunConfig, layout: Layout) -> Callable[[Tensor], None] | None:
    """Return `Subspace.confine` for anchors of a stage, after each outer step; None for a run that
    has no subspace."""
    found = subspace_of(config)
    return None if found is None else found.confining(layout)


@lru_cache(maxsize=2)
def _drawn(tokens: int, width: int, rank: int, seed: int) -> Tensor:
    """(tokens, width) int8 on the CPU: bytes of SHAKE-256, the same on every machine; zeros in the
    first `rank` channels."""
    stream = hashlib.shake_256(b"swarmtrain fixed part 1" + seed.to_bytes(8, "big"))
    data = bytearray(stream.digest(tokens * width))
    table = torch.frombuffer(data, dtype=torch.int8).view(tokens, width)
    table[:, :rank] = 0
    return table
