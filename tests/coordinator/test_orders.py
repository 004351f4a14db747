"""Orders of the organiser over the local socket, with a real coordinator behind it."""

import asyncio
import stat
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.organiser.orders import Desk
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.network.control import DoorRefused
from swarmtrain.status import ask, order, socket_path
from swarmtrain.why.peer_history import OTHER, REASONS_MAX, PeerHistories
from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.ledger.standing import Conduct
from swarmtrain_transport.wire.records import Commit, Freeze, Gone, Move, Plan, Unban, bodies_of
from tests.coordinator.rig import Listener, client_of, connected, join_body, run
from tests.coordinator.test_service import ALICE, BOB, living
from tests.transport.group_swarm import GroupSwarm
from tests.transport.rig import A, B, C, plan_body

ALICE_ID, BOB_ID = ALICE.peer_id.hex(), BOB.peer_id.hex()


async def obeyed(directory: Path, said: str, **more: Any) -> dict[str, Any]:
    return await asyncio.to_thread(order, directory, {"order": said, **more})


async def refused(directory: Path, said: str, **more: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        await obeyed(directory, said, **more)
    assert caught.value.what
    return caught.value


async def sent_away(invite: Invite, who: Any) -> DoorRefused:
    """Return the refusal that a peer gets when it tries to come in."""
    client = client_of(invite, who, Listener())
    with pytest.raises(DoorRefused) as caught:
        await client.run()
    return caught.value


def records(directory: Path) -> list[Any]:
    store = Store.open_to_read(directory)
    try:
        return bodies_of(store.records())
    finally:
        store.close()


def test_an_invite_is_shown_once_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path) as life:
            made = await obeyed(tmp_path, "invite-create", uses=1, hours=2.0, name="for bob")
            invite = Invite.parse(made["invite"])
            assert (invite.host, invite.port) == (life.invite.host, life.invite.port)
            assert made["expires_at"] - made["created_at"] == 7200.0
            listed = (await obeyed(tmp_path, "invite-ls"))["invites"]
            assert {(one["name"], one["role"]) for one in listed} == {
                ("page", "observer"), ("", "peer"), ("for bob", "peer"),
            }  # fmt: skip
            assert not any("invite" in one for one in listed)
            async with connected(invite, BOB):
                listed = (await obeyed(tmp_path, "invite-ls"))["invites"]
                (mine,) = [one for one in listed if one["name"] == "for bob"]
                assert (mine["uses"], mine["uses_max"], mine["state"]) == (1, 1, "used up")
                assert (await sent_away(invite, ALICE)).code == "SWT-E311"
            again = await refused(tmp_path, "invite-create", name="for bob")
            assert again.code == "SWT-E610"
        kept = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
        assert invite.secret not in kept
        ledger = str(records(tmp_path))
        assert "for bob" not in ledger

    run(scene())


