"""A peer's side of one op, of whatever kind."""

from swarmtrain_transport.ahead import Ahead
from swarmtrain_transport.arithmetic import Arithmetic, Contribution
from swarmtrain_transport.blobs import Blobs
from swarmtrain_transport.centre import Centre
from swarmtrain_transport.exchange import Exchange
from swarmtrain_transport.fetch import Fetcher
from swarmtrain_transport.fold import OpView
from swarmtrain_transport.gather_exchange import GatherExchange
from swarmtrain_transport.kinds import GATHER, PAIR
from swarmtrain_transport.ledger import Sign
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.local import LocalStats
from swarmtrain_transport.pair_exchange import PairExchange

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
    ahead: Ahead | None = None,
    centre_view: OpView | None = None,
) -> AnyExchange:
    """One peer in the op that `view` tells of; the arguments are those of `Exchange`, of a pair op
    what has come before it, and the view of the op whose result the plan's rule begins from."""
    given = (me, view, run_tag, arithmetic, contribution, blobs, fetcher, now_s, sign)
    if view.plan.kind == PAIR:
        return PairExchange(*given, stats.ignored, ahead)
    if view.plan.kind == GATHER:
        return GatherExchange(*given, stats.ignored)
    centre = None if centre_view is None else Centre(centre_view, blobs)
    return Exchange(*given, stats.ignored, stats, centre)
