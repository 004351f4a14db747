"""T6 in cells: an owner that gives no sums keeps the other pieces of its range from being made."""

import pytest

from swarmtrain_transport.coordinator.ops import faults
from swarmtrain_transport.ledger.fold import num_chunks
from swarmtrain_transport.wire.messages import Got, Have
from swarmtrain_transport.wire.records import Reassign, SliceFreeze
from tests.transport.coordinator.ops.test_differing_sums import PEERS, Table, frozen


def lacking(*indexes: int, cell: int = 0) -> Table:
    """After FREEZE these lack the sums of slice 0's owner, or another's of that range; all else is
    published, and with all."""
    table = frozen()
    reports, view = table.op.reports, table.view
    for index, owner in enumerate(view.owners):
        if index in indexes:
            said = Got(view.plan_id, index, 0, table.given(index), lacks=(cell,))
            reports.hear(owner, said, 1.0)
            continue
        publish(table, index)
    return table


def publish(table: Table, index: int) -> None:
    """A first owner publishes its slice, and everybody has it."""
    reports, view = table.op.reports, table.view
    reports.hear(view.owners[index], table.done(index), 1.0)
    name, whole = view.result_set_id(index), (True,) * num_chunks(view.plan, index)
    assert name is not None
    for peer in PEERS:
        reports.hear(peer, Have(view.plan_id, index, 0, name, whole), 1.0)


@pytest.mark.parametrize("indexes", [(1,), (1, 2)])
def test_a_dead_owner_whose_sums_are_lacked_is_relieved_at_once(indexes: tuple[int, ...]) -> None:
    """Its own slice is held, but nobody else has its sums: to wait until D_gather is in vain."""
    table = lacking(*indexes)
    dead = table.view.owners[0]
    assert table.decide(2.0) is None, "it lives: they are on their way"
    moved = table.op.decide({*PEERS} - {dead}, 3.0)
    assert isinstance(moved, Reassign) and moved.slice_index == 0
    assert moved.reason == "owner lost"
    table.view.apply(moved)
    assert table.op.decide({*PEERS} - {dead}, 3.0) is None, "the others make theirs again"


def test_a_dead_owner_whose_sums_all_have_stays() -> None:
    table = lacking()
    table.op.reports.held_s.clear()
    view = table.view
    said = Got(view.plan_id, 1, 0, table.given(1), lacks=(0,))
    table.op.reports.hear(view.owners[1], said, 2.0)
    decision = table.op.decide({*PEERS} - {view.owners[0]}, 3.0)
    assert not isinstance(decision, Reassign), "who has published lacks nothing"


def test_of_two_dead_owners_the_one_goes_whose_slice_nobody_holds() -> None:
    """What the other says that it lacks counts no more; but it goes too, as all is void."""
    table = lacking(1)
    alive = {*PEERS} - set(table.view.owners[:2])
    moved = table.op.decide(alive, 3.0)
    assert isinstance(moved, Reassign) and moved.slice_index == 1
    table.view.apply(moved)
    moved = table.op.decide(alive, 3.0)
    assert isinstance(moved, Reassign) and moved.slice_index == 0


def test_where_nobody_is_left_who_could_take_over_the_op_is_not_given_up() -> None:
    """The sums may be on their way: they were sent before the owner died."""
    table = lacking(1)
    near = table.view.cells.among(PEERS, 0)
    assert table.op.decide({*PEERS} - {*near}, 3.0) is None


def test_a_live_owner_whose_sums_most_lack_is_relieved_after_d_gather() -> None:
    table = lacking(1, 2)
    gather_s = table.op.timers.gather_s
    assert table.decide(gather_s - 0.1) is None
    moved = table.decide(gather_s)
    assert isinstance(moved, Reassign)
    assert (moved.slice_index, moved.reason) == (0, faults.NO_SUMS)


def test_who_waits_for_the_sums_of_a_new_owner_is_not_relieved_with_the_old_one() -> None:
    """Two honest owners went as silent in the moment in which the one went who gave them nothing
    (`simulate --cells 3 --peers 40 --seed 375`)."""
    table = lacking(1, 2)
    timers = table.op.timers
    timers.extended_s = timers.deadline_s  # by deaths
    silent_s = timers.silent_s
    moved = table.decide(silent_s)
    assert isinstance(moved, Reassign) and moved.slice_index == 0
    assert table.decide(silent_s + 1.0) is None


