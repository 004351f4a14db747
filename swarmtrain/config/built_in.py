"""Layout of the built-in model, worked out from its section of the run file without building it.

The coordinator has no torch, and a run file is judged before there is a model. The names and shapes
are those of `models.byte_transformer`; a test holds the two together.
"""

import hashlib
import json
import math
from collections.abc import Iterable

from swarmtrain.config.settings import ModelSection, RunConfig

_BYTES = 256
_MLP_RATIO = 4

ParameterFacts = tuple[str, tuple[int, ...], str]
"""A parameter's name, sizes of its axes, and dtype without torch's prefix."""


def vocabulary_of(config: RunConfig) -> int:
    """Tokens that the run's model knows: labels are whole numbers from 0 to below it."""
    return config.model.vocabulary or _BYTES


def layout_digest(parameters: Iterable[ParameterFacts]) -> bytes:
    """SHA-256 (32 bytes) of names, shapes and dtypes in order: two models may exchange if and only
    if theirs are equal."""
    described = [[name, list(shape), dtype] for name, shape, dtype in parameters]
    return hashlib.sha256(json.dumps(described, separators=(",", ":")).encode()).digest()


def built_in_parameters(model: ModelSection) -> tuple[ParameterFacts, ...]:
    """Parameters of the model that the section describes, in order; none of a custom one."""
    if model.kind == "custom":
        return ()
    width, inner = model.width, _MLP_RATIO * model.width
    block = (
        ("attention_norm", (width,)),
        ("query_key_value", (3 * width, width)),
        ("attention_out", (width, width)),
        ("mlp_norm", (width,)),
        ("mlp_up", (inner, width)),
        ("mlp_down", (width, inner)),
    )
    shapes: list[tuple[str, tuple[int, ...]]] = [("embedding", (_BYTES, width))]
    for index in range(model.layers):
        shapes += [(f"blocks.{index}.{name}", shape) for name, shape in block]
    shapes += [("norm", (width,)), ("head", (_BYTES, width))]
    return tuple((f"{name}.weight", shape, "float32") for name, shape in shapes)


def built_in_blocks(model: ModelSection) -> dict[str, tuple[ParameterFacts, ...]]:
    """Those parameters by the blocks that can be served apart; the last norm is with the head."""
    blocks: dict[str, list[ParameterFacts]] = {}
    for facts in built_in_parameters(model):
        first, second, *_ = facts[0].split(".")
        name = f"{first}.{second}" if first == "blocks" else "head" if first == "norm" else first
        blocks.setdefault(name, []).append(facts)
    return {name: tuple(parameters) for name, parameters in blocks.items()}


def num_values_of(parameters: Iterable[ParameterFacts]) -> int:
    """Values of all parameters together, without padding."""
    return sum(math.prod(shape) for _, shape, _ in parameters)
