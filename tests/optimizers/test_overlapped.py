"""Delayed, eager and penalised outer steps against their formulas in float64; nothing is lost."""

import numpy as np
import pytest
import torch
from window import part_of

from swarmtrain_optimizers.strategies.base import OpKind, Strategy
from swarmtrain_optimizers.strategies.co2.strategy import CO2
from swarmtrain_optimizers.strategies.delayed.strategy import Delayed
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_optimizers.strategies.eager.strategy import Eager

torch.set_num_threads(1)
SIZE = 64
ALL = [(0, SIZE, True)]
NONE = [(0, SIZE, False)]
F64 = torch.float64


def randn(seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)).to(dtype)


def delayed(
    *,
    lr: float = 0.7,
    momentum: float = 0.9,
    error_feedback: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Delayed:
    strategy = Delayed(
        SIZE, inner_steps=4, lr=lr, momentum=momentum, error_feedback=error_feedback, dtype=dtype
    )
    strategy.set_initial(randn(0, dtype))
    return strategy


def eager(
    *,
    first_share: float,
    lr: float = 0.7,
    momentum: float = 0.9,
    error_feedback: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Eager:
    strategy = Eager(
        SIZE,
        inner_steps=4,
        lr=lr,
        momentum=momentum,
        error_feedback=error_feedback,
        first_share=first_share,
        dtype=dtype,
    )
    strategy.set_initial(randn(0, dtype))
    return strategy


def co2(
    *,
    lr: float = 1.0,
    momentum: float = 0.5,
    penalty: float = 1.0,
    clip: float = 1e9,
    dtype: torch.dtype = torch.float32,
) -> CO2:
    strategy = CO2(
        SIZE, inner_steps=4, lr=lr, momentum=momentum, error_feedback=False, penalty=penalty,
        clip=clip, dtype=dtype,
    )  # fmt: skip
    strategy.set_initial(randn(0, dtype))
    return strategy


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.numpy().tobytes() == right.numpy().tobytes()


def pulled(weights: torch.Tensor, peer: int, op: int) -> torch.Tensor:
    """A round's inner steps: a tenth of the way towards what this peer's data say."""
    return weights + 0.1 * (randn(1000 * peer + op, F64) - weights)


def rounds(peers: list[Delayed], num_rounds: int) -> list[list[torch.Tensor]]:
    """The weights that each round begins with, per round and peer, every op whole."""
    theta = [peer.anchor.clone() for peer in peers]
    begun: list[list[torch.Tensor]] = []
    parts: list[torch.Tensor] = []
    for op in range(1, num_rounds + 1):
        theta = [pulled(x, index, op) for index, x in enumerate(theta)]
        if parts:
            mean = torch.stack(parts).mean(0)
            share = 1 / len(peers)
            theta = [
                peer.apply(mean, ALL, x, op=op - 1, own_share=share)
                for peer, x in zip(peers, theta, strict=True)
            ]
        parts = [peer.pseudo_gradient(x, op) for peer, x in zip(peers, theta, strict=True)]
        theta = [moved for peer in peers if (moved := peer.weights_under_way()) is not None]
        begun.append([x.clone() for x in theta])
    return begun


def paper(num_peers: int, num_rounds: int, share: float) -> list[list[np.ndarray]]:
    """u = share Delta(t) + (mean(t-1) - share Delta(t-1)), by Nesterov on each peer's own phi."""
    phi = [randn(0, F64).numpy() for _ in range(num_peers)]
    momentum, old = [np.zeros(SIZE)] * num_peers, [np.zeros(SIZE)] * num_peers
    begun = []
    for op in range(1, num_rounds + 1):
        new = [x - pulled(torch.from_numpy(x), i, op).numpy() for i, x in enumerate(phi)]
        late = np.mean(old, axis=0)
        for i in range(num_peers):
            u = share * new[i] + (late - share * old[i])
            momentum[i] = 0.9 * momentum[i] + u
            phi[i] = phi[i] - 0.7 * (u + 0.9 * momentum[i])
        old = new
        begun.append(list(phi))
    return begun


@pytest.mark.parametrize("num_peers", [1, 3])
def test_delayed_makes_every_outer_step_one_round_late(num_peers: int) -> None:
    found = rounds([delayed(dtype=F64) for _ in range(num_peers)], 12)
    for mine, theirs in zip(found, paper(num_peers, 12, 0.0), strict=True):
        np.testing.assert_allclose(np.stack(mine), np.stack(theirs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_peers", [1, 2, 4])
def test_eager_follows_its_formula_though_it_is_kept_in_two_parts(num_peers: int) -> None:
    share = 1 / num_peers
    found = rounds([eager(first_share=share, dtype=F64) for _ in range(num_peers)], 12)
    for mine, theirs in zip(found, paper(num_peers, 12, share), strict=True):
        np.testing.assert_allclose(np.stack(mine), np.stack(theirs), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("penalty", "clip"), [(1.0, 1e9), (0.5, 0.05), (0.0, 1e9)])
def test_co2_divides_what_is_late_by_the_way_that_the_anchor_went_meanwhile(
    penalty: float, clip: float
) -> None:
    num_peers, lr, mu = 3, 0.9, 0.6
    peers = [
        co2(lr=lr, momentum=mu, penalty=penalty, clip=clip, dtype=F64) for _ in range(num_peers)
    ]
    found = rounds(list(peers), 12)
    anchors = [randn(0, F64).numpy()]  # that each round began with
    momentum, late, is_clipped = np.zeros(SIZE), None, False
    for op, begun in enumerate(found, start=1):
        began_with = torch.from_numpy(anchors[-1])
        new = np.mean(
            [anchors[-1] - pulled(began_with, i, op).numpy() for i in range(num_peers)], axis=0
        )
        if late is not None:
            # The late mean began at the anchor before this one: so far has it gone since.
            before = anchors[-2]
            gap = np.linalg.norm(anchors[-1] - before) / np.linalg.norm(late)
            distance = late + (anchors[-1] - before)  # from the mean of the weights of then
            whole = mu * momentum + distance / (1 + penalty * gap)
            momentum = np.clip(whole, -clip, clip)
            is_clipped |= bool((momentum != whole).any())
            anchors.append(anchors[-1] - lr * momentum)
        else:
            anchors.append(anchors[-1])
        late = new
        for weights in begun:
            np.testing.assert_allclose(weights, anchors[-1], rtol=0, atol=1e-12)
    assert is_clipped == (clip < 1)


def test_co2_without_penalty_whose_momentum_is_its_rate_is_the_naive_delay() -> None:
    peers = [
        co2(lr=0.7, momentum=0.7, penalty=0.0, dtype=F64),
        delayed(lr=0.7, momentum=0.0, dtype=F64),
    ]
    one, other = (rounds([peer], 8) for peer in peers)
    for mine, theirs in zip(one, other, strict=True):
        assert torch.allclose(mine[0], theirs[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("momentum", "part"), [(0.5, (17**0.5 - 3) / 2), (0.9, (1.61**0.5 - 1.1) / 0.2)]
)
def test_a_steady_difference_gets_a_part_of_its_rate(momentum: float, part: float) -> None:
    peer, ones = co2(momentum=momentum, dtype=F64), torch.full((SIZE,), 0.25, dtype=F64)
    for op in range(1, 200):
        before = peer.anchor.clone()
        peer.apply(ones, [], peer.anchor.clone(), op=op)
    step = (before - peer.anchor) / ones
    assert torch.allclose(step, torch.tensor(part, dtype=F64), rtol=0, atol=1e-9)


def test_nothing_given_is_never_stale_and_the_first_mean_neither() -> None:
    peer = co2()
    assert peer.staleness_penalty(randn(1)) == 1.0
    peer.apply(randn(1), [], peer.anchor.clone(), op=1)
    assert peer.staleness_penalty(torch.zeros(SIZE)) == 1.0
    assert peer.staleness_penalty(randn(1)) == 2.0
    assert peer.staleness_penalty(0.5 * randn(1)) == 3.0


@pytest.mark.parametrize("wrong", [{"penalty": -1.0}, {"clip": 0.0}, {"clip": float("nan")}])
def test_co2_refuses_settings_that_would_turn_steps_around(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"penalty .* or clip"):
        co2(**wrong)  # type: ignore[arg-type]


def test_t6_eager_with_one_peer_is_diloco() -> None:
    found = rounds([eager(first_share=1.0, dtype=F64)], 12)
    diloco = DiLoCo(SIZE, inner_steps=4, lr=0.7, momentum=0.9, error_feedback=False, dtype=F64)
    diloco.set_initial(randn(0, F64))
    theta = diloco.anchor.clone()
    for op, (begun,) in enumerate(found, start=1):
        theta = pulled(theta, 0, op)
        theta = diloco.apply(diloco.pseudo_gradient(theta), ALL, theta)
        assert torch.allclose(begun, theta, rtol=0, atol=1e-12)


def test_t6_own_shares_telescope() -> None:
    # Rate 1, no momentum: what is ahead of the means is one round's own share, never a sum.
    peers = [eager(first_share=0.5, lr=1.0, momentum=0.0, dtype=F64) for _ in range(2)]
    rounds(list(peers), 9)
    for peer in peers:
        ((_, given),) = peer.local_arrays()
        assert torch.allclose(peer.lead, -0.5 * given, rtol=0, atol=1e-13)


def test_t6_with_momentum_own_shares_telescope_through_a_skip() -> None:
    # Steps of s (D(t) - D(t-1)) add up to the one Nesterov step that s D(t) makes of all D so far.
    peer = eager(first_share=0.5, dtype=F64)
    theta, momentum = peer.anchor.clone(), torch.zeros(SIZE, dtype=F64)
    for op in range(1, 12):
        part = peer.pseudo_gradient(pulled(theta, 0, op), op).clone()
        momentum = 0.9 * momentum + part
        ahead = -0.7 * 0.5 * (part + 0.9 * momentum)
        assert torch.allclose(peer.lead, ahead, rtol=0, atol=1e-13)
        moved = peer.weights_under_way()
        assert moved is not None
        assert torch.allclose(moved, peer.anchor + ahead, rtol=0, atol=1e-13)
        theta = moved
        if op % 4 == 0:
            peer.skip()
        else:
            included = [(0, 16, op % 3 != 0), (16, SIZE, True)]
            theta = peer.apply(0.01 * randn(op, F64), included, theta, op=op, own_share=0.5)


def test_the_shared_chain_is_the_same_though_weights_shares_and_fates_differ() -> None:
    peers = [eager(first_share=0.3), eager(first_share=0.0), eager(first_share=1.0), delayed()]
    theta = [peer.anchor.clone() for peer in peers]
    for op in range(1, 8):
        for index, peer in enumerate(peers):
            if index != 1 or op > 4:
                peer.pseudo_gradient(theta[index] + randn(10 * op + index), op)
                moved = peer.weights_under_way()
                assert moved is not None
                theta[index] = moved
            if op == 3:
                peer.skip()
                continue
            included = [(0, 16, index == 2), (16, SIZE, True)]
            share = None if op % 2 else 1 / (op + index)
            theta[index] = peer.apply(
                randn(op) * 0.01, included, theta[index], op=op, own_share=share
            )
    states = {b"".join(t.numpy().tobytes() for _, t in peer.state_arrays()) for peer in peers}
    assert len(states) == 1
    assert not torch.equal(theta[0], theta[2])


@pytest.mark.parametrize("error_feedback", [False, True])
@pytest.mark.parametrize("is_eager", [False, True])
def test_t9_work_is_sent_or_held_whatever_became_of_an_op(
    error_feedback: bool, is_eager: bool
) -> None:
    strategy = (
        eager(first_share=0.5, error_feedback=error_feedback, dtype=F64)
        if is_eager
        else delayed(error_feedback=error_feedback, dtype=F64)
    )
    theta, work, sent = strategy.anchor.clone(), torch.zeros(SIZE, dtype=F64), torch.zeros(SIZE)
    for op in range(1, 40):
        move = randn(op, F64)
        work, theta = work + move, theta + move
        part = strategy.pseudo_gradient(theta, op)
        moved = strategy.weights_under_way()
        assert moved is not None
        theta = moved
        if op % 5 == 0:
            strategy.skip()
            continue
        decoded = part.float().double() if error_feedback else part
        included = [(0, 24, op % 3 != 0), (24, SIZE, op % 4 > 1)]
        theta = strategy.apply(
            randn(op, F64), included, theta, part_of(decoded), op=op, own_share=0.25
        )
        for start, stop, was_included in included:
            sent[start:stop] += decoded[start:stop].float() if was_included else 0
        assert strategy.dropped == ()
    ((_, held),) = strategy.local_arrays()
    assert torch.allclose(sent.double() + held, -work, rtol=0, atol=1e-4)


def test_a_result_takes_its_place_at_the_next_contribution() -> None:
    strategy: Strategy = delayed()
    exchange = strategy.exchange(3)
    assert (exchange.kind, exchange.delay_steps, exchange.num_values) == (OpKind.MEAN, 4, SIZE)
    first = randn(0)
    strategy.pseudo_gradient(first + 1, 1)
    begun = strategy.weights_under_way()
    assert begun is not None and same_bits(begun, first)
    begun = begun.clone()  # it is a live buffer
    trained = begun + 2
    assert same_bits(strategy.apply(randn(1), ALL, trained, op=1), trained)
    part = strategy.pseudo_gradient(trained, 2)
    assert torch.equal(part, begun - trained)
    moved = strategy.weights_under_way()
    assert moved is not None and same_bits(moved, dict(strategy.state_arrays())["anchor"])


@pytest.mark.parametrize("is_eager", [False, True])
def test_a_joiner_moves_along_and_goes_on_alike(is_eager: bool) -> None:
    founder, joiner = (eager(first_share=0.5) if is_eager else delayed() for _ in "ab")
    founder.pseudo_gradient(randn(1), 1)
    founder.apply(randn(2), NONE, randn(1), op=1)
    joiner.load_state({name: array.clone() for name, array in founder.state_arrays()})
    theta = joiner.apply(randn(3), [], joiner.anchor.clone(), op=2)
    assert same_bits(theta, joiner.anchor)
    assert same_bits(joiner.apply(randn(4), [], theta, op=3), joiner.anchor)
    assert torch.equal(
        joiner.pseudo_gradient(joiner.anchor + 1, 4), joiner.anchor - (joiner.anchor + 1)
    )


def test_what_is_held_survives_a_restart_and_goes_with_the_next_op() -> None:
    strategy, again = delayed(), delayed()
    part = strategy.pseudo_gradient(randn(0) + 1, 1).clone()
    again.load_local({name: array.clone() for name, array in strategy.local_arrays()})
    assert torch.equal(again.pseudo_gradient(randn(0), 2), part)


@pytest.mark.parametrize("is_eager", [False, True])
def test_weights_that_became_nan_heal(is_eager: bool) -> None:
    strategy = eager(first_share=0.5) if is_eager else delayed()
    theta = torch.full((SIZE,), float("nan"))
    for op in range(1, 8):
        strategy.pseudo_gradient(theta, op)
        moved = strategy.weights_under_way()
        assert moved is not None
        theta = strategy.apply(randn(op), NONE, moved, op=op)
        assert strategy.exclusions_in_row == op % 3
    assert torch.isfinite(strategy.pseudo_gradient(theta, 8)).all()
    moved = strategy.weights_under_way()
    assert moved is not None and torch.isfinite(moved).all()


def test_misuse_is_told() -> None:
    strategy = eager(first_share=0.5, error_feedback=True)
    strategy.pseudo_gradient(randn(1), 1)
    with pytest.raises(RuntimeError, match="under way"):
        strategy.pseudo_gradient(randn(1), 2)
    with pytest.raises(ValueError, match="decoded_own"):
        strategy.apply(randn(1), ALL, randn(1))
    with pytest.raises(ValueError, match="cover 8 of 64"):
        strategy.apply(randn(1), [(0, 8, True)], randn(1), part_of(randn(1)))
    with pytest.raises(ValueError, match="own_share"):
        strategy.apply(randn(1), ALL, randn(1), part_of(randn(1)), own_share=2.0)
    with pytest.raises(ValueError, match="first_share"):
        eager(first_share=1.5)
    strategy.apply(randn(1), ALL, randn(1), lambda start, stop: torch.zeros(stop - start))


def test_eager_without_a_share_is_the_naive_delay() -> None:
    weights = []
    for peer in (eager(first_share=0.0), delayed()):
        theta = peer.anchor.clone()
        for op in range(1, 6):
            peer.pseudo_gradient(theta + randn(op), op)
            moved = peer.weights_under_way()
            assert moved is not None
            theta = peer.apply(randn(50 + op), ALL, moved + randn(op), op=op)
        weights.append(theta)
    assert same_bits(weights[0], weights[1])


@pytest.mark.parametrize(
    ("kind", "stable", "too_much"), [("diloco", 1.36, 1.42), ("eager", 0.50, 0.53)]
)
def test_a_late_step_stands_less_where_inner_steps_go_all_the_way(
    kind: str, stable: float, too_much: float
) -> None:
    """Four peers alike, momentum 0.8, a minimum at 0: the bounds are 1.385 and 0.514."""

    def size_after(lr: float, rounds: int) -> float:
        args = {"inner_steps": 1, "lr": lr, "momentum": 0.8, "error_feedback": False}
        if kind == "eager":
            args["first_share"] = 0.25
        strategy = {"diloco": DiLoCo, "eager": Eager}[kind](1, dtype=torch.float64, **args)
        strategy.set_initial(torch.ones(1, dtype=torch.float64))
        for op in range(1, rounds + 1):
            given = strategy.pseudo_gradient(torch.zeros(1, dtype=torch.float64), op)
            everything = [(0, 1, True)]
            strategy.apply(given, everything, torch.zeros(1, dtype=torch.float64), op=op,
                           own_share=0.25)  # fmt: skip
        return float(strategy.anchor.abs())

    assert size_after(stable, 800) < 1e-2 * size_after(stable, 20)
    assert size_after(too_much, 800) > 1e3 * size_after(too_much, 20)
