"""Spike scores against planted spikes and calm curves; Tango's interval against its own equation and by enumeration."""

from __future__ import annotations

from math import comb, inf, isclose, nan, sqrt
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from ablationlab.core.errors import StatisticsError
from ablationlab.records.settings import SPIKE_SCORE
from ablationlab.stats.gains import newcombe_interval, stability_gain, tango_interval
from ablationlab.stats.spikes import spike_score


def fall(steps=300):
    return 1.5 + 2.7 * np.exp(-np.arange(steps) / (steps / 10 + 5))


def curve(steps=300, seed=0, noise=0.04):
    return fall(steps) + noise * np.random.default_rng(seed).standard_normal(steps)


def calm_noise(kind, steps, rng):
    """Of SD 1; "autocorrelated": 0.5 from step to step."""
    if kind in ("t5", "t3"):
        freedom = int(kind[1])
        return rng.standard_t(freedom, steps) / np.sqrt(freedom / (freedom - 2))
    shocks = rng.standard_normal(steps)
    if kind == "autocorrelated":
        for step in range(1, steps):
            shocks[step] = 0.5 * shocks[step - 1] + np.sqrt(0.75) * shocks[step]
    return shocks


@pytest.mark.parametrize("noise", ["normal", "t5", "t3", "autocorrelated"])
def test_calm_curves_raise_no_alarm(noise):
    rng = np.random.default_rng(1)
    scores = [spike_score(fall() + 0.04 * calm_noise(noise, 300, rng)).score for _ in range(200)]
    assert not any(score is not None and score > SPIKE_SCORE for score in scores)


def test_a_planted_spike_is_found_at_its_step():
    losses = curve()
    losses[150:160] += 1.0
    found = spike_score(losses)
    assert found.score > SPIKE_SCORE
    assert 151 <= found.step <= 159  # the worst of its ten steps


def test_most_lasting_jumps_are_found_and_a_single_outlying_batch_is_not():
    found = outliers = 0
    for seed in range(100):
        at = 100 + seed
        jump = curve(seed=seed)
        jump[at:] += 15 * 0.04 * np.exp(-np.arange(300 - at) / 5)
        found += spike_score(jump).score > SPIKE_SCORE
        single = curve(seed=seed)
        single[at] += 2.0
        outliers += spike_score(single).score > SPIKE_SCORE
    assert found >= 85
    assert outliers == 0


def test_descent_is_no_spike_and_shifts_or_scales_change_nothing():
    steep = np.linspace(10, 1, 200) + 0.01 * np.random.default_rng(0).standard_normal(200)
    assert spike_score(steep).score < 0
    losses = curve()
    assert spike_score(3 * losses + 5).score == pytest.approx(spike_score(losses).score, rel=1e-9)


@pytest.mark.parametrize("losses", [[], [1.0] * 11, [2.0, nan], [inf] * 50])
def test_too_short_a_curve_has_no_score(losses):
    assert spike_score(losses).score is None


def test_a_constant_curve_has_no_spike_and_the_part_after_nan_is_ignored():
    assert spike_score([2.0] * 100).score == 0
    losses = curve()
    assert spike_score([*losses[:100], nan, 99.0, 99.0, 99.0]) == spike_score(losses[:100])


@settings(deadline=None)
@given(st.lists(st.floats(0, 20), min_size=12, max_size=80))
def test_any_curve_has_a_finite_score(losses):
    found = spike_score(losses)
    assert np.isfinite(found.score)
    assert 11 <= found.step < len(losses)


def test_losses_must_be_one_curve():
    with pytest.raises(StatisticsError, match="one-dimensional"):
        spike_score(np.zeros((3, 50)))


# --- the gain ---------------------------------------------------------------------------------------------


