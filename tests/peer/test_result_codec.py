"""Parts in few bits, results in eight: sums stay exact, whoever makes them."""

import numpy as np
import pytest
import torch

from swarmtrain.config.settings import ExchangeSection, RunConfig, RunSection
from swarmtrain.coordinator.service import run_terms
from swarmtrain.peer.arithmetic import (
    CodecArithmetic,
    TensorContribution,
    decode_result,
)
from swarmtrain.peer.training.own_work import rounding_seed
from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.result import OpResult, SliceResult

torch.set_num_threads(1)
ARITHMETIC = CodecArithmetic()
SIZE, BLOCK = 512, 64
FEW = ["int4", "e3m0", "two_bit", "sign", "topk-8"]


def window_of(codec: str) -> Window:
    return Window(codec, BLOCK, -20, 4, "int8")


def parts_of(window: Window) -> list[bytes]:
    drawn = torch.Generator().manual_seed(5)
    values = [torch.randn(SIZE, generator=drawn) * 0.1 for _ in range(3)]
    return [TensorContribution(one).encode(0, SIZE, window) for one in values]


@pytest.mark.parametrize("name", FEW)
def test_the_mean_of_parts_of_few_bits_is_the_int8_of_their_exact_sum(name: str):
    window, weights = window_of(name), (255, 7, 90)
    parts = parts_of(window)
    total = ARITHMETIC.accumulator(SIZE, window)
    for part, weight in zip(parts, weights, strict=True):
        ARITHMETIC.check(part, SIZE, window)
        total.add(part, weight)
    made = total.finish(sum(weights))
    ARITHMETIC.check_result(made, SIZE, window)
    codec = codec_named(name)
    naive = np.zeros(SIZE)
    for part, weight in zip(parts, weights, strict=True):
        naive += codec.decode(part, SIZE, window).numpy().astype(np.float64) * weight
    mean = naive / sum(weights)
    step = np.abs(mean).reshape(-1, BLOCK).max(axis=1, keepdims=True) / 127
    piece = SliceResult(0, SIZE, (), (made,))
    decoded = decode_result(OpResult(1, window, SIZE, SIZE, (piece,), b"", b"", False)).numpy()
    assert (np.abs(decoded - mean).reshape(-1, BLOCK) <= 0.51 * step * 1.01 + 1e-12).all()


@pytest.mark.parametrize("name", FEW)
def test_the_order_of_parts_changes_no_bit_of_the_result(name: str):
    window = window_of(name)
    made = set()
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        parts, total = parts_of(window), ARITHMETIC.accumulator(SIZE, window)
        for index in order:
            total.add(parts[index], 10 + index)
        made.add(total.finish(33))
    assert len(made) == 1


def test_a_part_is_no_result_and_a_result_no_part():
    window = window_of("int4")
    (part, *_) = parts_of(window)
    with pytest.raises(RemoteFault):
        ARITHMETIC.check_result(part, SIZE, window)
    total = ARITHMETIC.accumulator(SIZE, window)
    total.add(part, 1)
    with pytest.raises(RemoteFault):
        ARITHMETIC.check(total.finish(1), SIZE, window)


@pytest.mark.parametrize("name", ["int8", "none", *FEW])
def test_the_plan_names_both_codecs_and_what_they_cost(name: str):
    config = RunConfig(RunSection("t"), exchange=ExchangeSection(codec=name, block=BLOCK))
    terms = run_terms(config)
    assert (terms.codec, terms.exact) == (name, codec_named(name).exact)
    assert terms.result_codec == ("int8" if name in FEW else "")
    lengths = [
        codec_named(one).payload_bytes(BLOCK, BLOCK) for one in (name, terms.result_codec or name)
    ]
    assert terms.value_bytes == max(lengths) / BLOCK


@pytest.mark.parametrize("name", ["int8", "int4", "e3m0"])
def test_stochastic_rounding_depends_on_run_op_and_peer_alone(name: str):
    window = window_of(name)
    values = torch.randn(SIZE, generator=torch.Generator().manual_seed(1)) * 0.1
    seeds = [
        rounding_seed(*of)
        for of in ((b"r", 1, b"a"), (b"s", 1, b"a"), (b"r", 2, b"a"), (b"r", 1, b"b"))
    ]
    assert len(set(seeds)) == 4 and seeds[0] == rounding_seed(b"r", 1, b"a")
    made = [TensorContribution(values, seed=seed).encode(0, SIZE, window) for seed in seeds]
    assert len(set(made)) == 4
    again = TensorContribution(values, seed=seeds[0])
    assert again.encode(0, SIZE, window) == made[0]
    halves = [again.decoded(low, low + SIZE // 2, window) for low in (0, SIZE // 2)]
    whole = codec_named(name).decode(made[0], SIZE, window)
    assert torch.equal(torch.cat(halves), whole)


def test_a_codec_of_few_levels_does_not_round_stochastically():
    with pytest.raises(LocalFault, match="cannot round"):
        TensorContribution(torch.zeros(SIZE), seed=1).encode(0, SIZE, window_of("sign"))


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@pytest.mark.parametrize("name", ["int8", "e3m0", "none"])
def test_a_robust_rule_takes_the_place_of_the_mean(name: str, rule: str):
    window = Window(name, BLOCK, -20, 4, facts_of(name).result, rule)
    drawn = torch.Generator().manual_seed(9)
    values = [torch.randn(SIZE, generator=drawn) * 0.1 for _ in range(5)]
    values[3] = values[3] * 40  # somebody is hostile
    parts = [TensorContribution(one).encode(0, SIZE, window) for one in values]
    total = ARITHMETIC.accumulator(SIZE, window)
    for part in parts:
        total.add(part, 9)
    made = total.finish(45)
    ARITHMETIC.check_result(made, SIZE, window)
    codec = codec_named(name)
    rows = torch.stack([codec.decode(part, SIZE, window) for part in parts]).double()
    inner = rows.sort(dim=0).values
    naive = inner[2] if rule == "median" else inner[2:3].mean(dim=0)
    piece = SliceResult(0, SIZE, (), (made,))
    decoded = decode_result(OpResult(1, window, SIZE, SIZE, (piece,), b"", b"", False))
    step = naive.abs().reshape(-1, BLOCK).amax(dim=1, keepdim=True) / 127
    assert ((decoded.double() - naive).abs().reshape(-1, BLOCK) <= 0.52 * step + 1e-7).all()


def test_unknown_rules_are_refused_and_so_is_a_rule_without_what_it_needs():
    with pytest.raises(RemoteFault, match="rule"):
        ARITHMETIC.accumulator(SIZE, Window("int8", BLOCK, -20, 4, "", "fair"))
    for rule in ("flag", "norm-clip", "centered-clip"):
        window = Window("int8", BLOCK, -20, 4, "", rule)
        for scalars in ((), (1.0,) * 7):
            total = ARITHMETIC.accumulator(SIZE, window, scalars)
            for part in parts_of(window):
                total.add(part, 1)
            with pytest.raises(LocalFault, match="scalars of whole vectors"):
                total.finish(3)
    window = Window("int8", BLOCK, -20, 4, "", "median")
    total = ARITHMETIC.accumulator(SIZE, window)
    total.add(TensorContribution(torch.zeros(SIZE)).encode(0, SIZE, window), 1)
    with pytest.raises(LocalFault, match="median"):
        total.finish(1)
