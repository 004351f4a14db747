"""A keeper: one group's state, kept for others on this peer's disk (protocol.md, KEEPERS).

It keeps an attested snapshot and the committed results after it, each by its hash, and serves them
like any holder. It takes part in ops as one who takes results alone: COMMIT waits for it. The
snapshot is taken anew before the results after it are too many. Nothing is computed here, so the
state may be of a model that this peer could not hold in memory.
"""

import math
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence

import msgpack

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Arithmetic, Buffer
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.manifest import StateManifest, StateSync
from swarmtrain_transport.blocks.retention import Retention
from swarmtrain_transport.blocks.shelf import Shelf, Shelved
from swarmtrain_transport.blocks.state_download import Download
from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import LedgerView, OfGroup
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.group import Actions, GroupPart
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.frames import Frame, FrameKind, Wanted
from swarmtrain_transport.wire.messages import Applied, Kept
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Plan,
    Reassign,
    Rewind,
    Sign,
    Skip,
    SliceFreeze,
)

_RENEWED_AFTER = limits.RESULT_KEEP_OPS // 2
"""Results after a snapshot from which on a newer one is taken."""

_BLOB, _RESULT = ".blob", ".result"


class Pieces(MutableMapping[bytes, Buffer]):
    """Verified blobs of one group on a shelf, by hash.

    Args:
        shelf: the disk.
        group: number of the group.

    Attributes:
        is_full: True if something could not be kept.
        pinned: blobs that must stay, whatever else is taken.
    """

    def __init__(self, shelf: Shelf, group: int) -> None:
        self.is_full = False
        self.pinned: frozenset[bytes] = frozenset()
        self._shelf, self._prefix = shelf, f"{group}/"
        self._verified: set[bytes] = set()
        self._unchecked = list(self)

    def check_some(self, num_bytes: int) -> bool:
        """Check what an earlier life has left, about so many bytes of it: others wait meanwhile.
        Return True if there is nothing left to check."""
        while self._unchecked and num_bytes > 0:
            digest = self._unchecked.pop()
            num_bytes -= self._shelf.size(self.name(digest)) or 0
            if digest not in self:
                del self[digest]
        return not self._unchecked

    def name(self, digest: bytes) -> str:
        """Name of a blob on the shelf."""
        return f"{self._prefix}{digest.hex()}{_BLOB}"

    def __contains__(self, digest: object) -> bool:
        """True if the blob is here. A blob of an earlier life is checked once."""
        if not isinstance(digest, bytes) or digest in self._verified:
            return digest in self._verified
        try:
            size = self._shelf.size(self.name(digest))
            is_here = (
                size is not None and content_hash(self._shelf.get(self.name(digest))) == digest
            )
        except OSError:
            return False
        if is_here:
            self._verified.add(digest)
        return is_here

    def __getitem__(self, digest: bytes) -> Buffer:
        return self._shelf.get(self.name(digest))

    def __setitem__(self, digest: bytes, data: Buffer) -> None:
        if self._shelf.put(self.name(digest), data):
            self._verified.add(digest)
        else:
            self.is_full = True

    def __delitem__(self, digest: bytes) -> None:
        self._verified.discard(digest)
        self._shelf.drop([self.name(digest)])

    def __iter__(self) -> Iterator[bytes]:
        """Names of what is on the shelf, verified or not, and may go."""
        start = len(self._prefix)
        for name in self._shelf.names():
            if name.startswith(self._prefix) and name.endswith(_BLOB):
                digest = bytes.fromhex(name[start : -len(_BLOB)])
                if digest not in self.pinned:
                    yield digest

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Keeper(GroupPart):
    """One peer that keeps the state of a group that it is not in.

    Args:
        number, card, ledger, arithmetic, sign, shuffle, stats: see `GroupPart`.
        retention: keeps results.
        shelf: the disk.

    Attributes:
        op: the state after this op is here; -1 for none.
    """

    def __init__(
        self,
        number: int,
        card: Card,
        ledger: LedgerView,
        arithmetic: Arithmetic,
        sign: Sign,
        shuffle: Callable[[Sequence[PeerId]], list[PeerId]],
        stats: LocalStats,
        retention: Retention,
        shelf: Shelf,
    ) -> None:
        super().__init__(number, card, ledger, arithmetic, sign, shuffle, stats, Blobs(retention))
        self.op = -1
        self._number, self._shelf = number, shelf
        self._download = Download(shuffle)
        self._snapshot: tuple[int, bytes] | None = None
        self._sync: StateSync | None = None
        self._pieces = Pieces(shelf, number)
        self._told: tuple[int, bool] = (-1, False)
        self._checks_at_s = math.inf
        self._candidates_at = (-1, -1)
        self._load_results()

    # ---- the ledger

    def follow(self, body: OfGroup, now_s: float) -> Actions:
        """Heed one new record of the group."""
        if isinstance(body, Plan):
            return self._begin_exchange(None, now_s)
        if isinstance(body, Commit | Skip):
            self._end_exchange(body.op)
            if isinstance(body, Skip):
                self.blobs.forget(body.op)
        elif isinstance(body, Rewind):
            return self.forget_after(body.op)
        elif isinstance(body, Reassign | Freeze | SliceFreeze):
            exchange = self.exchange_in(body.op)
            return exchange.decided(now_s) if exchange is not None else []
        return []

    def forget_after(self, op: int) -> Actions:
        """Forget later ops: they were cancelled."""
        self._catchup.give_up()
        self._end_sync()
        self.blobs.rewound(op)
        self._drop_results(range(op + 1, 1 << 62))
        self.op = min(self.op, op)
        if self._snapshot is not None and self._snapshot[0] > op:
            self._snapshot, self.op = None, -1
        return []

    def roster_changed(self) -> None:
        """Donors came or went."""
        if self._sync is not None:
            self._sync.set_donors(self._donors())

    # ---- what others send

    def arrived(self, peer: PeerId, digest: bytes, body: Buffer, now_s: float) -> Actions:
        """A BLOB: to whoever wants it; what nobody wants is dropped."""
        if not self._fetcher.arrived(peer, digest, now_s):
            return []
        if self._sync is not None and self._sync.accept(digest, body):
            return []
        return self._exchanged(self.op + 1, digest, body, now_s)

    def heard(self, peer: PeerId, frame: Frame, now_s: float) -> Actions:
        """PIECE or MISSING, which may be another group's.

        Raises:
            RemoteFault: reason ``length`` or ``hash``.
        """
        if frame.kind is FrameKind.PIECE and self._sync is not None:
            self._sync.piece(peer, frame.set_id, frame.chunk, frame.body, now_s)
            self._sync.news()
        elif frame.kind is FrameKind.MISSING:
            self._fetcher.missing(peer, bytes(frame.body), now_s)
            self._download.missing(peer, bytes(frame.body), now_s)
        return []

    # ---- what falls due

    def advance(self, now_s: float, *, connected: bool) -> Actions:
        """Go on with the snapshot and the results after it; say what is here if that is news."""
        is_checked = self._pieces.check_some(limits.KEPT_CHECK_BYTES)
        self._checks_at_s = math.inf if is_checked else now_s
        if self.view.genesis is None or self._pieces.is_full or not is_checked:
            return self._report(connected=connected)
        self._renew(now_s)
        self._collect()
        return self._report(connected=connected)

    def requests(self, now_s: float) -> Actions:
        """Return the requests to make of others now."""
        run_tag = self._ledger.run_tag
        return self._requests(now_s) + [
            do.SendFrame(ask.peer, Frame(FrameKind.GET, run_tag, body=wanted.pack()))
            for ask in self._download.requests(now_s)
            for wanted in [Wanted(ask.digest, ask.start, ask.length)]
        ]

    def resend(self, now_s: float) -> Actions:
        """After HELLO: whatever the coordinator may have missed."""
        actions: Actions = [do.SendControl(self._word)]
        for exchange in self.exchanges.values():
            actions += exchange.resend(now_s)
        return actions

    @property
    def held(self) -> Applied | None:
        """The state that HELLO tells of, under its snapshot's root."""
        if self._snapshot is None or self.op < 0:
            return None
        return Applied(self.op, self._snapshot[1], group=self._number)

    def hand_over(self) -> tuple[bytes, Pieces]:
        """Keep it no more, as this peer is now in the group itself: the member goes on with our
        `blobs`, and with the snapshot of this root, whose blobs these are."""
        self._end_sync()
        self._close()
        return b"" if self._snapshot is None else self._snapshot[1], self._pieces

    def leave(self, *, forgets: bool) -> None:
        """Keep it no more.

        Args:
            forgets: others do; else what is on the disk stays, for the case that they do not.
        """
        self._end_sync()
        self._close()
        self.blobs.clear()
        if forgets:
            self._shelf.drop([n for n in self._shelf.names() if n.startswith(f"{self._number}/")])

    @property
    def is_idle(self) -> bool:
        """True if nothing is wanted of anybody."""
        return not (self._fetcher.wants or self._download.chunks)

    @property
    def next_wakeup_s(self) -> float:
        """Time at which something falls due although nothing came."""
        times = [self._checks_at_s]
        times += [exchange.next_wakeup_s for exchange in self.exchanges.values()]
        if not self.is_idle:
            times += [*self._fetcher.wakeups(), *self._download.wakeups()]
        return min(times, default=math.inf)

    # ---- parts

    @property
    def _word(self) -> Kept:
        return Kept(self.op, has_room=not self._pieces.is_full, group=self._number)

    def _report(self, *, connected: bool) -> Actions:
        news = self.op, self._pieces.is_full
        if not connected or news == self._told:
            return []
        self._told = news
        return [do.SendControl(self._word)]

    def _donors(self) -> list[PeerId]:
        return [peer for peer in sorted(self.view.holders) if peer != self._card.peer_id]

    def _renew(self, now_s: float) -> None:
        """Take a snapshot if there is none, or one that is newer than many results."""
        are_pairs = self.view.goes_by_pairs  # nothing leads on from a state but its own peer's work
        if self._snapshot is not None:
            num_results = self.view.commits_since(self._snapshot[0])
            if num_results > limits.RESULT_KEEP_OPS and not are_pairs:
                self._snapshot, self.op = None, -1  # the way on from it is lost
            elif num_results < (1 if are_pairs else _RENEWED_AFTER):
                return
        newest = self.view.last_op, max(self.view.attests, default=-1)
        if self._sync is None:
            candidates = self._candidates()
            if not candidates:
                return
            self._sync = StateSync(
                self._fetcher, self._download, self._donors(), candidates, self._fits, self._pieces
            )
        elif newest != self._candidates_at:
            self._sync.add_candidates(self._candidates())
        self._candidates_at = newest
        state = self._sync.step()
        if state is not None:
            self._pin(*state, now_s)

    def _candidates(self) -> list[tuple[int, bytes]]:
        """Attested states that are newer than ours, best first: what an earlier life has left, then
        those whose op is followed by another, as all donors have had the time to pin them."""
        oldest = -1 if self._snapshot is None else self._snapshot[0]
        roots = self.view.attests
        ops = sorted((op for op in roots if op > oldest), reverse=True)
        here = [op for op in ops if self._snapshot is None and roots[op] in self._pieces]
        settled = [op for op in ops if op < self.view.last_op]
        return [(op, roots[op]) for op in dict.fromkeys([*here, *settled, *ops])]

    def _fits(self, manifest: StateManifest) -> bool:
        """Return True if a manifest is of this group, and not larger than a keeper has room for."""
        genesis = self.view.genesis
        most = limits.KEPT_ARRAYS_MAX * 4 * genesis.num_values if genesis is not None else 0
        is_ours = genesis is not None and manifest.layout == genesis.layout
        return is_ours and manifest.total_bytes <= most

    def _pin(self, op: int, manifest: StateManifest, now_s: float) -> None:
        """The snapshot is here: results up to its op are needed no more."""
        self._end_sync()
        root, newest = manifest.root, self.op
        chunks = [
            Shelved(self._shelf, self._pieces.name(digest), manifest.chunk_bytes(index))
            for index, digest in enumerate(manifest.chunk_hashes)
        ]
        self._pieces[root] = manifest.to_bytes()
        self.blobs.pin_snapshot(op, manifest, chunks, now_s)
        self._snapshot, self.op = (op, root), max(op, newest)
        self._pieces.pinned = self.blobs.pinned
        for digest in list(self._pieces):
            del self._pieces[digest]
        self._drop_results(range(op + 1))

    def _collect(self) -> None:
        """Take the results after the snapshot, in order."""
        while self._snapshot is not None and self.op < self.view.last_op:
            op = self.op + 1
            if op not in self.view.skips:
                if self.view.goes_by_pairs or not self._catchup.is_known(op):
                    return
                result = self._catchup.collect(op, replayed=True)
                if result is None:
                    return
                if not self._keep(result):
                    self._pieces.is_full = True
                    return
            self.op = op

    def _keep(self, result: OpResult) -> bool:
        data = msgpack.packb([[bytes(chunk) for chunk in one.chunks] for one in result.slices])
        return self._shelf.put(f"{self._number}/{result.op:08}{_RESULT}", data)

    def _load_results(self) -> None:
        """Results that an earlier life has kept. Their hashes say what they are."""
        for name in self._result_names():
            try:
                slices = msgpack.unpackb(self._shelf.get(name), max_ext_len=0)
                for chunks in slices:
                    digests = [self.blobs.keep_result(_op_of(name), chunk) for chunk in chunks]
                    self.blobs.keep_result(_op_of(name), b"".join(digests))
            except (OSError, ValueError, TypeError, msgpack.UnpackException):
                self._shelf.drop([name])

    def _result_names(self) -> list[str]:
        start = f"{self._number}/"
        names = self._shelf.names()
        return [name for name in names if name.startswith(start) and name.endswith(_RESULT)]

    def _drop_results(self, ops: range) -> None:
        self._shelf.drop([name for name in self._result_names() if _op_of(name) in ops])

    def _end_sync(self) -> None:
        if self._sync is not None:
            self._sync.close()
            self._sync = None


def forget_kept(shelf: Shelf, group: int, pinned: Collection[bytes]) -> None:
    """Drop what was kept of a group for others, as this peer is in it now and has a newer state.

    Args:
        shelf: the disk.
        group: number of the group.
        pinned: blobs that are still being served.
    """
    served = {f"{group}/{digest.hex()}{_BLOB}" for digest in pinned}
    names = [name for name in shelf.names() if name.startswith(f"{group}/")]
    shelf.drop([name for name in names if name not in served])


def _op_of(name: str) -> int:
    return int(name[name.index("/") + 1 : -len(_RESULT)])
