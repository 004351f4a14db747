"""A small swarm of two groups whose states are kept by others where members are few."""

from collections.abc import Iterable
from typing import Any

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.blocks.shelf import MemoryShelf
from swarmtrain_transport.coordinator.ops.planning import RunTerms
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire.messages import Brings
from swarmtrain_transport.wire.records import Commit, Move, Record, Rewind, Skip, bodies_of
from tests.transport.group_swarm import GroupMember, GroupSwarm
from tests.transport.plain_arithmetic import PlainArithmetic
from tests.transport.rig import RUN_KEY, sign, sign_as, terms_of, verify

DISK_BYTES = 1 << 20


class KeeperMember(GroupMember):
    """One peer's process with a disk for the states of others."""

    def __init__(
        self, peer: PeerId, boot: bytes, now_s: float, arithmetic: PlainArithmetic | None,
        records: Iterable[Record], shelf: MemoryShelf, disk_bytes: int,
    ) -> None:  # fmt: skip
        super().__init__(peer, boot, now_s, arithmetic)
        card = Card(
            peer, boot, "name", peer, "127.0.0.1", 4000 + peer[0],
            brings=Brings(disk_bytes=disk_bytes),
        )  # fmt: skip
        self.machine = Participant(
            card, arithmetic or PlainArithmetic(), sign_as(peer), verify, list, records, now_s,
            shelf=shelf,
        )  # fmt: skip


class KeeperSwarm(GroupSwarm):
    """Two groups of which each is to have three holders.

    Args:
        seed: of the order in which messages arrive.
        without_room: peers that keep nothing.
    """

    def __init__(self, seed: int, without_room: Iterable[PeerId] = (), **terms: Any) -> None:
        self.shelves: dict[PeerId, MemoryShelf] = {}
        self.without_room = set(without_room)
        super().__init__(seed, **{"holders": limits.HOLDERS, **terms})

    def _new_hall(self) -> Rendezvous:
        settings = {name: getattr(self.terms, name) for name in RunTerms.__slots__}
        return Rendezvous(
            self.terms, RUN_KEY, tuple(self.records), sign, verify, self.term, self.now_s,
            more_groups=(terms_of(**settings | {"group": 1}),),
        )  # fmt: skip

    def member_of(
        self, peer: PeerId, boot: bytes, records: Iterable[Record],
        arithmetic: PlainArithmetic | None,
    ) -> KeeperMember:  # fmt: skip
        shelf = self.shelves.setdefault(peer, MemoryShelf())
        room = 0 if peer in self.without_room else DISK_BYTES
        return KeeperMember(peer, boot, self.now_s, arithmetic, records, shelf, room)

    def keepers(self, group: int) -> set[PeerId]:
        """Who keeps a group's state, by the ledger."""
        return set(self.hall.view.groups[group].keepers)

    def outcomes(self, group: int) -> list[Commit | Skip | Rewind]:
        """All that was decided on a group's ops, in order."""
        bodies = bodies_of(self.records)
        return [
            one for one in bodies if isinstance(one, Commit | Skip | Rewind) and one.group == group
        ]

    def moves(self) -> list[Move]:
        return [body for body in bodies_of(self.records) if isinstance(body, Move)]

    def until(self, is_so: Any, steps: int = 30_000) -> bool:
        for _ in range(steps):
            if is_so():
                return True
            self.step()
        return False


def replaced(body: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(body, **changes)
