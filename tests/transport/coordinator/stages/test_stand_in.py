"""A stage that has lost all its peers: who is sent there, and when."""

from types import SimpleNamespace
from typing import Any

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.stages.staffing import Stages
from swarmtrain_transport.pipeline.coordinator.assignment import StageNeed
from swarmtrain_transport.pipeline.wire.orders import Member
from swarmtrain_transport.pipeline.wire.route import Span
from swarmtrain_transport.wire.messages import Brings
from tests.transport.hall import hello_of
from tests.transport.rig import A, B, C, D

NEEDS = tuple(StageNeed(float(stage + 1), 1000, 0, 0, 0) for stage in range(3))
LATER_S = limits.STAGE_EMPTY_S


def stages_of(
    groups: dict[bytes, tuple[int, ...]],
    keepers: tuple[bytes, ...] = (),
    brings: dict[bytes, Brings] | None = None,
    away: tuple[bytes, ...] = (),
) -> Stages:
    """Nobody serves stage 2."""
    members = [{peer: b"boot" for peer in groups if at in groups[peer]} for at in range(3)]
    views = {
        at: SimpleNamespace(members=members[at], keepers=dict.fromkeys(keepers) if at == 2 else {})
        for at in range(3)
    }
    view: Any = SimpleNamespace(roster=dict.fromkeys(groups), groups=views, groups_of=groups.get)
    lines: Any = {
        peer: SimpleNamespace(
            hello=hello_of(peer, brings=(brings or {}).get(peer, Brings())),
            life=SimpleNamespace(is_alive=lambda now_s, peer=peer: peer not in away),
        )
        for peer in groups
    }
    return Stages(NEEDS, view, lines)


def members_of(stages: Stages, fetching: tuple[bytes, ...] = ()) -> dict[bytes, Member]:
    """The rounds' members: all but those that still fetch the state of their stages."""
    groups = {peer: stages.view.groups_of(peer) for peer in stages.view.roster}
    return {
        peer: Member(b"boot", Span(own[0], own[-1]))
        for peer, own in groups.items()
        if peer not in fetching
    }


def sent(stages: Stages, fetching: tuple[bytes, ...] = ()) -> tuple[bytes, int] | None:
    members = members_of(stages, fetching)
    assert stages.stand_in(members, 1.0) is None  # somebody may come back
    assert stages.wakeups() == [1.0 + LATER_S]
    return stages.stand_in(members, 1.0 + LATER_S)


TWO_EACH = {A: (0,), B: (0,), C: (1,), D: (1,)}


def test_whoever_is_missed_least_goes_and_a_keeper_before_others() -> None:
    assert sent(stages_of(TWO_EACH)) == (A, 2)  # stage 0 is the faster one
    assert sent(stages_of(TWO_EACH, keepers=(D,))) == (D, 2)


def test_not_who_asked_for_its_span_or_is_away_or_has_no_room_or_is_alone() -> None:
    asked = {A: Brings(span=(0, 0)), C: Brings(memory_bytes=999)}
    assert sent(stages_of(TWO_EACH, brings=asked)) == (B, 2)
    assert sent(stages_of(TWO_EACH, brings=asked, away=(B,))) == (D, 2)
    assert sent(stages_of({A: (0,), B: (1,)}, keepers=(A,))) is None


def test_whoever_alone_has_its_stage_s_state_stays_and_who_moves_there_may_go() -> None:
    assert sent(stages_of(TWO_EACH), fetching=(A, C)) == (A, 2)
    assert sent(stages_of(TWO_EACH), fetching=(B, D)) == (B, 2)
    assert sent(stages_of({A: (0,), B: (0,), C: (1,)}), fetching=(A, B)) is None


def test_a_stage_that_is_served_again_waits_anew_when_it_loses_all() -> None:
    stages = stages_of(TWO_EACH)
    members = members_of(stages)
    assert stages.stand_in(members, 1.0) is None
    group: Any = stages.view.groups[2]
    group.members[A] = b"boot"
    assert stages.stand_in(members, 5.0) is None and stages.wakeups() == []
    del group.members[A]
    assert stages.stand_in(members, 1.0 + LATER_S) is None
