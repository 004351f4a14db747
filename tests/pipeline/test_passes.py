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
from one_process_pipeline import Pipeline, Trainer, process_of
from torch import Tensor
from unsplit import MicroBatch, Unsplit

from swarmtrain.config.settings import InnerSection, ModelSection
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.pipeline.activations import ActivationCodec, Boundary
from swarmtrain.pipeline.blocks import built_in
from swarmtrain.pipeline.clipping import clip_factor
from swarmtrain.pipeline.cut import passed, stages_of
from swarmtrain.pipeline.labels import Labels
from swarmtrain.pipeline.places import Parcel, Places, Read
from swarmtrain.pipeline.span import Span, dropout_seed
from swarmtrain.pipeline.stage_trainer import Forms, boundaries_of
from swarmtrain.pipeline.steps import StageSteps
from swarmtrain.pipeline.subspace import Subspace
from swarmtrain_optimizers.codecs.base import IllegalPayload
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.limits import NORM_SPREAD
from swarmtrain_transport.pipeline.coordinator.rounds import Rounds
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.wire import encoding, messages, orders, route
from swarmtrain_transport.wire.frames import Frame, FrameKind

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


Peer = tuple[route.Span, Trainer, Span]


SUBSPACE = Subspace(8, SECTION.width, 256, SEED)


def peer(
    first: int,
    last: int,
    codec: str = "none",
    clip: float = 0.0,
    subspace: Subspace | None = None,
) -> Peer:
    span = Span(MODEL, STAGES, range(first, last + 1), seed=SEED, subspace=subspace)
    boundaries = boundaries_of(MODEL, STAGES, EXAMPLE, ActivationCodec(codec), 0, subspace)
    forms = Forms(RUN, boundaries, Labels(tuple(EXAMPLE.shape), 256))
    inner = msgspec.structs.replace(INNER, grad_clip=clip)
    shares = dict.fromkeys(span.modules, 1.0)
    return route.Span(first, last), Trainer(span, forms, inner, read, norm_shares=shares), span


def pipeline(
    peers: Sequence[Peer],
    *,
    steps: int,
    share: int,
    clips: bool = False,
    seed: int | None = None,
    loss: float = 0.0,
) -> Pipeline:
    return Pipeline(
        [(span, trainer) for span, trainer, _ in peers],
        Rules(3, SLOTS, steps > 0, step_micro_batches=2, tokens=EXAMPLE.numel()),
        Rounds(3, share, steps, clips=clips),
        rate,
        seed,
        loss,
    )


def trainers(world: Pipeline) -> list[Trainer]:
    return [one.trainer for one in world.peers.values()]


def values_of(peers: Sequence[Peer]) -> dict[str, Tensor]:
    """Values of the peers' stages by their names."""
    return {
        name: values
        for _, _, span in peers
        for module in span.modules.values()
        for name, values in module.state_dict().items()
    }


@pytest.mark.parametrize(
    ("clip", "loss", "subspace"),
    [(0.0, 0.0, None), (0.5, 0.0, None), (0.5, 0.1, None), (0.5, 0.0, SUBSPACE)],
)
def test_machines_that_flush_have_the_bits_of_the_unsplit_model_over_20_steps(
    clip: float, loss: float, subspace: Subspace | None
) -> None:
    """In a subspace too: coordinates are all that a model which is held in it needs."""
    peers = [peer(stage, stage, clip=clip, subspace=subspace) for stage in range(3)]
    world = pipeline(peers, steps=STEPS, share=SHARE, clips=clip > 0, loss=loss)
    world.run(until_round=1)
    made = [[[name for name, _ in step] for step in one.stepped] for one in trainers(world)]
    assert made[0] == made[1] == made[2] and [len(step) for step in made[0]] == [SHARE] * STEPS
    whole = build_model(SECTION, SEED)
    names = [[name for name, _ in span.modules[i].named_parameters()]
             for i, (_, _, span) in enumerate(peers)]  # fmt: skip
    modules = (whole.embedding, *whole.blocks, whole.norm)
    inner = InnerSection(lr=1e-2, grad_clip=clip)
    reference = Unsplit(whole, modules, MODEL.loss, inner, names, subspace)
    losses, factors = [], []
    for number, step in enumerate(made[0]):
        assert step == sorted(step)
        for name in step:
            losses.append(reference.add(MicroBatch(*read(name), dropout_seed(RUN, name))))
        factors.append(reference.step(SHARE * EXAMPLE.numel(), rate(number)))
    assert (min(factors) < 0.9) == (clip > 0) and (world.counts["lost"] > 0) == (loss > 0)
    assert loss or trainers(world)[2].losses == losses  # a void step's are there, too
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
    assert sum(len(one.losses) for one in trainers(world)) >= sum(made)
    ends = [one.losses for one in trainers(world) if len(one.losses) > 9]
    assert all(sum(some[-4:]) < 0.8 * sum(some[:4]) for some in ends)
    assert all(len(one.stepped) > 4 for one in trainers(world))
    assert all(len(one.peer.places) <= 2 * SLOTS for one in world.peers.values())


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("stage", range(3))
def test_a_peer_dies_and_its_micro_batches_are_made_again_or_lost_with_a_reason(
    stage: int, steps: int
) -> None:
    """The dead peer's gradient goes with it; what it has counted in a round that it left is in no
    book."""
    peers = [peer(one, one, clip=0.5) for one in (0, 0, 1, 1, 2, 2)]
    world = pipeline(peers, steps=steps, share=8, clips=steps > 0, seed=4)
    world.run(until_round=1)
    places = world.peers[process_of(2 * stage)].peer.places
    world.run_until(lambda: len(places) > 1)
    held = len(places)
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
        for name, stage in (each for step in one.trainer.stepped for each in step):
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
                for name, stage in one.trainer.counted
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
        for name, stage in (each for step in one.trainer.stepped for each in step):
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


