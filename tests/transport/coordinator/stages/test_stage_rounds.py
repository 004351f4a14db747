"""The coordinator of a run in stages: its machine owns the pipeline's rounds.

Peers are words put into its ear; each hears its orders through the lane that a real one has.
"""

import dataclasses
from typing import Any

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.coordinator.stages.stage_rounds import PipelineTerms
from swarmtrain_transport.coordinator.status import PipelineStatus, StageStatus
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import num_chunks, set_id
from swarmtrain_transport.ledger.snapshots import from_image, image_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.control import ReportLane
from swarmtrain_transport.pipeline.wire.orders import Made, marks
from swarmtrain_transport.pipeline.wire.route import Process, Span
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import BodyReader, Books, Commit, Move, Plan, Skip
from tests.transport.hall import Hall, hello_of, root_of
from tests.transport.rig import (
    BOOT,
    LAYOUT,
    RUN_KEY,
    A,
    B,
    C,
    D,
    done_of,
    received,
    roots_of,
    sign,
    terms_of,
    verify,
)

ANEW = b"another boot"
PLACES = {A: (0,), B: (0,), C: (1,)}
SHARE = 4
TOKENS = 3


class StagedHall(Hall):
    """A coordinator of two stages or more, and peers that hold what they are given."""

    def __init__(self, records: Any = (), term: int = 1, stages: int = 2, **pipeline: Any) -> None:
        self.now_s, self.records = 0.0, list(records)
        self.sent: dict[PeerId, list[Any]] = {}
        self.closed: list[PeerId] = []
        self.lanes: dict[PeerId, ReportLane] = {}
        self.evaluations: list[orders.Evaluate] = []
        first = terms_of(start_peers=1)
        self.machine = Rendezvous(
            first, RUN_KEY, tuple(records), sign, verify, term, 0.0,
            more_groups=tuple(dataclasses.replace(first, group=one) for one in range(1, stages)),
            pipeline=PipelineTerms(SHARE, tokens=TOKENS, **pipeline),
        )  # fmt: skip
        self.take(self.machine.start(0.0))

    def begin(self, peer: PeerId, *groups: int, **hello: Any) -> None:
        """A peer comes, is placed, and takes the states of its stages."""
        self.join(peer, **hello)
        self.lanes[peer] = ReportLane()
        self.take(self.machine.place(peer, groups, self.now_s))
        for group in groups:
            view = self.machine.view.groups[group]
            if view.genesis is None:
                self.say(peer, m.Offer(root_of(0), 24, LAYOUT, group=group))
            self.say(peer, m.Applied(view.last_op, root_of(view.last_op), group=group))
        self.ack(peer)

    def told(self, peer: PeerId) -> list[orders.Order]:
        """Orders that a peer hears, and has not heard before; but for those to evaluate, which are
        kept."""
        sent, self.sent[peer] = self.sent[peer], []
        heard = [
            self.lanes[peer].hear(message)
            for message in sent
            if isinstance(message, m.PipelineOrder)
        ]
        for one in heard:
            if isinstance(one, orders.Evaluate) and one not in self.evaluations:
                self.evaluations.append(one)
        return [one for one in heard if one is not None and not isinstance(one, orders.Evaluate)]

    def report(self, peer: PeerId, report: orders.Report) -> None:
        self.told(peer)
        self.say(peer, self.lanes[peer].say(report))

    def drain(self, *peers: PeerId, round: int = 0) -> None:
        for peer in peers:
            made = self.machine.stage_rounds.rounds._shares.given[Process(peer, BOOT)]
            self.report(peer, orders.Drained(round, 0, 0, made, 0))

    def settle(self, round: int = 0, **counted: set[int]) -> None:
        """All say what they have counted: A and B of their own in stage 0, C of A's in stage 1."""
        for peer, one, stage in ((A, "a", 0), (B, "b", 0), (C, "c", 1)):
            if peer in self.lanes:
                some = counted.get(one, set())
                own = {A: {1, 2} if counted else set[int](), B: set(some)}
                made = Made(marks(own.get(peer, set())), {})
                source = Process(B if peer == B else A, BOOT)
                told = (orders.Counted(source, stage, marks(some)),) if some else ()
                self.report(peer, orders.Settled(round, told, made))

    def ready_in(self, group: int, op: int, *peers: PeerId, samples: int = 5) -> None:
        for peer in peers:
            state = op - 1, root_of(op - 1)
            self.say(peer, m.Ready(op, samples, *state, group=group))

    def plans(self, group: int) -> list[Plan]:
        return [plan for plan in self.bodies(Plan) if plan.group == group]


