"""The peer as one machine: whom it hears, what it does with rubbish, and whole swarms of it."""

import gc
import weakref
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.collective.exchange import Exchange
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.frames import Frame, FrameKind, Ranges
from swarmtrain_transport.wire.records import Commit, Skip, SliceSpec, bodies_of
from tests.transport.plain_arithmetic import PlainArithmetic, PlainContribution, encode_part
from tests.transport.rig import (
    RUN_KEY,
    STRANGER,
    A,
    B,
    C,
    Chain,
    D,
    begun_chain,
    genesis_body,
    join_body,
    run_body,
    sign_as,
    verify,
)
from tests.transport.swarm import Member, Swarm, state_of

BLOB = FrameKind.BLOB


def peer_of(chain: Chain) -> Participant:
    """Peer A, connected, with the chain as its own copy, at op 0 and ready for op 1."""
    member = Member(A, b"boot", 0.0)
    machine = Participant(
        member.machine.card, PlainArithmetic(), sign_as(A), verify, list, chain.records, 0.0
    )
    machine.start(0.0)
    head = chain.ledger.head_index
    machine.control(m.Welcome(1, "run", RUN_KEY, b"config", head), 0.0)
    return machine


def test_a_state_that_is_not_the_runs_takes_no_place_among_snapshots():
    ours, chunks = state_of([7] * 24)
    other, others = state_of([8] * 24)
    chain = Chain(run_body(), *(join_body(peer) for peer in (A, B)), genesis_body(24, ours.root))
    machine = peer_of(chain)
    machine.attach(0, ours, chunks, 1, 0.0)
    machine.applied(0, other, others, 0.0)
    assert machine.applied_op == -1 and machine.first.blobs.snapshot_ops == ()
    machine.applied(0, ours, chunks, 0.0)
    assert machine.applied_op == 0 and machine.first.blobs.snapshot_ops == (0,)


def test_a_coordinator_that_names_another_run_key_than_its_ledger_is_refused() -> None:
    chain = begun_chain([A, B], 24)
    welcome = m.Welcome(1, "run", b"x" * 32, b"config", chain.ledger.head_index)
    for kept, told in ((chain.records, ()), ([], (chain.records[0].to_bytes(),))):
        member = Member(A, b"boot", 0.0).machine
        machine = Participant(member.card, PlainArithmetic(), sign_as(A), verify, list, kept, 0.0)
        with pytest.raises(RemoteFault, match="another run key"):
            machine.control(welcome, 0.0)
            machine.control(m.Records(0, told), 0.0)
        assert len(machine.ledger) == len(kept)


def records(chain: Chain, first: int) -> m.Records:
    return m.Records(first, tuple(record.to_bytes() for record in chain.records[first:]))


def planned() -> tuple[Participant, Chain, int]:
    """A is ready for op 1 and knows everything but the PLAN that names it; the plan's id."""
    manifest, chunks = state_of([7] * 24)
    joins = [join_body(peer) for peer in (A, B, C)]
    chain = Chain(run_body(), *joins, genesis_body(24, manifest.root))
    machine = peer_of(chain)
    (load,) = machine.attach(0, manifest, chunks, 1, 0.0)
    assert isinstance(load, do.LoadState)
    machine.applied(0, manifest, chunks, 0.0)
    assert machine.ready(1, PlainContribution(list(range(24))), 8, 0.0)
    chain.add(chain.plan())
    assert chain.view.first.op is not None
    return machine, chain, chain.view.first.op.plan_id


def invitation(chain: Chain, plan_id: int, body: bytes | None = None) -> Frame:
    ranges = Ranges(1 << 20, 0, (False, False)).pack()
    tag = chain.view.run_tag
    return Frame(FrameKind.RANGES, tag, plan_id, 1, 0, body=ranges if body is None else body)


# ---- frames before their time, and hostile ones


