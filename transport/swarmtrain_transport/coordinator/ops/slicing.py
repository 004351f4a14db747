"""Slicing of the next op: shares by measured rates, with a memory of the last op.

Rates wander by themselves, and every new cut moves values from owner to owner for nothing. So the
last cut stays as long as it is nearly as fast as the best one would be (hysteresis); and equal
slices are the ones to leave only for a clear gain, because a share answers to an error of its rate
with three times that error where four peers are equal (H.5's formula). A peer names its own rates,
so nobody is believed to be more than RATE_SPREAD times as fast as the middle of the swarm, and no
slice is larger than its owner says that it can retain (protocol.md, PLAN).

Where contributors reach each other by a relay alone cuts from slices for those alone whom all
others send to and hear directly, which need no relay, to slices for all are compared: few owners
carry more each, so a relay that is given a little may save more than it takes.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.roster import PeerLine
from swarmtrain_transport.links.link import PeerId

Detours = Mapping[tuple[PeerId, PeerId], float]
"""Pairs of sender and receiver without a direct way, and the bytes a second that a relay passes on
for each; 0 for a pair that no way leads from one to the other."""

DIRECT: Detours = {}

_STEPS = 8
"""Cuts that are compared from one without a relay to one for all."""


class Slicing:
    """Remembers the last cuts. Volatile: after a restart the first op is cut anew."""

    def __init__(self) -> None:
        self._cuts: dict[tuple[tuple[PeerId, ...], frozenset[PeerId]], list[float]] = {}
        self._step = 0

    def shares(
        self,
        contributors: Mapping[PeerId, PeerLine],
        value_bytes: float,
        *,
        equal: bool = False,
        unfit: AbstractSet[PeerId] = frozenset(),
        detours: Detours = DIRECT,
        least_owners: int = 1,
    ) -> list[float]:
        """Share of the vector per contributor, in the order of their keys; they add up to one.

        Args:
            contributors: lines of those who are ready.
            value_bytes: encoded bytes of the whole vector.
            equal: pay no heed to rates.
            unfit: contributors that get nothing; what would be theirs goes to the others.
            detours: pairs that send by a relay, or by no way.
            least_owners: owners that are left, at least, where detours are avoided.
        """
        peers = tuple(sorted(contributors))
        lines = [contributors[peer] for peer in peers]
        rates = believed([0.0 if equal else _rate(line) for line in lines])
        retained = [float(max(0, line.hello.retain_bytes)) for line in lines]
        before, self._cuts = self._cuts, {}

        def steady(owners: frozenset[PeerId]) -> list[float]:
            """Cut for these alone: as before, or equal, where another would be hardly faster."""
            may = [float(peer in owners) for peer in peers]
            room = [most * one for most, one in zip(retained, may, strict=True)]
            owned = [rate for rate, one in zip(rates, may, strict=True) if one]
            parts = iter(best_shares(owned, len(peers)))
            best = fitted([next(parts) if one else 0.0 for one in may], room, value_bytes)
            alike = fitted([one / sum(may) for one in may], room, value_bytes)
            last = before.get((peers, owners))
            kept = fitted(last, room, value_bytes) if last is not None else alike
            best_s = slowest_s(rates, best)
            if slowest_s(rates, alike) <= limits.EQUAL_GAIN * best_s:
                kept = alike
            elif slowest_s(rates, kept) > limits.RESLICE_GAIN * best_s:
                kept = best
            self._cuts[peers, owners] = kept
            return kept

        everybody = frozenset(peers)
        kept = steady(everybody)
        far = heeded(detours, everybody)
        lost = {peer for pair, rate in far.items() if rate <= 0 for peer in pair}
        if len(everybody - unfit - lost) >= least_owners:
            unfit = unfit | lost
        if unfit:
            fit = [float(peer not in unfit) for peer in peers]
            kept = [share * may for share, may in zip(kept, fit, strict=True)]
            total = sum(kept)
            kept = [part / (total or sum(fit)) for part in (kept if total else fit)]
            room = [most * may for most, may in zip(retained, fit, strict=True)]
            kept = fitted(kept, room, value_bytes)
        direct = everybody - unfit - {peer for pair in far for peer in pair}
        if not far or len(direct) < least_owners:
            return kept
        mixed = [_between(steady(direct), kept, step / _STEPS) for step in range(_STEPS + 1)]
        took_s = [max(slowest_s(rates, one), slowest_detour_s(peers, one, far)) for one in mixed]
        most_s = limits.RESLICE_GAIN * min(took_s)
        # A relay's rate is its own word, and whoever lends it has other use for it: so none where
        # that is hardly slower, and else as before.
        steps = (0, self._step, took_s.index(min(took_s)))
        self._step = next(step for step in steps if took_s[step] <= most_s)
        return mixed[self._step]


def _between(few: Sequence[float], many: Sequence[float], part: float) -> list[float]:
    """Shares so far on the way from the one cut to the other, exactly these at both ends."""
    return [one + part * (other - one) for one, other in zip(few, many, strict=True)]


def believed(rates: Sequence[float]) -> list[float]:
    """Rates with the unmeasured set to the median of the others and the boastful cut down."""
    known = [rate for rate in rates if rate > 0]
    if not known:
        return [0.0] * len(rates)
    middle = statistics.median(known)
    return [min(rate, limits.RATE_SPREAD * middle) if rate > 0 else middle for rate in rates]


def fitted(shares: Sequence[float], retained: Sequence[float], value_bytes: float) -> list[float]:
    """Shares cut to what owners can retain of all contributions; the rest goes to the others.

    If nobody has room for all of it the shares stay: what an owner cannot hold it spills.
    """
    fits = [room / (len(shares) * value_bytes) for room in retained]
    if sum(fits) < 1 or all(share <= most for share, most in zip(shares, fits, strict=True)):
        return list(shares)
    cut = list(shares)
    for _ in shares:
        over = sum(max(0.0, share - most) for share, most in zip(cut, fits, strict=True))
        cut = [min(share, most) for share, most in zip(cut, fits, strict=True)]
        room = [most - share for share, most in zip(cut, fits, strict=True)]
        if over <= 0 or sum(room) <= 0:
            break
        cut = [share + over * left / sum(room) for share, left in zip(cut, room, strict=True)]
    return [share / sum(cut) for share in cut]


def _rate(line: PeerLine) -> float:
    """The narrower direction, measured if PROGRESS tells it, else as HELLO says."""
    told = line.progress
    up = (told.up_bytes_per_s if told else 0) or line.hello.up_bytes_per_s
    down = (told.down_bytes_per_s if told else 0) or line.hello.down_bytes_per_s
    return float(max(0, min(up, down)))


def best_shares(rates: Sequence[float], num_peers: int = 0) -> list[float]:
    """Share of the vector per owner, from min(up, down) rates in any one unit.

    Args:
        rates: rates of the owners.
        num_peers: number of contributors, 0 if all own something.

    In a direct exchange of V bytes among N peers, a peer that owns the share w sends and receives
    V (1 + (N - 2) w) bytes each way (reference: direct exchange, H.5). Time is shortest when
    everybody ends together, so w_i = max(0, (t c_i / V - 1) / (N - 2)) with c_i = min(up, down) and
    t such that the shares add up to one.

    Rates that are all zero (not measured yet) give equal shares; with two peers the formula has
    no solution (a share does not change the load), so shares follow the rates. Peers name their
    own rates: one below zero counts as zero.
    """
    rates = [max(0.0, rate) for rate in rates]
    count = max(len(rates), num_peers)
    top = max(rates, default=0.0)
    if not rates or top <= 0:
        return [1 / len(rates)] * len(rates) if rates else []
    if count <= 2:
        return [rate / sum(rates) for rate in rates]
    # In units of the fastest: the smallest rates of all would overflow otherwise.
    rates = [rate / top for rate in rates]
    low, high = 0.0, float(count * count)
    for _ in range(200):
        time = (low + high) / 2
        total = sum(max(0.0, (time * rate - 1) / (count - 2)) for rate in rates)
        low, high = (time, high) if total < 1 else (low, time)
    raw = [max(0.0, (high * rate - 1) / (count - 2)) for rate in rates]
    return [share / sum(raw) for share in raw]


def slowest_s(rates: Sequence[float], shares: Sequence[float]) -> float:
    """Seconds per unit of the vector's bytes until the last peer has sent and received its load;
    0 if no rate is known."""
    count = len(rates)
    loads = (
        (1 + max(0, count - 2) * share, rate) for rate, share in zip(rates, shares, strict=True)
    )
    return max((load / rate for load, rate in loads if rate > 0), default=0.0)


def heeded(detours: Detours, peers: frozenset[PeerId]) -> Detours:
    """Detours among these peers, without those who have no way to or from most of the others and
    are half of all at most: theirs is the broken line, or they lie, and else one peer could choose
    who owns slices."""
    far = {pair: rate for pair, rate in detours.items() if peers.issuperset(pair)}
    lost = {frozenset(pair) for pair, rate in far.items() if rate <= 0}
    words = Counter(peer for pair in lost for peer in pair)
    odd = {peer for peer, count in words.items() if 2 * count > len(peers) - 1}
    if 2 * len(odd) > len(peers):
        return far
    return {pair: rate for pair, rate in far.items() if rate > 0 or odd.isdisjoint(pair)}


def slowest_detour_s(peers: Sequence[PeerId], shares: Sequence[float], detours: Detours) -> float:
    """Seconds per unit of the vector's bytes until the last relay has passed on parts of the
    receiver's slice, and the result of the sender's."""
    share = dict(zip(peers, shares, strict=True))
    return max(
        ((share[one] + share[other]) / rate for (one, other), rate in detours.items() if rate > 0),
        default=0.0,
    )


def cut(num_values: int, block: int, weights: Sequence[float]) -> list[tuple[int, int]]:
    """Contiguous [start, stop) ranges on block multiples, in order, covering all values.

    `num_values` is a multiple of `block`. A share too small for one block gives an empty range.
    """
    num_blocks = num_values // block
    bounds = [0]
    passed = 0.0
    for weight in weights:
        passed += weight
        bounds.append(round(passed * num_blocks))
    bounds[-1] = num_blocks
    return [(low * block, high * block) for low, high in pairwise(bounds)]
