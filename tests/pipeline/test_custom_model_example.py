"""The example of a model of one's own in stages: its run file, its peers, the loss that falls."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from msgspec.structs import replace
from staged_run import Coordinator, Peer

from swarmtrain.config import file as config_file
from swarmtrain.pipeline.span import Span
from swarmtrain.pipeline.staged_model import OwnWork

torch.set_num_threads(1)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example() -> ModuleType:
    path = EXAMPLES / "pipeline_custom_model.py"
    spec = importlib.util.spec_from_file_location("pipeline_custom_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_peers_learn_and_those_of_a_stage_end_alike(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Here peers share a process, and so torch's one generator, which each of them would set.
    monkeypatch.setattr(Span, "check", lambda *args: None)
    config = config_file.load(example.RUN_FILE)
    assert config.model.digest == example.build().digest
    assert config.pipeline.num_stages == example.STAGES
    assert config.exchange.start_peers == len(example.NAMES)
    short = replace(
        config,
        run=replace(config.run, rounds=2),
        outer=replace(config.outer, inner_steps=5),
        exchange=replace(config.exchange, start_peers=4),
    )
    names = example.NAMES[:4]
    works = [OwnWork(example.build(), example.batches(name)) for name in names]  # one at a time
    coordinator = Coordinator(short, tmp_path / "run")
    try:
        peers = [
            Peer(coordinator.invite, tmp_path / name, stage, stage, own=work)
            for name, stage, work in zip(names, (0, 1, 2, 1), works, strict=True)
        ]
        for one in peers:
            one.thread.join(60)
            assert not one.thread.is_alive() and one.error is None, one.error
    finally:
        coordinator.stop()
    assert peers[1].roots() == peers[3].roots()
    first, last = peers[2].losses
    assert last < 0.9 * first
