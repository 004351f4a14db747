"""A proof travels as a charge and its parts, each within a frame; a false one is soon let go."""

import random

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.actions import PeerFault, SendFrame
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.audit import Charge, Drawn, Proof, Shown, draw, proof_from_bytes
from swarmtrain_transport.ledger.fold import OpView, num_chunks
from swarmtrain_transport.peer.participant import Actions, Participant
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Accused
from tests.transport.rig import STRANGER, A, B, C
from tests.transport.swarm import Swarm

CHUNK_HASHES_MAX = limits.CONTROL_BYTES_MAX // limits.HASH_BYTES
"""The hashes of a slice travel in one control message."""


def widest(part_bytes: int, hashes: int) -> Proof:
    """Make a proof with as many contributors as there may be."""
    slice_roots = (b"r" * 32,) * limits.CELL_PEERS_MAX
    shown = Shown(slice_roots, (b"h" * 32,) * hashes, bytes(part_bytes))
    peers = [bytes([n]) * 32 for n in range(limits.CELL_PEERS_MAX)]
    return Proof(1, 0, 0, (b"h" * 32,) * hashes, dict.fromkeys(peers, shown))


def test_a_proof_of_64_contributors_is_kept_whole_though_no_frame_could_carry_it():
    proof = widest(limits.CHUNK_VALUES * 129 // 128, 24)
    data = proof.to_bytes()
    assert limits.FRAME_BYTES_MAX < len(data) < limits.PROOF_BYTES_MAX
    assert proof_from_bytes(data) == proof
    assert Proof.of(proof.charge, proof.shown, {}, ()) == proof


def test_the_largest_charge_and_the_largest_part_fit_into_a_frame():
    # A run file allows chunks of FRAME_BYTES_MAX // 8 values, of two bytes at most where sums are
    # exact; only a vector of 10^11 values has slices of so many.
    proof = widest(limits.FRAME_BYTES_MAX // 4, CHUNK_HASHES_MAX)
    assert len(proof.charge.to_bytes()) <= limits.FRAME_BYTES_MAX
    assert len(next(iter(proof.shown.values())).to_bytes()) <= limits.FRAME_BYTES_MAX


class Court:
    """A judge, after an honest op, and whatever an auditor may send to it."""

    def __init__(self) -> None:
        self.swarm = swarm = Swarm(7, rounds=9, start_peers=3)
        for peer in (A, B, C):
            swarm.add(peer)
        while any(one.machine.view.first.committed < 2 for one in swarm.members.values()):
            swarm.step()
        self.view: OpView = (view := swarm.members[A].machine.view.first).commits[view.last_op]
        drawn = draw(self.view)
        assert drawn is not None
        self.drawn: Drawn = drawn
        judge = next(peer for peer in (A, B, C) if peer not in (drawn.auditor, drawn.owner))
        self.machine: Participant = swarm.members[judge].machine
        self.hashes = (bytes(32),) * num_chunks(self.view.plan, drawn.slice_index)

    def charge(self, **changes: object) -> Charge:
        drawn = self.drawn
        facts = {
            "op": self.view.plan.op, "slice_index": drawn.slice_index, "chunk": drawn.chunk,
            "chunk_hashes": self.hashes,
            "shown": {peer: content_hash(peer) for peer in drawn.contributors},
        }  # fmt: skip
        return Charge(**{**facts, **changes})

    def accused(self, digest: bytes) -> list[bytes]:
        """Return what is asked of the auditor because of it."""
        told = self.machine.control(Accused(self.view.plan.op, digest), self.swarm.now_s)
        return self.asked(told)

    def sent(self, body: bytes) -> Actions:
        """Return what a blob of the auditor's leads to."""
        frame = Frame(FrameKind.BLOB, self.machine.view.run_tag, body=body)
        return self.machine.frame(self.drawn.auditor, frame, self.swarm.now_s)

    def asked(self, actions: Actions) -> list[bytes]:
        return [
            bytes(action.frame.body)
            for action in actions
            if isinstance(action, SendFrame) and action.frame.kind is FrameKind.GET
        ]


def faults(actions: Actions) -> list[str]:
    return [action.reason for action in actions if isinstance(action, PeerFault)]


def test_parts_are_asked_for_once_the_charge_is_here_and_a_false_one_ends_it():
    court = Court()
    charge = court.charge()
    data = charge.to_bytes()
    assert court.accused(content_hash(data)) == [content_hash(data)]
    assert court.accused(content_hash(data)) == []
    told = court.sent(data)
    assert (court.asked(told), faults(told)) == (sorted(charge.shown.values()), [])
    told = court.sent(min(charge.shown))  # the blob of that name, and no part at all
    assert (court.asked(told), faults(told)) == ([], ["proof"])
    assert court.sent(data) == ()


@pytest.mark.parametrize("part_bytes", [3, limits.FRAME_BYTES_MAX // 2])
def test_a_part_that_nobody_has_signed_is_not_held(part_bytes: int):
    court = Court()
    shown = Shown((bytes(32),) * 3, (bytes(32),), bytes(part_bytes)).to_bytes()
    named = dict.fromkeys(court.drawn.contributors, content_hash(shown))
    data = court.charge(shown=named).to_bytes()
    court.accused(content_hash(data))
    assert court.asked(court.sent(data)) == [content_hash(shown)]
    told = court.sent(shown)
    assert (court.asked(told), faults(told)) == ([], ["proof"])


def test_a_charge_that_is_about_something_else_is_refused():
    court = Court()
    contributors = court.drawn.contributors
    for changes in (
        {"chunk": court.drawn.chunk + 1},
        {"slice_index": court.drawn.slice_index + 1},
        {"shown": {peer: bytes(32) for peer in contributors[1:]}},
        {"shown": {peer: bytes(32) for peer in (*contributors, STRANGER)}},
        {"shown": {peer: b"short" for peer in contributors}},
    ):
        data = court.charge(**changes).to_bytes()
        assert court.accused(content_hash(data))
        told = court.sent(data)
        assert (court.asked(told), faults(told)) == ([], ["proof"]), changes


def test_rubbish_in_place_of_a_charge_is_refused():
    court, rng = Court(), random.Random(1)
    for size in (0, 1, 40, 4000):
        data = rng.randbytes(size)
        assert court.accused(content_hash(data))
        assert faults(court.sent(data)) == ["proof"]


def test_a_proof_too_long_for_any_disk_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(limits, "FRAME_BYTES_MAX", 100)
    proof = widest(10, 1)
    with pytest.raises(RemoteFault, match="bytes"):
        proof_from_bytes(bytes(limits.PROOF_BYTES_MAX + 1))
    assert proof_from_bytes(proof.to_bytes()) == proof
