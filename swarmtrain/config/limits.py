"""Limits to what a run file may say: ranges as they are declared, then rules between settings.

The same rules hold for the organiser's file and for settings that a coordinator sends: a hostile
one must not make a peer allocate or wait without bound.
"""

import re
from collections.abc import Iterator

import msgspec

from swarmtrain.config.asked import strategy_problems
from swarmtrain.config.built_in import width_of
from swarmtrain.config.declared import extra, out_of_range
from swarmtrain.config.fragments import fragment_problems
from swarmtrain.config.inner import optimizer_problems
from swarmtrain.config.models import model_problems
from swarmtrain.config.pipeline import pipeline_problems
from swarmtrain.config.problem import Problem
from swarmtrain.config.settings import (
    BYTES,
    OWN_TEXT,
    GuardSection,
    InnerSection,
    OuterSection,
    RunConfig,
    facts_here,
)
from swarmtrain.config.values import loses_for_good, value_problems
from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_optimizers.strategies.facts import OpKind
from swarmtrain_transport import limits

OF_WHOLE_MODELS = ("accumulate", "precision", "activation_checkpointing")
"""Keys of `inner` that a model in stages leaves out."""


def first_problem(config: RunConfig) -> Problem | None:
    """The first setting that cannot work, in the order of this file, or None."""
    return next(_problems(config), None)


def _problems(config: RunConfig) -> Iterator[Problem]:
    yield from _name_problems(config.run.name)
    yield from _range_problems(config)
    yield from model_problems(config)
    yield from _relation_problems(config)


def _name_problems(name: str) -> Iterator[Problem]:
    pattern = rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{limits.NAME_CHARS_MAX - 1}}}"
    if re.fullmatch(pattern, name) is None:
        yield Problem(
            "run.name",
            f"must be 1 to {limits.NAME_CHARS_MAX} letters, digits, - or _, "
            "and begin with a letter or a digit",
            "It is part of every invite and names a directory.",
        )


def _range_problems(config: RunConfig) -> Iterator[Problem]:
    for section in msgspec.structs.fields(RunConfig):
        if not isinstance(section.type, type) or not issubclass(section.type, msgspec.Struct):
            continue
        values = getattr(config, section.name)
        for field in msgspec.structs.fields(section.type):
            if text := out_of_range(getattr(values, field.name), field.type):
                yield Problem(f"{section.name}.{field.name}", text, extra(field.type, "why"))


def warnings(config: RunConfig) -> tuple[str, ...]:
    """Return warnings: settings that will work, but hardly as they were meant."""
    return (*_idle_guard(config), *_lossy_codec(config))


def _idle_guard(config: RunConfig) -> tuple[str, ...]:
    if config.guard.spike or config.guard == GuardSection():
        return ()
    return ("[guard] does nothing without guard.spike: set it, as 1.5, if there shall be a guard.",)


def _lossy_codec(config: RunConfig) -> tuple[str, ...]:
    if facts_here(config.outer.strategy) is None or not loses_for_good(config):
        return ()
    remedy = (
        "Set outer.error_feedback = true."
        if "error_feedback" in config.facts.takes
        else f"{config.outer.strategy} has none: take int8 or none."
    )
    codec = config.exchange.codec
    return (f"exchange.codec {codec} without error feedback loses what it does not send. {remedy}",)


def _outer_problems(outer: OuterSection) -> Iterator[Problem]:
    rest = outer.inner_steps % outer.fragments
    if rest:
        yield Problem(
            "outer.inner_steps",
            f"must be a multiple of outer.fragments ({outer.fragments}), it is {outer.inner_steps}",
            "Fragments are exchanged at equal distances.",
        )
    if outer.delay_steps > outer.inner_steps:
        yield Problem(
            "outer.delay_steps",
            f"must not be above outer.inner_steps ({outer.inner_steps}), it is {outer.delay_steps}",
            "A fragment's result has its place before its next exchange is begun.",
        )


