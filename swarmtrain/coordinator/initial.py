"""The weights that a run begins with, as its organiser has them in a safetensors file.

The coordinator has no torch and holds no weights: it reads the file's head, compares names and
shapes with the run file's model, and gives out pieces of the bytes to members who ask for them by
their hashes. The file may hold moments of the outer optimizer too (`weights_file.moment_name`). The
run file names the list of these hashes by its own. Where it can say which first state these weights
make, it takes no other. Until the run has its first state the file must stay where it is;
afterwards nobody asks for it.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from swarmtrain.config.built_in import (
    ParameterFacts,
    built_in_parameters,
    layout_digest,
    num_values_of,
)
from swarmtrain.config.settings import RunConfig
from swarmtrain.config.stages import stage_parameters
from swarmtrain.data.tokenizer import FILE as TOKENIZER_FILE
from swarmtrain.foundation import atomic_file, regular_file
from swarmtrain.foundation.control_lane import INITIAL_PIECE_BYTES
from swarmtrain.foundation.errors import UserError, cleaned, translate
from swarmtrain.models.weights_file import (
    Place,
    differences,
    moment_name,
    read_head,
    weights_among,
)
from swarmtrain_optimizers.strategies.facts import StrategyFacts
from swarmtrain_transport.blocks.manifest import ArraySpec, manifest_of

logger = logging.getLogger(__name__)

FILE_NAME = "initial.msgpack"
"""In the coordinator's state directory."""

FOLDER_NAME = "begins-with"
"""Export of other peers' state directories, in the coordinator's."""

_MODEL = "model.safetensors"
_FACTS = "swarmtrain.json"
_LEDGER = "ledger.bin"

_FACTS_BYTES_MAX = 1 << 20

