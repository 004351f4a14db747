"""A peer's saved training: writing it, and finding it when the peer comes back.

The shared state is a checkpoint, which everybody could have written. Beside it lies the state that
belongs to this peer alone, such as error feedback, bound to that checkpoint's op and state root:
with any other state, or damaged, it is passed over, for going on without it is always right.
"""

import hashlib
import json
import logging
import math
from collections.abc import Iterator, Sequence

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from swarmtrain import checkpoint
from swarmtrain.config.file import config_hash
from swarmtrain.config.settings import RunConfig
from swarmtrain.foundation.errors import disk_full, translate
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.disk.group_storage import GroupStorage
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.state_image import StateImage
from swarmtrain_transport import limits
from swarmtrain_transport.wire.text_place import TextPlace

logger = logging.getLogger(__name__)

_KEY = "of"
"""The one metadata key: safetensors writes several in no fixed order."""


class Saves:
    """One peer's checkpoints and its own arrays.

    Args:
        storage: storage of the group that is trained in.
        config: the run file.
        layout: layout of the model.

    Attributes:
        newest: op and state root of the newest checkpoint, (-1, b"") without one.
    """

    def __init__(self, storage: GroupStorage, config: RunConfig, layout: Layout) -> None:
        self.newest = (-1, b"")
        self._storage = storage
        self._config = config
        self._layout = layout

    def ending(self, rounds: int, loss: float | None) -> str:
        """Describe what the finished run came to and where its model is, the newest checkpoint."""
        op, root = self.newest
        known = f", loss {loss:.3f}" if loss is not None and math.isfinite(loss) else ""
        folder = self._storage.checkpoints / checkpoint.folder_name(op)
        return (
            f"{rounds} round{'' if rounds == 1 else 's'}{known}, root {root.hex()[:16]},"
            f" the model is in {folder}"
        )

    def restored(self, driver: Driver) -> StateImage | None:
        """The newest checkpoint of this directory in the driver, if it fits run and model.

        Raises:
            UserError: it cannot be read.
        """
        try:
            newest = checkpoint.latest(self._storage.checkpoints)
            if newest is None or newest.checkpoint.layout_digest != self._layout.digest:
                return None
            if newest.checkpoint.facts.config_hash != config_hash(self._config):
                return None  # of another run that used this directory
            if newest.checkpoint.facts.group != self._storage.group:
                return None  # somebody has moved folders
            image = self._bring(newest, driver)
        except checkpoint.CheckpointError as error:
            raise translate(error) or error from error
        facts = newest.checkpoint.facts
        self.newest = (facts.op, facts.state_root)
        return image

    def _bring(self, found: checkpoint.LoadedCheckpoint, driver: Driver) -> StateImage:
        """A checkpoint's state in the driver."""
        facts, arrays = found.checkpoint.facts, found.arrays(self._layout)
        return driver.restored(facts.op, dict(arrays), own_arrays(self._storage.own(), facts))

    def _write(self, facts: checkpoint.RunFacts, driver: Driver) -> checkpoint.Checkpoint:
        return checkpoint.save(
            self._storage.checkpoints, facts, self._layout, driver.strategy.state_arrays()
        )

    def _keep_own(self, facts: checkpoint.RunFacts, driver: Driver) -> None:
        own = driver.strategy.local_arrays()
        if own:
            self._storage.keep_own(own_file(own, facts))

    def save(self, op: int, driver: Driver, text: TextPlace | None = None) -> checkpoint.Checkpoint:
        """The state after `op`, and what is this peer's own then.

        Args:
            op: newest one in the state.
            driver: holds it.
            text: place of the run in its text then, as the ledger tells.

        Raises:
            UserError: SWT-E401, no room; or the directory cannot be written.
        """
        folder = self._storage.checkpoints
        facts = checkpoint.RunFacts(
            self._config.run.name, config_hash(self._config), op, driver.root, self._storage.group,
            None if text is None else (text.number, text.used, text.pieces),
        )  # fmt: skip
        try:
            saved = self._write(facts, driver)
            # Later ones are of a past that a REWIND has cancelled, and would displace this one.
            checkpoint.forget_after(folder, op)
            checkpoint.prune(folder, self._config.checkpoint.keep)
            oldest = checkpoint.folders(folder)[0]
            served_from = op - limits.RESULT_KEEP_OPS
            self._storage.forget_results(min(checkpoint.op_of(oldest), served_from))
        except checkpoint.CheckpointFull as error:
            raise disk_full(str(folder), at_coordinator=False) from error
        except (checkpoint.CheckpointError, OSError) as error:
            raise translate(error) or error from error
        self._keep_own(facts, driver)
        self.newest = (op, driver.root)
        return saved


def own_file(
    arrays: Sequence[tuple[str, Tensor]], facts: checkpoint.RunFacts
) -> Iterator[bytes | memoryview]:
    """A file of a peer's own arrays beside the checkpoint of these facts, piece by piece."""
    tensors = {name: array.contiguous() for name, array in arrays}
    said = json.dumps({**_said(facts), "sha256": _digest(tensors)}, sort_keys=True)
    return checkpoint.tensor_file(tensors, {_KEY: said})


def own_arrays(data: bytes | None, facts: checkpoint.RunFacts) -> dict[str, Tensor] | None:
    """The arrays of such a file, if it is whole and of that checkpoint."""
    if data is None:
        return None
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        said = json.loads(header["__metadata__"][_KEY])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        logger.warning("State of this peer alone is lost, its file is damaged: %s", error)
        return None
    if said != {**_said(facts), "sha256": _digest(tensors)}:
        logger.info("State of this peer alone is not of round %d: left aside.", facts.op)
        return None
    return tensors


def _said(facts: checkpoint.RunFacts) -> dict[str, object]:
    said: dict[str, object] = {
        "config": facts.config_hash.hex(), "op": facts.op, "state_root": facts.state_root.hex()
    }  # fmt: skip
    return said | ({"group": facts.group} if facts.group else {})


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + b"\0")
        digest.update(tensor.numpy().data)
    return digest.hexdigest()
