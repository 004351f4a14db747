"""Planning: when an op begins and what its PLAN says; and the plan that every peer refuses."""

import math
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.failure_detector import LifeLine
from swarmtrain_transport.coordinator.members.group_peers import GroupPeer
from swarmtrain_transport.coordinator.members.roster import PeerLine
from swarmtrain_transport.coordinator.ops.planning import next_plan
from swarmtrain_transport.coordinator.ops.slicing import Slicing
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.cells import Cells
from swarmtrain_transport.ledger.plan_rules import check_plan, check_stale, window_floor
from swarmtrain_transport.ledger.sample_weights import HINGE, POLYNOMIAL, STALENESS, weights_of
from swarmtrain_transport.ledger.standing import Score
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Hello, Ready
from swarmtrain_transport.wire.records import (
    Attest,
    Member,
    Plan,
    Rewind,
    Skip,
    SliceSpec,
)
from swarmtrain_transport.wire.text_place import TextPlace
from tests.transport.hall import opened
from tests.transport.rig import (
    BOOT,
    STRANGER,
    A,
    B,
    C,
    Chain,
    begun_chain,
    join_body,
    plan_body,
    terms_of,
)

ROOT = b"R" * 32
INT64 = st.integers(-(1 << 63), (1 << 64) - 1)


def line_of(peer: PeerId, *, up: int = 0, down: int = 0, **changes: Any) -> GroupPeer:
    """Connected, alive, at op 0, acknowledged everything, not ready."""
    hello = Hello(BOOT, "name", peer, "127.0.0.1", 1, -1, b"", 1 << 30, up, down)
    line = PeerLine(hello, LifeLine(0.0), acked_index=1 << 20)
    group_peer = GroupPeer(line, applied_op=0, state_root=ROOT)
    for key, value in changes.items():
        setattr(group_peer if hasattr(group_peer, key) else line, key, value)
    return group_peer


def ready_line(peer: PeerId, op: int = 1, samples: int = 8, **changes: Any) -> GroupPeer:
    return line_of(peer, ready=Ready(op, samples, op - 1, ROOT), active=True, **changes)


def plan_now(
    chain: Chain,
    lines: dict[PeerId, GroupPeer],
    expected: set[PeerId] | None = None,
    now_s: float = 0.0,
    **terms: Any,
) -> Plan | None:
    waited_for = set(lines) if expected is None else expected
    view = chain.view
    plan = next_plan(
        terms_of(**terms), view.first, lines, waited_for, 100.0, now_s, Slicing(), view.join_index
    )
    if plan is not None:
        check_plan(plan, 24)
        chain.add(plan)
    return plan


def weights(plan: Plan | None) -> dict[PeerId, int]:
    assert plan is not None
    return {member.peer: member.weight for member in plan.members}


# ---- T1


def test_an_op_begins_when_everybody_expected_is_ready() -> None:
    lines = {A: ready_line(A), B: line_of(B), C: ready_line(C)}
    assert plan_now(begun_chain(), lines) is None
    lines[B] = ready_line(B)
    assert weights(plan_now(begun_chain(), lines)) == {A: 255, B: 255, C: 255}


def test_an_op_begins_without_the_slow_once_the_first_has_waited_long_enough() -> None:
    lines = {A: ready_line(A, ready_s=10.0), B: ready_line(B, ready_s=60.0), C: line_of(C)}
    for line in lines.values():
        line.line.life.heard(69.0)
    assert plan_now(begun_chain(), lines, now_s=69.99, wait_ready_s=60.0) is None
    plan = plan_now(begun_chain(), lines, now_s=70.0, wait_ready_s=60.0)
    assert weights(plan) == {A: 255, B: 255, C: 0}
    assert plan is not None and {spec.owner for spec in plan.slices} == {A, B}


def test_who_is_not_expected_is_not_waited_for_but_follows() -> None:
    lines = {A: ready_line(A), B: line_of(B)}
    assert weights(plan_now(begun_chain(), lines, {A})) == {A: 255, B: 0}


