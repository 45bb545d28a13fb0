from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from ablationlab.core.errors import StatisticsError
from ablationlab.stats import (
    detectable_effect,
    items_needed,
    paired_t_power,
    pairs_needed,
    plan,
    sd_interval,
    tost_pairs_needed,
    tost_power,
)


# Up to a noncentrality of about 8; beyond it statsmodels returns NaN.
@pytest.mark.parametrize(
    ("n", "effect"),
    [(n, effect) for n in (2, 3, 5, 10, 40) for effect in (0.0, 0.2, 1.0, -1.7, 3.0) if n * effect**2 < 64],
)
def test_power_matches_statsmodels(n, effect):
    expected = TTestPower().power(abs(effect), n, 0.05)
    assert paired_t_power(effect, n) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("n", "effect"), [(3, 3.26), (5, 1.68), (10, 1.00)])
def test_detectable_effect_reproduces_the_protocol(n, effect):
    assert detectable_effect(n) == pytest.approx(effect, abs=0.005)


def test_detectable_effect_and_power_are_inverse():
    for n in (3, 7, 30):
        assert paired_t_power(detectable_effect(n, power=0.9), n) == pytest.approx(0.9)


@pytest.mark.parametrize("effect", [0.05, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("power", [0.8, 0.9])
def test_pairs_needed_is_the_smallest_sufficient_number(effect, power):
    n = pairs_needed(effect, power=power)
    assert paired_t_power(effect, n) >= power
    assert n == 3 or paired_t_power(effect, n - 1) < power
    expected = TTestPower().solve_power(effect, power=power, alpha=0.05)
    assert n == max(3, int(np.ceil(expected)))


def test_power_is_the_share_of_simulated_studies_that_reject():
    x = np.random.default_rng(1).normal(1.2, 1, (20_000, 5))
    rejected = np.mean(stats.ttest_1samp(x, 0, axis=1).pvalue < 0.05)
    assert paired_t_power(1.2, 5) == pytest.approx(rejected, abs=0.011)


def test_power_at_no_effect_is_alpha_and_tends_to_one():
    assert paired_t_power(0.0, 6, alpha=0.01) == pytest.approx(0.01)
    for effect in (50.0, 1e4, 1e9):
        assert paired_t_power(effect, 50) == pytest.approx(1.0)


@pytest.mark.parametrize(("n", "bound", "effect"), [(3, 5.0, 0.0), (5, 1.0, 0.0), (5, 2.0, 0.5), (40, 0.5, 0.1)])
def test_tost_power_is_the_share_of_simulated_studies_that_show_equivalence(n, bound, effect):
    x = np.random.default_rng(n).normal(effect, 1, (40_000, n))
    mean, error = x.mean(axis=1), x.std(axis=1, ddof=1) / np.sqrt(n)
    t = stats.t.ppf(0.95, n - 1)
    shown = np.mean((mean + bound > t * error) & (mean - bound < -t * error))
    assert tost_power(bound, n, effect=effect) == pytest.approx(shown, abs=0.008)


def test_tost_pairs_needed_is_the_smallest_sufficient_number():
    n = tost_pairs_needed(0.5, power=0.9)
    assert tost_power(0.5, n) >= 0.9 > tost_power(0.5, n - 1)
    with pytest.raises(StatisticsError, match="effect must lie inside"):
        tost_pairs_needed(0.5, effect=0.5)


def test_sd_interval_is_chi_square():
    result = sd_interval(2.0, 6, level=0.9)
    assert result.low == pytest.approx(2 * np.sqrt(5 / stats.chi2.ppf(0.95, 5)))
    assert result.high == pytest.approx(2 * np.sqrt(5 / stats.chi2.ppf(0.05, 5)))
    pilot = sd_interval(1.0, 3)
    assert (pilot.low, pilot.high) == pytest.approx((0.521, 6.285), abs=0.001)


def test_sd_interval_covers():
    sds = np.random.default_rng(4).normal(size=(3000, 4)).std(axis=1, ddof=1)
    covered = np.mean([(i := sd_interval(sd, 4)).low <= 1.0 <= i.high for sd in sds])
    assert covered == pytest.approx(0.95, abs=0.013)


def test_plan_names_seeds_at_the_pilots_sd_and_at_its_upper_bound():
    made = plan(0.01, 0.008, pilot_pairs=3, planned=5)
    assert made.needed == {0.8: pairs_needed(1.25), 0.9: pairs_needed(1.25, power=0.9)}
    assert made.needed_conservative == {power: pairs_needed(0.01 / made.sd.high, power=power) for power in (0.8, 0.9)}
    assert made.needed_conservative[0.8] > made.needed[0.8]
    assert made.needed_equivalence[0.8] == tost_pairs_needed(1.25)
    assert made.planned_power == pytest.approx(paired_t_power(1.25, 5))
    assert made.planned_detectable[0.8] == pytest.approx(detectable_effect(5) * 0.008)


def test_plan_from_an_assumed_sd_has_no_sd_interval():
    made = plan(0.01, 0.008)
    assert made.sd is made.needed_conservative is made.planned_power is made.planned_detectable is None


def test_an_effect_too_small_for_any_plan_is_said():
    assert plan(1e-6, 1.0).needed == {0.8: None, 0.9: None}
    with pytest.raises(StatisticsError, match="more than 1000000 pairs"):
        pairs_needed(1e-6)


def test_power_rises_with_the_number_of_pairs():
    curve = [paired_t_power(1.0, n) for n in (3, 5, 10, 20)]
    assert curve == sorted(curve)


def test_items_needed_gives_mcnemars_test_the_power():
    q, difference = 0.2, 0.03
    n = items_needed(difference, q)
    rng = np.random.default_rng(2)
    counts = rng.multinomial(n, [(q + difference) / 2, (q - difference) / 2, 1 - q], size=20_000)
    z = (counts[:, 0] - counts[:, 1]) / np.sqrt(counts[:, 0] + counts[:, 1])
    assert np.mean(np.abs(z) > 1.959964) == pytest.approx(0.8, abs=0.015)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_t_power(1.0, 1), "n must be a whole number of at least 2, got 1"),
        (lambda: paired_t_power(1.0, 2.5), "n must be a whole number"),
        (lambda: paired_t_power(np.nan, 5), "effect must be finite, got nan"),
        (lambda: pairs_needed(0.0), "effect must not be 0"),
        (lambda: pairs_needed(1.0, power=1.0), "power must lie strictly between 0 and 1, got 1.0"),
        (lambda: detectable_effect(5, power=0.01), "power must be above alpha"),
        (lambda: sd_interval(0.0, 5), "sd must be above 0, got 0.0"),
        (lambda: items_needed(0.3, 0.2), "discordance must lie between"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(StatisticsError, match=message):
        call()
