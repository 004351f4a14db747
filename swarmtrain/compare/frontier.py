"""The frontier: which strategy, length of rounds and codec lose least for their bytes and seconds.

Every point of a search is tried with the same number of inner learning rates about the strategy's
own, on the first seed alone; the best of them is then run for all seeds. A point is on the frontier
of a cost if no other has a loss as low for less. Costs are the bytes that a peer sends, and the
modelled seconds over each link. What was found is kept beside the runs, as `swarmtrain plan` offers
it. Not here: the runs, and torch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from swarmtrain.compare.plan import NETS, Plan
from swarmtrain.compare.results import RunResult, rows
from swarmtrain.config.settings import Setting
from swarmtrain.console.table import plain_lines, table_of
from swarmtrain.console.units import human_bytes
from swarmtrain.foundation import atomic_file
from swarmtrain.foundation.errors import cleaned, misuse
from swarmtrain_optimizers.strategies.registry import facts_named

GRID = ",".join(
    (
        "ddp",
        "diloco:inner_steps=20/100/500:codec=int8/e3m0",
        "diloco:inner_steps=20/100/500:codec=two_bit:error_feedback=yes",
        "diloco:inner=muon:inner_steps=20/100/500",
        "diloco:inner=muon:inner_steps=20/100/500:codec=two_bit:error_feedback=yes",
        "streaming:inner_steps=20/100/500",
        "eager:inner_steps=20/100",
        "noloco:inner_steps=20/100/500",
        "sparseloco:inner_steps=20/100/500:codec=topk-64/topk-512",
    )
)
"""Points that are searched where nobody names others."""

FILE = "frontier.json"

BASELINE = "ddp"
WITHIN = 1.02
"""A point as good as ddp loses at most so much of its loss."""

BYTES = "bytes"

_FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25)


class Found(msgspec.Struct, frozen=True):
    """One point, at the best of the rates that were tried.

    Attributes:
        words: the strategy with its settings, as `swarmtrain compare` reads it.
        strategy: name of the strategy.
        settings: values of a run file, by path.
        loss: nats per byte, mean over seeds; None if one diverged.
        costs: bytes that a peer sends, and modelled seconds by link.
    """

    words: str
    strategy: str
    settings: dict[str, Setting]
    loss: float | None
    costs: dict[str, float]


class Search(msgspec.Struct, frozen=True):
    """All points of a search.

    Attributes:
        model: a name of `plan.SIZES`.
        peers: replicas of each run.
        steps: inner steps of each peer.
        tries: rates that each point was tried with.
        seeds: seeds that the best of them has run with.
        points: in the order in which they were asked for.
    """

    model: str
    peers: int
    steps: int
    tries: int
    seeds: int
    points: tuple[Found, ...]

    @property
    def baseline(self) -> Found | None:
        """The best point of ddp, if there is one."""
        found = [one for one in self.points if one.strategy == BASELINE and one.loss is not None]
        return min(found, key=_loss, default=None)

    def frontier(self, cost: str) -> tuple[Found, ...]:
        """The points that no other beats in both loss and this cost, cheapest first."""
        found: list[Found] = []
        for one in sorted(self.points, key=lambda point: (point.costs[cost], _loss(point))):
            if one.loss is not None and (not found or one.loss < _loss(found[-1])):
                found.append(one)
        return tuple(found)

    def as_good(self) -> tuple[Found, ...]:
        """The points within 2 % of the baseline's loss, and it."""
        limit = WITHIN * _loss(self.baseline) if self.baseline is not None else -math.inf
        return tuple(one for one in self.points if _loss(one) <= limit)


def search(
    points: Sequence[Plan],
    tries: int,
    seeds: Sequence[int],
    run: Callable[[Sequence[Plan]], Sequence[RunResult]],
) -> tuple[Search, list[RunResult]]:
    """Try every point, and run the best of each.

    Args:
        points: one plan per point.
        tries: number of inner rates for each.
        seeds: rates are chosen by the first.
        run: makes runs, or finds those that are kept; results in the order of plans.

    Returns:
        The findings, and the runs of the best.

    Raises:
        UserError: SWT-E610, a point says its rate itself, or is in a pipeline.
    """
    tried = [replace(one, seed=seeds[0]) for point in points for one in _tried(point, tries)]
    losses = [math.inf if one.val_loss is None else one.val_loss for one in run(tried)]
    best = []
    for first in range(0, len(tried), tries):
        place = min(range(first, first + tries), key=losses.__getitem__)
        best.append(tried[place])
    results = list(run([replace(plan, seed=seed) for plan in best for seed in seeds]))
    found = tuple(
        _found(plan, results[index * len(seeds) : (index + 1) * len(seeds)])
        for index, plan in enumerate(best)
    )
    one = points[0]
    return Search(one.size, one.peers, one.steps, tries, len(seeds), found), results


