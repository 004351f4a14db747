"""Audits: after COMMIT one chunk is summed once more, and a wrong sum becomes a proof.

The ledger draws, by the hash of the COMMIT that nobody can choose, an auditor among the op's
contributors and one chunk of the result. The auditor asks the contributors for that chunk of what
they have signed, adds it with the arithmetic of the exchange and compares. Exact sums have one
right answer, so a difference is a lie that anybody can check: the proof holds the parts and the
hashes that lead from them to the roots that contributors and owner have signed. The roots and the
signatures stand in FREEZE and COMMIT (`signed_roots`). The parts of 64 contributors do not fit into
one frame, so a proof travels as a charge, which names every part by its hash, and the parts.

In cells one of two looks is drawn. One is at the sum of another cell that the chunk was made of:
the piece's owner shows it as it was signed, and it is compared with what the contributors of that
cell have signed. The other is at the mean: to the sum of the parts of its owner's own cell the
signed sums of the others are added. Whoever shows a sum signs that it has used it, or else who gave
it could convict its user with another one. So an owner answers for its sums and its means, and for
nothing that it was given. What contributors and owners have signed is in the sheets of the audited
owner's cell; the members of that cell audit and judge, and who is in which cell nobody can choose.

Two things prove nothing: a contributor that does not answer or shows something else than it has
signed; and inputs that the owner signed and its contributors did not. Then nobody is convicted. Two
who conspire, an owner and one of its contributors that keeps silent, are not found out; nor, in
cells, is an owner that makes a wrong mean and then does not show the sums that it was given.

Pure; `auditing` asks and answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Arithmetic, Buffer
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.cells import summed_chunks
from swarmtrain_transport.ledger.fold import (
    OpView,
    chunk_range,
    num_chunks,
    slice_root,
    window_of,
)
from swarmtrain_transport.ledger.signed_roots import (
    are_hashes,
    contribution_payload,
    inputs_of,
    is_signature,
    result_payload,
    root_over,
    sum_payload,
    use_payload,
)
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import Commit, SignedRoot, Verify, pack_struct
from swarmtrain_transport.wire.sheets import roots_in, signatures_in
from swarmtrain_transport.wire.unpacking import unpack_limited


@dataclass(frozen=True, slots=True)
class Drawn:
    """The draw of one op's audit.

    Attributes:
        auditor: the peer that asks.
        slice_index, chunk: the chunk that is looked at.
        owner: the peer that has made it; in cells maybe that has made its cell's sum for it.
        contributors: peers whose parts are in what the owner has summed.
        cell: the owner's cell.
        place: the owner's slice; another one than `slice_index` where its sum is looked at.
        passed: cells whose signed sums are needed for that.
    """

    auditor: PeerId
    slice_index: int
    chunk: int
    owner: PeerId
    contributors: tuple[PeerId, ...]
    cell: int
    place: int
    passed: tuple[int, ...]

    @property
    def is_of_sum(self) -> bool:
        """True if a cell's sum is looked at, not the chunk of the result."""
        return self.place != self.slice_index


