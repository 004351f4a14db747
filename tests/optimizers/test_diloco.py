"""DiLoCo against its oracles, and what becomes of a peer that an op left out."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from window import PlanWindow, part_of

from swarmtrain_optimizers import vectors
from swarmtrain_optimizers.codecs.base import Codec
from swarmtrain_optimizers.codecs.int8 import Int8
from swarmtrain_optimizers.codecs.raw import Raw
from swarmtrain_optimizers.strategies.base import Strategy
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo

torch.set_num_threads(1)
WINDOW = PlanWindow()
SIZE = 64
ALL = [(0, SIZE, True)]
NONE = [(0, SIZE, False)]


def randn(seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)).to(dtype) * scale


def make(
    *,
    lr: float = 0.9,
    momentum: float = 0.8,
    error_feedback: bool = False,
    dtype: torch.dtype = torch.float32,
    weights: torch.Tensor | None = None,
) -> DiLoCo:
    strategy = DiLoCo(
        SIZE, inner_steps=3, lr=lr, momentum=momentum, error_feedback=error_feedback, dtype=dtype
    )
    strategy.set_initial(randn(0, dtype) if weights is None else weights)
    return strategy


def mean_of(parts: list[torch.Tensor], codec: Codec) -> torch.Tensor:
    acc = torch.zeros(SIZE, dtype=torch.float64)
    for part in parts:
        codec.add_(acc, codec.encode(part, WINDOW), 1, WINDOW)
    return codec.decode(codec.finish(acc, len(parts), WINDOW), SIZE, WINDOW)


def momentum_of(strategy: Strategy) -> torch.Tensor:
    return dict(strategy.state_arrays())["momentum"]


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.int32), right.view(torch.int32))


# ---- oracles of the notes' section T


def test_t1_one_peer_rate_one_no_momentum_no_codec_lands_where_it_trained() -> None:
    strategy = make(lr=1.0, momentum=0.0)
    anchor = strategy.anchor.clone()
    trained = anchor + randn(1, scale=0.1)
    mean = mean_of([strategy.pseudo_gradient(trained)], Raw())
    weights = strategy.apply(mean, ALL, trained)
    ulp = np.spacing(np.maximum(np.abs(anchor.numpy()), np.abs(trained.numpy())))
    assert (np.abs((weights - trained).numpy()) <= ulp).all()


def test_t1_is_exact_in_float64() -> None:
    strategy = make(lr=1.0, momentum=0.0, dtype=torch.float64)
    trained = (strategy.anchor.float() + randn(1, scale=0.1)).double()
    weights = strategy.apply(strategy.pseudo_gradient(trained), ALL, trained)
    assert torch.equal(weights, trained)


def test_t2_one_inner_sgd_step_equals_data_parallel_sgd() -> None:
    targets = [randn(seed, torch.float64) for seed in (1, 2, 3)]
    strategies = [make(lr=1.0, momentum=0.0, dtype=torch.float64) for _ in targets]
    together = strategies[0].anchor.clone()
    weights = [together.clone() for _ in targets]
    for _ in range(20):
        gradient = sum((together - target for target in targets), torch.zeros_like(together))
        together = together - 0.1 * gradient / 3
        for index, target in enumerate(targets):
            weights[index] = weights[index] - 0.1 * (weights[index] - target)
        parts = [s.pseudo_gradient(w) for s, w in zip(strategies, weights, strict=True)]
        mean = (parts[0] + parts[1] + parts[2]) / 3
        weights = [s.apply(mean, ALL, w) for s, w in zip(strategies, weights, strict=True)]
        assert torch.allclose(weights[0], together, rtol=0, atol=1e-14)


def test_t3_the_anchor_goes_from_one_over_minus_a_third_to_minus_two() -> None:
    strategy = make(lr=0.7, momentum=0.9, weights=torch.ones(SIZE))
    for expected in (-0.33, -2.227):
        trained = strategy.anchor - 1
        weights = strategy.apply(strategy.pseudo_gradient(trained), ALL, trained)
        assert weights.tolist() == pytest.approx([expected] * SIZE, abs=1e-5)


@pytest.mark.parametrize("codec", [Int8(), Raw()])
def test_t4_peers_with_the_same_data_follow_the_path_of_one(codec: Codec) -> None:
    paths = []
    for num_peers in (1, 2, 5):
        strategies = [make() for _ in range(num_peers)]
        weights = [s.anchor.clone() for s in strategies]
        for op in range(4):
            weights = [w + randn(op + 1, scale=0.01) for w in weights]
            parts = [s.pseudo_gradient(w) for s, w in zip(strategies, weights, strict=True)]
            mean = mean_of(parts, codec)
            weights = [s.apply(mean, ALL, w) for s, w in zip(strategies, weights, strict=True)]
        assert all(same_bits(w, weights[0]) for w in weights)
        paths.append(weights[0])
    assert same_bits(paths[0], paths[1]) and same_bits(paths[0], paths[2])


@pytest.mark.parametrize("error_feedback", [False, True])
def test_t9_work_is_sent_or_kept_never_lost_or_doubled(error_feedback: bool) -> None:
    # Without error feedback a lossless codec is needed: quantisation may lose, exclusion may not.
    codec: Codec = Int8() if error_feedback else Raw()
    strategy = make(error_feedback=error_feedback)
    weights = strategy.anchor.clone()
    work, sent = torch.zeros(SIZE, dtype=torch.float64), torch.zeros(SIZE, dtype=torch.float64)
    for op in range(40):
        move = randn(op, scale=0.01)
        weights, work = weights + move, work + move.double()
        decoded = codec.decode(
            codec.encode(strategy.pseudo_gradient(weights), WINDOW), SIZE, WINDOW
        )
        extra = randn(1000 + op, scale=0.001) if op % 2 else torch.zeros(SIZE)
        weights, work = weights + extra, work + extra.double()
        if op % 7 == 3:
            strategy.skip()
            continue
        included = [(0, 24, op % 3 != 0), (24, SIZE, op % 4 > 1)]
        weights = strategy.apply(randn(500 + op, scale=0.01), included, weights, part_of(decoded))
        for start, stop, was_included in included:
            sent[start:stop] += decoded[start:stop] if was_included else 0
        assert strategy.dropped == ()
    kept = strategy.anchor - weights
    for _, residual in strategy.local_arrays():
        kept = kept + residual
    assert torch.allclose(sent + kept, -work, rtol=0, atol=2e-5)


# ---- rules 9 and 10


@pytest.mark.parametrize("error_feedback", [False, True])
def test_an_included_peer_without_more_steps_lands_exactly_on_the_anchor(
    error_feedback: bool,
) -> None:
    strategy = make(error_feedback=error_feedback)
    trained = strategy.anchor + randn(1)
    part = strategy.pseudo_gradient(trained)
    weights = strategy.apply(randn(2), ALL, trained, part_of(part))
    assert same_bits(weights, strategy.anchor)
    assert weights.data_ptr() != strategy.anchor.data_ptr()


def test_a_peer_left_out_rebases_its_work_on_the_new_anchor() -> None:
    strategy = make()
    trained = strategy.anchor + randn(1)
    delta = strategy.pseudo_gradient(trained).clone()
    included = [(0, 16, True), (16, SIZE, False)]
    weights = strategy.apply(randn(2), included, trained)
    assert same_bits(weights[:16], strategy.anchor[:16])
    assert torch.equal(weights[16:], (strategy.anchor - delta)[16:])


def test_a_peer_left_out_with_error_feedback_keeps_its_work_there() -> None:
    strategy = make(error_feedback=True)
    trained = strategy.anchor + randn(1)
    part = strategy.pseudo_gradient(trained).clone()
    included = [(0, 16, True), (16, SIZE, False)]
    weights = strategy.apply(randn(2), included, trained, lambda start, stop: part[start:stop] / 2)
    ((_, residual),) = strategy.local_arrays()
    assert same_bits(weights, strategy.anchor)
    assert torch.equal(residual[:16], part[:16] - part[:16] / 2)
    assert torch.equal(residual[16:], part[16:])
    again = strategy.pseudo_gradient(weights)
    assert torch.equal(again, residual)


def test_steps_made_during_the_exchange_are_added_to_the_new_anchor() -> None:
    strategy = make()
    trained = strategy.anchor + randn(1)
    strategy.pseudo_gradient(trained)
    moved_on = trained + randn(3, scale=0.01)
    weights = strategy.apply(randn(2), ALL, moved_on)
    assert torch.equal(weights, strategy.anchor + (moved_on - trained))


def test_a_peer_that_sent_nothing_moves_along_with_the_anchor() -> None:
    strategy = make()
    old = strategy.anchor.clone()
    now = old + randn(1)
    now[:8] = old[:8]
    weights = strategy.apply(randn(2), [], now)
    assert same_bits(weights[:8], strategy.anchor[:8])
    assert torch.equal(weights[8:], (now + (strategy.anchor - old))[8:])


def test_three_exclusions_in_a_row_drop_the_pending_work_and_say_so() -> None:
    for error_feedback in (False, True):
        strategy = make(error_feedback=error_feedback)
        weights = strategy.anchor + randn(1)
        for in_row in (1, 2, 0):
            strategy.pseudo_gradient(weights)
            included = [(0, 8, True), (8, SIZE, False)]
            weights = strategy.apply(randn(2), included, weights, part_of(randn(3)))
            assert strategy.exclusions_in_row == in_row
            assert strategy.dropped == (() if in_row else ((8, SIZE),))
        assert same_bits(weights, strategy.anchor)
        for _, residual in strategy.local_arrays():
            assert residual[:8].any() and not residual[8:].any()


def test_dropped_work_does_not_take_later_steps_with_it() -> None:
    strategy = make()
    weights = strategy.anchor + randn(1)
    for _ in range(2):
        strategy.pseudo_gradient(weights)
        weights = strategy.apply(randn(2), NONE, weights)
    strategy.pseudo_gradient(weights)
    moved_on = weights + 1
    after = strategy.apply(randn(2), NONE, moved_on)
    assert torch.equal(after, strategy.anchor + (moved_on - weights))


@pytest.mark.parametrize("error_feedback", [False, True])
def test_a_skipped_op_changes_nothing_and_is_made_anew(error_feedback: bool) -> None:
    strategy = make(error_feedback=error_feedback)
    trained = strategy.anchor + randn(1)
    strategy.apply(randn(2), [], trained)
    names = [*strategy.state_arrays(), *strategy.local_arrays()]
    before = [(name, tensor.clone()) for name, tensor in names]
    first = strategy.pseudo_gradient(trained).clone()
    strategy.skip()
    after = [*strategy.state_arrays(), *strategy.local_arrays()]
    assert all(
        name == old_name and same_bits(tensor, old)
        for (name, tensor), (old_name, old) in zip(after, before, strict=True)
    )
    assert torch.equal(strategy.pseudo_gradient(trained), first)


@given(st.integers(0, 1000), st.lists(st.booleans(), min_size=4, max_size=4))
@settings(max_examples=25, deadline=None)
def test_all_peers_share_one_state_whatever_became_of_their_own_part(
    seed: int, included: list[bool]
) -> None:
    mean, start = randn(seed), randn(seed + 1)
    roots = set()
    for index, was_included in enumerate(included):
        strategy = make(weights=start, error_feedback=index % 2 == 0)
        trained = start + randn(index)
        if index != 3:
            strategy.pseudo_gradient(trained)
        strategy.apply(mean, [(0, SIZE, was_included)], trained, part_of(randn(index)))
        roots.add(b"".join(tensor.numpy().tobytes() for _, tensor in strategy.state_arrays()))
    assert len(roots) == 1


# ---- state


def test_state_goes_to_a_joiner_and_both_go_on_alike() -> None:
    founder = make(error_feedback=True)
    for op in range(3):
        founder.pseudo_gradient(founder.anchor + randn(op))
        founder.apply(randn(10 + op), NONE, founder.anchor, None)
    joiner = make(error_feedback=True, weights=randn(99))
    joiner.load_local({"error_feedback": randn(5)})
    joiner.load_state({name: tensor.clone() for name, tensor in founder.state_arrays()})
    assert not joiner.local_arrays()[0][1].any()
    for strategy in (founder, joiner):
        strategy.apply(randn(20), [], strategy.anchor)
    assert [name for name, _ in joiner.state_arrays()] == ["anchor", "momentum"]
    assert same_bits(joiner.anchor, founder.anchor)
    assert same_bits(momentum_of(joiner), momentum_of(founder))


def test_the_step_is_made_where_the_state_lies() -> None:
    strategy = make()
    before = [array.data_ptr() for _, array in strategy.state_arrays()]
    trained = randn(2)
    difference = strategy.difference(trained.clone())
    assert same_bits(difference[3:9], (strategy.anchor - trained)[3:9])
    weights = strategy.land(randn(1), ALL, None)
    assert weights.data_ptr() == strategy.anchor.data_ptr()
    assert [array.data_ptr() for _, array in strategy.state_arrays()] == before


class Parts:
    """A vector of which nobody may ask for all at once."""

    def __init__(self, values: torch.Tensor, most: int) -> None:
        self.values, self.most = values, most

    def numel(self) -> int:
        return self.values.numel()

    def __getitem__(self, places: slice) -> torch.Tensor:
        start, stop, _ = places.indices(self.numel())
        assert stop - start <= self.most
        return self.values[start:stop]


@pytest.mark.parametrize("gives", [True, False])
def test_weights_that_moved_meanwhile_are_looked_at_piece_by_piece(
    gives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "PIECE_VALUES", 16)
    given, moved, mean = randn(2), randn(3), randn(1)
    landed = []
    for now in (moved.clone(), Parts(moved.clone(), most=16)):
        strategy = make()
        if gives:
            strategy.difference(given.clone())
        landed.append(strategy.land(mean, ALL if gives else [], now))
    assert same_bits(*landed)
    assert same_bits(now.values, moved)


def test_error_feedback_survives_a_restart() -> None:
    strategy = make(error_feedback=True)
    residual = randn(4)
    strategy.load_local({"error_feedback": residual})
    assert torch.equal(strategy.local_arrays()[0][1], residual)
    assert torch.equal(strategy.pseudo_gradient(strategy.anchor), residual)
    assert make().local_arrays() == []
    make().load_local({})


def test_an_exchange_is_due_after_the_inner_steps() -> None:
    strategy: Strategy = make()
    assert [strategy.is_due(steps) for steps in (0, 2, 3, 4)] == [False, False, True, True]
    assert (strategy.inner_steps, strategy.num_values) == (3, SIZE)


def test_misuse_is_told_and_changes_nothing() -> None:
    strategy = make(error_feedback=True)
    anchor, trained = strategy.anchor.clone(), strategy.anchor + 1
    strategy.pseudo_gradient(trained)
    with pytest.raises(RuntimeError, match="under way"):
        strategy.pseudo_gradient(trained)
    with pytest.raises(ValueError, match="mean is"):
        strategy.apply(torch.zeros(SIZE + 1), ALL, trained, part_of(trained))
    with pytest.raises(ValueError, match="float64"):
        strategy.apply(randn(1), ALL, trained.double(), part_of(trained))
    with pytest.raises(ValueError, match="cover 8 of 64"):
        strategy.apply(randn(1), [(0, 8, True)], trained, part_of(trained))
    with pytest.raises(ValueError, match="decoded_own"):
        strategy.apply(randn(1), ALL, trained)
    with pytest.raises(ValueError, match="anchor"):
        strategy.load_state({"anchor": anchor})
    with pytest.raises(ValueError, match="wanted"):
        strategy.load_state({"anchor": anchor, "momentum": anchor[:3]})
    assert same_bits(strategy.anchor, anchor)
    assert not momentum_of(strategy).any()
    strategy.apply(randn(1), NONE, trained)


def test_weights_that_became_nan_heal_when_their_work_is_dropped() -> None:
    strategy = DiLoCo(4, inner_steps=1, lr=1.0, momentum=0.0, error_feedback=False)
    strategy.set_initial(torch.zeros(4))
    weights = torch.tensor([float("nan"), 1.0, 1.0, 1.0])
    for _ in range(3):
        strategy.pseudo_gradient(weights)
        weights = strategy.apply(torch.ones(4), [(0, 4, False)], weights)
    assert strategy.dropped == ((0, 4),)
    assert torch.equal(weights, strategy.anchor)