def begun(**pipeline: Any) -> StagedHall:
    hall = StagedHall(**pipeline)
    for peer, groups in PLACES.items():
        hall.begin(peer, *groups)
    for peer in PLACES:
        hall.ack(peer)
    return hall


def kinds(found: list[Any]) -> list[type]:
    return [type(one) for one in found]


def booked() -> StagedHall:
    """Round 0 is booked: A has counted two in stage 0, C one in stage 1."""
    hall = begun()
    hall.drain(A, B)
    hall.settle(a={1, 2}, c={1})
    return hall


def test_a_member_of_two_stages_gives_to_each_what_it_has_counted_there() -> None:
    hall = StagedHall()
    hall.begin(A, 0, 1)
    hall.ack(A)
    hall.drain(A)
    source = Process(A, BOOT)
    told = tuple(
        orders.Counted(source, stage, marks(some)) for stage, some in ((0, {1, 2}), (1, {1}))
    )
    hall.report(A, orders.Settled(0, told, Made(marks({1, 2}), {})))
    groups = hall.machine.groups
    assert [groups[stage].givers for stage in (0, 1)] == [{A: 2 * TOKENS}, {A: TOKENS}]


def test_a_process_is_in_the_rounds_once_it_holds_the_states_of_all_its_stages() -> None:
    hall = StagedHall()
    hall.begin(A, 0)
    assert kinds(hall.told(A)) == [orders.Welcome]
    hall.join(C)
    hall.lanes[C] = ReportLane()
    hall.take(hall.machine.place(C, (1,), 0.0))
    assert hall.machine.view.groups_of(C) == (1,) and not hall.told(C)
    hall.say(C, m.Offer(root_of(0), 24, LAYOUT, group=1))
    assert not hall.told(C)
    hall.say(C, m.Applied(0, root_of(0), group=1))
    welcome, begin = hall.told(C)
    assert welcome.members == {
        A: orders.Member(BOOT, Span(0, 0)), C: orders.Member(BOOT, Span(1, 1))
    }  # fmt: skip
    assert begin == orders.Begin(0, 0, welcome.members, begin.pace)
    assert hall.told(A) == [
        orders.Joined(C, welcome.members[C]), orders.Begin(0, SHARE, welcome.members, begin.pace)
    ]  # fmt: skip


def test_stages_that_do_not_follow_each_other_are_no_span() -> None:
    hall = begun()
    hall.join(D)
    hall.take(hall.machine.place(D, (0, 1), 0.0))
    for group in (0, 1):
        assert D not in hall.machine.stage_rounds.rounds.members
        hall.say(D, m.Applied(0, root_of(0), group=group))
    assert hall.machine.stage_rounds.rounds.members[D].span == Span(0, 1)


def test_the_first_round_waits_for_start_peers() -> None:
    hall = StagedHall(start_peers=3)
    hall.begin(A, 0)
    hall.begin(C, 1)
    assert kinds(hall.told(A)) == [orders.Welcome, orders.Joined]
    hall.begin(B, 0)
    assert kinds(hall.told(A)) == [orders.Joined, orders.Begin]


def test_an_op_of_a_stage_is_planned_when_the_round_is_booked_with_those_who_have_counted() -> None:
    hall = begun()
    hall.ready_in(0, 1, A, B)
    hall.ready_in(1, 1, C)
    hall.alive(100.0, A, B, C)
    assert not hall.bodies(Plan)
    hall.drain(A)
    hall.drain(B)
    assert not hall.bodies(Plan)
    hall.settle(a={1, 2}, c={1})
    (first,), (later,) = hall.plans(0), hall.plans(1)
    assert [(one.peer, one.weight > 0) for one in first.members] == [(A, True), (B, False)]
    assert [one.peer for one in later.members] == [C]


