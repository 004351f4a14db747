"""Peers, plans and a signed chain for tests of the pure machines: no sockets, no torch."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from swarmtrain_transport.coordinator.ops.planning import RunTerms
from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.ledger.fold import LedgerView, OpView, set_id, slice_root
from swarmtrain_transport.ledger.plan_rules import window_floor
from swarmtrain_transport.ledger.signed_roots import (
    contribution_payload,
    inputs_of,
    result_payload,
    root_over,
)
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Roots, SliceDone
from swarmtrain_transport.wire.records import (
    Attest,
    Body,
    Commit,
    Freeze,
    Join,
    Member,
    Plan,
    Record,
    Run,
    Sign,
    SliceOutcome,
    SliceSpec,
    make_record,
)

RUN_KEY = b"K" * 32
BOOT = b"boot"
A, B, C, D, E = (bytes([number]) * 32 for number in range(1, 6))
STRANGER = b"?" * 32
LAYOUT = b"L" * 32
BLOCK = 2
CHUNK = 4


def sign(digest: bytes) -> bytes:
    return hashlib.sha256(RUN_KEY + digest).digest()


def verify(key: bytes, signature: bytes, data: bytes) -> bool:
    return signature == hashlib.sha256(key + data).digest()


def sign_as(peer: PeerId) -> Sign:
    """A peer's own key."""
    return lambda data: hashlib.sha256(peer + data).digest()


def slice_root_of(peer: PeerId, index: int) -> bytes:
    """A made-up one: what a contributor has given to a slice."""
    return hashlib.sha256(peer + bytes([index])).digest()


def roots_of(view: OpView, peer: PeerId) -> Roots:
    """Return what a contributor says and signs when all of that is encoded."""
    slice_roots = tuple(slice_root_of(peer, index) for index in range(len(view.owners)))
    payload = contribution_payload(view.plan_hash, root_over(slice_roots))
    return Roots(view.plan_id, slice_roots, sign_as(peer)(payload))


def received(index: int, peers: Iterable[PeerId]) -> dict[PeerId, bytes]:
    """Return what an owner has of them whole, as GOT says it."""
    return {peer: slice_root_of(peer, index) for peer in peers}


def done_of(
    view: OpView, index: int, peers: tuple[PeerId, ...], hashes: tuple[bytes, ...]
) -> SliceDone:
    """SLICE_DONE of a slice's current owner over these contributors."""
    place, inputs = (index, view.attempts[index]), inputs_of(received(index, peers))
    payload = result_payload(view.plan_hash, *place, slice_root(hashes), inputs)
    signature = sign_as(view.owners[index])(payload)
    return SliceDone(view.plan_id, *place, set_id(peers), hashes, inputs, signature)


def run_body(**changes: Any) -> Run:
    return msgspec.structs.replace(Run("run", RUN_KEY, bytes(32), 1), **changes)


def join_body(peer: PeerId, boot: bytes = BOOT) -> Join:
    return Join(peer, boot, "name", peer)


def genesis_body(num_values: int = 16, root: bytes = b"R" * 32) -> Attest:
    return Attest(0, root, num_values, LAYOUT)


def plan_body(
    peers: Sequence[PeerId] = (A, B, C), num_values: int | None = None, **changes: Any
) -> Plan:
    """Equal weights 1, one slice of eight values (two chunks) for each of `peers`."""
    width = 8 if num_values is None else num_values // len(peers)
    slices = tuple(SliceSpec(i * width, (i + 1) * width, peer) for i, peer in enumerate(peers))
    members = changes.get("members", tuple(Member(peer, BOOT, 1) for peer in peers))
    plan = Plan(
        op=1,
        previous_outcome=b"",
        members=members,
        slices=slices,
        codec="plain",
        exact=True,
        block=BLOCK,
        chunk_values=CHUNK,
        e_min=window_floor(0, sum(max(0, member.weight) for member in members)),
        e_max=0,
        min_contributors=1,
        deadline_s=100.0,
        checkpoint_by=b"",
        evaluate_by=b"",
    )
    return msgspec.structs.replace(plan, **changes)


def view_of(plan: Plan) -> OpView:
    digest = hashlib.sha256(msgspec.msgpack.encode(plan.op)).digest()
    return OpView.of(plan, digest)


class Chain:
    """A coordinator's pen: records that follow each other, kept and folded."""

    def __init__(self, *bodies: Body) -> None:
        self.ledger = Ledger(verify)
        self.view = LedgerView()
        self.records: list[Record] = []
        for body in bodies:
            self.add(body)

    def next_record(self, body: Body, term: int = 1) -> Record:
        ledger = self.ledger
        return make_record(len(ledger), ledger.head_hash, term, body, sign, ledger.reader)

    def add(self, body: Body, term: int = 1) -> Record:
        record = self.next_record(body, term)
        self.view.apply(record, self.ledger.append(record))
        self.records.append(record)
        return record

    def plan(self, *args: Any, **changes: Any) -> Plan:
        """The next legal PLAN."""
        changes.setdefault("op", self.view.first.last_op + 1)
        changes.setdefault("previous_outcome", self.view.first.last_outcome)
        return plan_body(*args, **changes)

    def commit(self, *contributors: PeerId) -> Record:
        """FREEZE for these, unless it is there, and the legal COMMIT of the op in progress."""
        op = self.view.first.in_progress
        assert op is not None
        if op.frozen is None:
            self.add(Freeze(op.plan.op, contributors, {}))
        return self.add(commit_of(op))


def commit_of(op: OpView) -> Commit:
    """The COMMIT that says what was decided, with made-up roots."""
    slices = tuple(
        SliceOutcome(attempt, named or (), bytes(32))
        for attempt, named in zip(op.attempts, op.slice_sets, strict=True)
    )
    commit = Commit(op.plan.op, op.plan_hash, op.frozen or (), slices, bytes(32))
    return msgspec.structs.replace(commit, group=op.plan.group)


def begun_chain(peers: Sequence[PeerId] = (A, B, C), num_values: int = 24) -> Chain:
    """A run with members and op 0, ready for PLAN 1."""
    return Chain(run_body(), *(join_body(peer) for peer in peers), genesis_body(num_values))


def terms_of(**changes: Any) -> RunTerms:
    """Terms of a small run: three equal peers get three slices of two chunks."""
    terms = RunTerms(
        run_id="run",
        config=b"config",
        config_hash=hashlib.sha256(b"config").digest(),
        rounds=100,
        codec="plain",
        exact=True,
        block=BLOCK,
        chunk_values=CHUNK,
        e_max=0,
        min_contributors=1,
        start_peers=1,
        wait_ready_s=60.0,
        deadline_floor_s=20.0,
        deadline_cap_s=100.0,
        checkpoint_rounds=10,
        snapshot_rounds=4,
    )
    return dataclasses.replace(terms, **changes)
