"""The proof that a coordinator's directory holds: decisions, and nothing about weights.

A coordinator never saw a weight, so its directory cannot show that a state is right, only that
the run decided so: records in one unbroken chain, signed, none against another, and roots attested
for ops that have an outcome.
"""

import contextlib
from pathlib import Path

import msgspec

from swarmtrain.coordinator.disk.store import FILE_NAME, MARKS, Store
from swarmtrain.coordinator.disk.store_errors import StoreDamaged, StoreLocked
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.disk import ledger_file
from swarmtrain.verify.proof import PeerChain, Proof, Unproved, concluded, fold, of_all_groups
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import Record

_PROVES = (
    "Every decision is signed by the run's key and follows from the one before; each op has one"
    " outcome; the state root is the newest that a majority of an op's peers reported. It proves no"
    " more: a coordinator never saw a weight. Verify the directory of a peer for that."
)

_PROVES_OF_PAIRS = (
    "Every decision is signed by the run's key and follows from the one before; each op has one"
    " outcome; the chains are what follows from all exchanges that were committed; the state root"
    " is one of those that peers reported last. It proves no more: a coordinator never saw a"
    " weight, and where rounds go by pairs a state is its peer's own."
)


def is_coordinators(directory: Path) -> bool:
    """Return True if the directory is a coordinator's."""
    return any((directory / name).exists() for name in MARKS)


def prove_coordinator(directory: Path) -> Proof:
    """Check a coordinator's state directory and return its proof. Nothing in it is changed.

    Raises:
        UserError: SWT-E404, the coordinator runs; SWT-E403, a file cannot be read.
    """
    return concluded(Proof("coordinator", _PROVES), lambda proof: _find(proof, directory))


def _find(proof: Proof, directory: Path) -> Proof:
    folded = fold(_records(directory))
    run = folded.view.run
    assert run is not None  # record 0
    proof = msgspec.structs.replace(
        proof, run=run.run_id, run_key=run.run_key.hex(), records=folded.records
    )
    return of_all_groups(proof, folded, _find_group)


def _find_group(view: GroupView, proof: Proof) -> Proof:
    newest = max(view.attests, default=None)
    proof = msgspec.structs.replace(
        proof, from_op=min(view.last_op, 0), to_op=view.last_op, ops=max(view.last_op, 0)
    )
    if view.goes_by_pairs:
        chains = tuple(
            PeerChain(peer.hex(), chain.hex()) for peer, chain in sorted(view.chains.items())
        )
        proof = msgspec.structs.replace(proof, proves=_PROVES_OF_PAIRS, chains=chains)
    if newest is not None:
        return msgspec.structs.replace(proof, state_root=view.attests[newest].hex(), ok=True)
    if view.group != FIRST_GROUP:
        return msgspec.structs.replace(proof, ok=True)  # nobody has brought its state yet
    raise_to = "The ledger attests no state yet: no peer has brought one."
    return msgspec.structs.replace(proof, problem=raise_to)


def check_readable(directory: Path) -> None:
    """Check that a process could go on from what another has left in a directory.

    Raises:
        UserError: SWT-E805 or SWT-E810: what `up` or `join` would say.
    """
    if (directory / FILE_NAME).exists():
        with contextlib.suppress(StoreLocked):  # it runs, and is only slow to answer
            read_records(directory)
    elif not is_coordinators(directory):
        ledger_file.read(directory / ledger_file.FILE_NAME)


def read_records(directory: Path) -> tuple[Record, ...]:
    """The ledger of a coordinator that has stopped.

    Raises:
        UserError: SWT-E404, the coordinator runs; SWT-E805, damaged; SWT-E403, unreadable;
            SWT-E806, the log is in a database.
    """
    if not (directory / FILE_NAME).exists():
        raise UserError(
            "SWT-E806",
            f"The log of the run is not in {directory}: its coordinators keep it in a database.",
            "While one of them runs, it is asked.",
            "Start the coordinator, or name the directory of a peer, which has a copy of the log.",
        )
    store = Store.open_to_read(directory)
    try:
        return store.records()
    finally:
        store.close()


def _records(directory: Path) -> tuple[Record, ...]:
    try:
        return read_records(directory)
    except StoreDamaged as error:
        raise Unproved(error.what) from error
