import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from swarmtrain.coordinator import shell as shell_module
from swarmtrain.coordinator.shell import Outlet, Shell
from swarmtrain_transport.actions import Adopt, Append, ClosePeer, SendToPeer
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.messages import (
    Finished,
    Leave,
    Ready,
    Refused,
    Welcome,
    decode_from_coordinator,
)
from swarmtrain_transport.wire.records import Record
from tests.coordinator.rig import Actions, Chain, FakeMachine, hello_of, join_body, run, run_body

ALICE, BOB = Identity.create(), Identity.create()
READY = Ready(1, 1, 0, bytes(32))


class Disk:
    """Keeps records in memory and writes down when."""

    def __init__(self) -> None:
        self.journal: list[str] = []
        self.error: Exception | None = None

    def keep(self, *records: Record) -> None:
        if self.error is not None:
            raise self.error
        self.journal.append(f"kept {' '.join(str(record.index) for record in records)}")

    def adopt(self, records: tuple[Record, ...], term: int) -> None:
        self.journal.append(f"adopted {len(records)} for term {term}")


class Line:
    """An outlet whose queue the test reads without a socket."""

    def __init__(self) -> None:
        self.was_cut = False
        self.outlet = Outlet(self._cut)

    def _cut(self) -> None:
        self.was_cut = True

    def sent(self) -> list[Any]:
        waiting = self.outlet._waiting
        data = [waiting.get_nowait() for _ in range(waiting.qsize())]
        return [None if item is None else decode_from_coordinator(item) for item in data]


Scene = tuple[Shell, FakeMachine, Disk]


def in_a_scene(test: Callable[[Shell, FakeMachine, Disk], None]) -> None:
    async def scene() -> None:
        disk, machine = Disk(), FakeMachine(1)
        shell = Shell(
            machine, disk.keep, disk.adopt, roster=lambda: machine.members,
            clock=asyncio.get_running_loop().time,
        )  # fmt: skip
        shell.start()
        test(shell, machine, disk)
        shell.stop()
        if shell.has_failed:
            shell.failure.exception()

    run(scene())


def joined(shell: Shell, who: Identity) -> Line:
    line = Line()
    shell.connect(who.peer_id, line.outlet, hello_of(who), "")
    assert any(isinstance(message, Welcome) for message in line.sent())
    return line


def test_nothing_is_sent_before_the_record_it_follows_from_is_kept() -> None:
    def test(shell: Shell, machine: FakeMachine, disk: Disk) -> None:
        alice, bob = joined(shell, ALICE), joined(shell, BOB)
        order: list[str] = disk.journal
        for name, line in (("alice", alice), ("bob", bob)):
            line.outlet.put = (  # type: ignore[method-assign]
                lambda data, name=name: order.append(f"sent to {name}") or True
            )
        del order[:]
        machine.answer = lambda peer, message: (
            SendToPeer(ALICE.peer_id, Finished(1)),
            Append(machine.chain.next(join_body(b"x" * 32))),
            SendToPeer(BOB.peer_id, Finished(1)),
            Append(machine.chain.next(join_body(b"y" * 32))),
            SendToPeer(ALICE.peer_id, Finished(2)),
        )
        shell.receive(ALICE.peer_id, alice.outlet, READY)
        assert order == ["kept 3 4", "sent to alice", "sent to bob", "sent to alice"]

    in_a_scene(test)


def test_records_before_and_after_those_of_an_earlier_life_are_kept_in_their_order() -> None:
    def test(shell: Shell, machine: FakeMachine, disk: Disk) -> None:
        alice = joined(shell, ALICE)
        first, *adopted, last = (machine.chain.next(join_body(bytes([n]) * 32)) for n in range(4))
        machine.answer = lambda peer, message: (
            Append(first), Adopt(tuple(adopted), 5), SendToPeer(peer, Finished(1)), Append(last),
        )  # fmt: skip
        del disk.journal[:]
        shell.receive(ALICE.peer_id, alice.outlet, READY)
        assert disk.journal == ["kept 2", "adopted 2 for term 5", "kept 5"]
        assert len(alice.sent()) == 1

    in_a_scene(test)


def test_after_a_record_that_could_not_be_kept_nothing_is_sent_any_more() -> None:
    def test(shell: Shell, machine: FakeMachine, disk: Disk) -> None:
        alice = joined(shell, ALICE)
        disk.error = OSError(28, "No space left on device")
        machine.next_wakeup_s = 1e9
        machine.answer = lambda peer, message: (
            Append(machine.chain.next(join_body(b"x" * 32))),
            SendToPeer(ALICE.peer_id, Finished(1)),
        )
        shell.receive(ALICE.peer_id, alice.outlet, READY)
        assert shell.has_failed and shell.failure.exception() is disk.error
        assert alice.was_cut and alice.sent() == [None]
        disk.error = None
        heard = machine.heard.qsize()
        shell.receive(ALICE.peer_id, alice.outlet, READY)
        shell.connect(BOB.peer_id, Line().outlet, hello_of(BOB), "")
        assert machine.heard.qsize() == heard and shell._timer is None

    in_a_scene(test)


def test_a_bug_in_the_machine_stops_the_shell_too() -> None:
    def test(shell: Shell, machine: FakeMachine, disk: Disk) -> None:
        alice = joined(shell, ALICE)

        def breaks(peer: bytes, message: Any) -> Actions:
            raise KeyError("bug")

        machine.answer = breaks
        shell.receive(ALICE.peer_id, alice.outlet, READY)
        assert isinstance(shell.failure.exception(), KeyError)

    in_a_scene(test)


