"""The training side of a peer's ops, sans IO: the decisions of a training loop between inner steps.

Events say that an inner step was made, that an op has an outcome, how the network stands, and that
the peer should leave. `advance` then answers with what the shell must do: one outcome or one
contribution at a time, until there is nothing more. The training loop asks `holds_back` before the
next inner step: an outcome takes its place where all peers put it, and whoever is at that place
waits for it. Without the coordinator a peer trains on for one round at most (protocol.md rule 10).
Where a round ends by word (`give`) nobody waits at a place, and no place is later than that end.

A training thread, an averager, the simulator and a comparison drive the same machine. Not here:
time, threads, disks, and any arithmetic, which is the driver's.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from swarmtrain.peer.training.meter import Pace
from swarmtrain.peer.training.own_work import Known, OwnPart
from swarmtrain.peer.training.rounds import RoundReport
from swarmtrain_transport import actions as do
from swarmtrain_transport.blocks.manifest import StateManifest
from swarmtrain_transport.blocks.retention import Piece
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.participant import Actions as PeerActions
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.messages import FIRST_GROUP

LONELY_S = 5.0
"""Without the coordinator for this long, a waiting peer trains on, and a leaving one goes."""

_JUDGED_STEPS = 20
"""Rounds of one inner step between two evaluations."""

Outcome = do.LoadState | do.ApplyResult | do.OpSkipped | do.RunFinished
"""News of the run from the network side, in its order."""


class Image(Protocol):
    """A state as the participant is told of it."""

    @property
    def op(self) -> int:
        """After which op."""

    @property
    def manifest(self) -> StateManifest:
        """Describes it; its root is the state root."""

    @property
    def chunks(self) -> tuple[Piece, ...] | None:
        """Bytes of the state, if others may have them."""


class Trainee(Protocol):
    """A task that takes part in ops: a `Driver`, or an average without a model."""

    op: int
    included: bool
    is_alone: bool

    @property
    def is_paired(self) -> bool:
        """True if ops go by pairs."""

    @property
    def is_waiting(self) -> bool:
        """True if our part is given and its op has no outcome yet; of several ops the oldest."""

    @property
    def is_at_place(self) -> bool:
        """True if the outcome of that part has its place here."""

    @property
    def is_due(self) -> bool:
        """True if a part is to be given now."""

    @property
    def keeps_pace(self) -> bool:
        """True if a slow peer makes fewer inner steps."""

    @property
    def has_steps(self) -> bool:
        """True if there is anything to give."""

    def stepped(self, samples: int) -> None:
        """One inner step was made."""

    def contribute(self) -> OwnPart:
        """Return the contribution to the next op."""

    def known_ahead(self) -> tuple[int, Known] | None:
        """The next op and what is known of our part of it."""

    def load(self, action: do.LoadState) -> Image:
        """Put a state in place."""

    def end_op(self, result: OpResult) -> Image:
        """Take over a committed result."""

    def skip(self, op: int) -> None:
        """The op ended without a result."""

    def settle(self) -> None:
        """The run is over."""

    def keep_pace(self, own_steps_per_s: float, fastest_steps_per_s: float) -> None:
        """Hear how fast we and the fastest are."""


# ---- what the shell is asked to do


@dataclass(frozen=True, slots=True)
class Ready:
    """Tell the participant: this is our part, made at so many inner steps per second; `loss` is
    their mean one, for whom a run with a guard asks."""

    part: OwnPart
    steps_per_s: float
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class GiveAhead:
    """Tell the participant: so much of the part for `op` is known before its inner steps."""

    op: int
    known: Known
    rounds: int


@dataclass(frozen=True, slots=True)
class Applied:
    """Tell the participant: this state is in place."""

    image: Image


@dataclass(frozen=True, slots=True)
class Loaded:
    """A state was put in place that is not the last one's successor; the participant hears next."""

    image: Image


@dataclass(frozen=True, slots=True)
class KeepResult:
    """Keep a committed result for others."""

    result: OpResult


