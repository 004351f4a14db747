"""Checks of [pipeline], alone and beside the other sections, as far as the model is known."""

import re
from collections.abc import Iterator

from swarmtrain.config.built_in import built_in_blocks, is_tied
from swarmtrain.config.fragments import uncut
from swarmtrain.config.problem import Problem
from swarmtrain.config.settings import STALE_STEPS, TURN_ANGLE, PipelineSection, RunConfig
from swarmtrain.config.stages import hop_bytes, misfit, rank_of, stage_parameters
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain_transport import limits

_DIGEST = re.compile("[0-9a-f]{64}")
_FORM = re.compile("int8|float16|none|subspace-[1-9][0-9]{0,4}")


def refuse_stages(config: RunConfig) -> None:
    """Refuse a run in stages, which would be trained in one piece.

    Raises:
        UserError: SWT-E605.
    """
    if config.pipeline.num_stages > 1:
        raise UserError(
            "SWT-E605",
            f"The run {config.run.name} has its model in {config.pipeline.num_stages} stages.",
            "A training loop of one's own has the model in one piece.",
            "Use `swarmtrain join`, or swarmtrain.join_stages for a model of your own, or leave the"
            " section [pipeline] out of the run file.",
        )


def pipeline_problems(config: RunConfig) -> Iterator[Problem]:
    """Find what cannot work."""
    pipeline = config.pipeline
    if pipeline == PipelineSection():
        if config.model.digest:
            yield Problem(
                "model.digest",
                "must be left out where the model is in one piece",
                "It names a model that peers bring in stages.",
            )
        return
    if not 2 <= pipeline.num_stages <= limits.CELL_PEERS_MAX:
        yield Problem(
            "pipeline.stages",
            f"must be from 2 to {limits.CELL_PEERS_MAX}, it is {pipeline.num_stages}",
            "A model in one piece has no pipeline, and every stage needs a peer.",
        )
        return
    yield from _own_problems(config)
    yield from _visit_problems(config)
    yield from activations_problems(config)
    yield from stage_strategy_problems(config)
    if config.inner.batch % pipeline.micro_batch:
        yield Problem(
            "inner.batch",
            f"must be a multiple of pipeline.micro_batch ({pipeline.micro_batch}), it is "
            f"{config.inner.batch}",
            "A step is made of whole micro-batches.",
        )
    if pipeline.schedule == "flush" and pipeline.max_stale_steps != STALE_STEPS:
        yield Problem(
            "pipeline.max_stale_steps",
            "must be left out with pipeline.schedule flush",
            "No step is made while micro-batches of it are under way, so no gradient grows old.",
        )
    if config.model.is_counted:
        yield from _built_in_problems(config)


def _visit_problems(config: RunConfig) -> Iterator[Problem]:
    """Check how many stages a micro-batch visits."""
    visit, stages = config.pipeline.visit, config.pipeline.num_stages
    if visit and not 3 <= visit < stages:
        span = f"from 3 to {stages - 1}, or left out" if stages > 3 else "left out"
        yield Problem(
            "pipeline.visit",
            f"must be {span} with {stages} stages, it is {visit}",
            "A route has the first stage, the last one and some of those between; without it, all.",
        )


def activations_problems(config: RunConfig) -> Iterator[Problem]:
    """Check the form of what goes between two stages, and whether the model can have it."""
    form, model, key = config.pipeline.activations, config.model, "pipeline.activations"
    if not _FORM.fullmatch(form):
        yield Problem(
            key,
            f"must be int8, float16, none or subspace-K, it is {cleaned(form) or 'empty'}",
            "K is how many values of a token go from stage to stage, as in subspace-64.",
        )
    elif rank_of(form) and not model.is_counted:
        yield Problem(
            key,
            f"must be int8, float16 or none with model.kind {model.kind}, it is {form}",
            "Whatever writes to the residual stream is held in the subspace, and nobody knows that "
            "of such a model; positions that are learned would leave it. byte-transformer and "
            "transformer can have it.",
        )
    elif rank_of(form) >= model.width:
        yield Problem(
            key,
            f"must have fewer values than model.width ({model.width}), it is {form}",
            "A subspace of the whole width saves nothing: take int8.",
        )
    elif rank_of(form) and model.initial:
        yield Problem(
            "model.initial",
            f"must be left out with pipeline.activations {form}",
            "Weights that were trained without the subspace do not lie in it.",
        )
    elif config.pipeline.turn_rounds and not rank_of(form):
        yield Problem(
            "pipeline.turn_rounds",
            f"must be left out with pipeline.activations {form}",
            "What goes between stages has all channels then: there is no subspace to turn.",
        )
    elif config.pipeline.turn_rounds and config.facts.is_delayed(config.outer.delay_steps):
        yield Problem(
            "pipeline.turn_rounds",
            f"must be left out with outer.strategy {config.outer.strategy}",
            "Work that is under way while the subspace turns would stay behind. Take diloco.",
        )
    elif config.pipeline.turn_angle != TURN_ANGLE and not config.pipeline.turn_rounds:
        yield Problem(
            "pipeline.turn_angle",
            "must be left out without pipeline.turn_rounds",
            "The subspace stays where it is.",
        )


