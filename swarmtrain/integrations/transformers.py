"""A transformers Trainer as a peer of a run.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[SwarmCallback()])
    trainer.train()  # the invite is in SWARMTRAIN_INVITE; without one nothing changes

Trainer makes its optimizer in `train`, so the peer joins there, after a checkpoint was loaded
(`resume_from_checkpoint`): the run's weights take the place of the checkpoint's, its optimizer and
its place in the data stay. Not here: the exchange itself, which the optimizer's hook does.
"""

from typing import Any

from swarmtrain.hook.api import join
from swarmtrain.hook.swarm import Swarm
from swarmtrain.integrations.extras import missing
from swarmtrain.integrations.order import shuffle_apart

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise missing("transformers", "hf", error) from error


class SwarmCallback(TrainerCallback):
    """Joins when training begins, stops it when the run is over, and leaves when it ends.

    Round and number of peers are logged with the trainer's own numbers as `swarm_round` and
    `swarm_peers`; the logged loss is shown to the other peers. Callbacks before this one in the
    trainer's list, as those of trackers are, have then had the numbers without these two;
    `trainer.callback_handler.callbacks.insert(0, SwarmCallback())` lets them have all.

    Args:
        invite: ``swarm://host:port/run#secret``; None reads SWARMTRAIN_INVITE.
        own_order: shuffle the training data by this peer's seed besides the trainer's, because
            copies of one script would all read them in the same order.
        finish_round: give the steps since the last round with the trainer's last step, and wait for
            its outcome; otherwise they stay in this peer's weights alone.
        options: options of `swarmtrain.join`. `samples_per_step` is the trainer's batch of one
            optimizer step unless it is given.

    Attributes:
        swarm: the run; one that does nothing without an invite.
    """

    def __init__(
        self,
        invite: str | None = None,
        *,
        own_order: bool = True,
        finish_round: bool = False,
        **options: Any,
    ) -> None:
        self.swarm = Swarm()
        self._invite = invite
        self._own_order = own_order
        self._finish_round = finish_round
        self._options = options

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Join. A training that was broken off before has left nothing behind."""
        self.swarm.leave()
        samples = state.train_batch_size * args.gradient_accumulation_steps * args.world_size
        options = {"samples_per_step": samples, **self._options}
        self.swarm = join(given["model"], given["optimizer"], self._invite, **options)
        if self._own_order:
            shuffle_apart(given.get("train_dataloader"), self.swarm.seed)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Stop where the run is over; finish the round where the trainer is."""
        if self._finish_round and state.global_step >= state.max_steps:
            self.swarm.finish_round()
        if self.swarm.should_stop:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Show the trainer's loss to the run, and the run to the trainer."""
        logs = given.get("logs") or {}
        if "loss" in logs:
            self.swarm.log(loss=logs["loss"])
        if self.swarm.state_root:
            told = {"swarm_round": self.swarm.round, "swarm_peers": self.swarm.peers}
            logs.update(told)
            if state.log_history:
                state.log_history[-1].update(told)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Leave."""
        self.swarm.leave()
