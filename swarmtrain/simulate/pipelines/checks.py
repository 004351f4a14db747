"""Invariants of pipelines, checked on all that happens in a simulated one.

P1 no micro-batch is counted twice in a stage; P2 each one ends, as counted in all stages that it
visits and in no other, or with a reason, and what is in a peer's steps is in its books; P3 memory
stays within its bound; P4 where steps are flushed, a step is of the same micro-batches in every
stage that they visit; P6 one peer moves at a time,
and none counts in a stage that it does not serve; P8 when the faults have stopped every micro-batch
comes back, and rounds go on; beside a hostile member most of them do; P10 a source that compares
routes suspects nobody who is honest; P11 a free round is as large as it was begun, whichever of its
sources are gone, and each share is dealt anew once; P12 no gradient is taken that is staler than
the run allows; P13 nobody is away without whom a stage has nobody. P7 is of the stages' groups
(`keeper_checks`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from swarmtrain.simulate.pipelines.process import JUDGED, Passed, SimProcess
from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.coordinator.books import Books
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import Reason
from swarmtrain_transport.pipeline.wire.paths import Paths
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process

Key = tuple[Process, int, int]
"""A micro-batch's source, its number, and a stage."""


def key_of(passed: Passed) -> Key:
    """The key of a micro-batch in a stage."""
    name, stage = passed
    return Process(name.source, name.boot), name.number, stage


_ANSWERED_S = 15.0
"""An invitation is answered in two seconds; who does not know its sender yet hears it again."""


_EVALUATED_S = limits.JUDGED_TRIES * (limits.JUDGED_S + limits.JUDGED_PAUSE_MAX_S)
"""An evaluator that hears of no loss for so long has given up."""

_MANY = 10
"""Micro-batches of which a share says something."""


class BrokenInvariant(Exception):
    """An invariant does not hold.

    Attributes:
        invariant: name of the invariant.
        story: story of what was found.
    """

    def __init__(self, invariant: str, story: str) -> None:
        super().__init__(f"{invariant} {story}")
        self.invariant, self.story = invariant, story


