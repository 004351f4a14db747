"""How much the whole swarm has trained on: what a schedule by tokens goes by.

PLAN repeats what contributors said in READY, COMMIT names those who are in the result, so the sum
follows from the ledger alone: a newcomer and a restarted peer know it as the others do, and a
REWIND takes back what it cancels. Where ops go by pairs everybody planned counts: who is in no pair
makes its step too. Only runs whose schedule asks for it tell samples. Pure.

References:
    Scaling laws for DiLoCo, arXiv 2503.09799 (a run is as long as its tokens, not its steps).
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger import AnyBody, Commit, Plan, Rewind


def believed(samples: Sequence[int]) -> tuple[int, ...]:
    """What PLAN repeats of its contributors' words, in their order.

    A boast would bring the run's end nearer for everybody, so each counts up to some times the
    middle one, as speeds do; who says less than nothing has said nothing.
    """
    told = [max(0, count) for count in samples]
    most = int(limits.PACE_SPREAD) * statistics.median_low(told) if told else 0
    return tuple(min(count, most) for count in told)


def are_legal(plan: Plan) -> bool:
    """Whether a PLAN names no samples, or those of each contributor."""
    contributors = sum(member.weight > 0 for member in plan.members)
    return len(plan.samples) in (0, contributors) and all(count >= 0 for count in plan.samples)


def in_result(plan: Plan, commit: Commit) -> int:
    """Samples of those who are in a committed result, 0 where PLAN names none; of a pair op of all
    who were to give something, in a pair or alone."""
    if plan.kind == PAIR:
        return sum(plan.samples)
    named = [member.peer for member in plan.members if member.weight]
    kept = set(commit.contributors)
    return sum(count for peer, count in zip(named, plan.samples, strict=False) if peer in kept)


@dataclass(slots=True)
class SampleCount:
    """The fold of PLAN, COMMIT and REWIND to samples so far.

    Attributes:
        sums: of all committed results up to an op, by the ops that were committed.
    """

    sums: dict[int, int] = field(default_factory=dict)
    _plan: Plan | None = None

    def apply(self, body: AnyBody) -> None:
        """Fold one record that is legal."""
        if isinstance(body, Plan):
            self._plan = body
        elif isinstance(body, Commit) and self._plan is not None and self._plan.samples:
            self.sums[body.op] = self.after(body.op - 1) + in_result(self._plan, body)
        elif isinstance(body, Rewind):
            for op in [op for op in self.sums if op > body.op]:
                del self.sums[op]

    def after(self, op: int) -> int:
        """Samples in the state after an op; one that was skipped adds none."""
        while self.sums and op > 0:
            if op in self.sums:
                return self.sums[op]
            op -= 1
        return 0
