"""What the command line asks for, turned into plans: one per strategy and seed.

A strategy may carry settings of its own, `diloco:codec=none:inner_steps=500`, so that one table
can hold what differs in nothing else. Checked here once, without loading torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from types import MappingProxyType

from swarmtrain.compare.plan import BROUGHT, NETS, PRESETS, SIZES, Attack, Pace, Plan
from swarmtrain.config.pairs import PAIRED
from swarmtrain.config.settings import Setting
from swarmtrain.config.values import ANCHOR_REASON, GATHERING, TELLABLE
from swarmtrain.errors import cleaned, misuse
from swarmtrain_optimizers.codec_facts import ANCHOR_CODECS, CODEC_NAMES, facts_of
from swarmtrain_optimizers.strategies.brought import brought_names
from swarmtrain_transport.limits import PEERS_MAX

RULES = ("norm-clip", "trimmed-mean", "median", "centered-clip", "flag")
"""The names of `swarmtrain_optimizers.robust`."""


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
        "drop": float,
        "hostile": int,
        "robust": str,
        "fragments": int,
        "delay_steps": int,
        "alpha": float,
        "beta": float,
        "pull": float,
        "arrivals": int,
        "rounding": str,
    }
)
"""Settings that a strategy in the list may have of its own, and how they are read."""

_TRAINING = frozenset({"inner", "inner_lr"})
_EXCHANGE = frozenset({"codec", "rounding", "drop", "hostile"})
_ROUNDS = _TRAINING | _EXCHANGE | {"inner_steps", "pace"}
_MEANS = _ROUNDS | {"robust", "outer_lr", "outer_momentum", "error_feedback"}

TAKES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "ddp": _TRAINING | _EXCHANGE | {"robust"},  # no rounds, always waits
        "local": _TRAINING | {"pace"},
        "diloco": _MEANS,
        "streaming": _MEANS | {"fragments", "delay_steps", "alpha"},
        "delayed": _MEANS,
        "eager": _MEANS,
        "delayed_nesterov": _MEANS | {"arrivals"},
        "noloco": _ROUNDS | {"outer_lr", "outer_momentum", "pull"},
        "sparseloco": _ROUNDS | {"outer_lr", "beta"},
    }
)
"""Which of them do anything in swarmtrain's own strategies. What a package brings may have all."""


def parse_speeds(text: str, peers: int) -> tuple[float, ...]:
    """``1,1,0.5,0.25``: a relative speed per peer; empty for equal ones.

    Raises:
        UserError: SWT-E610.
    """
    if not text:
        return ()
    like = "for instance --speeds 1,1,0.5,0.25 with --peers 4."
    try:
        speeds = tuple(float(word) for word in text.split(","))
    except ValueError:
        speeds = ()
    if len(speeds) != peers:
        raise misuse(
            f"{cleaned(text)!r} are not the speeds of {peers} peers.", f"Write one for each, {like}"
        )
    for speed in speeds:
        if not 0.01 <= speed <= 100:
            raise misuse(
                f"{speed:g} in {cleaned(text)!r} is no speed.",
                f"Each is a number from 0.01 to 100, {like}",
            )
    return speeds


