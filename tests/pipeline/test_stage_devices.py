"""Stages on a device: whatever they make lies where they compute, and all that travels on the host.

There may be no card here. So the default device is another one, on which no value can be made, and
every tensor that is made without a place is found out; and a card is feigned by torch.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_passes import EXAMPLE, INNER, RUN, SECTION, SEED, read
from torch.utils import backend_registration

from swarmtrain.config.settings import ModelSection
from swarmtrain.pipeline.activations import ActivationCodec
from swarmtrain.pipeline.blocks import built_in
from swarmtrain.pipeline.cut import stages_of
from swarmtrain.pipeline.labels import Labels
from swarmtrain.pipeline.places import Parcel
from swarmtrain.pipeline.sketch import sketch
from swarmtrain.pipeline.span import Span
from swarmtrain.pipeline.stage_trainer import Forms, StageTrainer, boundaries_of
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.wire import route

CPU = torch.device("cpu")
NAME = route.MicroBatch(b"p" * 32, b"12345678", 0, 0, 0, 1)
MODERN = ModelSection(
    kind="transformer", layers=3, width=32, heads=2, context=12, vocabulary=256, tied=False
)


def job(stage: int) -> requests.Job:
    return requests.Job(NAME, route.Slot(b"12345678", 1) if stage else None)


def one_micro_batch(section: ModelSection, codec: str) -> list[bytes]:
    """All that travels of a micro-batch through three stages and back, and the weights after it."""
    model = built_in(section)
    cut = stages_of(model, 3, EXAMPLE, codec)
    boundaries = boundaries_of(model, cut, EXAMPLE, ActivationCodec(codec))
    forms = Forms(RUN, boundaries, Labels(tuple(EXAMPLE.shape), 256))
    trainers = [
        StageTrainer(
            Span(model, cut, range(stage, stage + 1), seed=SEED, device=CPU), forms, INNER, read,
            norm_shares={stage: 1.0},
        )
        for stage in range(3)
    ]  # fmt: skip
    text = trainers[0].read(NAME)
    given: list = [text]
    for stage, trainer in enumerate(trainers[:-1]):
        given.append(trainer.forward(requests.RunForward(job(stage), (stage,)), given[-1]))
    answer: Parcel | None = text.labels
    sent = [one.data for one in given[1:]]
    for stage in (2, 1, 0):
        assert answer is not None
        if stage < 2:
            sent.append(sketch(trainers[stage].answered(answer), 7).numpy().tobytes())
        back = requests.RunBackward(job(stage), (stage,), stage == 2)
        answer = trainers[stage].begin_backward(back, given[stage], answer)
        trainers[stage].end_backward()
        trainers[stage].count(requests.Count(NAME, (stage,), EXAMPLE.numel()))
        trainers[stage].step(requests.Step(route.Span(stage, stage), EXAMPLE.numel(), 1))
        sent += [answer.data] if answer is not None else []
        for parameter in trainers[stage].span.modules[stage].parameters():
            sent.append(parameter.detach().numpy().tobytes())
    return [bytes(one) for one in sent]


@pytest.mark.parametrize("codec", ["none", "float16", "int8"])
@pytest.mark.parametrize("section", [SECTION, MODERN], ids=["byte", "transformer"])
def test_a_micro_batch_has_the_same_bits_whatever_a_program_s_default_device_is(section, codec):
    usual = one_micro_batch(section, codec)
    with torch.device("meta"):
        assert one_micro_batch(section, codec) == usual


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch feigns no device",
)
def test_all_that_a_pass_and_a_step_make_lies_on_the_card_that_the_span_is_on():
    program = Path(__file__).with_name("feigned_card.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert done.stdout == "all on the card\n", done.stderr[-2000:]
