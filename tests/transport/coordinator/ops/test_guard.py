"""A run goes back where most say that the loss has leapt; half of the peers cannot make it."""

import itertools
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ops.guard import (
    GuardTerms,
    bound_of,
    leapt,
    rests_until,
    told,
)
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.ledger.plan_rules import check_plan
from swarmtrain_transport.ledger.snapshots import from_image, image_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Plan, Rewind, Skip
from tests.transport.hall import Hall, opened, root_of
from tests.transport.rig import A, B, C, begun_chain

GUARD = GuardTerms(spike=2.0, window=4, back=1, limit=2)
NAN = math.nan


def ready(hall: Hall, op: int, losses: dict[PeerId, float | None], pinned: int = 0) -> None:
    for peer, loss in losses.items():
        root = root_of(op - 1)
        hall.say(peer, m.Applied(op - 1, root))
        hall.say(peer, m.Ready(op, 8, op - 1, root, loss=loss, pinned=pinned))


def run_op(hall: Hall, op: int, losses: dict[PeerId, float | None]) -> None:
    ready(hall, op, losses)
    hall.exchange(*losses)
    for peer in losses:
        hall.say(peer, m.Applied(op, root_of(op)))


def run_to(op: int, *peers: PeerId, loss: float | None = 1.0, **terms: Any) -> Hall:
    """A run whose rounds up to `op` went well."""
    hall = opened(*(peers or (A, B, C)), guard=GUARD, **terms)
    for number in range(1, op + 1):
        run_op(hall, number, dict.fromkeys(peers or (A, B, C), loss))
    return hall


def test_what_most_lose_takes_the_run_back_before_the_next_round_is_planned() -> None:
    hall = run_to(5)
    ready(hall, 6, {A: 9.0, B: 8.0, C: 1.0}, pinned=2)
    (back,) = hall.bodies(Rewind)
    assert back == Rewind(
        4, "after round 5 most lost 8, above 2 times the usual 1",
        losses={A: 9.0, B: 8.0, C: 1.0}, bound=2.0, times=1,
    )  # fmt: skip
    assert hall.plan().op == 5
    # The round comes again, and what it loses then is what counts.
    run_op(hall, 5, dict.fromkeys((A, B, C), 1.1))
    assert hall.plan().losses == (1.1, 1.1, 1.1)
    ready(hall, 6, dict.fromkeys((A, B, C), 1.0))
    assert hall.plan().op == 6 and len(hall.bodies(Rewind)) == 1


@pytest.mark.parametrize("lie", [NAN, math.inf, 1e300, -math.inf, -1.0, 0.0, None])
def test_one_liar_takes_nobody_back_nor_keeps_the_others_from_it(lie: float | None) -> None:
    hall = run_to(4)
    for op in range(5, 8):
        run_op(hall, op, {A: lie, B: 1.0, C: 1.0})
    assert not hall.bodies(Rewind)
    ready(hall, 8, {A: lie, B: 9.0, C: 9.0})
    assert len(hall.bodies(Rewind)) == 1


@pytest.mark.parametrize(("first", "then"), [(0.0, NAN), (1e-9, 1e9), (1.0, NAN), (None, 9.0)])
def test_of_two_both_must_say_so_and_what_one_has_said_before_is_not_usual(
    first: float | None, then: float
) -> None:
    hall = opened(A, B, guard=GUARD)
    for op in range(1, 6):
        run_op(hall, op, {A: first, B: 1.0})
    ready(hall, 6, {A: then, B: 1.0})
    assert not hall.bodies(Rewind)
    hall.exchange(A, B)
    for peer in (A, B):
        hall.say(peer, m.Applied(6, root_of(6)))
    ready(hall, 7, {A: then, B: 9.0})
    assert len(hall.bodies(Rewind)) == 1


def test_a_peer_that_is_alone_is_believed() -> None:
    hall = run_to(4, A)
    ready(hall, 5, {A: NAN})
    (back,) = hall.bodies(Rewind)
    assert back.losses == {A: limits.TOLD_LOSS_MAX} and back.op == 3
    assert back.reason == "after round 4 the loss of most was no number"


def test_without_three_rounds_nothing_is_unusual() -> None:
    hall = run_to(2)
    ready(hall, 3, dict.fromkeys((A, B, C), NAN))
    assert not hall.bodies(Rewind)


@pytest.mark.parametrize("loss", [None, 0.0, -3.0])
def test_a_loss_that_nobody_tells_or_that_has_no_multiples_is_no_leap(loss: float | None) -> None:
    hall = run_to(5, loss=loss)
    ready(hall, 6, dict.fromkeys((A, B, C), loss))
    assert not hall.bodies(Rewind) and hall.plan().op == 6


def test_without_a_guard_nothing_of_it_is_in_the_ledger() -> None:
    hall = opened()
    for op in range(1, 6):
        run_op(hall, op, dict.fromkeys((A, B, C), 1.0 if op < 5 else NAN))
    assert not hall.bodies(Rewind)
    assert all(not plan.losses for plan in hall.bodies(Plan))