def test_a_peer_that_breaks_the_protocol_is_told_and_the_others_stay() -> None:
    def test(shell: Shell, machine: FakeMachine, disk: Disk) -> None:
        alice, bob = joined(shell, ALICE), joined(shell, BOB)

        def refuses(peer: bytes, message: Any) -> Actions:
            raise RemoteFault("scale", "not in the window\x1b[31m")

        machine.answer = refuses
        shell.receive(ALICE.peer_id, alice.outlet, READY)
        refused, closed = alice.sent()
        assert isinstance(refused, Refused) and refused.code == "SWT-E501"
        assert "scale" in refused.text and "\x1b" not in refused.text
        assert closed is None and bob.sent() == [] and not shell.has_failed

    in_a_scene(test)


def test_a_peer_that_does_not_drain_its_queue_is_cut_off_and_delays_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shell_module, "OUTLET_MESSAGES_MAX", 3)

    def test(shell: Shell, machine: FakeMachine, disk: Disk) -> None:
        alice, bob = joined(shell, ALICE), joined(shell, BOB)
        machine.answer = lambda peer, message: (
            SendToPeer(ALICE.peer_id, Finished(1)),
            SendToPeer(BOB.peer_id, Finished(1)),
        )
        for number in range(4):
            assert alice.was_cut == (number > 3)
            shell.receive(BOB.peer_id, bob.outlet, READY)
            assert bob.sent() == [Finished(1)]
        assert alice.was_cut and not bob.was_cut and not shell.has_failed

    in_a_scene(test)


def test_waiting_bytes_are_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_module, "OUTLET_BYTES_MAX", 100)

    async def scene() -> None:
        outlet = Outlet(lambda: None)
        assert outlet.put(bytes(60)) and not outlet.put(bytes(60))
        assert await outlet.next() == bytes(60)
        assert outlet.put(bytes(60))

    run(scene())


def test_a_new_connection_of_a_peer_takes_the_place_of_the_old_one() -> None:
    def test(shell: Shell, machine: FakeMachine, disk: Disk) -> None:
        old = joined(shell, ALICE)
        new = joined(shell, ALICE)
        assert old.was_cut and not new.was_cut
        heard = machine.heard.qsize()
        shell.receive(ALICE.peer_id, old.outlet, READY)
        assert not shell.disconnect(ALICE.peer_id, old.outlet)
        assert machine.heard.qsize() == heard
        assert shell.disconnect(ALICE.peer_id, new.outlet)
        assert machine.heard.qsize() == heard + 1

    in_a_scene(test)


def test_close_comes_after_what_was_sent_and_later_messages_are_dropped() -> None:
    def test(shell: Shell, machine: FakeMachine, disk: Disk) -> None:
        alice = joined(shell, ALICE)
        machine.answer = lambda peer, message: (
            SendToPeer(ALICE.peer_id, Finished(1)),
            ClosePeer(ALICE.peer_id),
            SendToPeer(ALICE.peer_id, Finished(2)),
            SendToPeer(BOB.peer_id, Finished(2)),
            ClosePeer(BOB.peer_id),
        )
        shell.receive(ALICE.peer_id, alice.outlet, READY)
        assert alice.sent() == [Finished(1), None]

    in_a_scene(test)


def test_the_machine_is_woken_when_it_asked_to_be() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        machine = FakeMachine(1)
        shell = Shell(machine, Disk().keep, Disk().adopt, roster=lambda: (), clock=loop.time)
        wanted_s = loop.time() + 0.01
        machine.next_wakeup_s = wanted_s
        shell.start()
        _, woken_s = await machine.hears("tick")
        # The loop's clock has a resolution; call_later may be early by less than that.
        assert woken_s >= wanted_s - 0.002
        assert shell._timer is None
        shell.stop()

    run(scene())


def test_the_run_is_over_when_it_is_finished_and_nobody_is_in() -> None:
    def test(shell: Shell, machine: FakeMachine, disk: Disk) -> None:
        alice = joined(shell, ALICE)
        machine.is_finished = True
        shell.receive(ALICE.peer_id, alice.outlet, READY)
        assert not shell.finished.is_set()

        def leaves(peer: bytes, message: Any) -> Actions:
            machine.members.clear()
            return ()

        machine.answer = leaves
        shell.receive(ALICE.peer_id, alice.outlet, Leave())
        assert shell.finished.is_set()

    in_a_scene(test)


def test_others_in_counts_everybody_but_the_one_who_asks() -> None:
    def test(shell: Shell, machine: FakeMachine, disk: Disk) -> None:
        joined(shell, ALICE)
        assert shell.others_in(ALICE.peer_id, False) == 0
        assert shell.others_in(BOB.peer_id, True) == 1

    in_a_scene(test)


def test_who_waits_with_an_invite_takes_no_place_of_those_who_were_in() -> None:
    """Without a ledger the roster is empty, and all of them wait."""

    def test(shell: Shell, machine: FakeMachine, disk: Disk) -> None:
        machine.connected = lambda *what, **more: ()  # type: ignore[method-assign]
        shell.connect(BOB.peer_id, Outlet(lambda: None), hello_of(BOB), "an invite")
        assert shell.others_in(ALICE.peer_id, False) == 0
        assert shell.others_in(ALICE.peer_id, True) == 1
        shell.connect(ALICE.peer_id, Outlet(lambda: None), hello_of(ALICE), "")
        assert shell.others_in(bytes(32), False) == 1
        assert shell.others_in(bytes(32), True) == 2
        machine.members.update((ALICE.peer_id, bytes(32)))
        assert shell.others_in(ALICE.peer_id, False) == 1, "it is in the roster: it has a place"

    in_a_scene(test)


def test_the_rig_makes_legal_records() -> None:
    chain = Chain(1)
    assert chain.next(run_body()).hash == chain.next(join_body(bytes(32))).prev_hash
