"""One life of the coordinator's machine, with all that it says and logs checked as it comes."""

import hashlib
from typing import Any

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.actions import Adopt, Append, ClosePeer, SendToPeer
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.ledger.chain import Archive
from swarmtrain_transport.ledger.fold import num_chunks, set_id
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import (
    Body,
    Join,
    Plan,
    Record,
    bodies_of,
    record_from_bytes,
)
from tests.transport.rig import (
    BOOT,
    LAYOUT,
    RUN_KEY,
    A,
    B,
    C,
    done_of,
    received,
    roots_of,
    sign,
    terms_of,
    verify,
)

ROOT = b"R" * 32


def hello_of(peer: PeerId, **changes: Any) -> m.Hello:
    hello = m.Hello(BOOT, "otter", peer, "127.0.0.1", 4242, -1, b"", 1 << 30)
    return msgspec.structs.replace(hello, **changes)


def held(op: int, root: bytes = b"", group: int = 0) -> dict[str, Any]:
    """Return what HELLO says of a state that is in place."""
    return {"states": (m.Applied(op, root or root_of(op), group=group),)}


def root_of(op: int) -> bytes:
    return hashlib.sha256(f"state {op}".encode()).digest()


class Hall:
    """One life of the coordinator and what it has said. Every action is checked as it comes."""

    def __init__(
        self,
        records: tuple[Record, ...] = (),
        term: int = 1,
        *,
        is_lost: bool = False,
        archive: Archive | None = None,
        places: int = limits.CELL_PEERS_MAX,
        experts: int = 0,
        **terms: Any,
    ) -> None:
        self.now_s = 0.0
        self.records = list(records)
        self.sent: dict[PeerId, list[Any]] = {}
        self.closed: list[PeerId] = []
        self.machine = Rendezvous(
            terms_of(**terms),
            RUN_KEY,
            records,
            sign,
            verify,
            term,
            self.now_s,
            is_lost=is_lost,
            archive=archive,
            places=places,
            more_groups=[terms_of(**terms, group=number) for number in range(1, experts)],
            has_experts=experts > 0,
        )
        self.take(self.machine.start(0.0))

    def take(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, Append):
                assert action.record.index == len(self.records)
                self.records.append(action.record)
            elif isinstance(action, Adopt):
                assert action.records[0].index == len(self.records)
                self.records += action.records
            elif isinstance(action, ClosePeer):
                self.closed.append(action.peer)
            else:
                assert isinstance(action, SendToPeer)
                m.decode_from_coordinator(m.encode(action.message))
                if isinstance(action.message, m.Records):
                    newest = action.message.first_index + len(action.message.records)
                    assert newest <= len(self.records), "sent before it was durable"
                self.sent.setdefault(action.peer, []).append(action.message)
        assert self.machine.next_wakeup_s > self.now_s

    def join(self, *peers: PeerId, **hello: Any) -> None:
        for peer in peers:
            self.sent[peer] = []
            self.take(self.machine.connected(peer, hello_of(peer, **hello), self.now_s))

    def say(self, peer: PeerId, *messages: Any) -> None:
        for message in messages:
            self.take(self.machine.received(peer, message, self.now_s))

    def tick(self, now_s: float) -> None:
        """Let the time pass, for a process that runs: it looks whenever it wants to."""
        while (due_s := self.machine.next_wakeup_s) < now_s:
            self.now_s = due_s
            self.take(self.machine.tick(due_s))
        self.now_s = now_s
        self.take(self.machine.tick(now_s))

    def wake(self, now_s: float) -> None:
        """The process was stopped until now."""
        self.now_s = now_s
        self.take(self.machine.tick(now_s))

    def alive(self, now_s: float, *peers: PeerId, step_s: float = 1.0) -> None:
        """Let the time pass in steps in which these peers prove that they run."""
        while self.now_s < now_s:
            self.tick(min(now_s, self.now_s + step_s))
            for peer in peers:
                self.ack(peer)

    def ack(self, peer: PeerId, **changes: Any) -> None:
        progress = m.Progress(len(self.records) - 1, 0, 0, "training")
        self.say(peer, msgspec.structs.replace(progress, **changes))

    def bodies(self, kind: type[Any] = Body) -> list[Any]:
        return [body for body in bodies_of(self.records) if isinstance(body, kind)]

    def heard(self, peer: PeerId) -> list[Any]:
        """Ledger records that a peer was sent, in order."""
        return [
            record_from_bytes(raw)
            for message in self.sent[peer]
            if isinstance(message, m.Records)
            for raw in message.records
        ]

    # ---- a whole op

    def open_run(self, *peers: PeerId) -> None:
        self.join(*peers)
        self.say(peers[0], m.Offer(root_of(0), 24, LAYOUT))
        for peer in peers:
            self.say(peer, m.Applied(0, root_of(0)))
            self.ack(peer)

    def ready(self, op: int, *peers: PeerId) -> None:
        for peer in peers:
            before = m.Applied(op - 1, root_of(op - 1))
            self.say(peer, before, m.Ready(op, 8, op - 1, root_of(op - 1)))

    def plan(self) -> Plan:
        plan = self.bodies(Plan)[-1]
        assert isinstance(plan, Plan)
        return plan

    def exchange(self, *peers: PeerId) -> None:
        """All of them do their part of the op in progress."""
        operation = self.machine.first.operation
        assert operation is not None
        view, plan_id = operation.view, operation.view.plan_id
        for peer in peers:
            self.say(peer, roots_of(view, peer))
        for index, owner in enumerate(view.owners):
            self.say(owner, m.Got(plan_id, index, view.attempts[index], received(index, peers)))
        self._passes()
        for index, owner in enumerate(view.owners):
            name = set_id(peers)
            hashes = tuple(
                bytes([index, chunk]) * 16 for chunk in range(num_chunks(view.plan, index))
            )
            self.say(owner, done_of(view, index, peers, hashes))
            for peer in peers:
                flags = (True,) * len(hashes)
                self.say(peer, m.Have(plan_id, index, view.attempts[index], name, flags))
        self._passes()

    def _passes(self) -> None:
        """Let the time pass that a crowd's decisions take."""
        if self.machine.live_roster.is_crowd:
            self.tick(self.now_s + limits.CROWD_DECIDE_S)

    def run_op(self, op: int, *peers: PeerId) -> None:
        self.ready(op, *peers)
        self.exchange(*peers)
        for peer in peers:
            self.say(peer, m.Applied(op, root_of(op)))


def opened(*peers: PeerId, **terms: Any) -> Hall:
    peers = peers or (A, B, C)
    hall = Hall(**{"start_peers": len(peers), **terms})
    hall.open_run(*peers)
    return hall


def join_of(first: Hall, peer: bytes) -> bytes:
    """The peer's JOIN, as it keeps it; b"" if it was never in."""
    joins = [one for one, body in zip(first.records, bodies_of(first.records), strict=True)
             if isinstance(body, Join) and body.peer == peer]  # fmt: skip
    return joins[-1].to_bytes() if joins else b""
