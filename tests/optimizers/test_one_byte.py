"""One byte for a forward pass: the code, the directions, and the steps that all make of them."""

import math
from itertools import pairwise

import every_strategy
import pytest
import torch
from window import PlanWindow

from swarmtrain_optimizers.codecs.int8 import Int8
from swarmtrain_optimizers.strategies.base import Given, OpKind
from swarmtrain_optimizers.strategies.one_byte.scalars import (
    CODE_MAX,
    Signs,
    code_of,
    start_of,
    value_of,
)
from swarmtrain_optimizers.strategies.one_byte.strategy import OneByte

torch.set_num_threads(1)
SIZE, BLOCK = 96, 16


def made(inner_steps: int = 4, rate: float = 1 / 64, **more: object) -> OneByte:
    settings: dict[str, object] = {
        "inner_steps": inner_steps, "lr": 1.0, "schedule": lambda step: rate, "seed": 3,
        "block": BLOCK, "num_used": SIZE - 6, "epsilon": 1 / 128,
    }  # fmt: skip
    return OneByte(SIZE, **(settings | more))  # type: ignore[arg-type]


def randn(seed: int) -> torch.Tensor:
    values = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))
    values[SIZE - 6 :] = 0
    return values


def test_every_byte_is_the_byte_of_its_own_value() -> None:
    codes = range(-CODE_MAX, CODE_MAX + 1)
    assert [code_of(value_of(code)) for code in codes] == list(codes)
    values = [value_of(code) for code in range(1, CODE_MAX + 1)]
    ratios = [after / before for before, after in pairwise(values)]
    assert all(math.isclose(ratio, 2 ** (1 / 8), rel_tol=1e-12) for ratio in ratios)


def test_a_slope_is_within_a_twentieth_of_what_its_byte_says() -> None:
    slopes = (
        torch.rand(2000, generator=torch.Generator().manual_seed(0)).double() * 15.6 - 10
    ).exp2()
    told = [value_of(code_of(float(slope))) for slope in slopes]
    assert max(abs(a / float(b) - 1) for a, b in zip(told, slopes, strict=True)) < 0.045


@pytest.mark.parametrize("slope", [0.0, -0.0, 1e-5, math.nan, math.inf, -math.inf])
def test_what_is_too_small_or_no_number_says_nothing(slope: float) -> None:
    assert code_of(slope) == 0


def test_a_slope_beyond_all_is_the_largest() -> None:
    assert (code_of(1e30), code_of(-1e30)) == (CODE_MAX, -CODE_MAX)


def test_a_direction_is_the_same_wherever_it_is_cut() -> None:
    direction = Signs(start_of(1, 2, b"peer", 3), 0.5)
    whole = direction.signs(0, 1000)
    assert whole.dtype == torch.float32 and set(whole.tolist()) == {1.0, -1.0}
    for start, stop in ((0, 1), (63, 65), (64, 128), (100, 101), (7, 999)):
        assert torch.equal(direction.signs(start, stop), whole[start:stop])


def test_directions_have_nothing_in_common_whatever_they_differ_in() -> None:
    names = [(1, 2, b"a", 3), (2, 2, b"a", 3), (1, 3, b"a", 3), (1, 2, b"b", 3), (1, 2, b"a", 4)]
    drawn = torch.stack([Signs(start_of(*name), 0.0).signs(0, 40_000) for name in names])
    products = drawn @ drawn.T / 40_000
    assert (products - torch.eye(len(names))).abs().max() < 0.03
    assert drawn.mean(1).abs().max() < 0.03


def test_the_step_is_the_papers_with_the_decoded_byte() -> None:
    strategy, before = made(), randn(0)
    strategy.set_initial(before)
    slopes, wanted = (0.7, -3.0, 0.0, 100.0), before.double()
    for slope in slopes:
        direction = strategy.direction(5, b"me")
        strategy.heard(slope * direction.step, -slope * direction.step)
        signs = direction.signs(0, SIZE).double()
        signs[SIZE - 6 :] = 0
        wanted = wanted - 1 / 64 * value_of(code_of(slope)) * signs
    part = strategy.pseudo_gradient(before, 5)
    after = strategy.take([Given(b"me", 9, part)], 5)
    assert torch.allclose(after.double(), wanted, rtol=0, atol=1e-6)
    assert not after[SIZE - 6 :].any()  # padding is nobody's


