import asyncio
import ssl
from pathlib import Path

import pytest

from swarmtrain.coordinator.idlers import IDLE_TIMEOUT_S, Idlers
from swarmtrain_transport.identity import Identity
from tests.coordinator.rig import connected, run, serving


class Connection:
    """A key, as a server's connections are."""


def test_a_connection_is_overdue_when_it_has_never_asked_for_so_long() -> None:
    idlers, silent, asking, late = Idlers(), Connection(), Connection(), Connection()
    assert idlers.overdue([silent, asking], 0.0) == []
    idlers.asked(asking)
    assert idlers.overdue([silent, asking, late], IDLE_TIMEOUT_S - 0.1) == []
    assert idlers.overdue([silent, asking, late], IDLE_TIMEOUT_S) == [silent]


def test_closed_connections_are_forgotten() -> None:
    idlers = Idlers()
    idlers.overdue([Connection()], 0.0)
    idlers.asked(Connection())
    idlers.overdue([], 1.0)
    assert not len(idlers._since_s) and not len(idlers._asked)


@pytest.mark.parametrize("said", [b"", b"GET /livez HTTP/1.1\r\nHost: swarm"])
def test_who_shakes_hands_and_never_finishes_a_request_is_cut_off(
    tmp_path: Path, said: bytes
) -> None:
    async def story() -> None:
        async with serving(tmp_path) as rig:
            trusting = ssl.create_default_context()
            trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
            stranger = await asyncio.open_connection("127.0.0.1", rig.port, ssl=trusting)
            stranger[1].write(said)
            async with connected(rig.invite(), Identity.create()):
                idlers, server = rig.app.idlers, rig.runner.server
                assert server is not None
                assert idlers.cut(server, 0.0) == 0
                assert len(server.connections) == 2
                assert idlers.cut(server, IDLE_TIMEOUT_S) == 1
                assert await stranger[0].read() == b""
                stranger[1].close()
                await rig.machine.hears("connected")
                assert not rig.machine.heard.qsize()  # the member stays connected

    run(story())
