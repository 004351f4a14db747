"""Train one model together: ordinary computers, ordinary internet links."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swarmtrain.hook.api import join as join
    from swarmtrain.hook.api_stages import StagedModel as StagedModel
    from swarmtrain.hook.api_stages import join_stages as join_stages
    from swarmtrain.hook.swarm import Swarm as Swarm

__version__ = "0.1.0"

_LAZY = {
    "Swarm": "swarmtrain.hook.swarm",
    "join": "swarmtrain.hook.api",
    "StagedModel": "swarmtrain.hook.api_stages",
    "join_stages": "swarmtrain.hook.api_stages",
}
"""Names that need torch: they are resolved when asked for, so that importing this loads nothing."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
