"""The mean of a gather op's contributions, against one that is made value by value."""

import math
import random
from collections import deque
from functools import partial

import numpy as np
import pytest
import torch

from swarmtrain.peer.arithmetic import (
    CodecArithmetic,
    TensorContribution,
    codec_of,
    contributions_of,
    decode_result,
)
from swarmtrain_transport import actions as do
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.blocks.manifest import ArraySpec, describe_state
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import Address, PeerId
from swarmtrain_transport.links.memory_link import MemoryNetwork
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.result import OpResult, SliceResult
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.frames import Frame
from swarmtrain_transport.wire.records import Commit, Record, bodies_of
from tests.transport.rig import LAYOUT, RUN_KEY, sign, sign_as, terms_of, verify

BLOCK, CHUNK = 64, 128
WEIGHTS = (255, 3, 64)


def window_of(codec: str) -> Window:
    return Window(codec, BLOCK, -30, 10)


def drawn(seed: int, num_values: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal(num_values).astype(np.float32))


def gathered(codec: str, num_values: int, chunk: int = CHUNK) -> OpResult:
    """Three contributions of so many values, cut into chunks."""
    window = window_of(codec)
    pieces = []
    for seed in range(3):
        given = TensorContribution(drawn(seed, num_values))
        bounds = [(low, min(low + chunk, num_values)) for low in range(0, num_values, chunk)]
        chunks = tuple(given.encode(low, high, window) for low, high in bounds)
        pieces.append(SliceResult(0, num_values, (bytes([seed]) * 32,), chunks))
    return OpResult(1, window, chunk, num_values, tuple(pieces), b"", b"", False, weights=WEIGHTS)


def by_hand(result: OpResult) -> list[float]:
    """Value by value in Python's own floats, which are float64."""
    decoded = []
    for piece in result.slices:
        values: list[float] = []
        for chunk in piece.chunks:
            count = min(CHUNK, result.num_values - len(values))
            values += codec_of(result.window).decode(chunk, count, result.window).tolist()
        decoded.append(values)
    means = []
    for column in zip(*decoded, strict=True):
        total = 0.0
        for weight, value in zip(WEIGHTS, column, strict=True):
            total += weight * value
        mean = float(np.float32(total / sum(WEIGHTS)))
        means.append(0.0 if abs(mean) < 2.0**-100 else mean)
    return means


@pytest.mark.parametrize("codec", ["int8", "int4", "e3m0", "topk-16", "topk-1", "none"])
@pytest.mark.parametrize("num_values", [BLOCK, CHUNK, 3 * CHUNK + BLOCK])
def test_the_mean_is_the_weighted_mean_in_plan_order(codec, num_values):
    result = gathered(codec, num_values)
    mean = decode_result(result)
    assert mean.dtype == torch.float32
    assert mean.tolist() == by_hand(result)
    short = torch.full((num_values - 5,), math.nan)
    assert decode_result(result, short) is short
    assert torch.equal(short, mean[:-5])


def test_contributions_are_had_one_by_one_too():
    result = gathered("int8", 320)
    found = contributions_of(result)
    assert [(one.peer, one.weight) for one in found] == [
        (bytes([seed]) * 32, weight) for seed, weight in enumerate(WEIGHTS)
    ]
    rows = torch.stack([one.values for one in found]).double()
    mean = (rows * torch.tensor(WEIGHTS).double()[:, None]).sum(0) / sum(WEIGHTS)
    assert torch.allclose(mean.float(), decode_result(result), rtol=1e-6, atol=1e-9)


def test_the_ranges_of_a_gather_op_are_one_with_everybody_in_it():
    result = gathered("topk-16", CHUNK)
    assert result.ranges == ((0, CHUNK, tuple(bytes([n]) * 32 for n in range(3))),)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_mean_has_the_same_bits_under_any_number_of_threads(threads):
    wanted = decode_result(gathered("topk-16", 1 << 17, 1 << 17))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(decode_result(gathered("topk-16", 1 << 17, 1 << 17)), wanted)
    finally:
        torch.set_num_threads(before)


def test_what_is_no_whole_contribution_is_refused():
    whole = gathered("int8", 3 * CHUNK)
    first = whole.slices[0]
    short = SliceResult(0, 3 * CHUNK, first.contributors, first.chunks[:-1])
    narrow = SliceResult(0, 2 * CHUNK, first.contributors, first.chunks)
    torn = SliceResult(0, 3 * CHUNK, first.contributors, (b"", *first.chunks[1:]))
    for wrong in (short, narrow, torn):
        pieces = (wrong, *whole.slices[1:])
        with pytest.raises(RemoteFault):
            decode_result(
                OpResult(1, whole.window, CHUNK, 3 * CHUNK, pieces, b"", b"", False, b"", WEIGHTS)
            )
    for weights in ((), WEIGHTS[:2]):
        with pytest.raises(RemoteFault):
            decode_result(
                OpResult(
                    1, whole.window, CHUNK, 3 * CHUNK, whole.slices, b"", b"", False, b"", weights
                )
            )


# ---- a whole op over the link in memory

VALUES, TOPK_BLOCK, TOPK_CHUNK = 4 * 4096, 4096, 8192


