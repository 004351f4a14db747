"""The course of an emulation: whom it kills, what it takes for a failure, and what it adds up."""

import pytest

from swarmtrain.emulate.course import HINT_S, PATIENCE_S, Course, Fail
from swarmtrain.emulate.report import are_equal, in_words, make_report
from swarmtrain.foundation.events import Finished, In, Left, Ready, RoundEnded, StateInPlace
from swarmtrain.local_run.place import COORDINATOR
from swarmtrain.local_run.processes import Ended, Kill, Say, Start
from swarmtrain_transport.coordinator.status import CoordinatorStatus, PeerStatus

NAMES = ("badger", "crane", "otter")


def begun(seed: int = 0, kill_every_s: float = 10.0) -> Course:
    """All have joined at 0 s and hold the first state."""
    course = Course(NAMES, seed=seed, kill_every_s=kill_every_s, now_s=0.0)
    wishes = course.hear(COORDINATOR, Ready("swarm://x"), 0.0)
    assert wishes == [Start(name) for name in NAMES]
    for name in NAMES:
        course.hear(name, In(f"key of {name}", name), 0.0)
        course.hear(name, StateInPlace(0), 0.0)
    return course


def killed(course: Course, now_s: float) -> list[str]:
    return [wish.name for wish in course.tick(now_s) if isinstance(wish, Kill)]


def test_the_same_seed_kills_the_same_peers_and_nobody_before_their_time():
    def victims(seed: int) -> list[str]:
        course, found = begun(seed), []
        assert course.tick(9.9) == []
        for turn in range(1, 9):
            (victim,) = killed(course, 10.0 * turn)
            found.append(victim)
            wishes = course.hear(victim, Ended(-9), 10.0 * turn)
            assert Start(victim) in wishes
            course.hear(victim, In("key", victim), 10.0 * turn)
            course.hear(victim, StateInPlace(turn), 10.0 * turn)
        return found

    assert victims(1) == victims(1) != victims(2)


def test_nobody_is_killed_while_only_one_is_there_to_go_on():
    course = begun()
    first = killed(course, 10.0)
    second = killed(course, 20.0)
    assert len({*first, *second}) == 2
    assert killed(course, 30.0) == []
    course.hear(first[0], Ended(-9), 30.0)
    course.hear(first[0], In("key", first[0]), 31.0)
    assert killed(course, 31.0) == []
    course.hear(first[0], StateInPlace(4), 32.0)
    assert len(killed(course, 32.0)) == 1


def test_who_was_killed_as_the_run_ended_is_no_failure():
    course = begun()
    (victim,) = killed(course, 10.0)
    course.hear(victim, Ended(-9), 10.0)
    for name in NAMES:
        if name != victim:
            course.hear(name, Left(5, "ab", 10, 20, "done"), 11.0)
            assert course.hear(name, Ended(0), 11.0) == []
    assert not course.is_over and course.is_finished
    assert course.hear(victim, Ended(78), 12.0) == []
    assert course.is_over
    assert course.hear(COORDINATOR, Ended(0), 12.0) == []


@pytest.mark.parametrize(
    ("joins", "status", "code"),
    [(False, 0, "SWT-E651"), (False, 1, "SWT-E650"), (True, 1, "SWT-E650")],
)
def test_a_program_that_fails_or_never_joins_ends_it(joins, status, code):
    course = Course(NAMES, now_s=0.0)
    course.hear(COORDINATOR, Ready("swarm://x"), 0.0)
    if joins:
        course.hear("crane", In("key", "crane"), 1.0)
    (wish,) = course.hear("crane", Ended(status), 2.0)
    assert isinstance(wish, Fail) and (wish.code, wish.name) == (code, "crane")


def test_nobody_who_joins_is_waited_for_with_a_hint_and_an_end():
    course = Course(NAMES, now_s=100.0)
    course.hear(COORDINATOR, Ready("swarm://x"), 100.0)
    assert course.tick(100.0 + HINT_S) == []
    (hint,) = course.tick(101.0 + HINT_S)
    assert isinstance(hint, Say) and "swarmtrain.join" in hint.text
    assert course.tick(102.0 + HINT_S) == []
    (wish,) = course.tick(101.0 + PATIENCE_S)
    assert isinstance(wish, Fail) and wish.code == "SWT-E651"


def test_each_round_has_its_line_however_fast_it_was():
    course, said = begun(), []
    for number in range(1, 5):
        outcome = "skipped" if number == 3 else "merged"
        for name in NAMES:
            event = RoundEnded(number, outcome, 3, "aa", loss=1.0)
            said += [wish.text for wish in course.hear(name, event, 5.0 + number / 100)]
    assert [text.split(":")[0] for text in said] == [f"round {n}" for n in range(1, 5)]
    assert said[2] == "round 3: no result"


