from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablationlab.core.errors import StatisticsError
from ablationlab.stats.tuned import fitted_minimum


def losses(rates, best, rng, seeds=5, noise=0.01, curvature=0.01):
    shared = noise * np.sqrt(0.5) * rng.normal(size=seeds)
    return {
        rate: (curvature * np.log2(rate / best) ** 2 + shared + noise * np.sqrt(0.5) * rng.normal(size=seeds)).tolist()
        for rate in rates
    }


def test_a_parabola_is_recovered_exactly():
    rates = [1e-3, 2e-3, 4e-3, 8e-3]
    found = fitted_minimum({rate: [3 + 0.2 * np.log(rate / 3e-3) ** 2 + seed for seed in (0.0, 0.5)] for rate in rates})
    assert found.lr == pytest.approx(3e-3)
    assert found.values == pytest.approx((3.0, 3.5))
    assert found.window == (2e-3, 4e-3, 8e-3) or found.window == (1e-3, 2e-3, 4e-3)


def test_where_a_parabola_says_nothing_there_is_none():
    assert fitted_minimum({1.0: [1.0], 2.0: [2.0], 4.0: [3.0]}).status == "grid-edge"
    assert fitted_minimum({1.0: [2.0], 3.0: [1.0], 9.0: [2.0]}).status == "coarse-grid"
    assert fitted_minimum({1.0: [1.0], 2.0: [1.0], 4.0: [1.0]}).status == "grid-edge"
    with pytest.raises(StatisticsError, match="same seeds"):
        fitted_minimum({1.0: [1.0], 2.0: []})


def test_shifted_equal_curves_are_called_different_no_more_often_than_alpha():
    rng = np.random.default_rng(1)
    rates = 2.0 ** np.arange(-3, 4)
    rejected = used = 0
    for _ in range(500):
        offset = 2 ** rng.uniform(-0.5, 0.5)
        a, b = (fitted_minimum(losses(rates, best, rng)) for best in (offset, 2 * offset))
        if a.status == b.status == "ok":
            used += 1
            rejected += stats.ttest_rel(a.values, b.values).pvalue <= 0.05
    assert used > 450
    assert rejected / used <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / used)
