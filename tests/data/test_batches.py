import random

import pytest
import torch

from swarmtrain.data.batches import ByteStream, validation_batches

TEXT = bytes(range(256)) * 4


def stream(seed: int, pieces: tuple[bytes, ...] = (TEXT,)) -> ByteStream:
    return ByteStream(pieces, batch=4, context=16, rng=random.Random(seed))


def test_a_batch_has_windows_and_the_byte_that_follows_each_byte() -> None:
    batch = stream(seed=0).next_batch()
    assert batch.x_BT.shape == batch.y_BT.shape == (4, 16)
    assert batch.x_BT.dtype == batch.y_BT.dtype == torch.int64
    assert torch.equal((batch.x_BT + 1) % 256, batch.y_BT)


def test_the_same_seed_gives_the_same_batches_and_another_seed_others() -> None:
    first, second, other = stream(seed=1), stream(seed=1), stream(seed=2)
    for _ in range(3):
        batch = first.next_batch()
        assert torch.equal(batch.x_BT, second.next_batch().x_BT)
        assert not torch.equal(batch.x_BT, other.next_batch().x_BT)


def test_windows_reach_the_first_and_the_last_byte() -> None:
    tiny = ByteStream((bytes(range(18)),), batch=64, context=16, rng=random.Random(0))
    batch = tiny.next_batch()
    assert set(batch.x_BT[:, 0].tolist()) == {0, 1}
    assert int(batch.y_BT.max()) == 17


def test_pieces_shorter_than_a_window_are_joined() -> None:
    short = ByteStream((b"abcdefgh", b"ijklmnopq"), batch=1, context=16, rng=random.Random(0))
    assert bytes(short.next_batch().x_BT[0].tolist()) == b"abcdefghijklmnop"


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes, one window needs 17"):
        stream(seed=0, pieces=(b"x" * 16,))
    with pytest.raises(ValueError, match="one window needs"):
        stream(seed=0, pieces=())


def test_validation_windows_are_spread_from_the_first_to_the_last_byte() -> None:
    text = bytes(100) + bytes([1]) * 100
    batches = validation_batches((text[:70], text[70:]), windows=6, batch=4, context=9)
    assert [len(batch.x_BT) for batch in batches] == [4, 2]
    starts = torch.cat([batch.x_BT for batch in batches])
    assert starts[0].sum() == 0
    assert starts[-1].sum() == 9


def test_validation_windows_are_the_same_every_time() -> None:
    first = validation_batches((TEXT,), windows=8, batch=8, context=16)
    second = validation_batches((TEXT,), windows=8, batch=8, context=16)
    assert torch.equal(first[0].x_BT, second[0].x_BT)
    assert torch.equal(first[0].y_BT, second[0].y_BT)


def test_a_single_validation_window_is_allowed_and_none_is_not() -> None:
    assert len(validation_batches((TEXT,), windows=1, batch=8, context=16)) == 1
    with pytest.raises(ValueError, match="at least 1"):
        validation_batches((TEXT,), windows=0, batch=8, context=16)


@pytest.mark.parametrize("width", [2, 4])
def test_ids_of_more_than_a_byte_are_read_whole(width: int) -> None:
    ids = [65_535 - number for number in range(40)]
    text = b"".join(one.to_bytes(width, "little") for one in ids)
    pieces = text[: 7 * width], text[7 * width :]
    (batch,) = validation_batches(pieces, windows=2, batch=2, context=16, width=width)
    assert batch.x_BT[0].tolist() == ids[:16] and batch.y_BT[1].tolist() == ids[-16:]
    drawn = ByteStream(pieces, batch=4, context=16, rng=random.Random(0), width=width)
    assert int(drawn.next_batch().x_BT.min()) > 65_000
