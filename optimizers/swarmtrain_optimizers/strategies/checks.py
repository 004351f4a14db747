"""Checks of the arguments that every strategy is handed: they must fit, and be finite."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.strategies.base import Values

_PIECE_VALUES = 1 << 20


def check_vector(tensor: Tensor, name: str, num_values: int, dtype: torch.dtype) -> None:
    """Refuse what is not a flat vector of this length and dtype on the CPU.

    Raises:
        ValueError: it is not.
    """
    wanted = (num_values,)
    if tensor.shape != wanted or tensor.dtype != dtype or tensor.device.type != "cpu":
        raise ValueError(
            f"{name} is {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}; "
            f"wanted {wanted} {dtype} on cpu"
        )


def check_lengths(num_values: int, **vectors: Values | None) -> None:
    """Refuse what is there and not of this length, named by its keyword.

    Raises:
        ValueError: something is.
    """
    for name, values in vectors.items():
        if values is not None and values.numel() != num_values:
            raise ValueError(f"{name} has {values.numel()} values, wanted {num_values}")


def check_arrays(
    arrays: Mapping[str, Tensor], names: Sequence[str], num_values: int, dtype: torch.dtype
) -> None:
    """Refuse arrays that are not exactly these, each such a vector.

    Raises:
        ValueError: they are not.
    """
    if sorted(arrays) != sorted(names):
        raise ValueError(f"arrays are {sorted(arrays)}, wanted {sorted(names)}")
    for name in names:
        check_vector(arrays[name], name, num_values, dtype)


def is_finite(tensor: Tensor) -> bool:
    """Return True if no value is NaN or infinite.

    Piece by piece: torch makes an absolute value and a truth of every value that it looks at, which
    of a whole model is 1.8 times its memory.
    """
    pieces = tensor.reshape(-1).split(_PIECE_VALUES)
    return all(bool(torch.isfinite(piece).all()) for piece in pieces)
