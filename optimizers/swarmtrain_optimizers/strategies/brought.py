"""Names of strategies that installed packages bring: found without importing any of them."""

from importlib.metadata import EntryPoint, entry_points

GROUP = "swarmtrain.strategies"
"""The group of entry points that is searched."""


def brought(name: str | None = None) -> tuple[EntryPoint, ...]:
    """The entry points of strategies, of one name or of all."""
    if name is None:
        return tuple(entry_points(group=GROUP))
    return tuple(entry_points(group=GROUP, name=name))


def brought_names() -> tuple[str, ...]:
    """Names that packages bring, in order; loads neither them nor torch."""
    return tuple(sorted({point.name for point in brought()}))
