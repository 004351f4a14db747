"""The facts of a strategy: everything that is known of it without its arithmetic.

Each strategy states them in the face of its package. The run file's checks, the coordinator's
plans, `swarmtrain compare`, the demo and docs/run-file.md read them there and name no strategy
themselves. A package that brings a strategy states them in the same way. A module that imports
facts must not load torch: the coordinator reads them. Not here: the list of strategies
(`registry`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import msgspec

Value = bool | int | float | str
"""Value of a setting."""

Numbers = Callable[[str], float]
"""A run file's number by its path, ``outer.lr`` or ``strategy.NAME.KEY``."""

Misfit = tuple[str, str, str]
"""Path of a setting, the rest of a sentence that begins with it, the reason."""

MEANS_TAKE = frozenset({"inner_steps", "lr", "momentum", "error_feedback"})
"""Settings of [outer] that most strategies have."""


MOMENTS = frozenset({"momentum", "direction"})
"""Arrays of a shared state that a run which begins anew may go on with: sums of differences, which
fade. Adam's moments are none: their correction counts steps from zeros on."""


class OpKind(Enum):
    """Kind of exchange: how contributions reach the peers.

    MEAN: everybody gets the weighted mean, made once by the owners of its slices.
    GATHER: everybody gets every contribution, and makes the weighted mean itself.
    PAIR: each gets the contribution of one partner, drawn anew for each op: two vectors, a
    difference and then an anchor, or one, the weights.
    """

    MEAN = "mean"
    GATHER = "gather"
    PAIR = "pair"


class OwnSettings(msgspec.Struct, frozen=True):
    """The section [strategy.NAME], empty here. A strategy with settings that no other has
    inherits, and declares each with a default, and with `msgspec.Meta` its range and what it is.
    The docstring is a note in docs/run-file.md."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates that `swarmtrain compare` takes where nobody says otherwise.

    Attributes:
        inner_lr: the inner optimizer's highest learning rate.
        outer_lr: learning rate of the outer step.
        outer_momentum: momentum of the outer step.
    """

    inner_lr: float = 0.004
    outer_lr: float = 0.7
    outer_momentum: float = 0.5


@dataclass(frozen=True, slots=True)
class StrategyFacts:
    """One strategy.

    Attributes:
        name: `outer.strategy` of a run file.
        maker: ``module:name`` of the class or function that makes it, called with the length of the
            padded vector, and what it takes and its own settings by keyword.
        about: the idea, in less than a line.
        paper: the source.
        kind: kind of the ops; None if it never exchanges.
        vectors: number of vectors in each contribution to a pair op, 1 or 2.
        takes: keywords that a run gives the maker: of [outer] ``inner_steps``, ``lr``,
            ``momentum``, ``error_feedback``, ``delay_steps``, ``mixing``, ``lr_rule``,
            ``last_merge`` and ``fragments`` (as `fragments.Ranges`); ``optimizer`` and ``schedule``
            of a step that all peers make alike, and ``by_samples``, whether that schedule goes by
            samples; ``seed`` of the run, ``block`` of the exchange, and ``num_used``, the length of
            the vector without padding.
        settings: section [strategy.NAME]; also keywords of the maker.
        planned: own settings that the coordinator's plans follow (`RunTerms`): ``buffer``,
            ``staleness``, ``max_stale`` and ``graph``; the maker gets those that it names.
        graph: edges along which pairs meet, where no setting says it: ``clocks``: two that are
            ready.
        defaults: values, by path, where a run file says nothing, in place of diloco's.
        wants: the only value that a setting may have with it, and the reason, by path.
        misfits: finds numbers that do not fit together.
        state: arrays of the shared state in their order; all but the anchor begin as zeros. Empty
            where that is known to nobody without its arithmetic.
        peak_vectors: float32 vectors that a peer holds at most, error feedback among them, beside
            weights, gradients and inner optimizer (benchmarks/memory.py).
        takes_gradients: True if it exchanges the gradients of every step; no inner optimizer then.
        probes: True if inner steps only ask what batches lose beside the weights (`base.Probing`);
            no inner optimizer then, and weights to begin with, as none are learned from nothing.
        overlaps: True if inner steps go on during an op, so that all peers of a whole model must be
            at the same one.
        acts_between: True if it acts on the weights after every inner step (`base.ActsBetween`), so
            that one process must make all steps of the whole model.
        hurries: True if slow peers make so few inner steps that even the fastest need not wait;
            else only those do with whom most would wait.
        feeds_back: True if a codec's loss is always sent later, without a setting.
        rates: defaults of `swarmtrain compare`.
        swept: commit whose sweep (benchmarks/shapes) found `rates`; "" if none did.
        compared_in: codec in `swarmtrain compare`, "" for that of a run.
        demo: settings of `swarmtrain demo`, by path; empty if it does not show this strategy.
    """

    name: str
    maker: str
    about: str
    paper: str = ""
    kind: OpKind | None = OpKind.MEAN
    vectors: int = 2
    takes: frozenset[str] = MEANS_TAKE
    settings: type[OwnSettings] = OwnSettings
    planned: frozenset[str] = frozenset()
    graph: str = ""
    defaults: Mapping[str, Value] = field(default_factory=dict)
    wants: Mapping[str, tuple[Value, str]] = field(default_factory=dict)
    misfits: Callable[[Numbers], Iterable[Misfit]] = lambda number: ()
    state: tuple[str, ...] = ()
    peak_vectors: float = 5.0
    takes_gradients: bool = False
    probes: bool = False
    overlaps: bool = False
    acts_between: bool = False
    hurries: bool = False
    feeds_back: bool = False
    rates: Rates = Rates()
    swept: str = ""
    compared_in: str = ""
    demo: Mapping[str, Value] = field(default_factory=dict)

    @property
    def has_rounds(self) -> bool:
        """True if peers exchange what inner steps of their own have made, however many each has."""
        return self.kind is not None and not self.takes_gradients and not self.probes

    @property
    def fits_stages(self) -> bool:
        """True if a model in stages can be trained by it: stages step at paces of their own."""
        return self.has_rounds and not self.acts_between and not self.planned

    @property
    def diverges(self) -> bool:
        """True if peers' models differ at the end of a run, so that a last merge changes them."""
        return self.kind in (None, OpKind.PAIR)

    @property
    def moments(self) -> tuple[str, ...]:
        """Arrays of the state that another run by this strategy may begin with."""
        return tuple(name for name in self.state if name in MOMENTS)

    def merging(self) -> "StrategyFacts":
        """The facts where a last merge is asked for: who never exchanged else then gives means."""
        return replace(self, kind=OpKind.MEAN) if self.kind is None else self

    def is_delayed(self, delay_steps: int) -> bool:
        """Return True if results have their place at a later inner step.

        Args:
            delay_steps: the setting, which a strategy that does not take it decides itself.
        """
        return self.overlaps and (delay_steps > 0 or "delay_steps" not in self.takes)
