"""Control messages as typed structs. msgpack on the wire, limits before parsing, types after.

Peer to coordinator messages are monotone and idempotent: each may be repeated or re-sent in full
after HELLO without changing what the coordinator knows (protocol.md part 2, MESSAGES).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_args

import msgpack
import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.wire.unpacking import check_values, unpack_limited, unpack_weighed

_DETAIL_CHARS_MAX = 200

_SHORT_MAP, _SHORT_LIST, _LONG_MAP, _SHORT_TEXT = b"\x80", b"\x90", b"\xde", 0xA0
"""Heads of msgpack; the length of a short text is added to its head."""

FIRST_GROUP = 0
"""Group that begins with RUN, and that every peer is in until MOVE says otherwise. Messages and
records leave it out, so a run of one group has the bytes that it would have without groups."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t"):
    """Base of all control messages; the field ``t`` names the type."""


def written() -> dict[Any, Any]:
    """An empty dict that is on the wire even where defaults are left out."""
    return {}


# ---- at the door (the shell's part, before any machine hears of the peer)


class Challenge(Message, frozen=True, tag="challenge"):
    """Coordinator's first words: a nonce to sign and the protocol versions it speaks."""

    nonce: bytes
    versions: tuple[int, ...]


class Knock(Message, frozen=True, tag="knock"):
    """Peer's answer: who it is and why it may come in.

    `hello` is an encoded Hello. `signature` is by `peer_id` over the ASCII text
    ``swarmtrain knock 1``, the SHA-256 of the nonce, that of the coordinator's certificate, and
    `hello` (identity.knock_payload).
    `token` is the invite's secret, or b"" from a peer that is already a member.
    """

    version: int
    peer_id: bytes
    token: bytes
    hello: bytes
    signature: bytes


# ---- peer to coordinator


BUILT_IN = "built-in"
OWN = "own"
RELAY = "relay"
LEASED = "leased"


