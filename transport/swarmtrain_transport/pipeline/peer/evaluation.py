"""A peer's part in evaluations: validation text on its way through the stages, forward only.

The coordinator names a state, the newest op of each stage, and an evaluator, a source. That one
sends the validation text as micro-batches that are marked as judged, a few at a time. They come
into slots by invitation as others do. Each hop makes its pass with the weights of the named op,
sends on, and forgets them as soon as the next one says ALIVE. The end asks the evaluator for the
labels (ARRIVED, GO) and tells it the loss (JUDGED). None of it is in books, gradients or the shares
of routes.

A hop that has another state than the one that is named says so, and the evaluator sends that text
again a little later, as it does with text of which it hears nothing. After a few such times in a
row it gives the evaluation up; the next state has another one. A loss is an end's word, for people
alone.
"""

import hmac
import math
from collections import deque

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.guardian import Guardian
from swarmtrain_transport.pipeline.peer.held import Held, Phase
from swarmtrain_transport.pipeline.peer.in_flight import InFlight
from swarmtrain_transport.pipeline.peer.requests import Job
from swarmtrain_transport.pipeline.peer.slots import Invitations
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire.orders import Evaluate
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Slot


class Evaluation:
    """A peer's part, as evaluator and as a hop.

    Args:
        flight: micro-batches at the peer.
        guardian: the peer's part as a sender.
        invited: slots that are kept for senders.

    Attributes:
        refused: words that were not believed.
        heard_s: time when, as evaluator, it last heard a loss, or had no state yet; infinity if
            it evaluates nothing.
    """

    def __init__(self, flight: InFlight, guardian: Guardian, invited: Invitations) -> None:
        self._flight, self._guardian, self._invited = flight, guardian, invited
        self.refused = 0
        self.heard_s = math.inf
        self._todo: deque[int] = deque()
        self._losses: dict[int, tuple[float, int]] = {}
        self._number = 0
        self._failures = 0
        self._rests_until_s = 0.0

    @property
    def parts(self) -> list[int]:
        """Parts of the text that are judged, on their way, or to be sent; none if it evaluates
        nothing."""
        if self.heard_s == math.inf:
            return []
        own = [self._part(held) for held in self._flight.judged.values() if held.above is None]
        return sorted([*self._losses, *own, *self._todo])

    # ---- orders

    def begin(self, order: Evaluate) -> None:
        """Another state is evaluated now."""
        self.stop()
        flight = self._flight
        flight.evaluated, flight.invites = order, True
        if order.evaluator == flight.me and flight.rules.judged:
            self.heard_s, self._failures, self._rests_until_s = flight.now_s, 0, 0.0
            self._todo = deque(range(flight.rules.judged))
            self._losses = {}

    def stop(self, loss: float | None = None) -> None:
        """The evaluation is over, here at least; the evaluator tells its loss, if it has one."""
        flight = self._flight
        if self.heard_s < math.inf:
            assert flight.evaluated is not None
            flight.requests.append(requests.Evaluated(flight.evaluated.ops[0], loss))
        flight.evaluated = None
        for held in list(flight.judged.values()):
            flight.free(held)
        self._todo.clear()
        self.heard_s = math.inf

    def departed(self, process: Process) -> None:
        """The process is gone."""
        flight = self._flight
        if flight.evaluated is not None and flight.evaluated.evaluator == process:
            self.stop()
        for held in list(flight.judged.values()):
            is_sent_there = held.phase is Phase.SENT and held.tries[-1].receiver == process
            if is_sent_there and held.job in flight.judged:
                self.fail(held)

    # ---- the evaluator

    def go_on(self) -> None:
        """Send as much of the text as may be on its way."""
        flight = self._flight
        own = sum(job.slot is None for job in flight.judged)
        most = 1 if self._failures else limits.JUDGED_UNDER_WAY
        while self._todo and own < most and flight.now_s >= self._rests_until_s:
            assert flight.evaluated is not None
            self._number += 1
            part = self._todo.popleft()
            number = self._number * flight.rules.judged + part
            op = flight.evaluated.ops[0]
            name = MicroBatch(flight.me.peer, flight.me.boot, op, 0, 0, number, judged=True)
            job, secret = Job(name, None), flight.source.secret(name)
            now_s = flight.now_s
            flight.judged[job] = Held(job, None, 0, secret, 0, Phase.FORWARD, now_s, now_s)
            own += 1

    def on_arrived(self, sender: Process, arrived: msg.Arrived) -> None:
        """An end asks for the labels."""
        flight, name = self._flight, arrived.micro_batch
        held = flight.judged.get(Job(name, None))
        labels = held.labels if held is not None and self._knows(held, arrived.secret) else None
        if labels is not None and self._is_end(sender):
            flight.send(sender, msg.Go(name, arrived.slot, labels), Job(name, None))
        else:
            flight.send(sender, msg.No(name, arrived.slot))

    def on_judged(self, sender: Process, judged: msg.Judged) -> None:
        """An end tells the loss of one of ours, or a hop that there will be none."""
        flight = self._flight
        held = flight.judged.get(Job(judged.micro_batch, None))
        if held is None:
            return  # it was sent again meanwhile, or it is over
        is_loss = judged.loss is not None
        is_sound = not is_loss or (self._is_end(sender) and judged.tokens == held.tokens)
        if not self._knows(held, judged.secret) or not is_sound:
            self.refused += 1
        elif judged.loss is None or not math.isfinite(judged.loss):
            self.fail(held)
        else:
            self._losses[self._part(held)] = judged.loss, held.tokens
            self.heard_s, self._failures = flight.now_s, 0
            flight.free(held)
            if len(self._losses) == flight.rules.judged:
                self.stop(self._mean())

    def _mean(self) -> float:
        """The loss of a token. Sums are added in the order of the text: it has the bits of the same
        sum over the whole model."""
        total, num_tokens = 0.0, 0
        for _, (loss, tokens) in sorted(self._losses.items()):
            total, num_tokens = total + loss, num_tokens + tokens
        return total / num_tokens

    def _part(self, held: Held) -> int:
        """The number of its part of the text."""
        return held.micro_batch.number % self._flight.rules.judged

    def _knows(self, held: Held, secret: bytes) -> bool:
        return hmac.compare_digest(held.secret, secret)

    def _is_end(self, process: Process) -> bool:
        """Return True if it can be the end of a route."""
        flight = self._flight
        return flight.rules.num_stages - 1 in flight.members[process.peer].span

    # ---- a hop

    def on_forward(self, sender: Process, forward: msg.Forward, *, is_sound: bool) -> None:
        """Validation text came."""
        flight, name, now_s = self._flight, forward.micro_batch, self._flight.now_s
        job = Job(name, forward.slot)
        if job in flight.judged:
            flight.send(sender, msg.Alive(forward.slot))
            return
        if self._invited.take(forward.slot, sender) is None:
            return
        flight.send(sender, msg.Alive(forward.slot))
        held = Held(
            job, sender, forward.stage, forward.secret, forward.tokens, Phase.FORWARD, now_s, now_s
        )  # fmt: skip
        has_tokens = 0 < forward.tokens <= flight.rules.tokens
        is_one = forward.stage in flight.span and is_sound and has_tokens
        if not self._is_named(name) or not is_one:
            self.fail(held)
            return
        flight.judged[job] = held
        flight.requests.append(requests.Keep(job))
        if flight.is_end:
            held.phase = Phase.ARRIVED
            self._ask(held)

    def on_answer(self, sender: Process, slot: Slot, name: MicroBatch, *, goes: bool) -> None:
        """The evaluator gives the labels to its end, or has ended it."""
        flight = self._flight
        held = flight.judged.get(Job(name, slot))
        is_due = held is not None and held.phase is Phase.ARRIVED
        if held is None or not is_due or sender != Process(name.source, name.boot):
            return
        if goes:
            flight.requests.append(requests.Keep(held.job))
            flight.enter(held, Phase.LABELLED)
        else:
            flight.free(held)

    def loss_made(self, held: Held, loss: float) -> None:
        """The loss of validation text is made here, at the end of its route."""
        self._answer(held, loss)
        self._flight.free(held)

    def fail(self, held: Held) -> None:
        """No loss will come of it: the evaluator sends it again a little later, or gives up."""
        flight = self._flight
        flight.free(held)
        if held.above is not None:
            self._answer(held, None)
            return
        pause_s = limits.HOP_TICK_S * (1 << self._failures)
        self._failures += 1
        self._todo.append(self._part(held))
        self._rests_until_s = flight.now_s + min(pause_s, limits.JUDGED_PAUSE_MAX_S)
        if self._failures >= limits.JUDGED_TRIES:
            self.stop()

    def postpone(self, held: Held) -> None:
        """The state is not in place here yet. The evaluator waits for its own; others have to say
        so."""
        flight = self._flight
        if held.above is not None:
            self.fail(held)
            return
        flight.free(held)
        self._todo.append(self._part(held))
        self.heard_s, self._rests_until_s = flight.now_s, flight.now_s + limits.HOP_TICK_S

    def look_after(self) -> None:
        """Ask again, or give up."""
        flight = self._flight
        for held in list(flight.judged.values()):
            if held.job not in flight.judged:
                break  # what is tried no more has ended them all
            if flight.now_s - held.began_s > limits.JUDGED_S and held is not flight.running:
                if held.above is None:
                    self.fail(held)
                else:  # the evaluator has given it up as well
                    flight.free(held)
            elif held.phase is Phase.WAITING:
                self._guardian.want(held, everybody=True)
            elif held.phase is Phase.ARRIVED:
                self._ask(held)

    def _ask(self, held: Held) -> None:
        name, slot = held.micro_batch, held.job.slot
        assert slot is not None
        self._flight.send(Process(name.source, name.boot), msg.Arrived(name, slot, held.secret))

    def _answer(self, held: Held, loss: float | None) -> None:
        name = held.micro_batch
        judged = msg.Judged(name, held.secret, held.tokens, loss)
        self._flight.send(Process(name.source, name.boot), judged)

    def _is_named(self, name: MicroBatch) -> bool:
        """Return True if the coordinator has named its source, and that state."""
        order = self._flight.evaluated
        named = Process(name.source, name.boot), name.round
        return order is not None and named == (order.evaluator, order.ops[0])
