"""Size of the ledger, how fast a newcomer has read it, and the memory that it takes.

    python benchmarks/ledger.py [--peers 64] [--rounds 2000] [--json]
    python benchmarks/ledger.py --peers 512 --op [--json]

Production machines: Rendezvous and its SQLite store in this process; a Participant with its state
directory in another, there from the first record on; and a newcomer in a third one, when the rounds
are over. Its bytes and seconds are those until it knows every decision; the older records, which
follow in the background, are not in them. What so many peers would report of an undisturbed mean is
made up here, with true signatures; nothing is trained and nothing travels. Linux only: it reads
memory from /proc.

With --op only the bytes of one undisturbed op are counted that a peer is sent: of ledger (records,
and sheets where the op has cells), and beside it of HASHES, which every peer needs to check what it
gets. It is the mean of three ops after a first one, for the peer that was sent most. Rates and
samples are drawn anew for each, so that all weights and slices differ from those before.
"""

import hashlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from figures import parser_of, resident_mb

from swarmtrain.coordinator.disk.store import Store
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ops.planning import RunTerms
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.credentials.identity import Identity, verify
from swarmtrain_transport.kinds import MEAN
from swarmtrain_transport.ledger.cell_sums import num_named
from swarmtrain_transport.ledger.fold import OpView, num_chunks, set_id, slice_root
from swarmtrain_transport.ledger.signed_roots import (
    contribution_payload,
    inputs_of,
    made_of,
    result_payload,
    root_over,
)
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire import messages as m

BLOCK = 64
SLICE_VALUES = 64 * BLOCK
ROUND_S = 10.0
"""Seconds of a virtual round: inner steps and exchange."""

_LOOKS = 3
"""Times that a crowd's coordinator has to look until an op is planned."""

_LOOK_S = 0.1
"""Seconds after which what was reported of a crowd's op is looked at, at the latest."""

_NEWCOMER, _WITNESS = 1 << 16, (1 << 16) + 1
"""Numbers beyond those of the peers that exchange."""


def identity_of(number: int) -> Identity:
    """The same keys in every process."""
    rng = random.Random(number)
    return Identity.create(rng.randbytes)


def card_of(number: int) -> Card:
    """Make the card that a peer would have."""
    identity = identity_of(number)
    place = f"10.1.{number // 256 % 256}.{number % 256}", 40_000
    boot = random.Random(~number).randbytes(16)
    return Card(identity.peer_id, boot, f"peer-{number}", identity.curve_key, *place)


def state_root_of(op: int) -> bytes:
    """Root that everybody reports after an op."""
    return hashlib.sha256(b"state %d" % op).digest()


# ---- a peer that follows the ledger, in a process of its own


def follow(number: int, directory: Path, wire: Connection) -> None:
    """Be a peer that takes what the coordinator sends, and keeps it, until None comes; then tell
    how much memory this process has."""
    storage = PeerStorage(directory)
    identity = identity_of(number)
    machine = Participant(
        card_of(number), None, identity.sign, verify, list,  # type: ignore[arg-type]
        storage.records, 0.0, archive=storage.ledger, begins=storage.beginning(),
    )  # fmt: skip
    wire.send_bytes(m.encode(machine.hello()))
    while letters := wire.recv():
        said: list[bytes] = []
        now_s, told = letters
        for data in told:
            actions = machine.control(m.decode_from_coordinator(data), now_s)
            for action in actions:
                if isinstance(action, do.LedgerBegins):
                    storage.begin_ledger(action.run, action.snapshot, action.image, frees=False)
            kept = [action.record for action in actions if isinstance(action, do.RecordAccepted)]
            if kept:
                storage.append_records(kept)
            said += [m.encode(a.message) for a in actions if isinstance(a, do.SendControl)]
        said += [m.encode(a.message) for a in machine.tick(now_s) if isinstance(a, do.SendControl)]
        wire.send((said, machine.ledger.head_index))
    wire.send(resident_mb(os.getpid()))
    storage.close()


