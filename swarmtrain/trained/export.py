"""A run's newest model as a folder that others can use: weights, settings, tokenizer, and a card.

The folder is written aside and then given its name, so it is there whole or not at all. Nothing in
it depends on the machine: names of directories stay behind.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
from torch import Tensor

from swarmtrain import checkpoint
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import (
    DataSection,
    ExpertsSection,
    ModelSection,
    RunConfig,
    RunSection,
)
from swarmtrain.data.clusters import ROUTER_FILE
from swarmtrain.data.tokenizer import FILE as TOKENIZER_FILE
from swarmtrain.data.tokenizer import JsonTokenizer
from swarmtrain.foundation import atomic_file
from swarmtrain.foundation.errors import UserError, misuse, translate
from swarmtrain.models.hf import hf_export
from swarmtrain.trained import card
from swarmtrain.trained.collect import Collected, Part, collect
from swarmtrain.trained.history import history_of

CONFIG_FILE = "config.json"
FACTS_FILE = "swarmtrain.json"
CARD_FILE = "README.md"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"

Tell = Callable[[str], None]

SAFETENSORS, HF = "safetensors", "hf"
"""Forms of an export: the run's own names of parameters, or those that Transformers knows."""


class Exported(msgspec.Struct, frozen=True):
    """Manifest of an exported model.

    Attributes:
        format: version of this text.
        run: the run's name.
        config_hash: SHA-256 of its run file.
        stages: parts that the model was made of.
        num_values: parameters.
        model_bytes, model_sha256: size and hash of the file with the weights.
        writes: True if swarmtrain knows how to build the model.
        router_sha256: hash of the router between experts; "" where there are none.
    """

    format: int
    run: str
    config_hash: str
    stages: tuple[Part, ...]
    num_values: int
    model_bytes: int
    model_sha256: str
    writes: bool = True
    router_sha256: str = ""


class Facts(msgspec.Struct, frozen=True):
    """Contents of `swarmtrain.json`: enough to build the model again and to read its text.

    Attributes:
        format: version of this text.
        run: the run's name.
        round: newest that all of the weights contain.
        state_roots: state root of each stage.
        weights: form of the names in model.safetensors.
        model, data: these sections of the run file.
        experts: number of models in it, with a router between them.
    """

    format: int
    run: str
    round: int
    state_roots: tuple[str, ...]
    weights: str
    model: ModelSection
    data: DataSection
    experts: int = 1

    @property
    def config(self) -> RunConfig:
        """A run file of such a model."""
        return RunConfig(
            run=RunSection(name=self.run), model=self.model, data=self.data,
            experts=ExpertsSection(self.experts),
        )  # fmt: skip


def export(
    folder: Path,
    given: Sequence[str | Path],
    *,
    form: str = SAFETENSORS,
    moments: bool = False,
    tell: Tell = lambda line: None,
) -> Exported:
    """Write the newest model of a run into a new folder.

    Args:
        folder: must not be there.
        given: state directories of peers of one run, folders of such, or the run's name.
        form: SAFETENSORS or HF.
        moments: True for those of the outer optimizer too, for a run that begins with them.
        tell: hears what the folder lacks.

    Raises:
        UserError: as `collect`; SWT-E610, the folder is there, or the model has no such form; E401
            or E403, the folder cannot be written.
    """
    if folder.exists():
        raise misuse(f"{folder} is there already.", "Name a folder that is not.")
    found = collect(given)
    settings, weights = _in_form(found, form)
    if moments:
        weights = {**weights, **_moments(found, form)}
    # One metadata key at most: safetensors writes several in no fixed order.
    data = safetensors.torch.save(dict(weights), metadata={"format": "pt"})
    config = found.config
    router = found.router.to_bytes() if found.router is not None else b""
    if found.missing:
        which = ", ".join(map(str, found.missing))
        tell(f"Nobody here has expert {which}: its text goes to those that are nearest.")
    made = Exported(
        1, config.run.name, config_file.config_hash(config).hex(), found.parts,
        sum(tensor.numel() for tensor in found.weights.values()), len(data),
        hashlib.sha256(data).hexdigest(), config.model.kind != "custom",
        hashlib.sha256(router).hexdigest() if router else "",
    )  # fmt: skip
    facts = Facts(
        1, config.run.name, min(part.op for part in found.parts),
        tuple(part.state_root for part in found.parts), form, config.model, config.data,
        config.experts.count,
    )  # fmt: skip
    text = card.text_of(found, history_of(found), made.num_values, made.model_sha256)
    files = {
        checkpoint.MODEL_FILE: data,
        CONFIG_FILE: json.dumps(settings, indent=2).encode() + b"\n",
        FACTS_FILE: _pretty(facts),
        CARD_FILE: text.encode(),
        checkpoint.MANIFEST_FILE: _pretty(made),
    }
    if found.tokenizer is not None:
        files[TOKENIZER_FILE] = found.tokenizer
    if router:
        files[ROUTER_FILE] = router
    if form == HF and found.tokenizer is not None:
        files |= _end_of_text(found, settings, tell)
    _write(folder, files)
    return made


