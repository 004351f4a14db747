"""The fold that coordinator and peers share: the meaning of a chain of decisions.

Both sides read the same records into the same view, so a restarted coordinator and a late peer know
exactly what was decided, and nothing else is state (protocol.md, COORDINATOR STATE).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median_low

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.kinds import CLOCKS, PAIR, PAIRS_AT_ONCE, WHOLE
from swarmtrain_transport.ledger.cells import Cells
from swarmtrain_transport.ledger.inner_products import check_totals, vectors
from swarmtrain_transport.ledger.lineage import Lineage
from swarmtrain_transport.ledger.sample_weights import SampleCount
from swarmtrain_transport.ledger.signed_roots import are_hashes
from swarmtrain_transport.ledger.standing import Conduct, Standing, Words
from swarmtrain_transport.ledger.transfers import content_name, is_kept
from swarmtrain_transport.ledger.turns import are_apart
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import (
    PLANS_AT_HAND,
    AnyBody,
    Attest,
    Books,
    Checkpoint,
    Commit,
    Conviction,
    Extend,
    Freeze,
    Gone,
    Group,
    Join,
    Move,
    Plan,
    Reassign,
    Record,
    Rewind,
    Run,
    SignedRoot,
    Skip,
    SliceFreeze,
    Turn,
    Unban,
    pack_struct,
)
from swarmtrain_transport.wire.text_place import TextPlace

OpDecision = Reassign | Freeze | SliceFreeze | Commit | Skip
OfGroup = Plan | OpDecision | Attest | Rewind | Checkpoint
"""Records of one group's ops and states."""

LATER = {"is_later": True}
"""Metadata of a last field that came later: an image leaves it out where it is empty, so that the
images of runs without it have the bytes that they always had."""

COMMITS_KEPT = 4 * limits.RESULT_KEEP_OPS
"""Committed ops whose plans a view remembers, for joiners that replay; older ones are in the
ledger, and a joiner takes a newer snapshot."""


@lru_cache(maxsize=256)
def set_id(contributors: tuple[PeerId, ...]) -> int:
    """Names a set of contributors in 64 bits: the first 8 bytes of its hash."""
    return int.from_bytes(hashlib.sha256(b"".join(sorted(contributors))).digest()[:8], "little")


def edition(name: int, attempts: Sequence[int]) -> int:
    """Names, in cells, what is made of a set after some of these slices have gone to other owners:
    what was made of it before is void, as those may have summed other bytes than were signed."""
    if not any(attempts):
        return name
    data = name.to_bytes(8, "little") + bytes(attempts)
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def slice_root(chunk_hashes: tuple[bytes, ...]) -> bytes:
    """Root of one slice's result. Its preimage, the joined hashes, is itself a blob."""
    return content_hash(b"".join(chunk_hashes))


def result_root(commit: Commit) -> bytes:
    """Root of a whole result: plan, contributors per slice and slice roots."""
    digest = hashlib.sha256(commit.plan_hash + b"".join(sorted(commit.contributors)))
    for outcome in commit.slices:
        digest.update(pack_struct(outcome))
    return digest.digest()


