"""Summing one slice: any order, each part once, exactly the frozen set."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain.simulate.processes.memory import SimFile
from swarmtrain_transport.blocks.retention import Retention
from swarmtrain_transport.collective.reducer import Reducer
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.wire.records import Member
from tests.transport.plain_arithmetic import (
    ILLEGAL_SCALE,
    PlainArithmetic,
    decode_result,
    encode_part,
)
from tests.transport.rig import BOOT, STRANGER, A, B, C, D, plan_body, view_of

MEMBERS = tuple(Member(peer, BOOT, weight) for peer, weight in ((A, 1), (B, 2), (C, 5), (D, 0)))
WEIGHTS = {A: 1, B: 2, C: 5}


def owner(*, exact: bool = True, retention: Retention | None = None) -> Reducer:
    """Slice 0 of 8 values in two chunks; contributors A, B, C."""
    view = view_of(plan_body((A, B, C), members=MEMBERS, exact=exact))
    return Reducer(view, 0, 0, PlainArithmetic(), retention or Retention())


def part(peer: bytes, chunk: int) -> bytes:
    return encode_part([peer[0] * 100 + chunk * 10 + i for i in range(4)])


def expected(contributors: tuple[bytes, ...]) -> list[tuple[tuple[int, ...], int]]:
    total = sum(WEIGHTS[peer] for peer in contributors)
    return [
        (
            tuple(
                sum(WEIGHTS[p] * (p[0] * 100 + chunk * 10 + i) for p in contributors)
                for i in range(4)
            ),
            total,
        )
        for chunk in range(2)
    ]


def results(reducer: Reducer, *contributors: bytes) -> list[tuple[tuple[int, ...], int]]:
    return [decode_result(chunk) for chunk in reducer.finish(contributors)]


ALL = [(peer, chunk) for peer in (A, B, C) for chunk in range(2)]


@settings(max_examples=60, deadline=None)
@given(
    order=st.permutations([*ALL, *ALL[:4]]),
    exact=st.booleans(),
    kept=st.sets(st.sampled_from([A, B, C]), min_size=1),
    memory_max=st.sampled_from([0, 20, 1000]),
)
def test_any_interleaving_of_parts_gives_the_same_bytes_wherever_they_are_kept(
    order: list[tuple[bytes, int]], exact: bool, kept: set[bytes], memory_max: int
) -> None:
    """Some parts arrive twice; the sum is that on paper, and bytes are equal to in-order ones."""
    contributors = tuple(sorted(kept))
    file = SimFile()
    retention = Retention(file, memory_max)
    one, other = owner(exact=exact, retention=retention), owner(exact=exact)
    for peer, chunk in order:
        one.accept(peer, chunk, part(peer, chunk))
        one.early(chunk)
        assert retention.memory_bytes <= memory_max
        assert retention.memory_bytes + retention.spilled_bytes == one.retained_bytes
    for peer, chunk in ALL:
        other.accept(peer, chunk, part(peer, chunk))
    assert one.finish(contributors) == other.finish(contributors)
    assert [decode_result(chunk) for chunk in one.result or ()] == expected(contributors)
    assert (retention.memory_bytes, retention.spilled_bytes, file.given) == (0, 0, {})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(ALL), max_size=5), st.permutations(ALL))
def test_a_peer_that_vanished_amid_its_parts_leaves_no_trace(
    torn: list[tuple[bytes, int]], order: list[tuple[bytes, int]]
) -> None:
    """C sent some of its parts, maybe none: the sum is as if it had never been there."""
    reducer = owner()
    for peer, chunk in [*torn, *order]:
        if peer != C or (peer, chunk) in torn:
            reducer.accept(peer, chunk, part(peer, chunk))
    assert results(reducer, A, B) == expected((A, B))


def test_a_duplicate_changes_nothing_even_with_other_bytes() -> None:
    reducer = owner()
    assert reducer.accept(A, 0, part(A, 0))
    assert not reducer.accept(A, 0, part(A, 0))
    assert not reducer.accept(A, 0, encode_part([9, 9, 9, 9]))
    assert not reducer.accept(A, 0, b"rubbish")
    reducer.accept(A, 1, part(A, 1))
    assert reducer.complete == (A,)
    assert results(reducer, A) == expected((A,))


def test_complete_names_whoever_is_whole_and_flags_say_what_is_here() -> None:
    reducer = owner()
    reducer.accept(B, 1, part(B, 1))
    assert reducer.complete == ()
    assert reducer.flags(B) == (False, True)
    assert reducer.flags(STRANGER) == (False, False)
    reducer.accept(B, 0, part(B, 0))
    assert reducer.complete == (B,)


@pytest.mark.parametrize("chunk", [-1, 2, 1 << 31])
def test_a_chunk_that_is_not_planned_is_refused_and_the_sender_is_not(chunk: int) -> None:
    reducer = owner()
    with pytest.raises(RemoteFault) as caught:
        reducer.accept(A, chunk, part(A, 0))
    assert caught.value.reason == "member"
    assert not reducer.refused


@pytest.mark.parametrize("peer", [STRANGER, D, b""])
def test_a_part_of_a_stranger_or_a_receiver_is_refused(peer: bytes) -> None:
    with pytest.raises(RemoteFault) as caught:
        owner().accept(peer, 0, part(A, 0))
    assert caught.value.reason == "member"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (encode_part([1, 2, 3, 4], ILLEGAL_SCALE), "scale"),
        (encode_part([1, 2, 3]), "length"),
        (encode_part([1, 2, 3, 4, 5]), "length"),
        (b"", "length"),
    ],
)
def test_an_illegal_part_refuses_the_whole_contribution_from_then_on(
    body: bytes, reason: str
) -> None:
    reducer = owner()
    for peer in (A, B):
        reducer.accept(peer, 0, part(peer, 0))
        reducer.accept(peer, 1, part(peer, 1))
    reducer.accept(C, 0, part(C, 0))
    with pytest.raises(RemoteFault) as caught:
        reducer.accept(C, 1, body)
    assert caught.value.reason == reason
    assert reducer.refused == {C: reason}
    assert not reducer.accept(C, 1, part(C, 1))
    assert reducer.complete == (A, B)
    assert results(reducer, A, B) == expected((A, B))


def test_a_second_set_for_one_attempt_is_an_error_and_the_same_set_gives_the_same_bytes() -> None:
    reducer = owner()
    for peer, chunk in ALL:
        reducer.accept(peer, chunk, part(peer, chunk))
    first = reducer.finish((A, B))
    assert reducer.finish((A, B)) is first
    with pytest.raises(LocalFault):
        reducer.finish((A, B, C))


def test_a_set_that_names_what_is_not_here_is_an_error() -> None:
    reducer = owner()
    reducer.accept(A, 0, part(A, 0))
    with pytest.raises(LocalFault):
        reducer.finish((A,))


def test_what_comes_after_the_result_changes_nothing() -> None:
    reducer = owner()
    reducer.accept(A, 0, part(A, 0))
    reducer.accept(A, 1, part(A, 1))
    first = reducer.finish((A,))
    assert not reducer.accept(B, 0, part(B, 0))
    assert reducer.result == first


def test_sums_that_are_not_exact_are_made_once_in_the_order_of_keys() -> None:
    reducer = owner(exact=False)
    for peer, chunk in reversed(ALL):
        reducer.accept(peer, chunk, part(peer, chunk))
    assert results(reducer, A, C) == expected((A, C))
