"""A peer's place in the run: what it does where its state differs from the run's."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.kinds import MEAN
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.progression import Progression
from swarmtrain_transport.wire.records import Attest
from tests.transport.rig import BOOT, A, Chain, begun_chain


def right(op: int) -> bytes:
    """The run's state root after an op."""
    return bytes([op + 1]) * 32


def wrong(op: int) -> bytes:
    return b"x" * 32


class Results:
    """Every result is here."""

    def is_known(self, op: int) -> bool:
        return True

    def collect(self, op: int, *, replayed: bool) -> Any:
        return SimpleNamespace(op=op, kind=MEAN, chain=b"")

    def give_up(self) -> None:
        pass


class States:
    """States that can be had at once: that after op 0, and later ones that others give."""

    is_lost = False

    def __init__(self) -> None:
        self.given: list[int] = []
        self.oldest_op = 0

    def must_be_newer_than(self, op: int) -> bool:
        self.oldest_op = op + 1
        return True

    def step(self) -> list[do.PeerAction]:
        found = next((op for op in [0, *self.given] if op >= self.oldest_op), None)
        manifest: Any = None
        return [] if found is None else [do.LoadState(found, manifest, ())]

    def close(self) -> None: ...


class Peer:
    """A peer in a run of so many ops, all attested, that computes as it is told."""

    def __init__(self, num_ops: int, compute: Callable[[int], bytes]) -> None:
        chain: Chain = begun_chain()
        for op in range(1, num_ops + 1):
            chain.add(chain.plan())
            chain.commit(A)
            chain.add(Attest(op, right(op)))
        self.states = States()
        results: Any = Results()
        states: Any = self.states
        card = Card(A, BOOT, "name", A, "127.0.0.1", 1)
        self.place = Progression(card, chain.view.first, results, states)
        self.compute = compute
        self.computed: list[int] = []

    def go_on(self) -> str:
        """Work until there is nothing to do; return the code that the peer stops with."""
        for _ in range(100):
            actions = self.place.advance(connected=True)
            for action in actions:
                if isinstance(action, do.LoadState):
                    self.place.applied(action.op, right(action.op) if action.op else b"R" * 32)
                elif isinstance(action, do.ApplyResult):
                    op = action.result.op
                    self.computed.append(op)
                    self.place.applied(op, self.compute(op))
                elif isinstance(action, do.Halt):
                    return action.code
            if not actions:
                return ""
        raise AssertionError("it goes round in circles")


def test_what_differs_is_made_once_more_and_then_waited_for() -> None:
    peer = Peer(3, lambda op: wrong(op) if op == 2 else right(op))
    assert peer.go_on() == ""
    assert peer.computed == [1, 2, 1, 2] and peer.place.applied_op == -1
    peer.states.given = [2]
    assert peer.go_on() == ""
    assert peer.computed == [1, 2, 1, 2, 3] and peer.place.applied_op == 3


def test_a_machine_that_computes_otherwise_every_time_stops() -> None:
    peer = Peer(3, wrong)
    assert peer.go_on() == ""
    peer.states.given = [1]
    assert peer.go_on() == "SWT-E561"
    assert peer.computed == [1, 1, 2, 2] and len(peer.computed) == limits.HEALS_MAX + 1


def test_who_differs_often_but_is_right_the_second_time_goes_on() -> None:
    num_ops, seen = 2 * limits.HEALS_MAX, set[int]()

    def compute(op: int) -> bytes:
        is_new = op not in seen
        seen.add(op)
        return wrong(op) if is_new else right(op)

    peer = Peer(num_ops, compute)
    assert peer.go_on() == "" and peer.place.applied_op == num_ops
