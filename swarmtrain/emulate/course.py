"""The course of an emulation as one machine: hears events, wishes what its shell shall do.

No processes and no clock here. It draws from its seed whom to kill, has the killed started again,
notices programs that fail or never join, and keeps what table and report need.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from swarmtrain.console.lines import counted
from swarmtrain.foundation.events import Finished, In, Left, Ready, RoundEnded, StateInPlace
from swarmtrain.local_run.place import COORDINATOR
from swarmtrain.local_run.processes import Ended, Heard, Kill, Say, Start
from swarmtrain_transport.coordinator.status import CoordinatorStatus, PeerStatus

HINT_S = 60.0
"""Nobody has joined for so long: it is said what a program must do."""

PATIENCE_S = 600.0
"""Nobody has joined for so long: nobody will. Some load their data first."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The emulation is over. `name` is the process to look at, `code` an id of the error table."""

    code: str
    text: str
    name: str


Wish = Say | Start | Kill | Fail


@dataclass(slots=True)
class PeerFacts:
    """One peer through all its lives.

    Attributes:
        key: public key of its newest life, in hex.
        state: word of the table for it.
        round: newest round whose outcome it has.
        outcome: word for how that round ended.
        roots: state roots then, in hex, by stage where the model is in stages; else under "".
        loss_first: first training loss that it told.
        loss_last: newest training loss that it told.
        tells_loss: True if its newest life has told a loss itself.
        is_running: True while its process is there.
        is_in_place: True while it holds the run's state.
        has_joined: True if it was in the run, in whatever life.
        has_left: True if its newest life has left the run.
        status: exit status of its newest life.
        earlier: bytes up and down of its earlier lives.
        moved: bytes up and down of its newest life.
    """

    name: str
    key: str = ""
    state: str = "starting"
    round: int = 0
    outcome: str = ""
    roots: dict[str, str] = field(default_factory=dict)
    loss_first: float | None = None
    loss_last: float | None = None
    tells_loss: bool = False
    kills: int = 0
    tokens_per_s: float = 0.0
    is_running: bool = False
    is_in_place: bool = False
    has_joined: bool = False
    has_left: bool = False
    status: int | None = None
    earlier: tuple[int, int] = (0, 0)
    moved: tuple[int, int] = (0, 0)

    @property
    def bytes_up(self) -> int:
        """Bytes sent in all its lives."""
        return self.earlier[0] + self.moved[0]

    @property
    def bytes_down(self) -> int:
        """Bytes received in all its lives."""
        return self.earlier[1] + self.moved[1]


def mean_words(loss: float, losses: Sequence[float]) -> str:
    """Return a mean loss in words; of one peer it is none."""
    return f"{loss:.3f} {'in the mean' if len(losses) > 1 else 'of one peer'}"


