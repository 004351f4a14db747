"""Orders of a peer's owner, and what they mean to its training."""

import asyncio
import json

import pytest

from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.wishes import Wishes


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
