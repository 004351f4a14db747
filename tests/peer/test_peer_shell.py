"""The network side's shell: what it does about a fault that nobody foresaw."""

import asyncio
import random

import pytest

from swarmtrain.errors import UserError
from swarmtrain.peer.shell import PeerShell
from swarmtrain.peer.storage import PeerStorage
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.identity import Identity
from swarmtrain_transport.invite import Invite

INVITE = Invite("127.0.0.1", 8400, "run", bytes(32), bytes(16))


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (ZeroDivisionError("by zero"), "SWT-E901"),
        (RemoteFault("order", "second FREEZE"), "SWT-E501"),
        (UserError("SWT-E405", "Used up."), "SWT-E405"),
    ],
)
def test_whatever_an_event_raises_ends_the_peer_and_the_trainer_hears_it_once(
    tmp_path, fault, code
):
    """It comes by a timer, a socket's callback or a call of the trainer's: the loop would log it
    and go on without the machine."""
    heard = []

    def event(participant, now_s):
        raise fault

    async def main():
        storage = PeerStorage(tmp_path)
        identity = Identity.create()
        shell = PeerShell(
            INVITE, storage, identity, "otter", to_trainer=heard.append, rng=random.Random(0)
        )
        shell._participant = object()
        shell.machine(event)
        shell.machine(event)
        await asyncio.gather(*shell._tasks)
        storage.close()

    asyncio.run(main())
    (told,) = heard
    assert told.code == code
    assert told is fault or told.__cause__ in (fault, None)
    assert (told.__cause__ is fault) == (code == "SWT-E901")
