"""A peer's state directory as a run leaves it: real keys, real arithmetic, real files."""

import dataclasses
from pathlib import Path

import msgspec
import torch
from torch import nn

from swarmtrain import checkpoint
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import ExchangeSection, RunConfig, RunSection
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.disk import identity_file
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.peer.training.driver import Driver
from swarmtrain.strategies import strategy_of
from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.credentials.identity import Identity, verify
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.ledger.fold import LedgerView, result_root, slice_root
from swarmtrain_transport.ledger.plan_rules import window_floor
from swarmtrain_transport.result import OpResult, SliceResult
from swarmtrain_transport.wire.records import (
    Attest,
    Body,
    Commit,
    Freeze,
    Group,
    Join,
    Member,
    Move,
    Plan,
    Record,
    Run,
    Skip,
    SliceOutcome,
    SliceSpec,
    make_record,
)
from swarmtrain_transport.wire.text_place import TextPlace

CONFIG = RunConfig(RunSection("proved"), exchange=ExchangeSection(block=16, chunk_values=32))
WINDOW = Window("int8", 16, window_floor(0, 1), 0)
PEER = Identity.from_secrets(b"p" * 32, b"q" * 32)
RUN = Identity.from_secrets(b"r" * 32, b"s" * 32)


class _Still:
    def __init__(self, vector):
        self.vector = vector.clone()

    def read_weights(self, out=None):
        return self.vector.clone()

    def write_weights(self, vector):
        self.vector = vector.clone()


@dataclasses.dataclass
class History:
    """History of a run, op by op, and the directory of the peer that it happened to."""

    directory: Path
    records: list[Record] = dataclasses.field(default_factory=list)
    roots: dict[int, bytes] = dataclasses.field(default_factory=dict)
    group = 0

    def __post_init__(self):
        self.directory.mkdir()
        identity_file.save(PEER, self.directory / "identity.json")
        self.storage = PeerStorage(self.directory)
        self.storage.of(0).keep_run(config_file.canonical(CONFIG))
        self.ledger, self.view = Ledger(verify), LedgerView()
        self.add(Run("proved", RUN.peer_id, config_file.config_hash(CONFIG), 1))
        self.add(Join(PEER.peer_id, b"boot", "ann", PEER.curve_key))
        self.begin(nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3)))

    def begin(self, model: nn.Module) -> None:
        torch.manual_seed(7)
        self.layout = Layout.of(model, 16)
        vector = self.layout.pack(
            {spec.name: torch.randn(spec.shape) for spec in self.layout.parameters}
        )
        self.driver = Driver(
            PEER.peer_id, strategy_of(CONFIG, self.layout), _Still(vector),
            layout=self.layout.digest, num_values=self.layout.num_values, snapshot_rounds=4,
        )  # fmt: skip
        root = self.driver.offer().manifest.root
        self.driver.op = 0
        self.roots[0] = root
        self.add(Attest(0, root, self.layout.num_values, self.layout.digest, group=self.group))
        self.save()

    def add(self, body: Body) -> None:
        ledger = self.ledger
        record = make_record(len(ledger), ledger.head_hash, 1, body, RUN.sign, ledger.reader)
        self.view.apply(record, self.ledger.append(record))
        self.records.append(record)
        self.storage.append_records([record])

    def plan(self) -> Plan:
        width = self.layout.padded
        plan = Plan(
            op=self.driver.op + 1, previous_outcome=self.view.groups[self.group].last_outcome,
            members=(Member(PEER.peer_id, b"boot", 1),),
            slices=(SliceSpec(0, 32, PEER.peer_id), SliceSpec(32, width, PEER.peer_id)),
            codec="int8", exact=True, block=16, chunk_values=32, e_min=WINDOW.e_min,
            e_max=WINDOW.e_max, min_contributors=1, deadline_s=10.0, checkpoint_by=b"",
            evaluate_by=b"", group=self.group, text=TextPlace(1, 2, 9),
        )  # fmt: skip
        self.add(plan)
        return plan

    def skip(self) -> None:
        plan = self.plan()
        self.add(Skip(plan.op, "deadline", group=self.group))
        self.driver.skip(plan.op)

    def commit(self, *, attest: bool = True, keep: bool = True) -> None:
        plan = self.plan()
        view = self.view.groups[self.group].in_progress
        everybody = (PEER.peer_id,)
        self.add(Freeze(plan.op, everybody, {}, group=self.group))
        pieces = []
        for spec in plan.slices:
            starts = range(spec.start, spec.stop, 32)
            chunks = tuple(self.chunk(plan.op, at, min(at + 32, spec.stop)) for at in starts)
            pieces.append(SliceResult(spec.start, spec.stop, everybody, chunks))
        outcomes = tuple(
            SliceOutcome(0, everybody, slice_root(tuple(content_hash(c) for c in piece.chunks)))
            for piece in pieces
        )
        commit = Commit(plan.op, view.plan_hash, everybody, outcomes, b"", group=self.group)
        self.add(with_root(commit, result_root=result_root(commit)))
        result = OpResult(
            plan.op, WINDOW, 32, self.layout.padded, tuple(pieces), b"", b"", False
        )  # fmt: skip
        if keep:
            self.storage.of(self.group).keep_result(result)
        self.roots[plan.op] = self.driver.end_op(result).manifest.root
        if attest:
            self.add_attest(plan.op)

    def add_attest(self, op: int) -> None:
        self.add(Attest(op, self.driver.root, group=self.group))

    def chunk(self, op: int, start: int, stop: int) -> bytes:
        values = torch.sin(torch.arange(start, stop, dtype=torch.float32) * op) / 8
        values[self.layout.num_values - start :] = 0  # padding has no difference
        return codec_named("int8").encode(values, WINDOW)

    def save(self) -> Path:
        facts = checkpoint.RunFacts(
            "proved",
            config_file.config_hash(CONFIG),
            self.driver.op,
            self.driver.root,
            self.group,
            (1, 2, 9) if self.driver.op else None,
        )
        saved = checkpoint.save(
            self.storage.of(self.group).checkpoints,
            facts,
            self.layout,
            self.driver.strategy.state_arrays(),
        )
        return saved.path

    def close(self) -> Path:
        self.storage.close()
        return self.directory


def with_root(commit: Commit, *, result_root: bytes) -> Commit:
    return msgspec.structs.replace(commit, result_root=result_root)


class LaterGroup(History):
    """A second group of a history, of another model, in which the peer is too."""

    def __init__(self, run: History, *, is_in: bool = True) -> None:
        self.run, self.directory, self.records = run, run.directory, run.records
        self.storage, self.ledger, self.view = run.storage, run.ledger, run.view
        self.roots = {}
        self.group = len(self.view.groups)
        self.add(Group(self.group, config_file.config_hash(CONFIG)))
        self.index = self.records[-1].index
        if is_in:
            self.add(Move(PEER.peer_id, (0, self.group)))
            self.begin(nn.Linear(6, 6))


def usual(directory: Path) -> History:
    """Checkpoints of rounds 0 and 4, a skip in round 3, and two rounds after the last one."""
    history = History(directory)
    history.commit()
    history.commit(attest=False)
    history.skip()
    history.commit()
    history.save()
    history.commit()
    history.commit(attest=False)
    return history