def test_an_invitation_that_comes_before_its_plan_is_answered_when_the_plan_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "UNINVITED_BYTES", 0)
    machine, chain, plan_id = planned()
    assert machine.frame(B, invitation(chain, plan_id), 0.0) == ()
    actions = machine.control(records(chain, 5), 0.0)
    parts = [a for a in actions if isinstance(a, do.SendFrame) and a.frame.kind is FrameKind.PART]
    assert [(part.peer, part.frame.chunk) for part in parts] == [(B, 0), (B, 1)]


@pytest.mark.parametrize("body", [b"", b"x", bytes(19), bytes(10_000)])
def test_rubbish_that_came_before_the_plan_does_not_stop_us_when_the_plan_comes(
    body: bytes,
) -> None:
    """A hostile owner may know the plan before we do: its frame must not look like the
    coordinator's fault, which would end this peer."""
    machine, chain, plan_id = planned()
    machine.frame(B, invitation(chain, plan_id, body), 0.0)
    actions = machine.control(records(chain, 5), 0.0)
    assert machine.first.exchange is not None
    assert any(isinstance(action, do.RecordAccepted) for action in actions)
    assert [a.peer for a in actions if isinstance(a, do.PeerFault)] == [B]


def test_frames_that_come_before_their_plan_are_bounded_per_peer() -> None:
    machine, chain, plan_id = planned()
    for number in range(1000):
        machine.frame(STRANGER, invitation(chain, number, bytes(1 << 16)), 0.0)
        machine.frame(STRANGER, invitation(chain, number, bytes(1 << 20)), 0.0)
    held = machine._early._frames
    assert sum(len(frame.body) for _, frame in held) <= 1 << 20
    machine.frame(B, invitation(chain, plan_id), 0.0)
    assert (B, plan_id) in [(peer, frame.plan_id) for peer, frame in held]


def early_part(chain: Chain, plan_id: int, chunk: int, body: bytes) -> Frame:
    return Frame(FrameKind.PART, chain.view.run_tag, plan_id, 0, 0, chunk, body=body)


def test_parts_that_come_before_their_plan_count_when_it_comes() -> None:
    machine, chain, plan_id = planned()
    for chunk in range(2):
        body = encode_part([4 * chunk + i for i in range(4)])
        assert machine.frame(B, early_part(chain, plan_id, chunk, body), 0.0) == ()
    actions = machine.control(records(chain, 5), 0.0)
    told = [a.message for a in actions if isinstance(a, do.SendControl)]
    assert B in [message for message in told if isinstance(message, m.Got)][-1].complete
    assert not machine._early._parts


def test_an_illegal_part_that_came_before_its_plan_is_its_senders_fault_and_no_other() -> None:
    machine, chain, plan_id = planned()
    machine.frame(B, early_part(chain, plan_id, 0, b"rubbish"), 0.0)
    actions = machine.control(records(chain, 5), 0.0)
    assert [a.peer for a in actions if isinstance(a, do.PeerFault)] == [B]


def test_parts_that_come_before_their_plan_are_bounded_and_whoever_sends_most_loses_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "EARLY_BYTES", 1 << 20)
    machine, chain, plan_id = planned()
    machine.frame(B, early_part(chain, plan_id, 0, bytes(100_000)), 0.0)
    for number in range(1000):
        machine.frame(STRANGER, early_part(chain, number, 0, bytes(50_000)), 0.0)
        machine.frame(STRANGER, early_part(chain, number, 0, b""), 0.0)
    held = machine._early._parts
    assert sum(len(frame.body) for _, frame in held[STRANGER]) < 1 << 20
    assert len(held[STRANGER]) < 256  # an empty frame takes room, too
    assert [frame.plan_id for _, frame in held[B]] == [plan_id]
    assert machine.stats.ignored["stale"] > 1900
    machine.tick(limits.EARLY_S + limits.PROGRESS_S)
    assert not machine._early._parts and not machine._early._bytes