def _tried(point: Plan, tries: int) -> list[Plan]:
    """Plans of the same point with other rates."""
    label = cleaned(point.label)
    if "inner_lr=" in point.label:
        raise misuse(
            f"{label!r} says the rate that a search tries.", "Leave inner_lr of single points out."
        )
    if point.pipeline is not None:
        raise misuse(f"{label!r} is a pipeline.", "A search is over models in one piece.")
    rates = [float(f"{factor * point.inner_lr:.3g}") for factor in _FACTORS[:tries]]
    return [replace(point, label=f"{point.label}:inner_lr={r:g}", inner_lr=r) for r in rates]


def _found(plan: Plan, runs: Sequence[RunResult]) -> Found:
    (row,) = rows(runs)
    costs = {BYTES: row.bytes_up_per_peer, **row.seconds_by_net}
    return Found(plan.label, plan.strategy, _settings(plan), row.loss, costs)


def _settings(plan: Plan) -> dict[str, Setting]:
    """Values of a run file for it, but for the inner rate, which goes by the model's size."""
    facts = facts_named(plan.strategy)
    values: dict[str, Setting] = {"outer.strategy": plan.strategy}
    for key, value in (
        ("inner_steps", plan.inner_steps), ("lr", plan.outer_lr), ("momentum", plan.outer_momentum),
    ):  # fmt: skip
        if key in facts.takes:
            values[f"outer.{key}"] = value
    if plan.error_feedback:
        values["outer.error_feedback"] = True
    if plan.inner != "adamw":
        values["inner.optimizer"] = plan.inner
    if facts.kind is not None:
        values["exchange.codec"] = plan.codec
    values |= {f"strategy.{plan.strategy}.{key}": value for key, value in plan.own}
    return values


def _loss(point: Found | None) -> float:
    return math.inf if point is None or point.loss is None else point.loss


# ---- kept, and for people


def keep(found: Search, directory: Path) -> None:
    """Write it beside the runs, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    atomic_file.write(directory / FILE, msgspec.json.format(msgspec.json.encode(found)) + b"\n")


def kept(directory: Path) -> Search | None:
    """The last search's findings, if they are there and whole."""
    try:
        found = msgspec.json.decode((directory / FILE).read_bytes(), type=Search)
    except (OSError, ValueError):
        return None
    is_whole = all({BYTES, *NETS} <= one.costs.keys() for one in found.points)
    return found if is_whole else None


def as_json(found: Search) -> dict[str, object]:
    """All points, and the frontier of each cost by its points' words."""
    frontiers = {cost: [one.words for one in found.frontier(cost)] for cost in (BYTES, *NETS)}
    return {**msgspec.to_builtins(found), "frontiers": frontiers}


def in_words(found: Search, command: Callable[[str], str]) -> list[str]:
    """The table, the frontiers, and the command of each point.

    Args:
        found: all points.
        command: the command that makes a point's run, by its words.
    """
    base = found.baseline
    frontiers = {cost: found.frontier(cost) for cost in (BYTES, *NETS)}
    titles = ("", "strategy", "codec", "rounds of", "loss", "by ddp's", "bytes/peer", "fewer",
              *(f"s, {net}" for net in NETS), "frontier of")  # fmt: skip
    lines = []
    for number, one in enumerate(found.points, 1):
        fewer = base.costs[BYTES] / one.costs[BYTES] if base and one.costs[BYTES] else 0.0
        ratio = _loss(one) / _loss(base) if base else math.nan
        lines.append(
            (
                str(number), one.words, str(one.settings.get("exchange.codec", "-")),
                str(one.settings.get("outer.inner_steps", 1)),
                "diverged" if one.loss is None else f"{one.loss:.4f}",
                f"{ratio:.3f}" if math.isfinite(ratio) else "-",
                human_bytes(one.costs[BYTES]), f"{fewer:.0f} x" if fewer else "-",
                *(f"{one.costs[net]:.3g}" for net in NETS),
                ", ".join(cost for cost, points in frontiers.items() if one in points) or "-",
            )
        )  # fmt: skip
    table = plain_lines(table_of(titles, lines, right=[titles[0], *titles[3:-1]]))
    commands = [f"{number:>3}  {command(one.words)}" for number, one in enumerate(found.points, 1)]
    return [*table, "", *commands, "", *best_in_words(found)]


def best_in_words(found: Search) -> list[str]:
    """Say which points are as good as ddp for the least of each cost."""
    base = found.baseline
    if base is None:
        return [f"No point of {BASELINE} to compare with: name {BASELINE} among the strategies."]
    lines = []
    for cost in (BYTES, *NETS):
        best = min(found.as_good(), key=lambda one: one.costs[cost])
        unit = "fewer bytes" if cost == BYTES else f"less time over {cost}"
        less = base.costs[cost] / best.costs[cost] if best.costs[cost] else math.inf
        lines.append(f"Within 2 % of ddp's loss: {best.words}, {less:.3g} x {unit}")
    return lines
