"""A receiver of micro-batches: it invites them into free slots, and says ALIVE until they are gone.

A slot holds the stage's input, then in its place the input's gradient until that is acknowledged.
"""

import math
from collections import Counter
from functools import partial

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.held import OWED, PAST_GO, Held, Phase
from swarmtrain_transport.pipeline.peer.in_flight import InFlight
from swarmtrain_transport.pipeline.peer.permission import Permission
from swarmtrain_transport.pipeline.peer.requests import Job
from swarmtrain_transport.pipeline.peer.slots import Invitations, Window
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire.messages import Reason
from swarmtrain_transport.pipeline.wire.route import Process, Slot


class Receiver:
    """A peer's part as a receiver.

    Args:
        flight: micro-batches at the peer.
        permission: permission to begin the way back, where routes end here.

    Attributes:
        invited: slots that are kept for senders.
        window: Number of slots.
    """

    def __init__(self, flight: InFlight, permission: Permission) -> None:
        self.invited = Invitations(flight.me.boot)
        self.window = Window(flight.rules.slots, flight.rules.most_slots)
        self._flight = flight
        self._permission = permission
        self._may_follow = flight.rules.paths.may_follow

    @property
    def num_held(self) -> int:
        """Slots that are filled or kept for somebody."""
        judged = sum(job.slot is not None for job in self._flight.judged)
        return len(self._flight.in_slots) + judged + len(self.invited)

    def invite(self) -> None:
        """Free slots go to those who want one. Where there are several who may, nobody has the
        last one beside all others: else one that never lets go keeps all of them from us."""
        flight = self._flight
        if not flight.invites:
            return
        free = self.window.size - self.num_held
        filled = self._filled
        here, may_follow = range(flight.span.first, flight.span.last + 1), self._may_follow
        senders = [
            peer
            for peer, member in flight.members.items()
            if peer != flight.me.peer and any(map(partial(may_follow, member.span), here))
        ]
        most = max(1, self.window.size - (len(senders) > 1))
        for slot, sender in self.invited.give(free, flight.now_s, filled, most):
            flight.send(sender, msg.Invite(slot))

    @property
    def _filled(self) -> Counter[Process]:
        """Slots that hold something, by sender."""
        held_here = (*self._flight.in_slots.values(), *self._flight.judged.values())
        return Counter(held.above for held in held_here if held.above is not None)

    def say_again(self) -> None:
        """Invitations, what is owed to senders, and that the rest is alive. A slot is nobody's for
        ever; not for long, where all are taken and a sender that has none wants one."""
        flight = self._flight
        self.invited.forget_old(flight.now_s)
        for slot, sender in self.invited:
            flight.send(sender, msg.Invite(slot))
        is_full = self.num_held >= self.window.size
        most_s = limits.INVITED_S if is_full and self.invited.waits(self._filled) else math.inf
        for held in list(flight.in_slots.values()):
            assert held.above is not None and held.job.slot is not None
            here_s = flight.now_s - held.began_s
            if here_s > most_s and held.phase is not Phase.BACKWARD and held is not flight.running:
                flight.send(held.above, msg.Refuse(held.job.slot, held.micro_batch, Reason.FULL))
                self._let_go(held)
                most_s = math.inf  # one is enough for now
            elif here_s > limits.PARKED_S and held is not flight.running:
                self._let_go(held)
            elif held.phase in OWED:
                flight.say_owed(held)
            else:
                flight.send(held.above, msg.Alive(held.job.slot))

    def _let_go(self, held: Held) -> None:
        """Its sender has had the slot for too long."""
        assert held.above is not None
        self._flight.drop(held)
        self.invited.doubted(held.above, held.began_s, self._flight.now_s)

    def on_want(self, sender: Process, want: msg.Want) -> None:
        """A sender has micro-batches, for the stage after its own."""
        flight = self._flight
        is_next = self._may_follow(flight.members[sender.peer].span, want.stage)
        count = want.count if is_next and want.stage in flight.span else 0
        self.invited.wanted(sender, count, flight.now_s)

    def on_forward(self, sender: Process, forward: msg.Forward, *, is_sound: bool) -> None:
        """A micro-batch came."""
        flight = self._flight
        slot, name = forward.slot, forward.micro_batch
        if slot in flight.in_slots:
            return
        kept_s = self.invited.take(slot, sender)
        if kept_s is None:
            flight.send(sender, msg.Refuse(slot, name, Reason.FULL))
            return
        if flight.is_over(name) or not is_sound or not self._is_one(forward):
            reason = Reason.CLOSED if flight.is_over(name) else Reason.BAD
            flight.send(sender, msg.Refuse(slot, name, reason))
            return
        job = Job(name, slot)
        phase = Phase.ARRIVED if flight.is_end else Phase.FORWARD
        stage, now_s = forward.stage, flight.now_s
        held = Held(job, sender, stage, forward.secret, forward.tokens, phase, now_s, now_s)
        held.kept_s = kept_s
        flight.in_slots[slot] = held
        flight.requests.append(requests.Keep(job))
        if flight.is_end:
            self._permission.ask(held)

    def _is_one(self, forward: msg.Forward) -> bool:
        """Return True if such a micro-batch can be: of a stage that is served here, of a time that
        comes here, with no more tokens than there is room for."""
        flight, name = self._flight, forward.micro_batch
        # No member is two rounds ahead of another: rounds wait for all.
        is_soon = name.round <= flight.now[0] + 1
        has_steps = flight.rules.flushes or name.step == name.attempt == 0
        has_tokens = 0 < forward.tokens <= flight.rules.tokens
        visits = forward.stage in flight.span and forward.stage in flight.rules.path(name)
        return visits and is_soon and has_steps and has_tokens

    def on_ack(self, sender: Process, slot: Slot) -> None:
        """The sender has what was owed to it."""
        held = self._flight.in_slots.get(slot)
        if held is not None and held.above == sender and held.phase in OWED:
            if held.phase is Phase.RETURNED:
                self.window.back(held.kept_s, self._flight.now_s)
            self._flight.free(held)

    def on_drop(self, sender: Process, slot: Slot) -> None:
        """The sender needs it no more."""
        held = self._flight.in_slots.get(slot)
        if held is not None and held.above == sender and held.phase not in PAST_GO:
            self._flight.drop(held)
