"""One model made of the newest checkpoints of a run: of all stages, where the model is in stages.

Stages are committed each at a pace of their own, so what is newest may be of another round in each.
A checkpoint is taken if its files are whole and a ledger beside it attests its state. The manifest
names the checkpoints that the model was made of.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import safetensors.torch
from torch import Tensor

from swarmtrain import atomic_file, checkpoint
from swarmtrain.checkpoint import CheckpointDamaged, LoadedCheckpoint
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig
from swarmtrain.errors import UserError, misuse, translate
from swarmtrain.peer.disk import ledger_file
from swarmtrain.peer.disk.group_storage import RUN_FILE, group_folder
from swarmtrain.verify.peer_state import records_in
from swarmtrain.verify.proof import Unproved, fold
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import LedgerView


class Part(msgspec.Struct, frozen=True):
    """One stage of an exported model.

    Attributes:
        stage: its number.
        op: newest op that its state contains.
        state_root: of that state.
        checkpoint: SHA-256 of that checkpoint's manifest.
    """

    stage: int
    op: int
    state_root: str
    checkpoint: str


class Exported(msgspec.Struct, frozen=True):
    """Manifest of an exported model.

    Attributes:
        format: of this text.
        run: the run's name.
        config_hash: SHA-256 of its run file.
        stages: what the model was made of.
        num_values: parameters.
        model_bytes, model_sha256: of the file with the weights.
    """

    format: int
    run: str
    config_hash: str
    stages: tuple[Part, ...]
    num_values: int
    model_bytes: int
    model_sha256: str


@dataclass(frozen=True, slots=True)
class _Source:
    """A peer's state directory, and what its ledger says."""

    directory: Path
    config: RunConfig
    view: LedgerView


def export(folder: Path, directories: Sequence[Path]) -> Exported:
    """Write ``model.safetensors`` and ``manifest.json`` into a new folder.

    Args:
        folder: must not be there.
        directories: state directories of peers of one run, or folders of such; the peers may run.

    Raises:
        UserError: SWT-E806 or E807, a directory is none or does not hold together; E610, they are
            of several runs, or the folder is there; E811, a stage is in none of them; E401 or E403,
            the folder cannot be written.
    """
    if folder.exists():
        raise misuse(f"{folder} is there already.", "Name a folder that is not.")
    sources = [_source(found) for given in directories for found in _state_dirs(given)]
    config = sources[0].config
    if any(one.config != config or one.view.run != sources[0].view.run for one in sources):
        raise misuse("These directories are of several runs.", "Name those of one run.")
    weights: dict[str, Tensor] = {}
    parts = []
    for stage in range(config.pipeline.num_stages):
        loaded = next(_checkpoints(sources, stage), None)
        if loaded is None:
            raise _missing(config, stage)
        weights |= {spec.name: loaded.model[spec.name] for spec in loaded.parameters}
        found = loaded.checkpoint
        parts.append(
            Part(stage, found.facts.op, found.facts.state_root.hex(), found.manifest_hash.hex())
        )
    # One metadata key at most: safetensors writes several in no fixed order.
    data = safetensors.torch.save(weights, metadata={"format": "pt"})
    made = Exported(
        1, config.run.name, config_file.config_hash(config).hex(), tuple(parts),
        sum(tensor.numel() for tensor in weights.values()), len(data),
        hashlib.sha256(data).hexdigest(),
    )  # fmt: skip
    _write(folder, data, made)
    return made


def _state_dirs(given: Path) -> list[Path]:
    """The directory, if it is a peer's; else those in it."""
    inner = sorted(given.iterdir()) if given.is_dir() else []
    found = [one for one in (given, *inner) if (one / ledger_file.FILE_NAME).is_file()]
    if found:
        return found[:1] if found[0] == given else found
    raise UserError(
        "SWT-E806",
        f"{given} is no state directory of a peer, and has none in it.",
        "A peer keeps its ledger there in ledger.bin.",
        "Name what was given as --state-dir, or the folder of all peers of a run.",
    )


def _source(directory: Path) -> _Source:
    try:
        view = fold(*records_in(directory, may_grow=True)).view
        data = (directory / RUN_FILE).read_bytes()
        if view.run is None or view.run.config_hash != hashlib.sha256(data).digest():
            raise Unproved(f"{directory / RUN_FILE} is not the run file that the ledger names.")
        return _Source(directory, config_file.from_canonical(data), view)
    except (Unproved, RemoteFault, OSError) as error:
        raise UserError(
            "SWT-E807",
            f"{directory} does not hold together: {error}",
            "Nothing was written.",
            "Leave it out, or name another peer's.",
        ) from error


def _checkpoints(sources: Sequence[_Source], stage: int) -> Iterator[LoadedCheckpoint]:
    """Checkpoints of a stage that are whole and the run's, the newest ones first."""
    folders = [
        (checkpoint.op_of(path), path)
        for source in sources
        for path in checkpoint.folders(group_folder(source.directory, stage) / "checkpoints")
    ]
    for op, path in sorted(folders, key=lambda item: item[0], reverse=True):
        try:
            loaded = checkpoint.load(path)
        except CheckpointDamaged:
            continue
        facts = loaded.checkpoint.facts
        attested = {
            root
            for source in sources
            if (view := source.view.groups.get(stage)) is not None
            for root in (view.attests.get(op), *view.roots.get(op, {}).values())
        }
        if (facts.op, facts.group) == (op, stage) and facts.state_root in attested:
            yield loaded


def _missing(config: RunConfig, stage: int) -> UserError:
    of = f"stage {stage} of " if config.pipeline.num_stages > 1 else ""
    return UserError(
        "SWT-E811",
        f"None of these directories has a checkpoint of {of}the model of {config.run.name}.",
        "A peer has checkpoints of what it serves, from its first state on.",
        "Name the directories of peers that together serve all stages.",
    )


def _write(folder: Path, model: bytes, manifest: Exported) -> None:
    """Write both files aside, then give them their place."""
    aside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
        aside.chmod(0o755)
        checkpoint.write_file(aside / checkpoint.MODEL_FILE, model)
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
        checkpoint.write_file(aside / checkpoint.MANIFEST_FILE, text)
        atomic_file.rename(aside, folder)
    except OSError as error:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
        raise translate(error) or UserError(
            "SWT-E403",
            f"{folder} cannot be written: {error.strerror or error}.",
            "Nothing is there.",
            "Name a folder in a directory that you own.",
        ) from error
