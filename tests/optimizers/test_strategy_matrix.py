"""Every strategy through the same life: lost parts, a skipped op, a joiner, a replay.

A swarm in one process steps strategies as a driver does, with int8 on the way. What all of them
promise is tested here; what each computes is tested against its own paper.
"""

from collections.abc import Sequence

import every_strategy
import pytest
import torch
from window import PlanWindow, part_of

from swarmtrain_optimizers.codecs.int8 import Int8
from swarmtrain_optimizers.strategies.base import Given, OpKind, Probing, Strategy
from swarmtrain_optimizers.strategies.noloco.strategy import NoLoCo
from swarmtrain_optimizers.strategies.registry import BUILT_IN

torch.set_num_threads(1)
SIZE, BLOCK = 64, 8
WINDOW = PlanWindow(block=BLOCK)
CODEC = Int8()
SKIPPED_OP, JOIN_AFTER, LAST_OP = 4, 6, 12
NAMES = sorted(every_strategy.MAKERS)
SHARED = [
    name for name in NAMES if not BUILT_IN[name.split()[0]].diverges or name == "local merged"
]
Included = list[tuple[int, int, bool]]
Result = torch.Tensor | list[Given]


def randn(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)) * 0.1


def state_of(strategy: Strategy) -> list[tuple[str, bytes]]:
    return [(name, array.numpy().tobytes()) for name, array in strategy.state_arrays()]


