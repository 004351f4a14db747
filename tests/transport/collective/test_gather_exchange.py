"""Gather ops among whole machines, and what a peer does with what nobody should send."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.actions import PeerFault, SendControl, SendFrame
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.exchange import Exchange
from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Hashes, Have, SliceDone, Withdraw
from swarmtrain_transport.wire.records import Commit, Freeze, Plan, SignedRoot, Skip, bodies_of
from tests.transport.coordinator.ops.gather_table import gather_plan
from tests.transport.plain_arithmetic import (
    ILLEGAL_SCALE,
    PlainArithmetic,
    PlainContribution,
    encode_part,
)
from tests.transport.rig import A, B, C, D, sign_as, view_of
from tests.transport.swarm import VALUES, Swarm, decode_part

VALUES_OF = {peer: [peer[0] * 10 + i for i in range(8)] for peer in (A, B, C)}


class Station:
    """One peer's part in the op, and what it has asked for."""

    def __init__(self, me: PeerId, values: list[int | None] | None = None) -> None:
        self.me = me
        self.view = view_of(gather_plan())
        self.blobs, self.stats = Blobs(), LocalStats()
        self.fetcher = Fetcher(list)
        contribution = PlainContribution(VALUES_OF[me] if values is None else values)
        self.exchange = Exchange(
            me, self.view, 7, PlainArithmetic(), contribution, self.blobs, self.fetcher, 0.0,
            sign_as(me), self.stats, {},
        )  # fmt: skip
        self.actions = list(self.exchange.decided(0.0))

    @property
    def index(self) -> int:
        return self.view.owners.index(self.me)

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


def pushed_by(other: Station) -> list[Frame]:
    """Return what a contributor pushes to A once it is told of itself."""
    other.hears(other.relayed())
    return [frame for peer, frame in other.sent if peer == A]


def test_a_contributor_publishes_and_pushes_only_when_everybody_knows_of_it():
    ben = Station(B)
    assert not ben.sent
    assert len(ben.said(SliceDone)) == 1
    frames = pushed_by(ben)
    assert [(f.kind, f.slice_index, f.chunk) for f in frames] == [
        (FrameKind.RESULT, 1, 0), (FrameKind.RESULT, 1, 1),
    ]  # fmt: skip
    assert sorted({peer for peer, _ in ben.sent}) == [A, C]
    ben.hears(ben.relayed())  # told again, after a restart
    assert len(ben.sent) == 4


@pytest.mark.parametrize("hashes_first", [True, False])
def test_what_is_pushed_counts_once_its_hashes_are_known(hashes_first):
    ada, ben = Station(A), Station(B)
    frames = pushed_by(ben)
    if hashes_first:
        ada.hears(ben.relayed())
    for frame in frames:
        ada.gets(B, frame)
    if not hashes_first:
        assert not ada.said(Have)
        ada.hears(ben.relayed())
    (have,) = ada.said(Have)
    assert (have.slice_index, have.set_id, have.chunks) == (1, frames[0].set_id, (True, True))
    assert [decode_part(ada.blobs.get(content_hash(f.body))) for f in frames] == [
        tuple(VALUES_OF[B][:4]), tuple(VALUES_OF[B][4:]),
    ]  # fmt: skip


def test_what_is_not_pushed_is_asked_for_when_it_is_quiet():
    ada, ben = Station(A), Station(B)
    ada.hears(ben.relayed())
    ada.exchange.tick(limits.PUSH_QUIET_S / 2)
    assert not ada.fetcher.requests(0.5)
    ada.exchange.tick(limits.PUSH_QUIET_S)
    asked = ada.fetcher.requests(limits.PUSH_QUIET_S)
    assert {digest for _, digest in asked} == set(ben.relayed().chunk_hashes)


def test_nobody_pushes_for_another_or_other_bytes_than_it_has_published():
    ada, ben = Station(A), Station(B)
    frames = pushed_by(ben)
    ada.gets(C, frames[0])
    ada.hears(ben.relayed())
    assert not ada.said(Have)
    body = encode_part([0] * 4)
    other = Frame(FrameKind.RESULT, 7, frames[0].plan_id, 1, 0, 0, frames[0].set_id, body)
    with pytest.raises(RemoteFault, match="not what was published"):
        ada.gets(B, other)
    for slice_index, chunk in ((99, 0), (1, 99)):
        wrong = Frame(FrameKind.RESULT, 7, frames[0].plan_id, slice_index, 0, chunk, 0, body)
        with pytest.raises(RemoteFault, match="not planned"):
            ada.gets(B, wrong)


def test_frames_of_mean_ops_are_ignored():
    ada = Station(A)
    for kind in (FrameKind.PART, FrameKind.RANGES, FrameKind.CREDIT):
        ada.gets(B, Frame(kind, 7, ada.view.plan_id, 0, 0, 0, body=b"anything"))
    assert ada.stats.ignored == {"stale": 3}


