"""Promises of every robust rule: hostile contributors, order, slices, refusals.

Method: the same tests over all rules with their default settings. Synthetic contributions share a
direction; two of eight are then made hostile, and the plain mean is computed beside.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_optimizers.robust import RULES, rule_named
from swarmtrain_optimizers.robust.base import Needs, RobustRule
from swarmtrain_optimizers.robust.centered_clip import CenteredClip
from swarmtrain_optimizers.robust.flag import FlagAggregator
from swarmtrain_optimizers.robust.norm_clip import NormClip
from swarmtrain_optimizers.robust.rows import inner_products, squared_norms
from swarmtrain_optimizers.robust.trimmed_mean import TrimmedMean

torch.set_num_threads(1)
ALL = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
NUM_VALUES = 2048
WEIGHTS = [255, 200, 128, 255, 64, 31, 255, 90]


def honest(seed: int, *, count: int = 8, spread: float = 0.5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(NUM_VALUES, generator=generator)
    own = [torch.randn(NUM_VALUES, generator=generator) for _ in range(count)]
    return [common + spread * noise for noise in own]


def attacked(rows: list[torch.Tensor], attack: str) -> list[torch.Tensor]:
    """The third and the last one are hostile."""
    generator = torch.Generator().manual_seed(99)
    changed = list(rows)
    for index in (2, 7):
        changed[index] = {
            "sign flip x 10": -10 * rows[index],
            "noise x 100": 100 * torch.randn(NUM_VALUES, generator=generator),
            "nan": torch.full((NUM_VALUES,), math.nan),
            "one infinity": torch.where(torch.arange(NUM_VALUES) == 5, math.inf, rows[index]),
            "the largest floats": torch.full((NUM_VALUES,), 3.4e38),
        }[attack]
    return changed


def bits(values: torch.Tensor) -> list[int]:
    return values.view(torch.int32).tolist()


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative to the wanted vector's norm."""
    return float((found.double() - wanted).norm() / wanted.norm())


@ALL
@pytest.mark.parametrize(
    "attack", ["sign flip x 10", "noise x 100", "nan", "one infinity", "the largest floats"]
)
def test_two_hostile_of_eight_destroy_the_mean_and_no_robust_rule(
    rule: RobustRule, attack: str
) -> None:
    rows = attacked(honest(1), attack)
    clean = torch.stack([rows[i] for i in range(8) if i not in (2, 7)]).double().mean(dim=0)
    plain = torch.stack(rows).double().mean(dim=0)
    assert not distance(plain, clean) < 2.0  # NaN is destroyed too.
    found = rule.aggregate(rows, [100] * 8)
    # Clipping alone counts two of eight against the others at full size: half is what is left.
    assert distance(found, clean) < 0.55
    assert float(torch.cosine_similarity(found.double(), clean, dim=0)) > 0.9


@pytest.mark.parametrize("attack", ["sign flip x 10", "noise x 100", "nan"])
def test_centered_clipping_from_the_last_aggregate_loses_least(attack: str) -> None:
    rows, previous = attacked(honest(1), attack), torch.stack(honest(3)).mean(dim=0)
    clean = torch.stack([rows[i] for i in range(8) if i not in (2, 7)]).double().mean(dim=0)
    near = clean.float() + 0.1 * previous
    found = CenteredClip().aggregate(rows, [100] * 8, previous=near)
    assert distance(found, clean) < 0.2


@ALL
def test_without_anybody_hostile_a_rule_stays_near_the_mean(rule: RobustRule) -> None:
    rows = honest(2, spread=0.3)
    found = rule.aggregate(rows, [100] * 8)
    assert distance(found, torch.stack(rows).double().mean(dim=0)) < 0.15


@ALL
def test_equal_contributions_come_out_as_they_are(rule: RobustRule) -> None:
    row = honest(4)[0]
    for count in (3, 5, 8):
        found = rule.aggregate([row] * count, WEIGHTS[:count])
        assert bits(found) == bits(row)


@ALL
def test_zeros_come_out_as_zeros_and_tiny_values_too(rule: RobustRule) -> None:
    zeros = [torch.zeros(8), -torch.zeros(8), torch.zeros(8)]
    assert bits(rule.aggregate(zeros, [1, 2, 3])) == [0] * 8
    tiny = [torch.full((8,), 2.0**-101)] * 3
    assert bits(rule.aggregate(tiny, [1, 2, 3])) == [0] * 8


VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, 0.1, -3e4, 7e-5, 1e20])
CASES = st.integers(3, 7).flatmap(
    lambda count: st.tuples(
        st.integers(1, 5).flatmap(
            lambda size: st.lists(
                st.lists(VALUES, min_size=size, max_size=size), min_size=count, max_size=count
            )
        ),
        st.lists(st.sampled_from([1, 2, 100, 255]), min_size=count, max_size=count),
        st.permutations(range(count)),
    )
)


@ALL
@settings(max_examples=60, deadline=None)
@given(case=CASES)
def test_who_is_called_first_changes_no_bit(
    rule: RobustRule, case: tuple[list[list[float]], list[int], list[int]]
) -> None:
    numbers, weights, order = case
    rows = [torch.tensor(row) for row in numbers]
    found = rule.aggregate(rows, weights)
    again = rule.aggregate([rows[i] for i in order], [weights[i] for i in order])
    assert bits(found) == bits(again)


