"""The run file of a run whose ops go by pairs: its own defaults, and what does not fit."""

from pathlib import Path

import pytest
import torch

from swarmtrain.config import file as config_file
from swarmtrain.config import limits as config_limits
from swarmtrain.config.settings import RunConfig
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.tensors import Layout, ParameterSpec
from swarmtrain.strategies import strategy_of
from swarmtrain_optimizers.strategies.noloco.strategy import NoLoCo

torch.set_num_threads(1)
NOLOCO = '[outer]\nstrategy = "noloco"\n'
LAYOUT = Layout.from_parameters((ParameterSpec("w", (64,), "float32"),), 16)


def loaded(directory: Path, text: str) -> RunConfig:
    path = directory / "run.toml"
    path.write_text(f'[run]\nname = "t"\n{text}', encoding="utf-8")
    return config_file.load(path)


def test_what_the_file_does_not_say_is_the_papers_and_travels_as_it_is(tmp_path: Path):
    config = loaded(tmp_path, NOLOCO)
    assert (config.outer.lr, config.outer.momentum, config.outer.inner_steps) == (0.7, 0.5, 20)
    exchange = config.exchange
    assert (exchange.codec, exchange.min_contributors, exchange.start_peers) == ("none", 2, 2)
    assert config_limits.warnings(config) == ()
    assert config_file.from_canonical(config_file.canonical(config)) == config
    assert isinstance(strategy_of(config, LAYOUT), NoLoCo)


def test_what_the_file_says_counts_and_other_strategies_keep_their_defaults(tmp_path: Path):
    text = f'{NOLOCO}lr = 0.9\ninner_steps = 50\n[exchange]\ncodec = "int8"\nstart_peers = 4\n'
    config = loaded(tmp_path, text + "[strategy.noloco]\npull = 0.8\n")
    assert (config.outer.lr, config.outer.momentum, config.outer.inner_steps) == (0.9, 0.5, 50)
    exchange = config.exchange
    assert (exchange.codec, exchange.min_contributors, exchange.start_peers) == ("int8", 2, 4)
    assert config.strategy == {"noloco": {"pull": 0.8}}
    plain = loaded(tmp_path, "")
    assert (plain.outer.lr, plain.exchange.codec, plain.exchange.start_peers) == (0.9, "int8", 1)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("momentum = 0.7\n", "outer.lr"),
        ("lr = 0.5\n", "outer.lr"),
        ("error_feedback = true\n", "outer.error_feedback"),
        ('robust = "median"\n[exchange]\nmin_contributors = 3\nstart_peers = 3\n', "outer.robust"),
        ('[exchange]\ncodec = "two_bit"\n', "exchange.codec"),
        ('[exchange]\ncodec = "topk-256"\n', "exchange.codec"),
        ('[exchange]\ncodec = "int4"\n', "exchange.codec"),
        ('[exchange]\ncodec = "e3m0"\n', "exchange.codec"),
        ("fragments = 2\n", "outer.fragments"),
        ("[exchange]\nmin_contributors = 1\n", "exchange.min_contributors"),
        ("[strategy.noloco]\npull = 0.5\n", "strategy.noloco.pull"),
        ("[strategy.noloco]\npull = 1.5\n", "strategy.noloco.pull"),
        ("[strategy.noloco]\npull = 7\n", "strategy.noloco.pull"),
        ("lr = 0.9\nmomentum = 0.8\n", "strategy.noloco.pull"),
        ("[strategy.noloco]\npush = 1.0\n", "strategy.noloco.push"),
    ],
)
def test_settings_that_do_not_go_with_pairs_name_the_key(tmp_path: Path, text: str, key: str):
    with pytest.raises(UserError) as caught:
        loaded(tmp_path, NOLOCO + text)
    assert f"`{key}`" in caught.value.what and caught.value.code == "SWT-E605"


def test_a_codec_too_coarse_for_anchors_is_told_what_to_take_and_why(tmp_path: Path):
    with pytest.raises(UserError) as caught:
        loaded(tmp_path, f'{NOLOCO}[exchange]\ncodec = "int4"\n')
    assert "must be int8 or none with outer.strategy noloco, it is int4" in caught.value.what
    assert "anchors" in caught.value.meaning
