"""Applying outcomes in order: the same path for the op just ended and for those missed (T10).

A committed result is named by hashes alone, so it does not matter whether its chunks were gathered
during the op or are fetched afterwards from whoever has them.
"""

import dataclasses
from collections.abc import Sequence

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Arithmetic, Buffer
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.rule_inputs import has_centre
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.kinds import GATHER, PAIR
from swarmtrain_transport.ledger.fold import (
    GroupView,
    OpView,
    chunk_range,
    num_chunks,
    window_of,
)
from swarmtrain_transport.ledger.pairing import link_of, partner_in, whole_pairs
from swarmtrain_transport.ledger.sample_weights import in_result
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult, SliceResult
from swarmtrain_transport.wire.records import Commit


def result_of(
    view: OpView, slices: Sequence[Sequence[Buffer]], *, replayed: bool, samples_before: int = 0
) -> OpResult:
    """A committed op's result.

    Args:
        view: the ledger's view of the op, whose outcome is COMMIT.
        slices: chunks of every slice; a slice that has no contributor has none, and is left out.
        replayed: True if the op was not taken part in.
        samples_before: samples of all results before it.
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
        samples_before=samples_before,
        samples=in_result(plan, commit),
        shares=tuple(view.weights[peer] for peer in commit.contributors),
        checkpoint_by=plan.checkpoint_by,
        evaluate_by=plan.evaluate_by,
        replayed=replayed,
        root=commit.result_root,
        fastest_steps_per_s=plan.fastest_steps_per_s or 0.0,
        weights=weights if plan.kind == GATHER else None,
        kind=plan.kind,
        group=plan.group,
        turns=view.turns,
    )


def partner_of(view: OpView, peer: PeerId) -> PeerId | None:
    """Return with whom a peer has exchanged in a committed pair op; None if it is in no whole
    pair."""
    assert isinstance(view.outcome, Commit)
    pairs = whole_pairs(view.plan, view.outcome)
    return partner_in([one for pair in pairs for one in pair], peer)


class CatchUp:
    """Collects committed results, op after op.

    Args:
        me: own id.
        view: the ledger's fold.
        blobs: store of chunks.
        fetcher: asks others for what is missing.
        arithmetic: knows which chunks can be decoded.
    """

    def __init__(
        self, me: PeerId, view: GroupView, blobs: Blobs, fetcher: Fetcher, arithmetic: Arithmetic
    ) -> None:
        self._me, self._arithmetic = me, arithmetic
        self._view = view
        self._blobs = blobs
        self._fetcher = fetcher
        self._wanted: set[bytes] = set()
        self._lacking: tuple[object, ...] = ()
        """State of things when something was lacking; until it changes nothing else is."""
        self._about: tuple[object, ...] = ()
        """PLAN and holders for which the next three hold. They are kept between blobs, as an op may
        have hundreds of slices."""
        self._others: dict[PeerId, None] = {}
        """Peers that may have the result that is looked for, in the order in which to ask."""
        self._sources: dict[int, tuple[PeerId, ...]] = {}
        """The order for a slice: its owner comes first."""
        self._legal: set[int] = set()
        """Slices that are here and can be decoded."""
        self._illegal_op = -1
        """Op whose committed result nobody can decode: its owner erred, or lied, and hardly anybody
        else was there. For us it is as good as lost."""

    def collect(self, op: int, *, replayed: bool) -> OpResult | None:
        """The whole result of a committed op, or None while chunks are being fetched, and for good
        if they are none that could be decoded."""
        view, before = self._view.commits[op], self._view.samples.after(op - 1)
        about = (view.plan_hash, *self._view.holders)  # numbers come again after a REWIND
        now = (self._blobs.changes, *about)
        if now == self._lacking:
            return None
        if about != self._about:
            self._about = about
            self._others.clear()
            self._sources.clear()
            self._legal.clear()
        self._wanted.clear()
        self._illegal_op = -1
        commit = view.outcome
        assert isinstance(commit, Commit)
        if view.plan.kind == PAIR:
            result = self._paired(view, commit, replayed=replayed, samples_before=before)
            self._lacking = () if result is not None else now
            return result
        given = [index for index, outcome in enumerate(commit.slices) if outcome.contributors]
        here = [self._is_whole(op, view, index, commit.slices[index].root) for index in given]
        self._lacking = () if all(here) else now
        if self._lacking:
            return None
        slices = [
            self._chunks(outcome.root) if outcome.contributors else () for outcome in commit.slices
        ]
        result = result_of(view, slices, replayed=replayed, samples_before=before)
        return dataclasses.replace(result, is_kept=self.pinned < 0)

    @property
    def pinned(self) -> int:
        """The oldest op whose state is pinned here so that a newcomer would take it; -1 for none.
        Where ops overlap, the ledger may attest none of those whose turn it was to be pinned."""
        pinned, view = self._blobs.snapshot_ops, self._view
        kept = limits.RESULT_KEEP_OPS
        fit = (op for op in pinned if op in view.attests and view.commits_since(op) < kept)
        return next(fit, -1)

    def _paired(
        self, view: OpView, commit: Commit, *, replayed: bool, samples_before: int
    ) -> OpResult | None:
        """Return the result of a pair op for us: our partner's half, or nothing at all."""
        nothing = [()] * len(commit.slices)
        empty = result_of(view, nothing, replayed=replayed, samples_before=samples_before)
        partner = partner_of(view, self._me)
        if partner is None:
            return dataclasses.replace(empty, slices=())
        index = view.owners.index(partner)
        root = commit.slices[index].root
        if not self._is_whole(view.plan.op, view, index, root):
            return None
        both = tuple(sorted((self._me, partner)))
        half = SliceResult(0, empty.num_values, both, self._chunks(root))
        return dataclasses.replace(
            empty, slices=(half,), chain=self._link(view, commit, (self._me, partner))
        )

    def _link(self, view: OpView, commit: Commit, pair: tuple[PeerId, PeerId]) -> bytes:
        """Our chain's next link, of the two halves as they are here; b"" if ours is not."""
        op = view.plan.op
        ordered = sorted(pair, key=view.owners.index)
        lists = [self._blobs.get(commit.slices[view.owners.index(peer)].root) for peer in ordered]
        known = self._view.links.get(op, {})
        if any(one is None for one in lists) or not known.keys() >= set(pair):
            return b""
        first, second = (content_hash(one) for one in lists if one is not None)
        return link_of(op, (known[ordered[0]][0], known[ordered[1]][0]), (first, second))

    def wants(self, digest: bytes) -> bool:
        """Return True if the result that is collected lacks this blob."""
        return digest in self._wanted

    def is_known(self, op: int) -> bool:
        """Return True if the view still remembers the plan and outcome of a committed op."""
        return op in self._view.commits

    def has_centre(self, op: int) -> bool:
        """Return True if READY of `op` may say that its rule's beginning is here."""
        return has_centre(self._view, self._blobs, op)

    def is_lost(self) -> bool:
        """True if a piece that is waited for is, again and again, with nobody who is here, or the
        op's result is none."""
        return self._illegal_op >= 0 or any(
            self._fetcher.rounds(digest) >= limits.LOST_ROUNDS for digest in self._wanted
        )

    def look_again(self) -> None:
        """Ask anew at the next `collect`: somebody has gone, and may be back by then, with the same
        holders as before."""
        self._lacking = ()

    def give_up(self) -> None:
        """Nothing of it is wanted any more: a later state will make it unnecessary."""
        self._fetcher.cancel(self._wanted)
        self._wanted.clear()
        self._lacking, self._illegal_op = (), -1

    def _digests(self, root: bytes) -> list[bytes] | None:
        """Hashes of a slice's chunks; None while the list of them is not here."""
        hash_list = self._blobs.get(root)
        if hash_list is None:
            return None
        joined, size = bytes(hash_list), limits.HASH_BYTES
        return [joined[start : start + size] for start in range(0, len(joined), size)]

    def _chunks(self, root: bytes) -> tuple[Buffer, ...]:
        """The chunks of a slice that are here."""
        here = map(self._blobs.get, self._digests(root) or ())
        return tuple(chunk for chunk in here if chunk is not None)

    def _is_whole(self, op: int, view: OpView, index: int, root: bytes) -> bool:
        """Return True if a slice is here and can be decoded; what is missing is asked for."""
        digests = self._digests(root)
        missing = [root] if digests is None else [one for one in digests if one not in self._blobs]
        length = limits.HASH_BYTES * num_chunks(view.plan, index)
        if digests is not None and sum(map(len, digests)) != length:
            self._illegal_op = op
        if digests is None or missing:
            self._legal.discard(index)
            self._want(missing, view, index)
            return False
        if index not in self._legal:
            if self._illegal_op == op or not self._are_legal(view, index, self._chunks(root)):
                self._illegal_op = op
                return False
            self._blobs.keep_for(op, (root, *digests))
            self._legal.add(index)
        return True

    def _are_legal(self, view: OpView, index: int, chunks: Sequence[Buffer]) -> bool:
        """Return True if the trainer can decode them; during an op each was looked at, but what is
        committed may come from elsewhere."""
        window, arithmetic = window_of(view.plan), self._arithmetic
        is_verbatim = view.plan.kind in (GATHER, PAIR)
        check = arithmetic.check if is_verbatim else arithmetic.check_result
        try:
            for number, chunk in enumerate(chunks):
                start, stop = chunk_range(view.plan, index, number)
                check(chunk, stop - start, window)
        except RemoteFault:
            return False
        return True

    def _want(self, digests: Sequence[bytes], view: OpView, index: int) -> None:
        self._wanted.update(digests)
        if (sources := self._sources.get(index)) is None:
            sources = self._sources[index] = self._sources_of(view, index)
        for digest in digests:
            self._fetcher.want(digest, sources, spread=False)

    def _sources_of(self, view: OpView, index: int) -> tuple[PeerId, ...]:
        """The owner, the other members, then anybody in the roster; of a pair op nobody else."""
        if view.plan.kind == PAIR:
            return (view.owners[index],)
        if not self._others:
            members, holders = [member.peer for member in view.plan.members], self._view.holders
            order = dict.fromkeys([*members, *holders])
            self._others = {peer: None for peer in order if peer != self._me and peer in holders}
        first = [view.owners[index]] if view.owners[index] in self._others else []
        return tuple(dict.fromkeys([*first, *self._others]))
