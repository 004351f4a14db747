"""Costs of the stages of a run file's built-in model: operations, memory, bytes between stages.

One count for the coordinator, which gives joiners their stages by it, for the door, which refuses
who cannot hold what it asks for, and for forecasts. The coordinator has no torch, and neither has
this file. Operations, activations and bytes on the way are counted; what a process and a parameter
take besides is measured.

Not here: models that peers or libraries bring, of which nothing is known, so their stages are
taken to be alike.
"""

from swarmtrain.config.built_in import counted, kept_values, num_values_of, vocabulary_of
from swarmtrain.config.settings import RunConfig
from swarmtrain.config.stages import (
    built_in_costs,
    hop_bytes,
    rank_of,
    stage_cut,
    stage_parameters,
)
from swarmtrain.console.units import human_bytes
from swarmtrain_optimizers.strategies.facts import StrategyFacts
from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.coordinator.assignment import StageNeed, memory_of
from swarmtrain_transport.pipeline.wire.paths import Paths

PROCESS_BYTES = 400_000_000
"""Memory of a peer with next to no model: Python, torch and network, measured (VmHWM, Linux)."""

_TRAINED_BYTES = 8
_MOMENTS_BYTES = 8
"""Bytes per parameter of weight and gradient, and of two moments of AdamW, which a strategy that
takes gradients has in its own state. Beside them a peer holds the strategy's `peak_vectors`: of
diloco anchor and outer momentum, the weights of now, what was given and what came."""

_FREED_BYTES = 12
_FREED_VALUES = 15_000_000
"""Bytes that the C library keeps besides, of so many parameters at most: measured as above with all
that a pass takes a parameter of diloco takes 37 to 47 in a stage of 5 to 15 million, 31 to 34 in
one of 44 or 79, 30 in one piece of 133 or 237 (benchmarks/pipelines/memory.py)."""

_HEAD_VALUES = 3
"""Bytes of the head per token that there is: its logit, its softmax, and the gradient."""

_SLOTS_PER_STAGE = 2
"""A micro-batch is under way there and back, and meanwhile each stage works on another one."""


def slots_of(config: RunConfig) -> int:
    """Micro-batches of others on their way that a peer holds at a time at least, beside the one
    that it computes; 0 of a model in one piece. More where the way is long."""
    stages = config.pipeline.num_stages
    return _SLOTS_PER_STAGE * stages if stages > 1 else 0


def most_slots_of(config: RunConfig) -> int:
    """Number of them that memory is reckoned for, however long the way is."""
    slots, known = slots_of(config), counted(config)
    hop = limits.HOP_PAYLOAD_BYTES_MAX if known is None else _hop_bytes(known)
    return min(limits.SLOTS_TIMES * slots, slots + limits.SLOTS_BYTES // (2 * hop))


def under_way_of(config: RunConfig, slots: int) -> int:
    """Own micro-batches that a source has on their way at a time, on average of all, where others
    have so many slots: those of one step at most, as each step in between makes the weights older
    that they were computed with."""
    step = config.inner.batch // max(1, config.pipeline.micro_batch)
    return min(slots, max(1, step))


def _hop_bytes(config: RunConfig) -> int:
    """Bytes of a micro-batch from stage to stage."""
    tokens = config.pipeline.micro_batch * config.model.context
    return hop_bytes(tokens, config.model, config.pipeline.activations)


def stage_needs(config: RunConfig) -> tuple[StageNeed, ...]:
    """Demands of each stage; a model in one piece is one stage, whose micro-batch is its batch."""
    num_stages = config.pipeline.num_stages
    paths, known = Paths(num_stages, config.pipeline.visit), counted(config)
    if known is None:
        return tuple(StageNeed(1.0, 0, 0, 0, 0, paths.share(at)) for at in range(num_stages))
    config = known
    model, costs = config.model, list(built_in_costs(config.model).values())
    examples = config.pipeline.micro_batch if num_stages > 1 else config.inner.batch
    tokens = examples * model.context
    passing = tokens // config.inner.accumulate  # of a model in stages that is 1
    hop = hop_bytes(tokens, model, config.pipeline.activations)
    rank = rank_of(config.pipeline.activations)
    fixed = vocabulary_of(config) * (model.width - rank) if rank else 0
    most = most_slots_of(config)
    needs: list[StageNeed] = []
    for blocks, parameters in zip(stage_cut(config), stage_parameters(config), strict=True):
        has_head = blocks.stop == len(costs)
        layers = len(blocks) - (blocks.start == 0) - has_head
        head_values = _HEAD_VALUES * vocabulary_of(config) * has_head
        values = passing * (_waiting(config, layers) + head_values)
        input_bytes = hop if blocks.start else 0
        own = limits.OWN_SPREAD * under_way_of(config, most) + limits.JUDGED_UNDER_WAY
        held = most if blocks.start else own
        needs.append(
            StageNeed(
                # Rows of an embedding are copied, which is no operation and takes time as well.
                flops=tokens * max(model.width, sum(costs[block].flops for block in blocks)),
                share=paths.share(len(needs)),
                kept_bytes=_kept_bytes(num_values_of(parameters), config.facts),
                pass_bytes=4 * (values + 2 * passing * model.width),  # input and output beside
                # Its input, which the gradient replaces, and the gradient of its output.
                entry_bytes=PROCESS_BYTES + fixed + held * ((input_bytes or 8 * tokens) + hop),
                input_bytes=input_bytes,
            )
        )
    return tuple(needs)


def _kept_bytes(num_values: int, facts: StrategyFacts) -> int:
    """Bytes of a stage while its peer holds most, but for those of a pass."""
    trained = _TRAINED_BYTES + _MOMENTS_BYTES * (not facts.takes_gradients)
    kept = int((trained + 4 * facts.peak_vectors) * num_values)
    return kept + _FREED_BYTES * min(num_values, _FREED_VALUES)


def _waiting(config: RunConfig, layers: int) -> int:
    """Values of one token that wait in so many layers for the backward pass."""
    kept = kept_values(config.model)
    if not config.inner.activation_checkpointing:
        return kept * layers
    return config.model.width * layers + kept * (layers > 0)


def span_words(span: range) -> str:
    """A span as people read it."""
    return f"stage {span[0]}" if len(span) == 1 else f"stages {span[0]} to {span[-1]}"


def serving_words(config: RunConfig, span: range, why: str = "") -> str:
    """A peer's stages, what of the model they are, and the reason, as people read it."""
    about = [f"of 0 to {config.pipeline.num_stages - 1}"]
    if config.model.is_counted:
        names, cut = list(built_in_costs(config.model)), stage_cut(config)
        first, last = names[cut[span[0]].start], names[cut[span[-1]].stop - 1]
        blocks = first if first == last else f"{first} to {last}"
        about += [blocks, f"about {human_bytes(memory_of(stage_needs(config), span))}"]
    said = f"serves {span_words(span)} ({'; '.join(about)})"
    return f"{said}: {why}" if why else said
