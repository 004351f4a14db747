"""A source's comparisons: which micro-batches have a twin, where it goes, and whom they show."""

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.comparisons import Comparisons, Likeness
from swarmtrain_transport.pipeline.peer.requests import Request, Text
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.peer.source import Source
from swarmtrain_transport.pipeline.peer.stage import StageMachine
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import Payload
from swarmtrain_transport.pipeline.wire.route import Process, Slot, Span

ME, A, B, C, D = (Process(bytes([65 + n]) * 32, bytes([97 + n]) * 8) for n in range(5))
FORM = Payload("none", (2,), 8)
SEED = b"seed"
ALIKE, ODD = Likeness(0.99, 1.0), Likeness(-0.99, 1.0)
RULES = Rules(2, 64, tokens=7, repeat_every=3)


def source_of(*others: Process, share: int = 40, rules: Rules = RULES):
    """A source of two stages, and what it asks for when the round begins."""
    machine = StageMachine(ME, Span(0, 0), rules, SEED)
    members = {one.peer: orders.Member(one.boot, Span(1, 1)) for one in others}
    members[ME.peer] = orders.Member(ME.boot, Span(0, 0))
    done = machine.told(orders.Welcome(members, 0, 0, 0, True), 0.0)
    return machine, [*done, *machine.told(orders.Begin(0, share, members), 0.0)]


def sent(asked: list[Request] | tuple[Request, ...], kind: type) -> list[requests.Send]:
    return [
        one for one in asked if isinstance(one, requests.Send) and isinstance(one.message, kind)
    ]


class Others:
    """All peers of the second stage: they invite whoever wants, and answer at once.

    Attributes:
        gone_to: process that has had each micro-batch, by its number.
        runs: forward passes, in their order.
        backwards: backward passes, in their order.
    """

    def __init__(self, machine: StageMachine, *others: Process) -> None:
        self.gone_to: dict[int, Process] = {}
        self.runs: list[requests.RunForward] = []
        self.backwards: list[requests.RunBackward] = []
        self.reports: list[orders.Report] = []
        self._machine, self._others = machine, {one.peer: one for one in others}
        self._slots = 0

    def serve(self, asked, alike: Callable[[int], Likeness | None] = lambda _: None) -> None:
        """Do all that is asked; `alike` is what the shell says of a micro-batch and its twin."""
        machine, waiting = self._machine, list(asked)
        while waiting:
            match request := waiting.pop(0):
                case requests.RunForward():
                    self.runs.append(request)
                    waiting += machine.forward_made(request.job, FORM, 0.0, Text(7, FORM))
                case requests.Send(message=msg.Want()):
                    self._slots += 1
                    one = self._others[request.peer]
                    invite = msg.Invite(Slot(one.boot, self._slots))
                    waiting += machine.received(one.peer, one.boot, invite, 0.0)
                case requests.Send(message=msg.Forward() as forward):
                    one = self._others[request.peer]
                    name = forward.micro_batch
                    self.gone_to[name.number] = one
                    ask = msg.Arrived(name, forward.slot, forward.secret)
                    waiting += machine.received(one.peer, one.boot, ask, 0.0)
                    back = msg.Gradient(forward.slot, name, FORM)
                    waiting += machine.received(one.peer, one.boot, back, 0.0)
                case requests.RunBackward():
                    self.backwards.append(request)
                    found = None if request.twin is None else alike(request.job.micro_batch.number)
                    waiting += machine.backward_made(request.job, 0.0, None, found)
                case requests.SendReport():
                    self.reports.append(request.report)


def test_twins_are_of_the_text_before_and_go_to_another_peer() -> None:
    machine, asked = source_of(A, B, C)
    others = Others(machine, A, B, C)
    others.serve(asked)
    numbers = [run.job.micro_batch.number for run in others.runs]
    seconds = [run.job.micro_batch.number for run in others.runs if run.again]
    assert numbers == list(range(1, 41)) and 5 < len(seconds) < 20
    for number in seconds:
        assert others.gone_to[number] != others.gone_to[number - 1]
    twins = {run.job.micro_batch.number: run.twin for run in others.backwards}
    for number, twin in twins.items():
        its = number - 1 if number in seconds else number + 1 if number + 1 in seconds else None
        assert (twin.micro_batch.number if twin else None) == its
        assert twin is None or twin.seed == twins[its].seed


def test_a_twin_waits_for_another_peer_while_there_is_one() -> None:
    """The first peer has room for both; the other one takes long to invite."""
    machine, asked = source_of(A, B, rules=Rules(2, 2, tokens=7, repeat_every=1), share=2)
    texts = [one for one in asked if isinstance(one, requests.RunForward)]
    asked = list(machine.forward_made(texts[0].job, FORM, 0.0, Text(7, FORM)))
    texts += [one for one in asked if isinstance(one, requests.RunForward)]
    asked += machine.forward_made(texts[1].job, FORM, 0.0, Text(7, FORM))
    assert {want.peer for want in sent(asked, msg.Want)} == {A.peer, B.peer}
    machine.tick(4.0)  # nobody has room: everybody is asked
    assert sent(machine.received(A.peer, A.boot, msg.Invite(Slot(A.boot, 1)), 4.0), msg.Forward)
    done = machine.received(A.peer, A.boot, msg.Invite(Slot(A.boot, 2)), 4.0)
    assert sent(done, msg.Return) and not sent(done, msg.Forward)
    assert A.peer not in {want.peer for want in sent(machine.tick(8.0), msg.Want)}
    assert sent(machine.received(B.peer, B.boot, msg.Invite(Slot(B.boot, 1)), 8.0), msg.Forward)


