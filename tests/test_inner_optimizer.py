"""Classes of packages as inner optimizers: who may use them, and that rates and healing hold."""

import sys
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from swarmtrain.config.file import canonical, from_canonical, load
from swarmtrain.config.options import Ways
from swarmtrain.config.settings import (
    ExchangeSection,
    InnerSection,
    ModelSection,
    OuterSection,
    RunConfig,
    RunSection,
)
from swarmtrain.data.batches import ByteStream
from swarmtrain.foundation.errors import UserError
from swarmtrain.inner_optimizer import make_optimizer
from swarmtrain.peer.training.trainer import BuiltinTrainer
from swarmtrain.pipeline.steps import StageSteps
from swarmtrain_transport.errors import RemoteFault

TEXT = b"for index in range(10):\n    print(index)\n" * 20
SOAP = "pytorch_optimizer:SOAP"


class Own(torch.optim.SGD):
    """A volunteer's own."""


class Restless(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] = 0.1
        return super().step(closure)


class Widening(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 1e38
        return super().step(closure)


class Slow(torch.optim.SGD):
    """Keeps a copy of the weights and goes back to it."""

    def step(self, closure=None):
        result = super().step(closure)
        for group in self.param_groups:
            for one in group["params"]:
                slow = self.state[one].setdefault("slow", one.detach().clone())
                one.data.lerp_(slow.lerp_(one.data, group["lr"] * 100), 0.5)
                self.state[one]["slow"] = slow
        return result


HERE = Own.__module__
OWN = f"{HERE}:Own"
NAMED = frozenset({f"{HERE}.{name}" for name in ("Own", "Restless", "Widening", "Slow", "TEXT")})


def section(optimizer: str, **arguments: object) -> InnerSection:
    return InnerSection(optimizer=optimizer, arguments=arguments, lr=1e-2, warmup_steps=5, batch=8)


def trainer(inner: InnerSection, modules: frozenset[str] = NAMED) -> BuiltinTrainer:
    config = RunConfig(
        run=RunSection(name="test", seed=3, rounds=4),
        model=ModelSection(layers=1, width=16, heads=2, context=16),
        inner=inner,
        outer=OuterSection(inner_steps=10),
        exchange=ExchangeSection(block=64),
    )
    return BuiltinTrainer(
        config, batches=ByteStream.of(config, [TEXT], 1).next_batch, validation=[TEXT],
        seed=1, ways=Ways(modules),
    )  # fmt: skip


def test_a_packages_class_is_used_only_where_its_name_was_given(monkeypatch) -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(UserError, match=f"--module {HERE}.Own") as told:
        make_optimizer(model, section(OWN))
    assert told.value.code == "SWT-E623"
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with pytest.raises(UserError):
        make_optimizer(model, section("this:Zen"))
    assert "this" not in sys.modules, "importing it would have run it"
    assert isinstance(make_optimizer(model, section(OWN), frozenset({OWN})), Own)
    monkeypatch.setenv("SWARMTRAIN_MODULE", f"{HERE}.Own")
    assert isinstance(make_optimizer(model, section(OWN)), Own)
    assert StageSteps(model, section(OWN)).optimizer.defaults["lr"] == 1e-2


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("nowhere.at:All", {}, "not here"),
        (f"{HERE}:TEXT", {}, "no class of torch"),
        (f"{HERE}:Restless", {}, "moves weights at a learning rate of 0"),
        (f"{HERE}:Widening", {}, "no numbers"),
        (f"{HERE}:Slow", {}, "weights that were replaced"),
        (OWN, {"zeal": 3}, "unexpected keyword argument"),
        ("torch.optim:LBFGS", {}, "closure"),
        ("torch.optim:Nothing", {}, "no class of torch"),
        ("torch.optim:lr_scheduler", {}, "no class of torch"),
    ],
)
def test_a_class_that_does_not_fit_is_told_before_the_first_step(name, arguments, words) -> None:
    with pytest.raises(UserError, match=words) as told:
        trainer(section(name, **arguments), NAMED | {"nowhere.at.All"})
    assert told.value.code == "SWT-E623"


