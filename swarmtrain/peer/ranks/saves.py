"""Checkpoints of a job: the same files as a plain peer's, whole at no rank.

Rank 0 writes them, and takes them up again, piece by piece; so a job goes on from what a plain peer
has saved, with as many ranks as it likes. State of a rank alone, such as error feedback, is not
saved: going on without it is always right (rule 9).
"""

from collections.abc import Iterator

from torch import Tensor

from swarmtrain import checkpoint
from swarmtrain.peer.ranks.driver import LeadDriver
from swarmtrain.peer.ranks.places import windows
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.saves import Saves
from swarmtrain.peer.training.state_image import StateImage


class RankSaves(Saves):
    """Rank 0's `Saves`; its driver is a `LeadDriver`."""

    def _bring(self, found: checkpoint.LoadedCheckpoint, driver: Driver) -> StateImage:
        lead = _lead(driver)
        lead.fresh()
        for index, name in enumerate(lead.state_names):
            if name != checkpoint.ANCHOR:
                lead.put(index, 0, self._layout.num_values, found.outer[name])
                continue
            position = 0
            for spec in self._layout.parameters:
                values: Tensor = found.model[spec.name].reshape(-1)
                lead.put(index, position, position + spec.num_values, values)
                position += spec.num_values
        return lead.restore(found.checkpoint.facts.op)

    def _write(self, facts: checkpoint.RunFacts, driver: Driver) -> checkpoint.Checkpoint:
        lead = _lead(driver)

        def parts_of(name: str, start: int, stop: int) -> Iterator[memoryview]:
            index = lead.state_names.index(name)
            for low, high in windows(start, stop):
                values = lead.piece(index, low, high)
                yield values.numpy().astype("<f4", copy=False).data.cast("B")

        return checkpoint.save_parts(
            self._storage.checkpoints, facts, self._layout, lead.state_names, parts_of
        )

    def _keep_own(self, facts: checkpoint.RunFacts, driver: Driver) -> None:
        """Do nothing: see above."""


def _lead(driver: Driver) -> LeadDriver:
    assert isinstance(driver, LeadDriver)
    return driver
