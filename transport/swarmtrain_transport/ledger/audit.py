"""Audits: after COMMIT one chunk is summed once more, and a wrong sum becomes a proof.

The ledger draws, by the hash of the COMMIT that nobody can choose, an auditor among the op's
contributors and one chunk of the result. The auditor asks the contributors for that chunk of what
they have signed, adds it with the arithmetic of the exchange and compares. Exact sums have one
right answer, so a difference is a lie that anybody can check: the proof holds the parts and the
hashes that lead from them to the roots that contributors and owner have signed. The roots and the
signatures stand in FREEZE and COMMIT (`signed_roots`). The parts of 64 contributors do not fit into
one frame, so a proof travels as a charge, which names every part by its hash, and the parts.

Two things prove nothing: a contributor that does not answer or shows something else than it has
signed; and inputs that the owner signed and its contributors did not. Then nobody is convicted. Two
who conspire, an owner and one of its contributors that keeps silent, are not found out.

Pure; `auditing` asks and answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Arithmetic, Buffer
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import OpView, chunk_range, num_chunks, slice_root, window_of
from swarmtrain_transport.ledger.signed_roots import (
    are_hashes,
    contribution_payload,
    inputs_of,
    result_payload,
    root_over,
)
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import Commit, Verify, pack_struct
from swarmtrain_transport.wire.unpacking import unpack_limited


@dataclass(frozen=True, slots=True)
class Drawn:
    """The draw of one op's audit.

    Attributes:
        auditor: the peer that asks.
        slice_index, chunk: the chunk that is summed again.
        owner: the peer that has summed it.
        contributors: peers whose parts are in it.
    """

    auditor: PeerId
    slice_index: int
    chunk: int
    owner: PeerId
    contributors: tuple[PeerId, ...]


def draw(view: OpView) -> Drawn | None:
    """The audit of an op; None if it was not committed, its sums are not exact or nobody but the
    owner has contributed."""
    commit = view.outcome
    if not isinstance(commit, Commit) or not view.plan.exact or not commit.signatures:
        return None
    if view.cells.count > 1:
        return None
    lots = [int.from_bytes(view.outcome_hash[at : at + 8], "little") for at in (0, 8, 16)]
    index = lots[0] % len(commit.slices)
    owner = view.owners[index]
    auditors = [peer for peer in commit.contributors if peer != owner]
    if not auditors:
        return None
    chunk = lots[1] % num_chunks(view.plan, index)
    auditor = auditors[lots[2] % len(auditors)]
    return Drawn(auditor, index, chunk, owner, commit.slices[index].contributors)


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


S = TypeVar("S", bytes, Shown)
T = TypeVar("T")


class _Claim(
    msgspec.Struct, Generic[S], frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A wrong sum, as it is claimed.

    Attributes:
        op, slice_index, chunk, group: place of the audited chunk.
        chunk_hashes: hashes that the owner has published for the slice.
        shown: per contributor of the slice.
    """

    op: int
    slice_index: int
    chunk: int
    chunk_hashes: tuple[bytes, ...]
    shown: dict[bytes, S]
    group: int = FIRST_GROUP

    def to_bytes(self) -> bytes:
        """Canonical msgpack."""
        return pack_struct(self)


class Charge(_Claim[bytes], frozen=True):
    """A proof whose parts are not yet here: `shown` has the content hash of each, in bytes. Its
    hash is what an accusation names."""


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
    if not are_hashes(tuple(charge.shown.values())):
        raise RemoteFault("proof", "a part is not named by a hash")
    return charge


class Proof(_Claim[Shown], frozen=True):
    """A wrong sum. With the run's ledger (PLAN, FREEZE, COMMIT) anybody can check it."""

    @property
    def charge(self) -> Charge:
        """Claim without its parts."""
        named = {peer: content_hash(shown.to_bytes()) for peer, shown in self.shown.items()}
        place = (self.op, self.slice_index, self.chunk)
        return Charge(*place, self.chunk_hashes, named, self.group)

    @classmethod
    def of(cls, charge: Charge, shown: Mapping[PeerId, Shown]) -> "Proof":
        """A charge and all its parts."""
        place = (charge.op, charge.slice_index, charge.chunk)
        return cls(*place, charge.chunk_hashes, dict(shown), charge.group)


