"""The rates that strategies are compared with where nobody asks for others.

`python benchmarks/shapes/run.py --write-tuned FILE` writes this file's table anew from the winners
of its sweeps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Rates:
    """What a joint sweep chooses together.

    Attributes:
        inner_lr: the inner optimizer's highest learning rate.
        outer_lr: eta of the outer step.
        outer_momentum: mu of the outer step.
    """

    inner_lr: float
    outer_lr: float
    outer_momentum: float


SOURCE = "benchmarks/shapes/run.py of commit 480ccc7; not swept: local, delayed_nesterov (diloco's)"
"""Where the numbers below come from."""

TUNED: Mapping[str, Rates] = MappingProxyType(
    {
        "ddp": Rates(0.008, 1.0, 0.0),
        "local": Rates(0.004, 1.0, 0.0),
        "diloco": Rates(0.004, 0.7, 0.5),
        "streaming": Rates(0.004, 0.7, 0.9),
        "delayed": Rates(0.008, 0.5, 0.0),
        "eager": Rates(0.004, 1.0, 0.0),
        "delayed_nesterov": Rates(0.004, 0.7, 0.5),
        "noloco": Rates(0.004, 0.9, 0.5),
        "sparseloco": Rates(0.004, 1.0, 0.0),
    }
)
"""By strategy."""
