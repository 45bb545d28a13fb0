from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from statsmodels.stats.weightstats import ttost_paired

from ablationlab.core.errors import StatisticsError
from ablationlab.stats import paired_deltas, paired_t_interval, paired_tost

from .strategies import paired_samples, quick


@pytest.mark.parametrize("bounds", [0.3, (-0.2, 0.5)])
@pytest.mark.parametrize("seed", range(4))
def test_tost_matches_statsmodels(bounds, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.1, 0.3, 7), rng.normal(0, 0.3, 7)
    low, high = bounds if isinstance(bounds, tuple) else (-bounds, bounds)
    p, lower, upper = ttost_paired(a, b, low, high)
    result = paired_tost(a - b, smallest_effect=bounds)
    assert (result.p, result.p_low, result.p_high) == pytest.approx((p, lower[1], upper[1]))
    assert result.bounds == (low, high)


@quick
@given(paired_samples())
def test_equivalent_means_the_90_percent_interval_lies_within_the_bounds(arms):
    deltas = paired_deltas(*arms)
    result = paired_tost(deltas, smallest_effect=3.0)
    interval = paired_t_interval(deltas, level=0.9)
    assert (result.low, result.high) == (interval.low, interval.high)
    if result.p is not None and abs(result.p - 0.05) > 1e-9:
        assert result.equivalent == (interval.low > -3.0 and interval.high < 3.0)


@quick
@given(paired_samples())
def test_swapping_arms_swaps_the_sides(arms):
    forward = paired_tost(paired_deltas(*arms), smallest_effect=(-1.0, 2.0))
    backward = paired_tost(paired_deltas(*arms[::-1]), smallest_effect=(-2.0, 1.0))
    assert (forward.p_low, forward.p_high) == (backward.p_high, backward.p_low)


def test_a_noisy_null_is_not_equivalence():
    result = paired_tost([-1.0, 1.2, 0.4, -0.7, 0.2], smallest_effect=0.1)
    assert result.equivalent is False
    assert result.p > 0.05


def test_tost_holds_its_level_on_the_boundary():
    x = np.random.default_rng(3).normal(1.0, 1.0, size=(3000, 12))
    false = np.mean([paired_tost(deltas, smallest_effect=1.0).equivalent for deltas in x])
    assert false == pytest.approx(0.05, abs=0.013)


def test_without_pairs_or_spread_equivalence_is_not_judged():
    few = paired_tost([0.0, 0.01], smallest_effect=1.0)
    assert (few.equivalent, few.p, few.status) == (None, None, "too-few-pairs")
    flat = paired_tost([0.0, 0.0, 0.0, 0.0], smallest_effect=1.0)
    assert (flat.equivalent, flat.p, flat.status) == (None, None, "degenerate")


@pytest.mark.parametrize("bounds", [0.0, -1.0, np.nan, (0.1, 0.5), (-1.0, np.inf), (1.0,), "1"])
def test_impossible_bounds_are_named(bounds):
    with pytest.raises(StatisticsError, match="smallest_effect"):
        paired_tost([1.0, 2.0, 3.0], smallest_effect=bounds)


def test_alpha_must_leave_a_level():
    with pytest.raises(StatisticsError, match=r"alpha must be below 0\.5 so"):
        paired_tost([1.0, 2.0, 3.0], smallest_effect=1.0, alpha=0.5)
