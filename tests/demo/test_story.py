"""The story hears events and wishes; no process is needed to know what it will do."""

from swarmtrain.demo.setting import Cast
from swarmtrain.demo.story import (
    STALL_S,
    Fail,
    Invite,
    Killed,
    Story,
    Wish,
    joined,
    lost,
)
from swarmtrain.foundation.events import (
    Evaluated,
    Frozen,
    In,
    Left,
    Ready,
    RoundEnded,
    StateInPlace,
)
from swarmtrain.local_run.place import COORDINATOR
from swarmtrain.local_run.processes import Ended, Kill, Say, Start
from swarmtrain_transport.coordinator.status import CoordinatorStatus, RoundEvent

CAST = Cast(("badger", "crane", "otter"), "otter", "newt")
ALONE = Cast(("badger",), None, None)


class Told:
    """A story and everything that it wished so far; the clock goes on a second per event."""

    def __init__(self, cast: Cast = CAST, rounds: int = 5) -> None:
        self.now_s = 0.0
        self.story = Story(cast, rounds, self.now_s)
        self.wishes: list[Wish] = []

    def hear(self, name: str, *events: object) -> list[Wish]:
        new: list[Wish] = []
        for event in events:
            self.now_s += 1.0
            new += self.story.hear(name, event, self.now_s)
        self.wishes += new
        return new

    def up_to_round(self, number: int) -> None:
        """Everybody is in and merges this round and those before."""
        for key, name in enumerate(CAST.founders):
            self.hear(name, In(bytes([key]).hex(), name), StateInPlace(0))
        for done in range(1, number + 1):
            for name in CAST.founders:
                self.hear(name, RoundEnded(done, "merged", 3))

    @property
    def said(self) -> list[str]:
        return [wish.text for wish in self.wishes if isinstance(wish, Say)]


def status(*events: RoundEvent) -> CoordinatorStatus:
    return CoordinatorStatus(
        run="demo", term=1, round=4, committed=4, rounds=5, phase="training", wanted_root="",
        num_values=1000, peers=(), losses={}, exclusions=(), events=events, checkpoint_op=-1,
    )  # fmt: skip


def left(number: int = 5) -> Left:
    return Left(number, "aa", 1000, 2000)


def test_founders_get_the_invite_and_the_newcomer_does_not():
    told = Told()
    assert told.hear(COORDINATOR, Ready("swarm://x")) == [
        Invite("badger"), Invite("crane"), Invite("otter"),
    ]  # fmt: skip


def test_the_victim_is_killed_when_it_reports_that_it_stopped():
    told = Told()
    told.up_to_round(2)
    wishes = told.hear("otter", Frozen(3, "scatter", 4, 9))
    assert wishes[0] == Kill("otter")
    assert told.story.facts.killed == Killed("otter", 3, "scatter", 4, 9)
    assert any("4 of 9 chunks" in text for text in told.said)
    assert told.hear("otter", Ended(-9)) == []


def test_the_newcomer_starts_after_round_two_and_is_invited_after_round_three():
    told = Told()
    told.up_to_round(2)
    assert Start("newt") in told.wishes
    assert Invite("newt") not in told.wishes
    told.hear("otter", Frozen(3, "scatter", 4, 9))
    told.hear("badger", RoundEnded(3, "merged", 2))
    told.hear("crane", RoundEnded(3, "merged", 2))
    assert told.wishes.count(Invite("newt")) == 1
    assert told.wishes.count(Start("newt")) == 1


def test_the_death_may_be_a_few_rounds_late_and_if_there_is_none_the_demo_fails():
    told = Told()
    told.up_to_round(2)
    for number in (3, 4, 5):
        told.hear("badger", RoundEnded(number, "merged", 2))
    assert not [wish for wish in told.wishes if type(wish) in (Fail, Invite)]
    (failure,) = [w for w in told.hear("badger", RoundEnded(6, "merged", 2)) if type(w) is Fail]
    assert failure.name == "otter"


def test_the_story_is_over_when_all_who_live_have_left():
    told = Told()
    told.up_to_round(2)
    told.hear("otter", Frozen(3, "scatter", 4, 9), Ended(-9))
    for done in (3, 4, 5):
        told.hear("badger", RoundEnded(done, "merged", 2))
    told.hear("newt", In("aa", "newt"), StateInPlace(2), RoundEnded(3, "replayed", 2))
    told.hear("newt", RoundEnded(4, "followed", 2), RoundEnded(5, "merged", 3))
    for name in ("badger", "crane", "newt"):
        assert not told.story.is_over
        assert told.hear(name, left(), Ended(0))[-1:] != [Fail]
    assert told.story.is_over
    assert told.story.facts.replayed == [3]
    assert not [wish for wish in told.wishes if isinstance(wish, Fail)]
    assert told.hear(COORDINATOR, Ended(0)) == []


