from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from ablationlab.core.errors import StatisticsError
from ablationlab.stats import (
    claim_power,
    detectable_effect,
    items_needed,
    paired_t_power,
    pairs_needed,
    pairs_to_decide,
    tost_pairs_needed,
    tost_power,
)
from ablationlab.stats.costs import shared_sd


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


def shared(rng, studies, arms, n, effect):
    """t of every arm against a baseline that all share, by the larger of its own and the mean variance."""
    runs = rng.normal(0, np.sqrt(0.5), (studies, arms + 1, n))
    costs = runs[:, 1:] - runs[:, :1] + effect
    own = np.sqrt(costs.var(axis=2, ddof=1))
    mean = np.array([shared_sd(sds, n) for sds in own])[:, None]
    return costs.mean(axis=2) / np.maximum(own, mean) * np.sqrt(n)


@pytest.mark.parametrize(("arms", "n", "effect"), [(4, 3, 3.0), (4, 5, 1.5), (7, 8, 1.2), (13, 5, 2.0), (13, 4, 2.0)])
def test_power_under_a_shared_variance_is_that_of_simulated_studies(arms, n, effect):
    alpha = 0.05 / arms
    t = shared(np.random.default_rng(n), 4000, arms, n, effect)
    rejected = np.mean(np.abs(t) > stats.t.ppf(1 - alpha / 2, 2 * (n - 1)))
    assert paired_t_power(effect, n, alpha=alpha, arms=arms) == pytest.approx(rejected, abs=0.02)


def test_shared_variances_never_cost_power_and_the_scoreboards_gain_is_that_of_the_protocol():
    for arms, n in ((4, 3), (4, 8), (13, 5), (13, 20)):
        alpha = 0.05 / arms
        assert detectable_effect(n, alpha=alpha, arms=arms) < detectable_effect(n, alpha=alpha)
    own, sharing = (paired_t_power(2.0, 5, alpha=0.05 / 13, arms=arms) for arms in (1, 13))
    assert (own, sharing) == pytest.approx((0.32, 0.57), abs=0.01)


@pytest.mark.parametrize(
    ("n", "effect", "least", "doubt"), [(5, 2.0, 1.0, 0.0), (5, 1.5, 1.4, 0.3), (12, 0.8, 0.0, 0.2)]
)
def test_claim_power_is_the_share_that_is_shown_and_as_large_as_the_smallest_effect(n, effect, least, doubt):
    x = np.random.default_rng(n).normal(effect, 1, (40_000, n))
    mean, error = x.mean(axis=1), x.std(axis=1, ddof=1) / np.sqrt(n)
    given = np.mean((mean - doubt > stats.t.ppf(0.975, n - 1) * error) & (mean >= least))
    assert claim_power(effect, n, at_least=least, doubt=doubt) == pytest.approx(given, abs=0.01)


def test_claim_power_without_a_least_size_is_the_power_of_the_test():
    for n in (3, 6, 20):
        assert claim_power(1.5, n) == pytest.approx(paired_t_power(1.5, n), abs=1e-3)
        assert claim_power(1.5, n, alpha=0.0125, arms=4) == pytest.approx(
            paired_t_power(1.5, n, alpha=0.0125, arms=4), abs=1e-3
        )


def test_seeds_to_decide_are_the_fewest_that_give_the_answer():
    for effect, smallest, doubt in ((2.0, 1.0, 0.0), (-2.0, 1.0, 0.5), (1.1, 1.0, 0.0), (0.9, None, 0.1)):
        n = pairs_to_decide(effect, smallest, doubt=doubt)
        powers = [claim_power(abs(effect), k, at_least=smallest or 0.0, doubt=doubt) for k in (n - 1, n)]
        assert powers[0] < 0.8 <= powers[1]
    n = pairs_to_decide(0.4, 1.0, doubt=0.1)
    assert tost_power(0.9, n - 1, effect=0.4) < 0.8 <= tost_power(0.9, n, effect=0.4)


def test_what_no_number_of_seeds_decides_has_none():
    assert pairs_to_decide(1.0, 1.0) is None  # at the smallest effect half of all estimates are below it
    assert pairs_to_decide(1.05, 1.0, most=50) is None
    assert pairs_to_decide(0.8, 1.0, doubt=0.3) is None
    assert pairs_to_decide(1.2, 1.0, doubt=1.3) is None
    assert pairs_to_decide(0.0, None) is None


def test_an_effect_too_small_for_any_plan_is_said():
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
        (lambda: paired_t_power(1.0, 5, arms=0), "arms must be a whole number of at least 1"),
        (lambda: items_needed(0.3, 0.2), "discordance must lie between"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(StatisticsError, match=message):
        call()
