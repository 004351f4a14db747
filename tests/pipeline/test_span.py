"""Passes of a span: chance that hangs on the micro-batch alone, and gradients in two parts."""

import gc
import random
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swarmtrain.foundation.errors import UserError
from swarmtrain.pipeline.backward import Backward
from swarmtrain.pipeline.blocks import of_modules
from swarmtrain.pipeline.span import Span, dropout_seed
from swarmtrain_transport.pipeline.wire.route import MicroBatch

torch.set_num_threads(1)

WIDTH = 6
GIVEN = torch.linspace(-1, 1, 5 * WIDTH).reshape(5, WIDTH)
GRADIENT = torch.linspace(1, 2, 5 * WIDTH).reshape(5, WIDTH)


def loss(output: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(output, labels, reduction="sum")


class Attention(nn.Module):
    """Many ways from the input to the output, a bias without input, and a weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.twice = nn.Linear(WIDTH, WIDTH, bias=False)
        self.place = nn.Parameter(torch.full((5, WIDTH), 0.1))
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.mix(self.norm(hidden) + self.place).chunk(3, dim=-1)
        mixed = torch.softmax(query @ key.mT, dim=-1) @ value * self.frozen
        again = self.twice(torch.relu(self.twice(mixed)))
        return hidden * torch.exp(self.scale) + F.dropout(again, 0.3, self.training)


def make_span(*modules: nn.Module) -> Span:
    return Span(of_modules(list(modules), loss), [range(len(modules))], range(1), seed=1)


def joint(span: Span, given: Tensor, gradient: Tensor) -> dict[str, Tensor | None]:
    """All gradients by one ordinary backward pass, the input's under ""."""
    leaf = given.clone().requires_grad_()
    with torch.enable_grad():
        output = span._run(leaf, (0,), 7)
    output.backward(gradient)
    found = {name: one.grad for name, one in span.modules[0].named_parameters()}
    for parameter in span.modules[0].parameters():
        parameter.grad = None
    return {"": leaf.grad, **found}


def test_the_two_parts_have_the_bits_of_one_backward_pass() -> None:
    torch.manual_seed(3)
    span = make_span(Attention(), nn.GELU(), nn.Linear(WIDTH, WIDTH), Attention())
    expected = joint(span, GIVEN, GRADIENT)
    way = span.backward(GIVEN, GRADIENT, stages=(0,), seed=7)
    named = dict(span.modules[0].named_parameters())
    assert way.input_gradient is not None and torch.equal(way.input_gradient, expected[""])
    assert all(parameter.grad is None for parameter in named.values())
    way.add_weights()
    for name, parameter in named.items():
        assert (parameter.grad is None) == (expected[name] is None), name
        assert parameter.grad is None or torch.equal(parameter.grad, expected[name]), name
    assert named["0.unused"].grad is None and named["0.frozen"].grad is None
    before = {name: one.grad.clone() for name, one in named.items() if one.grad is not None}
    way.add_weights()  # a second time is nothing
    again = span.backward(GIVEN, GRADIENT, stages=(0,), seed=7)
    again.add_weights()
    for name, gradient in before.items():
        assert torch.equal(named[name].grad, 2 * gradient), name


def test_an_input_that_has_no_gradient_leaves_that_of_the_weights_alone() -> None:
    span = make_span(nn.Embedding(9, WIDTH), Attention())
    ids = torch.tensor([1, 2, 3, 2, 1])
    with torch.enable_grad():
        span._run(ids, (0,), 7).backward(GRADIENT)
    named = dict(span.modules[0].named_parameters())
    expected = {name: one.grad for name, one in named.items()}
    for parameter in named.values():
        parameter.grad = None
    way = span.backward(ids, GRADIENT, stages=(0,), seed=7)
    assert way.input_gradient is None
    way.add_weights()
    assert named["1.unused"].grad is None
    for name, gradient in expected.items():
        assert gradient is None or torch.equal(named[name].grad, gradient), name


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(5, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.place


def test_what_is_sent_is_not_what_is_added_to() -> None:
    """The gradient of a sum is given to both its parts by autograd, as one tensor."""
    span = make_span(Shifted())
    for _ in range(2):
        way = span.backward(GIVEN, GRADIENT, stages=(0,), seed=0)
        way.add_weights()
        assert way.input_gradient is not None and torch.equal(way.input_gradient, GRADIENT)
    assert torch.equal(span.modules[0].get_parameter("0.place").grad, 2 * GRADIENT)
    assert torch.equal(GRADIENT, torch.linspace(1, 2, 5 * WIDTH).reshape(5, WIDTH))


class Squared(nn.Module):
    """Tells of what its graph keeps."""

    def __init__(self, tell: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.tell = tell

    def forward(self, hidden: Tensor) -> Tensor:
        kept = self.linear(hidden)
        self.tell(kept)
        return kept * kept


@pytest.mark.parametrize("counts", [True, False])
def test_a_pass_that_is_over_keeps_nothing(counts: bool) -> None:
    kept: list[weakref.ref[Tensor]] = []

    def tell(value: Tensor) -> None:
        kept.append(weakref.ref(value))

    span = make_span(Squared(tell), Squared(tell))
    way = span.backward(GIVEN, GRADIENT, stages=(0,), seed=0)
    gc.collect()
    assert (
        kept[0]() is not None
    )  # of the last one nothing is needed but what arrived at its weights
    if counts:
        way.add_weights()
    else:
        del way
    gc.collect()
    assert all(one() is None for one in kept)
    assert all((one.grad is not None) == counts for one in span.modules[0].parameters())


def test_an_input_that_does_not_reach_the_output_gets_a_gradient_of_zero() -> None:
    table = nn.Parameter(torch.ones(5, WIDTH))
    given = GIVEN.clone().requires_grad_()
    way = Backward(2 * table, GRADIENT, given, [table])
    assert torch.equal(way.input_gradient, torch.zeros(5, WIDTH))
    way.add_weights()
    assert torch.equal(table.grad, 2 * GRADIENT)


def test_dropout_hangs_on_micro_batch_and_block_and_on_neither_cut_nor_attempt() -> None:
    model = of_modules([nn.Dropout(0.5) for _ in range(4)], loss)
    given = torch.ones(40, WIDTH)
    outputs = []
    for cut in ([range(4)], [range(1), range(1, 4)], [range(3), range(3, 4)]):
        value = given
        for stage in range(len(cut)):
            span = Span(model, cut, range(stage, stage + 1), seed=1)
            torch.manual_seed(stage)  # of no account
            span.forward(value, stages=(stage,), seed=9)
            value = span.forward(value, stages=(stage,), seed=9)
        outputs.append(value)
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])
    assert 0 < outputs[0].count_nonzero() < outputs[0].numel() / 4  # four different masks
    whole = Span(model, [range(4)], range(1), seed=1)
    assert not torch.equal(whole.forward(given, stages=(0,), seed=10), outputs[0])
    late = Span(model, [range(1), range(1, 4)], range(2), seed=1)
    first = Span(model, [range(1), range(1, 4)], range(1), seed=1)
    middle = first.forward(given, stages=(0,), seed=9)
    assert torch.equal(late.forward(middle, stages=(1,), seed=9), outputs[0])


def test_the_second_computing_has_the_chance_of_the_first() -> None:
    span = make_span(nn.Dropout(0.5), nn.Dropout(0.5))
    output = span.forward(torch.ones(40, WIDTH), stages=(0,), seed=9)
    way = span.backward(torch.ones(40, WIDTH), torch.ones(40, WIDTH), stages=(0,), seed=9)
    assert way.input_gradient is not None and torch.equal(way.input_gradient, output)


def test_names_of_a_micro_batch_that_differ_where_its_text_does_have_another_seed() -> None:
    key, other, boot = b"s" * 32, b"t" * 32, b"boot 001"
    name = MicroBatch(key, boot, 1, 0, 0, 2)
    others = [
        MicroBatch(other, boot, 1, 0, 0, 2),
        MicroBatch(key, b"boot 002", 1, 0, 0, 2),
        MicroBatch(key, boot, 2, 0, 0, 2),
        MicroBatch(key, boot, 1, 0, 0, 3),
    ]
    seeds = {dropout_seed(b"run", one) for one in (name, *others)}
    assert len(seeds | {dropout_seed(b"another", name)}) == 6
    assert dropout_seed(b"run", MicroBatch(key, boot, 1, 5, 1, 2)) in seeds


def test_passes_leave_the_global_chance_alone() -> None:
    span = make_span(nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH))
    state = torch.get_rng_state()
    span.forward(GIVEN, stages=(0,), seed=1)
    span.backward(GIVEN, GRADIENT, stages=(0,), seed=1).add_weights()
    span.check(GIVEN)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_gradient_of_another_shape_than_the_output_is_refused() -> None:
    span = make_span(nn.Linear(WIDTH, 2))
    with pytest.raises(ValueError, match="a gradient of"):
        span.backward(GIVEN, GRADIENT, stages=(0,), seed=0)


