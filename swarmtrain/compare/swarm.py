"""One run: all replicas of one seed, step by step, in this process.

Time is counted in ticks, the inner steps of the fastest peer. In every tick each replica makes its
inner step, or none where slow peers do what they can; then results that have reached their place
are applied, and an op begins where one is due. The learning rate goes by tokens that all peers
together have seen, so runs of any pace end at the end of the same schedule. Not here: threads.
"""

import random
from collections.abc import Callable

import torch

from swarmtrain.compare.costs import Costs
from swarmtrain.compare.encoding import Encoder, Outcome
from swarmtrain.compare.exchange import MeanExchange
from swarmtrain.compare.gather import GatheredMeans, gather
from swarmtrain.compare.judge import Judge
from swarmtrain.compare.pairs import exchange_pairs
from swarmtrain.compare.plan import NETS, SIZES, Pace, Plan
from swarmtrain.compare.replica import Replica, begin, held_back, spread
from swarmtrain.compare.results import Point, RunResult, finite
from swarmtrain.compare.shards import shards
from swarmtrain.data.corpus import Corpus
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain.simulate.processes.trainer import SharedDecoding
from swarmtrain_optimizers.robust import rule_named
from swarmtrain_optimizers.strategies.base import Exchange, OpKind
from swarmtrain_transport.links.link import PeerId

_EVER = 1 << 60
"""Inner steps after which every strategy that exchanges at all is due."""


