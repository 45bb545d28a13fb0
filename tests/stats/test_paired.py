from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from ablationlab.core.errors import StatisticsError
from ablationlab.stats import as_ratio, paired_deltas, summarize, wilcoxon_test

from .strategies import paired_samples, quick


def test_summary_matches_numpy():
    rng = np.random.default_rng(1)
    a, b = rng.normal(3, 1, 7), rng.normal(2, 1, 7)
    s = summarize(a, b)
    assert s.n == 7
    assert s.variant_mean == pytest.approx(a.mean())
    assert s.reference_mean == pytest.approx(b.mean())
    assert s.variant_sd == pytest.approx(a.std(ddof=1))
    assert s.reference_sd == pytest.approx(b.std(ddof=1))
    assert s.deltas == tuple(a - b)
    assert s.delta == pytest.approx((a - b).mean())
    assert s.delta_sd == pytest.approx((a - b).std(ddof=1))
    assert s.correlation == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert s.variance_reduction == pytest.approx(1 - (a - b).var() / (a.var() + b.var()))


def test_pairing_removes_the_variance_the_seeds_share():
    rng = np.random.default_rng(2)
    shared = rng.normal(0, 1, 4000)
    s = summarize(shared + rng.normal(0, 0.5, 4000), shared + rng.normal(0, 0.5, 4000))
    # Var(delta) = 0.5, Var a + Var b = 2.5.
    assert s.variance_reduction == pytest.approx(0.8, abs=0.02)


def test_one_pair_has_means_but_no_spread():
    s = summarize([2.0], [1.5])
    assert (s.n, s.delta) == (1, 0.5)
    assert s.variant_sd is s.delta_sd is s.correlation is s.variance_reduction is None


def test_an_arm_that_does_not_vary_has_no_correlation():
    s = summarize([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])
    assert s.correlation is None
    assert s.variance_reduction == pytest.approx(0.0)
    assert summarize([1.0, 1.0], [2.0, 2.0]).variance_reduction is None


@quick
@given(paired_samples(minimum=1))
def test_swapping_arms_flips_the_delta_exactly(arms):
    forward, backward = summarize(*arms), summarize(*arms[::-1])
    assert forward.delta == -backward.delta
    assert forward.delta_sd == pytest.approx(backward.delta_sd)
    assert forward.variance_reduction == pytest.approx(backward.variance_reduction)


@pytest.mark.parametrize("scale", [1e-300, 1e99])
def test_extreme_magnitudes_neither_overflow_nor_vanish(scale):
    s = summarize(np.array([1.0, 2.0, 4.0]) * scale, np.array([0.5, 0.0, 0.25]) * scale)
    assert s.delta_sd == pytest.approx(np.std([0.5, 2.0, 3.75], ddof=1) * scale)
    assert s.variance_reduction == pytest.approx(summarize([1, 2, 4], [0.5, 0, 0.25]).variance_reduction)


def test_one_huge_value_leaves_the_other_differences_alone():
    # 1e20 in one pair made "rounding" of every difference below 180,000.
    assert paired_deltas([2.5, 2.6, 1e20], [2.0, 2.2, 3.0]) == pytest.approx([0.5, 0.4, 1e20])
    assert wilcoxon_test([0.5, 0.4, -0.3, 0.2, 0.1, 0.6, 1e20]).statistic == 28 - 2 * 3


def test_differences_that_are_rounding_become_exactly_constant():
    reference = np.array([0.1, 0.2, 0.3, 0.7, 0.9])
    raw = (reference + 0.1) - reference
    assert np.ptp(raw) > 0
    assert np.ptp(paired_deltas(reference + 0.1, reference)) == 0
    assert summarize(reference + 0.1, reference).delta_sd == 0.0
    assert paired_deltas([0.1 + 0.2, 1.0], [0.3, 0.5]).tolist() == [0.0, 0.5]


@pytest.mark.parametrize(
    ("variant", "reference", "message"),
    [
        ([], [], "variant is empty"),
        ([1.0, 2.0], [1.0], "got 2 and 1 values"),
        ([1.0, np.nan], [1.0, 2.0], r"variant\[1\] is nan"),
        ([1.0, 2.0], [np.inf, 2.0], r"reference\[0\] is inf"),
        ([1.0, -1e200], [1.0, 2.0], r"variant\[1\] is -1e\+200: values must lie within 1e100 of zero"),
        ([[1.0]], [[1.0]], r"shape \(1, 1\)"),
        (["x"], [1.0], "variant must hold numbers"),
        ([None, 1.0], [1.0, 2.0], r"variant\[0\] is nan"),
    ],
)
def test_unusable_input_is_named(variant, reference, message):
    with pytest.raises(StatisticsError, match=message):
        summarize(variant, reference)


def test_a_difference_of_logs_is_a_ratio_of_geometric_means():
    a, b = np.array([20.0, 22.0, 21.0]), np.array([22.0, 23.0, 21.5])
    expected = np.prod(a) ** (1 / 3) / np.prod(b) ** (1 / 3)
    assert as_ratio(float(paired_deltas(np.log(a), np.log(b)).mean())).ratio == pytest.approx(expected)
    assert as_ratio(0.0, -np.log(2), None).low == pytest.approx(0.5)


def test_a_ratio_must_be_finite():
    with pytest.raises(StatisticsError, match="exp overflows"):
        as_ratio(1e4)
