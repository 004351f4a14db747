"""The production machines with real tensors: the unsplit model's bits, and learning at random.

Method: one process, no clock and no sockets (`one_process_pipeline`); every message goes through
its frame. The reference is the naive twin (`unsplit`).
"""

import math
import random
from collections.abc import Callable, Sequence

import msgspec
import pytest
import torch
from one_process_pipeline import Pipeline, process_of
from torch import Tensor
from unsplit import MicroBatch, Unsplit

from swarmtrain.config.settings import InnerSection, ModelSection
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.pipeline.activations import ActivationCodec, Boundary
from swarmtrain.pipeline.blocks import built_in
from swarmtrain.pipeline.clipping import clip_factor
from swarmtrain.pipeline.cut import passed, stages_of
from swarmtrain.pipeline.passes import Labels, Passes
from swarmtrain.pipeline.span import Span, dropout_seed
from swarmtrain.pipeline.steps import StageSteps
from swarmtrain_optimizers.codecs.base import IllegalPayload
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_transport.pipeline import encoding, messages, orders, requests, route
from swarmtrain_transport.pipeline.rounds import Rounds
from swarmtrain_transport.pipeline.rules import Rules

torch.set_num_threads(1)

SEED = 5
STEPS, SHARE, SLOTS = 20, 4, 3
RUN = b"the hash of its settings"
SECTION = ModelSection(layers=3, width=32, heads=2, context=12)
INNER = InnerSection(lr=1e-2)
EXAMPLE = torch.zeros(2, SECTION.context, dtype=torch.int64)
TEXT = torch.tensor(list(b"the cat sat on the mat, the dog on the log. " * 20))


