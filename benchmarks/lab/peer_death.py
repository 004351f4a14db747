"""A peer of death.py. Each round it says what it took, what it sent twice, and what it got.

REPS rounds are whole; in the one after them the last rank is killed by death.py. Times are
time.monotonic(), which all processes of one machine share.
"""

import hashlib
import queue
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import lab_peer
import numpy as np
import swarm_lab
import torch
from averager import Averager

from swarmtrain.why.story import story_of
from swarmtrain_transport.ledger.fold import set_id
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.wire.frames import FrameKind
from swarmtrain_transport.wire.records import (
    BodyReader,
    Commit,
    Freeze,
    Join,
    Plan,
    Reassign,
    bodies_of,
)

RANK, WORLD, NUMEL = lab_peer.RANK, lab_peer.WORLD, lab_peer.NUMEL
VICTIM = f"rank-{WORLD - 1}"


class Sent:
    """Bulk frames of one round as they go to the sockets."""

    def __init__(self) -> None:
        self.parts: Counter[tuple[int, ...]] = Counter()
        self.results: Counter[tuple[Any, ...]] = Counter()
        self.bytes: Counter[FrameKind] = Counter()
        self._sizes: dict[tuple[Any, ...], int] = {}

    def listen(self) -> None:
        """Stand before the data lane's `send` in this process."""
        send = ZmqLink.send

        def counted(link: ZmqLink, peer: bytes, frame: Any) -> bool:
            went = send(link, peer, frame)
            if went:
                self.count(peer, frame)
            return went

        ZmqLink.send = counted  # type: ignore[method-assign]

    def restart(self) -> None:
        for counts in (self.parts, self.results, self.bytes):
            counts.clear()

    def count(self, peer: bytes, frame: Any) -> None:
        self.bytes[frame.kind] += len(frame.body)
        if frame.kind is FrameKind.PART:
            key: tuple[Any, ...] = (frame.slice_index, frame.chunk)
            self.parts[key] += 1
        elif frame.kind is FrameKind.RESULT:
            key = (frame.slice_index, frame.attempt, frame.set_id, frame.chunk, peer)
            self.results[key] += 1
        else:
            return
        self._sizes[key] = len(frame.body)

    def twice(self, commit: Commit) -> tuple[int, int]:
        """Bytes of parts that went again, and of results that went again or are none."""
        parts = sum((count - 1) * self._sizes[key] for key, count in self.parts.items())
        sums = [(found.attempt, set_id(found.contributors)) for found in commit.slices]
        results = 0
        for key, count in self.results.items():
            counts = key[1:3] == sums[key[0]]
            results += (count - counts) * self._sizes[key]
        return parts, results


class Ledger:
    """The records as they come, with the moment."""

    def __init__(self, storage: Any) -> None:
        self.records: list[Any] = []
        self.bodies: list[tuple[float, Any]] = []
        self.names: dict[bytes, str] = {}
        self._reader = BodyReader()
        keep = storage.append_records

        def noted(records: list[Any]) -> None:
            for record in records:
                body = self._reader.read(record)
                if isinstance(body, Join):
                    self.names[body.peer] = body.name
                self.records.append(record)
                self.bodies.append((time.monotonic(), body))
            keep(records)

        storage.append_records = noted

    def learn(self, thread: Any) -> None:
        """Learn who came in before `noted` was in place."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def ask(participant: Any, now_s: float) -> tuple[()]:
            answer.put(list(participant.ledger.since(0)))
            return ()

        thread.machine(ask)
        for body in bodies_of(answer.get()):
            if isinstance(body, Join):
                self.names[body.peer] = body.name

    def newest(self, kind: type) -> Any:
        return next(body for _, body in reversed(self.bodies) if isinstance(body, kind))

    def detected_s(self, op: int) -> float | None:
        """Return when this peer read the first decision about the dead one: its slice to somebody
        else, or FREEZE without it."""
        owners: dict[int, str] = {}
        for moment_s, body in self.bodies:
            if getattr(body, "op", None) != op:
                continue
            if isinstance(body, Plan):
                owners = {i: self.names[spec.owner] for i, spec in enumerate(body.slices)}
            if isinstance(body, Reassign) and owners[body.slice_index] == VICTIM:
                return moment_s
            if isinstance(body, Freeze) and VICTIM in map(self.names.get, body.excluded):
                return moment_s
        return None


def true_mean(base: np.ndarray, scale: float, plan: Plan, commit: Commit) -> np.ndarray:
    """Return the mean of those who are in it, slice by slice; peer r gave (r + 1) * scale *
    base."""
    mean = np.empty_like(base)
    for spec, outcome in zip(plan.slices, commit.slices, strict=True):
        ranks = [int(ledger.names[peer].partition("-")[2]) for peer in outcome.contributors]
        factor = np.float32(scale * (sum(ranks) / len(ranks) + 1))
        mean[spec.start : spec.stop] = base[spec.start : spec.stop] * factor
    return mean


def one_round(index: int, base: np.ndarray) -> dict[str, Any]:
    scale = 2.0 ** -(index % 16)
    x = torch.from_numpy(base * np.float32((RANK + 1) * scale))
    lab_peer.barrier({"at": f"start{index}"})
    sent.restart()
    wire, began_s = lab_peer.wire_bytes()[0], time.monotonic()
    y = averager.all_reduce(x, out=x).numpy()
    ended_s = time.monotonic()
    lab_peer.barrier({"at": f"done{index}"})
    time.sleep(0.02)  # late acknowledgements settle
    plan, commit = ledger.newest(Plan), ledger.newest(Commit)
    expected = true_mean(base, scale, plan, commit)
    parts, results = sent.twice(commit)
    told = {
        "t": ended_s - began_s,
        "began_s": began_s,
        "op": commit.op,
        "err": float(np.linalg.norm(y - expected) / np.linalg.norm(expected)),
        "digest": hashlib.sha256(y).hexdigest(),
        "tx": lab_peer.wire_bytes()[0] - wire,
        "parts_twice": parts,
        "results_twice": results,
        "bulk": {kind.name: count for kind, count in sent.bytes.items()},
        "slice_bytes": max(spec.stop - spec.start for spec in plan.slices),
        "contributors": [len(found.contributors) for found in commit.slices],
        "detected_s": ledger.detected_s(commit.op),
    }
    if RANK == 0:
        told["why"] = story_of(ledger.records, commit.op).lines
    lab_peer.barrier({"at": f"end{index}", **told})
    return told


sent = Sent()
sent.listen()
coordinator = None
if RANK == 0:
    coordinator = swarm_lab.start_exchange_coordinator(lab_peer.WARM + lab_peer.REPS + 2, WORLD - 1)
with tempfile.TemporaryDirectory(prefix="lab-") as directory:
    membership = swarm_lab.enter(Path(directory))
    ledger = Ledger(membership.storage)
    ledger.learn(membership.thread)
    try:
        averager = Averager.of(membership, NUMEL)
        averager.start()
        base = np.random.default_rng(7).standard_normal(NUMEL, dtype=np.float32)
        base *= np.float32(0.01)
        for index in range(lab_peer.WARM + lab_peer.REPS + 1):
            one_round(index, base)
    finally:
        membership.close()
if coordinator is not None:
    coordinator.terminate()
    coordinator.wait()
