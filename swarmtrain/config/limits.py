"""Which values of a run file can work. A table of ranges, then the rules between settings.

The same rules hold for the organiser's file and for settings that a coordinator sends: a hostile
one must not make a peer allocate or wait without bound.
"""

import math
import re
from collections.abc import Iterator
from difflib import get_close_matches

from swarmtrain.config.fragments import fragment_problems
from swarmtrain.config.pairs import PULL, pair_problems
from swarmtrain.config.problem import INTEGER_MAX, Problem, too_long
from swarmtrain.config.settings import OuterSection, RunConfig
from swarmtrain.config.values import loses_for_good, value_problems
from swarmtrain.errors import cleaned
from swarmtrain_optimizers.strategies.brought import brought_names
from swarmtrain_transport import limits

_SPREAD_BITS = (
    limits.EXACT_BITS
    - limits.PRODUCT_BITS
    - (limits.PEERS_MAX * limits.WEIGHT_MAX - 1).bit_length()
)
"""Scale exponents that an exact sum at PEERS_MAX peers can span (protocol.md part 1, rule 2)."""

E_MAX_LOWEST = limits.E_MIN_FLOOR + _SPREAD_BITS
E_MAX_HIGHEST = 100
"""127 steps of the largest scale, times two, stay far under float32's overflow at 2^128."""

_DAY_S = 86_400.0


_RANGES: dict[str, tuple[float, float]] = {
    "run.seed": (0, INTEGER_MAX),
    "run.rounds": (1, 1_000_000_000),
    "model.layers": (1, 512),
    "model.width": (1, 16_384),
    "model.heads": (1, 1_024),
    "model.context": (1, 65_536),
    "data.piece_bytes": (1_024, limits.FRAME_BYTES_MAX),
    "data.lease_pieces": (1, 4_096),
    "data.validation_pieces": (1, 4_096),
    "inner.lr_end_fraction": (0.0, 1.0),
    "inner.warmup_steps": (0, INTEGER_MAX),
    "inner.batch": (1, 65_536),
    "inner.schedule_tokens": (0, INTEGER_MAX),
    "inner.weight_decay": (0.0, 10.0),
    "outer.inner_steps": (1, 1_000_000),
    "outer.fragments": (1, limits.FRAGMENTS_MAX),
    "outer.delay_steps": (0, 1_000_000),
    "outer.mixing": (0.0, 1.0),
    "exchange.block": (16, 65_536),
    "exchange.chunk_values": (16, limits.FRAME_BYTES_MAX // 8),
    "exchange.e_max": (E_MAX_LOWEST, E_MAX_HIGHEST),
    "exchange.min_contributors": (1, limits.PEERS_MAX),
    "exchange.start_peers": (1, limits.PEERS_MAX),
    "admission.invite_uses": (0, 1_000_000_000),
    "admission.invite_expires_hours": (0.0, 1e6),
    "admission.peers_max": (1, limits.PEERS_MAX),
    "checkpoint.every_rounds": (1, 1_000_000_000),
    "checkpoint.keep": (1, 1_000_000),
    "checkpoint.snapshot_rounds": (1, limits.RESULT_KEEP_OPS),
}
"""Closed ranges. A NaN lies in none of them."""

_POSITIVE: dict[str, float] = {
    "inner.lr": 100.0,
    "inner.grad_clip": 1e9,
    "outer.lr": 100.0,
    "exchange.wait_ready_s": _DAY_S,
    "exchange.deadline_floor_s": _DAY_S,
    "exchange.deadline_cap_s": _DAY_S,
}
"""Above 0, up to this value."""

_UNDER_ONE = ("inner.beta1", "inner.beta2", "outer.momentum")
"""From 0 to below 1: at 1 the past would never fade."""

_REASONS: dict[str, str] = {
    "exchange.e_max": "Scales in this window are what sums in float64 are exact for.",
    "exchange.chunk_values": "A chunk must fit into one frame in every codec.",
    "admission.peers_max": "Peers exchange directly with each other; above that, groups are due.",
    "checkpoint.snapshot_rounds": (
        f"Results of {limits.RESULT_KEEP_OPS} rounds are kept for those who join from a snapshot."
    ),
}


STRATEGIES = (
    "diloco", "streaming", "delayed", "eager", "delayed_nesterov", "ddp", "sparseloco", "noloco",
)  # fmt: skip
"""swarmtrain's own that a run can have. Other names are those of installed packages."""

_ELSEWHERE = {"local": "It never exchanges, so there is nothing to join."}
"""Strategies that `swarmtrain compare` has on one machine."""

_OWN_RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "delayed_nesterov": {"arrivals": (1, limits.PEERS_MAX), "spread": (0.0, 1.0)},
    "eager": {"first_share": (0.0, 1.0)},
    "noloco": {PULL: (0.0, 2.0)},
    "sparseloco": {"beta": (0.0, 1.0)},
}
"""What swarmtrain's own strategies take from their section."""

