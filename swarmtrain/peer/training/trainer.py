"""The built-in training loop of a peer: the byte transformer, AdamW or Muon, and leased text.

It is plain single-threaded torch that is called from the training thread, step by step, so that
whoever drives it decides between two steps whether a round is due. Inner optimizer state is kept
across rounds (DiLoCo, arXiv 2311.08105, section 2) and never leaves the peer.

Not here: rounds, anchors and sockets. A hook (`swarmtrain.join`) brings its own loop instead.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from swarmtrain.config.built_in import width_of
from swarmtrain.config.options import AS_WRITTEN, Ways
from swarmtrain.config.settings import RunConfig
from swarmtrain.data.batches import VALIDATION_WINDOWS, Batch, validation_batches
from swarmtrain.inner_optimizer import make_optimizer, ramp_steps
from swarmtrain.models.build import build_model
from swarmtrain.models.device import device_of
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.network.memory import give_back
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.gradients import Gradients, memory_told
from swarmtrain.peer.training.model_weights import live_values, write_moved
from swarmtrain.peer.training.moments import Moments
from swarmtrain.peer.training.probing import Probe
from swarmtrain_optimizers.schedule import fresh_optimizer_ramp, warmup_cosine
from swarmtrain_optimizers.strategies.base import Direction, Moved, Values

_LEAST_WINDOWS = 8


class BuiltinTrainer:
    """One peer's model, inner optimizer and data.

    Args:
        config: the run file; its model must be a built-in one.
        batches: makes the batch of each inner step.
        validation: raw validation pieces; empty if this peer does not evaluate.
        seed: seed of initial weights; only the first peer's count.
        threads: torch threads, for the whole process.
        ways: the peer's way to compute.

    Attributes:
        model: the live model.
        layout: places of its parameters in the flat vector.
        step: cumulative inner steps of the run that the learning rate goes by.
        num_samples: windows trained on since this trainer was made.

    Raises:
        ValueError: the model section is not one that can be built.
        UserError: SWT-E102, E621 and E623, model or optimizer cannot be made here; E624, nor be
            compiled; E460, there is no such device; E622, not enough memory on it.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        batches: Callable[[], Batch],
        validation: Sequence[bytes],
        seed: int,
        threads: int = 1,
        ways: Ways = AS_WRITTEN,
    ) -> None:
        torch.set_num_threads(threads)
        self._config, self._next_batch = config, batches
        self._validation = self._make_validation(validation)
        self._device = device_of(ways.device)
        model = build_model(config, seed, modules=ways.modules)
        with memory_told(self._device):
            self.model = model.to(self._device)
        self._parameters = dict(self.model.named_parameters())
        self.layout = Layout.of(self.model, config.exchange.block)
        self.step = 0
        self.num_samples = 0
        self._is_fresh = False
        self._steps_since_fresh = 0
        self._gradients = Gradients(self.model, config, ways)
        self._probe: Probe | None = None
        self._modules = ways.modules
        self._optimizer = make_optimizer(self.model, config.inner, ways.modules)
        self._moments = Moments(self._optimizer)

    @property
    def bytes_per_step(self) -> int:
        """Bytes of text (for this model, tokens) that one inner step trains on."""
        return self._config.inner.batch * self._config.model.context

    def use_validation(self, pieces: Sequence[bytes]) -> None:
        """Evaluate on these raw pieces from now on, as when they came after the start."""
        self._validation = self._make_validation(pieces)

    def continue_at(self, step: int) -> None:
        """Take the run's cumulative step, with fresh optimizer state: a joiner, a return.

        The optimizer's first steps after it are short of history, so their rate is ramped up.
        """
        self.step = step
        self._is_fresh = step > 0
        self._steps_since_fresh = 0
        self._optimizer = make_optimizer(self.model, self._config.inner, self._modules)
        self._moments = Moments(self._optimizer)

    def read_weights(self, out: Tensor | None = None) -> Tensor:
        """The live weights, (padded,) float32; written into `out` if given."""
        return self.layout.read(self.model, out)

    def live_weights(self) -> Values:
        """Return the live weights, each parameter when it is asked for."""
        return live_values(self.model, self.layout)

    def write_weights(self, vector: Tensor) -> None:
        """Train on from `vector`, (padded,) float32. Optimizer state stays, but for what is not
        finite or is of weights that are not; then the rate is ramped up again."""
        if self._moments.forget_broken():
            self._is_fresh, self._steps_since_fresh = True, 0
        self.layout.write(self.model, vector)

    def write_moved(self, moved: Moved) -> None:
        """Train on from weights where they are others; see `write_weights`."""
        if write_moved(self.model, self.layout, moved, self._moments):
            self._is_fresh, self._steps_since_fresh = True, 0

    def step_for(self, driver: Driver) -> float:
        """Make the inner step that a driver's strategy is made of.

        Returns:
            The batch's loss, in nats per token.

        Raises:
            UserError: as `inner_step`.
        """
        if (direction := driver.direction()) is not None:
            ahead, behind = self.probe_step(direction)
            driver.heard(ahead, behind)
            return (ahead + behind) / 2
        return self.gradient_step() if driver.strategy.takes_gradients else self.inner_step()

    def inner_step(self) -> float:
        """One optimizer step on one batch.

        Returns:
            The batch's loss before the step, in nats per token. It may be NaN: the codec refuses
            such a difference later, and says so.

        Raises:
            UserError: SWT-E622, there is not enough memory.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = self.rate()
        loss = self.gradient_step()
        with memory_told(self._device):
            self._optimizer.step()
        return loss

    def gradient_step(self) -> float:
        """The gradient of one batch, clipped, for a strategy that takes gradients; weights stay.

        Returns:
            The batch's loss, in nats per token.
        """
        batch = self._next_batch()
        loss = self._gradients.make(batch)
        if self._config.inner.grad_clip > 0:
            nn.utils.clip_grad_norm_(self._parameters.values(), self._config.inner.grad_clip)
        self._made(batch)
        return loss

    def probe_step(self, direction: Direction) -> tuple[float, float]:
        """The losses of one batch with the weights moved along a direction and against it; they
        stay as they are.

        Raises:
            UserError: as `inner_step`.
        """
        batch = self._next_batch()
        self._probe = self._probe or Probe(self.model, self.layout)
        self.model.eval()  # both must lose by the same dropout: by none
        losses = self._probe.both_sides(direction, lambda: self._gradients.loss(batch))
        self.model.train()
        self._made(batch)
        return losses

    def lie_flat(self) -> Tensor | None:
        """Let the parameters lie in one vector; see `driver.LiesFlat`."""
        return self.layout.lay_flat(self.model, give_back)

    def _made(self, batch: Batch) -> None:
        """Count a step."""
        self.step += 1
        self._steps_since_fresh += 1
        self.num_samples += len(batch.x_BT)

    def read_gradient(self) -> Tensor:
        """The gradient of the last step, (padded,) float32 like the weights."""
        vector = torch.zeros(self.layout.padded)
        for name, view in self.layout.named_views(vector).items():
            gradient = self._parameters[name].grad
            if gradient is not None:
                view.copy_(gradient)
        return vector

    def rate(self) -> float:
        """The learning rate of the next inner step."""
        inner = self._config.inner
        rate = warmup_cosine(
            self.step,
            peak=inner.lr,
            warmup_steps=inner.warmup_steps,
            total_steps=self._config.schedule_steps,
            end_fraction=inner.lr_end_fraction,
        )
        if not self._is_fresh:  # The run's own warm-up is ramp enough.
            return rate
        return rate * fresh_optimizer_ramp(self._steps_since_fresh, ramp_steps=ramp_steps(inner))

    def evaluate(self, vector: Tensor | None = None) -> float:
        """Validation loss in nats per token, of `vector`, (padded,) float32, or of the live model.

        The anchor is what a run is judged by: pass it. The live model is not touched.

        Raises:
            ValueError: this peer has no validation text.
            UserError: SWT-E622, there is not enough memory.
        """
        if not self._validation:
            raise ValueError("no validation text: give pieces to use_validation first")
        predict = self._predictor(vector)

        def attempt() -> float:
            total, count = 0.0, 0
            with torch.no_grad():
                for batch in self._parts_of_validation():
                    total += _loss(predict(batch.x_BT), batch).item() * batch.y_BT.numel()
                    count += batch.y_BT.numel()
            return total / count

        self.model.eval()  # without dropout, where the model has it
        loss = self._gradients.fitted(attempt, self._config.inner.batch)
        self.model.train()
        return loss

    def _parts_of_validation(self) -> Iterator[Batch]:
        """The validation text in batches that memory holds."""
        size = self._gradients.micro_batch
        for batch in self._validation:
            for x_BT, y_BT in zip(
                torch.split(batch.x_BT, size), torch.split(batch.y_BT, size), strict=True
            ):
                yield Batch(x_BT.to(self._device), y_BT.to(self._device))

    def _predictor(self, vector: Tensor | None) -> Callable[[Tensor], Tensor]:
        if vector is None and self._device.type == "cpu":
            return self.model
        views = {} if vector is None else self.layout.named_views(vector)
        weights = {name: view.to(self._device) for name, view in views.items()}

        def predict(tokens_BT: Tensor) -> Tensor:
            there_BT = tokens_BT.to(self._device)
            logits_BTV: Tensor = functional_call(self.model, weights, (there_BT,))
            return logits_BTV.to(tokens_BT.device)

        return predict

    def _make_validation(self, pieces: Sequence[bytes]) -> tuple[Batch, ...]:
        if not pieces:
            return ()
        return validation_batches(
            pieces,
            windows=judged_windows(self._config),
            batch=self._config.inner.batch,
            context=self._config.model.context,
            width=width_of(self._config),
        )


def judged_windows(config: RunConfig) -> int:
    """Windows of one evaluation: no more than a peer trains on in a round, as a forward pass over
    as many takes a third of its time."""
    trained = config.outer.inner_steps * config.inner.batch
    return min(VALIDATION_WINDOWS, max(_LEAST_WINDOWS, trained))


def _loss(logits_BTV: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy in nats per token, ()."""
    return F.cross_entropy(logits_BTV.reshape(-1, logits_BTV.shape[-1]), batch.y_BT.reshape(-1))
