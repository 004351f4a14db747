"""A proof, and the part of it that peers and coordinator share: the chain of decisions.

Nobody is asked and nothing is written. The ledger is believed as far as its own first record goes:
the reader compares the run's key with the one that the organiser gave out.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import msgspec

from swarmtrain_transport.coordinator.status import TextStatus
from swarmtrain_transport.credentials.identity import verify
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import GroupView, LedgerView, result_root
from swarmtrain_transport.peer.ledger_copy import Beginning, LedgerCopy
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import Attest, Commit, Group, Record


class WrongSum(msgspec.Struct, frozen=True):
    """A proof that an audit has left.

    Attributes:
        op: the round that it is about.
        owner: convicted peer in hex; "" if nobody.
        problem: reason why it convicts nobody, "" if it does.
    """

    file: str
    op: int = -1
    owner: str = ""
    problem: str = ""


class PeerChain(msgspec.Struct, frozen=True):
    """The last link of a peer's chain of exchanges; peer and link in hex."""

    peer: str
    chain: str


class GroupProof(msgspec.Struct, frozen=True):
    """Facts proved of one group; those not named here are as in `Proof`.

    Attributes:
        from_record: the record that its decisions are proved from: what began it, or the SNAPSHOT
            that the proof trusts.
    """

    group: int
    proves: str
    from_record: int
    ledger_op: int
    from_op: int
    to_op: int
    ops: int
    state_root: str
    ok: bool
    problem: str
    wrong_sums: tuple[WrongSum, ...] = ()
    chain: str = ""
    chains: tuple[PeerChain, ...] = ()


class Proof(msgspec.Struct, frozen=True):
    """Facts proved of a state directory: of the run, and of its group 0.

    Attributes:
        kind: ``peer`` or ``coordinator``.
        ops: number of ops that the proof goes over.
        from_op: op of the state that it starts from.
        to_op: op of the state that it ends with.
        state_root: root of that state in hex, "" if none was reached.
        ok: True if the proof holds.
        problem: the objection, "" if it holds.
        run_key: the run's public key in hex, by which every record was found signed.
        records: number of records that were checked.
        ledger_op: newest op that the ledger has an outcome of; a peer may be behind it.
        proves: meaning of `ok` here, and its limits, in words.
        from_record: the SNAPSHOT that the proof trusts, as not all records before it are here; 0
            where they are.
        wrong_sums: proofs against others that lie in the directory, each checked anew. They have
            no part in `ok`.
        chain: end of this peer's chain in hex, in a run of pair ops; "" if it has none.
        chains: the same of every peer, in a coordinator's directory.
        groups: proof of each group, where the ledger names several; `ok` is of all.
        in_stages: true if each group is a stage of the model.
        text: place of the run in its text when group 0's newest committed op was planned.
    """

    kind: str
    proves: str
    ops: int = 0
    from_op: int = -1
    to_op: int = -1
    state_root: str = ""
    ok: bool = False
    problem: str = ""
    run: str = ""
    run_key: str = ""
    records: int = 0
    ledger_op: int = -1
    from_record: int = 0
    wrong_sums: tuple[WrongSum, ...] = ()
    chain: str = ""
    chains: tuple[PeerChain, ...] = ()
    groups: tuple[GroupProof, ...] | msgspec.UnsetType = msgspec.UNSET
    in_stages: bool | msgspec.UnsetType = msgspec.UNSET
    text: TextStatus | msgspec.UnsetType = msgspec.UNSET

    @property
    def part(self) -> str:
        """The word for a group of this run."""
        return "stage" if self.in_stages is True else "group"


class Unproved(Exception):
    """The proof does not hold; the text is one sentence and names the file or the record."""


class Folded(NamedTuple):
    """The meaning of a chain of records.

    Attributes:
        from_records: per group the first of its records that was checked.
    """

    view: LedgerView
    records: int
    from_records: dict[int, int]


def fold(records: Iterable[Record], begins: Beginning | None = None) -> Folded:
    """The meaning of a chain, every link of which is checked.

    Args:
        begins: the SNAPSHOT before its first record, None if that is record 0.

    Raises:
        Unproved: a record is missing, altered, not signed by the run, or contradicts others.
    """
    try:
        copy = LedgerCopy(verify, (), begins=begins)
    except RemoteFault as fault:
        raise Unproved(f"The ledger's first SNAPSHOT does not hold: {fault}.") from fault
    count = 0 if begins is None else 1
    from_records = dict.fromkeys(copy.view.groups, 0 if begins is None else begins.snapshot.index)
    for record in records:
        count += 1
        try:
            taken = copy.take(record.to_bytes())
        except RemoteFault as fault:
            place = copy.ledger.head_index + 1
            raise Unproved(f"Record {place} of the ledger does not hold: {fault}.") from fault
        if taken is None:
            raise Unproved(f"Record {record.index} stands in the ledger twice.")
        body = taken[1]
        if isinstance(body, Group):
            from_records[body.group] = record.index
        if isinstance(body, Commit) and body.result_root != result_root(body):
            raise Unproved(f"COMMIT of op {body.op} names a result root that is not its own.")
        if isinstance(body, Attest) and body.op in copy.view.group_of(body).skips:
            raise Unproved(f"ATTEST of op {body.op}, which was skipped and has no state.")
    if not count:
        raise Unproved("The ledger is empty.")
    return Folded(copy.view, count, from_records)


def of_all_groups(proof: Proof, folded: Folded, find: Callable[[GroupView, Proof], Proof]) -> Proof:
    """The proof with what `find` makes of it for each group."""
    found = {
        number: concluded(
            msgspec.structs.replace(proof, ledger_op=view.last_op, text=_text(view)),
            partial(find, view),
        )
        for number, view in folded.view.groups.items()
    }
    first = found[FIRST_GROUP]
    if len(found) == 1:
        return first
    own = {"group", "from_record"}
    groups = tuple(
        GroupProof(
            group=number, from_record=folded.from_records[number],
            **{key: getattr(one, key) for key in GroupProof.__struct_fields__ if key not in own},
        )
        for number, one in found.items()
    )  # fmt: skip
    whole = msgspec.structs.replace(
        first, groups=groups, in_stages=folded.view.books is not None or msgspec.UNSET
    )
    part = whole.part
    problems = [f"{part.title()} {one.group}: {one.problem}" for one in groups if not one.ok]
    if not any(one.state_root for one in groups) and not problems:
        problems = [f"There is no state of any {part} here."]
    return msgspec.structs.replace(whole, ok=not problems, problem=" ".join(problems))


def _text(view: GroupView) -> TextStatus | msgspec.UnsetType:
    place = view.text_at(view.last_op)
    return msgspec.UNSET if place is None else TextStatus(place.number, place.used, place.pieces)


def concluded(proof: Proof, find: Callable[[Proof], Proof]) -> Proof:
    """The proof that `find` makes of an empty one, or why there is none."""
    try:
        return find(proof)
    except Unproved as problem:
        return msgspec.structs.replace(proof, ok=False, problem=str(problem))
