"""The interval of a median, against scipy, theory and simulation by counting; and curves in equal parts."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ablationlab.stats.centres import centred
from ablationlab.stats.curves import binned
from ablationlab.stats.intervals import median_interval, median_ranks, paired_t_interval

LEVELS = [0.5, 0.9, 0.95, 0.975, 0.996]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", [1, 2, 5, 6, 8, 9, 16, 30, 48])
def test_the_interval_is_that_of_scipys_quantile_test(n, level):
    values = np.random.default_rng(n).normal(size=n)
    theirs = stats.quantile_test(values, q=0, p=0.5).confidence_interval(level)
    found = median_interval(values, level=level)
    assert found is not None
    if n == 2 and level == 0.5:  # both miss with exactly one half
        assert (found.low, found.high) == (values.min(), values.max())
    elif math.isnan(theirs.low) or math.isnan(theirs.high):
        assert (found.low, found.high, found.status) == (None, None, "too-few-pairs")
    else:
        assert (found.low, found.high) == (theirs.low, theirs.high)
    assert found.estimate == pytest.approx(float(np.median(values)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", range(1, 13))
def test_it_misses_the_median_as_often_as_allowed_counted_over_every_pattern_of_signs(n, level):
    k = median_ranks(n, level)
    below = [sum(signs) for signs in product((0, 1), repeat=n)]
    missed = sum(not k <= count <= n - k for count in below) / 2**n if k else 0.0
    wider = sum(not k + 1 <= count <= n - k - 1 for count in below) / 2**n
    assert missed <= 1 - level + 1e-9
    assert wider > 1 - level - 1e-9


def test_infinite_values_are_beyond_all_others_and_an_infinite_end_is_null():
    finite = [-3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    found = median_interval([*finite, math.inf, math.inf], level=0.9)
    assert found is not None
    k = median_ranks(11, 0.9)
    assert (found.estimate, found.low, found.high) == (3.0, finite[k - 1], None if 11 - k > 8 else finite[11 - k])
    assert found.status == ("ok" if found.high is not None else "unbounded")
    assert median_interval([math.inf, math.inf, 1.0], level=0.9) is None
    assert median_interval([], level=0.9) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=40), st.sampled_from(LEVELS))
def test_swapping_the_arms_mirrors_it(values, level):
    ours, theirs = median_interval(values, level=level), median_interval([-value for value in values], level=level)
    assert ours is not None
    assert theirs is not None
    assert theirs.estimate == pytest.approx(-ours.estimate)
    if ours.low is not None and ours.high is not None:
        assert (theirs.low, theirs.high) == (-ours.high, -ours.low)


@pytest.mark.parametrize(("length", "bins"), [(300, 100), (60, 60), (601, 100), (7, 3)])
def test_parts_of_a_curve_are_means_of_their_steps(length, bins):
    steps = np.arange(1, length + 1)
    losses = np.random.default_rng(length).normal(size=length)
    wanted = [losses[(steps * bins > part * length) & (steps * bins <= (part + 1) * length)] for part in range(bins)]
    assert binned(steps, losses, length, bins) == pytest.approx([values.mean() for values in wanted])


def test_a_curve_that_ends_early_has_no_part_that_is_not_whole():
    steps = np.arange(1, 51)
    assert np.isnan(binned(steps, np.ones(50), 100, 10)).tolist() == [False] * 5 + [True] * 5
    assert np.isnan(binned(steps[:49], np.ones(49), 100, 10)).tolist() == [False] * 4 + [True] * 6
    assert np.isnan(binned([], [], 100, 10)).all()


def test_the_centre_of_curves_is_the_paired_interval_at_each_point():
    values = np.random.default_rng(0).normal(size=(5, 4))
    mean, low, high = centred(values, level=0.95, median=False)
    for place in range(4):
        one = paired_t_interval(values[:, place], level=0.95)
        assert (mean[place], low[place], high[place]) == pytest.approx((one.estimate, one.low, one.high))
    assert np.isnan(centred(values[:2], level=0.95, median=False)[1]).all()
    values[0, 1] = np.nan
    assert np.isnan(centred(values, level=0.95, median=False)[0]).tolist() == [False, True, False, False]


def test_a_median_of_curves_leaves_out_what_is_not_known_and_counts_what_is_lost():
    values = np.array([[1.0, np.nan], [2.0, 2.0], [3.0, math.inf], [4.0, 4.0], [5.0, 5.0]])
    middle, _, _ = centred(values, level=0.5, median=True)
    assert middle.tolist() == [3.0, 4.5]
