"""FREEZE, REASSIGN and SFREEZE, from reports in any order (protocol.md T4, T6, T7)."""

import itertools

import pytest

from swarmtrain_transport.wire.messages import Withdraw
from swarmtrain_transport.wire.records import (
    Freeze,
    Reassign,
    Skip,
    SliceFreeze,
    SliceSpec,
)
from tests.transport.coordinator.ops.table import (
    DEADLINE_S,
    GATHER_S,
    REPAIR_S,
    SCATTER_S,
    Table,
    table,
    with_receivers,
)
from tests.transport.rig import BOOT, STRANGER, A, B, C, D, E

# ---- FREEZE


def test_freeze_waits_for_every_live_contributor_at_every_owner() -> None:
    op = table()
    for index in (0, 1):
        op.got(index, A, B, C)
    op.got(2, A, B)
    assert op.decide(SCATTER_S - 0.01) is None
    op.got(2, C)
    assert op.decide() == Freeze(1, (A, B, C), {})


def test_freeze_comes_at_d_scatter_without_who_is_late() -> None:
    op = table()
    op.got(0, A, B)
    op.got(1, A, B)
    op.got(2, A, B, C)
    assert op.decide(SCATTER_S - 0.01) is None
    assert op.decide(SCATTER_S) == Freeze(1, (A, B), {C: "late"})


def test_freeze_does_not_wait_for_the_dead_and_says_lost() -> None:
    op = with_receivers(D)
    op.alive = {A, B, D}
    assert [type(d) for d in op.decide_all()] == [Reassign]
    op.got(0, A, B)
    op.got(1, A, B)
    assert op.decide() == Freeze(1, (A, B), {C: "lost"})


def test_freeze_does_not_wait_for_receivers() -> None:
    op = with_receivers(D, E)
    op.got_all()
    assert op.decide() == Freeze(1, (A, B, C), {})


def test_a_refused_contribution_and_a_withdrawn_one_are_left_out_with_their_reasons() -> None:
    op = table(A, B, C, D)
    op.op.reports.hear(D, Withdraw(op.view.plan_id, "nonfinite"), 0.0)
    op.got(0, A, B, refused={C: "scale"})
    op.got(1, A, B, refused={C: "scale"})
    for index in (2, 3):
        op.got(index, A, B, C, D)
    freeze = op.decide()
    assert freeze == Freeze(1, (A, B), {C: "refused:scale", D: "withdrew:nonfinite"})
    assert op.accusers == {C: (A, B)}


def test_reasons_that_peers_choose_are_short() -> None:
    op = table(A, B, C, D)
    op.op.reports.hear(D, Withdraw(op.view.plan_id, "x" * 100_000), 0.0)
    for index in op.indexes:
        op.got(index, A, B, refused={C: "y" * 100_000})
    freeze = op.decide()
    assert isinstance(freeze, Freeze)
    assert all(len(reason) < 60 for reason in freeze.excluded.values())
    alone = table(A, B, C)
    for index, lacking in enumerate(({C: "z" * 100_000}, {}, {})):
        alone.got(index, *({A, B, C} - lacking.keys()), refused=lacking)
    assert isinstance(alone.decide(), Reassign)
    assert len(alone.lacked[C]) < 60


def test_one_unreachable_owner_is_relieved_at_d_scatter_and_nobody_is_left_out() -> None:
    op = table(A, B, C, D)
    for index in (0, 1, 2):
        op.got(index, A, B, C, D)
    op.got(3, D)
    moved = op.decide(SCATTER_S)
    assert isinstance(moved, Reassign) and moved.owner != D
    assert (moved.slice_index, moved.reason) == (3, "unreachable for most")
    assert op.lacked == {A: "absent", B: "absent", C: "absent"}
    assert op.decide() == Freeze(1, (A, B, C, D), {})


@pytest.mark.parametrize(("rate", "owner"), [(10.0, B), (0.0, B), (None, A)])
def test_a_slice_goes_on_to_whom_all_meet_without_a_relay(rate: float | None, owner: bytes) -> None:
    op = table(A, B, C, D)
    if rate is not None:
        op.detours = {(A, C): rate}
    op.lose(D)
    op.got_all()
    assert op.decide() == Reassign(1, 3, 1, owner, "owner lost")


