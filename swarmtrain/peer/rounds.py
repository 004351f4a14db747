"""How a round ended for one peer, in a form that people and programs are told."""

from dataclasses import dataclass

from swarmtrain.peer.driver import Driver
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.result import OpResult


@dataclass(frozen=True, slots=True)
class RoundReport:
    """How one round ended for this peer.

    Attributes:
        round: its number.
        outcome: ``merged``, ``left-out``, ``replayed``, ``followed`` or ``skipped``; of a pair op
            ``merged`` with a partner, ``alone``, or ``followed``.
        contributors: how many peers are in the result (of its first slice), this one's pair.
        reason: why, where it was skipped.
        partner: with whom, in a pair op.
        chain: of pair ops, this peer's chain after it, the same at its partner.
    """

    round: int
    outcome: str
    contributors: int
    reason: str = ""
    partner: PeerId = b""
    chain: bytes = b""


def report_of(result: OpResult, driver: Driver, *, took_part: bool, me: PeerId) -> RoundReport:
    """How a committed op ended for this peer."""
    if driver.is_paired and not result.slices:
        outcome, contributors = ("alone", 1) if driver.is_alone else ("followed", 0)
        return RoundReport(result.op, outcome, contributors)
    named = result.ranges[0][2]
    outcome = "merged" if driver.included else "left-out"
    if result.replayed or not took_part:
        outcome = "replayed" if result.replayed else "followed"
    partner = next((peer for peer in named if peer != me), b"") if driver.is_paired else b""
    return RoundReport(result.op, outcome, len(named), partner=partner, chain=result.chain)
