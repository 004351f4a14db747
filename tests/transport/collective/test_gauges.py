"""Tests that a peer that gives little, or against all others, is seen; one owner cannot fake it."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.collective.gauges import Gauges, Likeness, likenesses
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.messages import Gauged
from tests.transport.hall import opened
from tests.transport.plain_arithmetic import PlainContribution
from tests.transport.rig import A, B, C, D
from tests.transport.swarm import VALUES, Member, Swarm

NAN = math.nan


def rows_of(vectors: list[list[float]], weights: list[int]) -> list[tuple[float, float]]:
    """Pairs that an owner computes: squared norm and product with the mean, the mean's own last."""
    total = sum(weights)
    mean = [
        sum(weight * value for weight, value in zip(weights, column, strict=True)) / total
        for column in zip(*vectors, strict=True)
    ]
    return [
        (sum(x * x for x in row), sum(x * y for x, y in zip(row, mean, strict=True)))
        for row in [*vectors, mean]
    ]


@given(
    st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=2, max_size=5),
    st.data(),
)
def test_the_cosine_is_with_what_the_others_gave(vectors: list[list[float]], data: Any) -> None:
    weights = [data.draw(st.integers(1, 255)) for _ in vectors]
    found = likenesses(rows_of(vectors, weights), weights, is_mean=True)
    for index, row in enumerate(vectors):
        rest = [
            sum(
                weights[other] * vectors[other][place]
                for other in range(len(vectors))
                if other != index
            )
            for place in range(3)
        ]
        length = math.hypot(*row) * math.hypot(*rest)
        norm, cosine = found[index]
        assert norm == pytest.approx(math.hypot(*row) ** 2)
        # Of a rest that is nothing beside its own part, subtracting leaves no digits.
        if length > 1e-3 and math.hypot(*rest) > 1e-4 * weights[index] * math.hypot(*row):
            told = sum(x * y for x, y in zip(row, rest, strict=True)) / length
            assert cosine == pytest.approx(told, abs=1e-3)


def test_beside_a_rule_it_is_with_the_rules_result() -> None:
    rows = [(4.0, 2.0), (1.0, -1.0), (0.0, 0.0), (1.0, 1.0)]
    found = likenesses(rows, [1, 1, 1], is_mean=False)
    assert found == ((4.0, 1.0), (1.0, -1.0), (0.0, 0.0))


def test_values_that_overflow_hide_nobodys_length() -> None:
    inf = math.inf
    found = likenesses([(inf, inf), (4.0, NAN), (1.0, -inf), (inf, inf)], [1, 1, 1], is_mean=True)
    assert found == ((1e300, 0.0), (4.0, 0.0), (1.0, 0.0))


# ---- what the coordinator makes of owners' words


def told(ledger: Any, index: int, **seen: tuple[float, float]) -> Gauged:
    peers = {"a": A, "b": B, "c": C, "d": D}
    view = ledger.commits[1]
    named = {peers[name]: pair for name, pair in seen.items()}
    return Gauged(view.plan.op, view.plan_id, index, named)


@pytest.fixture
def scene() -> Any:
    hall = opened(A, B, C)
    hall.run_op(1, A, B, C)
    ledger = hall.machine.view.first
    view = ledger.commits[1]
    places = {owner: view.owners.index(owner) for owner in (A, B, C)}
    return Gauges(), ledger, places


def test_a_norm_counts_beside_the_median_and_nobody_speaks_of_itself(scene: Any) -> None:
    gauges, view, places = scene
    gauges.hear(A, told(view, places[A], a=(9.0, 0.9), b=(4.0, 0.5), c=(16.0, -0.5)), view)
    assert gauges.of(A) is None
    assert gauges.of(B) == Likeness(0.667, 0.5, 1)
    assert gauges.of(C) == Likeness(1.333, -0.5, 1)
    assert gauges.of(D) is None


def test_one_lying_owner_moves_nobody_beyond_what_others_say(scene: Any) -> None:
    gauges, view, places = scene
    honest = {"a": (1.0, 0.5), "b": (1.0, 0.5), "c": (1.0, 0.5)}
    for owner in (B, C):
        gauges.hear(owner, told(view, places[owner], **honest), view)
    gauges.hear(A, told(view, places[A], **(honest | {"b": (1e12, -1.0)})), view)
    found = gauges.of(A)
    assert found is not None and found == Likeness(1.0, 0.5, 2)
    three = Gauges()
    for owner, cosine in ((A, -1.0), (C, 0.5), (D, 0.4)):
        three._note(B, owner, 1, (1.0, cosine))
    assert three.of(B) == Likeness(1.0, 0.4, 3)


