"""A death in the middle of sending, for every number of owners: some of it sent, not all."""

from types import SimpleNamespace

import pytest

from swarmtrain.peer.network.staged_death import FreezingLink
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR
from swarmtrain_transport.wire.frames import Frame, FrameKind, Ranges, Wanted

ROUND = 3
ME = b"me"


class Recorder:
    """A link that only remembers."""

    def __init__(self) -> None:
        self.sent: list[Frame] = []

    def send(self, peer: bytes, frame: Frame) -> bool:
        self.sent.append(frame)
        return True


class Scene:
    """A freezing link over slices of so many chunks; the first slice is our own."""

    def __init__(
        self, chunks: list[int], op: int = ROUND, kind: str = MEAN, gives: bool = True
    ) -> None:
        specs = [SimpleNamespace(start=0, stop=10 * count) for count in chunks]
        plan = SimpleNamespace(op=op, slices=specs, chunk_values=10, kind=kind)
        exchange = SimpleNamespace(
            view=SimpleNamespace(plan=plan, weights={ME: 1} if gives else {}),
            sender=SimpleNamespace(chunks_total=sum(chunks[1:])),
        )
        self.real = Recorder()
        self.frozen: list[tuple[int, int]] = []
        self.rounds: list[int] = []
        self.link = FreezingLink(
            self.real,
            SimpleNamespace(
                first=SimpleNamespace(exchange=exchange), card=SimpleNamespace(peer_id=ME)
            ),
            ROUND,
            lambda at, sent, total: self.rounds.append(at) or self.frozen.append((sent, total)),
        )  # fmt: skip
        self.chunks = chunks

    def send_all(self) -> None:
        for index, count in enumerate(self.chunks[1:], start=1):
            for chunk in range(count):
                frame = Frame(FrameKind.PART, 1, slice_index=index, chunk=chunk)
                assert self.link.send(b"owner", frame)

    def owner_repeats(self, index: int) -> None:
        """Send what an owner that misses parts sends after a second."""
        here = [False] * self.chunks[index]
        for frame in self.real.sent:
            if frame.slice_index == index:
                here[frame.chunk] = True
        body = Ranges(1 << 20, 0, tuple(here)).pack()
        self.link.heard(Frame(FrameKind.RANGES, 1, slice_index=index, body=body))


@pytest.mark.parametrize("chunks", [[9, 9, 9], [7, 7, 7, 7], [2] * 16, [5, 1, 4]])
def test_every_owner_misses_something_and_somebody_has_something(chunks):
    scene = Scene(chunks)
    scene.send_all()
    scene.owner_repeats(len(chunks) - 1)
    ((sent, total),) = scene.frozen
    assert 0 < sent < total == sum(chunks[1:])
    for index, count in enumerate(chunks[1:], start=1):
        assert sum(frame.slice_index == index for frame in scene.real.sent) < count


def test_a_part_that_is_sent_again_is_counted_once():
    scene = Scene([4, 4])
    scene.send_all()
    scene.send_all()
    scene.owner_repeats(1)
    assert scene.frozen == [(2, 4)]


def test_once_frozen_nothing_more_goes_out_and_nobody_is_told_twice():
    scene = Scene([4, 4])
    scene.send_all()
    scene.owner_repeats(1)
    before = len(scene.real.sent)
    scene.send_all()
    scene.owner_repeats(1)
    assert len(scene.real.sent) == before
    assert len(scene.frozen) == 1


def test_other_rounds_and_other_frames_pass():
    scene = Scene([4, 4], op=ROUND - 1)
    scene.send_all()
    scene.owner_repeats(1)
    assert len(scene.real.sent) == 4
    assert scene.frozen == []
    same_round = Scene([4, 4])
    same_round.link.send(b"owner", Frame(FrameKind.GET, 1, chunk=3))
    assert len(same_round.real.sent) == 1


def test_an_owner_that_holds_nothing_yet_proves_nothing():
    scene = Scene([4, 4, 4])
    scene.owner_repeats(1)
    scene.link.send(b"owner", Frame(FrameKind.PART, 1, slice_index=2, chunk=0))
    scene.owner_repeats(1)
    assert scene.frozen == []


def test_a_partner_gets_a_quarter_since_half_may_have_gone_ahead():
    scene = Scene([8, 8], kind=PAIR)
    bodies = [bytes([chunk]) * 8 for chunk in range(8)]
    for chunk in range(4):  # the others are there already
        assert scene.link.send(b"peer", Frame(FrameKind.RESULT, 1, chunk=chunk, body=bodies[chunk]))
    assert [frame.chunk for frame in scene.real.sent] == [0, 1]
    for chunk in (1, 3):
        body = Wanted(content_hash(bodies[chunk])).pack()
        scene.link.heard(Frame(FrameKind.GET, 1, body=body))
    assert scene.frozen == [(2, 8)]


def test_who_gathers_gets_half_and_asks_in_vain_for_the_rest():
    scene = Scene([4, 4], kind=GATHER)
    bodies = [bytes([chunk]) * 8 for chunk in range(4)]
    for chunk, body in enumerate(bodies):
        assert scene.link.send(b"peer", Frame(FrameKind.RESULT, 1, chunk=chunk, body=body))
    assert [frame.chunk for frame in scene.real.sent] == [0, 1]
    asked = [Frame(FrameKind.GET, 1, body=Wanted(content_hash(body)).pack()) for body in bodies]
    scene.link.heard(asked[0])  # somebody else's affair: it went out
    assert scene.frozen == []
    scene.link.heard(asked[3])
    assert scene.frozen == [(2, 4)]
    for body in (bodies[3], b"another round's"):
        assert scene.link.send(b"peer", Frame(FrameKind.BLOB, 1, body=body))
    assert [bytes(frame.body) for frame in scene.real.sent[2:]] == [b"another round's"]


@pytest.mark.parametrize(("gives", "frozen"), [(True, [(2, 4)]), (False, [])])
def test_where_its_round_began_without_the_peer_it_dies_in_the_next_it_gives_to(gives, frozen):
    scene = Scene([4, 4], op=ROUND + 2, gives=gives)
    scene.send_all()
    scene.owner_repeats(1)
    assert scene.frozen == frozen and scene.rounds == [ROUND + 2] * len(frozen)
