"""A Lightning Trainer as a peer of a run.

    trainer = Trainer(callbacks=[SwarmCallback()])
    trainer.fit(module, loader)  # the invite is in SWARMTRAIN_INVITE; without one nothing changes

The peer joins when training starts, after a checkpoint was loaded (`ckpt_path`) and after the
sanity check. With one optimizer its hook exchanges. With several a batch is a step, and the
exchange is at its end: within a batch some parameters may be switched off (`toggle_optimizer`).
"""

from typing import Any

from swarmtrain.hook.api import join
from swarmtrain.hook.swarm import HOOK, STEP, Swarm
from swarmtrain.integrations.extras import missing
from swarmtrain.integrations.order import shuffle_apart

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise missing("lightning", "lightning", error) from error


class SwarmCallback(Callback):
    """Joins when training starts, stops it when the run is over, and leaves when it ends.

    Round and number of peers go to the trainer's loggers as `swarm_round` and `swarm_peers` when
    the round changes; the loss that `training_step` returns is shown to the other peers.

    Args:
        invite: ``swarm://host:port/run#secret``; None reads SWARMTRAIN_INVITE.
        submodule: dotted name of the part of the LightningModule that is exchanged; "" for all of
            it. Peers that train the same model without Lightning have its names, not the module's.
        own_order: shuffle the training data by this peer's seed besides the trainer's, because
            copies of one script would all read them in the same order.
        options: options of `swarmtrain.join` but `when`. `samples_per_step` is the loader's
            batch times `accumulate_grad_batches` unless it is given.

    Attributes:
        swarm: the run; one that does nothing without an invite.
    """

    def __init__(
        self,
        invite: str | None = None,
        *,
        submodule: str = "",
        own_order: bool = True,
        **options: Any,
    ) -> None:
        self.swarm = Swarm()
        self._invite = invite
        self._submodule = submodule
        self._own_order = own_order
        self._options = options
        self._when = HOOK
        self._seen = (0, 0)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Join. A training that was broken off before has left nothing behind."""
        self.swarm.leave()
        loader = trainer.train_dataloader
        batch = getattr(loader, "batch_size", None)
        samples = batch if isinstance(batch, int) else 1
        samples *= trainer.accumulate_grad_batches * trainer.world_size
        options = {"samples_per_step": samples, **self._options}
        model = pl_module.get_submodule(self._submodule)
        optimizers = trainer.optimizers
        self._when = STEP if len(optimizers) > 1 else HOOK
        first = optimizers[0] if optimizers else None
        self.swarm = join(model, first, self._invite, when=self._when, **options)
        self._seen = (trainer.global_step, self.swarm.round)
        if self._own_order:
            shuffle_apart(loader, self.swarm.seed)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Tell the loss, exchange where the hook does not, stop where the run is over."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self.swarm.log(loss=loss)
        step, round_ = self._seen
        if self._when == STEP and trainer.global_step != step:
            self.swarm.step()
        self._seen = (trainer.global_step, self.swarm.round)
        if self.swarm.round != round_:
            told = {"swarm_round": self.swarm.round, "swarm_peers": self.swarm.peers}
            for logger in trainer.loggers:
                logger.log_metrics(told, step=trainer.global_step)
        if self.swarm.should_stop:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave."""
        self.swarm.leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave at once, as a block that fails; Ctrl+C comes by here, too."""
        self.swarm.__exit__(type(exception), exception, exception.__traceback__)