def num_chunks(plan: Plan, slice_index: int) -> int:
    """Chunks of one slice; the last may be short."""
    spec = plan.slices[slice_index]
    return -(-(spec.stop - spec.start) // plan.chunk_values)


def chunk_range(plan: Plan, slice_index: int, chunk: int) -> tuple[int, int]:
    """Values [start, stop) of one chunk in the padded vector."""
    spec = plan.slices[slice_index]
    start = spec.start + chunk * plan.chunk_values
    return start, min(start + plan.chunk_values, spec.stop)


@lru_cache(PLANS_AT_HAND)
def window_of(plan: Plan) -> Window:
    """The plan's codecs, block, scale window and rule."""
    codecs = plan.codec, plan.result_codec
    return Window(codecs[0], plan.block, plan.e_min, plan.e_max, codecs[1], plan.rule)


@dataclass(slots=True)
class OpView:
    """One op as the ledger tells it so far.

    Attributes:
        plan, plan_hash: the PLAN record.
        owners: current owner per slice.
        attempts: current attempt per slice.
        tried: every owner that a slice has had.
        frozen: FREEZE's contributors, None before it.
        excluded: reason per excluded planned contributor.
        given_sets: contributors whose parts each slice's owner sums: those of its cell; None where
            they are not decided yet.
        slice_sets: contributors per slice, of all cells, None where they are not decided yet.
        outcome: COMMIT or SKIP; `outcome_hash` is the hash of that record.
        roots: roots that the contributors have signed, from FREEZE; in cells its sheets have them.
        sheets: hashes of FREEZE's sheets, one per cell.
        scalars: whole vectors' numbers that the rule needs, from FREEZE.
        words: accused peers and their accusers.
        bodies: bodies of the op's records, PLAN first, as they are in the ledger.
        unfit: peers that get no slice while others can, and the weight of what speaks against each.
        turns: turns of the run's subspace until PLAN.
        plan_id: first 8 bytes of the plan's hash: the fence of its data frames.
        weights: planned contributors and their weights.
        boots: boot id per planned member.
        all_planned_id: names the set of all planned contributors, the only one that may be
            foreseen (T3).
        cells: the cells of its members.
    """

    plan: Plan
    plan_hash: bytes
    owners: list[PeerId]
    attempts: list[int]
    tried: list[list[PeerId]]
    frozen: tuple[PeerId, ...] | None = None
    excluded: dict[PeerId, str] = field(default_factory=dict)
    given_sets: list[tuple[PeerId, ...] | None] = field(default_factory=list)
    outcome: Commit | Skip | None = None
    outcome_hash: bytes = b""
    roots: dict[PeerId, SignedRoot] = field(default_factory=dict)
    sheets: tuple[bytes, ...] = ()
    scalars: bytes = b""
    unfit: Mapping[PeerId, int] = field(default_factory=dict)
    bodies: list[bytes] = field(default_factory=list)
    turns: tuple[Turn, ...] = ()
    words: Words = field(init=False)
    plan_id: int = field(init=False)
    weights: Mapping[PeerId, int] = field(init=False)
    boots: Mapping[PeerId, bytes] = field(init=False)
    all_planned_id: int = field(init=False)
    cells: Cells = field(init=False)
    slice_sets: list[tuple[PeerId, ...] | None] = field(init=False)
    _givers: tuple[tuple[PeerId, ...], ...] = field(init=False)
    _given_ids: dict[int, int | None] = field(init=False, compare=False, repr=False)
    _result_ids: dict[int, int | None] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # PLAN never changes, and every frame and report asks for these.
        members = self.plan.members
        self.words = Words.of(self.plan)
        self.plan_id = int.from_bytes(self.plan_hash[:8], "little")
        self.weights = {m.peer: m.weight for m in members if m.weight}
        self.boots = {member.peer: member.boot for member in members}
        self.all_planned_id = set_id(tuple(self.weights))
        self.cells = Cells.in_plan(self.plan)
        self._givers = tuple(self.cells.among(self.weights, c) for c in range(self.cells.count))
        self._decided()

    @classmethod
    def of(
        cls, plan: Plan, plan_hash: bytes, unfit: Mapping[PeerId, int] | None = None
    ) -> "OpView":
        """The view right after PLAN."""
        owners = [spec.owner for spec in plan.slices]
        count = len(owners)
        tried = [[owner] for owner in owners]
        sets: list[tuple[PeerId, ...] | None] = [None] * count
        return cls(plan, plan_hash, owners, [0] * count, tried, given_sets=sets, unfit=unfit or {})

    def _decided(self) -> None:
        """Owners, attempts or sets are others now. Every frame and report asks for names of sets,
        so each is made once after it."""
        self._given_ids, self._result_ids = {}, {}
        self._join_sets()

    def _join_sets(self) -> None:
        """A slice has the contributors that all cells have given its range."""
        if self.cells.count == 1:
            self.slice_sets = self.given_sets
            return
        joined: list[tuple[PeerId, ...] | None] = []
        for first in range(0, len(self.given_sets), self.cells.count):
            given = self.given_sets[first : first + self.cells.count]
            known = [one for one in given if one is not None]
            is_known = len(known) == len(given)
            named = tuple(sorted(peer for one in known for peer in one)) if is_known else None
            joined += [named] * self.cells.count
        self.slice_sets = joined

    def givers(self, slice_index: int) -> tuple[PeerId, ...]:
        """Planned contributors whose parts go to the owner of a slice."""
        return self._givers[slice_index % self.cells.count]

    def given_set_id(self, slice_index: int) -> int | None:
        """Names the set whose parts the owner of a slice sums, or may sum: as `result_set_id`, of
        its cell alone."""
        if slice_index not in self._given_ids:
            self._given_ids[slice_index] = self._given_set_id(slice_index)
        return self._given_ids[slice_index]

    def _given_set_id(self, slice_index: int) -> int | None:
        given = self.given_sets[slice_index]
        if given is None and self.frozen is None and self.attempts[slice_index] == 0:
            given = self.givers(slice_index)
        attempts = self.attempts[slice_index : slice_index + 1] if given else ()
        return None if given is None else edition(set_id(given), attempts)

    def result_set_id(self, slice_index: int) -> int | None:
        """Names the set whose mean is the slice's, or that may still become so: before FREEZE the
        first attempt's result over all planned contributors may be published (T3)."""
        if slice_index not in self._result_ids:
            self._result_ids[slice_index] = self._result_set_id(slice_index)
        return self._result_ids[slice_index]

    def _result_set_id(self, slice_index: int) -> int | None:
        contributors = self.slice_sets[slice_index]
        attempts = [self.attempts[piece] for piece in self.cells.pieces(slice_index)]
        if contributors is not None:
            is_one = self.cells.count == 1
            return set_id(contributors) if is_one else edition(set_id(contributors), attempts)
        return self.all_planned_id if self.frozen is None and not any(attempts) else None

    @property
    def all_sheets(self) -> tuple[bytes, ...]:
        """Hashes of the sheets of FREEZE, and then of COMMIT."""
        of_commit = self.outcome.sheets if isinstance(self.outcome, Commit) else ()
        return self.sheets + of_commit

    def takes(self, peer: PeerId) -> bool:
        """Return True if the peer's part is in a slice of the result, as far as that is decided."""
        return any(peer in (named or ()) for named in self.slice_sets)

    def may_count(self, slice_index: int, attempt: int, name: int) -> bool:
        """Return True if a publication under this name is, or may still become, the slice's result;
        a contributor's own publication is named by its content (`transfers`)."""
        if not 0 <= slice_index < len(self.owners) or attempt != self.attempts[slice_index]:
            return False
        if self.plan.kind not in WHOLE:
            return name == self.result_set_id(slice_index)
        signed = self.roots.get(self.owners[slice_index])
        return self.frozen is None or (signed is not None and name == content_name(signed.root))

    def apply(self, body: OpDecision) -> None:
        """Fold one decision of this op.

        Raises:
            RemoteFault: reason ``order``: the coordinator contradicts itself.
        """
        if self.outcome is not None:
            raise RemoteFault("order", f"op {self.plan.op} already has an outcome")
        if isinstance(body, Commit):
            self._check_commit(body)
        if isinstance(body, Commit | Skip):
            self.outcome = body
        elif isinstance(body, Freeze):
            self._freeze(body)
        elif isinstance(body, Reassign):
            self._reassign(body)
        else:
            self._slice_freeze(body)
        if not isinstance(body, Commit):
            self.words.apply(body)

    def _freeze(self, body: Freeze) -> None:
        if self.frozen is not None:
            raise RemoteFault("order", f"second FREEZE of op {self.plan.op}")
        if not set(body.contributors) <= set(self.weights):
            raise RemoteFault("order", "FREEZE names a peer that was not planned")
        is_whole = self.plan.kind in WHOLE
        if is_whole and body.roots.keys() != set(body.contributors):
            raise RemoteFault("order", "FREEZE does not say what each contributor has published")
        self._check_sheets(body)
        check_totals(self.plan.scalars, vectors(body.contributors, self.plan.centre), body.scalars)
        self.frozen = tuple(sorted(body.contributors))
        self.excluded = dict(body.excluded)
        self.roots, self.scalars = dict(body.roots), body.scalars
        self.sheets = body.sheets
        given = [self.cells.among(self.frozen, cell) for cell in range(self.cells.count)]
        for index, attempt in enumerate(self.attempts):
            if attempt == 0:
                self.given_sets[index] = given[index % self.cells.count]
                if is_whole:
                    owner = self.owners[index]
                    self.given_sets[index] = (owner,) * self.frozen.count(owner)
        self._decided()

    def _check_sheets(self, body: Freeze | Commit) -> None:
        """A sheet for each cell, or none where there is one cell, or nobody can audit."""
        count = self.cells.count if self.cells.count > 1 else 0
        if len(body.sheets) not in (0, count) or not are_hashes(body.sheets):
            raise RemoteFault("order", f"{len(body.sheets)} sheets for {self.cells.count} cells")

    def _check_commit(self, body: Commit) -> None:
        """COMMIT repeats what FREEZE and SFREEZE have decided, so that it can be read alone; where
        contributions stay whole it names those of FREEZE's whose contributions are held."""
        self._check_sheets(body)
        sets = list(zip(self.attempts, self.slice_sets, strict=True))
        said = [(outcome.attempt, outcome.contributors) for outcome in body.slices]
        is_decided = body.contributors == self.frozen and said == sets
        if self.plan.kind in WHOLE:
            is_decided = is_kept(self.plan, self.frozen, self.roots, body)
        if body.plan_hash != self.plan_hash or not is_decided:
            raise RemoteFault("order", f"COMMIT of op {self.plan.op} is not what was decided")

    def _reassign(self, body: Reassign) -> None:
        index = body.slice_index
        if self.plan.kind in WHOLE:
            raise RemoteFault("order", "REASSIGN of a contribution, which has no other owner")
        if not 0 <= index < len(self.owners) or body.attempt != self.attempts[index] + 1:
            raise RemoteFault("order", f"REASSIGN of slice {index} to attempt {body.attempt}")
        if body.owner not in self.boots or body.owner in self.plan.keepers:
            raise RemoteFault("order", "REASSIGN names a peer that was not planned")
        if not self.cells.among([body.owner], index):
            raise RemoteFault("order", f"REASSIGN of slice {index} to a peer of another cell")
        self.owners[index] = body.owner
        self.attempts[index] = body.attempt
        self.tried[index].append(body.owner)
        self.given_sets[index] = None
        self._decided()

    def _slice_freeze(self, body: SliceFreeze) -> None:
        index = body.slice_index
        if not 0 <= index < len(self.owners) or body.attempt != self.attempts[index]:
            raise RemoteFault("order", f"SFREEZE of slice {index} names a stale attempt")
        if self.frozen is None or self.given_sets[index] is not None:
            raise RemoteFault("order", f"SFREEZE of slice {index} out of order")
        if not set(body.contributors) <= set(self.cells.among(self.frozen, index)):
            raise RemoteFault("order", "SFREEZE is not a subset of FREEZE in the slice's cell")
        self.given_sets[index] = tuple(sorted(body.contributors))
        self._decided()


@dataclass(slots=True)
class GroupView(Lineage):
    """The fold of one group's records; `Lineage` is what it says of states.

    Ops of a group begin in the order of their numbers and have their outcomes in that order too.
    Where peers meet by clocks outcomes come as they may: no two ops under way have a peer in
    common, and an op is nothing to whom it does not name.

    Attributes:
        group: number of the group.
        config_hash: hash of its settings.
        tag: names the group in draws: first 8 bytes of the hash of the record that began it.
        members: members, with the boot of the newest JOIN.
        op: the newest op that was planned.
        ops: all that have no outcome yet, oldest first, by plan id.
        commits: every committed op with its plan, for the last COMMITS_KEPT ops.
        last_outcome: hash of the record that decided `last_op`.
        rewinds: number of rewinds.
        standing: recent faults of the peers, counted in ops of this group.
        keepers: peers that keep its state and are not in it, with the boot of the newest JOIN.
        passed_over: times that a peer's first state was given up for another's, until an op is
            committed.
        early: ops by clocks that have an outcome while an older one has none.
        named: the newest op by clocks to which each peer was to give.
        guarded_op: newest op that the guard has not let begin (T22), 0 for none; `guarded` is how
            often it has gone back from there or from a little before.
    """

    group: int = FIRST_GROUP
    config_hash: bytes = b""
    tag: int = 0
    members: dict[PeerId, bytes] = field(default_factory=dict)
    samples: SampleCount = field(default_factory=SampleCount)
    standing: Standing = field(default_factory=Standing)
    op: OpView | None = None
    ops: dict[int, OpView] = field(default_factory=dict)
    commits: dict[int, OpView] = field(default_factory=dict)
    committed: int = 0
    last_outcome: bytes = b""
    genesis: Attest | None = None
    checkpoint: Checkpoint | None = None
    rewinds: int = 0
    keepers: dict[PeerId, bytes] = field(default_factory=dict, metadata=LATER)
    passed_over: dict[PeerId, int] = field(default_factory=dict, metadata=LATER)
    early: set[int] = field(default_factory=set, metadata=LATER)
    named: dict[PeerId, int] = field(default_factory=dict, metadata=LATER)
    guarded_op: int = field(default=0, metadata=LATER)
    guarded: int = field(default=0, metadata=LATER)

    def text_at(self, op: int) -> TextPlace | None:
        """Place of the run in its text when the op was planned that made the state after `op`;
        None where no text is leased, or that is too long ago."""
        made = self.commits.get(self.commit_at(op))
        return None if made is None else made.plan.text

    def apply(self, record: Record, body: OfGroup) -> None:
        """Fold one record of this group.

        Raises:
            RemoteFault: reason ``order``: the record contradicts earlier ones.
        """
        if isinstance(body, Plan):
            self._plan(record, body)
        elif isinstance(body, Attest):
            self._attest(record, body)
        elif isinstance(body, Rewind):
            self._rewind(record, body)
        elif isinstance(body, Checkpoint):
            self.checkpoint = body
        else:
            self._decide(record, body)

    @property
    def in_progress(self) -> OpView | None:
        """The oldest op that has no outcome yet, if any."""
        return next(iter(self.ops.values()), None)

    @property
    def next_op(self) -> int:
        """The op that would be planned next."""
        return self.last_op + len(self.ops) + len(self.early) + 1

    @property
    def most_ops(self) -> int:
        """Number of ops that may be under way at once: no two of them move the same values (rule
        9). Of pairs by clocks no two move the same peer's."""
        if self.by_clocks:
            return PAIRS_AT_ONCE
        return max(1, len(self.genesis.fragments)) if self.genesis is not None else 0

    # ---- pairs that meet by clocks

    @property
    def by_clocks(self) -> bool:
        """True if peers meet by clocks of their own."""
        return self.op is not None and self.op.plan.graph == CLOCKS

    def gives_to(self, peer: PeerId, op: int) -> bool:
        """Return True if an op by clocks may concern a peer: its PLAN names it, or is forgotten. A
        skipped one has changed nothing."""
        known = self.commits.get(op)
        if known is None:
            known = next((one for one in self.ops.values() if one.plan.op == op), None)
        return peer in known.weights if known is not None else op not in self.skips

    def passed(self, peer: PeerId, op: int) -> int:
        """Return the place of a peer that was at `op` when it last said so: where peers meet by
        clocks it passes every op that has no part for it as soon as that is planned."""
        newest = self.next_op - 1
        if not self.by_clocks or not 0 <= op < newest or self.named.get(peer, 0) > op:
            return op
        return newest

    def age(self, op: int, root: bytes) -> int:
        """Return the newest op that changed a state: of a peer that has told `root` as its root
        after `op`. By clocks a peer passes ops without a change, so `op` says nothing there, and
        all states but the run's first are as good: 1, and 0 for the first one."""
        if not self.by_clocks or op < 0:
            return self.commit_at(op)
        return int(self.genesis is not None and root != self.genesis.state_root)

    @property
    def busy(self) -> set[PeerId]:
        """Peers that are to give to an op under way."""
        return {peer for one in self.ops.values() for peer in one.weights}

    # ---- records

    def _plan(self, record: Record, body: Plan) -> None:
        if body.op != self.next_op or len(self.ops) >= self.most_ops:
            raise RemoteFault("order", f"PLAN of op {body.op} after op {self.last_op}")
        if body.graph == CLOCKS and not self.busy.isdisjoint(m.peer for m in body.members):
            raise RemoteFault("order", f"PLAN of op {body.op} names a peer of one under way")
        if body.previous_outcome != self.last_outcome:
            raise RemoteFault("order", f"PLAN of op {body.op} names another history")
        if not set(body.keepers) <= self.keepers.keys():
            raise RemoteFault("order", f"PLAN of op {body.op} names a keeper that is none")
        if not all(map(self.standing.lateness.is_beyond, body.unawaited)):
            raise RemoteFault("order", f"PLAN of op {body.op} leaves out somebody who was on time")
        unfit = self.standing.unfit(body.op, [member.peer for member in body.members])
        self.op = OpView.of(body, record.hash, unfit)
        self.op.bodies.append(record.body)
        self.ops[self.op.plan_id] = self.op
        self.goes_by_pairs = body.kind == PAIR
        if body.graph == CLOCKS:
            self.named.update(dict.fromkeys(self.op.weights, body.op))

    def _decide(self, record: Record, body: OpDecision) -> None:
        op = next((one for one in self.ops.values() if one.plan.op == body.op), None)
        if op is None:
            raise RemoteFault("order", f"{type(body).__name__} of op {body.op} without its PLAN")
        is_in_turn = body.op == self.last_op + 1 or op.plan.graph == CLOCKS
        if isinstance(body, Commit | Skip) and not is_in_turn:
            raise RemoteFault("order", f"outcome of op {body.op} after op {self.last_op}")
        op.apply(body)
        op.bodies.append(record.body)
        if isinstance(body, Commit):
            self.commits[body.op] = op
            self.commits.pop(body.op - COMMITS_KEPT, None)
            self.committed += 1
            self.passed_over.clear()
            self.samples.committed(op.plan, body)
            if self.goes_by_pairs:
                self.exchanged(op.plan, body)
        elif isinstance(body, Skip):
            self.skips[body.op] = msgspec.structs.replace(body, excluded={}, accusers={})
            self.forget_before(body.op)
        if op.outcome is not None:
            self.standing.ended(op.plan, op.words, op.outcome, self.next_op - 1)
            del self.ops[op.plan_id]
            self.early.add(body.op)
            while self.last_op + 1 in self.early:
                self.last_op += 1
                self.early.discard(self.last_op)
            self.last_outcome = op.outcome_hash = record.hash

    def _attest(self, record: Record, body: Attest) -> None:
        if body.op > max(0, self.last_op) and body.op not in self.commits:
            raise RemoteFault("order", f"ATTEST of op {body.op} before its COMMIT")
        self.attested(body)
        if body.op == 0:
            self.genesis = body
            self.last_op, self.last_outcome = 0, record.hash

    def _rewind(self, record: Record, body: Rewind) -> None:
        if self.ops or not -1 <= body.op < self.last_op:
            raise RemoteFault("order", f"REWIND to op {body.op} after op {self.last_op}")
        if body.passed_over and (body.op >= 0 or self.last_op):
            raise RemoteFault("order", "REWIND passes over a first state that is the run's")
        if body.losses:
            self._guard(body)
        for peer in body.passed_over:
            self.passed_over[peer] = self.passed_over.get(peer, 0) + 1
        if body.op < 0:
            self.genesis = None
        later = range(body.op + 1, self.last_op + 1)
        self.committed -= sum(op > 0 and op not in self.skips for op in later)
        self.cancelled(later)
        for op in later:
            self.commits.pop(op, None)
        if self.checkpoint is not None and self.checkpoint.op > body.op:
            self.checkpoint = None
        self.named = {peer: min(op, max(0, body.op)) for peer, op in self.named.items()}
        self.rewinds += 1
        self.samples.rewound(body.op)
        self.standing.rewound(body.op)
        self.last_op, self.last_outcome = body.op, record.hash

    def _guard(self, body: Rewind) -> None:
        """The guard goes back: most must have told a loss above the bound."""
        if body.op < 0 or not 0 < body.bound < median_low(body.losses.values()):
            raise RemoteFault("order", f"REWIND to op {body.op} without a leap of the loss")
        if body.times < 1 or self.goes_by_pairs:
            raise RemoteFault("order", f"REWIND to op {body.op} that is no guard's")
        self.guarded_op, self.guarded = max(self.guarded_op, self.next_op), body.times

    @property
    def holders(self) -> dict[PeerId, bytes]:
        """Members and keepers: who may hold a state of the group, or a result."""
        return {**self.members, **self.keepers}

    def commits_since(self, op: int) -> int:
        """Count the results that lead from the state after `op` to the newest."""
        return sum(number > op for number in self.commits)


@dataclass(slots=True)
class LedgerView:
    """The fold of all records: who is in the run, and a view per group.

    Attributes:
        run: record 0.
        run_tag: fence of all data frames of this run.
        groups: groups by number; group 0 begins with the run.
        roster: peers that are in, with their newest JOIN; `join_index` is that record's index.
        names: newest name of every peer that ever came, for people.
        curve_holders: first peer that came with each CURVE key; it stays theirs when they leave.
        convicted: peers that have published a wrong sum, each with that sum.
        banned: keys that the organiser keeps out.
        placed: the groups that MOVE has put a key in last, where those are not group 0 alone; kept
            when it is gone.
        booked: sums of all BOOKS: ``made``, ``whole``, ``lost`` and ``redone``.
        books: the newest, None in a run without stages.
        rounds: rounds after which the run is over, by the newest EXTEND; 0: as its settings say.
        turns: all turns of the run's subspace, in their order.
    """

    run: Run | None = None
    run_tag: int = 0
    groups: dict[int, GroupView] = field(default_factory=lambda: {FIRST_GROUP: GroupView()})
    roster: dict[PeerId, Join] = field(default_factory=dict)
    join_index: dict[PeerId, int] = field(default_factory=dict)
    invite_uses: dict[str, set[PeerId]] = field(default_factory=dict)
    ever_members: set[PeerId] = field(default_factory=set)
    names: dict[PeerId, str] = field(default_factory=dict)
    curve_holders: dict[bytes, PeerId] = field(default_factory=dict)
    convicted: dict[PeerId, Conviction] = field(default_factory=dict)
    banned: set[PeerId] = field(default_factory=set)
    placed: dict[PeerId, tuple[int, ...]] = field(default_factory=dict, metadata=LATER)
    booked: dict[str, int] = field(default_factory=dict, metadata=LATER)
    books: Books | None = field(default=None, metadata=LATER)
    rounds: int = field(default=0, metadata=LATER)
    turns: tuple[Turn, ...] = field(default=(), metadata=LATER)

    def apply(self, record: Record, body: AnyBody) -> None:
        """Fold one record that the ledger has verified.

        Raises:
            RemoteFault: reason ``order``: the record contradicts earlier ones.
        """
        if isinstance(body, Join):  # the most frequent ones first
            self._join(record, body)
        elif isinstance(body, Gone):
            self._gone(body)
        elif isinstance(body, OfGroup):
            self._of_group(record, body)
        elif isinstance(body, Unban):
            self.banned.discard(body.peer)
        elif isinstance(body, Move):
            self._move(body)
        elif isinstance(body, Group):
            self._group(record, body)
        elif isinstance(body, Books):
            self._book(body)
        elif isinstance(body, Extend):
            if body.rounds <= self.rounds:
                raise RemoteFault("order", f"EXTEND to {body.rounds} rounds after {self.rounds}")
            self.rounds = body.rounds
        elif isinstance(body, Run):
            self.run = body
            self.run_tag = self.first.tag = _tag_of(record)
            self.first.config_hash = body.config_hash

    @property
    def first(self) -> GroupView:
        """Group 0: in a run of one group all that is exchanged."""
        return self.groups[FIRST_GROUP]

    @property
    def progress_s(self) -> float:
        """Seconds between two PROGRESS of a peer that is in no op: by the number of peers, which
        all know."""
        times = -(-len(self.roster) // limits.PROGRESS_PEERS)
        return min(limits.PROGRESS_MAX_S, limits.PROGRESS_S * max(1, times))

    def group_of(self, body: OfGroup) -> GroupView:
        """The view of the group that a record names.

        Raises:
            RemoteFault: reason ``order``: there is no such group.
        """
        group = self.groups.get(body.group)
        if group is None:
            raise RemoteFault("order", f"{type(body).__name__} of group {body.group}, unknown")
        return group

    def groups_of(self, peer: PeerId) -> tuple[int, ...]:
        """Numbers of the groups that a peer is in, in ascending order."""
        return tuple(number for number, group in self.groups.items() if peer in group.members)

    def keeps_of(self, peer: PeerId) -> tuple[int, ...]:
        """Numbers of the groups whose state a peer keeps, in ascending order."""
        return tuple(number for number, group in self.groups.items() if peer in group.keepers)

    def groups_at_join(self, peer: PeerId) -> tuple[int, ...]:
        """Numbers of the groups that a peer is in when it JOINs: those that it was placed in last,
        also if it was gone since."""
        return self.placed.get(peer, (FIRST_GROUP,))

    def conduct_of(self, peer: PeerId) -> Conduct:
        """Add up how a peer has behaved in each group."""
        told = Conduct()
        for group in self.groups.values():
            one = group.standing.conducts.get(peer, Conduct())
            told.left_out.update(one.left_out)
            told.accused_by.update(one.accused_by)
        return told

    def _of_group(self, record: Record, body: OfGroup) -> None:
        group = self.group_of(body)
        if isinstance(body, Plan) and body.turns != len(self.turns):
            raise RemoteFault("order", f"PLAN after {body.turns} of {len(self.turns)} turns")
        group.apply(record, body)
        if isinstance(body, Plan) and group.op is not None:
            group.op.turns = self.turns

    def _group(self, record: Record, body: Group) -> None:
        if body.group != len(self.groups):
            raise RemoteFault("order", f"GROUP {body.group} after {len(self.groups)} groups")
        view = GroupView(group=body.group, config_hash=body.config_hash, tag=_tag_of(record))
        self.groups[body.group] = view

    def _join(self, record: Record, body: Join) -> None:
        if body.peer in self.banned:
            raise RemoteFault("order", "JOIN of a banned key")
        for number in self.groups_at_join(body.peer):
            self.groups[number].members[body.peer] = body.boot
        for number in self.keeps_of(body.peer):
            self.groups[number].keepers[body.peer] = body.boot
        self.roster[body.peer] = body
        self.join_index[body.peer] = record.index
        self.ever_members.add(body.peer)
        self.names[body.peer] = body.name
        self.curve_holders.setdefault(body.curve_key, body.peer)
        if body.invite:
            self.invite_uses.setdefault(body.invite, set()).add(body.peer)

    def _move(self, body: Move) -> None:
        join, named = self.roster.get(body.peer), {*body.groups, *body.keeps}
        are_sorted = all(one == tuple(sorted({*one})) for one in (body.groups, body.keeps))
        is_twice = len(named) < len(body.groups) + len(body.keeps)
        if join is None or not body.groups or not are_sorted or is_twice or named - {*self.groups}:
            raise RemoteFault("order", f"MOVE to groups {body.groups[:8]}, keeps {body.keeps[:8]}")
        for number, group in self.groups.items():
            for peers, numbers in (group.members, body.groups), (group.keepers, body.keeps):
                if number in numbers:
                    peers[body.peer] = join.boot
                else:
                    peers.pop(body.peer, None)
        if body.groups == (FIRST_GROUP,):
            self.placed.pop(body.peer, None)
        else:
            self.placed[body.peer] = body.groups

    def _book(self, body: Books) -> None:
        if self.books is not None and body.round <= self.books.round:
            raise RemoteFault("order", f"BOOKS of round {body.round} after {self.books.round}")
        if (turn := body.turn) is not None:
            is_due = turn.op == self.first.next_op and len(self.turns) < limits.TURNS_MAX
            if not (is_due and are_apart(turn.planes)):
                raise RemoteFault("order", f"BOOKS of round {body.round} with an illegal turn")
            self.turns += (turn,)
        self.books = body
        for group in self.groups.values():
            waited = {peer: ms for peer, ms in body.waited.items() if peer in group.members}
            group.standing.lateness.waited(waited)
        lost, redone = sum(body.lost.values()), sum(body.redone.values()) + body.voided
        new = {"made": body.made, "whole": body.whole, "lost": lost, "redone": redone}
        self.booked = {name: self.booked.get(name, 0) + count for name, count in new.items()}

    def _gone(self, body: Gone) -> None:
        self.roster.pop(body.peer, None)
        self.join_index.pop(body.peer, None)
        for group in self.groups.values():
            group.members.pop(body.peer, None)
            group.keepers.pop(body.peer, None)
        if body.conviction is not None:
            self.convicted[body.peer] = body.conviction
        if body.is_ban:
            self.banned.add(body.peer)


def _tag_of(record: Record) -> int:
    return int.from_bytes(record.hash[:8], "little")
