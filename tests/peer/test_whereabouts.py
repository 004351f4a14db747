"""Address that a peer tells: one that it looked up itself, beside its loop."""

import asyncio
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swarmtrain.config.options import Endpoint, JoinOptions
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.peer.network import whereabouts
from swarmtrain.peer.network.shell import PeerShell
from swarmtrain.peer.network.whereabouts import Whereabouts
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.peer.local_peer import Card
from tests.coordinator.rig import Listener, client_of, run, serving
from tests.coordinator.test_service import living

ALICE = Identity.create()
NAME = "otter.example"
LISTENING = Endpoint("0.0.0.0", 4242)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the name server's answer: addresses, or an error."""

    def answer(*told: str | Exception) -> None:
        def getaddrinfo(host: str, *rest: Any, **more: Any) -> list[Any]:
            assert host == NAME
            for each in told:
                if isinstance(each, Exception):
                    raise each
            return [
                (socket.AF_INET6 if ":" in one else socket.AF_INET, 0, 0, "", (one, 0))
                for one in told
            ]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return answer


def told_by(where: Whereabouts, times: int = 1) -> str:
    participant: Any = SimpleNamespace(card=Card(b"p", b"b", "otter", b"k", "", 1))
    for _ in range(times):
        asyncio.run(where.tell(participant))
    return str(participant.card.host)


def test_addresses_are_told_as_they_are_and_everywhere_is_left_to_the_coordinator() -> None:
    assert told_by(Whereabouts(None, LISTENING)) == ""
    assert told_by(Whereabouts(None, Endpoint("::1", 1))) == "::1"
    assert told_by(Whereabouts(Endpoint("192.0.2.1", 9), LISTENING)) == "192.0.2.1"
    assert Whereabouts(Endpoint("192.0.2.1", 9), LISTENING).port == 9


def test_a_name_is_looked_up_again_at_every_connection(answers: Callable[..., None]) -> None:
    where = Whereabouts(Endpoint(NAME, 9), LISTENING)
    answers("2001:db8::1", "198.51.100.7", "0.0.0.0")
    assert told_by(where) == "198.51.100.7"
    answers("198.51.100.8", "198.51.100.7")
    assert told_by(where) == "198.51.100.7", "several addresses, in another order"
    answers("203.0.113.9")
    assert told_by(where) == "203.0.113.9", "the line at home got another address by night"
    answers(socket.gaierror(-2, "Name or service not known"))
    assert told_by(where) == "203.0.113.9", "a name server that is down for a moment"


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ((socket.gaierror(-2, "Name or service not known"),), "Name or service not known"),
        (("0.0.0.0",), "nothing that could be dialled"),
        ((UnicodeError("label too long"),), "label too long"),
    ],
)
def test_a_name_without_an_address_is_said_to_have_none(
    answers: Callable[..., None], told: tuple[Any, ...], reason: str
) -> None:
    answers(*told)
    with pytest.raises(UserError, match=reason) as caught:
        told_by(Whereabouts(None, Endpoint(NAME, 9)))
    assert caught.value.code == "SWT-E205" and NAME in caught.value.what


def test_a_name_server_that_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(whereabouts, "LOOKUP_TIMEOUT_S", 0.01)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *rest, **more: answered.wait(20))

    async def scene() -> None:
        participant: Any = SimpleNamespace(card=Card(b"p", b"b", "otter", b"k", "", 1))
        with pytest.raises(UserError, match="no name server answered"):
            await Whereabouts(Endpoint(NAME, 9), LISTENING).tell(participant)
        answered.set()

    run(scene())


def test_a_lookup_that_hangs_stops_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, asked = threading.Event(), threading.Event()
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
        if host != NAME:
            return real(host, *rest, **more)
        asked.set()
        assert answered.wait(20), "only a failing test waits so long"
        return real("127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    def shell_of(invite: Invite, name: str, advertise: Endpoint | None = None) -> PeerShell:
        (tmp_path / name).mkdir()
        storage = PeerStorage(tmp_path / name)
        options = JoinOptions(invite, name, Endpoint("127.0.0.1", 0), (), advertise=advertise)
        return PeerShell(
            options, storage, Identity.create(), to_trainer=lambda message: None,
            rng=random.Random(1),
        )  # fmt: skip

    async def until(condition: Callable[[], bool]) -> None:
        while not condition():  # nothing tells of it; `run` bounds it
            await asyncio.sleep(0.005)

    async def scene() -> None:
        async with living(tmp_path / "coordinator") as life:
            slow = shell_of(life.invite, "slow", Endpoint(NAME, 4242))
            quick = [shell_of(life.invite, name) for name in ("ada", "ben")]
            running = [asyncio.create_task(slow.run())]
            try:
                await until(asked.is_set)
                running += [asyncio.create_task(each.run()) for each in quick]
                await until(lambda: all(each.num_others == 1 for each in quick))
                assert not slow.is_connected and not answered.is_set()
                answered.set()
                await until(lambda: all(each.num_others == 2 for each in (*quick, slow)))
                participant = quick[0]._participant
                assert participant is not None
                others = participant.view.roster.keys() - {participant.card.peer_id}
                told = [participant.address_of(peer) for peer in others]
                assert {one.host for one in told} == {"127.0.0.1"}
                assert 4242 in {one.port for one in told}
            finally:
                answered.set()
                for each in (slow, *quick):
                    await each.close()
                    each._storage.close()
                await asyncio.gather(*running)

    run(scene())


def test_the_control_lane_prepares_every_connection_and_closes_during_a_lookup(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        tries: list[int] = []
        hangs = asyncio.Event()

        async def prepare() -> None:
            tries.append(len(tries))
            if len(tries) == 3:
                hangs.set()
                await asyncio.Event().wait()

        async with serving(tmp_path) as rig:
            client = client_of(rig.invite(), ALICE, Listener(), prepare=prepare)
            running = asyncio.create_task(client.run())
            for _ in range(2):
                await rig.machine.hears("connected")
                rig.shell._outlets[ALICE.peer_id].abort()
            await hangs.wait()
            await client.close()
            await running
            assert tries == [0, 1, 2]

    run(scene())
