"""The command line's request, turned into plans: one per strategy and seed.

A strategy may carry settings of its own, `diloco:codec=none:inner_steps=500`, so that one table can
hold rows that differ in nothing else. Checked here once, without loading torch.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from itertools import product
from types import MappingProxyType
from typing import get_args, get_type_hints

import msgspec

from swarmtrain.compare.plan import NETS, SIZES, Late, Pace, Pipelined, Plan, Stragglers
from swarmtrain.config.asked import own_problems, own_settings
from swarmtrain.config.built_in import built_in_blocks
from swarmtrain.config.declared import out_of_range, plain
from swarmtrain.config.inner import OPTIMIZERS, is_class
from swarmtrain.config.pipeline import (
    activations_problems,
    stage_fragment_problems,
    stage_strategy_problems,
)
from swarmtrain.config.settings import (
    ExchangeSection,
    InnerSection,
    OuterSection,
    PipelineSection,
    RunConfig,
    RunSection,
    Setting,
)
from swarmtrain.config.stages import misfit
from swarmtrain.config.values import ANCHOR_REASON, TELLABLE
from swarmtrain.foundation.errors import UserError, cleaned, misuse
from swarmtrain_optimizers.codec_facts import ANCHOR_CODECS, CODEC_NAMES, facts_of
from swarmtrain_optimizers.strategies.facts import OpKind, StrategyFacts
from swarmtrain_optimizers.strategies.registry import facts_named, known_strategies
from swarmtrain_transport.limits import CELL_PEERS_MAX, HOP_WANTS_MAX

_OUTER = {field.name: field.type for field in msgspec.structs.fields(OuterSection)}

WHENS: tuple[str, ...] = get_args(plain(_OUTER["when"]))

RULES: tuple[str, ...] = get_args(plain(_OUTER["robust"]))[1:]
"""Robust rules: those of a run file but for none."""


def _as_bool(text: str) -> bool:
    return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[text]


_OWN: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {
        "codec": str,
        "inner_steps": int,
        "inner": str,
        "inner_lr": float,
        "outer_lr": float,
        "outer_momentum": float,
        "error_feedback": _as_bool,
        "pace": Pace,
        "late": str,
        "tolerates": int,
        "drop": float,
        "hostile": int,
        "robust": str,
        "fragments": int,
        "delay_steps": int,
        "mixing": float,
        "rounding": str,
        "last_merge": _as_bool,
        "budget": int,
        "when": str,
    }
)
"""Settings that every strategy in the list may have of its own, and how they are read."""

_OF_RUN_FILE: Mapping[str, tuple[type[msgspec.Struct], str]] = MappingProxyType(
    {
        "inner_lr": (InnerSection, "lr"),
        "inner_steps": (OuterSection, "inner_steps"),
        "outer_lr": (OuterSection, "lr"),
        "outer_momentum": (OuterSection, "momentum"),
        "error_feedback": (OuterSection, "error_feedback"),
        "fragments": (OuterSection, "fragments"),
        "delay_steps": (OuterSection, "delay_steps"),
        "mixing": (OuterSection, "mixing"),
        "budget": (OuterSection, "budget"),
    }
)
"""Their places in a run file, and so their ranges."""


_PIPELINE: Mapping[str, object] = MappingProxyType(
    {name: kind for name, kind in get_type_hints(Pipelined).items() if name != "stages"}
)
"""Settings of a pipeline, each with its type."""


def takes(facts: StrategyFacts) -> tuple[str, ...]:
    """Settings of a strategy in the list that do anything in it: in order, its own last."""
    found = {"inner", "inner_lr"}
    if not facts.takes_gradients:
        found.add("pace")  # whose step is everybody's always waits
    if facts.diverges:
        found |= {"last_merge", "budget", "when"}
    if facts.kind is not None:
        found |= {"codec", "rounding", "drop", "hostile"}
        found |= {name for name, (_, key) in _OF_RUN_FILE.items() if key in facts.takes}
    if facts.kind is OpKind.MEAN:
        found.add("robust")
    if facts.kind in (OpKind.MEAN, OpKind.GATHER) and not facts.overlaps:
        found |= {"late", "tolerates"}
    if facts.fits_stages:
        found |= {"pipeline", *_PIPELINE}
    if facts.probes:
        found -= {"inner", "codec", "rounding"}  # bytes as they are, and no optimizer
    return (
        *(name for name in (*_OWN, "pipeline", *_PIPELINE) if name in found),
        *own_settings(facts),
    )


def parse_speeds(text: str, peers: int, option: str = "--speeds") -> tuple[float, ...]:
    """``1,1,0.5,0.25``: a relative speed per peer, or part of a link; empty for equal ones.

    Raises:
        UserError: SWT-E610.
    """
    if not text:
        return ()
    like = f"for instance {option} 1,1,0.5,0.25 with --peers 4."
    try:
        speeds = tuple(float(word) for word in text.split(","))
    except ValueError:
        speeds = ()
    if len(speeds) != peers:
        raise misuse(
            f"{cleaned(text)!r} are not the {option[2:]} of {peers} peers.",
            f"Write one for each, {like}",
        )
    for speed in speeds:
        if not 0.01 <= speed <= 100:
            raise misuse(
                f"{speed:g} in {cleaned(text)!r} is none of the {option[2:]}.",
                f"Each is a number from 0.01 to 100, {like}",
            )
    return speeds


def parse_stragglers(text: str) -> Stragglers | None:
    """``0.1,4,3``: share of slow steps, times as long, steps of a burst; empty for none.

    Raises:
        UserError: SWT-E610.
    """
    if not text:
        return None
    try:
        share, slowness, burst = (float(word) for word in text.split(","))
    except ValueError:
        share = slowness = burst = math.nan
    if not (0 < share <= 0.5 and 1 < slowness <= 1000 and 1 <= burst <= 1000):
        raise misuse(
            f"{cleaned(text)!r} does not say which steps are slow.",
            "Write three numbers, for instance --stragglers 0.1,4,3: a tenth of all steps (at most "
            "half) takes 4 times as long, in bursts of 3 steps in the mean.",
        )
    return Stragglers(share, slowness, burst)


def plans(
    strategies: str, base: Plan, seeds: Sequence[int], given: Mapping[str, object]
) -> list[Plan]:
    """One plan per strategy and seed, strategies first.

    Args:
        strategies: names with commas between, each perhaps with settings of its own, and these
            with alternatives, as in ``inner_steps=20/100``.
        base: everything that they share.
        seeds: number of seeds per strategy.
        given: settings that hold for all of them instead of their presets.

    Raises:
        UserError: SWT-E610, a name or a setting cannot be meant.
    """
    words = [one for word in strategies.split(",") for one in _alternatives(word.strip())]
    if len(set(words)) != len(words):
        raise misuse(f"{cleaned(strategies)!r} names a strategy twice.", "Leave one out.")
    chosen = [_plan(word, base, given) for word in words]
    for plan in chosen:
        _check(plan)
    return [replace(plan, seed=seed) for plan in chosen for seed in seeds]


def check_used(given: Mapping[str, str], chosen: Sequence[Plan]) -> None:
    """Refuse a setting for all that changes nothing in any of them.

    Args:
        given: options of the command line, each with the setting that it gives.
        chosen: strategy or run that they were given for.

    Raises:
        UserError: SWT-E610.
    """
    takers = [takes(facts_named(plan.strategy)) for plan in chosen]
    for option, name in given.items():
        if not any(name in taken for taken in takers):
            asked = ", ".join(dict.fromkeys(plan.strategy for plan in chosen))
            raise misuse(
                f"{option} changes nothing here: {asked} takes no such setting.",
                "Leave it out, or list a strategy that it is for.",
            )


def _alternatives(word: str) -> list[str]:
    """Every choice of a word's alternatives."""
    name, *settings = word.split(":")
    choices = []
    for setting in settings:
        key, sign, text = setting.partition("=")
        choices.append([f"{key}{sign}{one}" for one in text.split("/")])
    return [":".join((name, *chosen)) for chosen in product(*choices)]