def test_one_bad_link_costs_a_slice_and_nobody_is_left_out() -> None:
    for owner in range(4):
        for contributor in (A, B, C, D):
            op = table(A, B, C, D)
            for index in op.indexes:
                op.got(index, *({A, B, C, D} - ({contributor} if index == owner else set())))
            moved = op.decide(SCATTER_S)
            assert isinstance(moved, Reassign) and moved.slice_index == owner
            assert moved.owner not in (contributor, op.plan.slices[owner].owner)
            assert op.lacked == {contributor: "absent"}
            assert op.decide() == Freeze(1, (A, B, C, D), {})


def end_of(op: Table, liars: set[bytes], victims: set[bytes], kept_from: set[bytes]) -> None:
    """Everybody reports whenever it owns a slice, the liars without their victims; they send
    nothing to some of the honest. Until every slice has its contributors."""
    everybody = set(op.view.weights)
    while op.view.frozen is None or None in op.view.slice_sets:
        for index, owner in enumerate(op.view.owners):
            lacks = victims - {owner} if owner in liars else liars if owner in kept_from else set()
            op.got(index, *(everybody - lacks))
        if op.decide() is None:
            op.now_s += REPAIR_S / 2
        assert op.view.outcome is None and op.now_s < 2 * DEADLINE_S


@pytest.mark.parametrize("number", (1, 2))
@pytest.mark.parametrize("liars", list(itertools.combinations((A, B, C, D, E), 2)))
def test_two_of_five_leave_nobody_honest_out_of_any_slice_whatever_they_say(
    liars: tuple[bytes, bytes], number: int
) -> None:
    honest = [peer for peer in (A, B, C, D, E) if peer not in liars]
    some = [set(s) for size in range(4) for s in itertools.combinations(honest, size)]
    for victims, kept_from in itertools.product(some, some):
        op = table(A, B, C, D, E, op=number)
        end_of(op, set(liars), victims, kept_from)
        assert op.view.frozen is not None and set(honest) <= set(op.view.frozen)
        assert all(set(honest) <= set(named or ()) for named in op.view.slice_sets)
        assert max(op.view.attempts) <= 3 and op.now_s <= SCATTER_S + 3 * REPAIR_S


def test_after_a_restart_an_earlier_owners_word_still_counts() -> None:
    op = table(A, B, C, D, E)
    for index in op.indexes:
        op.got(index, *({A, B, C, D, E} - ({E} if index == 0 else set())))
    moved = op.decide(SCATTER_S)
    assert isinstance(moved, Reassign) and op.view.words.against(E) == {A}
    again = Table(op.plan)
    again.view.apply(Reassign(1, 0, 1, B, "at odds", {E: "absent"}))
    again.got(0, A, B, C, D)
    for index in (1, 2, 3, 4):
        again.got(index, *({A, B, C, D, E} - ({E} if index in (2, 3) else set())))
    frozen = again.decide(SCATTER_S)
    assert frozen == Freeze(1, (A, B, C, D), {E: "late"})
    assert again.accusers == {E: (A, C, D)}


def test_with_nobody_left_to_take_the_slice_one_word_leaves_out_and_is_no_fault() -> None:
    op = table(A, B)
    op.view.unfit = {B: 3}
    op.got(0, A)
    op.got(1, A, B)
    assert op.decide(SCATTER_S) == Freeze(1, (A,), {B: "late"})
    assert op.accusers == {B: (A,)} and not op.view.words.at_fault


def test_an_owner_that_lacks_most_is_relieved_though_all_others_are_at_odds_too() -> None:
    op = table(A, B, C, D)
    op.view.unfit = dict.fromkeys((A, B, C, D), 3)
    for index in (0, 1, 2):
        op.got(index, A, B, C)
    moved = op.decide(SCATTER_S)
    assert isinstance(moved, Reassign) and moved.slice_index == 3
    assert op.decide() == Freeze(1, (A, B, C), {D: "late"})


def test_of_two_peers_the_slice_goes_to_the_other_one() -> None:
    op = table(A, B)
    op.got(0, A, refused={B: "scale"})
    op.got(1, A, B)
    assert op.decide(1.0) == Reassign(1, 0, 1, B, "at odds")
    assert op.decide() == Freeze(1, (A, B), {})


def test_too_few_contributors_at_d_scatter_skip_the_op() -> None:
    op = table(min_contributors=2)
    op.got(0, A)
    op.got(1, A, B)
    op.got(2, A, C)
    decision = op.decide(SCATTER_S)
    assert isinstance(decision, Skip)
    assert op.decide_all() == []


