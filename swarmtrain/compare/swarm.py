"""One run: all replicas of one seed, step by step, in this process.

Time is counted in ticks, the inner steps of the fastest peer. In every tick each replica makes its
inner step, or none where slow peers do what they can or an outcome is awaited; then the run goes on
as far as it can before the next step. The learning rate goes by tokens that all peers
together have seen, so runs of any pace end at the end of the same schedule. Not here: threads.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from swarmtrain.compare.costs import Costs
from swarmtrain.compare.exchange import Exchange
from swarmtrain.compare.judge import Judge
from swarmtrain.compare.merging import merge
from swarmtrain.compare.plan import NETS, SIZES, Pace, Plan
from swarmtrain.compare.replica import Replica, exchanges, held_back, spread
from swarmtrain.compare.results import Point, RunResult, finite
from swarmtrain.compare.shards import shards
from swarmtrain.compare.stragglers import Clocks
from swarmtrain.data.corpus import Corpus
from swarmtrain.simulate.processes.pretended_training import SharedDecoding
from swarmtrain_optimizers.strategies.base import OpKind


class Swarm:
    """Runs a plan.

    Args:
        plan: plan of the run.
        corpus: the text.

    Raises:
        ValueError: the text is too short for so many peers.
    """

    def __init__(self, plan: Plan, corpus: Corpus) -> None:
        self._plan = plan
        self._size = SIZES[plan.size]
        parts = shards(corpus, plan.peers, plan.seed, noniid=plan.noniid)
        self._decode = SharedDecoding()
        self._replicas = [Replica(plan, i, part, self._decode) for i, part in enumerate(parts)]
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
        self._exchange = Exchange(plan, self._replicas)
        self._tick_s = self._size.step_s
        self._clocks = Clocks(plan) if plan.stragglers is not None else None
        if plan.pace is Pace.WAIT and self._clocks is None:
            self._tick_s /= min(plan.relative_speeds())
        self._tick = 0
        self._tokens = 0
        self._ended_tick = 0
        self._counts = {"ops": 0, "skipped": 0, "left_out": 0}
        self._curve: list[Point] = []
        self._first = self._leader.anchor.clone()
        self._merged: Tensor | None = None
        self._merged_root = b""
        self._best_alone: float | None = None

    def run(self, tell: Callable[[Point], None] = lambda point: None) -> RunResult:
        """To the end of the budget.

        Args:
            tell: hears of each point of the curve.
        """
        self.begin()
        self._look(tell)
        while self._tokens < self._plan.tokens:
            self._make_tick()
            if self._tokens * self._plan.points >= self._plan.tokens * len(self._curve):
                if self._tokens >= self._plan.tokens:
                    self._finish()
                self._look(tell)
        return self._result()

    # ---- steps and ops

    def begin(self) -> None:
        """Give every replica the same weights."""
        self._exchange.begin()
        self._first = self._leader.anchor.clone()

    def _make_tick(self) -> None:
        everybody = self._plan.pace is Pace.WAIT
        step = self._tokens // (self._plan.peers * self._size.tokens_per_step)
        self._exchange.tick = self._tick + 1
        times = 1.0
        if self._clocks is not None:
            times = self._clocks.stepped()
            self._exchange.left_out = self._clocks.left_out
        # Slow ones first: who is done in the same tick is in the same op.
        everyone = zip(self._replicas, self._exchange.peers, strict=True)
        for replica, peer in sorted(everyone, key=lambda one: one[0].speed):
            is_its = replica.steps_at(self._tick + 1) > replica.steps_at(self._tick)
            if (everybody or is_its) and not peer.machine.holds_back:
                peer.step(partial(replica.inner_step, step))
                self._tokens += self._size.tokens_per_step
        self._tick += 1
        self._costs.stepped(self._tick_s * times)
        self._exchange.settle_ops()
        self._count()

    def _count(self) -> None:
        """Count an op that has ended: its bytes and its seconds."""
        strategy = self._leader.driver.strategy
        for op, told in self._exchange.take_ended():
            self._costs.exchanged(
                told.traffic(self._exchange.links),
                hidden_s=(self._tick - told.began) * self._tick_s,
                ahead_s=(told.began - self._ended_tick) * self._tick_s,
                delay_steps=strategy.exchange(op).delay_steps,
                steps=strategy.inner_steps,
                waits=told.waits,
            )
            self._ended_tick = self._tick
            if self._clocks is not None:
                self._clocks.exchanged()
            self._counts["left_out"] += told.left_out
            self._counts["ops" if told.is_committed else "skipped"] += 1

    def _finish(self) -> None:
        if self._plan.last_merge:
            self._merge()
        elif self._exchanges:
            self._exchange.finish()
            self._count()

    def _merge(self) -> None:
        """End the run with the mean of all replicas' weights, of which the best is noted before."""
        self._best_alone = finite(min(self._own_losses()))
        self._merged, told, self._merged_root = merge(self._plan, self._replicas, self._decode)
        self._costs.exchanged(
            told.traffic(self._exchange.links),
            hidden_s=0.0,
            ahead_s=0.0,
            delay_steps=0,
            steps=self._plan.inner_steps,
        )
        self._counts["ops"] += 1
        for replica in self._replicas:
            replica.trainer.write_weights(self._merged)

    # ---- figures

    def _spread(self) -> float:
        return spread([replica.trainer.read_weights() for replica in self._replicas])

    def _look(self, tell: Callable[[Point], None]) -> None:
        point = Point(
            self._tokens,
            self._costs.bytes_up_per_peer,
            round(self._costs.seconds, 6),
            self._loss(),
            self._spread(),
        )
        self._curve.append(point)
        tell(point)

    @property
    def _exchanges(self) -> bool:
        """True if the strategy ever exchanges anything."""
        return exchanges(self._leader.driver.strategy)

    def _loss(self) -> float | None:
        """Return the loss of the anchor, or of the mean of anchors; where nobody ever exchanges,
        and before a last merge, the mean of what every replica's own weights lose."""
        if self._merged is not None:
            return finite(self._judge.loss(self._merged))
        if self._exchanges and not self._plan.last_merge:
            if not self._is_paired:
                return finite(self._judge.loss(self._leader.anchor))
            anchors = torch.stack([replica.anchor for replica in self._replicas])
            return finite(self._judge.loss(anchors.double().mean(dim=0).float()))
        own = self._own_losses()
        return finite(sum(own) / len(own))

    def _own_losses(self) -> list[float]:
        return [self._judge.loss(r.trainer.read_weights()) for r in self._replicas]

    def _replica_loss(self) -> float | None:
        if self._merged is not None:
            return self._best_alone
        return finite(self._judge.loss(self._leader.anchor)) if self._is_paired else None

    @property
    def _is_paired(self) -> bool:
        """True if every replica has an anchor of its own."""
        return self._leader.driver.strategy.exchange(1).kind is OpKind.PAIR

    def _root_of(self, replica: Replica) -> bytes:
        """Return the root of its state; where nobody ever exchanges, of its own weights as if a run
        began there; of the merge, where that was the end."""
        if self._merged is not None:
            return self._merged_root
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
            replica_loss=self._replica_loss(),
            replica_spread=self._spread(),
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
            seconds_by_net={name: round(s, 6) for name, s in self._costs.seconds_by_net.items()},
            state_roots=tuple(roots),
            curve=tuple(self._curve),
        )
