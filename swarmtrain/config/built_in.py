"""Layouts of the built-in models, worked out from [model] without building them.

The coordinator has no torch, and a run file is judged before there is a model. The names and shapes
of each kind are those of its module in `models`; a test holds the two together. A new kind that is
known without torch is one more row of `_KINDS` and that module.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from swarmtrain.config.settings import BYTES, ModelSection, RunConfig

_BYTES = 256
_MLP_RATIO = 4
_MLP_STEP = 64
_SIZE_MAX = 1_000_000

LAYERS_MAX = 2_000
"""Bound for a model that a config.json describes: no model has more, and these can be counted."""

ParameterFacts = tuple[str, tuple[int, ...], str]
"""A parameter's name, sizes of its axes, and dtype without torch's prefix."""

_Shapes = Iterator[tuple[str, tuple[int, ...]]]

SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "tiny": {"layers": 4, "width": 128, "heads": 4, "context": 128},
        "10M": {"layers": 6, "width": 384, "heads": 6, "context": 256},
        "50M": {"layers": 8, "width": 512, "heads": 8, "context": 512},
        "124M": {"layers": 12, "width": 768, "heads": 12, "context": 1024},
        "350M": {"layers": 24, "width": 1024, "heads": 16, "context": 1024},
    }
)
"""Settings of [model] by the name of a size. 10M is named by its parameters with bytes, the larger
ones by those with the 50 257 tokens of GPT-2, whose small and medium ones have these layers."""


_UNGATED = frozenset(
    {"gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "falcon", "phi"}
)
"""Model types of the transformers library whose feed-forward part has two matrices, not three."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Facts of one kind.

    Attributes:
        block: name and shape of each parameter of a layer, in their order.
        kept: values of one token that wait in a layer for its backward pass.
        is_tied: the head has no parameters of its own.
    """

    block: Callable[[ModelSection], _Shapes]
    kept: Callable[[ModelSection], int]
    is_tied: Callable[[ModelSection], bool]


def vocabulary_of(config: RunConfig) -> int:
    """Tokens that the run's model knows: labels are whole numbers from 0 to below it."""
    return tokens_of(config.model)


def tokens_of(model: ModelSection) -> int:
    """Return `vocabulary_of` by [model] alone."""
    if model.vocabulary or not model.config:
        return model.vocabulary or _BYTES
    said = json.loads(model.config)
    return int(said.get("vocab_size") or said.get("text_config", {}).get("vocab_size") or 0)


def counted(config: RunConfig) -> RunConfig | None:
    """The run file with a model whose costs are known: its own; about, where a config.json says the
    sizes, a transformer of these; None of a model that peers or packages bring."""
    if config.model.is_counted:
        return config
    if config.model.kind != "huggingface":
        return None
    said = json.loads(config.model.config)
    inner_said = said.get("text_config")
    said = inner_said if isinstance(inner_said, dict) else said

    def size(*keys: str) -> int:
        found = next((said[key] for key in keys if isinstance(said.get(key), int)), 0)
        return max(0, min(int(found), _SIZE_MAX))

    width, heads = size("hidden_size", "n_embd"), size("num_attention_heads", "n_head")
    layers = min(LAYERS_MAX, size("num_hidden_layers", "n_layer"))
    if not (width and heads and layers):
        return None
    is_gated = said.get("model_type") not in _UNGATED
    inner = size("intermediate_size", "n_inner", "ffn_dim") or 4 * width
    model = ModelSection(
        kind="transformer", layers=layers, width=width, heads=heads,
        kv_heads=size("num_key_value_heads"), mlp_width=inner if is_gated else 2 * inner // 3,
        tied=bool(said.get("tie_word_embeddings", not is_gated)),
        context=config.model.context, vocabulary=tokens_of(config.model),
    )  # fmt: skip
    return msgspec.structs.replace(config, model=model)


def head_width_of(model: ModelSection) -> int:
    """Values that a head of attention looks at in each place."""
    return model.width // model.heads


def kv_heads_of(model: ModelSection) -> int:
    """Heads of keys and values of a transformer."""
    return model.kv_heads or model.heads


