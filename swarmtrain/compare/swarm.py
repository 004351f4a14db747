"""One run: all replicas of one seed, step by step, in this process.

Time is counted in ticks, the inner steps of the fastest peer. In every tick each replica makes its
inner step, or none where slow peers do what they can; then results that have reached their place
are applied, and an op begins where one is due. The learning rate goes by tokens that all peers
together have seen, so runs of any pace end at the end of the same schedule. Not here: threads.
"""

import random
from collections.abc import Callable

from swarmtrain.compare.costs import Costs
from swarmtrain.compare.exchange import Exchange, Outcome
from swarmtrain.compare.judge import Judge
from swarmtrain.compare.plan import NETS, SIZES, Pace, Plan
from swarmtrain.compare.replica import Replica, begin, spread
from swarmtrain.compare.results import Point, RunResult, finite
from swarmtrain.compare.shards import shards
from swarmtrain.data.corpus import Corpus
from swarmtrain.simulate.trainer import SharedDecoding
from swarmtrain_optimizers.robust import rule_named
from swarmtrain_optimizers.strategies.base import OpKind

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
        decode = SharedDecoding()
        self._replicas = [Replica(plan, i, part, decode) for i, part in enumerate(parts)]
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
        self._exchange = Exchange(
            plan.codec,
            block=plan.block,
            drop=plan.drop,
            rng=random.Random(f"losses {plan.seed}"),
            rule=rule_named(plan.robust) if plan.robust else None,
        )
        self._tick_s = self._size.step_s
        if plan.pace is Pace.WAIT:
            self._tick_s /= min(plan.relative_speeds())
        self._tick = 0
        self._tokens = 0
        self._outcome: Outcome | None = None
        self._began_tick = 0
        self._counts = {"ops": 0, "skipped": 0, "left_out": 0}
        self._curve: list[Point] = []

    def run(self, tell: Callable[[Point], None] = lambda point: None) -> RunResult:
        """To the end of the budget.

        Args:
            tell: hears of each point of the curve.
        """
        begin(self._replicas)
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
            self._place()
        if self._leader.driver.is_due:
            self._begin_op()

    def _begin_op(self) -> None:
        strategy = self._leader.driver.strategy
        parts = {replica.peer: replica.driver.contribute() for replica in self._replicas}
        wanted = strategy.exchange(self._leader.driver.op + 1)
        assert wanted.kind is OpKind.MEAN, wanted
        self._outcome = self._exchange.mean(parts, wanted.ranges)
        self._began_tick = self._tick
        if wanted.delay_steps == 0:
            self._place()

    def _place(self) -> None:
        """The op's outcome takes its place at every replica."""
        outcome, self._outcome = self._outcome, None
        assert outcome is not None
        ticks = self._tick - self._began_tick
        self._costs.exchanged(outcome.traffic, ticks * self._tick_s, ticks)
        self._counts["left_out"] += len(outcome.lost) + len(outcome.refused)
        if outcome.result is None:
            self._counts["skipped"] += 1
            for replica in self._replicas:
                replica.driver.skip(outcome.op)
            return
        self._counts["ops"] += 1
        roots = {replica.driver.end_op(outcome.result).manifest.root for replica in self._replicas}
        assert len(roots) == 1, f"op {outcome.op}: replicas disagree"

    def _finish(self) -> None:
        """The last round may be shorter: what was trained is merged before the run is judged."""
        if self._outcome is not None:
            self._place()
        driver = self._leader.driver
        if driver.steps and driver.strategy.is_due(_EVER):
            self._begin_op()
            if self._outcome is not None:
                self._place()

    # ---- figures

    def _look(self, tell: Callable[[Point], None]) -> None:
        point = Point(
            self._tokens,
            self._costs.bytes_up_per_peer,
            round(self._costs.seconds, 6),
            self._loss(),
        )
        self._curve.append(point)
        tell(point)

    def _loss(self) -> float | None:
        """Of the anchor; where nobody ever exchanges, the mean of every replica's own."""
        if self._leader.driver.strategy.is_due(_EVER):
            return finite(self._judge.loss(self._leader.anchor))
        own = [self._judge.loss(r.trainer.read_weights()) for r in self._replicas]
        return finite(sum(own) / len(own))

    def _result(self) -> RunResult:
        roots = dict.fromkeys(replica.driver.root.hex() for replica in self._replicas)
        return RunResult(
            strategy=self._plan.label,
            codec=self._plan.codec,
            seed=self._plan.seed,
            val_loss=self._curve[-1].val_loss,
            replica_loss=None,
            replica_spread=spread(self._replicas),
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