def _plan(word: str, base: Plan, given: Mapping[str, object]) -> Plan:
    name, *settings = word.split(":")
    facts = _facts(name)
    taken = takes(facts)
    shared: dict[str, object] = {
        "codec": facts.compared_in or facts.defaults.get("exchange.codec", ExchangeSection().codec),
        **{f.name: getattr(facts.rates, f.name) for f in fields(facts.rates)},
        **{
            key: facts.defaults[f"outer.{key}"]
            for key in ("inner_steps", "fragments", "delay_steps", "mixing")
            if f"outer.{key}" in facts.defaults
        },
        **({} if "pace" in taken else {"pace": Pace.WAIT}),
        **{key: value for key, value in given.items() if key in taken},
    }
    own: dict[str, Setting] = {}
    piped: dict[str, str] = {}
    keys = [setting.partition("=")[0] for setting in settings]
    if len(set(keys)) != len(keys):
        raise misuse(f"{cleaned(word)!r} names a setting twice.", "Leave one out.")
    for setting in settings:
        key, _, text = setting.partition("=")
        if key in own_settings(facts):
            own[key] = _own_value(word, facts, key, text)
        elif key == "pipeline" or key in _PIPELINE:
            piped[key] = text
        else:
            shared[key] = _value(word, facts, key, text, base)
    shared["own"] = tuple(sorted(own.items()))
    if piped:
        shared["pipeline"] = _pipeline(word, facts, piped, base)
    return replace(base, label=word, strategy=name, **shared)  # type: ignore[arg-type]