_OWN_SETTINGS_MAX = 64
_OWN_TEXT_MAX = 200
_STRATEGY_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def first_problem(config: RunConfig) -> Problem | None:
    """The first setting that cannot work, in the order of this file, or None."""
    return next(_problems(config), None)


def _problems(config: RunConfig) -> Iterator[Problem]:
    yield from _name_problems(config.run.name)
    yield from _range_problems(config)
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
    for key, (low, high) in _RANGES.items():
        value = _value(config, key)
        if not low <= value <= high:
            text = f"must be from {low:g} to {high:g}, it is {value:g}"
            yield Problem(key, text, _REASONS.get(key, ""))
    for key, high in _POSITIVE.items():
        value = _value(config, key)
        if not 0 < value <= high:
            yield Problem(key, f"must be above 0 and at most {high:g}, it is {value:g}")
    for key in _UNDER_ONE:
        value = _value(config, key)
        if not 0 <= value < 1:
            yield Problem(key, f"must be at least 0 and below 1, it is {value:g}")


def _value(config: RunConfig, key: str) -> float:
    section, _, name = key.partition(".")
    value: float = getattr(getattr(config, section), name)
    return value


def not_here(config: RunConfig) -> Problem | None:
    """What the organiser's machine finds out before anybody joins: a strategy that nobody brings
    here is a misspelt one. Peers of a run say so when they make it."""
    known = (*STRATEGIES, *brought_names())
    for key, name in (
        ("outer.strategy", config.outer.strategy),
        *((f"strategy.{name}", name) for name in config.strategy if name not in _ELSEWHERE),
    ):
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            return Problem(
                cleaned(key),
                f"must be one that is known here: {', '.join(known)}; it is {cleaned(name)}{hint}",
                "A package brings one by the entry point group swarmtrain.strategies.",
            )
    return None


def warnings(config: RunConfig) -> tuple[str, ...]:
    """What will work, but hardly as it was meant."""
    codec = config.exchange.codec
    if config.outer.strategy not in STRATEGIES or not loses_for_good(config):
        return ()
    remedy = (
        f"{config.outer.strategy} has none: take int8 or none."
        if config.outer.strategy == "ddp"
        else "Set outer.error_feedback = true."
    )
    return (f"exchange.codec {codec} without error feedback loses what it does not send. {remedy}",)


def _strategy_problems(config: RunConfig) -> Iterator[Problem]:
    name = config.outer.strategy
    if name in _ELSEWHERE:
        yield Problem(
            "outer.strategy",
            f"must be one that a run can have, it is {name}",
            f"{_ELSEWHERE[name]} On one machine: swarmtrain compare --strategies {name}.",
        )
    elif _STRATEGY_NAME.fullmatch(name) is None:
        yield Problem("outer.strategy", f"must be a strategy's name, it is {cleaned(name)!r}")
    if name == "ddp" and config.inner.optimizer != "adamw":
        yield Problem(
            "inner.optimizer",
            f"must be adamw with outer.strategy ddp, it is {config.inner.optimizer}",
            "ddp's step is made by all peers alike, in operations that give the same bits.",
        )
    if name == "ddp" and config.model.kind == "custom":
        yield Problem(
            "outer.strategy",
            "must not be ddp with model.kind custom",
            "A loop of one's own steps its model itself, and ddp's step is everybody's.",
        )
    if name == "sparseloco" and config.outer.momentum != 0:
        yield Problem(
            "outer.momentum",
            f"must be 0 with outer.strategy {name}, it is {config.outer.momentum:g}",
            "What error feedback keeps is in its place (arXiv 2508.15706).",
        )
    for owner, own in config.strategy.items():
        yield from _own_problems(owner, own)
    yield from _spread_problems(config.strategy.get("delayed_nesterov", {}))
    for problem in pair_problems(config):
        yield Problem(*problem)