def test_a_withdrawn_invite_lets_nobody_in_and_its_members_stay_unless_they_are_meant(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with living(tmp_path):
            invite = Invite.parse((await obeyed(tmp_path, "invite-create", name="ben"))["invite"])
            async with connected(invite, BOB) as (_, listener):
                done = await obeyed(tmp_path, "invite-revoke", invite="ben")
                assert (done["members"], done["removed"]) == (1, [])
                assert (await sent_away(invite, ALICE)).code == "SWT-E315"
                rows = (await obeyed(tmp_path, "peers-ls"))["peers"]
                assert [row["peer"] for row in rows] == [BOB_ID] and rows[0]["state"] != "gone"
                done = await obeyed(tmp_path, "invite-revoke", invite=done["id"][:5], members=True)
                assert done["removed"] == [BOB_ID]
                await listener.hears("down")
            assert (await sent_away(invite, BOB)).code == "SWT-E315"
            assert (await refused(tmp_path, "invite-revoke", invite="zzz")).code == "SWT-E809"
            assert (await refused(tmp_path, "invite-revoke", invite="")).code == "SWT-E809"

    run(scene())


def test_a_newcomer_that_waits_for_others_is_in_before_its_invite_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CROWD_PEERS", 0)
    monkeypatch.setattr(limits, "CROWD_JOIN_S", 3600.0)
    machines: list[Rendezvous] = []

    @asynccontextmanager
    async def watched(machine: Rendezvous) -> AsyncIterator[None]:
        machines.append(machine)
        yield

    async def scene() -> None:
        async with living(tmp_path, watched=watched):
            invite = Invite.parse((await obeyed(tmp_path, "invite-create", name="ben"))["invite"])
            async with connected(invite, BOB):
                listener = Listener()
                client = client_of(invite, ALICE, listener)
                running = asyncio.create_task(client.run())
                while not machines[0].recovery.has_guests:
                    await asyncio.sleep(0)
                assert ALICE.peer_id not in machines[0].view.roster
                done = await obeyed(tmp_path, "invite-revoke", invite="ben", members=True)
                assert sorted(done["removed"]) == sorted([BOB_ID, ALICE.peer_id.hex()])
                await client.close()
                await asyncio.gather(running, return_exceptions=True)

    run(scene())


def test_a_ban_names_its_reason_to_the_peer_and_holds_across_restarts(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path) as life:
            listener = Listener()
            client = client_of(life.invite, BOB, listener)
            running = asyncio.create_task(client.run())
            await listener.hears("up")
            while not (await obeyed(tmp_path, "peers-ls"))["peers"]:
                pass
            done = await obeyed(tmp_path, "peers-ban", peer=BOB_ID[:6], reason="You sent noise.")
            assert (done["peer"], done["state"], done["changed"]) == (BOB_ID, "banned", True)
            with pytest.raises(DoorRefused, match="You sent noise") as caught:
                await running
            assert caught.value.code == "SWT-E702"
            assert "noise" in (await sent_away(life.invite, BOB)).what
        async with living(tmp_path, port=life.invite.port) as again:
            assert "noise" in (await sent_away(again.invite, BOB)).what
            shown = await obeyed(tmp_path, "peers-show", peer="otter")
            assert (shown["state"], shown["ban_reason"]) == ("banned", "You sent noise.")
            done = await obeyed(tmp_path, "peers-unban", peer=BOB_ID[:6])
            assert done["changed"] and done["state"] == "gone"
            async with connected(again.invite, BOB):
                pass
        kinds = [type(body) for body in records(tmp_path)]
        assert kinds.count(Unban) == 1
        assert "noise" not in str(records(tmp_path))

    run(scene())


def test_a_removed_peer_is_told_and_may_come_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path) as life:
            listener = Listener()
            running = asyncio.create_task(client_of(life.invite, BOB, listener).run())
            await listener.hears("up")
            while not (await obeyed(tmp_path, "peers-ls"))["peers"]:
                pass
            await obeyed(tmp_path, "peers-remove", peer="otter", reason="Please update.")
            with pytest.raises(DoorRefused, match="Please update"):
                await running
            async with connected(life.invite, BOB):
                pass
        gone = [body for body in records(tmp_path) if isinstance(body, Gone)]
        assert gone[0].reason == "removed"

    run(scene())


def test_a_closed_run_stays_closed_and_says_so(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path) as life:
            async with connected(life.invite, ALICE):
                pass
            assert (await asyncio.to_thread(ask, tmp_path))["door"] == "open"
            assert await obeyed(tmp_path, "door", closed=True) == {"door": "closed"}
        async with living(tmp_path) as again:
            assert (await asyncio.to_thread(ask, tmp_path))["door"] == "closed"
            assert (await sent_away(again.invite, BOB)).code == "SWT-E707"
            async with connected(again.invite, ALICE):
                pass
            await obeyed(tmp_path, "door", closed=False)
            async with connected(again.invite, BOB):
                pass

    run(scene())


def test_a_name_that_two_peers_have_names_nobody(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path) as life:
            async with connected(life.invite, ALICE), connected(life.invite, BOB):
                error = await refused(tmp_path, "peers-ban", peer="otter")
                assert error.code == "SWT-E809"
                assert ALICE_ID[:12] in error.what and BOB_ID[:12] in error.what
            assert (await refused(tmp_path, "peers-show", peer="nobody")).code == "SWT-E809"
            stranger = "ab" * 32
            assert (await obeyed(tmp_path, "peers-ban", peer=stranger))["state"] == "banned"
            listed = (await obeyed(tmp_path, "peers-ls"))["peers"]
            assert [one["peer"] for one in listed if one["state"] == "banned"] == [stranger]

    run(scene())


def test_a_restarted_coordinator_carries_an_order_out_when_it_decides_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SUSPECT_S", 0.5)

    async def scene() -> None:
        async with living(tmp_path) as life, connected(life.invite, ALICE):
            pass
        async with living(tmp_path):
            done = await obeyed(tmp_path, "peers-ban", peer=ALICE_ID)
            assert done["state"] == "banned"

    run(scene())


def test_rounds_are_added_to_a_run_and_never_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SUSPECT_S", 0.5)

    async def scene() -> None:
        async with living(tmp_path):
            before = (await asyncio.to_thread(ask, tmp_path))["rounds"]
            for changed in (True, False):
                answer = await obeyed(tmp_path, "extend", rounds=before + 5)
                assert answer == {"rounds": before + 5, "changed": changed}
            error = await refused(tmp_path, "extend", rounds=before)
            assert error.code == "SWT-E610" and f"{before + 5} rounds" in error.what
        with pytest.raises(UserError, match="fewer"):
            async with living(tmp_path, rounds=before):
                pass
        async with living(tmp_path, rounds=before + 7):
            assert (await obeyed(tmp_path, "extend", rounds=before + 8))["changed"]
        with pytest.raises(UserError, match="none has begun"):
            async with living(tmp_path / "new", rounds=9):
                pass

    (tmp_path / "new").mkdir()
    run(scene())


