"""HASHES of an op: to whom they go, and when.

With one cell everybody whom it concerns is told of a result as soon as it is published. In cells
that would be a message per slice and member, a quarter of a million for 512 peers. There most
members have a result before they could be told of it, and say what they have (T3): only those are
told that need it, and of all that is due at once.
"""

import math
from collections.abc import Collection, Iterator

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ops.reports import Reports
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Hashes, joined


def published(reports: Reports, news: Hashes, now_s: float) -> None:
    """Take what an owner has published of an op."""
    view = reports.view
    if view.cells.count == 1:
        wait_s = 0.0
    elif not news.attempt and news.set_id == view.all_planned_id:
        wait_s = limits.CELL_HASHES_S
    else:  # it is not pushed: everybody must ask for it
        wait_s = limits.CELL_SAY_S
    reports.untold.append((now_s + wait_s, news))


def due_s(reports: Reports) -> float:
    """Return the time at which somebody is to be told; infinity if nobody is."""
    return min((at_s for at_s, _ in reports.untold), default=math.inf)


def take_due(
    reports: Reports, peers: Collection[PeerId], now_s: float
) -> Iterator[tuple[PeerId, Hashes]]:
    """Take what is due, and what will be soon, for those of some peers that need it."""
    if now_s < due_s(reports):
        return
    soon_s = now_s + limits.CELL_SAY_S
    due = [news for at_s, news in reports.untold if at_s <= soon_s and reports.stands(news)]
    reports.untold = [(at_s, news) for at_s, news in reports.untold if at_s > soon_s]
    is_in_cells = reports.view.cells.count > 1
    for peer in peers:
        told = [news for news in due if reports.concerns(peer, news)]
        if is_in_cells:
            told = [news for news in told if not reports.holds(peer, news)]
        for batch in in_batches(told):
            yield peer, batch


def in_batches(told: Collection[Hashes]) -> Iterator[Hashes]:
    """Join what is told of slices of one op to as many messages as it needs."""
    batch, count = list[Hashes](), 0
    for news in told:
        count += len(news.chunk_hashes)
        if batch and count > limits.CELL_HASHES_AT_ONCE:
            yield joined(batch)
            batch, count = [], len(news.chunk_hashes)
        batch.append(news)
    if batch:
        yield joined(batch)
