"""A whole small swarm of several groups, each with a layout, a state and ops of its own.

Every peer's process is one production machine, and so is the coordinator. As in `swarm`, a step is
not linear, so two peers have the same root only if they applied the same results in the same order.
"""

import struct
from collections.abc import Iterable
from typing import Any

from swarmtrain_transport import actions as do
from swarmtrain_transport.blocks.manifest import ArraySpec, StateManifest, describe_state
from swarmtrain_transport.coordinator.ops.planning import RunTerms
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.records import Record
from tests.transport.plain_arithmetic import PlainArithmetic, PlainContribution, decode_result
from tests.transport.rig import RUN_KEY, sign, terms_of, verify
from tests.transport.swarm import Member, Swarm

SIZES = (24, 40)
"""Values per group."""

Place = tuple[int, int]
"""(group, op)."""


def layout_of(group: int) -> bytes:
    return bytes([76 + group]) * 32


class Stage:
    """One peer's state in one group."""

    def __init__(self, group: int, peer: PeerId, fragments: tuple[int, ...]) -> None:
        self.group = group
        self.fragments = fragments
        self.numbers = [peer[0]] * SIZES[group]
        self.given = 0
        self.saved: dict[int, list[int]] = {}

    def described(self) -> tuple[StateManifest, tuple[bytes, ...]]:
        count = len(self.numbers)
        data = struct.pack(f"<{count}I", *(number & 0xFFFFFFFF for number in self.numbers))
        specs = (ArraySpec("anchor", count),)
        manifest, chunks = describe_state(layout_of(self.group), specs, data)
        return manifest, tuple(bytes(chunk) for chunk in chunks)

    def load(self, chunks: Iterable[bytes], op: int) -> None:
        raw = b"".join(chunks)
        self.numbers = list(struct.unpack(f"<{len(self.numbers)}I", raw))
        self.given = op

    def moved_by(self, op: int) -> range:
        """Places of the values that an op moves."""
        if not self.fragments:
            return range(len(self.numbers))
        turn = (op - 1) % len(self.fragments)
        start = sum(self.fragments[:turn])
        return range(start, start + self.fragments[turn])

    def step(self, result: OpResult) -> None:
        new = []
        for piece in result.slices:
            for chunk in piece.chunks:
                sums, weight = decode_result(chunk)
                new += [value + 31 * weight for value in sums]
        for place, value in zip(self.moved_by(result.op), new, strict=True):
            self.numbers[place] = (3 * self.numbers[place] + value) & 0xFFFFFFFF