def test_who_waits_for_ever_is_relieved_at_d_gather_however_long_a_new_owner_may_take() -> None:
    """The excuse outlasted the op where parts take a third of it: who falsely says that it lacks
    the new owner's sums was relieved by nobody."""
    table = lacking(1, 2)
    timers, now_s = table.op.timers, table.op.timers.gather_s
    timers.given_s = timers.deadline_s / 3
    assert isinstance(table.decide(now_s), Reassign)
    table.op.reports.hear(
        table.view.owners[0], Got(table.view.plan_id, 0, 1, table.given(0)), now_s
    )
    assert isinstance(table.decide(now_s), SliceFreeze)
    assert timers.stuck_s(0) > timers.end_s and table.decide(timers.gather_s - 0.1) is None
    moved = table.decide(timers.gather_s)
    assert isinstance(moved, Reassign) and moved.slice_index == 1


def lacking_again(giver: int = 0, *, deaths: bool = False) -> tuple[Table, float]:
    """One owner alone lacks the sums of another's, and goes for that; the next one lacks them, too.
    Besides, the time until which it has to get them."""
    table = lacking(1, cell=giver)
    view, timers = table.view, table.op.timers
    timers.extended_s = timers.deadline_s * deaths
    now_s = timers.silent_s
    moved = table.decide(now_s)
    assert isinstance(moved, Reassign)
    assert (moved.slice_index, moved.reason) == (1, faults.SILENT), "it might lie"
    said = Got(view.plan_id, 1, 1, table.given(1), lacks=(giver,))
    table.op.reports.hear(view.owners[1], said, now_s)
    assert isinstance(table.decide(now_s), SliceFreeze)
    publish(table, 0)
    publish(table, 2)
    return table, timers.stuck_s(1)


@pytest.mark.parametrize("giver", [0, 2])
@pytest.mark.parametrize("deaths", [False, True])
def test_who_gives_sums_to_no_owner_of_one_slice_is_relieved_on_the_word_of_two(
    giver: int, deaths: bool
) -> None:
    """One honest owner after another went for it, until the op was over
    (`simulate --cells 3 --peers 40 --seed 739`)."""
    table, known_s = lacking_again(giver, deaths=deaths)
    if deaths:  # one was the giver's forerunner
        table.view.tried[giver].insert(0, PEERS[-1])
        table.op.timers.assigned_s[giver] = 1.0
    assert table.decide(known_s - 0.1) is None
    moved = table.decide(known_s)
    assert isinstance(moved, Reassign)
    assert (moved.slice_index, moved.reason) == (giver, faults.NO_SUMS)
    assert table.decide(known_s + 1.0) is None, "the others make theirs again"


@pytest.mark.parametrize("is_new", [False, True])
def test_a_word_counts_once_against_whom_it_was_said_of(is_new: bool) -> None:
    """The first one died, and had not waited long; or another gives the sums since."""
    table, known_s = lacking_again()
    view, timers = table.view, table.op.timers
    if is_new:
        timers.assigned_s[0] = timers.assigned_s[1] + 0.1
    else:
        view.words.relieved[view.tried[1][0]] = "owner lost"
    moved = table.decide(known_s)
    assert isinstance(moved, Reassign) and moved.slice_index == 1


def test_who_is_to_publish_again_for_a_new_owner_has_as_long_as_that_one() -> None:
    """In the last half of D_op two honest owners went with the one that was silent."""
    table = lacking(1)
    timers = table.op.timers
    timers.extended_s = timers.deadline_s  # by deaths
    silent_s = timers.silent_s
    moved = table.decide(silent_s)
    assert isinstance(moved, Reassign) and moved.slice_index == 1
    assert table.decide(silent_s + 1.0) is None
    assert timers.stuck_s(1) < timers.gather_s
    moved = table.decide(timers.stuck_s(1))
    assert isinstance(moved, Reassign) and moved.slice_index == 0


def test_who_follows_a_silent_owner_is_drawn() -> None:
    """The next one's word counts with the silent one's: nobody may choose to be the next."""
    chosen = set()
    for number in range(16):
        table = lacking(1)
        table.view.plan_hash = bytes([number]) * 32
        moved = table.decide(table.op.timers.silent_s)
        assert isinstance(moved, Reassign) and moved.reason == faults.SILENT
        chosen.add(moved.owner)
    assert len(chosen) == len(PEERS) // 3 - 1