def plans(
    strategies: str, base: Plan, seeds: Sequence[int], given: Mapping[str, object]
) -> list[Plan]:
    """One plan per strategy and seed, strategies first.

    Args:
        strategies: names with commas between, each perhaps with settings of its own.
        base: everything that they share.
        seeds: of each.
        given: settings that hold for all of them instead of their presets.

    Raises:
        UserError: SWT-E610, a name or a setting cannot be meant.
    """
    words = [word.strip() for word in strategies.split(",")]
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
        chosen: what they were given for.

    Raises:
        UserError: SWT-E610.
    """
    takers = [TAKES.get(plan.strategy, frozenset(_OWN)) for plan in chosen]
    for option, name in given.items():
        if not any(name in takes for takes in takers):
            asked = ", ".join(dict.fromkeys(plan.strategy for plan in chosen))
            raise misuse(
                f"{option} changes nothing here: {asked} takes no such setting.",
                "Leave it out, or list a strategy that it is for.",
            )


def _plan(word: str, base: Plan, given: Mapping[str, object]) -> Plan:
    name, *settings = word.split(":")
    is_brought = name not in PRESETS and name in brought_names()
    if name not in PRESETS and not is_brought:
        known = (*PRESETS, *brought_names())
        close = get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise misuse(
            f"{cleaned(name)!r} is no strategy that can be compared.{hint}",
            f"There are: {', '.join(known)}.",
        )
    chosen = BROUGHT if is_brought else PRESETS[name]
    preset = {f.name: getattr(chosen, f.name) for f in fields(chosen) if f.name != "rates"}
    shared: dict[str, object] = {key: value for key, value in preset.items() if value is not None}
    shared |= {f.name: getattr(chosen.rates, f.name) for f in fields(chosen.rates)}
    takes = TAKES.get(name, frozenset(_OWN))
    shared |= {key: value for key, value in given.items() if key in takes}
    own: dict[str, Setting] = {}
    keys = [setting.partition("=")[0] for setting in settings]
    if len(set(keys)) != len(keys):
        raise misuse(f"{cleaned(word)!r} names a setting twice.", "Leave one out.")
    for setting in settings:
        key, _, value = setting.partition("=")
        if is_brought and key not in _OWN and key.isidentifier():
            own[key] = _as_setting(value)  # whether it is one, its maker says
            continue
        shared[key] = _own_value(word, key, value)
        _check_use(word, name, key, shared[key], base)
    shared["own"] = tuple(sorted(own.items()))
    return replace(base, label=word, strategy=name, **shared)  # type: ignore[arg-type]


def _check_use(word: str, name: str, key: str, value: object, base: Plan) -> None:
    """Refuse a setting that would change nothing.

    Raises:
        UserError: SWT-E610.
    """
    takes = TAKES.get(name, frozenset(_OWN))
    if key not in takes:
        raise misuse(
            f"{cleaned(word)!r} has a setting that changes nothing: {name} takes no {key}.",
            f"It takes {', '.join(one for one in _OWN if one in takes)}.",
        )
    if key == "pace" and value is not Pace.WAIT and not base.speeds:
        raise misuse(
            f"The pace of {cleaned(word)!r} changes nothing without --speeds.",
            "Give each peer a speed.",
        )


def _as_setting(text: str) -> Setting:
    """A whole number, a number, true or false where it looks like one; else the text."""
    for read in (int, float, _as_true_or_false):
        try:
            return read(text)
        except (ValueError, KeyError):
            continue
    return text


def _as_true_or_false(text: str) -> bool:
    return {"true": True, "false": False}[text]


def _own_value(word: str, key: str, value: str) -> object:
    if key in _OWN:
        try:
            return _OWN[key](value)
        except (ValueError, KeyError):
            raise misuse(
                f"{cleaned(value)!r} cannot be the {key} of {cleaned(word)!r}.",
                f"Settings of one strategy are {', '.join(_OWN)}.",
            ) from None
    raise misuse(
        f"{cleaned(word)!r} has a setting that a strategy in a list cannot have of its own.",
        f"Write name:setting=value; settings are {', '.join(_OWN)}.",
    )


def _check(plan: Plan) -> None:
    """Refuse what cannot be run.

    Raises:
        UserError: SWT-E610.
    """
    bounds: tuple[tuple[str, float, float, float], ...] = (
        ("peers", plan.peers, 1, PEERS_MAX),
        ("steps", plan.steps, 1, 10_000_000),
        ("inner_steps", plan.inner_steps, 1, 1_000_000),
        ("inner_lr", plan.inner_lr, 1e-9, 100),
        ("outer_lr", plan.outer_lr, 1e-9, 100),
        ("outer_momentum", plan.outer_momentum, 0, 0.9999),
        ("drop", plan.drop, 0, 0.99),
        ("hostile", plan.hostile, 0, plan.peers - 1),
        ("fragments", plan.fragments, 1, 1_000),
        ("delay_steps", plan.delay_steps, 0, plan.inner_steps),
        ("alpha", plan.alpha, 0, 1),
        ("beta", plan.beta, 0, 1),
        ("arrivals", plan.arrivals, 0, PEERS_MAX),
    )
    for name, value, low, high in bounds:
        if not low <= value <= high:
            raise misuse(
                f"{name} of {cleaned(plan.label)!r} is {value:g}.",
                f"It can be {low:g} to {high:g}.",
            )
    tables: tuple[tuple[str, str, Sequence[str]], ...] = (
        ("--model", plan.size, tuple(SIZES)),
        ("--net", plan.net, tuple(NETS)),
        ("--inner", plan.inner, ("adamw", "muon")),
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


_AT_ONCE = frozenset({"streaming", "delayed", "eager", "noloco"})


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
    if plan.strategy in PAIRED and not facts.carries_anchors:
        raise misuse(
            f"{label!r} cannot exchange with {codec!r}.",
            f"{ANCHOR_REASON} Take {' or '.join(ANCHOR_CODECS)}.",
        )


def _check_together(plan: Plan) -> None:
    """Refuse settings that contradict each other.

    Raises:
        UserError: SWT-E610.
    """
    label = cleaned(plan.label)
    if plan.strategy == "ddp" and plan.inner != "adamw":
        raise misuse(
            f"{label!r} cannot step by {plan.inner}.",
            "Its step is made by all peers alike, which is built in for adamw.",
        )
    if plan.robust and plan.strategy in GATHERING | PAIRED:
        raise misuse(
            f"{label!r} cannot be made robust by {cleaned(plan.robust)!r}.",
            "Such a rule takes the place of a mean that owners make.",
        )
    if plan.robust and plan.peers < TELLABLE:
        raise misuse(
            f"{label!r} cannot be made robust with {plan.peers} peers.",
            f"Of two that differ, either may be the hostile one: take {TELLABLE} or more.",
        )
    if plan.pace is Pace.APART and plan.strategy in _AT_ONCE:
        raise misuse(
            f"The peers of {label!r} cannot go apart.",
            "Its ops need everybody at the same inner step: pace is wait or dynamic.",
        )


def attack_of(text: str) -> Attack:
    """An attack by its name.

    Raises:
        UserError: SWT-E610.
    """
    try:
        return Attack(text)
    except ValueError:
        names = ", ".join(attack.value for attack in Attack)
        raise misuse(f"{cleaned(text)!r} is no attack.", f"There are: {names}.") from None
