"""Error feedback: what is kept back is neither lost nor sent twice; waiting ends after three
exclusions."""

import psutil
import pytest
import torch
from window import PlanWindow

from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_optimizers.error_feedback import ErrorFeedback, check_cover
from swarmtrain_optimizers.exclusions import Exclusions

torch.set_num_threads(1)
WINDOW = PlanWindow()


@pytest.mark.parametrize("name", ["int8", "int4", "e3m0", "two_bit", "sign", "topk-2"])
def test_sent_plus_residual_equals_what_was_to_be_sent_over_any_outcomes(name: str) -> None:
    codec = codec_named(name)
    generator = torch.Generator().manual_seed(1)
    feedback = ErrorFeedback(64)
    total, sent = torch.zeros(64, dtype=torch.float64), torch.zeros(64, dtype=torch.float64)
    for op in range(60):
        delta = torch.randn(64, generator=generator) * 2.0 ** (op % 7 - 12)
        corrected = feedback.correct_(delta.clone())
        payload = codec.encode(corrected, WINDOW)
        decoded = codec.decode(payload, 64, WINDOW)
        if op % 5 == 4:  # SKIP: nothing is settled, the difference is made anew
            continue
        cut = 8 * (1 + op % 7)
        outcomes = [(0, cut, op % 2 == 0), (cut, 64, op % 3 == 0)]
        before = feedback.residual.clone()
        residual = feedback.settled(
            corrected, outcomes, lambda start, stop, decoded=decoded: decoded[start:stop]
        )
        assert torch.equal(feedback.residual, before)
        feedback.residual = residual
        total += delta
        for start, stop, included in outcomes:
            if included:
                sent[start:stop] += decoded[start:stop]
    assert torch.allclose(sent + feedback.residual, total, rtol=0, atol=1e-6)
    assert feedback.residual.any()
    feedback.drop()
    assert not feedback.residual.any()


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(0, 7, True)],
        [(0, 4, True), (5, 8, True)],
        [(0, 5, True), (4, 8, True)],
        [(0, 9, True)],
        [(4, 8, True), (0, 4, True)],
    ],
)
def test_ranges_that_leave_a_gap_or_overlap_are_refused(
    ranges: list[tuple[int, int, bool]],
) -> None:
    with pytest.raises(ValueError, match=r"follow|cover"):
        check_cover(ranges, 8)


def test_the_third_exclusion_in_a_row_drops_that_range_alone() -> None:
    exclusions = Exclusions(12)
    assert exclusions.record([(0, 6, False), (6, 12, True)]) == ()
    assert exclusions.record([(0, 4, False), (4, 12, False)]) == ()
    assert exclusions.longest == 2
    assert exclusions.record([(0, 12, False)]) == ((0, 6),)
    # Values 6..12 have been left out twice, 0..6 start again.
    assert exclusions.longest == 2
    assert exclusions.record([(0, 3, True), (3, 12, False)]) == ((6, 12),)
    assert exclusions.record([(0, 12, True)]) == ()
    assert exclusions.longest == 0


def test_resetting_forgets_all_exclusions() -> None:
    exclusions = Exclusions(4)
    exclusions.record([(0, 4, False)])
    exclusions.record([(0, 4, False)])
    exclusions.reset()
    assert exclusions.record([(0, 4, False)]) == ()


def test_values_that_no_outcome_is_about_keep_their_count() -> None:
    exclusions = Exclusions(12)
    everything, middle = [(0, 12, False)], [(2, 4, False), (6, 7, True)]
    assert exclusions.record(everything) == () and exclusions.record(middle) == ()
    assert exclusions.longest == 2
    assert exclusions.record([(0, 3, False)]) == ((2, 3),)
    assert exclusions.record([(0, 12, False)]) == ((0, 2), (3, 4))
    assert exclusions.record([]) == () and exclusions.longest == 2


def test_what_is_dropped_takes_no_memory() -> None:
    """A state is loaded while all else that a peer holds is there: no second vector beside e."""
    process, size = psutil.Process(), 1 << 24
    before = process.memory_info().rss
    feedback = ErrorFeedback(size)
    assert process.memory_info().rss < before + size
    feedback.residual.fill_(1.0)
    full = process.memory_info().rss
    feedback.drop()
    assert not feedback.residual[:: size // 8].any()
    assert process.memory_info().rss < full - 3 * size