def likeliest_lost_share(gained, lost, n, difference):
    """Maximum likelihood of p01 under p10 - p01 = difference, by brute force."""
    low, high = max(0.0, -difference), (1 - difference) / 2

    def minus_log(q):
        cells = ((gained, q + difference), (lost, q), (n - gained - lost, 1 - 2 * q - difference))
        return -sum(count * np.log(max(p, 1e-300)) for count, p in cells if count)

    return optimize.minimize_scalar(minus_log, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x


@pytest.mark.parametrize(("gained", "lost", "n"), [(12, 2, 50), (5, 0, 5), (3, 1, 8), (0, 0, 7), (2, 6, 10), (1, 1, 4)])
def test_the_bounds_solve_tangos_equation(gained, lost, n):
    z = NormalDist().inv_cdf(0.975)
    for bound, sign in zip(tango_interval(gained, lost, n), (1, -1), strict=True):
        if abs(bound) == 1:
            continue
        q = likeliest_lost_share(gained, lost, n, bound)
        score = (gained - lost - n * bound) / sqrt(n * (2 * q + bound * (1 - bound)))
        assert score == pytest.approx(sign * z, abs=1e-4)


def test_zero_disagreement_has_the_closed_form():
    z2 = NormalDist().inv_cdf(0.975) ** 2
    assert tango_interval(0, 0, 5) == pytest.approx((-z2 / (5 + z2), z2 / (5 + z2)))


def coverage(n, gained, lost, intervals):
    total = 0.0
    for i in range(n + 1):
        for j in range(n - i + 1):
            chance = comb(n, i) * comb(n - i, j) * gained**i * lost**j * max(0.0, 1 - gained - lost) ** (n - i - j)
            low, high = intervals[i, j]
            total += chance * (low - 1e-12 <= gained - lost <= high + 1e-12)
    return total


@pytest.mark.parametrize(
    ("n", "mean", "worst", "worst_at_no_gain"),
    [(3, 0.97, 0.85, 0.999), (5, 0.965, 0.87, 0.92), (10, 0.96, 0.91, 0.94)],
)
def test_coverage_by_enumeration(n, mean, worst, worst_at_no_gain):
    intervals = {(i, j): tango_interval(i, j, n) for i in range(n + 1) for j in range(n - i + 1)}
    grid = np.linspace(0, 1, 21)
    covers = [coverage(n, a, b, intervals) for a in grid for b in grid if a + b <= 1 + 1e-9]
    assert np.mean(covers) >= mean
    assert min(covers) >= worst
    assert min(coverage(n, a, a, intervals) for a in np.linspace(0, 0.5, 26)) >= worst_at_no_gain


def test_five_of_five_against_none_excludes_zero_and_three_pairs_never_do():
    assert stability_gain([False] * 5, [True] * 5).low == pytest.approx(0.1310, abs=1e-4)
    assert stability_gain([False] * 3, [True] * 3).low < 0
    assert stability_gain([False] * 3 + [True] * 2, [True] * 5).low < 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=12))
def test_swapping_the_arms_flips_the_gain(pairs):
    variant, reference = zip(*pairs, strict=True)
    one, other = stability_gain(variant, reference), stability_gain(reference, variant)
    assert one.estimate == -other.estimate
    assert isclose(one.low, -other.high, abs_tol=1e-9)
    assert -1 <= one.low <= one.estimate <= one.high <= 1


def test_one_pair_or_none_has_no_interval_and_unequal_arms_are_refused():
    assert stability_gain([True], [False]).low is None
    assert stability_gain([], []).estimate is None
    with pytest.raises(StatisticsError, match="pair by seed"):
        stability_gain([True], [])
    with pytest.raises(StatisticsError, match="counts among n = 3"):
        tango_interval(2, 2, 3)


@pytest.mark.parametrize(("m", "n"), [(5, 5), (10, 10), (18, 12)])
def test_newcombes_interval_agrees_with_another_implementation_and_bounds_extra_failures(m, n):
    from statsmodels.stats.proportion import confint_proportions_2indep

    for a, b in ((0, 0), (1, 0), (m, 0), (2, n)):
        assert newcombe_interval(a, b, m, n) == pytest.approx(
            confint_proportions_2indep(a, m, b, n, method="newcomb", compare="diff"), abs=1e-9
        )
    # One-sided, nominal 2.5 %: how often the true difference lies above the upper bound, mean over rates of the second arm.
    missed = []
    for q in np.linspace(0.02, 0.7, 18):
        p = q + 0.2
        first, second = (
            [comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1)]
            for size, rate in ((m, p), (n, q))
        )
        missed.append(
            sum(
                first[a] * second[b]
                for a in range(m + 1)
                for b in range(n + 1)
                if newcombe_interval(a, b, m, n)[1] < p - q - 1e-12
            )
        )
    assert np.mean(missed) == pytest.approx(0.03, abs=0.01)
