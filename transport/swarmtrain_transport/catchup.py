"""Applying outcomes in order: the same path for the op just ended and for those missed (T10).

A committed result is named by hashes alone, so it does not matter whether its chunks were gathered
during the op or are fetched afterwards from whoever has them.
"""

from collections.abc import Sequence

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.blobs import Blobs
from swarmtrain_transport.centre import has_centre
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.fetch import Fetcher
from swarmtrain_transport.fold import LedgerView, OpView, num_chunks, window_of
from swarmtrain_transport.kinds import GATHER
from swarmtrain_transport.ledger import Commit
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.result import OpResult, SliceResult


def result_of(view: OpView, slices: Sequence[Sequence[Buffer]], *, replayed: bool) -> OpResult:
    """A committed op's result.

    Args:
        view: the ledger's view of the op, whose outcome is COMMIT.
        slices: chunks of every slice; a slice that has no contributor has none, and is left out.
        replayed: whether the op was not taken part in.
    """
    plan, commit = view.plan, view.outcome
    assert isinstance(commit, Commit)
    pieces = tuple(
        SliceResult(spec.start, spec.stop, outcome.contributors, tuple(chunks))
        for spec, outcome, chunks in zip(plan.slices, commit.slices, slices, strict=True)
        if outcome.contributors
    )
    weights = tuple(view.weights[piece.contributors[0]] for piece in pieces)
    return OpResult(
        op=plan.op,
        window=window_of(plan),
        chunk_values=plan.chunk_values,
        num_values=plan.slices[-1].stop,
        slices=pieces,
        checkpoint_by=plan.checkpoint_by,
        evaluate_by=plan.evaluate_by,
        replayed=replayed,
        root=commit.result_root,
        fastest_steps_per_s=plan.fastest_steps_per_s or 0.0,
        weights=weights if plan.kind == GATHER else None,
    )


class CatchUp:
    """Collects committed results, op after op.

    Args:
        me: own id.
        view: the ledger's fold.
        blobs: where chunks are kept.
        fetcher: asks others for what is missing.
    """

    def __init__(self, me: PeerId, view: LedgerView, blobs: Blobs, fetcher: Fetcher) -> None:
        self._me = me
        self._view = view
        self._blobs = blobs
        self._fetcher = fetcher
        self._wanted: set[bytes] = set()
        self._lacking: tuple[object, ...] = ()
        """As things were when something was lacking; until they change nothing else is."""

    def collect(self, op: int, *, replayed: bool) -> OpResult | None:
        """The whole result of a committed op, or None while chunks are being fetched.

        Raises:
            RemoteFault: a hash list has the wrong length for the plan.
        """
        now = (op, self._blobs.changes, *self._view.roster)
        if now == self._lacking:
            return None
        self._wanted.clear()
        view = self._view.commits[op]
        commit = view.outcome
        assert isinstance(commit, Commit)
        slices: list[tuple[Buffer, ...]] = []
        for index, outcome in enumerate(commit.slices):
            chunks = self._chunks(op, view, index, outcome.root) if outcome.contributors else ()
            if chunks is not None:
                slices.append(chunks)
        self._lacking = () if len(slices) == len(commit.slices) else now
        return None if self._lacking else result_of(view, slices, replayed=replayed)

    def is_known(self, op: int) -> bool:
        """Whether the view still remembers the plan and outcome of a committed op."""
        return op in self._view.commits

    def has_centre(self, op: int) -> bool:
        """Whether READY of `op` may say that the result is here which its rule begins from."""
        return has_centre(self._view, self._blobs, op)

    def is_lost(self) -> bool:
        """Whether a piece that is waited for is, again and again, with nobody who is here."""
        return any(self._fetcher.rounds(digest) >= limits.LOST_ROUNDS for digest in self._wanted)

    def give_up(self) -> None:
        """Nothing of it is wanted any more: a later state will make it unnecessary."""
        self._fetcher.cancel(self._wanted)
        self._wanted.clear()
        self._lacking = ()

    def _chunks(self, op: int, view: OpView, index: int, root: bytes) -> tuple[Buffer, ...] | None:
        """One slice's chunks; what is missing is asked for."""
        hash_list = self._blobs.get(root)
        if hash_list is None:
            self._want(root, view, index)
            return None
        size = limits.HASH_BYTES
        if len(hash_list) != size * num_chunks(view.plan, index):
            raise RemoteFault("manifest", f"op {op}: slice {index} has another number of chunks")
        joined = bytes(hash_list)
        digests = [joined[start : start + size] for start in range(0, len(joined), size)]
        missing = [digest for digest in digests if digest not in self._blobs]
        for digest in missing:
            self._want(digest, view, index)
        if missing:
            return None
        chunks = [self._blobs.get(digest) for digest in digests]
        return tuple(chunk for chunk in chunks if chunk is not None)

    def _want(self, digest: bytes, view: OpView, index: int) -> None:
        self._wanted.add(digest)
        self._fetcher.want(digest, self._sources(view, index), spread=False)

    def _sources(self, view: OpView, index: int) -> list[PeerId]:
        """The owner, the other members, then anybody in the roster."""
        members = [member.peer for member in view.plan.members]
        order = dict.fromkeys([view.owners[index], *members, *self._view.roster])
        return [peer for peer in order if peer != self._me and peer in self._view.roster]