def test_the_ledger_has_the_books_of_a_round_before_the_ops_that_follow_from_them() -> None:
    hall = booked()
    hall.ready_in(0, 1, A)
    (books,) = hall.bodies(Books)
    assert (books.made, books.whole, books.counted) == (2, 1, (2, 1))
    assert [(one.peer, one.counted) for one in books.members] == [(A, (2,)), (B, (0,)), (C, (1,))]
    kinds_of_records = kinds(hall.bodies(Books | Plan))
    assert kinds_of_records[:2] == [Books, Plan]
    view = hall.machine.view
    assert view.books == books and view.booked["made"] == 2
    assert from_image(image_of(view, BodyReader()))[0].books == books


def test_status_tells_of_stages_their_peers_and_what_became_of_micro_batches() -> None:
    hall = begun()
    first = hall.machine.status(0.0).pipeline
    assert first == PipelineStatus((StageStatus((A.hex(), B.hex()), 0), StageStatus((C.hex(),), 0)))
    status = booked().machine.status(0.0)
    assert isinstance(status.pipeline, PipelineStatus)
    assert [stage.counted for stage in status.pipeline.stages] == [2, 1]
    assert (status.pipeline.made, status.pipeline.whole) == (2, 1)
    assert {one.peer: one.stages for one in status.peers}[C.hex()] == (1,)


def test_a_boast_of_samples_is_cut_to_what_the_books_say() -> None:
    hall = begun()
    for peer in (A, B):
        hall.drain(peer)
    hall.settle(a={1, 2}, b={2, 1}, c={1})
    hall.ready_in(0, 1, A, samples=1000)
    hall.ready_in(0, 1, B, samples=2 * TOKENS)
    (plan,) = hall.plans(0)
    weights = {one.peer: one.weight for one in plan.members}
    assert weights[A] == weights[B]


def test_the_next_round_is_closed_when_all_stages_have_their_outcome() -> None:
    hall = booked()
    hall.drain(A, B, round=1)
    assert not any(isinstance(one, orders.Close) for one in hall.told(C))
    hall.ready_in(0, 1, A)
    hall.ready_in(1, 1, C)
    assert len(hall.bodies(Plan)) == 2
    for group, peer in ((0, A), (1, C)):
        assert not any(isinstance(one, orders.Close) for one in hall.told(C))
        run_alone(hall, group, peer)
    assert {body.group for body in hall.bodies(Commit)} == {0, 1}
    assert orders.Close(1) in hall.told(C)


def run_alone(hall: StagedHall, group: int, peer: PeerId) -> None:
    """One peer's part of an op that it makes alone."""
    operation = hall.machine.groups[group].operation
    assert operation is not None
    view, plan_id = operation.view, operation.view.plan_id
    hall.say(peer, roots_of(view, peer))
    for index, _ in enumerate(view.owners):
        hall.say(peer, m.Got(plan_id, index, 0, received(index, (peer,))))
        hashes = tuple(bytes([index, chunk]) * 16 for chunk in range(num_chunks(view.plan, index)))
        hall.say(peer, done_of(view, index, (peer,), hashes))
        hall.say(peer, m.Have(plan_id, index, 0, set_id((peer,)), (True,) * len(hashes)))
    receivers = [one.peer for one in view.plan.members if one.peer != peer]
    for other in receivers:
        for index, _ in enumerate(view.owners):
            count = num_chunks(view.plan, index)
            hall.say(other, m.Have(plan_id, index, 0, set_id((peer,)), (True,) * count))


