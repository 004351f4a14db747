"""Thin ways between stages: what goes from one to the next lies in a subspace that all peers know.

Protocol Models (arXiv 2506.01260, later Subspace Networks) keep all that is written to the residual
stream inside the span of a matrix U, (width, rank), beside a fixed part by token that everybody
makes again: x = U c + F[token]. So c goes on the way in place of x, its gradient comes back, and
nothing is lost. Constrained are the embedding and what attention and feed-forward parts write, in
all stages but the last; whatever reads is free.

Here U is the first `rank` channels: x is c there, and F in all others. Any other orthonormal U is
this one in turned axes, as whatever reads and writes the stream can turn with it and F is drawn
anyway; it was tried, and teaches no more. So a projection is a slice: what was sent is rebuilt bit
for bit, and weights are brought back into the span with the same bits everywhere. An optimizer with
moments by value leaves it by its decay of the fixed part alone; along another U every step would.
Parameters keep their names and shapes, and what is trained is an ordinary model.

It needs norms before the parts, not after them, and positions that are not added to the stream: so
it is with both built-in kinds. U stays where it is: the paper also moves it now and then, and that
wins nothing (`benchmarks/pipelines/moving.py`).

Not here: bytes (`activations`).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

import torch
from torch import Tensor

from swarmtrain.config.built_in import tokens_of
from swarmtrain.config.settings import RunConfig
from swarmtrain.config.stages import rank_of
from swarmtrain.models.tensors import Layout

_WRITERS = ("attention_out.weight", "mlp_down.weight")
_TABLE, _HEAD = "embedding.weight", "head.weight"

_STEP = 2.0**-9
"""Unit of whole numbers from -128 to 127, evenly drawn: a deviation of 0.14. What is learned grows
to several times that; beside it a part as small as a fresh embedding, 0.02, is soon forgotten, and
one as large as 1 drowns it."""


class Subspace:
    """The first channels of the residual stream, and the fixed part that fills the others.

    Args:
        rank: number of channels that are learned.
        width: number of all.
        tokens: tokens that there are.
        seed: seed of the run, which the fixed part is drawn from.
    """

    def __init__(self, rank: int, width: int, tokens: int, seed: int) -> None:
        self.rank, self.tokens = rank, tokens
        self._table = _drawn(tokens, width - rank, seed)

    def whole(self, coordinates: Tensor, tokens: Tensor) -> Tensor:
        """Make again what a stage gave.

        Args:
            coordinates: (..., rank) float32 on the CPU.
            tokens: (...) token ids.

        Returns:
            (..., width).
        """
        return torch.cat((coordinates, self._table[tokens].to(torch.float32) * _STEP), dim=-1)

    def confine(self, named: Mapping[str, Tensor]) -> None:
        """Bring weights of a stage back into the span, in place; those in it keep their bits.

        Args:
            named: parameters, or views of a vector, by their names in the unsplit model.
        """
        with torch.no_grad():
            for name, outside in self._outside(named):
                if name == _TABLE:
                    named[name][outside].copy_(self._table).mul_(_STEP)
                else:
                    named[name][outside].zero_()

    def confine_gradients(self, named: Mapping[str, Tensor]) -> None:
        """Leave no gradient where the parameters of a stage may not go."""
        for name, outside in self._outside(named):
            if (gradient := named[name].grad) is not None:
                gradient[outside].zero_()

    def confining(self, layout: Layout) -> Callable[[Tensor], None]:
        """Return `confine` for vectors of a stage's layout."""
        return lambda vector: self.confine(layout.named_views(vector))

    def _outside(self, named: Iterable[str]) -> Iterator[tuple[str, tuple[slice, slice]]]:
        """Parameters of a stage that write to the stream, and the part that is not learned. The
        stage with the head is free, as nothing goes on from there."""
        rest, names = slice(self.rank, None), tuple(named)
        for name in names if _HEAD not in names else ():
            if name == _TABLE:
                yield name, (slice(None), rest)
            elif name.endswith(_WRITERS):
                yield name, (rest, slice(None))


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
def _drawn(tokens: int, width: int, seed: int) -> Tensor:
    """(tokens, width) int8 on the CPU: bytes of SHAKE-256, the same on every machine."""
    stream = hashlib.shake_256(b"swarmtrain fixed part 1" + seed.to_bytes(8, "big"))
    data = bytearray(stream.digest(tokens * width))
    return torch.frombuffer(data, dtype=torch.int8).view(tokens, width)