def mlp_width_of(model: ModelSection) -> int:
    """Inner width of a transformer's feed-forward part. With three matrices instead of two, 8/3
    widths are as many parameters as four (SwiGLU, arXiv 2002.05202)."""
    return model.mlp_width or -(-8 * model.width // (3 * _MLP_STEP)) * _MLP_STEP


def is_tied(model: ModelSection) -> bool:
    """Return True if head and embedding of a counted model are one table."""
    return model.is_counted and _KINDS[model.kind].is_tied(model)


def kept_values(model: ModelSection) -> int:
    """Values of one token that wait in each layer of a counted model for its backward pass."""
    return _KINDS[model.kind].kept(model)


def width_of(config: RunConfig) -> int:
    """Bytes of one token id in pieces of this run's text."""
    most = _BYTES if config.data.tokenizer == BYTES else vocabulary_of(config)
    return 1 if most <= 1 << 8 else 2 if most <= 1 << 16 else 4


def layout_digest(parameters: Iterable[ParameterFacts]) -> bytes:
    """SHA-256 (32 bytes) of names, shapes and dtypes in order: two models may exchange if and only
    if theirs are equal."""
    described = [[name, list(shape), dtype] for name, shape, dtype in parameters]
    return hashlib.sha256(json.dumps(described, separators=(",", ":")).encode()).digest()


def built_in_parameters(model: ModelSection) -> tuple[ParameterFacts, ...]:
    """Parameters of the model that the section describes, in order; none where it is not counted:
    one that peers bring, or that a library makes."""
    if not model.is_counted:
        return ()
    kind, width, tokens = _KINDS[model.kind], model.width, tokens_of(model)
    shapes: list[tuple[str, tuple[int, ...]]] = [("embedding", (tokens, width))]
    for index in range(model.layers):
        shapes += [(f"blocks.{index}.{name}", shape) for name, shape in kind.block(model)]
    shapes.append(("norm", (width,)))
    if not kind.is_tied(model):
        shapes.append(("head", (tokens, width)))
    return tuple((f"{name}.weight", shape, "float32") for name, shape in shapes)


def built_in_blocks(model: ModelSection) -> dict[str, tuple[ParameterFacts, ...]]:
    """Return them by the blocks that can be served apart; the last norm is with the head."""
    blocks: dict[str, list[ParameterFacts]] = {}
    for facts in built_in_parameters(model):
        first, second, *_ = facts[0].split(".")
        name = f"{first}.{second}" if first == "blocks" else "head" if first == "norm" else first
        blocks.setdefault(name, []).append(facts)
    return {name: tuple(parameters) for name, parameters in blocks.items()}


def num_values_of(parameters: Iterable[ParameterFacts]) -> int:
    """Values of all parameters together, without padding."""
    return sum(math.prod(shape) for _, shape, _ in parameters)


def _byte_block(model: ModelSection) -> _Shapes:
    width, inner = model.width, _MLP_RATIO * model.width
    yield "attention_norm", (width,)
    yield "query_key_value", (3 * width, width)
    yield "attention_out", (width, width)
    yield "mlp_norm", (width,)
    yield "mlp_up", (inner, width)
    yield "mlp_down", (width, inner)


def _llama_block(model: ModelSection) -> _Shapes:
    width, inner = model.width, mlp_width_of(model)
    keys = kv_heads_of(model) * head_width_of(model)
    yield "attention_norm", (width,)
    yield "query", (width, width)
    yield "key", (keys, width)
    yield "value", (keys, width)
    yield "attention_out", (width, width)
    yield "mlp_norm", (width,)
    yield "mlp_gate", (inner, width)
    yield "mlp_up", (inner, width)
    yield "mlp_down", (width, inner)


def _byte_kept(model: ModelSection) -> int:
    """In widths 19: inputs of both norms, what they give, the query, key and value, these turned,
    and the inner part of the feed-forward layer twice."""
    return 19 * model.width


def _llama_kept(model: ModelSection) -> int:
    """Inputs of both norms, what they give, the query turned, what the heads mix and what that
    becomes; key and value, and the key turned; and the inner part of the feed-forward layer as
    gate, gate passed, up, and their product."""
    return 8 * model.width + 3 * kv_heads_of(model) * head_width_of(model) + 4 * mlp_width_of(model)


_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "byte-transformer": _Kind(_byte_block, _byte_kept, lambda model: False),
        "transformer": _Kind(_llama_block, _llama_kept, lambda model: model.tied),
    }
)
