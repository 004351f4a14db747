"""Shared state on disk: safetensors files and a manifest, complete or not there at all.

A checkpoint is the folder ``op-000012`` with ``model.safetensors`` (the named weights of the
anchor; loads with safetensors alone), ``outer.safetensors`` (the other arrays of the shared state)
and ``manifest.json``. It is written aside, synced and renamed, so a crash or a full disk leaves the
previous one untouched. Nothing in it depends on the peer or the moment: it is the state and what
the ledger says of it, so the SHA-256 of the manifest can stand in the ledger.

Not here: inner optimizer state and what a peer has read, which are its own. Nothing is unpickled.
"""

import contextlib
import errno
import hashlib
import itertools
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from swarmtrain.foundation import atomic_file, regular_file
from swarmtrain.models.tensors import Layout, LayoutMismatch, ParameterSpec

logger = logging.getLogger(__name__)

MODEL_FILE = "model.safetensors"
OUTER_FILE = "outer.safetensors"
MANIFEST_FILE = "manifest.json"

ANCHOR = "anchor"
"""The array of the shared state that is the model's weights."""

MANIFEST_BYTES_MAX = 8 << 20
"""A manifest has a dozen lines and some for each parameter; whatever is larger is not one."""

_FOLDER = re.compile(r"op-(\d{6,})")
_WRITING_PREFIX = ".writing-"
_REMOVED_PREFIX = ".removed-"
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

Contents = bytes | Iterable[bytes | memoryview]
"""Hash of a file, read all at once or piece by piece."""

WriteFile = Callable[[Path, Contents], None]


class CheckpointError(Exception):
    """Root of all errors of checkpoints. The text says what happened and what to do."""


class CheckpointDamaged(CheckpointError):
    """The checkpoint on disk is not what was written: nothing of it may be used."""


class CheckpointFull(CheckpointError):
    """The disk has no room. Files that were there before are unchanged."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The place of a checkpoint in a run.

    Attributes:
        run: the run's name.
        config_hash: SHA-256 of the run file in canonical form, 32 bytes.
        op: the last committed op that the state contains.
        state_root: hash of the shared state after that op, 32 bytes.
        group: number of the group; a manifest of group 0 does not say so.
        text: place of the run in its text when that op was planned: number of the pass, pieces
            that were used in it, pieces that there are. None where the coordinator leases none.
    """

    run: str
    config_hash: bytes
    op: int
    state_root: bytes
    group: int = 0
    text: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was written, or read and verified.

    Attributes:
        path: folder of the checkpoint.
        facts: facts of the state in it.
        layout_digest: digest of the layout of the model that it was made from, 32 bytes.
        manifest_hash: SHA-256 of the manifest's bytes, 32 bytes.
    """

    path: Path
    facts: RunFacts
    layout_digest: bytes
    manifest_hash: bytes


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A verified checkpoint and its arrays.

    Attributes:
        checkpoint: the checkpoint that was read.
        model: weights by parameter name, float32.
        outer: the other arrays of the shared state by name, (padded,) float32.
        array_names: names of the state's arrays, the anchor among them, in the state's order.
        parameters: parameters of its model, in vector order.
    """

    checkpoint: Checkpoint
    model: Mapping[str, Tensor]
    outer: Mapping[str, Tensor]
    array_names: tuple[str, ...]
    parameters: tuple[ParameterSpec, ...]

    def arrays(self, layout: Layout) -> list[tuple[str, Tensor]]:
        """The shared state as it was saved: (name, (padded,) float32) in its order.

        Raises:
            LayoutMismatch: the checkpoint is of another model, or padded to another block.
        """
        anchor = layout.pack(self.model)
        if layout.digest != self.checkpoint.layout_digest:
            raise LayoutMismatch("the parameters have other types or another order than the run's")
        for name, array in self.outer.items():
            if array.shape != anchor.shape:
                raise LayoutMismatch(
                    f"`{name}` has shape {tuple(array.shape)}, expected {tuple(anchor.shape)}: "
                    "the checkpoint was made with another block"
                )
        return [(name, anchor if name == ANCHOR else self.outer[name]) for name in self.array_names]


class _FileFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes: int
    sha256: str


class _TextPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: int = msgspec.field(name="pass")
    used: int
    pieces: int


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    format: Literal[1]
    run: str
    config_hash: str
    op: int
    state_root: str
    layout: str
    arrays: tuple[str, ...]
    parameters: tuple[ParameterSpec, ...]
    files: dict[str, _FileFacts]
    group: int = 0
    text: _TextPlace | None = None

    def to_bytes(self) -> bytes:
        """The one text of this manifest."""
        encoded = msgspec.json.encode(self, order="deterministic")
        return msgspec.json.format(encoded, indent=2) + b"\n"


