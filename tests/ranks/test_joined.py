"""A chunk whose blocks several ranks have encoded is, byte for byte, that of the whole vector."""

import pytest
import torch
from torch import nn

import swarmtrain
from swarmtrain.config import file as config_file
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.arithmetic import TensorContribution
from swarmtrain.peer.ranks.contribution import joined
from swarmtrain.peer.ranks.job import check_run
from swarmtrain.peer.ranks.places import Box, Places
from swarmtrain_optimizers.codec_facts import CODEC_NAMES
from swarmtrain_transport.arithmetic import Window

BLOCK = 64
COLUMNS = [[Box((0, 0), (40, 96))], [Box((0, 96), (40, 104))]]


@pytest.mark.parametrize("codec", [one for one in CODEC_NAMES if "topk" not in one])
def test_bytes_of_all_ranks_are_those_of_one(codec):
    places = Places([(40, 200)], COLUMNS, BLOCK)
    window = Window(codec, BLOCK, -60, 0)
    vector = torch.zeros(places.padded)
    vector[: places.num_values] = torch.randn(8000, generator=torch.Generator().manual_seed(2))
    own = [torch.zeros(places.own_range(rank, 0, places.padded)[1]) for rank in range(2)]
    runs = places.owned
    assert len(runs.start) > 20
    for start, stop, rank, at in zip(runs.start, runs.stop, runs.rank, runs.offset, strict=True):
        own[rank][at : at + stop - start] = vector[start:stop]
    for start, stop in ((0, places.padded), (BLOCK, 3 * BLOCK), (5 * BLOCK, 60 * BLOCK)):
        parts = {
            rank: TensorContribution(own[rank]).encode(*places.own_range(rank, start, stop), window)
            for rank in places.owners(start, stop)
        }
        whole = TensorContribution(vector).encode(start, stop, window)
        assert joined(parts, places, start, stop, window) == whole


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[outer]\nstrategy = "noloco"\n', "its strategy is noloco"),
        ('[exchange]\ncodec = "topk-64"\nblock = 4096\n[outer]\nerror_feedback = true\n', "topk"),
        ('[exchange]\nrounding = "stochastic"\n', "exchange.rounding is stochastic"),
    ],
)
def test_runs_that_a_job_cannot_be_in_are_refused(tmp_path, text, words):
    file = tmp_path / "run.toml"
    file.write_text('[run]\nname = "r"\n' + text)
    with pytest.raises(UserError, match=words) as caught:
        check_run(config_file.load(file))
    assert caught.value.code == "SWT-E642"


def test_processes_of_torchrun_that_are_no_group_are_refused(monkeypatch, tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setenv("WORLD_SIZE", "2")
    swarmtrain.join(model, optimizer, "")  # without an invite nothing changes
    with pytest.raises(UserError, match="2 processes") as caught:
        swarmtrain.join(model, optimizer, "swarm://nonsense", state_dir=tmp_path / "state")
    assert caught.value.code == "SWT-E644"
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(UserError) as caught:
        swarmtrain.join(model, optimizer, "swarm://nonsense")
    assert caught.value.code == "SWT-E312"