def proof_from_bytes(data: Buffer) -> Proof:
    """Raises RemoteFault with reason ``proof``."""
    return _decoded(data, Proof, "proof", limits.PROOF_BYTES_MAX)


def _decoded(data: Buffer, kind: type[T], reason: str, most: int = limits.FRAME_BYTES_MAX) -> T:
    try:
        raw = unpack_limited(data, bytes_max=most)
        return msgspec.convert(raw, type=kind, builtin_types=(bytes,), str_keys=False)
    except (msgspec.ValidationError, TypeError, RemoteFault) as exc:
        raise RemoteFault(reason, f"does not decode: {exc}") from exc


def is_shown(view: OpView, drawn: Drawn, peer: PeerId, shown: Shown) -> bool:
    """Return True if this is the chunk that the contributor has signed."""
    signed, index = view.roots.get(peer), drawn.slice_index
    if signed is None or len(shown.slice_roots) != len(view.plan.slices):
        return False
    if len(shown.chunk_hashes) != num_chunks(view.plan, index):
        return False
    return (
        are_hashes(shown.slice_roots + shown.chunk_hashes)
        and root_over(shown.slice_roots) == signed.root
        and root_over(shown.chunk_hashes) == shown.slice_roots[index]
        and content_hash(shown.part) == shown.chunk_hashes[drawn.chunk]
    )


def check_part(view: OpView, drawn: Drawn, shown: Shown, arithmetic: Arithmetic) -> None:
    """Check that a shown part may be added.

    Raises:
        RemoteFault: reason ``length`` or ``scale``.
    """
    start, stop = chunk_range(view.plan, drawn.slice_index, drawn.chunk)
    arithmetic.check(shown.part, stop - start, window_of(view.plan))


def right_hash(
    view: OpView, drawn: Drawn, shown: Mapping[PeerId, Shown], arithmetic: Arithmetic
) -> bytes:
    """Hash of the drawn chunk's true mean over what its contributors have shown.

    Raises:
        RemoteFault: reason ``length`` or ``scale``: a part is illegal, so it proves nothing.
    """
    start, stop = chunk_range(view.plan, drawn.slice_index, drawn.chunk)
    window = window_of(view.plan)
    total = arithmetic.accumulator(stop - start, window)
    for peer in drawn.contributors:
        check_part(view, drawn, shown[peer], arithmetic)
        total.add(shown[peer].part, view.weights[peer])
    return content_hash(total.finish(sum(view.weights[peer] for peer in drawn.contributors)))


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
    place = (proof.group, proof.op, proof.slice_index, proof.chunk)
    if drawn is None or place != (plan.group, plan.op, drawn.slice_index, drawn.chunk):
        raise RemoteFault("proof", "it is not about what the ledger has drawn")
    assert isinstance(commit, Commit)  # or nothing is drawn
    index, outcome = drawn.slice_index, commit.slices[drawn.slice_index]
    if proof.shown.keys() != set(drawn.contributors):
        raise RemoteFault("proof", "parts are missing, or are nobody's")
    if not are_hashes(proof.chunk_hashes) or slice_root(proof.chunk_hashes) != outcome.root:
        raise RemoteFault("proof", "the published hashes are not those that were committed")
    if len(proof.chunk_hashes) != num_chunks(view.plan, index):
        raise RemoteFault("proof", "not one published hash per chunk")
    for peer, shown in proof.shown.items():
        if not is_shown(view, drawn, peer, shown):
            raise RemoteFault("proof", "a part is not what its contributor has signed")
        payload = contribution_payload(view.plan_hash, view.roots[peer].root)
        if not verify(peer, view.roots[peer].signature, payload):
            raise RemoteFault("proof", "a contributor's signature does not hold")
    inputs = inputs_of({peer: one.slice_roots[index] for peer, one in proof.shown.items()})
    payload = result_payload(view.plan_hash, index, outcome.attempt, outcome.root, inputs)
    if not verify(drawn.owner, commit.signatures[index], payload):
        raise RemoteFault("proof", "the owner has not signed this result of these parts")
    try:
        right = right_hash(view, drawn, proof.shown, arithmetic)
    except RemoteFault as fault:
        raise RemoteFault("proof", f"a part is illegal: {fault.reason}") from fault
    if right == proof.chunk_hashes[drawn.chunk]:
        raise RemoteFault("proof", "the sum is right")
    return drawn.owner
