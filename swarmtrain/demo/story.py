"""The demo's course as one machine: hears events, wishes what the stage hands shall do.

No processes and no clock here: events come in with their time, wishes go out. Whatever is said is
a sentence that somebody understands who has never heard of this project.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from swarmtrain.console.lines import counted
from swarmtrain.demo.setting import KILL_ROUND, Cast
from swarmtrain.foundation.events import (
    Evaluated,
    Finished,
    Frozen,
    In,
    Left,
    Offended,
    Ready,
    RoundEnded,
    Serving,
    StateInPlace,
    Waiting,
)
from swarmtrain.local_run.place import COORDINATOR
from swarmtrain.local_run.processes import Ended, Heard, Kill, Say, Start
from swarmtrain.pipeline.costs import span_words
from swarmtrain_transport.coordinator.status import CoordinatorStatus

STALL_S = 300.0
"""Silence after which the demo has ended. An op takes two minutes at most (twice its deadline);
on a crowded machine the inner steps before it take as long again."""

_LAST_PEER_S = 60.0
"""A newcomer that is left behind by all others has nobody to ask any more; the coordinator lets
peers go after half of this time."""


_KILLED_LATER = 3
"""Rounds that may begin without the peer that is to be killed, where nobody is waited for."""


@dataclass(frozen=True, slots=True)
class Invite:
    """Give this peer the invite."""

    name: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The demo is over and did not show what it should. `name` is the process to look at."""

    text: str
    name: str


Wish = Say | Invite | Start | Kill | Fail


