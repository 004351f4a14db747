"""A peer in a pair op: it gives to its partner alone, and hears of its partner alone."""

from collections import Counter

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.actions import SendControl, SendFrame
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.exchange import Exchange
from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.pairing import contributors_of, partner_in
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Hashes, Have, SliceDone
from swarmtrain_transport.wire.records import Freeze, Member, SignedRoot
from tests.transport.coordinator.ops.pair_table import pair_plan
from tests.transport.plain_arithmetic import PlainArithmetic, PlainContribution, encode_part
from tests.transport.rig import BOOT, A, B, C, D, E, sign_as, view_of

PLAN = pair_plan(
    (A, B, C, D, E),
    members=(*(Member(peer, BOOT, 1) for peer in (A, B, C, D, E)), Member(b"R" * 32, BOOT, 0)),
)


class Station:
    """One peer's part in the op, and what it has asked for."""

    def __init__(self, me: PeerId) -> None:
        self.view = view_of(PLAN)
        self.blobs, self.stats = Blobs(), LocalStats()
        self.fetcher = Fetcher(list)
        given = PlainContribution([me[0] * 10 + i for i in range(8)])
        self.exchange = Exchange(
            me, self.view, 7, PlainArithmetic(), given, self.blobs, self.fetcher, 0.0,
            sign_as(me), self.stats, {},
        )  # fmt: skip
        self.actions = list(self.exchange.decided(0.0))

    @property
    def ignored(self) -> Counter[str]:
        return self.stats.ignored

    def said(self, kind: type) -> list:
        told = [one.message for one in self.actions if isinstance(one, SendControl)]
        return [message for message in told if isinstance(message, kind)]

    @property
    def sent(self) -> list[tuple[PeerId, Frame]]:
        return [(one.peer, one.frame) for one in self.actions if isinstance(one, SendFrame)]

    def relayed(self) -> Hashes:
        (done,) = self.said(SliceDone)
        return Hashes(done.plan_id, done.slice_index, done.attempt, done.set_id, done.chunk_hashes)

    def hears(self, message: Hashes) -> None:
        self.actions += self.exchange.hashes(message, 0.0)

    def gets(self, peer: PeerId, frame: Frame) -> None:
        self.actions += self.exchange.frame(peer, frame, 0.0)


def published(me: PeerId) -> Station:
    station = Station(me)
    station.hears(station.relayed())
    return station


def test_a_contribution_is_pushed_to_the_partner_alone():
    ben = published(B)
    assert {peer for peer, _ in ben.sent} == {A}
    assert [(f.kind, f.slice_index, f.chunk) for _, f in ben.sent] == [
        (FrameKind.RESULT, 1, 0), (FrameKind.RESULT, 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("me", [E, b"R" * 32])
def test_who_has_no_partner_publishes_nothing_and_takes_nothing(me):
    lone, ben = Station(me), published(B)
    assert partner_in(contributors_of(PLAN), me) is None
    assert not lone.said(SliceDone)
    lone.hears(ben.relayed())
    for _, frame in ben.sent:
        lone.gets(B, frame)
    lone.actions += lone.exchange.tick(100.0)
    assert not lone.actions and not lone.fetcher.requests(100.0)
    assert lone.ignored["stale"] == 2
    assert lone.exchange.resend(0.0) == []


def test_what_the_partner_pushes_is_kept_and_reported():
    ada, ben = Station(A), published(B)
    ada.hears(ben.relayed())
    for _, frame in ben.sent:
        ada.gets(B, frame)
    (have,) = ada.said(Have)
    assert (have.slice_index, have.chunks) == (1, (True, True))


def test_what_anybody_else_says_or_sends_is_of_no_use():
    ada, cid = Station(A), published(C)
    ada.hears(cid.relayed())
    for _, frame in cid.sent:
        ada.gets(C, frame)
    ada.exchange.tick(limits.PUSH_QUIET_S)
    assert not ada.said(Have) and not ada.fetcher.requests(limits.FETCH_TIMEOUT_S)
    assert ada.ignored["stale"] == 2
    ben = published(B)
    for _, frame in ben.sent:
        ada.gets(C, frame)  # in another's name
    ada.hears(ben.relayed())
    assert not ada.said(Have)


def test_what_does_not_come_is_asked_of_the_partner_alone():
    ada, ben = Station(A), published(B)
    ada.hears(ben.relayed())
    ada.exchange.tick(limits.PUSH_QUIET_S)
    asked = ada.fetcher.requests(limits.PUSH_QUIET_S)
    assert {peer for peer, _ in asked} == {B}
    assert {digest for _, digest in asked} == set(ben.relayed().chunk_hashes)


def test_other_bytes_than_the_partner_has_published_are_its_fault():
    ada, ben = Station(A), published(B)
    ada.hears(ben.relayed())
    first = ben.sent[0][1]
    other = Frame(FrameKind.RESULT, 7, first.plan_id, 1, 0, 0, first.set_id, encode_part([0] * 4))
    with pytest.raises(RemoteFault, match="not what was published"):
        ada.gets(B, other)


def test_a_partner_that_is_left_out_is_not_asked_for():
    ada, ben = Station(A), Station(B)
    roots = {A: SignedRoot(b"r" * 32, b"s")}
    ada.view.apply(Freeze(1, (A,), {B: "late"}, roots=roots))
    ada.actions += ada.exchange.decided(1.0)
    ada.hears(ben.relayed())
    ada.exchange.tick(limits.FETCH_TIMEOUT_S)
    assert not ada.fetcher.requests(100.0)


def test_a_partner_that_is_left_out_gets_nothing_more():
    ben = Station(B)
    signed = SignedRoot(ben.relayed().chunk_hashes[0], b"s")
    ben.view.apply(Freeze(1, (B,), {A: "late"}, roots={B: signed}))
    ben.actions += ben.exchange.decided(1.0)
    ben.hears(ben.relayed())
    ben.actions += ben.exchange.tick(1.0)
    assert not ben.sent


def test_after_hello_everything_is_said_again():
    ada, ben = published(A), published(B)
    ada.hears(ben.relayed())
    for _, frame in ben.sent:
        ada.gets(B, frame)
    again = [action.message for action in ada.exchange.resend(1.0)]
    assert again[0] == ada.said(SliceDone)[0]
    assert sorted(have.slice_index for have in again[1:]) == [0, 1]