def _own_problems(owner: str, own: dict[str, bool | int | float | str]) -> Iterator[Problem]:
    if _STRATEGY_NAME.fullmatch(owner) is None or len(own) > _OWN_SETTINGS_MAX:
        yield Problem(f"strategy.{cleaned(owner)}", "must be a strategy's name and few settings")
    ranges = _OWN_RANGES.get(owner, {})
    built_in = owner in STRATEGIES or owner in _ELSEWHERE
    for key, value in own.items():
        place = f"strategy.{cleaned(owner)}.{cleaned(key)}"
        if built_in and key not in ranges:
            takes = ", ".join(ranges) or "nothing but what [outer] says"
            yield Problem(place, f"must not be there: {owner} takes {takes}")
        elif isinstance(value, int) and abs(value) > INTEGER_MAX:
            yield too_long(place)
        elif key in ranges:
            low, high = ranges[key]
            whole = isinstance(low, int)
            fits = _is_number(value) and not (whole and isinstance(value, float))
            if not fits or not low <= float(value) <= high:
                kind = "a whole number" if whole else "a number"
                yield Problem(place, f"must be {kind} from {low:g} to {high:g}, it is {value}")
        elif isinstance(value, float) and not math.isfinite(value):
            yield Problem(place, f"must be a finite number, it is {value}")
        elif not key.isidentifier() or (isinstance(value, str) and len(value) > _OWN_TEXT_MAX):
            yield Problem(place, f"must be a short name with at most {_OWN_TEXT_MAX} characters")


def _spread_problems(own: dict[str, bool | int | float | str]) -> Iterator[Problem]:
    arrivals, spread = own.get("arrivals", 1), own.get("spread", 0.0)
    if not _is_number(arrivals) or not _is_number(spread) or float(arrivals) < 1:
        return  # said before
    if float(spread) * float(arrivals) > 1:
        yield Problem(
            "strategy.delayed_nesterov.spread",
            f"must be at most 1 / arrivals ({arrivals}), it is {spread}",
            "More momentum than there is would be given out.",
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _outer_problems(outer: OuterSection) -> Iterator[Problem]:
    if outer.strategy != "streaming":
        for name, plain in (("fragments", 1), ("delay_steps", 0), ("mixing", 0.0)):
            value = getattr(outer, name)
            if value != plain:
                yield Problem(
                    f"outer.{name}",
                    f"is for outer.strategy streaming, it is {value:g} with {outer.strategy}",
                )
    interval, rest = divmod(outer.inner_steps, outer.fragments)
    if rest:
        yield Problem(
            "outer.inner_steps",
            f"must be a multiple of outer.fragments ({outer.fragments}), it is {outer.inner_steps}",
            "Fragments are exchanged at equal distances.",
        )
    if outer.delay_steps > interval:
        yield Problem(
            "outer.delay_steps",
            f"must not be above {interval}, the inner steps from one fragment to the next, it is "
            f"{outer.delay_steps}",
            "A fragment's result has its place before the next one is begun.",
        )


def _schedule_problems(config: RunConfig) -> Iterator[Problem]:
    inner, outer = config.inner, config.outer
    if inner.schedule == "tokens" and config.model.kind == "custom":
        yield Problem(
            "inner.schedule",
            "must be steps with model.kind custom, it is tokens",
            "Who brings a model steps its learning rate too.",
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
            "inner.warmup_steps x exchange.start_peers x inner.batch x model.context.",
        )
    if outer.lr_rule == "contributors" and outer.strategy != "diloco":
        yield Problem(
            "outer.lr_rule",
            f"must be fixed with outer.strategy {outer.strategy}, it is contributors",
            "The rule was found for diloco's outer step.",
        )


def _relation_problems(config: RunConfig) -> Iterator[Problem]:
    yield from _schedule_problems(config)
    yield from _outer_problems(config.outer)
    yield from fragment_problems(config)
    yield from _strategy_problems(config)
    yield from value_problems(config)
    model, exchange = config.model, config.exchange
    if model.kind != "custom" and model.width % (2 * model.heads):
        yield Problem(
            "model.width",
            f"must be a multiple of 2 x model.heads ({2 * model.heads}), it is {model.width}",
            "Every head gets an equal share of the width, and turns its values in pairs.",
        )
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
    if exchange.deadline_cap_s < exchange.deadline_floor_s:
        yield Problem(
            "exchange.deadline_cap_s",
            f"must not be under exchange.deadline_floor_s ({exchange.deadline_floor_s:g}), it is "
            f"{exchange.deadline_cap_s:g}",
        )
    if config.data.piece_bytes <= model.context:
        yield Problem(
            "data.piece_bytes",
            f"must be above model.context ({model.context}), it is {config.data.piece_bytes}",
            "A training example is cut from one piece.",
        )
