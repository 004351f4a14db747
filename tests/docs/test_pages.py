"""Every block of every page is accounted for: commands exist and take the options that they are
shown with, programs run, run files load, links lead somewhere. Those that can are run in
`test_commands_run.py`. A block of an unknown kind fails."""

import importlib.util
import inspect
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import nn

import swarmtrain
from swarmtrain.cli.main import app
from swarmtrain.config import file as config_file
from tests.docs.doc_pages import (
    OUTPUT,
    PYTHON,
    ROOT,
    SHELL,
    TOML,
    Block,
    Command,
    all_commands,
    anchors,
    blocks,
    links,
    pages,
)

READERS_OWN = {"train.py", "own.py"}
"""Scripts that a reader brings."""

SERVICES = re.findall(r"^  ([a-z-]+):$", (ROOT / "compose/docker-compose.yml").read_text(), re.M)


def test_every_block_is_of_a_kind_that_is_looked_at():
    kinds = {*SHELL, OUTPUT, PYTHON, TOML}
    found = [
        f"{block} is a block of {block.kind!r}" for block in blocks() if block.kind not in kinds
    ]
    assert not found and len(blocks()) > 40


# ---- what one types


@pytest.mark.parametrize("command", all_commands(), ids=str)
def test_a_command_is_one(command: Command):
    if not command.words:
        return  # assignments alone
    program, *words = command.words
    program = Path(program).name if program.startswith(".venv/bin/") else program
    known = PROGRAMS.get(program)
    if known is None and (ROOT / program).is_file():
        return
    assert known is not None, f"{command}: {program} is no program that is known here"
    known(words)