def test_a_barred_peer_is_not_waited_for_while_it_does_not_even_hold_the_state() -> None:
    chain = begun_chain()
    lines = {A: ready_line(A), B: ready_line(B), C: line_of(C, applied_op=-1, state_root=b"")}
    assert plan_now(chain, lines) is None
    chain.view.first.standing.contributors[C] = Score(until=1)
    assert weights(plan_now(chain, lines)) == {A: 255, B: 255}


def test_of_the_barred_only_so_many_give_as_an_op_needs() -> None:
    """All gave where it could not do without all (`simulate --cells 3 --peers 40 --seed 129`)."""
    chain = begun_chain()
    lines = {peer: ready_line(peer) for peer in (A, B, C)}
    chain.view.first.standing.contributors |= {B: Score(until=9), A: Score(until=3)}
    plan = plan_now(chain, lines, min_contributors=2, start_peers=2)
    assert weights(plan) == {A: 255, B: 0, C: 255}


def test_who_is_expected_and_never_ready_keeps_the_barred_out_for_a_while_only() -> None:
    """Else one mute peer could keep all ops from beginning, as a bar lasts for so many ops."""
    chain = begun_chain()
    lines = {A: ready_line(A), B: ready_line(B), C: line_of(C, active=True)}
    for one in lines.values():
        one.line.life = LifeLine(200.0)
    chain.view.first.standing.contributors[B] = Score(until=9)
    wait_s = limits.AGAIN_WAITS * terms_of().wait_ready_s
    assert plan_now(chain, lines, now_s=wait_s - 0.1, min_contributors=2, start_peers=2) is None
    plan = plan_now(chain, lines, now_s=wait_s, min_contributors=2, start_peers=2)
    assert weights(plan) == {A: 255, B: 255, C: 0}


def test_nothing_is_planned_before_op_0() -> None:
    assert plan_now(Chain(), {A: ready_line(A)}) is None


def test_the_first_op_waits_for_start_peers_and_later_ones_for_min_contributors() -> None:
    lines = {A: ready_line(A), B: ready_line(B)}
    assert plan_now(begun_chain(), lines, start_peers=3, now_s=5.0, wait_ready_s=0.1) is None
    chain = begun_chain()
    chain.add(chain.plan())
    chain.add(Skip(1, "test"))
    later = {A: ready_line(A, 2, applied_op=1), B: ready_line(B, 2, applied_op=1)}
    assert plan_now(chain, later, start_peers=3, min_contributors=3) is None
    assert plan_now(chain, later, start_peers=3, min_contributors=2) is not None


def test_a_run_that_went_back_to_its_beginning_does_not_wait_for_start_peers_again() -> None:
    chain = begun_chain()
    chain.add(chain.plan())
    chain.add(Skip(1, "test"))
    chain.add(Rewind(0, "test"))
    lines = {A: ready_line(A), B: ready_line(B)}
    assert plan_now(chain, lines, start_peers=3, min_contributors=3) is None
    assert plan_now(chain, lines, start_peers=3, min_contributors=2) is not None


@pytest.mark.parametrize("op", [-1, 0, 2, 1 << 62, -(1 << 63)])
def test_ready_for_another_op_is_not_ready(op: int) -> None:
    line = line_of(A, ready=Ready(op, 8, 0, ROOT), active=True)
    assert plan_now(begun_chain(), {A: line}, now_s=5.0, wait_ready_s=0.1) is None


def test_whoever_lacks_the_state_or_has_another_one_is_not_in_the_plan() -> None:
    chain = begun_chain()
    chain.add(chain.plan())
    chain.commit(A)
    lines = {
        A: ready_line(A, 2, applied_op=1),
        B: ready_line(B, 2, applied_op=0),
        C: ready_line(C, 2, applied_op=1, state_root=b"other" * 4),
    }
    chain.add(Attest(1, ROOT))
    assert weights(plan_now(chain, lines, {A})) == {A: 255}


def test_the_disconnected_and_the_suspected_are_not_in_the_plan() -> None:
    lines = {
        A: ready_line(A),
        B: ready_line(B, connected=False),
        C: ready_line(C, life=LifeLine(-limits.SUSPECT_S)),
    }
    assert weights(plan_now(begun_chain(), lines, {A})) == {A: 255}


