"""Ways between peers behind all kinds of routers: found, kept, lost, and nobody's toy."""

import itertools

import pytest

from swarmtrain_transport.links.ways import Way
from tests.transport.coordinator.members.routers import House, Streets
from tests.transport.rig import A, B

KINDS = ("open", "cone", "restricted", "symmetric")
PAIRS = list(itertools.combinations_with_replacement(KINDS, 2))


def two(first: str, second: str, **how: bool) -> Streets:
    return Streets([House(A, first, "198.51.100.1"), House(B, second, "198.51.100.2")], **how)


def expected(sender: str, receiver: str) -> Way:
    if receiver in ("open", "cone"):
        return Way.DIALLED
    if sender in ("open", "cone"):
        return Way.TURNED
    return Way.RELAYED if "symmetric" in (sender, receiver) else Way.PUNCHED


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_each_kind_of_pair_is_met_in_the_best_way(first: str, second: str) -> None:
    streets = two(first, second)
    streets.run(20.0)
    assert streets.ways() == {(A, B): expected(first, second), (B, A): expected(second, first)}
    streets.run(3600.0)
    assert streets.ways() == {(A, B): expected(first, second), (B, A): expected(second, first)}
    assert len(streets.meets(A)) < 60, "they are left alone"