class Brings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A peer's run, model, data and machine, as far as it says; empty is unsaid. A mistake is
    noticed at the door, not in a round. It is no defence: whoever means harm says what fits.

    Attributes:
        run: the name in its invite.
        model: BUILT_IN, to be made as the run file says, or OWN; RELAY for a process that is no
            member, and only passes bytes on.
        layout: digest of an own model's names, shapes and dtypes.
        num_values: number of an own model's trainable parameters.
        data: LEASED or OWN.
        span: first and last stage that it wishes to serve.
        memory_bytes: memory that its process may take.
        flops_per_s: speed of its processor.
        disk_bytes: room on its disk for states that it keeps for others.
    """

    run: str = ""
    model: str = ""
    layout: bytes = b""
    num_values: int = 0
    data: str = ""
    span: tuple[int, ...] = ()
    memory_bytes: int = 0
    flops_per_s: int = 0
    disk_bytes: int = 0


UNSAID = Brings()


class Hello(Message, frozen=True, tag="hello", omit_defaults=True):
    """First message of every connection; the shell has checked its signature and invite.

    head_index and head_hash are the newest ledger record held (-1 and b"" for none), `states` the
    newest state of each group of which one is held, in place or on the disk. A process that has
    just begun may be given the newest SNAPSHOT in the place of records (takes_image). `joined` is
    the peer's newest JOIN record: it proves to a coordinator without its ledger that it was let in.
    """

    boot: bytes
    name: str
    curve_key: bytes
    host: str
    port: int
    head_index: int
    head_hash: bytes
    retain_bytes: int
    up_bytes_per_s: int = 0
    down_bytes_per_s: int = 0
    brings: Brings = UNSAID
    states: tuple["Applied", ...] = ()
    takes_image: bool = False
    joined: bytes = b""


class Offer(Message, frozen=True, tag="offer", omit_defaults=True):
    """Op 0: the first peer's own state, for a run that has none.

    Op n moves fragment (n - 1) mod their number; without fragments it moves the whole vector. A
    fragment that is alone may be shorter than that.
    """

    state_root: bytes
    num_values: int
    layout: bytes
    fragments: tuple[int, ...] = msgspec.field(default_factory=lambda: ())
    group: int = FIRST_GROUP


class Ready(Message, frozen=True, tag="ready", omit_defaults=True):
    """The inner steps of `op` are done; samples are those since the last READY. The speed is told
    by peers that keep pace with each other, and whether the centre is here where a rule has one;
    `since`, the op of the anchor that the work began from, where that may be an older one. In a run
    with a guard (T22) also the mean loss of the inner steps, and the oldest op to whose state the
    peer can go back by itself, -1 for none."""

    op: int
    samples: int
    applied_op: int
    state_root: bytes
    steps_per_s: float | None = None
    has_centre: bool = False
    group: int = FIRST_GROUP
    since: int = -1
    loss: float | None = None
    pinned: int = -1


class Roots(Message, frozen=True, tag="roots", omit_defaults=True):
    """Contributor: all of its contribution is encoded, and this is what it is.

    A slice root per slice of the plan; the signature is over the root above them (signed.py). The
    squared norm per slice is told where the plan asks for scalars (scalars.py).
    """

    plan_id: int
    slice_roots: tuple[bytes, ...]
    signature: bytes
    norms: tuple[float, ...] = ()


class Got(Message, frozen=True, tag="got", omit_defaults=True):
    """Owner: these contributors are complete and valid for (slice, attempt), each with the slice
    root of what has come. `scalars` are rows of those who became so since it was last said, and of
    all after HELLO (scalars.py). `lacks` are cells whose sums should have come (rule 8)."""

    plan_id: int
    slice_index: int
    attempt: int
    complete: dict[bytes, bytes]
    refused: dict[bytes, str] = msgspec.field(default_factory=written)
    scalars: dict[bytes, bytes] = {}
    lacks: tuple[int, ...] = ()


class SliceDone(Message, frozen=True, tag="slice_done", omit_defaults=True):
    """Owner: the result of (slice, attempt) over the named set is published.

    `inputs` stands for the parts that are in it, the signature for all of it (signed_roots.py). In
    cells `sums` are the roots of the sums that it is made of and of those that its owner has given
    (cell_sums.py).
    """

    plan_id: int
    slice_index: int
    attempt: int
    set_id: int
    chunk_hashes: tuple[bytes, ...]
    inputs: bytes
    signature: bytes
    sums: tuple[bytes, ...] = ()


class HaveRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The fields of HAVE that differ from slice to slice."""

    slice_index: int
    attempt: int
    set_id: int
    chunks: tuple[bool, ...]
    root: bytes


class Have(Message, frozen=True, tag="have", omit_defaults=True):
    """Receiver: these result chunks of (slice, attempt) are here and verified. Before HASHES has
    named them it says by their slice root what they are, and counts if the owner publishes that.
    `more` says as much of other slices of the op, where there are hundreds.
    """

    plan_id: int
    slice_index: int
    attempt: int
    set_id: int
    chunks: tuple[bool, ...]
    root: bytes = b""
    more: tuple[HaveRow, ...] = ()


class Withdraw(Message, frozen=True, tag="withdraw"):
    """Contributor: my own values cannot be sent (reason ``nonfinite`` or ``above-window``)."""

    plan_id: int
    reason: str


class Applied(Message, frozen=True, tag="applied", omit_defaults=True):
    """The state after `op` is in place here and has this root; `chain` is what our chain ends with
    since this op, b"" if we have exchanged nothing with a partner in it."""

    op: int
    state_root: bytes
    chain: bytes = b""
    group: int = FIRST_GROUP


class Kept(Message, frozen=True, tag="kept", omit_defaults=True):
    """Keeper: the state after `op` of a group that we are not in is on our disk (-1 for none), or
    there is no room for it."""

    op: int
    has_room: bool = True
    group: int = FIRST_GROUP


class Stranded(Message, frozen=True, tag="stranded", omit_defaults=True):
    """The committed result of `op` is with nobody that this peer can reach."""

    op: int
    group: int = FIRST_GROUP


class History(Message, frozen=True, tag="history"):
    """Answer to TELL: consecutive ledger records that the coordinator has lost; from a later index
    on, and none, where the older ones have not come here yet."""

    first_index: int
    records: tuple[bytes, ...]


class Older(Message, frozen=True, tag="older"):
    """Ask for the ledger records before this index: the newest of them, as many as fit."""

    stop: int


