from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablationlab.core.errors import StatisticsError
from ablationlab.stats.trend import trend

SIZES = [1e6, 1e7, 1e8, 1e9]


def test_equal_errors_without_noise_between_studies_give_weighted_least_squares():
    import statsmodels.api as sm  # a second, in every process that collects the tests

    effects, errors = [0.50, 0.42, 0.29, 0.21], [0.1, 0.1, 0.2, 0.1]
    found = trend(SIZES, effects, errors)
    expected = sm.WLS(effects, sm.add_constant(np.log10(SIZES)), weights=1 / np.square(errors)).fit()
    assert found.slope == pytest.approx(expected.params[1])
    assert found.between_sd == 0  # the points lie nearer to the line than their errors let expect
    # So the errors are the known ones, not the smaller ones that the residuals suggest.
    known = np.sqrt(np.linalg.inv((expected.model.exog.T / np.square(errors)) @ expected.model.exog)[1, 1])
    assert found.high - found.slope == pytest.approx(stats.t.ppf(0.975, 2) * known)


def test_prediction_is_on_the_line_and_says_whether_the_sign_holds():
    found = trend(SIZES, [-0.4, -0.3, -0.2, -0.1], [0.001] * 4, at=1e11)
    assert found.slope == pytest.approx(0.1)
    assert found.prediction.estimate == pytest.approx(0.1)
    assert found.prediction.sign_holds < 0.01  # the line crosses zero at 1e10
    near = trend(SIZES, [-0.4, -0.3, -0.2, -0.1], [0.001] * 4, at=2e9)
    assert near.prediction.sign_holds > 0.99


def test_the_intervals_cover():
    rng = np.random.default_rng(1)
    x = np.log10(SIZES)
    slope_in = at_in = 0
    for _ in range(400):
        own = 0.02 * rng.normal(size=4)
        seeds = 0.05 * rng.normal(size=(4, 5)) + (0.3 - 0.05 * x + own)[:, None]
        found = trend(SIZES, seeds.mean(axis=1), seeds.std(axis=1, ddof=1) / np.sqrt(5), at=1e10)
        slope_in += found.low <= -0.05 <= found.high
        at_in += found.prediction.low <= 0.3 - 0.5 + 0.02 * rng.normal() <= found.prediction.high
    assert slope_in / 400 >= 0.93
    assert at_in / 400 >= 0.93


def test_what_makes_no_trend_is_refused():
    with pytest.raises(StatisticsError, match="3 different sizes"):
        trend([1e6, 1e6, 1e7], [0.1, 0.2, 0.3], [0.1] * 3)
    with pytest.raises(StatisticsError, match="above 0"):
        trend([1e6, 1e7, 1e8], [0.1, 0.2, 0.3], [0.1, 0.0, 0.1])


def test_doubts_bound_every_trend_that_effects_within_them_could_give():
    rng = np.random.default_rng(4)
    sizes, effects, errors = 10.0 ** np.arange(4), rng.normal(0, 0.1, 4), rng.uniform(0.2, 0.4, 4)
    doubts, at = rng.uniform(0, 0.05, 4), 1e5
    # Weights of the effects do not change while no variance between studies is seen.
    assert trend(sizes, effects, errors).between_sd == 0
    found, exact = trend(sizes, effects, errors, doubts=doubts, at=at), trend(sizes, effects, errors, at=at)
    corners = [effects + doubts * signs for signs in 2 * np.array(list(np.ndindex(2, 2, 2, 2))) - 1]
    shifted = [trend(sizes, corner, errors, at=at) for corner in corners]
    reach = max(abs(other.slope - exact.slope) for other in shifted)
    assert found.high - exact.high == pytest.approx(reach)
    assert exact.low - found.low == pytest.approx(reach)
    hidden = max(abs(other.prediction.estimate - exact.prediction.estimate) for other in shifted)
    assert found.prediction.high - exact.prediction.high == pytest.approx(hidden)
    assert found.prediction.sign_holds < exact.prediction.sign_holds
    assert trend(sizes, effects, errors, doubts=np.full(4, 10.0)).p == 1.0
