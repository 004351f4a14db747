"""Samples that the whole swarm has trained on: the measure of a schedule by tokens.

PLAN repeats what contributors said in READY, COMMIT names those who are in the result, so the sum
follows from the ledger alone: a newcomer and a restarted peer know it as the others do, and a
REWIND takes back what it cancels. Where ops go by pairs everybody planned counts: a peer in no pair
makes its step too. Only runs whose schedule asks for it tell samples. Pure.

References:
    Scaling laws for DiLoCo, arXiv 2503.09799 (a run is as long as its tokens, not its steps).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Commit, Plan


def believed(samples: Sequence[int]) -> tuple[int, ...]:
    """Return the sample counts that are believed, per contributor, for weights and the schedule.

    A boast would take the mean, and bring the run's end nearer for everybody, so each counts up to
    some times the low median; of two that is some times the other. Honest work beyond it counts
    less. A negative count is none.
    """
    told = [max(0, count) for count in samples]
    most = limits.SAMPLES_SPREAD * statistics.median_low(told) if told else 0
    return tuple(min(count, most) for count in told)


POLYNOMIAL, HINGE = "polynomial", "hinge"
STALENESS = ("", POLYNOMIAL, HINGE)
"""Rules by which work counts less that began s results ago: 1 / sqrt(1 + s) (FedBuff, arXiv
2106.06639), and 1 up to HINGE_FROM, then 1 / (1 + (s - HINGE_FROM) / 2) (FedAsync, arXiv
1903.03934)."""

HINGE_FROM = 4


def aged(count: int, stale: int, rule: str) -> int:
    """Return 256 x a sample count, less by the rule for work that began so many results ago. Made
    of integers alone, so everybody has the same."""
    if rule == POLYNOMIAL:
        return math.isqrt((count << 16) * count // (1 + stale))
    late = max(0, stale - HINGE_FROM) if rule == HINGE else 0
    return (count << 9) // (2 + late)


def weights_of(
    samples: Mapping[PeerId, int], stale: Sequence[int] = (), rule: str = ""
) -> dict[PeerId, int]:
    """Integer weights 1..255 in proportion to samples, as far as these are believed (rule 2), and
    less for work that is older by the rule."""
    counts = believed(list(samples.values()))
    if stale:
        counts = tuple(aged(*one, rule) for one in zip(counts, stale, strict=True))
    top = max(1, *counts) if counts else 1
    weights = (max(1, limits.WEIGHT_MAX * count // top) for count in counts)
    return dict(zip(samples, weights, strict=True))


def are_legal(plan: Plan) -> bool:
    """Return True if a PLAN names no samples, or each contributor's, none of them beyond belief."""
    contributors = sum(member.weight > 0 for member in plan.members)
    return len(plan.samples) in (0, contributors) and plan.samples == believed(plan.samples)


def weights_are_believed(plan: Plan) -> bool:
    """Return True if no weight is more than any samples could have made it.

    Without samples in PLAN peers see weights alone, which were rounded down: the low median's
    weight may be short of its share by less than one.
    """
    weights = [member.weight for member in plan.members if member.weight]
    least = statistics.median_low(weights) if weights else 0
    if plan.stale:  # an old one is small for another reason; samples are there, and are believed
        return len(plan.samples) == len(weights)
    return max(weights, default=0) < limits.SAMPLES_SPREAD * (least + 1)


def weights_follow_samples(plan: Plan) -> bool:
    """Return True if the weights follow from the samples in PLAN, or it names no samples."""
    weights = {member.peer: member.weight for member in plan.members if member.weight}
    told = dict(zip(weights, plan.samples, strict=False))
    return not plan.samples or weights == weights_of(told, plan.stale, plan.staleness)


def in_result(plan: Plan, commit: Commit) -> int:
    """Samples of those who are in a committed result, 0 where PLAN names none; of a pair op of all
    who were to give something, in a pair or alone."""
    if plan.kind == PAIR:
        return sum(plan.samples)
    named = [member.peer for member in plan.members if member.weight]
    kept = set(commit.contributors)
    return sum(count for peer, count in zip(named, plan.samples, strict=False) if peer in kept)


_SUMS_KEPT = 4096
"""Ops of which the sum is remembered: further back no REWIND goes."""


@dataclass(slots=True)
class SampleCount:
    """The fold of PLAN, COMMIT and REWIND to samples so far.

    Attributes:
        sums: samples of all committed results up to an op, by the ops that were committed.
    """

    sums: dict[int, int] = field(default_factory=dict)

    def committed(self, plan: Plan, commit: Commit) -> None:
        """An op has its result."""
        if plan.samples:
            new = in_result(plan, commit)
            for later in [op for op in self.sums if op > plan.op]:  # ops by clocks may be early
                self.sums[later] += new
            self.sums[plan.op] = self.after(plan.op - 1) + new
            while next(iter(self.sums)) <= plan.op - _SUMS_KEPT:
                del self.sums[next(iter(self.sums))]

    def rewound(self, op: int) -> None:
        """Ops after this one are cancelled."""
        for later in [number for number in self.sums if number > op]:
            del self.sums[later]

    def after(self, op: int) -> int:
        """Samples in the state after an op; one that was skipped adds none."""
        while self.sums and op > 0:
            if op in self.sums:
                return self.sums[op]
            op -= 1
        return 0