def test_a_coordinator_that_ends_before_the_run_is_a_failure():
    course = begun()
    (wish,) = course.hear(COORDINATOR, Ended(-9), 1.0)
    assert isinstance(wish, Fail) and wish.name == COORDINATOR
    course = begun()
    course.hear(COORDINATOR, Finished("done"), 1.0)
    assert course.hear(COORDINATOR, Ended(0), 1.0) == []


def test_the_report_adds_up_lives_and_means_losses(tmp_path):
    course = begun()
    for name, loss in zip(NAMES, (2.0, 3.0, 4.0), strict=True):
        course.hear(name, RoundEnded(1, "merged", 3, "aa", loss=loss), 5.0)
    (victim,) = killed(course, 10.0)
    course.peers[victim].moved = (100, 50)
    course.hear(victim, Ended(-9), 10.0)
    for name in NAMES:
        course.hear(name, RoundEnded(2, "merged", 3, "bb", loss=1.0), 15.0)
        course.hear(name, Left(2, "bb", 10, 20, "done"), 15.0)
    report = make_report(course, is_paired=False, links="open", seconds=20.0, state_dir=tmp_path)
    assert (report.rounds, report.is_finished, report.equal, report.kills) == (2, True, True, 1)
    assert (report.loss_first, report.loss_last) == (3.0, 1.0)
    (found,) = (peer for peer in report.peers if peer.peer == victim)
    assert (found.bytes_up, found.bytes_down, found.kills) == (110, 70, 1)
    text = "\n".join(in_words(report))
    assert "2 in 20 s; 1 peer killed on the way" in text and "equal" in text


def test_a_loss_that_was_told_once_is_no_course(tmp_path):
    course = begun()
    for name, loss in zip(NAMES, (2.0, 3.0, None), strict=True):
        course.hear(name, RoundEnded(1, "merged", 3, "aa", loss=loss), 5.0)
        course.hear(name, RoundEnded(2, "merged", 3, "bb", loss=loss), 6.0)
    report = make_report(course, is_paired=False, links="open", seconds=9.0, state_dir=tmp_path)
    text = "\n".join(in_words(report))
    assert "2.500 in the mean, and no other was told; swarm.log(loss=loss)" in text


def test_who_leaves_early_has_not_come_to_an_end_that_nobody_saw():
    course = begun()
    (said,) = course.hear("crane", Left(1, "aa", 0, 0), 1.0)
    assert said == Say("crane leaves after round 1, before the end of the run")


def test_other_bits_after_the_same_round_are_told():
    course = begun()
    course.hear("badger", Left(2, "aa", 0, 0), 1.0)
    course.hear("crane", Left(1, "bb", 0, 0), 1.0)
    assert are_equal(tuple(course.peers.values()))
    course.hear("otter", Left(2, "bb", 0, 0), 1.0)
    assert not are_equal(tuple(course.peers.values()))


def test_who_leaves_after_the_last_round_has_come_to_the_end(tmp_path):
    """A script whose own number of steps is that of the run hears of no end."""
    course = begun()
    status = CoordinatorStatus(
        "run", 1, 4, 4, 4, "training", "", 0, (), {}, (), (), -1, "", waiting_seen_s=None
    )  # fmt: skip
    course.hear(COORDINATOR, status, 1.0)
    assert course.hear("crane", Left(4, "aa", 0, 0), 1.0) == [
        Say("crane leaves after round 4, the run's last")
    ]
    report = make_report(course, is_paired=False, links="open", seconds=9.0, state_dir=tmp_path)
    assert "before" not in "\n".join(in_words(report))


def test_an_older_loss_by_way_of_the_coordinator_does_not_take_the_place_of_a_peers_own():
    course = begun()
    told = PeerStatus("key of crane", "crane", "training", 1, 5, 9.0, 0.0, 0, 0, 0, 0, "aa", 0.0)
    status = CoordinatorStatus(
        "run", 1, 2, 4, 2, "training", "", 0, (told,), {}, (), (), -1, "", waiting_seen_s=None
    )  # fmt: skip
    course.hear(COORDINATOR, status, 4.0)
    assert course.peers["crane"].loss_last == 9.0, "nothing else is known yet"
    course.hear("crane", RoundEnded(2, "merged", 3, "bb", loss=1.0), 5.0)
    course.hear(COORDINATOR, status, 5.1)
    assert course.peers["crane"].loss_last == 1.0


def test_the_loss_of_one_peer_is_no_mean(tmp_path):
    course = begun()
    (said,) = course.hear("crane", RoundEnded(1, "merged", 3, "aa", loss=2.0), 5.0)
    assert said == Say("round 1: 3 peers, training loss 2.000 of one peer")
    report = make_report(course, is_paired=False, links="open", seconds=9.0, state_dir=tmp_path)
    text = "\n".join(in_words(report))
    assert "2.000 of crane, the only one to tell any" in text and "in the mean" not in text
    (said,) = course.hear("otter", RoundEnded(2, "merged", 3, "bb", loss=3.0), 7.0)
    assert said == Say("round 2: 3 peers, training loss 2.500 in the mean")
