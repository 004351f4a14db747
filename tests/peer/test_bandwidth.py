"""Between exchanges a peer that one TCP flow cannot reach fast enough gets more of them.

Limits on the link change while it is used.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swarmtrain.config.caps import NO_CAPS, Caps
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.network.bandwidth import Bandwidth
from swarmtrain_transport import limits
from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.links.link import Address, LinkStats
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.parallel_flows import Path as Flow
from swarmtrain_transport.wire.frames import Frame, FrameKind

PEER = b"p" * 32


class StandIn:
    """A link with one long way, whose flows carry so much per look and could carry more."""

    def __init__(self) -> None:
        self.stats = LinkStats()
        self.width = 1
        self.acked = 0
        self.warmed: list[bytes] = []
        self.redialled: Callable[[bytes], None]

    def warm(self, peers: Iterable[bytes]) -> None:
        self.warmed += peers

    def paths(self) -> dict[bytes, list[Flow]]:
        self.acked += 10_000
        return {PEER: [Flow(self.acked, 0.2, 0.2, 1)] * self.width}

    def widen(self, peer: bytes, width: int) -> None:
        assert peer == PEER
        self.width = width

    def pace(self, paces: dict[bytes, float]) -> None:
        """There is no system here that keeps to it."""

    def moved(self) -> None:
        """This system does not tell."""

    acknowledged = moved

    def allow(self, address: Address) -> None:
        """As the real one, which begins with one connection."""
        self.width = 1

    def redial(self) -> None:
        """Likewise; the real one says so."""
        self.width = 1
        self.redialled(PEER)


def test_flows_are_opened_between_exchanges_and_a_new_address_begins_with_one(tmp_path):
    async def scenario() -> None:
        link, stats = StandIn(), LocalStats()
        loop, gate = asyncio.get_running_loop(), TokenBucket(0.0, 0.0)
        bandwidth = Bandwidth(link, loop, NO_CAPS, tmp_path, gate)
        now_s = 0.0

        def look(plan_id: int | None) -> None:
            nonlocal now_s
            now_s += limits.RATE_WINDOW_S
            view = SimpleNamespace(plan_id=plan_id, plan=SimpleNamespace(op=1))
            exchange = SimpleNamespace(view=view) if plan_id is not None else None
            ids = frozenset({plan_id} - {None})
            first = SimpleNamespace(exchange=exchange)
            peer = SimpleNamespace(first=first, plan_ids=ids, stats=stats)
            bandwidth.look(peer, 0, now_s)

        for plan_id in (1, 2):
            for _ in range(10):
                look(plan_id)
                assert link.width == plan_id
            look(None)
            assert link.width == 2 * plan_id
        bandwidth.allow(Address(PEER, b"", "198.51.100.7", 1))
        assert link.width == 1
        for plan_id in (3, 4):  # once more, as a meeting has it dialled elsewhere
            for _ in range(10):
                look(plan_id)
            look(None)
            assert link.width == 2
            link.redial()
        bandwidth.close()

    asyncio.run(scenario())


class Clock:
    """A loop whose time the test moves; timers go off when it passes them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, Any]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, call: Any) -> Any:
        entry = (when_s, next(self._numbers), call)
        self._timers.append(entry)
        return SimpleNamespace(cancel=lambda: entry in self._timers and self._timers.remove(entry))

    def call_later(self, pause_s: float, call: Any) -> Any:
        return self.call_at(self.now_s + pause_s, call)

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self._timers and min(self._timers)[0] <= until_s:
            entry = min(self._timers)
            self._timers.remove(entry)
            self.now_s = max(self.now_s, entry[0])
            entry[2]()
        self.now_s = until_s


class Wire(StandIn):
    """A link that takes what it is given, on a system that tells what has arrived or does not."""

    tells = True

    def send(self, peer: bytes, frame: Frame) -> bool:
        self.stats = replace(self.stats, bytes_sent=self.stats.bytes_sent + len(frame.body))
        return True

    def acknowledged(self) -> dict[bytes, int] | None:
        return {PEER: self.stats.bytes_sent} if self.tells else None

    def gate_changed(self) -> None:
        """It reads nothing."""


