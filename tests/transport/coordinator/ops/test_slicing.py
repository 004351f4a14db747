"""Slices from measured rates: steady under noise, bounded by what peers can hold and may claim."""

import msgspec
import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.group_peers import GroupPeer
from swarmtrain_transport.coordinator.ops.planning import make_plan
from swarmtrain_transport.coordinator.ops.slicing import (
    Detours,
    Slicing,
    believed,
    fitted,
    slowest_detour_s,
    slowest_s,
)
from swarmtrain_transport.ledger.plan_rules import check_plan
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Progress, Ready
from tests.transport.coordinator.ops.test_planning import ready_line
from tests.transport.rig import A, B, C, D, E, terms_of

SIZE = 1000.0


def lines_of(rates, retain_bytes=1 << 30):
    lines = {}
    for peer, rate in zip((A, B, C, D), rates, strict=False):
        told = Progress(0, 0, 0, "", up_bytes_per_s=rate, down_bytes_per_s=2 * rate)
        line = ready_line(peer, progress=told).line
        line.hello = msgspec.structs.replace(line.hello, retain_bytes=retain_bytes)
        lines[peer] = line
    return lines


def test_measured_rates_size_the_slices_and_the_slow_own_little() -> None:
    shares = Slicing().shares(lines_of([400, 100, 100, 100]), SIZE)
    assert sum(shares) == pytest.approx(1.0)
    assert shares[0] > 2 * shares[1] and shares[1] == pytest.approx(shares[3])


def test_noise_moves_nothing_and_a_real_change_does() -> None:
    slicing = Slicing()
    first = slicing.shares(lines_of([100, 100, 100, 100]), SIZE)
    assert slicing.shares(lines_of([105, 98, 101, 97]), SIZE) == first
    moved = slicing.shares(lines_of([400, 100, 100, 50]), SIZE)
    assert moved != first and moved[0] > first[0] > moved[3]


def test_noise_in_the_first_rates_leaves_equal_links_equal_slices() -> None:
    assert Slicing().shares(lines_of([100, 104, 96, 101]), SIZE) == [0.25] * 4


def test_slices_are_equal_again_once_links_are() -> None:
    slicing = Slicing()
    assert slicing.shares(lines_of([100, 100, 100, 50]), SIZE)[3] < 0.2
    assert slicing.shares(lines_of([101, 100, 99, 100]), SIZE) == [0.25] * 4


def test_another_swarm_is_cut_anew() -> None:
    slicing = Slicing()
    slicing.shares(lines_of([100, 100, 100, 100]), SIZE)
    assert slicing.shares(lines_of([100, 100, 100]), SIZE) == pytest.approx([1 / 3] * 3)


def test_who_was_not_measured_yet_counts_as_the_middle_and_boasts_are_cut() -> None:
    assert believed([0, 0]) == [0, 0]
    assert believed([10, 0, 30]) == [10, 20, 30]
    assert believed([10, 10, 1e12]) == [10, 10, 10 * limits.RATE_SPREAD]


def test_no_slice_is_larger_than_its_owner_can_retain() -> None:
    shares = fitted([0.7, 0.1, 0.1, 0.1], [4 * SIZE * 0.4, *[1e9] * 3], SIZE)
    assert shares[0] == pytest.approx(0.4) and sum(shares) == pytest.approx(1.0)
    tight = [0.25] * 4
    assert fitted(tight, [1.0] * 4, SIZE) == tight


def test_a_run_may_ask_for_equal_slices_whatever_rates_are_told() -> None:
    shares = Slicing().shares(lines_of([400, 100, 100, 1]), SIZE, equal=True)
    assert shares == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("told", [-1, -1_000_000, -(2**63)])
