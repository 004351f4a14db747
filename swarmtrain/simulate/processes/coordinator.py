"""The simulated coordinator: the production rendezvous on a pretended disk that takes time."""

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from swarmtrain.coordinator.corpus_service import CorpusService
from swarmtrain.simulate.checks.lease_checks import LeaseChecks
from swarmtrain.simulate.checks.way_checks import WayChecks
from swarmtrain.simulate.ground.control import ControlLanes
from swarmtrain.simulate.ground.process import Process
from swarmtrain.simulate.ground.routers import CONE, OPEN, Routers
from swarmtrain.simulate.ground.scene import Scene
from swarmtrain.simulate.processes.reading import service_of
from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.departures import Order
from swarmtrain_transport.coordinator.members.meetings import Means
from swarmtrain_transport.coordinator.members.roster import PeerLine
from swarmtrain_transport.coordinator.ops.planning import RunTerms
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.coordinator.stages.stage_rounds import PipelineTerms
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.links.ways import TOKEN_BYTES, Side, Way
from swarmtrain_transport.pipeline.coordinator.assignment import StageNeed
from swarmtrain_transport.wire.messages import Hello, LeaseRequest, Met, PeerMessage, Released
from swarmtrain_transport.wire.records import Record, Sign, Verify

_NEVER_S = float("inf")
_INVITE = "invite"

_DIAL_S = 5.0
_UNTRIED = 0.2
"""A try to reach a peer takes so long at most, and is not made in so many cases."""

_BLIND_EVERY = 8
"""Worlds of which one has a coordinator that shows nobody how it looks."""


class CoordinatorWatch(Protocol):
    """Looks on at what the coordinator decides."""

    def logged(self, record: Record) -> None:
        """A record was appended."""

    def coordinator_fell(self, seconds: float = 0.0) -> None:
        """Hear that it is not there for so long, and that its timers begin anew."""

    def refused(self, peer: PeerId, fault: RemoteFault) -> None:
        """Hear that it refuses a peer's message."""

    def released(self, peer: PeerId) -> None:
        """Hear that it lets a leaving peer go."""

    @property
    def leases(self) -> LeaseChecks:
        """Looks on at the leases of text."""

    @property
    def ways(self) -> WayChecks:
        """Looks on at meetings."""