def capped(directory: Path, caps: Caps) -> tuple[Bandwidth, Wire, Clock, TokenBucket]:
    wire, clock = Wire(), Clock()
    gate = TokenBucket(caps.down, 0.0)
    bandwidth = Bandwidth(wire, clock, caps, directory, gate)
    for number in range(400):
        bandwidth.send(PEER, Frame(FrameKind.PART, 1, plan_id=1, chunk=number, body=bytes(100_000)))
    return bandwidth, wire, clock, gate


def test_bulk_asks_for_a_way_for_as_long_as_it_waits(tmp_path):
    bandwidth, wire, clock, _ = capped(tmp_path, Caps(up=10_000))
    assert set(wire.warmed) == {PEER}, "what waits for a connection would wait for ever"
    clock.run(1.0)
    wire.warmed.clear()
    clock.run(60.0)
    assert PEER in wire.warmed, "a cap can hold back bulk for longer than an idle way is kept"
    bandwidth.close()


@pytest.mark.parametrize("tells", [True, False])
def test_a_cap_that_changes_holds_over_ten_seconds_before_and_after(tmp_path, tells):
    bandwidth, wire, clock, gate = capped(tmp_path, Caps(up=2_000_000))
    wire.tells = tells
    taken = 0

    def take() -> None:
        nonlocal taken
        while gate.is_capped and gate.is_open(clock.now_s):
            gate.spend(20_000)
            taken += 20_000
        clock.call_at(max(clock.now_s + 0.001, gate.opens_s), take)

    take()
    clock.run(1.0)
    for cap in (2_000_000, 500_000, 1_000_000):
        bandwidth.cap(Caps(up=cap, down=cap))
        before, taken_before = wire.stats.bytes_sent, taken
        clock.run(10.0)
        moved = wire.stats.bytes_sent - before
        assert moved <= 10.3 * cap and moved >= 9.7 * cap
        assert 9.7 * cap <= taken - taken_before <= 10.3 * cap
    bandwidth.cap(NO_CAPS)
    clock.run(1.0)
    assert wire.stats.bytes_sent == 400 * 100_000, "without a cap all goes"


@pytest.mark.parametrize("tells", [True, False])
def test_a_donor_is_told_when_a_piece_has_left(tmp_path, tells):
    bandwidth, wire, clock, _ = capped(tmp_path, NO_CAPS)
    wire.tells = tells
    stats = LocalStats()
    bandwidth.look(SimpleNamespace(plan_ids=frozenset({1}), stats=stats), 0, clock.now_s)
    assert stats.is_leaving is not None
    bandwidth.send(PEER, Frame(FrameKind.PIECE, 1, body=bytes(100_000)))
    assert stats.is_leaving(PEER)
    clock.run(2 * limits.OUT_LOOK_S)
    assert not stats.is_leaving(PEER)
    bandwidth.close()


def test_a_quota_that_is_set_while_bulk_waits_is_never_exceeded(tmp_path):
    bandwidth, wire, clock, gate = capped(tmp_path, Caps(up=2_000_000))
    stats = LocalStats()
    peer = SimpleNamespace(plan_ids=frozenset({1}), stats=stats)
    bandwidth.cap(Caps(up=2_000_000, daily=12_000_000))
    with pytest.raises(UserError, match="SWT-E405"):
        while clock.now_s < 60.0:
            clock.run(0.05)
            bandwidth.look(peer, wire.stats.bytes_sent, clock.now_s)
            bandwidth.check_allowance(is_exchanging=True)
    clock.run(60.0)
    assert 9_000_000 <= wire.stats.bytes_sent <= 12_000_000
    assert not gate.is_open(clock.now_s) or gate.is_capped