def test_a_contribution_that_cannot_be_decoded_is_held_by_nobody_and_its_peer_named():
    ada, ben = Station(A), Station(B)
    bad = [encode_part([1] * 4, ILLEGAL_SCALE), encode_part([2] * 4)]
    hashes = tuple(content_hash(body) for body in bad)
    ada.hears(Hashes(ada.view.plan_id, 1, 0, ben.relayed().set_id, hashes))
    for chunk, body in enumerate(bad):
        ada.gets(
            B, Frame(FrameKind.RESULT, 7, ada.view.plan_id, 1, 0, chunk, ben.relayed().set_id, body)
        )
    assert not ada.said(Have)
    (fault,) = [one for one in ada.actions if isinstance(one, PeerFault)]
    assert (fault.peer, fault.reason) == (B, "scale")


def test_nobody_is_asked_for_what_we_are_falsely_said_to_have_published():
    ada, ben = Station(A), Station(B)
    said, other = ada.relayed(), ben.relayed()
    ada.hears(Hashes(said.plan_id, said.slice_index, 0, other.set_id, other.chunk_hashes))
    ada.exchange.tick(limits.FETCH_TIMEOUT_S)
    assert not ada.fetcher.requests(limits.FETCH_TIMEOUT_S)
    assert not ada.said(Have)


def test_values_that_are_no_numbers_are_withdrawn():
    ada = Station(A, [1, 2, 3, 4, None, 6, 7, 8])
    assert [one.reason for one in ada.said(Withdraw)] == ["nonfinite"]
    assert not ada.said(SliceDone)
    assert [action.message for action in ada.exchange.resend(1.0)] == ada.said(Withdraw)


def test_after_hello_everything_is_said_again():
    ada, ben = Station(A), Station(B)
    ada.hears(ada.relayed())
    ada.hears(ben.relayed())
    for frame in pushed_by(ben):
        ada.gets(B, frame)
    again = [action.message for action in ada.exchange.resend(1.0)]
    assert again[0] == ada.said(SliceDone)[0]
    assert sorted(have.slice_index for have in again[1:]) == [0, 1]


def test_who_is_left_out_pushes_nothing_and_others_forget_what_it_has_pushed():
    ada, ben = Station(A), Station(B)
    done = ada.said(SliceDone)[0]
    roots = {A: SignedRoot(content_hash(b"".join(done.chunk_hashes)), b"s")}
    for station in (ada, ben):
        station.view.apply(Freeze(1, (A,), {B: "late", C: "lost"}, roots=roots))
        station.actions += station.exchange.decided(1.0)
    assert pushed_by(ben) == []
    ada.hears(ben.relayed())
    assert not ada.fetcher.requests(100.0)
    ada.exchange.tick(limits.FETCH_TIMEOUT_S)
    assert not ada.fetcher.requests(100.0)


def test_a_large_contribution_is_pushed_up_to_the_bound_only(monkeypatch):
    monkeypatch.setattr(limits, "GATHER_PUSH_BYTES", 1)
    monkeypatch.setattr(limits, "PUMP_CHUNKS", 1)
    ben = Station(B)
    assert not ben.said(SliceDone)
    ben.actions += ben.exchange.tick(0.0)
    frames = pushed_by(ben)
    assert len(frames) == 1
    assert ben.exchange.next_wakeup_s > 0.0


# ---- whole swarms


def gather_swarm(seed: int, **terms) -> Swarm:
    return Swarm(seed, **{"kind": "gather", "start_peers": 3, "rounds": 4, **terms})


def outcomes(swarm: Swarm) -> list[Commit | Skip]:
    bodies = bodies_of(swarm.records)
    return [body for body in bodies if isinstance(body, Commit | Skip)]


@pytest.mark.parametrize("seed", range(6))
def test_every_peer_gets_every_contribution_and_ends_with_the_same_state(seed):
    swarm = gather_swarm(seed)
    for peer in (A, B, C):
        swarm.add(peer)
    assert swarm.run(20_000)
    assert len({tuple(member.numbers) for member in swarm.members.values()}) == 1
    assert [one.contributors for one in outcomes(swarm)] == [(A, B, C)] * 4
    (plan, *_) = [body for body in bodies_of(swarm.records) if isinstance(body, Plan)]
    assert [(spec.start, spec.stop) for spec in plan.slices] == [(0, VALUES)] * 3
    assert not any(member.faults for member in swarm.members.values())


@given(st.integers(0, 10_000), st.integers(0, 600), st.sampled_from(["death", "restart", "join"]))
@settings(max_examples=12, deadline=None)
def test_whatever_happens_the_survivors_agree(seed, steps, what):
    swarm = gather_swarm(seed, start_peers=2)
    for peer in (A, B, C):
        swarm.add(peer)
    for _ in range(steps):
        swarm.step()
    synced = any(m.machine.applied_op >= 0 for p, m in swarm.members.items() if p != C)
    if what == "death" and synced:
        swarm.kill(C)
    elif what == "restart":
        swarm.restart_coordinator()
    else:
        swarm.add(D)
    for one in range(3):
        swarm.lose_frames(*((A, B), (B, C), (C, A))[one])
    assert swarm.run(60_000)
    states = {tuple(m.numbers) for m in swarm.members.values() if not m.halted}
    assert len(states) == 1
    assert len([one for one in outcomes(swarm) if isinstance(one, Commit)]) >= 4
