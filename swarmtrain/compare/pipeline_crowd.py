"""A pipeline in one process: the production peers of all stages, under a virtual clock.

A part of training takes its peer the time that such work takes on a core of its speed; a frame
leaves when the frames before it have left its sender's link, and takes half a round trip besides.
Small messages pass the bulk. A round's ops, one of each stage, are moved as in every comparison
(`exchange`) and take the time that their bytes do. Meanwhile a peer of the stage trains on, unless
steps are flushed; it has the outcome then, and applies it at its place. Not here: how often a run
is judged.
"""

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import torch
from torch import Tensor

from swarmtrain.compare.costs import Traffic
from swarmtrain.compare.exchange import Exchange, Peer
from swarmtrain.compare.plan import NETS, SIZES, Pipelined, Plan
from swarmtrain.compare.replica import seed_of, spread
from swarmtrain.compare.shards import shards
from swarmtrain.compare.stage_replica import StageReplica, TimedTrainer, rate_at, reader
from swarmtrain.config.settings import PipelineSection, RunConfig
from swarmtrain.data.corpus import Corpus
from swarmtrain.models.byte_transformer import NUM_BYTE_VALUES
from swarmtrain.pipeline.activations import codec_of
from swarmtrain.pipeline.blocks import built_in
from swarmtrain.pipeline.cut import passed, stages_of
from swarmtrain.pipeline.labels import Labels
from swarmtrain.pipeline.span import Span as Stages
from swarmtrain.pipeline.stage_peer import StagePeer, rules_of
from swarmtrain.pipeline.stage_trainer import Forms, boundaries_of
from swarmtrain.pipeline.subspace import subspace_of
from swarmtrain.simulate.processes.pretended_training import SharedDecoding
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.coordinator.books import Books
from swarmtrain_transport.pipeline.coordinator.rounds import Action, Booked, Late, Rounds
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.stage import StageMachine
from swarmtrain_transport.pipeline.wire import encoding, messages, orders
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Slot, Span
from swarmtrain_transport.wire.frames import Frame, FrameKind

_BOOT = b"compared"
_RUN_TAG = 1
_BACK_S = 5.0
"""Seconds after which a peer that died is back as another process."""

_ROUND_PARTS = 20
"""A run ends where less than one part in so many of a round is left to train on. Only what was lost
in the last round leaves so little, and outer momentum would go a whole step for it."""

_EVENTS_MAX = 10_000_000
"""Events of one round, after which a crowd that hangs fails."""


def staged_config(plan: Plan, pipeline: Pipelined) -> RunConfig:
    """The run file of such a run."""
    section = PipelineSection(
        stages=pipeline.stages,
        micro_batch=pipeline.micro_batch,
        max_stale_steps=pipeline.max_stale_steps,
        schedule=pipeline.schedule,
        activations=pipeline.activations,
        visit=pipeline.visit,
    )
    return msgspec.structs.replace(plan.run_config(), pipeline=section)