@dataclass(frozen=True, slots=True)
class Ended:
    """A round has ended, with this result unless it was skipped."""

    report: RoundReport
    result: OpResult | None = None


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Tell the others what the state after `op` loses."""

    op: int


Told = Ready | GiveAhead | Applied
Action = Told | Loaded | KeepResult | Ended | Evaluate
Actions = tuple[Action, ...]


def tell(
    action: Told, participant: Participant, now_s: float, group: int = FIRST_GROUP
) -> PeerActions:
    """Give the participant the event of a group that an action stands for."""
    match action:
        case Ready(part, steps_per_s, loss):
            return participant.ready(
                part.op, part.contribution, part.samples, now_s, steps_per_s, group, part.since,
                loss,
            )  # fmt: skip
        case GiveAhead(op, known, rounds):
            end = max(rounds, participant.view.rounds)
            if participant.view.groups[group].committed >= end:
                return ()  # no op comes after the last one
            return participant.give_ahead(op, known, known.start, now_s, group)
        case Applied(image):
            return participant.applied(image.op, image.manifest, image.chunks, now_s, group)


class TrainingMachine:
    """One peer's rounds.

    Args:
        me: own id.
        driver: gives parts and takes outcomes.
        rounds: committed ops after which the run is over, as its settings say.
        steps_per_round: inner steps of a round; so many are made without the coordinator.
        patience_s: a leaving peer waits so long for an op that does not begin.
        lonely_s: time without the coordinator after which a waiting peer trains on.
        ends_by_word: a round ends when `give` says so, however many inner steps were made.

    Attributes:
        is_finished: the run has made its rounds.
        is_lonely: the coordinator was not there for a while.
        final_loss: loss after the last round, if somebody has said it.
        final_rounds: number of committed rounds at the end.
        offered_root: root of the state that this peer began with; its bringer evaluates the run's.
    """

    def __init__(
        self,
        me: PeerId,
        driver: Trainee,
        *,
        rounds: int,
        steps_per_round: int,
        patience_s: float = 0.0,
        lonely_s: float = LONELY_S,
        ends_by_word: bool = False,
    ) -> None:
        self.is_finished = self.is_lonely = False
        self.final_loss: float | None = None
        self.final_rounds = rounds
        self.offered_root = b""
        self._me = me
        self._driver = driver
        self._rounds = rounds
        self._steps_per_round = steps_per_round
        self._patience_s = patience_s
        self._lonely_s = lonely_s
        self._ends_by_word = ends_by_word
        self._outcomes: deque[Outcome] = deque()
        self._pace = Pace()
        self._extra_steps = 0
        self._round_ended = True
        self._is_leaving = self._is_finishing = self._hurries = False
        self._stands_still = False
        self._seen_s = self._given_s = float("-inf")

    # ---- events

    def begins_step(self, now_s: float) -> None:
        """An inner step begins; only those whose begin was told are timed."""
        self._pace.begin(now_s)

    def stepped(self, samples: int, now_s: float) -> None:
        """An inner step over so many samples was made."""
        self._pace.made(now_s)
        self._driver.stepped(samples)
        self._round_ended = False
        self._extra_steps += self._driver.is_at_place

    def heard(self, outcome: Outcome) -> None:
        """The network side says what became of the run; it is handled when its turn comes."""
        self._outcomes.append(outcome)

    def stands_still(self, *, is_so: bool) -> None:
        """The run waits for something, or goes on."""
        self._stands_still = is_so

    def network(self, now_s: float, *, is_connected: bool, is_exchanging: bool) -> None:
        """Hear how the network side stands: if the coordinator is there, and if an op that we take
        part in is under way."""
        if is_connected:
            self._seen_s = now_s
        self.is_lonely = not is_connected and now_s - self._seen_s >= self._lonely_s
        if self._is_leaving and self._waits:
            is_late = now_s - self._given_s > self._patience_s
            in_vain = not is_exchanging and (self._stands_still or is_late)
            self._round_ended |= self.is_lonely or in_vain

    def leave_soon(self) -> None:
        """Leave when the round under way has ended. Safe to call from a signal handler."""
        self._is_leaving = True

    def finish_round(self, now_s: float) -> Actions:
        """Give what there is, be it less than a round's steps, and leave when it has an outcome."""
        self._is_leaving = self._is_finishing = True
        driver = self._driver
        if driver.op >= 0 and driver.has_steps and not driver.is_waiting:
            return self._give(now_s)
        return ()

    def stepped_elsewhere(self) -> None:
        """One inner step was made, by whoever trains several groups; `give` tells its samples."""
        self._driver.stepped(0)

    def hurry(self) -> None:
        """No inner step comes before the next `give`: outcomes wait for no later place."""
        self._hurries = True

    def give(self, samples: int, now_s: float) -> Actions:
        """Give the work of a round over so many samples, however many steps others made of it."""
        self._driver.stepped(samples)
        self._round_ended = False
        return self._give(now_s)

    def take_back(self) -> None:
        """No op takes what was given last: it stays work of our own, for the next one."""
        self._driver.skip(self._driver.op)
        self._round_ended = True

    # ---- what follows

    def advance(self, now_s: float) -> Actions:
        """Take one outcome whose place is reached, or give a part that is due; () for neither. The
        caller carries out the returned actions before the next call."""
        if self._outcomes and not self._is_early(self._outcomes[0]):
            return self._take(self._outcomes.popleft())
        driver = self._driver
        ends = self.should_stop or (self._is_leaving and driver.is_waiting) or self._ends_by_word
        return self._give(now_s) if driver.is_due and not ends else ()

    @property
    def should_stop(self) -> bool:
        """True if the run is over, or the round after which the peer was to leave."""
        return self.is_finished or (self._is_leaving and self._round_ended)

    @property
    def is_between_rounds(self) -> bool:
        """True if the last round has ended and no inner step of the next one was made."""
        return self._round_ended and not self._driver.is_waiting and self._driver.op >= 0

    @property
    def holds_back(self) -> bool:
        """True if no inner step may be made now: there is no state yet, or the step's outcome is
        still awaited, with the coordinator or at the end of a round made alone."""
        if self.should_stop:
            return False
        return self._driver.op < 0 or (self._waits and not self.is_alone)

    @property
    def is_alone(self) -> bool:
        """True if inner steps are made although an outcome is awaited."""
        return self._waits and self.is_lonely and self._extra_steps < self._steps_per_round

    # ---- parts

    @property
    def _waits(self) -> bool:
        driver = self._driver
        return driver.is_waiting and (driver.is_at_place or self._is_finishing)

    def _is_early(self, outcome: Outcome) -> bool:
        """An overlapped op's outcome waits for the step where all peers put it."""
        has_place = isinstance(outcome, do.ApplyResult | do.OpSkipped)
        waits = self._driver.is_waiting and not self._driver.is_at_place
        return has_place and waits and not (self._is_leaving or self._hurries)

    def _give(self, now_s: float) -> Actions:
        part = self._driver.contribute()
        steps_per_s = self._pace.end_round() if self._driver.keeps_pace else 0.0
        self._given_s = now_s
        self._extra_steps = 0
        self._hurries = False
        return (Ready(part, steps_per_s),)

    def _take(self, outcome: Outcome) -> Actions:
        match outcome:
            case do.LoadState():
                return self._load(outcome)
            case do.ApplyResult():
                return self._apply(outcome.result)
            case do.OpSkipped():
                self._driver.skip(outcome.op)
                self._round_ended = not self._driver.is_waiting
                report = RoundReport(outcome.op, "skipped", 0, outcome.reason)
                return (*self._ahead(), Ended(report))
            case do.RunFinished():
                self._driver.settle()
                self.is_finished, self.final_loss = True, outcome.loss
                self.final_rounds = outcome.rounds or self._rounds
                return ()

    def _load(self, action: do.LoadState) -> Actions:
        image = self._driver.load(action)
        is_ours = action.op == 0 and action.manifest.root == self.offered_root
        judged = (Evaluate(0),) if is_ours else ()
        return (Loaded(image), Applied(image), *self._ahead(), *judged)

    def _apply(self, result: OpResult) -> Actions:
        driver = self._driver
        took_part = driver.is_waiting
        image = driver.end_op(result)
        driver.keep_pace(self._pace.steps_per_s, result.fastest_steps_per_s)
        self._round_ended = not driver.is_waiting
        report = self._report(result, took_part=took_part)
        # Where every step is a round, evaluating each would cost more than training.
        is_judged = self._steps_per_round > 1 or result.op % _JUDGED_STEPS == 0
        judged = (Evaluate(result.op),) if result.evaluate_by == self._me and is_judged else ()
        told = (KeepResult(result), Applied(image), *self._ahead())
        return (*told, Ended(report, result), *judged)

    def _report(self, result: OpResult, *, took_part: bool) -> RoundReport:
        """Say how a committed op ended for this peer."""
        driver = self._driver
        if driver.is_paired and not result.slices:
            outcome, contributors = ("alone", 1) if driver.is_alone else ("followed", 0)
            return RoundReport(result.op, outcome, contributors)
        named = result.ranges[0][2]
        outcome = "merged" if driver.included else "left-out"
        if result.replayed or not took_part:
            outcome = "replayed" if result.replayed else "followed"
        others = (peer for peer in named if peer != self._me)
        partner = next(others, b"") if driver.is_paired else b""
        return RoundReport(result.op, outcome, len(named), partner=partner, chain=result.chain)

    def _ahead(self) -> Actions:
        """Send the next op's partner the known part of our contribution during the inner steps."""
        known = None if self._is_leaving else self._driver.known_ahead()
        return () if known is None else (GiveAhead(*known, self._rounds),)
