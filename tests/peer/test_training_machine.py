"""The training side of ops without a thread, a disk or a network: what it asks for, and when."""

from types import SimpleNamespace
from typing import Any

import pytest

from swarmtrain.peer.training.machine import (
    Applied,
    Ended,
    Evaluate,
    GiveAhead,
    KeepResult,
    Loaded,
    Ready,
    TrainingMachine,
    tell,
)
from swarmtrain_transport import actions as do
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.result import OpResult, SliceResult

ME, OTHER = b"m" * 32, b"o" * 32
STEPS = 4


class Pretended:
    """A driver that gives after so many steps and has its outcomes' place `delay` steps later."""

    is_paired = is_alone = False

    def __init__(self, delay: int = 0, *, keeps_pace: bool = False) -> None:
        self.op, self.steps, self.given = -1, 0, -1
        self.delay, self.keeps_pace = delay, keeps_pace
        self.included = True
        self.done: list[Any] = []

    @property
    def is_waiting(self) -> bool:
        return self.given >= 0

    @property
    def is_at_place(self) -> bool:
        return self.is_waiting and self.steps - self.given >= self.delay

    @property
    def has_steps(self) -> bool:
        return self.steps > 0

    @property
    def is_due(self) -> bool:
        return self.op >= 0 and not self.is_waiting and self.steps >= STEPS

    def stepped(self, samples: int) -> None:
        self.steps += 1

    def contribute(self) -> Any:
        self.given = self.steps
        return SimpleNamespace(op=self.op + 1, contribution=b"", samples=8)

    def known_ahead(self) -> Any:
        return None

    def load(self, action: do.LoadState) -> Any:
        return self._ended(action.op)

    def end_op(self, result: OpResult) -> Any:
        return self._ended(result.op)

    def skip(self, op: int) -> None:
        self._ended(op)

    def settle(self) -> None:
        self.done.append("settled")

    def keep_pace(self, own: float, fastest: float) -> None:
        self.done.append((own, fastest))

    def _ended(self, op: int) -> Any:
        self.steps -= max(0, self.given) if self.delay else self.steps
        self.op, self.given = op, -1
        return SimpleNamespace(op=op, manifest=SimpleNamespace(root=b"r"), chunks=None)


class Overlapping(Pretended):
    """The same, and two ops may be under way."""

    def __init__(self, delay: int) -> None:
        super().__init__(delay)
        self.marks: list[int] = []

    @property
    def is_due(self) -> bool:
        return len(self.marks) < 2 and self.steps >= STEPS * (len(self.marks) + 1)

    def contribute(self) -> Any:
        self.marks.append(self.steps)
        self.given = self.marks[0]
        return SimpleNamespace(op=self.op + len(self.marks), contribution=b"", samples=8)

    def _ended(self, op: int) -> Any:
        ended = self.marks.pop(0) if self.marks else 0
        self.steps -= ended
        self.marks = [mark - ended for mark in self.marks]
        self.op, self.given = op, self.marks[0] if self.marks else -1
        return SimpleNamespace(op=op, manifest=SimpleNamespace(root=b"r"), chunks=None)


def result(op: int, **more: Any) -> do.ApplyResult:
    piece = SliceResult(0, 16, (ME, OTHER), ())
    window = Window("int8", 16, -24, 0)
    settings = {"checkpoint_by": b"", "evaluate_by": b""} | more
    return do.ApplyResult(OpResult(op, window, 16, 16, (piece,), replayed=False, **settings))


def begun(driver: Pretended, **settings: Any) -> TrainingMachine:
    given = {"rounds": 9, "steps_per_round": STEPS} | settings
    machine = TrainingMachine(ME, driver, **given)
    assert machine.holds_back  # there is no state yet
    manifest: Any = SimpleNamespace(root=b"first")
    machine.heard(do.LoadState(0, manifest, ()))
    assert [type(one) for one in machine.advance(0.0)][:2] == [Loaded, Applied]
    machine.network(0.0, is_connected=True, is_exchanging=False)
    return machine


