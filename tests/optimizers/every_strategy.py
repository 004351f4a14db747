"""One of each strategy that swarmtrain brings, small enough to be tried in every way."""

from collections.abc import Callable

from torch import Tensor

from swarmtrain_optimizers.strategies.asynchronous.strategy import Asynchronous
from swarmtrain_optimizers.strategies.base import Probing, Strategy
from swarmtrain_optimizers.strategies.co2.strategy import CO2
from swarmtrain_optimizers.strategies.ddp.strategy import DDP, SGD, AdamW
from swarmtrain_optimizers.strategies.decentralized_adam.strategy import DecentralizedAdam
from swarmtrain_optimizers.strategies.decoupled_momentum.strategy import DecoupledMomentum
from swarmtrain_optimizers.strategies.delayed.strategy import Delayed
from swarmtrain_optimizers.strategies.delayed_nesterov.strategy import DelayedNesterov
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_optimizers.strategies.eager.strategy import Eager
from swarmtrain_optimizers.strategies.fedavg_m.strategy import FedAvgM
from swarmtrain_optimizers.strategies.fragments import fragments_of
from swarmtrain_optimizers.strategies.gossip.strategy import Gossip
from swarmtrain_optimizers.strategies.local.strategy import Local, Merged
from swarmtrain_optimizers.strategies.noloco.strategy import NoLoCo
from swarmtrain_optimizers.strategies.one_byte.strategy import OneByte
from swarmtrain_optimizers.strategies.scaffold_m.strategy import ScaffoldM
from swarmtrain_optimizers.strategies.sparseloco.strategy import SparseLoCo
from swarmtrain_optimizers.strategies.streaming.strategy import Streaming


def _rate(step: int) -> float:
    return 0.01 / (1 + step)


def _ddp(size: int, block: int) -> Strategy:
    return DDP(size, optimizer=AdamW(), schedule=_rate)


def _ddp_sgd(size: int, block: int) -> Strategy:
    return DDP(size, optimizer=SGD(momentum=0.9, weight_decay=0.1), schedule=_rate)


def _decoupled_momentum(size: int, block: int) -> Strategy:
    return DecoupledMomentum(size, block=block, weight_decay=0.1, schedule=_rate)


def _diloco(size: int, block: int) -> Strategy:
    return DiLoCo(size, inner_steps=4, lr=0.9, momentum=0.8, error_feedback=False)


def _diloco_feedback(size: int, block: int) -> Strategy:
    return DiLoCo(size, inner_steps=4, lr=0.9, momentum=0.8, error_feedback=True)


def _streaming(size: int, block: int, *, error_feedback: bool = False) -> Strategy:
    layers = [(f"layers.{index}", block) for index in range(size // block)]
    return Streaming(
        size,
        fragments=fragments_of(layers, 2, block=block, num_values=size),
        inner_steps=8,
        delay_steps=1,
        mixing=0.5,
        lr=0.4,
        momentum=0.9,
        error_feedback=error_feedback,
    )


def _streaming_feedback(size: int, block: int) -> Strategy:
    return _streaming(size, block, error_feedback=True)


def _delayed(size: int, block: int) -> Strategy:
    return Delayed(size, inner_steps=4, lr=0.4, momentum=0.8, error_feedback=True)


def _asynchronous(size: int, block: int, *, error_feedback: bool = False) -> Strategy:
    return Asynchronous(
        size, inner_steps=4, lr=0.7, momentum=0.9, arrivals=2, error_feedback=error_feedback
    )


def _asynchronous_feedback(size: int, block: int) -> Strategy:
    return _asynchronous(size, block, error_feedback=True)


def _co2(size: int, block: int) -> Strategy:
    return CO2(size, inner_steps=4, lr=0.7, momentum=0.5, error_feedback=True)


def _eager(size: int, block: int) -> Strategy:
    return Eager(size, inner_steps=4, lr=0.7, momentum=0.8, error_feedback=False)


def _delayed_nesterov(size: int, block: int) -> Strategy:
    return DelayedNesterov(
        size, inner_steps=4, lr=0.7, momentum=0.9, arrivals=3, spread=0.1, error_feedback=False
    )


def _fedavg_m(size: int, block: int) -> Strategy:
    return FedAvgM(size, inner_steps=4, lr=1.0, momentum=0.5)


def _scaffold_m(size: int, block: int) -> Strategy:
    return ScaffoldM(size, inner_steps=4, lr=1.0, momentum=0.3)


def _noloco(size: int, block: int) -> Strategy:
    return NoLoCo(size, inner_steps=4)


def _gossip(size: int, block: int) -> Strategy:
    return Gossip(size, inner_steps=4)


def _gossip_accelerated(size: int, block: int) -> Strategy:
    return Gossip(size, inner_steps=4, flow=0.29, reach=0.99)


def _decentralized_adam(size: int, block: int) -> Strategy:
    return DecentralizedAdam(size, inner_steps=4)


def _one_byte(size: int, block: int) -> Strategy:
    return OneByte(
        size, inner_steps=4, lr=1.0, schedule=_rate, seed=5, block=block, num_used=size,
        epsilon=0.01,
    )  # fmt: skip


def _sparseloco(size: int, block: int) -> Strategy:
    return SparseLoCo(size, inner_steps=4)


def _local(size: int, block: int) -> Strategy:
    return Local(size, inner_steps=4)


def _merged(size: int, block: int) -> Strategy:
    return Merged(size, inner_steps=4)


MAKERS: dict[str, Callable[[int, int], Strategy]] = {
    "asynchronous": _asynchronous,
    "asynchronous feedback": _asynchronous_feedback,
    "co2": _co2,
    "ddp": _ddp,
    "ddp sgd": _ddp_sgd,
    "decentralized_adam": _decentralized_adam,
    "decoupled_momentum": _decoupled_momentum,
    "delayed": _delayed,
    "delayed_nesterov": _delayed_nesterov,
    "diloco": _diloco,
    "diloco feedback": _diloco_feedback,
    "eager": _eager,
    "fedavg_m": _fedavg_m,
    "gossip": _gossip,
    "gossip accelerated": _gossip_accelerated,
    "local": _local,
    "local merged": _merged,
    "noloco": _noloco,
    "one_byte": _one_byte,
    "scaffold_m": _scaffold_m,
    "sparseloco": _sparseloco,
    "streaming": _streaming,
    "streaming feedback": _streaming_feedback,
}
"""The first word is the name in the registry."""


def make(name: str, size: int, block: int) -> Strategy:
    """A fresh strategy over `size` values in blocks of `block`."""
    return MAKERS[name](size, block)


def look(strategy: Strategy, op: int, peer: bytes, target: Tensor) -> None:
    """Make the inner steps of who only looks at losses: here of the squares to a target."""
    if not isinstance(strategy, Probing):
        return
    anchor = dict(strategy.state_arrays())["anchor"]
    for _ in range(strategy.inner_steps):
        direction = strategy.direction(op, peer)
        move = direction.signs(0, anchor.numel()) * direction.step
        sides = [float((anchor + side - target).square().sum() / 2) for side in (move, -move)]
        strategy.heard(sides[0], sides[1])
