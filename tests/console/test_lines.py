"""Lines for people are broken between words, and only where a terminal is."""

import io

import pytest

from swarmtrain.console.lines import columns, counted, stamped, wrapped

LONG = "You send    compressed differences of the model's weights. No files, no user name."


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_line_goes_on_under_its_first_column(width):
    lines = wrapped(LONG, width).splitlines()
    assert len(lines) > 1
    assert all(len(line) <= width for line in lines)
    assert all(line.startswith(" " * 12) for line in lines[1:])
    assert " ".join(" ".join(lines).split()) == " ".join(LONG.split())


def test_an_indented_line_keeps_its_indentation():
    text = "SWT-E1  what\n        and what it means for you, in more words than fit here"
    assert all(line.startswith("        ") for line in wrapped(text, 40).splitlines()[1:])


def test_paths_and_invites_stay_whole():
    path = "/very/long/" + "folder-with-a-name/" * 4
    assert path in wrapped(f"state in {path} and more words", 40).split()


def test_a_long_word_begins_further_left_rather_than_break():
    path = "/" + "x" * 50
    assert wrapped(f"the model is in  {path}", 60) == f"the model is in\n{' ' * 9}{path}"
    assert wrapped(f"the model is in  {path}", 50) == f"the model is in\n{path}"


def test_a_quoted_line_stays_as_it_is():
    line = "  | def f(x):" + " " * 40 + "return x"
    assert wrapped(line, 40) == line


@pytest.mark.parametrize("width", [0, 10])
def test_without_a_terminal_a_line_is_a_line(width):
    assert wrapped(LONG, width) == LONG
    assert columns(io.StringIO()) == 0


def test_what_is_kept_has_date_and_zone_and_what_is_watched_the_time():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    kept, watched = stamped("x", io.StringIO()), stamped("x", Terminal())
    assert kept[10] == "T" and kept[19] in "+-" and kept.endswith("  x")
    assert watched[2] == watched[5] == ":" and watched[8:] == "  x"


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [(1, "peer", "1 peer"), (3, "peer", "3 peers"), (2, "micro-batch", "2 micro-batches")],
)
def test_so_many_of_them(number: int, noun: str, expected: str):
    assert counted(number, noun) == expected