@pytest.mark.parametrize(
    "pair",
    [(NAN, 0.0), (-1.0, 0.0), (math.inf, 0.0), (1.0, NAN), (1.0, 1.1), (1.0, -math.inf)],
)
def test_numbers_that_nothing_can_have_are_dropped(scene: Any, pair: tuple[float, float]) -> None:
    gauges, view, places = scene
    gauges.hear(A, told(view, places[A], b=pair, c=(1.0, 0.5)), view)
    assert gauges.of(B) is None and gauges.of(C) is None


def test_only_the_slices_owner_is_heard_and_only_of_contributors(scene: Any) -> None:
    gauges, view, places = scene
    word = told(view, places[A], b=(1.0, 0.5), c=(1.0, 0.5))
    gauges.hear(B, word, view)
    gauges.hear(A, m.Gauged(1, 0, places[A], word.seen), view)
    gauges.hear(A, m.Gauged(1, view.commits[1].plan_id, 99, word.seen), view)
    gauges.hear(A, m.Gauged(1, view.commits[1].plan_id, -1, word.seen), view)
    gauges.hear(A, None, view)
    gauges.hear(A, told(view, places[A], b=(1.0, 0.5), d=(1.0, 0.5)), view)
    assert not gauges._words
    gauges.hear(A, told(view, places[A], b=(1.0, 0.5), c=(1.0, 0.5), d=(1.0, 0.5)), view)
    assert set(gauges._words) == {B, C}


def test_what_is_kept_is_bounded_and_old_owners_are_not_quoted() -> None:
    gauges = Gauges()
    for op in range(10 * limits.GAUGE_WORDS):
        gauges._note(A, B, op, (1.0, 0.5))
    assert len(gauges._words[A][B]) == limits.GAUGE_WORDS
    gauges._note(A, C, 200, (1.0, -0.5))
    gauges._forget(200)
    assert gauges.of(A) == Likeness(1.0, -0.5, 1)
    gauges._forget(200 + limits.GAUGE_ROUNDS + 1)
    assert gauges.of(A) is None and not gauges._words
    gauges._note(A, B, 100, (1.0, 0.5))
    gauges._note(A, B, 10, (2.0, 0.1))  # after a REWIND the numbers come again
    assert gauges.of(A) == Likeness(2.0, 0.1, 1)


def test_it_is_told_once_of_whom_several_owners_say_so_for_several_rounds() -> None:
    gauges = Gauges()
    for op in range(1, 3):
        for owner in (B, C):
            gauges._note(A, owner, op, (4.2, -0.25))
            gauges._note(D, owner, op, (1.0, 0.5))
    assert gauges.gone_apart() == {}
    gauges._note(A, B, 3, (4.2, -0.25))
    assert gauges.gone_apart() == {}  # one owner may lie
    gauges._note(A, C, 3, (4.2, -0.25))
    words = "its contributions are 4.2 times as long as the median's and point away from what the "
    assert gauges.gone_apart() == {A: words + "others give (cosine -0.25)"}
    assert gauges.gone_apart() == {}
    for op in range(4, 4 + limits.GAUGE_WORDS):
        gauges._note(A, B, op, (1.0, 0.5))
        gauges._note(A, C, op, (1.0, 0.5))
    assert gauges.gone_apart() == {}
    for op in range(30, 30 + limits.GAUGE_WORDS):
        gauges._note(A, B, op, (1.0, -0.5))
        gauges._note(A, C, op, (1.0, -0.5))
    assert list(gauges.gone_apart()) == [A]


# ---- the whole swarm


class Flipping(Member):
    """C gives the opposite of its difference, and D next to nothing."""

    def difference(self, op: int) -> PlainContribution:
        honest = [100 + 7 * i + op for i in range(VALUES)]
        if self.peer == C:
            return PlainContribution([-value for value in honest])
        return PlainContribution([value // 50 if self.peer == D else value for value in honest])


class Liars(Swarm):
    member_type = Flipping


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_sign_and_a_lazy_peer_show_in_status_and_nowhere_in_the_ledger(seed: int) -> None:
    swarm = Liars(seed, rounds=40, start_peers=4)
    for peer in (A, B, C, D):
        swarm.add(peer)
    for _ in range(200_000):
        rows = {row.peer: row for row in swarm.hall.status(swarm.now_s).peers}
        if len(rows) == 4 and all(row.norm is not None for row in rows.values()):
            break
        swarm.step()
    flipped, lazy, honest = (rows[peer.hex()] for peer in (C, D, A))
    assert flipped.cosine is not None and flipped.cosine < -0.9
    assert honest.cosine is not None and honest.cosine > 0.0
    assert lazy.norm is not None and lazy.norm < 0.1
    assert flipped.norm is not None and 0.5 < flipped.norm < 2.0
