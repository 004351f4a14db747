import hashlib
import random
from collections import Counter

import lz4.block
import pytest

from swarmtrain.coordinator.corpus_service import CorpusService
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.messages import Ready


class Pieces:
    """Ten training pieces and two for validation."""

    def __init__(self, count: int = 10) -> None:
        texts = [b"piece %d " % number * 50 for number in range(count + 2)]
        self._texts = {hashlib.sha256(text).hexdigest(): text for text in texts}
        names = tuple(self._texts)
        self.train, self.validation = names[:count], names[count:]

    def piece(self, piece_hash: str) -> bytes:
        return self._texts[piece_hash]


A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def service(count: int = 10, seed: int = 5) -> CorpusService:
    return CorpusService(Pieces(count), seed=seed, lease_pieces_max=4)


def test_peers_get_different_pieces_while_there_are_enough() -> None:
    texts = service()
    granted = [texts.grant(peer, 3).train for peer in (A, B, C)]
    assert len(set().union(*granted)) == 9


def test_validation_is_the_same_for_everybody() -> None:
    texts = service()
    assert texts.grant(A, 1).validation == texts.grant(B, 4).validation
    assert len(texts.grant(A, 1).validation) == 2


def test_the_least_held_pieces_go_first_when_all_are_out() -> None:
    texts = service(count=4)
    texts.grant(A, 3)
    texts.grant(B, 3)
    texts.grant(C, 3)
    holders = Counter(piece for lease in texts.leases().values() for piece in lease)
    assert max(holders.values()) - min(holders.values()) <= 1 and len(holders) == 4


def test_released_pieces_are_given_again_after_the_fresh_ones() -> None:
    texts = service()
    first = set(texts.grant(A, 4).train)
    texts.release(A)
    second = set(texts.grant(B, 4).train)
    assert not first & second
    third = texts.grant(A, 4).train
    assert set(third[:2]).isdisjoint(first | second) and set(third[2:]) <= first
    texts.release(C)


def test_a_further_request_replaces_what_the_peer_held() -> None:
    texts = service()
    first = texts.grant(A, 2).train
    second = texts.grant(A, 2).train
    assert not set(first) & set(second) and texts.leases() == {A: second}


def test_nobody_holds_more_than_the_run_allows_and_nobody_asks_for_nothing() -> None:
    texts = service()
    assert len(texts.grant(A, 10**9).train) == 4
    with pytest.raises(RemoteFault, match="lease"):
        texts.grant(A, 0)


def test_the_order_is_drawn_from_the_seed() -> None:
    orders = [tuple(service(seed=seed).grant(A, 4).train) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


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
    assert texts.grant(A, 3).train == () and texts.packed_piece(bytes(32)) is None


def test_no_boast_of_samples_is_believed_beyond_the_text_that_a_peer_holds() -> None:
    texts = CorpusService(Pieces(), seed=1, lease_pieces_max=4, piece_samples=10)
    boast, modest = Ready(1, 1 << 62, 0, bytes(32)), Ready(1, 25, 0, bytes(32))
    assert texts.believed(A, boast).samples == 40, "after a restart: as much as one may hold"
    texts.grant(A, 3)
    assert texts.believed(A, boast).samples == 30
    assert texts.believed(A, modest) is modest


def test_samples_of_another_kind_than_the_runs_text_are_not_capped() -> None:
    boast = Ready(1, 1 << 62, 0, bytes(32))
    own = CorpusService(None, seed=1, lease_pieces_max=4, piece_samples=10)
    custom = CorpusService(Pieces(), seed=1, lease_pieces_max=4)
    assert own.believed(A, boast) is boast and custom.believed(A, boast) is boast


class Sorted:
    """The same order without a heap: all pieces are sorted at every request."""

    def __init__(self, texts: CorpusService) -> None:
        self.rank = texts._rank
        self.holders, self.leased = Counter[bytes](), Counter[bytes]()
        self.leases: dict[bytes, tuple[bytes, ...]] = {}

    def release(self, peer: bytes) -> None:
        self.holders.subtract(self.leases.pop(peer, ()))

    def grant(self, peer: bytes, count: int) -> tuple[bytes, ...]:
        self.release(peer)
        order = sorted(self.rank, key=lambda p: (self.holders[p], self.leased[p], self.rank[p]))
        self.leases[peer] = tuple(order[: min(count, 4)])
        self.holders.update(self.leases[peer])
        self.leased.update(self.leases[peer])
        return self.leases[peer]


@pytest.mark.parametrize("seed", range(10))
def test_pieces_are_given_as_if_all_were_sorted_at_every_request(seed: int) -> None:
    draw = random.Random(seed)
    texts = service(count=draw.choice((1, 3, 10, 30)), seed=seed)
    plain = Sorted(texts)
    for _ in range(400):
        peer = bytes([draw.randrange(8)])
        if draw.random() < 0.3:
            texts.release(peer)
            plain.release(peer)
        else:
            count = draw.randrange(1, 6)
            assert texts.grant(peer, count).train == plain.grant(peer, count)


def test_a_request_does_not_look_at_all_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = service(count=5000)
    looks = 0
    real = CorpusService._entry

    def entry(self: CorpusService, piece: bytes) -> tuple[int, int, int, bytes]:
        nonlocal looks
        looks += 1
        return real(self, piece)

    monkeypatch.setattr(CorpusService, "_entry", entry)
    for number in range(20_000):
        texts.grant(bytes([number % 3]), 1)
    assert looks < 6 * 20_000
    assert len(texts._next) <= 6 * 5000
