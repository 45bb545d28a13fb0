from __future__ import annotations

import numpy as np
import pytest

from ablationlab.stats import exaggeration, paired_t_power, stragglers


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
    from scipy import stats

    significant = np.abs(t) > stats.t.ppf(0.975, n - 1)
    found = exaggeration(effect, n)
    assert found.power == pytest.approx(paired_t_power(effect, n), abs=1e-9)
    assert found.ratio == pytest.approx(np.abs(mean[significant]).mean() / effect, rel=0.02)
    assert found.wrong_sign == pytest.approx((mean[significant] < 0).mean(), abs=0.006)
