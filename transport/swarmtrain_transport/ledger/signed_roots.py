"""Signed payloads of contributors and owners, so that a wrong sum can be shown to anybody.

A contribution is a Merkle tree of two wide levels: the hashes of a slice's encoded chunks make its
slice root, the slice roots make the contribution root. The contributor signs that root while it
sends, and the coordinator takes nobody into FREEZE without it. Every owner hashes what arrives and
reports the slice root per contributor; only what equals the signed one counts as complete. So a
contributor that sends other bytes than it signed is left out before anything depends on it, and an
honest owner never sums what its contributors could deny.

An owner signs the root of its result together with the slice roots of what it has summed: with the
chunks below them that is one sum, right or wrong (protocol.md, Trust). `audit` looks at it.

Level by level the plan fixes how many hashes there are, so no level passes for another.
"""

from collections.abc import Mapping, Sequence

from swarmtrain_transport import limits
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.links.link import PeerId

SIGNATURE_BYTES_MAX = 64

_CONTRIBUTION = b"swarmtrain contribution 1\0"
_RESULT = b"swarmtrain result 1\0"


def root_over(hashes: Sequence[bytes]) -> bytes:
    """One hash that stands for all of these, in order: a level of the tree."""
    return content_hash(b"".join(hashes))


def contribution_payload(plan_hash: bytes, root: bytes) -> bytes:
    """Return the bytes that a contributor signs: its contribution root under this very plan."""
    return _CONTRIBUTION + plan_hash + root


def inputs_of(slice_roots: Mapping[PeerId, bytes]) -> bytes:
    """One hash over what an owner has summed: a slice root per contributor; in cells of all but the
    owner, whose own part is in its sums."""
    return root_over([part for pair in sorted(slice_roots.items()) for part in pair])


def made_of(inputs: bytes, sums: Sequence[bytes]) -> bytes:
    """One hash over all that an owner answers for: in cells also the sums that it names
    (`cell_sums`)."""
    return root_over((inputs, *sums)) if sums else inputs


def result_payload(
    plan_hash: bytes, slice_index: int, attempt: int, slice_root: bytes, inputs: bytes
) -> bytes:
    """Return the bytes that an owner signs: this result of (slice, attempt) is the mean of these
    inputs (`made_of`)."""
    place = slice_index.to_bytes(4, "little") + attempt.to_bytes(4, "little")
    return _RESULT + plan_hash + place + slice_root + inputs


def is_signature(data: bytes) -> bool:
    """Return True if it has a signature's length, before anybody spends time on it."""
    return 0 < len(data) <= SIGNATURE_BYTES_MAX


def are_hashes(values: Sequence[bytes]) -> bool:
    """Return True if all of them have a hash's length."""
    return all(len(value) == limits.HASH_BYTES for value in values)
