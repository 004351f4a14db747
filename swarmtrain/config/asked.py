"""Demands of a run file's strategy on it: the settings that it takes, and those that fit no other.

Everything here comes from the strategy's facts; a strategy that nobody brings here asks nothing.
"""

import math
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

import msgspec

from swarmtrain.config.declared import bounds, expected, extra, is_of, out_of_range
from swarmtrain.config.problem import INTEGER_MAX, Problem, too_long
from swarmtrain.config.settings import RunConfig, Setting, facts_here
from swarmtrain.foundation.errors import cleaned
from swarmtrain_optimizers.strategies.facts import OpKind, StrategyFacts
from swarmtrain_optimizers.strategies.registry import facts_named, known_strategies

PAIR = 2
"""Peers that a pair op needs."""

_OWN_SETTINGS_MAX = 64
_OWN_TEXT_MAX = 200
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

_UNUSED: MappingProxyType[str, tuple[Setting, str]] = MappingProxyType(
    {
        "error_feedback": (False, "A codec's loss there is not owed later."),
        "fragments": (1, "It exchanges the whole model at once."),
        "delay_steps": (0, "Its results have their place when they come."),
        "mixing": (0.0, "Its results have their place when they come."),
        "lr_rule": ("fixed", "The rule was found for diloco's outer step."),
        "last_merge": (False, "All peers end with the same model: there is nothing to merge."),
    }
)
"""Settings of [outer] that a strategy leaves undone which does not take them; each with the
reason."""


def not_here(config: RunConfig) -> Problem | None:
    """Check on the organiser's machine, before anybody joins: a strategy that nobody brings here is
    a misspelt one. Peers of a run say so when they make it."""
    for key, name in (
        ("outer.strategy", config.outer.strategy),
        *((f"strategy.{name}", name) for name in config.strategy),
    ):
        try:
            facts_named(name)
        except ValueError as error:
            known = known_strategies()
            near = get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            return Problem(
                cleaned(key),
                f"must be one that is known here: {', '.join(known)}; it is {cleaned(name)}{hint}"
                if name not in known
                else f"cannot be read: {cleaned(str(error))}",
                "A package brings one by the entry point group swarmtrain.strategies.",
            )
    return None


def begins_from_nothing(config: RunConfig) -> Problem | None:
    """Check a run that is about to begin, when its first weights are known: a strategy that only
    looks at losses beside the weights makes nothing of fresh ones. Of a model that peers bring
    nobody here knows what it has learned."""
    if not config.facts.probes or config.model.initial or config.model.kind == "custom":
        return None
    return Problem(
        "outer.strategy",
        f"must be another one for a run that begins with fresh weights, it is "
        f"{config.outer.strategy}",
        "It fine-tunes: a forward pass says too little to learn a model from nothing. Name a "
        "trained one with --from.",
    )


def strategy_problems(config: RunConfig) -> Iterator[Problem]:
    """Check for settings that the strategy would leave undone, or cannot work with."""
    name = config.outer.strategy
    if _NAME.fullmatch(name) is None:
        yield Problem("outer.strategy", f"must be a strategy's name, it is {cleaned(name)!r}")
    for owner, own in config.strategy.items():
        yield from own_problems(owner, own)
    if facts_here(name) is None:
        return
    facts = config.facts
    if facts.kind is None:
        yield Problem(
            "outer.strategy",
            f"must be one that a run can have, it is {name}",
            "It never exchanges, so there is nothing to join. On one machine: "
            f"swarmtrain compare --strategies {name}. With outer.last_merge = true a run of it can "
            "be: it ends with the mean of all peers.",
        )
    for path, (wanted, reason) in _wanted(facts).items():
        section, _, key = path.partition(".")
        found = getattr(getattr(config, section), key)
        if found != wanted:
            text = f"must be {shown(wanted)} with outer.strategy {name}, it is {shown(found)}"
            yield Problem(path, text, reason)
    if facts.kind is OpKind.PAIR and config.exchange.min_contributors < PAIR:
        yield Problem(
            "exchange.min_contributors",
            f"must be at least {PAIR} with outer.strategy {name}, it is "
            f"{config.exchange.min_contributors}",
            "A peer alone has nobody to exchange with: its rounds would all be skipped.",
        )
    if not any(own_problems(name, config.strategy.get(name, {}))):
        for misfit in facts.misfits(lambda path: _number(config, facts, path)):
            yield Problem(*misfit)


