"""A directory of a run of pair ops proves its exchanges, and no more than these."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from swarmtrain import checkpoint
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import (
    CheckpointSection,
    ExchangeSection,
    OuterSection,
    RunConfig,
    RunSection,
)
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.disk import identity_file
from swarmtrain.peer.disk.group_storage import link_path, links, result_path
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.peer.training.driver import Driver
from swarmtrain.strategies import strategy_of
from swarmtrain.verify.coordinator_state import prove_coordinator
from swarmtrain.verify.peer_state import prove_peer
from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.credentials.identity import Identity, verify
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.ledger.fold import LedgerView, result_root, slice_root
from swarmtrain_transport.ledger.pairing import link_of, order_of
from swarmtrain_transport.ledger.plan_rules import window_floor
from swarmtrain_transport.ledger.signed_roots import result_payload
from swarmtrain_transport.ledger.transfers import NOTHING_SUMMED, gathered_slices, outcome_of
from swarmtrain_transport.result import OpResult, SliceResult
from swarmtrain_transport.wire import records as log

torch.set_num_threads(1)
CHUNK = 64
CONFIG = RunConfig(
    RunSection("paired"),
    outer=OuterSection("noloco", lr=0.7, momentum=0.5),
    exchange=ExchangeSection(
        "none", block=16, chunk_values=CHUNK, min_contributors=2, start_peers=2
    ),
    checkpoint=CheckpointSection(every_rounds=2),
)  # fmt: skip
WINDOW = Window("none", 16, window_floor(0, 1), 0)
ANN = Identity.from_secrets(b"p" * 32, b"q" * 32)
BOB = Identity.from_secrets(b"b" * 32, b"c" * 32)
RUN = Identity.from_secrets(b"r" * 32, b"s" * 32)


class Held:
    def __init__(self, vector):
        self.vector = vector.clone()

    def read_weights(self, out=None):
        return self.vector.clone()

    def write_weights(self, vector):
        self.vector = vector.clone()


@dataclasses.dataclass
class Pairs:
    """Ann's directory after so many rounds with Bob, whose halves are made up."""

    directory: Path
    records: list[log.Record] = dataclasses.field(default_factory=list)
    chain: bytes = b""

    def __post_init__(self):
        self.directory.mkdir()
        identity_file.save(ANN, self.directory / "identity.json")
        self.storage = PeerStorage(self.directory)
        self.storage.of(0).keep_run(config_file.canonical(CONFIG))
        self.ledger, self.view = Ledger(verify), LedgerView()
        torch.manual_seed(7)
        self.layout = Layout.of(nn.Linear(7, 5), 16)
        self.held = Held(torch.zeros(self.layout.padded))
        self.driver = Driver(
            ANN.peer_id, strategy_of(CONFIG, self.layout), self.held,
            layout=self.layout.digest, num_values=self.layout.num_values, snapshot_rounds=4,
        )  # fmt: skip
        root = self.driver.offer().manifest.root
        self.driver.op = 0
        self.add(log.Run("paired", RUN.peer_id, config_file.config_hash(CONFIG), 1))
        for one, name in ((ANN, "ann"), (BOB, "bob")):
            self.add(log.Join(one.peer_id, b"boot", name, one.curve_key))
        self.add(log.Attest(0, root, self.layout.num_values, self.layout.digest))
        self.save()

    def add(self, body: log.Body) -> None:
        ledger = self.ledger
        record = log.make_record(len(ledger), ledger.head_hash, 1, body, RUN.sign, ledger.reader)
        self.view.apply(record, self.ledger.append(record))
        self.records.append(record)
        self.storage.append_records([record])

    def round(self, *, saves: bool = False) -> None:
        """One round in which the two exchange."""
        op, width = self.driver.op + 1, 2 * self.layout.padded
        both = {one.peer_id: one for one in (ANN, BOB)}
        before = tuple(both) if op > 1 else ()
        order = order_of(self.view.run_tag, op, before, tuple(both))
        self.add(log.Plan(
            op=op, previous_outcome=self.view.first.last_outcome,
            members=tuple(log.Member(peer, b"boot", 1) for peer in order),
            slices=gathered_slices(order, width), codec="none", exact=False, block=16,
            chunk_values=CHUNK, e_min=WINDOW.e_min, e_max=WINDOW.e_max, min_contributors=2,
            deadline_s=10.0, checkpoint_by=b"", evaluate_by=b"", kind=PAIR,
        ))  # fmt: skip
        plan_hash = self.view.first.in_progress.plan_hash
        self.held.vector = self.held.vector - self.slope(op)
        given = self.driver.contribute().contribution
        halves = {ANN.peer_id: self.chunks(lambda low, high: given.encode(low, high, WINDOW))}
        made_up = torch.cat((self.slope(op + 9), self.slope(op + 4)))
        halves[BOB.peer_id] = self.chunks(
            lambda low, high: codec_named("none").encode(made_up[low:high].clone(), WINDOW)
        )
        roots = {}
        for peer, chunks in halves.items():
            root = slice_root(tuple(content_hash(chunk) for chunk in chunks))
            payload = result_payload(plan_hash, order.index(peer), 0, root, NOTHING_SUMMED)
            roots[peer] = log.SignedRoot(root, both[peer].sign(payload))
        self.add(log.Freeze(op, tuple(sorted(order)), {}, roots=roots))
        outcomes = outcome_of(order, roots, set(order))
        commit = log.Commit(op, plan_hash, tuple(sorted(order)), outcomes, b"")
        commit = log.Commit(op, plan_hash, tuple(sorted(order)), outcomes, result_root(commit))
        self.add(commit)
        self.chain = link_of(op, (self.chain,) * 2, tuple(roots[peer].root for peer in order))
        pair = tuple(sorted(order))
        half = SliceResult(0, width, pair, tuple(halves[BOB.peer_id]))
        result = OpResult(op, WINDOW, CHUNK, width, (half,), b"", b"", False, kind=PAIR)
        result = dataclasses.replace(result, chain=self.chain)
        self.storage.of(0).keep_result(result)
        self.driver.end_op(result)
        own = (ANN.peer_id, self.driver.root)
        self.add(log.Attest(op, self.driver.root, roots=(own, (BOB.peer_id, bytes(32)))))
        if saves:
            self.save()

    def chunks(self, encode) -> list[bytes]:
        width = 2 * self.layout.padded
        return [encode(low, min(low + CHUNK, width)) for low in range(0, width, CHUNK)]

    def slope(self, op: int) -> torch.Tensor:
        values = torch.sin(torch.arange(self.layout.padded, dtype=torch.float32) * op) / 8
        values[self.layout.num_values :] = 0
        return values

    def save(self) -> None:
        facts = checkpoint.RunFacts(
            "paired", config_file.config_hash(CONFIG), self.driver.op, self.driver.root
        )
        arrays = self.driver.strategy.state_arrays()
        checkpoint.save(self.storage.of(0).checkpoints, facts, self.layout, arrays)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Pairs:
    history = Pairs(tmp_path_factory.mktemp("pairs") / "ann")
    for op in range(1, 7):
        history.round(saves=op == 4)
    history.storage.close()
    return history


