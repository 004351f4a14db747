"""The head of a safetensors file: names, types and shapes, read without torch.

The coordinator has no torch, and a file is judged before any of its gigabytes are read. The form is
that of the safetensors documentation: 8 bytes of length, little endian, then JSON, then the values.
"""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from swarmtrain.foundation import regular_file

LENGTH_BYTES = 8

HEAD_BYTES_MAX = 8 << 20
"""About a hundred bytes for each of 80 000 tensors, more than any model here has. The library's own
bound of 100 MB would be gigabytes of small objects."""

_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
         "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8}  # fmt: skip

_AXES_MAX = 8

Shapes = Mapping[str, tuple[int, ...]]

_OUTER = "outer/"

T = TypeVar("T")


class Place(NamedTuple):
    """One tensor of a file: its type as safetensors writes it, its shape, its first byte in the
    file and the one after its last."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class _Told(msgspec.Struct):
    dtype: str
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=_AXES_MAX)]
    data_offsets: tuple[int, int]


def moment_name(strategy: str, array: str, parameter: str) -> str:
    """Name of a parameter's part of an outer optimizer's array, in a file that has these beside the
    weights. Another strategy's mean something else, so the name says whose they are."""
    return f"{_OUTER}{strategy}/{array}/{parameter}"


def weights_among(tensors: Mapping[str, T]) -> dict[str, T]:
    """The tensors of a file that are weights."""
    return {name: one for name, one in tensors.items() if not name.startswith(_OUTER)}


def read_head(path: Path) -> dict[str, Place]:
    """The tensors of a file by their names.

    Raises:
        ValueError: it is no safetensors file, or is cut short.
        OSError: it cannot be read.
    """
    with regular_file.opened(path) as file:
        length = head_bytes(file.read(LENGTH_BYTES))
        raw = file.read(length)
        num_bytes = os.fstat(file.fileno()).st_size
    found = places_in(raw, num_bytes)
    if max((one.stop for one in found.values()), default=LENGTH_BYTES + len(raw)) != num_bytes:
        raise ValueError("it does not end where its head says")
    return found


def head_bytes(begins: bytes) -> int:
    """Bytes of the head, from the first LENGTH_BYTES of a file.

    Raises:
        ValueError: no head is so long.
    """
    length = int.from_bytes(begins, "little")
    if len(begins) < LENGTH_BYTES or length > HEAD_BYTES_MAX:
        raise ValueError("it does not begin as a safetensors file")
    return length


def places_in(raw: bytes, num_bytes: int) -> dict[str, Place]:
    """The tensors that a head tells of.

    Args:
        raw: the head.
        num_bytes: size of the whole file.

    Raises:
        ValueError: it makes no sense, or the values do not lie in the file.
    """
    first = LENGTH_BYTES + len(raw)
    try:
        head = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        head.pop("__metadata__", None)
        told = {name: msgspec.json.decode(one, type=_Told) for name, one in head.items()}
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError("its head makes no sense") from error
    found = {
        name: Place(one.dtype, one.shape, *(first + place for place in one.data_offsets))
        for name, one in told.items()
    }
    for name, one in found.items():
        if one.dtype not in _BITS:
            raise ValueError(f"{name} is of type {one.dtype}, which nothing here reads")
        size = math.prod(one.shape) * _BITS[one.dtype] // 8
        is_inside = first <= one.start <= one.stop <= num_bytes
        if min(one.shape, default=1) < 0 or one.stop - one.start != size or not is_inside:
            raise ValueError(f"the values of {name} are not there as its head says")
    return found


def differences(wanted: Shapes, found: Shapes) -> Iterator[str]:
    """Differences of two models, in words: parameter by parameter in the order of `wanted`."""
    for name, shape in wanted.items():
        if name not in found:
            yield f"{name} is missing"
        elif tuple(found[name]) != shape:
            yield f"{name} is {_sizes(found[name])}, and should be {_sizes(shape)}"
    for name in found:
        if name not in wanted:
            yield f"{name} is none of the model's"


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single value"
