"""Amounts and tables for people."""

import pytest

from swarmtrain.console.table import plain_lines, table_of
from swarmtrain.console.units import human_bytes, human_seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999 B"),
        (1290, "1.29 kB"),
        (999_700, "1 MB"),
        (4.2e9, "4.2 GB"),
        (20e9, "20 GB"),
        (2.5e12, "2.5 TB"),
    ],
)
def test_bytes_are_told_in_decimal_units(count: float, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89, "89 s"), (720, "12 min"), (7500, "2 h 05 min")]
)
def test_a_length_of_time_is_told_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_a_plain_table_has_aligned_columns_and_breaks_no_line() -> None:
    rows = [["ann", "1"], ["a [bold]long[/] name " * 20, "1000"]]
    lines = plain_lines(table_of(["peer", "round"], rows, right=["round"]))
    assert len(lines) == 3
    assert lines[0].startswith("peer ") and lines[0].endswith("  round")
    assert lines[1].startswith("ann ") and lines[1].endswith("      1")
    assert len(lines[0]) == len(lines[1]) == len(lines[2]) and "[bold]" in lines[2]
