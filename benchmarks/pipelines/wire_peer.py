"""`swarmtrain` whose stages in the middle compute nothing: they add noise to all that comes.

    python benchmarks/pipelines/wire_peer.py join ...

Everything else is as ever: what comes is decoded, what goes on is encoded, and the first and the
last stage train. So `links.py` sees links, on a machine that could not compute as fast as they are.
Without noise a frame would repeat the 256 rows of an embedding, and what repeats is compressed.
"""

import sys
from functools import cache

import torch
from torch import Tensor

from swarmtrain.__main__ import main
from swarmtrain.peer import staged
from swarmtrain.pipeline.activations import rounding_seed
from swarmtrain.pipeline.paced import PacedTrainer
from swarmtrain.pipeline.places import Parcel, Read
from swarmtrain.pipeline.stage_trainer import StageTrainer
from swarmtrain_transport.pipeline.peer.requests import RunBackward, RunForward


@cache
def noise_of(shape: torch.Size) -> Tensor:
    """The same each time: to make it takes longer than to send it."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def noisy(values: Tensor) -> Tensor:
    """The values with as much noise."""
    return values + values.std() * noise_of(values.shape)


class Wire(StageTrainer):
    """A stage whose output is its input and noise, and whose weights have no gradient."""

    def forward(self, request: RunForward, given: Parcel | Read) -> Parcel:
        if isinstance(given, Read):
            return super().forward(request, given)
        values, tokens = self._input(request.stages[0], given)
        return self._sent(noisy(values), tokens)

    def begin_backward(
        self, request: RunBackward, given: Parcel | Read, answer: Parcel
    ) -> Parcel | None:
        if request.is_end or isinstance(given, Read):
            return super().begin_backward(request, given, answer)
        gradient = self.forms.gradient(request.stages[-1], answer.data, answer.form)
        boundary = self.forms.boundaries[request.stages[0]]
        seed = rounding_seed(self.forms.run, request.job.micro_batch, request.stages[0])
        return Parcel(boundary.form, boundary.encode(noisy(gradient), seed=seed))

    def end_backward(self) -> None:
        if self.is_midway:
            super().end_backward()


class PacedWire(PacedTrainer, Wire):
    """The same, whose passes take as long as `--pass-seconds` says."""


if __name__ == "__main__":
    staged.StageTrainer, staged.PacedTrainer = Wire, PacedWire
    sys.exit(main())