def _moments(found: Collected, form: str) -> Mapping[str, Tensor]:
    if found.router is not None:
        raise misuse(
            f"Here are {len(found.parts)} experts, each a model of its own; a run begins with one.",
            "Name state directories of peers of one expert.",
        )
    if form != SAFETENSORS:
        raise misuse("Moments are for runs of swarmtrain.", f"Export with --format {SAFETENSORS}.")
    return {name: one.clone() for name, one in found.moments.items()}


def _in_form(found: Collected, form: str) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Contents of config.json, and the weights by their names in that form."""
    model = found.config.model
    if form != SAFETENSORS and found.router is not None:
        raise misuse(
            f"Experts cannot be exported as {form}: no other library knows their router.",
            f"Export them with --format {SAFETENSORS}; `swarmtrain generate` writes with them.",
        )
    if form == SAFETENSORS:
        return {"model_type": "swarmtrain", **msgspec.to_builtins(model)}, found.weights
    try:
        return hf_export(found.config, found.weights)
    except ValueError as error:
        raise misuse(
            f"This model cannot be exported as {form}: {error}.",
            f"Export it with --format {SAFETENSORS}; `swarmtrain generate` writes with it.",
        ) from error


def _end_of_text(found: Collected, settings: dict[str, Any], tell: Tell) -> dict[str, bytes]:
    """Files that tell the transformers library which token ends a text, and how long one may be:
    else its `generate` goes on to its bound."""
    said: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": found.config.model.context,
    }
    try:
        tokenizer = JsonTokenizer(found.tokenizer or b"")
    except UserError as error:
        tell(f"The folder does not say which token ends a text. {error.what} {error.remedy}")
    else:
        if tokenizer.end:
            said["eos_token"] = tokenizer.end_name
            settings = {**settings, "eos_token_id": tokenizer.end[0]}
    return {
        CONFIG_FILE: json.dumps(settings, indent=2).encode() + b"\n",
        TOKENIZER_CONFIG_FILE: json.dumps(said, indent=2).encode() + b"\n",
    }


def _pretty(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all files aside, then give them their place."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
        try:
            aside.chmod(0o755)
            for name, data in files.items():
                checkpoint.write_file(aside / name, data)
            atomic_file.rename(aside, folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)  # what was renamed is not there any more
    except OSError as error:
        raise _unwritten(folder, error) from error


def _unwritten(folder: Path, error: OSError) -> UserError:
    found = translate(error)
    if found is not None and found.code == "SWT-E401":
        return UserError(
            "SWT-E401",
            f"No space is left on the disk of {folder}.",
            "The export was taken back; nothing of it is there.",
            "Free some space, or name a folder on another disk with --to.",
        )
    return UserError(
        "SWT-E403",
        f"{folder} cannot be written: {error.strerror or error}.",
        "Nothing is there.",
        "Name a folder in a directory that you own.",
    )
