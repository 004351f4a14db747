"""History of each peer, from the ledger: when it came, what it gave, why it was left out.

The fold keeps only what decisions need. This is for people: read from the records when somebody
asks, from where the last question stopped. Names of peers that have gone are known here alone.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import (
    AnyBody,
    Commit,
    Freeze,
    Gone,
    Join,
    Move,
    Plan,
    Rewind,
    Skip,
    Unban,
)

REASONS_MAX = 16
"""Different reasons that are counted per peer: an owner may refuse with words of its own."""

OTHER = "other"

REWOUND_MAX = 1_000
"""Newest rounds whose contributors are kept: those that a REWIND may take back."""

NO_PARTNER = "alone"
"""Reason in FREEZE of who was left over by the draw of pairs, which is nobody's fault."""


@dataclass(slots=True)
class PeerHistory:
    """One peer's.

    Attributes:
        name: name that it gave itself when it came last.
        invite: id of the invite that it came with first.
        group: first of the groups that it is in.
        since_round, since_group: round in progress in `group` when it came last.
        is_in: True if it is in the roster.
        contributed: committed rounds that have its part.
        streak: those since it was last left out.
        excluded: rounds that it was planned for and left out of.
        reasons: number of exclusions for each reason.
        last_reason, last_round, last_group: facts of the newest exclusion, or of its going.
    """

    name: str = ""
    invite: str = ""
    group: int = FIRST_GROUP
    since_round: int = 0
    since_group: int = FIRST_GROUP
    is_in: bool = False
    contributed: int = 0
    streak: int = 0
    excluded: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    last_reason: str = ""
    last_round: int = 0
    last_group: int = FIRST_GROUP


class PeerHistories:
    """Histories from records in order, one per key that was ever let in or banned."""

    def __init__(self) -> None:
        self.of: dict[PeerId, PeerHistory] = {}
        self.num_read = 0
        """Records that were read."""
        self._rounds: Counter[int] = Counter()
        """The newest round of each group."""
        self._given: deque[tuple[int, int, tuple[PeerId, ...]]] = deque(maxlen=REWOUND_MAX)
        """Group, round and contributors of the newest rounds."""

    def read(self, body: AnyBody) -> None:
        """The next record."""
        self.num_read += 1
        match body:
            case Plan():
                self._rounds[body.group] = body.op
            case Join():
                history = self._history(body.peer)
                if not history.is_in:
                    history.since_round = self._rounds[history.group] + 1
                    history.since_group = history.group
                history.name, history.is_in = body.name, True
                history.invite = history.invite or body.invite
            case Move():
                self._history(body.peer).group = body.groups[0]
            case Gone():
                history = self._history(body.peer)
                history.is_in = False
                newest = self._rounds[history.group]
                _suffered(history, body.reason or "left", newest, history.group)
            case Unban():
                self._history(body.peer).last_reason = ""
            case Freeze() | Skip():
                for peer, reason in body.excluded.items():
                    if reason != NO_PARTNER:
                        self._excluded(self._history(peer), reason, body)
            case Rewind():
                self._take_back(body)
            case Commit():
                self._given.append((body.group, body.op, body.contributors))
                for peer in body.contributors:
                    history = self._history(peer)
                    history.contributed, history.streak = (
                        history.contributed + 1,
                        history.streak + 1,
                    )

    def _take_back(self, rewind: Rewind) -> None:
        given = list(self._given)
        self._given.clear()
        for one in given:
            group, op, peers = one
            if group != rewind.group or op <= rewind.op:
                self._given.append(one)
                continue
            for history in map(self._history, peers):
                history.contributed -= 1
                history.streak = max(0, history.streak - 1)

    @staticmethod
    def _excluded(history: PeerHistory, reason: str, body: Freeze | Skip) -> None:
        is_listed = reason in history.reasons or len(history.reasons) < REASONS_MAX
        history.reasons[reason if is_listed else OTHER] += 1
        history.excluded, history.streak = history.excluded + 1, 0
        _suffered(history, reason, body.op, body.group)

    def _history(self, peer: PeerId) -> PeerHistory:
        return self.of.setdefault(peer, PeerHistory())


def _suffered(history: PeerHistory, reason: str, op: int, group: int) -> None:
    history.last_reason, history.last_round, history.last_group = reason, op, group
