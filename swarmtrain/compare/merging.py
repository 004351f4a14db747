"""The last merge of a comparison: one op that puts the mean of all replicas in place of each.

It goes through the coordinator and participants of a run, beside the ops of the strategy, whatever
their kind: as strategy `local` merges in a run. Values travel as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from swarmtrain.compare.exchange import Exchange, OpTold
from swarmtrain.compare.plan import Plan
from swarmtrain.compare.replica import NEVER, Replica
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.training.driver import Driver
from swarmtrain_optimizers.strategies.local.strategy import Merged
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult


@dataclass(slots=True)
class _Held:
    """Weights that nobody trains.

    Attributes:
        vector: (padded,) float32.
    """

    vector: Tensor

    def read_weights(self, out: Tensor | None = None) -> Tensor:
        return self.vector.clone() if out is None else out.copy_(self.vector)

    def write_weights(self, vector: Tensor) -> None:
        self.vector = vector.clone()


@dataclass(frozen=True, slots=True)
class _Giver:
    """A replica in the merge; see `exchange.Trained`."""

    peer: PeerId
    driver: Driver
    layout: Layout
    speed: float


def merge(
    plan: Plan, replicas: Sequence[Replica], decode: Callable[[OpResult], Tensor]
) -> tuple[Tensor, OpTold, bytes]:
    """Mean of all replicas' weights, (padded,) float32; what its op moved, and the state's root.

    Args:
        plan: plan of the run.
        replicas: all of them; their weights are only read.
        decode: results as values, shared by all replicas.
    """
    held = [_Held(torch.zeros(replicas[0].layout.padded)) for _ in replicas]
    givers = [
        _Giver(
            one.peer,
            Driver(
                one.peer,
                Merged(one.layout.padded, inner_steps=1),
                weights,
                layout=one.layout.digest,
                num_values=one.layout.num_values,
                snapshot_rounds=NEVER,
                decode=decode,
            ),
            one.layout,
            one.speed,
        )
        for one, weights in zip(replicas, held, strict=True)
    ]
    exchange = Exchange(replace(plan, codec="none", robust=""), givers)
    exchange.begin()
    for one, weights, peer in zip(replicas, held, exchange.peers, strict=True):
        weights.vector = one.trainer.read_weights()
        peer.step(lambda: 1)
    exchange.settle_ops()
    ((_, told),) = exchange.take_ended()
    return held[0].vector, told, givers[0].driver.root
