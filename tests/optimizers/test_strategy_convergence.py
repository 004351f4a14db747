"""Convergence of every strategy: to what all peers' data say together, not to one peer's.

Each peer's inner steps pull its weights a tenth of the way to a target of its own. The loss of all
together is smallest at the mean of the targets, so that is where the anchor must end; a wrong sign,
a share counted twice or a difference lost on the way would end elsewhere, or nowhere.
"""

import every_strategy
import pytest
import torch
from drawn_pairs import partner_of
from window import part_of

from swarmtrain_optimizers.strategies.base import OpKind, Strategy

torch.set_num_threads(1)
SIZE, BLOCK, NUM_PEERS = 32, 8, 4
IDS = [bytes([index]) for index in range(NUM_PEERS)]
TARGETS = [
    torch.randn(SIZE, generator=torch.Generator().manual_seed(index)) for index in range(NUM_PEERS)
]
MIDDLE = torch.stack(TARGETS).mean(0)


def trained(weights: list[torch.Tensor], num_steps: int) -> list[torch.Tensor]:
    for _ in range(num_steps):
        weights = [x + 0.1 * (target - x) for x, target in zip(weights, TARGETS, strict=True)]
    return weights


def ended(
    peers: list[Strategy], weights: list[torch.Tensor], parts: list[torch.Tensor], op: int
) -> list[torch.Tensor]:
    """The weights after an op that everybody is in."""
    size = parts[0].numel()
    results = [torch.stack(parts).mean(0)] * NUM_PEERS
    if peers[0].exchange(op).kind is OpKind.PAIR:
        partners = [partner_of(me, IDS, op, seed=3) for me in IDS]
        results = [parts[partner[0]] for partner in partners if partner is not None]
    return [
        peer.apply(result, [(0, size, True)], x, part_of(part), op=op, own_share=1 / NUM_PEERS)
        for peer, result, x, part in zip(peers, results, weights, parts, strict=True)
    ]


@pytest.mark.parametrize(
    "name",
    sorted(
        set(every_strategy.MAKERS) - {"ddp", "ddp sgd", "decoupled_momentum", "local", "one_byte"}
    ),
)  # those of gradients and one_byte have oracles of their own, the first a decay that moves the end
def test_the_anchor_ends_where_all_targets_are_nearest(name: str) -> None:
    peers = [every_strategy.make(name, SIZE, BLOCK) for _ in range(NUM_PEERS)]
    weights = [torch.zeros(SIZE)] * NUM_PEERS
    for peer in peers:
        peer.set_initial(torch.zeros(SIZE))
    for op in range(1, 400):
        delay = peers[0].exchange(op).delay_steps
        weights = trained(weights, peers[0].inner_steps - delay)
        parts = [peer.pseudo_gradient(x, op) for peer, x in zip(peers, weights, strict=True)]
        moved = [peer.weights_under_way() for peer in peers]
        weights = [x if new is None else new for x, new in zip(weights, moved, strict=True)]
        weights = ended(peers, trained(weights, delay), parts, op)
    anchors = torch.stack([dict(peer.state_arrays())["anchor"] for peer in peers])
    assert torch.allclose(anchors.mean(0), MIDDLE, rtol=0, atol=1e-3)
    if peers[0].exchange(1).kind is not OpKind.PAIR:
        assert torch.equal(anchors[0], anchors[1])
    else:  # replicas differ as long as the rate does not fall, but less than their data do
        assert anchors.std(0).mean() < 0.5 * torch.stack(TARGETS).std(0).mean()