def test_room_below_zero_is_none_and_the_others_slices_still_cover_the_vector(told: int) -> None:
    """Or one member's HELLO would make a PLAN that everybody else must refuse."""
    lines = lines_of([100, 100, 100], retain_bytes=2**60)
    lines[B].hello = msgspec.structs.replace(lines[B].hello, retain_bytes=told)
    peers = {peer: GroupPeer(line, ready=Ready(1, 8, 0, bytes(32))) for peer, line in lines.items()}
    plan = make_plan(terms_of(), 1, b"", 2_000_000, peers, {}, 20.0, Slicing())
    check_plan(plan, 2_000_000)
    assert {spec.owner for spec in plan.slices} == {A, C}


@pytest.mark.parametrize(
    ("num_values", "chunk"),
    [(100, 32_768), (4_000_000, 62_500), (8_000_000, 125_000), (32_000_000, 262_144)],
)
def test_short_slices_have_shorter_chunks(num_values: int, chunk: int) -> None:
    lines = lines_of([100] * 4)
    peers = {peer: GroupPeer(line, ready=Ready(1, 8, 0, bytes(32))) for peer, line in lines.items()}
    terms = terms_of(block=4, chunk_values=262_144)
    plan = make_plan(terms, 1, b"", num_values, peers, {}, 20.0, Slicing())
    check_plan(plan, num_values)
    assert plan.chunk_values == pytest.approx(chunk, abs=4)


def test_a_run_file_that_wants_shorter_chunks_gets_them() -> None:
    lines = lines_of([100] * 4)
    peers = {peer: GroupPeer(line, ready=Ready(1, 8, 0, bytes(32))) for peer, line in lines.items()}
    plan = make_plan(terms_of(chunk_values=16), 1, b"", 10_000, peers, {}, 20.0, Slicing())
    assert plan.chunk_values == 16


def test_who_should_own_nothing_gets_nothing_and_the_last_cut_is_remembered_whole() -> None:
    slicing, lines = Slicing(), lines_of([100, 100, 100, 100])
    unfit = {sorted(lines)[1]}
    assert slicing.shares(lines, SIZE, unfit=unfit) == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    assert slicing.shares(lines, SIZE) == [0.25] * 4
    only = {sorted(lines)[0]}
    fast = lines_of([1000, 1, 1, 1])
    assert Slicing().shares(fast, SIZE, unfit=only) == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])


# ---- ways


def both(*pairs: tuple[PeerId, PeerId], rate: float) -> dict[tuple[PeerId, PeerId], float]:
    """Detours between these, there and back."""
    return {ends: rate for one, other in pairs for ends in ((one, other), (other, one))}


def owners(shares: list[float]) -> set[PeerId]:
    return {peer for peer, share in zip((A, B, C, D), shares, strict=False) if share}


EQUAL = (100, 100, 100, 100)
TWO_RELAYED = both((C, D), rate=2.0)
THREE_RELAYED = both((B, C), (B, D), (C, D), rate=2.0)


@pytest.mark.parametrize(("detours", "met"), [(TWO_RELAYED, {A, B}), (THREE_RELAYED, {A})])
def test_slices_go_to_those_whom_all_meet_directly_where_a_relay_is_slower(
    detours: Detours, met: set[PeerId]
) -> None:
    shares = Slicing().shares(lines_of(EQUAL), SIZE, detours=detours)
    assert owners(shares) == met and sum(shares) == pytest.approx(1.0)


def test_a_relay_that_is_clearly_faster_is_used() -> None:
    quick = dict.fromkeys(THREE_RELAYED, 100.0)
    assert Slicing().shares(lines_of(EQUAL), SIZE, detours=quick) == [0.25] * 4
    slow_hub = lines_of((10, 100, 100, 100))
    shares = Slicing().shares(slow_hub, SIZE, detours=dict.fromkeys(THREE_RELAYED, 10.0))
    assert owners(shares) == {B, C, D}, "the one that all meet would take longer"