def parsed(words: Sequence[str]) -> None:
    """Read a command line as `swarmtrain` does, without running it."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("swarmtrain", list(words))
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(
            context, [*getattr(context, "_protected_args", []), *context.args]
        )
        context = command.make_context(name, list(rest), parent=context)


def _target_exists(words: Sequence[str]) -> None:
    rules = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    targets = [word for word in words if "=" not in word]
    assert targets and set(targets) <= set(rules), f"targets: {', '.join(rules)}"


def _program_exists(words: Sequence[str]) -> None:
    name, *_ = words
    if name == "-m":
        assert words[1] in ("pytest", "venv") or importlib.util.find_spec(words[1]) is not None
    else:
        assert name in READERS_OWN or (ROOT / name).is_file(), f"there is no {name}"


def _extras_exist(words: Sequence[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert words[0] == "install"
    for word in words[1:]:
        found = re.fullmatch(r"(?:\.|swarmtrain)\[([a-z,]+)\]", word)
        if found is not None:
            assert set(found[1].split(",")) <= set(project["optional-dependencies"])
        elif word.startswith("torch=="):
            assert word in (ROOT / "Makefile").read_text()
        else:
            assert word in (".", "-e", "swarmtrain"), f"{word} is nothing of this project"


def _services_exist(words: Sequence[str]) -> None:
    """Read a line of docker-compose: options of its own, a verb, services, and their command."""
    profiles = re.findall(
        r"profiles: \[([^\]]*)\]", (ROOT / "compose/docker-compose.yml").read_text()
    )
    rest = list(words)
    while rest[0].startswith("-"):
        option = rest.pop(0)
        value = rest.pop(0)
        assert option != "--profile" or any(value in line for line in profiles), value
    verb, *rest = rest
    assert verb in ("build", "up", "down", "logs", "exec", "kill", "stop", "start", "ps", "restart")
    for place, word in enumerate(rest):
        if word == "swarmtrain":
            parsed(rest[place + 1 :])
            return
        assert word.startswith("-") or word in SERVICES, f"{word}: none of {', '.join(SERVICES)}"


def _image_runs(words: Sequence[str]) -> None:
    """Read a line of docker: our image is built from a file that is there, and runs our command."""
    if words[0] == "build":
        assert (ROOT / words[words.index("-f") + 1]).is_file()
    elif "swarmtrain:local" in words:
        parsed(words[words.index("swarmtrain:local") + 1 :])


def _emulated(words: Sequence[str]) -> None:
    own = next(word for word in words if word.endswith(".py"))
    assert own in READERS_OWN or (ROOT / own).is_file()


def _anything(words: Sequence[str]) -> None:
    """A program that is not ours."""


PROGRAMS: dict[str, Callable[[Sequence[str]], None]] = {
    "swarmtrain": parsed,
    "make": _target_exists,
    "python": _program_exists,
    "pip": _extras_exist,
    "docker-compose": _services_exist,
    "docker": _image_runs,
    "torchrun": _emulated,
    "cd": lambda words: None if (ROOT / words[0]).is_dir() else pytest.fail(words[0]),
    "export": _anything,
    "source": _anything,
    "curl": _anything,
    "openssl": _anything,
    "chmod": _anything,
    "git": _anything,
    "perf": _anything,
    "printf": _anything,
}


# ---- run files and programs


@pytest.mark.parametrize("block", blocks(TOML), ids=str)
def test_a_run_file_loads(block: Block, tmp_path: Path):
    text = block.text.replace('"d7b45c77..."', f'"{"d7" * 32}"')
    if "[run]" not in text:
        text = f'[run]\nname = "tests"\n{text}'
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    assert config_file.load(path).run.name


class Given:
    """Names that a page leaves to its reader."""

    def __init__(self, block: Block) -> None:
        torch.manual_seed(0)
        self.stepped = 0
        x, y = torch.randn(4, 2), torch.randn(4, 1)
        self.names: dict[str, Any] = {"torch": torch, "nn": nn, "swarmtrain": swarmtrain}
        if "StagedModel" in block.text:
            self._stages()
        elif "from transformers" in block.text:
            self._trainer()
        elif "from lightning" in block.text:
            self._lightning(x, y)
        else:
            model = nn.Linear(2, 1)
            optimizer = torch.optim.AdamW(model.parameters())

            def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                self.stepped += 1
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss.detach()

            loader = torch.utils.data.DataLoader([(x[0], y[0])] * 4, batch_size=2)
            self.names |= {
                "model": model, "optimizer": optimizer, "loader": loader, "train_step": train_step,
            }  # fmt: skip

    def _stages(self) -> None:
        tokens = torch.zeros(4, 8, dtype=torch.long)
        self.names |= {
            "layers": [nn.Linear(512, 512)], "x": tokens, "y": tokens, "loader": [],
            "loss": lambda out, y: nn.functional.cross_entropy(
                out.flatten(0, 1), y.flatten(), reduction="sum"
            ),
        }  # fmt: skip

    def _trainer(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

        rows = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 4
        self.names |= {
            "model": LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                    num_attention_heads=2,
                )
            ),
            "args": TrainingArguments(
                "out", max_steps=2, save_strategy="no", report_to="none", use_cpu=True,
                dataloader_pin_memory=False,
            ),
            "data": rows,
        }  # fmt: skip

    def _lightning(self, x: torch.Tensor, y: torch.Tensor) -> None:
        from lightning import LightningModule

        class Module(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = nn.Linear(2, 1)

            def training_step(self, batch: Any, index: int) -> torch.Tensor:
                self.trainer.should_stop = True
                return nn.functional.mse_loss(self.net(batch[0]), batch[1])

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.AdamW(self.parameters())

        loader = torch.utils.data.DataLoader([(x[0], y[0])] * 2, batch_size=2)
        self.names |= {"module": Module(), "loader": loader}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("block", blocks(PYTHON), ids=str)
def test_a_program_runs_without_an_invite(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SWARMTRAIN_INVITE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shape = inspect.signature(swarmtrain.join_stages)  # alone it has nothing to do but to refuse
    monkeypatch.setattr(swarmtrain, "join_stages", lambda *a, **k: shape.bind(*a, **k))
    given = Given(block)
    exec(compile(block.text, str(block), "exec"), given.names)
    assert given.stepped or "train_step" not in block.text


# ---- links


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path):
    broken = []
    for number, target in links(page):
        name, _, anchor = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(f"{page.name}:{number} {target}")
    assert not broken
