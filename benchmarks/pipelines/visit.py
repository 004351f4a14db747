"""Routes that leave stages out: time beside a slow stage, loss, and a model without a stage.

    python benchmarks/pipelines/visit.py --what time [--json]
    python benchmarks/pipelines/visit.py --what loss [--seeds 3] [--first-seed 0] [--json]

Six stages of two peers each under `compare`'s virtual clock, over fibre; four stages of six are
visited. `time`: a run whose middle stage takes three times as long for a pass, by the same with all
stages visited, and by routes that are drawn at random. `loss`: without a slow stage, equal
tokens, held-out loss of the whole model; and the perplexity without one of the stages between, the
worst of them, by that of the whole. Exit status 1 beyond a bar.
"""

import argparse
import math
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rig import machine, parser_of, told

from swarmtrain.compare import request
from swarmtrain.compare.pipeline_swarm import PipelineSwarm
from swarmtrain.compare.plan import Plan
from swarmtrain.compare.results import RunResult
from swarmtrain.compare.shards import PIECE_BYTES
from swarmtrain.data.corpus import Corpus, build_corpus

TIME, LOSS, PERPLEXITY = 0.7, 1.03, 1.10
"""Bars: seconds by those of full routes, loss by theirs at equal tokens, perplexity without the
worst of the stages between by that of the whole model."""

SLOW = 3
ROUTES = {"full": "", "visit": ":visit=4", "at random": ":visit=4:drawn=random"}


def result(options: argparse.Namespace, corpus: Corpus, more: str, seed: int) -> RunResult:
    """One run."""
    words = f"diloco:pipeline=6x2:micro_batch=2:slots=12{more}"
    base = Plan(
        label="", strategy="", codec="", peers=2, steps=options.steps, inner_steps=50,
        size="deep", net="fibre", points=2, inner_lr=options.inner_lr, outer_lr=0.7,
        outer_momentum=0.5,
    )  # fmt: skip
    given = {"inner_lr": options.inner_lr, "outer_lr": 0.7, "outer_momentum": 0.5}
    (plan,) = request.plans(words, base, [seed], given)
    assert plan.pipeline is not None
    return PipelineSwarm(plan, plan.pipeline, corpus).run()


def spread(values: list[float]) -> dict[str, float]:
    """Mean and spread over seeds."""
    return {"mean": mean(values), "spread": stdev(values) if len(values) > 1 else 0.0}


def times(options: argparse.Namespace, corpus: Corpus) -> dict[str, Any]:
    """Seconds of the same tokens, with a slow stage."""
    seconds: dict[str, list[float]] = {name: [] for name in ROUTES}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name, more in ROUTES.items():
            one = result(options, corpus, f"{more}:slow={SLOW}", seed)
            seconds[name].append(one.modelled_seconds)
    by_full = [a / b for a, b in zip(seconds["visit"], seconds["full"], strict=True)]
    by_chance = [a / b for a, b in zip(seconds["visit"], seconds["at random"], strict=True)]
    return {
        "seconds": seconds, "by_full": spread(by_full), "by_random": spread(by_chance),
        "bar": TIME, "holds": mean(by_full) <= TIME,
    }  # fmt: skip


def losses(options: argparse.Namespace, corpus: Corpus) -> dict[str, Any]:
    """Losses at equal tokens, and those without a stage."""
    full, visit, without = [], [], []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        full.append(result(options, corpus, "", seed).val_loss or math.inf)
        one = result(options, corpus, ROUTES["visit"], seed)
        visit.append(one.val_loss or math.inf)
        without.append([loss or math.inf for loss in one.losses_without])
    ratios = [a / b for a, b in zip(visit, full, strict=True)]
    lost = [math.exp(max(some) - loss) for some, loss in zip(without, visit, strict=True)]
    return {
        "full": full, "visit": visit, "without": without, "loss": spread(ratios),
        "perplexity": spread(lost), "bars": [LOSS, PERPLEXITY],
        "loss_holds": mean(ratios) <= LOSS, "perplexity_holds": mean(lost) <= PERPLEXITY,
        "holds": mean(ratios) <= LOSS and mean(lost) <= PERPLEXITY,
    }  # fmt: skip


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One of both."""
    corpus = build_corpus(PIECE_BYTES)
    found = (times if options.what == "time" else losses)(options, corpus)
    return found | machine()


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--what", choices=("time", "loss"), required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400, help="of each source")
    parser.add_argument("--inner-lr", type=float, default=0.004)
    sys.exit(told(parser.parse_args(), measure, "{}: {}".format))