class GroupMember(Member):
    """One peer's process with a trainer for each group that it is in."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.stages: dict[int, Stage] = {}
        self.ended: set[int] = set()


class GroupSwarm(Swarm):
    """Two groups.

    Args:
        seed: of the order in which messages arrive.
        fragments: of each group; () for none.
        at_once: how many ops of one group may be under way.
    """

    member_type = GroupMember

    def __init__(
        self, seed: int, fragments: tuple[tuple[int, ...], ...] = ((), ()), at_once: int = 1,
        **terms: Any,
    ) -> None:  # fmt: skip
        self.fragments, self.at_once = fragments, at_once
        self.roots: dict[tuple[int, int, int], bytes] = {}
        self.most_under_way: set[tuple[int, int]] = set()
        super().__init__(seed, ops_at_once=at_once, **terms)

    def _new_hall(self) -> Rendezvous:
        config = self.terms.config_hash
        changes = {"ops_at_once": self.at_once, "config_hash": config, "group": 1}
        settings = {name: getattr(self.terms, name) for name in RunTerms.__slots__} | changes
        return Rendezvous(
            self.terms, RUN_KEY, tuple(self.records), sign, verify, self.term, self.now_s,
            more_groups=(terms_of(**settings),),
        )  # fmt: skip

    def add_to(self, peer: PeerId, *groups: int, arithmetic: PlainArithmetic | None = None) -> None:
        """A peer that is in these groups as soon as it is in."""
        member = self._begin(peer, arithmetic=arithmetic)
        self._attach(member, 0)
        if groups != (0,):
            self.move(peer, *groups)

    def _begin(
        self, peer: PeerId, records: Iterable[Record] = (),
        arithmetic: PlainArithmetic | None = None, saved: Iterable[tuple[int, bytes, int]] = (),
    ) -> GroupMember:  # fmt: skip
        self._boots += 1
        boot = f"boot {self._boots}".encode()
        member = self.members[peer] = self.member_of(peer, boot, records, arithmetic)
        for state in saved:
            member.machine.saved(*state)
        self._carry(member, member.machine.start(self.now_s))
        self.connect(peer)
        return member

    def member_of(
        self, peer: PeerId, boot: bytes, records: Iterable[Record],
        arithmetic: PlainArithmetic | None,
    ) -> GroupMember:  # fmt: skip
        return GroupMember(peer, boot, self.now_s, arithmetic, records)

    def come_back(self, old: GroupMember, **saved: int) -> None:
        """A peer that was killed begins anew with its copy of the ledger and, of each group, the
        newest state up to an op, `g0=3` for group 0's up to op 3; all newest ones unless told."""
        self.load_saved(self._begin(old.peer, old.machine.ledger.since(0)), old, **saved)

    def come_back_slowly(self, old: GroupMember) -> GroupMember:
        """The same, but its states are still being loaded: HELLO alone tells of them."""
        told = []
        for group, stage in old.stages.items():
            kept = Stage(group, old.peer, ())
            kept.numbers = stage.saved[max(stage.saved)]
            told.append((max(stage.saved), kept.described()[0].root, group))
        return self._begin(old.peer, old.machine.ledger.since(0), saved=told)

    def load_saved(self, member: GroupMember, old: GroupMember, **saved: int) -> None:
        for group in member.machine.groups:
            stage = old.stages.get(group)
            newest = saved.get(f"g{group}", 1 << 30)
            ops = [op for op in stage.saved if op <= newest] if stage is not None else []
            self._attach(member, group, max(ops, default=0), stage.saved[max(ops)] if ops else None)

    def move(self, peer: PeerId, *groups: int) -> None:
        self._heed(self.hall.place(peer, groups, self.now_s))

    def step(self) -> None:
        super().step()
        counts = tuple(len(group.operations) for group in self.hall.groups.values())
        self.most_under_way.add(counts)  # type: ignore[arg-type]  # two groups

    def _attach(
        self, member: GroupMember, group: int, op: int = 0, numbers: list[int] | None = None
    ) -> None:
        stage = member.stages[group] = Stage(group, member.peer, self.fragments[group])
        stage.numbers = list(numbers or stage.numbers)
        actions = member.machine.attach(
            op, *stage.described(), 1, self.now_s, stage.fragments, group
        )
        self._carry(member, actions)

    def _carry(self, member: Member, actions: Iterable[do.PeerAction]) -> None:
        assert isinstance(member, GroupMember)
        for action in actions:
            match action:
                case do.Moved():
                    for group in member.stages.keys() - set(action.groups):
                        del member.stages[group]
                    for group in set(action.groups) - member.stages.keys():
                        self._attach(member, group)
                case do.LoadState():
                    member.stages[action.group].load(action.chunks, action.op)
                    self._applied_in(member, action.group, action.op)
                case do.ApplyResult():
                    result = action.result
                    member.stages[result.group].step(result)
                    if result.replayed:
                        member.replayed.append(result.op)
                    self._applied_in(member, result.group, result.op)
                case do.OpSkipped():
                    self._give(member, action.group, action.op)
                case do.RunFinished():
                    member.ended.add(action.group)
                    member.finished = member.ended >= member.stages.keys()
                case _:
                    super()._carry(member, [action])

    def _applied_in(self, member: GroupMember, group: int, op: int) -> None:
        manifest, chunks = member.stages[group].described()
        member.stages[group].saved[op] = list(member.stages[group].numbers)
        key = (group, member.machine.view.groups[group].rewinds, op)
        assert self.roots.setdefault(key, manifest.root) == manifest.root, key
        self._carry(member, member.machine.applied(op, manifest, chunks, self.now_s, group))
        self._give(member, group, op)

    def _give(self, member: GroupMember, group: int, op: int) -> None:
        """READY of all ops that may be under way after this one."""
        stage = member.stages.get(group)
        if stage is None:
            return
        at_once = min(self.at_once, len(stage.fragments) or 1)
        for later in range(max(stage.given, op) + 1, op + at_once + 1):
            stage.given = later
            values = [member.peer[0] * 100 + later * 10 + place for place in stage.moved_by(later)]
            contribution = PlainContribution(values)
            self._carry(
                member, member.machine.ready(later, contribution, 8, self.now_s, 0.0, group)
            )
