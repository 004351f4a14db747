"""A model in stages is the unsplit one: in bits with one peer per stage, in the sum with two.

Method: spans are called one after the other in one process, with values that travel as they are.
The reference (`unsplit`) is a plain module with its own loop.
"""

import random
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from unsplit import MicroBatch, Unsplit

from swarmtrain.config.settings import InnerSection, ModelSection
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.pipeline.blocks import BlockModel, built_in, of_modules, of_traced
from swarmtrain.pipeline.clipping import clip_factor
from swarmtrain.pipeline.cut import stages_of
from swarmtrain.pipeline.span import Span, dropout_seed
from swarmtrain.pipeline.steps import StageSteps
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_transport.pipeline.coordinator.step_under_way import whole_norm
from swarmtrain_transport.pipeline.wire.route import MicroBatch as Name

torch.set_num_threads(1)

SEED = 5
STEPS = 20
MICRO_BATCHES = 4
WIDTH, CONTEXT = 32, 12
SECTION = ModelSection(layers=3, width=WIDTH, heads=2, context=CONTEXT)
INNER = InnerSection(lr=1e-2, warmup_steps=5, grad_clip=0.5)
EXAMPLE = torch.zeros(2, CONTEXT, dtype=torch.int64)


class Layer(nn.Module):
    """A residual layer with dropout of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.drop = nn.Dropout(0.2)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        inner = self.down(self.drop(F.gelu(self.up(self.norm(hidden)))))
        return hidden + F.dropout(inner, 0.1, self.training)


def own_modules() -> nn.Sequential:
    return nn.Sequential(
        nn.Embedding(256, WIDTH), Layer(), Layer(), Layer(), nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, 256),
    )  # fmt: skip


class Tower(nn.Module):
    """A model whose forward is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, WIDTH)
        self.first, self.second, self.third = Layer(), Layer(), Layer()
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.second(self.first(self.table(ids)))
        return self.head(torch.tanh(hidden + self.third(hidden)))


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def both(kind: str) -> tuple[BlockModel, nn.Module, Sequence[nn.Module]]:
    """A model in blocks, the same in one piece, and the modules of that before which chance is
    set."""
    if kind == "built-in":
        whole = build_model(SECTION, SEED)
        return built_in(SECTION), whole, (whole.embedding, *whole.blocks, whole.norm)
    if kind == "traced":
        with torch.device("meta"):
            model = of_traced(Tower(), EXAMPLE.to("meta"), ["second", "head"], loss_of)
        tower = Tower()
        whole, begins = tower, (tower.table, tower.second, tower.head)
    else:
        with torch.device("meta"):
            model = of_modules(own_modules(), loss_of)
        whole = own_modules()
        begins = tuple(whole)
    everything = Span(model, [range(len(model.blocks))], range(1), seed=SEED)
    whole.load_state_dict(everything.modules[0].state_dict())
    return model, whole, begins


def batches(count: int) -> list[MicroBatch]:
    """Micro-batches of text that has something to be learned."""
    rng = random.Random(3)
    text = torch.tensor(list(b"the cat sat on the mat, the dog on the log. " * 20))
    found = []
    for number in range(count):
        starts = [rng.randrange(len(text) - CONTEXT - 1) for _ in range(len(EXAMPLE))]
        windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        seed = dropout_seed(b"run", Name(b"s" * 32, b"boot 001", 0, 0, 0, number))
        found.append(MicroBatch(windows[:, :-1], windows[:, 1:], seed))
    return found


def stages_from(span: Span, entry: int) -> tuple[int, ...]:
    return tuple(stage for stage in span.modules if stage >= entry)


def route(spans: Sequence[Span], entries: Sequence[int], batch: MicroBatch) -> float:
    """One micro-batch down these spans and back; its loss."""
    given = [batch.given]
    for span, entry in list(zip(spans, entries, strict=True))[:-1]:
        given.append(span.forward(given[-1], stages=stages_from(span, entry), seed=batch.seed))
    loss, way = spans[-1].backward_from_labels(
        given[-1], batch.labels, stages=stages_from(spans[-1], entries[-1]), seed=batch.seed
    )
    way.add_weights()
    for place in range(len(spans) - 2, -1, -1):
        assert way.input_gradient is not None
        stages = stages_from(spans[place], entries[place])
        way = spans[place].backward(
            given[place], way.input_gradient, stages=stages, seed=batch.seed
        )
        way.add_weights()
    assert way.input_gradient is None  # bytes have none
    return loss


