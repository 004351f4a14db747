"""A trained model, opened from an export, from peers' directories, or by its run's name."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from swarmtrain import checkpoint
from swarmtrain.config.built_in import vocabulary_of
from swarmtrain.config.data import unsettled
from swarmtrain.config.limits import first_problem
from swarmtrain.config.settings import RunConfig
from swarmtrain.data.clusters import ROUTER_BYTES_MAX, ROUTER_FILE, Router, name_in
from swarmtrain.data.tokenizer import FILE as TOKENIZER_FILE
from swarmtrain.data.tokenizer import FILE_BYTES_MAX, Tokenizer, tokenizer_of
from swarmtrain.foundation import regular_file
from swarmtrain.foundation.errors import UserError, cleaned, no_numbers
from swarmtrain.models.build import build_model, check_shapes, of_another_model
from swarmtrain.models.hf import hf_import
from swarmtrain.models.weights_file import differences, read_head, weights_among
from swarmtrain.trained.collect import collect
from swarmtrain.trained.export import FACTS_FILE, HF, Exported, Facts
from swarmtrain.trained.mixture import Mixture

_SMALL_VALUES = 5_000_000

_FACTS_BYTES_MAX = 1 << 20
"""Settings in one file have at most 64 KiB; a manifest has some lines for each stage."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trained:
    """A model that was trained, before it is built.

    Attributes:
        name: name in words, for people.
        config: settings of its model and of its text; the rest may be defaults.
        weights: float32 by parameter name.
        tokenizer: between text and its tokens.
        router: between experts, where there are several.
    """

    name: str
    config: RunConfig
    weights: Mapping[str, Tensor]
    tokenizer: Tokenizer
    router: Router | None = None

    def model(self, device: torch.device) -> nn.Module:
        """The model with these weights, ready to be asked.

        Raises:
            UserError: SWT-E450, it cannot be built here; E451, the weights are of another one.
        """
        try:
            models = [build_model(self.config, seed=0) for _ in range(self.config.experts.count)]
        except ValueError as error:
            raise UserError(
                "SWT-E450",
                f"The model of {self.name} cannot be built here: {error}.",
                "Its weights are whole; how they are used, its own program knows.",
                "Load model.safetensors into that program's model.",
            ) from error
        for number, model in enumerate(models):
            _load(model, self._weights_of(number), self.name)
        whole = models[0] if self.router is None else Mixture(models, self.router)
        return whole.to(device).eval()

    def _weights_of(self, expert: int) -> Mapping[str, Tensor]:
        if self.router is None:
            return self.weights
        start = name_in(expert, "")
        return {
            name.removeprefix(start): one
            for name, one in self.weights.items()
            if name.startswith(start)
        }


def open_trained(place: str) -> Trained:
    """Open the newest model of a place.

    Args:
        place: folder of an export, state directory of a peer or a folder of such, a run's name.

    Raises:
        UserError: as `collect`; SWT-E803, an export is damaged.
    """
    folder = Path(place)
    if (folder / FACTS_FILE).is_file():
        return _exported(folder)
    found = collect([place], may_lack=True)
    rounds = min(part.op for part in found.parts)
    name = f"{found.config.run.name} after round {rounds}"
    if found.missing:
        what = "expert" if found.config.pipeline.num_stages == 1 else "stage"
        name += f" without {what} {' and '.join(map(str, found.missing))}, which nobody here has"
    return _trained(name, found.config, found.weights, found.tokenizer, found.router)


def use_threads(trained: Trained) -> None:
    """Give torch one thread for a small model, whose steps are too short to share; else as many as
    it takes."""
    if sum(values.numel() for values in trained.weights.values()) < _SMALL_VALUES:
        torch.set_num_threads(1)


def _exported(folder: Path) -> Trained:
    try:
        facts = _decoded(folder / FACTS_FILE, Facts)
        made = _decoded(folder / checkpoint.MANIFEST_FILE, Exported)
        if problem := first_problem(facts.config) or unsettled(facts.config):
            raise ValueError(f"{FACTS_FILE} says that {problem.key} {problem.text}")
        head = read_head(folder / checkpoint.MODEL_FILE)
        shapes = {name: one.shape for name, one in weights_among(head).items()}
        named = hf_import(facts.config, shapes) if facts.weights == HF else shapes
        router = _router(folder, facts, made)
        for expert in range(facts.experts):
            start = name_in(expert, "") if facts.experts > 1 else ""
            own = {n.removeprefix(start): s for n, s in named.items() if n.startswith(start)}
            check_shapes(facts.config, own)
        with regular_file.opened(folder / checkpoint.MODEL_FILE) as file:
            digest = hashlib.file_digest(file, "sha256")
        if digest.hexdigest() != made.model_sha256:
            raise ValueError(f"{checkpoint.MODEL_FILE} is not the one that the manifest names")
        weights = weights_among(safetensors.torch.load_file(folder / checkpoint.MODEL_FILE))
        path = folder / TOKENIZER_FILE
        tokenizer = regular_file.read(path, FILE_BYTES_MAX) if path.exists() else None
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError, SafetensorError) as error:
        raise UserError(
            "SWT-E803",
            f"The export {folder} is damaged: {cleaned(str(error))}.",
            "Nothing of it was used.",
            "Export the model again.",
        ) from error
    if facts.weights == HF:
        weights = hf_import(facts.config, weights)
    name = f"{facts.run} after round {facts.round}"
    return _trained(name, facts.config, weights, tokenizer, router)


def _router(folder: Path, facts: Facts, made: Exported) -> Router | None:
    """The router of an export of experts.

    Raises:
        ValueError: it is not the one that the manifest names.
    """
    if facts.experts == 1:
        return None
    data = regular_file.read(folder / ROUTER_FILE, ROUTER_BYTES_MAX)
    if hashlib.sha256(data).hexdigest() != made.router_sha256:
        raise ValueError(f"{ROUTER_FILE} is not the one that the manifest names")
    router = Router.from_bytes(data)
    if router.count != facts.experts:
        raise ValueError(f"{ROUTER_FILE} is of {router.count} experts, not {facts.experts}")
    return router


def _decoded(path: Path, kind: type[T]) -> T:
    return msgspec.json.decode(regular_file.read(path, _FACTS_BYTES_MAX), type=kind)


def _trained(
    name: str, config: RunConfig, weights: Mapping[str, Tensor], file: bytes | None,
    router: Router | None = None,
) -> Trained:  # fmt: skip
    tokenizer, known = tokenizer_of(config.data, file), vocabulary_of(config)
    if config.model.kind != "custom" and tokenizer.vocabulary > known:
        raise UserError(
            "SWT-E824",
            f"The tokenizer of {name} has {tokenizer.vocabulary} tokens, its model knows {known}.",
            "They were not made for each other.",
            "Take both from the same run.",
        )
    return Trained(name, config, weights, tokenizer, router)


def _load(model: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Copy weights into a model's parameters; those that are tied appear once."""
    parameters = dict(model.named_parameters())
    wanted = {key: tuple(one.shape) for key, one in parameters.items()}
    wrong = [*differences(wanted, {key: tuple(one.shape) for key, one in weights.items()})]
    if wrong:
        raise of_another_model(name, wrong[:3])
    with torch.no_grad():
        for key, parameter in parameters.items():
            if not weights[key].isfinite().all():
                raise no_numbers(f"Values of {key} in {name}")
            parameter.copy_(weights[key])
