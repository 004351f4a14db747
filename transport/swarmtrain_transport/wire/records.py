"""The ledger: one append-only, signed chain of the coordinator's decisions.

A record is hashed over its canonical bytes and names its predecessor's hash, so whoever holds a
head hash holds the whole history (protocol.md part 2, LOG). `fold` says what a decision means.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgpack
import msgspec

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import MEAN, PAIR_VECTORS
from swarmtrain_transport.wire.member_index import EXT_BYTES_MAX, NO_MEMBERS, MemberIndex
from swarmtrain_transport.wire.messages import FIRST_GROUP, kinds_of, written
from swarmtrain_transport.wire.short_records import is_short, short_from_bytes
from swarmtrain_transport.wire.text_place import TextPlace
from swarmtrain_transport.wire.unpacking import unpack_limited

GENESIS_HASH = bytes(32)

_RECORDS_AT_HAND = 256
"""Newest records whose hash, bytes and body are kept: a coordinator sends each to everybody."""

PLANS_AT_HAND = 8
"""Newest PLANs of which it is kept what follows from them alone: all members work out the same."""

_PLANS_KEPT = 4
"""Newest PLANs of a group by which later records name its members: ops of it may overlap."""


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="k"):
    """Base of all record bodies; the field ``k`` is the record's kind."""


class Run(Body, frozen=True, tag="RUN", omit_defaults=True):
    """Record 0: which run this is and whose key signs it. Its groups are one, or stages of a model,
    or so many `experts`, each a model of its own."""

    run_id: str
    run_key: bytes
    config_hash: bytes
    protocol: int
    experts: int = 0


class Join(Body, frozen=True, tag="JOIN"):
    """A peer is let in, or is back with another boot id. Where it listens is told to its peers
    alone, by LISTENS, as the ledger is kept for good and by everybody."""

    peer: bytes
    boot: bytes
    name: str
    curve_key: bytes
    invite: str = ""


class Group(Body, frozen=True, tag="GROUP"):
    """One more group: peers that exchange one layout, in ops and states of their own. `config_hash`
    is that of its settings. Groups are numbered as they come, from 1 on."""

    group: int
    config_hash: bytes


class Move(Body, frozen=True, tag="MOVE", omit_defaults=True):
    """From now on the peer is in these groups, in ascending order, and in no others; and it keeps
    the states of those others, likewise in order, until it is gone (K1). `why` is for people."""

    peer: bytes
    groups: tuple[int, ...]
    keeps: tuple[int, ...] = ()
    why: str = ""