@pytest.fixture
def copy(whole: Pairs, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.directory, tmp_path / "copy"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def problem_of(directory: Path) -> str:
    proof = prove_peer(directory)
    assert not proof.ok and proof.problem
    return proof.problem


def test_a_whole_directory_proves_every_exchange_and_says_what_it_does_not(whole: Pairs):
    proof = prove_peer(whole.directory)
    assert (proof.problem, proof.ok) == ("", True)
    assert (proof.from_op, proof.to_op, proof.ops) == (1, 6, 6)
    assert proof.chain == whole.chain.hex() == links(whole.directory)[6].hex()
    assert whole.view.first.chains == {ANN.peer_id: whole.chain, BOB.peer_id: whole.chain}
    assert "It proves no more" in proof.proves and "its peer's own" in proof.proves
    four = whole.directory / "checkpoints" / checkpoint.folder_name(4)
    assert proof.state_root == checkpoint.load(four).checkpoint.facts.state_root.hex()


def test_of_halves_only_the_newest_are_kept_and_of_links_all(whole: Pairs):
    kept = [op for op in range(1, 7) if result_path(whole.directory, op).exists()]
    assert kept == [3, 4, 5, 6]
    assert sorted(links(whole.directory)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("op", [1, 6])
def test_an_altered_link_is_found(copy: Path, op: int):
    flip(link_path(copy, op), 5)
    assert f"The link of round {op} is not the one" in problem_of(copy)


def test_an_altered_half_is_found(copy: Path):
    flip(result_path(copy, 5), 100)
    assert "is not the half that the ledger names" in problem_of(copy)


def test_a_file_that_is_no_half_is_found(copy: Path):
    result_path(copy, 5).write_bytes(b"\x92\x90\x90")
    assert "is not a partner's half" in problem_of(copy)


def test_a_checkpoint_of_a_state_that_nobody_reported_is_found(copy: Path, whole: Pairs):
    folder = copy / "checkpoints" / checkpoint.folder_name(4)
    shutil.rmtree(folder)
    facts = checkpoint.RunFacts("paired", config_file.config_hash(CONFIG), 4, whole.driver.root)
    arrays = whole.driver.strategy.state_arrays()  # those after round 6
    checkpoint.save(copy / "checkpoints", facts, whole.layout, arrays)
    assert "attests of nobody" in problem_of(copy)


def test_halves_and_links_that_are_gone_prove_less_and_nothing_wrong(copy: Path):
    for op in (5, 6):
        result_path(copy, op).unlink()
        link_path(copy, op).unlink()
    proof = prove_peer(copy)
    assert proof.ok and (proof.from_op, proof.to_op, proof.ops) == (1, 4, 4)


def test_a_rewind_takes_links_and_halves_back(whole: Pairs, tmp_path: Path):
    directory = Path(shutil.copytree(whole.directory, tmp_path / "rewound"))
    storage = PeerStorage(directory)
    body = log.Rewind(4, "lost")
    at = whole.ledger
    storage.append_records([log.make_record(len(at), at.head_hash, 1, body, RUN.sign)])
    storage.of(0).forget_results_after(4)
    storage.close()
    proof = prove_peer(directory)
    assert proof.ok and (proof.to_op, proof.ops) == (4, 4)
    assert proof.chain == links(directory)[4].hex() != whole.chain.hex()


def test_a_coordinators_directory_shows_everybodys_chain(whole: Pairs, tmp_path: Path):
    store = Store.open(tmp_path)
    for record in whole.records:
        store.append(record)
    store.close()
    proof = prove_coordinator(tmp_path)
    assert proof.ok and "its peer's own" in proof.proves
    assert {one.peer: one.chain for one in proof.chains} == {
        one.peer_id.hex(): whole.chain.hex() for one in (ANN, BOB)
    }
