"""GOT, HAVE and HASHES of ops in cells: said together, and nothing of it too late."""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.actions import PeerAction
from swarmtrain_transport.collective.withheld import Withheld
from swarmtrain_transport.coordinator.ops import announcing
from swarmtrain_transport.coordinator.ops.reports import Reports
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import OpView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import (
    CoordinatorMessage,
    Hashes,
    Have,
    HaveRow,
    each_of,
)
from tests.transport.cells_rig import peers_of, plan_in_cells
from tests.transport.rig import view_of
from tests.transport.test_cell_swarm import PEERS, cell_swarm


def have(index: int, *, is_whole: bool = True) -> Have:
    return Have(7, index, 0, 5, (is_whole,), bytes(32))


def test_what_is_here_is_said_together_and_soon() -> None:
    withheld = Withheld(3)
    withheld.hold([have(0, is_whole=False)], 10.0)
    withheld.hold([have(0)], 10.05)
    withheld.hold_got(1, 10.06)
    assert withheld.due_s == 10.0 + limits.CELL_SAY_S and withheld.owned == {1}
    (said,) = withheld.take()
    assert said == have(0), "the newest word of each slice"
    assert withheld.take() == [] and withheld.due_s == float("inf")


def test_the_last_slice_is_said_at_once() -> None:
    withheld = Withheld(2)
    withheld.hold([have(0)], 10.0)
    withheld.hold([have(1)], 10.01)
    assert withheld.due_s == 10.01
    (said,) = withheld.take()
    assert [one.slice_index for one in each_of(said)] == [0, 1]


# ---- at the coordinator


class Held(Reports):
    """Reports of which all that is told of stands."""

    def stands(self, news: Hashes) -> bool:
        return True


def reports() -> Held:
    return Held(view_of(plan_in_cells(peers_of(8))))


def news_of(view: OpView, index: int, attempt: int = 0) -> Hashes:
    return Hashes(view.plan_id, index, attempt, view.all_planned_id or 0, (bytes(32),))


def taken(told: Held, now_s: float) -> dict[PeerId, list[int]]:
    due = announcing.take_due(told, PEERS, now_s)
    return {peer: [one.slice_index for one in each_of(news)] for peer, news in due}


def test_hashes_of_what_is_pushed_go_to_those_alone_who_have_not_said_that_they_hold_it() -> None:
    told = reports()
    for index in (0, 1):
        announcing.published(told, news_of(told.view, index), 0.0)
    for peer in PEERS[1:]:
        told.held_s.setdefault((0, 0), {})[peer] = 0.5
    for peer in PEERS[2:]:
        told.held_s.setdefault((1, 0), {})[peer] = 0.5
    assert taken(told, 0.9 * limits.CELL_HASHES_S) == {}
    assert taken(told, limits.CELL_HASHES_S) == {PEERS[0]: [0, 1], PEERS[1]: [1]}
    assert taken(told, 99.0) == {} and announcing.due_s(told) == float("inf")


def test_hashes_of_what_nobody_pushes_go_soon() -> None:
    told = reports()
    announcing.published(told, news_of(told.view, 0), 0.0)
    announcing.published(told, news_of(told.view, 1, attempt=1), 0.0)
    assert announcing.due_s(told) == limits.CELL_SAY_S
    assert set(map(tuple, taken(told, limits.CELL_SAY_S).values())) == {(1,)}


def test_hashes_of_huge_slices_go_in_as_many_messages_as_they_need() -> None:
    half = (bytes(32),) * (limits.CELL_HASHES_AT_ONCE // 2)
    told = [Hashes(7, index, 0, 5, half) for index in range(5)]
    sent = list(announcing.in_batches(told))
    assert [len(news.more) for news in sent] == [1, 1, 0]
    assert [one for news in sent for one in each_of(news)] == told


def test_have_of_more_slices_than_there_are_is_refused() -> None:
    told, rows = reports(), (HaveRow(0, 0, 5, (True,), b""),) * 8
    with pytest.raises(RemoteFault, match="HAVE of 9 slices"):
        told.hear(PEERS[0], Have(told.view.plan_id, 0, 0, 5, (True,), more=rows), 0.0)
    told.hear(PEERS[0], Have(told.view.plan_id, 0, 0, 5, (True,), more=rows[1:]), 0.0)


# ---- a whole swarm


def test_members_are_told_of_several_slices_at_once() -> None:
    swarm, told = cell_swarm(1), list[Hashes]()
    send = swarm.hall.writer.send

    def note(peer: PeerId, message: CoordinatorMessage) -> None:
        if isinstance(message, Hashes):
            told.append(message)
        send(peer, message)

    swarm.hall.writer.send = note  # type: ignore[method-assign]
    assert swarm.run(200_000)
    slices, rounds = len(PEERS), 4
    assert len(told) < rounds * len(PEERS) * slices / 4


def test_to_whom_nothing_is_pushed_asks_once_it_hears_what_there_is() -> None:
    swarm = cell_swarm(1, rounds=2)
    machine = swarm.members[PEERS[3]].machine
    take = machine.frame

    def lose(peer: PeerId, frame: Frame, now_s: float) -> tuple[PeerAction, ...]:
        return () if frame.kind is FrameKind.RESULT else take(peer, frame, now_s)

    machine.frame = lose  # type: ignore[method-assign]
    assert swarm.run(400_000)
    assert swarm.members[PEERS[3]].finished