class Course:
    """The course of an emulation.

    Args:
        seed: seed of the draw of whom to kill.
        kill_every_s: 0 to kill nobody.

    Attributes:
        status: the coordinator's newest answer.
        result: result of the run, once it is finished.
        is_over: every program has ended.
    """

    def __init__(
        self, names: Sequence[str], *, seed: int = 0, kill_every_s: float = 0.0, now_s: float
    ) -> None:
        self.peers = {name: PeerFacts(name) for name in names}
        self.status: CoordinatorStatus | None = None
        self.result = ""
        self.is_over = False
        self.rounds = 0
        self._chance = random.Random(seed)
        self._kill_every_s = kill_every_s
        self._began_s = now_s
        self._next_kill_s: float | None = None
        self._told_round = 0
        self._has_hinted = False
        self._is_finished = False

    # ---- events

    def hear(self, name: str, event: Heard, now_s: float) -> list[Wish]:
        """Hear what came from a process."""
        if name == COORDINATOR:
            return self._of_coordinator(event)
        peer = self.peers[name]
        match event:
            case In():
                peer.key, peer.state, peer.has_joined = event.peer, "syncing", True
                return [Say(f"{name} is in" if not peer.kills else f"{name} is in again")]
            case StateInPlace():
                return self._in_place(peer, event, now_s)
            case RoundEnded():
                return self._round_ended(peer, event)
            case Left():
                return self._left(peer, event)
            case Ended():
                return self._ended(peer, event)
        return []

    def tick(self, now_s: float) -> list[Wish]:
        """Time has passed."""
        if not any(peer.has_joined for peer in self.peers.values()):
            return self._nobody_joins(now_s - self._began_s)
        if self._next_kill_s is None or now_s < self._next_kill_s or self._is_finished:
            return []
        well = [peer for peer in self.peers.values() if peer.is_running and peer.is_in_place]
        if len(well) < 2:
            return []  # as soon as another one is there to go on
        self._next_kill_s = now_s + self._kill_every_s
        victim = self._chance.choice(well)
        victim.kills += 1
        victim.state, victim.is_in_place = "killed", False
        return [Kill(victim.name), Say(f"{victim.name} is killed after round {victim.round}")]

    # ---- of the coordinator

    def _of_coordinator(self, event: Heard) -> list[Wish]:
        match event:
            case Ready():
                return [self._begin(peer) for peer in self.peers.values()]
            case CoordinatorStatus():
                self._look(event)
            case Finished():
                self._finish(event.result)
            case Ended() if not (self._is_finished and event.status == 0) and not self.is_over:
                text = f"The coordinator has ended ({event.words})."
                return [Fail("SWT-E650", text, COORDINATOR)]
        return []

    def _look(self, status: CoordinatorStatus) -> None:
        self.status = status
        self.rounds = max(self.rounds, status.committed)
        told = {peer.peer: peer for peer in status.peers}
        for peer in self.peers.values():
            if peer.key in told and peer.is_running and not peer.has_left:
                self._look_at(peer, told[peer.key])

    def _look_at(self, peer: PeerFacts, told: PeerStatus) -> None:
        peer.moved = (told.bytes_up, told.bytes_down)
        peer.tokens_per_s = told.tokens_per_s
        if peer.is_in_place:
            peer.state = told.state
        # The way over the coordinator is longer: its word may be of an earlier round.
        if told.loss and not peer.tells_loss:
            self._hear_loss(peer, told.loss)

    # ---- of a peer

    def _begin(self, peer: PeerFacts) -> Start:
        peer.is_running, peer.state, peer.has_left = True, "starting", False
        peer.tells_loss = False
        peer.earlier, peer.moved = (peer.bytes_up, peer.bytes_down), (0, 0)
        return Start(peer.name)

    def _in_place(self, peer: PeerFacts, event: StateInPlace, now_s: float) -> list[Wish]:
        peer.is_in_place, peer.state = True, "training"
        peer.round = max(peer.round, event.round)
        if peer.kills:
            return [Say(f"{peer.name} has the run's state after round {event.round}")]
        if not all(one.is_in_place for one in self.peers.values()) or self._next_kill_s is not None:
            return []
        if self._kill_every_s:
            self._next_kill_s = now_s + self._kill_every_s
        return [Say("all hold the same weights, and train")]

    def _round_ended(self, peer: PeerFacts, event: RoundEnded) -> list[Wish]:
        peer.round, peer.outcome = max(peer.round, event.round), event.outcome
        if event.root:
            peer.roots = {str(event.stage) if event.stage else "": event.root}
        if event.loss is not None:
            peer.tells_loss = True
            self._hear_loss(peer, event.loss)
        if event.outcome not in ("replayed", "skipped"):
            self.rounds = max(self.rounds, event.round)
        if event.round <= self._told_round or event.outcome == "replayed":
            return []
        self._told_round = event.round
        if event.outcome == "skipped":
            return [Say(f"round {event.round}: no result")]
        losses = [one.loss_last for one in self.peers.values() if one.loss_last is not None]
        loss = f", training loss {mean_words(sum(losses) / len(losses), losses)}" if losses else ""
        return [Say(f"round {event.round}: {counted(event.contributors, 'peer')}{loss}")]

    def _hear_loss(self, peer: PeerFacts, loss: float) -> None:
        if peer.loss_first is None:
            peer.loss_first = loss
        peer.loss_last = loss

    def _left(self, peer: PeerFacts, event: Left) -> list[Wish]:
        peer.state, peer.has_left, peer.is_in_place = "left", True, False
        peer.round = max(peer.round, event.round)
        peer.moved = (event.bytes_up, event.bytes_down)
        peer.roots = dict(event.roots) or ({"": event.root} if event.root else peer.roots)
        if event.result:
            self._finish(event.result)
        is_last = self._is_last(event.round)
        why = ", the run's last" if is_last else ", before the end of the run"
        if event.result:
            why = ": the run is finished"
        return [Say(f"{peer.name} leaves after round {event.round}{why}")]

    def _ended(self, peer: PeerFacts, event: Ended) -> list[Wish]:
        was_killed = peer.state == "killed"
        peer.is_running, peer.is_in_place, peer.status = False, False, event.status
        if was_killed and not self._is_finished:
            return [self._begin(peer), Say(f"{peer.name} is started again")]
        # A peer that was killed as the run ended comes to a closed door.
        too_late = self._is_finished and peer.kills > 0
        if not too_late:
            if not peer.has_joined:
                return [self._never_joined(peer, event)]
            if event.status != 0:
                text = f"The program of {peer.name} has failed ({event.words})."
                return [Fail("SWT-E650", text, peer.name)]
        if not peer.has_left:
            peer.state = "ended"
        self.is_over = not any(one.is_running for one in self.peers.values())
        return []

    def _never_joined(self, peer: PeerFacts, event: Ended) -> Fail:
        if event.status != 0:
            text = f"The program of {peer.name} failed before it joined ({event.words})."
            return Fail("SWT-E650", text, peer.name)
        return Fail(
            "SWT-E651", f"The program of {peer.name} has ended and never joined.", peer.name
        )

    def _nobody_joins(self, seconds: float) -> list[Wish]:
        name = next(iter(self.peers))
        if seconds > PATIENCE_S:
            text = f"No program has joined within {PATIENCE_S / 60:.0f} minutes."
            return [Fail("SWT-E651", text, name)]
        if seconds > HINT_S and not self._has_hinted:
            self._has_hinted = True
            return [Say(f"nobody has joined for {HINT_S:.0f} s: does it call swarmtrain.join?")]
        return []

    def _finish(self, result: str) -> None:
        self._is_finished = True
        self.result = self.result or result

    def _is_last(self, number: int) -> bool:
        return self.status is not None and number >= self.status.rounds

    @property
    def is_finished(self) -> bool:
        """True if the run's last round is committed."""
        return self._is_finished or self._is_last(self.rounds)