def test_a_relay_is_given_a_little_where_a_few_owners_alone_would_be_slow() -> None:
    """Two of four with a relay that passes on a quarter of a line's rate for each of their ways:
    two owners take 1.33 of what four open ones do, this cut 1.07."""
    slicing, middling = Slicing(), both((C, D), rate=25)
    rates = [100.0] * 4
    shares = slicing.shares(lines_of((100, 100, 100, 100)), SIZE, detours=middling)
    assert 0 < shares[2] == shares[3] < shares[0] == shares[1]
    took_s = max(slowest_s(rates, shares), slowest_detour_s((A, B, C, D), shares, middling))
    assert took_s <= 1.1 * slowest_s(rates, [0.25] * 4)
    noisy = both((C, D), rate=27)
    assert slicing.shares(lines_of((100, 100, 100, 100)), SIZE, detours=noisy) == shares


def test_without_measured_rates_no_relay_is_used() -> None:
    detours = both((C, D), rate=1e9)
    assert owners(Slicing().shares(lines_of((0, 0, 0, 0)), SIZE, detours=detours)) == {A, B}
    shares = Slicing().shares(lines_of(EQUAL), SIZE, equal=True, detours=detours)
    assert shares == [0.5, 0.5, 0.0, 0.0]


def test_rates_of_those_whom_all_meet_directly_size_their_slices() -> None:
    """Shares for all would give the two nothing: they are the slow ones."""
    shares = Slicing().shares(
        lines_of((10, 40, 400, 400)), SIZE, detours=dict.fromkeys(TWO_RELAYED, 0.1)
    )
    assert owners(shares) <= {A, B} and shares[1] > 0.9


def test_the_cut_without_a_relay_is_steady_and_the_one_with_all_is_remembered() -> None:
    slicing = Slicing()
    first = slicing.shares(lines_of((200, 100, 100, 100)), SIZE, detours=TWO_RELAYED)
    assert first[0] > first[1]
    noisy = lines_of((190, 103, 100, 100))
    assert slicing.shares(noisy, SIZE, detours=TWO_RELAYED) == first
    assert slicing.shares(lines_of(EQUAL), SIZE) == [0.25] * 4


def test_nothing_is_owned_by_whom_no_way_leads_to_unless_that_is_everybody() -> None:
    lost = both((C, D), rate=0.0)
    assert owners(Slicing().shares(lines_of(EQUAL), SIZE, detours=lost)) == {A, B}
    everywhere = both((A, B), (C, D), rate=0.0)
    assert Slicing().shares(lines_of(EQUAL), SIZE, detours=everywhere) == [0.25] * 4
    two = both((A, B), rate=0.0)
    assert Slicing().shares(lines_of((100, 100)), SIZE, detours=two) == [0.5, 0.5]


def test_one_peer_that_meets_nobody_but_one_does_not_choose_who_owns_slices() -> None:
    lonely = both((D, A), (D, B), rate=0.0)
    assert Slicing().shares(lines_of(EQUAL), SIZE, detours=lonely) == [0.25] * 4
    star = dict.fromkeys(THREE_RELAYED, 0.0)
    assert owners(Slicing().shares(lines_of(EQUAL), SIZE, detours=star)) == {A}


def test_whoever_should_own_nothing_owns_nothing_also_where_a_relay_is_avoided() -> None:
    shares = Slicing().shares(lines_of(EQUAL), SIZE, unfit={A}, detours=TWO_RELAYED)
    assert owners(shares) == {B}


def test_where_a_robust_rule_judges_half_of_all_own_something() -> None:
    peers = {
        peer: GroupPeer(line, ready=Ready(1, 8, 0, bytes(32)))
        for peer, line in lines_of(EQUAL).items()
    }
    for rule, few in (("", {A}), ("median", {A, B, C, D})):
        plan = make_plan(
            terms_of(rule=rule, exact=not rule), 1, b"", 2_000_000, peers, {}, 20.0, Slicing(),
            detours=THREE_RELAYED,
        )  # fmt: skip
        assert {spec.owner for spec in plan.slices} == few


def test_without_detours_among_contributors_nothing_is_cut_otherwise() -> None:
    elsewhere = both((A, E), rate=0.0)
    lines = lines_of((400, 100, 100, 50))
    assert Slicing().shares(lines, SIZE, detours=elsewhere) == Slicing().shares(lines, SIZE)
