"""The machines of pipelines with one rule broken each: simulated pipelines must find them all.

    python tests/simulate/pipeline_mutants.py two-permissions --seeds 300 --json

ends with {mutant, found, seed, invariant, story, seeds_run, seconds}; exit status 0: found, 1: all
those worlds were clean. Without a name all are hunted.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

from swarmtrain.simulate.pipelines.seeds import SeedResult, run_seed
from swarmtrain.simulate.stages.world import run_seed as run_staged
from swarmtrain_transport.coordinator import group
from swarmtrain_transport.coordinator.stages.stage_rounds import StageRounds
from swarmtrain_transport.pipeline.coordinator.moves import Moves
from swarmtrain_transport.pipeline.coordinator.rounds import Rounds
from swarmtrain_transport.pipeline.coordinator.shares import Shares
from swarmtrain_transport.pipeline.peer.evaluation import Evaluation
from swarmtrain_transport.pipeline.peer.guardian import Guardian
from swarmtrain_transport.pipeline.peer.held import Phase
from swarmtrain_transport.pipeline.peer.in_flight import InFlight
from swarmtrain_transport.pipeline.peer.permission import Permission
from swarmtrain_transport.pipeline.peer.requests import Free, Keep, Settle
from swarmtrain_transport.pipeline.peer.slots import Invitations, Window
from swarmtrain_transport.pipeline.peer.source import Source
from swarmtrain_transport.pipeline.peer.stage import StageMachine
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire.route import Slot

Patch = Callable[[], contextlib.AbstractContextManager]


def changed(owner, **attributes) -> Patch:
    """Attributes of a class are others."""
    return lambda: mock.patch.multiple(owner, **attributes)


def both(*patches: Patch) -> Patch:
    """Several changes at once."""

    @contextlib.contextmanager
    def patch():
        with contextlib.ExitStack() as stack:
            for one in patches:
                stack.enter_context(one())
            yield

    return patch


original_invite = Guardian.on_invite
original_answer = Permission._answer
original_tick = StageMachine.tick
original_close = StageMachine._close
original_settled = Rounds.settled
original_over = Rounds._step_is_over


def forgets_what_it_sent(self, receiver, slot):
    original_invite(self, receiver, slot)
    flight = self._flight
    held = next((held for held in flight.all() if held.was_at(receiver, slot)), None)
    if held is not None and held.phase is Phase.SENT:
        flight.requests.append(Free(held.job))


def permits_everybody(self, micro_batch, secret, end):
    made = self._made.get(micro_batch)
    return made is not None and not made.is_over


def begins_unasked(self, held):
    original_answer(self, held, goes=True)


class Forgetful(dict):
    """A dict that keeps nothing."""

    def __setitem__(self, key, value):
        pass


def born_forgetful(self, flight):
    original_init(self, flight)
    self._spent = Forgetful()


original_init = Guardian.__init__


def parks(self, receiver, slot):
    flight = self._flight
    held = next((held for held in flight.all() if held.was_at(receiver, slot)), None)
    waits = any(held.phase is Phase.WAITING for held in flight.all())
    if held is not None or waits:
        original_invite(self, receiver, slot)


def ready_when_idle(self, now_s):
    flight = self._flight
    is_idle = not flight.all() and flight.running is None and flight.source._is_drained
    self.idle = getattr(self, "idle", 0) + 1 if is_idle and flight.is_open else 0
    requests = original_tick(self, now_s)
    if self.idle > 4 and getattr(self, "said", -1) < flight.now[0]:
        self.said = flight.now[0]
        flight.requests += flight.tally.steps_due({}, rest=True)
        flight.requests.append(Settle(self.said))
        requests += self._taken()
    return requests


def closes_unless_said(self, round):
    if getattr(self, "said", -1) < round:
        original_close(self, round)
    elif round >= self._flight.now[0]:
        self._flight.source.stop()
        self._flight.now = (round + 1, 0, 0)


def takes_early_word(self, process, report, now_s):
    member = self.members.get(process.peer)
    if self._is_running and member and member.boot == process.boot and report.round == self.round:
        early[id(self), self.round, process] = report
    return original_settled(self, process, report, now_s)


def closes_with_early_words(self):
    was = self.closing
    went_on = original_over(self)
    if was is None and self.closing is not None:
        for process in list(self._closing.unsettled):
            report = early.get((id(self), self.closing, process))
            if report is not None:
                self._closing.unsettled.remove(process)
                self._closing.settled[process] = report
    return went_on


early = {}


def steps_whatever_is_lost(self):
    self._under_way.lost, self._under_way.left = 0, False
    original_end_step(self)


original_end_step = Rounds._end_step


def takes_every_gradient(self, sender, gradient):
    held = self._sent_to(sender, gradient.slot, gradient.micro_batch)
    if held is not None and held.phase is Phase.RETURNED:
        self._flight.send(sender, msg.Ack(gradient.slot))
        self._flight.requests.append(Keep(held.job))
        held.phase = Phase.BACKWARD
        return
    original_gradient(self, sender, gradient)


original_gradient = Guardian.on_gradient


def closes_only_its_source(self, round):
    slots = self._flight.in_slots
    kept = {slot: held for slot, held in slots.items() if held.micro_batch.round <= round}
    for slot in kept:
        del slots[slot]
    original_close(self, round)
    slots.update(kept)


def runs_old_rounds(self, name):
    if self.rules.flushes:
        return original_may_run(self, name)
    return name.round <= self._flight.now[0]


original_may_run = StageMachine._may_run


def numbers_again(self, free, now_s, filled, most):
    given = []
    while self._wanted and len(given) < free:
        sender = next(iter(self._wanted))
        del self._wanted[sender]
        slot = Slot(self._boot, next(n for n in range(99) if Slot(self._boot, n) not in self._kept))
        self._kept[slot] = sender, now_s
        given.append((slot, sender))
    return given


def by_slot_alone(self, receiver, slot, name):
    return next(
        (
            held
            for held in self._flight.all()
            if held.phase is Phase.SENT and held.is_at(receiver, slot)
        ),
        None,
    )


def released_before_its_part(self):
    return self.leaving if self._without_from is not None else None


def forgets_lost_text(self, held):
    if held.above is None:
        self._flight.free(held)
    else:
        original_fail(self, held)


original_fail = Evaluation.fail


def permits_whoever_asks_first(self, micro_batch, secret, end):
    return original_permits(self, micro_batch, self.secret(micro_batch), end)


original_permits = Source.permits


class NoMore(set):
    """A set that nothing comes into."""

    def add(self, process):
        pass


def closes_on_early_words(self):
    self._under_way.more = NoMore()
    return original_deal(self)


original_deal = Rounds._deal


def deals_again(self, present, able, busy, now_s):
    size = self.size
    self.size += max(0, self._missing(present))
    more = original_shares_deal(self, present, able, busy, now_s)
    self.size = size
    return more


original_shares_deal = Shares.deal


def grows_without_end(self, since_s, now_s):
    self.size += 1


def takes_a_gradient_one_step_too_old(self, sender, gradient):
    rules = self._flight.rules
    self._flight.rules = dataclasses.replace(rules, max_stale_steps=rules.max_stale_steps + 1)
    original_gradient(self, sender, gradient)
    self._flight.rules = rules


def parts_with_the_only_one(self, process, now_s):
    self._now_s = now_s
    member = self._in_round.get(process.peer)
    if member is None or member.boot != process.boot:
        return ()
    self._part(process)
    self.absent[process.peer] = member
    self._is_at_fault(process)
    return self._went_on()


original_follow = StageRounds._follow


def waits_on_after_a_skip(self):
    views = {stage: self._groups[stage].view for stage in self._awaited}
    if not any(
        views[stage].last_op >= one.op and one.op not in views[stage].commits
        for stage, one in self._awaited.items()
    ):
        original_follow(self)


def lets_everybody_give(peers, givers):
    return peers


@dataclass(frozen=True)
class Mutant:
    """A broken rule.

    Attributes:
        patch: breaks it.
        found_by: invariants that may show it.
        run: a world of a seed; by default one of pipelines alone.
    """

    patch: Patch
    found_by: tuple[str, ...]
    run: Callable[[int], SeedResult] = run_seed


MUTANTS = {
    "guardian-forgets": Mutant(changed(Guardian, on_invite=forgets_what_it_sent), ("P3",)),
    "two-permissions": Mutant(changed(Source, permits=permits_everybody), ("P1", "P4")),
    "begins-without-permission": Mutant(
        changed(Permission, ask=begins_unasked), ("P1", "P2", "P4")
    ),
    "invitation-used-twice": Mutant(
        both(
            changed(Guardian, __init__=born_forgetful),
            changed(Invitations, take=lambda *_: True),
        ),
        ("P3",),
    ),
    "invitation-parked": Mutant(changed(Guardian, on_invite=parks), ("P8",)),
    "no-sign-of-life": Mutant(changed(Guardian, on_alive=lambda *_: None), ("P8",)),
    "ready-on-local-knowledge": Mutant(
        both(
            changed(StageMachine, tick=ready_when_idle, _close=closes_unless_said),
            changed(Rounds, settled=takes_early_word, _step_is_over=closes_with_early_words),
        ),
        ("P1", "P2"),
    ),
    "no-void": Mutant(changed(Rounds, _end_step=steps_whatever_is_lost), ("P4",)),
    "waits-for-the-silent": Mutant(changed(Rounds, overdue=lambda self, now_s: ()), ("P8",)),
    "gradient-counted-twice": Mutant(changed(Guardian, on_gradient=takes_every_gradient), ("P1",)),
    "closed-round-counts": Mutant(
        changed(StageMachine, _close=closes_only_its_source, _may_run=runs_old_rounds), ("P2",)
    ),
    "gradient-of-the-slot-before": Mutant(
        both(
            changed(Guardian, __init__=born_forgetful, _sent_to=by_slot_alone),
            changed(Invitations, give=numbers_again),
        ),
        ("P1", "P2", "P4"),
    ),
    "moved-but-in-its-old-group": Mutant(
        changed(Rounds, _in_round=property(lambda self: dict(self.members))), ("P6",)
    ),
    "moved-before-its-part": Mutant(
        changed(Rounds, released=property(released_before_its_part)), ("P6",)
    ),
    "two-moves": Mutant(changed(Moves, _waits=lambda *_: False), ("P6",)),
    "order-does-not-wait": Mutant(
        changed(StageMachine, _is_counting=property(lambda self: False)), ("P2", "P4")
    ),
    "next-step-counted-early": Mutant(
        changed(StageMachine, _may_run=lambda self, name: True), ("P2", "P4")
    ),
    "secret-not-asked-for": Mutant(changed(Source, permits=permits_whoever_asks_first), ("P8",)),
    "name-counts-for-each-slot": Mutant(
        changed(InFlight, may_count=lambda self, held: True), ("P1",)
    ),
    "lost-text-not-sent-again": Mutant(changed(Evaluation, fail=forgets_lost_text), ("P2",)),
    "slots-beyond-memory": Mutant(changed(Window, back=grows_without_end), ("P3",)),
    "share-of-the-dead-lost": Mutant(changed(Rounds, _deal=lambda self: False), ("P11",)),
    "share-dealt-twice": Mutant(changed(Shares, deal=deals_again), ("P11",)),
    "drained-without-what-was-dealt": Mutant(
        changed(Rounds, _deal=closes_on_early_words), ("P11",)
    ),
    "receivers-believed": Mutant(changed(Source, has_permitted=lambda self, name: True), ("P8",)),
    "one-step-too-old": Mutant(
        changed(Guardian, on_gradient=takes_a_gradient_one_step_too_old), ("P12",)
    ),
    "away-though-a-stage-is-empty": Mutant(changed(Rounds, away=parts_with_the_only_one), ("P13",)),
    "skip-ends-no-round": Mutant(
        changed(StageRounds, _follow=waits_on_after_a_skip), ("S1",), run_staged
    ),
    "who-is-in-no-books-gives": Mutant(
        changed(group, given_by=lets_everybody_give), ("S4",), run_staged
    ),
}


@dataclass(frozen=True)
class Catch:
    """Report of how a hunt ended."""

    mutant: str
    found: bool
    seed: int
    invariant: str
    story: str
    seeds_run: int
    seconds: float


def hunt(name: str, seeds: int, first_seed: int = 0) -> Catch:
    """Run worlds with the mutant until one shows it."""
    began_s = time.perf_counter()
    mutant = MUTANTS[name]
    other = ""
    for seed in range(first_seed, first_seed + seeds):
        with mutant.patch():
            result = mutant.run(seed)
        if result.invariant in mutant.found_by:
            spent_s = round(time.perf_counter() - began_s, 1)
            runs = seed - first_seed + 1
            return Catch(name, True, seed, result.invariant, result.story, runs, spent_s)
        other = other or (result.invariant and f"{result.invariant} {result.story}")
    spent_s = round(time.perf_counter() - began_s, 1)
    return Catch(name, False, -1, "", other, seeds, spent_s)


def main(arguments: list[str]) -> int:
    """Hunt, and say how it went."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mutant", nargs="?", choices=tuple(MUTANTS))
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    names = [chosen.mutant] if chosen.mutant else list(MUTANTS)
    found = True
    for name in names:
        catch = hunt(name, chosen.seeds)
        found = found and catch.found
        if chosen.json:
            print(json.dumps(vars(catch)), flush=True)
        else:
            print(f"{name:28} {catch.seed:5} {catch.invariant} {catch.story[:100]}", flush=True)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
