"""The cut of a model into stages by what its blocks cost.

The coordinator has no torch and cuts as everybody does: this is arithmetic on names and sizes. A
stage is as dear as the scarcer of what it takes, time or memory. Both are counted as shares of the
whole model, so embedding and head, which take much of the one and little of the other, count as
they weigh. Not here: costs of models that peers bring (`pipeline.cut`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swarmtrain.config.built_in import (
    ParameterFacts,
    built_in_blocks,
    is_tied,
    layout_digest,
    num_values_of,
    tokens_of,
)
from swarmtrain.config.settings import ModelSection, RunConfig
from swarmtrain.foundation.errors import cleaned

_SCALE_BLOCK_MIN = 16
"""Values of int8 that have a scale of two bytes of their own, at the fewest."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One block, or several.

    Attributes:
        flops: cost of one forward pass over the same tokens for all blocks. A backward pass and its
            recomputation takes three times as many, of every block.
    """

    flops: float
    num_values: int


def built_in_costs(model: ModelSection) -> dict[str, Cost]:
    """Cost of each block of a counted model, for one token.

    A matrix costs two operations per parameter, attention over half of the context on average
    four per token and value: for the byte transformer 24 C^2 + 2 T C per layer, 2 V C for the head,
    a copy for the embedding.
    """
    attention = 2 * model.context * model.width
    costs = {}
    for name, parameters in built_in_blocks(model).items():
        matrices = [facts for facts in parameters if len(facts[1]) == 2 and name != "embedding"]
        flops = 2 * num_values_of(matrices) + attention * name.startswith("blocks.")
        if name == "head" and is_tied(model):
            flops += 2 * tokens_of(model) * model.width
        costs[name] = Cost(flops, num_values_of(parameters))
    return costs


def misfit(names: Sequence[str], stages: int | Sequence[str]) -> str:
    """The rest of a sentence about stages that these blocks cannot be cut into; "" if they can."""
    if isinstance(stages, int):
        if 1 <= stages <= len(names):
            return ""
        return f"must be from 1 to {len(names)}, the blocks of this model; it is {stages}"
    known = [name for name in names if name in stages]
    if not stages or stages[0] != names[0]:
        found = f"it begins with {cleaned(stages[0])}" if stages else "it is empty"
        return f"must begin with {names[0]}, the first block; {found}"
    if unknown := [name for name in stages if name not in names]:
        return f"must name blocks of this model, not {cleaned(unknown[0])}: {_listed(names)}"
    return "" if known == list(stages) else "must name blocks once each, in their order"


def cut(costs: Mapping[str, Cost], stages: int | Sequence[str]) -> tuple[range, ...]:
    """Cut blocks into stages.

    Args:
        costs: costs by name, in the order in which the blocks are called.
        stages: number of stages, or the first block of each.

    Returns:
        The blocks of each stage, by their places, of the cut into so many stages whose dearest
        stage is cheapest, and of several such cuts one with stages of even cost.

    Raises:
        ValueError: there is no such cut; `misfit` says why.
    """
    if problem := misfit(list(costs), stages):
        raise ValueError(f"stages {problem}")
    if not isinstance(stages, int):
        places = [list(costs).index(name) for name in stages]
        return tuple(map(range, places, [*places[1:], len(costs)]))
    return _even(_weights(tuple(costs.values())), stages)


def stage_cut(config: RunConfig) -> tuple[range, ...]:
    """The blocks of each stage of a run's built-in model, the same on every machine.

    Raises:
        ValueError: peers bring the model (`pipeline.cut` cuts it), or there is no such cut.
    """
    return cut(built_in_costs(config.model), config.pipeline.stages)


def stage_layouts(config: RunConfig) -> tuple[bytes, ...]:
    """Digest of each stage's layout; b"" for each where the model is not counted. A model in one
    piece is one stage."""
    if not config.model.is_counted:
        return (b"",) * config.pipeline.num_stages
    return tuple(map(layout_digest, stage_parameters(config)))


def stage_parameters(config: RunConfig) -> tuple[tuple[ParameterFacts, ...], ...]:
    """Parameters of each stage of the built-in model, in the order of the unsplit one."""
    parts = list(built_in_blocks(config.model).values())
    return tuple(
        tuple(facts for index in blocks for facts in parts[index]) for blocks in stage_cut(config)
    )


def _weights(costs: Sequence[Cost]) -> tuple[tuple[float, float], ...]:
    """(share of time, share of memory) of each block."""
    flops = sum(cost.flops for cost in costs) or 1
    num_values = sum(cost.num_values for cost in costs) or 1
    return tuple((cost.flops / flops, cost.num_values / num_values) for cost in costs)


def _even(weights: Sequence[tuple[float, float]], num_stages: int) -> tuple[range, ...]:
    """Dynamic programming over the last stage of every beginning of the model.

    A stage that grows backwards grows dearer; beyond the best cut so far it need not be looked at.
    """
    count = len(weights)
    best = {(0, 0): (0.0, 0.0, 0)}  # (stages, blocks) -> dearest, sum of squares, last cut
    for stage in range(1, num_stages + 1):
        for stop in range(stage, count - (num_stages - stage) + 1):
            found = (math.inf, math.inf, 0)
            seconds = memory = 0.0
            for start in range(stop - 1, stage - 2, -1):
                seconds, memory = seconds + weights[start][0], memory + weights[start][1]
                cost = max(seconds, memory)
                if cost > found[0]:
                    break
                before = best.get((stage - 1, start))
                if before is not None:
                    dearest, squares = max(before[0], cost), before[1] + cost * cost
                    found = min(found, (dearest, squares, start))
            best[stage, stop] = found
    stops = [count]
    for stage in range(num_stages, 0, -1):
        stops.insert(0, best[stage, stops[0]][2])
    return tuple(map(range, stops, stops[1:]))


def rank_of(activations: str) -> int:
    """Values of a token that go between two stages in this form; 0 for all of them."""
    name, _, rank = activations.partition("-")
    return int(rank) if name == "subspace" else 0


def hop_bytes(tokens: int, model: ModelSection, activations: str) -> int:
    """Bytes that so many tokens take on their way to the next stage, at most."""
    rank = rank_of(activations)
    width = rank or model.width
    if not (rank or activations == "int8"):
        return tokens * width * (2 if activations == "float16" else 4)
    id_bytes = (1 if tokens_of(model) <= 1 << 8 else 4) if rank else 0
    scales = tokens * max(1, width // _SCALE_BLOCK_MIN) + 1
    return tokens * (width + id_bytes) + 2 * scales


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:3], "...", names[-1]] if len(names) > 5 else names
    return ", ".join(shown)
