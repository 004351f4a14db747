"""The training thread of a stage peer between its inbox and its sessions."""

import queue
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from staged_run import config_of

from swarmtrain.peer.training.stages import StageTraining
from swarmtrain_transport.actions import OpSkipped
from swarmtrain_transport.pipeline.peer.requests import Step
from swarmtrain_transport.pipeline.wire.orders import Pace
from swarmtrain_transport.pipeline.wire.route import Span
from swarmtrain_transport.wire.messages import Waiting
from swarmtrain_transport.wire.records import Turn

CONFIG = config_of(3, 1)
PACE = Pace(begins=0, length=2, steps=2)


class Stage:
    """A session that knows what was given, and whose outcomes have a place so many steps later."""

    def __init__(self, planned: set[int], delay: int) -> None:
        self.delay = self.left = delay
        self.driver = SimpleNamespace(op=4, is_waiting=False)
        self.is_finished = self.is_lonely = False
        self.machine = self
        self.told: list[Any] = []
        self._planned = planned
        self.is_leaving = False

    @property
    def should_stop(self) -> bool:
        return self.is_leaving and not self.driver.is_waiting

    def request_stop(self) -> None:
        self.is_leaving = True

    def glance(self) -> None:
        self.told.append("glance")

    @property
    def awaits_outcome(self) -> bool:
        return self.driver.is_waiting and self.driver.op + 1 in self._planned

    def give(self, samples: int) -> None:
        assert not self.driver.is_waiting
        self.driver.is_waiting, self.left = True, self.delay
        self.told.append(("give", self.driver.op + 1, samples))

    def take_back(self) -> None:
        if self.driver.is_waiting:
            self.driver.is_waiting = False
            self.told.append("back")

    def heard(self, outcome: OpSkipped) -> None:
        self.told.append("heard")

    def stepped_elsewhere(self) -> None:
        self.left -= 1

    def hurry(self) -> None:
        self.left = 0

    def advance(self) -> None:
        if self.told and self.told[-1] == "heard" and (self.left <= 0 or self.is_leaving):
            self.told.append("applied")
            self.driver.op, self.driver.is_waiting = self.driver.op + 1, False


def training(
    planned: set[int], delay: int = 0
) -> tuple[StageTraining, Stage, queue.SimpleQueue[Any], Any]:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    thread: Any = SimpleNamespace(
        inbox=inbox,
        note=lambda note: None,
        call=lambda action: None,
        shell=SimpleNamespace(turns=()),
    )
    trainer: Any = SimpleNamespace(
        tokens=Counter(), loss=(0.0, 0), num_steps=Counter(), is_midway=False,
        step=lambda request: None, begin=lambda pace: None,
    )  # fmt: skip
    stage: Any = Stage(planned, delay)
    made = StageTraining(thread, {1: stage}, trainer, CONFIG, lambda item: None)
    return made, stage, inbox, trainer


def rates(made: StageTraining, trainer: Any, steps: int) -> list[float]:
    """Learning rates of the steps that are made now."""
    found = []

    def step(request: Step) -> None:
        found.append(trainer.rate)
        trainer.num_steps[1] += 1

    trainer.step = step
    for _ in range(steps):
        made.step(Step(Span(1, 1), 8, 1))
    return found


def settled(made: StageTraining, trainer: Any, round: int) -> None:
    trainer.tokens[1] = 8
    made.settle(round)


def test_what_no_op_takes_is_given_again_with_the_next_rounds_work():
    """As where a stage has made all its rounds and the others have not."""
    made, stage, _, trainer = training(set())
    settled(made, trainer, 0)
    settled(made, trainer, 1)
    assert stage.told == [("give", 5, 8), "back", ("give", 5, 8)]


def test_the_next_rounds_work_waits_for_the_outcome_of_the_last_one():
    made, stage, inbox, trainer = training({5})
    settled(made, trainer, 0)
    inbox.put(OpSkipped(5, "nobody", 1))
    settled(made, trainer, 1)
    assert stage.told == [("give", 5, 8), "heard", "applied", ("give", 6, 8)]


def step(made: StageTraining) -> None:
    def part(training: Any) -> Any:
        training.step(Step(Span(1, 1), 32, 2))
        return lambda now_s: None

    made._thread.inbox.put(part)
    made.work()


