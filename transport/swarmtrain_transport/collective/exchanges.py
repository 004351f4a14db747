"""A peer's side of one op, of whatever kind."""

from collections.abc import Mapping

from swarmtrain_transport.arithmetic import Arithmetic, Contribution
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.ahead import Ahead
from swarmtrain_transport.collective.centre import Centre
from swarmtrain_transport.collective.exchange import Exchange
from swarmtrain_transport.collective.gather_exchange import GatherExchange
from swarmtrain_transport.collective.local import LocalStats
from swarmtrain_transport.collective.pair_exchange import PairExchange
from swarmtrain_transport.kinds import GATHER, PAIR
from swarmtrain_transport.ledger.fold import OpView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Sign

AnyExchange = Exchange | GatherExchange


def exchange_of(
    me: PeerId,
    view: OpView,
    run_tag: int,
    arithmetic: Arithmetic,
    contribution: Contribution | None,
    blobs: Blobs,
    fetcher: Fetcher,
    now_s: float,
    sign: Sign,
    stats: LocalStats,
    commits: Mapping[int, OpView],
    ahead: Ahead | None = None,
) -> AnyExchange:
    """One peer in the op that `view` tells of; the arguments are those of `Exchange`, the ops whose
    results the plan's rule may begin from, and of a pair op what has come before it."""
    given = (me, view, run_tag, arithmetic, contribution, blobs, fetcher, now_s, sign)
    if view.plan.kind == PAIR:
        return PairExchange(*given, stats.ignored, ahead)
    if view.plan.kind == GATHER:
        return GatherExchange(*given, stats.ignored)
    begins_from = commits.get(view.plan.centre)
    centre = None if begins_from is None else Centre(begins_from, blobs)
    return Exchange(*given, stats.ignored, stats, centre)
