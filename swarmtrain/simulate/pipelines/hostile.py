"""A member of a simulated pipeline that breaks the rules all the time, as far as messages can.

Its machine is an honest one, so it also does its work; habits come on top. Where it is, nobody else
counts anything twice or holds more than it may, and most of what others make still comes back.
"""

from collections.abc import Mapping
from functools import partial

import msgspec

from swarmtrain.simulate.pipelines.process import LABELS, Ground, SimProcess
from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import AnyHopMessage, Reason
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Slot, Span

HABITS = ("asks", "deaf", "doubles", "goes", "holds", "refuses")
"""Ask sources for permissions of micro-batches that it was not sent; never say ACK; send one
micro-batch into many slots; as a source, let everybody go; want slots and keep them empty; say of
all that it is sent that another end has the permission."""

LIES = "lies"
"""A habit beside them: give wrong gradients, which a comparison alone can show."""

_GUESSES = 4


class Hostile(SimProcess):
    """One life of a hostile member.

    Args:
        ground: world of the process.
        me: the process.
        span: stages that it serves.
        rules: rules of the run.
        pass_s: seconds of a pass.
        habits: some of `HABITS`, and `LIES`.

    Attributes:
        lied: micro-batches that it has given a wrong gradient for.
        sent_on: others' micro-batches that it has sent on, or has itself asked the permission of as
            their end: these may have it although it has dropped them, or took the answer to an
            earlier guess for theirs.
    """

    def __init__(
        self, ground: Ground, me: Process, span: Span, rules: Rules, pass_s: float,
        habits: frozenset[str],
    ) -> None:  # fmt: skip
        super().__init__(ground, me, span, rules, pass_s)
        self._habits = habits
        self.lied: set[MicroBatch] = set()
        self.sent_on: set[MicroBatch] = set()
        self._members: Mapping[PeerId, orders.Member] = {}
        self._seen: dict[PeerId, MicroBatch] = {}
        self._sent: dict[PeerId, msg.Forward] = {}
        self._holding: set[Slot] = set()

    def told(self, order: orders.Order) -> None:
        """The coordinator's order came."""
        if isinstance(order, orders.Welcome | orders.Begin):
            self._members = order.members
        super().told(order)

    def received(self, sender: Process, message: AnyHopMessage) -> None:
        """A message came."""
        match message:
            case msg.Invite() if "holds" in self._habits:
                self._hold(sender, message)
                return
            case msg.Invite() if sender.peer in self._sent and self._does("doubles"):
                again = msgspec.structs.replace(self._sent[sender.peer], slot=message.slot)
                self.ground.send(self, sender.peer, again)
                return
            case msg.Forward():
                self._seen[message.micro_batch.source] = message.micro_batch
                self._guess()
                if self._does("refuses"):
                    refuse = msg.Refuse(message.slot, message.micro_batch, Reason.GRANTED)
                    self.ground.send(self, sender.peer, refuse)
                    return
            case msg.Arrived() if "goes" in self._habits:
                go = msg.Go(message.micro_batch, message.slot, LABELS)
                self.ground.send(self, sender.peer, go)
                return
        super().received(sender, message)

    def tick(self) -> None:
        """Its time has come."""
        for peer, member in self._members.items():
            if "holds" in self._habits and self.span.last + 1 in member.span:
                want = msg.Want(self.span.last + 1, limits.HOP_WANTS_MAX)
                self.ground.send(self, peer, want)
        self._guess()
        super().tick()

    def _guess(self) -> None:
        """Ask for the permission of what may have been made after what was seen."""
        for source, name in self._seen.items() if "asks" in self._habits else ():
            for number in range(name.number + 1, name.number + 1 + _GUESSES):
                guess = msgspec.structs.replace(name, number=number)
                slot = Slot(self.me.boot, number)
                arrived = msg.Arrived(guess, slot, bytes(limits.SECRET_BYTES))
                self.ground.send(self, source, arrived)

    def _hold(self, sender: Process, invite: msg.Invite) -> None:
        """Keep a slot empty for as long as it is believed."""
        if invite.slot not in self._holding:
            self._holding.add(invite.slot)
            back = partial(self.ground.send, self, sender.peer, msg.Return(invite.slot))
            self.ground.later(self, limits.INVITED_S - 4, back)

    def _send(self, request: requests.Send) -> None:
        if isinstance(request.message, msg.Ack) and "deaf" in self._habits:
            return
        if isinstance(request.message, msg.Gradient) and LIES in self._habits:
            self.lied.add(request.message.micro_batch)
        if isinstance(request.message, msg.Forward):
            self._sent[request.peer] = request.message
        if isinstance(request.message, msg.Forward | msg.Arrived):
            self.sent_on.add(request.message.micro_batch)
        super()._send(request)

    def _does(self, habit: str) -> bool:
        return habit in self._habits and self.ground.rng.random() < 0.5
