"""Budget of one member: how much it may ask of the coordinator, over all its connections.

Every rate is several times what an honest peer needs in a run of 64 (counted in the simulator), so
that nobody who keeps to the protocol notices. A member that goes beyond is heard no faster than
that. A member that makes the coordinator wait for too long is cut, named, and let in again after a
pause that doubles. Pure: the shell waits and cuts.
"""

from collections import OrderedDict
from dataclasses import dataclass

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.links.outbox import TokenBucket


@dataclass(frozen=True, slots=True)
class Rate:
    """Allowance per second for long, and at once after a quiet time."""

    per_s: float
    at_once: float


PLENTY = Rate(400, 4000)
"""Messages sent many times per op: a member of 64 says GOT 65 times, HAVE 64 times and PROGRESS
seven times. That is six ops per second for long, sixty at once."""

SOME = Rate(100, 1000)
"""Messages sent once per op: enough for the fastest runs on one machine, and to catch up."""

FEW = Rate(10, 100)
"""Leases, and WebSocket's own pings and pongs: an honest peer says one in some seconds."""

HELLOS = Rate(0.5, 32)
HELLO_WAIT_MAX_S = 5.0
"""Each makes the coordinator look up and send what the peer lacks. A line that breaks and comes
back every half second is let in once in two; whoever then knocks twice at once is sent away."""

BYTES_IN = Rate(4 << 20, 64 << 20)
"""All messages together, by what they cost to decode (`messages.weigh`) on the one loop: the
largest takes it 0.2 s, and then counts for one second."""

WORDS = Rate(64 << 10, 1 << 20)
"""Bytes of a kind of message that has a number or a hash to say: a hundred a second."""

GOTS = Rate(1 << 20, 16 << 20)
"""Bytes of GOT, of REPORTs and of leases: GOT of 64 contributors has 4.5 KiB, 65 times an op."""

HASHES = Rate(2 << 20, 16 << 20)
"""Bytes of SLICE_DONE or HAVE, a hash and a flag for each chunk: sixty thousand chunks a second,
16 GB of them as int8, and half a million at once."""

BYTES_OUT = Rate(8 << 20, 128 << 20)
"""Data that a member makes us send: the ledger, from the record that its HELLO names, and pieces of
text. It is more than any model here reads."""

PAUSE_MAX_S = 1.0
"""A member is looked at again after so long, however deep its debt: it may have gone."""

PATIENCE_S = 5.0
"""Pauses that a member may cause in all before it is cut. Less than a WebSocket heartbeat,
whose answer waits behind what is not read yet: a cut has its true reason."""

FORGIVEN_PER_S = 0.05
"""Seconds of that which a second without pauses gives back."""

BLOCKED_FIRST_S = 15.0
BLOCKED_MAX_S = 3600.0
"""Times for which a key is not let in after a cut: doubling, and halved with every hour since."""

KEYS_MAX = 4 * limits.RUN_PEERS_MAX
"""Members remembered: four generations of a full run. The longest quiet one is forgotten, so it
must not be one that is here: each of its messages would make a new budget."""

CONTROL_FRAME = "websocket ping"
"""A kind beside those of the messages."""

_RATES = {
    **dict.fromkeys(("got", "have", "progress"), PLENTY),
    **dict.fromkeys(("lease_request", "offer", "accuse", "places", "carrying", CONTROL_FRAME), FEW),
}
_SIZES = {
    **dict.fromkeys(("got", "lease_request", "pipeline_report", "progress"), GOTS),
    **dict.fromkeys(("slice_done", "have"), HASHES),
}
"""Rates of bytes by kind, WORDS for all others: what a kind has no need of is a flood, however few
messages it comes in. HISTORY that was asked for is not counted."""


class Budget:
    """One member's."""

    def __init__(self, now_s: float) -> None:
        self._kinds: dict[str, tuple[TokenBucket, TokenBucket]] = {}
        self._in = _bucket(BYTES_IN, now_s)
        self._out = _bucket(BYTES_OUT, now_s)
        self._hellos = _bucket(HELLOS, now_s)
        self._patience = _bucket(Rate(FORGIVEN_PER_S, PATIENCE_S), now_s)
        self._cuts = 0
        self._cut_s = self._blocked_s = now_s

    def knock(self, now_s: float) -> float:
        """Return how many seconds to wait before it is let in; above HELLO_WAIT_MAX_S it is sent
        away, and this try does not count."""
        if self._blocked_s > now_s:
            return self._blocked_s - now_s
        wait_s = max(self._wait(self._hellos, now_s), self._wait(self._out, now_s))
        if wait_s <= HELLO_WAIT_MAX_S:
            self._hellos.spend(1)
        return wait_s

    def hear(self, kind: str, cost: int, now_s: float) -> float:
        """A message came. How many seconds to wait before it is heard and the next one is read."""
        if kind not in self._kinds:
            rates = _RATES.get(kind, SOME), _SIZES.get(kind, WORDS)
            self._kinds[kind] = _bucket(rates[0], now_s), _bucket(rates[1], now_s)
        numbers, sizes = self._kinds[kind]
        wait_s = 0.0
        for bucket, count in ((numbers, 1), (sizes, cost), (self._in, cost)):
            wait_s = max(wait_s, self._wait(bucket, now_s))
            bucket.spend(count)
        wait_s = min(wait_s, PAUSE_MAX_S)
        if wait_s:
            self._patience.spend(wait_s)
        return wait_s

    def answer(self, num_bytes: int, now_s: float) -> float:
        """Count bytes to be sent because this member asks. Return the seconds to wait before that:
        a member that only reads much is slowed, and never cut."""
        wait_s = self._wait(self._out, now_s)
        self._out.spend(num_bytes)
        return min(wait_s, PAUSE_MAX_S)

    def is_spent(self, now_s: float) -> bool:
        """Return True if the member has made us wait for too long: it is to be cut."""
        return not self._patience.is_open(now_s)

    def cut(self, now_s: float) -> None:
        """Note that it was cut; its key is not let in for a while, and then has all its patience
        again."""
        hours = int((now_s - self._cut_s) / BLOCKED_MAX_S)
        self._cuts = max(0, self._cuts - hours) + 1
        self._cut_s = now_s
        self._blocked_s = now_s + min(BLOCKED_MAX_S, BLOCKED_FIRST_S * 2.0 ** (self._cuts - 1))
        self._patience = _bucket(Rate(FORGIVEN_PER_S, PATIENCE_S), now_s)

    @staticmethod
    def _wait(bucket: TokenBucket, now_s: float) -> float:
        """Seconds until something is left in it."""
        return 0.0 if bucket.is_open(now_s) else bucket.opens_s - now_s


class Budgets:
    """Budgets of all members; they outlive connections."""

    def __init__(self) -> None:
        self._of: OrderedDict[PeerId, Budget] = OrderedDict()

    def __len__(self) -> int:
        return len(self._of)

    def of(self, peer: PeerId, now_s: float) -> Budget:
        """The member's. Only for keys that were proved: whoever names another's must not spend."""
        if peer not in self._of:
            self._of[peer] = Budget(now_s)
        self._of.move_to_end(peer)
        if len(self._of) > KEYS_MAX:
            self._of.popitem(last=False)
        return self._of[peer]


def _bucket(rate: Rate, now_s: float) -> TokenBucket:
    return TokenBucket(rate.per_s, now_s, rate.at_once)