class Killed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The peer that was killed, and how far it had come."""

    peer: str
    round: int
    phase: str
    chunks_sent: int
    chunks_total: int
    micro_batches: int = 0


@dataclass(slots=True)
class Facts:
    """Facts that are known for sure, for view and report.

    Attributes:
        names: peers' names by their keys in hex.
        losses: validation loss by round, in nats per byte.
        committed: rounds with a result, and how many peers are in it.
        left: way in which each peer left.
        replayed: rounds that the newcomer replayed.
        told: partner and chain of each peer by round, where rounds go by pairs.
        alone: steps that peers made without a partner.
        spans: stages of each peer, where the model is in stages.
        status: the coordinator's newest answer.
    """

    names: dict[str, str] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    left: dict[str, Left] = field(default_factory=dict)
    replayed: list[int] = field(default_factory=list)
    told: dict[int, dict[str, tuple[str, str]]] = field(default_factory=dict)
    alone: int = 0
    spans: dict[str, range] = field(default_factory=dict)
    killed: Killed | None = None
    status: CoordinatorStatus | None = None


class Story:
    """The course of a demo.

    Attributes:
        is_over: everybody has left as they should.
    """

    def __init__(self, cast: Cast, rounds: int, now_s: float) -> None:
        self.facts = Facts()
        self.is_over = False
        self._cast = cast
        self._rounds = rounds
        self._in_place: set[str] = set()
        self._ended: set[str] = set()
        self._told_round = 0
        self._skipped: set[int] = set()
        self._mark_s = now_s
        self._round_s = 0.0
        self._is_started = False
        self._is_invited = False
        self._has_joined = False
        self._last_news_s = now_s
        self._founders_left_s: float | None = None

    # ---- events

    def hear(self, name: str, event: Heard, now_s: float) -> list[Wish]:
        """Hear what came from a process. Only the coordinator's answers come unasked for, so
        they are no news."""
        if isinstance(event, CoordinatorStatus):
            self.facts.status = event
            return []
        self._last_news_s = now_s
        match event:
            case Ready():
                return [Invite(founder) for founder in self._cast.founders]
            case In():
                self.facts.names[event.peer] = name
                return self._on_in(name)
            case Serving():
                self.facts.spans[name] = range(event.first, event.last + 1)
                return self._on_serving(name, event)
            case StateInPlace():
                return self._on_state(name, event, now_s)
            case RoundEnded():
                return self._on_round(name, event, now_s)
            case Evaluated():
                return self._on_evaluated(event)
            case Frozen():
                return self._on_frozen(name, event)
            case Left():
                self.facts.left[name] = event
                return [*self._round_line(), Say(f"{name} leaves: the run is finished")]
            case Finished() | Waiting() | Offended():
                return []
            case Ended():
                return self._on_ended(name, event, now_s)

    def tick(self, now_s: float) -> list[Wish]:
        """Time has passed."""
        if self._founders_left_s is not None and now_s > self._founders_left_s + _LAST_PEER_S:
            text = "All others have finished and left before the newcomer had caught up."
            return [Fail(text, self._cast.newcomer or COORDINATOR)]
        if now_s > self._last_news_s + STALL_S:
            return [Fail(f"Nothing has happened for {STALL_S:.0f} s.", COORDINATOR)]
        return []

    # ---- handlers

    def _on_in(self, name: str) -> list[Wish]:
        if name != self._cast.newcomer:
            return [Say(f"{name} is in")]
        return [Say(f"{name} is in, with a key of its own; it asks the others for the weights")]

    def _on_serving(self, name: str, event: Serving) -> list[Wish]:
        return [Say(f"{name} serves {span_words(self.facts.spans[name])}: {event.why}")]

    def _on_state(self, name: str, event: StateInPlace, now_s: float) -> list[Wish]:
        if name == self._cast.newcomer:
            return [Say(f"{name} has downloaded the state after round {event.round}")]
        self._in_place.add(name)
        if self._in_place < set(self._cast.founders):
            return []
        self._mark_s = now_s
        if len(self._cast.founders) == 1:
            return [Say(f"{name} begins to train")]
        return [Say("all start from the same weights, those of the first peer, and train")]

    def _on_round(self, name: str, event: RoundEnded, now_s: float) -> list[Wish]:
        wishes = self._pairs_round(name, event)
        if name == self._cast.newcomer:
            wishes += self._newcomers_round(name, event)
        elif event.outcome == "left-out":
            wishes.append(Say(f"round {event.round} goes on without {name}, which keeps its work"))
        if event.outcome == "skipped":
            if event.round not in self._skipped:
                self._skipped.add(event.round)
                wishes.append(Say(f"round {event.round} was skipped; everybody trains on"))
        elif event.round not in self.facts.committed and event.outcome != "replayed":
            wishes += self._round_line()
            self.facts.committed[event.round] = event.contributors
            self._round_s, self._mark_s = now_s - self._mark_s, now_s
        return wishes + self._after_round(event.round)

    def _pairs_round(self, name: str, event: RoundEnded) -> list[Wish]:
        """Tell who exchanged with whom where rounds go by pairs, and who was left without a
        partner."""
        if event.partner:
            partner = self.facts.names.get(event.partner, event.partner[:8])
            self.facts.told.setdefault(event.round, {})[name] = (partner, event.chain)
        elif event.outcome == "alone":
            self.facts.alone += 1
            text = f"round {event.round}: {name} has no partner's half and makes its step alone"
            return [Say(text)]
        return []

    def _newcomers_round(self, name: str, event: RoundEnded) -> list[Wish]:
        if event.outcome == "replayed":
            self.facts.replayed.append(event.round)
            return [Say(f"{name} replays the result of round {event.round}")]
        if event.outcome == "merged" and not self._has_joined:
            self._has_joined = True
            return [Say(f"{name} has caught up, and its own work is in round {event.round}")]
        return []

    def _after_round(self, ended_round: int) -> list[Wish]:
        """Once the round of the death is over, the newcomer may come.

        Its process is started a round before, because loading torch beside busy peers takes about
        as long as a round; it knocks when it has the invite.
        """
        newcomer = self._cast.newcomer
        if newcomer is None or ended_round < KILL_ROUND - 1:
            return []
        wishes: list[Wish] = []
        if not self._is_started:
            self._is_started = True
            wishes.append(Start(newcomer))
        if ended_round < KILL_ROUND or self._is_invited:
            return wishes
        if self.facts.killed is None:
            if ended_round < KILL_ROUND + _KILLED_LATER:
                return wishes  # a round without it is no place for it to die
            victim = self._cast.victim or COORDINATOR
            text = f"Round {ended_round} ended before {victim} had come to the middle of it."
            return [Fail(text, victim)]
        self._is_invited = True
        text = f"a newcomer, {newcomer}, gets an invite; nobody waits for it"
        return [*wishes, Invite(newcomer), *self._round_line(), Say(text)]

    def _on_evaluated(self, event: Evaluated) -> list[Wish]:
        self.facts.losses.setdefault(event.round, event.loss)
        if event.round == 0:
            return [Say(f"validation loss before training: {event.loss:.3f} nats per byte")]
        if event.round <= self._told_round:
            return [Say(f"validation loss after round {event.round}: {event.loss:.3f}")]
        return self._round_line() if event.round in self.facts.committed else []

    def _on_frozen(self, name: str, event: Frozen) -> list[Wish]:
        self.facts.killed = Killed(
            name, event.round, event.phase, event.chunks_sent, event.chunks_total,
            event.micro_batches,
        )  # fmt: skip
        return [Kill(name), *self._round_line(), Say(self._last_words(name, event))]

    def _last_words(self, name: str, event: Frozen) -> str:
        return (
            f"{name} stops after sending {event.chunks_sent} of {event.chunks_total} chunks of "
            f"round {event.round}, and is killed: the others go on as if it had sent none"
        )

    def _on_ended(self, name: str, event: Ended, now_s: float) -> list[Wish]:
        self._ended.add(name)
        killed = self.facts.killed
        if killed is not None and name == killed.peer:
            return []
        if name == COORDINATOR:
            fine = event.status == 0 and len(self.facts.committed) >= self._rounds
        else:
            fine = event.status == 0 and name in self.facts.left
        if not fine:
            return [Fail(f"{name} ended unexpectedly ({event.words}).", name)]
        if set(self._cast.survivors) <= self.facts.left.keys() and self._founders_left_s is None:
            self._founders_left_s = now_s
        self.is_over = self._all_left()
        return []

    # ---- small parts

    def _all_left(self) -> bool:
        expected = {*self._cast.survivors}
        if self._cast.newcomer is not None:
            expected.add(self._cast.newcomer)
        return expected <= self.facts.left.keys() and expected <= self._ended

    def _round_line(self) -> list[Wish]:
        """The newest committed round's line, once: with its loss if that is known by now."""
        newest = max(self.facts.committed, default=0)
        if newest <= self._told_round:
            return []
        self._told_round = newest
        loss = self.facts.losses.get(newest)
        shown = f", validation loss {loss:.3f}" if loss is not None else ""
        took = f"{self._who(newest)}, {self._round_s:.1f} s{shown}"
        return [Say(f"round {newest} of {self._rounds} committed: {took}")]

    def _who(self, number: int) -> str:
        """Say who is in a committed round's result."""
        if self.facts.told or self.facts.alone:
            return "in pairs"
        return counted(self.facts.committed[number], "peer")


def lost(facts: Facts) -> list[tuple[str, int]]:
    """Peers that vanished without goodbye, and in which round."""
    found = {facts.killed.peer: facts.killed.round} if facts.killed is not None else {}
    for peer, number in _happened(facts, "lost"):
        found.setdefault(peer, number)
    return list(found.items())


def joined(facts: Facts, cast: Cast) -> list[tuple[str, int]]:
    """Peers that came after the start, and in which round."""
    return [(peer, number) for peer, number in _happened(facts, "joined")
            if peer not in cast.founders]  # fmt: skip


def _happened(facts: Facts, what: str) -> Iterable[tuple[str, int]]:
    events = facts.status.events if facts.status is not None else ()
    for event in events:
        if event.event == what and event.peer in facts.names:
            yield facts.names[event.peer], event.round
