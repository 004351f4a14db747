"""Orders of a peer's owner, and what they mean to its training."""

import asyncio
import json
from datetime import datetime

import pytest

from swarmtrain.config import owner_limits
from swarmtrain.config.owner_limits import Limits
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.wishes import Machine, Wishes


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def told(wishes: Wishes, **said: object) -> dict[str, object]:
    return asyncio.run(wishes.hear(json.dumps(said).encode()))


def test_a_pause_lasts_until_it_is_ended():
    wishes = Wishes(Clock())
    assert not wishes.is_paused and wishes.words == ""
    assert "until `swarmtrain resume`" in str(told(wishes, order="pause")["paused"])
    assert wishes.is_paused
    assert told(wishes, order="resume") == {"paused": ""}
    assert not wishes.is_paused


def test_a_pause_for_a_time_ends_by_itself():
    clock = Clock()
    wishes = Wishes(clock)
    assert told(wishes, order="pause", seconds=7200.0) == {
        "paused": "by its owner, for 2 h 00 min more"
    }
    clock.now_s += 7199.0
    assert wishes.is_paused
    clock.now_s += 1.0
    assert not wishes.is_paused and wishes.words == ""


def test_who_finishes_or_leaves_rests_no_more():
    for order, attribute in (("finish", "finishes"), ("leave", "leaves")):
        wishes = Wishes(Clock())
        told(wishes, order="pause")
        told(wishes, order=order)
        assert getattr(wishes, attribute) and not wishes.is_paused


@pytest.mark.parametrize(
    "said",
    [
        {"order": "invite-create"}, {"order": "pause", "seconds": 0}, {},
        {"order": "pause", "seconds": 1e12}, {"order": "pause", "seconds": "x"},
        {"order": "resume", "more": 1},
    ],
)  # fmt: skip
def test_what_is_no_order_changes_nothing_and_is_told(said):
    wishes = Wishes(Clock())
    with pytest.raises(UserError) as caught:
        told(wishes, **said)
    assert caught.value.code == "SWT-E610" and not wishes.is_paused


def test_a_peer_that_others_wait_for_by_the_step_cannot_pause_but_leave():
    wishes = Wishes(Clock())
    wishes.may_pause = False
    with pytest.raises(UserError, match="cannot pause"):
        told(wishes, order="pause")
    told(wishes, order="leave")
    assert wishes.leaves


class Laptop(Machine):
    battery, load, nice, cpu_s = False, 0.0, 0, 0.0

    def worked(self) -> float:
        return self.cpu_s

    def on_battery(self) -> bool:
        return self.battery

    def others(self) -> float:
        return self.load

    def set_nice(self, nice: int) -> None:
        self.nice = nice


def looked(wishes: Wishes, clock: Clock) -> str:
    clock.now_s += 3.0
    wishes.look()
    return wishes.words


def test_limits_are_taken_while_the_peer_runs(tmp_path):
    clock, laptop, now = Clock(), Laptop(), [datetime(2027, 3, 1, 12, 0)]
    wishes = Wishes(clock, tmp_path, laptop, lambda: now[0])
    assert looked(wishes, clock) == ""
    owner_limits.write(tmp_path, Limits("22-7", battery=False, busy=0.5, nice=7))
    assert looked(wishes, clock) == "outside its hours, until Mon 22:00" and wishes.is_paused
    assert laptop.nice == 7
    now[0] = datetime(2027, 3, 1, 22, 0)
    assert looked(wishes, clock) == "" and not wishes.is_paused
    laptop.battery = True
    assert looked(wishes, clock) == "on battery"
    laptop.battery, laptop.load = False, 0.8
    assert "others take 80 %" in looked(wishes, clock)
    (tmp_path / owner_limits.FILE_NAME).write_text("{")
    laptop.load = 0.0
    assert looked(wishes, clock) == "" and wishes.limits.nice == 7, "the last whole ones hold on"
    told(wishes, order="pause")
    assert "by its owner" in wishes.words


def test_a_peer_that_cannot_pause_is_not_paused_by_limits_either(tmp_path):
    clock = Clock()
    owner_limits.write(tmp_path, Limits(battery=False))
    laptop = Laptop()
    laptop.battery = True
    wishes = Wishes(clock, tmp_path, laptop)
    wishes.may_pause = False
    assert looked(wishes, clock) == "" and not wishes.is_paused


def test_a_duty_cycle_sleeps_as_long_as_it_says(monkeypatch, tmp_path):
    slept: list[float] = []
    monkeypatch.setattr("swarmtrain.peer.wishes.time.sleep", slept.append)
    owner_limits.write(tmp_path, Limits(duty=0.25))
    clock, laptop = Clock(), Laptop()
    wishes = Wishes(clock, tmp_path, laptop)
    wishes.look()
    laptop.cpu_s, clock.now_s = 0.5, clock.now_s + 0.7  # it has waited, too
    wishes.breathe(0.1)
    assert sum(slept) == pytest.approx(2.0 - 0.7) and max(slept) <= 0.5
    laptop.cpu_s, clock.now_s = 0.6, clock.now_s + 9.0
    wishes.breathe(0.1)
    assert sum(slept) == pytest.approx(1.3), "it has waited for longer than that"
    clock.now_s += 1.0
    wishes.breathe(1.0)
    assert sum(slept) == pytest.approx(4.3), "a card's step counts whole"