def _wanted(facts: StrategyFacts) -> dict[str, tuple[Setting, str]]:
    """Return the only value that a setting can have and the reason, by its path."""
    unused = {
        f"outer.{key}": told
        for key, told in _UNUSED.items()
        if key not in facts.takes and not (key == "error_feedback" and facts.feeds_back)
    }
    robust = {
        OpKind.GATHER: "Every peer makes the mean of what it gathers; nobody else could follow it.",
        OpKind.PAIR: "If two differ, either may be the hostile one.",
    }
    if facts.kind in robust:
        unused["outer.robust"] = ("none", robust[facts.kind])
    if facts.kind is OpKind.PAIR:
        why = "A run's rounds all go by pairs. On one machine `swarmtrain compare` merges them."
        unused["outer.last_merge"] = (False, why)
    return {**unused, **facts.wants}


def own_problems(owner: str, own: dict[str, Setting]) -> Iterator[Problem]:
    """Check for keys that cannot stand in the section [strategy.NAME] of this owner."""
    if _NAME.fullmatch(owner) is None or len(own) > _OWN_SETTINGS_MAX:
        yield Problem(f"strategy.{cleaned(owner)}", "must be a strategy's name and few settings")
    facts = facts_here(owner)
    kinds = own_settings(facts) if facts is not None else {}
    for key, value in own.items():
        place = f"strategy.{cleaned(owner)}.{cleaned(key)}"
        if facts is not None and key not in kinds:
            takes = ", ".join(kinds) or "nothing but what [outer] says"
            yield Problem(place, f"must not be there: {owner} takes {takes}")
        elif key in kinds and not _is_too_long(value):
            if not is_of(value, kinds[key].type):
                text = f"{expected(kinds[key].type)} {bounds(kinds[key].type)}".strip()
                yield Problem(place, f"must be {text}, it is {shown(value)}")
            elif text := out_of_range(value, kinds[key].type):
                yield Problem(place, text, extra(kinds[key].type, "why"))
        else:
            yield from loose_problems(place, key, value)


def loose_problems(place: str, key: str, value: Setting) -> Iterator[Problem]:
    """Check a setting of which nothing is known here but that it travels."""
    if _is_too_long(value):
        yield too_long(place)
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(place, f"must be a finite number, it is {value}")
    elif not key.isidentifier() or (isinstance(value, str) and len(value) > _OWN_TEXT_MAX):
        yield Problem(place, f"must be a short name with at most {_OWN_TEXT_MAX} characters")


def _is_too_long(value: Setting) -> bool:
    return isinstance(value, int) and abs(value) > INTEGER_MAX


def planned_by(facts: StrategyFacts, own: Mapping[str, Setting]) -> dict[str, Any]:
    """Return what plans follow of a strategy, its own settings too, as `RunTerms` has them."""
    every = {key: field.default for key, field in own_settings(facts).items()} | dict(own)
    found: dict[str, Any] = {key: every[key] for key in facts.planned}
    found["vectors"] = facts.vectors
    found.setdefault("graph", facts.graph)
    return found | ({"staleness": ""} if found.get("staleness") == "none" else {})


def own_settings(facts: StrategyFacts) -> dict[str, msgspec.structs.FieldInfo]:
    """The settings that only this strategy has, by name."""
    return {field.name: field for field in msgspec.structs.fields(facts.settings)}


def _number(config: RunConfig, facts: StrategyFacts, path: str) -> float:
    """A number of a run file by its path, that of the strategy's own settings too."""
    section, _, key = path.rpartition(".")
    if section.startswith("strategy."):
        return float(config.strategy.get(facts.name, {}).get(key, own_settings(facts)[key].default))
    value: Any = getattr(getattr(config, section), key)
    return float(value)


def shown(value: Setting) -> str:
    """A value as a run file has it, texts without quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else cleaned(value)