def test_each_state_of_all_stages_is_evaluated_once_by_the_source_that_plan_has_named() -> None:
    hall = booked()
    hall.told(C)
    any_source = Process(min(A, B), BOOT)
    assert hall.evaluations == [orders.Evaluate((0, 0), any_source)]  # what nobody has trained yet
    hall.drain(A, B, round=1)
    hall.ready_in(0, 1, A)
    hall.ready_in(1, 1, C)
    for group, peer in ((0, A), (1, C)):
        assert not hall.told(C) and len(hall.evaluations) == 1  # one stage's outcome is not all
        run_alone(hall, group, peer)
    hall.told(C)
    (plan,) = hall.plans(0)
    named = Process(plan.evaluate_by, BOOT)
    assert hall.evaluations[1:] == [orders.Evaluate((1, 1), named)]
    hall.say(A, m.Progress(1, 2, 3, "training"))
    hall.told(C)
    assert len(hall.evaluations) == 2
    hall.say(named.peer, m.Evaluated(1, 2.5))
    assert hall.machine.status(hall.now_s).losses == {"1": 2.5}


def test_a_source_of_all_stages_evaluates_alone_and_unasked() -> None:
    hall = StagedHall()
    hall.begin(A, 0, 1)
    hall.told(A)
    assert not hall.evaluations


def is_closed(hall: StagedHall, round: int) -> bool:
    """The rounds go on after one is closed, when the one before has its outcome."""
    return orders.Close(round) in hall.told(C)


def closing_next() -> StagedHall:
    """Round 0 is booked, and all have drained round 1."""
    hall = begun()
    hall.drain(A, B)
    hall.settle(a={1, 2}, c={1})
    hall.drain(A, B, round=1)
    assert not is_closed(hall, 1)
    return hall


def test_a_round_that_nobody_has_counted_in_has_no_op() -> None:
    hall = begun()
    hall.drain(A, B)
    hall.settle()
    hall.ready_in(0, 1, A, B)
    hall.ready_in(1, 1, C)
    assert not hall.bodies(Plan)
    hall.drain(A, B, round=1)
    assert is_closed(hall, 1)


def test_a_stage_whose_only_giver_is_gone_has_no_op() -> None:
    hall = closing_next()
    hall.ready_in(1, 1, C)
    run_alone(hall, 1, C)
    hall.say(A, m.Leave("asked"))
    hall.drain(B, round=1)  # what A was to make
    heard = hall.told(C)
    assert orders.Departed(Process(A, BOOT)) in heard and orders.Close(1) in heard
    assert not hall.plans(0)


def test_a_stage_whose_givers_say_nothing_has_no_op() -> None:
    hall = closing_next()
    hall.ready_in(1, 1, C)
    run_alone(hall, 1, C)
    until_s = hall.now_s + limits.ANSWER_S + 60.0
    hall.alive(until_s - 1, A, B, C)
    assert not is_closed(hall, 1)
    hall.alive(until_s + 1, A, B, C)
    assert is_closed(hall, 1)
    hall.ready_in(0, 1, A)
    assert not hall.plans(0), "its round is over"


def test_a_skipped_op_is_an_outcome() -> None:
    hall = closing_next()
    hall.ready_in(0, 1, A)
    hall.ready_in(1, 1, C)
    run_alone(hall, 0, A)
    assert not is_closed(hall, 1)
    plan_s = hall.now_s
    while not hall.bodies(Skip):
        hall.alive(hall.now_s + 10, A, B, C)
        assert hall.now_s < plan_s + 1000
    assert hall.bodies(Skip)[0].group == 1 and is_closed(hall, 1)


def test_what_was_lost_with_a_connection_is_told_on_the_next_one() -> None:
    hall = begun()
    hall.told(C)
    hall.take(hall.machine.disconnected(C, hall.now_s))
    hall.drain(A, B)
    assert not any(isinstance(one, m.PipelineOrder) for one in hall.sent[C])
    hall.take(hall.machine.connected(C, hello_of(C), hall.now_s))
    assert kinds(hall.told(C)) == [orders.Close, orders.Begin]
    hall.settle(a={1, 2}, c={1})
    assert hall.machine.groups[1].givers == {C: TOKENS}


