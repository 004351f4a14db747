"""A small text for comparisons in tests, and the plan that fits it."""

from pathlib import Path

import swarmtrain
from swarmtrain.compare.plan import Plan
from swarmtrain.compare.results import RunResult
from swarmtrain.compare.swarm import Swarm
from swarmtrain.data.corpus import Corpus, build_corpus

TINY = Plan(
    "diloco", "diloco", "int8", peers=3, steps=8, inner_steps=3, size="tiny", points=4, windows=8
)


def small_corpus() -> Corpus:
    """The sources of this package's models and data, in short pieces."""
    return build_corpus(2048, root=Path(swarmtrain.__file__).parent / "data")


def run_one(plan: Plan, corpus: Corpus) -> RunResult:
    return Swarm(plan, corpus).run()