@ALL
@settings(max_examples=40, deadline=None)
@given(case=CASES)
def test_no_result_is_longer_than_the_longest_and_four_times_all_is_four_times_it(
    rule: RobustRule, case: tuple[list[list[float]], list[int], list[int]]
) -> None:
    numbers, weights, _ = case
    rows = [torch.tensor(row) for row in numbers]
    found = rule.aggregate(rows, weights)
    if rule.needs is Needs.COORDINATES:
        assert bool((found >= torch.stack(rows).amin(dim=0)).all())
        assert bool((found <= torch.stack(rows).amax(dim=0)).all())
    else:
        longest = max(row.double().norm().item() for row in rows)
        assert found.double().norm().item() <= longest * (1 + 1e-6)
    scaled = rule.aggregate([row * 4 for row in rows], weights)
    assert bits(scaled) == bits(found * 4)


@ALL
def test_a_permutation_of_long_contributions_changes_no_bit(rule: RobustRule) -> None:
    rows = [row.repeat(20) for row in attacked(honest(5), "nan")]
    found = rule.aggregate(rows, WEIGHTS)
    again = rule.aggregate(rows[::-1], WEIGHTS[::-1])
    assert torch.equal(found, again)


@ALL
@pytest.mark.parametrize("with_previous", [False, True])
def test_owners_of_slices_reach_what_one_would_reach_alone(
    rule: RobustRule, with_previous: bool
) -> None:
    rows = attacked(honest(6), "sign flip x 10")
    previous = honest(7)[0] if with_previous else None
    cuts = [slice(0, 256), slice(256, 1280), slice(1280, NUM_VALUES)]

    def start(cut: slice) -> torch.Tensor | None:
        return None if previous is None else previous[cut]

    used = [*rows, previous] if isinstance(rule, CenteredClip) and with_previous else rows
    numbers = {Needs.NORMS: squared_norms, Needs.PRODUCTS: inner_products}.get(rule.needs)
    total = numbers and sum(numbers([row[cut] for row in used]) for cut in cuts)
    slices = [
        rule.aggregate([row[cut] for row in rows], WEIGHTS, scalars=total, previous=start(cut))
        for cut in cuts
    ]
    joined = torch.cat([part for part in slices])
    agreed = rule.aggregate(rows, WEIGHTS, scalars=total, previous=previous)
    alone = rule.aggregate(rows, WEIGHTS, previous=previous)
    assert bits(joined) == bits(agreed)
    assert torch.allclose(joined, alone, rtol=1e-6, atol=1e-6)
    if rule.needs is Needs.COORDINATES:
        assert bits(joined) == bits(alone)


@ALL
def test_contributions_are_only_read_and_may_come_as_one_matrix(rule: RobustRule) -> None:
    rows = honest(8)
    before = torch.stack(rows)
    first = rule.aggregate(rows, WEIGHTS)
    assert torch.equal(torch.stack(rows), before)
    assert torch.equal(rule.aggregate(before, WEIGHTS), first)


@ALL
def test_too_few_contributors_are_refused_with_what_to_do(rule: RobustRule) -> None:
    rows = honest(9)
    with pytest.raises(ValueError, match="at least 3"):
        rule.aggregate(rows[:2], [1, 1])
    with pytest.raises(ValueError, match=r"2 finite contributions.*at least 3"):
        rule.aggregate([*rows[:2], torch.full((NUM_VALUES,), math.nan)], [1, 1, 1])


@ALL
def test_what_does_not_fit_together_is_refused(rule: RobustRule) -> None:
    rows = [torch.zeros(4) for _ in range(3)]
    with pytest.raises(ValueError, match="no contribution"):
        rule.aggregate([], [])
    with pytest.raises(ValueError, match="2 weights for 3"):
        rule.aggregate(rows, [1, 1])
    with pytest.raises(ValueError, match="weight 0"):
        rule.aggregate(rows, [1, 0, 1])
    with pytest.raises(ValueError, match="row 1 has 5 values"):
        rule.aggregate([rows[0], torch.zeros(5), rows[1]], [1, 1, 1])
    with pytest.raises(ValueError, match="float64"):
        rule.aggregate([rows[0], rows[1].double(), rows[2]], [1, 1, 1])
    if rule.needs is not Needs.COORDINATES:
        with pytest.raises(ValueError, match="wanted"):
            rule.aggregate(rows, [1, 1, 1], scalars=torch.zeros(2, dtype=torch.float64))


def test_trimming_that_leaves_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="none is left after dropping 2"):
        TrimmedMean(trim_share=0.4).tolerated(4)
    assert TrimmedMean(trim_share=0.1).tolerated(30) == 3
    assert TrimmedMean(trim_share=0.25).tolerated(8) == 2


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: TrimmedMean(trim_share=0.5), "trim_share"),
        (lambda: TrimmedMean(trim_share=0.0), "trim_share"),
        (lambda: CenteredClip(radius=0.0), "radius"),
        (lambda: CenteredClip(iterations=0), "iterations"),
        (lambda: FlagAggregator(num_directions=0), "num_directions"),
        (lambda: FlagAggregator(iterations=0), "iterations"),
        (lambda: FlagAggregator(pairs=-1.0), "pairs"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(make: object, key: str) -> None:
    with pytest.raises(ValueError, match=key):
        make()  # type: ignore[operator]


def test_a_previous_aggregate_that_is_not_finite_is_refused() -> None:
    rows = [torch.ones(4) for _ in range(3)]
    with pytest.raises(ValueError, match="previous aggregate is not finite"):
        CenteredClip().aggregate(rows, [1, 1, 1], previous=torch.full((4,), math.nan))


def test_rules_are_found_by_their_names() -> None:
    assert rule_named("norm-clip") == NormClip()
    assert all(name == rule.name for name, rule in RULES.items())
    with pytest.raises(ValueError, match=r"centered-clip, flag, median, norm-clip, trimmed-mean"):
        rule_named("krum")
