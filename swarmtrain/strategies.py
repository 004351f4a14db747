"""Makes strategies from settings: the one place where a name and settings become a strategy.

A strategy says what it wants by the keywords of whatever makes it, and gets those of the settings
that have these names: the run file's, which everybody shares, then what its own section says. So
a strategy that a package brings is made as swarmtrain's own are. Pure; not here: where settings
come from, but for the run file's.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swarmtrain.config.settings import InnerSection, RunConfig, Setting
from swarmtrain.errors import UserError, cleaned
from swarmtrain.models.tensors import Layout
from swarmtrain_optimizers.scaling import schedule_step
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_optimizers.strategies.base import OpKind, Strategy
from swarmtrain_optimizers.strategies.ddp import AdamW
from swarmtrain_optimizers.strategies.fragments import Ranges, fragments_of
from swarmtrain_optimizers.strategies.registry import BUILT_IN, strategy_named

_NOT_SETTINGS = frozenset({"num_values", "dtype"})
"""Keywords that are not the run's to choose."""

_NO_KEYWORDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


@dataclass(frozen=True, slots=True)
class StrategySettings:
    """Everything that a strategy can be made of.

    Attributes:
        name: of the strategy.
        numbers: settings by the keyword that asks for them: ``inner_steps``, ``lr``, ``momentum``,
            ``error_feedback``, ``delay_steps``, ``alpha`` and what else there is.
        fragments: how many parts the vector is cut into for one that wants ``fragments``.
        block: values of a block, which no cut divides.
        inner: for one that wants ``optimizer`` and ``schedule``: the inner optimizer's settings.
        total_steps: inner steps of the whole schedule.
        samples_per_step: of a schedule that is asked by samples of the whole swarm; 0 for one that
            is asked by steps.
        own: what only this strategy knows; counts more than `numbers`.
    """

    name: str
    numbers: Mapping[str, Setting]
    fragments: int
    block: int
    inner: InnerSection
    total_steps: int
    own: Mapping[str, Setting]
    samples_per_step: int = 0


def make_strategy(settings: StrategySettings, layout: Layout) -> Strategy:
    """A fresh strategy for a model of this layout.

    Raises:
        ValueError: nobody brings it, a setting is one that it does not take, is missing or does
            not do, or what a package brings exchanges something else than means.
    """
    maker = strategy_named(settings.name)
    wanted = _keywords(maker)
    unknown = sorted(set(settings.own) - set(wanted))
    if unknown:
        takes = ", ".join(sorted(set(wanted) - _MADE)) or "none"
        raise ValueError(f"{settings.name} has no setting {cleaned(unknown[0])}; it takes {takes}")
    values: dict[str, object] = {}
    for keyword, parameter in wanted.items():
        if keyword in settings.own:
            values[keyword] = settings.own[keyword]
        elif keyword in settings.numbers:
            values[keyword] = settings.numbers[keyword]
        elif keyword in _MADE:
            values[keyword] = _made(keyword, settings, layout)
        elif parameter.default is inspect.Parameter.empty:
            raise ValueError(
                f"{settings.name} needs a setting {keyword}: write it in its own section, "
                f"[strategy.{settings.name}]"
            )
    strategy = _called(settings.name, maker, layout.padded, values)
    kind = strategy.exchange(1).kind
    if settings.name not in BUILT_IN and kind is not OpKind.MEAN:
        raise ValueError(
            f"{settings.name} exchanges by {kind.value}; one that a package brings can "
            "only have means"
        )
    return strategy


def settings_of(config: RunConfig) -> StrategySettings:
    """What a run file says of its strategy."""
    outer, by_tokens = config.outer, config.inner.schedule == "tokens"
    return StrategySettings(
        name=outer.strategy,
        numbers={
            "inner_steps": outer.inner_steps,
            "lr": outer.lr,
            "momentum": outer.momentum,
            "error_feedback": outer.error_feedback,
            "delay_steps": outer.delay_steps,
            "alpha": outer.mixing,
            "lr_by_swarm": outer.lr_rule == "contributors",
            "by_samples": by_tokens,
            "arrivals": 1,  # peers that keep pace with each other arrive together
            "first_share": 1 / config.exchange.start_peers,
        },
        fragments=outer.fragments,
        block=config.exchange.block,
        inner=config.inner,
        total_steps=config.schedule_steps,
        samples_per_step=config.exchange.start_peers * config.inner.batch if by_tokens else 0,
        own=config.strategy.get(outer.strategy, {}),
    )


def strategy_of(config: RunConfig, layout: Layout) -> Strategy:
    """The strategy that a run file names, for a model of this layout.

    Raises:
        UserError: SWT-E605, nobody brings it here, or its settings do not do for it or the model.
    """
    try:
        return make_strategy(settings_of(config), layout)
    except ValueError as error:
        name, fragments = config.outer.strategy, config.outer.fragments
        if name == "streaming":
            what = f"outer.fragments is {fragments}, and this model cannot be cut so: {error}."
            why = "Fragments are made of whole layers, and cut between blocks."
            remedy = "Have the organiser set fewer outer.fragments or a smaller exchange.block."
        else:
            what = f"The run's strategy {cleaned(name)} cannot be made here: {error}."
            why = "All peers of a run step by the same rule."
            remedy = "Install the package that brings it, or have the organiser correct settings."
        raise UserError("SWT-E605", what, why, remedy) from error


def _keywords(maker: Callable[..., Strategy]) -> dict[str, inspect.Parameter]:
    """What the maker can be given by name, but for what is not the run's to choose."""
    parameters = list(inspect.signature(maker).parameters.values())[1:]
    return {
        one.name: one
        for one in parameters
        if one.name not in _NOT_SETTINGS
        and one.kind not in (*_NO_KEYWORDS, inspect.Parameter.VAR_KEYWORD)
    }


def _called(
    name: str, maker: Callable[..., Strategy], num_values: int, values: Mapping[str, object]
) -> Strategy:
    """The strategy. What a package's own code raises on settings is told as its refusal."""
    try:
        return maker(num_values, **values)
    except TypeError as error:
        if name in BUILT_IN:
            raise
        raise ValueError(f"{name} does not take its settings: {error}") from error


def _made(keyword: str, settings: StrategySettings, layout: Layout) -> object:
    return _MADE_BY[keyword](settings, layout)


def _fragments(settings: StrategySettings, layout: Layout) -> tuple[Ranges, ...]:
    parameters = [(spec.name, spec.num_values) for spec in layout.parameters]
    return fragments_of(
        parameters, settings.fragments, block=settings.block, num_values=layout.padded
    )


def _optimizer(settings: StrategySettings, layout: Layout) -> AdamW:
    inner = settings.inner
    return AdamW(beta1=inner.beta1, beta2=inner.beta2, weight_decay=inner.weight_decay)


def _schedule(settings: StrategySettings, layout: Layout) -> Callable[[int], float]:
    """The inner learning rate, which everybody's common step then has."""
    inner, total_steps = settings.inner, settings.total_steps
    samples = max(1, settings.samples_per_step)

    def rate(place: int) -> float:
        step = schedule_step(place, tokens_per_step=samples)
        return warmup_cosine(
            step,
            peak=inner.lr,
            warmup_steps=inner.warmup_steps,
            total_steps=total_steps,
            end_fraction=inner.lr_end_fraction,
        )

    return rate


_MADE_BY: Mapping[str, Callable[[StrategySettings, Layout], object]] = {
    "fragments": _fragments,
    "optimizer": _optimizer,
    "schedule": _schedule,
}
_MADE = frozenset(_MADE_BY)
"""Keywords whose values are no numbers; swarmtrain's own."""