def _own_problems(config: RunConfig) -> Iterator[Problem]:
    """Check what says which model in stages peers bring, or that they bring none."""
    model, is_custom = config.model, config.model.kind == "custom"
    if not is_custom and not model.is_counted:
        yield Problem(
            "pipeline.stages",
            f"must be left out with model.kind {model.kind}",
            "Such a model is in one piece. One of your own is cut by swarmtrain.StagedModel.",
        )
    if is_tied(model):
        yield Problem(
            "model.tied",
            "must be false where the model is in stages, it is true",
            "The first stage has the embedding and the last one the head: each trains its own.",
        )
    if not is_custom and model.digest:
        yield Problem(
            "model.digest",
            f"must be left out with model.kind {model.kind}",
            "It names a model that peers bring.",
        )
    elif is_custom and not _DIGEST.fullmatch(model.digest):
        yield Problem(
            "model.digest",
            "must be 64 hex digits where peers bring a model in stages, it is "
            + (cleaned(model.digest) or "empty"),
            "Peers with another model or other blocks are refused by it. Print that of your "
            "swarmtrain.StagedModel: print(model.digest).",
        )
    if is_custom != (config.data.source == "own"):
        fitting = "own" if is_custom else "python-stdlib or a path"
        yield Problem(
            "data.source",
            f"must be {fitting} with model.kind {model.kind} in stages, it is {config.data.source}",
            "Peers of a built-in model train on the coordinator's text, those who bring a model on "
            "data of their own.",
        )


def stage_strategy_problems(config: RunConfig) -> Iterator[Problem]:
    """Find what the strategy cannot do where the model is in stages."""
    facts, outer, name = config.facts, config.outer, config.outer.strategy
    if "buffer" in facts.planned:
        yield Problem(
            "outer.strategy",
            f"must be one whose rounds are common where the model is in stages, it is {name}",
            "A stage's round is closed with the others'. Take diloco, streaming, eager, co2, "
            "sparseloco or noloco.",
        )
    elif facts.kind is not None and not facts.fits_stages:
        yield Problem(
            "outer.strategy",
            f"must be one with inner steps where the model is in stages, it is {name}",
            "Stages make their steps at a pace of their own, and whatever is done after every step "
            "would hold up all of them; losses beside the weights are a whole model's. Take "
            "diloco, streaming, eager, co2, sparseloco or noloco.",
        )
    elif config.ops_at_once > 1:
        yield Problem(
            "outer.delay_steps",
            f"must not be above outer.inner_steps / outer.fragments ({config.steps_per_round}) "
            f"where the model is in stages, it is {outer.delay_steps}",
            "A round is closed when the exchanges of the one before it have their outcome.",
        )
    elif config.pipeline.schedule == "flush" and facts.is_delayed(outer.delay_steps):
        later = f" and outer.delay_steps {outer.delay_steps}" if outer.delay_steps else ""
        yield Problem(
            "pipeline.schedule",
            f"must be free with outer.strategy {name}{later}, it is flush",
            "A flushed round begins when the last one's exchanges have their outcome, so no step "
            "is made beside them.",
        )


def _built_in_problems(config: RunConfig) -> Iterator[Problem]:
    """Check against the model."""
    model, pipeline = config.model, config.pipeline
    if text := misfit(list(built_in_blocks(model)), pipeline.stages):
        yield Problem("pipeline.stages", text, "A stage is made of whole blocks.")
        return
    yield from _frame_problems(config)
    yield from stage_fragment_problems(config)


def _frame_problems(config: RunConfig) -> Iterator[Problem]:
    """Find what goes between two stages too large for a frame."""
    model, pipeline = config.model, config.pipeline
    room = limits.HOP_PAYLOAD_BYTES_MAX
    bytes_max = f"one frame of {limits.FRAME_BYTES_MAX >> 20} MiB"
    example_bytes = hop_bytes(model.context, model, pipeline.activations)
    if example_bytes > room:
        yield Problem(
            "model.context",
            f"must be at most {room // hop_bytes(1, model, pipeline.activations)} with this "
            f"width and pipeline.activations {pipeline.activations}, it is {model.context}",
            f"A stage sends the next one all values of an example in {bytes_max}.",
        )
    elif pipeline.micro_batch * example_bytes > room:
        yield Problem(
            "pipeline.micro_batch",
            f"must be at most {room // example_bytes} with this model and pipeline.activations "
            f"{pipeline.activations}, it is {pipeline.micro_batch}",
            f"A stage sends the next one micro_batch x model.context x model.width values in "
            f"{bytes_max}.",
        )


def stage_fragment_problems(config: RunConfig) -> Iterator[Problem]:
    """Find a stage that has too few layers for the fragments that each stage is exchanged in."""
    for stage, parameters in enumerate(stage_parameters(config)):
        if error := uncut(config, parameters):
            yield Problem(
                "outer.fragments",
                f"must be fewer for stage {stage} of this model, it is {config.outer.fragments}: "
                f"{error}",
                "Each stage is exchanged apart, and in as many fragments as every other.",
            )
            return
