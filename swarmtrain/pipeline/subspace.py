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
it is with both built-in kinds.

U stays where it is, unless the run file has `pipeline.turn_rounds`. Then the ledger turns it now
and then, as the paper does, by a step on the Grassmann manifold: in planes of one channel inside
and one outside, no two with one in common, in the axes that all turns before have made. A turn is a
list of whole numbers, and its cosines are quotients of such. Anchors are taken back through all
turns, brought into the first channels, and taken forth again, with one product or sum at a time, so
all peers have the same bits. What no root is made of goes by products with a matrix: weights of
inner steps, gradients, and what travels, which so is right to float32's precision, not to the last
bit. F turns along. Nothing else of the model does: what writes is brought into the new span, what
reads learns to. It wins nothing (`benchmarks/pipelines/moving.py`).

Not here: bytes (`activations`).
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from swarmtrain.config.built_in import tokens_of
from swarmtrain.config.settings import RunConfig
from swarmtrain.config.stages import rank_of
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.tensors import Layout
from swarmtrain_optimizers.subnormals import flush_tiny_
from swarmtrain_transport import limits
from swarmtrain_transport.ledger.turns import UNITS, are_legal, most_units
from swarmtrain_transport.wire.records import Plane, Turn

Confine = Callable[[Tensor, tuple[Turn, ...]], None]
"""Brings a stage's vector into the subspace after these turns, in place."""

_WRITERS = ("attention_out.weight", "mlp_down.weight")
_TABLE, _HEAD = "embedding.weight", "head.weight"

_STEP = 2.0**-9
"""Unit of whole numbers from -128 to 127, evenly drawn: a deviation of 0.14. What is learned grows
to several times that; beside it a part as small as a fresh embedding, 0.02, is soon forgotten, and
one as large as 1 drowns it."""

_COLUMNS = 1024
"""Columns that are turned at a time: those of some rows fit into a processor's cache."""