class Conviction(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A wrong sum, found by the drawn auditor and checked by most peers: where, and the hash of
    the proof, which they keep."""

    op: int
    slice_index: int
    chunk: int
    proof_hash: bytes


BANNED = "banned"
"""Reason of a GONE that shuts a key out, whether or not it is in. Only with `evicted`: who leaves
chooses its own words."""


class Gone(Body, frozen=True, tag="GONE", omit_defaults=True):
    """A peer left the roster: on purpose (LEAVE), by silence, removed or banned by the organiser,
    or convicted (EVICT). A convicted peer never comes back, a banned one not before UNBAN. `group`
    is that of the op whose sum was wrong."""

    peer: bytes
    evicted: bool
    reason: str
    conviction: Conviction | None = msgspec.field(default_factory=lambda: None)
    group: int = FIRST_GROUP

    @property
    def is_ban(self) -> bool:
        """True if the record bans the key."""
        return self.evicted and self.reason == BANNED


class Unban(Body, frozen=True, tag="UNBAN"):
    """The organiser lets a banned key come again."""

    peer: bytes


class Extend(Body, frozen=True, tag="EXTEND"):
    """The organiser lets the run go on until so many rounds are committed: more than its settings,
    or an earlier EXTEND, have said. Nothing else of the settings changes."""

    rounds: int


class Member(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One peer in a PLAN; weight 0 makes it a receiver. Its address is in its JOIN record."""

    peer: bytes
    boot: bytes
    weight: int


class SliceSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Values [start, stop) of the padded vector and their first owner."""

    start: int
    stop: int
    owner: bytes


class Plan(Body, frozen=True, tag="PLAN", omit_defaults=True, cache_hash=True):
    """Facts that one op needs beforehand (protocol.md, PLAN body). What follows from it alone is
    worked out once, also where one process holds many peers: so it has a hash that is kept.

    `kind` is one of `kinds.KINDS`. Where contributions stay whole each contributor's slice is all
    that the op moves (`transfers`); partners stand side by side (`pairing`). Came later: the
    result's codec, "" for that of parts, the speed to keep pace with, a rule for the mean's place,
    its scalars, its centre's op.
    """

    op: int
    previous_outcome: bytes
    members: tuple[Member, ...]
    slices: tuple[SliceSpec, ...]
    codec: str
    exact: bool
    block: int
    chunk_values: int
    e_min: int
    e_max: int
    min_contributors: int
    deadline_s: float
    checkpoint_by: bytes
    evaluate_by: bytes
    result_codec: str = ""
    fastest_steps_per_s: float | None = None
    samples: tuple[int, ...] = ()
    """Each contributor's since its last READY, where the run counts them (`sample_weights`)."""
    rule: str = ""
    kind: str = MEAN
    scalars: str = ""
    centre: int = 0
    group: int = FIRST_GROUP
    keepers: tuple[bytes, ...] = ()
    """Members of weight 0 that keep the group's state and are not in it (K2)."""
    text: TextPlace | None = None
    """Place of the run in its text, for people; checkpoints of this op tell it, too."""
    unawaited: tuple[bytes, ...] = ()
    """Members for whom nobody waits, since the others have waited for them for too long
    (STANDING, lateness)."""
    stale: tuple[int, ...] = ()
    """Number of results since each contributor's work began, where that may be any."""
    staleness: str = ""
    """Rule by which older work weighs less (`sample_weights.STALENESS`); "" for none."""
    max_stale: int = 0
    """Results since then that there may be at most."""
    vectors: int = PAIR_VECTORS
    """Vectors of each contribution to a pair op, one after the other."""
    graph: str = ""
    """Graph along whose edges pairs meet (`kinds.GRAPHS`); "" where they are drawn."""
    losses: tuple[float, ...] = ()
    """Each contributor's mean loss since the last op, where the run has a guard (T22): -1 for who
    tells none, `limits.TOLD_LOSS_MAX` for one that is no number."""
    turns: int = 0
    """Turns of the run's subspace so far: the state after the op lies in what they have made."""
    cells: int = 1
    """Number of cells in which the members sum (`ledger.cells`)."""


class Reassign(Body, frozen=True, tag="REASSIGN", omit_defaults=True):
    """A slice gets a new owner under a new attempt; older attempts of it are void.

    `lacked` is the relieved owner's word, if the slice moves because of it: whose contribution it
    has not, and in which way (`exclusion_rule`: ``absent``, ``roots``, ``scalars``,
    ``refused:REASON``).
    """

    op: int
    slice_index: int
    attempt: int
    owner: bytes
    reason: str
    lacked: dict[bytes, str] = {}
    group: int = FIRST_GROUP


class Times(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Evidence on a peer that is left out of an op. Times are seconds after PLAN.

    Attributes:
        complete: slices whose owner had its contribution whole.
        owners: number of owners.
        last_s: time at which an owner last reported one whole; -1 for never.
        heard_s: time at which the coordinator last heard anything of the peer.
        frozen_s: time at which it was left out.
        deadline_s: time at which contributions were due.
    """

    complete: int
    owners: int
    last_s: float
    heard_s: float
    frozen_s: float
    deadline_s: float


class SignedRoot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One contributor's part of an op: the root over its slice roots, signed by it."""

    root: bytes
    signature: bytes


class Freeze(Body, frozen=True, tag="FREEZE", omit_defaults=True):
    """The contributors of the op, once and for all, and why the others are excluded.
    `excluded` holds a reason per peer: ``late``, ``lost``, ``roots``, ``refused:REASON`` of
    owners or ``withdrew:REASON`` of the peer itself; `times` the evidence; `accusers` the owners on
    whose word it is left out, where that is so. `roots` is what the contributors have signed (where
    they stay whole, the root of what each has published), `scalars` what PLAN's rule needs of them.
    In cells `roots` are in the `sheets` of the cells, which are named here by their hashes.
    """

    op: int
    contributors: tuple[bytes, ...]
    excluded: dict[bytes, str]
    times: dict[bytes, Times] = msgspec.field(default_factory=written)
    roots: dict[bytes, SignedRoot] = msgspec.field(default_factory=written)
    scalars: bytes = b""
    accusers: dict[bytes, tuple[bytes, ...]] = {}
    group: int = FIRST_GROUP
    sheets: tuple[bytes, ...] = ()


class SliceFreeze(Body, frozen=True, tag="SFREEZE", omit_defaults=True):
    """The contributors of one reassigned slice: a subset of FREEZE's. `lacked` is the new owner's
    word on those of the others who live, as in REASSIGN."""

    op: int
    slice_index: int
    attempt: int
    contributors: tuple[bytes, ...]
    lacked: dict[bytes, str] = {}
    group: int = FIRST_GROUP


class SliceOutcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One slice of a commit: the attempt that counts, whose sum it is, the root of its hashes."""

    attempt: int
    contributors: tuple[bytes, ...]
    root: bytes


class Commit(Body, frozen=True, tag="COMMIT", omit_defaults=True):
    """The op's result, named by hashes. `contributors` is FREEZE's; a slice may have fewer.

    `signatures` are the owners', one per slice, over what signed.result_payload names; in cells
    the `sheets` of the cells have them, which are named here by their hashes. Where
    contributions stay whole `contributors` are those of FREEZE's whose contributions are held (of a
    pair op, whose pairs have exchanged); the others' slices have no contributor, root or signature.
    `behind` are contributors who live and for whom it has waited in vain: they have not said that
    they hold what most have held for long or, where contributions stay whole, too few others hold
    what they gave. `late` are owners whose slices have come through long after most others.
    `waited` is for how long the others have waited for each, and `took` how long it is since the
    group's last outcome, both in milliseconds of the coordinator's clock.
    """

    op: int
    plan_hash: bytes
    contributors: tuple[bytes, ...]
    slices: tuple[SliceOutcome, ...]
    result_root: bytes
    signatures: tuple[bytes, ...] = ()
    behind: tuple[bytes, ...] = ()
    late: tuple[bytes, ...] = ()
    group: int = FIRST_GROUP
    waited: dict[bytes, int] = {}
    took: int = 0
    sheets: tuple[bytes, ...] = ()


class Skip(Body, frozen=True, tag="SKIP", omit_defaults=True):
    """The op ends without a result; nobody changes anything. `blamed` are owners for whom it has
    waited to the end: ``owner silent``, ``owner alone has it``, or ``too few have it``; `waited`
    and `took` are as in COMMIT. If too few contributors were left, `excluded` and `accusers` say of
    the others what FREEZE would."""

    op: int
    reason: str
    blamed: dict[bytes, str] = {}
    group: int = FIRST_GROUP
    waited: dict[bytes, int] = {}
    took: int = 0
    excluded: dict[bytes, str] = {}
    accusers: dict[bytes, tuple[bytes, ...]] = {}


class Attest(Body, frozen=True, tag="ATTEST", omit_defaults=True):
    """A majority of the op's live members reports this state root. Op 0 also names the shape.
    After a pair op states are each peer's own: `roots` has those of who has reported, one of them
    is `state_root`."""

    op: int
    state_root: bytes
    num_values: int = msgspec.field(default_factory=lambda: 0)
    layout: bytes = msgspec.field(default_factory=lambda: b"")
    fragments: tuple[int, ...] = msgspec.field(default_factory=lambda: ())
    roots: tuple[tuple[bytes, bytes], ...] = ()
    group: int = FIRST_GROUP


class Rewind(Body, frozen=True, tag="REWIND", omit_defaults=True):
    """The group goes back to the state after `op`: what was committed since is with nobody, or has
    made the loss leap (T22). Later outcomes and attestations are cancelled; the next PLAN is of
    `op` + 1 again."""

    op: int
    reason: str
    group: int = FIRST_GROUP
    passed_over: tuple[bytes, ...] = ()
    """Peers that had the first state, which most others did not get: another one gives it."""
    losses: dict[bytes, float] = {}
    """The guard's evidence, as in PLAN: the loss that each peer has told of the op that would have
    been planned next."""
    bound: float = 0.0
    """The loss that more than half of these are above."""
    times: int = 0
    """Number of times that the guard has gone back from about there, with this one."""


class Checkpoint(Body, frozen=True, tag="CHECKPOINT", omit_defaults=True):
    """The peer that PLAN named has written a checkpoint with this manifest."""

    op: int
    peer: bytes
    manifest_hash: bytes
    group: int = FIRST_GROUP


class BooksOfMember(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One member in BOOKS.

    Attributes:
        peer: key of the peer.
        first: stage that its span begins with.
        counted: micro-batches that it is believed to have in its gradient, by stage of its span.
        made: micro-batches that it has made as a source.
        doubted: number of others told of, which their source has not made or another member
            of the stage has counted as well.
        has_told: False if it has said nothing in time: it is in no op of the round.
        busy_s: duration of its passes, by its own word.
        compared: number of comparisons, as a source, of two routes with the same text.
        odd: number of these in which the two were at odds.
        suspect: the peer that it finds where they are at odds; b"" if nobody. Its own word.
    """

    peer: bytes
    first: int
    counted: tuple[int, ...]
    made: int
    doubted: int
    has_told: bool
    busy_s: float = 0.0
    compared: int = 0
    odd: int = 0
    suspect: bytes = b""


class Break(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Micro-batches whose gradient did not come all the way back.

    Attributes:
        above: the last member that has counted them; b"" if nobody tells of the last stage.
        stage: first stage in which they are counted; the last one is the last of the model.
        reason: reason for which their source gave them up; "" if it does not say.
        count: number of them.
    """

    above: bytes
    stage: int
    reason: str
    count: int


class Plane(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One channel of a subspace and one beside it, and by how much the first is turned towards the
    second: `step` is the tangent of half the angle, in units of 1 / `turns.UNITS`."""

    inside: int
    outside: int
    step: int


class Turn(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A subspace is turned in planes that have no channel in common, before this op of group 0."""

    op: int
    planes: tuple[Plane, ...]


class Books(Body, frozen=True, tag="BOOKS", omit_defaults=True):
    """A round of the run's stages is over: what was made of text in it, and what has become of it.
    The stages' next ops exchange what was learnt from that. In runs without stages there is none.

    Attributes:
        round: the pipeline's own number of it.
        made: micro-batches, as their sources tell.
        whole: number that all stages have counted.
        counted: number that each stage has counted.
        lost: number that their sources gave up, by reason.
        redone: number of times that one was sent to yet another receiver, by reason.
        voided: number made again because their step was void.
        members: members of the round; those with most of it, where there are too many.
        num_members: number of all members.
        breaks: places where gradients stayed; the largest, where there are too many.
        digest: SHA-256 of what all members have told.
        seconds: time from the round's begin until it was closed, by the coordinator's clock.
        waited: milliseconds for which the others' answers have waited for each member's; of those
            with most of it, where there are too many.
        turn: turn of the run's subspace, in force from the next PLAN on; None for none.
    """

    round: int
    made: int
    whole: int
    counted: tuple[int, ...]
    members: tuple[BooksOfMember, ...]
    num_members: int
    digest: bytes
    lost: dict[str, int] = {}
    redone: dict[str, int] = {}
    voided: int = 0
    breaks: tuple[Break, ...] = ()
    seconds: float = 0.0
    waited: dict[bytes, int] = {}
    turn: Turn | None = None


class Snapshot(Body, frozen=True, tag="SNAPSHOT"):
    """The fold of all records before this one has this image (`snapshots`): hash and length.
    Peers that have folded them check it; a newcomer takes the image and the records after this
    one."""

    image_hash: bytes
    num_bytes: int


AnyBody = (
    Run | Group | Join | Move | Gone | Unban | Extend | Plan | Reassign | Freeze | SliceFreeze
    | Commit | Skip | Attest | Rewind | Checkpoint | Books | Snapshot
)  # fmt: skip

_KINDS: Mapping[str, type[AnyBody]] = kinds_of(AnyBody)

T = TypeVar("T")

_OF_AN_OP = (Plan, Reassign, Freeze, SliceFreeze, Commit, Skip, Attest)
"""Bodies that name members by their places; the others are read without PLAN."""


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One link of the chain. `body` is the canonical msgpack of one Body."""

    index: int
    prev_hash: bytes
    term: int
    body: bytes
    signature: bytes

    @property
    def hash(self) -> bytes:
        """SHA-256 over everything but the signature, which is over this hash."""
        return _hash_of(self.index, self.prev_hash, self.term, self.body)

    def to_bytes(self) -> bytes:
        """Canonical msgpack."""
        return _bytes_of(self)


@lru_cache(_RECORDS_AT_HAND)
def _hash_of(index: int, prev_hash: bytes, term: int, body: bytes) -> bytes:
    return hashlib.sha256(msgpack.packb([index, prev_hash, term, body])).digest()


@lru_cache(_RECORDS_AT_HAND)
def _bytes_of(record: Record) -> bytes:
    return pack_struct(record)


Sign = Callable[[bytes], bytes]
"""Signs with one key: the run's (record hashes), or a peer's (signed.py)."""

Verify = Callable[[bytes, bytes, bytes], bool]
"""(public key, signature, data) -> whether it holds."""


def pack_struct(value: msgspec.Struct) -> bytes:
    """Canonical msgpack of any struct of this part."""
    data: bytes = msgpack.packb(msgspec.to_builtins(value, builtin_types=(bytes,)))
    return data


def make_record(
    index: int,
    prev_hash: bytes,
    term: int,
    body: Body,
    sign: Sign,
    reader: "BodyReader | None" = None,
) -> Record:
    """The next record, signed; `reader` has read those before it."""
    raw = msgspec.to_builtins(body, builtin_types=(bytes,))
    if isinstance(body, Plan):
        places = MemberIndex.among([member.peer for member in body.members])
        raw = places.shorten(raw) | {"members": raw["members"]}
    elif isinstance(body, _OF_AN_OP) and reader is not None:
        if isinstance(body, Commit) and body.sheets:
            raw["slices"] = _without(body.contributors, raw["slices"])
        raw = _places_in(reader.plan_of(body.group, body.op)).shorten(raw)
    unsigned = Record(index, prev_hash, term, msgpack.packb(raw), b"")
    return msgspec.structs.replace(unsigned, signature=sign(unsigned.hash))


@lru_cache(_RECORDS_AT_HAND)
def record_from_bytes(data: bytes) -> Record:
    """Raises RemoteFault with reason ``length``, ``msgpack`` or ``record``."""
    return _convert(unpack_limited(data), Record)


def body_of(record: Record, plan: bytes = b"") -> AnyBody:
    """The typed body; `plan` is the body of its op's PLAN record, where it is of one.

    Raises:
        RemoteFault: reason ``length``, ``msgpack`` or ``record``.
    """
    return _body_from(record.body, plan)


class BodyReader:
    """Reads the bodies of records that follow each other.

    Args:
        plans: plans of a reader that has read the records before, none before the first one.

    It remembers the newest few PLANs of each group: by these the records of an op name its members.
    """

    def __init__(self, plans: Sequence[tuple[int, int, bytes]] = ()) -> None:
        self._plans: dict[int, dict[int, bytes]] = {}
        for group, op, body in plans:
            self._plans.setdefault(group, {})[op] = body

    def plans(self) -> list[tuple[int, int, bytes]]:
        """Group, op and body of each PLAN that is remembered: another reader goes on with these."""
        return [(g, op, body) for g, plans in self._plans.items() for op, body in plans.items()]

    def plan_of(self, group: int, op: int) -> bytes:
        """Body of an op's PLAN record, b"" if it is none of the newest."""
        return self._plans.get(group, {}).get(op, b"")

    def record(self, raw: bytes) -> Record:
        """The record that was sent in these bytes, which may be short.

        Raises:
            RemoteFault: as `record_from_bytes`; or reason ``record``, it is short by a PLAN that is
                none of the newest before it.
        """
        if is_short(raw):
            short = short_from_bytes(raw)
            raw = short.lengthened(self.plan_of(short.group, short.op))
        return record_from_bytes(raw)

    def look(self, record: Record) -> AnyBody:
        """The typed body of the next record. Raises as `body_of`."""
        outline = outline_of(record)
        return body_of(record, self.plan_of(outline.group, outline.op))

    def take(self, record: Record, body: AnyBody) -> None:
        """Go on to the record after this one."""
        if isinstance(body, Plan):
            plans = self._plans.setdefault(body.group, {})
            plans.pop(body.op, None)
            plans[body.op] = record.body
            if len(plans) > _PLANS_KEPT:
                del plans[next(iter(plans))]

    def read(self, record: Record) -> AnyBody:
        """The typed body of the next record, and go on. Raises as `body_of`."""
        body = self.look(record)
        self.take(record, body)
        return body


def bodies_of(records: Iterable[Record]) -> list[AnyBody]:
    """Typed bodies of a ledger from its first record on. Raises as `body_of`."""
    reader = BodyReader()
    return [reader.read(record) for record in records]


def tag_of(kind: type[Body]) -> str:
    """Kind of a record as `outline_of` says it."""
    return str(kind.__struct_config__.tag)


class Outline(NamedTuple):
    """A record as far as it is read without any other; op -1 if it is of none."""

    kind: str
    group: int
    op: int


def outline_of(record: Record) -> Outline:
    """Kind, group and op of a record.

    Raises:
        RemoteFault: reason ``length``, ``msgpack`` or ``record``.
    """
    return _outline_from(record.body)


@lru_cache(_RECORDS_AT_HAND)
def _outline_from(data: bytes) -> Outline:
    raw = unpack_limited(data, ext_bytes_max=EXT_BYTES_MAX)
    if not isinstance(raw, dict) or not isinstance(tag := raw.get("k"), str) or tag not in _KINDS:
        raise RemoteFault("record", "a body of no known kind")
    group, op = raw.get("group", FIRST_GROUP), raw.get("op", -1)
    if type(group) is not int or type(op) is not int:
        raise RemoteFault("record", "a group or an op that is no number")
    return Outline(tag, group, op)


@lru_cache(_RECORDS_AT_HAND)
def _body_from(data: bytes, plan: bytes) -> AnyBody:
    kind = _KINDS[_outline_from(data).kind]
    raw = unpack_limited(data, ext_bytes_max=EXT_BYTES_MAX)
    if issubclass(kind, _OF_AN_OP):
        raw = _places_in(data if kind is Plan else plan).lengthen(raw)
    if kind is Commit:
        raw["slices"] = _with(raw.get("contributors"), raw.get("slices"))
    return _convert(raw, kind)


def _without(contributors: Sequence[bytes], slices: Sequence[Any]) -> list[Any]:
    """Outcomes of slices in cells, which are hundreds: None for the op's own contributors."""
    return [[one[0], None if one[1] == contributors else one[1], *one[2:]] for one in slices]


def _with(contributors: Any, slices: Any) -> Any:
    """Put the contributors of the op back in the place of None."""
    if not isinstance(slices, list):
        return slices
    short = [isinstance(one, list) and len(one) > 1 and one[1] is None for one in slices]
    return [
        [one[0], contributors, *one[2:]] if is_short else one
        for one, is_short in zip(slices, short, strict=True)
    ]


@lru_cache(16)
def _places_in(plan: bytes) -> MemberIndex:
    """The members of a PLAN's body, none where there is none."""
    if not plan:
        return NO_MEMBERS
    raw = unpack_limited(plan, ext_bytes_max=EXT_BYTES_MAX)
    members = _convert(raw.get("members"), tuple[Member, ...])
    return MemberIndex.among([member.peer for member in members])


def _convert(raw: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(raw, type=kind, builtin_types=(bytes,), str_keys=False)
    except (msgspec.ValidationError, TypeError) as exc:
        raise RemoteFault("record", str(exc)) from exc
