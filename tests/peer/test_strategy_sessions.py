"""Every strategy of runs through sessions over both links: a loss, a newcomer, a return."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from swarmtrain.config.limits import first_problem
from swarmtrain.config.settings import (
    CheckpointSection,
    ExchangeSection,
    OuterSection,
    RunConfig,
    RunSection,
)
from swarmtrain_optimizers.robust import RULES
from swarmtrain_optimizers.strategies.facts import OpKind
from swarmtrain_optimizers.strategies.registry import BUILT_IN
from tests.peer.crowd import Crowd, Member, crowd_of
from tests.peer.lanes import LANES

torch.set_num_threads(1)
ROUNDS = 6
STRATEGIES = list(BUILT_IN)
PAIRED = [facts.name for facts in BUILT_IN.values() if facts.kind is OpKind.PAIR]
CODECS = {"one_byte": "int8"}
OWN: dict[str, dict[str, Any]] = {
    "noloco": {"error_feedback": False, "lr": 0.7},
    "gossip": {"error_feedback": False, "momentum": 0.0, "lr": 1.0},
    "decentralized_adam": {"error_feedback": False, "momentum": 0.0, "lr": 1.0},
    "streaming": {"fragments": 2, "delay_steps": 1, "mixing": 0.5, "inner_steps": 4},
    "ddp": {"error_feedback": False},
    "one_byte": {"error_feedback": False, "momentum": 0.0, "lr": 1.0},
    "fedavg_m": {"error_feedback": False, "lr": 1.0},
    "scaffold_m": {"error_feedback": False, "lr": 1.0},
    "sparseloco": {"momentum": 0.0},
    "local": {"error_feedback": False, "last_merge": True},
}


def config_of(name: str, *, rounds: int = ROUNDS, codec: str = "", **exchange: Any) -> RunConfig:
    own = {"inner_steps": 2, "error_feedback": True, "lr": 0.5, "momentum": 0.5} | OWN.get(name, {})
    if name == "local":
        own["budget"] = rounds - 1  # an exchange in every round
    if name in PAIRED:
        exchange = {"min_contributors": 2} | exchange
    config = RunConfig(
        run=RunSection("t", rounds=rounds),
        outer=OuterSection(strategy=name, **own),
        exchange=ExchangeSection(
            codec=codec or CODECS.get(name, "none" if name in PAIRED else "int4"),
            block=16, chunk_values=32,
            start_peers=3, wait_ready_s=3.0, deadline_floor_s=20.0, deadline_cap_s=40.0, **exchange,
        ),
        checkpoint=CheckpointSection(every_rounds=3, snapshot_rounds=2),
    )  # fmt: skip
    assert first_problem(config) is None
    return config


def matrix(test: Any) -> Any:
    """Every strategy, kind of weights and link."""
    kinds = [torch.float32, torch.bfloat16]
    test = pytest.mark.parametrize("dtype", kinds, ids=["float32", "bfloat16"])(test)
    test = pytest.mark.parametrize("lane", LANES)(test)
    return pytest.mark.parametrize("name", STRATEGIES)(test)


def state_of(member: Member) -> dict[str, torch.Tensor]:
    return {name: array.clone() for name, array in member.driver.strategy.state_arrays()}


def assert_agreed(members: list[Member], rounds: int = ROUNDS) -> None:
    """All ended with the same bits, and had the same bits after every round that they saw; where
    rounds go by pairs, partners had the same chain."""
    assert {member.participant.applied_op for member in members} == {rounds}
    if members[0].driver.is_paired:
        return assert_paired(members)
    assert len({member.driver.root for member in members}) == 1
    first, *others = (state_of(member) for member in members)
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)
    for op in range(rounds + 1):
        assert len({one.roots[op] for one in members if op in one.roots}) <= 1


def assert_paired(members: list[Member]) -> None:
    """Both of every pair tell the same chain, and what each holds is its own and finite."""
    told = {(one.peer, report.round): report for one in members for report in one.reports}
    pairs = [(one, report) for (one, _), report in told.items() if report.partner]
    assert pairs
    for peer, report in pairs:
        other = told.get((report.partner, report.round))
        assert other is None or (other.partner, other.chain) == (peer, report.chain)
        assert len(report.chain) == 32 and report.outcome == "merged"
    for one in members:
        told_last = [report.chain for report in one.reports if report.partner][-1:]
        assert told_last in ([], [one.participant.view.first.chains[one.peer]])
        anchor = state_of(one)["anchor"]
        assert torch.isfinite(anchor).all()
        assert torch.equal(one.toy.read_weights(), anchor)
    # Two that always meet have the same difference and the same anchors, two that average their
    # weights the same ones.
    averages = members[0].driver.strategy.exchange(1).vectors == 1
    apart = 1 if len(members) == 2 else len(members) - averages
    assert len({one.driver.root for one in members}) == apart


def founded(crowd: Crowd) -> list[Member]:
    return [crowd.add(number) for number in (1, 2, 3)]


@matrix
def test_all_peers_end_with_the_same_bits(tmp_path: Path, name: str, dtype: torch.dtype, lane: str):
    with crowd_of(config_of(name), tmp_path, dtype, LANES[lane]()) as crowd:
        members = founded(crowd)
        before = members[0].toy.read_weights()
        crowd.run()
        assert_agreed(members)
        outcomes = Counter(report.outcome for one in members for report in one.reports)
        if name == "asynchronous":  # an op begins with two
            assert outcomes["merged"] >= 2 * ROUNDS and outcomes.total() == 3 * ROUNDS
        else:
            whole = {"merged": 3 * ROUNDS}
            paired = {"merged": 12} | ({} if name == "gossip" else {"alone": 6})
            assert outcomes == (paired if name in PAIRED else whole)
        moved = state_of(members[0])["anchor"] - before
        assert moved.abs().max() > 1e-3 and torch.isfinite(moved).all()
        assert all(one.link.stats.bytes_received > 0 for one in members)
        ended = [one.toy.read_weights() for one in members]
        if name not in PAIRED:
            assert all(torch.equal(one, ended[0]) for one in ended)  # settled on the run's weights


@matrix
def test_a_death_and_a_newcomer_change_nobodys_agreement(
    tmp_path: Path, name: str, dtype: torch.dtype, lane: str
):
    rounds = ROUNDS + 4 * (name in ("asynchronous", "gossip"))  # nobody waits for a newcomer there
    with crowd_of(config_of(name, rounds=rounds), tmp_path, dtype, LANES[lane]()) as crowd:
        members = founded(crowd)
        crowd.run(until=lambda: members[0].driver.op >= 2)
        crowd.kill(members.pop())
        newcomer = crowd.add(4)
        crowd.run()
        assert_agreed([*members, newcomer], rounds)
        assert any(report.outcome == "merged" for report in newcomer.reports)
        began, root = next(iter(newcomer.roots.items()))
        assert root in {one.roots.get(began) for one in members}


@matrix
def test_who_comes_back_has_the_bits_that_it_left_with(
    tmp_path: Path, name: str, dtype: torch.dtype, lane: str
):
    rounds = ROUNDS + 2 * (name == "decentralized_adam")  # they leave a round later
    with crowd_of(config_of(name, rounds=rounds), tmp_path, dtype, LANES[lane]()) as crowd:
        members = founded(crowd)
        crowd.run(until=lambda: members[0].driver.op >= 2)
        for one in members:
            one.session.request_stop()
        crowd.run()
        left = [(one.driver.op, one.driver.root, one.own()) for one in members]
        crowd.close()
        crowd.start_coordinator()
        again = founded(crowd)
        crowd.run(until=lambda: all(one.driver.op >= 0 for one in again))
        for one, (op, root, own) in zip(again, left, strict=True):
            assert (one.began_with[0], one.roots[op]) == (op, root)
            assert own.keys() == one.began_with[1].keys()
            assert all(torch.equal(own[key], one.began_with[1][key]) for key in own)
        if name in ("diloco", "delayed_nesterov"):
            assert any(array.any() for _, _, own in left for array in own.values())
        crowd.run()
        assert again[0].participant.applied_op >= rounds
        assert_agreed(again, again[0].participant.applied_op)


@pytest.mark.parametrize("name", ["diloco", "delayed", "eager", "co2", "ddp"])
def test_a_power_cut_for_everybody_changes_no_bit_of_the_run(tmp_path: Path, name: str):
    """The run goes on with the same bits only where a peer has nothing of its own: error feedback,
    the mixing of streaming and a pair are as they were at the last save."""
    config = config_of(name, min_contributors=3)
    outer = msgspec.structs.replace(config.outer, error_feedback=False)
    config = msgspec.structs.replace(config, outer=outer)
    with crowd_of(config, tmp_path / "whole") as crowd:
        (member, *_) = founded(crowd)
        crowd.run()
        whole = dict(member.roots)
    with crowd_of(config, tmp_path / "cut") as crowd:
        members = founded(crowd)
        crowd.run(until=lambda: all(one.driver.op >= 3 for one in members))
        for one in members:
            crowd.kill(one)
        crowd.start_coordinator()
        again = founded(crowd)
        crowd.run()
        assert all(one.driver.op == ROUNDS for one in again)
        for one in again:
            assert one.roots.items() <= whole.items() and ROUNDS in one.roots


@pytest.mark.parametrize("codec", ["int8", "e3m0", "two_bit", "sign", "topk-4", "none"])
def test_every_codec_carries_a_run(tmp_path: Path, codec: str):
    with crowd_of(config_of("diloco", rounds=3, codec=codec), tmp_path) as crowd:
        members = founded(crowd)
        crowd.run(until=lambda: members[0].driver.op >= 1)
        crowd.kill(members.pop())
        crowd.run()
        assert_agreed(members, 3)
        plans = [op.plan for op in members[0].participant.view.first.commits.values()]
        assert {(plan.codec, plan.exact) for plan in plans} == {(codec, codec != "none")}


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("co2", "e3m0"),
        ("ddp", "int8"),
        ("delayed", "e3m0"),
        ("delayed_nesterov", "int8"),
        ("eager", "e3m0"),
        ("streaming", "e3m0"),
    ],
)
def test_t11_a_mean_that_lost_something_is_the_same_for_all_in_every_strategy(
    tmp_path: Path, name: str, codec: str
):
    with crowd_of(config_of(name, rounds=4, codec=codec), tmp_path) as crowd:
        members = founded(crowd)
        crowd.run()
        assert_agreed(members, 4)
        assert all(len(one.roots) == 5 for one in members)  # op 0 and every round, each compared
        plans = [op.plan for op in members[0].participant.view.first.commits.values()]
        assert {plan.codec for plan in plans} == {codec}


def test_sparse_values_are_gathered_by_all_and_wait_in_error_feedback(tmp_path: Path):
    with crowd_of(config_of("sparseloco", codec="topk-4"), tmp_path) as crowd:
        members = founded(crowd)
        crowd.run()
        assert_agreed(members)
        plans = [op.plan for op in members[0].participant.view.first.commits.values()]
        assert {(plan.kind, plan.codec, plan.result_codec) for plan in plans} == {
            ("gather", "topk-4", "")
        }
        assert all(array.any() for one in members for array in one.own().values())


def test_stochastic_rounding_carries_a_run_that_happens_the_same_twice(tmp_path: Path):
    roots = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        config = config_of("diloco", rounds=3, rounding="stochastic")
        with crowd_of(config, tmp_path / place) as crowd:
            members = founded(crowd)
            crowd.run()
            assert_agreed(members, 3)
            roots.append(members[0].driver.root)
    assert roots[0] == roots[1]


def test_slow_peers_make_fewer_steps_and_all_are_done_together(tmp_path: Path):
    config = config_of("delayed_nesterov")
    config = msgspec.structs.replace(
        config, outer=msgspec.structs.replace(config.outer, inner_steps=8)
    )
    with crowd_of(config, tmp_path) as crowd:
        speeds = {1: 0.01, 2: 0.019, 3: 0.039}
        members = [crowd.add(number, step_s=step_s) for number, step_s in speeds.items()]
        crowd.run()
        assert_agreed(members)
        first, *later = [op.plan for op in members[0].participant.view.first.commits.values()]
        assert [member.weight for member in first.members] == [255, 255, 255]
        for plan in later:
            assert plan.fastest_steps_per_s == pytest.approx(100)
            assert [member.weight for member in plan.members] == [255, 127, 63]
        assert [one.driver.strategy.own_steps for one in members] == [8, 4, 2]


def test_a_slow_peer_is_served_by_its_steps_and_one_that_is_nearly_as_fast_makes_all(
    tmp_path: Path,
):
    config = config_of("diloco")
    config = msgspec.structs.replace(
        config, outer=msgspec.structs.replace(config.outer, inner_steps=8)
    )
    with crowd_of(config, tmp_path) as crowd:
        speeds = {1: 0.01, 2: 0.0105, 3: 0.039}
        members = [crowd.add(number, step_s=step_s) for number, step_s in speeds.items()]
        crowd.run()
        assert_agreed(members)
        ops = members[0].participant.view.first.commits.values()
        assert [one.driver.strategy.own_steps for one in members] == [8, 8, 2]
        for op in [*ops][1:]:
            assert sorted(member.weight for member in op.plan.members) == [63, 255, 255]
            assert op.frozen is not None and len(op.frozen) == 3, "it is in every round"


def test_who_was_killed_comes_back_by_replay(tmp_path: Path):
    with crowd_of(config_of("diloco"), tmp_path) as crowd:
        members = founded(crowd)
        killed = members.pop(0)
        crowd.run(until=lambda: killed.driver.op >= 2)
        crowd.kill(killed)
        again = crowd.add(1)
        crowd.run()
        replayed = [report.round for report in again.reports if report.outcome == "replayed"]
        assert replayed and replayed[0] == again.began_with[0] + 1
        assert_agreed([again, *members])


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_robust_rule_carries_a_run_through_a_death(tmp_path: Path, rule: str):
    config = config_of("diloco", min_contributors=3)
    outer = msgspec.structs.replace(config.outer, robust=rule)
    config = msgspec.structs.replace(config, outer=outer)
    assert first_problem(config) is None
    with crowd_of(config, tmp_path) as crowd:
        members = [*founded(crowd), crowd.add(4)]
        crowd.run(until=lambda: members[0].driver.op >= 2)
        crowd.kill(members.pop())
        crowd.run()
        assert_agreed(members, members[0].driver.op)
        plans = [op.plan for op in members[0].participant.view.first.commits.values()]
        assert {(plan.rule, plan.exact) for plan in plans} == {(rule, False)}


@pytest.mark.parametrize("name", ["diloco", "streaming"])
def test_centered_clipping_begins_from_the_last_result_as_soon_as_all_have_it(
    tmp_path: Path, name: str
):
    """A newcomer, a return without its state's results and a new coordinator change nothing."""
    config = config_of(name, rounds=10, codec="int8", min_contributors=3)
    outer = msgspec.structs.replace(config.outer, robust="centered-clip")
    config = msgspec.structs.replace(config, outer=outer)
    turns = config.outer.fragments
    with crowd_of(config, tmp_path) as crowd:
        members = founded(crowd)
        crowd.run(until=lambda: members[0].driver.op >= 4)
        late = crowd.add(4)
        crowd.run()
        assert_agreed([*members, late], 10)
        views = members[0].participant.view.first
        plans = {op: view.plan for op, view in views.commits.items()}
        assert not views.skips and len(plans) == 10
        assert any(late.peer in view.weights for view in views.commits.values())
        for op, plan in plans.items():
            assert plan.scalars == "centred" and plan.centre in (0, op - turns)
        assert [plans[op].centre for op in (1, turns)] == [0, 0]
        assert all(plans[op].centre == op - turns for op in (turns + 1, 10))
