"""Invariants of a run under any faults, read from its ledger and from the words of its peers.

Pure: records and events in, violations out. The names are those of protocol.md where it has one;
invariants that need the bytes of parts and accumulators are the simulator's affair.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from swarmtrain.foundation.events import RoundEnded, StateInPlace
from swarmtrain_transport.wire.records import (
    AnyBody,
    Attest,
    Commit,
    Freeze,
    Plan,
    Record,
    Rewind,
    Skip,
)


class Violation(msgspec.Struct, frozen=True):
    """A broken rule. The story names who, which round and what."""

    invariant: str
    story: str


@dataclass(slots=True)
class Life:
    """One process of a peer, and what it said of its state in order.

    Attributes:
        peer: key of the peer in hex, "" until it was in.
        told: states that were put in place and rounds that ended.
    """

    name: str
    peer: str = ""
    told: list[StateInPlace | RoundEnded] = field(default_factory=list)


@dataclass(slots=True)
class Chain:
    """Decisions of a ledger.

    Attributes:
        outcomes: outcome that stands per op at the end.
        attests: attested state roots per op, in hex.
        ever: all outcomes that an op has had; more than one only after a REWIND.
        cancelled: ops whose outcome a REWIND cancelled at some time.
    """

    outcomes: dict[int, Commit | Skip] = field(default_factory=dict)
    attests: dict[int, str] = field(default_factory=dict)
    ever: dict[int, list[Commit | Skip]] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    rewinds: int = 0

    @property
    def commits(self) -> int:
        """Ops that were committed."""
        return sum(isinstance(outcome, Commit) for outcome in self.outcomes.values())


def read_chain(bodies: Iterable[AnyBody]) -> tuple[Chain, list[Violation]]:
    """Return the decisions of the records, and where they contradict each other."""
    reader = _Reader()
    for body in bodies:
        reader.take(body)
    return reader.chain, reader.found


class _Reader:
    """Reads a chain without the machines' own fold, so that a fault of it does not hide here."""

    def __init__(self) -> None:
        self.chain = Chain()
        self.found: list[Violation] = []
        self._plan: Plan | None = None
        self._frozen: tuple[bytes, ...] | None = None

    def take(self, body: AnyBody) -> None:
        """The next record."""
        match body:
            case Plan():
                if self._plan is not None:
                    self._say("I1", f"round {self._plan.op} was planned and has no outcome")
                expected = max(self.chain.outcomes, default=0) + 1
                if body.op != expected:
                    self._say("I1", f"round {body.op} was planned after round {expected - 1}")
                self._plan, self._frozen = body, None
            case Freeze():
                if self._frozen is not None:
                    self._say("I6", f"round {body.op} was frozen twice")
                self._frozen = body.contributors
            case Commit() | Skip():
                self._outcome(body)
            case Attest():
                self.chain.attests[body.op] = body.state_root.hex()
            case Rewind():
                self._rewind(body)

    def _outcome(self, body: Commit | Skip) -> None:
        if body.op in self.chain.outcomes:
            self._say("I1", f"round {body.op} has two outcomes")
        if self._plan is None or self._plan.op != body.op:
            self._say("I1", f"round {body.op} has an outcome and was not planned")
        elif isinstance(body, Commit):
            self._commit(self._plan, body)
        self._plan = None
        self.chain.outcomes[body.op] = body
        self.chain.ever.setdefault(body.op, []).append(body)

    def _commit(self, plan: Plan, body: Commit) -> None:
        planned = {member.peer for member in plan.members if member.weight}
        if self._frozen is None or set(self._frozen) != set(body.contributors):
            self._say("I6", f"round {body.op} was committed with others than were frozen")
        if not set(body.contributors) <= planned:
            self._say("I6", f"round {body.op} names a contributor that was not planned")
        for index, piece in enumerate(body.slices):
            named = set(piece.contributors)
            if not named <= set(body.contributors):
                self._say("I6", f"round {body.op}, slice {index}: a contributor is not frozen")
            if len(named) < plan.min_contributors:
                self._say("I6", f"round {body.op}, slice {index}: only {len(named)} contributors")
            if len(named) < len(piece.contributors):
                self._say("I4", f"round {body.op}, slice {index}: a contributor counts twice")

    def _rewind(self, body: Rewind) -> None:
        chain = self.chain
        later = [op for op in chain.outcomes if op > body.op]
        chain.rewinds += 1
        chain.cancelled.update(later)
        for op in later:
            del chain.outcomes[op]
            chain.attests.pop(op, None)

    def _say(self, invariant: str, story: str) -> None:
        self.found.append(Violation(invariant, story))