@pytest.mark.parametrize("num_ready", [3, 63, 64, 66])
def test_of_more_than_a_plan_may_name_who_is_ready_comes_first(num_ready: int) -> None:
    peers = [bytes([200 - number]) * 32 for number in range(66)]
    lines = {peer: line_of(peer) for peer in peers}
    lines |= {peer: ready_line(peer) for peer in peers[-num_ready:]}
    plan = plan_now(
        begun_chain(peers), dict(sorted(lines.items())), set(peers[-num_ready:]), exact=False
    )
    in_order = peers[-num_ready:] + peers[:-num_ready]
    named = in_order[: limits.CELL_PEERS_MAX]
    assert weights(plan) == {peer: 255 * (peer in peers[-num_ready:]) for peer in named}


@pytest.mark.parametrize(("num_ready", "ops", "each"), [(66, 33, 32), (96, 3, 2), (192, 3, 1)])
def test_more_who_are_ready_than_a_plan_may_name_take_turns(
    num_ready: int, ops: int, each: int
) -> None:
    peers = [bytes([200 - number]) * 32 for number in range(num_ready)]
    chain = begun_chain(peers)
    times = Counter[PeerId]()
    for op in range(1, ops + 1):
        lines = {peer: ready_line(peer, op, applied_op=op - 1) for peer in peers}
        times.update(weights(plan_now(chain, lines, exact=False)).keys())
        chain.add(Skip(op, "test"))
    assert times == dict.fromkeys(peers, each)


# ---- cells


