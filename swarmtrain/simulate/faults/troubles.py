"""Troubles of a simulated world, kind by kind: whom they hit, and for how long.

Everything is drawn from one generator that the weather seeds before each strike.
"""

import random
from collections.abc import Callable
from functools import partial

from swarmtrain.simulate.checks.holding import holds
from swarmtrain.simulate.checks.invariants import Invariants
from swarmtrain.simulate.faults.hostile import Hostile
from swarmtrain.simulate.ground import misbehaviour as deeds
from swarmtrain.simulate.ground.handicaps import NO_HANDICAP, Handicap
from swarmtrain.simulate.ground.routers import Routers, SimWay
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.peer_disk import PeerDisk
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.departures import Ban, Pardon, Removal
from swarmtrain_transport.kinds import PAIR, WHOLE
from swarmtrain_transport.ledger.fold import OpView
from swarmtrain_transport.links.link import PeerId

_BACKUP_RECORDS_MIN = 8
_LOOK_S = 0.2
_PEERS_MAX_EXTRA = 2
_SENT_AWAY_MAX = 6
"""Peers of one world that the organiser does not want: each comes again in vain."""

_COLLUDERS_AMONG = 6
"""Peers among whom two are few."""


HOSTILE_OWNER = "hostile owner"
HOSTILE_WORDS = "hostile words"
DRAG = "drag"
HOSTILE = (HOSTILE_OWNER, HOSTILE_WORDS, DRAG)
"""Some worlds have one such member: that is their first fault."""

FORGERY = "forgery"
FLIP = "flipped bit"
CRASH = "coordinator crash"
LATE = "late frames"
ADDED = (FORGERY, FLIP, LATE)
"""Other worlds have one of these, beside what they have always had."""

HAND_OVER, BAN, LOST_LEDGER, COLLUSION = "hand-over", "ban", "lost ledger", "collusion"
BESIDE = (HAND_OVER, BAN, LOST_LEDGER, COLLUSION)
"""Kinds that are drawn beside all others, so that worlds without them stay what they were."""

BROKEN_WAY, BLOCKED, UNHEARD, DOUBTED = "broken way", "blocked dial", "unheard meet", "doubted way"
MOVED, MAPPED, REPLAYED = "moved peer", "mapped port", "replayed token"
WAYS = (BROKEN_WAY, BLOCKED, UNHEARD, DOUBTED, MOVED, MAPPED, REPLAYED)
"""Kinds that need routers before the peers."""

HOSTILE_SUMS, LOST_SUMS, OWNER_DEATH = "hostile sums", "lost sums", "death of an owner"
CELLS = (HOSTILE_SUMS, LOST_SUMS, OWNER_DEATH)
"""Kinds that need means in cells."""

OWNERS_DEEDS = (HOSTILE_OWNER, HOSTILE_WORDS, FORGERY, COLLUSION)
"""Kinds that need owners; where contributions stay whole there are none."""

LONGEST_S = 400.0
"""A world's faults stop after so long at the latest."""


