"""A whole small swarm whose ops go by pairs: what each peer has exchanged is kept beside it.

A peer gives its difference and then its state's low bits. A step with a partner is not the step of
a group of one, and neither is linear, so two peers have the same root only by the same history.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from swarmtrain_transport import actions as do
from swarmtrain_transport.ledger.pairing import whole_pairs
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.frames import FrameKind
from swarmtrain_transport.wire.records import Attest, Commit, Plan, Skip, bodies_of
from tests.transport.plain_arithmetic import PlainContribution, decode_part
from tests.transport.swarm import VALUES, Member, Swarm

SOLO = 5


class PairMember(Member):
    """One peer's process; `steps` says of every op what it was to this peer.

    Attributes:
        steps: op to the partner's half, () for the step of a group of one, None for none.
        chains: op to the chain after it.
    """

    def __init__(self, *args, **settings) -> None:
        super().__init__(*args, **settings)
        self.steps: dict[int, tuple[int, ...] | None] = {}
        self.partners: dict[int, PeerId] = {}
        self.chains: dict[int, bytes] = {}
        self._given = -1

    def difference(self, op: int) -> PlainContribution:
        self._given = op
        difference = [self.peer[0] * 100 + op * 10 + i for i in range(VALUES)]
        return PlainContribution(difference + [number % 1000 for number in self.numbers])

    def after(self, result: OpResult) -> list[int]:
        assert result.kind == "pair" and result.weights is None
        assert result.num_values == 2 * VALUES
        old = self.numbers
        if not result.slices:
            is_solo = self._given == result.op
            self.steps[result.op] = () if is_solo else None
            return [(3 * number + SOLO) & 0xFFFFFFFF for number in old] if is_solo else old
        (half,) = result.slices
        assert self._given == result.op and self.peer in half.contributors
        assert (half.start, half.stop) == (0, result.num_values)
        given = tuple(value for chunk in half.chunks for value in decode_part(chunk))
        self.steps[result.op] = given
        (self.partners[result.op],) = set(half.contributors) - {self.peer}
        self.chains[result.op] = result.chain
        moved, anchor = given[:VALUES], given[VALUES:]
        return [
            (3 * number + value + 7 * other) & 0xFFFFFFFF
            for number, value, other in zip(old, moved, anchor, strict=True)
        ]

    def is_new(self, key: tuple[int, int], root: bytes) -> bool:
        self.roots[key] = root
        return True


class PairSwarm(Swarm):
    """A swarm of pair ops, whose peers send ahead what they know.

    Attributes:
        frames: how many of each kind were sent.
    """

    member_type = PairMember

    def __init__(self, seed: int, **terms) -> None:
        self.frames: Counter[FrameKind] = Counter()
        super().__init__(seed, **{"kind": "pair", "exact": True, "min_contributors": 2, **terms})

    def bodies(self, *kinds: type) -> list:
        bodies = bodies_of(self.records)
        return [body for body in bodies if isinstance(body, kinds)]

    @property
    def outcomes(self) -> list[Commit | Skip]:
        return self.bodies(Commit, Skip)

    @property
    def attested(self) -> list[Attest]:
        return self.bodies(Attest)

    def _applied(self, member: Member, op: int) -> None:
        super()._applied(member, op)
        if member.peer in self.members:
            known = PlainContribution([0] * VALUES + [number % 1000 for number in member.numbers])
            self._carry(member, member.machine.give_ahead(op + 1, known, VALUES, self.now_s))

    def _carry(self, member: Member, actions: Iterable[do.PeerAction]) -> None:
        actions = tuple(actions)
        self.frames.update(one.frame.kind for one in actions if isinstance(one, do.SendFrame))
        super()._carry(member, actions)

    def until(self, is_so: Callable[[], bool], steps: int) -> bool:
        """Go on until something is so; whether that came within so many steps."""
        for _ in range(steps):
            if is_so():
                return True
            self.step()
        return False

    def pairs(self) -> dict[int, list[tuple[PeerId, PeerId]]]:
        """Per committed op who has exchanged with whom."""
        plans = {plan.op: plan for plan in self.bodies(Plan)}
        commits = {commit.op: commit for commit in self.bodies(Commit)}
        return {op: whole_pairs(plans[op], commit) for op, commit in commits.items()}

    def check_exchanges(self) -> None:
        """Partners have given each other what they say, and their chains are equal."""
        members = {**{one.peer: one for one in self.dead}, **self.members}
        for op, pairs in self.pairs().items():
            for first, second in pairs:
                for me, other in ((first, second), (second, first)):
                    mine = members[me]
                    if op not in mine.partners:
                        continue  # it died, or came back with another state
                    assert mine.partners[op] == other
                    assert mine.chains[op] and mine.chains[op] == (
                        members[other].chains.get(op, mine.chains[op])
                    )
            paired = {peer for pair in pairs for peer in pair}
            for peer, member in members.items():
                assert peer in paired or member.steps.get(op) in ((), None)
