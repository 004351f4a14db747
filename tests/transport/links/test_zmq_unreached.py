"""A link tells to whom it could make no connection for long, and when that is over."""

import socket

from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.zmq_link import ZmqLink
from tests.transport.links.link_rig import World, ZmqWorld, introduce, reach, run_in


def test_a_peer_at_whose_address_nobody_answers_is_told_and_one_that_answers_is_not() -> None:
    async def scenario(world: World) -> None:
        ada, ben, cid = [await world.add(name) for name in ("ada", "ben", "cid")]
        assert isinstance(ada.link, ZmqLink)
        introduce(ada, ben)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))  # and does not listen
            wrong = Address(cid.id, cid.address.curve_key, "127.0.0.1", silent.getsockname()[1])
            ada.link.allow(wrong)
            ada.link.warm((cid.id,))
            await reach(world, ada, ben)
            await world.repeat(lambda: None, lambda: ada.link.unreached(0.0) == (cid.id,))
            assert ada.link.unreached(3600.0) == ()
        introduce(ada, cid)
        await reach(world, ada, cid)
        await world.repeat(lambda: None, lambda: ada.link.unreached(0.0) == ())

    run_in(ZmqWorld, scenario)


def test_a_peer_that_goes_away_is_told_from_then_on() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        assert isinstance(ada.link, ZmqLink)
        assert isinstance(ben.link, ZmqLink)
        introduce(ada, ben)
        await reach(world, ada, ben)
        ben.link.close()
        await world.repeat(lambda: None, lambda: ada.link.unreached(0.0) == (ben.id,))

    run_in(ZmqWorld, scenario)