class Troubles:
    """All kinds of trouble of one world.

    Args:
        swarm: swarm that they hit; its peers are numbered from 0.
        checks: checks that are told who is in trouble.
        rng: draws whom and for how long.
        reckless: True if the newest state may be lost.

    Attributes:
        is_calm: nobody who comes now is handicapped.
    """

    def __init__(
        self, swarm: Swarm, checks: Invariants, rng: random.Random, *, reckless: bool
    ) -> None:
        self.is_calm = False
        self.is_reckless = reckless
        self._swarm = swarm
        self._scene = swarm.scene
        self._checks = checks
        self._rng = rng
        self._hostile = Hostile(swarm, checks, rng)
        self._unwanted: set[PeerId] = set()
        self._every = self._kinds_of_trouble()

    def _kinds_of_trouble(self) -> dict[str, Callable[[], str | None]]:
        return {
            "death": self._death,
            "double death": self._double_death,
            "restart": self._restart,
            "goodbye": self._goodbye,
            "newcomer": self._newcomer,
            "broken control": self._blink,
            "stalled control": self._stall,
            "lost frames": self._drop,
            "one-way cut": self._cut,
            CRASH: self._crash,
            "restored backup": self._restore,
            "coordinator stop": self._stop_coordinator,
            "slow disk": self._slow_disk,
            "stop": self._stop,
            "hostile frame": self._hostile.frame,
            "hostile control": self._hostile.control,
            "coordinator crash and death": self._crash_and_death,
            HOSTILE_OWNER: self._hostile_owner,
            HOSTILE_WORDS: lambda: self._hostile_member(deeds.WORDS),
            DRAG: lambda: self._hostile_member(deeds.DRAGS),
            FORGERY: lambda: self._hostile_member(deeds.FORGERIES),
            FLIP: self._flip,
            LATE: self._late,
            HAND_OVER: self._hand_over,
            BAN: self._ban,
            LOST_LEDGER: self._lose_ledger,
            COLLUSION: self._collude,
            BROKEN_WAY: self._break_way,
            BLOCKED: self._block,
            UNHEARD: self._deafen,
            DOUBTED: self._doubt,
            MOVED: self._move,
            MAPPED: self._map,
            REPLAYED: self._replay,
            HOSTILE_SUMS: lambda: self._hostile_member(deeds.SUMS),
            LOST_SUMS: self._lose_sums,
            OWNER_DEATH: self._owner_death,
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of all kinds of trouble."""
        return tuple(self._every)

    # ---- ways

    def _way(self) -> tuple[Routers, SimWay] | None:
        routers = self._swarm.network.routers
        ways = routers.standing() if routers is not None else []
        return (routers, self._rng.choice(ways)) if routers is not None and ways else None

    def _break_way(self) -> str | None:
        """Have a connection end, or all that somebody relays."""
        if (found := self._way()) is None:
            return None
        routers, way = found
        for peer in (way.sender, way.receiver):
            self._trouble_of(peer, 1.0)
        if way.relay is None or self._rng.random() < 0.5:
            routers.end(way.token)
            return f"a {way.way} way of peer {self._scene.numbers[way.sender]} breaks"
        routers.end_all(way.relay)
        return "a relay drops all that it carries"

    def _trouble_of(self, peer: PeerId, seconds: float) -> None:
        self._checks.demands.trouble(peer, seconds)

    def _block(self) -> str | None:
        """Have one no longer reach another plainly, in one direction."""
        ends, routers = self._swarm.two(self._rng), self._swarm.network.routers
        if ends is None or routers is None:
            return None
        pair = (ends[0].peer_id, ends[1].peer_id)
        routers.blocked.add(pair)
        for peer in pair:
            self._trouble_of(peer, 1.0)
        self._swarm.network.drop(*pair)
        return f"peer {ends[0].number} cannot dial peer {ends[1].number} any more"

    def _deafen(self) -> str | None:
        peer, routers = self._peer(), self._swarm.network.routers
        if peer is None or routers is None:
            return None
        count = routers.deaf[peer.peer_id] = self._rng.randint(1, 3)
        return f"peer {peer.number} does not do what the next {count} MEETs ask"

    def _doubt(self) -> str | None:
        """Have a receiver say of a way that stands that it does not."""
        if (found := self._way()) is None:
            return None
        peer = self._swarm.peers[found[1].receiver]
        if peer.dialling is not None and peer.is_alive:
            peer.dialling.doubt(found[1].token)
        return f"peer {peer.number} says that a way to it is no good"

    def _move(self) -> str | None:
        """Have a peer come from another address: all its connections end."""
        peer, routers = self._peer(), self._swarm.network.routers
        if peer is None or routers is None or not self._swarm.is_connected(peer):
            return None
        routers.remotes[peer.peer_id] = f"2001:db8:1::{self._rng.randrange(1, 1 << 16):x}"
        routers.end_all(peer.peer_id)
        self._trouble(peer, 2.0)
        self._checks.demands.lost(peer.peer_id)
        self._swarm.blink(peer)
        return f"peer {peer.number} has another address"

    def _map(self) -> str | None:
        """Have a router forward a port, or forget that it did."""
        peer, routers = self._peer(), self._swarm.network.routers
        if peer is None or routers is None or peer.dialling is None:
            return None
        is_mapped = peer.peer_id in routers.mapped
        (routers.mapped.discard if is_mapped else routers.mapped.add)(peer.peer_id)
        peer.dialling.tell()
        return f"the router of peer {peer.number} forwards a port: {not is_mapped}"

    def _replay(self) -> str | None:
        """Have somebody bring a token to the coordinator's port that was used there."""
        ways, coordinator = self._checks.ways, self._swarm.coordinator
        if not ways.taken_tokens or not coordinator.is_alive:
            return None
        token, side = self._rng.choice(ways.taken_tokens)
        coordinator.show(token, side, "2001:db8:2::1", 1)
        return "a token comes a second time"

    # ---- cells

    def _op(self) -> OpView | None:
        """The first op under way that has cells, as the coordinator knows it."""
        machine = self._swarm.coordinator.machine
        operation = machine.first.operation if machine is not None else None
        return operation.view if operation is not None and operation.view.cells.count > 1 else None

    def _lose_sums(self) -> str | None:
        """Break the way from an owner to the others of its range."""
        view = self._op()
        if view is None:
            return None
        index = self._rng.randrange(len(view.owners))
        source = view.owners[index]
        for piece in view.cells.pieces(index):
            if piece != index:
                self._swarm.network.drop(source, view.owners[piece])
        self._checks.demands.lost(source)
        name = self._scene.name_of(source)
        return f"frames of {name} to the other owners of the range of slice {index} are lost"

    def _owner_death(self) -> str | None:
        view = self._op()
        owners = [p for p in self._swarm.survivors if view is not None and p.peer_id in view.owners]
        victims = [peer for peer in owners if self._can_lose(peer)]
        if not victims:
            return None
        victim = self._rng.choice(victims)
        self._kill(victim)
        return f"death of peer {victim.number}, an owner"

    # ---- who

    def _peer(self) -> SimPeer | None:
        peers = [peer for peer in self._swarm.survivors if not peer.is_leaving]
        return self._rng.choice(peers) if peers else None

    def _expendable(self, *, beside: SimPeer | None = None) -> SimPeer | None:
        """A peer without which the run can go on: nothing may die with the last who hold it."""
        holders = self._holders()
        peers = [
            peer
            for peer in self._swarm.survivors
            if peer is not beside and any(one not in (peer, beside) for one in holders)
        ]
        return self._rng.choice(peers) if peers else None

    def _can_lose(self, *victims: SimPeer | None) -> bool:
        """Return True if the newest state stays with somebody."""
        return any(peer not in victims for peer in self._holders())

    def _holders(self) -> list[SimPeer]:
        """Return those with whom the newest state stays. Reckless weathers leave any state at all:
        then REWIND has to find the way back. A run without one waits for it for ever."""
        # A hostile peer may be thrown out at any time.
        # And whom the organiser does not want goes as soon as the coordinator says so.
        out = {self._scene.liar, *self._scene.deeds, *self._scene.flipped, *self._unwanted}
        staying = [p for p in self._swarm.survivors if not p.is_leaving and p.peer_id not in out]
        if self.is_reckless:
            return [peer for peer in staying if peer.applied_op >= 0]
        newest, roots = self._checks.decided.newest
        return [
            peer
            for peer in staying
            if peer.applied_op >= newest
            or (peer.applied_op == newest - 1 and roots and all(holds(peer, r) for r in roots))
        ]

    def _seconds(self, low: float, high: float) -> float:
        """Short and long times are equally likely on a logarithmic scale."""
        return float(low * (high / low) ** self._rng.random())

    def _trouble(self, peer: SimPeer, seconds: float = 0.0) -> None:
        self._checks.demands.trouble(peer.peer_id, seconds)

    # ---- what

    def _death(self) -> str | None:
        victim = self._expendable()
        if victim is None:
            return None
        self._kill(victim)
        return f"death of peer {victim.number}"

    def _double_death(self) -> str | None:
        one = self._expendable()
        two = self._expendable(beside=one) if one is not None else None
        if one is None or two is None:
            return None
        self._kill(one)
        self._kill(two)
        return f"death of peers {one.number} and {two.number}"

    def _kill(self, victim: SimPeer) -> None:
        victim.kill()
        if len(self._swarm.survivors) < self._scene.conditions.all_peers:
            self._scene.clock.after(self._seconds(0.5, 60.0), self._replace)

    def _replace(self) -> None:
        if len(self._swarm.survivors) < self._scene.conditions.all_peers:
            self._swarm.add_peer(self._handicap())

    def _handicap(self) -> Handicap:
        if self.is_calm or self._rng.random() < 0.8:
            return NO_HANDICAP
        return Handicap(
            slowness=self._seconds(1.0, 8.0), lag_s=self._rng.choice((0.0, self._seconds(0.01, 15)))
        )

    def _restart(self) -> str | None:
        victim = self._expendable()
        if victim is None:
            return None
        victim.kill()
        kept = self._rng.choice(("all", "ledger", "torn", "nothing"))
        disk = victim.disk
        if kept == "ledger":
            disk = PeerDisk(list(disk.records), disk.begins)
        elif kept == "torn":
            whole = self._rng.randint(0, len(disk.records))
            kept_results = list(disk.results)
            disk = PeerDisk(disk.records[:whole], disk.begins, disk.image, disk.own, kept_results)
            disk.later.update(victim.disk.later)
            disk.shelf = victim.disk.shelf
        elif kept == "nothing":
            disk = PeerDisk()
        back_s = self._seconds(0.05, 40.0)
        self._scene.clock.after(back_s, partial(self._swarm.come_back, victim, disk))
        return f"restart of peer {victim.number} in {back_s:.2f} s; its disk keeps {kept}"

    def _goodbye(self) -> str | None:
        peer = self._expendable()
        if peer is None or peer.is_stopped or peer.is_leaving:
            return None
        replaced_s = self._seconds(0.5, 60.0)
        story = f"goodbye of peer {peer.number}"
        if self._scene.conditions.leaves_in_turn:
            gives_now = self._rng.random() < 0.5
            peer.leave_in_turn(gives_now=gives_now)
            story += " after what it has given" if gives_now else " after its round"
        else:
            peer.leave()
        self._scene.clock.after(replaced_s, self._replace)
        return story

    def _hand_over(self) -> str | None:
        """Have anybody leave, also who alone holds the newest state: it goes when others hold it,
        and comes back with all that it has if none does in time."""
        peer = self._peer()
        if peer is None or peer.is_stopped or peer.peer_id in {*self._scene.hostile}:
            return None
        if peer.peer_id in self._scene.flipped or not self._swarm.is_connected(peer):
            return None
        if peer.is_in_first and peer.driver.op < 0:
            return None  # it has no state yet, as sessions see it
        back_s = self._seconds(0.5, 60.0)

        def left(is_released: bool) -> None:
            if is_released and self._can_lose(peer):  # nobody stayed: it is the run
                self._scene.clock.after(back_s, self._replace)
            else:
                back = partial(self._swarm.come_back, peer, peer.disk)
                self._scene.clock.after(back_s, back)

        peer.hand_over(left)
        return f"peer {peer.number} hands over and leaves"

    def _ban(self) -> str | None:
        """Have the organiser send a peer away, or ban it. It tries to come back all the same, and a
        banned one is pardoned in half of all cases."""
        peer, coordinator = self._expendable(), self._swarm.coordinator
        if peer is None or not coordinator.is_alive or coordinator.is_stopped:
            return None
        if len(self._checks.sent_away) >= _SENT_AWAY_MAX:
            return None
        back_s, is_ban = self._seconds(0.5, 30.0), self._rng.random() < 0.7
        self._trouble(peer, back_s)
        words = "The organiser does not want it."
        coordinator.order((Ban if is_ban else Removal)(peer.peer_id, words))
        self._unwanted.add(peer.peer_id)
        after, come_back = self._scene.clock.after, self._swarm.come_back
        after(back_s, partial(come_back, peer, peer.disk))
        if is_ban and self._rng.random() < 0.5:
            after(2 * back_s, partial(coordinator.order, Pardon(peer.peer_id)))
            after(3 * back_s, partial(come_back, peer, peer.disk))
        return f"the organiser {'bans' if is_ban else 'removes'} peer {peer.number}"

    def _collude(self) -> str | None:
        """Two members say the same of the same others, in a run that is large enough for it."""
        scene = self._scene
        if scene.conditions.num_peers < _COLLUDERS_AMONG or scene.liar or scene.deeds:
            return None
        one = self._expendable()
        two = self._expendable(beside=one) if one is not None else None
        if one is None or two is None:
            return None
        deed = deeds.Deed(self._rng.choice(deeds.WORDS), wanders=self._rng.random() < 0.5)
        for peer in (one, two):
            scene.misbehave(peer.peer_id, deed)
        return f"peers {one.number} and {two.number} {deed.kind} from now on"

    def _newcomer(self) -> str | None:
        most = self._scene.conditions.all_peers + _PEERS_MAX_EXTRA
        if len(self._swarm.survivors) >= most:
            return None
        return f"arrival of peer {self._swarm.add_peer(self._handicap()).number}"

    def _blink(self) -> str | None:
        peer = self._peer()
        if peer is None or not self._swarm.is_connected(peer):
            return None
        self._trouble(peer, 1.0)
        self._checks.demands.lost(peer.peer_id)
        self._swarm.blink(peer)
        return f"broken control connection of peer {peer.number}"

    def _stall(self) -> str | None:
        peer = self._peer()
        if peer is None:
            return None
        seconds = self._seconds(0.1, 40.0)
        up = self._rng.random() < 0.5
        self._checks.demands.trouble(peer.peer_id, seconds, is_linked=True)
        self._swarm.control.stall(peer, up=up, seconds=seconds)
        way = "to" if up else "from"
        return f"nothing {way} the coordinator passes for {seconds:.2f} s at peer {peer.number}"

    def _drop(self) -> str | None:
        ends = self._swarm.two(self._rng)
        if ends is None:
            return None
        self._swarm.network.drop(ends[0].peer_id, ends[1].peer_id)
        self._checks.demands.lost(ends[0].peer_id)
        return f"frames of peer {ends[0].number} to peer {ends[1].number} are lost"

    def _cut(self) -> str | None:
        ends = self._swarm.two(self._rng)
        if ends is None:
            return None
        source, target = ends
        stays = self._rng.random() < 0.3
        seconds = 4 * LONGEST_S if stays else self._seconds(0.05, 60.0)
        for peer in ends:
            self._trouble(peer, seconds)
        network = self._swarm.network
        network.cut(source.peer_id, target.peer_id)
        if not stays:
            self._scene.clock.after(seconds, partial(network.heal, source.peer_id, target.peer_id))
        lasts = "for good" if stays else f"for {seconds:.2f} s"
        return f"frames of peer {source.number} do not reach peer {target.number} {lasts}"

    def _crash(self) -> str | None:
        if not self._swarm.coordinator.is_alive:
            return None
        back_s = self._seconds(0.05, 20.0)
        keeps = self._rng.random() < 0.5
        self._swarm.crash_coordinator(back_s, keeps_torn=keeps)
        self._checks.demands.trouble_all(back_s)
        return f"death of the coordinator for {back_s:.2f} s; a torn record is kept: {keeps}"

    def _crash_and_death(self) -> str | None:
        """Take away the peers that were counted on, so that they are gone when the coordinator is
        back."""
        story, death = self._crash(), self._death()
        return story if death is None else death if story is None else f"{story}; {death}"

    @property
    def _may_be_hostile(self) -> bool:
        """True if a run with a hostile member can still go on."""
        conditions, least = self._scene.conditions, 3
        if conditions.kind in WHOLE or conditions.rule:
            least = 4
        others = conditions.num_peers - (2 if conditions.kind == PAIR else 1)
        needed = conditions.terms().min_contributors
        return needed <= others and conditions.num_peers >= least

    def _hostile_owner(self) -> str | None:
        """Have an owner sign wrong sums until it is found out. It does everything else as it
        should."""
        lies, peer = self._checks.lies, self._expendable()
        if self._scene.liar is not None or peer is None or self._scene.deeds:
            return None
        lies.begin(peer)
        return f"peer {peer.number} signs wrong sums from now on"

    def _hostile_member(self, kinds: tuple[str, ...]) -> str | None:
        """Have a member send what it should not. It trains and applies results as it should."""
        peer, scene = self._expendable(), self._scene
        if peer is None or scene.liar is not None or scene.deeds or not self._may_be_hostile:
            return None
        deed = deeds.Deed(self._rng.choice(kinds), wanders=self._rng.random() < 0.5)
        scene.misbehave(peer.peer_id, deed)
        peer.arithmetic.forges_results |= deed.kind == deeds.SPOILS
        return f"peer {peer.number} {deed.kind} from now on, another victim each: {deed.wanders}"

    def _flip(self) -> str | None:
        """Flip a bit of a state between two ops: what a part was made of stays what it was."""
        peer = self._expendable()
        if peer is None or self._scene.flipped or not peer.is_in_first:
            return None
        self._scene.clock.after(self._seconds(0.05, 2.0), partial(self._flip_between_ops, peer))
        return f"soon a bit of peer {peer.number}'s state is another"

    def _flip_between_ops(self, peer: SimPeer) -> None:
        if not (peer.is_alive and peer.is_in_first) or self.is_calm or self._scene.flipped:
            return
        if peer.driver.is_waiting or peer.driver.op < 0:
            self._scene.clock.after(_LOOK_S, partial(self._flip_between_ops, peer))
            return
        # Two others are to have the run's state, or nobody could say which is right.
        op = peer.driver.op
        if (
            sum(other.driver.op == op and self._can_lose(peer) for other in self._swarm.survivors)
            > 2
        ):
            peer.flip()

    def _late(self) -> str | None:
        ends = self._swarm.two(self._rng)
        if ends is None:
            return None
        source, target = ends
        frame = self._swarm.network.sent_again(source.peer_id, target.peer_id, self._rng)
        if frame is None:
            return None
        what = f"{frame.kind.name} slice {frame.slice_index}.{frame.attempt}"
        return f"{what} of peer {source.number} comes a second time to peer {target.number}"

    def _restore(self) -> str | None:
        """The disk is a backup of a moment ago: what a peer was told since, it must give back."""
        coordinator, invariants = self._swarm.coordinator, self._checks
        lost = self._rng.randint(1, 12)
        # Without a roster a coordinator does not know that there is anybody to wait for.
        if not coordinator.is_alive or len(coordinator.disk) - lost < _BACKUP_RECORDS_MIN:
            return None
        left = len(coordinator.disk) - lost
        if not invariants.is_told(left + lost - 1) or not invariants.is_held_from(left):
            return None
        back_s = self._seconds(0.05, 5.0)
        self._swarm.crash_coordinator(back_s)
        del coordinator.disk[-lost:]
        coordinator.term = coordinator.disk[-1].term
        invariants.restored = True
        invariants.demands.trouble_all(back_s)
        return f"the coordinator's disk is a backup without the last {lost} records"

    def _lose_ledger(self) -> str | None:
        """The coordinator has its key left and nothing else: it gets its ledger from a peer."""
        coordinator, invariants = self._swarm.coordinator, self._checks
        last = len(coordinator.disk) - 1
        if not coordinator.is_alive or last < _BACKUP_RECORDS_MIN or not invariants.is_told(last):
            return None
        if not any(peer.machine.ledger.first == 0 for peer in self._swarm.survivors):
            return None
        back_s = self._seconds(0.05, 5.0)
        waits_s = back_s + 2 * limits.LEDGER_WAIT_S
        self._swarm.crash_coordinator(back_s)
        coordinator.lose_ledger()
        invariants.restored = True
        invariants.coordinator_fell(waits_s)
        invariants.demands.trouble_all(waits_s)
        return "the coordinator's ledger is lost"

    def _stop_coordinator(self) -> str | None:
        if not self._swarm.coordinator.is_alive:
            return None
        seconds = self._seconds(0.05, 40.0)
        self._swarm.coordinator.stop(seconds)
        self._checks.coordinator_fell(seconds)
        self._checks.demands.trouble_all(seconds)
        return f"the coordinator is stopped for {seconds:.2f} s"

    def _slow_disk(self) -> str | None:
        seconds, sync_s = self._seconds(0.5, 30.0), self._seconds(0.001, 1.0)
        coordinator = self._swarm.coordinator
        coordinator.sync_s = sync_s
        self._scene.clock.after(seconds, self._quick_disk)
        if self._scene.conditions.are_experts:  # records of all groups stand in one line
            self._checks.demands.trouble_all(seconds)
        return f"a record takes {1000 * sync_s:.0f} ms to become durable, for {seconds:.2f} s"

    def _quick_disk(self) -> None:
        self._swarm.coordinator.sync_s = self._scene.conditions.sync_s

    def _stop(self) -> str | None:
        peer = self._peer()
        if peer is None:
            return None
        seconds = self._seconds(0.05, 45.0)
        self._trouble(peer, seconds)
        peer.stop(seconds)
        return f"peer {peer.number} is stopped for {seconds:.2f} s"
