from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablationlab.stats import exaggeration, paired_t_power, paired_t_test, stragglers
from ablationlab.stats.robustness import largest_cap


def test_two_stragglers_do_not_hide_each_other():
    assert stragglers([0.1, 0.12, 0.09, 0.11, 0.1, 0.13, 2.0, 2.1]) == (6, 7)
    assert stragglers([0.1, 0.2, 99.0]) == ()
    assert stragglers([0.0, 0.0, 0.0, 0.0, 1.0]) == ()


@pytest.mark.parametrize("n", [5, 9, 20])
def test_one_normal_study_in_twenty_has_a_straggler(n):
    drawn = np.random.default_rng(n).normal(size=(1_500, n))
    share = np.mean([bool(stragglers(row)) for row in drawn])
    assert share == pytest.approx(0.05, abs=0.025)


@pytest.mark.parametrize(("effect", "n"), [(0.5, 5), (1.7, 5), (0.2, 12)])
def test_exaggeration_agrees_with_simulation(effect, n):
    x = np.random.default_rng(1).normal(effect, 1.0, (200_000, n))
    mean, t = x.mean(axis=1), x.mean(axis=1) / (x.std(axis=1, ddof=1) / np.sqrt(n))
    significant = np.abs(t) > stats.t.ppf(0.975, n - 1)
    found = exaggeration(effect, n)
    assert found.power == pytest.approx(paired_t_power(effect, n), abs=1e-9)
    assert found.ratio == pytest.approx(np.abs(mean[significant]).mean() / effect, rel=0.02)
    assert found.wrong_sign == pytest.approx((mean[significant] < 0).mean(), abs=0.006)


def test_one_absurd_cost_hides_a_loss_that_a_smaller_one_would_show():
    costs = [0.02, 0.021, 0.019, 0.02, 1.0]
    assert paired_t_test(costs).p > 0.3
    cap = largest_cap(costs, alpha=0.05)
    assert paired_t_test([min(cost, cap) for cost in costs]).p == pytest.approx(0.05, abs=1e-6)
    assert largest_cap([0.02, -0.021, 0.019, -0.02, 1.0], alpha=0.05) is None
    assert largest_cap([0.02, 0.021], alpha=0.05) is None


@pytest.mark.parametrize("n", [3, 5, 8, 13])
def test_the_largest_cap_is_that_of_a_search_over_all_caps(n):
    rng = np.random.default_rng(n)
    for _ in range(60):
        costs = rng.normal(rng.choice([0.3, 0.6, 1.2]), 1.0, n) + rng.choice([0.0, 8.0], n, p=[0.8, 0.2])
        caps = np.linspace(1e-3, costs.max(), 1_000) if costs.max() > 0 else np.empty(0)
        capped = np.minimum(costs, caps[:, None])
        with np.errstate(divide="ignore", invalid="ignore"):
            t = capped.mean(axis=1) / (capped.std(axis=1, ddof=1) / np.sqrt(n))
        shown = caps[(capped.mean(axis=1) > 0) & (t >= stats.t.ppf(0.975, n - 1))]
        cap = largest_cap(costs, alpha=0.05)
        assert cap == (pytest.approx(shown.max(), abs=2 * costs.max() / 1_000) if shown.size else None)
