"""Places of the files of a run on one machine, and names for its peers."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from swarmtrain.foundation import dirs
from swarmtrain.foundation.errors import misuse

COORDINATOR = "coordinator"

FOUNDERS = (
    "badger", "crane", "otter", "lynx", "heron", "marten", "raven", "seal",
    "stork", "tern", "vole", "weasel", "beaver", "falcon", "ibex", "jackdaw",
)  # fmt: skip
"""Names of the peers at the start: short, and told apart by their first letters."""


@dataclass(frozen=True, slots=True)
class Place:
    """The files of a demo or of chaos.

    Attributes:
        root: the state directory, absolute.
    """

    root: Path

    @classmethod
    def make(cls, wanted: Path | None, *, what: str = "demo") -> "Place":
        """A new directory, or the wanted one if no run has been in it.

        Args:
            wanted: a directory, or None for a new temporary one.
            what: name of what begins there, in a word.

        Raises:
            UserError: SWT-E610, a run has been there; SWT-E403 or E401, it cannot be made.
        """
        if wanted is None:
            root = Path(tempfile.mkdtemp(prefix=f"swarmtrain-{what}-"))
        else:
            root = dirs.make_private(wanted.absolute())
        place = cls(root)
        if place.coordinator.exists():
            raise misuse(
                f"{root} already holds a run.",
                f"This {what} begins anew: name another --state-dir, or leave it out for a new "
                f"one. To go on with that run: swarmtrain up {place.run_file} --state-dir "
                f"{place.coordinator}",
            )
        dirs.make_private(place.logs)
        return place

    @property
    def run_file(self) -> Path:
        """The run's settings."""
        return self.root / "run.toml"

    @property
    def coordinator(self) -> Path:
        """State directory of the coordinator."""
        return self.root / COORDINATOR

    @property
    def logs(self) -> Path:
        """Folder of the processes' logs."""
        return self.root / "logs"

    @property
    def lifetime(self) -> Path:
        """Totals of its peers, which are not their user's."""
        return self.root / "lifetime"

    def peer(self, name: str) -> Path:
        """State directory of a peer."""
        return self.root / "peers" / name

    def log(self, name: str) -> Path:
        """Log of one process."""
        return self.logs / f"{name}.log"