def test_rounds_go_on_without_a_member_whose_connection_is_closed_until_it_is_back() -> None:
    hall = begun()
    for peer in PLACES:
        hall.told(peer)
    hall.drain(A)
    hall.take(hall.machine.disconnected(B, hall.now_s))
    hall.alive(hall.now_s + limits.AWAY_CLOSED_S - 0.5, A, C)
    assert not hall.told(C)
    hall.alive(hall.now_s + 1, A, C)
    hall.drain(A)  # what B was to make
    assert kinds(hall.told(C)) == [orders.Departed, orders.Close, orders.Begin]
    assert B in hall.machine.view.roster, "the ledger waits longer"
    hall.take(hall.machine.connected(B, hello_of(B), hall.now_s))
    assert kinds(hall.told(B)) == [orders.Close, orders.Begin, orders.Joined]
    assert hall.told(C) == [orders.Joined(B, orders.Member(BOOT, Span(0, 0)))]


def test_rounds_go_on_without_a_member_that_says_nothing_until_it_speaks() -> None:
    hall = begun()
    hall.told(C)
    hall.alive(hall.now_s + limits.HOP_SILENCE_S + 0.5, A, C)
    assert hall.told(C) == [orders.Departed(Process(B, BOOT))]
    hall.alive(hall.now_s + 1, A, B, C)
    assert kinds(hall.told(C)) == [orders.Joined]


def test_a_process_that_begins_anew_is_in_again_when_it_holds_the_states() -> None:
    hall = begun()
    hall.told(A)
    hall.lanes[C] = ReportLane()
    hall.sent[C] = []
    hall.take(hall.machine.connected(C, hello_of(C, boot=ANEW), hall.now_s))
    assert hall.told(A) == [orders.Departed(Process(C, BOOT))] and not hall.told(C)
    hall.say(C, m.Applied(0, root_of(0), group=1))
    assert kinds(hall.told(C)) == [orders.Welcome]
    assert hall.told(A) == [orders.Joined(C, orders.Member(ANEW, Span(1, 1)))]


def test_two_processes_that_take_turns_under_one_key_hear_both_that_they_have_left() -> None:
    hall = begun()
    for boot in (ANEW, BOOT, ANEW, BOOT):
        hall.sent[C], hall.lanes[C] = [], ReportLane()
        hall.take(hall.machine.connected(C, hello_of(C, boot=boot), hall.now_s))
        hall.say(C, m.Applied(0, root_of(0), group=1))
    assert hall.told(C)[-1] == orders.Departed(Process(C, BOOT))


def test_a_state_on_the_disk_is_none_in_place() -> None:
    hall = begun()
    hall.sent[C], hall.lanes[C] = [], ReportLane()
    states = (m.Applied(0, root_of(0), group=1),)
    hall.take(hall.machine.connected(C, hello_of(C, boot=ANEW, states=states), hall.now_s))
    assert C not in hall.machine.stage_rounds.rounds.members


def test_who_is_given_other_stages_begins_anew() -> None:
    hall = begun()
    hall.told(B)
    hall.take(hall.machine.place(B, (1,), hall.now_s))
    assert hall.told(B) == [orders.Departed(Process(B, BOOT))]
    assert hall.bodies(Move)[-1] == Move(B, (1,))
    hall.say(B, m.Applied(0, root_of(0), group=1))
    assert not hall.told(B), "a process that has left the rounds is never in them again"
    come_anew(hall, B, 1)
    (welcome,) = hall.told(B)
    assert welcome.members[B].span == Span(1, 1)


def come_anew(hall: StagedHall, peer: PeerId, group: int, boot: bytes = ANEW) -> None:
    hall.lanes[peer] = ReportLane()
    hall.take(hall.machine.connected(peer, hello_of(peer, boot=boot), hall.now_s))
    hall.say(peer, m.Applied(0, root_of(0), group=group))


def test_a_process_that_was_given_up_hears_it_when_it_comes_back() -> None:
    hall = begun()
    hall.take(hall.machine.disconnected(C, hall.now_s))
    hall.alive(hall.now_s + limits.EVICT_S + 1, A, B)
    assert C not in hall.machine.stage_rounds.rounds.members
    hall.take(hall.machine.connected(C, hello_of(C), hall.now_s))
    hall.say(C, m.Applied(0, root_of(0), group=1))
    assert hall.told(C)[-1] == orders.Departed(Process(C, BOOT))
    come_anew(hall, C, 1)
    assert kinds(hall.told(C)) == [orders.Welcome]


