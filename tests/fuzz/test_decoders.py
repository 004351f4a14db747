"""Any bytes at any decoder, and valid ones with something wrong: a documented refusal, or sense."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, Target

MEMORY_PER_BYTE = 700
MEMORY_BASE = 4 << 20
"""A decoder may hold a small multiple of its input: one msgpack byte can be a Python object."""


def mutated(example: bytes, changes: list[tuple[str, int, int, bytes]]) -> bytes:
    """The example with these changes, one after the other."""
    data = bytearray(example)
    for change, first, second, piece in changes:
        start = first % (len(data) + 1)
        stop = start + second % (len(data) - start + 1)
        if change == "flip" and start < len(data):
            data[start] ^= 1 << second % 8
        elif change == "set" and start < len(data):
            data[start] = second % 256
        elif change == "cut":
            del data[start:]
        elif change == "drop":
            del data[start:stop]
        elif change == "insert":
            data[start:start] = piece
        elif change == "double":
            data[stop:stop] = data[start:stop]
        elif change == "large":
            data[start : start + len(piece)] = b"\xff" * len(piece)
    return bytes(data)


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "cut", "drop", "insert", "double", "large"]),
        st.integers(0, 1 << 16),
        st.integers(0, 1 << 16),
        st.binary(max_size=9),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("name", TARGETS)
def test_valid_bytes_are_taken(name: str) -> None:
    taken = [TARGETS[name].feed(example) for example in TARGETS[name].examples]
    assert all(taken) or name == "checkpoint"  # its other files are not here


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused_as_documented_or_make_sense(name: str, data: bytes) -> None:
    TARGETS[name].feed(data)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=100, deadline=None)
@given(number=st.integers(0, 100), changes=CHANGES)
def test_valid_bytes_with_something_wrong_are_refused_as_documented_or_make_sense(
    name: str, number: int, changes: list[tuple[str, int, int, bytes]]
) -> None:
    target = TARGETS[name]
    target.feed(mutated(target.examples[number % len(target.examples)], changes))


BOMBS = {
    "nested": b"\x91" * 200_000,
    "nested maps": b"\x81\xa1a" * 60_000,
    "claims a long array": b"\xdd\xff\xff\xff\xff",
    "claims a long map": b"\xdf\xff\xff\xff\xff",
    "claims long bytes": b"\xc6\xff\xff\xff\xff",
    "claims a long text": b"\xdb\xff\xff\xff\xff",
    "claims an extension": b"\xc9\xff\xff\xff\xff\x01",
    "many nothings": b"\xdd\x00\x03\x0d\x40" + b"\xc0" * 200_000,
    "claims an lz4 segment": b"\x05\0\0\0\xff\xff\xff\x7fabcde",
    "claims an lz4 body": b"SW\x01\x01" + bytes(36) + b"\x01" + bytes(7) + b"\xff\xff\x7f\0abcd",
    "text": b"[" * 50_000,
    "digits": b"9" * 50_000,
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("name", TARGETS)
def test_what_claims_to_be_huge_costs_no_memory(name: str, bomb: str) -> None:
    target: Target = TARGETS[name]
    tracemalloc.start()
    try:
        target.feed(BOMBS[bomb])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= MEMORY_BASE + MEMORY_PER_BYTE * len(BOMBS[bomb])