@pytest.mark.parametrize("kind", ["built-in", "own modules", "traced"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_one_peer_per_stage_has_the_bits_of_the_unsplit_model_over_20_steps(
    kind: str, optimizer: str
) -> None:
    inner = InnerSection(lr=1e-2, warmup_steps=5, grad_clip=0.5, optimizer=optimizer)
    model, whole, modules = both(kind)
    stages = stages_of(model, 3, EXAMPLE, "none")
    spans = [Span(model, stages, range(stage, stage + 1), seed=SEED) for stage in range(3)]
    steps = [StageSteps(span.modules[stage], inner) for stage, span in enumerate(spans)]
    names = [
        [name for name, _ in span.modules[i].named_parameters()] for i, span in enumerate(spans)
    ]
    reference = Unsplit(whole, modules, model.loss, inner, names)
    made = iter(batches(STEPS * MICRO_BATCHES))
    factors, losses = [], []
    for step in range(STEPS):
        rate = warmup_cosine(step, peak=1e-2, warmup_steps=5, total_steps=STEPS, end_fraction=0.1)
        for batch in (next(made) for _ in range(MICRO_BATCHES)):
            losses.append(route(spans, range(3), batch))
            assert losses[-1] == reference.add(batch)
            for stage in steps:
                stage.count(batch.labels.numel())
        norm = whole_norm([stage.close() for stage in steps])
        for stage in steps:
            stage.step(rate=rate, factor=clip_factor(norm, inner.grad_clip))
        factors.append(reference.step(MICRO_BATCHES * EXAMPLE.numel(), rate))
        parts = {key: value for i, span in enumerate(spans) for key, value in
                 span.modules[i].state_dict().items()}  # fmt: skip
        expected = whole.state_dict()
        assert parts.keys() == expected.keys()
        assert all(torch.equal(parts[key], value) for key, value in expected.items()), step
    assert min(factors) < 0.9 and losses[-1] < 0.8 * losses[0]  # clipped, and learned


@pytest.mark.parametrize("kind", ["built-in", "own modules", "traced"])
def test_two_peers_per_stage_and_a_replica_count_the_unsplit_sum_within_its_order(
    kind: str,
) -> None:
    """Bound: a sum of n float32 values in any order is off by at most (n - 1) u of their sizes."""
    model, whole, modules = both(kind)
    stages = stages_of(model, 3, EXAMPLE, "none")
    peers = [
        [Span(model, stages, range(stage, stage + 1), seed=SEED) for _ in range(2)]
        for stage in range(3)
    ]
    wide = Span(model, stages, range(1, 3), seed=SEED)
    replica = Span(model, stages, range(3), seed=SEED)
    everybody = [*(span for stage in peers for span in stage), wide, replica]
    reference = Unsplit(whole, modules, model.loss, INNER, [])
    total = {name: torch.zeros_like(one) for name, one in whole.named_parameters()}
    size = {name: torch.zeros_like(one) for name, one in whole.named_parameters()}
    rng = random.Random(1)
    made = batches(16)
    for batch in made:
        routes = [([rng.choice(stage) for stage in peers], range(3)), ([replica], [0])]
        routes.append(([rng.choice(peers[0]), wide], [0, 1]))
        routes.append(([rng.choice(peers[0]), rng.choice(peers[1]), wide], [0, 1, 2]))
        route(*rng.choice(routes), batch)
        whole.zero_grad()
        reference.add(batch)
        for name, parameter in whole.named_parameters():
            assert parameter.grad is not None
            total[name] += parameter.grad
            size[name] += parameter.grad.abs()
    for name in total:
        parts = [
            parameter.grad
            for span in everybody
            for module in span.modules.values()
            for own, parameter in module.named_parameters()
            if own == name and parameter.grad is not None
        ]
        bound = 2 * (len(made) - 1) * torch.finfo(torch.float32).eps / 2 * size[name] * 1.001
        assert len(parts) > 1 and bool((sum(parts) - total[name]).abs().le(bound).all()), name