@pytest.mark.parametrize(("num_peers", "cells"), [(5, 1), (6, 1), (7, 1), (8, 2), (12, 2), (13, 3)])
def test_an_op_has_as_few_cells_as_its_members_fit_into(
    num_peers: int, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CELL_PEERS_MAX", 6)
    peers = [bytes([200 - number]) * 32 for number in range(num_peers)]
    lines = {peer: ready_line(peer) for peer in peers}
    plan = plan_now(begun_chain(peers), lines)
    assert plan is not None and plan.cells == cells
    assert len(plan.members) == min(num_peers, 6 * cells)
    owners = [spec.owner for spec in plan.slices]
    dealt = Cells.in_plan(plan)
    assert all(dealt.among([owner], index) for index, owner in enumerate(owners))


def test_who_only_receives_makes_no_cell_in_which_too_few_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CELL_PEERS_MAX", 6)
    peers = [bytes([200 - number]) * 32 for number in range(40)]
    lines = {peer: line_of(peer) for peer in peers} | {p: ready_line(p) for p in peers[:9]}
    plan = plan_now(begun_chain(peers), lines, set(peers[:9]))
    assert plan is not None and plan.cells == 2 and len(plan.members) == 12
    assert sum(member.weight > 0 for member in plan.members) == 9


def test_a_vector_of_few_blocks_is_not_cut_for_more_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CELL_PEERS_MAX", 4)
    peers = [bytes([200 - number]) * 32 for number in range(60)]
    lines = {peer: ready_line(peer) for peer in peers}
    plan = plan_now(begun_chain(peers), lines, block=4)  # 24 values
    assert plan is not None and plan.cells == 6 and len(plan.members) == 24
    assert all(spec.stop - spec.start == 4 for spec in plan.slices)


def test_more_who_are_ready_than_eight_cells_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CELL_PEERS_MAX", 4)
    peers = [bytes([200 - number]) * 32 for number in range(48)]
    chain, times = begun_chain(peers), Counter[PeerId]()
    for op in range(1, 4):
        lines = {peer: ready_line(peer, op, applied_op=op - 1) for peer in peers}
        plan = plan_now(chain, lines)
        assert plan is not None and plan.cells == limits.CELLS_PLANNED
        times.update(weights(plan).keys())
        chain.add(Skip(op, "test"))
    assert times == dict.fromkeys(peers, 2)


# ---- a newcomer's key


def test_a_newcomer_is_planned_only_when_all_have_acknowledged_its_key() -> None:
    chain = begun_chain((A, B))
    joined = chain.add(join_body(C)).index
    lines = {
        A: ready_line(A, acked_index=joined),
        B: ready_line(B, acked_index=joined - 1),
        C: ready_line(C, acked_index=joined),
    }
    assert set(weights(plan_now(chain, lines, {A, B}))) == {A, B}
    chain.add(Skip(1, "test"))
    for peer, one in lines.items():
        lines[peer] = ready_line(peer, 2, acked_index=one.line.acked_index, applied_op=1)
    lines[B].line.acked_index = joined
    assert set(weights(plan_now(chain, lines, {A, B}))) == {A, B, C}


def test_a_newcomer_that_has_not_consumed_its_own_join_keeps_nobody_out() -> None:
    chain = begun_chain((A, B))
    joined = chain.add(join_body(C)).index
    lines = {
        A: ready_line(A, acked_index=joined),
        B: ready_line(B, acked_index=joined),
        C: line_of(C, acked_index=-1),
    }
    assert set(weights(plan_now(chain, lines, {A, B}))) == {A, B}


def test_whoever_is_not_in_the_roster_is_never_planned() -> None:
    lines = {A: ready_line(A), STRANGER: ready_line(STRANGER)}
    assert weights(plan_now(begun_chain((A, B)), lines, {A})) == {A: 255}


# ---- what a PLAN says


def test_the_plan_does_not_depend_on_who_was_ready_first() -> None:
    one = {A: ready_line(A), B: ready_line(B), C: line_of(C)}
    other = {C: line_of(C), B: ready_line(B, ready_s=3.0), A: ready_line(A, ready_s=4.0)}
    assert plan_now(begun_chain(), one, {A}) == plan_now(begun_chain(), other, {A})


def test_slices_follow_the_slower_of_both_directions() -> None:
    lines = {
        A: ready_line(A, up=100, down=1000),
        B: ready_line(B, up=1000, down=100),
        C: ready_line(C, up=1000, down=1000),
    }
    chain = begun_chain()
    plan = plan_now(chain, lines)
    assert plan is not None
    assert {spec.owner for spec in plan.slices} == {C}


def test_a_peer_without_a_measured_rate_counts_as_the_middle_of_the_others() -> None:
    lines = {A: ready_line(A, up=9, down=9), B: ready_line(B), C: ready_line(C, up=1, down=1)}
    plan = plan_now(begun_chain(), lines)
    measured = {**lines, B: ready_line(B, up=5, down=5)}
    wanted = plan_now(begun_chain(), measured)
    assert plan is not None and wanted is not None
    assert plan.slices == wanted.slices


def test_every_so_many_ops_a_contributor_is_named_to_write_the_checkpoint() -> None:
    chain = begun_chain()
    named = []
    for op in range(1, 8):
        lines = {
            A: ready_line(A, op, applied_op=op - 1),
            B: ready_line(B, op, applied_op=op - 1),
            C: line_of(C, applied_op=op - 1),
        }
        plan = plan_now(chain, lines, {A}, checkpoint_rounds=3, rounds=7)
        assert plan is not None and plan.evaluate_by in (A, B)
        named.append(plan.checkpoint_by)
        chain.add(Skip(op, "test"))
    assert [bool(name) for name in named] == [False, False, True, False, False, True, True]
    assert set(named) - {b""} <= {A, B}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(INT64, INT64, INT64), min_size=1, max_size=3), st.integers(-60, 100))
def test_whatever_peers_say_of_themselves_the_plan_is_legal(
    claims: list[tuple[int, int, int]], e_max: int
) -> None:
    lines = {
        peer: ready_line(peer, samples=samples, up=up, down=down)
        for peer, (samples, up, down) in zip((A, B, C), claims, strict=False)
    }
    assert plan_now(begun_chain(), lines, e_max=e_max) is not None


# ---- weights, window, deadline


def test_weights_are_the_floor_of_255_times_the_share_of_the_largest() -> None:
    assert weights_of({A: 100, B: 50, C: 1}) == {A: 255, B: 127, C: 2}
    assert weights_of({A: 1000, B: 1, C: 0}) == {A: 255, B: 63, C: 1}
    assert weights_of({A: 1000, B: 1}) == {A: 255, B: 63}
    assert weights_of({A: 0, B: 0}) == {A: 1, B: 1}
    assert weights_of({}) == {}