class Ledger:
    """Counts of a world, by those whose gradients were exchanged.

    Args:
        paths: the stages of each micro-batch.
        hostile: a member that breaks the rules: its own micro-batches may come to any end, and
            some of the others' may get lost.

    Attributes:
        totals: micro-batches by how they ended, in rounds with faults and without.
    """

    def __init__(self, paths: Paths, hostile: PeerId | None = None) -> None:
        self._paths = paths
        self._hostile = hostile
        self._ever: Counter[Passed] = Counter()
        self._settled: set[tuple[Process, int]] = set()
        self._reports: dict[int, dict[Process, tuple[orders.Settled, list[Passed]]]] = {}
        self.totals: Counter[str] = Counter()

    def settled(self, process: SimProcess, report: orders.Settled) -> None:
        """A process says what it has counted; its steps are emptied."""
        work = process.work
        if process.me.peer == self._hostile:
            self._reports.setdefault(report.round, {})[process.me] = report, list(work.stepped)
            work.stepped.clear()
            return
        told = {
            (one.source, number, one.stage)
            for one in report.counted
            for number in orders.numbers(one.numbers)
        }
        has = {key_of(passed) for passed in work.stepped}
        if told != has or len(work.stepped) != len(has):
            twice = [key for key, n in Counter(work.stepped).items() if n > 1]
            invariant = "P1" if twice else "P2"
            differs = sorted(told ^ has)[:2]
            raise BrokenInvariant(
                invariant, f"{process.me} steps with {twice[:2]}, books differ by {differs}"
            )
        late = [m for m, _ in work.stepped if (process.me, m.round) in self._settled]
        if late or any(m.round > report.round for m, _ in work.stepped):
            story = f"counted by {process.me} in round {report.round}: {late[:1]}"
            raise BrokenInvariant("P2", story)
        for made in work.made:
            if made.round <= report.round and made not in work.ended:
                raise BrokenInvariant("P2", f"{made} has not ended")
        self._settled.add((process.me, report.round))
        self._reports.setdefault(report.round, {})[process.me] = report, list(work.stepped)
        work.stepped.clear()

    def booked(
        self, books: Books, ever: Mapping[Key, set[Process]],
        *, is_harsh: bool, is_calm: bool, has_hostile: bool, sent_on: Set[MicroBatch],
    ) -> None:  # fmt: skip
        """The coordinator has the books of a round.

        Args:
            books: books of the round.
            ever: all that processes were about to count, dead ones too.
            is_harsh: the round began while faults struck.
            is_calm: the round began long after the last fault.
            has_hostile: others' micro-batches may come to a hostile member: it may lose some, but
                has no permission of those that it was not sent.
            sent_on: micro-batches that those have sent on.
        """
        on_its_way = {(Process(m.source, m.boot), m.number) for m in sent_on}
        reports = self._reports.pop(books.round, {})
        counts: Counter[Key] = Counter()
        for process in books.processes:
            for m, stage in reports[process][1]:
                if m.source == self._hostile:
                    continue
                counts[key_of((m, stage))] += 1
                self._ever[m, stage] += 1
                if self._ever[m, stage] > 1:
                    raise BrokenInvariant("P1", f"{m} is counted twice in stage {stage}")
        stray = [key for key in counts if key[2] not in self._paths.of(*key[:2])]
        if stray:
            raise BrokenInvariant("P2", f"{stray[0]} is counted, and does not visit the stage")
        seen = {key[:2] for key in counts}
        for source in sorted(books.processes):
            if source.peer == self._hostile:
                continue
            made = reports[source][0].made
            whole = orders.numbers(made.whole)
            lost = {n: reason for reason, some in made.lost.items() for n in orders.numbers(some)}
            for number in whole | set(lost):
                seen.discard((source, number))
                self._ends(
                    (source, number), lost.get(number), counts, ever, books.processes,
                    is_harsh=is_harsh, is_calm=is_calm, has_hostile=has_hostile,
                    is_on_its_way=(source, number) in on_its_way,
                )  # fmt: skip
        strange = [key for key in seen if key[0] in books.processes]
        if strange:
            raise BrokenInvariant("P2", f"{strange[0]} is counted, its source does not know it")
        self.totals["rounds"] += 1
        self.totals["of the dead"] += len(seen)

    def check_share(self) -> None:
        """Most of what others make comes back, whatever a hostile member does."""
        made = self.totals["made beside a hostile member"]
        whole = self.totals["whole beside a hostile member"]
        if made >= _MANY and 2 * whole < made:
            raise BrokenInvariant("P8", f"{whole} of {made} came back beside a hostile member")

    def _ends(
        self, name: tuple[Process, int], reason: Reason | None,
        counts: Mapping[Key, int], ever: Mapping[Key, set[Process]], here: Iterable[Process],
        *, is_harsh: bool, is_calm: bool, has_hostile: bool, is_on_its_way: bool,
    ) -> None:  # fmt: skip
        """One micro-batch has ended: whole, lost, or partial by a named death."""
        path = self._paths.of(*name)
        stages = [stage for stage in path if counts.get((*name, stage))]
        for stage in path if reason is None else ():
            if stage in stages:
                continue
            gone = ever.get((*name, stage), set()) - set(here)
            if not gone:
                raise BrokenInvariant("P2", f"{name} came back, stage {stage} is without it")
        is_whole = reason is None and len(stages) == len(path)
        is_taken = reason is Reason.GRANTED and not stages and not is_on_its_way
        is_spoiled = has_hostile and reason is not None and not is_taken
        if is_calm and has_hostile:
            self.totals["made beside a hostile member"] += 1
            self.totals["whole beside a hostile member"] += is_whole
        if is_calm and not is_whole and reason is not Reason.STALE and not is_spoiled:
            raise BrokenInvariant("P8", f"{name} is lost without a fault: {reason} {stages}")
        self.totals["made"] += 1
        if is_harsh:
            self.totals["made in faults"] += 1
            how = "whole" if len(stages) == len(path) else "partial" if stages else "none"
            self.totals[how] += 1
            if reason is not None:
                self.totals[f"lost: {reason}"] += 1