def with_tokens(tokens: int) -> Tamper:
    """Another number of tokens is told: a step is divided by it."""

    def tamper(_: route.Process, heard: encoding.Heard) -> encoding.Heard:
        if type(heard.message) is not messages.Forward:
            return heard
        return heard._replace(message=msgspec.structs.replace(heard.message, tokens=tokens))

    return tamper


NAN, INFINITE, HUGE = b"\xff" * 4, b"\x00\x00\x80\x7f", b"\x00\x00\x7f\x7f"
LARGE = b"\x00\x00\x00\x49"  # 2^19: each alone might be


@pytest.mark.parametrize("codec", ["none", "float16", "int8"])
def test_a_peer_whose_outputs_are_no_numbers_is_routed_around(codec: str) -> None:
    """NaN in all codecs: the next stage refuses it, and whoever sent it the input asks another."""
    peers = [peer(stage, stage, codec) for stage in (0, 1, 1, 2)]
    world = pipeline(peers, steps=0, share=12, seed=4)
    world.tamper = with_values(messages.Forward, b"\xff", 1)
    world.run(until_round=2)
    assert [books.counted for books in world.books] == [(12,) * 3] * 2
    assert not any(books.lost or books.partial for books in world.books)
    assert world.counts["Refuse"] > 0 and not trainers(world)[1].stepped
    assert all(one.stepped for index, one in enumerate(trainers(world)) if index != 1)


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (with_values(messages.Forward, NAN, 0), messages.Reason.TRIES),
        (with_values(messages.Gradient, INFINITE, 1), messages.Reason.SPOILED),
        (with_values(messages.Forward, HUGE, 0), messages.Reason.TRIES),
        (with_values(messages.Gradient, LARGE, 1), messages.Reason.SPOILED),
        (with_form(messages.Forward, codec="int8"), messages.Reason.TRIES),
        (with_tokens(1), messages.Reason.TRIES),
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
    assert not any(one.num_broken for one in trainers(world))
    assert all(bool(value.isfinite().all()) for value in values_of(peers).values())


@pytest.mark.parametrize("size", [1e20, math.nan])
def test_an_accumulated_gradient_that_is_none_is_not_told_and_not_stepped_with(size: float) -> None:
    _, trainer, span = peer(1, 1, clip=0.5)
    begun = {name: value.clone() for name, value in span.modules[1].state_dict().items()}
    for parameter in span.modules[1].parameters():
        parameter.grad = torch.full_like(parameter, size)
    trainer.steps[1].count(24)
    assert trainer.weigh() == (None,)
    trainer.step(requests.Step(route.Span(1, 1), 24, 1, 1.0))
    assert trainer.num_broken == 1 and trainer.steps[1].num_tokens == 0
    assert all(torch.equal(span.modules[1].state_dict()[name], one) for name, one in begun.items())


def test_who_came_after_the_others_were_weighed_steps_with_nothing() -> None:
    _, trainer, span = peer(1, 1, clip=0.5)
    begun = {name: value.clone() for name, value in span.modules[1].state_dict().items()}
    trainer.step(requests.Step(route.Span(1, 1), 0, 0, 1.0))
    assert trainer.num_steps[1] == 1 and not trainer.num_broken
    assert all(torch.equal(span.modules[1].state_dict()[name], one) for name, one in begun.items())


