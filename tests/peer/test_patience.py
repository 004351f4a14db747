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
