"""A peer that fell behind: results while they are kept, a later state as soon as they are not."""

import itertools
import struct
from unittest.mock import patch

import msgspec
import pytest

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.peer.participant import Actions, Participant
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.records import Attest, Freeze, Gone, Rewind, Skip
from tests.transport.peer.test_participant import peer_of, records
from tests.transport.plain_arithmetic import PlainArithmetic
from tests.transport.rig import (
    RUN_KEY,
    A,
    B,
    C,
    Chain,
    commit_of,
    genesis_body,
    join_body,
    run_body,
    sign_as,
    verify,
)
from tests.transport.swarm import Member, state_of

LATER = b"S" * 32


def behind(commits: int, *roots: bytes) -> tuple[Participant, Chain, Actions]:
    """A peer at op 0 that hears of so many commits at once, the last of them attested. Their slices
    have these roots by turns."""
    manifest, chunks = state_of([7] * 24)
    joins = [join_body(peer) for peer in (A, B, C)]
    chain = Chain(run_body(), *joins, genesis_body(24, manifest.root))
    machine = peer_of(chain)
    machine.attach(0, manifest, chunks, 1, 0.0)
    machine.applied(0, manifest, chunks, 0.0)
    first = len(chain.records)
    for _ in range(commits):
        chain.add(chain.plan((B, C), 24))
        op = chain.view.first.in_progress
        assert op is not None
        chain.add(Freeze(op.plan.op, (B, C), {}))
        commit = commit_of(op)
        named = zip(commit.slices, itertools.cycle(roots or (bytes(32),)), strict=False)
        slices = tuple(msgspec.structs.replace(one, root=root) for one, root in named)
        chain.add(msgspec.structs.replace(commit, slices=slices))
    chain.add(Attest(commits, LATER))
    return machine, chain, machine.control(records(chain, first), 0.0)


def result_chunks(number: int) -> list[bytes]:
    """A slice's chunks, none of which another slice has."""
    return [struct.pack("<5q", number, 0, 0, at, 2) for at in range(3)]


def list_of(chunks: list[bytes]) -> bytes:
    """Hashes of a slice's chunks, by the hash of which COMMIT names it."""
    return b"".join(map(content_hash, chunks))


def asked(actions: Actions) -> list[tuple[bytes, bytes]]:
    return [
        (action.peer, bytes(action.frame.body)[: limits.HASH_BYTES])
        for action in actions
        if isinstance(action, do.SendFrame) and action.frame.kind is FrameKind.GET
    ]


def test_kept_results_of_a_cancelled_past_take_no_place() -> None:
    chain = Chain(run_body(), join_body(A), join_body(B), genesis_body(24))
    for _ in range(3):
        chain.add(chain.plan((B, C), 24))
        chain.commit(B, C)
    chain.add(Rewind(1, "lost"))
    card = Member(A, b"boot", 0.0).machine.card
    machine = Participant(card, PlainArithmetic(), sign_as(A), verify, list, chain.records, 0.0)
    for op in (1, 2, 3, 4):
        machine.keep_result(op, [[b"chunk %d" % op]])
    told = machine.control(m.Welcome(1, "run", RUN_KEY, b"config", len(chain.records) - 1), 0.0)
    kept = [op for op in (1, 2, 3, 4) if machine.first.blobs.get(content_hash(b"chunk %d" % op))]
    assert kept == [1]
    assert do.Rewound(1) in told


def test_whoever_is_a_few_results_behind_asks_for_results_alone() -> None:
    _, _, actions = behind(limits.RESULT_KEEP_OPS)
    assert asked(actions)
    assert LATER not in {digest for _, digest in asked(actions)}


def test_whoever_is_further_behind_than_results_are_kept_asks_for_a_later_state_at_once() -> None:
    _, _, actions = behind(limits.RESULT_KEEP_OPS + 1)
    assert LATER in {digest for _, digest in asked(actions)}
    stranded = [a for a in actions if getattr(a, "message", None) == m.Stranded(1)]
    assert not stranded, "nobody has said yet that the results are lost"


def test_a_slice_is_looked_into_once_although_others_come_after_it() -> None:
    """Of 512 slices each was looked into after each one that came."""
    chunks = [result_chunks(1), result_chunks(2)]
    lists = [list_of(one) for one in chunks]
    machine, chain, _ = behind(1, *map(content_hash, lists))
    looked_into: list[bytes] = []

    def look(arithmetic: PlainArithmetic, chunk: bytes, *_: object) -> None:
        looked_into.append(bytes(chunk))

    with patch.object(PlainArithmetic, "check_result", look):
        told = blobs(machine, chain, *lists, *chunks[0], *chunks[1])
    (applied,) = [action for action in told if isinstance(action, do.ApplyResult)]
    assert [list(map(bytes, one.chunks)) for one in applied.result.slices] == chunks
    assert looked_into == chunks[0] + chunks[1]


def blobs(machine: Participant, chain: Chain, *bodies: bytes) -> list[do.PeerAction]:
    """B sends these blobs; what the peer does then."""
    tag = chain.view.run_tag
    frames = (Frame(FrameKind.BLOB, tag, body=body) for body in bodies)
    return [action for frame in frames for action in machine.frame(B, frame, 0.0)]