def copied(arrays: Sequence[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: array.clone() for name, array in arrays}


def through_codec(values: torch.Tensor) -> torch.Tensor:
    return CODEC.decode(CODEC.encode(values, WINDOW), values.numel(), WINDOW)


class Peer:
    """A strategy and the weights that it trains, kept in float32 or bfloat16."""

    def __init__(self, name: str, number: int, dtype: torch.dtype) -> None:
        self.strategy = every_strategy.make(name, SIZE, BLOCK)
        self.number, self.dtype = number, dtype
        self.strategy.set_initial(randn(0).to(dtype).float())
        self.write(randn(0))

    def read(self) -> torch.Tensor:
        return self.weights.float()

    def write(self, vector: torch.Tensor) -> None:
        self.weights = vector.to(self.dtype)

    def train(self, op: int, num_steps: int) -> None:
        for step in range(num_steps if not self.strategy.takes_gradients else 0):
            self.write(self.read() + randn(1000 * op + 10 * self.number + step) * 0.1)

    def give(self, op: int) -> torch.Tensor:
        gradient = self.read() - randn(self.number)
        every_strategy.look(self.strategy, op, bytes([self.number]), randn(self.number))
        values = gradient if self.strategy.takes_gradients else self.read()
        part = self.strategy.pseudo_gradient(values, op).clone()
        assert part.numel() == self.strategy.exchange(op).num_values
        moved = self.strategy.weights_under_way()
        if moved is not None:
            self.write(moved)
        return part


def taken(strategy: Strategy, mean: Result, op: int, *others: object, share: float) -> torch.Tensor:
    """The weights after an op, of which all that was given may be told in place of the mean."""
    if isinstance(strategy, Probing) and not isinstance(mean, torch.Tensor):
        return strategy.take(mean, op).clone()
    return strategy.apply(mean, *others, op=op, own_share=share)


class Swarm:
    """Peers and what was committed. Peer 1 is left out of odd ops in part, peer 2 misses op 3."""

    def __init__(self, name: str, dtype: torch.dtype, num_peers: int = 3) -> None:
        self.peers = [Peer(name, number, dtype) for number in range(num_peers)]
        self.results: list[tuple[int, Result, float]] = []

    def round(self, op: int) -> None:
        strategy = self.peers[0].strategy
        delay = strategy.exchange(op).delay_steps
        for peer in self.peers:
            peer.train(op, strategy.inner_steps - delay)
        parts = {p.number: p.give(op) for p in self.peers if (p.number, op) != (2, 3)}
        for peer in self.peers:
            peer.train(op + 500, delay)
        if op == SKIPPED_OP:
            for peer in self.peers:
                peer.strategy.skip()
            return
        decoded = {number: through_codec(part) for number, part in parts.items()}
        mean = torch.stack([decoded[number] for number in sorted(decoded)]).mean(0)
        mean[: mean.numel() // 2] *= 0.5  # as if a part were missing there
        mean = through_codec(mean)
        result: Result = mean
        if isinstance(strategy, Probing):
            result = [Given(bytes([number]), 1 + number, decoded[number]) for number in decoded]
        self.results.append((op, result, 1 / len(parts)))
        for peer in self.peers:
            middle = mean.numel() // 2
            included = [(0, middle, peer.number != 1 or op % 2 == 0), (middle, mean.numel(), True)]
            own = decoded.get(peer.number)
            after = taken(
                peer.strategy, result, op, included if own is not None else [], peer.read(),
                part_of(own), share=1 / len(parts),
            )  # fmt: skip
            assert after.shape == (SIZE,) and torch.isfinite(after).all()
            peer.write(after)

    def admit(self, name: str) -> None:
        """A newcomer takes the state of the first peer and is one more from the next op on."""
        newcomer = Peer(name, len(self.peers), self.peers[0].dtype)
        arrays = copied(self.peers[0].strategy.state_arrays())
        newcomer.strategy.load_state(arrays)
        newcomer.write(arrays["anchor"])
        self.peers.append(newcomer)


def test_everything_that_swarmtrain_brings_is_in_the_matrix() -> None:
    assert {name.split()[0] for name in NAMES} == set(BUILT_IN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SHARED)
def test_t11_t13_one_state_whatever_happens_to_whom(name: str, dtype: torch.dtype) -> None:
    swarm = Swarm(name, dtype)
    for op in range(1, LAST_OP + 1):
        swarm.round(op)
        first, *others = (state_of(peer.strategy) for peer in swarm.peers)
        assert all(other == first for other in others), f"op {op}"
        if op == JOIN_AFTER:
            swarm.admit(name)
    assert len(swarm.peers) == 4
    assert state_of(swarm.peers[0].strategy) != state_of(Peer(name, 0, dtype).strategy)


@pytest.mark.parametrize("name", SHARED)
def test_a_state_and_the_results_after_it_are_the_run(name: str) -> None:
    swarm = Swarm(name, torch.float32)
    kept: dict[str, torch.Tensor] = {}
    for op in range(1, LAST_OP + 1):
        swarm.round(op)
        if op == JOIN_AFTER:
            kept = copied(swarm.peers[0].strategy.state_arrays())
    resumed = every_strategy.make(name, SIZE, BLOCK)
    resumed.load_state(kept)
    weights = kept["anchor"].clone()
    for op, mean, share in swarm.results:
        if op > JOIN_AFTER:
            weights = taken(resumed, mean, op, [], weights, share=share)
    assert state_of(resumed) == state_of(swarm.peers[0].strategy)
    anchor = dict(resumed.state_arrays())["anchor"]
    # Who only follows has no work of its own: where it is, the anchor is (streaming: rounded).
    assert torch.allclose(weights, anchor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_the_peers_own_survives_a_restart(name: str) -> None:
    swarm = Swarm(name, torch.float32, num_peers=2)
    for op in range(1, 4):
        swarm.round(op)
    strategy = swarm.peers[1].strategy
    again = every_strategy.make(name, SIZE, BLOCK)
    again.load_state(copied(strategy.state_arrays()))
    again.load_local(copied(strategy.local_arrays()))
    assert state_of(again) == state_of(strategy)
    for (kept, left), (found, right) in zip(
        strategy.local_arrays(), again.local_arrays(), strict=True
    ):
        assert kept == found and torch.equal(left, right)


def followed(peer: Peer, op: int, *, gives: bool) -> list[bytes]:
    """Everything that is to be seen of a peer in an op of which half its part is left out."""
    seen = []
    if gives:
        peer.train(op, peer.strategy.inner_steps)
        seen.append(peer.give(op))
        seen.append(peer.read())
    size = peer.strategy.exchange(op).num_values
    mean, included = torch.full((size,), 0.01), [(0, size // 2, False), (size // 2, size, True)]
    own = seen[0] * 0.75 if gives else None
    after = peer.strategy.apply(
        mean, included if gives else [], peer.read(), part_of(own), op=op, own_share=0.5
    )
    peer.write(after)
    seen += [after, *(array for _, array in peer.strategy.local_arrays())]
    return [array.numpy().tobytes() for array in seen] + [b for _, b in state_of(peer.strategy)]


@pytest.mark.parametrize("is_under_way", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_state_leaves_nothing_of_what_the_peer_had_done_before(
    name: str, is_under_way: bool
) -> None:
    swarm = Swarm(name, torch.float32, num_peers=2)
    for op in range(1, 4):
        swarm.round(op)
    veteran, newcomer = swarm.peers[1], Peer(name, 1, torch.float32)
    held = [array for _, array in veteran.strategy.local_arrays()]
    assert all(array.any() for array in held)  # error feedback, or what op 3 left out
    if is_under_way:
        veteran.give(4)
    arrays = copied(swarm.peers[0].strategy.state_arrays())
    for peer in (veteran, newcomer):
        peer.strategy.load_state(arrays)
        peer.write(arrays["anchor"])
    assert not any(array.any() for _, array in veteran.strategy.local_arrays())
    for op in range(5, 11):  # the first one tells both what a share is
        veterans, newcomers = (followed(one, op, gives=op > 5) for one in (veteran, newcomer))
        assert veterans == newcomers, f"op {op}"


@pytest.mark.parametrize("name", NAMES)
def test_exchanges_follow_from_the_ops_number_alone(name: str) -> None:
    one, other = (every_strategy.make(name, SIZE, BLOCK) for _ in "ab")
    covered = set()
    for op in range(1, 5):
        exchange = one.exchange(op)
        assert exchange == other.exchange(op)
        assert 0 <= exchange.delay_steps <= one.inner_steps
        for start, stop in exchange.ranges:
            assert start % BLOCK == stop % BLOCK == 0 and 0 <= start < stop <= SIZE
            covered |= set(range(start, stop))
    assert covered == set(range(SIZE if not isinstance(one, Probing) else BLOCK))
    assert not one.is_due(0)


@pytest.mark.parametrize("name", NAMES)
def test_state_has_an_anchor_first_and_foreign_state_is_refused(name: str) -> None:
    strategy = every_strategy.make(name, SIZE, BLOCK)
    strategy.set_initial(randn(1))
    names = [found for found, _ in strategy.state_arrays()]
    before = state_of(strategy)
    assert names[0] == "anchor" and len(set(names)) == len(names)
    assert all(array.shape == (SIZE,) for _, array in strategy.state_arrays())
    arrays = copied(strategy.state_arrays())
    for wrong in ({}, {**arrays, "more": randn(2)}, {**arrays, "anchor": randn(2)[:8]}):
        with pytest.raises(ValueError, match="wanted"):
            strategy.load_state(wrong)
    assert state_of(strategy) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_noloco_lives_through_lost_partners_and_a_joiner(dtype: torch.dtype) -> None:
    peers = [Peer("noloco", number, dtype) for number in range(2)]
    for op in range(1, 8):
        parts = []
        for peer in peers:
            peer.train(op, 4)
            parts.append(through_codec(peer.give(op)))
        for index, peer in enumerate(peers):
            assert isinstance(peer.strategy, NoLoCo)
            assert peer.strategy.exchange(op).kind is OpKind.PAIR
            if op % 3 == 0 or index == 2:
                peer.write(peer.strategy.solo(peer.read()))
            else:
                whole: Included = [(0, 2 * SIZE, True)]
                partner = parts[1 - index]
                peer.write(
                    peer.strategy.apply(partner, whole, peer.read(), part_of(parts[index]), op=op)
                )
            assert torch.isfinite(peer.read()).all()
        if op == 4:
            newcomer = Peer("noloco", 2, dtype)
            newcomer.strategy.load_state(copied(peers[0].strategy.state_arrays()))
            newcomer.write(peers[0].read())
            peers.append(newcomer)