class Subspace:
    """The directions of the residual stream that are learned, and the fixed part in the others.

    Args:
        rank: number of channels that are learned.
        width: number of all.
        tokens: tokens that there are.
        seed: seed of the run, which the fixed part is drawn from.
        most: the largest step of a plane of a turn; 0 where it stays.
        turns: turns that there were.

    Raises:
        UserError: SWT-E703, the run has no such turns.
    """

    def __init__(
        self,
        rank: int,
        width: int,
        tokens: int,
        seed: int,
        most: int = 0,
        turns: tuple[Turn, ...] = (),
    ) -> None:
        self.rank, self.tokens, self.most, self.turns = rank, tokens, most, turns
        self._width, self._seed = width, seed
        self._table = _drawn(tokens, width - rank, seed)
        self._axes_on: dict[torch.device, Tensor] = {}
        self._fixed_on: dict[torch.device, Tensor] = {}
        if not all(are_legal(one.planes, rank, width, most) for one in turns):
            raise UserError(
                "SWT-E703",
                "The run's ledger turns the subspace as its run file does not allow.",
                "The coordinator is faulty, or of another version.",
                "Tell the organiser.",
            )

    def turned(self, turns: tuple[Turn, ...]) -> "Subspace":
        """Return the subspace after these turns, of all that there were. Raises as the class."""
        if turns == self.turns:
            return self
        return Subspace(self.rank, self._width, self.tokens, self._seed, self.most, turns)

    def axes(self, device: torch.device) -> Tensor:
        """(width, width) float32 on a device: the directions that are learned, then the others."""
        if device not in self._axes_on:
            axes = torch.eye(self._width, dtype=torch.float64, device="cpu")
            self._rotate(axes)
            self._axes_on[device] = axes.to(torch.float32).to(device)
        return self._axes_on[device]

    def whole(self, coordinates: Tensor, tokens: Tensor) -> Tensor:
        """Make again what a stage gave.

        Args:
            coordinates: (..., rank) float32 on the CPU.
            tokens: (...) token ids.

        Returns:
            (..., width).
        """
        fixed = self._table[tokens].to(torch.float32) * _STEP
        whole = torch.cat((coordinates, fixed), dim=-1)
        return whole @ self.axes(whole.device).T if self.turns else whole

    def coordinates(self, values: Tensor) -> Tensor:
        """(..., rank) of values, or of their gradient, which are (..., width)."""
        if not self.turns:
            return values[..., : self.rank]
        return values.to(torch.float32) @ self.axes(values.device)[:, : self.rank]

    def direction(self, coordinates: Tensor) -> Tensor:
        """(..., width) with nothing outside, as a gradient is; from (..., rank) on the CPU."""
        if not self.turns:
            return F.pad(coordinates, (0, self._width - self.rank))
        return coordinates @ self.axes(coordinates.device)[:, : self.rank].T

    def confine(self, named: Mapping[str, Tensor]) -> None:
        """Bring weights of a stage back into the span, in place, with the same bits everywhere.
        Before the first turn those in it keep theirs; after one they keep them to rounding.

        Args:
            named: parameters, or views of a vector, by their names in the unsplit model.
        """
        with torch.no_grad():
            for name, stream in self._streams(named):
                if not self.turns:
                    self._fix(name, stream, self._table.T)
                    continue
                for start in range(0, stream.shape[1], _COLUMNS):
                    here = slice(start, start + _COLUMNS)
                    turned = stream[:, here].clone(memory_format=torch.contiguous_format)
                    self._rotate(turned, back=True)
                    self._fix(name, turned, self._table.T[:, here])
                    self._rotate(turned)
                    stream[:, here] = flush_tiny_(turned)

    def hold(self, named: Mapping[str, Tensor]) -> None:
        """Do as `confine` for weights that nobody compares: faster after many turns."""
        if not self.turns:
            self.confine(named)
            return
        with torch.no_grad():
            for name, stream in self._streams(named):
                self._project(stream)
                if name == _TABLE:
                    stream.add_(self._fixed(stream.device).T)

    def confine_gradients(self, named: Mapping[str, Tensor]) -> None:
        """Leave no gradient where the parameters of a stage may not go."""
        gradients = {name: one.grad for name, one in named.items() if one.grad is not None}
        for _, stream in self._streams(gradients, named):
            if self.turns:
                self._project(stream)
            else:
                stream[self.rank :].zero_()

    def confining(self, layout: Layout) -> Confine:
        """Return `confine` for vectors of a stage's layout."""
        return lambda vector, turns: self.turned(turns).confine(layout.named_views(vector))

    def _fixed(self, device: torch.device) -> Tensor:
        """(tokens, width) on a device: the fixed part of each token."""
        if device not in self._fixed_on:
            nothing = torch.zeros(self.tokens, self.rank, device="cpu")
            fixed = self.whole(nothing, torch.arange(self.tokens, device="cpu"))
            self._fixed_on[device] = fixed.to(device)
        return self._fixed_on[device]

    def _fix(self, name: str, stream: Tensor, table: Tensor) -> None:
        """Set what is not learned of (width, n) coordinates, of the embedding to its table."""
        if name == _TABLE:
            stream[self.rank :].copy_(table).mul_(_STEP)
        else:
            stream[self.rank :].zero_()

    def _project(self, stream: Tensor) -> None:
        learned = self.axes(stream.device)[:, : self.rank].to(stream.dtype)
        stream.copy_(learned @ (learned.T @ stream))

    def _rotate(self, stream: Tensor, *, back: bool = False) -> None:
        """Turn (width, n) values in place: from coordinates in the axes of now to channels, or
        back. Products and sums are made one by one, as a kernel may fuse them."""
        for turn in self.turns if back else reversed(self.turns):
            inside, outside, cosine, sine = _rotation(turn)
            cosine, sine = cosine.to(stream), (-sine if back else sine).to(stream)
            one, other = stream[inside], stream[outside]
            stream[inside] = cosine * one - sine * other
            stream[outside] = sine * one + cosine * other

    def _streams(
        self, tensors: Mapping[str, Tensor], names: Iterable[str] = ()
    ) -> Iterator[tuple[str, Tensor]]:
        """Parameters of a stage that write to the stream, as (width, n) views. The stage with the
        head is free, as nothing goes on from there."""
        is_free = _HEAD in (names or tensors)
        for name, tensor in tensors.items() if not is_free else ():
            if name == _TABLE:
                yield name, tensor.T
            elif name.endswith(_WRITERS):
                yield name, tensor