def test_after_so_many_times_it_rests_and_a_restart_forgets_nothing() -> None:
    hall = run_to(6)
    for _ in range(GUARD.limit):
        ready(hall, 7, dict.fromkeys((A, B, C), 9.0))
        run_op(hall, 6, dict.fromkeys((A, B, C), 1.0))
    assert [back.times for back in hall.bodies(Rewind)] == [1, 2]
    assert hall.bodies(Rewind)[-1].reason.endswith(
        "; that was time 2 of 2, so the guard rests until round 11"
    )
    again = Hall(tuple(hall.records), term=2, guard=GUARD, start_peers=3)
    for peer in (A, B, C):
        again.join(peer, states=(m.Applied(6, root_of(6)),))
        again.ack(peer)
    for op in range(7, 11):
        run_op(again, op, dict.fromkeys((A, B, C), 9.0))
    assert len(again.bodies(Rewind)) == GUARD.limit and again.machine.view.first.last_op == 10
    ready(again, 11, dict.fromkeys((A, B, C), NAN))  # what was too much is usual now, this is not
    assert again.bodies(Rewind)[-1].times == 1


def test_it_goes_no_further_back_than_most_can() -> None:
    hall = run_to(6)
    wide = GuardTerms(spike=2.0, window=4, back=4)
    view = hall.machine.view.first
    said = {
        peer: m.Ready(7, 8, 6, root_of(6), loss=9.0, pinned=pinned)
        for peer, pinned in ((A, 1), (B, 4), (C, -1))
    }
    due = leapt(wide, view, said.keys(), said)
    assert due is not None and due.op == 4
    for peer in (A, B):
        said[peer] = msgspec.structs.replace(said[peer], pinned=6)
    assert leapt(wide, view, said.keys(), said) is None


def test_skipped_rounds_are_not_counted_and_overlapping_ones_are() -> None:
    chain = begun_chain()
    for _ in range(5):
        chain.add(chain.plan(losses=(1.0,) * 3))
        chain.commit(A, B, C)
    chain.add(chain.plan())
    chain.add(Skip(6, "deadline"))
    view = chain.view.first
    said = {peer: m.Ready(7, 8, 6, bytes(32), loss=9.0, pinned=0) for peer in (A, B, C)}
    for back, at_once, to in ((1, 1, 4), (2, 1, 3), (1, 2, 4), (1, 3, 3), (8, 1, 0)):
        due = leapt(GuardTerms(2.0, 4, back), view, said.keys(), said, at_once)
        assert due is not None and due.op == to


def test_a_slow_peer_that_is_waited_for_counts_among_those_who_must_say_so() -> None:
    hall = run_to(5)
    view, late = hall.machine.view.first, m.Ready(6, 8, 5, root_of(5), loss=9.0, pinned=0)
    assert leapt(GUARD, view, {A, B, C}, {A: late, B: None, C: None}) is None
    due = leapt(GUARD, view, {A, B, C}, {A: late, B: late, C: None})
    assert due is not None and due.losses[C] == -1.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6),
    st.lists(st.one_of(st.none(), st.floats()), min_size=24, max_size=24),
)
def test_half_of_the_peers_cannot_take_back_a_run_that_learns(
    honest: list[float], lies: list[float | None]
) -> None:
    """Whatever as many liars as there are honest peers have told in each round."""
    guard = GuardTerms(spike=4.1, window=4)
    peers = [bytes([number]) * 32 for number in range(2 * len(honest))]
    chain, drawn = begun_chain(peers), itertools.cycle(lies)
    for op in range(1, 5):
        said = {
            peer: m.Ready(op, 8, op - 1, bytes(32), loss=loss, pinned=0)
            for peer, loss in zip(
                peers, [*honest, *itertools.islice(drawn, len(honest))], strict=True
            )
        }
        assert leapt(guard, chain.view.first, said.keys(), said) is None
        chain.add(chain.plan(peers, losses=tuple(told(sorted(peers), said, op).values())))
        chain.commit(*peers)


# ---- records


def test_a_rewind_without_a_leap_contradicts_the_ledger() -> None:
    hall = run_to(5)
    good = Rewind(4, "a leap", losses={A: 9.0, B: 9.0, C: 1.0}, bound=2.0, times=1)
    for changes in (
        {"losses": {A: 9.0, B: 1.0, C: 1.0}}, {"losses": {A: 9.0, B: 1.0}}, {"bound": 0.0},
        {"bound": 9.0}, {"bound": NAN}, {"times": 0}, {"op": -1},
    ):  # fmt: skip
        with pytest.raises(RemoteFault):
            hall.machine.writer.append(msgspec.structs.replace(good, **changes))


def test_the_fold_with_a_guard_is_the_same_again_from_its_image() -> None:
    hall = run_to(6)
    ready(hall, 7, dict.fromkeys((A, B, C), 9.0))
    view, reader = hall.machine.view, hall.machine.writer.ledger.reader
    found, _ = from_image(image_of(view, reader))
    assert (found.first.guarded_op, found.first.guarded) == (7, 1)
    assert rests_until(GuardTerms(2.0, 4, 1, 1), found.first) == 11
    assert bound_of(GUARD, found.first) == bound_of(GUARD, view.first) == 2.0
    assert bound_of(GUARD, LedgerView().first) == math.inf


@pytest.mark.parametrize("losses", [(1.0,), (1.0, NAN, 1.0), (1.0, -2.0, 1.0), (1.0, 1e10, 1.0)])
def test_a_plan_has_one_loss_for_each_contributor(losses: tuple[float, ...]) -> None:
    plan = begun_chain().plan()
    check_plan(msgspec.structs.replace(plan, losses=(1.0, -1.0, 1e9)), 24)
    with pytest.raises(RemoteFault):
        check_plan(msgspec.structs.replace(plan, losses=losses), 24)
