"""The result that an op must have: the mean of exactly the contributors that COMMIT names, summed
plainly, or the result of a rule over their whole vectors."""

from collections.abc import Callable

import torch
from torch import Tensor

from swarmtrain.peer.arithmetic import TensorContribution
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain_optimizers.robust import rule_named
from swarmtrain_transport.kinds import GATHER
from swarmtrain_transport.ledger.fold import chunk_range, num_chunks, window_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.records import Commit, Plan

_TINY = 2.0**-100


class NamedSums:
    """Results made again from what every peer has given.

    Args:
        decode: a result's values; it may be shared with the peers.

    Attributes:
        parts: values that were given, by op, peer and boot.
    """

    def __init__(self, decode: Callable[[OpResult], Tensor]) -> None:
        self.parts: dict[tuple[int, PeerId, bytes], OwnPart] = {}
        self._decode = decode
        self._decoded: dict[tuple[int, PeerId], Tensor] = {}
        self._results: dict[int, Tensor] = {}

    def forget(self, oldest: int) -> None:
        """Parts that no result can still name are many, and large. By clocks a process may wait for
        long with its newest."""
        if oldest > 0:
            newest = {key[1:]: key for key in sorted(self.parts)}
            self.parts = {
                key: part
                for key, part in self.parts.items()
                if key[0] >= oldest or newest[key[1:]] == key
            }
            self._decoded = {key: part for key, part in self._decoded.items() if key[0] >= oldest}

    def brought_up(self, plan: Plan) -> None:
        """An op by clocks takes what each of the two has given last, to an op that it was not named
        by."""
        for member in plan.members:
            given = (member.peer, member.boot)
            ops = [key[0] for key in self.parts if key[1:] == given and key[0] <= plan.op]
            if ops:
                self.parts[plan.op, *given] = self.parts[max(ops), *given]

    def rewound(self, op: int) -> None:
        """Later ops are given to again, under other plans."""
        self._decoded = {key: part for key, part in self._decoded.items() if key[0] <= op}

    def wrong_chunks(self, commit: Commit, plan: Plan, result: OpResult) -> list[tuple[int, int]]:
        """(slice, chunk) of all that is not the mean of the named contributors, rounded as
        protocol.md rule 6 says."""
        if plan.kind == GATHER:
            return self._wrong_means(commit, plan, result)
        mean = torch.empty(result.num_values, dtype=torch.float64)
        # Slices with the same contributors are summed together: usually it is all of them.
        sums: dict[tuple[PeerId, ...], Tensor] = {}
        for piece, outcome in zip(result.slices, commit.slices, strict=True):
            named = outcome.contributors
            if named not in sums:
                sums[named] = self._mean_of(commit.op, named, plan)
            mean[piece.start : piece.stop] = sums[named][piece.start : piece.stop]
        wanted = TensorContribution(mean.float()).decoded(0, result.num_values, window_of(plan))
        found = self._decode(result)
        if plan.rule:
            self._results[plan.op] = found
        if _agree(wanted, found, plan):
            return []
        places = [(i, k) for i in range(len(plan.slices)) for k in range(num_chunks(plan, i))]
        parts = [(place, slice(*chunk_range(plan, *place))) for place in places]
        return [place for place, here in parts if not _agree(wanted[here], found[here], plan)]

    def _wrong_means(self, commit: Commit, plan: Plan, result: OpResult) -> list[tuple[int, int]]:
        """(0, chunk) of all that is not the mean of the contributions that COMMIT names, rounded
        once: with codecs of exact sums that is whatever order they are summed in."""
        wanted = self._mean_of(commit.op, commit.contributors, plan).float()
        wanted[wanted.abs() < _TINY] = 0.0
        found = self._decode(result)
        parts = [
            (chunk, slice(*chunk_range(plan, 0, chunk))) for chunk in range(num_chunks(plan, 0))
        ]
        return [(0, chunk) for chunk, here in parts if not same_bits(wanted[here], found[here])]

    def _mean_of(self, op: int, named: tuple[PeerId, ...], plan: Plan) -> Tensor:
        weights = {member.peer: member.weight for member in plan.members}
        if plan.rule:
            rows = [self.decoded(op, peer, plan).float() for peer in named]
            centre = self._results[plan.centre] if plan.centre else None
            counted = [weights[peer] for peer in named]
            return rule_named(plan.rule).aggregate(rows, counted, previous=centre).double()
        return self.total_of(op, named, plan) / sum(weights[peer] for peer in named)

    def total_of(self, op: int, named: tuple[PeerId, ...], plan: Plan) -> Tensor:
        """Sum what these peers have given, each times its weight, float64."""
        weights = {member.peer: member.weight for member in plan.members}
        total = torch.zeros(plan.slices[-1].stop, dtype=torch.float64)
        for peer in named:
            total += self.decoded(op, peer, plan) * weights[peer]
        return total

    def decoded(self, op: int, peer: PeerId, plan: Plan) -> Tensor:
        """A peer's whole part as the others decode it, float64."""
        key = (op, peer)
        if key not in self._decoded:
            boots = {member.peer: member.boot for member in plan.members}
            contribution = self.parts[(op, peer, boots[peer])].contribution
            whole = contribution.decoded(0, plan.slices[-1].stop, window_of(plan))
            self._decoded[key] = whole.double()
        return self._decoded[key]


def _agree(wanted: Tensor, found: Tensor, plan: Plan) -> bool:
    """Return True if a result is as it must be: to the bit, and with a rule of whole vectors, which
    owners follow with numbers that were added in another order, to a step of int8."""
    if same_bits(wanted, found):
        return True
    apart = (wanted - found).abs().max()
    return bool(plan.scalars) and bool(apart <= wanted.abs().max() / 64)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Equality in which a NaN is equal to itself."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