@settings(max_examples=60, deadline=None)
@given(st.lists(INT64, max_size=3))
def test_weights_are_1_to_255_whatever_peers_claim(samples: list[int]) -> None:
    named = dict(zip((A, B, C), samples, strict=False))
    found = sorted(weights_of(named).values())
    assert all(1 <= weight <= 255 for weight in found)
    assert not found or found[-1] == 255 or set(found) == {1}
    assert not found or found[-1] <= limits.SAMPLES_SPREAD * (found[(len(found) - 1) // 2] + 1)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 64 * 255), st.integers(-40, 100))
def test_the_window_is_as_wide_as_exact_sums_allow_and_not_wider(total: int, e_max: int) -> None:
    """Checked against whole numbers: the largest sum in units of the smallest part's last bit."""
    e_min = window_floor(e_max, total)
    assert e_max - e_min + 15 + math.ceil(math.log2(total)) <= 53
    largest = total * 127 * 255 << (e_max - e_min)
    assert largest <= 1 << 53
    if e_min > limits.E_MIN_FLOOR:
        assert e_max - (e_min - 1) + 15 + math.ceil(math.log2(total)) > 53


def test_the_spread_of_scales_at_64_peers_is_24_bits() -> None:
    assert -window_floor(0, 64 * 255) == 24


# ---- every rule of check_plan, broken alone


def receivers(count: int) -> tuple[Member, ...]:
    return tuple(Member(bytes([100 + number]) * 32, BOOT, 0) for number in range(count))


def members(*given_weights: int) -> tuple[Member, ...]:
    return tuple(
        Member(peer, BOOT, weight) for peer, weight in zip((A, B, C), given_weights, strict=False)
    )


THREE = members(1, 1, 1)


def specs(*bounds: tuple[int, int]) -> tuple[SliceSpec, ...]:
    return tuple(SliceSpec(start, stop, A) for start, stop in bounds)


BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("nobody contributes", {"members": members(0, 0, 0)}),
    ("a peer is named twice", {"members": (*THREE, THREE[0])}),
    ("too many members", {"members": THREE + receivers(62)}),
    ("weights are 1 to 255", {"members": members(256, 1, 1), "e_min": -29}),
    ("weights are 1 to 255", {"members": members(-1, 5, 5)}),
    ("a weight is more than is believed", {"members": members(255, 62, 62), "e_min": -29}),
    ("a weight is more than is believed", {"members": members(8, 1, 1), "e_min": -34}),
    ("sums would not be exact", {"e_min": -37}),
    ("window too low", {"e_min": -91, "e_max": -80}),
    ("window too low", {"e_min": 1, "e_max": 0}),
    ("window too high", {"e_min": 65, "e_max": 101}),
    ("window too narrow", {"e_min": -35}),
    ("window too narrow", {"e_min": 0, "e_max": 0}),
    ("window too narrow", {"e_min": -89, "e_max": -80}),
    ("window too narrow", {"e_min": -35, "exact": False}),
    ("chunks are multiples of the block", {"chunk_values": 3}),
    ("chunks are multiples of the block", {"chunk_values": 0}),
    ("chunks are multiples of the block", {"chunk_values": -4}),
    ("chunks are too large", {"chunk_values": 1 << 21}),
    ("chunks are too large", {"chunk_values": (1 << 20) + 2}),
    ("slices do not cover the vector", {"slices": ()}),
    ("slices do not cover the vector", {"slices": specs((0, 22))}),
    ("slices do not cover the vector", {"slices": specs((0, 26))}),
    ("slices do not cover the vector", {"slices": specs((2, 24))}),
    ("slices do not cover the vector", {"slices": specs((0, 8), (10, 24))}),
    ("slices do not cover the vector", {"slices": specs((0, 10), (8, 24))}),
    ("slices do not cover the vector", {"slices": specs((0, 7), (7, 24))}),
    ("slices do not cover the vector", {"slices": specs((0, 8), (8, 8), (8, 24))}),
    ("an owner is not a member", {"slices": (SliceSpec(0, 24, STRANGER),)}),
    ("the deadline is not positive", {"deadline_s": 0.0}),
    ("the deadline is not positive", {"deadline_s": -1.0}),
    ("the deadline is not positive", {"deadline_s": math.inf}),
    ("the deadline is not positive", {"deadline_s": math.nan}),
    ("there is no cell", {"cells": 0}),
    ("there is no cell", {"cells": -1}),
    ("there is no cell", {"cells": limits.CELLS_MAX + 1}),
    ("a cell gives nothing", {"cells": 4}),
    ("too many members", {"members": THREE + receivers(126), "cells": 2}),
    ("only exact means have cells", {"cells": 2, "exact": False}),
    ("an owner is not of its slice's cell", {"cells": 2}),
    ("a cell's sum does not fit into a frame", {"cells": 2, "chunk_values": 1 << 20}),
    ("nobody need contribute", {"min_contributors": 0}),
    ("nobody need contribute", {"min_contributors": -1}),
]


@pytest.mark.parametrize(("rule", "change"), BROKEN)
def test_a_plan_that_breaks_one_rule_is_refused_with_that_rule(
    rule: str, change: dict[str, Any]
) -> None:
    plan = msgspec.structs.replace(plan_body(), **change)
    with pytest.raises(RemoteFault) as caught:
        check_plan(plan, 24)
    assert caught.value.reason == "plan"
    assert caught.value.detail == f"op 1: {rule}"


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"members": THREE + receivers(61)},
        {"members": members(255, 255, 255), "e_min": -28},
        {"e_min": -36},
        {"e_min": -90, "e_max": -80},
        {"e_min": 64, "e_max": 100},
        {"e_min": -60, "exact": False},
        {"chunk_values": 1 << 20},
        {"slices": (SliceSpec(0, 24, C),)},
        {"deadline_s": 1e-9},
    ],
)
def test_a_plan_at_the_edge_of_a_rule_is_legal(change: dict[str, Any]) -> None:
    check_plan(msgspec.structs.replace(plan_body(), **change), 24)