@dataclass(slots=True)
class Size:
    """Shares of a round whose steps are free, as its sources are told them.

    Attributes:
        begun: shares that the round began with.
        came: shares of sources that came later.
        more: micro-batches that were dealt anew to each.
        drained: micro-batches that each has said that it has made.
        left: sources that have left meanwhile, for good or not.
        late: sources that have not drained in time.
    """

    begun: Counter[Process] = field(default_factory=Counter)
    came: Counter[Process] = field(default_factory=Counter)
    more: Counter[Process] = field(default_factory=Counter)
    drained: Counter[Process] = field(default_factory=Counter)
    left: set[Process] = field(default_factory=set)
    late: set[Process] = field(default_factory=set)

    def check(self, round: int, here: Set[Process], known: Set[Process]) -> None:
        """The round is closed, with these members. Of sources whose pace was known something may
        have been made before they were gone, and is not made again."""
        size, asked = self.begun.total(), self.begun + self.came + self.more
        gone = sum(count for one, count in asked.items() if one in self.left)
        if self.more.total() > min(gone, size):
            story = f"{self.more.total()} were dealt anew for {gone} of the gone, of {size}"
            raise BrokenInvariant("P11", f"round {round}: {story}")
        stayed = {one for one in here if asked[one]} - self.left - self.late
        made = sum(count for one, count in asked.items() if one in here | self.late | known)
        early = [one for one in stayed if self.drained[one] < asked[one]]
        if early:
            raise BrokenInvariant("P11", f"round {round} is closed before {early[0]} has drained")
        if stayed and made < size and self.more.total() < size:
            raise BrokenInvariant("P11", f"round {round}: {made} of {size} are left to make")


def check_memory(process: SimProcess) -> None:
    """A peer holds no more than it said that it would."""
    machine = process.machine
    rules = machine.rules
    slots = max(rules.slots, rules.most_slots)
    own = limits.OWN_SPREAD * max(rules.under_way or rules.slots, rules.most_under_way)
    if machine.num_held > slots or machine.num_own > own:
        story = f"{process.me} holds {machine.num_held} of {slots}, {machine.num_own} of {own}"
        raise BrokenInvariant("P3", story)
    if process.payloads > 2 * (machine.num_held + machine.num_own + limits.JUDGED_UNDER_WAY) + 1:
        raise BrokenInvariant("P3", f"{process.me} keeps {process.payloads} payloads")


def check_evaluation(process: SimProcess, now_s: float) -> None:
    """An evaluation loses no part of its text, and ends, one way or the other."""
    parts = process.machine.evaluation.parts
    if parts and parts != list(range(JUDGED)):
        raise BrokenInvariant("P2", f"{process.me} evaluates {parts}")
    silent_s = now_s - process.machine.evaluation.heard_s
    if process.thaws_s == 0.0 and silent_s > _EVALUATED_S:
        raise BrokenInvariant("P8", f"{process.me} evaluates, and hears nothing")


def check_loss(process: SimProcess, loss: float | None) -> None:
    """The mean is that of all of the text, each part once."""
    if loss not in (None, (JUDGED - 1) / 2):
        raise BrokenInvariant("P2", f"{process.me} has a loss of {loss}")


def check_invitations(process: SimProcess, now_s: float) -> None:
    """A slot is filled or returned at once where nothing goes wrong: else its place is wasted.
    While a member is away nobody answers it, and nobody could use the place."""
    since_s = max(process.machine.invited_s, process.away_s)
    if now_s - since_s > _ANSWERED_S:
        raise BrokenInvariant("P8", f"a slot of {process.me} is neither filled nor returned")


def check_step(
    paths: Paths, fence: tuple[int, int, int], members: Iterable[SimProcess],
    made: set[MicroBatch],
) -> None:  # fmt: skip
    """A flushed step is of the same micro-batches in every stage that they visit.

    Args:
        paths: the stages of each micro-batch.
        fence: round, step and attempt of the step.
        members: members of the run, dead or alive.
        made: micro-batches made by its sources.
    """
    has: list[set[MicroBatch]] = [set() for _ in range(paths.num_stages)]
    for process in members:
        for m, stage in [*process.work.accumulated, *process.is_training_at]:
            if (m.round, m.step, m.attempt) == fence:
                has[stage].add(m)
    for stage, names in enumerate(has):
        visiting = {m for m in made if stage in paths.of(*m.entry)}
        if names != visiting:
            differs = sorted(names ^ visiting)[:2]
            raise BrokenInvariant("P4", f"step {fence}: stage {stage} differs by {differs}")
