"""One pair op at the coordinator: partners publish, hold what the other gave, decisions fall."""

from collections.abc import Sequence
from typing import Any

from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger.pairing import order_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Plan
from tests.transport.coordinator.ops.gather_table import GatherTable, gather_plan
from tests.transport.rig import A, B, C, D


def pair_plan(
    peers: Sequence[PeerId] = (A, B, C, D), *, tag: int | None = None, **changes: Any
) -> Plan:
    """Op 1 with A and B, C and D partners; with `tag` they stand as that run draws them."""
    if tag is not None:
        peers = order_of(tag, changes.get("op", 1), (), peers)
    changes = {"kind": PAIR, "min_contributors": 2, **changes}
    return gather_plan(tuple(peers), **changes)


class PairTable(GatherTable):
    """One pair op with peers that are alive and report."""

    def cross(self, first: PeerId, second: PeerId) -> None:
        """Both hold the other's half."""
        self.have(first, second)
        self.have(second, first)


def pair_table(*peers: PeerId, **changes: Any) -> PairTable:
    return PairTable(pair_plan(peers or (A, B, C, D), **changes))
