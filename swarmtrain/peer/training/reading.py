"""A peer's reading: batches of what it holds, and asking for more before it has read that.

Runs on the training thread, but for `fill`. Which window comes next, and what is done, says
`data.walk`; what is leased to whom, the coordinator's `data.leases`.
"""

import logging
import random
from collections.abc import Callable

from swarmtrain.config.built_in import width_of
from swarmtrain.config.settings import RunConfig
from swarmtrain.data.batches import Batch, LeasedStream
from swarmtrain.peer.network.control import CoordinatorUnreachable
from swarmtrain.peer.network.shell import PeerShell
from swarmtrain.peer.training.text import TextFeed
from swarmtrain_transport.wire.messages import LeaseGrant, LeaseRequest

logger = logging.getLogger(__name__)


class Reader:
    """Batches for one trainer.

    Args:
        config: the run file.
        feed: brings the pieces.
        batch: windows of a batch.
        seed: this peer's own seed of order and cuts.
        send: says something to the coordinator, or nothing while it is away.
    """

    def __init__(
        self,
        config: RunConfig,
        feed: TextFeed,
        *,
        batch: int,
        seed: int,
        send: Callable[[LeaseRequest], None],
    ) -> None:
        self._feed, self._send = feed, send
        self._stream = LeasedStream(
            batch=batch, context=config.model.context, rng=random.Random(seed),
            width=width_of(config),
        )  # fmt: skip
        self._count = config.data.lease_pieces

    def ask(self) -> None:
        """Say what was read, and ask for more."""
        self._send(self._feed.request(self._stream.walk.ask(self._count)))

    def finish(self) -> None:
        """Say what was read, as the last word on it: who leaves wants no more."""
        last = self._stream.walk.finish()
        if last.done and not self._feed.is_own:
            self._send(last)

    async def fill(self, shell: PeerShell, grant: LeaseGrant) -> None:
        """Get the pieces of a grant, on the network thread; what does not come for want of the
        coordinator is asked for again.

        Raises:
            UserError: as `TextFeed.fill`.
        """
        try:
            await self._feed.fill(shell, grant)
        except CoordinatorUnreachable as error:
            logger.warning("No new text to train on: %s The old text lasts until then.", error.what)
            self._stream.walk.failed()

    @property
    def has_text(self) -> bool:
        """True if there is something to read."""
        self._take()
        return self._stream.has_text

    def next_batch(self) -> Batch:
        """The next batch; the text is read anew where no other has come.

        Raises:
            ValueError: there is no text yet.
        """
        self._take()
        batch = self._stream.next_batch()
        if self._stream.walk.wants_more:
            self.ask()
        return batch

    def _take(self) -> None:
        train = self._feed.take_train()
        if train is not None:
            self._stream.hold(train)