def test_a_step_is_clipped_by_its_own_gradient_where_that_is_larger_than_what_was_told() -> None:
    """Others make up the whole norm, and may say that theirs is small."""
    _, trainer, span = peer(1, 1, clip=0.5)
    weight = next(span.modules[1].parameters())
    weight.grad = torch.full_like(weight, 2400.0)
    trainer.steps[1].count(24)
    (square,) = trainer.weigh()
    factors = []
    trainer.steps[1].step = lambda *, rate, factor: factors.append(factor)
    for told in (0.0, 1e-3, 2 * square**0.5):
        trainer.step(requests.Step(route.Span(1, 1), 24, 1, told))
    own = clip_factor(square**0.5, 0.5)
    assert factors == [own, own, pytest.approx(own / 2)]


@pytest.mark.parametrize(
    ("told", "share"), [((), 1.0), ((0.5, 0.4, 0.5), 0.4), ((0.5, 0.0, 0.5), 1 / NORM_SPREAD)]
)
def test_a_free_step_is_clipped_to_its_stages_share_of_the_limit(
    told: tuple[float, ...], share: float
) -> None:
    """A norm that others tell is believed within a bound."""
    _, trainer, span = peer(1, 1, clip=0.5)
    trainer.begin(orders.Pace(norm_shares=told))
    weight = next(span.modules[1].parameters())
    factors = []
    trainer.steps[1].step = lambda *, rate, factor: factors.append(factor)
    for size in (2400.0, 4800.0, 240.0):
        weight.grad = torch.full_like(weight, size)
        trainer.steps[1].num_tokens = 24
        trainer.step(requests.Step(route.Span(1, 1), 24, 1, whole=1))
    norms = [size / 24 * weight.numel() ** 0.5 for size in (2400.0, 4800.0, 240.0)]
    assert factors == pytest.approx([clip_factor(norm, 0.5 * share) for norm in norms])
    assert trainer.take_norms() == (pytest.approx(norms[0]),) and trainer.take_norms() == (None,)


@pytest.mark.parametrize(
    ("begins", "ramp"), [(0, (1.0, 1.0, 1.0, 1.0, 1.0)), (40, (0.25, 0.5, 0.75, 1.0, 1.0))]
)
def test_the_rate_of_who_comes_in_the_midst_of_a_run_is_ramped_up(
    begins: int, ramp: tuple[float, ...]
) -> None:
    """Its optimizer is fresh. A later round does not begin that again."""
    _, trainer, span = peer(1, 1)
    inner = msgspec.structs.replace(INNER, beta2=0.75, warmup_steps=20)
    steps = trainer.steps[1] = StageSteps(span.modules[1], inner)
    trainer.rate = 0.004
    rates = []
    steps.optimizer.step = lambda: rates.append(steps.optimizer.param_groups[0]["lr"])
    for _ in ramp:
        trainer.begin(orders.Pace(begins=begins))
        trainer.step(requests.Step(route.Span(1, 1), 0, 1, whole=1))
    assert rates == pytest.approx([0.004 * part for part in ramp])


NAME = route.MicroBatch(b"s" * 32, b"boot 001", 0, 0, 0, 1)
JOB = requests.Job(NAME, route.Slot(b"boot 002", 1))
MIDDLE = Boundary(ActivationCodec.INT8, passed(MODEL, EXAMPLE)[0].shape)


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
    _, trainer, _ = peer(1, 1, "int8")
    data = MIDDLE.encode(torch.randn(MIDDLE.shape))
    request = requests.RunForward(JOB, (1,))
    assert trainer.forward(request, Parcel(MIDDLE.form, data)).form.codec == "int8"
    with pytest.raises(IllegalPayload):
        trainer.forward(request, Parcel(*spoil(MIDDLE.form, data)))


def test_what_is_made_again_has_the_same_bytes() -> None:
    _, trainer, _ = peer(1, 1, "int8")
    given = Parcel(MIDDLE.form, MIDDLE.encode(torch.randn(MIDDLE.shape)))
    made = [trainer.forward(requests.RunForward(JOB, (1,)), given) for _ in range(2)]
    assert made[0] == made[1]
    gradient = Parcel(made[0].form, MIDDLE.encode(torch.randn(MIDDLE.shape), seed=1))
    backward = requests.RunBackward(JOB, (1,), False)
    back = [trainer.begin_backward(backward, given, gradient) for _ in range(2)]
    assert back[0] == back[1] and len(back[0].data) == back[0].form.num_bytes


