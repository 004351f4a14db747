"""Nothing that is done to a connection ends the process of the peer at its other end.

Before libzmq was kept from failing connections with full queues, the first or second round of each
attack ended the victim with SIGABRT.
"""

import pytest

from swarmtrain.chaos.siege.libzmq_attack import Backtalker, Flooder
from swarmtrain_transport import limits
from swarmtrain_transport.links.tcp import can_tell
from swarmtrain_transport.wire.frames import pack
from tests.transport.links.link_rig import DEADLINE_S, identity_of, part
from tests.transport.links.link_victim import Victim

pytestmark = pytest.mark.skipif(not can_tell(), reason="only Linux tells when to reset")

SMALL = 10
FULL = 4 * limits.LINK_RECEIVE_QUEUE_FRAMES
ROUNDS = 4


def still_hears(victim: Victim) -> None:
    """Check that it hears an honest peer, and ends as it should."""
    with Flooder(identity_of("honest"), victim.address) as honest:
        victim.ask("admit", "honest", 1)
        assert honest.wait(1, DEADLINE_S)
        honest.send(1, *pack(part(1)))
        victim.until(lambda figures: figures["heard"]["honest"] == 1)
    assert victim.end() == 0


@pytest.mark.parametrize("heartbeat_ms", [0, 1])
def test_who_talks_back_by_our_own_connection_and_resets_it_is_cut_off_and_named(
    heartbeat_ms: int,
) -> None:
    hostile = Backtalker(identity_of("hostile"), heartbeat_ms=heartbeat_ms)
    with Victim() as victim, hostile:
        victim.ask("admit", "hostile", hostile.address.port)

        def is_named_often(figures: dict) -> bool:
            hostile.attack(SMALL, 2 * limits.LINK_LOOK_S)
            return figures["refused"].get("backtalk", 0) >= ROUNDS

        assert victim.until(is_named_often)["accused"] == ["hostile"]
        still_hears(victim)


def test_heartbeats_alone_are_talk_too_as_they_are_never_asked_for() -> None:
    with Victim() as victim, Backtalker(identity_of("hostile"), heartbeat_ms=1) as hostile:
        victim.ask("admit", "hostile", hostile.address.port)
        figures = victim.until(lambda figures: "backtalk" in figures["refused"])
        assert figures["accused"] == ["hostile"]
        still_hears(victim)


def test_that_nobody_watches_meanwhile_changes_nothing() -> None:
    with Victim() as victim, Backtalker(identity_of("hostile"), heartbeat_ms=1) as hostile:
        victim.ask("admit", "hostile", hostile.address.port)
        assert hostile.wait(1, DEADLINE_S)
        victim.say("block", 5.0)
        assert hostile.attack(SMALL, DEADLINE_S)
        victim.answer()
        figures = victim.until(lambda figures: "backtalk" in figures["refused"])
        assert figures["accused"] == ["hostile"]
        still_hears(victim)


@pytest.mark.parametrize("capped", [False, True])
def test_a_full_queue_with_heartbeats_behind_it_may_be_reset(*, capped: bool) -> None:
    with (
        Victim(capped=capped) as victim,
        Flooder(identity_of("hostile"), victim.address, heartbeat_ms=1) as hostile,
    ):
        victim.ask("admit", "hostile", 1)
        for turn in range(ROUNDS):
            assert hostile.wait(1, DEADLINE_S)
            if capped:
                victim.ask("cap", "shut")
            else:
                victim.say("block", 0.3)
            assert hostile.attack(FULL, DEADLINE_S)
            if capped:
                victim.ask("cap", "open")
            else:
                victim.answer()
            least = (turn + 1) * limits.CAPPED_QUEUE_FRAMES
            victim.until(lambda figures: figures["refused"].get("frame", 0) >= least)  # noqa: B023
        still_hears(victim)


def test_an_honest_peers_connection_may_be_reset_while_our_queue_is_full() -> None:
    with Victim() as victim, Flooder(identity_of("dying"), victim.address) as dying:
        victim.ask("admit", "dying", 1)
        assert dying.wait(1, DEADLINE_S)
        victim.say("block", 3.0)
        assert dying.attack(FULL, DEADLINE_S)
        victim.answer()
        still_hears(victim)
