"""Streaming DiLoCo against its paper in float64, against DiLoCo bit for bit, and its fragments."""

import numpy as np
import pytest
import torch
from window import part_of

from swarmtrain_optimizers.strategies.base import OpKind, Strategy
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_optimizers.strategies.fragments import Ranges, fragments_of
from swarmtrain_optimizers.strategies.streaming.strategy import Streaming

torch.set_num_threads(1)
SIZE = 64
WHOLE: tuple[Ranges, ...] = (((0, SIZE),),)
TWO: tuple[Ranges, ...] = (((0, 16), (32, SIZE)), ((16, 32),))


def randn(seed: int, size: int = SIZE, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make(
    fragments: tuple[Ranges, ...] = TWO,
    *,
    delay_steps: int = 0,
    mixing: float = 0.0,
    error_feedback: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Streaming:
    strategy = Streaming(
        SIZE,
        fragments=fragments,
        inner_steps=6,
        delay_steps=delay_steps,
        mixing=mixing,
        lr=0.7,
        momentum=0.9,
        error_feedback=error_feedback,
        dtype=dtype,
    )
    strategy.set_initial(randn(0, dtype=dtype))
    return strategy


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.numpy().tobytes() == right.numpy().tobytes()


def paper(num_steps: int, *, tau: int, alpha: float, num_peers: int) -> list[np.ndarray]:
    """Alg. 2 step by step: peer m pulls its weights a tenth towards its own target."""
    parts = [np.r_[0:16, 32:SIZE], np.r_[16:32]]
    theta = [randn(0).double().numpy().copy() for _ in range(num_peers)]
    anchor, momentum = theta[0].copy(), np.zeros(SIZE)
    flying: dict[int, np.ndarray] = {}
    for t in range(1, num_steps + 1):
        for m in range(num_peers):
            theta[m] += 0.1 * (randn(10 + m).double().numpy() - theta[m])
        for p, places in enumerate(parts):
            # H = 6, P = 2: fragment 0 after 3, 9, ..., fragment 1 after 6, 12, ...
            if t - tau >= 3 * (p + 1) and (t - tau - 3 * (p + 1)) % 6 == 0:
                if tau == 0:
                    flying[p] = np.mean([anchor[places] - x[places] for x in theta], axis=0)
                momentum[places] = 0.9 * momentum[places] + flying[p]
                anchor[places] -= 0.7 * (flying[p] + 0.9 * momentum[places])
                for x in theta:
                    x[places] = alpha * x[places] + (1 - alpha) * anchor[places]
        for p, places in enumerate(parts):
            if t >= 3 * (p + 1) and (t - 3 * (p + 1)) % 6 == 0 and tau:
                flying[p] = np.mean([anchor[places] - x[places] for x in theta], axis=0)
    return [*theta, anchor, momentum]


@pytest.mark.parametrize(
    ("tau", "alpha"), [(0, 0.0), (1, 0.5), (2, 0.0), (3, 0.25), (4, 0.5), (5, 0.0), (6, 0.25)]
)
def test_streaming_follows_its_paper(tau: int, alpha: float) -> None:
    num_peers, num_steps = 3, 24 + tau
    dtype = torch.float64
    peers = [make(delay_steps=tau, mixing=alpha, dtype=dtype) for _ in range(num_peers)]
    theta = [randn(0, dtype=dtype) for _ in peers]
    op, under_way = 0, list[tuple[int, int, list[torch.Tensor]]]()
    for t in range(1, num_steps + 1):
        theta = [x + 0.1 * (randn(10 + m).double() - x) for m, x in enumerate(theta)]
        for now in ("apply", "give", "apply"):
            if now == "give" and t % 3 == 0:
                op += 1
                parts = [s.pseudo_gradient(x, op) for s, x in zip(peers, theta, strict=True)]
                assert parts[0].numel() == peers[0].exchange(op).num_values
                under_way.append((op, t + tau, parts))
            elif now == "apply" and under_way and t == under_way[0][1]:
                first, _, parts = under_way.pop(0)
                mean = (parts[0] + parts[1] + parts[2]) / 3
                all_in = [(0, mean.numel(), True)]
                theta = [
                    s.apply(mean, all_in, x, op=first) for s, x in zip(peers, theta, strict=True)
                ]
    *expected, anchor, momentum = paper(num_steps, tau=tau, alpha=alpha, num_peers=num_peers)
    for x, wanted in zip(theta, expected, strict=True):
        np.testing.assert_allclose(x.numpy(), wanted, rtol=0, atol=1e-12)
    state = dict(peers[0].state_arrays())
    np.testing.assert_allclose(state["anchor"].numpy(), anchor, rtol=0, atol=1e-12)
    np.testing.assert_allclose(state["momentum"].numpy(), momentum, rtol=0, atol=1e-12)


@pytest.mark.parametrize("error_feedback", [False, True])
def test_t5_one_fragment_without_delay_or_mixing_is_diloco_bit_for_bit(
    error_feedback: bool,
) -> None:
    streaming = make(WHOLE, error_feedback=error_feedback)
    diloco = DiLoCo(SIZE, inner_steps=6, lr=0.7, momentum=0.9, error_feedback=error_feedback)
    diloco.set_initial(randn(0))
    weights = [randn(0), randn(0)]
    for op in range(1, 12):
        weights = [w + randn(op) for w in weights]
        outcome = []
        for strategy, theta in zip((streaming, diloco), weights, strict=True):
            part = strategy.pseudo_gradient(theta, op) if op % 5 else randn(op)
            if op % 4 == 0:
                strategy.skip()
                outcome.append(theta)
                continue
            later = theta + randn(100 + op) if op % 3 == 0 else theta
            included = [(0, 16, op % 2 == 0), (16, SIZE, True)]
            outcome.append(strategy.apply(part * 0.5, included, later, part_of(part * 0.9), op=op))
        weights = outcome
        assert same_bits(weights[0], weights[1])
        for mine, theirs in zip(
            [*streaming.state_arrays(), *streaming.local_arrays()],
            [*diloco.state_arrays(), *diloco.local_arrays()],
            strict=True,
        ):
            assert mine[0] == theirs[0] and same_bits(mine[1], theirs[1])


def test_t5_with_alpha_one_peers_are_independent() -> None:
    strategy = make(mixing=1.0, delay_steps=1)
    weights = randn(1)
    for op in range(1, 7):
        strategy.pseudo_gradient(weights, op)
        size = strategy.exchange(op).num_values
        after = strategy.apply(randn(op, size), [(0, size, op % 2 == 0)], weights, op=op)
        assert same_bits(after, weights)


def test_an_op_moves_its_fragment_and_nothing_else() -> None:
    strategy: Strategy = make(delay_steps=2, mixing=0.5)
    assert [strategy.exchange(op).ranges for op in (1, 2, 3)] == [TWO[0], TWO[1], TWO[0]]
    assert strategy.exchange(1).kind is OpKind.MEAN
    assert (strategy.exchange(1).num_values, strategy.exchange(2).num_values) == (48, 16)
    assert strategy.exchange(1).delay_steps == 2
    assert (strategy.inner_steps, strategy.num_values) == (3, SIZE)
    assert [strategy.is_due(steps) for steps in (2, 3)] == [False, True]
    before = {name: array.clone() for name, array in strategy.state_arrays()}
    weights = randn(1)
    strategy.pseudo_gradient(weights, 2)
    after = strategy.apply(randn(2, 16), [(0, 16, True)], weights, op=2)
    for name, array in strategy.state_arrays():
        assert same_bits(array[:16], before[name][:16]) and same_bits(array[32:], before[name][32:])
        assert not torch.equal(array[16:32], before[name][16:32])
    assert same_bits(after[:16], weights[:16]) and not torch.equal(after[16:32], weights[16:32])


@pytest.mark.parametrize("error_feedback", [False, True])
def test_a_fragment_left_out_keeps_its_work(error_feedback: bool) -> None:
    strategy = make(delay_steps=1, error_feedback=error_feedback)
    weights = randn(1)
    delta = strategy.pseudo_gradient(weights, 2).clone()
    after = strategy.apply(randn(2, 16), [(0, 16, False)], weights + 1, op=2)
    kept = strategy.anchor - after
    for _, residual in strategy.local_arrays():
        kept = kept + residual
    assert torch.allclose(kept[16:32], delta, rtol=0, atol=1e-5)


def test_replicas_share_one_state_though_their_weights_differ() -> None:
    peers = [make(delay_steps=1, mixing=0.5) for _ in range(3)]
    theta = [randn(5 + index) for index in range(3)]
    for op in range(1, 9):
        size = peers[0].exchange(op).num_values
        for index, peer in enumerate(peers):
            if index:
                peer.pseudo_gradient(theta[index], op)
            included = [(0, 8, index == 1), (8, size, True)]
            theta[index] = peer.apply(randn(op, size), included, theta[index] + index, op=op)
    states = {b"".join(t.numpy().tobytes() for _, t in peer.state_arrays()) for peer in peers}
    assert len(states) == 1
    assert not torch.equal(theta[1], theta[2])


def test_state_goes_to_a_joiner_and_both_go_on_alike() -> None:
    founder, joiner = make(error_feedback=True), make(error_feedback=True)
    for op in range(1, 4):
        size = founder.exchange(op).num_values
        founder.pseudo_gradient(randn(op), op)
        founder.apply(randn(op, size), [(0, size, False)], randn(op), op=op)
    kept = {name: array.clone() for name, array in founder.local_arrays()}
    assert kept["error_feedback"].any()
    joiner.load_state(dict(founder.state_arrays()))
    assert not joiner.local_arrays()[0][1].any()
    joiner.load_local(kept)
    results = []
    for peer in (founder, joiner):
        part = peer.pseudo_gradient(randn(9), 4)
        peer.skip()
        again = peer.pseudo_gradient(randn(9), 4)
        assert same_bits(part, again)
        weights = peer.apply(randn(4, 16), [(0, 16, True)], randn(9), part_of(again), op=4)
        arrays = [*peer.state_arrays(), *peer.local_arrays(), ("weights", weights)]
        results.append([(name, array.numpy().tobytes()) for name, array in arrays])
    assert results[0] == results[1]


def test_work_dropped_after_three_exclusions_is_not_mixed_in_again() -> None:
    strategy = make(WHOLE, mixing=0.5)
    weights = torch.full((SIZE,), float("nan"))
    for op in range(1, 4):
        strategy.pseudo_gradient(weights, op)
        weights = strategy.apply(randn(op), [(0, SIZE, False)], weights, op=op)
        assert strategy.exclusions_in_row == op % 3
    assert same_bits(weights, strategy.anchor)


def test_dropped_work_is_told_by_its_places_in_the_whole_vector() -> None:
    strategy = make(TWO)
    assert strategy.dropped == ()
    weights = randn(1)
    outcomes = [(0, 8, True), (8, 24, False), (24, 48, True)]
    for op in (1, 3, 5):
        strategy.pseudo_gradient(weights, op)
        weights = strategy.apply(randn(op, 48), outcomes, weights, op=op)
    # [8, 24) of the first fragment are [8, 16) and [32, 40) of the vector.
    assert strategy.dropped == ((8, 16), (32, 40))


def test_misuse_is_told() -> None:
    strategy = make()
    strategy.pseudo_gradient(randn(1), 1)
    with pytest.raises(RuntimeError, match="under way"):
        strategy.pseudo_gradient(randn(1), 2)
    with pytest.raises(RuntimeError, match="fragment 1, we gave 0"):
        strategy.apply(randn(1, 16), [(0, 16, True)], randn(1), op=2)
    with pytest.raises(ValueError, match="weights_now"):
        strategy.apply(randn(1, 48), [(0, 48, True)], randn(1, 8), op=1)
    with pytest.raises(ValueError, match="wanted"):
        strategy.load_state({"anchor": randn(0)})
    with pytest.raises(ValueError, match="mixing"):
        make(mixing=2.0)
    with pytest.raises(ValueError, match=r"in 0\.\.6"):
        make(delay_steps=7)
    with pytest.raises(ValueError, match="do not cover"):
        make((((0, 16),), ((32, SIZE),)))
    with pytest.raises(ValueError, match="multiple"):
        make((((0, 16),), ((16, 24),), ((24, 32),), ((32, SIZE),)))


def test_a_skip_ends_the_oldest_op_and_leaves_the_other_under_way() -> None:
    strategy = make(delay_steps=5, mixing=0.0)
    strategy.set_initial(randn(0))
    given = randn(1)
    first, second = strategy.pseudo_gradient(given, 1), strategy.pseudo_gradient(given, 2)
    strategy.skip()
    with pytest.raises(RuntimeError, match="fragment 0, we gave 1"):
        strategy.apply(first, [(0, first.numel(), True)], given, op=1)
    everything = [(0, second.numel(), True)]
    with_skip = strategy.apply(second, everything, given, op=2)
    other = make(delay_steps=5, mixing=0.0)
    other.set_initial(randn(0))
    other.pseudo_gradient(given, 2)
    assert torch.equal(with_skip, other.apply(second, everything, given, op=2))
    assert torch.equal(strategy.pseudo_gradient(given, 3), first)


# ---- fragments

LAYERS = [("embed.weight", 40)] + [(f"blocks.{i}.{name}", 20) for i in range(4) for name in "ab"]
LAYERS.append(("head", 20))


def test_layers_are_strided_and_boundaries_lie_on_blocks() -> None:
    found = fragments_of(LAYERS, 3, block=8, num_values=224)
    assert found == (
        ((0, 40), (200, 224)),
        ((40, 80), (120, 160)),
        ((80, 120), (160, 200)),
    )
    assert fragments_of(LAYERS, 1, block=8, num_values=224) == (((0, 224),),)


@pytest.mark.parametrize("block", [1, 8, 16, 32, 64])
def test_fragments_cover_the_padded_vector_once_whatever_the_block(block: int) -> None:
    sizes = [("wte", 37), *((f"h.{i}.w", 50 + 17 * i) for i in range(6)), ("norm", 3)]
    total = sum(size for _, size in sizes)
    num_values = -(-total // block) * block
    found = fragments_of(sizes, 3, block=block, num_values=num_values)
    covered = sorted(place for ranges in found for part in ranges for place in range(*part))
    assert covered == list(range(num_values))
    assert all(bound % block == 0 for ranges in found for part in ranges for bound in part)


def test_fragments_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(ValueError, match="4 layers cannot be 5 fragments"):
        fragments_of(LAYERS, 6, block=8, num_values=224)
    with pytest.raises(ValueError, match="smaller block"):
        fragments_of(LAYERS, 5, block=128, num_values=256)
    with pytest.raises(ValueError, match="are not 300"):
        fragments_of(LAYERS, 2, block=8, num_values=300)