class Own(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act = act

    def forward(self, hidden: Tensor) -> Tensor:
        return self.act(hidden)


def test_blocks_that_cannot_be_computed_again_are_refused() -> None:
    by_torch = Own(lambda hidden: hidden * torch.rand(()))
    make_span(by_torch, nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(WIDTH, 2)).check(GIVEN)
    by_itself = Own(lambda hidden: hidden * random.random())
    for blocks, words in (
        ((nn.Linear(WIDTH, 2), by_itself), "block `1` gives another output each time"),
        ((nn.ReLU(inplace=True), nn.Linear(WIDTH, 2)), "block `0` changes its input in place"),
        ((nn.Linear(WIDTH, 2), Own(torch.detach)), "nothing flows back through block `1`"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            make_span(*blocks).check(GIVEN)
        assert caught.value.code == "SWT-E613"


def test_a_loss_that_is_a_mean_or_many_is_refused() -> None:
    labels = torch.zeros(len(GIVEN), 2)
    for reduction, words in (("mean", "so it is a mean"), ("none", "the loss has the shape")):

        def loss(output: Tensor, labels: Tensor, reduction: str = reduction) -> Tensor:
            return F.mse_loss(output, labels, reduction=reduction)

        with torch.device("meta"):
            model = of_modules([nn.Linear(WIDTH, 2)], loss)
        span = Span(model, [range(1)], range(1), seed=3)
        span.check(GIVEN)
        with pytest.raises(UserError, match=words) as caught:
            span.check(GIVEN, labels)
        assert caught.value.code == "SWT-E613"
