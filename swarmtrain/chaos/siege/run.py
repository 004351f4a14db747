"""`swarmtrain chaos --hostile`: a run with one hostile member among honest ones, and its judgement.

We leave the honest peers alone; any harm to them is the hostile member's doing. It is a process of
its own (`hostile`) that is told its offence phase by phase (`phases`). When it is thrown out, dies
of its own deed, or is waited for no more, it comes back with a new key, as anybody with an invite
can.
"""

import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from swarmtrain.chaos.run import Chaos, Say
from swarmtrain.chaos.siege.offences import BOUNDED, LATE, WAIT_READY_S, Offence, Order
from swarmtrain.chaos.siege.phases import CALM, UNDISTURBED, Phase, draw_phases
from swarmtrain.chaos.siege.report import (
    FOUND_TIMES,
    Extent,
    PhaseReport,
    SiegeReport,
    losses,
)
from swarmtrain.chaos.siege.standing import (
    evicted,
    first_unawaited,
    marks_in_ledger,
    marks_in_log,
    marks_in_status,
    most_weight,
)
from swarmtrain.chaos.troupe import Troupe
from swarmtrain.config.options import ChaosOptions
from swarmtrain.foundation.errors import UserError
from swarmtrain.foundation.events import In, Offended, Ready, RoundEnded
from swarmtrain.local_run.place import Place
from swarmtrain.local_run.processes import Ended, Heard
from swarmtrain.peer.disk import ledger_file
from swarmtrain.status import ask_coordinator
from swarmtrain_transport import limits
from swarmtrain_transport.wire.records import AnyBody, bodies_of

_MODULE = "swarmtrain.chaos.siege.hostile"

_OVERTIME_S = 30.0
"""A phase is so much longer at most, where its offence has not been committed before."""

_JUDGED_S = 20.0
"""A phase is judged by so many seconds at least, where that makes it no longer than this allows."""

_JUDGED_TIMES = 3.0
"""Lengths of a phase by which lateness may make it longer. A first offence takes most of its phase
to be found out, and is judged after three times as long."""

_LOOK_S = 2.0

_LIVES_MAX = 3
"""Within a phase it comes back so often; to start a process takes much of a small machine."""

_NAME = "mallory"
"""Name from textbooks; a later life with another key has a number behind it."""


@dataclass(slots=True)
class _Hostile:
    """The hostile member through all its lives.

    Attributes:
        name: name of its newest life, "" before the first.
        is_running: True while that process is there.
        keys: keys of all lives that were let in.
        statuses: exit statuses of the lives that ended of themselves.
        told: counts of its newest life.
        counts: counts of its earlier lives.
    """

    name: str = ""
    is_running: bool = False
    has_invite: bool = False
    keys: set[bytes] = field(default_factory=set)
    lives: int = 0
    statuses: list[int] = field(default_factory=list)
    order: Order = field(default_factory=Order)
    told: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> Counter[str]:
        """Offences of all its lives, by kind."""
        return self.counts + self.told