def test_a_plan_says_where_the_run_is_in_its_text() -> None:
    hall = opened(A, B, rounds=3)
    hall.run_op(1, A, B)
    assert hall.plan().text is None
    hall.machine.reads(TextPlace(2, 3, 9))
    hall.run_op(2, A, B)
    assert hall.plan().text == TextPlace(2, 3, 9)


@pytest.mark.parametrize("place", [TextPlace(0, 0, 9), TextPlace(1, 10, 9), TextPlace(1, -1, 9)])
def test_a_place_that_no_text_has_is_refused(place: TextPlace) -> None:
    hall = opened(A, B)
    hall.run_op(1, A, B)
    plan = msgspec.structs.replace(hall.plan(), text=place)
    with pytest.raises(RemoteFault, match="no text has such a place"):
        check_plan(plan, plan.slices[-1].stop)


# ---- where nobody waits


def begun_since(since: int, op: int = 1, samples: int = 8) -> Ready:
    return Ready(op, samples, op - 1, ROOT, since=since)


def asynchronous(**terms: Any) -> dict[str, Any]:
    return {"buffer": 2, "staleness": POLYNOMIAL, "max_stale": 2} | terms


def test_an_op_begins_with_as_many_as_are_wanted_whoever_else_is_at_work() -> None:
    lines = {A: ready_line(A), B: line_of(B), C: line_of(C)}
    for one in lines.values():
        one.ready = None
    lines[A].ready = begun_since(0)
    assert plan_now(begun_chain(), lines, **asynchronous()) is None
    lines[C].ready = begun_since(0)
    plan = plan_now(begun_chain(), lines, **asynchronous())
    assert weights(plan) == {A: 255, C: 255, B: 0}  # at once
    assert plan is not None and (plan.stale, plan.max_stale) == ((0, 0), 2)


def with_results(*contributors: tuple[PeerId, ...]) -> Chain:
    """A run with one result of each of these sets."""
    chain = begun_chain()
    for named in contributors:
        chain.add(chain.plan())
        chain.commit(*named)
    return chain


