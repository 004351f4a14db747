"""Loops as people write them: any optimizer, compiled, wrapped, frozen, tied, changed on the way.
The session is a stand-in; real runs are in tests/e2e and tests/integrations."""

import inspect

import pytest
import torch
from torch import nn

import swarmtrain
from swarmtrain.foundation.errors import UserError
from swarmtrain.hook.api import _check_trains, _layout_of, bare
from swarmtrain.hook.swarm import STEP
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.training.model_weights import ModelWeights
from tests.hook.stand_in import made, member_of

OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind)
    and issubclass(kind, torch.optim.Optimizer)
    and name not in ("Optimizer", "SparseAdam")  # a base; for gradients that linear layers lack
)


class Tied(nn.Module):
    """Frozen and tied, like a language model whose embedding is its head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
        self.middle = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.frozen(self.embedding(x))))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_of_torch_counts_a_step_as_one(name: str) -> None:
    model = nn.Linear(2, 2, bias=False)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3)
    _, session = member_of(optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert len(session.stepped_with) == 3


def test_parameters_have_the_same_names_compiled_whole_in_part_or_wrapped() -> None:
    plain = Layout.of(Tied(), 16)
    assert [spec.name for spec in plain.parameters] == ["embedding.weight", "middle.weight"]
    whole = torch.compile(Tied(), backend="eager")
    part = Tied()
    part.middle = torch.compile(part.middle, backend="eager")
    wrapped = nn.DataParallel(Tied())
    for model in (whole, part, wrapped, torch.compile(wrapped, backend="eager")):
        assert _layout_of(bare(model)).digest == plain.digest


def test_a_compiled_model_goes_on_from_the_weights_that_the_swarm_writes() -> None:
    model = torch.compile(Tied(), backend="eager")
    before = model(torch.tensor([1]))
    weights = ModelWeights(bare(model), Layout.of(bare(model), 16))
    vector = weights.read_weights()
    weights.write_weights(2 * vector)
    assert torch.equal(weights.read_weights(), 2 * vector)
    assert torch.equal(model(torch.tensor([1])), 8 * before), "three matrices, one of them frozen"


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_a_step_inside_a_compiled_function_counts_each_time() -> None:
    _, session, model, optimizer = made()
    x = torch.ones(1, 2)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled = torch.compile(step, backend="eager")
    for _ in range(20):
        compiled()
    assert len(session.stepped_with) == 20


def test_a_loop_may_say_itself_that_a_step_was_made() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    member, session = member_of(optimizer, when=STEP)
    member.log(loss=1.5)
    member.step()
    optimizer.step()
    assert session.stepped_with == [(4, 1.5)]
    session.is_finished = True
    member.step()
    member.step()
    assert member.should_stop and len(session.stepped_with) == 2


def test_a_call_that_cannot_be_meant_is_told_without_an_invite_too(monkeypatch) -> None:
    monkeypatch.delenv("SWARMTRAIN_INVITE", raising=False)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    swarmtrain.join(model, None, when="step").step()
    with pytest.raises(UserError, match="hook counts the steps already"):
        swarmtrain.join(model, optimizer).step()
    with pytest.raises(UserError, match="hook counts the steps already"):
        made()[0].step()
    with pytest.raises(UserError, match='when="hook" or when="step", not \'both\''):
        swarmtrain.join(model, optimizer, when="both")
    with pytest.raises(UserError, match="SwarmCallback"):
        swarmtrain.join(model, None)
    with pytest.raises(UserError, match="at least 1"):
        swarmtrain.join(model, optimizer, samples_per_step=0)


def test_one_optimizer_is_in_one_run_at_a_time() -> None:
    member, _, model, optimizer = made()
    with pytest.raises(UserError, match="counted by a swarm already"):
        swarmtrain.join(model, optimizer, "swarm://127.0.0.1:1/run#secret")
    member.leave()
    with pytest.raises(UserError, match="SWT-E312"):
        swarmtrain.join(model, optimizer, "swarm://127.0.0.1:1/run#secret")


def test_an_optimizer_of_another_model_is_refused() -> None:
    model = Tied()
    _check_trains(torch.optim.SGD(model.middle.parameters(), lr=0.1), model)
    _check_trains(None, model)
    for other in (Tied().parameters(), model.frozen.parameters()):
        with pytest.raises(UserError) as caught:
            _check_trains(torch.optim.SGD(other, lr=0.1), model)
        assert caught.value.code == "SWT-E630"


@pytest.mark.parametrize(
    "model, words",
    [
        (nn.Sequential(nn.LazyLinear(2)), "`0.weight` has no values yet"),
        (nn.Linear(2, 1, device="meta"), "`weight` has no values yet"),
        (nn.Linear(2, 1).requires_grad_(False), "no trainable parameters"),
        (nn.Linear(2, 1, dtype=torch.complex64), "has dtype complex64"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_model_that_cannot_be_exchanged_says_why(model: nn.Module, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        _layout_of(model)
    assert caught.value.code == "SWT-E631"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("frozen", "`bias` was trainable, and is so no longer"),
        ("added", "`more` is a new one"),
        ("converted", "`weight` was float32, and is bfloat16 now"),
    ],
)
def test_a_model_changed_on_the_way_ends_the_exchange_and_not_the_loop(
    change: str, words: str, caplog
) -> None:
    member, session, model, optimizer = made()
    weights = ModelWeights(model, Layout.of(model, 16))
    session.stepped = lambda *_: weights.read_weights()
    optimizer.step()
    assert member.error is None
    if change == "frozen":
        model.bias.requires_grad_(False)
    elif change == "added":
        model.more = nn.Parameter(torch.zeros(1))
    else:
        model.to(torch.bfloat16)
    optimizer.step()
    assert member.error.code == "SWT-E804"
    assert "changed after the exchange began" in caplog.text and "goes on alone" in caplog.text
    assert words in caplog.text and "[exit" not in caplog.text, "the program goes on"
    assert session.closed == ["failed"] and not optimizer._optimizer_step_post_hooks
