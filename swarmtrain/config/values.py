"""Checks across settings on how values travel: codec, error feedback, robust rule."""

from collections.abc import Iterator

from swarmtrain.config.problem import Problem
from swarmtrain.config.settings import RunConfig
from swarmtrain.foundation.errors import cleaned
from swarmtrain_optimizers.codec_facts import ANCHOR_CODECS, CODEC_NAMES, CodecFacts, facts_of
from swarmtrain_optimizers.strategies.facts import OpKind
from swarmtrain_transport.ledger.inner_products import CENTRED, NORMS, PRODUCTS

WHOLE_VECTOR_RULES = {"norm-clip": NORMS, "centered-clip": CENTRED, "flag": PRODUCTS}
"""Robust rules that need more than a slice, and what; every owner can follow the others alone."""

ANCHOR_REASON = (
    "Half of what a pair sends are anchors, the weights themselves: what a codec of few bits loses "
    "of them does not grow less as training goes on, and drives the replicas apart."
)
"""Reason why ops that go by pairs want a codec with `CodecFacts.carries_anchors`."""

TELLABLE = 3
"""Contributors of which a robust rule can tell one from the others."""


def loses_for_good(config: RunConfig) -> bool:
    """Return True if a codec leaves values out, or sends wrong ones on average, and nothing makes
    up."""
    facts = config.facts
    if not facts_of(config.exchange.codec).is_biased or facts.feeds_back:
        return False
    return "error_feedback" not in facts.takes or not config.outer.error_feedback


def value_problems(config: RunConfig) -> Iterator[Problem]:
    """Check for combinations that cannot work, or would be left undone without a word."""
    codec = config.exchange.codec
    try:
        facts = facts_of(codec)
    except ValueError:
        names = ", ".join(CODEC_NAMES)
        yield Problem("exchange.codec", f"must be one of {names}; it is {cleaned(codec)!r}")
        return
    yield from _codec_problems(config, facts)
    yield from _robust_problems(config)


def _codec_problems(config: RunConfig, facts: CodecFacts) -> Iterator[Problem]:
    exchange, strategy = config.exchange, config.outer.strategy
    if config.facts.kind is OpKind.PAIR and not facts.carries_anchors:
        yield Problem(
            "exchange.codec",
            f"must be {' or '.join(ANCHOR_CODECS)} with outer.strategy {strategy}, it is "
            f"{exchange.codec}",
            ANCHOR_REASON,
        )
    if text := facts.block_problem(exchange.block):
        yield Problem(
            "exchange.block",
            f"{text} with exchange.codec {exchange.codec}, it is {exchange.block}",
            "A block's codes fill whole bytes, and of a block topk keeps some values.",
        )
    if exchange.rounding == "stochastic" and not facts.dithers:
        yield Problem(
            "exchange.rounding",
            f"must be nearest with exchange.codec {exchange.codec}, it is stochastic",
            "Only int8, int4 and e3m0 have levels enough to round to either side.",
        )


def _robust_problems(config: RunConfig) -> Iterator[Problem]:
    robust = config.outer.robust
    if robust == "none":
        return
    if config.exchange.min_contributors < TELLABLE:
        yield Problem(
            "exchange.min_contributors",
            f"must be at least {TELLABLE} with outer.robust {robust}, it is "
            f"{config.exchange.min_contributors}",
            "If two differ, either may be the hostile one.",
        )
