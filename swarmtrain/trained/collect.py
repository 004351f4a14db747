"""The newest model that state directories hold, of all stages where it is in stages.

Stages are committed each at a pace of their own, so what is newest may be of another round in each.
A checkpoint is taken if its files are whole and a ledger beside it attests its state.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from torch import Tensor

from swarmtrain import checkpoint
from swarmtrain.checkpoint import CheckpointDamaged, LoadedCheckpoint
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import ExpertsSection, RunConfig
from swarmtrain.data.clusters import ROUTER_FILE, Router, name_in
from swarmtrain.data.tokenizer import FILE as TOKENIZER_FILE
from swarmtrain.data.tokenizer import FILE_BYTES_MAX
from swarmtrain.foundation import regular_file
from swarmtrain.foundation.errors import UserError, misuse
from swarmtrain.models.build import check_shapes
from swarmtrain.models.tensors import Layout
from swarmtrain.models.weights_file import moment_name
from swarmtrain.peer.disk.group_storage import RUN_FILE, group_folder
from swarmtrain.pipeline.missing import without
from swarmtrain.trained.places import run_folder, state_dirs
from swarmtrain.verify.peer_state import records_in
from swarmtrain.verify.proof import Unproved, fold
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.pipeline.wire.paths import Paths
from swarmtrain_transport.wire.records import Record, Run


class Part(msgspec.Struct, frozen=True):
    """One stage of a model, or an expert.

    Attributes:
        stage: number of the stage, or of the expert.
        op: newest op that its state contains.
        state_root: root of that state.
        checkpoint: SHA-256 of that checkpoint's manifest.
    """

    stage: int
    op: int
    state_root: str
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Source:
    """A peer's state directory, and what its ledger says.

    Attributes:
        records: records that it has, oldest first.
        is_whole: True if they begin with the run's first.
    """

    directory: Path
    config: RunConfig
    run: Run
    view: LedgerView
    records: Sequence[Record]
    is_whole: bool

    def attested(self, group: int, op: int) -> set[bytes | None]:
        """Roots of a group's state after an op that the ledger tells of."""
        if (view := self.view.groups.get(group)) is None:
            return set()
        return {view.attests.get(op), *view.roots.get(op, {}).values()}


@dataclass(frozen=True, slots=True)
class Collected:
    """A run's newest model, as far as some state directories hold it.

    Attributes:
        config: the run file.
        parts: the checkpoints that it is of, a stage each.
        weights: float32 by parameter name.
        ledger: directory whose records reach furthest.
        tokenizer: bytes of the run's tokenizer.json, if it has one.
        missing: stages, or experts, that none of the directories has.
        router: router between experts, where there are several; their parameters are named as by
            `clusters.name_in`.
        moments: float32, what the outer optimizer keeps and another run can begin with, by
            `weights_file.moment_name`; nothing of several experts.
    """

    config: RunConfig
    parts: tuple[Part, ...]
    weights: Mapping[str, Tensor]
    ledger: Source
    tokenizer: bytes | None
    missing: tuple[int, ...] = ()
    router: Router | None = None
    moments: Mapping[str, Tensor] = field(default_factory=dict)


def collect(given: Sequence[str | Path], *, may_lack: bool = False) -> Collected:
    """The newest model in these places; the peers there may run.

    Args:
        given: state directories of peers of one run, folders of such, or the run's name.
        may_lack: do without as many stages as a route of the run leaves out, neither the first nor
            the last one.

    Raises:
        UserError: SWT-E806 or E807, a directory is none or does not hold together; E610, they are
            of several runs; E811, a stage is in none of them; and as `check_shapes`.
    """
    sources = _sources(given)
    config = sources[0].config
    if any(one.config != config or one.run != sources[0].run for one in sources):
        raise misuse("These directories are of several runs.", "Name those of one run.")
    furthest = max(sources, key=lambda one: (one.records[-1].index, one.is_whole))
    if config.experts.count > 1:
        return _experts(sources, config, furthest)
    weights: dict[str, Tensor] = {}
    moments: dict[str, Tensor] = {}
    parts: list[Part] = []
    missing: list[int] = []
    paths = Paths(config.pipeline.num_stages, config.pipeline.visit)
    for stage in range(config.pipeline.num_stages):
        loaded = next(_checkpoints(sources, stage), None)
        if loaded is None:
            is_between = 0 < stage < paths.num_stages - 1
            if may_lack and is_between and len(missing) < paths.num_left_out:
                missing.append(stage)
                continue
            raise _missing(config, stage)
        weights |= loaded.model
        moments |= _moments(config, loaded)
        parts.append(_part(stage, loaded))
    if missing:
        config, weights = without(config, weights, missing)
    check_shapes(config, {name: tuple(one.shape) for name, one in weights.items()})
    return Collected(
        config, tuple(parts), weights, furthest, _tokenizer(sources, config), tuple(missing),
        moments=moments,
    )  # fmt: skip