def test_a_round_is_told_once_with_its_loss_when_that_comes_in_time():
    told = Told(ALONE, 2)
    told.hear("badger", In("00", "badger"), StateInPlace(0), Evaluated(0, 5.5))
    told.hear("badger", RoundEnded(1, "merged", 1), Evaluated(1, 3.25))
    told.hear("badger", RoundEnded(2, "merged", 1), left(2), Evaluated(2, 3.0))
    rounds = [text for text in told.said if text.startswith("round ")]
    assert rounds == [
        "round 1 of 2 committed: 1 peer, 2.0 s, validation loss 3.250",
        "round 2 of 2 committed: 1 peer, 2.0 s",
    ]
    assert told.said[-1] == "validation loss after round 2: 3.000"


def test_a_skipped_round_is_told_once_and_is_not_committed():
    told = Told()
    told.up_to_round(1)
    for name in CAST.founders:
        told.hear(name, RoundEnded(2, "skipped", 0))
    assert [text for text in told.said if "skipped" in text] == [
        "round 2 was skipped; everybody trains on"
    ]
    assert sorted(told.story.facts.committed) == [1]


def test_rounds_that_go_by_pairs_are_told_so_and_who_steps_alone():
    told = Told()
    for key, name in enumerate(CAST.founders):
        told.hear(name, In(bytes([key]).hex(), name), StateInPlace(0))
    told.hear("crane", RoundEnded(1, "merged", 2, "aa", "02", "c1"))
    told.hear("otter", RoundEnded(1, "merged", 2, "ab", "01", "c1"))
    told.hear("badger", RoundEnded(1, "alone", 1, "ac"), Evaluated(1, 3.25))
    assert told.said[-2:] == [
        "round 1: badger has no partner's half and makes its step alone",
        "round 1 of 5 committed: in pairs, 1.0 s, validation loss 3.250",
    ]
    facts = told.story.facts
    assert facts.told == {1: {"crane": ("otter", "c1"), "otter": ("crane", "c1")}}
    assert facts.alone == 1


def test_a_process_that_ends_unexpectedly_is_a_failure_that_names_it():
    told = Told()
    told.up_to_round(1)
    assert told.hear("crane", Ended(70)) == [
        Fail("crane ended unexpectedly (exit status 70).", "crane")
    ]
    assert told.hear("badger", Ended(-11)) == [
        Fail("badger ended unexpectedly (signal 11).", "badger")
    ]
    assert isinstance(told.hear(COORDINATOR, Ended(0))[0], Fail)


def test_silence_is_a_failure_and_the_coordinators_answers_do_not_break_it():
    told = Told()
    told.up_to_round(1)
    silent_since_s = told.now_s
    told.story.hear(COORDINATOR, status(), silent_since_s + STALL_S)
    assert told.story.tick(silent_since_s + STALL_S) == []
    assert isinstance(told.story.tick(silent_since_s + STALL_S + 1)[0], Fail)


def test_a_newcomer_that_all_others_left_behind_is_a_failure():
    told = Told()
    told.up_to_round(2)
    told.hear("otter", Frozen(3, "scatter", 4, 9), Ended(-9))
    for done in (3, 4, 5):
        told.hear("badger", RoundEnded(done, "merged", 2))
    told.hear("badger", left(), Ended(0))
    told.hear("crane", left(), Ended(0))
    assert told.story.tick(told.now_s + 1) == []
    (failure,) = told.story.tick(told.now_s + 100)
    assert isinstance(failure, Fail) and failure.name == "newt"


def test_who_came_and_who_was_lost_is_the_coordinators_word_and_the_kill():
    told = Told()
    told.up_to_round(2)
    told.hear("otter", Frozen(3, "scatter", 4, 9))
    told.hear("newt", In("aa", "newt"))
    told.hear(
        COORDINATOR,
        status(
            RoundEvent(1, "00", "joined"), RoundEvent(4, "aa", "joined"),
            RoundEvent(5, "02", "lost", "silent"), RoundEvent(5, "ff", "joined"),
        ),
    )  # fmt: skip
    assert joined(told.story.facts, CAST) == [("newt", 4)]
    assert lost(told.story.facts) == [("otter", 3)]