class Slope:
    """The directions in which the last stage's gradients leave a subspace.

    The gradient's energy inside grows with the angle of a plane by twice the sum of products of its
    two coordinates. Of the slope the largest entries are taken, one of each row and column, so that
    the step is one on the manifold.

    Args:
        subspace: the subspace of now.
    """

    def __init__(self, subspace: Subspace) -> None:
        self._subspace, self._sums = subspace, torch.zeros(())

    def add(self, gradient: Tensor) -> None:
        """Add the whole gradient of the last stage's input, (..., width)."""
        axes, rank = self._subspace.axes(gradient.device), self._subspace.rank
        seen = gradient.detach().reshape(-1, len(axes)).to(torch.float32) @ axes
        self._sums = self._sums.to(gradient.device) + seen[:, :rank].T @ seen[:, rank:]

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The steepest planes, the first with the largest step; () if nothing was added, or too
        much."""
        slope = self._sums.to("cpu", torch.float64, copy=True)
        largest = float(slope.abs().max())
        if not slope.dim() or not 0 < largest < math.inf:
            return ()
        steps = (slope / largest * self._subspace.most).round()
        planes: list[Plane] = []
        while len(planes) < limits.TURN_PLANES_MAX:
            inside, outside = divmod(int(steps.abs().argmax()), steps.shape[1])
            step = int(steps[inside, outside])
            if not step:
                break
            planes.append(Plane(inside, self._subspace.rank + outside, step))
            steps[inside], steps[:, outside] = 0, 0
        return tuple(planes)


def subspace_of(config: RunConfig) -> Subspace | None:
    """The subspace that a run begins with; None where what goes between stages has its whole
    width."""
    pipeline, model = config.pipeline, config.model
    rank = rank_of(pipeline.activations)
    most = most_units(pipeline.turn_angle) if pipeline.turn_rounds else 0
    return Subspace(rank, model.width, tokens_of(model), config.run.seed, most) if rank else None


def confining(config: RunConfig, layout: Layout) -> Confine | None:
    """Return `Subspace.confine` for anchors of a stage, after each outer step; None for a run that
    has no subspace."""
    found = subspace_of(config)
    return None if found is None else found.confining(layout)


@lru_cache(maxsize=limits.TURNS_MAX)
def _rotation(turn: Turn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Channels inside and outside of the planes, (n,) each, and cosine and sine of their angles,
    (n, 1) float64: quotients of whole numbers, so they have the same bits everywhere."""
    squares, one = [plane.step**2 for plane in turn.planes], UNITS**2
    sines = [2 * UNITS * plane.step / (one + plane.step**2) for plane in turn.planes]
    cosines = [(one - square) / (one + square) for square in squares]
    return (
        torch.tensor([plane.inside for plane in turn.planes], device="cpu"),
        torch.tensor([plane.outside for plane in turn.planes], device="cpu"),
        torch.tensor(cosines, dtype=torch.float64, device="cpu")[:, None],
        torch.tensor(sines, dtype=torch.float64, device="cpu")[:, None],
    )


@lru_cache(maxsize=2)
def _drawn(tokens: int, width: int, seed: int) -> Tensor:
    """(tokens, width) int8 on the CPU: bytes of SHAKE-256, the same on every machine."""
    stream = hashlib.shake_256(b"swarmtrain fixed part 1" + seed.to_bytes(8, "big"))
    data = bytearray(stream.digest(tokens * width))
    return torch.frombuffer(data, dtype=torch.int8).view(tokens, width)
