"""The production machines with real tensors: the unsplit model's bits, and learning at random.

Method: one process, no clock and no sockets (`one_process_pipeline`); every message goes through
its frame. The reference is the naive twin (`unsplit`).
"""

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from one_process_pipeline import Pipeline, process_of
from torch import Tensor
from unsplit import MicroBatch, Unsplit

from swarmtrain.config.settings import InnerSection, ModelSection
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.pipeline.activations import ActivationCodec, Boundary
from swarmtrain.pipeline.blocks import built_in
from swarmtrain.pipeline.cut import passed, stages_of
from swarmtrain.pipeline.passes import Labels, Passes
from swarmtrain.pipeline.span import Span, dropout_seed
from swarmtrain.pipeline.steps import StageSteps
from swarmtrain_optimizers.codecs.base import IllegalPayload
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_transport.pipeline import messages, requests, route
from swarmtrain_transport.pipeline.rounds import Rounds
from swarmtrain_transport.pipeline.stage import Rules

torch.set_num_threads(1)

SEED = 5
STEPS, SHARE, SLOTS = 20, 4, 3
RUN = b"the hash of its settings"
SECTION = ModelSection(layers=3, width=32, heads=2, context=12)
INNER = InnerSection(lr=1e-2, grad_clip=0.0)  # what a step is clipped by goes another way
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
    peers: Sequence[tuple[route.Span, Passes, Span]], *, steps: int, share: int, seed: int | None
) -> Pipeline:
    return Pipeline(
        [(span, passes) for span, passes, _ in peers],
        Rules(3, SLOTS, steps > 0, step_micro_batches=2),
        Rounds(3, share, steps),
        rate,
        seed,
    )


def test_machines_that_flush_have_the_bits_of_the_unsplit_model_over_20_steps() -> None:
    peers = [peer(stage, stage) for stage in range(3)]
    world = pipeline(peers, steps=STEPS, share=SHARE, seed=None)
    world.run(until_round=1)
    whole = build_model(SECTION, SEED)
    names = [[name for name, _ in span.modules[i].named_parameters()]
             for i, (_, _, span) in enumerate(peers)]  # fmt: skip
    modules = (whole.embedding, *whole.blocks, whole.norm)
    reference = Unsplit(whole, modules, MODEL.loss, INNER, names)
    me = process_of(0)
    losses = []
    for step in range(STEPS):
        for number in range(SHARE * step + 1, SHARE * (step + 1) + 1):
            name = route.MicroBatch(me.peer, me.boot, 0, step, 0, number)
            losses.append(reference.add(MicroBatch(*read(name), dropout_seed(RUN, name))))
        reference.step(SHARE * EXAMPLE.numel(), rate(step))
    assert world.peers[process_of(2)].losses == losses
    parts = {name: values for i, (_, _, span) in enumerate(peers)
             for name, values in span.modules[i].state_dict().items()}  # fmt: skip
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
    assert all(peer.steps > 4 for peer in world.peers.values())
    assert all(passes.num_jobs <= 2 * SLOTS for _, passes, _ in peers)


def test_a_peer_that_dies_costs_no_micro_batch_and_nothing_counts_twice() -> None:
    """Its gradient goes with it; what it has counted in a round that it left is in no book."""
    peers = [peer(stage, stage) for stage in (0, 1, 1, 2)]
    world = pipeline(peers, steps=0, share=24, seed=4)
    world.run(until_round=1)
    world.leave(1)
    world.run(until_round=4)
    for books in world.books[2:]:
        assert books.counted == (24,) * 3 and not books.partial and not books.lost
    assert all(stage <= 24 for books in world.books for stage in books.counted)


class Spoiling(Passes):
    """Says that its outputs are what they should be, and sends something else."""

    def beside(self, send: requests.Send) -> bytes:
        data = super().beside(send)
        return b"\xff" * len(data) if isinstance(send.message, messages.Forward) else bytes(data)


@pytest.mark.parametrize("codec", ["none", "float16", "int8"])
def test_a_peer_whose_outputs_are_no_numbers_is_routed_around(codec: str) -> None:
    """NaN in all codecs: the next stage refuses it, and whoever sent it the input asks another."""
    peers = [peer(stage, stage, codec) for stage in (0, 1, 1, 2)]
    peers[1][1].__class__ = Spoiling
    world = pipeline(peers, steps=0, share=12, seed=4)
    world.run(until_round=2)
    assert [books.counted for books in world.books] == [(12,) * 3] * 2
    assert not any(books.lost or books.partial for books in world.books)
    assert world.counts["Refuse"] > 0 and world.peers[process_of(1)].steps == 0
    assert all(peer.steps for me, peer in world.peers.items() if me != process_of(1))


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
    assert passes.num_jobs == 0
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