class Station:
    """One peer: the production machine, arithmetic and link, and a trainer that gives once."""

    def __init__(self, hall: "Swarm", number: int) -> None:
        self.hall = hall
        self.peer = bytes([number + 1]) * 32
        self.given = drawn(100 + number, VALUES) * 0.01
        self.mean: torch.Tensor | None = None
        self.result: OpResult | None = None
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        address = Address(self.peer, self.peer, "192.0.2.1", 0)
        self.link = hall.network.open(address, self)
        card = Card(self.peer, b"boot", "name", self.peer, "192.0.2.1", self.link.address.port)
        self.machine = Participant(
            card, CodecArithmetic(), sign_as(self.peer), verify, list, (), 0.0
        )

    def on_frame(self, peer: PeerId, frame: Frame) -> None:
        self.act(self.machine.frame(peer, frame, self.hall.now_s))

    def on_fault(self, peer: PeerId | None, fault: RemoteFault) -> None:
        raise AssertionError(fault)

    def state(self):
        after = self.given if self.result is None else self.mean
        data = (torch.zeros(VALUES) if self.result is None else after).numpy().tobytes()
        manifest, chunks = describe_state(LAYOUT, (ArraySpec("anchor", VALUES),), data)
        return manifest, tuple(bytes(chunk) for chunk in chunks)

    def act(self, actions) -> None:
        for action in actions:
            match action:
                case do.SendControl():
                    self.up.append(m.encode(action.message))
                case do.SendFrame():
                    self.link.send(action.peer, action.frame)
                case do.AllowPeer():
                    self.link.allow(action.address)
                case do.LoadState():
                    self.reported(0)
                    given = TensorContribution(self.given)
                    self.act(self.machine.ready(1, given, 8, self.hall.now_s))
                case do.ApplyResult():
                    self.result = action.result
                    self.mean = decode_result(action.result)
                    self.reported(1)
                case do.PeerFault() | do.Halt() | do.OpSkipped():
                    raise AssertionError(action)

    def reported(self, op: int) -> None:
        self.act(self.machine.applied(op, *self.state(), self.hall.now_s))


class Swarm:
    """So many stations and a coordinator; messages in any order, decided by a seed."""

    def __init__(self, num_peers: int, seed: int) -> None:
        self.now_s = 0.0
        self.rng = random.Random(seed)
        self.network = MemoryNetwork()
        self.records: list[Record] = []
        terms = terms_of(
            kind="gather", codec="topk-64", block=TOPK_BLOCK, chunk_values=TOPK_CHUNK,
            start_peers=num_peers, rounds=1, e_max=10,
        )  # fmt: skip
        self.hall = Rendezvous(terms, RUN_KEY, (), sign, verify, 1, 0.0)
        self.stations = {one.peer: one for one in map(partial(Station, self), range(num_peers))}
        self.heed(self.hall.start(0.0))
        for peer, one in self.stations.items():
            one.act(one.machine.start(0.0))
            self.heed(self.hall.connected(peer, one.machine.hello(), 0.0))
            one.act(one.machine.attach(0, *one.state(), 1, 0.0))

    def heed(self, actions) -> None:
        for action in actions:
            if isinstance(action, do.Append):
                self.records.append(action.record)
            elif isinstance(action, do.SendToPeer):
                self.stations[action.peer].down.append(m.encode(action.message))

    def run(self) -> None:
        for _ in range(20_000):
            if all(one.mean is not None for one in self.stations.values()):
                return
            one = self.rng.choice(list(self.stations.values()))
            if one.up:
                told = m.decode_from_peer(one.up.popleft())
                self.heed(self.hall.received(one.peer, told, self.now_s))
            if one.down and self.rng.random() < 0.5:
                heard = m.decode_from_coordinator(one.down.popleft())
                one.act(one.machine.control(heard, self.now_s))
            self.network.pump(1)
            self.now_s += 0.001
            self.heed(self.hall.tick(self.now_s))
            if self.now_s >= one.machine.next_wakeup_s:
                one.act(one.machine.tick(self.now_s))
        raise AssertionError("the op does not end")


@pytest.mark.parametrize(("num_peers", "seed"), [(1, 0), (2, 1), (5, 2)])
def test_an_op_over_the_link_in_memory_gives_everybody_the_same_bits(num_peers, seed):
    swarm = Swarm(num_peers, seed)
    swarm.run()
    stations = list(swarm.stations.values())
    for one in stations[1:]:
        assert torch.equal(one.mean.view(torch.int32), stations[0].mean.view(torch.int32))
    (commit,) = [b for b in bodies_of(swarm.records) if isinstance(b, Commit)]
    assert commit.contributors == tuple(one.peer for one in stations)
    result = stations[0].result
    assert result is not None
    wanted = torch.zeros(VALUES, dtype=torch.float64)
    for one in stations:
        wanted += 255 * TensorContribution(one.given).decoded(0, VALUES, result.window).double()
    assert torch.equal(stations[0].mean, (wanted / (255 * num_peers)).float())
    kept = (stations[0].mean != 0).sum()
    assert 0 < kept <= num_peers * 64 * VALUES // TOPK_BLOCK
    # Each sends its contribution to each of the others once, and hardly anything else.
    contribution = sum(len(chunk) for chunk in result.slices[0].chunks)
    for one in stations:
        frames = one.link.stats.bytes_sent
        assert (num_peers - 1) * contribution <= frames <= (num_peers - 1) * (contribution + 4000)