@pytest.mark.parametrize("name", ["RMSprop", "NAdam", "Adagrad", "Adadelta", "RAdam"])
def test_torchs_own_need_no_word_and_keep_to_the_runs_rates(name: str) -> None:
    peer = trainer(section(f"torch.optim:{name}"), frozenset())
    before = peer.evaluate()
    for _ in range(20):
        peer.inner_step()
    assert peer.evaluate() < before
    rates = {group["lr"] for group in peer._optimizer.param_groups}
    assert len(rates) == 1 and rates.pop() <= 1e-2
    decays = {group["weight_decay"] for group in peer._optimizer.param_groups}
    assert decays == {0.0, 0.1}, "gains do not decay"


def test_settings_of_the_run_file_reach_the_class() -> None:
    made = make_optimizer(nn.Linear(4, 4), section("torch.optim:Adam", eps=1e-5, amsgrad=True))
    assert (made.defaults["betas"], made.defaults["eps"]) == ((0.9, 0.95), 1e-5)
    assert made.defaults["amsgrad"] is True


def test_soap_learns_goes_on_after_a_nan_and_ramps_up_for_a_joiner() -> None:
    pytest.importorskip("pytorch_optimizer")
    inner = section(SOAP, precondition_frequency=5)
    with pytest.raises(UserError, match=r"--module pytorch_optimizer\.SOAP"):
        trainer(inner, frozenset())
    peer = trainer(inner, frozenset({"pytorch_optimizer.SOAP"}))
    start, before = peer.read_weights(), peer.evaluate()
    for _ in range(40):
        peer.inner_step()
    trained = peer.read_weights()
    assert peer.evaluate() < before - 1.5
    peer.write_weights(torch.full_like(start, float("nan")))
    peer.write_weights(trained)
    for _ in range(3):
        peer.inner_step()
    assert peer.read_weights().isfinite().all()
    peer.continue_at(10)
    whole = trainer(inner, frozenset({SOAP}))
    whole.step = 10
    assert peer.rate() == pytest.approx(whole.rate() / 5)


def written(tmp_path: Path, inner: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(f'[run]\nname = "t"\n[inner]\n{inner}\n')
    return path


def test_a_run_file_names_a_class_and_its_arguments(tmp_path: Path) -> None:
    text = f'optimizer = "{SOAP}"\n[inner.arguments]\nmerge_dims = true\neps = 1e-6'
    config = load(written(tmp_path, text))
    assert config.inner.arguments == {"merge_dims": True, "eps": 1e-6}
    assert from_canonical(canonical(config)) == config
    turned = dict(reversed(config.inner.arguments.items()))
    same = msgspec.structs.replace(config.inner, arguments=turned)
    assert canonical(msgspec.structs.replace(config, inner=same)) == canonical(config)


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        ('optimizer = "sgd"', "a class as package:Class"),
        ('optimizer = "os.system"', "a class as package:Class"),
        ('optimizer = "a:b:c"', "a class as package:Class"),
        (f'optimizer = "{"a" * 300}:B"', "a class as package:Class"),
        ("[inner.arguments]\nbias = 1", "must be left out with inner.optimizer adamw"),
        (f'optimizer = "{SOAP}"\narguments = 3', "must be a section"),
        (f'optimizer = "{SOAP}"\narguments = {{lr = 3}}', "must not be there"),
        (f'optimizer = "{SOAP}"\narguments = {{eps = nan}}', "finite"),
        (f'optimizer = "{SOAP}"\narguments = {{eps = [1]}}', "must be"),
        (f'optimizer = "{SOAP}"\narguments = {{"a b" = 1}}', "short name"),
        (f'optimizer = "{SOAP}"\n[outer]\nstrategy = "ddp"', "must be adamw with outer.strategy"),
    ],
)
def test_what_cannot_work_is_refused_with_the_run_file(tmp_path: Path, inner, words) -> None:
    with pytest.raises(UserError, match="inner") as told:
        load(written(tmp_path, inner))
    assert words in told.value.what


def test_a_coordinators_settings_are_checked_as_a_files() -> None:
    config = RunConfig(run=RunSection(name="t"), inner=section("os.system"))
    with pytest.raises(RemoteFault):
        from_canonical(canonical(config))
