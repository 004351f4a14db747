"""A strategy that a search of `swarmtrain compare --frontier` found better for these links.

Offered is the point as good as ddp that takes least time over the slowest link, of the last search
that was made on this machine, or else of the one that is told here. Both are of small models on
little text: a suggestion, with its figure, and nothing that a run does by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from swarmtrain.compare.frontier import BYTES, WITHIN, Found, Search, kept
from swarmtrain.compare.plan import NETS
from swarmtrain.config.settings import RunConfig, Setting
from swarmtrain.foundation import dirs
from swarmtrain.plan.forecast import net_named
from swarmtrain_optimizers.strategies.registry import BUILT_IN


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One point.

    Attributes:
        settings: values of a run file, by path.
        loss: loss by that of ddp.
        fewer_bytes: bytes of ddp by its own.
        link: slowest link of the peers.
        less_time: seconds of ddp over it by its own.
        source: origin of these figures, in words.
    """

    settings: dict[str, Setting]
    loss: float
    fewer_bytes: float
    link: str
    less_time: float
    source: str


def suggested(config: RunConfig, links: Sequence[str], found: Search) -> Suggestion | None:
    """Return a point to try; None where nothing beats ddp, or the run has it already.

    Args:
        config: the run's settings; strategies that its stages cannot have are passed over.
        links: links of its peers, as they are named to `forecast`.
        found: points to choose from.
    """
    slowest = min(net_named(name).up_bytes_s for name in links)
    link = min(NETS, key=lambda name: abs(NETS[name].up_bytes_s - slowest))
    base = found.baseline
    if base is None or base.loss is None or link not in base.costs:
        return None
    fitting = [one for one in found.as_good() if one.costs[BYTES] and _fits(one, config)]
    best = min(fitting, key=lambda one: (one.costs[link], one.costs[BYTES]), default=base)
    if best.strategy == base.strategy or best.loss is None or _has(config, best):
        return None
    source = (
        f"`swarmtrain compare --frontier`: model {found.model}, {found.peers} peers, "
        f"{found.steps} steps each"
    )
    return Suggestion(
        best.settings, best.loss / base.loss, base.costs[BYTES] / best.costs[BYTES], link,
        base.costs[link] / best.costs[link], source,
    )  # fmt: skip


def last_search() -> Search:
    """The last one of this machine, or else the one that comes with swarmtrain."""
    return kept(dirs.compared_dir()) or MEASURED


def in_words(found: Suggestion) -> list[str]:
    """The suggestion as lines."""
    settings = ", ".join(f"{key} = {_written(value)}" for key, value in found.settings.items())
    return [
        f"Suggestion   {settings}",
        f"             {found.loss:.3f} of the loss of ddp (at most {WITHIN:g}) for 1/"
        f"{found.fewer_bytes:.0f} of its bytes and 1/{found.less_time:.0f} of its time over "
        f"{found.link}, in {found.source}",
    ]


def _fits(one: Found, config: RunConfig) -> bool:
    facts = BUILT_IN.get(one.strategy)
    return facts is not None and (config.pipeline.num_stages < 2 or facts.fits_stages)


def _has(config: RunConfig, one: Found) -> bool:
    """Return True if the run file says the same already."""
    same = (config.outer.strategy, config.outer.inner_steps, config.exchange.codec)
    keys = ("outer.strategy", "outer.inner_steps", "exchange.codec")
    return same == tuple(one.settings.get(key) for key in keys)


def _written(value: Setting) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


MEASURED = Search(
    "sweep", 4, 4000, 1, 1,
    (
        Found("ddp", "ddp", {}, 1.3734, {
            BYTES: 3.1703e9, "dsl": 3399.9, "mobile": 6435.8, "fibre": 415.1, "lan": 77.56,
        }),
        Found("diloco:inner=muon", "diloco", {
            "outer.strategy": "diloco", "outer.inner_steps": 200, "outer.lr": 0.7,
            "outer.momentum": 0.5, "outer.error_feedback": True, "inner.optimizer": "muon",
            "exchange.codec": "two_bit",
        }, 1.3811, {
            BYTES: 2.4845e6, "dsl": 50.02, "mobile": 54.44, "fibre": 45.64, "lan": 44.06,
        }),
    ),
)  # fmt: skip
"""The points on a frontier of the search in benchmarks/RESULTS.md."""
