from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from scipy import stats

from ablationlab.stats import cohens_d_z, hedges_g_av, paired_deltas, paired_t_test
from ablationlab.stats.effects import hedges_correction, noncentrality_bounds

from .strategies import paired_samples, quick


def correlated(rng, size, delta, r):
    """Pairs of unit variance with correlation r whose means differ by delta."""
    shared = rng.normal(size=size) * np.sqrt(r)
    arms = [shared + rng.normal(size=size) * np.sqrt(1 - r) for _ in range(2)]
    return arms[0] + delta, arms[1]


def test_d_z_is_the_mean_in_standard_deviations_without_bias():
    deltas = np.array([0.1, 0.4, 0.2, 0.5])
    assert cohens_d_z(deltas).estimate == pytest.approx(deltas.mean() / deltas.std(ddof=1) * hedges_correction(3))
    drawn = np.random.default_rng(3).normal(1.0, 1.0, (400, 5))
    # Uncorrected, the mean would be 1.25; its standard error is about 0.04.
    assert np.mean([cohens_d_z(row).estimate for row in drawn]) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("n", [50, 100, 1_000, 10_000])
@pytest.mark.parametrize("t", [-300.0, -4.2, 0.0, 1.0, 4.2, 5.9, 42.0, 5_000.0])
def test_effects_of_many_pairs_have_intervals(n, t):
    # Scipy's noncentral t gave NaN here, and the analysis stopped.
    low, high = noncentrality_bounds(t, n - 1, 0.95)
    assert low < t < high or abs(t) > 100
    assert mass_below(t, n - 1, low) == pytest.approx(0.975, abs=1e-9)
    assert mass_below(t, n - 1, high) == pytest.approx(0.025, abs=1e-9)


gauss_legendre = cache(np.polynomial.legendre.leggauss)


def mass_below(t, freedom, noncentrality):
    """P(T <= t), integrated over the normal part instead of over the scale."""
    if t == 0:
        return stats.norm.cdf(-noncentrality)
    if t < 0:
        return 1 - mass_below(-t, freedom, -noncentrality)
    scale = np.sqrt(stats.chi2.ppf([1e-14, 1 - 1e-14], freedom) / freedom)
    low, high = np.clip(t * scale - noncentrality, -9, 9)
    node, weight = gauss_legendre(1_000)
    z = low + (high - low) * (node + 1) / 2
    above = stats.chi2.sf(freedom * np.maximum((z + noncentrality) / t, 0) ** 2, freedom)
    return stats.norm.cdf(low) + (weight * stats.norm.pdf(z) * above).sum() * (high - low) / 2


def test_hundred_seeds_with_a_clear_effect_are_analyzed():
    rng = np.random.default_rng(0)
    for _ in range(25):
        effect = cohens_d_z(rng.normal(0.5, 1.0, 100))
        assert effect.low < effect.estimate < effect.high


def test_noncentrality_bounds_put_half_of_alpha_on_each_side():
    for t, freedom in ((0.3, 2), (3.0, 4), (-2.0, 9), (60.0, 4), (5e3, 2)):
        low, high = noncentrality_bounds(t, freedom, 0.9)
        assert stats.nct.sf(t, freedom, low) == pytest.approx(0.05, rel=1e-6)
        assert stats.nct.cdf(t, freedom, high) == pytest.approx(0.05, rel=1e-6)


def test_noncentrality_bounds_continue_smoothly_to_huge_t():
    below, above = noncentrality_bounds(9_999.0, 4, 0.95), noncentrality_bounds(10_001.0, 4, 0.95)
    assert np.array(above) / np.array(below) == pytest.approx(10_001 / 9_999, rel=1e-6)
    assert noncentrality_bounds(-1e7, 4, 0.95) == pytest.approx(
        tuple(-bound for bound in noncentrality_bounds(1e7, 4, 0.95)[::-1])
    )


