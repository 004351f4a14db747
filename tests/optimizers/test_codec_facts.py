"""Facts of codecs that are told without loading them: they do as is said."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from window import PlanWindow

from swarmtrain_optimizers.codec_facts import ANCHOR_CODECS, CODEC_NAMES, facts_of
from swarmtrain_optimizers.codecs import CODECS, codec_named

NAMES = (*CODECS, "topk-3")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", [2, 3, 8, 64, 100, 1024, 4096])
def test_facts_of_a_codec_are_what_it_does(name: str, block: int):
    facts, codec = facts_of(name), codec_named(name)
    assert (facts.name, facts.exact) == (codec.name, codec.exact)
    if facts.block_problem(block):
        with pytest.raises(ValueError, match="block"):
            codec.payload_bytes(3 * block, block)
        with pytest.raises(ValueError, match="block"):
            facts.bytes_per_value(block)
        return
    assert facts.payload_bytes(3 * block, block) == codec.payload_bytes(3 * block, block)
    assert facts.bytes_per_value(block) * block == codec.payload_bytes(block, block)


@pytest.mark.parametrize("name", NAMES)
def test_who_dithers_says_so(name: str):
    codec: Any = codec_named(name)
    values = torch.linspace(-0.5, 0.5, 128)
    window = PlanWindow(block=64)
    if facts_of(name).dithers:
        assert codec.encode_stochastic(values, window, seed=3, first_index=0)
    elif hasattr(codec, "encode_stochastic"):
        with pytest.raises(TypeError):
            codec.encode_stochastic(values, window, seed=3, first_index=0)


@pytest.mark.parametrize("name", ["int9", "", "topk-", "topk-0", "topk-70000", "int8 "])
def test_other_names_are_not_known(name: str):
    with pytest.raises(ValueError, match="known"):
        facts_of(name)


def test_every_name_is_told():
    assert set(CODEC_NAMES) == {*CODECS, "topk-K"}


def test_the_result_of_parts_of_few_bits_has_eight():
    results = {name: facts_of(name).result for name in NAMES}
    assert results.pop("none") == "none"
    assert set(results.values()) == {"int8"}


def test_only_codecs_of_eight_bits_and_more_carry_an_anchor():
    assert {name for name in NAMES if facts_of(name).carries_anchors} == {"int8", "none"}
    assert set(ANCHOR_CODECS) == {"int8", "none"}


def test_facts_load_no_tensors():
    code = (
        "import sys, swarmtrain_optimizers.codec_facts, swarmtrain_optimizers.strategies.registry;"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
