"""Leases by themselves: what is counted, what is leased again, and in which order."""

import random
from collections import Counter

import pytest

from swarmtrain.data.leases import HELD_MAX, Leases
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Leased
from swarmtrain_transport.wire.text_place import TextPlace

A, B, C = (PeerId(name * 32) for name in (b"a", b"b", b"c"))


def pieces(count: int) -> tuple[bytes, ...]:
    return tuple(bytes([number]) * 32 for number in range(count))


def leases(count: int = 10, seed: int = 5, most: int = 4, uses=None) -> Leases:
    return Leases(pieces(count), seed=seed, most=most, uses=uses or {})


def names(granted) -> list[bytes]:
    return [one.piece for one in granted]


def test_peers_get_different_pieces_while_there_are_enough():
    text = leases()
    granted = [names(text.grant(peer, 3)) for peer in (A, B, C)]
    assert len({piece for lease in granted for piece in lease}) == 9


def test_a_pass_is_over_when_every_piece_was_used_once():
    text = leases(count=5)
    assert text.progress == TextPlace(1, 0, 5)
    first = text.grant(A, 4)
    assert len(text.count(A, first)) == 4 and text.progress == TextPlace(1, 4, 5)
    second = text.grant(A, 4)
    assert len(second) == 4 and [one.turn for one in second].count(0) == 1
    text.count(A, second)
    assert text.progress == TextPlace(2, 3, 5)


def test_what_a_dead_peer_held_is_leased_again_and_comes_first():
    text = leases(count=12)
    lost = text.grant(A, 4)
    text.count(B, text.grant(B, 4))
    text.release(A)
    again = [*text.grant(B, 4), *text.grant(C, 4)]
    assert {one.piece for one in lost} <= set(names(again))
    assert {one.turn for one in again} == {0}


def test_a_report_counts_once_however_often_it_is_said():
    text = leases()
    done = text.grant(A, 4)
    assert len(text.count(A, done)) == 4
    assert not text.count(A, done) and not text.count(B, done)
    text.grant(A, 1)
    assert not text.count(A, done) and text.progress.used == 4


def test_nobody_reports_what_another_one_holds():
    text = leases()
    held = text.grant(A, 4)
    assert not text.count(B, held)
    text.release(A)
    assert len(text.count(B, held)) == 4, "it was away, and has read it to the end"


def test_who_comes_back_goes_on_with_what_nobody_took_meanwhile():
    text = leases(count=8)
    held = text.grant(A, 4)
    text.release(A)
    taken = text.grant(B, 1)
    back = text.grant(A, 1, held)
    assert set(names(held)) - set(names(taken)) <= set(names(back))
    assert not set(names(taken)) & set(names(back))


def test_at_the_end_of_a_pass_nobody_waits_and_the_next_one_begins():
    text = leases(count=6, most=2)
    slow = text.grant(A, 2)
    text.count(B, text.grant(B, 2))
    text.count(B, text.grant(B, 2))
    ahead = text.grant(B, 2)
    assert {one.turn for one in ahead} == {1} and not set(names(slow)) & set(names(ahead))
    text.count(B, ahead)
    text.count(B, text.grant(B, 2))
    shared = text.grant(B, 2)
    assert set(names(shared)) == set(names(slow)), "nobody keeps a piece from the others for long"
    assert len(text.count(B, shared)) == 2 and not text.count(A, slow)
    assert text.progress == TextPlace(2, 4, 6)


def test_fewer_pieces_than_peers_are_shared_and_counted_once():
    text = leases(count=1)
    held = [text.grant(peer, 4) for peer in (A, B, C)]
    assert len({one for lease in held for one in lease}) == 1
    counted = [text.count(peer, lease) for peer, lease in zip((A, B, C), held, strict=True)]
    assert sum(map(len, counted)) == 1


