"""A contribution whose values lie on several ranks: encoded where they are, joined at rank 0.

PLAN says how values become bytes, and the exchange asks chunk by chunk, on rank 0's network thread.
Each rank answers on a thread of its own, while its training thread waits or trains. Blocks are
independent of each other, and a chunk is the scales of all its blocks and then their codes, so the
bytes are those of a peer that has the whole vector. Not here: codecs.
"""

import logging
import threading
from dataclasses import astuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from swarmtrain.peer.arithmetic import TensorContribution, codec_of
from swarmtrain.peer.ranks.places import Places
from swarmtrain.peer.ranks.ranks import Ranks
from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_transport.arithmetic import ContributionRefused, Window

logger = logging.getLogger(__name__)

_ASK_BYTES = 256
_STOP = -1
_END_S = 30.0
_REASONS = ("", "nonfinite", "above-window")
"""Answers by number; the first is that of bytes."""


class _Ask(msgspec.Struct, frozen=True, array_like=True):
    """A request of rank 0; `start` and `stop` are places in the asked rank's own vector."""

    number: int
    start: int
    stop: int
    window: tuple[str, int, int, int, str, str] = ("", 0, 0, 0, "", "")

    def packed(self) -> Tensor:
        """Form in which it travels."""
        room = torch.zeros(_ASK_BYTES, dtype=torch.uint8)
        data = msgspec.msgpack.encode(self)
        room[0] = len(data)
        room[1 : 1 + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return room


class SpreadContribution:
    """Rank 0's view of a contribution; a `Contribution` of the exchange.

    Args:
        number: counts the job's contributions.
        own: rank 0's part of it.
        places: places of all ranks.
        ranks: ranks of the job.
    """

    def __init__(self, number: int, own: TensorContribution, places: Places, ranks: Ranks) -> None:
        self._number, self._own = number, own
        self._places, self._ranks = places, ranks

    def encode(self, start: int, stop: int, window: Window) -> bytes:
        """See `TensorContribution.encode`; waits for the ranks that have the values."""
        places, codec = self._places, codec_of(window)
        parts: dict[int, bytes] = {}
        refusals = []
        asked = places.owners(start, stop)
        for rank in asked:
            if rank:
                low, high = places.own_range(rank, start, stop)
                ask = _Ask(self._number, low, high, astuple(window))
                dist.send(ask.packed(), rank, group=self._ranks.asks)
        for rank in asked:
            low, high = places.own_range(rank, start, stop)
            if rank:
                room = torch.empty(
                    1 + codec.payload_bytes(high - low, window.block), dtype=torch.uint8
                )
                dist.recv(room, rank, group=self._ranks.asks)
                refusals.append(_REASONS[int(room[0])])
                parts[rank] = room[1:].numpy().tobytes()
            else:
                try:
                    parts[rank] = self._own.encode(low, high, window)
                except ContributionRefused as refused:
                    refusals.append(refused.reason)
        for reason in filter(None, refusals):
            raise ContributionRefused(reason)
        return joined(parts, places, start, stop, window)

    def decoded(self, start: int, stop: int, window: Window) -> Tensor:
        """Decode it as the others do."""
        return codec_of(window).decode(self.encode(start, stop, window), stop - start, window)


def joined(parts: dict[int, bytes], places: Places, start: int, stop: int, window: Window) -> bytes:
    """The bytes of a chunk from those of each rank's blocks in it.

    Args:
        parts: parts by rank.
        places: places of all ranks.
        start: first value of the chunk.
        stop: one past its last.
        window: window that all were encoded under.
    """
    if len(parts) == 1:
        (only,) = parts.values()
        return only
    block, head = window.block, facts_of(window.codec).block_bytes
    count = (stop - start) // block
    each = codec_of(window).payload_bytes(block, block)
    scales = np.empty((count, head), dtype=np.uint8)
    codes = np.empty((count, each - head), dtype=np.uint8)
    used = dict.fromkeys(parts, 0)
    opened = {rank: _opened(part, head, each) for rank, part in parts.items()}
    runs = places.owned.within(start, stop)
    for low, high, rank in zip(
        runs.start.tolist(), runs.stop.tolist(), runs.rank.tolist(), strict=True
    ):
        here = slice((low - start) // block, (high - start) // block)
        there = slice(used[rank], used[rank] + here.stop - here.start)
        used[rank] = there.stop
        scales[here], codes[here] = opened[rank][0][there], opened[rank][1][there]
    return scales.tobytes() + codes.tobytes()


def _opened(part: bytes, head: int, each: int) -> "tuple[np.ndarray, np.ndarray]":
    data = np.frombuffer(part, dtype=np.uint8)
    count = len(part) // each
    return data[: count * head].reshape(count, head), data[count * head :].reshape(
        count, each - head
    )


class Encoder:
    """The thread of a rank that encodes for rank 0.

    Args:
        ranks: ranks of the job.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._given: dict[int, TensorContribution] = {}
        self._ended = 0
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="swarmtrain-encode", daemon=True)
        self._thread.start()

    def give(self, number: int, part: TensorContribution) -> None:
        """Let a contribution be asked for."""
        with self._news:
            self._given[number] = part
            self._news.notify_all()

    def drop(self, before: int) -> None:
        """Contributions below this number have their outcome."""
        with self._news:
            self._ended = before
            for number in [one for one in self._given if one < before]:
                del self._given[number]
            self._news.notify_all()

    def join(self) -> None:
        """Wait until rank 0 has said that it asks no more: a process that ends in the middle of a
        receive is aborted."""
        self._thread.join(_END_S)

    def _serve(self) -> None:
        room = torch.empty(_ASK_BYTES, dtype=torch.uint8)
        try:
            while True:
                dist.recv(room, 0, group=self._ranks.asks)
                ask = msgspec.msgpack.decode(
                    room[1 : 1 + int(room[0])].numpy().tobytes(), type=_Ask
                )
                if ask.number == _STOP:
                    return
                dist.send(self._answer(ask), 0, group=self._ranks.asks)
        except RuntimeError as error:
            # Rank 0 is gone; the training thread hears of it too, and says so.
            logger.debug("Nobody asks any more: %s", error)

    def _answer(self, ask: _Ask) -> Tensor:
        window = Window(*ask.window)
        room = torch.zeros(
            1 + codec_of(window).payload_bytes(ask.stop - ask.start, window.block),
            dtype=torch.uint8,
        )
        with self._news:
            self._news.wait_for(lambda: ask.number in self._given or ask.number < self._ended)
            part = self._given.get(ask.number)
        try:
            if part is None:
                raise ContributionRefused("nonfinite")  # its op has ended: nobody reads the answer
            data = part.encode(ask.start, ask.stop, window)
            room[1:] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        except ContributionRefused as refused:
            room[0] = _REASONS.index(refused.reason)
        return room


def stop_encoders(ranks: Ranks) -> None:
    """Rank 0: let the threads of the others end."""
    for rank in range(1, ranks.size):
        dist.send(_Ask(_STOP, 0, 0).packed(), rank, group=ranks.asks)
