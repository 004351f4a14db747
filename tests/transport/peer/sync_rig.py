"""A joiner and its donors over memory links, under a virtual clock, on links with rates.

Every end is a whole Participant. A frame waits for its sender's uplink, travels, then waits for
its receiver's downlink; so many donors can fill the joiner's link and none can give more than it
has.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.blocks.manifest import ArraySpec, StateManifest, describe_state
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import Address, PeerId
from swarmtrain_transport.links.memory_link import MemoryNetwork
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire.frames import Frame, FrameKind, Wanted
from swarmtrain_transport.wire.messages import Listens, Records, Welcome
from tests.transport.plain_arithmetic import PlainArithmetic
from tests.transport.rig import BOOT, LAYOUT, RUN_KEY, Chain, begun_chain, sign_as, verify

MBIT = 125_000
Change = Callable[[PeerId, Frame], Frame | None]


def state(num_values: int, seed: int) -> tuple[StateManifest, tuple[bytes, ...]]:
    data = random.Random(seed).randbytes(4 * num_values)
    manifest, chunks = describe_state(LAYOUT, (ArraySpec("anchor", num_values),), data)
    return manifest, tuple(bytes(chunk) for chunk in chunks)


@dataclass
class End:
    """One peer's process and its access line."""

    machine: Participant
    link: Any
    up: float
    down: float
    up_free_s: float = 0.0
    down_free_s: float = 0.0
    wake: int = 0
    kept: dict[bytes, bytes] = field(default_factory=dict)
    manifest: StateManifest | None = None
    loaded: do.LoadState | None = None
    loaded_s: float = 0.0
    faults: list[do.PeerFault] = field(default_factory=list)


class SyncWorld:
    """Clock, lines and ends.

    Args:
        num_values: of the state that donors have.
        peers: who is in the roster.
        delay_s: one way.
    """

    def __init__(self, num_values: int, peers: Iterable[PeerId], delay_s: float = 0.02) -> None:
        self.now_s = 0.0
        self.delay_s = delay_s
        self.right = state(num_values, 1)
        self.wrong = state(num_values, 2)
        self.chain: Chain = begun_chain(tuple(peers), num_values)
        genesis = self.chain.view.first.genesis
        assert genesis is not None
        self.chain = Chain(
            *(self._bodies()), type(genesis)(0, self.right[0].root, num_values, LAYOUT)
        )
        self.ends: dict[PeerId, End] = {}
        self.given: dict[PeerId, int] = {}
        self.asked: list[tuple[PeerId, Wanted]] = []
        self.change: dict[PeerId, Change] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._frame_bytes = 0
        self.network = MemoryNetwork(self._schedule)

    def _bodies(self) -> list[Any]:
        from tests.transport.rig import run_body

        return [run_body(), *self.chain.view.roster.values()]

    # ---- ends

    def donor(self, peer: PeerId, up: float, down: float = 1000 * MBIT) -> End:
        end = self._begin(peer, up, down)
        self._carry(end, end.machine.attach(0, *self.right, 4, self.now_s))
        assert end.loaded is not None
        return end

    def joiner(
        self, peer: PeerId, down: float, up: float = 1000 * MBIT, earlier: End | None = None
    ) -> End:
        end = self._begin(peer, up, down)
        if earlier is not None and earlier.manifest is not None:
            end.machine.keep_state(earlier.manifest.to_bytes(), list(earlier.kept.values()))
        self._carry(end, end.machine.attach(0, *self.wrong, 4, self.now_s))
        return end

    def kill(self, peer: PeerId) -> None:
        self.ends.pop(peer).link.close()

    def _begin(self, peer: PeerId, up: float, down: float) -> End:
        card = Card(peer, BOOT, "name", peer, "127.0.0.1", 4000 + peer[0])
        order = random.Random(peer[0])
        machine = Participant(
            card, PlainArithmetic(), sign_as(peer), verify,
            lambda p: order.sample(list(p), len(p)), (), self.now_s,
        )  # fmt: skip

        class Handler:
            def on_frame(_, source: PeerId, frame: Frame) -> None:
                self._heard(peer, source, frame)

            def on_fault(_, source: PeerId | None, fault: RemoteFault) -> None:
                raise AssertionError(fault)

        link = self.network.open(Address(peer, peer, "127.0.0.1", 4000 + peer[0]), Handler())
        end = self.ends[peer] = End(machine, link, up, down)
        records = tuple(record.to_bytes() for record in self.chain.records)
        last = len(records) - 1
        self._carry(end, machine.start(self.now_s))
        self._carry(end, machine.control(Welcome(1, "run", RUN_KEY, b"", last), self.now_s))
        self._carry(end, machine.control(Records(0, records), self.now_s))
        at = {peer: ("127.0.0.1", 4000 + peer[0]) for peer in self.chain.view.roster}
        self._carry(end, machine.control(Listens(at), self.now_s))
        return end

    def _heard(self, peer: PeerId, source: PeerId, frame: Frame) -> None:
        end = self.ends[peer]
        if frame.kind is FrameKind.PIECE:
            self.given[source] = self.given.get(source, 0) + len(frame.body)
        if frame.kind is FrameKind.GET:
            self.asked.append((peer, Wanted.unpack(frame.body)))
        self._carry(end, end.machine.frame(source, frame, self.now_s))

    def _carry(self, end: End, actions: Iterable[do.PeerAction]) -> None:
        for action in actions:
            match action:
                case do.SendFrame():
                    self._send(end, action.peer, action.frame)
                case do.AllowPeer():
                    end.link.allow(action.address)
                case do.DownloadBegun():
                    end.manifest = action.manifest
                case do.KeepChunk():
                    end.kept[action.digest] = action.data
                case do.PeerFault():
                    end.faults.append(action)
                case do.LoadState():
                    end.loaded, end.loaded_s = action, self.now_s
                    manifest, chunks = action.manifest, action.chunks
                    self._carry(end, end.machine.applied(0, manifest, chunks, self.now_s))
                case do.Halt():
                    raise AssertionError(action)
        self._set_alarm(end)

    def _send(self, end: End, target: PeerId, frame: Frame) -> None:
        change = self.change.get(end.machine.card.peer_id)
        sent = change(target, frame) if change is not None else frame
        if sent is not None:
            self._frame_bytes = limits.HEADER_BYTES + len(sent.body)
            end.link.send(target, sent)

    # ---- time

    def at(self, time_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time_s, next(self._count), what))

    def run(self, until: Callable[[], bool], limit_s: float = 600.0) -> None:
        while not until() and self._heap and self.now_s < limit_s:
            self.now_s, _, what = heapq.heappop(self._heap)
            what()
        assert until(), f"nothing came of it in {self.now_s} s"

    def _set_alarm(self, end: End) -> None:
        end.wake += 1
        number = end.wake

        def ring() -> None:
            if end.wake == number and self.ends.get(end.machine.card.peer_id) is end:
                self._carry(end, end.machine.tick(self.now_s))

        self.at(max(end.machine.next_wakeup_s, self.now_s + 1e-4), ring)

    def _schedule(self, source: PeerId, target: PeerId, deliver: Callable[[], None]) -> None:
        size, sender = self._frame_bytes, self.ends[source]
        sender.up_free_s = max(self.now_s, sender.up_free_s) + size / sender.up

        def arrive() -> None:
            receiver = self.ends.get(target)
            if receiver is None:
                return deliver()
            receiver.down_free_s = max(self.now_s, receiver.down_free_s) + size / receiver.down
            self.at(receiver.down_free_s, deliver)
            return None

        self.at(sender.up_free_s + self.delay_s, arrive)
