"""Models of one's own in stages: the unsplit model's bits, the run file that they fit, and what is
refused."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from one_process_pipeline import Pipeline, Trainer
from staged_run import Coordinator, Peer, config_of
from torch import Tensor, nn
from unsplit import MicroBatch, Unsplit

from swarmtrain import join_stages
from swarmtrain.config.settings import DataSection, InnerSection, ModelSection, RunConfig
from swarmtrain.foundation.errors import UserError
from swarmtrain.pipeline.activations import ActivationCodec
from swarmtrain.pipeline.cut import stages_of
from swarmtrain.pipeline.span import Span, dropout_seed
from swarmtrain.pipeline.stage_trainer import Forms, boundaries_of
from swarmtrain.pipeline.staged_model import OwnWork, StagedModel
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.pipeline.coordinator.rounds import Rounds
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.wire import route

torch.set_num_threads(1)

SEED, STEPS, SHARE = 5, 20, 4
WIDTH, BATCH = 8, 4
INVITE = str(Invite("127.0.0.1", 1, "run", bytes(32), bytes(16)))
Example = tuple[Tensor, Tensor]


def squares(output: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(output, labels, reduction="sum")


def example(rng: random.Random | None = None) -> Example:
    chance = torch.Generator().manual_seed(rng.randrange(1 << 30) if rng else 0)
    given = torch.randn(BATCH, 3, generator=chance)
    return given, torch.sin(given[:, :2]) * given[:, 2:]


def layers() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1),
        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2),
    )  # fmt: skip


class Tower(nn.Module):
    """A model whose forward is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, given: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(given)))))


def staged(make: Callable[[], nn.Module] = layers, at: tuple[str, ...] = ()) -> StagedModel:
    with torch.device("meta"):
        model = make()
    given, labels = example()
    return StagedModel(model, squares, example=(given.to("meta") if at else given, labels), at=at)


def config_for(
    model: StagedModel, rounds: int = 3, peers: int = 3, **pipeline: object
) -> RunConfig:
    config = config_of(rounds, peers)
    pipeline = {"activations": "none", **pipeline}
    return replace(
        config,
        model=ModelSection(kind="custom", context=2, digest=model.digest),
        data=DataSection(source="own"),
        pipeline=replace(config.pipeline, **pipeline),
    )


def read(name: route.MicroBatch) -> Example:
    return example(random.Random(f"{name.source.hex()} {name.number}"))


@pytest.mark.parametrize(("make", "at"), [(layers, ()), (Tower, ("second", "last"))])
def test_machines_that_flush_have_the_bits_of_the_unsplit_model_over_20_steps(make, at) -> None:
    model = staged(make, at)
    stages = stages_of(model.blocks, 3, model.given, "none")
    inner = InnerSection(lr=1e-2, grad_clip=0.5)
    boundaries = boundaries_of(model.blocks, stages, model.given, ActivationCodec.NONE)
    forms = Forms(b"run", boundaries, model.labels)
    spans = [Span(model.blocks, stages, range(stage, stage + 1), seed=SEED) for stage in range(3)]
    trainers = [
        Trainer(span, forms, inner, read, norm_shares={stage: 1.0})
        for stage, span in enumerate(spans)
    ]
    world = Pipeline(
        [(route.Span(stage, stage), one) for stage, one in enumerate(trainers)],
        Rules(3, 3, True, step_micro_batches=2, tokens=model.labels.count),
        Rounds(3, SHARE, STEPS, clips=True),
        lambda step: 1e-2,
    )
    world.run(until_round=1)
    whole = make()
    everything = Span(model.blocks, [range(len(model.blocks.blocks))], range(1), seed=SEED)
    whole.load_state_dict(everything.modules[0].state_dict())
    names = [[name for name, _ in span.modules[i].named_parameters()]
             for i, span in enumerate(spans)]  # fmt: skip
    blocks = list(whole) if not at else [whole.first, whole.second, whole.last]
    reference = Unsplit(whole, blocks, squares, inner, names)
    losses = []
    for step in trainers[0].stepped:
        for name, _ in step:
            seed = dropout_seed(b"run", name)
            losses.append(reference.add(MicroBatch(*read(name), seed)))
        reference.step(SHARE * model.labels.count, 1e-2)
    assert trainers[2].losses == losses and len(losses) == STEPS * SHARE
    values = {
        key: value
        for i, span in enumerate(spans)
        for key, value in span.modules[i].state_dict().items()
    }
    assert values.keys() == whole.state_dict().keys()
    assert all(torch.equal(values[key], value) for key, value in whole.state_dict().items())


