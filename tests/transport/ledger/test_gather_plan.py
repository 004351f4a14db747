"""PLAN of a gather op: what is legal, and that mean ops are planned as they always were."""

import msgpack
import msgspec
import pytest

from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.kinds import constant_of
from swarmtrain_transport.ledger.plan_rules import check_plan
from swarmtrain_transport.wire.records import (
    Member,
    Plan,
    SliceSpec,
    body_of,
    make_record,
    pack_struct,
)
from tests.transport.coordinator.ops.gather_table import gather_plan
from tests.transport.hall import opened
from tests.transport.rig import BOOT, A, B, C, D, plan_body, sign


def record_of(data: bytes) -> Plan:
    record = make_record(0, bytes(32), 1, plan_body(), sign)
    body = body_of(msgspec.structs.replace(record, body=data))
    assert isinstance(body, Plan)
    return body


def test_a_mean_plan_says_nothing_of_its_kind_and_one_without_a_kind_is_a_mean():
    raw = msgpack.unpackb(pack_struct(plan_body()), strict_map_key=False)
    assert "kind" not in raw
    assert list(raw) == [
        "k", "op", "previous_outcome", "members", "slices", "codec", "exact", "block",
        "chunk_values", "e_min", "e_max", "min_contributors", "deadline_s", "checkpoint_by",
        "evaluate_by",
    ]  # fmt: skip
    assert record_of(pack_struct(plan_body())) == plan_body()
    assert record_of(pack_struct(gather_plan())).kind == "gather"


def test_a_kind_that_was_read_from_a_file_changes_no_byte_of_a_mean_plan():
    bodies = []
    for terms in ({}, {"kind": b"mean".decode()}):
        hall = opened(A, B, **terms)
        hall.ready(1, A, B)
        bodies.append(hall.records[-1].body)
    assert bodies[0] == bodies[1]
    assert b"kind" not in bodies[1]
    with pytest.raises(LocalFault, match="cannot be planned"):
        constant_of("trio")


def test_a_gather_plan_gives_each_contributor_the_whole_vector_and_receivers_nothing():
    hall = opened(A, B, C, kind="gather", start_peers=2)
    hall.ready(1, A, B)
    plan = hall.plan()
    assert plan.slices == (SliceSpec(0, 24, A), SliceSpec(0, 24, B))
    assert (plan.kind, plan.exact) == ("gather", False)
    assert [member.weight > 0 for member in plan.members] == [True, True, False]
    check_plan(plan, 24)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kind": "trio"}, "kind that this version"),
        ({"kind": ""}, "kind that this version"),
        ({"exact": True}, "no sums"),
        ({"slices": ()}, "not the contributions"),
        ({"slices": gather_plan().slices[:2]}, "not the contributions"),
        ({"slices": gather_plan().slices[::-1]}, "not the contributions"),
        ({"slices": (*gather_plan().slices, SliceSpec(0, 8, D))}, "not the contributions"),
        ({"slices": plan_body().slices}, "not the contributions"),
        ({"slices": gather_plan(num_values=6).slices}, "not the contributions"),
        ({"members": tuple(Member(p, BOOT, p != C) for p in (A, B, C))}, "not the contributions"),
        ({"kind": "mean", "exact": True}, "do not cover"),
    ],
)
def test_a_peer_refuses_a_plan_that_is_none(changes, problem):
    plan = msgspec.structs.replace(gather_plan(), **changes)
    with pytest.raises(RemoteFault, match=problem):
        check_plan(plan, 8)


def test_a_mean_plan_whose_slices_are_contributions_is_refused():
    check_plan(gather_plan(), 8)
    with pytest.raises(RemoteFault):
        check_plan(gather_plan(), 10)
    with pytest.raises(RemoteFault):
        check_plan(gather_plan(num_values=7), 7)
