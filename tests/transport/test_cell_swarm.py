"""A whole swarm of the pure machines in cells: its ledger, its sheets, and who has them."""

import msgspec
import pytest

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import OpView
from swarmtrain_transport.ledger.signed_roots import contribution_payload
from swarmtrain_transport.wire.messages import Records, Sheet, decode_from_coordinator
from swarmtrain_transport.wire.records import Commit, Freeze, Skip, bodies_of
from swarmtrain_transport.wire.sheets import roots_in, signatures_in
from tests.transport.cells_rig import next_in_cells, peers_of
from tests.transport.rig import begun_chain, commit_of, verify
from tests.transport.swarm import Swarm

PEERS = peers_of(8)


def cell_swarm(seed: int, rounds: int = 4) -> Swarm:
    swarm = Swarm(seed, rounds=rounds, start_peers=8, cell_peers=4)
    for peer in PEERS:
        swarm.add(peer)
    return swarm


def newest_of(swarm: Swarm) -> OpView:
    view = swarm.members[PEERS[0]].machine.view.first
    return view.commits[max(view.commits)]


@pytest.mark.parametrize("seed", range(3))
def test_members_have_the_sheets_of_their_cell_and_records_have_none(seed: int) -> None:
    swarm = cell_swarm(seed)
    assert swarm.run(200_000)
    assert not any(isinstance(body, Skip) for body in bodies_of(swarm.records))
    op = newest_of(swarm)
    assert isinstance(op.outcome, Commit) and op.cells.count == 2
    assert not op.roots and not op.outcome.signatures and len(op.all_sheets) == 4
    for peer in PEERS:
        member = swarm.members[peer].machine
        assert not member.stats.ignored["sheet"]
        cell = op.cells.cell_of(peer)
        of_freeze, of_commit = (member.first.blobs.get(op.all_sheets[i]) for i in (cell, cell + 2))
        assert of_freeze is not None and of_commit is not None
        assert op.all_sheets[1 - cell] not in member.first.blobs
        near = op.cells.among(op.frozen or (), cell)
        for other, signed in roots_in(of_freeze, near).items():
            assert verify(other, signed.signature, contribution_payload(op.plan_hash, signed.root))
        assert all(signatures_in(of_commit, len(op.owners) // 2))


def test_a_sheet_that_no_record_names_is_not_kept() -> None:
    swarm = cell_swarm(1, rounds=2)
    assert swarm.run(200_000)
    op, member = newest_of(swarm), swarm.members[PEERS[0]].machine
    for data, number, group in ((b"?", op.plan.op, 0), (b"?", 99, 0), (b"?", op.plan.op, 3)):
        member.control(Sheet(number, data, group), swarm.now_s)
        assert content_hash(data) not in member.first.blobs
    assert member.stats.ignored["sheet"] == 2


def test_a_restarted_coordinator_goes_on_and_a_newcomer_takes_its_image() -> None:
    swarm = cell_swarm(2, rounds=6)
    for _ in range(3):
        for _ in range(400):
            swarm.step()
        swarm.restart_coordinator()
    assert swarm.run(300_000)
    commits = [body for body in bodies_of(swarm.records) if isinstance(body, Commit)]
    assert len(commits) == 6
    roots = [dict(one.roots) for one in swarm.members.values()]
    assert len({tuple(sorted(one.items()))[-1] for one in roots}) == 1


def test_records_come_in_short_once_there_is_a_plan_before() -> None:
    swarm = cell_swarm(3, rounds=3)
    seen = []
    for _ in range(60_000):
        for queue in swarm.down.values():
            seen += [data for data in queue if b"records" in data[:20]]
        if all(member.finished for member in swarm.members.values()):
            break
        swarm.step()
    told = [decode_from_coordinator(data) for data in seen]
    sent = {raw for message in told if isinstance(message, Records) for raw in message.records}
    assert any(raw[:1] == b"\xc1" for raw in sent)


def test_freeze_and_commit_have_a_sheet_for_each_cell_or_none() -> None:
    for count, is_legal in ((0, True), (2, True), (1, False), (3, False)):
        chain = begun_chain(PEERS, 64)
        chain.add(next_in_cells(chain, PEERS))
        freeze = Freeze(1, tuple(sorted(PEERS)), {}, sheets=(bytes(32),) * count)
        if not is_legal:
            with pytest.raises(RemoteFault, match="sheets"):
                chain.add(freeze)
            continue
        chain.add(freeze)
        assert chain.view.first.op is not None
        commit = commit_of(chain.view.first.op)
        with pytest.raises(RemoteFault, match="sheets"):
            chain.add(msgspec.structs.replace(commit, sheets=(bytes(31),) * 2))
        chain.add(msgspec.structs.replace(commit, sheets=(bytes(32),) * count))


def test_without_cells_there_is_no_sheet() -> None:
    chain = begun_chain(PEERS, 64)
    chain.add(chain.plan(PEERS))
    with pytest.raises(RemoteFault, match="sheets"):
        chain.add(Freeze(1, tuple(sorted(PEERS)), {}, sheets=(bytes(32),)))
