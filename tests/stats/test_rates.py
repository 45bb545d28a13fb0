from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.core.errors import StatisticsError
from ablationlab.stats.rates import best_rate, counted_loss, lr_sensitivity

RATES = tuple(10.0 ** np.linspace(-4, -1, 301))


# --- against theory ---------------------------------------------------------------------------------------


def test_a_loss_that_does_not_depend_on_the_rate_has_no_sensitivity():
    assert lr_sensitivity(RATES, [2.3] * len(RATES)) == 0.0


def test_a_parabola_in_the_logarithm_of_the_rate_gives_its_integral():
    # c(u) = 2 + k (u - u*)² with u = log10 rate in [-4, -1]: E = k ((b - u*)³ - (a - u*)³) / (3 (b - a)).
    k, best = 0.7, -3.0
    u = np.log10(RATES)
    expected = k * ((-1 - best) ** 3 - (-4 - best) ** 3) / (3 * 3)
    assert lr_sensitivity(RATES, 2 + k * (u - best) ** 2) == pytest.approx(expected, rel=1e-4)


def test_a_line_in_the_logarithm_gives_half_its_rise_from_any_points():
    rates = [1e-4, 2e-4, 1e-3, 5e-2, 1e-1]
    assert lr_sensitivity(rates, [3 + math.log10(rate) + 4 for rate in rates]) == pytest.approx(1.5)


def test_unevenly_spaced_rates_do_not_change_the_weight_of_a_range():
    few = lr_sensitivity([1e-4, 1e-3, 1e-2], [1.0, 1.0, 3.0])
    crowded = lr_sensitivity([1e-4, 3e-4, 5e-4, 7e-4, 1e-3, 1e-2], [1.0] * 5 + [3.0])
    assert few == pytest.approx(crowded) == pytest.approx(0.5)


def test_it_agrees_with_numpy_s_trapezoids():
    rng = np.random.default_rng(0)
    rates, losses = np.sort(10 ** rng.uniform(-4, 0, 9)), rng.uniform(1, 4, 9)
    x = np.log(rates)
    expected = np.trapezoid(losses, x) / (x[-1] - x[0]) - losses.min()
    assert lr_sensitivity(list(rates), list(losses)) == pytest.approx(expected)


@given(
    st.lists(
        st.tuples(st.floats(1e-6, 10), st.floats(0, 50)), min_size=2, max_size=12, unique_by=lambda point: point[0]
    ),
    st.randoms(),
)
def test_it_is_never_negative_and_knows_no_order_and_no_offset(points, random):
    found = lr_sensitivity(*zip(*points, strict=True))
    assert found >= 0
    assert found <= max(loss for _, loss in points) - min(loss for _, loss in points) + 1e-9
    random.shuffle(points)
    assert lr_sensitivity(*zip(*points, strict=True)) == pytest.approx(found, abs=1e-9)
    assert lr_sensitivity([rate for rate, _ in points], [loss + 1 for _, loss in points]) == pytest.approx(
        found, abs=1e-6
    )


@pytest.mark.parametrize("rates", [[], [1e-3], [1e-3, 1e-3], [1e-3, -1.0], [0.0, 1.0]])
def test_rates_that_make_no_sweep_are_refused(rates):
    with pytest.raises(StatisticsError):
        lr_sensitivity(rates, [1.0] * len(rates))


# --- clipping and choosing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("final", "counted"), [(2.0, 2.0), (4.2, 4.2), (7.0, 4.2), (None, 4.2), (math.nan, 4.2), (math.inf, 4.2)]
)
def test_a_run_that_diverged_or_got_worse_counts_its_start(final, counted):
    assert counted_loss(final, 4.2) == counted


def test_a_start_that_is_no_number_is_refused():
    with pytest.raises(StatisticsError, match="initialization"):
        counted_loss(1.0, math.nan)


def test_the_best_rate_has_the_lowest_mean_and_the_lower_rate_wins_a_tie():
    found = best_rate({1e-3: [2.0, 2.2], 1e-2: [1.0, 3.0], 1e-1: [4.0, 4.0]})
    assert (found.lr, found.mean_loss, found.edge) == (1e-2, 2.0, False)
    assert best_rate({1e-2: [2.0], 1e-3: [2.0], 1e-4: [3.0]}).lr == 1e-3
    assert best_rate({1e-2: [2.0], 1e-3: [3.0]}).edge
    with pytest.raises(StatisticsError):
        best_rate({1e-2: [2.0], 1e-3: []})