def test_nobody_holds_more_than_two_leases_and_nobody_asks_for_nothing():
    text = leases(count=40)
    held = text.grant(A, 10**9)
    assert len(held) == 4
    for _ in range(3):
        held = text.grant(A, 4, held)
    assert len(held) == HELD_MAX * 4
    for count, more in ((-1, held[:1]), (1, (*held, held[0]))):
        with pytest.raises(RemoteFault, match="lease"):
            text.grant(A, count, more)


def test_pieces_and_turns_that_there_are_not_mean_nothing():
    text = leases()
    strange = (Leased(b"x" * 32, 0), Leased(pieces(1)[0], 7), Leased(pieces(1)[0], -1))
    assert not text.count(A, strange) and len(text.grant(A, 1, strange)) == 1


def test_the_order_is_drawn_from_the_seed_and_anew_in_each_pass():
    def order(seed: int) -> list[list[bytes]]:
        text, passes = leases(seed=seed), []
        for _ in range(2):
            one: list[bytes] = []
            while len(one) < 10:
                granted = text.grant(A, 1)
                text.count(A, granted)
                one += names(granted)
            passes.append(one)
        return passes

    assert order(1) == order(1) != order(2)
    assert order(1)[0] != order(1)[1] and sorted(order(1)[0]) == sorted(order(1)[1])


def test_what_was_durable_is_where_the_next_life_goes_on():
    text = leases()
    uses = text.count(A, text.grant(A, 4))
    again = leases(uses=uses)
    assert again.progress == text.progress == TextPlace(1, 4, 10)
    assert not {piece for piece in uses} & set(names(again.grant(B, 4)))


@pytest.mark.parametrize("seed", range(8))
def test_every_piece_is_counted_once_per_turn_whatever_peers_do(seed: int):
    rng = random.Random(seed)
    count = rng.choice((1, 3, 12, 40))
    text, held, uses = leases(count=count, seed=seed), {}, Counter()
    for _ in range(600):
        peer = PeerId(bytes([rng.randrange(5)]) * 32)
        mine = held.get(peer, ())
        done = rng.sample(mine, rng.randrange(len(mine) + 1))
        if rng.random() < 0.1:
            text.release(peer)
            if rng.random() < 0.5:
                held.pop(peer, None)
        elif rng.random() < 0.05:
            text = leases(count=count, seed=seed, uses=dict(uses))
        else:
            for piece, turn in text.count(peer, done).items():
                assert turn == uses[piece] + 1
                uses[piece] = turn
            rest = [one for one in mine if one not in done]
            held[peer] = text.grant(peer, rng.randrange(1, 6), rest)
            assert len(set(names(held[peer]))) == len(held[peer])
    assert text.progress.pieces == count
    assert text.progress.number == min(uses[piece] for piece in pieces(count)) + 1


def test_a_request_does_not_look_at_all_pieces(monkeypatch: pytest.MonkeyPatch):
    many = tuple(number.to_bytes(32, "big") for number in range(5000))
    text = Leases(many, seed=1, most=1, uses={})
    looks = 0
    real = Leases._entry

    def entry(self, piece):
        nonlocal looks
        looks += 1
        return real(self, piece)

    monkeypatch.setattr(Leases, "_entry", entry)
    for number in range(12_000):
        peer = PeerId(bytes([number % 3]) * 32)
        text.count(peer, text.grant(peer, 1))
    assert looks < 10 * 12_000 and len(text._next) <= 6 * 5000


def test_a_piece_that_cannot_be_read_any_more_is_leased_to_nobody():
    text = leases(count=3)
    (held, *_) = text.grant(A, 3)
    text.withdraw(held.piece)
    text.withdraw(b"unknown")
    assert text.progress.pieces == 2 and not text.count(A, (held,))
    assert held.piece not in names(text.grant(B, 4)) and len(text.held(A)) == 2
    text.release(A)
    for piece in pieces(3):
        text.withdraw(piece)
    assert text.grant(B, 4) == () and text.progress.pieces == 0
