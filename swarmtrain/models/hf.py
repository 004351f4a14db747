"""Models and the transformers library: a model made by its config, and weights under its names.

`kind = "huggingface"` trains any causal language model that the library knows by its config.json.
A `kind = "transformer"` was shaped so that `LlamaForCausalLM` computes the same, parameter by
parameter. Nothing is downloaded, no code comes with a config, and the library is loaded only where
a model is made by it: names are mapped without.

Not here: files (`export`), and weights to begin with, which `swarmtrain up --from` brings.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from swarmtrain.config.built_in import head_width_of, kv_heads_of, mlp_width_of, vocabulary_of
from swarmtrain.config.settings import ModelSection, RunConfig
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain.models.transformer import NORM_EPS
from swarmtrain.models.weights_file import Shapes

LLAMA_NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens",
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp_gate": "mlp.gate_proj",
    "mlp_up": "mlp.up_proj",
    "mlp_down": "mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}
"""Modules of `models.transformer` by those of `LlamaForCausalLM`; ``blocks.3`` is
``model.layers.3``."""

T = TypeVar("T")

BUFFER_BYTES_MAX = 256 << 20
"""Tables beside the weights, of positions and masks: a model has them whatever its weights are."""

_OWN_NAMES = {theirs: own for own, theirs in LLAMA_NAMES.items()}

_UNSAFE = (
    "auto_map", "quantization_config", "attn_implementation", "experts_implementation",
    "name_or_path",
)  # fmt: skip
"""Keys of a config that name code, kernels or places, or make weights of another type."""


def hf_export(
    config: RunConfig, weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config.json and the weights as the transformers library loads them.

    Args:
        config: the run file.
        weights: weights by the names of the run's model.

    Raises:
        ValueError: the library has no such model; in plain words.
    """
    model = config.model
    if model.kind == "huggingface":
        return json.loads(model.config), dict(weights)
    if model.kind != "transformer" or model.norm != "rms":
        kind = model.kind if model.kind != "transformer" else 'transformer with norm = "layer"'
        raise ValueError(f"the transformers library has no model that computes as {kind} does")
    return llama_config(config), {_to_llama(name): values for name, values in weights.items()}


def hf_import(config: RunConfig, weights: Mapping[str, T]) -> dict[str, T]:
    """Weights of such a file, or what is known of them, by the names of the run's model; a tied
    head is left out.

    Names that are not Llama's stay as they are.
    """
    if config.model.kind != "transformer":
        return dict(weights)
    named = {_from_llama(name): values for name, values in weights.items()}
    if config.model.tied:
        named.pop("head.weight", None)
    return named


def llama_config(config: RunConfig) -> dict[str, Any]:
    """The config.json with which `LlamaForCausalLM` is this run's transformer."""
    model = config.model
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary_of(config),
        "hidden_size": model.width,
        "intermediate_size": mlp_width_of(model),
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": kv_heads_of(model),
        "head_dim": head_width_of(model),
        "hidden_act": "silu",
        "max_position_embeddings": model.context,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": model.rotary_base,
        "tie_word_embeddings": model.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "float32",
    }


def build_model(section: ModelSection, seed: int) -> nn.Module:
    """The causal language model of a section's config, with the library's fresh weights.

    Raises:
        UserError: SWT-E102, the library is not installed; E621, it makes no such model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Logits(_made(section))


def shapes_of(section: ModelSection, weights: Shapes) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters that `build_model` would make, without room for them.

    Args:
        section: section of a run file that a stranger may have written.
        weights: shapes of its weights: it can have neither far more parameters nor tables that are
            far larger.

    Raises:
        UserError: as `build_model`.
    """
    left = 2 * len(weights) + 16  # a tied one is first made and then left

    def count(*registered: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"it has more than the {len(weights)} parameters that are here")

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            model = _made(section)
    finally:
        hook.remove()
    tables = sum(one.numel() * one.element_size() for one in model.buffers())
    values = sum(map(math.prod, weights.values()))
    if tables > 4 * values + BUFFER_BYTES_MAX:
        raise _makes_none(section, f"its tables take {tables} bytes")
    return {name: tuple(one.shape) for name, one in Logits(model).named_parameters()}


def _made(section: ModelSection) -> nn.Module:
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise UserError(
            "SWT-E102",
            "This run's model is one of the transformers library, which is not installed here.",
            "Only runs of kind huggingface need it.",
            "Run: pip install 'swarmtrain[hf]'",
        ) from error
    said: dict[str, Any] = {
        key: value
        for key, value in json.loads(section.config).items()
        if not key.startswith("_") and key not in _UNSAFE
    }
    name = str(said.pop("model_type"))
    try:
        described = AutoConfig.for_model(name, **said)
        longest = getattr(described.get_text_config(), "max_position_embeddings", None)
        if longest is not None and longest < section.context:
            raise ValueError(
                f"it takes at most {longest} tokens, and [model] context is {section.context}"
            )
        described.use_cache = False
        model: nn.Module = AutoModelForCausalLM.from_config(
            described, trust_remote_code=False, dtype=torch.float32
        )
    except Exception as error:  # whatever a library makes of a stranger's config
        raise _makes_none(section, str(error)) from error
    return model


def _makes_none(section: ModelSection, why: str) -> UserError:
    name = cleaned(str(json.loads(section.config)["model_type"]))
    return UserError(
        "SWT-E621",
        f"The transformers library makes no language model of the run's config "
        f"({name}): {cleaned(why)}",
        "A run of kind huggingface trains what AutoModelForCausalLM.from_config makes.",
        "The organiser names another config.json; or this machine needs another version of "
        "the library.",
    )


class Logits(nn.Module):
    """A model whose forward gives an object with ``logits``, as one that gives these.

    Its parameters have the names that they have in the model itself.

    Args:
        model: takes token ids, (B, T), by position.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._models = (model,)  # not as a part, which would lengthen all names
        for name, part in model.named_children():
            self.add_module(name, part)
        for name, parameter in model.named_parameters(recurse=False):
            self.register_parameter(name, parameter)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """(B, T) int64 -> (B, T, V) logits."""
        logits_BTV: Tensor = self._models[0](tokens_BT).logits
        return logits_BTV

    def train(self, mode: bool = True) -> "Logits":
        """Set training mode, in the model itself too."""
        super().train(mode)
        self._models[0].train(mode)
        return self


def _to_llama(name: str) -> str:
    layer = re.fullmatch(r"blocks\.(\d+)\.(\w+)\.weight", name)
    if layer is not None:
        return f"model.layers.{layer[1]}.{LLAMA_NAMES[layer[2]]}.weight"
    return f"{LLAMA_NAMES[name.removesuffix('.weight')]}.weight"


def _from_llama(name: str) -> str:
    layer = re.fullmatch(r"model\.layers\.(\d+)\.([\w.]+)\.weight", name)
    if layer is not None and layer[2] in _OWN_NAMES:
        return f"blocks.{layer[1]}.{_OWN_NAMES[layer[2]]}.weight"
    own = _OWN_NAMES.get(name.removesuffix(".weight"))
    return f"{own}.weight" if own is not None else name