def test_nonsense_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path):
            for said in ("nonsense", "door", "peers-ban"):
                assert (await refused(tmp_path, said)).code == "SWT-E501"
            assert (await refused(tmp_path, "invite-create", uses=-1)).code == "SWT-E501"
            assert "order for a peer" in (await refused(tmp_path, "pause")).meaning
            link = await refused(tmp_path, "invite-create", uses=5, role="observer")
            assert link.code == "SWT-E610" and "--uses" in link.remedy
            assert stat.S_IMODE(socket_path(tmp_path).stat().st_mode) == 0o600

    run(scene())


def test_dossiers_count_what_the_ledger_says_within_bounds() -> None:
    histories = PeerHistories()
    peer = bytes(32)
    histories.read(join_body(peer, "i"))
    for number in range(2 * REASONS_MAX):
        histories.read(Freeze(1, (), {peer: f"refused:{number}"}))
    histories.read(Freeze(1, (), {peer: "alone"}))
    history = histories.of[peer]
    assert history.excluded == 2 * REASONS_MAX and len(history.reasons) == REASONS_MAX + 1
    assert history.reasons[OTHER] == REASONS_MAX
    assert (history.invite, history.is_in, history.since_round) == ("i", True, 1)
    histories.read(Gone(peer, evicted=False, reason=""))
    assert (history.is_in, history.last_reason) == (False, "left")
    assert msgspec.json.encode(history.reasons)


def commit(plan: Plan, *contributors: bytes) -> Commit:
    return Commit(plan.op, bytes(32), contributors, (), bytes(32), group=plan.group)


def test_dossiers_name_the_round_that_a_peer_was_left_out_of_though_two_are_under_way() -> None:
    histories = PeerHistories()
    for op in (1, 2):
        histories.read(plan_body(op=op))
    histories.read(Freeze(1, (A,), {B: "late"}))
    assert (histories.of[B].last_round, histories.of[B].last_group) == (1, 0)
    histories.read(Freeze(2, (A,), {C: "late"}))
    assert histories.of[C].last_round == 2
    histories.read(Gone(A, evicted=False, reason=""))
    assert histories.of[A].last_round == 2


def test_a_peer_of_a_later_group_is_told_on_whose_word_it_was_left_out() -> None:
    swarm = GroupSwarm(1, start_peers=2, min_contributors=1)
    for peer, groups in ((A, (0,)), (B, (0, 1)), (C, (1,))):
        swarm.add_to(peer, *groups)
    while C not in swarm.hall.view.groups[1].members:
        swarm.step()
    standings = [group.standing for group in swarm.hall.view.groups.values()]
    standings[1].conducts[C] = Conduct(Counter(late=2), Counter({B: 3}))
    for standing in standings:
        standing.conducts[B] = Conduct(Counter(late=1), Counter({A: 1}))
    swarm.hall.groups[1].chronicle.gauges._note(C, B, 1, (1.0, -0.5))
    shell, store = SimpleNamespace(now_s=lambda: swarm.now_s), SimpleNamespace(is_closed=False)
    desk: Any = Desk(swarm.hall, *cast(Any, (shell, store, None, None, None)))
    sheets = [
        asyncio.run(desk.hear(msgspec.json.encode({"order": "peers-show", "peer": peer.hex()})))
        for peer in (A, B, C)
    ]
    assert [list(sheet.accused_by.values()) for sheet in sheets] == [[], [2], [3]]
    assert [sheet.now.left_out for sheet in sheets] == [0, 2, 2]
    assert sheets[2].now.accused_by == {B.hex(): 3}
    assert [sheet.now.cosine for sheet in sheets] == [None, None, -0.5]


def test_dossiers_tell_rounds_of_groups_apart() -> None:
    histories = PeerHistories()
    first, second = plan_body(op=9), plan_body(op=2, group=1)
    for body in (join_body(B), Move(B, (1,)), first, second):
        histories.read(body)
    histories.read(Freeze(2, (A,), {B: "late", C: "late"}, group=1))
    histories.read(commit(second, A))
    histories.read(Freeze(9, (A, C), {}))
    histories.read(commit(first, A, C))
    of = histories.of
    assert (of[A].contributed, of[B].excluded, of[C].contributed, of[C].excluded) == (2, 1, 1, 1)
    assert (of[C].last_round, of[C].last_group) == (2, 1)
    histories.read(Gone(B, evicted=False, reason=""))
    assert (of[B].last_reason, of[B].last_round, of[B].last_group) == ("left", 2, 1)
    histories.read(join_body(B))
    assert (of[B].since_round, of[B].since_group) == (3, 1)
    histories.read(Move(B, (0,)))
    histories.read(Gone(B, evicted=False, reason=""))
    assert (of[B].last_round, of[B].last_group) == (9, 0)
