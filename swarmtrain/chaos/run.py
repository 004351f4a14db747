"""`swarmtrain chaos`: starts processes, does what the plan says, and judges what is left.

Like the demo it is a bystander: it uses the commands `up` and `join`, hears what they say, and
reads their directories when all have ended.
"""

import queue
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from swarmtrain.chaos.invariants import Violation, common_state
from swarmtrain.chaos.plan import COORDINATORS, Deed, Step, calm_from_s, draw_plan
from swarmtrain.chaos.report import Outcome, PeerRoot, Report
from swarmtrain.chaos.setting import MIN_CONTRIBUTORS, names, write_run_file
from swarmtrain.chaos.troupe import Actor, Troupe
from swarmtrain.config.options import ChaosOptions
from swarmtrain.console.lines import timed
from swarmtrain.foundation.error_table import EXIT_UNREACHABLE
from swarmtrain.foundation.errors import Interrupted
from swarmtrain.foundation.events import In, Left, Ready, RoundEnded, StateInPlace
from swarmtrain.local_run.place import COORDINATOR, Place
from swarmtrain.local_run.processes import Ended, Heard, Processes, tail
from swarmtrain.local_run.relays import Relays
from swarmtrain.local_run.signals import noted

if TYPE_CHECKING:
    from swarmtrain.chaos.evidence import Verdict

Say = Callable[[str], None]

_GLANCE_S = 0.1
"""The longest wait for news: deeds are done, signals seen, this often."""

_BEGIN_S = 180.0
"""For all founders to hold the first state, on a busy machine."""

_SETTLE_S = 120.0
"""After the plan's end: for everybody to be in a result once more."""

_PATIENCE_S = 40.0
"""For peers to finish their round and say goodbye."""

_FOUND_MAX = 20
"""Violations before it ends early."""


def run_chaos(options: ChaosOptions, say: Say, kind: "type[Chaos]") -> Outcome:
    """Break a run for a while, mend it, and judge it.

    Args:
        kind: `Chaos`, or one with a hostile member.

    Raises:
        UserError: the state directory cannot be used, there is no text on this machine.
        Interrupted: a signal ended it; all processes are gone, all files are kept.
    """
    place = Place.make(options.state_dir, what="chaos")
    write_run_file(place, options.seed, options.peers, kind.inner_steps, kind.wait_ready_s)
    report = kind(options, place, say).run()
    # A directory that nobody asked for and that shows no violation is removed.
    if not report.violations and options.state_dir is None:
        shutil.rmtree(place.root)
        return report
    return msgspec.structs.replace(report, state_dir=str(place.root))