def test_hedges_correction_is_the_known_factor():
    # Hedges 1981: about 1 - 3 / (4 f - 1); the exact value at f = 2 is 1 / sqrt(pi).
    assert hedges_correction(2) == pytest.approx(1 / np.sqrt(np.pi))
    assert hedges_correction(50) == pytest.approx(1 - 3 / 199, abs=1e-4)


def test_g_av_by_hand():
    a, b = np.array([2.0, 4.0, 3.0, 6.0]), np.array([1.0, 2.5, 2.5, 3.0])
    s_a, s_b, r = a.std(ddof=1), b.std(ddof=1), np.corrcoef(a, b)[0, 1]
    freedom = 3 * (s_a**2 + s_b**2) ** 2 / (s_a**4 + s_b**4 + 2 * r**2 * s_a**2 * s_b**2)
    s_av = np.sqrt((s_a**2 + s_b**2) / 2)
    effect = hedges_g_av(a, b)
    assert effect.estimate == pytest.approx((a - b).mean() / s_av * hedges_correction(freedom))
    d_z = cohens_d_z(a - b)
    assert effect.low == pytest.approx(d_z.low * (a - b).std(ddof=1) / s_av)


def test_g_av_is_nearly_unbiased_at_five_pairs():
    a, b = correlated(np.random.default_rng(1), (250, 5), 1.0, 0.6)
    estimates = [hedges_g_av(x, y).estimate for x, y in zip(a, b, strict=True)]
    # Without the correction the mean would be about 1.13; its standard error here is about 0.04.
    assert np.mean(estimates) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("r", [0.2, 0.8])
def test_intervals_cover_the_true_effect(r):
    a, b = correlated(np.random.default_rng(2), (150, 6), 0.8, r)
    truth = {"d_z": 0.8 / np.sqrt(2 * (1 - r)), "g_av": 0.8}
    covered = dict.fromkeys(truth, 0)
    for x, y in zip(a, b, strict=True):
        for effect in (cohens_d_z(x - y), hedges_g_av(x, y)):
            covered[effect.name] += effect.low <= truth[effect.name] <= effect.high
    assert covered["d_z"] / 150 == pytest.approx(0.95, abs=0.05)
    # Approximate for g_av.
    assert 0.90 <= covered["g_av"] / 150 <= 0.99


@quick
@given(paired_samples())
def test_effects_exclude_zero_just_when_the_t_test_rejects(arms):
    deltas = paired_deltas(*arms)
    p = paired_t_test(deltas).p
    for effect in (cohens_d_z(deltas), hedges_g_av(*arms)):
        assert (effect.estimate is None) == (p is None)
        if p is not None and abs(p - 0.05) > 1e-9:
            assert (effect.low > 0 or effect.high < 0) == (p < 0.05)


@quick
@given(paired_samples())
def test_swapping_arms_mirrors_the_effects(arms):
    forward, backward = hedges_g_av(*arms), hedges_g_av(*arms[::-1])
    if forward.estimate is not None:
        assert forward.estimate == pytest.approx(-backward.estimate)
        assert (forward.low, forward.high) == pytest.approx((-backward.high, -backward.low))


@quick
@given(paired_samples())
def test_effects_have_no_unit(arms):
    before, after = hedges_g_av(*arms), hedges_g_av(arms[0] * 1000 + 5, arms[1] * 1000 + 5)
    assert before.status == after.status
    if before.estimate is not None:
        assert after.estimate == pytest.approx(before.estimate)


def test_no_effect_size_without_spread_or_with_two_pairs():
    assert cohens_d_z([0.5, 0.5, 0.5]).status == "degenerate"
    assert hedges_g_av([1.0, 2.0, 3.0], [0.5, 1.5, 2.5]).status == "degenerate"
    for effect in (cohens_d_z([0.1, 0.2]), hedges_g_av([1.0, 2.0], [0.0, 3.0])):
        assert effect.status == "too-few-pairs"
        assert effect.estimate is effect.low is effect.high is None


def test_an_arm_without_spread_still_has_a_g_av():
    assert hedges_g_av([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]).estimate == pytest.approx(np.sqrt(2) * hedges_correction(2))
