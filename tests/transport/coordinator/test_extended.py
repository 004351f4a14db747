"""Rounds that the organiser adds: a record that all fold, and an end that is only put off."""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.snapshots import from_image, image_of
from swarmtrain_transport.peer.ledger_copy import LedgerCopy
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import BodyReader, Extend
from tests.transport.hall import Hall, held, opened
from tests.transport.rig import A, B, C, verify


def test_a_finished_run_goes_on_with_the_same_peers_and_new_ones() -> None:
    hall = opened(A, B, rounds=1)
    hall.run_op(1, A, B)
    hall.say(A, m.Leave())
    hall.say(B, m.Leave())
    assert hall.machine.is_finished

    again = Hall(tuple(hall.records), term=2, rounds=1)
    again.take(again.machine.extend(3, 0.0))
    assert not again.machine.is_finished and not again.bodies(Extend)  # it hears its peers first
    again.join(A, boot=b"again", **held(1))
    again.alive(limits.SUSPECT_S + 1, A)
    assert again.bodies(Extend) == [Extend(3)]
    assert not again.machine.is_finished and again.machine.status(again.now_s).rounds == 3
    again.join(C)
    assert not [one for one in again.sent[C] if isinstance(one, m.Refused)]

    later = Hall(tuple(again.records), term=3, rounds=1)
    assert not later.machine.is_finished and later.machine.rounds == 3


def test_a_running_one_is_put_off_and_its_last_round_is_checkpointed() -> None:
    hall = opened(A, B, rounds=2, checkpoint_rounds=100)
    hall.take(hall.machine.extend(2, hall.now_s))
    hall.take(hall.machine.extend(1, hall.now_s))
    assert not hall.bodies(Extend)
    hall.take(hall.machine.extend(3, hall.now_s))
    hall.take(hall.machine.extend(3, hall.now_s))
    assert hall.bodies(Extend) == [Extend(3)]
    for op in (1, 2):
        hall.run_op(op, A, B)
        assert not hall.plan().checkpoint_by and not hall.machine.is_finished
    hall.run_op(3, A, B)
    assert hall.plan().checkpoint_by and hall.machine.is_finished


def test_it_waits_while_somebody_may_bring_what_the_disk_has_lost() -> None:
    lost = Hall(is_lost=True, rounds=1)
    lost.take(lost.machine.extend(3, 0.0))
    assert not lost.records and not lost.machine.is_finished


def test_peers_fold_it_and_snapshots_carry_it() -> None:
    hall = opened(A, B, rounds=1)
    before = image_of(hall.machine.view, BodyReader())
    hall.take(hall.machine.extend(9, hall.now_s))
    copy = LedgerCopy(verify, ())
    for record in hall.records:
        copy.take(record.to_bytes())
    assert copy.view.rounds == 9
    image = image_of(copy.view, BodyReader())
    assert from_image(image)[0] == copy.view and from_image(before)[0].rounds == 0
    with pytest.raises(RemoteFault, match="EXTEND"):
        copy.view.apply(hall.records[-1], Extend(9))
