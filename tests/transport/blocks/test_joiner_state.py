"""A joiner gets its state from many donors, whoever dies, lies or is slow, and nothing twice."""

import dataclasses

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.blocks.state_download import tag_of
from swarmtrain_transport.wire.frames import Frame, FrameKind
from tests.transport.peer.sync_rig import MBIT, End, SyncWorld
from tests.transport.rig import A, B, C, D, E

CHUNK = limits.STATE_CHUNK_BYTES
VALUES = 6 * CHUNK // 4 + 1000
TOTAL = 4 * VALUES
DONORS = (A, B, C, D)


def world_of(up: float = 100 * MBIT, down: float = 100 * MBIT) -> tuple[SyncWorld, End]:
    world = SyncWorld(VALUES, (*DONORS, E))
    for peer in DONORS:
        world.donor(peer, up)
    return world, world.joiner(E, down)


def finish(world: SyncWorld, joiner: End) -> float:
    """Seconds until the state was there, which is the right one."""
    world.run(lambda: joiner.loaded is not None)
    assert joiner.loaded is not None and joiner.loaded.chunks == world.right[1]
    return joiner.loaded_s


def line_s(down: float = 100 * MBIT) -> float:
    """Return the seconds that the state takes at least."""
    return TOTAL / down


def chunks_here(joiner: End, count: int) -> bool:
    return joiner.machine.first.states.progress[0] >= count


def test_four_donors_fill_the_joiners_link_and_each_gives_its_part() -> None:
    world, joiner = world_of(up=30 * MBIT)
    assert finish(world, joiner) <= line_s() / 0.9
    assert sum(world.given.values()) == TOTAL
    assert all(0.1 * TOTAL < given < 0.4 * TOTAL for given in world.given.values())
    assert set(joiner.kept) == set(world.right[0].chunk_hashes)


@pytest.mark.parametrize("delay_s", [0.001, 0.15])
def test_the_window_follows_the_delay(delay_s: float) -> None:
    world = SyncWorld(VALUES, (A, E), delay_s)
    world.donor(A, 200 * MBIT)
    joiner = world.joiner(E, 200 * MBIT)
    assert finish(world, joiner) <= line_s(200 * MBIT) / 0.8 + 13 * delay_s


def test_a_donor_that_dies_costs_what_was_under_way_and_no_more() -> None:
    world, joiner = world_of(up=30 * MBIT)
    world.run(lambda: chunks_here(joiner, 2))
    world.kill(B)
    seconds = finish(world, joiner)
    assert seconds <= TOTAL / (85 * MBIT) + 2 * limits.FETCH_TIMEOUT_S
    assert sum(world.given.values()) <= TOTAL + 8 * limits.STATE_PIECE_BYTES


def test_a_joiner_that_was_killed_goes_on_where_it_was() -> None:
    world, first = world_of()
    world.run(lambda: chunks_here(first, 3))
    world.kill(E)
    kept, asked = set(first.kept), len(world.asked)
    assert len(kept) >= 3
    second = world.joiner(E, 100 * MBIT, earlier=first)
    finish(world, second)
    again = [wanted.digest for _, wanted in world.asked[asked:]]
    assert not kept & set(again)
    assert world.right[0].root not in again
    assert set(second.kept).isdisjoint(kept)


def test_a_chunk_that_was_damaged_on_the_disk_is_fetched_again() -> None:
    world, first = world_of()
    world.run(lambda: chunks_here(first, 3))
    world.kill(E)
    damaged = next(iter(first.kept))
    first.kept[damaged] = first.kept[damaged][:-1] + b"?"
    second = world.joiner(E, 100 * MBIT, earlier=first)
    finish(world, second)
    assert damaged in second.kept


def test_a_slow_donor_does_not_hold_the_others_up() -> None:
    world = SyncWorld(VALUES, (*DONORS, E))
    for peer in (A, B, C):
        world.donor(peer, 30 * MBIT)
    world.donor(D, 1 * MBIT)
    joiner = world.joiner(E, 100 * MBIT)
    seconds = finish(world, joiner)
    assert seconds <= 1.25 * TOTAL / (91 * MBIT)
    assert sum(world.given.values()) <= 1.15 * TOTAL


def test_a_very_slow_link_is_waited_for_as_long_as_something_comes() -> None:
    """1 Mbit/s and four donors at once: pieces take longer than the time-out of a silent donor."""
    world = SyncWorld(CHUNK // 4, (*DONORS, E))
    for peer in DONORS:
        world.donor(peer, 100 * MBIT)
    joiner = world.joiner(E, 1 * MBIT)
    world.run(lambda: joiner.loaded is not None)
    assert sum(world.given.values()) <= 1.5 * CHUNK


def test_a_donor_that_sends_other_bytes_is_found_out_and_not_asked_again() -> None:
    world, joiner = world_of()

    def lie(target: bytes, frame: Frame) -> Frame:
        if frame.kind is FrameKind.PIECE:
            return dataclasses.replace(frame, body=bytes(len(frame.body)))
        return frame

    world.change[C] = lie
    finish(world, joiner)
    assert {(fault.peer, fault.reason) for fault in joiner.faults} == {(C, "hash")}
    assert world.given[C] < 0.5 * TOTAL


def test_a_donor_that_sends_pieces_of_another_length_is_told() -> None:
    world, joiner = world_of()

    def shorten(target: bytes, frame: Frame) -> Frame:
        if frame.kind is FrameKind.PIECE:
            return dataclasses.replace(frame, body=bytes(frame.body[:-1]))
        return frame

    world.change[C] = shorten
    finish(world, joiner)
    assert {(fault.peer, fault.reason) for fault in joiner.faults} == {(C, "length")}


def test_donors_that_lack_the_state_are_asked_politely() -> None:
    """Nobody has it for a while: a few questions a second, and then all goes its way."""
    world, joiner = world_of()
    digests = {tag_of(digest): digest for digest in world.right[0].chunk_hashes}

    def lack(target: bytes, frame: Frame) -> Frame:
        if frame.kind is FrameKind.PIECE:
            return Frame(FrameKind.MISSING, frame.run_tag, body=digests[frame.set_id])
        return frame

    world.change = dict.fromkeys(DONORS, lack)
    world.run(lambda: world.now_s > 20.0)
    assert joiner.loaded is None
    assert len(world.asked) <= 20 / limits.FETCH_RETRY_S * len(DONORS) * 4
    world.change = {}
    assert finish(world, joiner) <= 20.0 + 2 * line_s()


def test_a_member_that_says_nothing_is_no_burden() -> None:
    world, joiner = world_of(up=30 * MBIT)
    world.change[A] = lambda target, frame: None
    assert finish(world, joiner) <= line_s() / 0.8
    assert A not in world.given
