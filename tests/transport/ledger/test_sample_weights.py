"""Samples that the swarm has trained on, from the ledger alone: counted once, whoever reads it and
when."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.plan_rules import check_plan
from swarmtrain_transport.ledger.sample_weights import believed, in_result
from swarmtrain_transport.wire.records import Commit, Freeze, Member, Plan, Rewind, Skip, bodies_of
from tests.transport.coordinator.ops.test_planning import plan_now, ready_line
from tests.transport.rig import BOOT, A, B, C, Chain, begun_chain, commit_of, plan_body


def test_plan_repeats_what_contributors_said_where_the_run_counts_it() -> None:
    lines = {peer: ready_line(peer, samples=count) for peer, count in ((C, 7), (A, 28), (B, 9))}
    counted = plan_now(begun_chain(), lines, counts_samples=True)
    plain = plan_now(begun_chain(), lines)
    assert counted is not None and counted.samples == (28, 9, 7)
    assert plain is not None and plain.samples == ()
    assert b"samples" not in begun_chain().next_record(plain).body


def test_a_boast_counts_four_times_the_middle_one_and_less_than_nothing_is_nothing() -> None:
    assert believed((1 << 60, 10, 20)) == (80, 10, 20)
    assert believed((-5, 1 << 60)) == (0, 0)
    assert believed((10, 1 << 60)) == (10, 40), "of two, four to one is the most"
    assert believed(()) == ()


@given(st.lists(st.integers(-(1 << 63), 1 << 63), min_size=1, max_size=8))
def test_what_is_believed_is_what_was_said_or_less(told: list[int]) -> None:
    found = believed(told)
    middle = sorted(max(0, one) for one in told)[(len(told) - 1) // 2]
    expected = [min(max(0, one), limits.SAMPLES_SPREAD * middle) for one in told]
    assert list(found) == expected


def weighing(*weights: int, samples: tuple[int, ...]) -> Plan:
    """A PLAN of A, B and C with these weights and samples."""
    named = zip((A, B, C), weights, strict=True)
    members = tuple(Member(peer, BOOT, weight) for peer, weight in named)
    return plan_body(members=members, samples=samples)


@pytest.mark.parametrize("samples", [(1,), (1, 2, 3, 4), (1, -1, 2), (2, 2, 9)])
def test_a_plan_whose_samples_are_not_its_contributors_or_a_boast_is_refused(samples: Any) -> None:
    with pytest.raises(RemoteFault, match="samples are not one number for each"):
        check_plan(weighing(85, 170, 255, samples=samples), 24)
    check_plan(weighing(85, 170, 255, samples=(1, 2, 3)), 24)


def test_a_plan_whose_weights_are_not_those_of_its_samples_is_refused() -> None:
    with pytest.raises(RemoteFault, match="weights are not those of the samples"):
        check_plan(weighing(255, 255, 255, samples=(1, 2, 3)), 24)
    check_plan(weighing(255, 255, 255, samples=(7, 7, 7)), 24)


def test_one_boast_among_five_makes_four_to_one_of_weights_and_of_the_schedule() -> None:
    """The text may be leased or own: weights and the schedule by tokens believe the same."""
    peers = [bytes([number]) * 32 for number in range(1, 6)]
    told = dict(zip(peers, (10**9, 24, 24, 24, 24), strict=True))
    lines = {peer: ready_line(peer, samples=count) for peer, count in told.items()}
    plan = plan_now(begun_chain(peers), lines, counts_samples=True)
    assert plan is not None
    assert [member.weight for member in plan.members] == [255, 63, 63, 63, 63]
    assert plan.samples == (96, 24, 24, 24, 24)


def counted(chain: Chain, *named: bytes, samples: tuple[int, ...] = (10, 20, 30)) -> None:
    """One op whose result has these contributors; none of them skips it."""
    chain.add(chain.plan(samples=samples))
    if named:
        chain.commit(*named)
    else:
        chain.add(Skip(chain.view.first.last_op + 1, "deadline"))


def test_only_those_in_a_result_count_and_skips_add_nothing() -> None:
    chain = begun_chain()
    counted(chain, A, B, C)
    counted(chain, A, C)
    counted(chain)
    counted(chain, B)
    assert [chain.view.first.samples.after(op) for op in range(5)] == [0, 60, 100, 100, 120]


def test_a_receiver_stands_between_and_counts_nothing() -> None:
    members = (Member(A, BOOT, 5), Member(B, BOOT, 0), Member(C, BOOT, 255))
    plan = plan_body(members=members, samples=(10, 30))
    chain = begun_chain()
    chain.add(plan_body(members=members, samples=(10, 30), previous_outcome=_outcome(chain)))
    chain.add(Freeze(1, (C,), {A: "late"}))
    assert chain.view.first.op is not None
    commit = commit_of(chain.view.first.op)
    assert in_result(plan, commit) == 30


def _outcome(chain: Chain) -> bytes:
    return chain.view.first.last_outcome


def test_a_rewind_takes_back_what_it_cancels() -> None:
    chain = begun_chain()
    for _ in range(3):
        counted(chain, A, B, C)
    chain.add(Rewind(1, "nobody holds it"))
    assert chain.view.first.samples.after(chain.view.first.last_op) == 60
    counted(chain, A)
    assert chain.view.first.samples.sums == {1: 60, 2: 70}
    chain.add(Rewind(0, "nobody holds it"))
    assert chain.view.first.samples.sums == {}


def test_a_run_that_counts_nothing_has_nothing_however_long_it_is() -> None:
    chain = begun_chain()
    for _ in range(3):
        counted(chain, A, samples=())
    assert chain.view.first.samples.sums == {} and chain.view.first.samples.after(1 << 60) == 0


@given(st.data())
def test_the_sum_is_that_of_reading_all_records_naively(data: st.DataObject) -> None:
    chain = begun_chain()
    for _ in range(data.draw(st.integers(1, 8))):
        named = data.draw(st.sets(st.sampled_from([A, B, C])))
        samples = tuple(data.draw(st.integers(0, 99)) for _ in range(3))
        counted(chain, *sorted(named), samples=samples)
        if data.draw(st.booleans()):
            chain.add(Rewind(data.draw(st.integers(0, chain.view.first.last_op - 1)), "drawn"))
    plans: dict[int, Plan] = {}
    results: dict[int, int] = {}
    for body in bodies_of(chain.records):
        if isinstance(body, Plan):
            plans[body.op] = body
        elif isinstance(body, Commit):
            told = dict(zip((A, B, C), plans[body.op].samples, strict=True))
            results[body.op] = sum(told[peer] for peer in body.contributors)
        elif isinstance(body, Rewind):
            results = {op: count for op, count in results.items() if op <= body.op}
    for op in range(chain.view.first.last_op + 1):
        naive = sum(count for number, count in results.items() if number <= op)
        assert chain.view.first.samples.after(op) == naive