def test_a_place_has_the_input_then_its_gradient_and_the_output_then_its_answer() -> None:
    places, form = Places(), messages.Payload("none", (1, 2), 8)
    forward, gradient = (
        messages.Forward(JOB.slot, NAME, bytes(16), 1, 2, form),
        messages.Gradient(JOB.slot, NAME, form),
    )
    given, output, answer, back = (Parcel(form, bytes([n]) * 8) for n in range(4))
    places.arrived(JOB, given)
    places.made(JOB, second=output)
    assert places.beside(forward, JOB) == output.data
    places.arrived(JOB, answer)
    assert places.opened(JOB).second == answer and places.opened(JOB).first == given
    places.made(JOB, first=back)
    assert places.beside(gradient, JOB) == back.data and len(places) == 1
    places.free(JOB)
    places.made(JOB, first=back)  # the pass ended after its job was freed
    assert not len(places) and places.opened(JOB) is None
    with pytest.raises(LocalFault, match="without its payload"):
        places.beside(gradient, JOB)


def test_the_labels_of_an_own_micro_batch_go_beside_the_permission() -> None:
    places, job = Places(), requests.Job(NAME, None)
    labels = Parcel(messages.Payload("labels", (2,), 2), b"ab")
    assert places.opened(job) is not None
    output = Parcel(messages.Payload("none", (1, 2), 8), bytes(8))
    places.made(job, first=Read(torch.zeros(2), labels), second=output)
    go = messages.Go(NAME, JOB.slot, labels.form)
    assert places.beside(go, job) == b"ab" and places.beside(messages.Ack(JOB.slot), None) == b""
    places.arrived(job, output)  # the gradient of its output
    assert isinstance(places.opened(job).first, Read)


def test_all_payloads_are_let_go_when_a_round_is_over() -> None:
    world = pipeline([peer(stage, stage) for stage in range(3)], steps=0, share=4)
    world.run(until_round=1)
    world.rounds.members.clear()  # no other round begins
    world.run_until(lambda: world.now_s > 200)
    assert [len(one.peer.places) for one in world.peers.values()] == [0, 0, 0]


def test_a_frame_that_holds_no_message_changes_nothing() -> None:
    world = pipeline([peer(stage, stage) for stage in range(3)], steps=0, share=4)
    one = world.peers[process_of(1)].peer
    with pytest.raises(RemoteFault):
        one.received(process_of(0).peer, Frame(FrameKind.HOP, 7, chunk=1, body=b"x"), 0.0)
    assert not len(one.places) and one.next_part() is None


@pytest.mark.parametrize(("classes", "num_bytes"), [(256, 6), (257, 24)])
def test_labels_come_back_as_they_were(classes: int, num_bytes: int) -> None:
    labels = Labels((2, 3), classes)
    values = torch.tensor([[0, 1, 2], [3, 4, classes - 1]])
    data = labels.encode(values)
    assert len(data) == num_bytes == labels.form.num_bytes
    assert torch.equal(labels.decode(memoryview(data), labels.form), values)


def test_labels_may_be_values_and_are_finite() -> None:
    labels = Labels((1, 2), 0)
    values = torch.tensor([[0.5, -3e38]])
    data = labels.encode(values)
    assert len(data) == 8 and torch.equal(labels.decode(memoryview(data), labels.form), values)
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="labels of"):
            labels.encode(torch.tensor([[1.0, value]]))
        broken = torch.tensor([1.0, value]).numpy().tobytes()
        with pytest.raises(IllegalPayload, match="code"):
            labels.decode(broken, labels.form)


@pytest.mark.parametrize("value", [-1, 300, 1 << 30])
def test_labels_of_no_class_are_refused(value: int) -> None:
    labels = Labels((1, 2), 300)
    data = torch.tensor([1, value], dtype=torch.int32).numpy().tobytes()
    with pytest.raises(IllegalPayload, match="code"):
        labels.decode(data, labels.form)
    with pytest.raises(ValueError, match="labels of"):
        labels.encode(torch.tensor([[1, value]]))


def test_labels_of_another_form_or_length_are_refused() -> None:
    labels = Labels((1, 2), 300)
    with pytest.raises(IllegalPayload, match="form"):
        labels.decode(bytes(8), messages.Payload("labels", (2, 1), 8))
    with pytest.raises(IllegalPayload, match="length"):
        labels.decode(bytes(7), labels.form)
