"""What this peer's link carries: read from TCP while exchanges run, told by PROGRESS and HELLO.

The arithmetic is `swarmtrain_transport.flow`'s; here the real link is asked.
"""

import math

from swarmtrain_transport import limits
from swarmtrain_transport.flow import LinkRates
from swarmtrain_transport.participant import Participant
from swarmtrain_transport.zmq_link import ZmqLink


class Bandwidth:
    """Keeps the rates in a participant's stats up to date.

    Args:
        link: the data lane.
    """

    def __init__(self, link: ZmqLink) -> None:
        self._link = link
        self._rates = LinkRates()
        self._read_s = -math.inf

    def look(self, participant: Participant, now_s: float) -> None:
        """Called at every event; reads the counters as often as a window of rates asks for."""
        if now_s < self._read_s + limits.RATE_WINDOW_S / 2:
            return
        self._read_s = now_s
        moved = self._link.moved()
        if moved is not None:
            exchange = participant.exchange
            op = exchange.view.plan.op if exchange is not None else None
            self._rates.counted(moved.up, moved.down, op, now_s)
        participant.stats.up_bytes_per_s = self._rates.up_bytes_per_s
        participant.stats.down_bytes_per_s = self._rates.down_bytes_per_s