def test_a_frame_of_another_run_is_a_fault_and_not_answered() -> None:
    machine, chain, _ = planned()
    for kind in FrameKind:
        body = content_hash(b"x")
        (fault,) = machine.frame(B, Frame(kind, chain.view.run_tag ^ 1, body=body), 0.0)
        assert isinstance(fault, do.PeerFault) and fault.reason == "run"


@pytest.mark.parametrize("body", [b"", b"short", bytes(33), bytes(1 << 20)])
def test_a_get_that_names_no_hash_is_a_fault(body: bytes) -> None:
    machine, chain, _ = planned()
    (fault,) = machine.frame(B, Frame(FrameKind.GET, chain.view.run_tag, body=body), 0.0)
    assert isinstance(fault, do.PeerFault) and fault.reason == "length"


def test_blobs_that_nobody_wants_are_dropped() -> None:
    machine, chain, _ = planned()
    machine.control(records(chain, 5), 0.0)
    for body in (b"", b"rubbish", bytes(1 << 20)):
        assert machine.frame(B, Frame(BLOB, chain.view.run_tag, body=body), 0.0) == ()
        assert machine.first.blobs.get(content_hash(body)) is None


KINDS = st.sampled_from(list(FrameKind))
SMALL = st.integers(0, 3)
BODY = st.one_of(st.binary(max_size=40), st.sampled_from([bytes(8), bytes(32), bytes(5000)]))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(KINDS, SMALL, SMALL, SMALL, BODY, st.booleans()), max_size=12))
def test_no_frame_of_a_member_raises(
    frames: list[tuple[FrameKind, int, int, int, bytes, bool]],
) -> None:
    machine, chain, plan_id = planned()
    for known in (False, True):
        for kind, index, attempt, chunk, body, is_ours in frames:
            frame = Frame(
                kind, chain.view.run_tag, plan_id if is_ours else 5, index, attempt, chunk,
                body=body,
            )  # fmt: skip
            for action in machine.frame(C, frame, 0.0):
                assert isinstance(action, do.PeerFault | do.SendFrame | do.SendControl)
        if not known:
            machine.control(records(chain, 5), 0.0)
    machine.tick(1.0)


# ---- the control lane


def test_a_process_that_the_plan_does_not_name_takes_no_part() -> None:
    chain = begun_chain()
    member = Member(A, b"another boot", 0.0)
    machine = Participant(
        member.machine.card, PlainArithmetic(), sign_as(A), verify, list, chain.records, 0.0
    )
    chain.add(chain.plan())
    machine.control(records(chain, 5), 0.0)
    assert machine.first.exchange is None


def test_records_that_contradict_are_refused_and_the_copy_is_as_before() -> None:
    machine, chain, _ = planned()
    illegal = chain.records[5].to_bytes()[:-1] + b"\x00"
    with pytest.raises(RemoteFault):
        machine.control(m.Records(5, (illegal,)), 0.0)
    assert machine.ledger.head_index == 4
    machine.control(records(chain, 5), 0.0)
    assert machine.first.exchange is not None


def warmed(actions: tuple[do.PeerAction, ...]) -> list[tuple[bytes, ...]]:
    return [action.peers for action in actions if isinstance(action, do.WarmWays)]


def test_addresses_wait_for_the_records_and_those_of_nobody_are_bounded() -> None:
    chain = Chain(run_body(), join_body(A), genesis_body(24))
    machine = peer_of(chain)
    assert not machine.control(m.Listens({B: ("192.0.2.2", 4002)}), 0.0), "it is not let in yet"
    for number in range(5000):
        machine.control(m.Listens({number.to_bytes(32, "big"): ("192.0.2.9", 1)}), 0.0)
    machine.control(m.Listens({B: ("192.0.2.2", 4002)}), 0.0)
    assert len(machine._listens) <= limits.RUN_PEERS_MAX + 1
    first = chain.ledger.head_index + 1
    chain.add(join_body(B))
    allowed = [one for one in machine.control(records(chain, first), 0.0)
               if isinstance(one, do.AllowPeer)]  # fmt: skip
    assert [(one.address.host, one.address.port) for one in allowed] == [("192.0.2.2", 4002)]
    moved, warm = machine.control(m.Listens({B: ("192.0.2.3", 4003), A: ("192.0.2.1", 4001)}), 0.0)
    assert isinstance(moved, do.AllowPeer) and moved.address.host == "192.0.2.3"
    assert warm == do.WarmWays((B,))


