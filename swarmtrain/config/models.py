"""Checks of [model], and what a size by name stands for.

Not here: parameters of the models that are counted (`built_in`), and stages (`pipeline`).
"""

import difflib
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from swarmtrain.config.built_in import LAYERS_MAX, SIZES, kv_heads_of
from swarmtrain.config.problem import Problem
from swarmtrain.config.settings import ModelSection, RunConfig
from swarmtrain.foundation.errors import cleaned

KINDS = ("byte-transformer", "transformer", "huggingface", "custom")
"""Beside ``module:PKG.NAME``."""

MODULE = "module:"

CONFIG_BYTES_MAX = 32_768
"""A config.json has a few thousand bytes; it travels in the run file, which is bounded too."""

_FACTORY = re.compile(r"module:[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
_NAME_CHARS_MAX = 200
_VOCABULARY_MAX = 1_048_576

_ONLY_TRANSFORMER = ("kv_heads", "mlp_width", "norm", "rotary_base", "tied")


def sized(model: ModelSection, given: Any) -> ModelSection:
    """Put the numbers of a size where the file does not say them; the size's name is then gone.

    Args:
        given: keys of [model] that the file has.
    """
    if model.size not in SIZES or model.kind != "transformer":
        return model  # which model_problems refuses, or there is none
    numbers = {key: value for key, value in SIZES[model.size].items() if key not in given}
    return msgspec.structs.replace(model, size="", **numbers)


def model_problems(config: RunConfig) -> Iterator[Problem]:
    """Find what cannot work in [model]."""
    model = config.model
    if model.kind not in KINDS and not is_module(model.kind):
        yield Problem("model.kind", _unknown_kind(model.kind))
        return
    yield from _foreign_settings(model)
    if model.kind == "huggingface":
        yield from _config_problems(model)
    if not model.is_counted:
        return
    if model.width % (2 * model.heads):
        yield Problem(
            "model.width",
            f"must be a multiple of 2 x model.heads ({2 * model.heads}), it is {model.width}",
            "Every head gets an equal share of the width, and turns its values in pairs.",
        )
    if model.heads % kv_heads_of(model):
        yield Problem(
            "model.kv_heads",
            f"must divide model.heads ({model.heads}), it is {model.kv_heads}",
            "As many heads share each key and value.",
        )
    if model.kind == "byte-transformer" and model.vocabulary not in (0, 256):
        yield Problem(
            "model.vocabulary",
            f"must be 256 with model.kind byte-transformer, it is {model.vocabulary}",
            'Its tokens are bytes. kind = "transformer" has any number.',
        )


def is_module(kind: str) -> bool:
    """Return True if a kind names a function of a package."""
    return len(kind) <= _NAME_CHARS_MAX and _FACTORY.fullmatch(kind) is not None


def _unknown_kind(kind: str) -> str:
    if kind.startswith(MODULE):
        return f"must name a function of a package, as module:mypackage.build; it is {_short(kind)}"
    near = difflib.get_close_matches(kind, KINDS, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"must be one of {', '.join(KINDS)} or module:PKG.NAME, it is {_short(kind)}{hint}"


def _foreign_settings(model: ModelSection) -> Iterator[Problem]:
    """Settings that the kind leaves undone: who wrote them means another kind."""
    plain = ModelSection()
    if model.size:
        yield Problem(
            "model.size",
            f"must be one of {', '.join(SIZES)} with model.kind transformer, it is "
            f"{_short(model.size)} with {_short(model.kind)}",
            "Other kinds have their sizes by number, or in a config.",
        )
    for key in _ONLY_TRANSFORMER:
        if model.kind != "transformer" and getattr(model, key) != getattr(plain, key):
            yield Problem(
                f"model.{key}",
                f"must be left out with model.kind {model.kind}",
                "It is a setting of kind transformer.",
            )
    if model.config and model.kind != "huggingface":
        yield Problem(
            "model.config",
            f"must be left out with model.kind {model.kind}",
            'It is for kind = "huggingface".',
        )


def _config_problems(model: ModelSection) -> Iterator[Problem]:
    reason = 'It is what AutoConfig saves: {"model_type": "llama", "vocab_size": 32000, ...}.'
    said = described(model.config)
    if said is None:
        yield Problem(
            "model.config",
            "must be the path of a model's config.json of at most "
            f"{CONFIG_BYTES_MAX} bytes with a model_type, or of the folder with it",
            reason,
        )
        return
    inner = said.get("text_config")
    sizes = [one.get("vocab_size") for one in (said, inner) if isinstance(one, dict)]
    found = model.vocabulary or next((size for size in sizes if size is not None), None)
    if any(isinstance(count, int) and count > LAYERS_MAX for count in _layers(said)):
        yield Problem("model.config", f"must say at most {LAYERS_MAX} layers")
    if not isinstance(found, int) or not 1 <= found <= _VOCABULARY_MAX:
        yield Problem("model.config", f"must say a vocab_size of 1 to {_VOCABULARY_MAX}", reason)
    elif model.vocabulary and model.vocabulary not in sizes:
        yield Problem(
            "model.vocabulary",
            f"must be left out or the vocab_size of model.config, it is {model.vocabulary}",
        )


def _layers(said: dict[str, Any]) -> Iterator[Any]:
    """All that a config says of layers, whatever it calls them: n_layer, decoder_layers."""
    waiting: list[tuple[str, Any]] = [*said.items()]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.items()
        elif "layer" in key:
            yield value


def described(text: str) -> dict[str, Any] | None:
    """A model's config as JSON, or None if it is not one."""
    if len(text) > CONFIG_BYTES_MAX:
        return None
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("model_type"), str):
        return None
    return said


def _short(text: str) -> str:
    return cleaned(text[:_NAME_CHARS_MAX]) or "empty"