def _merge_problems(config: RunConfig) -> Iterator[Problem]:
    outer = config.outer
    if outer.budget and not outer.last_merge:
        yield Problem(
            "outer.budget",
            f"must be 0 without outer.last_merge, it is {outer.budget}",
            "Else every round ends with an exchange.",
        )
    elif outer.budget >= config.run.rounds and outer.last_merge:
        yield Problem(
            "outer.budget",
            f"must be below run.rounds ({config.run.rounds}), it is {outer.budget}",
            "Each round ends with one exchange at most, and the last round with the merge.",
        )
    if outer.when != "late" and not outer.budget:
        yield Problem(
            "outer.when",
            f"must be late where outer.budget is 0, it is {outer.when}",
            "There is no exchange that it could place.",
        )
    if outer.last_merge and config.pipeline.num_stages > 1:
        yield Problem(
            "outer.last_merge",
            "must be false where the model is in stages, it is true",
            "Peers of one stage send to all of the next, so none of them trains alone.",
        )


def _schedule_problems(config: RunConfig) -> Iterator[Problem]:
    inner = config.inner
    if inner.schedule == "tokens" and config.model.kind == "custom":
        yield Problem(
            "inner.schedule",
            "must be steps with model.kind custom, it is tokens",
            "A program that brings a model steps its learning rate too.",
        )
    if inner.schedule_tokens and inner.schedule != "tokens":
        yield Problem(
            "inner.schedule_tokens",
            f"must be 0 with inner.schedule {inner.schedule}, it is {inner.schedule_tokens}",
        )
    elif inner.schedule_tokens and config.schedule_steps <= inner.warmup_steps:
        yield Problem(
            "inner.schedule_tokens",
            f"must be above {inner.warmup_steps * config.tokens_per_step}, which warming up takes, "
            f"it is {inner.schedule_tokens}",
            "inner.warmup_steps x exchange.start_peers (a stage's part of them, where the model is "
            "in stages) x inner.batch x model.context.",
        )


def _computing_problems(config: RunConfig) -> Iterator[Problem]:
    inner = config.inner
    if inner.batch % inner.accumulate:
        yield Problem(
            "inner.accumulate",
            f"must divide inner.batch ({inner.batch}), it is {inner.accumulate}",
            "A batch goes through the model in equal parts.",
        )
    if inner.moments_every != InnerSection().moments_every and inner.optimizer != "accum_adamw":
        yield Problem(
            "inner.moments_every",
            f"must be left out with inner.optimizer {inner.optimizer}",
            "Its moments see every step's gradient.",
        )
    for key in OF_WHOLE_MODELS:
        if config.pipeline.num_stages > 1 and getattr(inner, key) != getattr(InnerSection(), key):
            yield Problem(
                f"inner.{key}",
                "must be left out where the model is in stages",
                "Stages compute in float32, by pipeline.micro_batch, and make activations again.",
            )


def _expert_problems(config: RunConfig) -> Iterator[Problem]:
    if config.experts.count == 1:
        return
    misfits = (
        ("pipeline.stages", config.pipeline.num_stages > 1, "left out beside experts",
         "A group of peers is a stage of one model or an expert of its own."),
        ("model.kind", config.model.kind == "custom", "a built-in one with experts",
         "A loop of one's own would have to know of which text it is."),
        ("data.source", config.data.source == OWN_TEXT, "text of the run with experts",
         "Whoever parts a text must have it."),
        ("data.tokenizer", config.data.tokenizer != BYTES, f"{BYTES} with experts",
         "Text is parted, and routed, by its bytes."),
        ("outer.last_merge", config.outer.last_merge, "false with experts",
         "Nothing is ever exchanged between them."),
    )  # fmt: skip
    for key, is_wrong, wanted, why in misfits:
        if is_wrong:
            yield Problem(key, f"must be {wanted}", why)


