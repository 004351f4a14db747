"""Bytes that go ahead of their op: to the expected partner alone, bounded, and only by their
hash."""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.actions import SendControl, SendFrame
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.ahead import Ahead
from swarmtrain_transport.collective.exchange import Exchange
from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import GroupView, OpView
from swarmtrain_transport.ledger.pairing import contributors_of, drawn, order_of, partner_in
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Hashes, Have, SliceDone
from swarmtrain_transport.wire.records import Attest, Commit
from tests.transport.coordinator.ops.pair_table import pair_plan
from tests.transport.pair_swarm import PairSwarm
from tests.transport.plain_arithmetic import (
    ILLEGAL_SCALE,
    PlainArithmetic,
    PlainContribution,
    encode_part,
)
from tests.transport.rig import BOOT, LAYOUT, A, B, C, D, sign_as, view_of

TAG = 7
VALUES = 16
"""Values of the op: eight of the difference, eight of the anchor; a chunk has four."""

FIRST, SECOND, *OTHERS = drawn(TAG, 2, (A, B, C, D))
"""Partners in op 2."""


def values_of(peer: PeerId) -> list[int]:
    return [peer[0] * 20 + i for i in range(VALUES)]


class Side:
    """One peer between op 1 and op 2."""

    def __init__(self, me: PeerId, boot: bytes = BOOT) -> None:
        self.me = me
        self.view = GroupView(tag=TAG, genesis=Attest(0, bytes(32), 8, LAYOUT), last_op=1)
        self.view.op = view_of(pair_plan(tag=TAG, num_values=VALUES))
        self.view.members.update({peer: BOOT for peer in (A, B, C, D)})
        self.stats, self.blobs = LocalStats(), Blobs()
        self.ahead = Ahead(me, boot, self.view, self.blobs.retention, self.stats)
        self.fetcher = Fetcher(list)
        self.given = PlainContribution(values_of(me))

    def give(self) -> list[Frame]:
        """All of it; who gets it must be the partner."""
        self.ahead.give(2, self.given, 8)
        frames = []
        while self.ahead.is_giving:
            for sent in self.ahead.due(TAG, 0.0):
                assert isinstance(sent, SendFrame)
                assert {self.me, sent.peer} in ({FIRST, SECOND}, set(OTHERS))
                frames.append(sent.frame)
        return frames

    def begin(self, order: tuple[PeerId, ...] = (A, B, C, D)) -> OpView:
        """PLAN of op 2."""
        ordered = order_of(TAG, 2, (A, B, C, D), order)
        self.view.op = view_of(pair_plan(tuple(ordered), op=2, num_values=VALUES))
        self.exchange = Exchange(
            self.me, self.view.op, TAG, PlainArithmetic(), self.given, self.blobs, self.fetcher,
            0.0, sign_as(self.me), self.stats, {}, self.ahead,
        )  # fmt: skip
        self.actions = list(self.exchange.decided(0.0))
        return self.view.op

    def said(self, kind: type) -> list:
        told = [one.message for one in self.actions if isinstance(one, SendControl)]
        return [message for message in told if isinstance(message, kind)]

    def relayed(self) -> Hashes:
        (done,) = self.said(SliceDone)
        return Hashes(done.plan_id, done.slice_index, done.attempt, done.set_id, done.chunk_hashes)

    def hears(self, message: Hashes) -> None:
        self.actions += self.exchange.hashes(message, 0.0)

    @property
    def pushed(self) -> list[Frame]:
        return [one.frame for one in self.actions if isinstance(one, SendFrame)]


def test_known_chunks_go_to_the_expected_partner_and_only_the_others_are_pushed():
    ada, ben = Side(FIRST), Side(SECOND)
    for frame in ada.give():
        assert (frame.kind, frame.set_id) == (FrameKind.AHEAD, 2)
        ben.ahead.heard(FIRST, frame)
    ada.begin()
    ben.begin()
    ada.hears(ada.relayed())
    assert [frame.chunk for frame in ada.pushed] == [0, 1]
    ben.hears(ada.relayed())
    assert not ben.said(Have)
    for frame in ada.pushed:
        ben.actions += ben.exchange.frame(FIRST, frame, 0.0)
    (have,) = ben.said(Have)
    assert have.chunks == (True,) * 4
    assert not ben.fetcher.requests(100.0)


def test_what_plan_overtakes_counts_before_and_after_it_is_named():
    ada, ben = Side(FIRST), Side(SECOND)
    early, late = ada.give()
    ada.begin()
    ben.begin()
    assert not ben.exchange.is_early(early)
    ben.actions += ben.exchange.frame(FIRST, early, 0.0)
    ada.hears(ada.relayed())
    ben.hears(ada.relayed())
    for frame in (late, *ada.pushed):
        ben.actions += ben.exchange.frame(FIRST, frame, 0.0)
    (have,) = ben.said(Have)
    assert have.chunks == (True,) * 4
    ben.actions += ben.exchange.frame(FIRST, early, 0.0)
    assert ben.stats.ignored["repeated"] == 1


def test_what_gets_lost_is_asked_for():
    ada, ben = Side(FIRST), Side(SECOND)
    (first, _) = ada.give()
    ben.ahead.heard(FIRST, first)
    ada.begin()
    ben.begin()
    ben.hears(ada.relayed())
    ben.exchange.tick(limits.PUSH_QUIET_S)
    asked = {digest for _, digest in ben.fetcher.requests(limits.PUSH_QUIET_S)}
    assert asked == set(ada.relayed().chunk_hashes) - {content_hash(first.body)}