def test_too_few_living_contributors_skip_the_op_at_once() -> None:
    op = table(min_contributors=2)
    op.alive = {A}
    assert isinstance(op.decide(), Skip)


# ---- REASSIGN and SFREEZE


def test_a_dead_owner_is_relieved_before_freeze_and_what_it_gave_whole_stays_elsewhere() -> None:
    op = table()
    op.got_all()
    op.lose(C)
    assert op.decide() == Reassign(1, 2, 1, A, "owner lost")
    assert op.decide() == Freeze(1, (A, B, C), {})
    op.got(2, A, B)
    assert op.decide() == SliceFreeze(1, 2, 1, (A, B))
    assert op.view.slice_sets == [(A, B, C), (A, B, C), (A, B)]


def test_a_dead_owner_that_gave_one_slice_in_part_is_in_none() -> None:
    op = table()
    op.got(0, A, B, C)
    op.got(1, A, B)
    op.lose(C)
    assert op.decide() == Reassign(1, 2, 1, A, "owner lost")
    assert op.decide() == Freeze(1, (A, B), {C: "lost"})


def test_a_dead_owner_is_relieved_after_freeze_and_its_contribution_stands_elsewhere() -> None:
    op = table()
    op.freeze()
    op.lose(C)
    assert op.decide() == Reassign(1, 2, 1, A, "owner lost")
    assert op.decide() is None
    op.got(2, A, B)
    assert op.decide() == SliceFreeze(1, 2, 1, (A, B))
    assert op.view.slice_sets == [(A, B, C), (A, B, C), (A, B)]


def test_a_slice_is_not_made_again_while_all_its_chunks_are_held() -> None:
    op = table()
    op.freeze()
    op.done(2)
    op.have(2, A, chunks=(True, False))
    op.have(2, B, chunks=(False, True))
    op.lose(C)
    assert op.decide() is None
    op.lose(B)
    decision = op.decide()
    assert isinstance(decision, Reassign)
    assert (decision.slice_index, decision.attempt, decision.owner) == (1, 1, A)


def test_a_published_slice_of_which_a_chunk_is_held_by_nobody_alive_is_made_again() -> None:
    op = table()
    op.freeze()
    op.done(2)
    op.have(2, A, B, chunks=(True, False))
    op.lose(C)
    assert op.decide() == Reassign(1, 2, 1, A, "owner lost")


def test_what_a_restarted_process_held_does_not_count() -> None:
    op = table()
    op.freeze()
    op.done(2)
    assert op.op.reports.returned(C, b"another boot") == []
    assert op.decide() == Reassign(1, 2, 1, A, "owner lost")


def test_a_returning_process_hears_what_was_published_and_a_stranger_nothing() -> None:
    op = table()
    op.freeze()
    news = op.done(1)
    assert op.op.reports.returned(A, BOOT) == [news]
    assert op.op.reports.returned(STRANGER, BOOT) == []


def test_a_silent_owner_is_relieved_at_d_gather_only() -> None:
    op = table()
    op.freeze()
    op.done(0)
    op.done(1)
    assert op.decide(GATHER_S - 0.01) is None
    assert op.decide(GATHER_S) == Reassign(1, 2, 1, A, "owner silent")


def test_an_owner_is_not_relieved_for_silence_before_freeze() -> None:
    op = table()
    op.got(0, A, B, C)
    assert op.decide(SCATTER_S - 0.01) is None


def test_the_next_owner_is_new_to_the_slice_and_has_the_fewest_slices() -> None:
    op = table(A, B, C, D)
    op.got_all()
    op.lose(D)
    first = op.decide()
    assert isinstance(first, Reassign) and first.owner == A
    op.lose(C)
    second = op.decide()
    assert isinstance(second, Reassign) and (second.slice_index, second.owner) == (2, B)
    op.lose(A)
    moved = [d for d in op.decide_all() if isinstance(d, Reassign)]
    assert [(d.slice_index, d.attempt, d.owner) for d in moved] == [(0, 1, B), (3, 2, B)]


def test_without_a_new_owner_left_the_op_is_skipped() -> None:
    op = table(A, B)
    op.freeze()
    op.lose(A)
    assert op.decide() == Reassign(1, 0, 1, B, "owner lost")
    op.lose(B)
    op.alive.add(A)
    decision = op.decide_all()[-1]
    assert isinstance(decision, Skip) and "no owner is left" in decision.reason


