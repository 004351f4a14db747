"""The sender as guardian of what it has sent: until the gradient comes back, or there is no hope.

It asks members of the next stage for a slot, best first, and keeps the output to send it again: to
another receiver if the first one is silent, refuses or is gone. After `HOP_TRIES` it gives the
micro-batch back. An earlier receiver's gradient is as good as the newest one's.
"""

from collections import Counter

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.balance import Balance
from swarmtrain_transport.pipeline.peer.comparisons import Comparisons, Likeness
from swarmtrain_transport.pipeline.peer.held import Held, Phase, Try
from swarmtrain_transport.pipeline.peer.in_flight import InFlight
from swarmtrain_transport.pipeline.peer.requests import Send
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire.messages import FINAL, Reason
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Slot, Stage


class Guardian:
    """A peer's part as a sender.

    Args:
        flight: micro-batches at the peer.

    Attributes:
        comparisons: comparisons of its own micro-batches.
    """

    def __init__(self, flight: InFlight) -> None:
        self.comparisons = Comparisons(flight.rules, flight.source.seed)
        self._flight = flight
        self._balances: dict[Stage, Balance] = {}
        self._spent: dict[Process, Slot] = {}

    def begin_round(self) -> None:
        """A round begins, with these members."""
        flight = self._flight
        for stage, balance in self._balances.items():
            balance.begin_round(flight.serving(stage))
        self.comparisons.begin_round(flight.now[0])
        self._suspect()

    def _balance(self, held: Held) -> Balance:
        """The shares of the peers of its next stage."""
        stage = self._flight.after(held)
        if stage not in self._balances:
            self._balances[stage] = Balance(self._flight.me.peer)
            self._balances[stage].begin_round(self._flight.serving(stage))
        return self._balances[stage]

    def _suspect(self) -> None:
        for balance in self._balances.values():
            balance.suspect = self.comparisons.suspect

    def departed(self, process: Process) -> None:
        """The process is gone: another one takes what it had, if it was not the last hope."""
        self._spent.pop(process, None)
        for held in self._flight.all():
            if held.phase is Phase.SENT and held.tries[-1].receiver == process:
                self.redo(held, Reason.GONE)
            elif held.phase is Phase.OUTRUN and not self._may_come(held):
                self._flight.fail(held, Reason.GRANTED)

    # ---- comparisons

    def made(self, held: Held) -> None:
        """One of our own is made: of the text of the one before, if they are to be compared."""
        flight = self._flight
        if len(flight.serving(flight.after(held))) > 1:
            self.comparisons.made(held)

    def compared(self, held: Held, likeness: Likeness) -> None:
        """The gradients of one of our own and of its twin were held against each other."""
        assert held.twin is not None
        only_one = self._known_of(held) ^ self._known_of(held.twin)
        self.comparisons.found(only_one, held.micro_batch.round, likeness)
        self._suspect()

    def _known_of(self, held: Held) -> frozenset[PeerId]:
        """Peers that have served one of our own, as far as we know: the next one and the end."""
        ends = (held.below, self._flight.source.end_of(held.micro_batch))
        return frozenset(process.peer for process in ends if process is not None)

    # ---- the next hop

    def want(self, held: Held, *, everybody: bool = False) -> None:
        """Ask the best receiver for a slot; if it has kept us waiting, ask all of them."""
        flight = self._flight
        stage = flight.after(held)
        receivers = flight.serving(stage)
        is_judged = held.micro_batch.judged
        if is_judged and receivers:  # whatever was learnt of routes: nothing is learnt of these
            place = int.from_bytes(held.secret, "big") % len(receivers)
            ranked = [*receivers[place:], *receivers[:place]]
        else:
            ranked = self._balance(held).ranked(receivers, self._barred(held)) if receivers else []
        held.asked = ranked if everybody else ranked[:1]
        if ranked and not everybody:
            held.meant = ranked[0]
            if not is_judged:
                self._balance(held).chosen(ranked[0])
        for peer in held.asked:
            count = sum(
                other.phase is Phase.WAITING and peer in other.asked
                for other in flight.all_to_send()
            )
            want = msg.Want(stage, count)
            flight.requests.append(Send(peer, want))

    def on_invite(self, receiver: Process, slot: Slot) -> None:
        """A receiver has a free slot."""
        flight = self._flight
        held = next((held for held in flight.all_to_send() if held.was_at(receiver, slot)), None)
        if held is None:
            held = self._next_for(receiver, slot)
            if held is None:
                flight.send(receiver, msg.Return(slot))
                return
            is_judged = held.micro_batch.judged
            if held.meant is not None and held.meant != receiver.peer and not is_judged:
                self._balance(held).passed_on(held.meant, receiver.peer)
            held.tries.append(Try(receiver, slot, flight.now_s))
            self._ask_no_more(receiver.peer)
            held.sends_anew()
            flight.enter(held, Phase.SENT)
        elif held.phase is not Phase.SENT or not held.is_at(receiver, slot):
            flight.send(receiver, msg.Return(slot))
            return
        held.heard_s = flight.now_s
        if held.may_send(flight.now_s):
            assert held.output is not None
            stage = flight.after(held)
            forward = msg.Forward(
                slot, held.micro_batch, held.secret, stage, held.tokens, held.output
            )
            flight.send(receiver, forward, held.job)

    def _next_for(self, receiver: Process, slot: Slot) -> Held | None:
        """The micro-batch for a new slot; None if the receiver was asked for none that still waits,
        or if the slot was used before."""
        flight = self._flight
        member = flight.members[receiver.peer]
        is_new = slot.boot == receiver.boot and slot > self._spent.get(receiver, Slot(b"", -1))
        if not is_new:
            return None
        self._spent[receiver] = slot

        def place(held: Held) -> tuple[object, ...]:
            return held.meant != receiver.peer, not held.micro_batch.judged, held.order

        waiting = [
            held
            for held in flight.all_to_send()
            if held.phase is Phase.WAITING
            and receiver.peer in held.asked
            and flight.after(held) in member.span
        ]
        return min(waiting, key=place, default=None)

    def _barred(self, held: Held) -> set[PeerId]:
        """Peers that a micro-batch is not to go to while there are others: those that have failed
        it, have its twin, have kept one for long, or are new and have all of ours but one."""
        flight = self._flight
        barred = {process.peer for process in held.avoided if flight.is_member(process)}
        barred |= held.kept_apart
        at = Counter[PeerId]()
        for other in flight.all():
            if other.phase is Phase.SENT:
                at[other.tries[-1].receiver.peer] += 1
                if other.tries[-1].is_long:
                    barred.add(other.tries[-1].receiver.peer)
            elif other.phase is Phase.WAITING and other is not held and other.meant is not None:
                at[other.meant] += 1
        most = max(1, (flight.rules.under_way or flight.rules.slots) - 1)
        return barred | {
            peer for peer, some in at.items() if some >= most and self._balance(held).is_new(peer)
        }

    def _ask_no_more(self, peer: PeerId) -> None:
        """A peer was sent one: those that it is barred from now wait for others, if there are
        any."""
        flight = self._flight
        for held in flight.all():
            if held.phase is Phase.WAITING and peer in held.asked:
                barred = self._barred(held)
                if peer in barred and set(flight.serving(flight.after(held))) - barred:
                    held.asked = [one for one in held.asked if one != peer]

    # ---- the receiver's word

    def on_gradient(self, sender: Process, gradient: msg.Gradient) -> None:
        """The gradient of an output came back."""
        flight = self._flight
        flight.send(sender, msg.Ack(gradient.slot))
        held = self._sent_to(sender, gradient.slot, gradient.micro_batch)
        if held is None or held.phase not in (Phase.SENT, Phase.WAITING, Phase.OUTRUN):
            return
        tried = next(one for one in held.tries if one.slot == gradient.slot)
        half_s = (flight.now_s - tried.since_s) / 2
        self._balance(held).measured(sender.peer, forward_s=half_s, backward_s=half_s)
        if flight.tally.steps[held.stage] - held.steps > flight.rules.max_stale_steps:
            flight.fail(held, Reason.STALE)
            return
        if not flight.may_count(held):
            flight.fail(held, Reason.GRANTED)
            return
        held.below = sender
        flight.requests.append(requests.Keep(held.job))
        flight.enter(held, Phase.BACKWARD)

    def on_refuse(self, sender: Process, refuse: msg.Refuse) -> None:
        """No gradient will come of that slot."""
        self._flight.send(sender, msg.Ack(refuse.slot))
        held = self._sent_to(sender, refuse.slot, refuse.micro_batch)
        if held is not None and held.phase is Phase.SENT and held.is_at(sender, refuse.slot):
            self.redo(held, refuse.reason)

    def on_alive(self, sender: Process, slot: Slot) -> None:
        """A receiver holds what was sent into the slot."""
        flight = self._flight
        held = next((held for held in flight.all_to_send() if held.was_at(sender, slot)), None)
        if held is None:  # we have ended it, and what said so was lost
            flight.send(sender, msg.Drop(slot))
        elif held.micro_batch.judged and held.above is not None:
            flight.free(held)
        elif held.is_at(sender, slot):
            held.heard_s = flight.now_s

    def look_after(self, held: Held) -> None:
        """Ask again, try another receiver, or give up, as its phase wants it."""
        flight = self._flight
        if held.phase is Phase.WAITING:
            self.want(held, everybody=True)
        elif held.phase is Phase.SENT and flight.now_s - held.heard_s > limits.HOP_SILENCE_S:
            self.redo(held, Reason.SILENT)
        elif held.phase is Phase.SENT and not held.micro_batch.judged:
            self._look_at_time(held)
        elif held.phase is Phase.OUTRUN and flight.now_s - held.since_s > limits.OUTRUN_S:
            flight.fail(held, Reason.GRANTED)

    def _look_at_time(self, held: Held) -> None:
        """Measure a receiver that has not answered by the time that has passed."""
        tried, balance = held.tries[-1], self._balance(held)
        seconds = self._flight.now_s - tried.since_s
        if not tried.is_long and balance.is_long(seconds):
            tried.is_long = True
            half_s = seconds / 2
            balance.measured(tried.receiver.peer, forward_s=half_s, backward_s=half_s)

    def redo(self, held: Held, reason: Reason) -> None:
        """The receiver has failed: take another one, while there is hope. A source knows better
        than its receivers if an end has the permission."""
        flight = self._flight
        is_final = reason in FINAL
        if held.above is None:
            is_final = is_final and flight.source.has_permitted(held.micro_batch)
        if is_final and reason is Reason.GRANTED and self._may_come(held):
            flight.enter(held, Phase.OUTRUN)
        elif is_final:
            flight.fail(held, reason)
        elif held.num_tries >= limits.HOP_TRIES:
            flight.fail(held, Reason.TRIES)
        else:
            held.num_tries += 1
            flight.tally.sent_again(held.micro_batch, reason)
            held.avoided.add(held.tries[-1].receiver)
            flight.enter(held, Phase.WAITING)
            self.want(held)

    def _may_come(self, held: Held) -> bool:
        """Return True if a receiver before the newest one is still there to send its gradient."""
        return any(self._flight.is_member(one.receiver) for one in held.tries[:-1])

    def _sent_to(self, receiver: Process, slot: Slot, name: MicroBatch) -> Held | None:
        return next(
            (
                held
                for held in self._flight.all()
                if held.micro_batch == name and held.was_at(receiver, slot)
            ),
            None,
        )
