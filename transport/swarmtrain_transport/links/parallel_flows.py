"""Number of TCP flows for bulk to a peer: more than one where one cannot fill the way.

One flow carries its congestion window per round trip. Where the round trip is long and packets are
lost now and then, that window stays far below what the link could take: a flow with bytes waiting,
and no queue on the way, is itself the limit. A queue shows in the round trip, which is then longer
than the shortest one. A way that was found so at a third of the looks of an exchange, as others of
the same uplink make a queue now and then, gets twice as many flows for the next. There are no more
where busy flows carry half as much each as before. Losses fall as they fall, so three exchanges on
either side are compared before that is said.

Pure: TCP is asked by others. Which flow a frame takes makes no difference to anybody: parts are
fenced by (plan, slice, attempt, chunk), and an order between chunks is never relied upon.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId


@dataclass(frozen=True, slots=True)
class Path:
    """TCP's knowledge of the way to the other end of one connection.

    Attributes:
        acked: bytes acknowledged since it was made.
        rtt_s: smoothed round trip.
        least_rtt_s: the shortest one.
        unsent: bytes that wait in the system because no more may be under way.
        yields_to_loss: True if its congestion control takes a loss for a full link. One that goes
            by the measured rate, as bbr does, keeps bytes waiting and the way without a queue on
            purpose, and several of them are slower than one.
    """

    acked: int
    rtt_s: float
    least_rtt_s: float
    unsent: int
    yields_to_loss: bool = True

    @property
    def is_the_limit(self) -> bool:
        """True if the flow could carry more, were it allowed to have more under way."""
        if not self.yields_to_loss:
            return False
        has_no_queue = self.rtt_s <= self.least_rtt_s * limits.FLOW_QUEUED + limits.FLOW_JITTER_S
        return self.unsent > 0 and has_no_queue and self.least_rtt_s >= limits.FLOW_RTT_MIN_S


@dataclass(slots=True)
class _Way:
    width: int = 1
    acked: list[int] = field(default_factory=list)  # of each connection, at the newest look
    # In this exchange: connections that there were at most, bytes that busy ones moved, and the
    # seconds of each of them together.
    flows: int = 0
    looks: int = 0
    limited: int = 0
    moved_now: int = 0
    busy_now_s: float = 0.0
    # With so many flows, in all exchanges in which they were the limit.
    moved: int = 0
    busy_s: float = 0.0
    tries: int = 0
    narrower: float = 0.0  # rate that half as many flows would have had, all busy
    narrower_tries: int = 0


class ParallelFlows:
    """Decides how many flows each peer should have, from what TCP says while an op is under way."""

    def __init__(self) -> None:
        self._ways: defaultdict[PeerId, _Way] = defaultdict(_Way)
        self._looked_s: float | None = None

    def looked(self, paths: Mapping[PeerId, Sequence[Path]], now_s: float) -> None:
        """TCP was asked in the middle of an op.

        Args:
            paths: the connections to each peer.
            now_s: the time.
        """
        passed_s = now_s - self._looked_s if self._looked_s is not None else 0.0
        self._looked_s = now_s
        for peer, found in paths.items():
            way = self._ways[peer]
            before, way.acked = way.acked, [path.acked for path in found]
            way.flows = max(way.flows, len(found))
            busy = [index for index, path in enumerate(found) if path.unsent]
            # Where one was made or has broken, which is which is not known.
            if busy and passed_s > 0 and len(before) == len(found):
                way.looks += 1
                way.limited += all(found[index].is_the_limit for index in busy)
                way.busy_now_s += passed_s * len(busy)
                for index in busy:
                    way.moved_now += max(0, way.acked[index] - before[index])

    def ended(self) -> dict[PeerId, int]:
        """An op has ended: who gets how many flows from now on, where that is more than before."""
        self._looked_s = None
        wider = {}
        for peer, way in self._ways.items():
            if way.looks >= limits.FLOW_LOOKS_MIN and self._may_grow(way):
                way.width = wider[peer] = 2 * way.width
            way.flows = way.looks = way.limited = way.moved_now = 0
            way.busy_now_s = 0.0
        return wider

    def forget(self, peer: PeerId) -> None:
        """This peer is gone, or has a new address: it begins with one flow again."""
        self._ways.pop(peer, None)

    def _may_grow(self, way: _Way) -> bool:
        """True if the number of flows is the limit, and the last ones were of use."""
        if way.limited < limits.FLOW_LIMITED * way.looks or way.width >= limits.FLOWS_MAX:
            return False
        if way.flows < way.width:  # a way that two have met by stays one connection
            return False
        way.moved += way.moved_now
        way.busy_s += way.busy_now_s
        way.tries += 1
        rate = way.width * way.moved / way.busy_s
        is_known = way.tries >= limits.FLOW_TRIES
        if rate < limits.FLOW_GAIN * way.narrower and (
            not is_known or way.narrower_tries >= limits.FLOW_TRIES
        ):
            return False
        way.narrower, way.narrower_tries = rate, way.tries
        way.moved = way.tries = 0
        way.busy_s = 0.0
        return True
