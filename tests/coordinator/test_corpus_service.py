import hashlib

import lz4.block
import pytest

from swarmtrain.coordinator.corpus_service import CorpusService
from swarmtrain.coordinator.disk.store_errors import StoreFull
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.messages import Leased, LeaseRequest, Ready
from swarmtrain_transport.wire.text_place import TextPlace


class Pieces:
    """Ten training pieces and two for validation."""

    def __init__(self, count: int = 10) -> None:
        texts = [b"piece %d " % number * 50 for number in range(count + 2)]
        self._texts = {hashlib.sha256(text).hexdigest(): text for text in texts}
        names = tuple(self._texts)
        self.train, self.validation = names[:count], names[count:]

    def piece(self, piece_hash: str) -> bytes:
        return self._texts[piece_hash]


A, B = b"a" * 32, b"b" * 32


def service(count: int = 10, **more: object) -> CorpusService:
    return CorpusService(Pieces(count), seed=5, lease_pieces_max=4, **more)


def test_validation_is_the_same_for_everybody() -> None:
    texts = service()
    first = texts.grant(A, LeaseRequest(1)).validation
    assert first == texts.grant(B, LeaseRequest(4)).validation and len(first) == 2


def test_what_was_used_is_durable_before_more_is_granted() -> None:
    kept: list[dict[bytes, int]] = []
    texts = service(keep=lambda uses: kept.append(dict(uses)))
    held = texts.grant(A, LeaseRequest(3)).train
    texts.grant(A, LeaseRequest(3, held=held[1:], done=held[:1]))
    assert kept == [{held[0].piece: 1}]
    assert texts.progress == TextPlace(1, 1, 10)

    def full(uses: object) -> None:
        raise StoreFull("SWT-E402", "full")

    texts = service(keep=full)
    held = texts.grant(A, LeaseRequest(3)).train
    with pytest.raises(StoreFull):
        texts.grant(A, LeaseRequest(3, done=held))


def test_what_a_peer_has_read_counts_when_it_leaves_and_it_holds_nothing() -> None:
    texts = service()
    held = texts.grant(A, LeaseRequest(3)).train
    assert texts.grant(A, LeaseRequest(0, done=held[:2])).train == ()
    assert texts.progress == TextPlace(1, 2, 10) and not texts.leases[0].held(A)


def test_too_much_that_is_said_to_be_done_is_refused() -> None:
    with pytest.raises(RemoteFault, match="lease"):
        service().grant(A, LeaseRequest(1, done=(Leased(bytes(32), 0),) * 9))


def test_a_piece_that_is_too_short_for_an_example_is_not_leased() -> None:
    texts = CorpusService(Pieces(), seed=5, lease_pieces_max=40, example_bytes=10_000)
    assert len(texts.grant(A, LeaseRequest(40)).train) == 9


def test_the_tokenizer_travels_as_a_piece() -> None:
    texts = service(tokenizer=b"{}")
    packed = texts.packed_piece(hashlib.sha256(b"{}").digest())
    assert packed is not None and lz4.block.decompress(packed) == b"{}"


def test_a_piece_travels_as_its_length_and_an_lz4_block() -> None:
    pieces = Pieces()
    texts = CorpusService(pieces, seed=1, lease_pieces_max=4)
    plain = pieces.piece(pieces.train[0])
    packed = texts.packed_piece(bytes.fromhex(pieces.train[0]))
    assert packed is not None and len(packed) < len(plain)
    assert int.from_bytes(packed[:4], "little") == len(plain)
    assert lz4.block.decompress(packed) == plain
    assert texts.packed_piece(bytes(32)) is None


def test_without_a_text_the_lease_is_empty() -> None:
    texts = CorpusService(None, seed=1, lease_pieces_max=4)
    assert texts.grant(A, LeaseRequest(3)).train == () and texts.packed_piece(bytes(32)) is None


def test_no_boast_of_samples_is_believed_beyond_the_text_that_a_peer_holds() -> None:
    texts = CorpusService(Pieces(), seed=1, lease_pieces_max=4, piece_samples=10)
    boast, modest = Ready(1, 1 << 62, 0, bytes(32)), Ready(1, 25, 0, bytes(32))
    assert texts.believed(A, boast).samples == 40, "after a restart: as much as one may hold"
    texts.grant(A, LeaseRequest(3))
    assert texts.believed(A, boast).samples == 30
    assert texts.believed(A, modest) is modest


def test_samples_of_another_kind_than_the_runs_text_are_not_capped() -> None:
    boast = Ready(1, 1 << 62, 0, bytes(32))
    own = CorpusService(None, seed=1, lease_pieces_max=4, piece_samples=10)
    custom = CorpusService(Pieces(), seed=1, lease_pieces_max=4)
    assert own.believed(A, boast) is boast and custom.believed(A, boast) is boast


def test_a_piece_whose_file_was_changed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = Pieces()
    texts = CorpusService(pieces, seed=5, lease_pieces_max=4)

    def changed(piece_hash: str) -> bytes:
        raise OSError("a file has other contents")

    monkeypatch.setattr(pieces, "piece", changed)
    assert texts.packed_piece(bytes.fromhex(pieces.train[0])) is None
    assert texts.progress == TextPlace(1, 0, 9)
