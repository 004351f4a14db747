"""A ledger whose records a real key has signed, and receipts of it."""

from collections.abc import Sequence
from functools import cache

import msgspec

from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig, RunSection
from swarmtrain.credit.receipt import made
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.wire.records import (
    GENESIS_HASH,
    AnyBody,
    BodyReader,
    Commit,
    Freeze,
    Plan,
    Record,
    Run,
    bodies_of,
    make_record,
)
from tests.transport.hall import opened
from tests.transport.rig import A, B, C

CONFIG = RunConfig(run=RunSection(name="moths", rounds=4))
RUN_FILE = config_file.canonical(CONFIG)
RUN_KEY = Identity.from_secrets(b"run key.".ljust(32), bytes(32))


def ledger_of(bodies: Sequence[AnyBody], key: Identity = RUN_KEY) -> list[Record]:
    """The bodies as records that a key has really signed."""
    records: list[Record] = []
    reader, plans = BodyReader(), {}
    for body in bodies:
        if isinstance(body, Run):
            facts = config_file.config_hash(CONFIG)
            body = msgspec.structs.replace(body, run_key=key.peer_id, config_hash=facts)
        elif isinstance(body, Commit):
            body = msgspec.structs.replace(body, plan_hash=plans[body.op])
        before = records[-1].hash if records else GENESIS_HASH
        records.append(make_record(len(records), before, 1, body, key.sign, reader))
        reader.take(records[-1], body)
        if isinstance(body, Plan):
            plans[body.op] = records[-1].hash
    return records


@cache
def bodies(rounds: int = 3) -> tuple[AnyBody, ...]:
    """A run of three peers, of which C is left out of round 2."""
    hall = opened(A, B, C)
    for op in range(1, rounds + 1):
        hall.run_op(op, A, B, C)
    return tuple(
        msgspec.structs.replace(body, contributors=tuple(sorted((A, B))))
        if isinstance(body, Commit) and body.op == 2
        else body
        for body in bodies_of(hall.records)
    )


def of_op(op: int) -> list[AnyBody]:
    return [one for one in bodies() if isinstance(one, Plan | Freeze | Commit) and one.op == op]


def receipts(records: Sequence[Record], peer: bytes = A) -> dict[int, bytes]:
    return {op: data for _, op, data in made(records, peer, RUN_FILE)}