def _pipeline(
    word: str, facts: StrategyFacts, settings: Mapping[str, str], base: Plan
) -> Pipelined:
    """The pipeline that a strategy in the list is to be trained in.

    Raises:
        UserError: SWT-E610.
    """
    label = cleaned(word)
    if not facts.fits_stages:
        raise misuse(
            f"{label!r} cannot be trained in a pipeline.",
            "Its peers make inner steps with nothing between two of them: take diloco, streaming, "
            "eager, co2, noloco or sparseloco.",
        )
    asked = re.fullmatch(r"(\d{1,4})x(\d{1,4})", settings.get("pipeline", ""))
    if asked is None:
        raise misuse(
            f"{label!r} does not say which pipeline.",
            "Write pipeline=3x2 for three stages with two peers each.",
        )
    stages, per_stage = int(asked[1]), int(asked[2])
    if stages < 2:
        raise misuse(f"{label!r} has {stages} stages.", "A pipeline has two or more.")
    if per_stage != base.peers:
        raise misuse(
            f"{label!r} has {per_stage} peers a stage, and the others are {base.peers} replicas.",
            f"Both see the same tokens with pipeline={stages}x{base.peers}, or with "
            f"--peers {per_stage}.",
        )
    values = {}
    for key, text in settings.items():
        if key == "pipeline":
            continue
        try:
            values[key] = msgspec.convert(text, _PIPELINE[key], strict=False)
        except msgspec.ValidationError:
            raise _unreadable(word, facts, key, text) from None
    return Pipelined(stages, **values)


def _facts(name: str) -> StrategyFacts:
    try:
        return facts_named(name)
    except ValueError as error:
        known = known_strategies()
        if name in known:
            raise misuse(f"{cleaned(str(error))}.", "Take another, or mend its package.") from None
        close = get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise misuse(
            f"{cleaned(name)!r} is no strategy that can be compared.{hint}",
            f"There are: {', '.join(known)}.",
        ) from None


