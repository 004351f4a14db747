"""Robust rules: one vector from contributions of which some may be hostile. One rule, one file;
this face finds them by name, with their default settings."""

from swarmtrain_optimizers.robust.base import RobustRule
from swarmtrain_optimizers.robust.centered_clip import CenteredClip
from swarmtrain_optimizers.robust.coordinate_median import CoordinateMedian
from swarmtrain_optimizers.robust.flag import FlagAggregator
from swarmtrain_optimizers.robust.norm_clip import NormClip
from swarmtrain_optimizers.robust.trimmed_mean import TrimmedMean

_RULES: tuple[RobustRule, ...] = (
    NormClip(),
    TrimmedMean(),
    CoordinateMedian(),
    CenteredClip(),
    FlagAggregator(),
)
RULES: dict[str, RobustRule] = {rule.name: rule for rule in _RULES}


def rule_named(name: str) -> RobustRule:
    """The rule with this name, with its default settings.

    Raises:
        ValueError: this version knows no such rule.
    """
    try:
        return RULES[name]
    except KeyError:
        known = ", ".join(sorted(RULES))
        raise ValueError(f"rule {name!r} is not known to this version; it knows {known}") from None
