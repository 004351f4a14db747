"""One peer of a comparison: the production trainer, strategy and driver."""

import random
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from swarmtrain.compare.hostile import contribution_of
from swarmtrain.compare.plan import Pace, Plan
from swarmtrain.config.asked import planned_by
from swarmtrain.config.options import Ways
from swarmtrain.data.batches import ByteStream
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.arithmetic import TensorContribution
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.own_work import rounding_seed
from swarmtrain.peer.training.trainer import BuiltinTrainer
from swarmtrain.strategies import StrategySettings, make_strategy
from swarmtrain_optimizers.strategies.base import Strategy
from swarmtrain_optimizers.strategies.registry import facts_named
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult

NEVER = 1 << 30
"""Ops between two copies of the state for joiners: nobody joins here."""


def peer_id(index: int) -> PeerId:
    """The key that stands for replica `index`."""
    return (index + 1).to_bytes(32, "big")


def seed_of(plan: Plan, index: int) -> int:
    """Seed of the weights and windows of replica `index`."""
    return random.Random(f"replica {plan.seed} {index}").getrandbits(31)


class Replica:
    """A peer that makes inner steps when it is told to.

    Args:
        plan: plan of the run.
        index: number of the peer, from 0.
        pieces: the replica's part of the text.
        decode: results as values, shared by all replicas.

    Attributes:
        peer: id of the peer.
        driver: strategy and weights.
        trainer: model, inner optimizer and text.
        speed: inner steps in the time of one of the fastest peer's.
    """

    def __init__(
        self, plan: Plan, index: int, pieces: Sequence[bytes], decode: Callable[[OpResult], Tensor]
    ) -> None:
        self.peer = peer_id(index)
        self.speed = plan.relative_speeds()[index]
        seed = seed_of(plan, index)
        config = plan.run_config()
        self.trainer = BuiltinTrainer(
            config,
            batches=ByteStream.of(config, pieces, seed).next_batch,
            validation=(),
            seed=seed,
            ways=Ways(frozenset({plan.inner})),  # whoever compares has named it
        )
        is_hostile = index >= plan.peers - plan.hostile
        self.driver = Driver(
            self.peer,
            make_strategy(settings_of(plan), self.trainer.layout),
            self.trainer,
            layout=self.trainer.layout.digest,
            num_values=self.trainer.layout.num_values,
            snapshot_rounds=NEVER,
            contribution=contribution_of(plan.attack, seed) if is_hostile else TensorContribution,
            decode=decode,
            read_gradient=self.trainer.read_gradient,
            seed_of=None if is_hostile else rounding_of(plan, self.peer),
            steps_alone=plan.steps_alone,
        )

    @property
    def layout(self) -> Layout:
        """Length of the whole model's vector."""
        return self.trainer.layout

    @property
    def anchor(self) -> Tensor:
        """(padded,) float32, the strategy's anchor: a live buffer."""
        return dict(self.driver.strategy.state_arrays())["anchor"]

    def steps_at(self, tick: int) -> int:
        """Inner steps made after so many steps of the fastest peer, where nobody waits."""
        return int(tick * self.speed + 1e-9)

    def inner_step(self, schedule_step: int) -> int:
        """One inner step at the learning rate of step `schedule_step` of the run; its samples."""
        samples = self.trainer.num_samples
        self.trainer.step = schedule_step
        self.trainer.step_for(self.driver)
        return self.trainer.num_samples - samples


def settings_of(plan: Plan) -> StrategySettings:
    """Return the part of a plan that a run file would say of its strategy."""
    config = plan.run_config()
    return StrategySettings(
        name=plan.strategy,
        numbers={
            "inner_steps": plan.inner_steps,
            "lr": plan.outer_lr,
            "momentum": plan.outer_momentum,
            "error_feedback": plan.error_feedback,
            "delay_steps": plan.delay_steps,
            "mixing": plan.mixing,
            "lr_rule": "fixed",
            "last_merge": plan.last_merge and plan.budget > 0,
            "by_samples": False,
            "seed": plan.seed,
            "block": plan.block,
            "arrivals": _arrivals(plan),
            "first_share": 1 / plan.peers,
        },
        fragments=plan.fragments,
        block=plan.block,
        inner=config.inner,
        total_steps=config.run.rounds * config.outer.inner_steps,
        own=dict(plan.own),
    )


def rounding_of(plan: Plan, peer: PeerId) -> Callable[[int], int] | None:
    """Seed of a peer's rounding in an op; None rounds to nearest."""
    if plan.rounding == "nearest":
        return None
    run = f"compare {plan.seed}".encode()
    return lambda op: rounding_seed(run, op, peer)


def _arrivals(plan: Plan) -> int:
    """Count the ops in which peers arrive that began together: one, unless they go apart; with a
    buffer as many as fill it."""
    if buffer := planned_by(facts_named(plan.strategy), dict(plan.own)).get("buffer"):
        return max(1, plan.peers // int(buffer))
    return len(set(plan.relative_speeds())) if plan.pace is Pace.APART else 1


_EVER = 1 << 60
"""Inner steps after which every strategy that exchanges at all is due."""


def exchanges(strategy: Strategy) -> bool:
    """True if the strategy ever exchanges anything."""
    return strategy.is_due(_EVER)


def spread(weights: Sequence[Tensor]) -> float:
    """Root mean square of the distance of vectors from their mean, over that of the mean."""
    stack = torch.stack(list(weights)).double()
    middle = stack.mean(dim=0)
    apart = (stack - middle).square().mean().sqrt().item()
    size = middle.square().mean().sqrt().item()
    return apart / size if size > 0 else 0.0


_WAITING = frozenset({"error_feedback", "held"})
"""Names of a peer's own arrays that hold what is given with a later op."""


class Trained(Protocol):
    """A peer whose strategy has given parts to ops."""

    @property
    def driver(self) -> Driver:
        """Strategy of the replica."""

    @property
    def anchor(self) -> Tensor:
        """Anchor of the replica."""


def held_back(replicas: Sequence[Trained], first: Tensor) -> float:
    """Measure the values that wait for a later op, averaged over peers, against the anchor's whole
    way: in error feedback, and of strategies that run late those that the last op did not take.

    Args:
        replicas: all of them.
        first: (padded,) float32, the anchor that the run began with.
    """
    waiting = [
        values
        for replica in replicas
        for name, values in replica.driver.strategy.local_arrays()
        if name in _WAITING
    ]
    way = float((replicas[0].anchor - first).double().norm())
    if not waiting or way == 0:
        return 0.0
    return float(torch.stack(waiting).double().mean(dim=0).norm()) / way
