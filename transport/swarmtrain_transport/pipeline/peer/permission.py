"""The one permission to begin the way back of a micro-batch: an end asks for it, a source gives it.

All ends of a micro-batch's routes say ARRIVED, with the secret that has come with it; one of them
ever is told GO, with the labels.
"""

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.held import Held, Phase
from swarmtrain_transport.pipeline.peer.in_flight import InFlight
from swarmtrain_transport.pipeline.peer.requests import Job
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire.messages import Reason
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Slot


class Permission:
    """A peer's part as the end of routes, and as a source that ends are asking.

    Args:
        flight: micro-batches at the peer.
    """

    def __init__(self, flight: InFlight) -> None:
        self._flight = flight

    def ask(self, held: Held) -> None:
        """The route of a micro-batch ends here: may the way back begin?"""
        flight = self._flight
        name, slot = held.job.micro_batch, held.job.slot
        if slot is None:
            self._answer(held, goes=flight.source.permits(name, held.secret, (flight.me, None)))
        elif name.source == flight.me.peer:
            goes = flight.source.permits(name, held.secret, (flight.me, slot))
            self._answer(held, goes=goes)
        else:
            arrived = msg.Arrived(name, slot, held.secret)
            flight.send(Process(name.source, name.boot), arrived)

    def look_after(self, held: Held) -> None:
        """Ask again, or give up, if it waits for the answer."""
        flight = self._flight
        if held.phase is not Phase.ARRIVED:
            return
        name = held.micro_batch
        is_late = flight.now_s - held.since_s > limits.ARRIVED_S
        if is_late or Process(name.source, name.boot) in flight.gone:
            flight.fail(held, Reason.MUTE)
        else:
            self.ask(held)

    def on_arrived(self, sender: Process, arrived: msg.Arrived) -> None:
        """An end asks its source."""
        flight = self._flight
        name, end = arrived.micro_batch, (sender, arrived.slot)
        # Others than ends have had the secret: who asks must be able to be one.
        may_end = flight.rules.num_stages - 1 in flight.members[sender.peer].span
        own = flight.own.get(name)
        labels = own.labels if own is not None else None
        if may_end and flight.is_in_order and not flight.source.is_next(name):
            return  # it asks again
        may_ask = may_end and not flight.is_over(name)
        if labels is not None and may_ask and flight.source.permits(name, arrived.secret, end):
            flight.send(sender, msg.Go(name, arrived.slot, labels), Job(name, None))
        else:
            flight.send(sender, msg.No(name, arrived.slot))

    def on_answer(self, sender: Process, name: MicroBatch, slot: Slot, *, goes: bool) -> None:
        """A source answers its end."""
        flight = self._flight
        held = flight.in_slots.get(slot)
        is_ours = held is not None and held.micro_batch == name
        if held is not None and is_ours and sender == Process(name.source, name.boot):
            goes = goes and flight.may_count(held)
            if goes and held.phase is Phase.ARRIVED:
                flight.requests.append(requests.Keep(held.job))
            self._answer(held, goes=goes)

    def _answer(self, held: Held, *, goes: bool) -> None:
        if held.phase is not Phase.ARRIVED:
            return
        if goes:
            self._flight.enter(held, Phase.BACKWARD)
        else:
            self._flight.fail(held, Reason.GRANTED)