@dataclass
class Follower:
    """The coordinator's end of such a process."""

    number: int
    directory: Path
    letters: deque[bytes] = field(default_factory=deque)
    num_bytes: int = 0
    head: int = -1

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.wire, theirs = context.Pipe()
        self.directory.mkdir()
        self._process = context.Process(
            target=follow, args=(self.number, self.directory, theirs), daemon=True
        )
        self._process.start()
        self.hello = m.decode_from_peer(self.wire.recv_bytes())
        self.peer = identity_of(self.number).peer_id

    def put(self, message: m.CoordinatorMessage) -> None:
        self.letters.append(m.encode(message))

    def talk(self, now_s: float) -> list[m.PeerMessage]:
        """Hand over the next message; the answers."""
        letter = self.letters.popleft()
        self.num_bytes += len(letter)
        self.wire.send((now_s, [letter]))
        said, self.head = self.wire.recv()
        return [m.decode_from_peer(data) for data in said]

    def end(self) -> float:
        """End it, and return its memory in MB."""
        self.wire.send(None)
        memory = float(self.wire.recv())
        self._process.join()
        return memory


# ---- the coordinator, and what its peers would say


Said = m.Roots | m.Got | m.SliceDone | m.Have


class Run:
    """A coordinator with its store, and so many peers that report an undisturbed mean.

    Args:
        num_peers: contributors, and owners of a slice each.
        directory: for the store and the followers' state; None keeps no record.
        rounds: of the run.
        terms: more terms of the run.
    """

    def __init__(self, num_peers: int, directory: Path | None, rounds: int, **terms: Any) -> None:
        self.now_s = 0.0
        self.ledger_bytes = 0
        self.followers: dict[PeerId, Follower] = {}
        self.sent: Counter[tuple[PeerId, str]] = Counter()
        """Bytes that each peer was sent, by the kind of the messages."""
        self.hashes_bytes = 0
        self._weighed: tuple[m.CoordinatorMessage | None, int] = None, 0
        self._directory = directory
        self._identities = {i.peer_id: i for i in map(identity_of, range(num_peers))}
        self._terms = replace(terms_of(num_peers, rounds), **terms)
        self._rng = random.Random(1)
        self.varies = False
        """Rates and samples differ from op to op."""
        self._store = None if directory is None else Store.open(directory / "coordinator")
        key = identity_of(-1)
        self.machine = Rendezvous(
            self._terms,
            key.peer_id,
            (),
            key.sign,
            verify,
            self._store.term if self._store else 1,
            0.0,
            archive=self._store,
        )
        self._heed(self.machine.start(0.0))
        for number in range(num_peers):
            card = card_of(number)
            hello = m.Hello(
                card.boot, card.name, card.curve_key, card.host, card.port, -1, b"", 1 << 40,
            )  # fmt: skip
            self._heed(self.machine.connected(card.peer_id, hello, 0.0))
        first = next(iter(self._identities))
        num_values = num_peers * SLICE_VALUES
        self.say(first, m.Offer(state_root_of(0), num_values, bytes(32)))
        self.acknowledge()
        for _ in range(_LOOKS):
            if self.machine.view.first.genesis is None:
                self._look()

    def say(self, peer: PeerId, *messages: m.PeerMessage) -> None:
        """Have the coordinator hear this."""
        for message in messages:
            self._heed(self.machine.received(peer, message, self.now_s))

    def _heed(self, actions: Sequence[do.CoordinatorAction]) -> None:
        for action in actions:
            if isinstance(action, do.Append):
                if self._store is not None:
                    self._store.append(action.record)
                self.ledger_bytes += len(action.record.to_bytes())
            elif isinstance(action, do.SendToPeer) and action.peer in self.followers:
                self.followers[action.peer].put(action.message)
            elif isinstance(action, do.SendToPeer):
                if self._weighed[0] is not action.message:
                    self._weighed = action.message, len(m.encode(action.message))
                self.sent[action.peer, type(action.message).__name__] += self._weighed[1]

    def add_follower(self, number: int) -> Follower:
        """Let in a peer that takes no part but follows the ledger."""
        assert self._directory is not None
        follower = Follower(number, self._directory / f"peer-{number}")
        self.followers[follower.peer] = follower
        hello: Any = follower.hello
        self._heed(self.machine.connected(follower.peer, hello, self.now_s))
        return follower

    def relay(self, follower: Follower, *, until_head: bool = False) -> None:
        """Let a follower read and answer, one message at a time, until nothing is on its way or it
        knows every record."""
        while follower.letters and not (until_head and follower.head >= self.machine.writer.head):
            self.say(follower.peer, *follower.talk(self.now_s))

    def acknowledge(self) -> None:
        """Everybody holds every record and says so."""
        head = self.machine.writer.head
        for peer in self._identities:
            rate = self._rng.randint(2_000_000, 20_000_000) if self.varies else 0
            word = m.Progress(
                head, 0, 0, "training", up_bytes_per_s=rate, down_bytes_per_s=2 * rate
            )
            self.say(peer, word)

    def round(self) -> None:
        """One op from READY to ATTEST, everybody in it."""
        op = self.machine.view.first.last_op + 1
        for peer in self._identities:
            samples = self._rng.randint(4096, 8192) if self.varies else 8192
            self.say(peer, m.Ready(op, samples, op - 1, state_root_of(op - 1)))
        for _ in range(_LOOKS):
            if self.machine.view.first.in_progress is None:
                self._look()
        view = self.machine.view.first.in_progress
        if view is None:
            raise RuntimeError(f"op {op} was not planned")
        self._exchange(view)
        if op not in self.machine.view.first.commits:
            raise RuntimeError(f"op {op} was not committed")
        for peer in self._identities:
            self.say(peer, m.Applied(op, state_root_of(op)))
        self.now_s += ROUND_S
        self.acknowledge()
        self._heed(self.machine.tick(self.now_s))
        for follower in self.followers.values():
            self.relay(follower)

    def _look(self) -> None:
        """Let the time pass in which the coordinator of a crowd tells news, and looks at what has
        come."""
        self.now_s += limits.CROWD_RECORDS_S
        self.acknowledge()
        self._heed(self.machine.tick(self.now_s))

    def _exchange(self, view: OpView) -> None:
        peers = tuple(self._identities)
        ranges = range(len(view.owners) // view.cells.count)
        roots = {
            peer: tuple(hashlib.sha256(view.plan_hash + peer + bytes([i])).digest() for i in ranges)
            for peer in peers
        }
        signed: list[tuple[PeerId, Said]] = []
        for peer, mine in roots.items():
            payload = contribution_payload(view.plan_hash, root_over(mine))
            word = m.Roots(view.plan_id, mine, self._identities[peer].sign(payload))
            signed.append((peer, word))
        self._report(signed)
        complete = [
            {peer: roots[peer][view.cells.range_of(index)] for peer in view.givers(index)}
            for index in range(len(view.owners))
        ]
        got = [m.Got(view.plan_id, index, 0, one) for index, one in enumerate(complete)]
        self._report(list(zip(view.owners, got, strict=True)))
        name = set_id(tuple(sorted(peers)))
        done: list[tuple[PeerId, Said]] = []
        for index, owner in enumerate(view.owners):
            digest = hashlib.sha256(view.plan_hash + index.to_bytes(2, "little")).digest()
            hashes = (digest,) * num_chunks(view.plan, index)
            summed, sums = complete[index], tuple[bytes, ...]()
            if view.cells.count > 1:
                summed = {peer: root for peer, root in summed.items() if peer != owner}
                sums = (bytes(32),) * num_named(view.cells.count)
            inputs = inputs_of(summed)
            made = made_of(inputs, sums)
            payload = result_payload(view.plan_hash, index, 0, slice_root(hashes), made)
            signature = self._identities[owner].sign(payload)
            published = m.SliceDone(view.plan_id, index, 0, name, hashes, inputs, signature, sums)
            done.append((owner, published))
        self._report(done)
        have = [
            m.Have(view.plan_id, index, 0, name, (True,) * num_chunks(view.plan, index))
            for index in range(len(view.owners))
        ]
        self._report([(peer, message) for peer in peers for message in have])

    def _report(self, reports: Sequence[tuple[PeerId, Said]]) -> None:
        """Have the op take all of these in, and ask what follows only with the last: 64 peers say
        4 096 times what they hold. HASHES that follow are counted, as everybody is sent all."""
        operation = self.machine.first.operation
        for peer, message in reports[:-1]:
            if operation is not None:
                news = operation.reports.hear(peer, message, self.now_s)
                self.hashes_bytes += 0 if news is None else len(m.encode(news))
        self.say(*reports[-1])
        self.now_s += _LOOK_S
        self._heed(self.machine.tick(self.now_s))

    def close(self) -> None:
        """End all that belongs to it."""
        if self._store is not None:
            self._store.close()


def terms_of(num_peers: int, rounds: int) -> RunTerms:
    """Terms of DiLoCo with int8 differences, as a run file has them by default."""
    return RunTerms(
        run_id="ledger-benchmark", config=b"config", config_hash=hashlib.sha256(b"config").digest(),
        rounds=rounds + 1, codec="int8", exact=True, block=BLOCK, chunk_values=SLICE_VALUES,
        e_max=0, min_contributors=1, start_peers=num_peers, wait_ready_s=60.0,
        deadline_floor_s=20.0, deadline_cap_s=300.0, checkpoint_rounds=10, snapshot_rounds=4,
        kind=MEAN,
    )  # fmt: skip


def measure(num_peers: int, rounds: int, directory: Path) -> dict[str, float]:
    """Run the rounds, let the newcomer in, and weigh everybody."""
    limits.HISTORY_HOLDERS = (
        2 * limits.CELL_PEERS_MAX
    )  # or the newcomer need not fetch older records
    run = Run(num_peers, directory, rounds)
    witness = run.add_follower(_WITNESS)
    run.relay(witness)
    before = run.ledger_bytes
    for _ in range(rounds):
        run.round()
    bytes_per_op = (run.ledger_bytes - before) / rounds
    joiner = Follower(_NEWCOMER, directory / "newcomer")
    run.followers[joiner.peer] = joiner
    began_s = time.perf_counter()
    hello: Any = joiner.hello
    run._heed(run.machine.connected(joiner.peer, hello, run.now_s))
    run.relay(joiner, until_head=True)
    joiner_s, joiner_bytes = time.perf_counter() - began_s, joiner.num_bytes
    run.relay(joiner)
    memory_mb = resident_mb(os.getpid())
    joiner.end()
    kept = PeerStorage(joiner.directory).ledger.num_records
    if kept != len(run.machine.writer.ledger):
        raise RuntimeError(f"the newcomer has kept {kept} records")
    run.relay(witness)
    if witness.head < run.machine.writer.head:
        raise RuntimeError("the peer has not followed")
    row = {
        "bytes_per_op": round(bytes_per_op),
        "joiner_bytes": joiner_bytes,
        "joiner_seconds": round(joiner_s, 2),
        "coordinator_rss_mb": round(memory_mb, 1),
        "peer_rss_mb": round(witness.end(), 1),
    }
    run.close()
    return row


def measure_op(num_peers: int, ops: int = 3) -> dict[str, float]:
    """Run a few ops and count what a peer is sent of each."""
    run = Run(num_peers, None, ops + 1, counts_samples=True)
    run.varies = True
    run.round()
    run.sent.clear()
    run.hashes_bytes = 0
    before = run.ledger_bytes
    for _ in range(ops):
        run.round()
    view = run.machine.view.first.op
    assert view is not None
    ledger = Counter[PeerId]()
    for (peer, kind), num_bytes in run.sent.items():
        ledger[peer] += num_bytes if kind in ("Records", "Sheet") else 0
    row: dict[str, float] = {
        "cells": view.cells.count,
        "ledger_bytes_sent": round(max(ledger.values()) / ops),
        "hashes_bytes_sent": round(run.hashes_bytes / ops),
        "ledger_bytes_kept": round((run.ledger_bytes - before) / ops),
    }
    run.close()
    return row


def main() -> int:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--peers", type=int, default=limits.CELL_PEERS_MAX)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--op", action="store_true", help="bytes of one op that a peer is sent")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if options.op:
            told: dict[str, float] = {"peers": options.peers}
            told |= measure_op(options.peers)
        else:
            told = {"peers": options.peers, "rounds": options.rounds}
            told |= measure(options.peers, options.rounds, Path(place))
    if options.json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name:20} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
