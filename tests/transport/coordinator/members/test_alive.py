"""Who is alive is remembered between two messages, and is at each moment what a look would tell."""

import random

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.wire import messages as m
from tests.transport.hall import Hall, opened
from tests.transport.rig import A, B, C, D, E

ALL = (A, B, C, D, E)


def check(hall: Hall) -> int:
    """Return how many of all are alive by what is remembered, which is what a look tells."""
    roster, named = hall.machine.live_roster, frozenset(ALL)
    remembered = roster.alive_among(named, hall.now_s)
    assert remembered == roster.alive_of(named, hall.now_s)
    return len(remembered)


def happens(hall: Hall, rng: random.Random) -> None:
    """One thing of those that make peers suspected, or alive again."""
    peer, kind = rng.choice(ALL), rng.randrange(8)
    pause_s = rng.choice((0.0, 0.01, 1.0, limits.SUSPECT_CLOSED_S, limits.SUSPECT_S))
    line = hall.machine.lines.get(peer)
    if line is None or (kind == 0 and not line.connected):
        hall.join(peer, head_index=len(hall.records) - 1, head_hash=hall.records[-1].hash)
    elif kind == 1:
        hall.take(hall.machine.disconnected(peer, hall.now_s))
    elif kind == 2:
        hall.wake(hall.now_s + limits.ABSENT_S + pause_s)
    elif kind == 3:
        hall.tick(hall.now_s + pause_s)
    elif kind == 4 and line.connected:
        hall.say(peer, m.Ready(hall.machine.view.first.next_op, 8, 0, b"R" * 32))
    elif kind < 7 and line.connected:
        hall.ack(peer, index=rng.choice((0, len(hall.records) - 1)))
    else:
        for other in [one for one in ALL if one != peer and one in hall.machine.lines]:
            hall.ack(other, unreached=(peer,))


@pytest.mark.parametrize("seed", range(12))
def test_what_is_remembered_of_who_is_alive_is_what_a_look_tells(seed: int) -> None:
    hall, rng = opened(*ALL, start_peers=2, wait_ready_s=5.0), random.Random(seed)
    found = {check(hall)}
    for _ in range(400):
        happens(hall, rng)
        found.add(check(hall))
    assert len(found) > 2, "some were suspected now and then"