class Siege(Chaos):
    """One run with a hostile member; for its arguments see Chaos."""

    inner_steps = 25
    """Rounds of about a second: what an offence costs is deadlines, and rounds that are much
    shorter than the shortest deadline would make it look worse than it is to anybody who trains."""

    wait_ready_s = WAIT_READY_S

    def __init__(self, options: ChaosOptions, place: Place, say: Say) -> None:
        super().__init__(options, place, say)
        self._plan.clear()
        self._founders = self._founders[:-1]
        offences = tuple(Offence(name) for name in options.hostile)
        self._phases = draw_phases(options.seed, options.seconds, offences)
        self._hostile = _Hostile()
        self._lives_left = 0
        self._reports: list[PhaseReport] = []
        self._commits: dict[int, float] = {}
        self._merged: dict[str, dict[int, float]] = {name: {} for name in self._founders}
        self._marks: Counter[str] = Counter()

    # ---- acts

    def _enter(self, troupe: Troupe) -> None:
        troupe.are_dialled = True  # a reset shall reach the peer that it is meant for
        super()._enter(troupe)
        self._start_hostile(troupe)

    def _rage(self, troupe: Troupe) -> None:
        """Every phase in its turn."""
        for phase in self._phases:
            self._lives_left = _LIVES_MAX
            if phase.order.offences:
                self._renew(troupe)
            self._command(troupe, phase.order)
            whom = f", against {_victims(phase)}" if phase.order.offences else ""
            self._say(f"{phase.name} for {phase.lasts_s:.0f} s{whom}")
            self._calm_s = self._now_s
            self._pass(troupe, phase)

    def _pass(self, troupe: Troupe, phase: Phase) -> None:
        """Let the phase's time go by, and wait for the offence if there was none yet: an owner
        can lie only in a round that has come so far, and a coordinator may be down."""
        offended, began_s, marks = self._hostile.total, self._now_s, self._marked()
        newest = max(self._commits, default=0)
        self._wait(troupe, phase.lasts_s, lambda: False)

        def has_offended() -> bool:
            return all(self._hostile.total[name] > offended[name] for name in offences)

        offences = phase.order.offences if not phase.order.is_mixed else ()
        self._wait(troupe, _OVERTIME_S, has_offended)
        found_s = self._found_s(newest, began_s)
        if not LATE.isdisjoint(phase.order.offences):
            until_s = self._now_s + _JUDGED_TIMES * phase.lasts_s
            found_s = self._until_judged(troupe, newest, began_s, until_s)
        done, marks = self._hostile.total - offended, self._marked() - marks
        self._marks += marks
        self._reports.append(self._report_of(phase, began_s, found_s, done, marks))

    def _until_judged(self, troupe: Troupe, newest: int, began_s: float, until_s: float) -> float:
        """Let a phase go on until what it costs in the end can be told; return `_found_s`."""
        while True:
            found_s = self._found_s(newest, began_s)
            judged_s = began_s + FOUND_TIMES * found_s + _JUDGED_S
            if self._now_s >= (min(judged_s, until_s) if found_s >= 0 else until_s):
                return found_s
            self._wait(troupe, _LOOK_S, lambda: False)

    def _found_s(self, newest: int, began_s: float) -> float:
        """Return after how many seconds nobody waited for the hostile member any more: 0 where that
        was so before, -1 if it never was."""
        found = first_unawaited(self._ledger(), self._hostile.keys, newest)
        ended = [at_s for number, at_s in self._commits.items() if number >= found >= 0]
        return max(0.0, min(ended) - began_s) if ended else -1.0

    def _report_of(
        self,
        phase: Phase,
        began_s: float,
        found_s: float,
        done: Counter[str],
        marks: Counter[str],
    ) -> PhaseReport:
        def count(times: Iterable[float], since_s: float = began_s) -> int:
            return sum(at_s >= since_s for at_s in times)

        # The bar has its time, too, where it has found nothing.
        bar_s = limits.LATE_LEAST_S if found_s < 0 else found_s
        since_s = began_s + FOUND_TIMES * bar_s
        rest_s, judged_per_s = self._now_s - since_s, -1.0
        if phase.order.offences and rest_s >= _JUDGED_S / 2:
            judged_per_s = round(count(self._commits.values(), since_s) / rest_s, 3)
        return PhaseReport(
            phase.name, round(self._now_s - began_s, 1), count(self._commits.values()),
            min(count(merged.values()) for merged in self._merged.values()),
            _victims(phase), dict(done), dict(marks), round(found_s, 1), judged_per_s,
        )  # fmt: skip

    # ---- the hostile member

    def _start_hostile(self, troupe: Troupe) -> None:
        hostile = self._hostile
        hostile.lives += 1
        hostile.counts, hostile.told = hostile.total, Counter()
        hostile.name = _NAME if hostile.lives == 1 else f"{_NAME}-{hostile.lives}"
        hostile.is_running, hostile.has_invite = True, False
        directory = str(self._place.peer(hostile.name))
        troupe.processes.start_module(hostile.name, _MODULE, hostile.name, directory)
        self._hand_invite(troupe)

    def _renew(self, troupe: Troupe) -> None:
        """Let the hostile member come as somebody else, if nobody waits for it any more: it owns
        nothing then, and could not commit what only an owner can."""
        hostile = self._hostile
        newest = max(self._commits, default=0)
        if not hostile.is_running or first_unawaited(self._ledger(), hostile.keys, newest - 1) < 0:
            return
        troupe.processes.send_signal(hostile.name, signal.SIGTERM)
        known = len(hostile.keys)
        self._start_hostile(troupe)
        self._wait(troupe, _OVERTIME_S, lambda: len(hostile.keys) > known)

    def _hand_invite(self, troupe: Troupe) -> None:
        hostile = self._hostile
        if troupe.invite and not hostile.has_invite:
            hostile.has_invite = True
            troupe.processes.tell(hostile.name, troupe.invite.encode())
            self._command(troupe, hostile.order)

    def _command(self, troupe: Troupe, order: Order) -> None:
        hostile = self._hostile
        hostile.order = order
        if hostile.is_running and hostile.has_invite:
            troupe.processes.tell(hostile.name, msgspec.json.encode(order))

    # ---- news

    def _look(self, troupe: Troupe, wait_s: float) -> None:
        super()._look(troupe, wait_s)
        hostile = self._hostile
        is_wanted = bool(hostile.order.offences) and not self._is_over and self._lives_left > 0
        if is_wanted and not hostile.is_running:
            self._lives_left -= 1
            self._start_hostile(troupe)

    def _heard(self, troupe: Troupe, name: str, event: Heard) -> None:
        if name.startswith(_NAME):
            self._of_hostile(name, event)
            return
        if isinstance(event, RoundEnded) and event.outcome != "skipped":
            self._commits.setdefault(event.round, self._now_s)
            if event.outcome == "merged":
                self._merged[name][event.round] = self._now_s
        super()._heard(troupe, name, event)
        if isinstance(event, Ready):
            self._hand_invite(troupe)

    def _of_hostile(self, name: str, event: Heard) -> None:
        hostile = self._hostile
        match event:
            case In():
                hostile.keys.add(bytes.fromhex(event.peer))
            case Offended() if name == hostile.name:
                hostile.told = Counter(event.counts)
                hostile.keys.update(map(bytes.fromhex, event.keys))
            case Ended() if name == hostile.name:
                hostile.is_running = False
                if not self._is_over:
                    hostile.statuses.append(event.status)
                    self._say(f"{name} ended with status {event.status}")

    # ---- judgement

    def _ledger(self) -> list[AnyBody]:
        """An honest peer's ledger as it is now."""
        copy = ledger_file.read(self._place.peer(self._founders[0]) / ledger_file.FILE_NAME)
        return bodies_of(copy.records)

    def _marked(self) -> Counter[str]:
        """Find the places that name the hostile member now: a peer's ledger, `status`, logs."""
        keys = self._hostile.keys
        marks = marks_in_ledger(self._ledger(), keys)
        for name in self._founders:
            with self._place.log(name).open(encoding="utf-8", errors="replace") as lines:
                marks["refused in a log"] += marks_in_log(lines, keys)
        try:
            marks += marks_in_status(ask_coordinator(self._place.coordinator), keys)
        except UserError as error:
            self._violated("status", error.what)
        return +marks

    def _judged(self, troupe: Troupe) -> SiegeReport:
        verdict = self._proved(troupe)
        found = list(self._found)
        honest = {bytes.fromhex(life.peer): life.name for life in troupe.lives if life.peer}
        found += evicted(verdict.bodies, honest)
        undisturbed, offended = self._extent()
        weight = most_weight(verdict.bodies, self._hostile.keys)
        must_be_named = not BOUNDED.issuperset(self._options.hostile)
        is_named = bool(self._marks) or not must_be_named
        found += losses(undisturbed, offended, weight, is_named, self._reports)
        return SiegeReport(
            **self._outcome(troupe, verdict, found),
            phases=tuple(self._reports), undisturbed=undisturbed, offended=offended,
            weight=round(weight, 2), marks=dict(self._marks),
            hostile_lives=self._hostile.lives, hostile_statuses=tuple(self._hostile.statuses),
        )  # fmt: skip

    def _extent(self) -> tuple[Extent, Extent]:
        """The undisturbed phase, and from the first offence to the last."""
        quiet = [report for report in self._reports if report.name == UNDISTURBED]
        rest = [report for report in self._reports if report.name not in (UNDISTURBED, CALM)]
        return Extent.of(quiet), Extent.of(rest)


def _victims(phase: Phase) -> str:
    if not phase.order.offences:
        return ""
    return "all" if phase.order.victim < 0 else "one"
