"""A run as a shape asks for it, and the plan that it becomes.

A trial says what is run; how long, on which model and for how many seeds is said by its length,
so that the same table can be made in full or tiny, as a test makes it. Rates come from the sweep
that the trial names. Not here: which trials there are.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from swarmtrain.compare import request
from swarmtrain.compare.plan import SIZES, Attack, Plan
from swarmtrain.compare.results import RunResult
from swarmtrain_optimizers.strategies.facts import Rates
from swarmtrain_optimizers.strategies.registry import facts_named


class Length(Enum):
    """Length of a trial, by what it is for."""

    SHORT = "short"
    FRAGMENTS = "fragments"
    LONG = "long"
    HOSTILE = "hostile"
    TIMING = "timing"
    CONFIRM = "confirm"
    SWEEP = "sweep"
    FINAL = "final"
    FAR = "far"
    FAR_ONCE = "far once"
    MERGE = "merge"
    MERGE_SWEEP = "merge sweep"


@dataclass(frozen=True, slots=True)
class Span:
    """A length in figures.

    Attributes:
        steps: inner steps of each peer.
        inner_steps: of a round.
        size: name of the model.
        is_single: whether one seed is enough.
        fragments: of streaming.
    """

    steps: int
    inner_steps: int
    size: str = "sweep"
    is_single: bool = False
    fragments: int = 3


@dataclass(frozen=True, slots=True)
class Edition:
    """The whole table at one scale.

    Attributes:
        name: full or quick.
        spans: of every length.
        points: of a curve.
        windows: of held-out text per judgement.
        seeds: of every shape that has more than one.
        grid: how many points of a sweep's grid are run; 0 for all.
        finalists: how many of them are run again at full length.
        far_finalists: how many where that is the length of the longest runs.
    """

    name: str
    spans: Mapping[Length, Span]
    points: int
    windows: int
    seeds: int
    grid: int = 0
    finalists: int = 3
    far_finalists: int = 4

    def num_finalists(self, final: Length) -> int:
        """Return how many points of a sweep run again at the length `final`."""
        return self.far_finalists if final is Length.FAR else self.finalists


FULL = Edition(
    "full",
    {
        Length.SHORT: Span(1000, 50),
        # 51 is a multiple of 3 fragments; 20 whole rounds.
        Length.FRAGMENTS: Span(1020, 51),
        Length.FAR: Span(4000, 50),
        Length.FAR_ONCE: Span(4000, 50, is_single=True),
        # As many rounds as the longest runs at a quarter of their steps.
        Length.MERGE: Span(960, 12),
        Length.MERGE_SWEEP: Span(384, 12, is_single=True),
        Length.LONG: Span(4000, 500),
        Length.HOSTILE: Span(250, 50),
        Length.TIMING: Span(100, 50, is_single=True),
        Length.CONFIRM: Span(612, 51, "demo", is_single=True),
        Length.SWEEP: Span(400, 50, is_single=True),
        Length.FINAL: Span(1000, 50, is_single=True),
    },
    points=10,
    windows=256,
    seeds=3,
)

QUICK = Edition(
    "quick",
    {
        Length.SHORT: Span(4, 2, "tiny", fragments=2),
        Length.FRAGMENTS: Span(4, 2, "tiny", fragments=2),
        Length.FAR: Span(8, 2, "tiny", fragments=2),
        Length.FAR_ONCE: Span(8, 2, "tiny", is_single=True, fragments=2),
        Length.MERGE: Span(8, 2, "tiny", fragments=2),
        Length.MERGE_SWEEP: Span(2, 2, "tiny", is_single=True, fragments=2),
        Length.LONG: Span(8, 4, "tiny", fragments=2),
        Length.HOSTILE: Span(2, 1, "tiny", fragments=2),
        Length.TIMING: Span(2, 1, "tiny", is_single=True, fragments=2),
        Length.CONFIRM: Span(4, 2, "tiny", is_single=True, fragments=2),
        Length.SWEEP: Span(2, 2, "tiny", is_single=True, fragments=2),
        Length.FINAL: Span(4, 2, "tiny", is_single=True, fragments=2),
    },
    points=2,
    windows=2,
    seeds=2,
    grid=1,
    finalists=1,
    far_finalists=1,
)
"""Every trial and every line of the report in seconds; what comes out means nothing."""


_SUBSPACE = re.compile(r"subspace-(\d+)")
"""Shapes say ranks of a width of 64; smaller models have smaller ones."""

UNEQUAL = (1.0, 1.0, 0.5, 0.25)
ASYNCHRONOUS = "asynchronous:pace=dynamic"


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a shape, but for its seed.

    Attributes:
        words: the strategy with settings of its own, as `swarmtrain compare` reads it.
        tuned: the sweep that its rates come from; "" for the strategy's own.
        length: how long.
        peers: replicas.
        speeds: of the peers, () if equal.
        hostile: how many of them attack.
        attack: how.
        noniid: whether each replica's text is a part of its own.
        net: the link that is modelled.
        links: each peer's part of it, () if all have it whole.
    """

    words: str
    tuned: str = ""
    length: Length = Length.SHORT
    peers: int = 4
    speeds: tuple[float, ...] = ()
    hostile: int = 0
    attack: Attack = Attack.SIGN_FLIP
    noniid: bool = False
    net: str = "dsl"
    links: tuple[float, ...] = ()

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return self.words.partition(":")[0]

    @property
    def sweep(self) -> str:
        """Name of the sweep that its rates come from."""
        return self.tuned or self.strategy

    @property
    def label(self) -> str:
        """Tells it from all other trials."""
        parts = [self.words]
        if self.length is not Length.SHORT:
            parts.append(self.length.value)
        if self.peers != 4:
            parts.append(f"{self.peers} peers")
        if self.speeds:
            parts.append("speeds " + ":".join(f"{speed:g}" for speed in self.speeds))
        if self.hostile:
            parts.append(f"{self.hostile} {self.attack.value}")
        if self.noniid:
            parts.append("own text")
        if self.net != "dsl":
            parts.append(self.net)
        if self.links:
            parts.append("links " + ":".join(f"{part:g}" for part in self.links))
        return ", ".join(parts)

    def plan(self, edition: Edition, rates: Rates, seed: int) -> Plan:
        """Return what compare runs.

        Raises:
            UserError: SWT-E610, the trial cannot be meant.
        """
        span = edition.spans[self.length]
        base = Plan(
            label="", strategy="", codec="", peers=self.peers, steps=span.steps,
            inner_steps=span.inner_steps, size=span.size, speeds=self.speeds,
            hostile=self.hostile, attack=self.attack, points=edition.points,
            windows=edition.windows, noniid=self.noniid, net=self.net, links=self.links,
        )  # fmt: skip
        given: dict[str, object] = {
            "inner_lr": rates.inner_lr,
            "outer_lr": rates.outer_lr,
            "outer_momentum": rates.outer_momentum,
        }
        if self.strategy == "streaming":
            given["fragments"] = span.fragments
        width = SIZES[span.size].model.width
        words = _SUBSPACE.sub(lambda m: f"subspace-{max(1, int(m[1]) * width // 64)}", self.words)
        (plan,) = request.plans(words, base, [seed], given)
        return replace(plan, label=self.label, codec=_scaled(plan.codec, span.size))


def _scaled(codec: str, size: str) -> str:
    """Shapes say how many of 4096 values are kept; smaller models choose from fewer."""
    name, _, kept = codec.partition("-")
    if name != "topk" or not kept:
        return codec
    return f"topk-{max(1, int(kept) * SIZES[size].chosen_from // 4096)}"


@dataclass(frozen=True, slots=True)
class Run:
    """A finished trial of one seed."""

    plan: Plan
    result: RunResult


def default_rates(sweep: str) -> Rates:
    """Stand in for rates that have not been chosen yet, where only the cost matters."""
    return facts_named(sweep.partition("-")[0]).rates
