"""Between exchanges a peer that one TCP flow cannot reach fast enough gets more of them."""

import asyncio
from types import SimpleNamespace

from swarmtrain.config.caps import NO_CAPS
from swarmtrain.peer.network.bandwidth import Bandwidth
from swarmtrain_transport import limits
from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.links.link import Address, LinkStats
from swarmtrain_transport.links.parallel_flows import Path

PEER = b"p" * 32


class StandIn:
    """A link with one long way, whose flows carry so much per look and could carry more."""

    def __init__(self) -> None:
        self.stats = LinkStats()
        self.width = 1
        self.acked = 0

    def paths(self) -> dict[bytes, list[Path]]:
        self.acked += 10_000
        return {PEER: [Path(self.acked, 0.2, 0.2, 1)] * self.width}

    def widen(self, peer: bytes, width: int) -> None:
        assert peer == PEER
        self.width = width

    def moved(self) -> None:
        """This system does not tell."""

    acknowledged = moved

    def allow(self, address: Address) -> None:
        """As the real one, which begins with one connection."""
        self.width = 1


def test_flows_are_opened_between_exchanges_and_a_new_address_begins_with_one(tmp_path):
    async def scenario() -> None:
        link, stats = StandIn(), LocalStats()
        bandwidth = Bandwidth(link, asyncio.get_running_loop(), NO_CAPS, tmp_path)
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
        bandwidth.close()

    asyncio.run(scenario())