def test_a_byte_goes_through_int8_as_it_is() -> None:
    strategy, window = made(inner_steps=20), PlanWindow(block=BLOCK)
    codes = [(-1) ** number * (number * 6 % 128) for number in range(20)]
    for code in codes:
        strategy.heard(value_of(code) / 64, 0.0)
    part = strategy.pseudo_gradient(torch.zeros(SIZE), 1)
    assert part.numel() == strategy.exchange(1).num_values == 2 * BLOCK
    payload = Int8().encode(part, window)
    assert len(payload) == 2 * (BLOCK + 2)
    told = Int8().decode(payload, part.numel(), window)
    assert torch.equal(told, part)
    assert [int(code) for code in told.view(2, BLOCK)[:, 1:].flatten()[:20]] == codes


def test_peers_count_by_their_weights_and_the_order_is_the_plans() -> None:
    parts = {}
    for peer, slope in ((b"a", 1.0), (b"b", -2.0)):
        one = made(inner_steps=1)
        one.heard(slope / 64, 0.0)
        parts[peer] = one.pseudo_gradient(torch.zeros(SIZE), 1)
    ended = made(inner_steps=1)
    ended.set_initial(torch.zeros(SIZE))
    after = ended.take([Given(b"a", 3, parts[b"a"]), Given(b"b", 1, parts[b"b"])], 1)
    signs = [Signs(start_of(3, 1, peer, 0), 0.0).signs(0, SIZE - 6) for peer in (b"a", b"b")]
    wanted = -(signs[0] * 0.75 - signs[1] * 0.5) / 64
    assert torch.equal(after[: SIZE - 6], wanted)


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * BLOCK,
        [127.0, 0.5, *[0.0] * (BLOCK - 2)],
        [127.0, 128.0, *[0.0] * (BLOCK - 2)],
        [63.5, *[1.0] * (BLOCK - 1)],
        [127.0, math.nan, *[0.0] * (BLOCK - 2)],
    ],
)
def test_what_no_peer_would_give_is_not_counted_at_all(values: list[float]) -> None:
    """Not even as a weight: who sends nonsense makes nobody's step shorter."""
    alone, beside = made(), made()
    for one in (alone, beside):
        one.set_initial(randn(0))
    alone.heard(0.1, 0.0)
    part = alone.pseudo_gradient(randn(0), 1)
    liar = Given(b"liar", 255, torch.tensor(values))
    assert torch.equal(
        beside.take([liar, Given(b"a", 1, part)], 1), alone.take([Given(b"a", 1, part)], 1)
    )
    assert torch.equal(beside.take([liar], 2), alone.take([], 2))


def test_no_answer_moves_weights_further_than_the_largest_byte() -> None:
    strategy = made(inner_steps=1)
    strategy.set_initial(torch.zeros(SIZE))
    worst = torch.zeros(BLOCK)
    worst[0] = worst[1] = CODE_MAX
    assert strategy.take([Given(b"x", 1, worst)], 1).abs().max() <= 54 / 64


def test_what_was_skipped_is_lost_and_a_short_round_gives_what_it_has() -> None:
    strategy = made()
    strategy.set_initial(randn(0))
    strategy.heard(1.0, 0.0)
    strategy.skip()
    assert torch.equal(strategy.pseudo_gradient(randn(0), 2)[1:], torch.zeros(BLOCK - 1))
    first = strategy.direction(2, b"me")
    strategy.heard(1.0, 0.0)
    assert strategy.direction(2, b"me") != first
    assert strategy.pseudo_gradient(randn(0), 2).count_nonzero() == 2
    strategy.load_state({"anchor": randn(1)})
    assert strategy.direction(2, b"me") == first


def test_the_anchor_can_be_the_memory_that_the_model_computes_with() -> None:
    strategy, memory = made(), randn(0)
    strategy.live_in(memory)
    strategy.heard(0.5, 0.0)
    after = strategy.take([Given(b"", 1, strategy.pseudo_gradient(memory, 1))], 1)
    assert after is memory and not torch.equal(memory, randn(0))
    assert strategy.exchange(1).kind is OpKind.GATHER


def test_four_peers_go_where_all_their_targets_are_nearest() -> None:
    peers = [bytes([number]) for number in range(4)]
    targets = [randn(number + 1) for number in range(4)]
    strategies = [made(inner_steps=8, rate=1 / 1024) for _ in peers]
    for strategy in strategies:
        strategy.set_initial(torch.zeros(SIZE))
    for op in range(1, 401):
        given = []
        for peer, target, strategy in zip(peers, targets, strategies, strict=True):
            every_strategy.look(strategy, op, peer, target)
            given.append(Given(peer, 1, strategy.pseudo_gradient(target, op)))
        anchors = [strategy.take(given, op) for strategy in strategies]
    assert all(torch.equal(anchor, anchors[0]) for anchor in anchors)
    middle = torch.stack(targets).mean(0)
    assert (anchors[0] - middle).norm() < 0.25 * middle.norm()


def test_a_round_that_does_not_fit_into_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match="inner steps take"):
        made(inner_steps=200)