class Swarm:
    """Runs a plan.

    Args:
        plan: what to run.
        corpus: the text.

    Raises:
        ValueError: the text is too short for so many peers.
    """

    def __init__(self, plan: Plan, corpus: Corpus) -> None:
        self._plan = plan
        self._size = SIZES[plan.size]
        parts = shards(corpus, plan.peers, plan.seed, noniid=plan.noniid)
        self._gathered = GatheredMeans(SharedDecoding())
        self._replicas = [Replica(plan, i, part, self._gathered) for i, part in enumerate(parts)]
        self._leader = max(self._replicas, key=lambda replica: replica.speed)
        model = self._leader.trainer
        self._judge = Judge(
            corpus,
            model.model,
            model.layout,
            context=self._size.model.context,
            windows=plan.windows,
        )
        self._costs = Costs(NETS[plan.net], plan.peers)
        self._encoder = Encoder(plan.codec, plan.block)
        self._mean = MeanExchange(self._encoder, rule_named(plan.robust) if plan.robust else None)
        self._rng = random.Random(f"losses {plan.seed}")
        self._tick_s = self._size.step_s
        if plan.pace is Pace.WAIT:
            self._tick_s /= min(plan.relative_speeds())
        self._tick = 0
        self._tokens = 0
        self._outcome: Outcome | None = None
        self._began_tick = self._ended_tick = 0
        self._counts = {"ops": 0, "skipped": 0, "left_out": 0}
        self._curve: list[Point] = []
        self._first = self._leader.anchor.clone()

    def run(self, tell: Callable[[Point], None] = lambda point: None) -> RunResult:
        """To the end of the budget.

        Args:
            tell: hears of each point of the curve.
        """
        begin(self._replicas)
        self._first = self._leader.anchor.clone()
        self._look(tell)
        while self._tokens < self._plan.tokens:
            self._make_tick()
            if self._tokens * self._plan.points >= self._plan.tokens * len(self._curve):
                if self._tokens >= self._plan.tokens:
                    self._finish()
                self._look(tell)
        return self._result()

    # ---- steps and ops

    def _make_tick(self) -> None:
        everybody = self._plan.pace is Pace.WAIT
        step = self._tokens // (self._plan.peers * self._size.tokens_per_step)
        for replica in self._replicas:
            if everybody or replica.steps_at(self._tick + 1) > replica.steps_at(self._tick):
                replica.inner_step(step)
                self._tokens += self._size.tokens_per_step
        self._tick += 1
        self._costs.stepped(self._tick_s)
        if self._outcome is not None and self._leader.driver.is_at_place:
            self._place(self._outcome)
        if self._plan.pace is Pace.APART:
            due = [replica for replica in self._replicas if replica.driver.is_due]
        else:
            due = self._replicas if self._leader.driver.is_due else []
        if due:
            self._begin_op(due)

    def _begin_op(self, due: list[Replica]) -> None:
        """These give their parts; where nobody steps meanwhile, the op ends at once."""
        wanted = self._leader.driver.strategy.exchange(self._leader.driver.op + 1)
        parts = {replica.peer: replica.driver.contribute() for replica in due}
        lost = {peer for peer in sorted(parts) if self._rng.random() < self._plan.drop}
        self._outcome = self._exchanged(wanted, parts, lost)
        self._began_tick = self._tick
        if wanted.delay_steps == 0:
            self._place(self._outcome)

    def _exchanged(
        self, wanted: Exchange, parts: dict[PeerId, OwnPart], lost: set[PeerId]
    ) -> Outcome:
        peers = [replica.peer for replica in self._replicas]
        match wanted.kind:
            case OpKind.MEAN:
                return self._mean.run(parts, lost, peers, wanted.ranges)
            case OpKind.GATHER:
                return gather(self._encoder, parts, lost, peers, wanted.num_values, self._gathered)
            case OpKind.PAIR:
                return exchange_pairs(
                    self._encoder, parts, lost, wanted.num_values,
                    seed=self._plan.seed, ahead=1 - 1 / wanted.vectors,
                )  # fmt: skip

    def _place(self, outcome: Outcome) -> None:
        """The op's outcome takes its place at every replica."""
        self._outcome = None
        strategy = self._leader.driver.strategy
        wanted = strategy.exchange(outcome.op)
        self._costs.exchanged(
            outcome.traffic,
            hidden_s=(self._tick - self._began_tick) * self._tick_s,
            ahead_s=(self._began_tick - self._ended_tick) * self._tick_s,
            delay_steps=wanted.delay_steps,
            steps=strategy.inner_steps,
        )
        self._ended_tick = self._tick
        self._counts["left_out"] += len(outcome.left_out)
        self._counts["ops" if outcome.results else "skipped"] += 1
        roots = set()
        for replica in self._replicas:
            if replica.peer in outcome.results:
                roots.add(replica.driver.end_op(outcome.results[replica.peer]).manifest.root)
            else:
                replica.driver.skip(outcome.op)
        is_shared = wanted.kind is not OpKind.PAIR
        assert not is_shared or len(roots) <= 1, f"op {outcome.op}: replicas disagree"

    def _finish(self) -> None:
        """The last round may be shorter: what was trained is merged before the run is judged. Of a
        strategy that exchanges fragments in turn it is the next one's, as where a run ends: the
        others are judged as old as their turn."""
        if self._outcome is not None:
            self._place(self._outcome)
        left = [replica for replica in self._replicas if replica.driver.steps]
        if left and self._exchanges:
            self._begin_op(left if self._plan.pace is Pace.APART else self._replicas)
            if self._outcome is not None:
                self._place(self._outcome)

    # ---- figures

    def _look(self, tell: Callable[[Point], None]) -> None:
        point = Point(
            self._tokens,
            self._costs.bytes_up_per_peer,
            round(self._costs.seconds, 6),
            self._loss(),
            spread(self._replicas),
        )
        self._curve.append(point)
        tell(point)

    @property
    def _exchanges(self) -> bool:
        """Whether the strategy ever exchanges anything."""
        return self._leader.driver.strategy.is_due(_EVER)

    def _loss(self) -> float | None:
        """Of the anchor, or of the mean of anchors; where nobody ever exchanges, the mean of what
        every replica's own weights lose."""
        if self._exchanges:
            if not self._is_paired:
                return finite(self._judge.loss(self._leader.anchor))
            anchors = torch.stack([replica.anchor for replica in self._replicas])
            return finite(self._judge.loss(anchors.double().mean(dim=0).float()))
        own = [self._judge.loss(r.trainer.read_weights()) for r in self._replicas]
        return finite(sum(own) / len(own))

    @property
    def _is_paired(self) -> bool:
        """Whether every replica has an anchor of its own."""
        return self._leader.driver.strategy.exchange(1).kind is OpKind.PAIR

    def _root_of(self, replica: Replica) -> bytes:
        """Of its state; where nobody ever exchanges, of its own weights as if a run began there."""
        if self._exchanges:
            return replica.driver.root
        return replica.driver.offer().manifest.root

    def _result(self) -> RunResult:
        roots = dict.fromkeys(self._root_of(replica).hex() for replica in self._replicas)
        return RunResult(
            strategy=self._plan.label,
            codec=self._plan.codec,
            seed=self._plan.seed,
            val_loss=self._curve[-1].val_loss,
            replica_loss=finite(self._judge.loss(self._leader.anchor)) if self._is_paired else None,
            replica_spread=spread(self._replicas),
            held_back=held_back(self._replicas, self._first),
            num_values=self._leader.trainer.layout.padded,
            tokens=self._tokens,
            ops=self._counts["ops"],
            skipped=self._counts["skipped"],
            left_out=self._counts["left_out"],
            bytes_up_per_peer=self._costs.bytes_up_per_peer,
            peak_bytes_per_step=self._costs.peak_bytes,
            modelled_seconds=round(self._costs.seconds, 6),
            exchange_seconds=round(self._costs.exchange_s, 6),
            state_roots=tuple(roots),
            curve=tuple(self._curve),
        )
