"""Source of the shared state: a peer's own, if the ledger attests it, else downloaded from others.

Nobody's word is taken: the ledger attests a root, and anything with that root is the state. The
first peer of a new run offers its own as op 0 (protocol.md part 1 rule 4, part 2 T13).
"""

from collections.abc import Callable, Iterable, MutableMapping, Sequence

from swarmtrain_transport import limits
from swarmtrain_transport.actions import (
    DownloadBegun,
    Halt,
    KeepChunk,
    LoadState,
    PeerAction,
    SendControl,
    SendFrame,
)
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.blocks.manifest import StateManifest, StateSync
from swarmtrain_transport.blocks.retention import Piece
from swarmtrain_transport.blocks.state_download import Download
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind, Wanted
from swarmtrain_transport.wire.messages import Offer


class StateFinder:
    """Finds the first state of this process, or a newer one after it fell too far behind.

    Args:
        me: own id.
        view: the ledger's fold.
        fetcher: asks donors for what is small.
        shuffle: orders equally good donors.

    Attributes:
        download: the state's chunks that are asked for.
    """

    def __init__(
        self,
        me: PeerId,
        view: GroupView,
        fetcher: Fetcher,
        shuffle: Callable[[Sequence[PeerId]], list[PeerId]],
    ) -> None:
        self._me = me
        self._view = view
        self._fetcher = fetcher
        self.download = Download(shuffle)
        self._kept: MutableMapping[bytes, Buffer] = {}
        self._kept_root = b""
        self._sync: StateSync | None = None
        self._own: tuple[int, StateManifest, tuple[Piece, ...]] | None = None
        self._first_root = b""
        self._fragments: tuple[int, ...] = ()
        self._snapshot_rounds = 1
        self._offered = False
        self._oldest_op = 0
        self._candidates_at = (-1, -1, 0)

    def attach(
        self,
        op: int,
        manifest: StateManifest,
        chunks: tuple[Piece, ...],
        snapshot_rounds: int,
        fragments: tuple[int, ...] = (),
        *,
        is_given: bool = False,
    ) -> None:
        """Our own state: op 0's offer, or a restored op. Where `is_given`, the offer is of weights
        that the organiser has given to all, and the run must begin with it."""
        self._own = (op, manifest, chunks)
        self._first_root = manifest.root if is_given else b""
        self._fragments = fragments
        self._snapshot_rounds = max(1, snapshot_rounds)

    def hold(self, op: int, manifest: StateManifest, chunks: tuple[Piece, ...]) -> None:
        """Our own state is now this one, which is pinned here."""
        if self._own is not None:
            self._own = (op, manifest, chunks)

    def resume(self, manifest: bytes, chunks: Iterable[bytes]) -> None:
        """Take the part of a download that an earlier life of this peer has kept. Its hashes name
        it."""
        self._kept = {content_hash(chunk): chunk for chunk in chunks}
        self._kept_root = content_hash(manifest)
        self._kept[self._kept_root] = manifest

    def take_over(self, root: bytes, pieces: MutableMapping[bytes, Buffer]) -> None:
        """Take a state that this peer has kept for others: its root, and its blobs by hash."""
        self._kept_root, self._kept = root, pieces

    @property
    def is_attached(self) -> bool:
        """True if the trainer is there, so that a state can be loaded at all."""
        return self._own is not None

    @property
    def is_syncing(self) -> bool:
        """True if a download is under way."""
        return self._sync is not None

    @property
    def progress(self) -> tuple[int, int]:
        """State chunks downloaded and in all, (0, 0) when not syncing."""
        return self._sync.progress if self._sync is not None else (0, 0)

    def reconnected(self) -> None:
        """The coordinator may have missed our offer."""
        self._offered = False

    def roster_changed(self) -> None:
        """Donors came or went."""
        if self._sync is not None:
            self._sync.set_donors(self._donors())

    def must_be_newer_than(self, op: int) -> bool:
        """The way on from `op` is lost, so only a later state helps; whether there can be one."""
        if max(self._view.attests, default=-1) <= op:
            return False
        self._oldest_op = op + 1
        return True

    @property
    def is_lost(self) -> bool:
        """True if a download is under way whose pieces are with nobody."""
        return self._sync is not None and self._sync.is_lost

    def close(self) -> None:
        """No other state is wanted any more."""
        if self._sync is not None:
            self._sync.close()
            self._sync = None

    def rewound(self) -> None:
        """Later states were cancelled: what was looked for may be none of the run's any more."""
        self.close()
        self._oldest_op = 0
        self._offered = False

    def accept(self, digest: bytes, data: Buffer) -> bool:
        """Take a verified blob; whether it belongs to the state that is being downloaded."""
        return self._sync is not None and self._sync.accept(digest, data)

    def piece(self, peer: PeerId, frame: Frame, now_s: float) -> None:
        """A piece of a chunk came.

        Raises:
            RemoteFault: reason ``length`` or ``hash``.
        """
        if self._sync is not None:
            self._sync.piece(peer, frame.set_id, frame.chunk, frame.body, now_s)

    def missing(self, peer: PeerId, digest: bytes, now_s: float) -> None:
        """A donor lacks a chunk."""
        self.download.missing(peer, digest, now_s)

    def requests(self, run_tag: int, now_s: float) -> list[PeerAction]:
        """Return the requests to make now, and of whom."""
        return [
            SendFrame(ask.peer, Frame(FrameKind.GET, run_tag, body=wanted.pack()))
            for ask in self.download.requests(now_s)
            for wanted in [Wanted(ask.digest, ask.start, ask.length)]
        ]

    def wakeups(self) -> list[float]:
        """List when requests() has something to do although nothing arrived."""
        return self.download.wakeups()

    def step(self) -> list[PeerAction]:
        """Decide the next action; LoadState once a state is there."""
        assert self._own is not None
        own_op, manifest, chunks = self._own
        genesis, group = self._view.genesis, self._view.group
        num_values = manifest.arrays[0].num_values
        if genesis is None:
            return self._offer(manifest, num_values)
        if genesis.layout != manifest.layout or genesis.num_values != num_values:
            text = f"This model has {num_values} values, the run's has {genesis.num_values}"
            return [Halt("SWT-E804", f"{text} (or other names and shapes).")]
        if genesis.fragments != self._fragments:
            text = f"This model is exchanged in {len(self._fragments) or 1} parts"
            return [Halt("SWT-E804", f"{text}, the run's in {len(genesis.fragments) or 1}.")]
        if self._first_root and genesis.state_root != self._first_root:
            text = "A peer has begun the run with other weights than the organiser's"
            return [Halt("SWT-E453", f"{text}: state {genesis.state_root.hex()[:16]}.")]
        if self._is_own_good(own_op, manifest.root):
            return [LoadState(own_op, manifest, chunks, self._view.samples.after(own_op), group)]
        if self._sync is None:
            self._sync = StateSync(
                self._fetcher, self.download, self._donors(), self._candidates(),
                lambda found: (found.layout, found.arrays) == (manifest.layout, manifest.arrays),
                self._kept,
            )  # fmt: skip
            self._kept = {}
        elif self._candidates_at != self._newest():
            self._sync.add_candidates(self._candidates())
        self._candidates_at = self._newest()
        state = self._sync.step()
        actions: list[PeerAction] = [
            DownloadBegun(news, group)
            if isinstance(news, StateManifest)
            else KeepChunk(*news, group)
            for news in self._sync.news()
        ]
        if state is not None:
            op, found = state
            whole = self._sync.chunks(found)
            self._sync.close()
            self._sync = None
            actions.append(LoadState(op, found, whole, self._view.samples.after(op), group))
        return actions

    def _is_own_good(self, op: int, root: bytes) -> bool:
        """Return True if we may go on from our own state."""
        if not self._oldest_op <= op < self._view.next_op:
            return False
        if self._view.commits_since(op) > limits.RESULT_KEEP_OPS and self._donors():
            return False  # the results in between are forgotten, a newer state is not
        return self._view.is_trusted(op, root, self._me)

    def _offer(self, manifest: StateManifest, num_values: int) -> list[PeerAction]:
        if self._offered:
            return []
        self._offered = True
        return [
            SendControl(
                Offer(manifest.root, num_values, manifest.layout, self._fragments, self._view.group)
            )
        ]

    def _newest(self) -> tuple[int, int, int]:
        """Facts that candidates follow from: an op's ATTEST comes after its outcome, or never; of a
        pair op another may follow."""
        newest = max(self._view.attests, default=-1)
        return self._view.last_op, newest, len(self._view.roots.get(newest, ()))

    def _candidates(self) -> Sequence[tuple[int, bytes]]:
        """Attested states, best first: a settled snapshot, then the newest, then any.

        A snapshot is settled once the next op has its outcome: by then every donor has had time
        to pin it. One of which an earlier life has fetched a part comes before all others, as
        long as the results that follow it are kept. Where states are each peer's own, so are
        snapshots: of every op, as the results that lead on from one help nobody else.
        """
        newest, roots = self._view.last_op, self._view.roots
        every = 1 if self._view.goes_by_pairs else self._snapshot_rounds
        ops = sorted((op for op in self._view.attests if op >= self._oldest_op), reverse=True)
        if self._view.goes_by_pairs:
            del ops[limits.RESULT_KEEP_OPS :]  # nobody pins older ones
        attested = [
            (op, root)
            for op in ops
            for root in dict.fromkeys([self._view.attests[op], *roots.get(op, {}).values()])
        ]
        last = next((op for op in ops if op < newest and op % every == 0), -1)
        settled = [item for item in attested if item[0] == last]
        begun = [
            (op, root)
            for op, root in attested
            if root == self._kept_root and self._view.commits_since(op) < limits.RESULT_KEEP_OPS
        ]
        return list(dict.fromkeys([*begun, *settled, *attested]))

    def _donors(self) -> list[PeerId]:
        return [peer for peer in sorted(self._view.holders) if peer != self._me]
