"""A state that most members of its op have lost with their processes (protocol.md T15)."""

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Attest, Rewind
from tests.transport.hall import Hall, held, opened, root_of
from tests.transport.rig import A, B, C, D


def after_a_power_cut(*back: PeerId) -> Hall:
    """Op 1 of A, B and C is committed, A alone has applied it; these come as other processes."""
    hall = opened(min_contributors=2)
    hall.ready(1, A, B, C)
    hall.exchange(A, B, C)
    hall.join(A, boot=b"A again.", **held(1))
    hall.say(A, m.Applied(1, root_of(1)))
    for peer in back:
        hall.join(peer, boot=b"another.")
        hall.ack(peer)
    return hall


def attested(hall: Hall) -> list[tuple[int, bytes]]:
    return [(body.op, body.state_root) for body in hall.bodies(Attest)]


def test_who_was_started_again_and_cannot_get_the_state_has_no_voice() -> None:
    hall = after_a_power_cut(B, C)
    hall.say(B, m.Stranded(0))
    assert len(attested(hall)) == 1, "C may have it yet"
    hall.say(C, m.Stranded(1))
    assert attested(hall) == [(0, root_of(0)), (1, root_of(1))]
    assert not hall.bodies(Rewind)


def test_a_process_that_was_in_the_op_has_a_voice_whatever_it_lacks() -> None:
    hall = after_a_power_cut(B)
    for peer in (B, C):
        hall.say(peer, m.Stranded(1))
    assert len(attested(hall)) == 1


def test_who_is_away_may_have_the_state_and_is_waited_for() -> None:
    hall = after_a_power_cut(B)
    hall.take(hall.machine.disconnected(C, hall.now_s))
    hall.say(B, m.Stranded(1))
    hall.alive(hall.now_s + limits.SUSPECT_S + 1.0, A, B)
    assert len(attested(hall)) == 1, "whoever claims it may lie"
    hall.alive(hall.now_s + limits.EVICT_S, A, B)
    assert attested(hall)[1:] == [(1, root_of(1))]


def test_two_who_hold_different_states_outvote_nobody() -> None:
    hall = after_a_power_cut(B, C)
    hall.say(B, m.Applied(1, b"\7" * 32))
    hall.say(C, m.Stranded(1))
    assert len(attested(hall)) == 1


def test_who_was_stranded_and_has_the_state_now_speaks_again() -> None:
    hall = after_a_power_cut(B, C)
    hall.say(B, m.Stranded(1), m.Applied(1, b"\7" * 32))
    hall.say(C, m.Stranded(1), m.Applied(1, b"\7" * 32))
    assert attested(hall)[1:] == [(1, b"\7" * 32)], "two of three"


def test_one_who_was_not_in_the_op_speaks_for_a_state_that_all_others_have_lost() -> None:
    hall = opened(A, B, min_contributors=2)
    hall.ready(1, A, B)
    hall.exchange(A, B)
    for peer in (A, B):
        hall.join(peer, boot=b"another.")
        hall.ack(peer)
    hall.join(C, **held(1))
    hall.join(D)
    for peer in (C, D):
        hall.ack(peer)
    hall.say(C, m.Applied(1, root_of(1)))
    for peer in (A, B):
        hall.say(peer, m.Stranded(0))
    assert len(attested(hall)) == 1, "D may have it yet"
    hall.say(D, m.Stranded(0))
    assert attested(hall)[1:] == [(1, root_of(1))], "nobody could take it, nor an op be planned"