def test_who_went_and_came_back_in_one_breath_is_asked_again() -> None:
    """Nobody else has the result; with GONE all that was to be asked of it was dropped."""
    machine, chain, _ = behind(1)
    first = len(chain.records)
    for peer in (B, C):
        chain.add(Gone(peer, False, "asked to"))
        chain.add(join_body(peer, b"anew"))
    actions = machine.control(records(chain, first), 1.0)
    assert {peer for peer, _ in asked(actions)} & {B, C}


@pytest.mark.parametrize("dead", [B, C])
def test_a_dead_donor_costs_one_time_out_and_then_a_later_state_is_taken(dead: bytes) -> None:
    machine, chain, actions = behind(3)
    now_s, told = 0.0, list(actions)
    while not any(digest == LATER for _, digest in asked(tuple(told))):
        answers: list[do.PeerAction] = []
        for peer, digest in asked(tuple(told)):
            if peer != dead:
                missing = Frame(FrameKind.MISSING, chain.view.run_tag, body=digest)
                answers += machine.frame(peer, missing, now_s)
        told = answers
        if not answers:
            now_s = max(now_s, machine.next_wakeup_s)
            told = list(machine.tick(now_s))
        assert now_s < 2 * limits.FETCH_TIMEOUT_S


def test_whoever_is_alone_finds_out_that_a_result_is_with_nobody() -> None:
    """The others have left, and the result of the last op was lost with our own disk."""
    machine, chain, _ = behind(1)
    first = len(chain.records)
    chain.add(Gone(B, False, "asked to"))
    chain.add(Gone(C, False, "asked to"))
    actions = machine.control(records(chain, first), 0.0)
    now_s = 0.0
    while not any(getattr(action, "message", None) == m.Stranded(1) for action in actions):
        assert now_s < 2 * limits.LOST_ROUNDS * limits.FETCH_RETRY_S
        now_s = max(now_s, machine.next_wakeup_s)
        actions = machine.tick(now_s)


@pytest.mark.parametrize("shared", [False, True], ids=["its own bytes", "the next op's bytes, too"])
def test_a_result_that_comes_while_the_next_op_is_under_way_outlives_its_skip(shared: bool) -> None:
    """Its owners may be gone by then: others can get to our state by what we keep alone."""
    manifest, chunks = state_of([7] * 24)
    genesis = msgspec.structs.replace(genesis_body(24, manifest.root), fragments=(12, 12))
    chain = Chain(run_body(), *[join_body(peer) for peer in (A, B, C)], genesis)
    machine = peer_of(chain)
    machine.attach(0, manifest, chunks, 1, 0.0, fragments=(12, 12))
    machine.applied(0, manifest, chunks, 0.0)
    first = len(chain.records)
    for op in (1, 2):
        plan = chain.plan((B,), 12, op=op)
        ours = msgspec.structs.replace(plan.members[0], peer=A, boot=b"boot", weight=0)
        chain.add(msgspec.structs.replace(plan, members=(*plan.members, ours)))
    chunk = struct.pack("<5q", 1, 1, 1, 1, 3)
    digest = content_hash(chunk)
    one = chain.view.first.ops[next(iter(chain.view.first.ops))]
    chain.add(Freeze(1, (B,), {}))
    commit = commit_of(one)
    root = content_hash(digest * 3)
    slices = tuple(msgspec.structs.replace(piece, root=root) for piece in commit.slices)
    chain.add(msgspec.structs.replace(commit, slices=slices))
    machine.control(records(chain, first), 0.0)
    blobs = machine.first.blobs
    for body in (digest * 3, chunk):
        if shared:
            blobs.keep_result(2, body)
        machine.frame(B, Frame(FrameKind.BLOB, chain.view.run_tag, body=body), 0.0)
    machine.applied(1, manifest, None, 0.0)
    first = len(chain.records)
    chain.add(Skip(2, "deadline"))
    machine.control(records(chain, first), 0.0)
    assert machine.first.place.applied_op == 2
    assert blobs.get(root) == digest * 3 and blobs.get(digest) == chunk


@pytest.mark.parametrize(("weight", "is_lost"), [(3, False), (0, True)])
def test_a_committed_result_that_nobody_can_decode_is_as_good_as_lost(
    weight: int, is_lost: bool
) -> None:
    """Who was left agreed on its hashes, its owner among them. It never reaches the trainer."""
    chunk = struct.pack("<5q", 1, 1, 1, 1, weight)
    digest = content_hash(chunk)
    machine, chain, _ = behind(1, content_hash(digest * 3))
    actions = machine.frame(B, Frame(FrameKind.BLOB, chain.view.run_tag, body=digest * 3), 0.0)
    actions += machine.frame(B, Frame(FrameKind.BLOB, chain.view.run_tag, body=chunk), 0.0)
    assert any(isinstance(action, do.ApplyResult) for action in actions) is not is_lost
    stranded = [a for a in actions if getattr(a, "message", None) == m.Stranded(1)]
    assert bool(stranded) is is_lost
    assert (LATER in {found for _, found in asked(actions)}) is is_lost