class Gauged(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Squared norm and cosine of each contribution in a chunk of an owner's slice (gauges.py)."""

    op: int
    plan_id: int
    slice_index: int
    seen: dict[bytes, tuple[float, float]]


PAUSED = "paused"
"""The phase in PROGRESS of a peer that its owner has paused: nobody waits for its READY."""


class Progress(Message, frozen=True, tag="progress", omit_defaults=True):
    """Every two seconds. `index` acknowledges records, the rates size slices (0 until something
    was measured; never above the peer's own caps), `holds_from` is the oldest record held without a
    gap up to it, `state_bytes` of states that this process has downloaded, `unreached`
    are peers to which no connection could be made for long, the rest is shown."""

    index: int
    bytes_in: int
    bytes_out: int
    phase: str
    step: int = 0
    loss: float = 0.0
    tokens_per_s: float = 0.0
    tokens: int = 0
    control_bytes_in: int = 0
    control_bytes_out: int = 0
    replayed_ops: int = 0
    up_bytes_per_s: int = 0
    down_bytes_per_s: int = 0
    gauged: Gauged | None = None
    holds_from: int = 0
    state_bytes: int = 0
    unreached: tuple[bytes, ...] = ()


class CheckpointWritten(Message, frozen=True, tag="checkpoint", omit_defaults=True):
    """The peer that PLAN named has written the checkpoint of `op`."""

    op: int
    manifest_hash: bytes
    group: int = FIRST_GROUP


class Evaluated(Message, frozen=True, tag="evaluated", omit_defaults=True):
    """Validation loss of the shared state after `op`, in nats per byte (or token)."""

    op: int
    loss: float
    group: int = FIRST_GROUP


class Accuse(Message, frozen=True, tag="accuse", omit_defaults=True):
    """A wrong sum in `op`: the drawn auditor has found it, or a member has checked the proof with
    this hash."""

    op: int
    proof_hash: bytes
    group: int = FIRST_GROUP


class Leased(NamedTuple):
    """A piece of text, and how often it was used when it was leased."""

    piece: bytes
    turn: int


class LeaseRequest(Message, frozen=True, tag="lease_request", omit_defaults=True):
    """Ask for pieces of the training text beside those that are still `held`; those that are `done`
    were read to their ends. A leaving peer asks for none."""

    count: int
    held: tuple[Leased, ...] = ()
    done: tuple[Leased, ...] = ()


class PipelineReport(Message, frozen=True, tag="pipeline_report"):
    """A peer of a pipeline reports: its report of this number, and the newest order that it has
    heard (`pipeline.wire.control`)."""

    number: int
    heard: int
    body: bytes


class Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An address at which a peer listens.

    Attributes:
        kind: ``lan``, an address of the machine itself; ``mapped``, a port that the router was
            asked to forward; ``told``, one that the owner names.
        host: IP address, see `link.is_dialable`.
        port: TCP port.
    """

    kind: str
    host: str
    port: int


class Places(Message, frozen=True, tag="places"):
    """All addresses at which a peer listens, as of now: after every HELLO, and when they change."""

    places: tuple[Place, ...]


LOST = "lost"
"""Reason in a MET of whose end of a connection, by which a way stood, has ended."""


class Met(Message, frozen=True, tag="met", omit_defaults=True):
    """The outcome of one side's part of a meeting: the sender has a connection to the receiver that
    proved its key (`is_up`), or this side could not do its part, or what stood is gone. After HELLO
    a sender says so again of all that stands, with the receiver and the way: a restarted
    coordinator knows of none. A sender whose plain connection stands answers MEET with ``dialled``
    as the way, and does nothing; one whose plain connection has ended and is not back at once says
    so with the receiver, and no token."""

    token: bytes
    is_up: bool
    reason: str = ""
    peer: bytes = b""
    way: str = ""


class Carrying(Message, frozen=True, tag="carrying"):
    """A peer, or a process that does nothing else, relays for others: at this port, at most so many
    bytes a second both ways together, and so many more today (-1 without a limit)."""

    port: int
    bytes_per_s: int
    bytes_left: int


class Carried(Message, frozen=True, tag="carried"):
    """A relay has moved so many bytes, both ways together, since it last said so of this token; 0
    at first, as the answer to CARRY: it is ready for the two."""

    token: bytes
    num_bytes: int
    is_over: bool


class Leaving(Message, frozen=True, tag="leaving"):
    """This peer says LEAVE when RELEASED comes: until then it may alone hold the newest state."""


class Leave(Message, frozen=True, tag="leave"):
    """This peer goes on purpose."""

    reason: str = "asked"


# ---- coordinator to peer


class Welcome(Message, frozen=True, tag="welcome", omit_defaults=True):
    """Answer to HELLO. `run` is the run file's canonical msgpack, hashed in the RUN record; `why`
    says to a newcomer in words why it serves the stages that MOVE gives it; `seen` is the address
    that it comes from."""

    term: int
    run_id: str
    run_key: bytes
    run: bytes
    now_index: int
    why: str = ""
    seen: str = ""


class Tell(Message, frozen=True, tag="tell"):
    """Ask a peer for records: for all from `first_index` on, where its HELLO names a newer one than
    a coordinator restored from a backup has; or for that one `alone`, to show that it holds it."""

    first_index: int
    alone: bool = False


class Keep(Message, frozen=True, tag="keep"):
    """Says which of the ledger's older records a peer is to hold: all of them (`all`), so it asks
    for what it lacks; or those that it has; or none that came before the newest SNAPSHOT
    (`frees`)."""

    all: bool
    frees: bool = False


class Records(Message, frozen=True, tag="records"):
    """Consecutive ledger records, oldest first, each as its canonical bytes."""

    first_index: int
    records: tuple[bytes, ...]


class Image(Message, frozen=True, tag="image"):
    """A piece of the image that the newest SNAPSHOT names, for a newcomer. The first piece brings
    record 0 and that record."""

    num_bytes: int
    offset: int
    data: bytes
    records: tuple[bytes, ...] = ()


class HashesRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The fields of HASHES that differ from slice to slice."""

    slice_index: int
    attempt: int
    set_id: int
    chunk_hashes: tuple[bytes, ...]


class Hashes(Message, frozen=True, tag="hashes", omit_defaults=True):
    """Relayed when SLICE_DONE is accepted, so that anybody may serve the chunks. `more` are those
    of other slices of the op, where there are hundreds."""

    plan_id: int
    slice_index: int
    attempt: int
    set_id: int
    chunk_hashes: tuple[bytes, ...]
    more: tuple[HashesRow, ...] = ()


class Sheet(Message, frozen=True, tag="sheet", omit_defaults=True):
    """The sheet of the peer's cell that a FREEZE or COMMIT of `op` names by its hash (`sheets`),
    after that record. It counts for nothing unless its hash is there. The drawn auditor gets with
    that of COMMIT what the owner that is looked at has signed: inputs, and `sums`."""

    op: int
    data: bytes
    group: int = FIRST_GROUP
    made: tuple[bytes, ...] = ()


class Accused(Message, frozen=True, tag="accused", omit_defaults=True):
    """The drawn auditor of `op` says that it holds this proof; whoever can, checks it."""

    op: int
    proof_hash: bytes
    group: int = FIRST_GROUP


class LeaseGrant(Message, frozen=True, tag="lease_grant", omit_defaults=True):
    """Pieces of text by content hash: all that the peer holds from now on, and the validation
    pieces, which are the same for everybody of a model. Where there are experts, also the router
    that has parted the text."""

    train: tuple[Leased, ...]
    validation: tuple[bytes, ...]
    router: bytes = b""


class Waiting(Message, frozen=True, tag="waiting", omit_defaults=True):
    """The run stands still until this is there: words for people, "" once it goes on. `seen_s` is
    how many seconds ago somebody was here who had it."""

    text: str
    seen_s: float | None = None


class StandsBy(Message, frozen=True, tag="stands-by"):
    """Addresses, as ``(host, port)``, of coordinators that take over when this one is gone. They
    show the same certificate."""

    places: tuple[tuple[str, int], ...]


class Unreached(Message, frozen=True, tag="unreached"):
    """Number of other peers that cannot open a connection to this one's address, and True if the
    coordinator could not; 0 and False once it can be reached."""

    host: str
    port: int
    peers: int
    by_coordinator: bool = False


class Tried(Message, frozen=True, tag="tried"):
    """The coordinator has tried to open a connection to a mapped address of this peer's."""

    host: str
    port: int
    is_open: bool


class Meet(Message, frozen=True, tag="meet", omit_defaults=True):
    """Do this side's part of a meeting: a connection by which one peer sends to another.

    Attributes:
        token: 32 bytes that both sides, and nobody else but a relay, are given, for one connection.
        peer: the other side.
        sends: True for the side that will send.
        way: name of the way, see `links.ways.Way`.
        host: address to dial; "" is the coordinator's own.
        port: port at that address; 0 for a side that is dialled, or that shows the coordinator a
            fresh port, whose outside the other side is then told.
    """

    token: bytes
    peer: bytes
    sends: bool
    way: str
    host: str = ""
    port: int = 0


class Listens(Message, frozen=True, tag="listens"):
    """IP address and port at which each of these peers listens: as soon as both are here, and when
    it changes. Who cannot dial an address is not told it."""

    at: dict[bytes, tuple[str, int]]


class Part(Message, frozen=True, tag="part"):
    """Give up the meeting of this token, and the connection that it made."""

    token: bytes


class Carry(Message, frozen=True, tag="carry"):
    """To a relay: join the two connections that bring this token, both within seconds."""

    token: bytes


class Finished(Message, frozen=True, tag="finished", omit_defaults=True):
    """The run's last op is committed; apply it, save, leave. `loss` is that of the validation text
    after it, where somebody has measured it."""

    op: int
    loss: float | None = None
    group: int = FIRST_GROUP


class Released(Message, frozen=True, tag="released"):
    """Answer to LEAVING: nobody who stays needs what this peer holds."""


class PipelineOrder(Message, frozen=True, tag="pipeline_order"):
    """The coordinator's order of this number to a peer of a pipeline, and the newest report that it
    has heard."""

    number: int
    heard: int
    body: bytes


class Refused(Message, frozen=True, tag="refused"):
    """The coordinator will not go on with this peer. `code` is an error id, text is shown."""

    code: str
    text: str


PeerMessage = (
    Knock | Hello | Offer | Ready | Roots | Got | SliceDone | Have | Withdraw | Applied
    | Kept | Stranded | Accuse | History | Older | Progress | CheckpointWritten | Evaluated
    | LeaseRequest | PipelineReport | Places | Met | Carrying | Carried | Leaving | Leave
)  # fmt: skip
CoordinatorMessage = (
    Challenge | Welcome | Tell | Keep | Records | Image | Hashes | Sheet | Accused | LeaseGrant
    | Waiting | StandsBy | Unreached | Tried | Listens | Meet | Part | Carry | Finished | Released
    | PipelineOrder | Refused
)  # fmt: skip


def kinds_of(union: Any) -> dict[Any, Any]:
    """The tagged structs of a union by their tags.

    msgspec works out a union anew at every call, which costs twenty times what the message does;
    of a struct it remembers what it has worked out.
    """
    return {kind.__struct_config__.tag: kind for kind in get_args(union)}


_FROM_PEER: Mapping[str, type[PeerMessage]] = kinds_of(PeerMessage)
_FROM_COORDINATOR: Mapping[str, type[CoordinatorMessage]] = kinds_of(CoordinatorMessage)

T = TypeVar("T")

OfSlice = TypeVar("OfSlice", Have, Hashes)


def joined(said: Sequence[OfSlice]) -> OfSlice:
    """Join what is said of slices of one op; none of it is joined already."""
    first, *others = said
    row = HaveRow if isinstance(first, Have) else HashesRow
    fields = row.__struct_fields__
    rows = tuple(row(*(getattr(one, name) for name in fields)) for one in others)
    return msgspec.structs.replace(first, more=rows) if rows else first


def each_of(said: OfSlice) -> Iterator[OfSlice]:
    """Iterate over what is said of several slices, one by one."""
    yield said if not said.more else msgspec.structs.replace(said, more=())
    for row in said.more:
        yield type(said)(said.plan_id, *(getattr(row, name) for name in row.__struct_fields__))


def encode(message: Message) -> bytes:
    """The message as msgpack, through the type's own fields.

    Raises:
        LocalFault: longer than the control limit.
    """
    data: bytes = msgpack.packb(msgspec.to_builtins(message, builtin_types=(bytes,)))
    if len(data) > limits.CONTROL_BYTES_MAX:
        raise LocalFault(f"{type(message).__name__} of {len(data)} bytes is over the limit")
    return data


BYTES_MAX: Mapping[str, int] = {
    "knock": limits.KNOCK_BYTES_MAX,
    "hello": limits.KNOCK_BYTES_MAX,
    "offer": limits.LISTING_BYTES_MAX,
    "roots": limits.LISTING_BYTES_MAX,
    "progress": limits.LISTING_BYTES_MAX,
    "got": limits.GOT_BYTES_MAX,
    "lease_request": limits.LEASES_BYTES_MAX,
    "slice_done": limits.CONTROL_BYTES_MAX,
    "have": limits.CONTROL_BYTES_MAX,
    "history": limits.CONTROL_BYTES_MAX,
    "pipeline_report": limits.REPORT_BYTES_MAX + limits.WORD_BYTES_MAX,
}
"""Largest message of each kind that a peer says; of all others WORD_BYTES_MAX."""


class Weight(NamedTuple):
    """A peer's message before it is decoded.

    Attributes:
        kind: tag of the message.
        cost: bytes of the message, or what its values take to decode where that is more.
    """

    kind: str
    cost: int


def weigh(data: bytes) -> Weight:
    """Read a peer's message as far as says what it would cost to decode it.

    Raises:
        RemoteFault: reason ``type``, it does not begin with its kind; ``length``, it is larger than
            its kind is, or has more values than bytes of that size make sense of; ``msgpack``.
    """
    kind = _kind_of(data)
    if len(data) > BYTES_MAX.get(kind, limits.WORD_BYTES_MAX):
        raise RemoteFault("length", f"{kind} of {len(data)} bytes")
    if len(data) <= limits.UNCOUNTED_BYTES:
        return Weight(kind, len(data))
    return Weight(kind, max(len(data), limits.VALUE_COST_BYTES * check_values(data)))


def _kind_of(data: bytes) -> str:
    """The tag, which comes first in the map that a message is."""
    start = 3 if data[:1] == _LONG_MAP else 1
    is_map = start == 3 or _SHORT_MAP <= data[:1] < _SHORT_LIST
    name, length = data[start : start + 2], data[start + 2 : start + 3]
    if is_map and name == b"\xa1t" and length:
        start, size = start + 3, length[0] - _SHORT_TEXT
        kind = data[start : start + max(0, size)].decode("ascii", "replace")
        if kind in _FROM_PEER:
            return kind
    raise RemoteFault("type", "no message of this protocol, or not in this direction")


def decode_from_peer(data: bytes) -> PeerMessage:
    """A peer's message, checked into its type.

    Raises:
        RemoteFault: reason ``length``, ``msgpack`` or ``type``.
    """
    weigh(data)
    return decode_weighed(data)


def decode_weighed(data: bytes) -> PeerMessage:
    """Decode a message that `weigh` has taken."""
    return _convert(unpack_weighed(data), _FROM_PEER)


def decode_from_coordinator(data: bytes) -> CoordinatorMessage:
    """The coordinator's message, checked into its type. Raises as `decode_from_peer`."""
    return _convert(unpack_limited(data), _FROM_COORDINATOR)


def _convert(raw: Any, kinds: Mapping[str, type[T]]) -> T:
    try:
        kind = kinds.get(raw["t"]) if isinstance(raw, dict) and "t" in raw else None
        if kind is None:
            raise RemoteFault("type", "no message of this protocol, or not in this direction")
        return msgspec.convert(raw, type=kind, builtin_types=(bytes,))
    except (msgspec.ValidationError, TypeError) as exc:
        # The text may quote the other side: cut it, and let nothing steer a terminal.
        raise RemoteFault("type", ascii(str(exc)[:_DETAIL_CHARS_MAX])[1:-1]) from exc