class Chaos:
    """One chaos, from its first process to its verdict.

    Args:
        place: directories of the run; the run file is written.

    Attributes:
        wait_ready_s: longest wait of the first that is ready.
    """

    inner_steps = 5
    wait_ready_s = 3.0

    def __init__(self, options: ChaosOptions, place: Place, say: Say) -> None:
        self._options = options
        self._place = place
        self._tell = say
        founders, newcomers = names(options.peers)
        self._founders = founders
        self._plan = deque(
            draw_plan(options.seed, options.seconds, founders, newcomers, MIN_CONTRIBUTORS)
        )
        self._calm_s = calm_from_s(options.seconds)
        self._mends: list[Step] = []
        self._deeds: Counter[str] = Counter()
        self._passed_over = 0
        self._found: list[Violation] = []
        self._left: set[str] = set()
        self._is_over = False
        self._began_s = time.monotonic()
        self._ended_s = 0.0
        self._signals: list[int] = []

    def run(self) -> Outcome:
        """From the first process to the verdict."""
        return self._judged(self.play())

    def play(self) -> Troupe:
        """All acts; of the troupe that is returned no process lives any more."""
        # Signals are noted before anything is said or begun: whoever reads the first line may
        # answer with Ctrl+C, and half a set of relays would never end.
        with noted() as self._signals:
            self._tell(f"All files: {self._place.root}")
            relays = Relays()
            processes = Processes(self._place)
            troupe = Troupe(processes, relays)
            try:
                self._begin(troupe)
                self._rage(troupe)
                self._settle(troupe)
                self._stop(troupe)
            finally:
                processes.close()
                relays.close()
        self._ended_s = self._now_s
        return troupe

    # ---- acts

    def _enter(self, troupe: Troupe) -> None:
        """Start everybody who is there from the beginning."""
        troupe.processes.start_coordinator()
        for name in self._founders:
            troupe.add(name)

    def _begin(self, troupe: Troupe) -> None:
        self._enter(troupe)
        actors = troupe.actors.values()
        if not self._wait(troupe, _BEGIN_S, lambda: all(actor.is_in_place for actor in actors)):
            self._violated("L2", f"not everybody held the first state after {_BEGIN_S:.0f} s")
        self._began_s = time.monotonic()
        self._say(f"{len(self._founders)} peers train; seed {self._options.seed}")

    def _rage(self, troupe: Troupe) -> None:
        """Deeds and mends at their times."""
        until_s = self._options.seconds
        while self._now_s < until_s and len(self._found) < _FOUND_MAX:
            for step in [step for step in self._mends if step.mended_s <= self._now_s]:
                self._mend(troupe, step)
            while self._plan and self._plan[0].at_s <= self._now_s:
                self._do(troupe, self._plan.popleft())
            self._look(troupe, _GLANCE_S)
        for step in list(self._mends):
            self._mend(troupe, step)

    def _settle(self, troupe: Troupe) -> None:
        """Let everybody take part once more, after all was mended."""
        calm_s = self._calm_s

        def is_settled() -> bool:
            return all(actor.merged_s > calm_s for actor in troupe.actors.values())

        if len(self._found) < _FOUND_MAX and not self._wait(troupe, _SETTLE_S, is_settled):
            for actor in troupe.actors.values():
                if actor.merged_s <= calm_s:
                    story = f"{actor.name} was in no result for {_SETTLE_S:.0f} s after all"
                    self._violated("L2", f"{story} was mended")

    def _stop(self, troupe: Troupe) -> None:
        self._say("everything is mended; all stop")
        self._is_over = True
        for actor in troupe.actors.values():
            actor.may_end = True
        troupe.coordinator_may_end = True
        troupe.processes.stop(patience_s=_PATIENCE_S, hurry=lambda: bool(self._signals))
        while not troupe.processes.news.empty():
            self._look(troupe, 0.0)
        self._wait(troupe, _GLANCE_S, lambda: False)
        for name, actor in troupe.actors.items():
            if actor.is_running and name not in self._left:
                self._violated("stop", f"{name} did not leave within {_PATIENCE_S:.0f} s")
        self._check_signals(troupe)

    def _judged(self, troupe: Troupe) -> Outcome:
        verdict = self._proved(troupe)
        return Report(
            **self._outcome(troupe, verdict, self._found), rounds=len(verdict.chain.outcomes),
            deeds=dict(self._deeds), passed_over=self._passed_over,
        )  # fmt: skip

    def _proved(self, troupe: Troupe) -> "Verdict":
        """Read and prove what all have left, and add what is wrong to what was found."""
        from swarmtrain.chaos.evidence import judge

        self._say("reading ledgers, proving states")
        verdict = judge(self._place, troupe.lives)
        self._found += verdict.violations
        return verdict

    def _outcome(
        self, troupe: Troupe, verdict: "Verdict", found: Sequence[Violation]
    ) -> dict[str, Any]:
        """The fields of an Outcome."""
        number, roots = common_state({name: a.life for name, a in troupe.actors.items()})
        equal = len(set(roots.values())) == 1
        if not equal:
            text = f"no common state at the end (round {number}): {roots}"
            found = [*found, Violation("I2", text)]
        chain = verdict.chain
        return {
            "seconds": round(self._ended_s, 1), "seed": self._options.seed,
            "peers": self._options.peers, "commits": chain.commits,
            "skips": len(chain.outcomes) - chain.commits, "rewinds": chain.rewinds,
            "restarts": troupe.restarts, "equal": equal, "violations": tuple(found),
            "state_roots": tuple(PeerRoot(name, root) for name, root in roots.items()),
        }  # fmt: skip

    # ---- deeds

    def _do(self, troupe: Troupe, step: Step) -> None:
        """Do it, unless the run has not recovered enough from what was done before."""
        if not self._is_allowed(troupe, step):
            self._passed_over += 1
            return
        self._deeds[step.deed] += 1
        whom = f" {step.victim}" if step.victim else ""
        lasts = f" for {step.lasts_s:.1f} s" if step.lasts_s else ""
        self._say(f"{step.deed}{whom}{lasts}")
        troupe.do(step)
        if step.deed is not Deed.NEWCOMER:
            self._mends.append(step)

    def _is_allowed(self, troupe: Troupe, step: Step) -> bool:
        if step.deed in COORDINATORS:
            return troupe.is_coordinator_up
        if step.deed is Deed.NEWCOMER:
            return True
        well = [actor.name for actor in troupe.actors.values() if actor.is_well]
        return step.victim in well and len(well) > MIN_CONTRIBUTORS

    def _mend(self, troupe: Troupe, step: Step) -> None:
        self._mends.remove(step)
        troupe.mend(step)

    # ---- news

    def _wait(self, troupe: Troupe, limit_s: float, holds: Callable[[], bool]) -> bool:
        """Wait until it holds; return False if it did not within the time."""
        until_s = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > until_s or len(self._found) >= _FOUND_MAX:
                return False
            self._look(troupe, _GLANCE_S)
        return True

    def _look(self, troupe: Troupe, wait_s: float) -> None:
        """Hear one thing, if there is any."""
        try:
            name, event = troupe.processes.news.get(timeout=wait_s or 1e-9)
        except queue.Empty:
            pass
        else:
            self._heard(troupe, name, event)
        if not self._is_over:
            self._check_signals(troupe)

    def _heard(self, troupe: Troupe, name: str, event: Heard) -> None:
        if name == COORDINATOR:
            self._of_coordinator(troupe, event)
        else:
            self._of_peer(troupe, troupe.actors[name], event)

    def _of_coordinator(self, troupe: Troupe, event: Heard) -> None:
        if isinstance(event, Ready):
            troupe.coordinator_ready(event.invite, event.port)
            troupe.coordinator_may_end = False
        elif isinstance(event, Ended):
            troupe.is_coordinator_up = False
            if not troupe.coordinator_may_end:
                self._ended_alone(COORDINATOR, event)
                troupe.processes.start_coordinator()

    def _of_peer(self, troupe: Troupe, actor: Actor, event: Heard) -> None:
        match event:
            case In():
                actor.life.peer = event.peer
                troupe.relays.call(actor.data.aim, event.port)
            case StateInPlace():
                actor.life.told.append(event)
                actor.is_in_place = True
            case RoundEnded():
                actor.life.told.append(event)
                if event.outcome == "merged":
                    actor.merged_s = self._now_s
            case Left():
                self._left.add(actor.name)
            case Ended():
                self._peer_ended(troupe, actor, event)

    def _peer_ended(self, troupe: Troupe, actor: Actor, event: Ended) -> None:
        actor.is_running = False
        is_clean_leave = actor.harmed is not Deed.KILL and actor.may_end
        if is_clean_leave and event.status != 0:
            text = f"{actor.name} was asked to leave and ended with {event.words}"
            self._violated("stop", f"{text}: {tail(self._place.log(actor.name))[-3:]}")
        if self._is_over:
            return
        if actor.returns:
            troupe.start_again(actor)
        elif not actor.may_end:
            never_in = not actor.life.peer
            if not (never_in and event.status == EXIT_UNREACHABLE):
                self._ended_alone(actor.name, event)
            troupe.start_again(actor)

    def _ended_alone(self, name: str, event: Ended) -> None:
        said = [line for line in tail(self._place.log(name)) if not line.startswith("{")]
        words = " / ".join(said[-6:])
        self._violated("alive", f"{name} ended by itself with {event.words}: {words}")

    # ---- small parts

    @property
    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _say(self, text: str) -> None:
        self._tell(timed(text, self._now_s))

    def _violated(self, invariant: str, story: str) -> None:
        self._found.append(Violation(invariant, f"at {self._now_s:.1f} s: {story}"))
        self._say(f"VIOLATION {invariant}: {story}")

    def _check_signals(self, troupe: Troupe) -> None:
        if not self._signals:
            return
        self._say("stopping; Ctrl+C again ends all processes at once")
        self._is_over = True
        troupe.processes.stop(patience_s=_PATIENCE_S / 2, hurry=lambda: len(self._signals) > 1)
        raise Interrupted(128 + self._signals[0])
