"""Audits: after COMMIT one chunk is summed once more, and a wrong sum becomes a proof.

The ledger draws, by the hash of the COMMIT that nobody can choose, an auditor among the op's
contributors and one chunk of the result. The auditor asks the contributors for that chunk of what
they have signed, adds it with the arithmetic of the exchange and compares. Exact sums have one
right answer, so a difference is a lie that anybody can check: the proof holds the parts and the
hashes that lead from them to the roots that contributors and owner have signed. The roots and the
signatures stand in FREEZE and COMMIT (`signed_roots`). The parts of 64 contributors do not fit into
one frame, so a proof travels as a charge, which names every part by its hash, and the parts.

In cells one of two looks is drawn. One is at the sum that a cell has given for the chunk: it is
compared with what the others of that cell have signed; the part of its owner goes beside it, so
nobody needs that one's help. The other is at the mean: it is made again of the sums of all cells.
What an owner answers for is what it has named itself, in SLICE_DONE, over its signature: the sums
that its mean is made of, and those that it has given. Each is with two peers (`cell_sums`), and is
shown by either. So an owner answers for its sums and its means, whether it says anything or not,
and for nothing that it was given. What contributors and owners have signed is in the sheets of the
audited owner's cell, what an owner has named is told to the auditor; the members of that cell audit
and judge, and who is in which cell nobody can choose.

Two things prove nothing: a contributor that does not answer or shows something else than it has
signed; and inputs that the owner signed and its contributors did not. Then nobody is convicted. Two
who conspire, an owner and one of its contributors that keeps silent, are not found out;
nor in cells of a mean the two owners that have one of its sums. Without cells an owner is such a
contributor itself, so one that does not show its own part is not found out.

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
from swarmtrain_transport.ledger.cell_sums import (
    check_sum,
    mean_of_sums,
    named_by_maker,
    num_named,
    others_in,
)
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
    made_of,
    result_payload,
    root_over,
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
        contributors: peers whose parts are needed: those of whom it is made; in cells of a mean
            none, of a sum the others.
        cell: the owner's cell.
        place: the owner's slice.
        passed: cells whose sums are needed for that.
        is_of_sum: True if a cell's sum is looked at, not the chunk of the result.
    """

    auditor: PeerId
    slice_index: int
    chunk: int
    owner: PeerId
    contributors: tuple[PeerId, ...]
    cell: int
    place: int
    passed: tuple[int, ...]
    is_of_sum: bool


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
    given = tuple(cell for cell, peers in enumerate(near) if peers)
    is_of_sum = cells.count > 1 and bool(given) and lots[3] % 2 == 1
    cell = given[lots[3] // 2 % len(given)] if is_of_sum else index % cells.count
    place = cells.owned(cell, index)
    owner = view.owners[place]
    auditors = [peer for peer in cells.among(commit.contributors, cell) if peer != owner]
    if not auditors:
        return None
    chunk = lots[1] % num_chunks(view.plan, index)
    auditor = auditors[lots[2] % len(auditors)]
    if cells.count == 1:
        return Drawn(auditor, index, chunk, owner, near[cell], cell, place, (), is_of_sum)
    needed = tuple(peer for peer in near[cell] if peer != owner and is_of_sum)
    passed = (cell,) if is_of_sum else given
    return Drawn(auditor, index, chunk, owner, needed, cell, place, passed, is_of_sum)


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
    """A cell's sum of one chunk, and the hashes that show it to be what was named.

    Attributes:
        chunk_hashes: hashes of the sum for the slice; the root over them is what an owner names.
        data: the sum.
    """

    chunk_hashes: tuple[bytes, ...]
    data: bytes

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
        shown: per contributor whose part is needed.
        passed: sums of cells.
        made: in cells what the owner has signed, `made_of` of which is in its signature: first the
            hash over what it has summed.
    """

    op: int
    slice_index: int
    chunk: int
    chunk_hashes: tuple[bytes, ...]
    shown: dict[bytes, S]
    group: int = FIRST_GROUP
    passed: dict[int, P] = {}
    made: tuple[bytes, ...] = ()

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
        return Charge(*place, self.chunk_hashes, named, self.group, passed, self.made)

    @classmethod
    def of(
        cls,
        charge: Charge,
        shown: Mapping[PeerId, Shown],
        passed: Mapping[int, Passed],
        sheets: Sequence[bytes],
    ) -> "Proof":
        """A charge, all its parts, and the sheets."""
        return cls(
            charge.op, charge.slice_index, charge.chunk, charge.chunk_hashes, dict(shown),
            charge.group, dict(passed), charge.made, tuple(sheets),
        )  # fmt: skip


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


def check_made(
    view: OpView, drawn: Drawn, made: Sequence[bytes], signature: bytes, verify: Verify
) -> None:
    """Check that an owner in cells has signed this: a hash over what it has summed, and the sums
    that it names.

    Raises:
        RemoteFault: reason ``proof``.
    """
    commit = view.outcome
    assert isinstance(commit, Commit)  # or nothing is drawn
    outcome = commit.slices[drawn.place]
    if len(made) != 1 + num_named(view.cells.count) or not are_hashes(made):
        raise RemoteFault("proof", "not one root for each sum that the owner names")
    signed = made_of(made[0], made[1:])
    payload = result_payload(view.plan_hash, drawn.place, outcome.attempt, outcome.root, signed)
    if not verify(drawn.owner, signature, payload):
        raise RemoteFault("proof", "the owner has not signed this result of these sums")


def is_passed(view: OpView, drawn: Drawn, cell: int, passed: Passed, made: Sequence[bytes]) -> bool:
    """Return True if this is a cell's sum of the drawn chunk as the owner has named it."""
    count, piece = view.cells.count, drawn.slice_index % view.cells.count
    at = named_by_maker(piece, cell, count) if drawn.is_of_sum else cell
    return (
        len(passed.chunk_hashes) == num_chunks(view.plan, drawn.slice_index)
        and are_hashes(passed.chunk_hashes)
        and root_over(passed.chunk_hashes) == made[1 + at]
        and content_hash(passed.data) == passed.chunk_hashes[drawn.chunk]
    )


def holders_of(view: OpView, drawn: Drawn, cell: int) -> list[PeerId]:
    """Return the two owners that have a cell's sum, first the one that is not looked at."""
    owned, taker = view.cells.owned, view.cells.taker
    places = owned(cell, drawn.slice_index), taker(cell, drawn.slice_index)
    return sorted((view.owners[place] for place in places), key=lambda one: one == drawn.owner)


def is_wrong(
    view: OpView,
    drawn: Drawn,
    hashes: Sequence[bytes],
    shown: Mapping[PeerId, Shown],
    passed: Mapping[int, Passed],
    arithmetic: Arithmetic,
) -> bool:
    """Return True if what the owner has made of the drawn chunk, of which all hashes are published,
    is not the mean of the parts that are shown; in cells not that of the sums, or not their sum.

    Raises:
        RemoteFault: reason ``length`` or ``scale``: a part is illegal, so it proves nothing.
    """
    index, chunk = drawn.slice_index, drawn.chunk
    start, stop = chunk_range(view.plan, index, chunk)
    if view.cells.count > 1 and not drawn.is_of_sum:
        sums = [(cell, one.data) for cell, one in sorted(passed.items())]
        try:
            for cell, data in sums:
                check_sum(view, index, cell, chunk, data, arithmetic)
        except RemoteFault:
            return True  # it names it as used, and who means well uses none that is illegal
        return content_hash(mean_of_sums(view, index, chunk, sums, arithmetic)) != hashes[chunk]
    total = arithmetic.accumulator(stop - start, window_of(view.plan))
    for peer in drawn.contributors:
        check_part(view, drawn, shown[peer], arithmetic)
        total.add(shown[peer].part, view.weights[peer])
    if drawn.is_of_sum:
        return others_in(view, index, chunk, passed[drawn.cell].data) != total.unrounded()
    weight = sum(view.weights[peer] for peer in view.slice_sets[index] or ())
    return content_hash(total.finish(weight)) != hashes[chunk]


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
    if view.cells.count > 1:
        check_made(view, drawn, proof.made, signed.by_owner, verify)
        inputs = inputs if drawn.is_of_sum else proof.made[0]
        is_signed = inputs == proof.made[0]
    else:
        payload = result_payload(view.plan_hash, place, outcome.attempt, outcome.root, inputs)
        is_signed = verify(drawn.owner, signed.by_owner, payload)
    if not is_signed:
        raise RemoteFault("proof", "the owner has not signed this result of these parts")
    for cell, one in proof.passed.items():
        if not is_passed(view, drawn, cell, one, proof.made):
            raise RemoteFault("proof", "a sum is not what the owner has named")
    try:
        wrong = is_wrong(view, drawn, proof.chunk_hashes, proof.shown, proof.passed, arithmetic)
    except RemoteFault as fault:
        raise RemoteFault("proof", f"a part is illegal: {fault.reason}") from fault
    if not wrong:
        raise RemoteFault("proof", "the sum is right")
    return drawn.owner
