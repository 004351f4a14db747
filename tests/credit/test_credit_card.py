"""The card: a picture that is well-formed and harmless, whatever names say."""

import xml.etree.ElementTree as ElementTree

from swarmtrain.credit.card import drawn
from swarmtrain.credit.lifetime import Lifetime

HOSTILE = "</text><script>alert(1)</script>\x00\x1b[31m\ud800\u202e&\"'" + "x" * 5000


def of(run: str, rounds: int, **more: object) -> Lifetime:
    spans = {0: {*range(rounds)}}
    return Lifetime(run, run, "aa", merged=spans, round_tokens=2_000_000, **more)


def test_it_is_an_image_without_script_link_or_font():
    text = drawn([of(HOSTILE, 3, name=HOSTILE), of("moths", 412)])
    root = ElementTree.fromstring(text.encode())
    tags = {one.tag.partition("}")[2] for one in root.iter()}
    assert tags == {"svg", "title", "style", "rect", "text"}
    for word in ("<script", "href", "url(", "@import", "@font-face", "onload"):
        assert word not in text
    assert text.count("http") == 1, "the name space alone"
    assert "prefers-color-scheme:dark" in text and len(text) < 4000


def test_it_tells_the_totals_and_the_runs_with_most_rounds():
    text = drawn([of(f"run-{number}", number) for number in range(9)])
    assert "72 million tokens" in text and "36 rounds of 9 runs" in text
    assert "run-8" in text and "run-5" in text and "run-4" not in text
    assert "2 rounds of 1 run" in drawn([of("a", 2)])


def test_a_run_in_stages_counts_rounds_alone():
    text = drawn([Lifetime("cut", "aa", "bb", merged={1: {1, 2}})])
    assert "2 rounds</text>" in text and "tokens" not in text
