"""A trained model, opened from an export, from peers' directories, or by its run's name."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from swarmtrain import checkpoint
from swarmtrain.config.settings import RunConfig
from swarmtrain.data.tokenizer import Tokenizer, tokenizer_of
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain.models.build import build_model
from swarmtrain.models.hf import hf_import
from swarmtrain.models.weights_file import differences
from swarmtrain.trained.collect import TOKENIZER_FILE, collect
from swarmtrain.trained.export import FACTS_FILE, HF, Exported, Facts

_SMALL_VALUES = 5_000_000


@dataclass(frozen=True, slots=True)
class Trained:
    """A model that was trained, before it is built.

    Attributes:
        name: in words, for people.
        config: settings of its model and of its text; the rest may be defaults.
        weights: float32 by parameter name.
        tokenizer: between text and its tokens.
    """

    name: str
    config: RunConfig
    weights: Mapping[str, Tensor]
    tokenizer: Tokenizer

    def model(self, device: torch.device) -> nn.Module:
        """The model with these weights, ready to be asked.

        Raises:
            UserError: SWT-E450, it cannot be built here; E451, the weights are of another one.
        """
        try:
            model = build_model(self.config, seed=0)
        except ValueError as error:
            raise UserError(
                "SWT-E450",
                f"The model of {self.name} cannot be built here: {error}.",
                "Its weights are whole; how they are used, its own program knows.",
                "Load model.safetensors into that program's model.",
            ) from error
        _load(model, self.weights, self.name)
        return model.to(device).eval()


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
    found = collect([place])
    rounds = min(part.op for part in found.parts)
    tokenizer = tokenizer_of(found.config.data, found.tokenizer)
    name = f"{found.config.run.name} after round {rounds}"
    return Trained(name, found.config, found.weights, tokenizer)


def use_threads(trained: Trained) -> None:
    """Give torch one thread for a small model, whose steps are too short to share; else as many as
    it takes."""
    if sum(values.numel() for values in trained.weights.values()) < _SMALL_VALUES:
        torch.set_num_threads(1)


def _exported(folder: Path) -> Trained:
    try:
        facts = msgspec.json.decode((folder / FACTS_FILE).read_bytes(), type=Facts)
        made = msgspec.json.decode((folder / checkpoint.MANIFEST_FILE).read_bytes(), type=Exported)
        with (folder / checkpoint.MODEL_FILE).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        if digest.hexdigest() != made.model_sha256:
            raise ValueError(f"{checkpoint.MODEL_FILE} is not the one that the manifest names")
        weights = safetensors.torch.load_file(folder / checkpoint.MODEL_FILE)
        path = folder / TOKENIZER_FILE
        tokenizer = path.read_bytes() if path.is_file() else None
    except (OSError, ValueError, msgspec.MsgspecError, SafetensorError) as error:
        raise UserError(
            "SWT-E803",
            f"The export {folder} is damaged: {cleaned(str(error))}.",
            "Nothing of it was used.",
            "Export the model again.",
        ) from error
    if facts.weights == HF:
        weights = hf_import(facts.config, weights)
    name = f"{facts.run} after round {facts.round}"
    return Trained(name, facts.config, weights, tokenizer_of(facts.config.data, tokenizer))


def _load(model: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Copy weights into a model's parameters; those that are tied appear once."""
    parameters = dict(model.named_parameters())
    wanted = {key: tuple(one.shape) for key, one in parameters.items()}
    wrong = [*differences(wanted, {key: tuple(one.shape) for key, one in weights.items()})]
    if wrong:
        raise UserError(
            "SWT-E451",
            f"The weights of {name} are of another model: {'; '.join(wrong[:3])}.",
            "They were made with other sizes, or by another version of swarmtrain.",
            "Use the version that trained it.",
        )
    with torch.no_grad():
        for key, parameter in parameters.items():
            parameter.copy_(weights[key])