def test_ways_are_made_at_once_while_all_fit_into_one_op_and_not_where_more_are_here() -> None:
    peers = [bytes([100 + number]) * 32 for number in range(limits.CELL_PEERS_MAX + 1)]
    chain = Chain(run_body(), *(join_body(peer) for peer in (A, *peers[:-3])), genesis_body(24))
    machine = peer_of(chain)
    for peer, is_made in zip(peers[-3:], (True, False, False), strict=True):
        first = chain.ledger.head_index + 1
        chain.add(join_body(peer))
        heard = machine.control(records(chain, first), 0.0)
        assert [one for one in heard if isinstance(one, do.AllowPeer)]
        assert warmed(heard) == ([(peer,)] if is_made else [])


def test_ways_are_made_where_frames_will_go_from_ready_on_until_the_op_has_ended() -> None:
    machine, chain, _ = planned()
    assert warmed(machine.tick(limits.PROGRESS_S)) == [(B, C)], "anybody may own"
    assert warmed(machine.control(records(chain, 5), 3.0)) == [(B, C)], "we own a slice"
    assert warmed(machine.tick(2 * limits.PROGRESS_S)) == [(B, C)], "it may take long"
    chain.add(Skip(1, "deadline"))
    machine.control(records(chain, 6), 5.0)
    assert not warmed(machine.tick(4 * limits.PROGRESS_S)), "nothing more is to come"


@pytest.mark.parametrize(
    ("owners", "receivers"), [((B,), {B}), ((A,), {B, C}), ((B, C), {B, C}), ((C, A), {B, C})]
)
def test_an_owner_sends_to_everybody_and_the_others_to_owners(owners, receivers) -> None:
    chain = begun_chain()
    chain.add(chain.plan(slices=tuple(
        SliceSpec(24 // len(owners) * n, 24 // len(owners) * (n + 1), owner)
        for n, owner in enumerate(owners)
    )))  # fmt: skip
    assert peer_of(chain).first.receivers() == receivers


def test_what_is_not_for_peers_is_refused_and_a_refusal_halts() -> None:
    machine, _, _ = planned()
    with pytest.raises(RemoteFault):
        machine.control(m.Challenge(b"nonce", (1,)), 0.0)
    (halt,) = machine.control(m.Refused("SWT-E561", "differs"), 0.0)
    assert halt == do.Halt("SWT-E561", "differs")


def test_progress_goes_out_every_two_seconds_while_connected() -> None:
    machine, _, _ = planned()

    def says(now_s: float) -> bool:
        return any(
            isinstance(action, do.SendControl) and isinstance(action.message, m.Progress)
            for action in machine.tick(now_s)
        )

    told = [now for now in range(1, 9) if says(float(now))]
    assert all(b - a == limits.PROGRESS_S for a, b in pairwise(told))
    machine.control_down(9.0)
    assert not says(20.0)


def test_ready_for_another_op_than_the_next_is_ignored() -> None:
    machine, _, _ = planned()
    for op in (-1, 0, 2, 7):
        assert machine.ready(op, PlainContribution([0] * 24), 8, 0.0) == ()


# ---- whole swarms


def same_roots(swarm: Swarm) -> None:
    by_op: dict[tuple[int, int], set[bytes]] = {}
    for member in [*swarm.members.values(), *swarm.dead]:
        for op, root in member.roots.items():
            by_op.setdefault(op, set()).add(root)
    assert all(len(roots) == 1 for roots in by_op.values()), by_op


def commits(swarm: Swarm) -> list[Commit]:
    return [b for b in bodies_of(swarm.records) if isinstance(b, Commit)]


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1 << 32))
def test_any_order_of_all_messages_ends_with_the_same_root_everywhere(seed: int) -> None:
    swarm = Swarm(seed, start_peers=3, rounds=2)
    for peer in (A, B, C):
        swarm.add(peer)
    assert swarm.run(30_000)
    same_roots(swarm)
    assert [len(commit.contributors) for commit in commits(swarm)] == [3, 3]
    assert not any(member.faults for member in swarm.members.values())


