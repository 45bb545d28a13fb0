from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablationlab.core.errors import StatisticsError
from ablationlab.stats import failure_bound, paired_survival, survival_curve
from ablationlab.stats.failures import (
    _log_rank_scores,
    exact_upper_bound,
    pairs_without_failure,
    score_upper_bound,
)
from ablationlab.stats.gains import tango_interval


def coverage(n, q, difference, bound):
    """P(D <= upper), summed over every (b, c)."""
    total = 0.0
    for b in range(n + 1):
        for c in range(n + 1 - b):
            if bound(b, c, n, 0.05) >= difference - 1e-9:
                total += stats.multinomial.pmf([b, c, n - b - c], n, [q + difference, q, 1 - 2 * q - difference])
    return total


@pytest.mark.parametrize("n", [3, 5, 10])
def test_the_exact_bound_covers_at_every_truth(n):
    for difference in (-0.2, 0.0, 0.1, 0.3):
        for q in np.linspace(max(0.0, -difference), 0.999 * (1 - difference) / 2, 6):
            assert coverage(n, q, difference, exact_upper_bound) >= 0.95 - 1e-6


def test_no_failures_bound_the_difference_as_in_one_arm():
    for n in (3, 5, 20):
        assert failure_bound([False] * n, [False] * n).upper == pytest.approx(1 - 0.05 ** (1 / n), abs=2e-5)


def test_the_score_bound_is_the_end_of_tangos_two_sided_interval():
    for only_variant, only_reference, n in ((2, 1, 10), (0, 3, 8), (5, 0, 20)):
        high = tango_interval(only_variant, only_reference, n, level=0.9)[1]
        assert score_upper_bound(only_variant, only_reference, n, 0.05) == pytest.approx(high, abs=1e-9)


def test_more_failures_of_the_variant_raise_the_bound():
    for bound in (exact_upper_bound, score_upper_bound):
        uppers = [bound(b, 2, 12, 0.05) for b in range(11)]
        assert uppers == sorted(uppers)
        assert uppers[0] < uppers[-1]
        falling = [bound(2, c, 12, 0.05) for c in range(11)]
        assert falling == sorted(falling, reverse=True)


def test_bounds_count_pairs_and_answer_for_a_margin():
    bound = failure_bound([True, False, True, False, False], [True, True, False, False, False])
    assert (bound.variant_failed, bound.reference_failed, bound.only_variant, bound.only_reference) == (2, 2, 1, 1)
    assert bound.estimate == 0
    assert bound.non_inferior(0.9) is True
    assert bound.non_inferior(0.1) is False
    assert failure_bound([], []).non_inferior(0.1) is None
    assert failure_bound([True] * 4, [False] * 4).upper == 1.0
    with pytest.raises(StatisticsError, match="pair by seed"):
        failure_bound([True], [])


def test_many_pairs_take_the_score_bound():
    bound = failure_bound([False] * 100, [False] * 100)
    assert bound.method == "score"
    assert bound.upper == pytest.approx(0.0263, abs=1e-3)  # z^2 / (n + z^2)


def test_survival_is_the_product_of_what_is_left():
    steps = survival_curve([30, None, 10, 30, None, None], 100)
    assert [(row.step, row.at_risk, row.failed) for row in steps] == [(10, 6, 1), (30, 5, 2)]
    assert [row.survival for row in steps] == pytest.approx([5 / 6, 3 / 6])
    with pytest.raises(StatisticsError, match="100 steps"):
        survival_curve([101], 100)


@pytest.mark.parametrize("margin", [0.05, 0.2, 0.5])
def test_pairs_without_failure_are_the_fewest_that_show_the_margin(margin):
    n = pairs_without_failure(margin, alpha=0.025)
    bounds = [failure_bound([False] * pairs, [False] * pairs, alpha=0.025).upper for pairs in (n - 1, n)]
    assert bounds[0] > margin >= bounds[1]
    assert pairs_without_failure(0.2, alpha=0.025) == 18  # one arm alone would take 17


def test_the_scores_of_one_arm_add_up_to_scipys_log_rank_statistic():
    rng = np.random.default_rng(1)
    arms = [[int(t) if (t := rng.exponential(scale)) < 100 else None for _ in range(30)] for scale in (60, 150)]
    data = [
        stats.CensoredData.right_censored([101 if s is None else s for s in arm], [s is None for s in arm])
        for arm in arms
    ]
    # scipy gives the standardized sum; its variance is that of sampling without replacement at each failure step.
    ends = [np.array([101 if s is None else s for s in arm]) for arm in arms]
    variance = 0.0
    for step in sorted({s for arm in arms for s in arm if s is not None}):
        risk = [np.count_nonzero(arm >= step) for arm in ends]
        failed, all_ = sum(np.count_nonzero(arm == step) for arm in ends), sum(risk)
        variance += failed * risk[0] * risk[1] * (all_ - failed) / all_**2 / max(all_ - 1, 1)
    score = -_log_rank_scores([*arms[0], *arms[1]], 100)[:30].sum()
    assert score / np.sqrt(variance) == pytest.approx(stats.logrank(*data).statistic)


def test_paired_survival_is_exact_over_the_signs():
    rng = np.random.default_rng(2)
    # Every variant run fails, no reference run does: only the two extreme sign patterns are as far.
    assert paired_survival([3, 4, 5, 9, 8, 7], [None] * 6, length=10, rng=rng).p == pytest.approx(2 / 2**6)
    assert paired_survival([None] * 4, [None] * 4, length=10, rng=rng).p == 1.0
    earlier = paired_survival([2] * 6, [9] * 6, length=10, rng=rng)
    assert earlier.p == pytest.approx(2 / 2**6)  # as many failures, but all earlier


def test_paired_survival_holds_its_level():
    rng = np.random.default_rng(3)
    p = []
    for _ in range(400):
        shared = rng.exponential(60, 10)
        arms = [[int(t) if t < 50 else None for t in np.minimum(shared, rng.exponential(80, 10))] for _ in range(2)]
        p.append(paired_survival(*arms, length=50, rng=rng).p)
    assert np.mean(np.array(p) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("counts", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("alpha", [0.025, 0.05])
def test_one_more_pair_without_a_failure_never_makes_the_bound_larger(counts, alpha):
    bounds = [exact_upper_bound(*counts, n, alpha) for n in range(3, 25)]
    assert (np.diff(bounds) <= 1e-5).all()


@pytest.mark.parametrize("n", [5, 9])
def test_the_bound_grows_with_failures_of_the_variant_and_falls_with_those_of_the_reference(n):
    for b in range(n):
        for c in range(n - b):
            here = exact_upper_bound(b, c, n, 0.025)
            assert exact_upper_bound(b + 1, c, n, 0.025) >= here - 2e-5
            assert exact_upper_bound(b, c + 1, n, 0.025) <= here + 2e-5