def at_work(chain: Chain, **since: int) -> dict[PeerId, GroupPeer]:
    """A, B and C, each with work that began from the anchor after such an op."""
    op = chain.view.first.next_op
    return {
        peer: line_of(peer, applied_op=op - 1, ready=begun_since(told, op), active=True)
        for peer, told in zip((A, B, C), since.values(), strict=False)
    }


def attested(chain: Chain) -> Chain:
    chain.add(Attest(chain.view.first.last_op, ROOT, 24, b""))
    return chain


def test_older_work_weighs_less_and_plan_says_so() -> None:
    chain = attested(with_results((A,), (A,)))
    plan = plan_now(chain, at_work(chain, a=2, b=0), **asynchronous())
    assert weights(plan) == {A: 255, B: int(255 * 3**-0.5)} and plan is not None
    assert plan.stale == (0, 2)


def test_work_counts_from_the_result_that_a_peer_is_in_whatever_it_says() -> None:
    chain = attested(with_results((A, B), (A,)))
    plan = plan_now(chain, at_work(chain, a=2, b=2), **asynchronous())
    assert plan is not None and plan.stale == (0, 1)
    told = msgspec.structs.replace(plan, stale=(0, 0))
    with pytest.raises(RemoteFault, match="work that cannot be 0 results old"):
        check_stale(attested(with_results((A, B), (A,))).view.first, told)


def test_work_that_is_too_old_is_in_no_op() -> None:
    chain = attested(with_results((A,), (A,), (A,)))
    plan = plan_now(chain, at_work(chain, a=3, b=0, c=1), **asynchronous())
    assert weights(plan) == {A: 255, C: int(255 * 3**-0.5), B: 0} and plan is not None
    old = msgspec.structs.replace(plan, max_stale=1)
    with pytest.raises(RemoteFault, match="work that cannot be 2 results old"):
        check_stale(attested(with_results((A,), (A,), (A,))).view.first, old)


@pytest.mark.parametrize("since", [-1, 4, 1 << 40, -(1 << 40)])
def test_work_that_began_nowhere_is_in_no_op(since: int) -> None:
    chain = attested(with_results((A,), (A,), (A,)))
    plan = plan_now(chain, at_work(chain, a=3, b=since, c=3), **asynchronous())
    assert weights(plan) == {A: 255, C: 255, B: 0}


def test_ops_that_were_skipped_make_no_work_older() -> None:
    chain = begun_chain()
    for op in (1, 2, 3):
        chain.add(chain.plan())
        chain.add(Skip(op, "test"))
    plan = plan_now(chain, at_work(chain, a=0, b=0), **asynchronous())
    assert weights(plan) == {A: 255, B: 255} and plan is not None and plan.stale == (0, 0)


@pytest.mark.parametrize(("rule", "share"), [("", 1.0), (POLYNOMIAL, 3**-0.5), (HINGE, 1.0)])
def test_older_work_weighs_less_by_the_rule(rule: str, share: float) -> None:
    assert weights_of({A: 800, B: 800}, (0, 2), rule) == {A: 255, B: int(255 * share)}


def test_far_older_work_weighs_less_by_the_hinge() -> None:
    assert weights_of({A: 800, B: 800}, (0, 8), HINGE) == {A: 255, B: 84}


@given(samples=st.lists(st.integers(1, 10**9), min_size=1, max_size=8), data=st.data())
def test_weights_fall_with_age_and_stay_in_their_range(samples: list[int], data: st.DataObject):
    peers = [bytes([number]) for number in range(len(samples))]
    stale = data.draw(st.lists(st.integers(0, limits.STALE_MAX), min_size=len(samples),
                               max_size=len(samples)))  # fmt: skip
    rule = data.draw(st.sampled_from(STALENESS))
    told = dict(zip(peers, samples, strict=True))
    found = weights_of(told, stale, rule)
    assert all(1 <= weight <= limits.WEIGHT_MAX for weight in found.values())
    older = weights_of({**told, b"old": max(samples)}, [*stale, limits.STALE_MAX], rule)
    assert older[b"old"] <= max(older.values())