def write_file(path: Path, data: Contents) -> None:
    """Write `data` to a new file and sync it to the disk."""
    with open(path, "xb") as file:
        for piece in (data,) if isinstance(data, bytes) else data:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def save(
    directory: Path,
    facts: RunFacts,
    layout: Layout,
    arrays: Sequence[tuple[str, Tensor]],
    *,
    write: WriteFile = write_file,
) -> Checkpoint:
    """Write the shared state as ``directory/op-000012``; an existing one of this op is replaced.

    Args:
        directory: folder of all checkpoints; made if it is not there.
        facts: facts of the state.
        layout: places of the model's parameters in the vectors.
        arrays: the shared state in its order, each (padded,) float32; one is named ``anchor``.
        write: writes one file durably; an argument so that a full disk can be rehearsed.

    Raises:
        CheckpointFull: no room on the disk; nothing changed.
        CheckpointError: the folder cannot be written to; nothing changed.
        ValueError: there is no anchor, or its padding is not zero (a bug).
    """
    encoded = _encoded(layout, arrays)
    num_bytes = sum(array.numel() * array.element_size() for _, array in arrays)

    def written(folder: Path) -> dict[str, _FileFacts]:
        files: dict[str, _FileFacts] = {}
        for name, pieces in encoded.items():
            taken = _Taken(pieces)
            write(folder / name, taken)
            files[name] = _FileFacts(taken.num_bytes, taken.sha256.hexdigest())
        return files

    names = [name for name, _ in arrays]
    return _saved(directory, facts, layout, names, written, num_bytes, write)


def save_parts(
    directory: Path,
    facts: RunFacts,
    layout: Layout,
    names: Sequence[str],
    parts_of: Callable[[str, int, int], Iterable[memoryview]],
) -> Checkpoint:
    """Save a state that is nowhere whole; the files are those of `save`.

    Args:
        directory: see `save`.
        facts: see `save`.
        layout: see `save`.
        names: names of the state's arrays in its order.
        parts_of: the bytes of values [start, stop) of an array, little-endian float32, in order.

    Raises:
        CheckpointFull: as `save`.
        CheckpointError: as `save`.
    """
    places, position = {}, 0
    for spec in layout.parameters:
        places[spec.name] = (spec.shape, position, position + spec.num_values)
        position += spec.num_values
    padding = memoryview(bytes(4 * (layout.padded - layout.num_values)))

    def written(folder: Path) -> dict[str, _FileFacts]:
        model = _write_parts(
            folder / MODEL_FILE,
            _header({name: shape for name, (shape, _, _) in places.items()}, {"format": "pt"}),
            (part for name in sorted(places) for part in parts_of(ANCHOR, *places[name][1:])),
        )
        others = sorted(name for name in names if name != ANCHOR)
        outer = _write_parts(
            folder / OUTER_FILE,
            _header(dict.fromkeys(others, (layout.padded,)), None),
            (part for name in others for part in (*parts_of(name, 0, layout.num_values), padding)),
        )
        return {MODEL_FILE: model, OUTER_FILE: outer}

    num_bytes = 4 * layout.padded * len(names)
    return _saved(directory, facts, layout, names, written, num_bytes, write_file)


def _header(shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str] | None) -> bytes:
    """The head of a safetensors file of float32 arrays, as that library writes it."""
    entries: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    position = 0
    for name in sorted(shapes):
        end = position + 4 * torch.Size(shapes[name]).numel()
        entries[name] = {"dtype": "F32", "shape": shapes[name], "data_offsets": [position, end]}
        position = end
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def tensor_file(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """The bytes of `safetensors.torch.save` for float32 tensors, without a copy of them.

    Args:
        tensors: contiguous, by name, on the CPU.
        metadata: one key at most: safetensors writes several in no fixed order.
    """
    if any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        raise ValueError("a file of tensors is made of float32 alone")
    yield _header({name: tuple(one.shape) for name, one in tensors.items()}, metadata)
    for name in sorted(tensors):
        if (values := tensors[name].detach().reshape(-1)).numel():
            yield values.numpy().astype("<f4", copy=False).data.cast("B")


class _Taken:
    """Pieces on their way into a file.

    Attributes:
        sha256: hash of the bytes that were taken.
        num_bytes: number of those bytes.
    """

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.sha256 = hashlib.sha256()
        self.num_bytes = 0
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for piece in self._pieces:
            self.sha256.update(piece)
            self.num_bytes += len(piece)
            yield piece


def _write_parts(path: Path, head: bytes, parts: Iterable[memoryview]) -> _FileFacts:
    taken = _Taken(itertools.chain([head], parts))
    write_file(path, taken)
    return _FileFacts(taken.num_bytes, taken.sha256.hexdigest())


def _saved(
    directory: Path,
    facts: RunFacts,
    layout: Layout,
    names: Sequence[str],
    written: Callable[[Path], dict[str, _FileFacts]],
    num_bytes: int,
    write: WriteFile,
) -> Checkpoint:
    """Write the files aside with `written`, add the manifest and give the folder its name."""
    final = directory / folder_name(facts.op)
    aside: Path | None = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=_WRITING_PREFIX, dir=directory))
        manifest = _manifest(facts, layout, names, written(aside))
        write(aside / MANIFEST_FILE, manifest)
        checkpoint = Checkpoint(final, facts, layout.digest, _sha256(manifest))
        atomic_file.sync_folder(aside)
        if final.exists():
            remove(final)
        atomic_file.rename(aside, final)
    except OSError as exc:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
        raise _write_error(exc, final, num_bytes) from exc
    return checkpoint


