"""A peer's own copy of the ledger: verified record by record, folded as it grows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.kinds import WHOLE
from swarmtrain_transport.ledger.chain import Archive, Ledger
from swarmtrain_transport.ledger.fold import GroupView, LedgerView, OpView
from swarmtrain_transport.ledger.pairing import check_drawn
from swarmtrain_transport.ledger.plan_rules import (
    check_centre,
    check_plan,
    check_stale,
    values_of,
    vectors_in,
)
from swarmtrain_transport.ledger.signed_roots import is_signature, result_payload
from swarmtrain_transport.ledger.snapshots import Snapshots, become, from_image
from swarmtrain_transport.ledger.transfers import NOTHING_SUMMED
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Image
from swarmtrain_transport.wire.records import (
    AnyBody,
    BodyReader,
    Freeze,
    Join,
    Plan,
    Record,
    Run,
    Snapshot,
    Verify,
    record_from_bytes,
)
from swarmtrain_transport.wire.short_records import is_short, short_from_bytes

_LOOKED_AT = 64
"""Records of the past that are folded in one go."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The SNAPSHOT that a copy begins with where it has a gap.

    Attributes:
        run: record 0.
        snapshot: the record.
        image: bytes that the SNAPSHOT names.
        oldest: the oldest record that is here without a gap up to the head.
        known: index and hash of the newest record that is here before the gap.
    """

    run: Record
    snapshot: Record
    image: bytes
    oldest: Record
    known: tuple[int, bytes]


def ranges_of(records: Iterable[Record]) -> list[tuple[int, int]]:
    """First and stop of each stretch of records that have no gap between them."""
    found: list[tuple[int, int]] = []
    for record in records:
        if found and found[-1][1] == record.index:
            found[-1] = (found[-1][0], record.index + 1)
        else:
            found.append((record.index, record.index + 1))
    return found


def beginning_of(
    kept: tuple[bytes, bytes, bytes],
    ranges: Sequence[tuple[int, int]],
    read: Callable[[int, int], Sequence[Record]],
) -> Beginning | None:
    """Find where a copy begins whose disk has a gap; None if what is there is not enough.

    Args:
        kept: record 0, a SNAPSHOT and its image.
        ranges: records that the disk has, as pairs of first and stop.
        read: reads records from one index up to another.
    """
    try:
        run, snapshot = map(record_from_bytes, kept[:2])
    except RemoteFault:
        return None
    last = ranges[-1]
    if len(ranges) != 2 or not last[0] <= snapshot.index < last[1]:
        return None
    (newest,) = read(ranges[-2][1] - 1, ranges[-2][1])
    (oldest,) = read(last[0], last[0] + 1)
    return Beginning(run, snapshot, kept[2], oldest, (newest.index, newest.hash))


class LedgerCopy:
    """Chain and fold together.

    Args:
        verify: signature check.
        records: the copy of an earlier life; after the SNAPSHOT that it begins with, if it does.
        archive: store of older records, None to keep all in memory.
        begins: the SNAPSHOT that it begins with.
        me: peer whose copy it is, b"" if it is nobody's.

    Attributes:
        joined: newest JOIN of that peer that was folded here, b"" before one.

    Raises:
        RemoteFault: the records are not a legal chain.
    """

    def __init__(
        self,
        verify: Verify,
        records: Iterable[Record],
        archive: Archive | None = None,
        begins: Beginning | None = None,
        *,
        me: PeerId = b"",
    ) -> None:
        self._verify, self._archive, self._me = verify, archive, me
        self.joined = b""
        self.ledger = Ledger(verify, archive)
        self.view = LedgerView()
        self._snapshots = Snapshots(self.ledger, self.view)
        self._past: LedgerCopy | None = None
        self._past_stop = 0
        self._image = bytearray()
        self._image_records: tuple[bytes, ...] = ()
        if begins is not None:
            self._begin(begins.run, begins.snapshot, begins.image, begins.known)
            self.ledger.hold_from(begins.oldest, begins.known)
        for record in records:
            self._note(record, self.ledger.append(record, self._snapshots.apply))
            self.ledger.trim()

    def _note(self, record: Record, body: AnyBody) -> None:
        """Remember a JOIN of ours, which outlives the records that we may free."""
        if isinstance(body, Join) and body.peer == self._me:
            self.joined = record.to_bytes()

    def take(self, raw: bytes) -> tuple[Record, AnyBody] | None:
        """The next record, or None for one that is here already.

        Raises:
            RemoteFault: it is not the next link, contradicts the ledger, or plans what is illegal.
        """
        ledger = self.ledger
        if is_short(raw) and short_from_bytes(raw).number <= ledger.head_index:
            return None  # the PLAN that it needs may be forgotten
        record = ledger.reader.record(raw)
        if record.index <= ledger.head_index:
            return None
        body = ledger.append(record, self._judge)
        self._note(record, body)
        return record, body

    def take_piece(self, piece: Image) -> tuple[Record, Record, bytes] | None:
        """A piece of an image. With the last one the copy begins with it: record 0, the SNAPSHOT
        that names it, and the image; None before.

        Raises:
            RemoteFault: reason ``snapshot``: it is not the next piece, or the image is too large;
                and as `begin_with`.
        """
        is_next = piece.offset == len(self._image) < piece.num_bytes
        if not is_next or piece.num_bytes > limits.IMAGE_BYTES_MAX:
            raise RemoteFault("snapshot", f"a piece at {piece.offset} of {piece.num_bytes}")
        if not piece.offset:
            self._image_records = piece.records
        self._image += piece.data
        if len(self._image) < piece.num_bytes:
            return None
        image = bytes(self._image)
        self.forget_pieces()
        run, snapshot = self.begin_with(self._image_records, image)
        return run, snapshot, image

    def forget_pieces(self) -> None:
        """No more pieces follow those that came: they were of an older connection."""
        self._image.clear()

    def begin_with(self, raw: Sequence[bytes], image: bytes) -> Sequence[Record]:
        """Begin with a SNAPSHOT instead of the records that lead to it: record 0 and it.

        Args:
            raw: record 0 and the SNAPSHOT.
            image: bytes that the SNAPSHOT names.

        Raises:
            RemoteFault: they are not signed, do not belong together, or are not ahead; nothing is
                kept then.
        """
        if len(raw) != len(("RUN", "SNAPSHOT")):
            raise RemoteFault("snapshot", f"{len(raw)} records beside an image")
        run, snapshot = map(record_from_bytes, raw)
        ledger = self.ledger
        if snapshot.index <= ledger.head_index:
            raise RemoteFault("snapshot", f"SNAPSHOT {snapshot.index} is not ahead")
        if ledger.run_record is not None and run.hash != ledger.run_record.hash:
            raise RemoteFault("snapshot", "the image is of another run")
        self._begin(run, snapshot, image, (ledger.head_index, ledger.head_hash))
        return run, snapshot

    def _begin(self, run: Record, snapshot: Record, image: bytes, known: tuple[int, bytes]) -> None:
        def judge(first: Run, named: Snapshot) -> BodyReader:
            if named != Snapshot(content_hash(image), len(image)):
                raise RemoteFault("snapshot", "the image is not the one that SNAPSHOT names")
            view, reader = from_image(image)
            if view.run != first or view.run_tag != int.from_bytes(run.hash[:8], "little"):
                raise RemoteFault("snapshot", "the image is of another run")
            become(self.view, view)
            return reader

        self.ledger.begin_at(run, snapshot, judge, known)
        self._snapshots.begin(snapshot, image)
        self._past = LedgerCopy(self._verify, (), self._archive)
        self._past_stop = snapshot.index + 1

    def prepend(self, raw: Sequence[bytes]) -> Sequence[Record]:
        """Take records that end where ours begin; those that were not here yet.

        Raises:
            RemoteFault: reason ``chain``: they do not lead to ours; ``snapshot``: they do, and not
                to what was here before the gap.
        """
        return self.ledger.prepend([record_from_bytes(one) for one in raw])

    @property
    def looks_back(self) -> bool:
        """True if the way to the SNAPSHOT that this copy began with is here and not folded yet."""
        return self._past is not None and not self.ledger.first

    def look_back(self) -> None:
        """Fold some more of that way, and at its end the SNAPSHOT.

        Raises:
            RemoteFault: it does not lead to what the SNAPSHOT names.
        """
        assert self._past is not None
        ledger = self._past.ledger
        stop = min(len(ledger) + _LOOKED_AT, self._past_stop)
        for record in self.ledger.since(len(ledger), stop):
            ledger.append(record, self._past._judge)
        ledger.trim()
        if len(ledger) == self._past_stop:
            self._past = None

    def forget_past(self) -> tuple[Record, Record, bytes] | None:
        """Hold nothing that came before the newest SNAPSHOT: record 0, that record and its image;
        None if there is nothing to forget."""
        snapshot, run = self._snapshots.record, self.ledger.run_record
        if snapshot is None or run is None or self.ledger.first >= snapshot.index:
            return None
        self.ledger.hold_from(snapshot, (0, run.hash))
        self._past = None
        return run, snapshot, self._snapshots.image

    def _judge(self, record: Record, body: AnyBody) -> None:
        """Fold a legal link. A record that is refused is not kept, so it is refused again."""
        if isinstance(body, Plan):
            self._check_plan(self.view.group_of(body), body)
        elif isinstance(body, Freeze):
            for op in self.view.group_of(body).ops.values():
                if op.plan.op == body.op:
                    check_given(op, body, self._verify)
        self._snapshots.apply(record, body)

    @staticmethod
    def _check_plan(group: GroupView, plan: Plan) -> None:
        if group.genesis is None:
            return
        keepers = set(plan.keepers) & group.keepers.keys()
        if not all(m.peer in group.members or m.peer in keepers for m in plan.members):
            raise RemoteFault("plan", f"op {plan.op}: a member is not in the group")
        check_plan(plan, values_of(group.genesis, plan.op, max(1, plan.block), vectors_in(plan)))
        before = group.op.plan if group.op is not None else None
        check_drawn(group.tag, before, plan, group.standing.apart(plan.op))
        check_centre(group, plan)
        check_stale(group, plan)


def check_given(view: OpView, freeze: Freeze, verify: Verify) -> None:
    """Check that FREEZE of contributions that stay whole names signed roots: a coordinator cannot
    make one up. (Of a mean op the auditor and its proof look at that.)

    Raises:
        RemoteFault: reason ``signature``.
    """
    if view.plan.kind not in WHOLE:
        return
    for peer, given in freeze.roots.items():
        index = view.owners.index(peer) if peer in view.owners else -1
        payload = result_payload(view.plan_hash, max(0, index), 0, given.root, NOTHING_SUMMED)
        is_signed = is_signature(given.signature) and verify(peer, given.signature, payload)
        if index < 0 or not is_signed:
            raise RemoteFault("signature", "FREEZE names what its contributor has not signed")
