"""Trainer, Lightning and accelerate as peers of real runs, by the examples as anybody would run
them; the second peer of each run is the same example in this process, so that its library is loaded
once for all that is tested of it."""

import copy
import importlib.util
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import swarmtrain
from swarmtrain.hook.api import hookable
from swarmtrain.hook.members import Member
from swarmtrain.hook.swarm import HOOK
from tests.e2e.e2e_rig import ROOT, Place, place
from tests.hook.stand_in import StandIn, member_of

pytestmark = [
    pytest.mark.timeout(400),
    # The libraries' own, of 2.6 beside torch 2.13.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many"),
]

RUN = """
[run]
name = "{name}"
rounds = 2
[model]
kind = "custom"
[data]
source = "own"
[outer]
inner_steps = 3
lr = 0.7
momentum = 0.0
[exchange]
start_peers = 2
block = 64
chunk_values = 65536
wait_ready_s = 60.0
deadline_floor_s = 20.0
deadline_cap_s = 40.0
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No invite, a state directory of the test's, one thread, and the libraries' loggers as
    before."""
    monkeypatch.delenv("SWARMTRAIN_INVITE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own-state"))
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    levels = {name: logging.getLogger(name).level for name in ("lightning", "swarmtrain")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def beside(here: Place, name: str, act: Callable[[], str]) -> None:
    """The example as a process and `act` here are the two peers of a run, and end with one root."""
    up = here.up(here.run_file(RUN.format(name=name.replace("_", "-")), name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWARMTRAIN_INVITE", up.invite)
        other = here.start(ROOT / "examples" / f"{name}.py", "ann", SWARMTRAIN_INVITE=up.invite)
        root = act()
    assert other.end() == 0, str(other)
    last = re.fullmatch(r"round 2  state root ([0-9a-f]{64})\n", other.lines[-1])
    assert last is not None and last[1] == root
    assert up.running.end() == 0


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Member, StandIn, dict[str, Any]]]:
    """Whoever joins gets a stand-in, and what is asked for is kept."""
    kept = []

    def join(model: Any, optimizer: Any, invite: Any, **options: Any) -> Member:
        steps = [int(one["step"]) for one in optimizer.state.values() if "step" in one]
        inner = hookable(optimizer)
        member, session = member_of(inner, when=options.get("when", HOOK))
        kept.append((member, session, {**options, "model": model, "steps": steps}))
        return member

    for name in ("transformers.join", "lightning.join", "accelerate.join_loop"):
        monkeypatch.setattr(f"swarmtrain.integrations.{name}", join)
    return kept


# ---- the page


def test_every_snippet_of_the_page_runs_as_it_stands(
    hugging: ModuleType, bolt: ModuleType, tmp_path: Path
):
    text = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(snippets) == 5
    for snippet in snippets:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = bolt.DataLoader(bolt.samples("x", 128), batch_size=64, shuffle=True)
        steps = []

        def train_step(x: Tensor, y: Tensor, model=model, optimizer=optimizer, steps=steps):
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            steps.append(loss)
            return loss

        given: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
        given |= {"train_step": train_step, "swarmtrain": swarmtrain}
        if "transformers" in snippet:
            trainer = hugging.build("x", str(tmp_path), max_steps=2)
            given |= {"model": trainer.model, "args": trainer.args, "data": trainer.train_dataset}
        elif "lightning" in snippet:
            snippet = snippet.replace("max_steps=1000", "max_steps=2, logger=False")
            snippet = snippet.replace("max_steps=2", "max_steps=2, enable_checkpointing=False")
            given |= {"module": bolt.Learner()}
        exec(compile(snippet, "docs/hooks.md", "exec"), given)
        assert len(steps) == (2 if "train_step" in snippet else 0)


# ---- transformers


@pytest.fixture(scope="module")
def hugging() -> ModuleType:
    pytest.importorskip("transformers")
    return example("trainer_transformers")


def test_a_trainer_without_an_invite_trains_the_same_bits(hugging: ModuleType, tmp_path: Path):
    callback = hugging.SwarmCallback()
    plain = hugging.build("x", str(tmp_path), max_steps=4, disable_tqdm=True)
    hooked = hugging.build("x", str(tmp_path), callback, max_steps=4, disable_tqdm=True)
    for trainer in (plain, hooked):
        trainer.train()
    assert same(weights(plain.model), weights(hooked.model))
    assert not any("swarm_round" in line for line in hooked.state.log_history)
    assert not (tmp_path / "own-state").exists()


def test_a_trainer_that_is_broken_off_and_run_again_is_one_peer_and_may_finish_its_round(
    hugging: ModuleType, joined: list, tmp_path: Path
):
    class Failing(hugging.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if len(joined) == 1:
                raise ZeroDivisionError

    callback = hugging.SwarmCallback(finish_round=True)
    trainer = hugging.build(
        "x", str(tmp_path), callback, Failing(), max_steps=3, logging_steps=1,
        gradient_accumulation_steps=2, disable_tqdm=True,
    )  # fmt: skip
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    trainer.train()
    (_, broken, _), (_, session, options) = joined
    assert (len(broken.stepped_with), broken.left) == (1, ["asked to leave"])
    losses = [loss for _, loss in session.stepped_with]
    assert len(losses) == 3 and losses[0] is None and losses[1] is not None
    assert session.left == ["the round", "finished"]
    assert options["samples_per_step"] == 32 and options["model"] is trainer.model


def test_two_trainers_end_with_one_root_and_one_of_them_has_resumed(
    hugging: ModuleType, tmp_path: Path
):
    settings = {"logging_steps": 1, "gradient_accumulation_steps": 2, "disable_tqdm": True}
    first = hugging.build(
        "bob", str(tmp_path), **settings, max_steps=2, save_strategy="steps", save_steps=2
    )
    first.train()
    began = {}

    class Watch(hugging.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            optimizer = given["optimizer"].optimizer
            steps = {int(one["step"]) for one in optimizer.state.values()}
            began.setdefault("step", (state.global_step, steps))
            sampler = given["train_dataloader"].get_sampler()
            began.setdefault("order", (sampler.initial_seed, callback.swarm.seed))

    callback = hugging.SwarmCallback(name="bob")

    def act() -> str:
        trainer = hugging.build("bob", str(tmp_path), callback, Watch(), **settings, max_steps=99)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        assert began["step"] == (2, {2}), "trainer and optimizer go on from the checkpoint"
        seed, own = began["order"]
        assert own and seed >= own, "an order of this peer's own"
        assert trainer.state.global_step >= 2 + 3, "a slow one makes fewer steps a round"
        logged = [line for line in trainer.state.log_history if line["step"] > 2]
        rounds = [line["swarm_round"] for line in logged if "loss" in line]
        assert rounds == sorted(rounds) and (rounds[0], rounds[-1]) == (0, 2)
        assert {line["swarm_peers"] for line in logged} <= {0, 1}
        assert callback.swarm.should_stop and callback.swarm.error is None
        assert not trainer.optimizer.optimizer._optimizer_step_post_hooks
        return callback.swarm.state_root

    with place(tmp_path) as here:
        beside(here, "trainer_transformers", act)


# ---- Lightning


@pytest.fixture(scope="module")
def bolt() -> ModuleType:
    pytest.importorskip("lightning")
    return example("trainer_lightning")


def fitted(bolt: ModuleType, *callbacks: Any, module: Any = None, **settings: Any) -> Any:
    trainer = bolt.build(*callbacks, enable_progress_bar=False, **settings)
    loader = bolt.DataLoader(bolt.samples("bob"), batch_size=64, shuffle=True)
    trainer.fit(module or bolt.Learner(), loader)
    return trainer


def test_lightning_without_an_invite_trains_the_same_bits(bolt: ModuleType):
    bolt.L.seed_everything(1, verbose=False)
    plain = bolt.Learner()
    hooked = copy.deepcopy(plain)
    fitted(bolt, module=plain, max_steps=4)
    fitted(bolt, bolt.SwarmCallback(), module=hooked, max_steps=4)
    assert same(weights(plain), weights(hooked))


def test_two_lightning_trainers_end_with_one_root(bolt: ModuleType, tmp_path: Path):
    callback = bolt.SwarmCallback(name="bob")
    kept: list[dict[str, float]] = []

    class Kept(bolt.L.pytorch.loggers.logger.DummyLogger):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            kept.append({**metrics, "step": step})

    def act() -> str:
        trainer = fitted(bolt, callback, logger=Kept(), accumulate_grad_batches=2)
        # Who was late for the first round has made the steps of the second one alone.
        assert trainer.global_step >= 3, "a step is accumulated over two batches"
        rounds = [(one["step"], one["swarm_round"]) for one in kept if "swarm_round" in one]
        assert rounds == sorted(set(rounds)) and rounds[-1][1] == 2
        assert callback.swarm.error is None
        return callback.swarm.state_root

    with place(tmp_path) as here:
        beside(here, "trainer_lightning", act)


def test_several_optimizers_of_lightning_are_one_step_a_batch(bolt: ModuleType, joined: list):
    """With the other one's parameters switched off in the middle of it, as GANs do."""
    trained = []

    class Two(bolt.Learner):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [torch.optim.SGD(self.net[i].parameters(), lr=0.01) for i in (0, 2)]

        def training_step(self, batch: Any, batch_idx: int) -> None:
            joined[0][0]._count = lambda: trained.append(
                all(p.requires_grad for p in self.parameters())
            )
            for optimizer in self.optimizers():
                with optimizer.toggle_model():
                    loss = super().training_step(batch, batch_idx)
                    optimizer.zero_grad()
                    self.manual_backward(loss)
                    optimizer.step()

    fitted(bolt, bolt.SwarmCallback(), module=Two(), max_steps=6)
    ((_, session, options),) = joined
    assert trained == [True] * 3 and options["when"] == "step"
    assert session.left == ["asked to leave"]


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
def test_a_fit_joins_after_its_checkpoint_with_the_part_that_is_asked_for(
    bolt: ModuleType, joined: list, tmp_path: Path
):
    file = tmp_path / "two.ckpt"
    fitted(bolt, max_steps=2).save_checkpoint(file)
    callback = bolt.SwarmCallback(submodule="net", samples_per_step=7)
    trainer = bolt.build(callback, enable_progress_bar=False, max_steps=5)
    loader = bolt.DataLoader(bolt.samples("bob"), batch_size=64, shuffle=True)
    module = bolt.Learner()
    trainer.fit(module, loader, ckpt_path=file)
    ((_, session, options),) = joined
    assert options["model"] is module.net and options["samples_per_step"] == 7
    assert options["steps"] == [2] * 4 and len(session.stepped_with) == 3
    assert session.stepped_with[-1][1] is not None, "the loss of a step is shown with a later one"


def test_a_fit_that_fails_leaves_the_run(bolt: ModuleType, joined: list):
    class Failing(bolt.Learner):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fitted(bolt, bolt.SwarmCallback(), module=Failing())
    assert joined[0][1].left == ["its loop failed: ZeroDivisionError"]


# ---- accelerate


@pytest.fixture(scope="module")
def quick() -> ModuleType:
    pytest.importorskip("accelerate")
    return example("loop_accelerate")


def test_an_accelerated_loop_without_an_invite_trains_the_same_bits(quick: ModuleType):
    from swarmtrain.integrations.accelerate import join

    def trained(enter: Callable[..., Any]) -> dict[str, Tensor]:
        torch.manual_seed(0)
        accelerator = quick.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = quick.DataLoader(quick.samples("x", 64), batch_size=8, shuffle=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        with enter(accelerator, model, optimizer, loader):
            for x, y in loader:
                with accelerator.accumulate(model):
                    accelerator.backward((model(x) - y).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
        return weights(model)

    assert same(trained(lambda *_: swarmtrain.Swarm()), trained(join))


def test_of_accumulated_batches_the_last_one_is_a_step(quick: ModuleType, joined: list):
    from swarmtrain.integrations.accelerate import join

    accelerator = quick.Accelerator(cpu=True, gradient_accumulation_steps=4)
    given = nn.Linear(2, 1)
    loader = quick.DataLoader(quick.samples("x", 64), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(
        torch.compile(given, backend="eager"), torch.optim.SGD(given.parameters(), lr=0.1), loader
    )
    with join(accelerator, model, optimizer, loader):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward((given(x) - y).square().mean())
                optimizer.step()
                optimizer.zero_grad()
    ((_, session, options),) = joined
    assert len(session.stepped_with) == 4 and options["samples_per_step"] == 16
    assert options["model"] is given


def test_two_accelerated_loops_end_with_one_root(quick: ModuleType, tmp_path: Path, capsys):
    def act() -> str:
        quick.main("bob")
        said = capsys.readouterr().out
        return re.search(r"round 2  state root ([0-9a-f]{64})\n$", said)[1]

    with place(tmp_path) as here:
        beside(here, "loop_accelerate", act)