def check_copy(name: str, copy: Sequence[Record], whole: Sequence[Record]) -> Iterator[Violation]:
    """A peer's ledger is a part of the coordinator's: there is one history."""
    if len(copy) > len(whole):
        yield Violation("I1", f"{name} holds {len(copy)} records, the coordinator {len(whole)}")
    for mine in copy:
        if mine.index < len(whole) and mine.hash != whole[mine.index].hash:
            yield Violation("I1", f"record {mine.index} of {name} is not the coordinator's")
            return


def check_life(life: Life, chain: Chain) -> Iterator[Violation]:
    """Rounds follow each other without a gap and none twice, and each ended as the ledger says."""
    newest: int | None = None
    for told in life.told:
        if isinstance(told, StateInPlace):
            if newest is not None and told.round < newest and newest not in chain.cancelled:
                story = f"{life.name} went back from round {newest} to {told.round}"
                yield Violation("once", f"{story} without a REWIND")
        else:
            if newest is None or told.round != newest + 1:
                yield Violation("once", f"{life.name} ended round {told.round} after {newest}")
            yield from _check_outcome(life, told, chain)
        newest = told.round


def _check_outcome(life: Life, told: RoundEnded, chain: Chain) -> Iterator[Violation]:
    outcomes = chain.ever.get(told.round, [])
    wanted = Skip if told.outcome == "skipped" else Commit
    fitting = [outcome for outcome in outcomes if isinstance(outcome, wanted)]
    if not fitting:
        kind = "SKIP" if wanted is Skip else "COMMIT"
        story = f"{life.name} ended round {told.round} as {told.outcome}; no {kind} is in the chain"
        yield Violation("I1", story)
    elif told.outcome in ("merged", "left-out"):
        is_in = any(
            bytes.fromhex(life.peer) in piece.contributors
            for outcome in fitting if isinstance(outcome, Commit)
            for piece in outcome.slices
        )  # fmt: skip
        if told.outcome == "merged" and not is_in:
            story = f"{life.name} merged round {told.round}, which does not name it"
            yield Violation("I9", story)


def check_roots(lives: Iterable[Life], chain: Chain) -> Iterator[Violation]:
    """After each round all peers hold the state that the ledger attests, or else the same one.

    Rounds that were once cancelled are left out: they may have had two results.
    """
    first: dict[int, tuple[str, str]] = {}
    for life in lives:
        for told in life.told:
            if not isinstance(told, RoundEnded) or told.round in chain.cancelled:
                continue
            attested = chain.attests.get(told.round, told.root)
            name, root = first.setdefault(told.round, (life.name, told.root))
            if told.root != root:
                story = f"after round {told.round} {life.name} holds {told.root[:16]}"
                yield Violation("I2", f"{story}, {name} holds {root[:16]}")
            if told.root != attested:
                story = f"after round {told.round} {life.name} holds {told.root[:16]}"
                yield Violation("I2", f"{story}, attested is {attested[:16]}")


def common_state(lives: Mapping[str, Life]) -> tuple[int, dict[str, str]]:
    """The newest round that all these lives have ended, and the state root of each after it;
    -1 and nothing where there is none."""
    roots = {
        name: {told.round: told.root for told in life.told if isinstance(told, RoundEnded)}
        for name, life in lives.items()
    }
    shared = set.intersection(*(set(found) for found in roots.values())) if roots else set()
    if not shared:
        return -1, {}
    newest = max(shared)
    return newest, {name: found[newest] for name, found in roots.items()}