def draw(view: OpView) -> Drawn | None:
    """The audit of an op; None if it was not committed, its sums are not exact or nobody but the
    owner has contributed."""
    commit, cells = view.outcome, view.cells
    if not isinstance(commit, Commit) or not view.plan.exact:
        return None
    if not (commit.signatures if cells.count == 1 else view.sheets and commit.sheets):
        return None
    lots = [int.from_bytes(view.outcome_hash[at : at + 8], "little") for at in (0, 8, 16, 24)]
    index = lots[0] % len(commit.slices)
    summed = commit.slices[index].contributors
    near = [cells.among(summed, cell) for cell in range(cells.count)]
    own = index % cells.count
    others = tuple(cell for cell, peers in enumerate(near) if peers and cell != own)
    is_of_sum = bool(others) and lots[3] % 2 == 1
    cell = others[lots[3] // 2 % len(others)] if is_of_sum else own
    place = cells.owned(cell, index)
    owner = view.owners[place]
    auditors = [peer for peer in cells.among(commit.contributors, cell) if peer != owner]
    if not auditors:
        return None
    chunk = lots[1] % num_chunks(view.plan, index)
    auditor = auditors[lots[2] % len(auditors)]
    passed = (cell,) if is_of_sum else others
    return Drawn(auditor, index, chunk, owner, near[cell], cell, place, passed)


def may_judge(view: OpView, drawn: Drawn, peer: PeerId) -> bool:
    """Return True if a proof is for this peer to check: in cells for those of the owner's, who have
    its sheets and are no more than one auditor can serve."""
    return view.cells.count == 1 or view.cells.of.get(peer) == drawn.cell


def sheets_of(view: OpView, drawn: Drawn) -> tuple[bytes, ...]:
    """Hashes of the sheets that a look needs, of FREEZE and COMMIT; none without cells."""
    return view.all_sheets[drawn.cell :: view.cells.count] if view.cells.count > 1 else ()


class Signed(NamedTuple):
    """Roots that contributors have signed, and the signature of the owner that is looked at."""

    roots: Mapping[PeerId, SignedRoot]
    by_owner: bytes


def signed_in(view: OpView, drawn: Drawn, sheets: Sequence[Buffer]) -> Signed:
    """Read what was signed, from the records, or from the sheets that they name.

    Raises:
        RemoteFault: reason ``sheet``: these are others.
    """
    commit = view.outcome
    assert isinstance(commit, Commit)  # or nothing is drawn
    if tuple(map(content_hash, sheets)) != sheets_of(view, drawn):
        raise RemoteFault("sheet", "these are not the sheets that FREEZE and COMMIT name")
    if not sheets:
        return Signed(view.roots, commit.signatures[drawn.place])
    roots = roots_in(sheets[0], view.cells.among(commit.contributors, drawn.cell))
    num_ranges = len(view.plan.slices) // view.cells.count
    return Signed(roots, signatures_in(sheets[1], num_ranges)[view.cells.range_of(drawn.place)])


class Shown(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One contributor's chunk and the hashes that show it to be what was signed.

    Attributes:
        slice_roots: roots of the whole contribution; the root over them is in FREEZE.
        chunk_hashes: hashes of the slice; the root over them is one of `slice_roots`.
        part: the encoded chunk.
    """

    slice_roots: tuple[bytes, ...]
    chunk_hashes: tuple[bytes, ...]
    part: bytes

    def to_bytes(self) -> bytes:
        """Canonical msgpack."""
        return pack_struct(self)


def shown_from_bytes(data: Buffer) -> Shown:
    """Raises RemoteFault with reason ``evidence``."""
    return _decoded(data, Shown, "evidence")


class Passed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A cell's sum of one chunk, as its owner has signed it for the owner of the piece, and as that
    one has signed that its chunk was made of it (`use`)."""

    data: bytes
    signature: bytes
    use: bytes

    def to_bytes(self) -> bytes:
        """Canonical msgpack."""
        return pack_struct(self)


def passed_from_bytes(data: Buffer) -> Passed:
    """Raises RemoteFault with reason ``evidence``."""
    return _decoded(data, Passed, "evidence")


S = TypeVar("S", bytes, Shown)
P = TypeVar("P", bytes, Passed)
T = TypeVar("T")


class _Claim(
    msgspec.Struct, Generic[S, P], frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A wrong sum, as it is claimed.

    Attributes:
        op, slice_index, chunk, group: place of the audited chunk.
        chunk_hashes: hashes that the owner has published for the slice; none where its cell's sum
            is wrong.
        shown: per contributor of the slice, in cells of the owner's cell.
        passed: signed sums of cells.
    """

    op: int
    slice_index: int
    chunk: int
    chunk_hashes: tuple[bytes, ...]
    shown: dict[bytes, S]
    group: int = FIRST_GROUP
    passed: dict[int, P] = {}

    def to_bytes(self) -> bytes:
        """Canonical msgpack."""
        return pack_struct(self)


class Charge(_Claim[bytes, bytes], frozen=True):
    """A proof whose parts are not yet here: `shown` has the content hash of each, in bytes, and
    `passed` likewise. Its hash is what an accusation names."""


def charge_from_bytes(data: Buffer, drawn: Drawn) -> Charge:
    """A charge that is about what the ledger has drawn.

    Raises:
        RemoteFault: reason ``proof``.
    """
    charge = _decoded(data, Charge, "proof")
    if (charge.slice_index, charge.chunk) != (drawn.slice_index, drawn.chunk):
        raise RemoteFault("proof", "it is not about what the ledger has drawn")
    if charge.shown.keys() != set(drawn.contributors):
        raise RemoteFault("proof", "parts are missing, or are nobody's")
    if charge.passed.keys() != set(drawn.passed):
        raise RemoteFault("proof", "sums are missing, or are of no cell")
    if not are_hashes((*charge.shown.values(), *charge.passed.values())):
        raise RemoteFault("proof", "a part is not named by a hash")
    return charge


class Proof(_Claim[Shown, Passed], frozen=True):
    """A wrong sum. With the run's ledger (PLAN, FREEZE, COMMIT) anybody can check it; in cells it
    has the two sheets with it that these name."""

    sheets: tuple[bytes, ...] = ()

    @property
    def charge(self) -> Charge:
        """Claim without its parts."""
        named = {peer: content_hash(shown.to_bytes()) for peer, shown in self.shown.items()}
        passed = {cell: content_hash(one.to_bytes()) for cell, one in self.passed.items()}
        place = (self.op, self.slice_index, self.chunk)
        return Charge(*place, self.chunk_hashes, named, self.group, passed)

    @classmethod
    def of(
        cls,
        charge: Charge,
        shown: Mapping[PeerId, Shown],
        passed: Mapping[int, Passed],
        sheets: Sequence[bytes],
    ) -> "Proof":
        """A charge, all its parts, and the sheets."""
        place = (charge.op, charge.slice_index, charge.chunk)
        return cls(
            *place, charge.chunk_hashes, dict(shown), charge.group, dict(passed), tuple(sheets)
        )


def proof_from_bytes(data: Buffer) -> Proof:
    """Raises RemoteFault with reason ``proof``."""
    return _decoded(data, Proof, "proof", limits.PROOF_BYTES_MAX)


def _decoded(data: Buffer, kind: type[T], reason: str, most: int = limits.FRAME_BYTES_MAX) -> T:
    try:
        raw = unpack_limited(data, bytes_max=most)
        return msgspec.convert(raw, type=kind, builtin_types=(bytes,), str_keys=False)
    except (msgspec.ValidationError, TypeError, RemoteFault) as exc:
        raise RemoteFault(reason, f"does not decode: {exc}") from exc


def number_of(view: OpView, drawn: Drawn) -> int:
    """Number of the drawn chunk among those that contributors give to the owner of its range."""
    chunks = summed_chunks(view.plan, drawn.slice_index)
    return chunks.index((drawn.slice_index, drawn.chunk))


def is_shown(
    view: OpView, drawn: Drawn, peer: PeerId, shown: Shown, roots: Mapping[PeerId, SignedRoot]
) -> bool:
    """Return True if this is the chunk that the contributor has signed."""
    signed, index = roots.get(peer), view.cells.range_of(drawn.slice_index)
    if signed is None or len(shown.slice_roots) != len(view.plan.slices) // view.cells.count:
        return False
    if len(shown.chunk_hashes) != len(summed_chunks(view.plan, drawn.slice_index)):
        return False
    return (
        are_hashes(shown.slice_roots + shown.chunk_hashes)
        and root_over(shown.slice_roots) == signed.root
        and root_over(shown.chunk_hashes) == shown.slice_roots[index]
        and content_hash(shown.part) == shown.chunk_hashes[number_of(view, drawn)]
    )


def check_part(view: OpView, drawn: Drawn, shown: Shown, arithmetic: Arithmetic) -> None:
    """Check that a shown part may be added.

    Raises:
        RemoteFault: reason ``length`` or ``scale``.
    """
    start, stop = chunk_range(view.plan, drawn.slice_index, drawn.chunk)
    arithmetic.check(shown.part, stop - start, window_of(view.plan))


def check_passed(
    view: OpView, drawn: Drawn, cell: int, passed: Passed, arithmetic: Arithmetic, verify: Verify
) -> None:
    """Check that this is a cell's sum of the drawn chunk, signed by its owner there and by who has
    used it.

    Raises:
        RemoteFault: reason ``signature``, ``length`` or ``sum``.
    """
    index, place = drawn.slice_index, view.cells.owned(cell, drawn.slice_index)
    start, stop = chunk_range(view.plan, index, drawn.chunk)
    weight = sum(view.weights[peer] for peer in view.givers(place))
    arithmetic.check_sum(passed.data, stop - start, window_of(view.plan), weight)
    own, name = (place, view.attempts[place]), view.given_set_id(place) or 0
    digest = content_hash(passed.data)
    payload = sum_payload(view.plan_hash, own, (index, drawn.chunk), name, digest)
    used = use_payload(view.plan_hash, (index, view.attempts[index]), drawn.chunk, cell, digest)
    for peer, signature, text in (
        (view.owners[place], passed.signature, payload),
        (view.owners[index], passed.use, used),
    ):
        if not is_signature(signature) or not verify(peer, signature, text):
            raise RemoteFault("signature", "a sum that its cell's owner or its user has not signed")


def said_hash(drawn: Drawn, hashes: Sequence[bytes], passed: Mapping[int, Passed]) -> bytes:
    """Hash of what the owner has made: the published chunk, or its cell's sum for it."""
    return content_hash(passed[drawn.cell].data) if drawn.is_of_sum else hashes[drawn.chunk]


def right_hash(
    view: OpView,
    drawn: Drawn,
    shown: Mapping[PeerId, Shown],
    passed: Mapping[int, Passed],
    arithmetic: Arithmetic,
) -> bytes:
    """Hash of the drawn chunk's true mean over what its contributors have shown, in cells with what
    the others have passed; or of the true sum.

    Raises:
        RemoteFault: reason ``length`` or ``scale``: a part is illegal, so it proves nothing.
    """
    start, stop = chunk_range(view.plan, drawn.slice_index, drawn.chunk)
    window = window_of(view.plan)
    total = arithmetic.accumulator(stop - start, window)
    for peer in drawn.contributors:
        check_part(view, drawn, shown[peer], arithmetic)
        total.add(shown[peer].part, view.weights[peer])
    weight = sum(view.weights[peer] for peer in view.slice_sets[drawn.slice_index] or ())
    if view.cells.count == 1:
        return content_hash(total.finish(weight))
    sums = [total.unrounded(), *(passed[cell].data for cell in drawn.passed)]
    if drawn.is_of_sum:
        return content_hash(sums[0])
    return content_hash(arithmetic.finish_sums(sums, stop - start, window, weight))


def convicted(proof: Proof, view: OpView, arithmetic: Arithmetic, verify: Verify) -> PeerId:
    """The owner that this proof convicts.

    Args:
        proof: proof of a wrong sum.
        view: the ledger's view of its op.
        arithmetic: arithmetic of the exchange.
        verify: checks a signature.

    Raises:
        RemoteFault: reason ``proof``, with what it lacks: it convicts nobody.
    """
    drawn, plan, commit = draw(view), view.plan, view.outcome
    at = (proof.group, proof.op, proof.slice_index, proof.chunk)
    if drawn is None or at != (plan.group, plan.op, drawn.slice_index, drawn.chunk):
        raise RemoteFault("proof", "it is not about what the ledger has drawn")
    assert isinstance(commit, Commit)  # or nothing is drawn
    place, outcome = drawn.place, commit.slices[drawn.place]
    if proof.shown.keys() != set(drawn.contributors):
        raise RemoteFault("proof", "parts are missing, or are nobody's")
    if proof.passed.keys() != set(drawn.passed):
        raise RemoteFault("proof", "sums are missing, or are of no cell")
    if not drawn.is_of_sum:
        hashes = proof.chunk_hashes
        if not are_hashes(hashes) or slice_root(hashes) != outcome.root:
            raise RemoteFault("proof", "the published hashes are not those that were committed")
        if len(hashes) != num_chunks(view.plan, place):
            raise RemoteFault("proof", "not one published hash per chunk")
    try:
        signed = signed_in(view, drawn, proof.sheets)
    except RemoteFault as fault:
        raise RemoteFault("proof", fault.detail) from fault
    for peer, shown in proof.shown.items():
        if not is_shown(view, drawn, peer, shown, signed.roots):
            raise RemoteFault("proof", "a part is not what its contributor has signed")
        payload = contribution_payload(view.plan_hash, signed.roots[peer].root)
        if not verify(peer, signed.roots[peer].signature, payload):
            raise RemoteFault("proof", "a contributor's signature does not hold")
    row = view.cells.range_of(place)
    inputs = inputs_of({peer: one.slice_roots[row] for peer, one in proof.shown.items()})
    payload = result_payload(view.plan_hash, place, outcome.attempt, outcome.root, inputs)
    if not verify(drawn.owner, signed.by_owner, payload):
        raise RemoteFault("proof", "the owner has not signed this result of these parts")
    try:
        for cell, one in proof.passed.items():
            check_passed(view, drawn, cell, one, arithmetic, verify)
        right = right_hash(view, drawn, proof.shown, proof.passed, arithmetic)
    except RemoteFault as fault:
        raise RemoteFault("proof", f"a part is illegal: {fault.reason}") from fault
    if right == said_hash(drawn, proof.chunk_hashes, proof.passed):
        raise RemoteFault("proof", "the sum is right")
    return drawn.owner