def test_a_digest_says_all_that_peers_must_agree_on_and_nothing_else() -> None:
    same = staged().digest
    given, labels = example()
    assert staged().digest == same and len(bytes.fromhex(same)) == 32
    filled = StagedModel(layers(), squares, example=(given, labels))
    assert filled.digest == same and filled.num_values == sum(
        p.numel() for p in layers().parameters()
    )
    frozen = layers()
    frozen[0].requires_grad_(False)
    others = [
        StagedModel([*layers()][:-1], squares, example=(given, labels[:, :1].repeat(1, WIDTH))),
        StagedModel(layers(), squares, example=(given[:2], labels[:2])),
        StagedModel(layers(), squares, example=(given, labels[:, :1])),
        StagedModel(frozen, squares, example=(given, labels)),
        StagedModel(layers(), squares, example=(given, labels.long()), classes=2),
        staged(Tower, ("second",)),
    ]
    assert len({same, *(one.digest for one in others)}) == len(others) + 1


def test_the_run_file_and_the_model_must_fit() -> None:
    model = staged()
    config = config_for(model)
    assert model.stages(config) == stages_of(model.blocks, 3, model.given, "none")
    named = config_for(model, stages=("0", "2", "5"))
    assert model.stages(named) == (range(2), range(2, 5), range(5, 6))
    own = config.model
    for wrong, code, words in (
        (config_for(model, micro_batch=2), "SWT-E605", "`pipeline.micro_batch` is 2 .* and 4 in"),
        (replace(config, model=replace(own, context=3)), "SWT-E605", "`model.context` is 3 .* 2"),
        (replace(config, model=replace(own, digest="0" * 64)), "SWT-E804", "of the run stages 000"),
        (replace(config, model=ModelSection()), "SWT-E804", "its model is built in"),
        (replace(config, pipeline=type(config.pipeline)()), "SWT-E605", "model in one piece"),
        (config_for(model, stages=7), "SWT-E613", "must be from 1 to 6"),
        (config_for(model, stages=("0", "1", "2")), "SWT-E613",
         "stage 1 has no parameters to train"),
        (replace(config, outer=replace(config.outer, strategy="streaming", fragments=4)),
         "SWT-E605", "`outer.fragments` is too large for stage 0"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words) as caught:
            model.stages(wrong)
        assert caught.value.code == code and caught.value.remedy


@pytest.mark.parametrize(
    ("given", "labels", "classes"),
    [
        (torch.zeros(4, 3), torch.zeros(4, 2), 5),
        (torch.zeros(4, 3), torch.zeros(4, 2, dtype=torch.int64), 0),
        (torch.zeros(4, 3), torch.zeros(5, 2), 0),
        (torch.zeros(4, 3), torch.zeros(()), 0),
    ],
)
def test_an_example_that_does_not_go_together_is_refused(given, labels, classes: int) -> None:
    with pytest.raises(UserError) as caught:
        StagedModel(layers(), squares, example=(given, labels), classes=classes)
    assert caught.value.code == "SWT-E610" and caught.value.remedy


def test_what_goes_between_stages_is_float32_of_a_few_axes() -> None:
    class Half(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return value.to(torch.bfloat16)

    class Deep(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return value.reshape(*value.shape, *(1,) * 7)

    for kind, words in ((Half, "gives torch.bfloat16"), (Deep, "a tensor of 9 axes")):
        modules = [nn.Linear(3, 2), kind(), nn.Flatten()]
        model = StagedModel(modules, squares, example=example())
        stages_of(model.blocks, ["0", "1"], model.given, "none")
        with pytest.raises(UserError, match=words):
            stages_of(model.blocks, ["0", "2"], model.given, "none")


def test_batches_are_gone_through_again_and_all_are_like_the_example() -> None:
    model, rng = staged(), random.Random(1)
    some = [example(rng), example(rng)]
    work = OwnWork(model, some)
    assert [work.read()[0] for _ in range(5)] == [some[at][0] for at in (0, 1, 0, 1, 0)]
    given, labels = example()
    for wrong in (
        [(given[:2], labels[:2])], [(given.double(), labels)], [(given, labels[:, :1])],
        [(given, labels / 0)],
    ):  # fmt: skip
        with pytest.raises(UserError, match="is not like the model's example") as caught:
            OwnWork(model, wrong).read()
        assert caught.value.code == "SWT-E610"
    work = OwnWork(model, iter(some))
    assert [work.read()[0] is one for one, _ in some] == [True, True]
    with pytest.raises(UserError, match="no micro-batch to train on"):
        work.read()


def test_who_has_no_data_asks_for_later_stages() -> None:
    for span in ("", "0", "0-2"):
        with pytest.raises(UserError, match="first stage is for peers with data"):
            join_stages(staged(), invite=INVITE, span=span)
    with pytest.raises(UserError, match="No invite was given"):
        join_stages(staged(), [example()], invite="")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., list[Peer]]]:
    begun: list[Coordinator] = []

    def run(config: RunConfig, *models: StagedModel) -> list[Peer]:
        coordinator = Coordinator(config, tmp_path / "run")
        begun.append(coordinator)
        return [
            Peer(
                coordinator.invite, tmp_path / f"{number}", *(number % 3,) * 2,
                own=OwnWork(model, [example(random.Random(f"{number} {at}")) for at in range(50)]),
            )
            for number, model in enumerate(models)
        ]  # fmt: skip

    yield run
    for coordinator in begun:
        coordinator.stop()


def test_peers_that_bring_a_model_train_its_stages_over_sockets(begin) -> None:
    # Without dropout: peers of one process share torch's generator, which each of them would set.
    models = [staged(lambda: nn.Sequential(*[*layers()][:3], *[*layers()][4:])) for _ in range(4)]
    peers = begin(config_for(models[0], 8, 4), *models)
    for one in peers:
        one.thread.join(60)
        assert not one.thread.is_alive() and one.error is None, one.error
    assert peers[0].roots() == peers[3].roots()
    losses = peers[2].losses  # each of a few examples; of which ones depends on who is how fast
    half = len(losses) // 2
    assert fmean(losses[half:]) < 0.9 * fmean(losses[:half])
    spans = [one.peer._here.trainer.span for one in peers]
    assert [list(span.modules) for span in spans] == [[0], [1], [2], [0]]
    blocks = [block for one in peers for block in one.peer._model.blocks]
    assert all(tensor.is_meta for block in blocks for _, tensor in block.tensors())


class Noise(nn.Module):
    """Draws from a generator that nobody can set."""

    def forward(self, value: Tensor) -> Tensor:
        return value * random.random()


def noisy_layers() -> nn.Sequential:
    first, second, *others = layers()
    return nn.Sequential(first, second, Noise(), *others)


def test_another_model_is_refused_at_the_door_and_chance_of_its_own_before_training(begin) -> None:
    noisy, other = staged(noisy_layers), staged(Tower, ("second", "last"))
    refused, left = begin(config_for(noisy, stages=("0", "2", "6")), other, staged(noisy_layers))
    for one in (refused, left):
        one.thread.join(60)
    assert refused.error is not None and refused.error.code == "SWT-E804"
    assert other.digest in refused.error.what and noisy.digest in refused.error.what
    assert left.error is not None and left.error.code == "SWT-E613"
    assert "block `2` gives another output each time" in left.error.what
