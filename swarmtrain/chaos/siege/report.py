"""Report of a siege, as one object and as lines for people. Pure."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from swarmtrain.chaos.invariants import Violation
from swarmtrain.chaos.report import Outcome
from swarmtrain.console.lines import fact

RATE_MIN = 0.5
"""One member of a few may not cost the others more than half of their rounds; in each phase from
when it has had three times what it took until nobody waited for it."""

FOUND_TIMES = 3.0
"""See RATE_MIN."""

SHARE_MIN = 0.5
"""Nor may it keep anybody's work out of more than half of those that are left."""

WEIGHT_MAX = 4.2
"""A boast counts four times the low median. Weights are whole numbers, so a little more is that."""


class PhaseReport(msgspec.Struct, frozen=True):
    """One phase.

    Attributes:
        name: name of the offence, or of what else it is.
        rounds: committed in it.
        merged: number of these with the part of that honest peer whose part was in the fewest.
        victims: "one" or "all" others, "" without offence.
        offended: number of times that the hostile member did what, as it counts itself.
        marks: number of times that it was named, by place: in the ledger, in `status`.
        found_s: after so many seconds nobody waited for it, -1 if that never came.
        judged_per_s: committed rounds a second after three times that, -1 if no time was left.
    """

    name: str
    seconds: float
    rounds: int
    merged: int
    victims: str
    offended: dict[str, int]
    marks: dict[str, int]
    found_s: float = -1.0
    judged_per_s: float = -1.0


class Extent(msgspec.Struct, frozen=True):
    """Combined figures of several phases.

    Attributes:
        seconds: length of them all.
        per_s: committed rounds a second.
        share: part of these in which an honest peer's work was, phase by phase that of the
            peer which had the least.
    """

    seconds: float
    per_s: float
    share: float

    @classmethod
    def of(cls, phases: Sequence[PhaseReport]) -> "Extent":
        """Sum these phases up."""
        seconds = sum(phase.seconds for phase in phases)
        rounds = sum(phase.rounds for phase in phases)
        merged = sum(phase.merged for phase in phases)
        return cls(
            round(seconds, 1),
            round(rounds / seconds, 3) if seconds else 0.0,
            round(merged / rounds, 3) if rounds else 0.0,
        )


class SiegeReport(Outcome, frozen=True, kw_only=True):
    """The last line of `swarmtrain chaos --hostile ... --json`. The hostile member is one of its
    peers.

    Attributes:
        undisturbed: the first phase.
        offended: figures from the first offence to the last.
        weight: the hostile member's largest, in low medians of the same round's.
        marks: number of times that the hostile one is named, by place: in the ledger, in `status`.
        hostile_lives: number of times that it came in.
        hostile_statuses: exit statuses of those lives that did not last.
    """

    phases: tuple[PhaseReport, ...]
    undisturbed: Extent
    offended: Extent
    weight: float
    marks: dict[str, int]
    hostile_lives: int
    hostile_statuses: tuple[int, ...]

    def in_words(self) -> Iterator[str]:
        """See Outcome."""
        without, with_it = self.undisturbed, self.offended
        for phase in self.phases:
            yield _row(phase, without.per_s)
            if phase.marks:
                yield fact("", _counted(phase.marks))
        ratio = with_it.per_s / without.per_s if without.per_s else 0.0
        rates = f"{without.per_s:.2f}/s undisturbed, {with_it.per_s:.2f}/s with a hostile member"
        yield fact("rounds", f"{rates}: {100 * ratio:.0f} %")
        yield fact("merged", f"of each honest peer in {100 * with_it.share:.0f} % of them or more")
        yield fact("weight", f"{self.weight:.2f} times the median at most")
        outcomes = f"{self.commits} committed, {self.skips} skipped, {self.rewinds} rewinds"
        yield fact("outcomes", outcomes)
        yield fact("named", _counted(self.marks) or "nowhere")
        statuses = ", ".join(str(status) for status in self.hostile_statuses) or "none"
        yield fact("hostile", f"came in {self.hostile_lives} times; ended by itself: {statuses}")
        yield fact("honest", f"{self.restarts} processes started again")
        yield from super().in_words()


def losses(
    undisturbed: Extent,
    offended: Extent,
    weight: float,
    is_named: bool,
    phases: Sequence[PhaseReport] = (),
) -> Iterator[Violation]:
    """Yield violations: a hostile member cost the others, or counted, too much, or is not named.

    Args:
        undisturbed: figures before the first offence.
        offended: figures from the first offence to the last.
        weight: the hostile member's largest, in low medians of a round's.
        is_named: True if anything shows who it was, where anything should.
        phases: judged one by one.
    """
    if offended.per_s < RATE_MIN * undisturbed.per_s:
        with_it, without = offended.per_s, undisturbed.per_s
        story = f"{with_it:.2f} rounds a second with a hostile member, {without:.2f} without"
        yield Violation("rate", story)
    for phase in phases:
        if 0 <= phase.judged_per_s < RATE_MIN * undisturbed.per_s:
            story = f"{phase.judged_per_s:.2f} rounds a second, {undisturbed.per_s:.2f} without"
            yield Violation("rate", f"{phase.name}: {story}")
    if offended.share < SHARE_MIN:
        story = f"an honest peer's work was in {100 * offended.share:.0f} % of the results"
        yield Violation("share", story)
    if weight > WEIGHT_MAX:
        yield Violation("weight", f"the hostile member counted {weight:.1f} times the median")
    if not is_named:
        yield Violation("named", "the hostile member is named nowhere and was not removed")


def _row(phase: PhaseReport, undisturbed: float) -> str:
    per_s = phase.rounds / phase.seconds
    share = f"{100 * per_s / undisturbed:4.0f} %" if undisturbed else ""
    if phase.judged_per_s >= 0 and undisturbed:
        share += f", judged {100 * phase.judged_per_s / undisturbed:.0f} %"
    if phase.found_s > 0:
        share += f" after {FOUND_TIMES:.0f} times {phase.found_s:.0f} s"
    return (
        f"{phase.name:<17}{phase.seconds:6.1f} s {phase.rounds:5} rounds {per_s:6.2f}/s {share}"
        f" {phase.merged:5} merged by all  {phase.victims:<4}{_counted(phase.offended)}"
    ).rstrip()


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
