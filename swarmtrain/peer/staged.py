"""`swarmtrain join` in a run whose model is in stages: this peer serves some of them.

The ledger says which. The network thread has the stage peer, this thread makes its passes and
steps; text is read by those whose span begins with the first stage.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from swarmtrain.config.built_in import vocabulary_of
from swarmtrain.config.file import config_hash
from swarmtrain.console.lines import counted
from swarmtrain.data.batches import Batch
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain.foundation.events import Evaluated, Serving, StateInPlace
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.membership import Membership
from swarmtrain.peer.telling import Telling
from swarmtrain.peer.training.model_weights import ModelWeights
from swarmtrain.peer.training.reading import Reader
from swarmtrain.peer.training.rounds import RoundReport, in_words
from swarmtrain.peer.training.session import Hooks, Session
from swarmtrain.peer.training.stages import StageTraining
from swarmtrain.pipeline.activations import codec_of
from swarmtrain.pipeline.blocks import Block
from swarmtrain.pipeline.costs import serving_words
from swarmtrain.pipeline.cut import run_stages
from swarmtrain.pipeline.evaluation import validation_loss, validation_text
from swarmtrain.pipeline.labels import Labels
from swarmtrain.pipeline.paced import PacedTrainer
from swarmtrain.pipeline.span import Span
from swarmtrain.pipeline.stage_peer import Outside, StagePeer, rules_of
from swarmtrain.pipeline.stage_trainer import Forms, StageTrainer, boundaries_of
from swarmtrain.pipeline.staged_model import OwnWork
from swarmtrain.pipeline.subspace import subspace_of
from swarmtrain.status import waiting_words
from swarmtrain_transport import actions as do
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.stage import StageMachine
from swarmtrain_transport.pipeline.wire import route
from swarmtrain_transport.wire import messages
from swarmtrain_transport.wire.messages import LeaseGrant, Waiting, Welcome

logger = logging.getLogger(__name__)

_PROCESSOR = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Rehearsal of a peer that is slower, or less lasting, than it is.

    Attributes:
        pass_s: a pass through a stage takes so long, see PacedTrainer; 0 for as long as it takes.
        round: round in which to stop while micro-batches are on their way, 0 for never.
        freeze: stops; told how many there are.
    """

    pass_s: float = 0.0
    round: int = 0
    freeze: Callable[[int], None] = lambda held: None


