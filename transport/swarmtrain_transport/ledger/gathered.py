"""Slices, names and outcome where contributions stay whole: of gather and pair ops.

Slice j is contributor j's own contribution, whole: its owner is j for good, its only attempt is 0,
and nothing was summed for it. So a publication is named by its content: the first 8 bytes of its
root take the place of the contributors' set id. A HAVE that was meant for other bytes of the same
contributor, before a coordinator's restart, counts for nothing then.

Pure functions of the plan and of signatures.
"""

from collections.abc import Collection, Mapping, Sequence

from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger.pairing import whole_pairs
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Commit, Plan, SignedRoot, SliceOutcome, SliceSpec

NOTHING_SUMMED = b""
"""Inputs that a contributor signs for its own contribution."""


def gathered_slices(contributors: Sequence[PeerId], num_values: int) -> tuple[SliceSpec, ...]:
    """A slice for each contributor: the whole of what the op moves."""
    return tuple(SliceSpec(0, num_values, peer) for peer in contributors)


def content_name(root: bytes) -> int:
    """Names what a contributor has published, in 64 bits."""
    return int.from_bytes(root[:8], "little")


def outcome_of(
    owners: Sequence[PeerId], roots: Mapping[PeerId, SignedRoot], kept: Collection[PeerId]
) -> tuple[SliceOutcome, ...]:
    """Return COMMIT's outcome of each slice: a kept contributor stands for itself, the others for
    nothing.

    Args:
        owners: of the slices, in order.
        roots: what FREEZE's contributors have signed.
        kept: of these, those whose contributions are held; all of them are in `roots`.
    """
    return tuple(
        SliceOutcome(0, (peer,), roots[peer].root) if peer in kept else SliceOutcome(0, (), b"")
        for peer in owners
    )


def is_kept(
    plan: Plan,
    frozen: Sequence[PeerId] | None,
    roots: Mapping[PeerId, SignedRoot],
    commit: Commit,
) -> bool:
    """Return True if COMMIT names some of FREEZE's contributors, enough of them, with the roots
    that they have signed; of a pair op, both of each pair.

    Args:
        plan: of the op.
        frozen: FREEZE's contributors, None before it.
        roots: what they have signed.
        commit: to be checked.
    """
    kept = set(commit.contributors)
    owners = [spec.owner for spec in plan.slices]
    paired = {peer for pair in whole_pairs(plan, commit) for peer in pair}
    return (
        frozen is not None
        and commit.contributors == tuple(peer for peer in frozen if peer in kept)
        and len(kept) >= max(1, plan.min_contributors)
        and commit.slices == outcome_of(owners, roots, kept & roots.keys())
        and (plan.kind != PAIR or paired == kept)
    )