class SimCoordinator(Process):
    """Dies with everything in memory; `disk` is what survives.

    Args:
        scene: clock and chance.
        control: control connections.
        terms: terms of the run.
        sign: stands in for the run key.
        verify: counterpart of `sign`.
        more_groups: terms of a second group, if there is one, or of all later stages.
        needs, pipeline: as of `Rendezvous`, in a run in stages.

    Attributes:
        watch: looks on.
    """

    watch: CoordinatorWatch

    def __init__(
        self, scene: Scene, control: ControlLanes, terms: RunTerms, sign: Sign, verify: Verify,
        more_groups: tuple[RunTerms, ...] = (), needs: Sequence[StageNeed] = (),
        pipeline: PipelineTerms | None = None,
    ) -> None:  # fmt: skip
        super().__init__(scene.clock, *scene.skew())
        self._scene = scene
        self._control = control
        self.terms = terms
        self._more_groups, self._needs, self._pipeline = more_groups, needs, pipeline
        self.disk: list[Record] = []
        self.machine: Rendezvous | None = None
        self.term = 0
        self.sync_s = scene.conditions.sync_s
        """Seconds until one record is durable."""
        self._sign = sign
        self._verify = verify
        self._wakeup_s = _NEVER_S
        self._to_do: deque[do.CoordinatorAction] = deque()
        self._is_writing = False
        self._life = 0
        """Counts starts; terms do not, for a restored disk may give one a second time."""
        self._has_begun = False
        """A record was on the disk: from then on an empty one has lost the ledger."""
        self.has_lost_ledger = False
        """The ledger was lost. Newcomers name an invite then: its copy may not know them."""
        self.wanted_rounds = 0
        """Rounds that the organiser has asked for, 0 before."""
        self.text_uses: dict[bytes, int] = {}
        self._texts: CorpusService | None = None
        self.routers: Routers | None = None
        """Routers before the peers: then it arranges ways."""

    def start(self) -> None:
        """A new life: replay the disk. One that holds nothing any more has lost the ledger."""
        if self.is_alive:
            return
        self.term += 1
        self._life += 1
        self.is_alive = True
        self._stopped_until_s = 0.0
        self.machine = Rendezvous(
            self.terms, bytes(32), self.disk, self._sign, self._verify, self.term, self.now_s,
            archive=self, more_groups=self._more_groups, needs=self._needs,
            pipeline=self._pipeline, has_experts=self._scene.conditions.are_experts,
            is_lost=self._has_begun and not self.disk, rounds=self.wanted_rounds,
            means=self._means(),
        )  # fmt: skip
        conditions = self._scene.conditions
        self._texts = service_of(
            conditions.text_pieces, conditions.seed, dict(self.text_uses), self._keep_uses
        )
        if self._texts is not None:
            self.watch.leases.began(self._texts.pieces)
            self.machine.reads(self._texts.progress)
        self._act(self.machine.start(self.now_s))

    def _means(self) -> Means | None:
        if self.routers is None:
            return None
        rng = random.Random(f"tokens {self._scene.conditions.seed} {self._life}")
        has_mirror = self._scene.conditions.seed % _BLIND_EVERY > 0
        return Means(partial(rng.randbytes, TOKEN_BYTES), has_mirror, relay_bytes_per_s=1)

    # ---- its own port

    def takes(self, token: bytes, side: Side) -> Way | None:
        """Take a connection that brings a token."""
        if self.machine is None or self.is_stopped:
            return None
        way = self.machine.takes(token, side)
        if way is not None:
            self.watch.ways.taken(token, side, way)
        return way

    def show(self, token: bytes, side: Side, host: str, port: int) -> None:
        """A connection has come from this address."""
        self.hear(self._shown, token, side, host, port)

    def _shown(self, token: bytes, side: Side, host: str, port: int) -> None:
        if self.takes(token, side) is Way.PUNCHED and self.machine is not None:
            self._act(self.machine.mirrored(token, side, host, port, self.now_s))

    def _dial(self, peer: PeerId) -> None:
        """Try to open a connection to a peer, where it comes from."""
        routers, rng = self.routers, self._scene.rng
        if routers is None or rng.random() < _UNTRIED:
            return
        is_open = routers.kind(peer) in (OPEN, CONE)
        self.clock.after(_DIAL_S * rng.random(), partial(self.hear, self._dialled, peer, is_open))

    def _dialled(self, peer: PeerId, is_open: bool) -> None:
        if self.machine is not None:
            self._act(self.machine.dialled(peer, is_open=is_open, now_s=self.now_s))

    @property
    def lines(self) -> Mapping[PeerId, PeerLine]:
        """Peers of whom this life has heard."""
        return self.machine.lines if self.machine is not None else {}

    def extend(self, rounds: int) -> None:
        """The organiser wants so many rounds, now or when it is started again."""
        self.wanted_rounds = rounds
        self.hear(self._extend)

    def _extend(self) -> None:
        if self.machine is not None:
            self._act(self.machine.extend(self.wanted_rounds, self.now_s))

    def order(self, order: Order) -> None:
        """Hear the organiser's word on a peer."""
        self.hear(self._ordered, order)

    def _ordered(self, order: Order) -> None:
        if self.machine is not None:
            self._act(self.machine.ordered(order, self.now_s))

    def lose_ledger(self) -> None:
        """Lose all that a dead coordinator had on its disk but for its key."""
        self.disk.clear()
        self.term, self.has_lost_ledger = 0, True

    def _keep_uses(self, uses: Mapping[bytes, int]) -> None:
        self.text_uses.update(uses)
        self.watch.leases.used(uses)

    def read(self, first: int, stop: int) -> list[Record]:
        """Records that are on the disk."""
        return self.disk[first:stop]

    def crash(self, *, keeps_torn: bool = False) -> None:
        """kill -9. Messages that were not yet delivered are lost.

        Args:
            keeps_torn: True if a record that was being written at this moment is on the disk.
        """
        if self._is_writing and keeps_torn:
            record = self._to_do[0]
            assert isinstance(record, do.Append)
            self._append(record.record)
        self.die()
        self.machine = None
        self._wakeup_s = _NEVER_S
        self._to_do.clear()
        self._is_writing = False

    # ---- events, when it hears of them

    def hello(self, peer: PeerId, hello: Hello) -> None:
        """A peer is at the door."""
        assert self.machine is not None
        roster = self.machine.view.roster
        if peer not in roster and len(roster) >= limits.RUN_PEERS_MAX:
            self._control.close(peer)  # as the door does, which no machine sees
            return
        try:
            invite_id = _INVITE if self.has_lost_ledger else ""
            remote = "" if self.routers is None else self.routers.remotes[peer]
            let_in = self.machine.connected(
                peer, hello, self.now_s, invite_id=invite_id, remote=remote
            )
            self._act([*let_in, *self._placed(self.machine)])
            self._dial(peer)
        except RemoteFault as fault:
            self.watch.refused(peer, fault)

    def _placed(self, machine: Rendezvous) -> list[do.CoordinatorAction]:
        """Put peers into the second group until it has as many as it should: the last of them
        into that alone, if enough are there in the first group without it."""
        are_placed = self._pipeline is not None or self._scene.conditions.are_experts
        if len(machine.groups) < 2 or are_placed:
            return []
        view, lines, conditions = machine.view, machine.lines, self._scene.conditions
        first, second = view.groups[0].members, view.groups[1].members
        outside = [peer for peer in view.roster if peer not in second]
        actions: list[do.CoordinatorAction] = []
        while outside and len(second) < conditions.stage_peers:
            there = [peer for peer in first if peer in lines and lines[peer].connected]
            is_spare = len(there) > conditions.num_peers
            peer, groups = (outside.pop(), (1,)) if is_spare else (outside.pop(0), (0, 1))
            actions += machine.place(peer, groups, self.now_s)
            if peer not in second:
                break  # nothing may be decided now
        return actions

    def message(self, peer: PeerId, message: PeerMessage) -> None:
        """A message of a connected peer."""
        assert self.machine is not None
        try:
            if isinstance(message, LeaseRequest):
                self._lease(peer, message)
            else:
                self._act(self.machine.received(peer, message, self.now_s))
                if isinstance(message, Met) and self.machine.meetings.is_standing(message.token):
                    self.watch.ways.stood(message.token)
        except RemoteFault as fault:
            self.watch.refused(peer, fault)

    def _lease(self, peer: PeerId, request: LeaseRequest) -> None:
        assert self._texts is not None and self.machine is not None
        grant = self._texts.grant(peer, request)
        self.watch.leases.granted(peer, request.held, grant.train)
        self.machine.reads(self._texts.progress)
        self._control.to_peer(peer, grant)

    def closed(self, peer: PeerId) -> None:
        """A peer's connection is gone."""
        assert self.machine is not None
        if self._texts is not None:
            self._texts.release(peer)
            self.watch.leases.released(peer)
        self._act(self.machine.disconnected(peer, self.now_s))

    # ---- actions

    def _act(self, actions: Iterable[do.CoordinatorAction]) -> None:
        """Append first, then send, in the machine's order; nothing comes between."""
        self._to_do += actions
        if self._to_do:
            self._carry_out()
        else:
            self._sleep()

    def _carry_out(self) -> None:
        """Go on until everything is done or a record must become durable first."""
        while self._to_do:
            action = self._to_do[0]
            if isinstance(action, do.Append):
                if self.sync_s:
                    self._is_writing = True
                    written_s = self.clock.now_s + self.sync_s * (0.5 + self._scene.rng.random())
                    self.clock.at(written_s, partial(self._written, self._life))
                    return
                self._append(action.record)
            elif isinstance(action, do.Adopt):
                self.disk += action.records
                self.term = action.term
                self.watch.coordinator_fell()  # the op goes on with full timers
            elif isinstance(action, do.SendToPeer):
                if isinstance(action.message, Released):
                    self.watch.released(action.peer)
                self._control.to_peer(action.peer, action.message)
            else:
                self._control.close(action.peer)
            self._to_do.popleft()
        self._sleep()

    def _written(self, life: int) -> None:
        """The record is durable: now what follows from it may be sent."""
        if not self.is_alive or self._life != life:
            return
        if self.clock.now_s < self._stopped_until_s:
            self.clock.at(self._stopped_until_s, lambda: self._written(life))
            return
        action = self._to_do.popleft()
        assert isinstance(action, do.Append)
        self._is_writing = False
        self._append(action.record)
        self._carry_out()
        self._go_on()

    @property
    def is_stopped(self) -> bool:
        """Also while a record is being written: an append blocks the loop."""
        return self._is_writing or super().is_stopped

    def _append(self, record: Record) -> None:
        self.disk.append(record)
        self._has_begun = True
        self.watch.logged(record)

    def _sleep(self) -> None:
        if self.machine is None:
            return
        wakeup_s = self.machine.next_wakeup_s
        if wakeup_s < self._wakeup_s:
            self._wakeup_s = wakeup_s
            self.clock.at(self.world_s(wakeup_s), partial(self.hear, self._wake, wakeup_s))

    def _wake(self, wakeup_s: float) -> None:
        if self.machine is None or self._wakeup_s != wakeup_s:
            return
        self._wakeup_s = _NEVER_S
        if self.machine.next_wakeup_s > max(self.now_s, wakeup_s):
            self._sleep()  # put off since: cheaper than a new timer with every message
        else:
            due = self.machine.tick(max(self.now_s, wakeup_s))
            self._act([*due, *self._placed(self.machine)])