def load(path: Path, *, manifest_hash: bytes | None = None) -> LoadedCheckpoint:
    """Open one checkpoint folder; every hash is verified before anything is used. Tensors stay on
    the disk: their pages come as they are looked at.

    Args:
        path: the folder ``op-000012``.
        manifest_hash: SHA-256 that the manifest must have, as the ledger names it; None trusts
            the manifest on disk.

    Raises:
        CheckpointDamaged: a file is missing, cut off, changed or not what it should be.
    """
    manifest, checkpoint = _read_manifest(path)
    if manifest_hash is not None and checkpoint.manifest_hash != manifest_hash:
        raise _damaged(path, f"{MANIFEST_FILE} is not the one that the ledger names")
    if set(manifest.files) != {MODEL_FILE, OUTER_FILE}:
        raise _damaged(path, f"{MANIFEST_FILE} names other files than expected")
    model = _map_tensors(path, MODEL_FILE, manifest.files[MODEL_FILE])
    outer = _map_tensors(path, OUTER_FILE, manifest.files[OUTER_FILE])
    if sorted(manifest.arrays) != sorted([ANCHOR, *outer]):
        raise _damaged(path, f"{OUTER_FILE} does not hold the arrays that the manifest names")
    # Room is made by the manifest, so it says no more than what lies on the disk.
    said = sorted((spec.name, spec.shape) for spec in manifest.parameters)
    if said != sorted((name, tuple(values.shape)) for name, values in model.items()):
        raise _damaged(path, f"{MODEL_FILE} does not hold the parameters that the manifest names")
    if any(values.dtype != torch.float32 for values in (*model.values(), *outer.values())):
        raise _damaged(path, "its values are not float32")
    return LoadedCheckpoint(checkpoint, model, outer, manifest.arrays, manifest.parameters)


def latest(directory: Path) -> LoadedCheckpoint | None:
    """The newest checkpoint that is whole; damaged ones are passed over with a warning."""
    for path in reversed(folders(directory)):
        try:
            return load(path)
        except CheckpointDamaged as exc:
            logger.warning("The checkpoint %s is damaged, an older one is taken: %s", path, exc)
    return None


def claimed(directory: Path) -> RunFacts | None:
    """The place of the newest checkpoint that seems to be whole, None without one. Only manifests
    are read, which takes a moment where `latest` takes as long as the model is large."""
    for path in reversed(folders(directory)):
        with contextlib.suppress(CheckpointDamaged):
            return claim(path)
    return None


def claim(path: Path) -> RunFacts:
    """Return the facts that a checkpoint tells of itself; its files are looked at by size alone.

    Raises:
        CheckpointDamaged: a file is missing or of another size, or there is no manifest.
    """
    manifest, checkpoint = _read_manifest(path)
    for name, file in manifest.files.items():
        try:
            size = (path / name).stat().st_size
        except OSError as exc:
            raise _damaged(path, f"{name} cannot be read ({exc.strerror})") from exc
        if size != file.bytes:
            raise _damaged(path, f"{name} has {size} of {file.bytes} bytes")
    return checkpoint.facts


