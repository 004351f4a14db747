"""The device that a trained model is used on."""

import torch

from swarmtrain.errors import UserError, cleaned

_SMALL_VALUES = 5_000_000


def device_of(name: str) -> torch.device:
    """The device of a name: auto, cpu, cuda, cuda:1, mps.

    Raises:
        UserError: SWT-E610, this machine or this torch has no such device.
    """
    if name == "auto":
        has_mps = torch.backends.mps.is_available()
        name = "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = cleaned(str(error).split("\n")[0])
        raise UserError(
            "SWT-E610", f"There is no device {cleaned(name)} here: {first}.", "",
            "Name cpu, cuda, cuda:1 or mps, or leave --device out.",
        ) from error  # fmt: skip
    return device


def use_threads(num_values: int) -> None:
    """One thread for a small model, whose steps are too short to share; else as many as torch
    takes."""
    if num_values < _SMALL_VALUES:
        torch.set_num_threads(1)