def test_nobody_else_and_no_other_op_is_heard():
    ben = Side(SECOND)
    (frame, _) = Side(FIRST).give()
    ben.ahead.heard(OTHERS[0], frame)
    ben.ahead.heard(FIRST, Frame(FrameKind.AHEAD, TAG, chunk=2, set_id=1, body=frame.body))
    assert ben.stats.ignored["stale"] == 2
    ben.begin()
    assert not ben.exchange._taker.early


def test_who_would_be_the_partner_in_a_far_op_cannot_displace_what_the_next_one_gives():
    ben = Side(SECOND)
    frames = Side(FIRST).give()
    for frame in frames:
        ben.ahead.heard(FIRST, frame)
    body = encode_part([9] * 4)
    for op in range(3, 40):
        for peer in (FIRST, *OTHERS):
            ben.ahead.heard(peer, Frame(FrameKind.AHEAD, TAG, chunk=2, set_id=op, body=body))
    assert ben.stats.ignored["stale"] == 37 * 3
    ben.begin()
    assert set(ben.exchange._taker.early) == {content_hash(frame.body) for frame in frames}


def test_when_another_partner_is_planned_it_was_for_nothing():
    ada, ben = Side(FIRST), Side(SECOND)
    for frame in ada.give():
        ben.ahead.heard(FIRST, frame)
    absent = tuple(peer for peer in (A, B, C, D) if peer != FIRST)
    ben.begin(absent)
    assert not ben.exchange._taker.early
    absent = tuple(peer for peer in (A, B, C, D) if peer != SECOND)
    ada.begin(absent)
    if partner_in(contributors_of(ada.view.op.plan), FIRST) is not None:
        ada.hears(ada.relayed())
        assert [frame.chunk for frame in ada.pushed] == [0, 1, 2, 3]


def test_only_one_contributions_length_is_kept():
    ben = Side(SECOND)
    body = encode_part([1] * 4)
    for chunk, size in ((4, len(body)), (0, 9 * VALUES)):
        frame = Frame(FrameKind.AHEAD, TAG, chunk=chunk, set_id=2, body=bytes(size))
        with pytest.raises(RemoteFault, match="length"):
            ben.ahead.heard(FIRST, frame)
    for value in range(20):
        frame = Frame(FrameKind.AHEAD, TAG, chunk=1, set_id=2, body=encode_part([value] * 4))
        ben.ahead.heard(FIRST, frame)
    ben.begin()
    assert set(ben.exchange._taker.early) == {content_hash(encode_part([0] * 4))}
    ben.exchange.close()
    assert not ben.exchange._taker.early


def test_illegal_bytes_that_came_ahead_are_held_by_nobody():
    ada, ben = Side(FIRST), Side(SECOND)
    bad = encode_part([1] * 4, ILLEGAL_SCALE)
    ben.ahead.heard(FIRST, Frame(FrameKind.AHEAD, TAG, chunk=2, set_id=2, body=bad))
    ada.begin()
    ben.begin()
    message = ada.relayed()
    hashes = (*message.chunk_hashes[:2], content_hash(bad), message.chunk_hashes[3])
    ben.hears(Hashes(message.plan_id, message.slice_index, 0, message.set_id, hashes))
    assert not ben.said(Have)
    assert [one.peer for one in ben.exchange._told([])] == []
    assert [fault.reason for fault in ben.actions if hasattr(fault, "reason")] == ["scale"]


def test_no_more_is_handed_to_the_link_than_it_can_take(monkeypatch):
    ada = Side(FIRST)
    ada.stats.waiting = {SECOND: limits.AHEAD_BYTES}
    ada.ahead.give(2, ada.given, 8)
    assert ada.ahead.due(TAG, 5.0) == []
    assert ada.ahead.is_giving and ada.ahead.next_wakeup_s == 5.0 + limits.AHEAD_PAUSE_S
    ada.stats.waiting = {}
    assert len(ada.ahead.due(TAG, 6.0)) == 2


def test_values_that_are_no_numbers_are_not_sent_and_another_op_is_not_begun():
    ada = Side(FIRST)
    ada.given = PlainContribution([*range(8), None, *range(7)])
    assert ada.give() == []
    for op in (1, 3):
        ada.ahead.give(op, PlainContribution(values_of(FIRST)), 8)
        assert not ada.ahead.is_giving
    ada.ahead.give(2, PlainContribution(values_of(FIRST)), 8)
    ada.begin()
    assert not ada.ahead.is_giving


def test_who_has_left_or_come_back_as_another_process_gets_nothing_ahead():
    for boot in (None, b"another"):
        ada = Side(FIRST)
        ada.view.members.pop(SECOND)
        if boot is not None:
            ada.view.members[SECOND] = boot
        assert ada.give() == []
    assert Side(FIRST, b"another").give() == []


@pytest.mark.parametrize("seed", range(3))
def test_in_a_swarm_half_of_what_partners_give_has_gone_ahead(seed):
    swarm = PairSwarm(seed, start_peers=4, rounds=4)
    for peer in (A, B, C, D):
        swarm.add(peer)
    assert swarm.run(40_000)
    swarm.check_exchanges()
    assert all(isinstance(one, Commit) for one in swarm.outcomes)
    assert swarm.frames[FrameKind.AHEAD] >= 4 * 3 * 6
    assert swarm.frames[FrameKind.RESULT] <= 4 * (12 + 3 * 12)