def _value(word: str, facts: StrategyFacts, key: str, text: str, base: Plan) -> object:
    """A setting that any strategy in the list may have; it must change something in this one.

    Raises:
        UserError: SWT-E610.
    """
    if key not in _OWN:
        raise misuse(
            f"{cleaned(word)!r} has a setting that a strategy in a list cannot have of its own.",
            f"Write name:setting=value; settings are {', '.join(takes(facts))}.",
        )
    if key not in takes(facts):
        raise misuse(
            f"{cleaned(word)!r} has a setting that changes nothing: {facts.name} takes no {key}.",
            f"It takes {', '.join(takes(facts))}.",
        )
    try:
        value = _OWN[key](text)
    except (ValueError, KeyError):
        raise _unreadable(word, facts, key, text) from None
    if key == "pace" and value is not Pace.WAIT and not base.is_uneven:
        raise misuse(
            f"The pace of {cleaned(word)!r} changes nothing where all peers are equally fast.",
            "Give each peer a speed, for instance --speeds 1,1,0.5,0.25.",
        )
    return value


def _own_value(word: str, facts: StrategyFacts, key: str, text: str) -> Setting:
    """A setting that only this strategy has.

    Raises:
        UserError: SWT-E610.
    """
    kind = own_settings(facts)[key].type
    try:
        value: Setting = msgspec.convert(text, plain(kind), strict=False)
    except msgspec.ValidationError:
        raise _unreadable(word, facts, key, text) from None
    for problem in own_problems(facts.name, {key: value}):
        raise misuse(f"{key} of {cleaned(word)!r} {problem.text}.", "Take a value in that range.")
    return value


def _unreadable(word: str, facts: StrategyFacts, key: str, text: str) -> UserError:
    return misuse(
        f"{cleaned(text)!r} cannot be the {key} of {cleaned(word)!r}.",
        f"Settings of {facts.name} are {', '.join(takes(facts))}.",
    )


def _check(plan: Plan) -> None:
    """Refuse what cannot be run.

    Raises:
        UserError: SWT-E610.
    """
    bounds: tuple[tuple[str, float, float, float], ...] = (
        ("peers", plan.peers, 1, CELL_PEERS_MAX),
        ("steps", plan.steps, 1, 10_000_000),
        ("drop", plan.drop, 0, 0.99),
        ("hostile", plan.hostile, 0, plan.peers - 1),
        ("delay_steps", plan.delay_steps, 0, plan.inner_steps),
    )
    for name, value, low, high in bounds:
        if not low <= value <= high:
            raise misuse(
                f"{name} of {cleaned(plan.label)!r} is {value:g}.",
                f"It can be {low:g} to {high:g}.",
            )
    for name, (section, key) in _OF_RUN_FILE.items():
        kinds = {field.name: field.type for field in msgspec.structs.fields(section)}
        if text := out_of_range(getattr(plan, name), kinds[key]):
            raise misuse(
                f"{name} of {cleaned(plan.label)!r} {text}.", "Take a value in that range."
            )
    tables: tuple[tuple[str, str, Sequence[str]], ...] = (
        ("--model", plan.size, tuple(SIZES)),
        ("--net", plan.net, tuple(NETS)),
        ("--inner", plan.inner, (plan.inner,) if is_class(plan.inner) else OPTIMIZERS),
        ("--robust", plan.robust or RULES[0], RULES),
        ("rounding", plan.rounding, ("nearest", "stochastic")),
    )
    for what, name, known in tables:
        if name not in known:
            raise misuse(
                f"{what} {cleaned(name)!r} is not known.", f"There are: {', '.join(known)}."
            )
    _check_values(plan)
    _check_together(plan)
    if plan.pipeline is not None:
        _check_pipeline(plan, plan.pipeline)


