"""The gradient of a batch, computed as the run file and this machine's owner want it.

The run file says the precision and whether activations are made again for the backward pass; the
owner how large the parts are that a batch goes through the model in, and whether torch compiles the
model. Parts change the gradient by nothing but the order of its sums: each counts by its examples.

Not here: clipping, the optimizer's step, and where batches come from (`trainer`).
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from swarmtrain.config.built_in import kept_values, vocabulary_of
from swarmtrain.config.options import MICRO_BATCH_AUTO, Ways
from swarmtrain.config.settings import InnerSection, RunConfig
from swarmtrain.data.batches import Batch
from swarmtrain.foundation.errors import UserError, cleaned

logger = logging.getLogger(__name__)

_SHARE = 2
"""An automatic micro-batch's activations take at most one part in so many of what is free: the
gradients, the optimizer and the exchange need room beside them."""

_HEAD_VALUES = 3
"""Bytes that wait per token of the vocabulary: its logit, its softmax, and the gradient."""

_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")


class Gradients:
    """Computes gradients of one model.

    Args:
        model: model on its device.
        config: the run file.
        ways: the peer's way to compute.

    Raises:
        UserError: SWT-E621, the model has no layers whose activations can be made again; E624, it
            is to be compiled and there is no compiler.
    """

    def __init__(self, model: nn.Module, config: RunConfig, ways: Ways) -> None:
        self._device = next(model.parameters()).device
        self._is_half = _is_half(config.inner, self._device)
        self._is_auto = ways.micro_batch == MICRO_BATCH_AUTO
        self._examples = _first_part(config, ways, self._device)
        if config.inner.activation_checkpointing:
            remake_activations(model)
        self._plain = model
        self._call: Callable[[Tensor], Tensor] = model
        if ways.compile:
            _check_compiler(self._device)
            self._call = torch.compile(model)

    @property
    def micro_batch(self) -> int:
        """Examples that go through the model at a time, at most."""
        return self._examples

    def make(self, batch: Batch) -> float:
        """Give the parameters the gradient of the batch's mean loss, in place of the one before.

        Returns:
            Loss in nats per token. It may be NaN.

        Raises:
            UserError: SWT-E622, there is not enough memory; the weights are as they were.
        """

        def attempt() -> float:
            for parameter in self._plain.parameters():
                parameter.grad = None  # as zero_grad would, which takes a fiftieth of a small step
            return self._parts(batch)

        return self.fitted(attempt, len(batch.x_BT))

    def loss(self, batch: Batch) -> float:
        """The batch's mean loss in nats per token, by a forward pass alone. It may be NaN.

        Raises:
            UserError: SWT-E622, there is not enough memory.
        """

        def attempt() -> float:
            with torch.no_grad():
                return _sum(list(self._losses(batch, self._plain)))

        return self.fitted(attempt, len(batch.x_BT))

    def fitted(self, attempt: Callable[[], float], examples: int) -> float:
        """The result of an attempt that takes `micro_batch` examples at a time. Where that is
        automatic, it is halved until the memory holds what the attempt needs.

        Args:
            attempt: may be called again.
            examples: examples that it takes in all.

        Raises:
            UserError: SWT-E622, there is not enough memory.
        """
        while (result := self._tried(attempt, min(self._examples, examples))) is None:
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            self._examples = -(-min(self._examples, examples) // 2)
            logger.warning(
                "The memory holds no larger part of a batch: from now on it goes through the model "
                "by %d examples at a time.", self._examples,
            )  # fmt: skip
        return result

    def _tried(self, attempt: Callable[[], float], examples: int) -> float | None:
        """The result, or None if a smaller part is to be tried. This frame lets go of the memory of
        a failed attempt."""
        try:
            return attempt()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                self._refuse_compiled(error)
                raise
            if self._is_auto and examples > 1:
                return None
            raise out_of_memory(self._device, examples, is_auto=self._is_auto) from None

    def _parts(self, batch: Batch) -> float:
        losses = []
        for loss in self._losses(batch, self._call):
            loss.backward()
            losses.append(loss.detach())
        return _sum(losses)

    def _losses(self, batch: Batch, call: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """Each part's share of the batch's mean loss, ()."""
        count = len(batch.x_BT)
        for first in range(0, count, self._examples):
            rows = slice(first, first + self._examples)
            x_BT, y_BT = batch.x_BT[rows].to(self._device), batch.y_BT[rows].to(self._device)
            with self._precision():
                logits_BTV = call(x_BT)
                loss = F.cross_entropy(
                    logits_BTV.reshape(-1, logits_BTV.shape[-1]), y_BT.reshape(-1)
                )
            yield loss * (len(x_BT) / count) if len(x_BT) < count else loss

    def _precision(self) -> AbstractContextManager[object]:
        if not self._is_half:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)

    def _refuse_compiled(self, error: RuntimeError) -> None:
        """Raise the error of a compiler, which torch calls at the first step only."""
        if self._call is not self._plain and type(error).__module__.startswith("torch._"):
            raise UserError(
                "SWT-E624",
                f"torch cannot compile the model here: {cleaned(str(error))}",
                "Compiling makes steps faster and changes nothing else.",
                "Join without --compile.",
            ) from error


def _sum(losses: list[Tensor]) -> float:
    return float(losses[0].item() if len(losses) == 1 else torch.stack(losses).sum().item())


def remake_activations(model: nn.Module) -> None:
    """Let each layer keep its input alone, and compute the rest again in the backward pass.

    Layers are the parts of the list of modules that holds the most parameters.

    Raises:
        UserError: SWT-E621, there is no such list.
    """
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    size = {id(one): sum(values.numel() for values in one.parameters()) for one in lists}
    layers = max(lists, key=lambda one: size[id(one)], default=None)
    if layers is None:
        raise UserError(
            "SWT-E621",
            "The run asks for activation checkpointing, and its model has no list of layers.",
            "It is done for the parts of an nn.ModuleList or nn.Sequential.",
            "The organiser leaves out inner.activation_checkpointing, or gives the model one.",
        )
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if torch found no memory, on whichever device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


def out_of_memory(device: torch.device, examples: int, *, is_auto: bool = False) -> UserError:
    """The error of a step that did not fit.

    Args:
        device: device of that memory.
        examples: examples that went through the model at a time.
        is_auto: smaller parts were tried.
    """
    smaller = max(1, examples // 2)
    remedy = (
        f"Join again with --micro-batch {smaller}, or --micro-batch auto; what the peer had is "
        "kept, and the batch stays the same."
        if examples > 1 and not is_auto
        else "Even one example at a time is too much. Close what else takes memory there, or join "
        "on a larger machine."
    )
    return UserError(
        "SWT-E622",
        f"The memory of {device} is full: {examples} example{'s' if examples > 1 else ''} at a "
        "time did not go through the model.",
        "The weights are as they were before the step.",
        remedy,
    )


@contextmanager
def memory_told(device: torch.device) -> Iterator[None]:
    """Turn a lack of memory for anything else than a batch into an error for people.

    Raises:
        UserError: SWT-E622.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(device, 1) from None


def _first_part(config: RunConfig, ways: Ways, device: torch.device) -> int:
    """Examples at a time to begin with."""
    batch = config.inner.batch
    if ways.micro_batch > 0:
        return min(batch, ways.micro_batch)
    wanted = batch // config.inner.accumulate
    if ways.micro_batch != MICRO_BATCH_AUTO or device.type != "cpu" or not config.model.is_counted:
        return wanted
    # The system says too late that memory is full: it ends the process.
    held = kept_values(config.model) * config.model.layers + _HEAD_VALUES * vocabulary_of(config)
    room = psutil.virtual_memory().available // _SHARE
    return max(1, min(batch, room // (4 * held * config.model.context)))


def _is_half(inner: InnerSection, device: torch.device) -> bool:
    if inner.precision != "auto":
        return inner.precision == "bfloat16"
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _check_compiler(device: torch.device) -> None:
    if device.type != "cpu" or any(map(shutil.which, ("g++", "clang++", "c++", "cl"))):
        return
    raise UserError(
        "SWT-E624",
        "--compile was asked for, and this machine has no C++ compiler.",
        "torch.compile writes C++ and has it compiled where the model is on the processor.",
        "Install one (Debian, Ubuntu: apt install g++), or join without --compile.",
    )
