"""One model from the checkpoints that several peers have of its stages."""

import hashlib
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from swarmtrain import checkpoint
from swarmtrain.cli.main import main
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import ModelSection, PipelineSection, RunConfig, RunSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.pipeline.cut import run_stages
from swarmtrain.pipeline.span import Span
from swarmtrain.trained.export import export
from swarmtrain_transport.credentials.identity import Identity, verify
from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.wire.records import Attest, Body, Group, Record, Run, make_record

KEY = Identity.create()
MODEL = ModelSection(layers=4, width=32, heads=2, context=16)
CONFIG = RunConfig(
    run=RunSection(name="tests", seed=5), model=MODEL, pipeline=PipelineSection(stages=3)
)


def root_of(stage: int, op: int = 0) -> bytes:
    return bytes([stage + 1, op]) * 16


def records(config: RunConfig) -> list[Record]:
    """The ledger of a run whose stages have all begun."""
    ledger = Ledger(verify)
    digest = config_file.config_hash(config)
    bodies: list[Body] = [Run(config.run.name, KEY.peer_id, digest, 1)]
    bodies += [Group(stage, digest) for stage in range(1, config.pipeline.num_stages)]
    bodies += [
        Attest(0, root_of(stage), 10, b"l" * 32, group=stage)
        for stage in range(config.pipeline.num_stages)
    ]
    made = []
    for body in bodies:
        record = make_record(len(ledger), ledger.head_hash, 1, body, KEY.sign, ledger.reader)
        ledger.append(record)
        made.append(record)
    return made


def peer(directory: Path, *stages: int, config: RunConfig = CONFIG) -> Path:
    """A state directory with the first states of these stages."""
    directory.mkdir(parents=True)
    storage = PeerStorage(directory)
    storage.of(0).keep_run(config_file.canonical(config))
    storage.append_records(records(config))
    for stage in stages:
        save(storage, stage, config=config)
    storage.close()
    return directory


def save(
    storage: PeerStorage, stage: int, op: int = 0, root: bytes = b"", config: RunConfig = CONFIG
) -> Path:
    model, cut = run_stages(config)
    module = Span(model, cut, range(stage, stage + 1), seed=config.run.seed).modules[stage]
    layout = Layout.of(module, 64)
    facts = checkpoint.RunFacts(
        config.run.name, config_file.config_hash(config), op, root or root_of(stage, op), stage
    )
    arrays = [("anchor", layout.read(module)), ("momentum", torch.zeros(layout.padded))]
    return checkpoint.save(storage.of(stage).checkpoints, facts, layout, arrays).path


def test_stages_of_several_peers_make_the_whole_model(tmp_path: Path) -> None:
    first, second = peer(tmp_path / "a", 0, 1), peer(tmp_path / "b", 2, 1)
    made = export(tmp_path / "out", [first, second])
    found = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    whole = build_model(MODEL, seed=5).state_dict()
    assert list(found) == sorted(whole)
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())
    assert made.num_values == sum(tensor.numel() for tensor in whole.values())
    said = json.loads((tmp_path / "out" / "manifest.json").read_text())
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert said["model_sha256"] == hashlib.sha256(data).hexdigest()
    assert [(part["stage"], part["op"], part["state_root"]) for part in said["stages"]] == [
        (stage, 0, root_of(stage).hex()) for stage in range(3)
    ]
    assert said["config_hash"] == config_file.config_hash(CONFIG).hex()
    assert not list(tmp_path.glob(".writing-*"))


def test_a_folder_of_peers_will_do_and_peers_may_run(tmp_path: Path) -> None:
    for name, stages in (("a", (0,)), ("b", (1,)), ("c", (2,))):
        peer(tmp_path / "peers" / name, *stages)
    storage = PeerStorage(tmp_path / "peers" / "a")  # owned by a process
    with (tmp_path / "peers" / "b" / "ledger.bin").open("ab") as ledger:
        ledger.write(b"half a rec")
    assert len(export(tmp_path / "out", [tmp_path / "peers"]).stages) == 3
    storage.close()


def test_a_state_that_is_damaged_or_not_the_runs_is_passed_over(tmp_path: Path) -> None:
    directory = peer(tmp_path / "a", 0, 1, 2)
    storage = PeerStorage(directory)
    save(storage, 1, op=7)  # the ledger knows no such state
    damaged = peer(tmp_path / "b", 2)
    next(damaged.glob("groups/2/checkpoints/*/model.safetensors")).write_bytes(b"")
    made = export(tmp_path / "out", [damaged, directory])
    assert [part.op for part in made.stages] == [0, 0, 0]
    storage.close()


def test_a_model_in_one_piece_is_one_part(tmp_path: Path) -> None:
    config = RunConfig(run=RunSection(name="tests"), model=MODEL)
    made = export(tmp_path / "out", [peer(tmp_path / "a", 0, config=config)])
    assert [(part.stage, part.op) for part in made.stages] == [(0, 0)]


def refused(tmp_path: Path, *directories: Path, out: str = "out") -> UserError:
    with pytest.raises(UserError) as caught:
        export(tmp_path / out, directories)
    assert caught.value.remedy
    assert out != "out" or not (tmp_path / "out").exists()
    return caught.value


def test_what_cannot_be_exported_says_why(tmp_path: Path) -> None:
    good = peer(tmp_path / "good", 0, 1)
    error = refused(tmp_path, good)
    assert error.code == "SWT-E811" and "stage 2 of the model of tests" in error.what
    assert refused(tmp_path, tmp_path / "nothing").code == "SWT-E806"
    assert refused(tmp_path, good, out="good").code == "SWT-E610"
    other = RunConfig(run=RunSection(name="other"), model=MODEL, pipeline=PipelineSection(stages=3))
    error = refused(tmp_path, good, peer(tmp_path / "other", 2, config=other))
    assert error.code == "SWT-E610" and "several runs" in error.what
    changed = peer(tmp_path / "changed", 0, 1, 2)
    (changed / "run.msgpack").write_bytes(config_file.canonical(other))
    assert refused(tmp_path, changed).code == "SWT-E807"
    (changed / "run.msgpack").unlink()
    assert refused(tmp_path, changed).code == "SWT-E807"


def test_the_command_tells_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = peer(tmp_path / "a", 0, 1, 2)
    assert main(["export", str(directory), "--to", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "stage 2: round 0, state " in shown and "model.safetensors" in shown
    assert main(["export", str(directory), "--to", str(tmp_path / "more"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][1]["stage"] == 1