TROUBLE = st.sampled_from(["kill", "coordinator", "reconnect", "lose", "join", "silence"])


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.tuples(TROUBLE, st.integers(0, 400)), max_size=4))
def test_no_trouble_makes_two_peers_disagree_or_anybody_wait_for_ever(
    seed: int, troubles: list[tuple[str, int]]
) -> None:
    swarm = Swarm(seed, start_peers=2, rounds=3)
    for peer in (A, B, C):
        swarm.add(peer)
    for trouble, wait in troubles:
        for _ in range(wait):
            swarm.step()
        if trouble == "kill" and len(swarm.members) > 2:
            swarm.kill(swarm.rng.choice(sorted(swarm.members)))
        elif trouble == "coordinator":
            swarm.restart_coordinator()
        elif trouble == "reconnect":
            swarm.connect(swarm.rng.choice(sorted(swarm.members)))
        elif trouble == "lose":
            for ends in list(swarm.data):
                swarm.lose_frames(*ends)
        elif trouble == "join" and D not in swarm.members:
            swarm.add(D)
        elif trouble == "silence":
            swarm.pass_time(limits.SUSPECT_S + 1)
    assert swarm.run(80_000), [
        (member.peer[0], member.machine.applied_op, member.machine.state_root.hex()[:6])
        for member in swarm.members.values()
    ]
    same_roots(swarm)
    assert len(commits(swarm)) >= 3 or any(member.halted for member in swarm.members.values())


def test_a_late_joiner_replays_and_takes_part_without_anybody_waiting() -> None:
    swarm = Swarm(5, start_peers=2, rounds=8)
    swarm.add(A)
    swarm.add(B)
    while len(commits(swarm)) < 2:
        swarm.step()
    joiner = swarm.add(C)
    assert swarm.run(60_000)
    same_roots(swarm)
    assert joiner.finished and (0, 8) in joiner.roots
    assert not any(isinstance(action, do.Halt) for action in joiner.halted)


def test_an_ended_swarm_holds_the_sums_on_paper() -> None:
    swarm = Swarm(9, start_peers=2, rounds=1)
    swarm.add(A)
    swarm.add(B)
    assert swarm.run(20_000)
    first = 3 * (A[0] if swarm.members[A].roots[0, 0] == state_of([A[0]] * 24)[0].root else B[0])
    sums = [255 * (A[0] * 100 + 10 + i) + 255 * (B[0] * 100 + 10 + i) for i in range(24)]
    assert swarm.members[B].numbers == [first + value + 31 * 510 for value in sums]


def test_an_ended_op_leaves_nothing_for_the_collector() -> None:
    """Vectors and parts are large, and the collector of circles comes seldom."""
    swarm = Swarm(3, rounds=6, start_peers=3)
    for peer in (A, B, C):
        swarm.add(peer)
    gc.collect()
    gc.disable()
    try:
        seen: dict[int, weakref.ref[Exchange]] = {}
        while len(seen) < 4:
            swarm.step()
            for member in swarm.members.values():
                exchange = member.machine.first.exchange
                if exchange is not None and exchange.sender is not None:
                    seen.setdefault(exchange.view.plan.op, weakref.ref(exchange))
        assert [ref() is None for ref in seen.values()] == [True, True, True, False]
    finally:
        gc.enable()