def _experts(sources: Sequence[Source], config: RunConfig, furthest: Source) -> Collected:
    """The newest of each expert. Those that are nowhere are missing: their text goes to others.

    Raises:
        UserError: SWT-E811, none is there, or no router; and as `check_shapes`.
    """
    found = {
        expert: loaded
        for expert in range(config.experts.count)
        if (loaded := next(_checkpoints(sources, expert), None)) is not None
    }
    router = _router(sources, config)
    if not found or router is None:
        raise _missing(config, 0)
    missing = tuple(sorted(set(range(config.experts.count)) - found.keys()))
    weights: dict[str, Tensor] = {}
    moments = _moments(config, *found.values()) if len(found) == 1 else {}
    for number, loaded in enumerate(found.values()):
        check_shapes(config, {name: tuple(one.shape) for name, one in loaded.model.items()})
        is_alone = len(found) == 1
        weights |= {
            name if is_alone else name_in(number, name): one for name, one in loaded.model.items()
        }
    config = msgspec.structs.replace(config, experts=ExpertsSection(len(found)))
    parts = tuple(_part(expert, loaded) for expert, loaded in found.items())
    between = router.without(missing) if len(found) > 1 else None
    return Collected(config, parts, weights, furthest, None, missing, between, moments)


def _moments(config: RunConfig, loaded: LoadedCheckpoint) -> dict[str, Tensor]:
    layout = Layout.from_parameters(loaded.parameters, config.exchange.block)
    return {
        moment_name(config.facts.name, array, name): values
        for array in config.facts.moments
        if array in loaded.outer and len(loaded.outer[array]) == layout.padded
        for name, values in layout.named_views(loaded.outer[array]).items()
    }


def _router(sources: Sequence[Source], config: RunConfig) -> Router | None:
    for one in sources:
        with contextlib.suppress(OSError, ValueError):
            return Router.read(one.directory / ROUTER_FILE, config.experts.count)
    return None


def _part(group: int, loaded: LoadedCheckpoint) -> Part:
    found = loaded.checkpoint
    return Part(group, found.facts.op, found.facts.state_root.hex(), found.manifest_hash.hex())


def _sources(given: Sequence[str | Path]) -> list[Source]:
    """Open the directories; for a run's name alone those of its newest life: directories of an
    earlier run of that name, and damaged ones, are passed over."""
    directories = state_dirs(given)
    if len(given) > 1 or run_folder(given[0]) not in {one.parent.parent for one in directories}:
        return [source_of(one) for one in directories]
    found, faults = [], []
    for one in directories:
        try:
            found.append(source_of(one))
        except UserError as fault:
            faults.append(fault)
    if not found:
        raise faults[0]
    newest = max(found, key=lambda one: (one.directory / "ledger.bin").stat().st_mtime)
    return [one for one in found if one.run == newest.run]


def source_of(directory: Path) -> Source:
    """A state directory and its ledger; the peer there may run.

    Raises:
        UserError: SWT-E807, they do not hold together.
    """
    try:
        records, begins = records_in(directory, may_grow=True)
        view = fold(records, begins).view
        data = regular_file.read(directory / RUN_FILE, config_file.FILE_BYTES_MAX)
        if view.run is None or view.run.config_hash != hashlib.sha256(data).digest():
            raise Unproved(f"{directory / RUN_FILE} is not the run file that the ledger names.")
        config = config_file.from_canonical(data)
        return Source(directory, config, view.run, view, records, begins is None)
    except (Unproved, RemoteFault, OSError) as error:
        raise UserError(
            "SWT-E807",
            f"{directory} does not hold together: {error}",
            "Nothing was written.",
            "Leave it out, or name another peer's.",
        ) from error


def _checkpoints(sources: Sequence[Source], stage: int) -> Iterator[LoadedCheckpoint]:
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
        is_attested = any(facts.state_root in one.attested(stage, op) for one in sources)
        if (facts.op, facts.group) == (op, stage) and is_attested:
            yield loaded


def _tokenizer(sources: Sequence[Source], config: RunConfig) -> bytes | None:
    """The run's tokenizer. Another file of that name, which may be a link to anything, is left."""
    for one in sources:
        with contextlib.suppress(OSError):
            data = regular_file.read(one.directory / TOKENIZER_FILE, FILE_BYTES_MAX)
            if hashlib.sha256(data).hexdigest() == config.data.tokenizer:
                return data
    return None


def _missing(config: RunConfig, stage: int) -> UserError:
    of = f"stage {stage} of " if config.pipeline.num_stages > 1 else ""
    return UserError(
        "SWT-E811",
        f"None of these directories has a whole checkpoint of {of}the model of {config.run.name}.",
        "A peer has checkpoints of what it serves, from its first state on. One that is still being"
        " written counts for nothing.",
        "Name the directories of peers that together serve all stages, or wait until it is saved.",
    )
