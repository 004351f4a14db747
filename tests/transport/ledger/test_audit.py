"""A wrong sum is found, proved and punished; whoever sums rightly is never convicted."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport.actions import SendFrame
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.audit import (
    Proof,
    convicted,
    draw,
    proof_from_bytes,
    shown_from_bytes,
)
from swarmtrain_transport.ledger.fold import OpView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Accuse, Accused
from swarmtrain_transport.wire.records import Commit, Gone, Rewind, SignedRoot, bodies_of
from tests.transport.plain_arithmetic import PlainArithmetic, PlainSum
from tests.transport.rig import STRANGER, A, B, C, D, verify
from tests.transport.swarm import Member, Swarm


class _WrongSum(PlainSum):
    """Adds one to the first value."""

    def finish(self, total_weight: int) -> bytes:
        self._sums[0] += 1
        return super().finish(total_weight)


class WrongArithmetic(PlainArithmetic):
    def accumulator(
        self, num_values: int, window: Any, scalars: tuple[float, ...] = (), centre: Any = b""
    ) -> PlainSum:
        return _WrongSum(num_values, scalars)


def evictions(swarm: Swarm) -> list[Gone]:
    bodies = bodies_of(swarm.records)
    return [body for body in bodies if isinstance(body, Gone) and body.conviction is not None]


def events(swarm: Swarm, kind: str) -> list[Any]:
    return [event for event in swarm.hall.first.chronicle.events if event.event == kind]


def swarm_with_liar(seed: int, *honest: PeerId, rounds: int = 12) -> Swarm:
    swarm = Swarm(seed, rounds=rounds, start_peers=len(honest) + 1)
    for peer in honest:
        swarm.add(peer)
    swarm.add(D, WrongArithmetic())
    return swarm


def until(swarm: Swarm, holds: Callable[[], bool], steps: int = 60_000) -> bool:
    for _ in range(steps):
        if holds():
            return True
        swarm.step()
    return False


def proved(seed: int = 4) -> tuple[Proof, OpView]:
    """A proof that an auditor has found, and the ledger's view of its op."""
    swarm = swarm_with_liar(seed, A, B, C)
    for _ in range(60_000):
        for member in (swarm.members[peer] for peer in (A, B, C)):  # the liar finds others wrong
            if member.proofs:
                kept = member.proofs[0]
                return proof_from_bytes(kept.data), member.machine.view.first.commits[kept.op]
        swarm.step()
    raise AssertionError("nobody has found anything")


# ---- the whole swarm


@pytest.mark.parametrize("seed", range(6))
def test_an_owner_that_sums_wrongly_is_convicted_and_the_run_goes_on_without_it(seed: int) -> None:
    swarm = swarm_with_liar(seed, A, B, C, rounds=200)
    honest = [swarm.members[peer].machine for peer in (A, B, C)]
    assert until(swarm, lambda: bool(evictions(swarm)))
    convicted_after = max(machine.applied_op for machine in honest)
    assert until(swarm, lambda: min(m.applied_op for m in honest) >= convicted_after + 3)
    (gone,) = evictions(swarm)
    assert gone.peer == D and gone.evicted
    assert [event.peer for event in events(swarm, "convicted")] == [D.hex()]
    for peer in (A, B, C):
        assert D in swarm.members[peer].machine.view.convicted


def test_a_convicted_peer_is_refused_at_the_door() -> None:
    swarm = swarm_with_liar(1, A, B, C, rounds=40)
    assert until(swarm, lambda: bool(evictions(swarm)))
    swarm.connect(D)
    assert until(swarm, lambda: not swarm.down[D])
    assert [halt.code for halt in swarm.members[D].halted] == ["SWT-E563"]


def test_one_peers_word_convicts_nobody() -> None:
    """Between two peers nobody can say which is wrong; both the accusation and the proof are there
    to be seen."""
    swarm = swarm_with_liar(2, A, rounds=16)
    assert swarm.run(100_000)
    assert not evictions(swarm)
    assert events(swarm, "accused")
    assert swarm.members[A].proofs and swarm.members[A].machine.first.audits.counts["wrong"]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000))
