"""Text on its way to the trainer, without a network."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swarmtrain.config.settings import DataSection, ModelSection, RunConfig, RunSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.network.control import CoordinatorUnreachable
from swarmtrain.peer.network.text_download import not_as_named, not_given
from swarmtrain.peer.training.reading import Reader
from swarmtrain_transport.wire.messages import Leased, LeaseGrant, LeaseRequest

PIECES = {bytes([number]) * 32: bytes([number]) * 100 for number in range(4)}
JUDGE = b"j" * 32


class Shell:
    """Gives out pieces, but for those that are lost."""

    def __init__(self, *lost: bytes, error: Any = None) -> None:
        self.asked: list[bytes] = []
        self._lost, self._error = lost, error or not_given(404)

    async def fetch_piece(self, digest: bytes, **options: int) -> bytes:
        self.asked.append(digest)
        if digest in self._lost:
            raise self._error
        return {JUDGE: b"judged" * 20, **PIECES}[digest]


def config_of(source: str) -> RunConfig:
    return RunConfig(
        run=RunSection(name="t"), model=ModelSection(context=8),
        data=DataSection(source=source, lease_pieces=2),
    )  # fmt: skip


def granted(*pieces: bytes, turn: int = 0) -> LeaseGrant:
    return LeaseGrant(tuple(Leased(piece, turn) for piece in pieces), (JUDGE,))


def reader_of(config: RunConfig, place: Path, said: list[LeaseRequest], data: str = "") -> Reader:
    return Reader(config, place, batch=4, seed=1, send=said.append, data=data)


def filled(reader: Reader, shell: Any, grant: LeaseGrant) -> None:
    asyncio.run(reader.fill(shell, grant))


def test_pieces_that_are_held_already_do_not_travel_again(tmp_path: Path):
    feed, shell = reader_of(config_of("text"), tmp_path, []), Shell()
    one, two, three, _ = PIECES
    filled(feed, shell, granted(one, two))
    filled(feed, shell, granted(two, three))
    assert shell.asked == [JUDGE, one, two, three]
    assert feed._delivery == {Leased(two, 0): PIECES[two], Leased(three, 0): PIECES[three]}
    assert feed.has_text and feed._delivery is None and feed.validation == (b"judged" * 20,)


def test_a_piece_that_is_not_to_be_had_is_left_out_unless_it_is_the_only_one(tmp_path: Path):
    one, two, *_ = PIECES
    feed = reader_of(config_of("text"), tmp_path, [])
    filled(feed, Shell(one), granted(one, two))
    assert list(feed._delivery or ()) == [Leased(two, 0)]
    with pytest.raises(UserError, match="SWT-E501"):
        filled(feed, Shell(one), granted(one))
    with pytest.raises(UserError, match="SWT-E802"):
        filled(feed, Shell(one, error=not_as_named("x")), granted(one, two))


@pytest.mark.parametrize(("token", "is_known"), [(999, True), (1000, False), (65535, False)])
def test_a_piece_with_tokens_that_the_model_does_not_know_is_refused(
    tmp_path: Path, token: int, is_known: bool
):
    config = RunConfig(
        run=RunSection(name="t"),
        model=ModelSection(kind="transformer", context=8, vocabulary=1000),
        data=DataSection(source="text", tokenizer="ids"),
    )  # fmt: skip

    class Ids(Shell):
        async def fetch_piece(self, digest: bytes, **options: int) -> bytes:
            return token.to_bytes(2, "little") * 20

    feed = reader_of(config, tmp_path, [])
    if is_known:
        filled(feed, Ids(), granted(b"p" * 32))
        return
    with pytest.raises(UserError, match=f"SWT-E802.* token {token}, and the model knows 1000"):
        filled(feed, Ids(), granted(b"p" * 32))


def test_of_own_text_nothing_is_sent_and_its_leases_are_counted_here(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("".join(f"line {n}\n" for n in range(2000)))
    config, said = config_of("own"), []
    reader = reader_of(config, tmp_path, said, str(tmp_path / "mine.txt"))
    shell = Shell()
    reader.ask()
    for _ in range(3):
        filled(reader, shell, LeaseGrant((), ()))
        assert reader.has_text
        for _ in range(5):
            reader.next_batch()
        reader.ask()
    assert not shell.asked and set(said) == {LeaseRequest(1)}
    assert reader.validation


def test_a_reader_asks_once_before_its_text_is_read_and_again_after_a_failure(tmp_path: Path):
    config, said = config_of("text"), []
    reader = reader_of(config, tmp_path, said)
    assert not reader.has_text
    reader.ask()
    filled(reader, Shell(), granted(*list(PIECES)[:2]))
    for _ in range(6):
        reader.next_batch()
    assert len(said) == 2 and said[0] == LeaseRequest(2)
    assert {one.piece for one in (*said[1].held, *said[1].done)} == set(list(PIECES)[:2])
    away = CoordinatorUnreachable("SWT-E201", "Nobody answers.")
    lost = list(PIECES)[2]
    filled(reader, Shell(lost, error=away), granted(lost))
    reader.next_batch()
    assert len(said) == 3 and len(said[2].done) == 2
    reader.finish()
    assert said[3] == LeaseRequest(0, (), said[2].done)