def _check_values(plan: Plan) -> None:
    """Refuse a codec that there is not, or that cannot do here what it does in a run.

    Raises:
        UserError: SWT-E610.
    """
    label, codec = cleaned(plan.label), cleaned(plan.codec)
    try:
        facts = facts_of(plan.codec)
    except ValueError:
        names = ", ".join(CODEC_NAMES)
        raise misuse(f"codec {codec!r} is not known.", f"There are: {names}.") from None
    if problem := facts.block_problem(plan.block):
        raise misuse(
            f"{label!r} cannot exchange with {codec!r}.",
            f"Its blocks {problem} values, and this model has blocks of {plan.block}.",
        )
    if plan.rounding == "stochastic" and not facts.dithers:
        raise misuse(
            f"{label!r} cannot round stochastically in {codec!r}.",
            "Only int8, int4 and e3m0 have levels enough to round to either side.",
        )
    if facts_named(plan.strategy).kind is OpKind.PAIR and not facts.carries_anchors:
        raise misuse(
            f"{label!r} cannot exchange with {codec!r}.",
            f"{ANCHOR_REASON} Take {' or '.join(ANCHOR_CODECS)}.",
        )


def _check_together(plan: Plan) -> None:
    """Refuse settings that contradict each other.

    Raises:
        UserError: SWT-E610.
    """
    label, strategy = cleaned(plan.label), facts_named(plan.strategy)
    wanted, reason = strategy.wants.get("inner.optimizer", (plan.inner, ""))
    if plan.inner != wanted:
        raise misuse(f"{label!r} cannot step by {plan.inner}, only by {wanted}.", reason)
    if (plan.budget or plan.when != "late") and not plan.last_merge:
        raise misuse(
            f"{label!r} has a budget of exchanges without a last merge.",
            "Write last_merge=yes beside it, or leave it out: then every round ends with one.",
        )
    if plan.when not in WHENS:
        raise misuse(f"when of {label!r} is {cleaned(plan.when)!r}.", f"It is {', '.join(WHENS)}.")
    if plan.budget >= max(1, plan.steps // plan.inner_steps):
        raise misuse(
            f"budget of {label!r} is {plan.budget}.",
            f"It is below the rounds of the run: {plan.steps // plan.inner_steps} here.",
        )
    if plan.last_merge and (plan.hostile or plan.drop or plan.pace is not Pace.WAIT):
        raise misuse(
            f"{label!r} cannot end with a last merge.",
            "It is made of every replica's weights after equal steps: leave hostile peers, drop "
            "and pace out.",
        )
    if plan.robust and strategy.kind in (OpKind.GATHER, OpKind.PAIR):
        raise misuse(
            f"{label!r} cannot be made robust by {cleaned(plan.robust)!r}.",
            "Such a rule takes the place of a mean that owners make.",
        )
    if plan.robust and plan.peers < TELLABLE:
        raise misuse(
            f"{label!r} cannot be made robust with {plan.peers} peers.",
            f"If two differ, either may be the hostile one: take {TELLABLE} or more.",
        )
    if plan.links and plan.pipeline is not None:
        raise misuse(
            f"The links of {label!r} cannot differ.",
            "Time is modelled in another way in a pipeline: leave --links or the pipeline out.",
        )
    if problem := _straggler_problem(plan):
        raise misuse(f"{label!r} {problem[0]}.", problem[1])
    if plan.pace is Pace.APART and (strategy.overlaps or strategy.kind is OpKind.PAIR):
        raise misuse(
            f"The peers of {label!r} cannot go apart.",
            "Its ops need everybody at the same inner step: pace is wait or dynamic.",
        )


def _straggler_problem(plan: Plan) -> tuple[str, str] | None:
    """Say what its way with peers that are late does not fit, and what to do; None if it does."""
    facts = facts_named(plan.strategy)
    if plan.late not in get_args(Late):
        return f"has late={cleaned(plan.late)!r}", f"It is {', '.join(get_args(Late))}."
    if plan.stragglers is None:
        if plan.late == "wait" and plan.tolerates == 1:
            return None
        return "says what to do with stragglers, and nobody is slow", "Add --stragglers 0.1,4,3."
    if "late" not in takes(facts) or plan.pipeline or plan.pace is not Pace.WAIT:
        return (
            "cannot be timed with stragglers",
            "Everybody must begin together after each exchange: take ddp, diloco or sparseloco, "
            "without a pace and without a pipeline.",
        )
    is_coded = plan.late in ("coded", "repeated")
    if is_coded and not facts.takes_gradients:
        return (
            f"cannot have {plan.late} steps",
            "Coded are gradients of a step that everybody waits for: take ddp.",
        )
    if not 1 <= plan.tolerates < plan.peers:
        return f"tolerates {plan.tolerates} of {plan.peers} peers", "It can be 1 to all but one."
    if is_coded and plan.peers % (plan.tolerates + 1):
        return (
            f"cannot part {plan.peers} peers into groups of {plan.tolerates + 1}",
            "Take a number of peers that tolerates + 1 divides.",
        )
    return None


def _check_pipeline(plan: Plan, pipeline: Pipelined) -> None:
    """Refuse a pipeline that this model cannot be cut into, or that such peers do not make up.

    Raises:
        UserError: SWT-E610.
    """
    label, size = cleaned(plan.label), SIZES[plan.size]
    if plan.last_merge:
        raise misuse(f"{label!r} has no last merge in a pipeline.", "Leave one of both out.")
    if problem := misfit(list(built_in_blocks(size.model)), pipeline.stages):
        raise misuse(f"The stages of {label!r} {problem}.", "Take fewer, or another --model.")
    config = RunConfig(
        RunSection("compare"),
        model=size.model,
        outer=OuterSection(
            plan.strategy, plan.inner_steps, fragments=plan.fragments, delay_steps=plan.delay_steps
        ),
        exchange=ExchangeSection(block=plan.block),
        pipeline=PipelineSection(
            stages=pipeline.stages, schedule=pipeline.schedule, activations=pipeline.activations
        ),
    )
    for found in (
        *activations_problems(config), *stage_strategy_problems(config),
        *stage_fragment_problems(config),
    ):  # fmt: skip
        key = found.key.rpartition(".")[2]
        raise misuse(f"{key} of {label!r} {found.text}.", found.reason)
    windows = pipeline.micro_batch
    if windows < 0 or (windows and size.batch % windows):
        raise misuse(
            f"micro_batch of {label!r} is {windows}.",
            f"An inner step of this model has {size.batch} windows: it is a divisor of that.",
        )
    if not 0 <= pipeline.slots <= HOP_WANTS_MAX or pipeline.max_stale_steps < 0:
        raise misuse(
            f"{label!r} has {pipeline.slots} slots and {pipeline.max_stale_steps} max_stale_steps.",
            f"slots can be 1 to {HOP_WANTS_MAX}, max_stale_steps 0 and more.",
        )
    if pipeline.visit and not 3 <= pipeline.visit < pipeline.stages:
        raise misuse(
            f"visit of {label!r} is {pipeline.visit}.",
            f"Of {pipeline.stages} stages a route has the first, the last and some of those between"
            ", or visit is left out.",
        )
    if pipeline.slow and not 1 <= pipeline.slow <= 1000:
        raise misuse(f"slow of {label!r} is {pipeline.slow:g}.", "It can be 1 to 1000.")
    if pipeline.death_s and not 10 <= pipeline.death_s <= 1e9:
        raise misuse(
            f"death_s of {label!r} is {pipeline.death_s:g}.",
            "It can be 10 and more: by then a peer that died is back; or 0 for no deaths.",
        )
    if pipeline.death_s and plan.peers < 2:
        raise misuse(f"No peer of {label!r} can die.", "Its state would be gone: take two a stage.")
    if plan.pace is not Pace.WAIT:
        raise misuse(
            f"The pace of {label!r} changes nothing: fast peers of a pipeline get more to do.",
            "Leave the pace, or --dynamic, out.",
        )
    if plan.hostile:
        raise misuse(
            f"{label!r} cannot have hostile peers.",
            "They attack an exchange of whole models: leave the pipeline or the attack out.",
        )