@pytest.mark.parametrize(
    ("others", "rules"),
    [((A,), RULES), ((A, B), Rules(2, 64, tokens=7)), ((), Rules(1, 64, tokens=7, repeat_every=1))],
    ids=["one peer", "no rule", "a full replica"],
)
def test_where_nothing_can_be_compared_no_text_is_repeated(others, rules: Rules) -> None:
    machine, asked = source_of(*others, rules=rules)
    peers = Others(machine, *others)
    peers.serve(asked)
    assert not any(run.again for run in peers.runs)
    assert not any(run.twin for run in peers.backwards)


def test_what_is_drawn_hangs_on_the_seed_alone_and_is_one_of_so_many() -> None:
    def drawn(seed: bytes) -> set[int]:
        machine, asked = source_of(A, B, share=800, rules=Rules(2, 8, tokens=7, repeat_every=20))
        machine._guardian.comparisons._seed = seed
        others = Others(machine, A, B)
        others.serve(asked)
        return {run.job.micro_batch.number for run in others.runs if run.again}

    one, again, other = drawn(b"one"), drawn(b"one"), drawn(b"other")
    assert one == again != other and 15 < len(one) < 65


def test_a_source_tells_what_it_has_found_and_routes_around_its_suspect() -> None:
    machine, asked = source_of(A, B, C, share=200)
    others = Others(machine, A, B, C)

    def alike(number: int) -> Likeness | None:
        its = others.gone_to.get(number - 1), others.gone_to[number]
        is_second = any(run.again for run in others.runs if run.job.micro_batch.number == number)
        return (ODD if A in its else ALIKE) if is_second else None

    others.serve(asked, alike)
    machine.told(orders.Close(0), 1.0)
    asked = machine.settled(0, 1.0)
    (told,) = [one.report.compared for one in asked if isinstance(one, requests.SendReport)]
    assert told.suspect == A.peer and 0 < told.odd < told.times < 80
    late = Counter(one for number, one in others.gone_to.items() if number > 100)
    assert late[A] < 0.2 * min(late[B], late[C])


# ---- what findings say


def found(*pairs: tuple[Process, Process, Likeness], round: int = 0) -> Comparisons:
    comparisons = Comparisons(RULES, SEED)
    for one, other, likeness in pairs:
        comparisons.found(frozenset({one.peer, other.peer}), round, likeness)
    return comparisons


def pairs_of(hostile: set[Process], *peers: Process, times: int = 2):
    return [
        (one, other, ODD if hostile & {one, other} else ALIKE)
        for one in peers
        for other in peers
        if one < other
        for _ in range(times)
    ]


def test_who_is_at_odds_with_all_while_they_are_alike_is_suspect() -> None:
    assert found(*pairs_of({B}, A, B, C, times=4)).suspect == B.peer
    assert found(*pairs_of({B}, A, B, C, D)).suspect == B.peer


def test_of_two_nobody_can_tell_which() -> None:
    assert found(*pairs_of({B}, A, B, times=20)).suspect is None


def test_few_findings_say_nothing() -> None:
    assert found((A, B, ODD), (B, C, ODD), (A, C, ALIKE)).suspect is None


def test_where_all_differ_nobody_is_suspect() -> None:
    assert found(*pairs_of({A, B, C}, A, B, C, times=5)).suspect is None


def test_a_liar_that_no_source_sees_seldom_makes_another_suspect() -> None:
    """It serves a stage between: its wrong gradients come through each of the next peers alike."""
    wrong = 0
    for seed in range(200):
        rng = random.Random(seed)
        pairs = []
        for _ in range(limits.TWINS_KEPT):
            one, other = rng.sample((A, B, C), 2)
            is_odd = (rng.random() < 1 / 3) != (rng.random() < 1 / 3)
            pairs.append((one, other, ODD if is_odd else ALIKE))
        wrong += found(*pairs).suspect is not None
    assert wrong < 0.03 * 200


def test_old_findings_are_forgotten() -> None:
    comparisons = found(*pairs_of({B}, A, B, C, times=4))
    comparisons.begin_round(limits.TWINS_ROUNDS)
    assert comparisons.suspect == B.peer
    comparisons.begin_round(limits.TWINS_ROUNDS + 1)
    assert comparisons.suspect is None


@pytest.mark.parametrize(
    ("cosine", "ratio"), [(-1.0, 1.0), (0.0, 1.0), (1.0, 10.0), (0.0, math.inf), (math.nan, 1.0)]
)
def test_flipped_random_scaled_and_empty_gradients_are_odd(cosine: float, ratio: float) -> None:
    assert Likeness(cosine, ratio).is_odd and not Likeness(0.5, 1.7).is_odd


def test_a_source_knows_which_end_has_the_permission() -> None:
    source = Source(ME.peer, ME.boot, SEED)
    source.begin(0, 0, 0, 1)
    name = source.make()
    assert name is not None and source.end_of(name) is None
    source.permits(name, source.secret(name), (A, Slot(A.boot, 1)))
    assert source.end_of(name) == A
