"""Length and direction of contributions: for people alone, never decided upon.

A flipped sign, noise in a difference's place and a peer that gives next to nothing all come through
checks of bytes. Owners have all parts of their slice and its result, so now and then, when it is
published, an owner looks at one chunk: which one follows from what came, so nobody knows it before
it has given all. It tells the squared norm of everybody's chunk and its cosine with what the
*others* gave, worked out of the sum: the whole sum would point half towards a flipped part itself.

An owner may lie. So each one's word on a contributor is its median over what it said lately, a norm
counts relative to the median of those in the same word, nobody's word on itself counts, and people
are shown the median over owners, which one of them cannot move far. Pure, volatile and bounded.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from swarmtrain_transport import limits
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Gauged

_NORM_MAX = 1e300
"""Told for a norm that overflows: who gives such values shall not hide anybody's numbers."""

_LENGTH_MAX = 1e6
"""Longer by the median than this is shown as this: a median may be next to nothing."""

_FAR_LENGTH = 3.0
"""A contribution longer than this, by the median's, goes apart; and one that points away."""

_APART_OWNERS, _APART_WORDS = 2, 3
"""Owners that must have said so, each of so many rounds, before anybody is told."""

Numbers = tuple[float, float]
"""Squared norm or relative length, then a cosine or an inner product."""


def likenesses(
    rows: Sequence[Numbers], weights: Sequence[int], *, is_mean: bool
) -> tuple[Numbers, ...]:
    """Squared norm, and cosine with what the others gave, of each contribution.

    Args:
        rows: findings of `Arithmetic.gauges`: one per contribution, and last of the result.
        weights: weights of the contributions.
        is_mean: True if the result is their weighted mean; else the cosine is with the result.
    """
    *given, (square, _) = rows
    total = sum(weights)
    found = []
    for (norm, product), weight in zip(given, weights, strict=True):
        if not math.isfinite(norm):
            found.append((_NORM_MAX, 0.0))
            continue
        rest, rest_square = product, square
        if is_mean:  # times (total - weight), which no cosine notices
            rest = total * product - weight * norm
            rest_square = total * (total * square - 2 * weight * product) + weight * weight * norm
        length = math.sqrt(max(0.0, norm * rest_square))
        is_known = 0.0 < length < math.inf and math.isfinite(rest)
        cosine = max(-1.0, min(1.0, rest / length)) if is_known else 0.0
        found.append((norm, cosine))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Likeness:
    """Measurements of one contributor, as people are shown them.

    Attributes:
        length: norm by that of the median contributor.
        cosine: cosine with the others' contributions; near -1 for a flipped sign.
        owners: number of owners that said so.
    """

    length: float
    cosine: float
    owners: int


class Gauges:
    """Recent measurements of contributors, as owners have reported them."""

    def __init__(self) -> None:
        self._words: dict[PeerId, dict[PeerId, deque[tuple[int, Numbers]]]] = {}
        self._apart: set[PeerId] = set()

    def gone_apart(self) -> dict[PeerId, str]:
        """Say of whom, since this was asked last, contributions have gone apart from the others',
        and how."""
        now = {peer: words for peer in self._words if (words := self._apart_words(peer))}
        new = {peer: words for peer, words in now.items() if peer not in self._apart}
        self._apart = set(now)
        return new

    def _apart_words(self, peer: PeerId) -> str:
        told, said = self.of(peer), self._words[peer].values()
        if told is None or sum(len(one) >= _APART_WORDS for one in said) < _APART_OWNERS:
            return ""
        words = []
        if told.length > _FAR_LENGTH:
            words.append(f"are {told.length:.1f} times as long as the median's")
        if told.cosine < 0:
            words.append(f"point away from what the others give (cosine {told.cosine:.2f})")
        return f"its contributions {' and '.join(words)}" if words else ""

    def hear(self, owner: PeerId, told: Gauged | None, ledger: GroupView) -> None:
        """An owner's word on the contributors of one op; what cannot be one is dropped."""
        view = None if told is None else ledger.commits.get(told.op, ledger.op)
        if told is None or view is None or view.plan_id != told.plan_id or view.frozen is None:
            return
        is_slice = 0 <= told.slice_index < len(view.owners)
        if not is_slice or view.owners[told.slice_index] != owner:
            return
        seen = {peer: pair for peer, pair in told.seen.items() if peer in view.frozen}
        if len(seen) < 2 or not all(_is_one(norm, cosine) for norm, cosine in seen.values()):
            return
        middle = median(math.sqrt(norm) for norm, _ in seen.values())
        for peer, (norm, cosine) in seen.items():
            if peer != owner:
                length = min(math.sqrt(norm) / middle, _LENGTH_MAX) if middle else 1.0
                self._note(peer, owner, view.plan.op, (length, cosine))
        self._forget(view.plan.op)

    def of(self, peer: PeerId) -> Likeness | None:
        """Return the numbers that people are shown, None if no owner has reported any lately."""
        said = self._words.get(peer)
        if not said:
            return None
        columns = [
            [median(numbers[place] for _, numbers in words) for words in said.values()]
            for place in (0, 1)
        ]
        return Likeness(round(median(columns[0]), 3), round(median(columns[1]), 3), len(said))

    def _note(self, peer: PeerId, owner: PeerId, op: int, numbers: Numbers) -> None:
        said = self._words.setdefault(peer, {})
        words = said.setdefault(owner, deque(maxlen=limits.GAUGE_WORDS))
        if words and words[-1][0] > op:
            words.clear()  # a REWIND has cancelled what they are of
        if not words or words[-1][0] < op:
            words.append((op, numbers))

    def _forget(self, op: int) -> None:
        oldest = op - limits.GAUGE_ROUNDS
        for peer, said in list(self._words.items()):
            for owner in [one for one, words in said.items() if words[-1][0] < oldest]:
                del said[owner]
            if not said:
                del self._words[peer]


def _is_one(norm: float, cosine: float) -> bool:
    return 0.0 <= norm < math.inf and -1.0 <= cosine <= 1.0
