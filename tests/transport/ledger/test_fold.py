"""Meaning of decisions: one FREEZE, one outcome, attempts that only go up."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import (
    COMMITS_KEPT,
    LedgerView,
    chunk_range,
    num_chunks,
    set_id,
)
from swarmtrain_transport.wire.records import (
    Attest,
    Body,
    Freeze,
    Gone,
    Member,
    Reassign,
    Skip,
    SliceFreeze,
    SliceSpec,
)
from tests.transport.rig import (
    STRANGER,
    A,
    B,
    C,
    Chain,
    begun_chain,
    commit_of,
    genesis_body,
    join_body,
    plan_body,
    run_body,
)


def planned_chain(*more: Body) -> Chain:
    chain = begun_chain()
    chain.add(chain.plan())
    for body in more:
        chain.add(body)
    return chain


def contradicts(chain: Chain, body: Body) -> None:
    with pytest.raises(RemoteFault) as caught:
        chain.add(body)
    assert caught.value.reason == "order"


FREEZE = Freeze(1, (A, B), {C: "late"})
SKIP = Skip(1, "deadline")


def test_freeze_settles_the_slices_that_keep_their_first_owner() -> None:
    chain = planned_chain(Reassign(1, 2, 1, A, "owner lost"), FREEZE)
    assert chain.view.first.op is not None
    assert chain.view.first.op.frozen == (A, B)
    assert chain.view.first.op.slice_sets == [(A, B), (A, B), None]
    chain.add(SliceFreeze(1, 2, 1, (B,)))
    assert chain.view.first.op.slice_sets[2] == (B,)


def test_a_second_freeze_is_refused() -> None:
    contradicts(planned_chain(FREEZE), FREEZE)
    contradicts(planned_chain(FREEZE), Freeze(1, (A,), {}))


def test_freeze_names_planned_contributors_only() -> None:
    contradicts(planned_chain(), Freeze(1, (A, STRANGER), {}))


def test_a_receiver_is_never_frozen_as_a_contributor() -> None:
    chain = begun_chain()
    chain.add(chain.plan((A, B), num_values=24, members=(Member(A, b"", 1), Member(B, b"", 0))))
    contradicts(chain, Freeze(1, (A, B), {}))


@pytest.mark.parametrize(
    "body",
    [
        Reassign(1, 0, 2, B, "attempt skipped"),
        Reassign(1, 0, 0, B, "attempt repeated"),
        Reassign(1, 3, 1, B, "no such slice"),
        Reassign(1, -1, 1, B, "no such slice"),
        Reassign(1, 0, 1, STRANGER, "not planned"),
        Reassign(2, 0, 1, B, "another op"),
        SliceFreeze(1, 0, 0, (A,)),
        SliceFreeze(1, 9, 0, (A,)),
        Freeze(2, (A,), {}),
        Skip(2, "another op"),
        Attest(5, b"r" * 32),
    ],
)
def test_a_decision_that_does_not_fit_is_refused(body: Body) -> None:
    contradicts(planned_chain(), body)


def test_sfreeze_names_a_subset_of_freeze_once_and_under_the_current_attempt() -> None:
    moved = (Reassign(1, 2, 1, A, "owner lost"), FREEZE)
    contradicts(planned_chain(*moved), SliceFreeze(1, 2, 1, (A, C)))
    contradicts(planned_chain(*moved), SliceFreeze(1, 2, 0, (A,)))
    contradicts(planned_chain(*moved), SliceFreeze(1, 0, 0, (A,)))
    contradicts(planned_chain(moved[0]), SliceFreeze(1, 2, 1, (A,)))
    settled = SliceFreeze(1, 2, 1, (A,))
    contradicts(planned_chain(*moved, settled), settled)
    chain = planned_chain(*moved, settled, Reassign(1, 2, 2, B, "owner lost"))
    assert chain.view.first.op is not None and chain.view.first.op.slice_sets[2] is None


@pytest.mark.parametrize("is_skip", [True, False])
def test_an_op_has_one_outcome(is_skip: bool) -> None:
    chain = planned_chain(FREEZE)
    assert chain.view.first.op is not None
    commit = commit_of(chain.view.first.op)
    chain.add(SKIP if is_skip else commit)
    assert chain.view.first.in_progress is None
    for body in (SKIP, commit, FREEZE, Reassign(1, 0, 1, B, "late")):
        contradicts(chain, body)


def test_a_commit_says_what_freeze_and_sfreeze_decided() -> None:
    chain = planned_chain(Reassign(1, 2, 1, A, "owner lost"), FREEZE, SliceFreeze(1, 2, 1, (B,)))
    assert chain.view.first.op is not None
    good = commit_of(chain.view.first.op)
    moved = msgspec.structs.replace(good.slices[2], attempt=0)
    wider = msgspec.structs.replace(good.slices[2], contributors=(A, B))
    for wrong in (
        msgspec.structs.replace(good, plan_hash=bytes(32)),
        msgspec.structs.replace(good, contributors=(A,)),
        msgspec.structs.replace(good, slices=good.slices[:2]),
        msgspec.structs.replace(good, slices=(*good.slices[:2], moved)),
        msgspec.structs.replace(good, slices=(*good.slices[:2], wider)),
    ):
        contradicts(chain, wrong)
    chain.add(good)
    contradicts(planned_chain(), good)


def test_plans_follow_outcomes_one_by_one() -> None:
    chain = planned_chain()
    contradicts(chain, chain.plan())
    chain.add(SKIP)
    contradicts(chain, chain.plan(op=1))
    contradicts(chain, chain.plan(op=3))
    contradicts(chain, chain.plan(previous_outcome=b"another history"))
    chain.add(chain.plan(op=2))
    assert chain.view.first.in_progress is not None


def test_nothing_is_planned_before_op_0_is_attested_and_op_0_is_attested_once() -> None:
    chain = Chain(run_body(), join_body(A))
    contradicts(chain, plan_body((A,), op=0))
    contradicts(chain, plan_body((A,), op=1))
    chain.add(genesis_body())
    contradicts(chain, genesis_body(root=b"another" * 4))


def test_the_state_after_skipped_ops_is_the_state_before_them() -> None:
    chain = planned_chain(SKIP)
    chain.add(chain.plan())
    chain.add(Skip(2, "deadline"))
    assert chain.view.first.root_after(2) == chain.view.first.root_after(0) == b"R" * 32
    for absurd in (-1, 3, 1 << 62, -(1 << 62)):
        assert chain.view.first.root_after(absurd) is None


def test_the_view_remembers_a_bounded_number_of_commits() -> None:
    chain = begun_chain()
    for _ in range(COMMITS_KEPT + 3):
        chain.add(chain.plan())
        chain.commit(A, B)
    assert len(chain.view.first.commits) == COMMITS_KEPT
    assert min(chain.view.first.commits) == 4
    assert chain.view.first.committed == COMMITS_KEPT + 3


def test_a_peer_that_is_back_keeps_its_right_to_come_and_has_its_newest_card() -> None:
    chain = begun_chain()
    chain.add(Gone(B, True, "silent"))
    assert B not in chain.view.roster and B in chain.view.ever_members
    again = chain.add(join_body(B, b"boot 2"))
    assert chain.view.roster[B].boot == b"boot 2"
    assert chain.view.join_index[B] == again.index


def test_a_restart_folds_the_same_view() -> None:
    chain = planned_chain(Reassign(1, 2, 1, A, "owner lost"), FREEZE)
    again = Chain()
    for record in chain.records:
        again.view.apply(record, again.ledger.append(record))
    assert again.view == chain.view
    assert isinstance(again.view, LedgerView)


@settings(max_examples=40, deadline=None)
@given(st.permutations([A, B, C]))
def test_a_set_has_one_name_whatever_its_order(order: list[bytes]) -> None:
    assert set_id(tuple(order)) == set_id((A, B, C))
    assert set_id(tuple(order[:2])) != set_id((A, B, C))


@settings(max_examples=40, deadline=None)
@given(
    widths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    chunk_values=st.integers(1, 16),
)
def test_chunks_of_all_slices_tile_the_vector(widths: list[int], chunk_values: int) -> None:
    bounds = [sum(widths[:i]) for i in range(len(widths) + 1)]
    specs = tuple(SliceSpec(a, b, A) for a, b in itertools.pairwise(bounds))
    plan = plan_body(slices=specs, chunk_values=chunk_values)
    ranges = [
        chunk_range(plan, index, chunk)
        for index in range(len(specs))
        for chunk in range(num_chunks(plan, index))
    ]
    assert [stop for _, stop in ranges[:-1]] == [start for start, _ in ranges[1:]]
    assert (ranges[0][0], ranges[-1][1]) == (0, sum(widths))
    assert all(0 < stop - start <= chunk_values for start, stop in ranges)