_PICKLES = (".pt", ".pth", ".bin")
_PICKLED = (b"PK\3\4", b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5")
"""Beginnings of files that torch.save writes: a zip archive, or a pickle of some version."""

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


class Initial(msgspec.Struct, frozen=True):
    """A file of weights in pieces.

    Attributes:
        path: place of the file on this machine; it travels nowhere.
        hashes: SHA-256 of each piece, joined, in their order.
    """

    path: str
    hashes: bytes

    @property
    def name(self) -> str:
        """The name in the run file: hex SHA-256 of the list of hashes."""
        return hashlib.sha256(self.hashes).hexdigest()

    def piece(self, digest: bytes) -> bytes | None:
        """The list, or the piece of this hash; None if there is none or the file has changed."""
        if digest == hashlib.sha256(self.hashes).digest():
            return self.hashes
        place = self.hashes.find(digest)
        while place % len(digest) and place >= 0:
            place = self.hashes.find(digest, place + 1)
        if place < 0:
            return None
        try:
            with regular_file.opened(self.path) as file:
                file.seek(place // len(digest) * INITIAL_PIECE_BYTES)
                data = file.read(INITIAL_PIECE_BYTES)
        except OSError as error:
            logger.error("The weights that the run begins with cannot be read: %s.", error)
            return None
        if hashlib.sha256(data).digest() != digest:
            logger.error("%s has changed: the run cannot begin with it.", self.path)
            return None
        return data

    def first_roots(self, config: RunConfig) -> tuple[bytes, ...]:
        """Root of each stage's first state, made of these weights as peers make it; b"" for each
        where that is not known here: of a model or strategy that peers bring, of other types than
        float32 and bfloat16, or of a file that is not there any more."""
        unknown = (b"",) * config.pipeline.num_stages
        if not config.model.is_counted or not config.facts.state:
            return unknown
        try:
            places = read_head(Path(self.path))
            if not {one.dtype for one in places.values()} <= _WHOLE.keys():
                return unknown
            with regular_file.opened(self.path) as file:
                return tuple(
                    _root(file, places, parameters, config.facts)
                    for parameters in stage_parameters(config)
                )
        except (OSError, ValueError, KeyError):
            return unknown


def _root(
    file: BinaryIO,
    places: Mapping[str, Place],
    parameters: Sequence[ParameterFacts],
    facts: StrategyFacts,
) -> bytes:
    """Root of the state whose anchor are these parameters; its moments are those of the file, all
    else is zero."""
    size = num_values_of(parameters)

    def parts() -> Iterator[bytes]:
        for array in facts.state:
            for name, shape, _ in parameters:
                key = name if array == "anchor" else moment_name(facts.name, array, name)
                if array == "anchor" or (array in facts.moments and key in places):
                    yield from _float32(file, places[key])
                else:
                    yield from _zeros(4 * math.prod(shape))

    specs = tuple(ArraySpec(name, size) for name in facts.state)
    return manifest_of(layout_digest(parameters), specs, parts()).root


def _zeros(left: int) -> Iterator[bytes]:
    while left:
        left -= len(zeros := bytes(min(left, INITIAL_PIECE_BYTES)))
        yield zeros


def _float32(file: BinaryIO, place: Place) -> Iterator[bytes]:
    """The values of a tensor, little endian."""
    file.seek(place.start)
    left = place.stop - place.start
    while left:
        data = file.read(min(left, INITIAL_PIECE_BYTES))
        if not data:
            raise ValueError("the file is cut short")
        left -= len(data)
        yield _WHOLE[place.dtype](data)


def _widened(data: bytes) -> bytes:
    """bfloat16 as float32: the same upper half."""
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[::2], data[1::2]
    return bytes(wide)


_WHOLE: Mapping[str, Callable[[bytes], bytes]] = {"F32": bytes, "BF16": _widened}
"""Makes float32 of values of these types."""


def is_weights(place: Path) -> bool:
    """Return True for a file, and for a folder with an export."""
    return place.is_file() or (place / _MODEL).is_file()


def open_initial(place: Path, config: RunConfig) -> Initial:
    """Look at the weights of an export, or of any safetensors file, and hash them.

    Args:
        place: the file, or the folder of it.

    Raises:
        UserError: SWT-E454, there is no such file, or it is none; E451, it does not fit the model.
    """
    path = (place / _MODEL if place.is_dir() else place).absolute()
    try:
        found = read_head(path)
        _check(path, config, {name: (one.dtype, one.shape) for name, one in found.items()})
        with regular_file.opened(path) as file:
            pieces = iter(lambda: file.read(INITIAL_PIECE_BYTES), b"")
            hashes = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
    except (OSError, ValueError) as error:
        raise _unread(path, error) from error
    return Initial(str(path), hashes)


def _check(path: Path, config: RunConfig, found: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """Names and shapes must be those of the model, as far as they are known without torch."""
    other = [f"{name} is of type {dtype}" for name, (dtype, _) in found.items()
             if dtype not in _FLOATS]  # fmt: skip
    if config.model.is_counted:
        wanted = {name: shape for name, shape, _ in built_in_parameters(config.model)}
        here = {name: shape for name, (_, shape) in found.items()}
        other = [*differences(wanted, weights_among(here)), *other]
        # Each parameter's moments are as it is; those of other strategies are left aside.
        moments = {
            moment_name(config.facts.name, array, name): shape
            for array in config.facts.moments for name, shape in wanted.items()
        }  # fmt: skip
        here = {name: shape for name, shape in here.items() if name in moments}
        other += differences({name: moments[name] for name in here}, here)
    if other:
        raise not_of_this_model(str(path), other)


def not_of_this_model(path: str, found: Iterable[str]) -> UserError:
    """The weights are of another model than the run's."""
    wrong = list(found)
    more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return UserError(
        "SWT-E451",
        f"{path} does not fit the model of the run file: {'; '.join(wrong[:3])}{more}.",
        "No run was started.",
        "Set [model] to the sizes of that file; those of an export stand in its swarmtrain.json.\n"
        "Of one in the form of Transformers, export the model again with --format safetensors.",
    )


def _unread(path: Path, error: Exception) -> UserError:
    why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return UserError(
        "SWT-E454",
        f"{path} cannot be read as weights: {cleaned(why)}.",
        "No run was started.",
        _instead(path),
    )


def _instead(path: Path) -> str:
    """A way out for what people often have in place of an export."""
    folder = path.parent
    if (folder / f"{_MODEL}.index.json").is_file():
        return (
            "Its weights are in several files, and one is needed: load the model and save it with"
            ' save_pretrained(FOLDER, max_shard_size="1000GB").'
        )
    if (folder / _LEDGER).is_file():
        return f"That is a peer's state: `swarmtrain export {folder} --to NEW`, and name NEW."
    saved = [path] if path.is_file() else [*folder.glob("*.bin"), *folder.glob("*.p*t*")]
    if any(one.suffix in _PICKLES or _begins(one).startswith(_PICKLED) for one in saved):
        return (
            "Files of torch.save (.pt, .pth, .bin) can hold code and are never opened. Load it"
            " where you trust it, and save its tensors with safetensors.torch.save_file."
        )
    return (
        "Name the folder of an export, a .safetensors file with all of the model, or a run or a"
        " state directory of a peer."
    )


def _begins(path: Path) -> bytes:
    try:
        with regular_file.opened(path) as file:
            return file.read(4)
    except OSError:
        return b""


def other_tokens(place: Path, config: RunConfig) -> str:
    """A warning where an export says that its model was trained on other tokens than the run's;
    empty where it does not say so. Names and shapes may fit all the same."""
    try:
        said = json.loads(regular_file.read(place / _FACTS, _FACTS_BYTES_MAX))["data"]["tokenizer"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""
    if said == config.data.tokenizer:
        return ""
    return (
        f"The model of {place} was trained on other tokens than this run's ({cleaned(str(said))}; "
        f"here {config.data.tokenizer}), so it begins knowing nothing. With a tokenizer.json its "
        f'export has the file: data.tokenizer = "{place / TOKENIZER_FILE}".'
    )


def keep(directory: Path, initial: Initial) -> None:
    """Have it known in later lives of the coordinator.

    Raises:
        UserError: the directory cannot be written.
    """
    try:
        atomic_file.write(directory / FILE_NAME, msgspec.msgpack.encode(initial), mode=0o600)
    except OSError as error:
        raise translate(error, at_coordinator=True) or error from error


def kept(directory: Path) -> Initial | None:
    """The one that this directory's run began with, None if it began with none."""
    try:
        return msgspec.msgpack.decode((directory / FILE_NAME).read_bytes(), type=Initial)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(
            "SWT-E454",
            f"{directory / FILE_NAME} cannot be read: {cleaned(str(error))}.",
            "It names the weights that the run began with.",
            "Say once more --from with the same file, or remove it if the run began without.",
        ) from error
