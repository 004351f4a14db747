"""Every invariant is broken once by hand, and found."""

from swarmtrain.chaos.invariants import (
    Life,
    check_copy,
    check_life,
    check_roots,
    common_state,
    read_chain,
)
from swarmtrain.foundation.events import RoundEnded, StateInPlace
from swarmtrain_transport.wire.records import (
    Attest,
    Commit,
    Freeze,
    Member,
    Plan,
    Record,
    Rewind,
    Skip,
    SliceOutcome,
    SliceSpec,
)

A, B, C = (bytes([number]) * 32 for number in (1, 2, 3))
ROOT = bytes(32)


def plan(op: int) -> Plan:
    members = tuple(Member(peer, b"boot" * 2, 255) for peer in (A, B, C))
    return Plan(
        op, ROOT, members, (SliceSpec(0, 256, A),), "int8", True, 256, 256, -40, 0, 2, 5.0, A, A
    )


def committed(op: int, whole=(A, B), piece=(A, B)) -> list:
    outcome = SliceOutcome(0, tuple(piece), ROOT)
    return [
        plan(op), Freeze(op, tuple(whole), {}),
        Commit(op, ROOT, tuple(whole), (outcome,), ROOT),
    ]  # fmt: skip


def skipped(op: int) -> list:
    return [plan(op), Skip(op, "deadline")]


def told(*events: tuple[int, str], start: int = 0, root: str = "aa", peer: bytes = A) -> Life:
    rounds = [RoundEnded(op, outcome, 2, root) for op, outcome in events]
    return Life("otter", peer.hex(), [StateInPlace(start), *rounds])


def names_of(found) -> set[str]:
    return {violation.invariant for violation in found}


def test_a_history_with_skips_and_a_rewind_holds():
    bodies = [
        *committed(1), *skipped(2), *committed(3), Attest(3, ROOT),
        Rewind(1, "lost"), *committed(2), *committed(3), plan(4),
    ]  # fmt: skip
    chain, found = read_chain(bodies)
    assert found == []
    assert (chain.commits, len(chain.outcomes), chain.rewinds) == (3, 3, 1)
    assert chain.cancelled == {2, 3} and chain.attests == {}


def test_lost_doubled_and_unplanned_rounds_are_found():
    assert names_of(read_chain([plan(1), *committed(2)])[1]) == {"I1"}
    assert names_of(read_chain([*committed(1), *committed(1)])[1]) == {"I1"}
    assert names_of(read_chain([*committed(1), *committed(3)])[1]) == {"I1"}
    assert names_of(read_chain([Skip(1, "deadline")])[1]) == {"I1"}


def test_contributors_that_do_not_fit_are_found():
    assert names_of(read_chain(committed(1, piece=(A, C)))[1]) == {"I6"}
    assert names_of(read_chain(committed(1, piece=(A,)))[1]) == {"I6"}
    assert names_of(read_chain(committed(1, whole=(A, b"x" * 32)))[1]) == {"I6"}
    assert names_of(read_chain(committed(1, piece=(A, B, B)))[1]) == {"I4"}
    twice = [plan(1), Freeze(1, (A, B), {}), *committed(1)[1:]]
    assert names_of(read_chain(twice)[1]) == {"I6"}


def test_a_peers_ledger_must_be_the_beginning_of_the_coordinators():
    records = [Record(index, ROOT, 1, b"body", b"") for index in range(3)]
    other = Record(1, ROOT, 1, b"other", b"")
    assert not list(check_copy("otter", records[:2], records))
    assert names_of(check_copy("otter", [records[0], other], records)) == {"I1"}
    assert names_of(check_copy("otter", records, records[:2])) == {"I1"}


def test_a_life_ends_every_round_once_and_as_the_ledger_says():
    chain, _ = read_chain([*committed(1), *skipped(2), *committed(3)])
    good = told((1, "merged"), (2, "skipped"), (3, "merged"))
    assert not list(check_life(good, chain))
    assert not list(check_life(told((3, "replayed"), start=2), chain))
    for events in (
        [(1, "merged"), (1, "merged")], [(1, "merged"), (3, "merged")], [(2, "skipped")],
    ):  # fmt: skip
        assert names_of(check_life(told(*events), chain)) == {"once"}
    for events in ([(1, "skipped")], [(1, "merged"), (2, "merged")]):
        assert names_of(check_life(told(*events), chain)) == {"I1"}
    assert names_of(check_life(told((1, "merged"), peer=C), chain)) == {"I9"}


def test_going_back_needs_a_rewind():
    chain, _ = read_chain(committed(1))
    back = told((1, "merged"))
    back.told.append(StateInPlace(0))
    assert names_of(check_life(back, chain)) == {"once"}
    chain, _ = read_chain([*committed(1), Rewind(0, "lost"), *committed(1)])
    assert not list(check_life(back, chain))


def test_states_that_differ_are_found_and_equal_ones_are_named():
    chain, _ = read_chain([*committed(1), *committed(2)])
    one, same, other = (
        told((1, "merged"), (2, "merged")), told((1, "merged")), told((1, "merged"), root="bb"),
    )  # fmt: skip
    assert not list(check_roots([one, same], chain))
    assert names_of(check_roots([one, other], chain)) == {"I2"}
    assert common_state({"a": one, "b": same}) == (1, {"a": "aa", "b": "aa"})
    assert common_state({"a": one, "b": told(start=2)}) == (-1, {})
    attested, _ = read_chain([*committed(1), Attest(1, ROOT)])
    assert names_of(check_roots([one], attested)) == {"I2"}