def prune(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and what interrupted writes left behind.

    Only the process that saves into `directory` may call this.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    for path in folders(directory)[:-keep]:
        remove(path)
    if directory.is_dir():
        for entry in directory.iterdir():
            if entry.name.startswith((_WRITING_PREFIX, _REMOVED_PREFIX)):
                shutil.rmtree(entry, ignore_errors=True)


def forget_after(directory: Path, op: int) -> None:
    """Remove checkpoints of ops after `op`: a REWIND has cancelled them, and as the newest ones
    they would take the place of those to come."""
    for path in folders(directory):
        if op_of(path) > op:
            remove(path)


def folder_name(op: int) -> str:
    """Name of the folder of the state after `op`."""
    return f"op-{op:06d}"


def op_of(folder: Path) -> int:
    """The op that a checkpoint's folder is named after."""
    match = _FOLDER.fullmatch(folder.name)
    if match is None:
        raise ValueError(f"{folder} is not the folder of a checkpoint")
    return int(match[1])


def folders(directory: Path) -> list[Path]:
    """Checkpoint folders, oldest op first; none where there is no such directory."""
    if not directory.is_dir():
        return []
    found = [path for path in directory.iterdir() if _FOLDER.fullmatch(path.name)]
    return sorted(found, key=op_of)


def _encoded(
    layout: Layout, arrays: Sequence[tuple[str, Tensor]]
) -> dict[str, Iterator[bytes | memoryview]]:
    """The bytes of each file, but for the manifest, made as they are written."""
    state = dict(arrays)
    if ANCHOR not in state or len(state) != len(arrays):
        raise ValueError(f"the state needs one array named `{ANCHOR}` and no name twice")
    anchor = state.pop(ANCHOR)
    if anchor[layout.num_values :].view(torch.int32).any():  # as bits: -0.0 would not survive
        raise ValueError("the anchor's padding is not zero: the state would not load as it was")
    views = layout.named_views(anchor)
    return {MODEL_FILE: tensor_file(views, {"format": "pt"}), OUTER_FILE: tensor_file(state)}


def _manifest(
    facts: RunFacts, layout: Layout, names: Sequence[str],
    files: Mapping[str, _FileFacts],
) -> bytes:  # fmt: skip
    """The manifest's bytes."""
    return _Manifest(
        format=1,
        run=facts.run,
        config_hash=facts.config_hash.hex(),
        op=facts.op,
        state_root=facts.state_root.hex(),
        layout=layout.digest.hex(),
        arrays=tuple(names),
        parameters=layout.parameters,
        files=dict(files),
        group=facts.group,
        text=None if facts.text is None else _TextPlace(*facts.text),
    ).to_bytes()


def _read_manifest(path: Path) -> tuple[_Manifest, Checkpoint]:
    raw = _read(path, MANIFEST_FILE, MANIFEST_BYTES_MAX)
    try:
        manifest = msgspec.json.decode(raw, type=_Manifest)
        facts = RunFacts(
            run=manifest.run,
            config_hash=bytes.fromhex(manifest.config_hash),
            op=manifest.op,
            state_root=bytes.fromhex(manifest.state_root),
            group=manifest.group,
            text=None if manifest.text is None else msgspec.structs.astuple(manifest.text),
        )
        layout_digest = bytes.fromhex(manifest.layout)
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise _damaged(path, f"{MANIFEST_FILE} is not a manifest ({exc})") from exc
    if manifest.to_bytes() != raw:
        raise _damaged(path, f"{MANIFEST_FILE} is not in the form in which it is written")
    return manifest, Checkpoint(path, facts, layout_digest, _sha256(raw))


def _read(path: Path, name: str, size_max: int) -> bytes:
    try:
        return regular_file.read(path / name, size_max)
    except OSError as exc:
        raise _damaged(path, f"{name} cannot be read ({exc.strerror})") from exc


def _map_tensors(path: Path, name: str, facts: _FileFacts) -> dict[str, Tensor]:
    try:
        with regular_file.opened(path / name) as file:
            size = os.fstat(file.fileno()).st_size
            if size != facts.bytes:
                raise _damaged(path, f"{name} has {size} of {facts.bytes} bytes")
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise _damaged(path, f"{name} cannot be read ({exc.strerror})") from exc
    if digest != facts.sha256:
        raise _damaged(path, f"{name} has other contents than the manifest says")
    try:
        return safetensors.torch.load_file(path / name)
    except SafetensorError as exc:
        raise _damaged(path, f"{name} is not a safetensors file ({exc})") from exc


def remove(path: Path) -> None:
    """Take a checkpoint away: first its name, at once, then its contents, which may take a while.

    Raises:
        OSError: it cannot be removed.
    """
    gone = path.with_name(f"{_REMOVED_PREFIX}{path.name}")
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _damaged(path: Path, detail: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"checkpoint {path} is damaged: {detail}. Nothing of it was used. Remove the folder; an "
        "older checkpoint or another peer still has the state."
    )


def _write_error(exc: OSError, path: Path, num_bytes: int) -> CheckpointError:
    if exc.errno in _DISK_FULL:
        return CheckpointFull(
            f"no room for checkpoint {path} ({num_bytes} bytes: {exc.strerror}). Older "
            "checkpoints are unchanged and training goes on. Free some space on that disk."
        )
    return CheckpointError(
        f"checkpoint {path} cannot be written ({exc.strerror}). Older checkpoints are unchanged. "
        "Check the folder and its permissions."
    )
