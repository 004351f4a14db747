"""A source's own part: which micro-batches it makes, and the one permission that each may have.

Forwards may be repeated and permit nothing. All ends of a micro-batch's routes ask its source, and
the source lets exactly one of them begin the way back, for ever: so no stage counts it twice,
however often it was sent again. Nothing is asked of the peers between. An end shows the secret that
has travelled with the micro-batch, or a member that was sent nothing could take the permission.
"""

import hmac
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.wire.messages import Reason
from swarmtrain_transport.pipeline.wire.orders import Drained, Made, marks
from swarmtrain_transport.pipeline.wire.route import Boot, Fence, MicroBatch, Process, Slot

End = tuple[Process, Slot | None]
"""An end of a route; the source itself has no slot."""


@dataclass(slots=True)
class _Made:
    """One micro-batch of ours.

    Attributes:
        end: the end that has the permission.
        is_over: True if it came back or is lost.
        reason: reason for which it is lost.
    """

    end: End | None = None
    is_over: bool = False
    reason: Reason | None = None


@dataclass(slots=True)
class Source:
    """A peer that makes micro-batches.

    Args:
        peer: key of the peer.
        boot: boot of its present life.
        seed: seed of the secrets; nobody else knows it.
    """

    peer: PeerId
    boot: Boot
    seed: bytes
    _made: dict[MicroBatch, _Made] = field(default_factory=dict)
    _fence: Fence = (-1, 0, 0)
    _todo: int = 0
    _number: int = 0
    _is_drained: bool = True

    def begin(self, round: int, step: int, attempt: int, share: int) -> None:
        """Make so many micro-batches for this step of the round."""
        self._fence = (round, step, attempt)
        self._todo = share
        self._is_drained = share == 0

    def more(self, round: int, share: int) -> None:
        """Make so many more of the round, whose steps are free."""
        if self._fence != (round, 0, 0):
            self.begin(round, 0, 0, 0)
        self._todo += share
        self._is_drained = self._is_drained and not share

    def stop(self) -> None:
        """Make no more: the round is closed."""
        self._todo = 0
        self._is_drained = True

    def make(self) -> MicroBatch | None:
        """The name of the next micro-batch; None if there is nothing to make."""
        if not self._todo:
            return None
        self._todo -= 1
        self._number += 1
        micro_batch = MicroBatch(self.peer, self.boot, *self._fence, self._number)
        self._made[micro_batch] = _Made()
        return micro_batch

    def secret(self, micro_batch: MicroBatch) -> bytes:
        """The secret of one of ours."""
        which = (micro_batch.judged, micro_batch.round, micro_batch.number)
        named = self.boot + b"".join(number.to_bytes(8, "big") for number in which)
        return hmac.digest(self.seed, named, "sha256")[: limits.SECRET_BYTES]

    def end_of(self, micro_batch: MicroBatch) -> Process | None:
        """The process that has the permission for one of ours."""
        made = self._made.get(micro_batch)
        return made.end[0] if made is not None and made.end is not None else None

    def permits(self, micro_batch: MicroBatch, secret: bytes, end: End) -> bool:
        """Return True if this end may begin the way back: it has the secret, and is the first that
        asks, or has asked before; and the micro-batch has not ended."""
        made = self._made.get(micro_batch)
        is_known = hmac.compare_digest(secret, self.secret(micro_batch))
        if made is None or made.is_over or not is_known:
            return False
        if made.end is None:
            made.end = end
        return made.end == end

    def has_permitted(self, micro_batch: MicroBatch) -> bool:
        """Return True if some end has the permission for one of ours."""
        return self._made[micro_batch].end is not None

    def is_next(self, micro_batch: MicroBatch) -> bool:
        """Return True if all that were made before it in its step have the permission, or ended."""
        return all(
            made.is_over or made.end is not None
            for name, made in self._made.items()
            if name.fence == micro_batch.fence and name.number < micro_batch.number
        )

    def over(self, micro_batch: MicroBatch, reason: Reason | None) -> None:
        """The micro-batch came back, or is lost for a reason."""
        made = self._made[micro_batch]
        made.is_over, made.reason = True, reason

    def drained(self) -> Drained | None:
        """The report, once, when all that was to be made has ended."""
        if self._is_drained or self._todo:
            return None
        mine = [made for name, made in self._made.items() if name.fence == self._fence]
        if not all(made.is_over for made in mine):
            return None
        self._is_drained = True
        lost = sum(made.reason is not None for made in mine)
        return Drained(*self._fence, len(mine), lost)

    def forget(self, round: int, step: int, attempt: int) -> None:
        """The step is void: its micro-batches were never made."""
        fence = (round, step, attempt)
        self._made = {name: made for name, made in self._made.items() if name.fence != fence}

    def close(self, round: int) -> Made:
        """The ends of all that was made up to the round, which are forgotten then."""
        ended = {name: made for name, made in self._made.items() if name.round <= round}
        self._made = {name: made for name, made in self._made.items() if name.round > round}
        lost: dict[Reason, set[int]] = {}
        whole = set()
        for name, made in ended.items():
            reason = made.reason if made.is_over else Reason.CLOSED
            if reason is None:
                whole.add(name.number)
            else:
                lost.setdefault(reason, set()).add(name.number)
        return Made(marks(whole), {reason: marks(them) for reason, them in sorted(lost.items())})