def test_nobody_honest_is_accused_whatever_goes_wrong(seed: int) -> None:
    swarm = Swarm(seed, rounds=6, start_peers=3)
    for peer in (A, B, C):
        swarm.add(peer)
    rng = random.Random(seed)
    for _ in range(rng.randrange(1, 6)):
        for _ in range(rng.randrange(400)):
            swarm.step()
        way, peer = rng.randrange(4), rng.choice([A, B, C])
        if way == 0:
            swarm.restart_coordinator()
        elif way == 1:
            swarm.connect(peer)
        elif way == 2:
            swarm.lose_frames(peer, rng.choice([A, B, C]))
        else:
            swarm.pass_time(3.0)
    assert swarm.run(60_000)
    assert not evictions(swarm) and not events(swarm, "accused")
    counts = [member.machine.first.audits.counts for member in swarm.members.values()]
    assert not any(count["wrong"] for count in counts)
    assert not any(member.proofs or member.faults for member in swarm.members.values())


def test_audits_take_place() -> None:
    swarm = Swarm(5, rounds=24, start_peers=3)
    for peer in (A, B, C):
        swarm.add(peer)
    assert swarm.run(200_000)
    done = sum(member.machine.first.audits.counts["right"] for member in swarm.members.values())
    assert done >= 5


def test_a_restarted_coordinator_hears_of_the_proof_again() -> None:
    swarm = swarm_with_liar(4, A, B, C, rounds=60)
    assert until(swarm, lambda: bool(events(swarm, "accused")))
    swarm.restart_coordinator()
    assert not evictions(swarm)
    assert until(swarm, lambda: bool(evictions(swarm)))
    assert [gone.peer for gone in evictions(swarm)] == [D]


def test_what_was_found_of_a_cancelled_op_convicts_nobody_of_the_one_that_comes_again() -> None:
    swarm = swarm_with_liar(4, A, B, C, rounds=60)
    assert until(swarm, lambda: bool(events(swarm, "accused")))
    accused, first = events(swarm, "accused")[0].round, swarm.hall.first
    judges = [swarm.members[peer].machine.first for peer in (A, B, C)]
    assert until(swarm, lambda: any(one.audits.resend() for one in judges) and not first.operations)
    first._agreement.go_back(Rewind(accused - 1, "a leap of the loss"))
    assert not first.convictions._cases
    assert until(swarm, lambda: all(judge.view.rewinds for judge in judges))
    assert not [word for judge in judges for word in judge.audits.resend()]


# ---- one proof


def test_a_proof_convicts_the_owner_and_survives_the_wire() -> None:
    proof, view = proved()
    assert convicted(proof, view, PlainArithmetic(), verify) == D
    assert proof_from_bytes(proof.to_bytes()) == proof


def altered(proof: Proof, view: OpView) -> list[tuple[str, Proof, OpView]]:
    """List what is no proof, and why."""
    peer, shown = next(iter(proof.shown.items()))
    fewer = {name: one for name, one in proof.shown.items() if name != peer}
    longer = msgspec.structs.replace(shown, part=shown.part + b"x")
    other = msgspec.structs.replace(shown, slice_roots=(bytes(32),) * len(shown.slice_roots))
    commit = view.outcome
    assert isinstance(commit, Commit)

    def with_shown(**parts: Any) -> Proof:
        return msgspec.structs.replace(proof, **parts)

    def seen(**changes: Any) -> OpView:
        copy = OpView.of(view.plan, view.plan_hash)
        copy.frozen, copy.slice_sets, copy.owners = view.frozen, view.slice_sets, view.owners
        copy.outcome, copy.outcome_hash = view.outcome, view.outcome_hash
        copy.roots = view.roots
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy

    unsigned = msgspec.structs.replace(commit, signatures=(b"s" * 32,) * len(commit.slices))
    false_roots = {name: SignedRoot(signed.root, b"s" * 32) for name, signed in view.roots.items()}
    return [
        ("drawn", with_shown(op=proof.op + 1), view),
        ("drawn", with_shown(chunk=proof.chunk ^ 1), view),
        ("drawn", proof, seen(outcome=None)),
        ("missing", with_shown(shown=fewer), view),
        ("missing", with_shown(shown={**proof.shown, STRANGER: shown}), view),
        ("committed", with_shown(chunk_hashes=(bytes(32),) * len(proof.chunk_hashes)), view),
        ("committed", with_shown(chunk_hashes=()), view),
        ("contributor has signed", with_shown(shown={**proof.shown, peer: longer}), view),
        ("contributor has signed", with_shown(shown={**proof.shown, peer: other}), view),
        ("contributor's signature", proof, seen(roots=false_roots)),
        ("owner has not signed", proof, seen(outcome=unsigned)),
    ]