def step(machine: TrainingMachine, count: int = 1, now_s: float = 0.0) -> list[Any]:
    """Inner steps; what was asked for after them."""
    told: list[Any] = []
    for _ in range(count):
        assert not machine.holds_back
        machine.stepped(8, now_s)
        while actions := machine.advance(now_s):
            told += actions
    return told


def test_a_part_is_given_when_it_is_due_and_its_outcome_is_waited_for():
    machine = begun(Pretended())
    assert step(machine, 3) == []
    (ready,) = step(machine)
    assert isinstance(ready, Ready) and ready.part.op == 1 and machine.holds_back
    machine.heard(result(1))
    kept, applied, ended = machine.advance(0.0)
    assert isinstance(kept, KeepResult) and isinstance(applied, Applied)
    assert isinstance(ended, Ended) and ended.report.outcome == "merged"
    assert machine.advance(0.0) == () and not machine.holds_back


def test_an_outcome_waits_for_its_place_and_all_behind_it_waits_too():
    driver = Pretended(delay=3)
    machine = begun(driver)
    step(machine, 4)
    machine.heard(result(1))
    machine.heard(do.RunFinished(1, 2.5))
    assert step(machine, 2) == [] and driver.op == 0
    told = step(machine)
    assert [type(one) for one in told] == [KeepResult, Applied, Ended] and driver.op == 1
    assert machine.is_finished and machine.final_loss == 2.5 and driver.done[-1] == "settled"


def by_word(delay: int) -> tuple[Pretended, TrainingMachine]:
    driver = Pretended(delay)
    return driver, begun(driver, ends_by_word=True)


def elsewhere(machine: TrainingMachine, count: int) -> tuple[Any, ...]:
    told: tuple[Any, ...] = ()
    for _ in range(count):
        machine.stepped_elsewhere()
        told += machine.advance(0.0)
    return told


@pytest.mark.parametrize("delay", [0, 3, STEPS])
def test_where_a_round_ends_by_word_no_number_of_steps_ends_it(delay: int):
    driver, machine = by_word(delay)
    assert elsewhere(machine, 2 * STEPS) == ()
    (ready,) = machine.give(24, 0.0)
    assert isinstance(ready, Ready) and ready.part.op == 1
    machine.heard(result(1))
    assert elsewhere(machine, delay - 1) == () if delay else machine.advance(0.0)
    assert elsewhere(machine, 3 * STEPS) or not delay
    assert driver.op == 1 and not driver.is_waiting


def test_the_next_end_of_a_round_is_the_latest_place_of_an_outcome():
    driver, machine = by_word(STEPS)
    for op in (1, 2):
        machine.give(8, 0.0)
        machine.heard(result(op))
        assert elsewhere(machine, STEPS - 1) == () and driver.op == op - 1
        machine.hurry()
        assert machine.advance(0.0) and driver.op == op
    machine.give(8, 0.0)
    machine.heard(result(3))
    assert machine.advance(0.0) == ()


def test_at_its_place_a_peer_waits_for_what_is_not_here():
    machine = begun(Pretended(delay=2))
    step(machine, 4)
    assert not machine.holds_back
    step(machine, 2)
    assert machine.holds_back
    machine.heard(do.OpSkipped(1, "deadline"))
    (ended,) = machine.advance(0.0)
    assert isinstance(ended, Ended) and ended.report.outcome == "skipped"
    assert not machine.holds_back


def test_without_the_coordinator_one_round_is_made_alone_and_no_more():
    machine = begun(Pretended(), lonely_s=5.0)
    step(machine, 4)
    machine.network(4.9, is_connected=False, is_exchanging=False)
    assert machine.holds_back
    machine.network(5.0, is_connected=False, is_exchanging=False)
    assert machine.is_alone
    step(machine, STEPS)
    assert machine.holds_back and not machine.is_alone
    machine.network(6.0, is_connected=True, is_exchanging=False)
    assert machine.holds_back


