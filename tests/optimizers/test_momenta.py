"""FedAvg-M and SCAFFOLD-M against plain loops, and what they are for: texts that differ."""

import pytest
import torch
from window import part_of

from swarmtrain_optimizers.strategies.base import ActsBetween, SwarmFacts
from swarmtrain_optimizers.strategies.fedavg_m.strategy import FedAvgM
from swarmtrain_optimizers.strategies.scaffold_m.strategy import ScaffoldM

torch.set_num_threads(1)
SIZE, STEPS, NUM_PEERS = 8, 5, 4


def drawn(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SIZE, generator=generator, dtype=torch.float64)


BENDS = torch.stack([0.02 + 0.3 * drawn(index).abs() for index in range(NUM_PEERS)])
TARGETS = torch.stack([drawn(10 + index) for index in range(NUM_PEERS)])
BEST = (BENDS * TARGETS).sum(0) / BENDS.sum(0)
"""Where the sum of all peers' losses, bend / 2 (x - target)^2 each, is smallest."""


def swarm_of(kind: type[FedAvgM], **settings: float) -> list[FedAvgM]:
    given = {"lr": 1.0, "momentum": 0.5, **settings}
    peers = [kind(SIZE, inner_steps=STEPS, dtype=torch.float64, **given) for _ in range(NUM_PEERS)]
    for peer in peers:
        peer.set_initial(torch.zeros(SIZE, dtype=torch.float64))
    return peers


def step(index: int, weights: torch.Tensor) -> torch.Tensor:
    return weights - 0.5 * BENDS[index] * (weights - TARGETS[index])


def trained(index: int, peer: FedAvgM, weights: torch.Tensor) -> torch.Tensor:
    assert isinstance(peer, ActsBetween)
    for _ in range(STEPS):
        weights = step(index, weights)
        weights = weights + peer.between()
    return weights


def rounds(peers: list[FedAvgM], count: int, out: frozenset[int] = frozenset()) -> None:
    """So many rounds; of two in turn the peers of `out` are in the second only."""
    weights = [peer.anchor.clone() for peer in peers]
    seen = [0] * NUM_PEERS
    for op in range(1, count + 1):
        weights = [
            trained(index, peer, x)
            for index, (peer, x) in enumerate(zip(peers, weights, strict=True))
        ]
        parts = [peer.pseudo_gradient(x) for peer, x in zip(peers, weights, strict=True)]
        here = [index for index in range(NUM_PEERS) if op % 2 == 0 or index not in out]
        mean = torch.stack([parts[index] for index in here]).mean(0)
        for index, peer in enumerate(peers):
            spans = sum(op - seen[other] for other in here) / len(here)
            peer.hear_of_swarm(SwarmFacts(0, (), spans, op - seen[index]))
        seen = [op if index in here else at for index, at in enumerate(seen)]
        weights = [
            peer.apply(mean, [(0, SIZE, index in here)], x, part_of(part))
            for index, (peer, x, part) in enumerate(zip(peers, weights, parts, strict=True))
        ]


def test_a_step_goes_on_as_the_mean_of_the_last_round_went() -> None:
    """The paper's loop, with the optimizer's own step in the place of eta beta gradient."""
    peers = swarm_of(FedAvgM, momentum=0.6)
    rounds(peers, 4)
    anchor, direction = torch.zeros(SIZE, dtype=torch.float64), torch.zeros(SIZE)
    for _ in range(4):
        ends = []
        for index in range(NUM_PEERS):
            x = anchor
            for _ in range(STEPS):
                x = step(index, x) - 0.6 * direction / STEPS
            ends.append(x)
        direction = anchor - torch.stack(ends).mean(0)
        anchor = anchor - direction
    assert torch.allclose(peers[0].anchor, anchor, rtol=0, atol=1e-12)


def test_with_everybody_in_every_round_corrections_are_scaffolds() -> None:
    """SCAFFOLD's loop of option II, with all variates, and the momentum of the paper."""
    peers = swarm_of(ScaffoldM, momentum=0.4)
    rounds(peers, 4)
    anchor, direction = torch.zeros(SIZE, dtype=torch.float64), torch.zeros(SIZE)
    common, own = torch.zeros(SIZE), [torch.zeros(SIZE, dtype=torch.float64)] * NUM_PEERS
    for _ in range(4):
        ends, ways = [], []
        for index in range(NUM_PEERS):
            x, way = anchor, torch.zeros(SIZE, dtype=torch.float64)
            for _ in range(STEPS):
                stepped = step(index, x)
                way = way + (x - stepped)
                x = stepped - (common - own[index] + 0.4 * direction) / STEPS
            ends.append(x)
            ways.append(way)
        direction = anchor - torch.stack(ends).mean(0)
        anchor, own, common = anchor - direction, ways, torch.stack(ways).mean(0)
    assert torch.allclose(peers[0].anchor, anchor, rtol=0, atol=1e-12)
    for peer, way in zip(peers, own, strict=True):
        ((_, correction),) = peer.local_arrays()
        assert torch.allclose(correction, common - way, rtol=0, atol=1e-12)


def test_corrections_add_up_to_nothing_whoever_is_left_out() -> None:
    peers = swarm_of(ScaffoldM, momentum=0.2)
    for _ in range(3):
        rounds(peers, 3, frozenset({0, 2}))
        all_of_them = torch.stack([dict(peer.local_arrays())["correction"] for peer in peers])
        assert all_of_them.abs().max() > 1e-3
        assert torch.allclose(all_of_them.sum(0), torch.zeros(SIZE).double(), atol=1e-12)


def away(peers: list[FedAvgM]) -> float:
    return float((peers[0].anchor - BEST).norm())


def test_where_texts_differ_variates_lead_to_the_best_place_and_momentum_alone_does_not() -> None:
    plain, momentum, corrected, both = (
        swarm_of(FedAvgM, momentum=0.0), swarm_of(FedAvgM),
        swarm_of(ScaffoldM, momentum=0.0), swarm_of(ScaffoldM),
    )  # fmt: skip
    for peers in (plain, momentum, corrected, both):
        rounds(peers, 300)
    assert away(plain) > 0.05 and away(momentum) == pytest.approx(away(plain))
    assert away(corrected) < 1e-6 and away(both) < 1e-6


def test_so_they_do_where_peers_are_left_out_in_turn() -> None:
    peers, plain = swarm_of(ScaffoldM, momentum=0.2), swarm_of(FedAvgM, momentum=0.0)
    for swarm in (peers, plain):
        rounds(swarm, 600, frozenset({0, 1}))
    assert away(peers) < 0.2 * away(plain)
