"""Makes strategies from settings: the one place where a name and settings become a strategy.

The facts of a strategy say by which keywords it is made: those that a run gives, and its own. So a
strategy that a package brings is made as swarmtrain's own are. Pure; not here: where settings come
from, but for the run file's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature

from swarmtrain.config.asked import own_settings
from swarmtrain.config.settings import InnerSection, RunConfig, Setting
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain.models.tensors import Layout
from swarmtrain_optimizers.scaling import schedule_step
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_optimizers.strategies.base import ActsBetween, Strategy
from swarmtrain_optimizers.strategies.ddp.strategy import AdamW
from swarmtrain_optimizers.strategies.facts import OpKind, StrategyFacts
from swarmtrain_optimizers.strategies.fragments import Ranges, fragments_of
from swarmtrain_optimizers.strategies.registry import BUILT_IN, facts_named, maker_of


@dataclass(frozen=True, slots=True)
class StrategySettings:
    """Ingredients of a strategy.

    Attributes:
        name: name of the strategy.
        numbers: settings by the keyword that asks for them: ``inner_steps``, ``lr``, ``momentum``,
            ``error_feedback``, ``delay_steps``, ``mixing`` and what else there is.
        fragments: number of parts of the vector, for a strategy that wants ``fragments``.
        block: values of a block, which no cut divides.
        inner: the inner optimizer's settings, if it wants ``optimizer`` and ``schedule``.
        total_steps: inner steps of the whole schedule.
        samples_per_step: samples in a step of a schedule that counts the swarm's; 0 for one that
            counts steps.
        own: settings of this strategy alone; they count more than `numbers`.
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
        ValueError: nobody brings it, a setting is one that it does not take or does not do, or it
            is not as its facts say.
    """
    facts = facts_named(settings.name)
    own = {key: field.default for key, field in own_settings(facts).items()}
    if unknown := sorted(settings.own.keys() - own.keys()):
        takes = ", ".join(own) or "none of its own"
        raise ValueError(f"{facts.name} has no setting {cleaned(unknown[0])}; it takes {takes}")
    own |= {key: settings.numbers[key] for key in own.keys() & settings.numbers.keys()}
    values = {key: _given(key, settings, layout) for key in sorted(facts.takes)}
    maker = maker_of(facts)
    try:
        own |= settings.own
        for key in facts.planned - signature(maker).parameters.keys():
            del own[key]
        strategy = maker(layout.padded, **{**values, **own})
    except TypeError as error:
        if facts.name in BUILT_IN:
            raise
        raise ValueError(f"{facts.name} does not take its settings: {error}") from error
    if facts.name not in BUILT_IN:
        check(strategy, facts)
    return strategy


def _given(key: str, settings: StrategySettings, layout: Layout) -> object:
    if key in _MADE_BY:
        return _MADE_BY[key](settings, layout)
    if key in settings.numbers:
        return settings.numbers[key]
    raise ValueError(f"{settings.name} takes {cleaned(key)}, which no run has")


def check(strategy: Strategy, facts: StrategyFacts) -> None:
    """Refuse a strategy that is another than its facts say, or that no driver could step.

    Raises:
        ValueError: it is.
    """
    exchange = strategy.exchange(1)
    vectors = facts.vectors if facts.kind is OpKind.PAIR else 1
    if facts.kind not in (None, exchange.kind):
        raise ValueError(f"{facts.name} exchanges by {exchange.kind.value}, not as its facts say")
    if exchange.vectors != vectors:
        raise ValueError(f"an op of {facts.name} moves {exchange.vectors} vectors, not {vectors}")
    if strategy.takes_gradients != facts.takes_gradients:
        wants = "gradients" if strategy.takes_gradients else "weights"
        raise ValueError(f"{facts.name} wants {wants}, not as its facts say")
    if isinstance(strategy, ActsBetween) != facts.acts_between:
        raise ValueError(f"{facts.name} acts after inner steps, or not, other than its facts say")
    if "anchor" not in dict(strategy.state_arrays()):
        raise ValueError(f"the state of {facts.name} holds no array that is named anchor")


def settings_of(config: RunConfig) -> StrategySettings:
    """Return the part of a run file that is about its strategy."""
    outer, by_tokens = config.outer, config.inner.schedule == "tokens"
    return StrategySettings(
        name=outer.strategy,
        numbers={
            "inner_steps": outer.inner_steps,
            "lr": outer.lr,
            "momentum": outer.momentum,
            "error_feedback": outer.error_feedback,
            "delay_steps": outer.delay_steps,
            "mixing": outer.mixing,
            "lr_rule": outer.lr_rule,
            "last_merge": outer.last_merge,
            "by_samples": by_tokens,
            "seed": config.run.seed,
            "block": config.exchange.block,
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
        if fragments > 1:
            what = f"outer.fragments is {fragments}, and this model cannot be cut so: {error}."
            why = "Fragments are made of whole layers, and cut between blocks."
            remedy = "Have the organiser set fewer outer.fragments or a smaller exchange.block."
        else:
            what = f"The run's strategy {cleaned(name)} cannot be made here: {error}."
            why = "All peers of a run step by the same rule."
            remedy = "Install the package that brings it, or have the organiser correct settings."
        raise UserError("SWT-E605", what, why, remedy) from error


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
    "num_used": lambda settings, layout: layout.num_values,
    "optimizer": _optimizer,
    "schedule": _schedule,
    "block": lambda settings, layout: settings.block,
    "weight_decay": lambda settings, layout: settings.inner.weight_decay,
}
"""Keywords whose values are made for the model, or are no numbers."""
