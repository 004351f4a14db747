"""Ends of rounds, for whoever sits before a peer: a sentence that needs no other."""

import pytest

from swarmtrain.peer.training.rounds import RoundReport, in_words


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (RoundReport(1, "merged", 1), "round 1: nobody else was in it"),
        (RoundReport(2, "merged", 2), "round 2: averaged with 1 other peer"),
        (RoundReport(3, "merged", 4), "round 3: averaged with 3 other peers"),
        (RoundReport(4, "merged", 2, partner=b"\xab" * 32), "round 4: averaged with abababab"),
        (RoundReport(5, "left-out", 3), "without this peer's, which is kept"),
        (RoundReport(6, "replayed", 1), "round 6: caught up with its result, the work of 1 peer"),
        (RoundReport(7, "followed", 2), "the work of 2 peers; this peer gave nothing"),
        (RoundReport(8, "followed", 0), "the others have exchanged in pairs"),
        (RoundReport(9, "alone", 1), "round 9: a step alone"),
        (RoundReport(10, "skipped", 0, "deadline"), "skipped, deadline; this peer's work is kept"),
    ],
)
def test_every_outcome_is_a_sentence(report: RoundReport, words: str) -> None:
    assert words in in_words(report)
    assert "merged" not in in_words(report)
