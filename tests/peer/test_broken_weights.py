"""A peer whose weights became NaN comes back: with every strategy, however its rounds end."""

from pathlib import Path

import msgspec
import pytest
import torch

from swarmtrain.config.settings import RunConfig
from swarmtrain.peer.training.own_work import is_lost, without_broken
from swarmtrain_optimizers.strategies.base import DropsBroken
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from tests.peer.crowd import Member, crowd_of
from tests.peer.test_strategy_sessions import PAIRED, config_of, state_of
from tests.peer.test_strategy_sessions import STRATEGIES as ALL

torch.set_num_threads(1)
STRATEGIES = [name for name in ALL if name != "one_byte"]
"""Inner steps of one_byte move no weight, and a loss that is no number says nothing there."""

ROUNDS = 12
BROKEN_STEP = 7


def spoil(member: Member) -> None:
    """One weight becomes NaN at a step, and as in a real model each step makes all of them so.

    Where gradients are given it is one gradient that is NaN.
    """
    toy = member.toy
    step, gradient = toy.inner_step, toy.slope

    def inner_step() -> None:
        step()
        weights = toy.read_weights()
        if member.steps_made == BROKEN_STEP:
            weights[5] = torch.nan
        elif not torch.isfinite(weights).all():
            weights[: toy.layout.num_values] = torch.nan
        toy.write_weights(weights)

    def read_gradient() -> torch.Tensor:
        given = gradient / 4
        if member.steps_made == BROKEN_STEP:
            given[5] = torch.nan
        return given

    toy.inner_step = inner_step
    if member.driver.strategy.takes_gradients:
        member.driver._read = read_gradient


def broken_in(
    config: RunConfig, place: Path, peers: int, *, spoilt: int = 1
) -> tuple[list[Member], list[list[str]]]:
    """A run of so many peers, and how each of their rounds ended."""
    with crowd_of(config, place) as crowd:
        members = [crowd.add(number) for number in range(1, peers + 1)]
        for one in members[:spoilt]:
            spoil(one)
        crowd.run()
    return members, [[report.outcome for report in one.reports] for one in members]


def assert_healthy(member: Member) -> None:
    arrays = state_of(member) | member.own() | {"weights": member.toy.read_weights()}
    for name, array in arrays.items():
        assert torch.isfinite(array).all(), name
    assert member.driver.op >= ROUNDS


def given_by(name: str, peers: int) -> RunConfig:
    config = config_of(name, rounds=ROUNDS, codec="none" if name in PAIRED else "int8")
    exchange = msgspec.structs.replace(
        config.exchange, start_peers=peers, min_contributors=min(peers, 2)
    )
    return msgspec.structs.replace(config, exchange=exchange)


@pytest.mark.parametrize("feedback", [True, False], ids=["feedback", "plain"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_one_of_three_is_left_out_once_and_contributes_again(
    tmp_path: Path, name: str, feedback: bool
):
    config = given_by(name, 3)
    if name not in (*PAIRED, "ddp"):
        outer = msgspec.structs.replace(config.outer, error_feedback=feedback)
        config = msgspec.structs.replace(config, outer=outer)
    members, ended = broken_in(config, tmp_path, 3)
    for one in members:
        assert_healthy(one)
    found = ended[0].count("left-out"), ended[0].count("skipped")
    if name == "asynchronous":  # it may be at work while others exchange, and drop it then
        assert found in ((1, 0), (0, 0))
    else:  # where its partner is not spared either, the op has nobody left
        assert found == ((0, 1) if name in PAIRED else (1, 0))
    assert "merged" in ended[0][-3:]


@pytest.mark.parametrize("name", STRATEGIES)
def test_two_peers_go_on_after_the_round_that_is_skipped_for_want_of_one(tmp_path: Path, name: str):
    members, ended = broken_in(given_by(name, 2), tmp_path, 2)
    for one, outcomes in zip(members, ended, strict=True):
        assert_healthy(one)
        assert outcomes.count("skipped") == 1 and outcomes.count("merged") == ROUNDS


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - set(PAIRED)))
def test_a_peer_alone_goes_on_after_the_round_that_is_skipped(tmp_path: Path, name: str):
    (member,), (outcomes,) = broken_in(given_by(name, 1), tmp_path, 1)
    assert_healthy(member)
    assert outcomes.count("skipped") == 1 and outcomes.count("merged") == ROUNDS


@pytest.mark.parametrize("name", STRATEGIES)
def test_when_all_are_broken_at_once_all_begin_again(tmp_path: Path, name: str):
    members, ended = broken_in(given_by(name, 2), tmp_path, 2, spoilt=2)
    for one, outcomes in zip(members, ended, strict=True):
        assert_healthy(one)
        assert 1 <= outcomes.count("skipped") <= 2 and outcomes.count("merged") == ROUNDS


class Brought(DiLoCo):
    """A package's, which tells nobody what of its work is broken."""

    drop_broken = None  # type: ignore[assignment]


def test_a_strategy_that_cannot_tell_what_is_broken_begins_from_its_state():
    strategy = Brought(8, inner_steps=2, lr=0.5, momentum=0.5, error_feedback=True)
    assert not isinstance(strategy, DropsBroken)
    strategy.set_initial(torch.arange(8.0))
    strategy.pseudo_gradient(torch.full((8,), torch.nan))
    strategy.apply(torch.ones(8), [(0, 8, False)], torch.full((8,), torch.nan))
    before = [array.clone() for _, array in strategy.state_arrays()]
    weights = without_broken(strategy, torch.full((8,), torch.nan))
    assert torch.equal(weights, strategy.anchor)
    assert not any(array.any() for _, array in strategy.local_arrays())
    after = [array for _, array in strategy.state_arrays()]
    assert all(torch.equal(*both) for both in zip(before, after, strict=True))


@pytest.mark.parametrize("value", [1.0, torch.nan])
@pytest.mark.parametrize("outcomes", [(), ((0, 4, True),), ((0, 2, True), (2, 4, False))])
def test_a_part_is_lost_if_it_is_no_number_and_is_in_no_result(
    value: float, outcomes: tuple[tuple[int, int, bool], ...]
):
    values = torch.tensor([0.0, 0.0, 0.0, value])
    is_whole = outcomes == ((0, 4, True),)
    assert is_lost(values, outcomes) == (value != 1.0 and not is_whole)
