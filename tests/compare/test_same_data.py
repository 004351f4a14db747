"""T4: peers that all have the same data give what one peer alone gives, whatever moves their parts.

Production strategies and codecs; only the network is left out. Nothing is near here: the
sums of equal parts are exact, so the bits are the same.
"""

from functools import partial

import pytest
import torch
from torch import Tensor

from swarmtrain.peer.arithmetic import TensorContribution, decode_result
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain_optimizers.strategies.base import OpKind, Strategy
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR
from tests.optimizers import every_strategy
from tests.peer.one_process import exchanged

torch.set_num_threads(1)
SIZE, BLOCK, OPS = 64, 8, 9
KINDS = {OpKind.MEAN: MEAN, OpKind.GATHER: GATHER, OpKind.PAIR: PAIR}
# Peers of one_byte look into directions of their own: more of them say more, and not the same.
NO_MEANS = {
    "decentralized_adam",
    "decoupled_momentum",
    "gossip",
    "local",
    "noloco",
    "one_byte",
    "sparseloco",
}
OF_MEANS = sorted(set(every_strategy.MAKERS) - NO_MEANS - {"gossip accelerated"})


def towards(weights: Tensor, step: int) -> Tensor:
    """Minus the gradient of a loss that is another one in every step, and the same for all."""
    target = torch.randn(SIZE, generator=torch.Generator().manual_seed(step)) / 8
    return target - weights


class Swarm:
    """Peers in step, each training on its own with what all of them read."""

    def __init__(self, name: str, codec: str, num_peers: int) -> None:
        self.peers: dict[bytes, Strategy] = {
            bytes([index + 1]) * 32: every_strategy.make(name, SIZE, BLOCK)
            for index in range(num_peers)
        }
        # An eager peer goes ahead by its share: that alone depends on how many there are.
        self.share = 1 / 3 if name == "eager" else 1 / num_peers
        self.codec = codec
        self.weights = {peer: torch.zeros(SIZE) for peer in self.peers}
        self.steps = 0
        for peer, strategy in self.peers.items():
            strategy.set_initial(self.weights[peer])

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.steps += 1
            for peer, weights in self.weights.items():
                self.weights[peer] = weights + 0.1 * towards(weights, self.steps)

    def round(self, op: int) -> None:
        (first, *_) = self.peers.values()
        exchange, takes = first.exchange(op), first.takes_gradients
        if not takes:
            self.train(first.inner_steps - exchange.delay_steps)
        given = {}
        for peer, strategy in self.peers.items():
            weights = self.weights[peer]
            part = strategy.pseudo_gradient(-towards(weights, op) if takes else weights, op)
            given[peer] = OwnPart(op, TensorContribution(part), 4)
            moved = strategy.weights_under_way()
            self.weights[peer] = weights if moved is None else moved
        self.train(exchange.delay_steps)
        kind, size = KINDS[exchange.kind], exchange.num_values
        results = exchanged(given, size, self.codec, BLOCK, kind=kind)
        for peer, strategy in self.peers.items():
            result = results[peer]
            if not result.slices:  # nobody is paired with who is alone
                self.weights[peer] = strategy.solo(self.weights[peer])
                continue
            own = partial(given[peer].contribution.decoded, window=result.window)
            self.weights[peer] = strategy.apply(
                decode_result(result), [(0, exchange.num_values, True)], self.weights[peer],
                own, op=op, own_share=self.share,
            )  # fmt: skip

    def bits(self) -> list[bytes]:
        """Return the bits of weights, state and what waits; the same at every peer."""
        seen = [
            [self.weights[peer], *(a for _, a in (*one.state_arrays(), *one.local_arrays()))]
            for peer, one in self.peers.items()
        ]
        first, *others = ([array.numpy().tobytes() for array in arrays] for arrays in seen)
        assert all(other == first for other in others)
        return first


def assert_as_one(name: str, codec: str, num_peers: int) -> None:
    alone, together = Swarm(name, codec, 1), Swarm(name, codec, num_peers)
    begun = alone.bits()
    for op in range(1, OPS + 1):
        for swarm in (alone, together):
            swarm.round(op)
        assert together.bits() == alone.bits(), f"op {op}"
    assert alone.bits()[0] != begun[0] and alone.bits()[1] != begun[1]  # weights and anchor


@pytest.mark.parametrize("codec", ["none", "int8", "e3m0"])
@pytest.mark.parametrize("name", OF_MEANS)
def test_t4_the_mean_of_equal_parts_is_the_part(name: str, codec: str) -> None:
    assert_as_one(name, codec, 3)


def test_t4_equal_parts_that_all_gather_are_one_part() -> None:
    assert_as_one("sparseloco", "topk-2", 3)


def test_t4_a_pair_that_does_the_same_steps_as_who_is_alone() -> None:
    assert_as_one("noloco", "none", 2)
