"""Patience with a coordinator: how long it is waited for, and in which words."""

import errno
import random

import pytest

from swarmtrain.peer.network import patience


def test_pauses_are_bounded_and_drawn_from_the_given_source() -> None:
    def pauses(seed: int) -> list[float]:
        rng = random.Random(seed)
        return [patience.pause_s(failed, rng) for failed in range(40)]

    assert pauses(1) == pauses(1) != pauses(2)
    assert max(pauses(1)) <= patience.PAUSE_MAX_S


def test_who_was_in_before_waits_and_a_stranger_is_told_how_to() -> None:
    rng = random.Random(1)
    stranger = patience.Patience("h", 1, rng, is_endless=False)
    assert [stranger.failure(OSError()) for _ in range(patience.FIRST_TRIES)][-2:] == [False, True]
    stranger.answered()
    assert not any(stranger.failure(OSError()) for _ in range(100))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "nothing came back in time"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed"), "Connection refused"),
        (OSError(-2, "Name or service not known"), "Name or service not known"),
        (ValueError("odd\x1b[2J"), "odd [2J"),
    ],
)
def test_a_failed_try_is_told_in_words(error: Exception, words: str) -> None:
    assert patience.in_words(error) == words


def test_several_coordinators_are_tried_in_turn_before_each_pause_and_soon_again() -> None:
    trying = patience.Patience("h", 1, random.Random(1), is_endless=False)
    trying.addresses = 2
    tries = 2 * patience.FIRST_TRIES
    assert [trying.failure(OSError()) for _ in range(tries)][-2:] == [False, True]
    trying.answered()
    pauses = []
    for _ in range(4 * patience.SOON_ROUNDS):
        trying.failure(OSError())
        pauses.append(trying.pause_s())
    assert not any(pauses[::2]) and all(pauses[1::2])
    soon = pauses[: 2 * patience.SOON_ROUNDS]
    assert max(soon) <= patience.PAUSE_FIRST_S < max(pauses) <= patience.PAUSE_MAX_S
