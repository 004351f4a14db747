"""The device that a model is on, by the name that its owner has given."""

import torch
from torch import Tensor

from swarmtrain.config.options import DEVICE_AUTO
from swarmtrain.foundation.errors import UserError


def device_of(name: str) -> torch.device:
    """The device of this name, as it is here.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:N``, ``mps``; ``auto`` is the first card, else Apple's GPU,
            else the processor.

    Raises:
        UserError: SWT-E460, there is no such device.
    """
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    if name == DEVICE_AUTO:
        name = "cuda:0" if cards else "mps" if has_mps else "cpu"
    kind, _, number = name.partition(":")
    there = {"cpu": 1, "cuda": cards, "mps": int(has_mps)}[kind]
    if int(number or 0) < there:
        return torch.device(kind, int(number or 0)) if kind == "cuda" else torch.device(kind)
    found = ["cpu", *(f"cuda:{index}" for index in range(cards)), *(["mps"] if has_mps else [])]
    raise UserError(
        "SWT-E460",
        f"There is no device {name} here.",
        f"torch {torch.__version__} finds: {', '.join(found)}."
        + " This build of torch has no CUDA." * (kind == "cuda" and torch.version.cuda is None),
        "Say --device auto, or install the driver and build of torch that the card needs.",
    )


def onto(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device. On their way to a card they go through pinned memory, so that it
    takes them while the processor goes on."""
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