def test_a_process_that_hears_nothing_is_out_before_much_is_kept_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ORDERS_UNHEARD_MAX", 20)
    hall = begun()
    for number in range(30):
        come_anew(hall, B, 0, bytes([number]) * len(ANEW))
        hall.report(A, orders.Drained(7, 0, 0, 1, 0))
        hall.ack(C)
    assert hall.machine.stage_rounds.rounds.members.keys() >= {A}
    assert C not in hall.machine.stage_rounds.rounds.members


def test_rounds_of_a_later_life_have_other_numbers() -> None:
    hall = begun()
    later = StagedHall(hall.records, term=2)
    for peer, groups in PLACES.items():
        later.sent[peer], later.lanes[peer] = [], ReportLane()
        states = tuple(m.Applied(0, root_of(0), group=group) for group in groups)
        later.take(later.machine.connected(peer, hello_of(peer, states=states), 0.0))
        assert not later.told(peer)
        later.say(peer, *states)
    welcome, begin = later.told(C)
    assert (welcome.round, begin.round) == (1 << 20, 1 << 20)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_later_life_waits_for_start_peers_only_if_the_run_has_not_begun(has_begun: bool) -> None:
    hall = begun(start_peers=3)
    hall.drain(A, B)
    hall.settle(a={1, 2}, c={1})
    if has_begun:
        hall.ready_in(0, 1, A)
    later = StagedHall(hall.records, term=2, start_peers=3)
    for peer, group in ((A, 0), (C, 1)):
        later.sent[peer], later.lanes[peer] = [], ReportLane()
        later.take(later.machine.connected(peer, hello_of(peer), 0.0))
        later.say(peer, m.Applied(0, root_of(0), group=group))
    later.alive(2 * limits.EVICT_S, A, C)
    assert (orders.Begin in kinds(later.told(C))) == has_begun
    waits = later.machine.status(later.now_s).waiting_for
    assert ("more peer" in waits) == (not has_begun)


@pytest.mark.parametrize(
    "message",
    [
        m.PipelineReport(1, 0, b""),
        m.PipelineReport(1, 99, b"\x92\x21\x92\x00\x00"),
        ReportLane().say(orders.Drained(0, 0, 0, SHARE + 1, 0)),
    ],
)
def test_a_report_that_cannot_be_is_refused_and_harms_nobody_else(message: Any) -> None:
    hall = begun()
    with pytest.raises(RemoteFault):
        hall.say(A, message)
    hall.drain(B)
    assert not is_closed(hall, 0)


def test_reports_of_who_is_in_no_round_are_void_and_without_a_pipeline_refused() -> None:
    hall = begun()
    hall.join(D)
    hall.say(D, ReportLane().say(orders.Drained(0, 0, 0, 1, 0)))
    plain = Hall()
    plain.join(A)
    with pytest.raises(RemoteFault):
        plain.say(A, ReportLane().say(orders.Drained(0, 0, 0, 1, 0)))


def test_people_hear_of_who_did_not_answer() -> None:
    hall = begun()
    hall.drain(A)
    hall.alive(2 * limits.MICRO_BATCH_S + 1, A, B, C, step_s=5.0)
    assert orders.Close(0) in hall.told(C)
    events = hall.machine.status(hall.now_s).events
    assert ("late", "Drained") in {(one.event, one.reason) for one in events}


def test_time_in_which_the_coordinator_stood_still_is_nobody_s_silence() -> None:
    hall = begun()
    hall.drain(A)
    hall.wake(2 * limits.MICRO_BATCH_S + 100)
    assert not is_closed(hall, 0)


def test_a_run_that_has_all_its_rounds_begins_no_more() -> None:
    hall = closing_next()
    for group in hall.machine.groups.values():
        group._terms = dataclasses.replace(group.terms, rounds=1)
    hall.told(C)
    for group, peer in ((0, A), (1, C)):
        hall.ready_in(group, 1, peer)
        run_alone(hall, group, peer)
    assert hall.machine.is_finished
    assert not any(isinstance(one, orders.Begin) for one in hall.told(C))
