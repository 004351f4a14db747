"""One run of a pipeline, round by round, and its figures.

The anchors of all stages together are judged as a whole model's is. Seconds are those of the
crowd's clock; bytes are of activations, their gradients and the ops, per peer.
"""

from collections.abc import Callable, Sequence
from statistics import mean

import torch
from torch import Tensor

from swarmtrain.compare.costs import Costs
from swarmtrain.compare.judge import Judge
from swarmtrain.compare.pipeline_crowd import (
    PipelineCrowd,
    RoundTold,
    StageProcess,
    staged_config,
)
from swarmtrain.compare.plan import NETS, SIZES, Pipelined, Plan
from swarmtrain.compare.replica import held_back, seed_of, spread
from swarmtrain.compare.results import Point, RunResult, finite
from swarmtrain.data.corpus import Corpus
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.models.tensors import Layout
from swarmtrain.pipeline.missing import without
from swarmtrain_optimizers.strategies.base import OpKind


class PipelineSwarm:
    """Runs a plan of a pipeline.

    Args:
        plan: plan of the run.
        pipeline: pipeline of the plan.
        corpus: the text.

    Raises:
        ValueError: the text is too short for so many sources.
    """

    def __init__(self, plan: Plan, pipeline: Pipelined, corpus: Corpus) -> None:
        self._plan, self._pipeline = plan, pipeline
        size = SIZES[plan.size]
        model = build_model(size.model, seed_of(plan, 0))
        self._layout = Layout.of(model, plan.block)
        self._judge = Judge(
            corpus, model, self._layout, context=size.model.context, windows=plan.windows
        )
        self._crowd = PipelineCrowd(plan, pipeline, corpus)
        self._costs = Costs(NETS[plan.net], pipeline.stages * plan.peers)
        self._rounds: list[RoundTold] = []
        self._curve: list[Point] = []
        self._first: list[Tensor] = []
        strategy = self._crowd.stages[0][0].replica.driver.strategy
        self._is_paired = strategy.exchange(1).kind is OpKind.PAIR

    def run(self, tell: Callable[[Point], None] = lambda point: None) -> RunResult:
        """To the end of the budget.

        Args:
            tell: hears of each point of the curve.
        """
        crowd, plan = self._crowd, self._plan
        crowd.begin()
        self._first = [stage[0].replica.anchor.clone() for stage in crowd.stages]
        self._look(tell)
        while not crowd.is_over:
            told = crowd.run_round()
            self._rounds.append(told)
            if told.traffic.up:
                self._costs.exchanged(
                    told.traffic, hidden_s=0.0, ahead_s=0.0, delay_steps=0, steps=plan.inner_steps
                )
            if crowd.tokens * plan.points >= plan.tokens * len(self._curve):
                self._look(tell)
        return self._result()

    # ---- figures

    def _look(self, tell: Callable[[Point], None]) -> None:
        point = Point(
            self._crowd.tokens,
            self._bytes_up,
            round(self._crowd.now_s, 6),
            finite(self._judge.loss(self._mean([self._anchor(i) for i in self._indices]))),
            self._spread(),
        )
        self._curve.append(point)
        tell(point)

    @property
    def _peers(self) -> list[StageProcess]:
        return [one for stage in self._crowd.stages for one in stage]

    @property
    def _indices(self) -> range:
        """Places of the peers of whom an anchor is asked: all have the same but in pairs."""
        return range(self._plan.peers if self._is_paired else 1)

    @property
    def _bytes_up(self) -> int:
        activations = sum(one.bytes_up for one in self._peers)
        return self._costs.bytes_up_per_peer + round(activations / len(self._peers))

    def _anchor(self, index: int) -> Tensor:
        """(padded,) float32 of the whole model: the anchors of the peers of this place."""
        return self._whole(index, lambda one: one.replica.anchor)

    def _spread(self) -> float:
        weights = [self._whole(index, _weights) for index in range(self._plan.peers)]
        return spread(weights)

    def _whole(self, index: int, vector: Callable[[StageProcess], Tensor]) -> Tensor:
        return self._layout.pack({
            name: view
            for one in self._of_place(index)
            for name, view in one.replica.layout.named_views(vector(one)).items()
        })  # fmt: skip

    def _of_place(self, index: int) -> list[StageProcess]:
        """The peer of each stage at this place; instead of a dead one another of its stage."""
        return [
            next(one for one in (*stage[index:], *stage[:index]) if one.is_alive)
            for stage in self._crowd.stages
        ]

    def _mean(self, vectors: Sequence[Tensor]) -> Tensor:
        return (
            vectors[0] if len(vectors) == 1 else torch.stack(list(vectors)).double().mean(0).float()
        )

    def _result(self) -> RunResult:
        plan, crowd = self._plan, self._crowd
        stages = crowd.stages
        whole = [told for told in self._rounds if not told.skipped]
        roots = dict.fromkeys(
            b"".join(one.replica.driver.root for one in self._of_place(index)).hex()
            for index in range(plan.peers)
        )
        counted = [[one.trainer.num_counted for one in stage] for stage in stages]
        waits = [
            held_back([one.replica for one in stage], first)
            for stage, first in zip(stages, self._first, strict=True)
        ]
        micro_peak = max(one.bytes_up for one in self._peers) * plan.peers // plan.steps
        return RunResult(
            strategy=plan.label,
            codec=plan.codec,
            seed=plan.seed,
            val_loss=self._curve[-1].val_loss,
            replica_loss=finite(self._judge.loss(self._anchor(0))) if self._is_paired else None,
            replica_spread=self._spread(),
            held_back=max(waits),
            num_values=sum(stage[0].replica.layout.padded for stage in stages),
            tokens=crowd.tokens,
            ops=len(whole),
            skipped=len(self._rounds) - len(whole),
            left_out=sum(told.left_out for told in self._rounds),
            bytes_up_per_peer=self._bytes_up,
            peak_bytes_per_step=max(self._costs.peak_bytes, micro_peak),
            modelled_seconds=round(crowd.now_s, 6),
            exchange_seconds=round(self._costs.exchange_s, 6),
            state_roots=tuple(roots),
            curve=tuple(self._curve),
            route_shares=tuple(
                tuple(count / max(1, sum(of_stage)) for count in of_stage) for of_stage in counted
            ),
            redone=crowd.redone,
            lost=sum(sum(told.books.lost.values()) for told in self._rounds),
            stage_spreads=tuple(
                mean(of_stage)
                for of_stage in zip(*(told.spreads for told in self._rounds), strict=True)
            ),
            losses_without=self._losses_without(),
        )

    def _losses_without(self) -> tuple[float | None, ...]:
        """Losses where one of the stages between is missing, of each; () where routes have all."""
        visit, num_stages = self._crowd.rules.visit, self._crowd.rules.num_stages
        config = staged_config(self._plan, self._pipeline)
        whole = self._layout.named_views(self._mean([self._anchor(i) for i in self._indices]))
        losses = []
        for stage in range(1, num_stages - 1) if visit else ():
            left, weights = without(config, whole, [stage])
            model = build_model(left.model, seed_of(self._plan, 0))
            losses.append(finite(self._judge.loss_of(model, weights)))
        return tuple(losses)


def _weights(one: StageProcess) -> Tensor:
    return one.replica.weights.read_weights()
