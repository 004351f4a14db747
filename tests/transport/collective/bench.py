"""Exchanges of several peers around one op, with frames that a test delivers."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from swarmtrain_transport.actions import PeerAction, SendControl, SendFrame
from swarmtrain_transport.arithmetic import Arithmetic, Contribution
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.exchange import Exchange
from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.ledger.fold import OpDecision
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Hashes, SliceDone
from swarmtrain_transport.wire.records import Plan
from tests.transport.plain_arithmetic import (
    PlainArithmetic,
    PlainContribution,
    decode_result,
)
from tests.transport.rig import A, B, C, plan_body, sign_as, view_of

TAG = 7


def values(peer: PeerId) -> list[int | None]:
    return [peer[0] * 1000 + number for number in range(24)]


class Bench:
    """Exchanges of one op around one view. Frames wait in `wires` until they are delivered.

    Whole numbers, unless an arithmetic and everybody's contributions to it are given. `before` is
    a committed op whose result everybody has in `blobs`.
    """

    def __init__(
        self,
        plan: Plan | None = None,
        arithmetic: Arithmetic | None = None,
        given: Mapping[PeerId, Contribution] | None = None,
        before: "Bench | None" = None,
        **own: list[int | None],
    ) -> None:
        self.plan = plan or plan_body((A, B, C))
        self.view = view_of(self.plan)
        self.now_s = 0.0
        self.blobs: dict[PeerId, Blobs] = {}
        self.fetchers: dict[PeerId, Fetcher] = {}
        self.peers: dict[PeerId, Exchange] = {}
        self.wires: dict[tuple[PeerId, PeerId], list[Frame]] = {}
        self.told: dict[PeerId, list[Any]] = {}
        self.lost: set[FrameKind] = set()
        self.ignored: Counter[str] = Counter()
        commits = {} if before is None else {before.plan.op: before.view}
        for member in self.plan.members:
            peer = member.peer
            self.blobs[peer] = Blobs() if before is None else before.blobs[peer]
            self.fetchers[peer] = Fetcher(list)
            self.told[peer] = []
            contribution: Contribution = (
                PlainContribution(own.get(f"p{peer[0]}", values(peer)))
                if given is None
                else given[peer]
            )
            self.peers[peer] = Exchange(
                peer, self.view, TAG, arithmetic or PlainArithmetic(),
                contribution if member.weight else None,
                self.blobs[peer], self.fetchers[peer], 0.0, sign_as(peer),
                LocalStats(ignored=self.ignored), commits,
            )  # fmt: skip

    def begin(self) -> "Bench":
        for peer, exchange in self.peers.items():
            self.take(peer, exchange.decided(self.now_s))
        return self

    def take(self, peer: PeerId, actions: Iterable[PeerAction]) -> None:
        for action in actions:
            if isinstance(action, SendFrame):
                if action.frame.kind in self.lost:
                    continue
                self.wires.setdefault((peer, action.peer), []).append(action.frame)
            else:
                assert isinstance(action, SendControl)
                self.told[peer].append(action.message)

    def deliver(self, source: PeerId, target: PeerId) -> None:
        frame = self.wires[source, target].pop(0)
        if target in self.peers:
            self.take(target, self.peers[target].frame(source, frame, self.now_s))

    def deliver_all(self) -> None:
        while any(self.wires.values()):
            for (source, target), frames in list(self.wires.items()):
                if frames:
                    self.deliver(source, target)

    def decide(self, decision: OpDecision) -> None:
        self.view.apply(decision)
        for peer, exchange in self.peers.items():
            self.take(peer, exchange.decided(self.now_s))

    def tick(self, now_s: float) -> None:
        self.now_s = now_s
        for peer, exchange in self.peers.items():
            self.take(peer, exchange.tick(now_s))

    def said(self, peer: PeerId, kind: type) -> list[Any]:
        return [message for message in self.told[peer] if isinstance(message, kind)]

    def relay(self, *to: PeerId) -> None:
        """Relay each newest SLICE_DONE of the current attempts, as the coordinator does."""
        for index, owner in enumerate(self.view.owners):
            for done in self.said(owner, SliceDone):
                if done.slice_index == index and done.attempt == self.view.attempts[index]:
                    message = Hashes(
                        done.plan_id, index, done.attempt, done.set_id, done.chunk_hashes
                    )
                    for peer in to or tuple(self.peers):
                        self.take(peer, self.peers[peer].hashes(message, self.now_s))

    def result_of(self, index: int) -> list[tuple[tuple[int, ...], int]]:
        said = self.said(self.view.owners[index], SliceDone)
        done = [message for message in said if message.slice_index == index][-1]
        blobs = self.blobs[self.view.owners[index]]
        chunks = [blobs.get(digest) for digest in done.chunk_hashes]
        return [decode_result(chunk or b"") for chunk in chunks]


def on_paper(index: int, contributors: Iterable[PeerId]) -> list[tuple[tuple[int, ...], int]]:
    names = list(contributors)
    start = 8 * index
    sums = [sum(peer[0] * 1000 + i for peer in names) for i in range(start, start + 8)]
    return [(tuple(sums[:4]), len(names)), (tuple(sums[4:]), len(names))]


def part(index: int, chunk: int, body: bytes, attempt: int = 0, plan_id: int = 0) -> Frame:
    return Frame(FrameKind.PART, TAG, plan_id, index, attempt, chunk, body=body)
