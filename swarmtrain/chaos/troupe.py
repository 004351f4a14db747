"""The processes of a chaos and their links: what can be done to each, and how it is undone."""

import dataclasses
import signal
from dataclasses import dataclass, field

from swarmtrain.chaos.invariants import Life
from swarmtrain.chaos.plan import Deed, Step
from swarmtrain.local_run.place import COORDINATOR
from swarmtrain.local_run.processes import Processes
from swarmtrain.local_run.relays import Relay, Relays, Way
from swarmtrain_transport.credentials.invite import Invite

_HOST = "127.0.0.1"


@dataclass(slots=True)
class Actor:
    """One peer through all its lives.

    Attributes:
        data: relay that the other peers dial.
        control: relay that it dials to reach the coordinator.
        life: newest process of it.
        is_running: True while that process is there.
        is_in_place: True if it holds the run's state.
        may_end: True if its end was brought about.
        returns: True if it is started again as soon as it has ended.
        harmed: the deed that is not mended yet.
        merged_s: time when its part was last in a result.
    """

    name: str
    data: Relay
    control: Relay
    life: Life
    is_running: bool = True
    is_in_place: bool = False
    may_end: bool = False
    returns: bool = False
    harmed: Deed | None = None
    merged_s: float = -1.0

    @property
    def is_well(self) -> bool:
        """True if it takes part and nothing is being done to it."""
        return self.is_running and self.is_in_place and self.harmed is None and not self.may_end


@dataclass(slots=True)
class Troupe:
    """All processes and links.

    Attributes:
        processes: starts and ends them.
        actors: peers by name.
        lives: all processes of peers that there were, oldest first.
        invite: invite of the coordinator, "" before it is ready for the first time.
        is_coordinator_up: True while it takes peers.
        coordinator_may_end: True if its end was brought about.
        restarts: processes that were started again.
        are_dialled: peers dial each other and not each other's relays.
    """

    processes: Processes
    relays: Relays
    actors: dict[str, Actor] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    invite: str = ""
    is_coordinator_up: bool = False
    coordinator_may_end: bool = False
    coordinator_port: int = 0
    restarts: int = 0
    are_dialled: bool = False

    # ---- coming

    def add(self, name: str) -> None:
        """A peer with links of its own; its process is started."""
        data, control = self.relays.add(), self.relays.add()
        self.relays.call(control.aim, self.coordinator_port)
        life = Life(name)
        self.actors[name] = Actor(name, data, control, life)
        self.lives.append(life)
        self._start(self.actors[name])

    def start_again(self, actor: Actor) -> None:
        """A new process for a peer whose last one has ended."""
        self.restarts += 1
        actor.life = Life(actor.name)
        self.lives.append(actor.life)
        actor.is_running, actor.is_in_place = True, False
        actor.may_end = actor.returns = False
        self._start(actor)

    def _start(self, actor: Actor) -> None:
        relayed = "" if self.are_dialled else f"{_HOST}:{actor.data.port}"
        self.processes.start_peer(actor.name, advertise=relayed)
        if self.invite:
            self._hand_invite(actor)

    def coordinator_ready(self, invite: str, port: int) -> None:
        """Lead all control links to where the coordinator listens, maybe on another port than
        before."""
        is_first = not self.invite
        self.invite, self.coordinator_port = invite, port
        self.is_coordinator_up = True
        for actor in self.actors.values():
            self.relays.call(actor.control.aim, port)
            if is_first:
                self._hand_invite(actor)

    def _hand_invite(self, actor: Actor) -> None:
        invite = dataclasses.replace(
            Invite.parse(self.invite), host=_HOST, port=actor.control.port
        )  # fmt: skip
        self.processes.hand_invite(actor.name, str(invite))

    # ---- doing and undoing

    def do(self, step: Step) -> None:
        """Do it; the victim is well."""
        if step.deed is Deed.NEWCOMER:
            self.add(step.victim)
            return
        if step.deed is Deed.RESTART:
            self.coordinator_may_end, self.is_coordinator_up = True, False
            self.processes.kill(COORDINATOR)
            return
        if step.deed is Deed.STOP_COORDINATOR:
            self.is_coordinator_up = False
            self.processes.send_signal(COORDINATOR, signal.SIGSTOP)
            return
        actor = self.actors[step.victim]
        actor.harmed = step.deed
        if step.deed is Deed.KILL:
            actor.may_end = True
            self.processes.kill(actor.name)
        elif step.deed is Deed.LEAVE:
            actor.may_end = True
            self.processes.send_signal(actor.name, signal.SIGINT)
        elif step.deed is Deed.STOP:
            self.processes.send_signal(actor.name, signal.SIGSTOP)
        else:
            self._disturb(actor, step.deed)

    def _disturb(self, actor: Actor, deed: Deed) -> None:
        if deed in (Deed.CUT_DATA, Deed.CUT_ALL):
            self.relays.call(actor.data.cut)
        if deed in (Deed.CUT_CONTROL, Deed.CUT_ALL):
            self.relays.call(actor.control.cut)
        if deed is Deed.GARBLE:
            self.relays.call(actor.data.garble)
        if deed is Deed.MUTE_DATA:
            self.relays.call(actor.data.hold, Way.THERE)
        if deed is Deed.MUTE_UP:
            self.relays.call(actor.control.hold, Way.THERE)
        if deed is Deed.MUTE_DOWN:
            self.relays.call(actor.control.hold, Way.BACK)

    def mend(self, step: Step) -> None:
        """Undo it. An ended process is started again, at once or as soon as it has ended."""
        if step.deed is Deed.RESTART:
            self.restarts += 1
            self.processes.start_coordinator()
            return
        if step.deed is Deed.STOP_COORDINATOR:
            self.is_coordinator_up = True
            self.processes.send_signal(COORDINATOR, signal.SIGCONT)
            return
        actor = self.actors[step.victim]
        actor.harmed = None
        if step.deed is Deed.STOP:
            self.processes.send_signal(actor.name, signal.SIGCONT)
        elif step.deed in (Deed.KILL, Deed.LEAVE):
            if actor.is_running:
                actor.returns = True
            else:
                self.start_again(actor)
        else:
            self.relays.call(actor.data.heal)
            self.relays.call(actor.control.heal)
