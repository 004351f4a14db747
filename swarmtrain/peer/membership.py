"""Coming in: identity, numerics, network thread, WELCOME. The same for the command and the hook."""

import hashlib
import os
import queue
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from swarmtrain.config import file as config_file
from swarmtrain.config import owner_limits
from swarmtrain.config.options import JoinOptions
from swarmtrain.config.settings import RunConfig
from swarmtrain.foundation import numerics
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.disk.image_file import put_in
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.peer.network.shell import Frozen, PeerShell
from swarmtrain.peer.network.thread import PeerThread
from swarmtrain.peer.training.driver import Driver, Weights
from swarmtrain.peer.training.own_work import rounding_seed
from swarmtrain.peer.training.session import Hooks, Session
from swarmtrain.pipeline.subspace import confining
from swarmtrain.strategies import strategy_of
from swarmtrain_optimizers.strategies.base import Probing
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.wire.messages import FIRST_GROUP, UNSAID, Brings, Welcome

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Membership:
    """A peer that the coordinator has let in, before it has a model.

    Attributes:
        identity: keys of the peer.
        name: shown to others.
        config: the run file, as the coordinator sent it.
        storage: state directory of the peer.
        thread: network side of the peer, started.
        why: the coordinator's reason for the stages that it has given us, in words; "" without.
    """

    identity: Identity
    name: str
    config: RunConfig
    storage: PeerStorage
    thread: PeerThread
    why: str = ""

    @classmethod
    def enter(
        cls,
        options: JoinOptions,
        *,
        brings: Brings = UNSAID,
        freeze: tuple[int, Frozen] | None = None,
        make_shell: Callable[..., PeerShell] = PeerShell,
    ) -> "Membership":
        """Knock and wait for WELCOME.

        Args:
            options: the owner's words; what concerns training is not looked at.
            brings: words for the door on model and data.
            freeze: rehearsal of a death: in which round, and who is told.
            make_shell: makes the network side, see PeerThread.

        Raises:
            UserError: the machine is not fit, the directory is in use, the coordinator does not
                answer or refuses.
            NumericsError: this machine calculates other bits.
        """
        numerics.check()
        # All else that torch loads for the first optimizer waits for the trainer, who makes it: two
        # seconds that a refused peer need not spend, and of which the network thread misses no
        # more than a quarter of one at a time.
        storage = PeerStorage.first_free(options.state_dirs)
        thread = None
        try:
            if options.limits:
                known = owner_limits.read(storage.directory)
                now = owner_limits.changed(known, **options.limits)
                owner_limits.write(storage.directory, now)
            brings = _as_limited(brings, owner_limits.read(storage.directory))
            identity = storage.identity()
            options = replace(options, name=options.name or identity.default_name)
            made = partial(make_shell, brings=brings, freeze=freeze)
            thread = PeerThread(options, storage, identity, made)
            thread.start()
            welcome = _first_word(thread)
            config = config_file.from_canonical(welcome.run)
            storage.of(FIRST_GROUP).keep_run(welcome.run)
        except BaseException:
            if thread is not None:
                thread.leave("could not come in")
            storage.close()
            raise
        return cls(identity, options.name, config, storage, thread, welcome.why)

    def session(
        self, weights: Weights, layout: Layout, hooks: Hooks, group: int = FIRST_GROUP
    ) -> Session:
        """Bring a model, or a stage of one: the run file's strategy, driven over these weights.

        Args:
            weights: weights of the trainer.
            layout: layout of the model.
            hooks: calls that the owner asked for.
            group: group that exchanges it.

        Raises:
            UserError: SWT-E605, the strategy cannot be made here or for this model; E632, it
                takes gradients or losses, and these weights give none.
        """
        strategy = strategy_of(self.config, layout)
        read_gradient = getattr(weights, "read_gradient", None)
        is_probed = isinstance(strategy, Probing) and not hasattr(weights, "probe_step")
        if is_probed or (strategy.takes_gradients and read_gradient is None):
            wants = "losses beside the weights" if is_probed else "gradients"
            raise UserError(
                "SWT-E632",
                f"The run's strategy {self.config.outer.strategy} exchanges {wants}.",
                "A training loop of one's own has made its step before the others are heard.",
                "Ask the organiser for a run with another outer.strategy, such as diloco.",
            )
        run = config_file.config_hash(self.config)
        is_stochastic = self.config.exchange.rounding == "stochastic"
        driver = Driver(
            self.identity.peer_id,
            strategy,
            weights,
            layout=layout.digest,
            num_values=layout.num_values,
            snapshot_rounds=self.config.checkpoint.snapshot_rounds,
            read_gradient=read_gradient,
            seed_of=(lambda op: rounding_seed(run, op, self.identity.peer_id))
            if is_stochastic
            else None,
            put=put_in(self.storage.directory),
            steps_alone=self.config.steps_alone,
            confine=confining(self.config, layout),
        )
        return Session(
            self.identity.peer_id, self.thread, self.storage.of(group), self.config, driver,
            layout, hooks, self.thread.clock,
        )  # fmt: skip

    def secret(self) -> bytes:
        """32 bytes that nobody else can guess."""
        return os.urandom(_SECRET_BYTES)

    def own_seed(self) -> int:
        """A seed of this peer in this run: peers read different windows of the text, and only the
        first one's initial weights become the run's (protocol.md part 1 rule 4)."""
        digest = hashlib.sha256(self.config.run.seed.to_bytes(8, "little", signed=True))
        digest.update(self.identity.peer_id)
        return int.from_bytes(digest.digest()[:7], "little")

    def close(self, reason: str = "failed") -> None:
        """Give the directory back. A peer that did not leave before says goodbye now.

        Args:
            reason: shown to the others.
        """
        try:
            self.thread.leave(reason)
        finally:
            self.storage.close()


def _as_limited(brings: Brings, limits: owner_limits.Limits) -> Brings:
    own = {"memory_bytes": limits.memory, "disk_bytes": limits.disk}
    said = {key: value for key, value in own.items() if value != owner_limits.UNSET}
    return msgspec.structs.replace(brings, **said)


def _first_word(thread: PeerThread) -> Welcome:
    """WELCOME, or the error that came instead."""
    while True:
        try:
            item = thread.inbox.get(timeout=1.0)
        except queue.Empty:
            continue
        if isinstance(item, UserError):
            raise item
        if isinstance(item, Welcome):
            return item
