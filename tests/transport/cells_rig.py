"""Plans in cells for tests of the pure machines."""

from collections.abc import Sequence
from typing import Any

import msgspec

from swarmtrain_transport.ledger.cells import Cells
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Plan, SliceSpec
from tests.transport.rig import Chain, plan_body

WIDTH = 8


def peers_of(count: int) -> list[PeerId]:
    return [number.to_bytes(2, "big") * 16 for number in range(1, count + 1)]


def in_cells(plan: Plan, cells: int) -> Plan:
    """The same plan in so many cells, with a range for each rank that all of them have."""
    dealt = Cells.in_plan(msgspec.structs.replace(plan, cells=cells))
    near = [[m.peer for m in plan.members if dealt.cell_of(m.peer) == c] for c in range(cells)]
    owners = [peer for rank in zip(*near, strict=False) for peer in rank]
    slices = (SliceSpec(i * WIDTH, (i + 1) * WIDTH, peer) for i, peer in enumerate(owners))
    return msgspec.structs.replace(plan, cells=cells, slices=tuple(slices))


def plan_in_cells(peers: Sequence[PeerId], cells: int = 2, **changes: Any) -> Plan:
    return in_cells(plan_body(peers, **changes), cells)


def next_in_cells(chain: Chain, peers: Sequence[PeerId], cells: int = 2, **changes: Any) -> Plan:
    """The next legal PLAN of a chain."""
    return in_cells(chain.plan(peers, **changes), cells)