def _guard_problems(config: RunConfig) -> Iterator[Problem]:
    """Find what a guard cannot do: it goes from one common state to an earlier one."""
    guard, facts, key = config.guard, config.facts, "guard.spike"
    if not guard.spike:
        return
    if guard.spike <= 1:
        yield Problem(
            key, f"must be above 1, or 0 for no guard, it is {guard.spike:g}",
            "Else what is usual would be too much.",
        )  # fmt: skip
    if config.pipeline.num_stages > 1:
        yield Problem(
            key, "must be 0 where the model is in stages",
            "Only the last stage knows a loss, and all would have to go back at once.",
        )  # fmt: skip
    elif facts.kind is OpKind.PAIR:
        yield Problem(
            key, f"must be 0 with outer.strategy {config.outer.strategy}",
            "Peers that exchange in pairs have no common state to which they could go back.",
        )  # fmt: skip
    elif "buffer" in facts.planned:
        yield Problem(
            key, f"must be 0 with outer.strategy {config.outer.strategy}",
            "A round of it has what a few peers give: one of them could make all others go back.",
        )  # fmt: skip
    most = limits.RESULT_KEEP_OPS // 2
    least = guard.back + config.ops_at_once - 1
    if not least <= config.checkpoint.snapshot_rounds <= most:
        yield Problem(
            "checkpoint.snapshot_rounds",
            f"must be from {least} to {most} with guard.back {guard.back}, it is "
            f"{config.checkpoint.snapshot_rounds}",
            "Peers keep two snapshots and the results of "
            f"{limits.RESULT_KEEP_OPS} rounds: from these they go back.",
        )
    if (config.checkpoint.keep - 1) * config.checkpoint.every_rounds < least:
        yield Problem(
            "checkpoint.keep",
            f"must be at least {1 - -least // config.checkpoint.every_rounds} with guard.back "
            f"{guard.back}, it is {config.checkpoint.keep}",
            "Else no disk might have a state from before the results that are given up.",
        )


def _crowd_problems(config: RunConfig) -> Iterator[Problem]:
    """More peers than exchange directly sum in cells, as far as their sums are exact."""
    if config.admission.peers_max <= limits.CELL_PEERS_MAX or config.facts.kind is OpKind.PAIR:
        return
    if config.facts.kind is OpKind.GATHER:
        what = f'outer.strategy "{config.outer.strategy}", which takes contributions whole'
    elif config.outer.robust != "none":
        what = f'outer.robust "{config.outer.robust}"'
    elif not facts_of(config.exchange.codec).exact:
        what = f'exchange.codec "{config.exchange.codec}"'
    else:
        return
    yield Problem(
        "admission.peers_max",
        f"must be at most {limits.CELL_PEERS_MAX} with {what}, it is {config.admission.peers_max}",
        "Only exact sums are added up, cell by cell, to the mean of more peers.",
    )


def _relation_problems(config: RunConfig) -> Iterator[Problem]:
    yield from optimizer_problems(config.inner)
    yield from strategy_problems(config)
    yield from _schedule_problems(config)
    yield from _computing_problems(config)
    yield from _outer_problems(config.outer)
    yield from _merge_problems(config)
    yield from fragment_problems(config)
    yield from pipeline_problems(config)
    yield from _expert_problems(config)
    yield from _guard_problems(config)
    yield from value_problems(config)
    model, exchange = config.model, config.exchange
    if exchange.chunk_values % exchange.block:
        yield Problem(
            "exchange.chunk_values",
            f"must be a multiple of exchange.block ({exchange.block}), it is "
            f"{exchange.chunk_values}",
            "A block shares one scale and is never cut.",
        )
    if exchange.min_contributors > exchange.start_peers:
        yield Problem(
            "exchange.min_contributors",
            f"must not be above exchange.start_peers ({exchange.start_peers}), it is "
            f"{exchange.min_contributors}",
            "The run would start with rounds that cannot be committed.",
        )
    if exchange.start_peers > config.admission.peers_max:
        yield Problem(
            "exchange.start_peers",
            f"must not be above admission.peers_max ({config.admission.peers_max}), it is "
            f"{exchange.start_peers}",
            "The run would wait for peers that it does not admit.",
        )
    yield from _crowd_problems(config)
    if exchange.deadline_cap_s < exchange.deadline_floor_s:
        yield Problem(
            "exchange.deadline_cap_s",
            f"must not be under exchange.deadline_floor_s ({exchange.deadline_floor_s:g}), it is "
            f"{exchange.deadline_cap_s:g}",
        )
    if not config.data.source:
        yield Problem(
            "data.source",
            "must name the text, it is empty",
            'Left out it is "python-stdlib"; "own" is text that peers bring.',
        )
    example = (model.context + 1) * width_of(config)
    if config.data.piece_bytes < example:
        yield Problem(
            "data.piece_bytes",
            f"must be at least {example}, it is {config.data.piece_bytes}",
            "A training example of model.context tokens and one more is cut from one piece.",
        )