class StageProcess:
    """A peer of a stage as a process: what goes out of it, and its training thread.

    Args:
        crowd: crowd that it belongs to.
        replica: training of the peer.
        member: part in the exchange of its stage.
        boot: boot of the process.

    Attributes:
        me: the process.
        peer: the production peer.
        bytes_up: sent to other stages so far, in earlier lives too.
        given: (padded,) float32, the weights that its part of the last round was made of.
        is_alive: True until the peer dies.
    """

    def __init__(
        self, crowd: "PipelineCrowd", replica: StageReplica, member: Peer, boot: bytes = _BOOT
    ) -> None:
        self.me = Process(replica.peer, boot)
        self.replica, self.member = replica, member
        self.bytes_up = 0
        self.given = replica.weights.read_weights()
        self.is_alive = True
        self._crowd = crowd
        self._link_free_s = 0.0
        self._pace = orders.Pace()
        self._round_steps = self._num_settled = 0
        self._is_open = False
        span = Span(replica.stage, replica.stage)
        machine = StageMachine(self.me, span, crowd.rules, seed=replica.peer)
        self.peer = StagePeer(machine, boot, _RUN_TAG, crowd.forms, self)

    @property
    def num_back(self) -> int:
        """Own micro-batches that came back since the last round was settled."""
        return self.peer.ended[None] - self._num_settled

    # ---- Outside

    def send(self, peer: PeerId, frame: Frame) -> None:
        """Send to another peer."""
        is_bulk = frame.kind is not FrameKind.HOP
        leaves_s = self._crowd.now_s
        if is_bulk:
            leaves_s = max(leaves_s, self._link_free_s)
            leaves_s += len(frame.body) / self._crowd.net.up_bytes_s
            self._link_free_s = leaves_s
            self.bytes_up += len(frame.body)
        self._crowd.sends(self, peer, frame, leaves_s)

    def report(self, report: orders.Report) -> None:
        """Tell the coordinator."""
        self._crowd.reports(self.me, report)

    def evaluated(self, evaluated: requests.Evaluated) -> None:
        """The crowd judges by itself."""
        raise AssertionError(evaluated)

    def expelled(self) -> None:
        """Give nobody up: all peers are reachable here."""
        raise AssertionError(self.me)

    # ---- Training

    @property
    def trainer(self) -> TimedTrainer:
        """Length of the stage's vector."""
        return self.replica.stage_trainer

    def begin(self, pace: orders.Pace) -> None:
        """A round begins."""
        self._pace, self._round_steps, self._is_open = pace, 0, True
        self.trainer.begin(pace)

    def step(self, request: requests.Step) -> None:
        """Make an inner step at the rate of its place in the run."""
        crowd = self._crowd
        step = self._pace.step(self._round_steps)
        self._round_steps += 1
        self.trainer.rate = rate_at(crowd.inner, step, crowd.plan.steps)
        self.trainer.step(request)
        self.member.machine.stepped_elsewhere()

    def settle(self, round: int) -> None:
        """Give the round's work, after the outcome of the last one's."""
        self._is_open = False
        self._num_settled = self.peer.ended[None]
        self.member.machine.hurry()
        self.member.advance()
        self.given = self.replica.weights.read_weights(self.given)
        tokens = self.trainer.tokens.pop(self.replica.stage, 0)
        if tokens:
            self.member.give(tokens // self._crowd.size.model.context)
        self.member.is_held = True

    def hear(self) -> None:
        """The outcome of the round's op is here."""
        self.member.is_held = False
        if not self._is_open:
            self.member.machine.hurry()
        self.train()

    def anchors(self, ops: tuple[int, ...]) -> None:
        """The crowd judges by itself."""
        raise AssertionError(ops)

    def is_behind(self, ops: tuple[int, ...]) -> bool:
        """The crowd judges by itself."""
        raise AssertionError(ops)

    # ---- time

    def train(self) -> None:
        """Apply what came, but in the midst of a backward pass. Make the next part, if there is one
        and none is being made; it ends some time later."""
        crowd = self._crowd
        if not self.is_alive:
            return
        if not self.trainer.is_midway:
            self.member.advance()
        if crowd.rules.flushes and self.member.is_held:
            return
        part = self.peer.next_part()
        if part is None:
            return
        before = self.trainer.work
        end = part(self)
        seconds = (self.trainer.work - before) * crowd.work_s[self.replica.stage]
        seconds /= self.replica.speed

        def made() -> None:
            if self.is_alive:
                end(crowd.now_s)
                self.train()

        crowd.at(crowd.now_s + seconds, made)

    def tick(self) -> None:
        """Tell the machine the time when it wants to hear it."""
        if self.is_alive:
            self.peer.tick(self._crowd.now_s)
            self.train()
            self._crowd.at(self.peer.machine.next_wakeup_s, self.tick)


@dataclass(slots=True)
class RoundTold:
    """One round.

    Attributes:
        books: books of all stages.
        traffic: bytes of the ops.
        seconds: duration of the slowest op.
        committed: ops with a result.
        skipped: ops without a result.
        left_out: contributions that are in no result.
        spreads: distance between the peers of each stage.
    """

    books: Books
    traffic: Traffic = field(default_factory=lambda: Traffic({}, {}))
    seconds: float = 0.0
    committed: int = 0
    skipped: int = 0
    left_out: int = 0
    spreads: list[float] = field(default_factory=list)


class PipelineCrowd:
    """All peers of a pipeline, their coordinator, and what is under way between them.

    Args:
        plan: plan of the run.
        pipeline: pipeline of the plan.
        corpus: the text.

    Attributes:
        plan, size, inner, net: settings of the run.
        rules, forms: settings of the pipeline.
        work_s: seconds of a forward pass of each stage at the fastest peer.
        stages: peers of each stage.
        redone: micro-batches that went to another place of a stage than the first.
        tokens: tokens of micro-batches that came back, in rounds that have ended.
        now_s: the time.
    """

    def __init__(self, plan: Plan, pipeline: Pipelined, corpus: Corpus) -> None:
        self.plan, self.size, self.net = plan, SIZES[plan.size], NETS[plan.net]
        self.inner = plan.run_config().inner
        self.now_s, self.redone, self.tokens = 0.0, 0, 0
        self._is_fixed = pipeline.routes == "fixed"
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._rng = random.Random(f"frames {plan.seed}")
        self._deaths = random.Random(f"deaths {plan.seed}")
        self._slots: dict[tuple[MicroBatch, int], set[Slot]] = {}
        self._told: list[RoundTold] = []
        self._withheld: list[tuple[StageProcess, orders.Order]] = []
        self._death_s = pipeline.death_s
        self._lives = 0
        config = staged_config(plan, pipeline)
        windows = config.pipeline.micro_batch
        per_step = self.size.batch // windows
        self._micro_tokens = windows * self.size.model.context
        self.rules = rules_of(config)
        if pipeline.slots:
            slots = pipeline.slots
            self.rules = replace(
                self.rules, slots=slots, under_way=slots, most_slots=slots, most_under_way=slots
            )
        self.rules = replace(self.rules, at_random=pipeline.drawn == "random")
        flushes = self.rules.flushes
        self.rounds = Rounds(
            pipeline.stages,
            per_step if flushes else per_step * plan.inner_steps,
            plan.inner_steps if flushes else 0,
            clips=flushes and self.inner.grad_clip > 0,
            least_members=pipeline.stages * plan.peers,
            round_steps=plan.inner_steps,
            step_micro_batches=per_step * plan.peers,
            visit=self.rules.visit,
            at_random=self.rules.at_random,
        )
        self._whole_share, self._whole_steps = self.rounds.share, self.rounds.steps
        example = torch.zeros(windows, self.size.model.context, dtype=torch.long)
        self._make_peers(pipeline, config, example, corpus)

    def _make_peers(
        self, pipeline: Pipelined, config: RunConfig, example: Tensor, corpus: Corpus
    ) -> None:
        plan, model = self.plan, built_in(self.size.model)
        cut = stages_of(model, pipeline.stages, example, pipeline.activations)
        codec, self._subspace = codec_of(pipeline.activations), subspace_of(config)
        boundaries = boundaries_of(model, cut, example, codec, pipeline.visit, self._subspace)
        labels = Labels(tuple(example.shape), NUM_BYTE_VALUES)
        self.forms = Forms(f"compare {plan.seed}".encode(), boundaries, labels)
        blocks = [one.cost for one in passed(model, example)]
        flops = sum(block.flops for block in blocks)
        values = sum(block.num_values for block in blocks)
        # An inner step is a forward pass and a backward pass of twice its work.
        forward_s = self.size.step_s / 3 * len(example) / self.size.batch
        self._parts = shards(corpus, plan.peers, plan.seed, noniid=plan.noniid)
        self._model, self._cut, self._windows = model, cut, len(example)
        self.work_s: list[float] = []
        self._norm_shares: list[float] = []
        self._decodes = [SharedDecoding() for _ in cut]
        self.stages: list[list[StageProcess]] = []
        self._exchanges: list[Exchange] = []
        for stage, places in enumerate(cut):
            here = [blocks[place] for place in places]
            self.work_s.append(forward_s * sum(block.flops for block in here) / flops)
            if pipeline.slow and stage == pipeline.stages // 2:
                self.work_s[stage] *= pipeline.slow
            self._norm_shares.append(math.sqrt(sum(b.num_values for b in here) / values))
            replicas = [self._replica(stage, index) for index in range(plan.peers)]
            exchange = Exchange(plan, replicas, stage)
            pairs = zip(replicas, exchange.peers, strict=True)
            self._exchanges.append(exchange)
            self.stages.append([StageProcess(self, replica, member) for replica, member in pairs])
        self._by_id = {one.me.peer: one for stage in self.stages for one in stage}

    def _replica(self, stage: int, index: int) -> StageReplica:
        """A peer's training, with the values that a run begins with."""
        plan, served = self.plan, range(stage, stage + 1)
        return StageReplica(
            plan,
            stage,
            index,
            Stages(self._model, self._cut, served, seed=seed_of(plan, 0), subspace=self._subspace),
            self.forms,
            self._norm_shares[stage],
            reader(plan, index, self._lives, self._parts[index], self._windows),
            self._decodes[stage],
        )

    # ---- rounds

    def begin(self) -> None:
        """Let every peer in, with the same weights."""
        self._plan_next()
        for exchange in self._exchanges:
            exchange.begin()
        for one in self._by_id.values():
            self._enter(one)
        if self._death_s:
            self.at(self._death_s, self._kill_one)

    def _enter(self, process: StageProcess) -> None:
        """A process is in, with its stage's newest state."""
        member = orders.Member(process.me.boot, process.peer.machine.span)
        self._obey(self.rounds.joined(process.me, member, self.now_s))
        self.at(self.now_s, process.tick)

    def run_round(self) -> RoundTold:
        """To the outcome of the next round.

        Raises:
            RuntimeError: it does not end.
        """
        for _ in range(_EVENTS_MAX):
            if self._told:
                return self._told.pop()
            if self.rounds.due_s < self._queue[0][0]:
                self.now_s = self.rounds.due_s
                self._obey(self.rounds.overdue(self.now_s))
                continue
            self.now_s, _, act = heapq.heappop(self._queue)
            act()
        raise RuntimeError(f"round {self.rounds.round} of this pipeline does not end")

    @property
    def _came_back(self) -> int:
        """Tokens of micro-batches that came back, the round under way included. Where steps are
        flushed a step may be void: only the books say what counts."""
        if self.rules.flushes:
            return self.tokens
        return self.tokens + self._micro_tokens * sum(one.num_back for one in self.stages[0])

    @property
    def is_over(self) -> bool:
        """True where what is left of the run's tokens is not worth a round."""
        return not self._left_of(self.tokens)

    @property
    def _num_left(self) -> int:
        """Micro-batches of the run that have not come back, 0 if they are not worth a round."""
        return self._left_of(self._came_back)

    def _left_of(self, tokens: int) -> int:
        left = max(0, -(-(self.plan.tokens - tokens) // self._micro_tokens))
        whole = self._whole_share * max(1, self._whole_steps) * len(self.stages[0])
        return left if left * _ROUND_PARTS >= whole else 0

    def _obey(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case orders.Tell():
                    one = self._by_id[action.process.peer]
                    if one.me == action.process:
                        self._tell(one, action.order)
                case Booked():
                    self._exchange(action.books)
                case Late():
                    pass  # the books lack what it has not told

    def _tell(self, process: StageProcess, order: orders.Order) -> None:
        if isinstance(order, orders.Begin) and not self._num_left:  # unless the books say otherwise
            self._withheld.append((process, order))
            return
        seen = self._seen(process, order)
        if seen is None:
            return

        def hear() -> None:
            if process.is_alive:
                process.peer.told(seen, self.now_s)
                process.train()

        self.at(self.now_s + self.net.round_trip_s / 2, hear)

    def _seen(self, process: StageProcess, order: orders.Order) -> orders.Order | None:
        """The order as the process gets it: where routes are fixed it knows of its own route."""
        if not self._is_fixed:
            return order
        index = process.replica.index
        if isinstance(order, orders.Joined) and self._by_id[order.peer].replica.index != index:
            return None
        if isinstance(order, orders.Welcome | orders.Begin):
            members = {
                peer: member
                for peer, member in order.members.items()
                if self._by_id[peer].replica.index == index
            }
            return msgspec.structs.replace(order, members=members)
        return order

    def reports(self, process: Process, report: orders.Report) -> None:
        """A report goes to the coordinator."""

        def hear() -> None:
            self._plan_next()
            match report:
                case orders.Drained():
                    self._obey(self.rounds.drained(process, report, self.now_s))
                case orders.Weighed():
                    self._obey(self.rounds.weighed(process, report, self.now_s))
                case orders.Settled():
                    self._obey(self.rounds.settled(process, report, self.now_s))

        self.at(self.now_s + self.net.round_trip_s / 2, hear)

    def _plan_next(self) -> None:
        """The run's last round is as long as its tokens last."""
        sources = len(self.stages[0])
        if self.rules.flushes:
            per_step = self._whole_share * sources
            steps = min(self._whole_steps, max(1, -(-self._num_left // per_step)))
            self.rounds.steps = self.rounds.round_steps = steps
        else:
            share = min(self._whole_share, max(1, -(-self._num_left // sources)))
            self.rounds.share = share
            self.rounds.round_steps = -(-self.plan.inner_steps * share // self._whole_share)

    def _exchange(self, books: Books) -> None:
        """The ops of a round: their bytes move, and each stage goes on when its own are there."""
        told = RoundTold(books)
        up: dict[PeerId, int] = {}
        down: dict[PeerId, int] = {}
        for stage, exchange in zip(self.stages, self._exchanges, strict=True):
            told.spreads.append(spread([one.given for one in stage if one.is_alive]))
            exchange.settle_ops()
            seconds = 0.0
            for _, op in exchange.take_ended():
                traffic = op.traffic()
                seconds = traffic.seconds(self.net)
                up |= traffic.up
                down |= traffic.down
                told.left_out += op.left_out
                told.committed += op.is_committed
                told.skipped += not op.is_committed
            told.seconds = max(told.seconds, seconds)
            self.at(self.now_s + seconds, partial(self._go_on, stage))
        told.traffic = Traffic(up, down)

        whole = sum(books.made.values()) - sum(books.lost.values())

        def over() -> None:
            self._told.append(told)
            self._slots = {
                key: some for key, some in self._slots.items() if key[0].round > books.round
            }
            self.tokens += whole * self._micro_tokens
            self.rounds.ended = self.tokens // (self.plan.peers * self.size.tokens_per_step)
            self._plan_next()
            withheld, self._withheld = self._withheld, []
            for process, order in withheld:
                self._tell(process, order)
            self._obey(self.rounds.outcome(books.round, self.now_s))

        self.at(self.now_s + told.seconds, over)

    def _go_on(self, stage: Sequence[StageProcess]) -> None:
        for one in stage:
            one.hear()

    # ---- deaths

    def _kill_one(self) -> None:
        """A process dies at once; its peer comes back as another one with nothing of its own."""
        self.at(self.now_s + self._death_s, self._kill_one)
        process = self._deaths.choice([one for one in self._by_id.values() if one.is_alive])
        process.is_alive = False
        self._exchanges[process.replica.stage].died(process.member)
        self.at(self.now_s + _BACK_S, partial(self._come_back, process))

    def _come_back(self, before: StageProcess) -> None:
        self._lives += 1
        stage, index = before.replica.stage, before.replica.index
        boot = b"life %d" % self._lives
        replica = self._replica(stage, index)
        member = self._exchanges[stage].returned(replica, boot)
        process = StageProcess(self, replica, member, boot)
        process.bytes_up = before.bytes_up
        process.trainer.num_counted = before.trainer.num_counted
        self.stages[stage][index] = self._by_id[process.me.peer] = process
        self._enter(process)

    # ---- what processes do

    def sends(self, process: StageProcess, to: PeerId, frame: Frame, leaves_s: float) -> None:
        """A frame leaves a process."""
        if frame.kind is FrameKind.FORWARD:
            self._count_slot(frame)
        if self._rng.random() < self.plan.drop:
            return

        def came() -> None:
            receiver = self._by_id[to]
            if receiver.is_alive:
                receiver.peer.received(process.me.peer, frame, self.now_s)
                receiver.train()

        self.at(leaves_s + self.net.round_trip_s / 2, came)

    def _count_slot(self, frame: Frame) -> None:
        """Count a micro-batch that goes to another place than before."""
        message = encoding.unpack(frame).message
        assert isinstance(message, messages.Forward)
        slots = self._slots.setdefault((message.micro_batch, message.stage), set())
        self.redone += bool(slots) and message.slot not in slots
        slots.add(message.slot)

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Do something at this time; what is for one time is done in order."""
        self._num_events += 1
        heapq.heappush(self._queue, (time_s, self._num_events, act))
