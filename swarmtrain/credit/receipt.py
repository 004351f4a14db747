"""Receipts: one round of one peer, signed by the run key, in a file that proves itself.

It holds three records as they are in the ledger. RUN names run, key and run file; PLAN the members;
COMMIT, by places in PLAN, those whose work is in the result. The run key has signed each of them,
so a receipt is made from any copy of the ledger and nobody is asked. It proves a COMMIT; of a later
REWIND it knows nothing. That the key belongs to a certain run is for whoever knows the run to say.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec

from swarmtrain.config import file as config_file
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain_transport.credentials.identity import verify
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.records import (
    AnyBody,
    BodyReader,
    Commit,
    Plan,
    Record,
    Rewind,
    Run,
    Skip,
    body_of,
    outline_of,
    record_from_bytes,
    tag_of,
)

BYTES_MAX = 512 << 10
"""A run file has 64 kB at most; PLAN and COMMIT of 64 peers with 64 slices have about 20 kB, of
4 096 peers 450 kB."""

SUFFIX = ".receipt"

COUNTS, CANCELLED, UNKNOWN = "counts", "cancelled", "unknown"

T = TypeVar("T", bound=AnyBody)


class Receipt(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True,
    tag="swarmtrain receipt 1",
):  # fmt: skip
    """The file: the peer's key, the run file in canonical form, and the bytes of three records."""

    peer: bytes
    run_file: bytes
    run: bytes
    plan: bytes
    commit: bytes


class Proven(msgspec.Struct, frozen=True):
    """Facts that a receipt proves.

    Attributes:
        run: name of the run.
        run_key: public key that has signed, in hex.
        peer: key of the peer, in hex.
        group: number of the group.
        round: number of the round.
        record: index of COMMIT in the ledger; `digest` its hash in hex.
        contributors: number of peers in the result.
        tokens: tokens, or samples, of this peer in it. None where the model is in stages, and where
            this version does not read the run file.
        unit: unit of these.
    """

    run: str
    run_key: str
    peer: str
    group: int
    round: int
    record: int
    digest: str
    contributors: int
    tokens: int | None
    unit: str


class OwnRounds:
    """Reads a ledger for the rounds of one peer that are in results.

    Args:
        peer: key of the peer.
    """

    def __init__(self, peer: bytes) -> None:
        self._peer, self._reader = peer, BodyReader()
        self._plans: dict[tuple[int, int], Record] = {}

    def read(self, record: Record) -> tuple[Record, Commit] | Rewind | None:
        """Take a record that comes later than those before.

        Returns:
            PLAN and COMMIT of a round with the peer's work, a REWIND, or None; also None for a
            round whose PLAN lies in a gap of the copy.
        """
        try:
            body = self._reader.read(record)
        except RemoteFault:
            return None
        if isinstance(body, Rewind):
            return body
        if isinstance(body, Plan):
            self._plans[body.group, body.op] = record
        elif isinstance(body, Commit | Skip):
            plan = self._plans.pop((body.group, body.op), None)
            is_its = isinstance(body, Commit) and plan is not None and plan.hash == body.plan_hash
            if isinstance(body, Commit) and plan is not None and is_its:
                return (plan, body) if self._peer in body.contributors else None
        return None


def made(
    records: Sequence[Record], peer: bytes, run_file: bytes
) -> Iterator[tuple[int, int, bytes]]:
    """Make the receipts of a peer.

    Args:
        records: copy of the ledger, in order; it begins with RUN and may have gaps.
        peer: key of the peer.
        run_file: the run file in canonical form.

    Yields:
        Group, round and receipt of each round with its work that no REWIND has cancelled.
    """
    rounds: dict[tuple[int, int], tuple[Record, Record]] = {}
    own = OwnRounds(peer)
    for record in records:
        found = own.read(record)
        if isinstance(found, Rewind):
            for group, op in [one for one in rounds if one[0] == found.group]:
                if op > found.op:
                    del rounds[group, op]
        elif found is not None:
            rounds[found[1].group, found[1].op] = found[0], record
    for (group, op), (plan, commit) in sorted(rounds.items()):
        raw = records[0].to_bytes(), plan.to_bytes(), commit.to_bytes()
        yield group, op, msgspec.msgpack.encode(Receipt(peer, run_file, *raw))