def test_an_outcome_is_applied_at_its_place_between_steps_of_the_next_round():
    made, stage, inbox, trainer = training({5}, delay=2)
    settled(made, trainer, 0)
    made.begin(PACE)
    inbox.put(OpSkipped(5, "nobody", 1))
    made.work()
    step(made)
    assert stage.told[-1] == "heard"
    step(made)
    assert stage.told[-1] == "applied"


def test_a_round_with_too_few_steps_has_the_outcomes_place_at_its_end():
    made, stage, inbox, trainer = training({5}, delay=2)
    settled(made, trainer, 0)
    made.begin(PACE)
    inbox.put(OpSkipped(5, "nobody", 1))
    made.work()
    step(made)
    settled(made, trainer, 1)
    assert stage.told == [("give", 5, 8), "heard", "applied", ("give", 6, 8)]


@pytest.mark.parametrize("is_asked", [False, True])
def test_an_outcome_waits_for_no_step_that_nobody_will_make(is_asked: bool):
    """After the last round, while the run lacks a stage, and where this peer is to leave."""
    made, stage, inbox, trainer = training({5}, delay=2)
    if is_asked:
        made.request_stop()
    settled(made, trainer, 0)
    if is_asked:
        made.begin(PACE)
    inbox.put(OpSkipped(5, "nobody", 1))
    made.work()
    assert stage.told[-1] == "applied"
    assert made.should_stop == is_asked


def test_who_is_asked_to_leave_waits_for_the_outcome_of_what_it_gives_last():
    """Its op is planned only when the round is booked."""
    made, stage, inbox, trainer = training(set())
    made.request_stop()
    assert not made.should_stop
    settled(made, trainer, 0)
    assert not made.should_stop
    made.work()
    assert stage.told == [("give", 5, 8), "glance"], "nobody waits for an op that does not come"
    inbox.put(OpSkipped(5, "nobody", 1))
    made.work()
    assert made.should_stop


def test_who_leaves_gives_nothing_in_the_next_round():
    made, stage, _, trainer = training(set())
    made.request_stop()
    settled(made, trainer, 0)
    settled(made, trainer, 1)
    assert stage.told == [("give", 5, 8), "back"] and made.should_stop


def test_who_is_asked_to_leave_while_no_round_can_end_goes_at_once():
    made, _, inbox, _ = training(set())
    made.request_stop()
    inbox.put(Waiting("a peer in stage 0"))
    made.work()
    assert made.should_stop
    made, stage, _, _ = training(set())
    made.request_stop()
    assert not made.should_stop
    stage.is_lonely = True
    assert made.should_stop


def test_an_outcome_is_not_applied_in_the_midst_of_a_backward_pass():
    made, stage, inbox, trainer = training({5})
    settled(made, trainer, 0)
    trainer.is_midway = True
    inbox.put(OpSkipped(5, "nobody", 1))
    made.work()
    assert stage.told[-1] == "heard"
    trainer.is_midway = False
    inbox.put(lambda training: None)
    made.work()
    assert stage.told[-1] == "applied"


def test_the_learning_rate_goes_by_the_runs_clock_and_stands_still_at_a_rounds_end():
    """Whatever ops of its own stage were skipped: all stages have one rate."""
    made, _, _, trainer = training({5})
    warm = CONFIG.inner.lr / CONFIG.inner.warmup_steps
    made.begin(PACE)
    assert rates(made, trainer, 3) == pytest.approx([warm, 2 * warm, 2 * warm])
    made.begin(Pace(begins=2, length=2, steps=2))
    assert rates(made, trainer, 1) == pytest.approx([3 * warm])


def test_a_round_of_a_turned_subspace_waits_for_the_ledger_s_word():
    made, _, inbox, trainer = training({5})
    begun: list[Pace] = []
    trainer.begin = begun.append

    def heard(training: Any) -> Any:
        assert not begun
        made._thread.shell.turns = (Turn(1, ()),)
        return lambda now_s: None

    inbox.put(heard)
    made.begin(Pace(turns=1))
    assert [one.turns for one in begun] == [1] and inbox.empty()


def test_who_has_counted_nothing_gives_nothing():
    made, stage, _, _ = training(set())
    made.settle(0)
    assert stage.told == []
