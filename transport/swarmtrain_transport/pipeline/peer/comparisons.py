"""Comparisons of a source: what two routes make of the same text.

Now and then a source repeats the text of its micro-batch before, and sends the second one, its
*twin*, to another peer of the next stage. A twin is an ordinary micro-batch with a name of its own,
so nobody is told that it is one; a peer that both come to can see it. The two gradients that come
back are alike if all were honest: weights of a stage's peers differ within a round, and so do
stochastic roundings, but not much.

A difference can be anybody's on either route. A source knows two peers of each: the first and the
end. A peer that is on one route only, time and again, where there is a difference, and not where
there is none, is *suspect*: it gets the least share of this source's routes, until others are as
much at odds or the findings are old. It costs nobody anything else: it is one source's own finding.

Pure. Values are the shell's: it tells how alike two gradients were.
"""

import hmac
import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.peer.held import Held
from swarmtrain_transport.pipeline.peer.requests import Twin
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.wire.orders import Compared


class Likeness(NamedTuple):
    """Likeness of two gradients of the same text.

    Attributes:
        cosine: cosine of the angle between them.
        ratio: ratio of the larger norm to the smaller one; infinity where one is zero.
    """

    cosine: float
    ratio: float

    @property
    def is_odd(self) -> bool:
        """True if no two honest routes differ so."""
        is_alike = self.cosine >= limits.TWINS_COSINE and self.ratio <= limits.TWINS_RATIO
        return not is_alike  # NaN is odd


@dataclass(frozen=True, slots=True)
class _Finding:
    """One comparison.

    Attributes:
        round: round of the micro-batches.
        only_one: peers that were on one of the routes, as far as it is known.
        is_odd: the gradients were at odds.
    """

    round: int
    only_one: frozenset[PeerId]
    is_odd: bool


class Comparisons:
    """Findings of one source.

    Args:
        rules: rules of the run.
        seed: nobody else knows it.
    """

    def __init__(self, rules: Rules, seed: bytes) -> None:
        self._every = rules.repeat_every
        self._seed = seed
        self._drawn: Held | None = None
        self._findings: deque[_Finding] = deque(maxlen=limits.TWINS_KEPT)

    def begin_round(self, round: int) -> None:
        """A round begins: what was found long ago says nothing of today."""
        self._drawn = None
        while self._findings and self._findings[0].round < round - limits.TWINS_ROUNDS:
            self._findings.popleft()

    def made(self, held: Held) -> None:
        """One of our own is made; it is the twin of the one before it, if that one was drawn."""
        before, self._drawn = self._drawn, None
        if before is not None:
            held.twin, before.twin = before, held
        elif self._every and self._number(b"drawn", held) % self._every == 0:
            self._drawn = held

    def twin_of(self, held: Held) -> Twin | None:
        """The micro-batch of the same text, for the shell; None if there is none."""
        if held.twin is None:
            return None
        first = min(held, held.twin, key=lambda one: one.micro_batch.number)
        return Twin(held.twin.micro_batch, self._number(b"sketch", first))

    def found(self, only_one: frozenset[PeerId], round: int, likeness: Likeness) -> None:
        """Two gradients were held against each other.

        Args:
            only_one: peers that were on one of the two routes, as far as it is known.
            round: round of both.
            likeness: likeness of the gradients.
        """
        if only_one:
            self._findings.append(_Finding(round, only_one, likeness.is_odd))

    @property
    def suspect(self) -> PeerId | None:
        """The peer to which the differences point; None if to nobody, or to several alike."""
        odd, seen = Counter[PeerId](), Counter[PeerId]()
        for finding in self._findings:
            seen.update(finding.only_one)
            odd.update(finding.only_one if finding.is_odd else ())
        num, num_odd = len(self._findings), sum(finding.is_odd for finding in self._findings)

        def excess(peer: PeerId) -> float:
            """Share of differences with the peer on one route alone, less that without it; in
            standard errors of such a difference where it is chance."""
            others = num - seen[peer]
            if not others or num == num_odd:
                return 0.0
            apart = odd[peer] / seen[peer] - (num_odd - odd[peer]) / others
            pooled = num_odd / num
            return apart / math.sqrt(pooled * (1 - pooled) * (1 / seen[peer] + 1 / others))

        ranked = sorted(odd, key=excess, reverse=True)
        if not ranked or excess(ranked[0]) < limits.TWINS_ERRORS:
            return None
        first = ranked[0]
        is_alone = len(ranked) == 1 or excess(ranked[1]) < excess(first)
        return first if is_alone and odd[first] >= limits.TWINS_ODD else None

    def told(self, round: int) -> Compared:
        """The report of a round."""
        mine = [finding for finding in self._findings if finding.round == round]
        return Compared(len(mine), sum(one.is_odd for one in mine), self.suspect)

    def _number(self, use: bytes, held: Held) -> int:
        name = held.micro_batch
        named = use + name.boot + name.number.to_bytes(8, "big")
        return int.from_bytes(hmac.digest(self._seed, named, "sha256")[:8], "big")
