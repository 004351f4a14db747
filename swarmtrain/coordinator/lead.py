"""The place of the log and of the run's keys for one life of the coordinator."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swarmtrain.coordinator.disk.certificate import KeyFiles, KeyPlace
from swarmtrain.coordinator.disk.store import Store
from swarmtrain_transport.coordinator.ledger_writer import Replayed

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Lead:
    """A store that is open, and its lock held, for one life of the coordinator.

    Attributes:
        others: addresses of coordinators that were seen lately.
        found_at: hears by which address peers find this one.
        replayed: the log, as it was read while another coordinator led; None to read it now.
    """

    store: Store
    keys: KeyPlace
    others: Callable[[], list[Address]] = list
    found_at: Callable[[Address], None] = lambda address: None
    replayed: Replayed | None = None


def alone(state_dir: Path) -> Lead:
    """Lead from a directory of this machine's. Raises as `Store.open`."""
    return Lead(Store.open(state_dir), KeyFiles(state_dir))