def read(name: route.MicroBatch) -> tuple[Tensor, Tensor]:
    """The text of a micro-batch hangs on its name."""
    rng = random.Random(f"{name.source.hex()} {name.number}")
    starts = [rng.randrange(len(TEXT) - SECTION.context - 1) for _ in range(len(EXAMPLE))]
    windows = torch.stack([TEXT[start : start + SECTION.context + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


def rate(step: int) -> float:
    return warmup_cosine(step, peak=1e-2, warmup_steps=5, total_steps=STEPS, end_fraction=0.1)


MODEL = built_in(SECTION)
STAGES = stages_of(MODEL, 3, EXAMPLE, "none")


def peer(first: int, last: int, codec: str = "none") -> tuple[route.Span, Passes, Span]:
    span = Span(MODEL, STAGES, range(first, last + 1), seed=SEED)
    shapes = [one.shape for one in passed(MODEL, EXAMPLE)]
    boundaries = {
        stage: Boundary(ActivationCodec(codec), shapes[STAGES[stage][0] - 1]) for stage in (1, 2)
    }
    steps = {stage: StageSteps(module, INNER) for stage, module in span.modules.items()}
    labels = Labels(tuple(EXAMPLE.shape), 256)
    return route.Span(first, last), Passes(RUN, span, steps, boundaries, labels, read), span


def pipeline(
    peers: Sequence[tuple[route.Span, Passes, Span]],
    *,
    steps: int,
    share: int,
    clip: float = 0.0,
    seed: int | None = None,
    loss: float = 0.0,
) -> Pipeline:
    return Pipeline(
        [(span, passes) for span, passes, _ in peers],
        Rules(3, SLOTS, steps > 0, step_micro_batches=2),
        Rounds(3, share, steps, clips=steps > 0 and clip > 0),
        rate,
        clip,
        seed,
        loss,
    )


def values_of(peers: Sequence[tuple[route.Span, Passes, Span]]) -> dict[str, Tensor]:
    """Values of the peers' stages by their names."""
    return {
        name: values
        for _, _, span in peers
        for module in span.modules.values()
        for name, values in module.state_dict().items()
    }


@pytest.mark.parametrize(("clip", "loss"), [(0.0, 0.0), (0.5, 0.0), (0.5, 0.1)])
def test_machines_that_flush_have_the_bits_of_the_unsplit_model_over_20_steps(
    clip: float, loss: float
) -> None:
    peers = [peer(stage, stage) for stage in range(3)]
    world = pipeline(peers, steps=STEPS, share=SHARE, clip=clip, loss=loss)
    world.run(until_round=1)
    made = [[[name for name, _ in step] for step in one.stepped] for one in world.peers.values()]
    assert made[0] == made[1] == made[2] and [len(step) for step in made[0]] == [SHARE] * STEPS
    whole = build_model(SECTION, SEED)
    names = [[name for name, _ in span.modules[i].named_parameters()]
             for i, (_, _, span) in enumerate(peers)]  # fmt: skip
    modules = (whole.embedding, *whole.blocks, whole.norm)
    inner = InnerSection(lr=1e-2, grad_clip=clip)
    reference = Unsplit(whole, modules, MODEL.loss, inner, names)
    losses, factors = [], []
    for number, step in enumerate(made[0]):
        assert step == sorted(step)
        for name in step:
            losses.append(reference.add(MicroBatch(*read(name), dropout_seed(RUN, name))))
        factors.append(reference.step(SHARE * EXAMPLE.numel(), rate(number)))
    assert (min(factors) < 0.9) == (clip > 0) and (world.counts["lost"] > 0) == (loss > 0)
    assert loss or world.peers[process_of(2)].losses == losses  # a void step's are there, too
    parts = values_of(peers)
    expected = whole.state_dict()
    assert parts.keys() == expected.keys()
    assert all(torch.equal(parts[name], values) for name, values in expected.items())
    assert world.books[0].counted == (STEPS * SHARE,) * 3 and not world.books[0].partial


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_two_peers_per_stage_and_a_replica_learn_on_random_routes(codec: str) -> None:
    peers = [peer(stage, stage, codec) for stage in (0, 0, 1, 1, 2, 2)] + [peer(0, 2, codec)]
    world = pipeline(peers, steps=0, share=24, seed=3)
    world.run(until_round=2)
    made = [sum(books.made.values()) for books in world.books]
    assert made[-1] == 3 * 24 and not any(books.lost for books in world.books)
    assert [books.counted for books in world.books] == [(one,) * 3 for one in made]
    assert sum(len(peer.losses) for peer in world.peers.values()) >= sum(made)
    ends = [peer.losses for peer in world.peers.values() if len(peer.losses) > 9]
    assert all(sum(some[-4:]) < 0.8 * sum(some[:4]) for some in ends)
    assert all(len(peer.stepped) > 4 for peer in world.peers.values())
    assert all(len(passes._kept) <= 2 * SLOTS for _, passes, _ in peers)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("stage", range(3))
def test_a_peer_dies_and_its_micro_batches_are_made_again_or_lost_with_a_reason(
    stage: int, steps: int
) -> None:
    """The dead peer's gradient goes with it; what it has counted in a round that it left is in no
    book."""
    peers = [peer(one, one) for one in (0, 0, 1, 1, 2, 2)]
    world = pipeline(peers, steps=steps, share=8, clip=0.5, seed=4)
    world.run(until_round=1)
    victim = peers[2 * stage][1]
    world.run_until(lambda: len(victim._kept) > 1)
    held = len(victim._kept)
    world.leave(2 * stage)
    world.run(until_round=4)
    for books in world.books:
        check_books(world, books.round)
        assert not books.disputed and sum(books.lost.values()) <= held
        if steps or books.round != 1:
            assert not books.lost and not books.partial
            assert books.counted == (sum(books.made.values()),) * 3
    assert process_of(2 * stage) not in world.books[1].processes
    if steps:  # what it had in the step is made again, under other names
        assert_steps_are_of_the_same(world)


def check_books(world: Pipeline, round: int) -> None:
    """Hold the books of a round, and what they were made of, against the steps made."""
    books, reports = world.books[round], world.settled[round]
    told = {
        (one.source, number, one.stage): process
        for process, report in reports.items()
        for one in report.counted
        for number in orders.numbers(one.numbers)
    }
    stepped, unheard = {}, set()
    for one in (*world.peers.values(), *world.gone):
        for name, stage in (each for step in one.stepped for each in step):
            key = route.Process(name.source, name.boot), name.number, stage
            if name.round == round:
                assert key not in stepped and key not in unheard  # once per stage, whoever lives
                if one.me in reports:
                    stepped[key] = one.me
                else:
                    unheard.add(key)
        if one.me not in reports:
            unheard |= {
                (route.Process(name.source, name.boot), name.number, stage)
                for name, stage in one.counted
            }
    assert told == stepped
    for source, report in reports.items():
        for number in orders.numbers(report.made.whole):
            keys = {(source, number, stage) for stage in range(3)}
            assert keys <= told.keys() | unheard, "lost without a word"
        ended = [report.made.whole, *report.made.lost.values()]
        assert sum(len(orders.numbers(some)) for some in ended) == books.made[source]


def assert_steps_are_of_the_same(world: Pipeline) -> None:
    """A flushed step has the same micro-batches in every stage."""
    fences: dict[route.Fence, list[set[route.MicroBatch]]] = {}
    for one in (*world.peers.values(), *world.gone):
        for name, stage in (each for step in one.stepped for each in step):
            fences.setdefault(name.fence, [set(), set(), set()])[stage].add(name)
    assert all(stages.count(stages[0]) == 3 for stages in fences.values())
    assert any(attempt for _, _, attempt in fences)


Tamper = Callable[[route.Process, encoding.Heard], encoding.Heard]


def with_values(kind: type, value: bytes, sender: int) -> Tamper:
    """A peer that puts a value everywhere into payloads of a kind, and tells their form."""

    def tamper(process: route.Process, heard: encoding.Heard) -> encoding.Heard:
        if type(heard.message) is kind and process == process_of(sender):
            return heard._replace(payload=value * (len(heard.payload) // len(value)))
        return heard

    return tamper


def with_form(kind: type, **changes: object) -> Tamper:
    """Another form is told of payloads of a kind."""

    def tamper(_: route.Process, heard: encoding.Heard) -> encoding.Heard:
        if type(heard.message) is not kind:
            return heard
        form = msgspec.structs.replace(heard.message.payload, **changes)
        return heard._replace(message=msgspec.structs.replace(heard.message, payload=form))

    return tamper


NAN, INFINITE, HUGE = b"\xff" * 4, b"\x00\x00\x80\x7f", b"\x00\x00\x7f\x7f"
LARGE = b"\x00\x00\x00\x49"  # 2^19: each alone might be

NAN, INFINITE, HUGE = b"\xff" * 4, b"\x00\x00\x80\x7f", b"\x00\x00\x7f\x7f"


@pytest.mark.parametrize("codec", ["none", "float16", "int8"])
def test_a_peer_whose_outputs_are_no_numbers_is_routed_around(codec: str) -> None:
    """NaN in all codecs: the next stage refuses it, and whoever sent it the input asks another."""
    peers = [peer(stage, stage, codec) for stage in (0, 1, 1, 2)]
    world = pipeline(peers, steps=0, share=12, seed=4)
    world.tamper = with_values(messages.Forward, b"\xff", 1)
    world.run(until_round=2)
    assert [books.counted for books in world.books] == [(12,) * 3] * 2
    assert not any(books.lost or books.partial for books in world.books)
    assert world.counts["Refuse"] > 0 and not world.peers[process_of(1)].stepped
    assert all(peer.stepped for me, peer in world.peers.items() if me != process_of(1))


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (with_values(messages.Forward, NAN, 0), messages.Reason.TRIES),
        (with_values(messages.Gradient, INFINITE, 1), messages.Reason.SPOILED),
        (with_values(messages.Forward, HUGE, 0), messages.Reason.TRIES),
        (with_values(messages.Gradient, LARGE, 1), messages.Reason.SPOILED),
        (with_form(messages.Forward, codec="int8"), messages.Reason.TRIES),
        (with_form(messages.Gradient, shape=(1, 2)), messages.Reason.SPOILED),
        (with_form(messages.Go, codec="other"), messages.Reason.SPOILED),
    ],
)
def test_a_bad_payload_adds_nothing_and_its_micro_batch_is_lost_with_a_reason(
    tamper: Tamper, reason: messages.Reason
) -> None:
    """There is nobody else to route to."""
    peers = [peer(stage, stage) for stage in range(3)]
    world = pipeline(peers, steps=0, share=4)
    world.tamper = tamper
    world.run(until_round=1)
    assert set(world.books[0].lost) == {reason} and world.books[0].counted[0] == 0
    world.tamper = None
    world.run(until_round=3)
    check_books(world, 2)
    assert world.books[2].counted == (4,) * 3 and not world.books[2].lost
    assert not any(one.num_broken for one in world.peers.values())
    assert all(bool(value.isfinite().all()) for value in values_of(peers).values())


@pytest.mark.parametrize("size", [1e20, math.nan])
def test_an_accumulated_gradient_that_is_none_is_not_told_and_not_stepped_with(size: float) -> None:
    _, passes, span = peer(1, 1)
    begun = {name: value.clone() for name, value in span.modules[1].state_dict().items()}
    for parameter in span.modules[1].parameters():
        parameter.grad = torch.full_like(parameter, size)
    passes._steps[1].count(24)
    assert passes.weigh() == (None,)
    step = requests.Step(24, 1, 1.0)
    assert not passes.step(step, rate=0.1, clips={1: 0.5}) and passes.num_tokens == 0
    assert all(torch.equal(span.modules[1].state_dict()[name], one) for name, one in begun.items())


def test_a_step_is_clipped_by_its_own_gradient_where_that_is_larger_than_what_was_told() -> None:
    """Others make up the whole norm, and may say that theirs is small."""
    _, passes, span = peer(1, 1)
    weight = next(span.modules[1].parameters())
    weight.grad = torch.full_like(weight, 2400.0)
    passes._steps[1].count(24)
    (square,) = passes.weigh()
    factors = []
    passes._steps[1].step = lambda *, rate, factor: factors.append(factor)
    for told in (0.0, 1e-3, 2 * square**0.5):
        assert passes.step(requests.Step(24, 1, told), rate=0.1, clips={1: 0.5})
    own = clip_factor(square**0.5, 0.5)
    assert factors == [own, own, pytest.approx(own / 2)]


def arrived(form: messages.Payload, data: bytes) -> tuple[Passes, requests.RunForward]:
    """A peer of the middle stage with one input, and the request for its pass."""
    _, passes, _ = peer(1, 1, "int8")
    me = process_of(0)
    name, slot = route.MicroBatch(me.peer, me.boot, 0, 0, 0, 1), route.Slot(b"boot 002", 1)
    job = requests.Job(name, slot)
    passes.keep(job, messages.Forward(slot, name, 1, 24, form), data)
    return passes, requests.RunForward(job, 1)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda form, data: (messages.Payload("none", form.shape, form.num_bytes), data),
        lambda form, data: (messages.Payload("int8", (1, 1), form.num_bytes), data),
        lambda form, data: (form, data[:-1]),
        lambda form, data: (form, b"\xff" * len(data)),
    ],
)
def test_an_input_that_is_not_what_it_says_makes_no_pass(spoil: Callable) -> None:
    boundary = Boundary(ActivationCodec.INT8, passed(MODEL, EXAMPLE)[0].shape)
    data = boundary.encode(torch.randn(boundary.shape))
    passes, request = arrived(boundary.form, data)
    assert passes.forward(request).codec == "int8" and passes.text(request.job) is None
    passes, request = arrived(*spoil(boundary.form, data))
    with pytest.raises(IllegalPayload):
        passes.forward(request)


def test_what_is_sent_again_has_the_same_bytes() -> None:
    boundary = Boundary(ActivationCodec.INT8, passed(MODEL, EXAMPLE)[0].shape)
    passes, request = arrived(boundary.form, boundary.encode(torch.randn(boundary.shape)))
    form = passes.forward(request)
    forward = messages.Forward(route.Slot(b"x", 1), request.job.micro_batch, 2, 24, form)
    sent = [passes.beside(requests.Send(b"", forward, request.job)) for _ in range(2)]
    assert sent[0] == sent[1]
    gradient = Boundary(ActivationCodec.INT8, form.shape).encode(torch.randn(form.shape), seed=1)
    passes.keep(request.job, messages.Gradient(request.job.slot, request.job.micro_batch, form),
                gradient)  # fmt: skip
    back, _ = passes.backward(requests.RunBackward(request.job, 1, False))
    said = messages.Gradient(request.job.slot, request.job.micro_batch, back)
    sent = [passes.beside(requests.Send(b"", said, request.job)) for _ in range(2)]
    assert sent[0] == sent[1] and len(sent[0]) == back.num_bytes
    passes.free(request.job)
    assert not passes._kept
    with pytest.raises(IllegalPayload, match="dropped"):
        passes.forward(request)


@pytest.mark.parametrize("value", [-1, 256])
def test_labels_out_of_range_are_refused(value: int) -> None:
    labels = Labels((2, 3), 256)
    whole = torch.arange(6).reshape(2, 3)
    assert torch.equal(labels.decode(labels.encode(whole), labels.form), whole)
    with pytest.raises(IllegalPayload):
        labels.decode(labels.encode(torch.full((2, 3), value)), labels.form)
    with pytest.raises(IllegalPayload):
        labels.decode(b"", messages.Payload("labels", (), 0))