def test_a_silent_owner_that_cannot_be_replaced_does_not_hide_a_dead_one() -> None:
    op = table()
    for owner in (B, C):
        op.view.apply(Reassign(1, 0, op.view.attempts[0] + 1, owner, "test"))
    op.got_all()
    assert isinstance(op.decide(), Freeze)
    op.got(0, A, B, C)
    assert isinstance(op.decide(), SliceFreeze)
    op.lose(B)
    decisions = op.decide_all(GATHER_S)
    assert any(isinstance(d, Reassign) and d.slice_index == 1 for d in decisions)


def test_sfreeze_waits_for_the_living_and_leaves_nobody_out_on_one_owners_word() -> None:
    op = table(A, B, C, D)
    op.freeze()
    op.lose(D)
    op.decide_all(10.0)
    op.got(3, A, B)
    assert op.decide(10.0 + REPAIR_S - 0.01) is None
    assert op.decide(10.0 + REPAIR_S) == Reassign(1, 3, 2, B, "at odds")
    assert op.lacked == {C: "absent"}
    op.got(3, A, B)
    assert op.decide(10.0 + 2 * REPAIR_S - 0.01) is None
    assert op.decide(10.0 + 2 * REPAIR_S) == SliceFreeze(1, 3, 2, (A, B))
    assert op.lacked == {C: "absent"}
    assert op.view.words.at_fault == {C: "late"}


def test_sfreeze_takes_what_a_dead_contributor_had_sent_already() -> None:
    op = table(A, B, C, D)
    op.freeze()
    op.lose(D)
    op.decide_all(10.0)
    op.got(3, A, B, C)
    op.lose(C)
    freezes = [d for d in op.decide_all() if isinstance(d, SliceFreeze)]
    assert freezes == [SliceFreeze(1, 3, 1, (A, B, C))]


def test_sfreeze_never_names_whom_freeze_left_out() -> None:
    op = table(A, B, C, D)
    op.lose(D)
    op.decide_all(SCATTER_S - 1)
    for index in (0, 1, 2):
        op.got(index, A, B)
    op.got(3, A, B, C)
    decisions = op.decide_all(SCATTER_S)
    assert Freeze(1, (A, B), {C: "late", D: "lost"}) in decisions
    assert SliceFreeze(1, 3, 1, (A, B)) in decisions


def test_a_new_owner_has_as_long_as_the_first_one_needed_and_half_again() -> None:
    """It had D_repair alone, though D_op was at its cap: so did the next ones, and all gave up."""
    for given_s, waits_s in ((10.0, REPAIR_S), (40.0, SCATTER_S), (28.0, 42.0)):
        op = table(A, B, C, slices=(SliceSpec(0, 8, A),))
        op.now_s = given_s
        op.freeze()
        op.lose(A)
        assert isinstance(op.decide(), Reassign)
        assert op.decide(given_s + waits_s - 0.1) is None
        assert isinstance(op.decide(given_s + waits_s), Reassign), "nothing has come"
    op.now_s += 40.0
    op.got_all()
    assert op.decide() == SliceFreeze(1, 0, 2, (A, B, C))


def test_too_few_contributors_of_a_repaired_slice_skip_the_op() -> None:
    op = table(min_contributors=2)
    op.freeze()
    op.lose(C)
    op.decide_all(10.0)
    op.got(2, A)
    elsewhere = op.decide(10.0 + REPAIR_S)
    assert elsewhere == Reassign(1, 2, 2, B, "at odds")
    op.got(2, B)
    assert op.decide(10.0 + 2 * REPAIR_S - 0.1) is None
    assert isinstance(op.decide(10.0 + 2 * REPAIR_S), Skip), "nobody is left to try"


def test_a_repaired_slice_is_not_tried_elsewhere_when_too_few_contributors_live() -> None:
    op = table(min_contributors=2)
    op.freeze()
    op.lose(C)
    op.decide_all(10.0)
    op.got(2, A)
    op.lose(B)
    assert isinstance(op.decide_all(10.0 + REPAIR_S)[-1], Skip)


def test_each_death_extends_the_deadline_to_twice_its_length_at_most() -> None:
    op = table(A, B, C, D, E)
    op.freeze()
    for number, peer in enumerate((E, D, C), start=1):
        op.lose(peer)
        op.decide_all()
        assert op.op.timers.end_s == pytest.approx(min(200.0, 100.0 + 50.0 * number))
