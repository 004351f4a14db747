"""The part of a process that its ops share with the rest of it."""

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Gauged


class Local(Protocol):
    """Facts of the link, and what is counted and seen on the way.

    Attributes:
        waiting: bytes per peer that were given to the link and are not known to have arrived.
        ignored: frames that changed nothing: ``stale`` ones of another plan or attempt,
            ``repeated`` ones.
        gauged: what was seen of others' contributions since the coordinator was told last; while
            there is something nothing more is looked at.
    """

    waiting: Mapping[PeerId, int]
    ignored: Counter[str]
    gauged: Gauged | None
