"""Which values of a run file can work. A table of ranges, then the rules between settings.

The same rules hold for the organiser's file and for settings that a coordinator sends: a hostile
one must not make a peer allocate or wait without bound.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from swarmtrain.config import OuterSection, RunConfig
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
_INTEGER_MAX = 2**63 - 1
"""What msgpack and every reader of it can hold."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One setting that cannot work.

    Attributes:
        key: full path, ``outer.inner_steps``.
        text: the rest of a sentence that begins with the key.
        reason: why there is such a bound; may be empty.
    """

    key: str
    text: str
    reason: str = ""


_RANGES: dict[str, tuple[float, float]] = {
    "run.seed": (0, _INTEGER_MAX),
    "run.rounds": (1, 1_000_000_000),
    "model.layers": (1, 512),
    "model.width": (1, 16_384),
    "model.heads": (1, 1_024),
    "model.context": (1, 65_536),
    "data.piece_bytes": (1_024, limits.FRAME_BYTES_MAX),
    "data.lease_pieces": (1, 4_096),
    "data.validation_pieces": (1, 4_096),
    "inner.lr_end_fraction": (0.0, 1.0),
    "inner.warmup_steps": (0, _INTEGER_MAX),
    "inner.batch": (1, 65_536),
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


def _relation_problems(config: RunConfig) -> Iterator[Problem]:
    yield from _outer_problems(config.outer)
    model, exchange = config.model, config.exchange
    if model.width % model.heads:
        yield Problem(
            "model.width",
            f"must be a multiple of model.heads ({model.heads}), it is {model.width}",
            "Every head gets an equal share of the width.",
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