def test_whoever_leaves_waits_for_the_outcome_of_what_it_gave_and_for_no_place():
    driver = Pretended(delay=3)
    machine = begun(driver)
    step(machine, 4)
    machine.leave_soon()
    assert not machine.should_stop
    machine.heard(result(1))
    assert machine.advance(0.0) and driver.op == 1
    assert machine.should_stop and machine.advance(0.0) == ()


def test_whoever_leaves_with_ops_under_way_begins_no_more_and_waits_for_all_of_them():
    driver = Overlapping(delay=STEPS + 2)
    machine = begun(driver)
    first, second = step(machine, 2 * STEPS)
    assert (first.part.op, second.part.op) == (1, 2)
    machine.leave_soon()
    machine.heard(result(1))
    assert len(machine.advance(0.0)) == 3 and driver.op == 1
    assert step(machine, STEPS) == [] and driver.is_due and not machine.should_stop
    machine.heard(do.OpSkipped(2, "deadline"))
    assert machine.advance(0.0) and machine.should_stop


def test_whoever_leaves_in_the_middle_of_a_round_gives_what_there_is():
    machine = begun(Pretended())
    step(machine, 2)
    (ready,) = machine.finish_round(1.0)
    assert isinstance(ready, Ready) and machine.holds_back and not machine.should_stop
    machine.heard(do.OpSkipped(1, "nobody"))
    assert machine.advance(1.0) and machine.should_stop


@pytest.mark.parametrize("reason", ["lonely", "still", "late"])
def test_whoever_leaves_waits_for_nothing_that_will_not_come(reason: str):
    machine = begun(Pretended(), patience_s=30.0)
    step(machine, 4)
    machine.leave_soon()
    machine.network(1.0, is_connected=True, is_exchanging=False)
    assert machine.holds_back and not machine.should_stop
    machine.network(40.0, is_connected=True, is_exchanging=True)
    assert not machine.should_stop  # an op is under way, however late
    machine.stands_still(is_so=reason == "still")
    now_s = 50.0 if reason == "late" else 41.0
    machine.network(now_s, is_connected=reason != "lonely", is_exchanging=False)
    if reason == "lonely":
        machine.network(60.0, is_connected=False, is_exchanging=False)
    assert machine.should_stop and not machine.holds_back


def test_pace_is_told_where_the_strategy_keeps_it():
    driver = Pretended(keeps_pace=True)
    machine = begun(driver)
    told = []
    for number in range(STEPS):
        machine.begins_step(10.0 * number)
        told += step(machine, now_s=10.0 * number + 0.5)
    assert [one.steps_per_s for one in told] == [2.0]
    machine.heard(result(1, fastest_steps_per_s=8.0))
    machine.advance(0.0)
    assert driver.done == [(2.0, 8.0)]


def test_whose_state_was_the_first_and_whom_the_plan_names_evaluates():
    driver = Pretended()
    machine = TrainingMachine(ME, driver, rounds=9, steps_per_round=STEPS)
    machine.offered_root = b"first"
    manifest: Any = SimpleNamespace(root=b"first")
    machine.heard(do.LoadState(0, manifest, ()))
    assert machine.advance(0.0)[-1] == Evaluate(0)
    machine.heard(result(1, evaluate_by=ME))
    assert machine.advance(0.0)[-1] == Evaluate(1)
    machine.heard(result(2, evaluate_by=OTHER))
    assert not any(isinstance(one, Evaluate) for one in machine.advance(0.0))


def test_nothing_goes_ahead_of_an_op_after_the_last_one():
    told: list[int] = []
    participant: Any = SimpleNamespace(
        view=SimpleNamespace(groups={0: SimpleNamespace(committed=9)}, rounds=0),
        give_ahead=lambda op, *others: told.append(op) or (),
    )
    known: Any = SimpleNamespace(start=0)
    assert tell(GiveAhead(10, known, 9), participant, 0.0) == () and told == []
    tell(GiveAhead(10, known, 10), participant, 0.0)
    assert told == [10]
