"""Hostile bytes: what a member or a stranger may send. Nothing of it may be believed."""

import random

from swarmtrain.simulate.checks.invariants import Invariants
from swarmtrain.simulate.ground.quick_keys import quick_sign
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import PAIR, WHOLE
from swarmtrain_transport.ledger.fold import OpView, chunk_range, num_chunks, slice_root
from swarmtrain_transport.ledger.signed_roots import result_payload
from swarmtrain_transport.ledger.transfers import NOTHING_SUMMED, content_name
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind, pack
from swarmtrain_transport.wire.messages import (
    Accuse,
    Evaluated,
    Got,
    Have,
    HaveRow,
    PeerMessage,
    Progress,
    Ready,
    Roots,
    SliceDone,
    decode_from_peer,
    encode,
)

_FAR = 1 << 40

_REPEATED = 50
"""Times that a member says the same in one instant; the budget of a shell lets more than that
by."""


class Hostile:
    """Makes bad bytes and lets them arrive in the name of a member, or of nobody.

    Args:
        swarm: coordinator and peers of the world.
        checks: checks that are told who is in trouble.
        rng: draws them.
    """

    def __init__(self, swarm: Swarm, checks: Invariants, rng: random.Random) -> None:
        self._swarm = swarm
        self._scene = swarm.scene
        self._checks = checks
        self._rng = rng

    # ---- the data lane

    def frame(self) -> str | None:
        """Bad bytes on the data lane."""
        ends = self._swarm.two(self._rng)
        if ends is None:
            return None
        sender, target = ends
        header, body = self._bytes(sender, target)
        key = sender.peer_id
        if self._rng.random() < 0.2:
            key = self._rng.randbytes(32)
        else:
            self._scene.hostile.add(sender.peer_id)
        target.hear(lambda: self._swarm.network.inject(target.peer_id, key, header, body))
        return (
            f"{len(header) + len(body)} hostile bytes from peer {sender.number} to {target.number}"
        )

    def _bytes(self, sender: SimPeer, target: SimPeer) -> tuple[bytes, bytes]:
        rng = self._rng
        way = rng.randrange(4)
        if way == 0:
            return rng.randbytes(rng.choice((0, 47, 48, 49))), rng.randbytes(rng.randrange(600))
        header, body = pack(self._frame(sender, target))
        if way == 1:  # one byte is another one
            spoilt = bytearray(header)
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
            # The checksum is over the body alone: fields that fence are looked at by the machines.
            if spoilt[3] in (FrameKind.PART, FrameKind.SUM):
                spoilt[28] ^= 0xFF  # the length: never a part that might be taken for a true one
            return bytes(spoilt), bytes(body)
        if way == 2:
            return header, bytes(body)[:-1] + rng.randbytes(2)
        return header, bytes(body)

    def _frame(self, sender: SimPeer, target: SimPeer) -> Frame:
        """A well-formed frame that makes no sense."""
        rng = self._rng
        tag = target.machine.view.run_tag
        exchange = target.machine.first.exchange
        plan_id = exchange.view.plan_id if exchange is not None else rng.getrandbits(64)
        slices = len(exchange.view.owners) if exchange is not None else 4
        index = rng.choice((rng.randrange(slices), rng.randrange(1 << 16)))
        frames: tuple[Frame, ...] = (
            Frame(FrameKind.PART, tag, plan_id, index, 0, rng.randrange(99, 1 << 30), body=b"x"),
            Frame(FrameKind.PART, tag, plan_id, index, rng.randrange(7, 99), 0, body=bytes(264)),
            Frame(FrameKind.PART, tag, rng.getrandbits(64), index, body=bytes(264)),
            Frame(FrameKind.PART, rng.getrandbits(64), plan_id, index, body=bytes(264)),
            Frame(FrameKind.CREDIT, tag, plan_id, body=rng.randbytes(rng.choice((0, 7, 8, 9)))),
            Frame(FrameKind.RANGES, tag, plan_id, index, 99, body=rng.randbytes(21)),
            Frame(FrameKind.RANGES, tag, plan_id, index, 0, body=rng.randbytes(rng.randrange(20))),
            Frame(FrameKind.GET, tag, body=rng.randbytes(rng.choice((0, 31, 32, 33)))),
            Frame(FrameKind.BLOB, tag, body=rng.randbytes(rng.randrange(300))),
            Frame(FrameKind.MISSING, tag, body=rng.randbytes(rng.choice((0, 32)))),
            Frame(FrameKind.PROVE, tag, plan_id, index, 0, rng.randrange(99)),
            Frame(FrameKind.EVIDENCE, tag, plan_id, index, body=rng.randbytes(rng.randrange(300))),
        )
        if self._scene.conditions.kind == PAIR:
            op, chunk = target.machine.view.first.last_op + 1, rng.choice((0, 5, 1 << 30))
            body = bytes(rng.randrange(600))
            frames += (Frame(FrameKind.AHEAD, tag, chunk=chunk, set_id=op, body=body),)
        if exchange is not None and exchange.view.cells.count > 1 and rng.random() < 0.5:
            return self._sum(sender.peer_id, target.peer_id, exchange.view, tag)
        return rng.choice(frames)

    def _sum(self, sender: PeerId, target: PeerId, view: OpView, tag: int) -> Frame:
        """A cell's sum, or the wish for one, of who does not own that range."""
        rng = self._rng
        own = [index for index, owner in enumerate(view.owners) if owner == target]
        index = rng.choice((*own, *own, rng.randrange(len(view.owners)), rng.randrange(1 << 16)))
        is_known = index < len(view.owners)
        pieces = view.cells.pieces(index) if is_known else range(0)
        is_owner = any(view.owners[piece] == sender for piece in pieces)
        attempt = view.attempts[index] if is_known else 0
        place = rng.choice(pieces) if is_known else 0
        if is_known and place == index:  # its own cell's sum goes elsewhere
            place = view.cells.taker(index % view.cells.count, index)
        name = view.given_set_id(place) or rng.getrandbits(64)
        chunk = rng.choice((0, 0, 1, 1 << 30))
        if rng.random() < 0.4:
            body = rng.randbytes(rng.randrange(4))
            return Frame(FrameKind.SUMS, tag, view.plan_id, index, attempt, 0, name, body)
        is_planned = is_known and chunk < num_chunks(view.plan, index)
        start, stop = chunk_range(view.plan, index, chunk) if is_planned else (0, 64)
        data = b"x" if is_owner else bytes(8 * (stop - start))
        return Frame(FrameKind.SUM, tag, view.plan_id, index, attempt, chunk, name, data)

    # ---- the control lane

    def control(self) -> str | None:
        """Bad bytes, or claims that cannot be true, on a member's control connection."""
        ends = self._swarm.two(self._rng)
        coordinator = self._swarm.coordinator
        if ends is None or coordinator.machine is None or not self._swarm.is_connected(ends[0]):
            return None
        sender = ends[0]
        message = self._second_word(sender) or self._claim()
        data = bytearray(encode(message))
        if self._rng.random() < 0.5:
            data[self._rng.randrange(len(data))] = self._rng.randrange(256)
            try:
                decode_from_peer(bytes(data))
            except RemoteFault:
                # The shell closes a connection that says what is no message.
                self._checks.demands.trouble(sender.peer_id, 1.0)
                self._checks.demands.lost(sender.peer_id)
                self._swarm.blink(sender)
                return f"peer {sender.number} sends {len(data)} bytes that are no message"
            return None
        self._scene.hostile.add(sender.peer_id)
        times = _REPEATED if self._rng.random() < 0.1 else 1
        for _ in range(times):
            coordinator.hear(lambda: coordinator.message(sender.peer_id, message))
        return f"peer {sender.number} claims {type(message).__name__}, {times} times"

    def _second_word(self, sender: SimPeer) -> PeerMessage | None:
        """Sign bytes that one does not have, where contributions stay whole: as far as the
        coordinator knows that is the contribution, the first one or another one."""
        machine = self._swarm.coordinator.machine
        operation = machine.first.operation if machine is not None else None
        if operation is None or operation.view.plan.kind not in WHOLE:
            return None
        view = operation.view
        if sender.peer_id not in view.weights or self._rng.random() < 0.6:
            return None
        index = view.owners.index(sender.peer_id)
        hashes = tuple(self._rng.randbytes(32) for _ in range(num_chunks(view.plan, index)))
        root = slice_root(hashes)
        payload = result_payload(view.plan_hash, index, 0, root, NOTHING_SUMMED)
        signature = quick_sign(sender.peer_id, payload)
        self._checks.demands.trouble(sender.peer_id, 2 * view.plan.deadline_s)
        name = content_name(root)
        return SliceDone(view.plan_id, index, 0, name, hashes, NOTHING_SUMMED, signature)

    def _claim(self) -> PeerMessage:
        """Well-formed, and about what is not the sender's or does not exist."""
        rng = self._rng
        machine = self._swarm.coordinator.machine
        operation = machine.first.operation if machine is not None else None
        plan_id = operation.view.plan_id if operation is not None else rng.getrandbits(63)
        index = rng.choice((-1, -_FAR, 99, _FAR))
        stranger = rng.randbytes(32)
        claims: tuple[PeerMessage, ...] = (
            Got(plan_id, index, 0, {stranger: stranger}, {stranger: "scale"}),
            Got(plan_id, 0, rng.choice((-1, 50, _FAR)), {stranger: b""}),
            SliceDone(plan_id, index, 0, rng.getrandbits(63), (stranger,), b"", stranger),
            SliceDone(plan_id, 0, 0, rng.getrandbits(63), (b"short",) * rng.randrange(4), b"", b""),
            Roots(plan_id, (stranger,) * rng.randrange(4), stranger),
            Have(plan_id, 0, 0, rng.getrandbits(63), (True,) * rng.randrange(2000)),
            Have(rng.getrandbits(63), 0, 0, 1, (True,)),
            Have(plan_id, 0, 0, 1, (True,), more=(HaveRow(index, 0, 7, (True,), b""),) * 3),
            Ready(_FAR, -1, 0, rng.randbytes(31)),
            Evaluated(_FAR, float("nan")),
            Accuse(rng.choice((-1, 1, 2, 3, _FAR)), stranger),
            Progress(_FAR, -1, -1, "x" * 5000),
        )
        return rng.choice(claims)