class StagedPeer:
    """The stages of one peer: their trainer, their sessions, and its text if it reads any.

    Args:
        membership: membership in a run with stages.
        threads: torch threads, for the whole process.
        telling: hears the news.
        device: device to train on.
        rehearsal: rehearsal of a slow machine, or of a death.
        own: the model and data that this peer brings; None where the model is built in.
        modules: code of installed packages that may be used.

    Raises:
        UserError: as `StagedModel.stages`.
    """

    def __init__(
        self,
        membership: Membership,
        threads: int,
        telling: Telling,
        device: torch.device = _PROCESSOR,
        rehearsal: Rehearsal = Rehearsal(),
        own: OwnWork | None = None,
        modules: frozenset[str] = frozenset(),
    ) -> None:
        torch.set_num_threads(threads)
        config = membership.config
        self.membership = membership
        membership.thread.wishes.may_pause = False  # others wait for it by the micro-batch
        self.reader = Reader(
            config, membership.storage.directory, batch=config.pipeline.micro_batch,
            seed=membership.own_seed(), send=membership.thread.send,
        )  # fmt: skip
        self._telling, self._rehearsal, self._own = telling, rehearsal, own
        self._device, self._modules = device, modules
        if own is None:
            self._model, self._cut = run_stages(config)
            shape = config.pipeline.micro_batch, config.model.context
            self._example, labels = (
                torch.zeros(shape, dtype=torch.int64, device="cpu"),
                Labels(shape, vocabulary_of(config)),
            )
        else:
            self._model, self._cut = own.model.blocks, own.model.stages(config)
            self._example, labels = own.model.given, own.model.labels
        pipeline, self._subspace = config.pipeline, subspace_of(config)
        boundaries = boundaries_of(
            self._model, self._cut, self._example, codec_of(pipeline.activations),
            pipeline.visit, self._subspace,
        )  # fmt: skip
        self._forms = Forms(config_hash(config), boundaries, labels)
        self._training: StageTraining | None = None
        self._peer: StagePeer
        self._is_asked = False
        self._judged_op = -1
        self._batches: tuple[Batch, ...] = ()

    # ---- life

    def start(self) -> None:
        """Hear which stages are ours, make them, and wait until their states are the run's."""
        thread, make = self.membership.thread, self._make_peer
        thread.call(lambda shell: shell.serve_stages(make))
        served = self._served()
        if served is None:
            return
        config = self.membership.config
        why = cleaned(self.membership.why)
        words = serving_words(config, served, why)
        self._telling.tell(Serving(served[0], served[-1], why), words)
        span = Span(
            self._model, self._cut, served,
            seed=config.run.seed, device=self._device, subspace=self._subspace,
        )  # fmt: skip
        if self._own is not None:
            is_end = served[-1] == len(self._cut) - 1
            span.check(self._any_input(served[0]), self._any_labels() if is_end else None)
        trainer = self._trainer(span)
        sessions = {stage: self._session(stage, span, trainer) for stage in served}
        self._training = StageTraining(
            thread, sessions, trainer, config, self._on_other, thread.clock
        )  # fmt: skip
        if 0 in served and self._own is None:
            self.reader.ask()
        self._training.start()

    def step(self) -> None:
        """Do what comes next."""
        self._here.work()
        self._judge()
        rehearsal, held = self._rehearsal, len(self._peer.places)
        if rehearsal.round and self.op == rehearsal.round - 1 and held > 1:
            rehearsal.freeze(held)

    def request_stop(self) -> None:
        """Leave after this round. Safe to call from a signal handler."""
        self._is_asked = True
        if self._training is not None:
            self._training.request_stop()

    @property
    def should_stop(self) -> bool:
        """True if the run is over, or the round after which the peer was asked to leave."""
        return self._is_asked if self._training is None else self._training.should_stop

    @property
    def is_finished(self) -> bool:
        """True if the run is over."""
        return self._training is not None and self._training.is_finished

    @property
    def sessions(self) -> Mapping[int, Session]:
        """The exchange of each stage, once our stages are known."""
        return {} if self._training is None else self._training.sessions

    @property
    def op(self) -> int:
        """Newest op whose outcome is in place in all stages, -1 without a state of one."""
        return min((one.driver.op for one in self.sessions.values()), default=-1)

    @property
    def root(self) -> bytes:
        """State root of the first stage after its newest op."""
        return next((one.driver.root for one in self.sessions.values()), b"")

    @property
    def roots(self) -> dict[str, str]:
        """State root of each stage after its newest op, in hex."""
        return {str(stage): one.driver.root.hex() for stage, one in self.sessions.items()}

    @property
    def loss(self) -> float:
        """Loss of the training micro-batches whose routes end here, in nats per token; else 0."""
        return 0.0 if self._training is None else self._training.loss

    @property
    def result(self) -> str:
        """Words for the end of a finished run: what it has come to and where its stages are."""
        said = {stage: one.result for stage, one in self.sessions.items() if one.result}
        return "; ".join(f"stage {stage}: {result}" for stage, result in said.items())

    def leave(self, reason: str, *, save: bool, waits: Callable[[], None]) -> bool | None:
        """See `Session.leave`."""
        self.reader.finish()
        if self._training is None:
            self.membership.thread.leave(reason)
            return True
        return self._training.leave(reason, save=save, waits=waits)

    @property
    def _here(self) -> StageTraining:
        assert self._training is not None
        return self._training

    def _any_input(self, stage: int) -> Tensor:
        """An input of a stage, with values that may be anything."""
        if stage == 0 and not self._example.is_floating_point():
            return torch.zeros_like(self._example, device="cpu")
        shape = self._forms.boundaries[stage].shape if stage else self._example.shape
        return torch.randn(shape, generator=torch.Generator().manual_seed(0), device="cpu")

    def _any_labels(self) -> Tensor:
        labels = self._forms.labels
        dtype = torch.int64 if labels.classes else torch.float32
        return torch.zeros(labels.shape, dtype=dtype, device="cpu")

    def _served(self) -> range | None:
        """The stages that the ledger gives us; None if we are asked to stop before that."""
        while not self._is_asked:
            item = self.membership.thread.inbox.get()
            if isinstance(item, UserError):
                raise item
            if isinstance(item, Waiting):
                self._on_other(item)
            if isinstance(item, do.Moved):
                return range(item.groups[0], item.groups[-1] + 1)
        return None

    def _make_peer(
        self, me: route.Process, span: route.Span, run_tag: int, outside: Outside
    ) -> StagePeer:
        machine = StageMachine(
            me, span, rules_of(self.membership.config), seed=self.membership.secret()
        )
        self._peer = StagePeer(machine, me.boot, run_tag, self._forms, outside)
        return self._peer

    def _trainer(self, span: Span) -> StageTrainer:
        config = self.membership.config
        make: Callable[..., StageTrainer] = StageTrainer
        if unit_s := self._rehearsal.pass_s:
            make = partial(PacedTrainer, unit_s=unit_s, seed=self.membership.own_seed())
        return make(
            span, self._forms, config.inner, self._read,
            norm_shares=self._shares(span), modules=self._modules,
            turns=lambda: self.membership.thread.shell.turns,
        )  # fmt: skip

    def _session(self, stage: int, span: Span, trainer: StageTrainer) -> Session:
        config, module = self.membership.config, span.modules[stage]
        layout = Layout.of(module, config.exchange.block)
        steps = trainer.steps[stage]
        weights = ModelWeights(module, layout, steps.optimizer, steps.hold)
        hooks = Hooks(
            on_round=lambda report: self._on_round(stage, report),
            on_state=lambda op: self._on_state(stage, op),
        )
        return self.membership.session(weights, layout, hooks, stage)

    def _shares(self, span: Span) -> dict[int, float]:
        """Each stage's share of the gradient's norm, as if all values had gradients of one size."""
        sizes = [_num_values(self._model.blocks[index]) for index in range(len(self._model.blocks))]
        return {
            stage: math.sqrt(sum(sizes[i] for i in self._cut[stage]) / sum(sizes))
            for stage in span.modules
        }

    # ---- text

    def _read(self, name: route.MicroBatch) -> tuple[Tensor, Tensor]:
        """The text of the next micro-batch of our own, or of a judged one."""
        if self._own is not None:
            return self._own.read()
        while True:
            if name.judged and (text := self._validation):
                batch = text[name.number % len(text)]
                return batch.x_BT, batch.y_BT
            if not name.judged and self.reader.has_text:
                batch = self.reader.next_batch()
                return batch.x_BT, batch.y_BT
            self._here.work()

    # ---- evaluation

    def _judge(self) -> None:
        """Evaluate the newest state, once, if all of the model is here."""
        sessions, op = self.sessions, self.op
        is_same = all(one.driver.op == op for one in sessions.values())
        is_whole = len(sessions) == self.membership.config.pipeline.num_stages
        is_new = op > self._judged_op and not self._here.trainer.is_midway
        if not (is_whole and is_same and is_new and self._validation):
            return
        self._judged_op = op
        anchors = self._here.anchors((op,) * len(sessions))
        assert anchors is not None
        self._evaluated(op, validation_loss(self._here.trainer.span, anchors, self._validation))

    @property
    def _validation(self) -> tuple[Batch, ...]:
        """The text to judge by; nothing until it is here."""
        if not self._batches and self.reader.validation is not None:
            self._batches = validation_text(self.membership.config, self.reader.validation)
        return self._batches

    def _evaluated(self, op: int, loss: float) -> None:
        self.membership.thread.send(messages.Evaluated(op, loss))
        when = f"round {op}" if op else "before training"
        self._telling.tell(Evaluated(op, loss), f"{when}: validation loss {loss:.3f}")

    # ---- news

    def _on_other(self, item: LeaseGrant | Waiting | Welcome | requests.Evaluated) -> None:
        match item:
            case requests.Evaluated(op, float(loss)):
                self._evaluated(op, loss)
            case requests.Evaluated():
                logger.info("Round %d was not evaluated: its text did not get through.", item.op)
            case LeaseGrant():
                self.membership.thread.run_coroutine(lambda shell: self.reader.fill(shell, item))
            case Welcome() if 0 in self.sessions and self._own is None:
                self.reader.ask()
            case Waiting():
                words = waiting_words(cleaned(item.text), item.seen_s, time.time())
                self._telling.waits(words)

    def _on_state(self, stage: int, op: int) -> None:
        what = f"the run's weights after round {op}" if op else "the run's first weights"
        self._telling.tell(StateInPlace(op, stage), f"has {what} of stage {stage}")

    def _on_round(self, stage: int, report: RoundReport) -> None:
        loss = f"; training loss {self.loss:.3f}" if self.loss else ""
        ended = report.event(self.sessions[stage].driver.root, stage=stage)
        count = self._here.counted.get(stage, 0) if report.outcome == "merged" else 0
        work = f"; {counted(count, 'micro-batch')}" if count else ""
        self._telling.tell(ended, f"stage {stage}, {in_words(report)}{work}{loss}")


def _num_values(block: Block) -> int:
    return sum(tensor.numel() for tensor in {id(t): t for _, t in block.tensors()}.values())