def checked(data: bytes) -> Proven:
    """Check a receipt, whoever has made it; only its signatures are believed.

    Raises:
        UserError: SWT-E813, it proves nothing.
    """
    if len(data) > BYTES_MAX:
        raise proves_nothing(f"it is longer than {BYTES_MAX} bytes, which no receipt is")
    try:
        receipt = msgspec.msgpack.decode(data, type=Receipt)
        run, plan, commit = map(record_from_bytes, (receipt.run, receipt.plan, receipt.commit))
        key = _of(run, Run).run_key
        for record in (run, plan, commit):
            if not verify(key, record.signature, record.hash):
                raise proves_nothing("a record in it is not signed by the run key that it names")
        begun, planned, ended = _of(run, Run), _of(plan, Plan), _of(commit, Commit, plan.body)
    except (RemoteFault, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise proves_nothing(
            f"it is cut, damaged, or no receipt ({cleaned(str(error))})"
        ) from error
    if run.index or ended.plan_hash != plan.hash or not 0 < plan.index < commit.index:
        raise proves_nothing("its records do not belong together")
    if receipt.peer not in ended.contributors:
        raise proves_nothing("its round is without the work of its peer")
    if hashlib.sha256(receipt.run_file).digest() != begun.config_hash:
        raise proves_nothing("its run file is not the run's")
    tokens, unit = _tokens(receipt.run_file)
    return Proven(
        cleaned(begun.run_id), key.hex(), receipt.peer.hex(), planned.group, planned.op,
        commit.index, commit.hash.hex(), len(ended.contributors), tokens, unit,
    )  # fmt: skip


def run_key_of(records: Sequence[Record]) -> bytes:
    """Return the run key that a copy of a ledger begins with."""
    return _of(records[0], Run).run_key


def judged(
    proven: Iterable[Proven], records: Sequence[Record] | None = None
) -> list[tuple[Proven, str]]:
    """Say of each of some receipts if it counts, and of each round once.

    Of two COMMITs of a round the later one counts: a run commits a round again only where a REWIND
    has cancelled it.

    Args:
        proven: facts of receipts.
        records: copy of the run's ledger, in order, to hold them against.

    Returns:
        Receipts in the ledger's order with COUNTS, CANCELLED, or UNKNOWN to that copy, which may
        end before or have a gap there.

    Raises:
        UserError: SWT-E813, the run key has signed two records with one index, or the ledger is
            another run's.
    """
    hashes: dict[tuple[str, int], str] = {}
    newest: dict[tuple[str, int, int], int] = {}
    rewinds: list[tuple[int, Rewind]] = []
    for record in records or ():
        if outline_of(record).kind == tag_of(Rewind):
            rewinds.append((record.index, _of(record, Rewind)))
    run_key = run_key_of(records).hex() if records else ""
    held = {record.index: record.hash.hex() for record in records or ()}
    alike = sorted(set(proven), key=lambda one: (one.record, one.peer, one.run_key))
    for one in alike:
        known = hashes.setdefault((one.run_key, one.record), held.get(one.record, one.digest))
        if records is not None and one.run_key != run_key:
            raise proves_nothing(f"it is of another run, whose key is {one.run_key}")
        if known != one.digest:
            raise proves_nothing(f"the run key has signed two histories, at record {one.record}")
        newest[one.run_key, one.group, one.round] = one.record
    told = []
    for one in alike:
        is_cancelled = one.record != newest[one.run_key, one.group, one.round] or any(
            index > one.record and body.group == one.group and body.op < one.round
            for index, body in rewinds
        )
        is_known = records is None or one.record in held
        told.append((one, CANCELLED if is_cancelled else COUNTS if is_known else UNKNOWN))
    return told


def _of(record: Record, kind: type[T], plan: bytes = b"") -> T:
    body = body_of(record, plan)
    if not isinstance(body, kind):
        raise RemoteFault("record", f"a {type(body).__name__} in the place of a {kind.__name__}")
    return body


@lru_cache(8)  # of a folder most are of one run
def _tokens(run_file: bytes) -> tuple[int | None, str]:
    try:
        config = config_file.from_canonical(run_file)
    except (UserError, RemoteFault):  # of another version: the round counts nevertheless
        return None, "tokens"
    return config.round_tokens, config.counted_unit


def proves_nothing(why: str) -> UserError:
    """The refusal of a receipt."""
    return UserError(
        "SWT-E813",
        f"The receipt proves nothing: {why}.",
        "Only what the run key has signed counts; nothing else in the file is believed.",
        "Have it made again: swarmtrain receipts save FOLDER --state-dir DIR.",
    )