def test_whatever_is_altered_convicts_nobody() -> None:
    proof, view = proved()
    for words, false, seen in altered(proof, view):
        with pytest.raises(RemoteFault, match=words):
            convicted(false, seen, PlainArithmetic(), verify)


def test_a_right_sum_convicts_nobody() -> None:
    proof, view = proved()
    with pytest.raises(RemoteFault, match="right"):
        convicted(proof, view, WrongArithmetic(), verify)


@given(st.binary(max_size=300))
def test_rubbish_is_refused_with_its_reason(data: bytes) -> None:
    for decode, reason in ((proof_from_bytes, "proof"), (shown_from_bytes, "evidence")):
        with pytest.raises(RemoteFault) as caught:
            decode(data)
        assert caught.value.reason == reason


# ---- frames and messages that do not count


def member_after_an_op() -> tuple[Swarm, Member, OpView]:
    swarm = Swarm(7, rounds=9, start_peers=3)
    for peer in (A, B, C):
        swarm.add(peer)
    while any(one.machine.view.first.committed < 2 for one in swarm.members.values()):
        swarm.step()
    member = swarm.members[A]
    op = member.machine.view.first.commits[member.machine.view.first.last_op]
    return swarm, member, op


def test_a_contributor_shows_its_chunk_to_the_drawn_auditor_alone_and_a_few_times() -> None:
    swarm, _, op = member_after_an_op()
    drawn = draw(op)
    assert drawn is not None
    giver = next(peer for peer in drawn.contributors if peer != drawn.auditor)
    machine = swarm.members[giver].machine
    ask = Frame(FrameKind.PROVE, machine.view.run_tag, op.plan_id)
    others = {A, B, C} - {drawn.auditor}
    assert not [m for p in others for m in machine.first.audits.heard(p, ask, 0.0)]
    given_ = [machine.first.audits.heard(drawn.auditor, ask, 0.0) for _ in range(50)]
    assert 0 < sum(map(len, given_)) <= 4


def test_evidence_that_was_not_asked_for_is_dropped() -> None:
    _, member, op = member_after_an_op()
    for plan_id in (0, op.plan_id):
        frame = Frame(FrameKind.EVIDENCE, member.machine.view.run_tag, plan_id, body=b"rubbish")
        assert member.machine.first.audits.heard(STRANGER, frame, 0.0) == []


def test_an_accusation_without_a_proof_is_not_followed_up_for_ever() -> None:
    swarm, _, op = member_after_an_op()
    drawn = draw(op)
    assert drawn is not None
    judge = next(peer for peer in (A, B, C) if peer not in (drawn.auditor, drawn.owner))
    machine = swarm.members[judge].machine
    told = machine.control(Accused(op.plan.op, b"?" * 32), swarm.now_s)
    now_s, asked = swarm.now_s, 0
    for _ in range(400):
        asked += sum(
            isinstance(action, SendFrame) and action.frame.body == b"?" * 32 for action in told
        )
        missing = Frame(FrameKind.MISSING, machine.view.run_tag, body=b"?" * 32)
        now_s += 0.1
        told = (*machine.frame(drawn.auditor, missing, now_s), *machine.tick(now_s))
    assert 0 < asked < 30


def test_accusations_of_nobody_or_by_nobody_change_nothing() -> None:
    swarm, member, op = member_after_an_op()
    member.machine.control(Accused(99, bytes(32)), swarm.now_s)
    drawn = draw(op)
    assert drawn is not None
    others = [peer for peer in (A, B, C) if peer != drawn.auditor]
    for peer, number in ((drawn.owner, op.plan.op), (others[0], op.plan.op), (A, 99), (A, -1)):
        swarm.hall.received(peer, Accuse(number, bytes(32)), swarm.now_s)
    assert not events(swarm, "accused") and not evictions(swarm)
