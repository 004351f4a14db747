"""Ends of rounds for one peer, in a form that people and programs are told."""

from dataclasses import dataclass

from swarmtrain.console.lines import counted
from swarmtrain.foundation.events import RoundEnded
from swarmtrain_transport.links.link import PeerId


@dataclass(frozen=True, slots=True)
class RoundReport:
    """Report of how one round ended for this peer.

    Attributes:
        round: number of the round.
        outcome: ``merged``, ``left-out``, ``replayed``, ``followed`` or ``skipped``; of a pair op
            ``merged`` with a partner, ``alone``, or ``followed``.
        contributors: number of peers in the result (of its first slice), or in this one's pair.
        reason: reason, where it was skipped.
        partner: partner in a pair op.
        chain: this peer's chain after a pair op, the same at its partner.
    """

    round: int
    outcome: str
    contributors: int
    reason: str = ""
    partner: PeerId = b""
    chain: bytes = b""

    def event(self, root: bytes, *, stage: int = 0, loss: float | None = None) -> RoundEnded:
        """Return the event of the round's end for programs.

        Args:
            root: this peer's state root after the round.
            stage: stage of the round, where the model is in stages.
            loss: this peer's own then, None if nobody knows it.
        """
        return RoundEnded(
            self.round, self.outcome, self.contributors, root.hex(), self.partner.hex(),
            self.chain.hex(), stage, loss,
        )  # fmt: skip


def in_words(report: RoundReport) -> str:
    """Say how the round ended for this peer, as a sentence that needs no other."""
    others, work = report.contributors - 1, f"the work of {counted(report.contributors, 'peer')}"
    match report.outcome:
        case "merged" if report.partner:
            said = f"averaged with {report.partner.hex()[:8]}"
        case "merged" if others == 0:
            said = "nobody else was in it, so its result is this peer's work alone"
        case "merged":
            said = f"averaged with {counted(others, 'other peer')}"
        case "left-out":
            said = f"its result is {work}, without this peer's, which is kept for the next round"
        case "replayed":
            said = f"caught up with its result, {work}"
        case "followed" if report.contributors:
            said = f"took its result over, {work}; this peer gave nothing to it"
        case "followed":
            said = "passed; the others have exchanged in pairs"
        case "alone":
            said = "a step alone, without a partner or without the whole half of one"
        case _:
            said = f"skipped, {report.reason}; this peer's work is kept"
    return f"round {report.round}: {said}"
