"""A peer that leaves waits for a while until somebody else holds what it alone holds."""

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.network import thread as network
from swarmtrain.peer.network.thread import PeerThread
from swarmtrain_transport.limits import HAND_OVER_S
from swarmtrain_transport.wire.messages import Leaving, Released, Waiting, Welcome

WELCOME = Welcome(1, "run", b"key", b"", 0)


class Thread(PeerThread):
    """A network thread whose inbox is written beforehand; its clock goes while that is empty."""

    is_connected = True
    num_others = 1

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *items: Any) -> None:
        self.inbox: Any = self
        self.shell: Any = self
        self.items, self.said, self.now_s, self.num_told = [*items], [], 0.0, 0
        monkeypatch.setattr(network, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def get(self, timeout: float) -> Any:
        if not self.items:
            self.now_s += timeout
            raise queue.Empty
        return self.items.pop(0)

    def send(self, message: Any) -> None:
        self.said.append(message)

    def goes(self) -> bool:
        def told() -> None:
            self.num_told += 1

        return self.hand_over(told)


def test_who_is_released_goes_at_once(monkeypatch):
    thread = Thread(monkeypatch, Waiting(""), Released())
    assert thread.goes() and thread.said == [Leaving()]
    assert thread.now_s == 0.0 and thread.num_told == 0


def test_nobody_is_waited_for_longer_than_a_while_and_people_hear_of_it_once(monkeypatch):
    thread = Thread(monkeypatch)
    assert not thread.goes()
    assert thread.now_s == pytest.approx(HAND_OVER_S, abs=0.5) and thread.num_told == 1


def test_it_is_asked_again_on_a_new_connection(monkeypatch):
    thread = Thread(monkeypatch, WELCOME, Released())
    assert thread.goes() and thread.said == [Leaving(), Leaving()]


@pytest.mark.parametrize("ends", [UserError("SWT-E203", "over"), None])
def test_without_the_coordinator_nobody_waits(monkeypatch, ends):
    thread = Thread(monkeypatch, ends)
    if ends is None:
        thread.is_connected = False
    assert thread.goes() is None and thread.now_s == 0.0


def test_who_is_alone_has_nobody_to_ask(monkeypatch):
    thread = Thread(monkeypatch)
    thread.num_others = 0
    assert thread.goes() and not thread.said
    thread.is_connected = False
    assert thread.goes() is None  # others may be there, and have newer weights
