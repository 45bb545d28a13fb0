from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablationlab.core.errors import StatisticsError
from ablationlab.stats import paired_t_interval, paired_t_test
from ablationlab.stats.results import Doubt
from ablationlab.stats.tuned import (
    _error,
    best_of_stages,
    beyond_doubt,
    expected_doubt,
    fitted_minimum,
    sure_p,
    widened,
)


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
    assert found.window == tuple(rates)
    assert 0 < found.doubt < 0.2 * np.log(2) ** 2  # what a factor of two from the optimum costs


def test_a_cubic_is_recovered_exactly():
    rates = [1e-3, 2e-3, 4e-3, 8e-3]

    def cubic(rate):
        x = np.log2(rate / 2e-3)
        return 0.05 * x**3 + 0.1 * x**2 - 0.1 * x + 3

    found = fitted_minimum({rate: [cubic(rate), cubic(rate) + 1] for rate in rates})
    lowest = (-0.2 + np.sqrt(0.04 + 0.06)) / 0.3  # where 0.15 x^2 + 0.2 x - 0.1 vanishes
    assert found.lr == pytest.approx(2e-3 * 2**lowest)
    assert found.values == pytest.approx((cubic(found.lr), cubic(found.lr) + 1))


def test_the_doubt_reaches_to_the_ends_of_what_a_convex_curve_can_be():
    rates, means = [1.0, 2.0, 4.0, 8.0, 16.0], [0.6, 0.3, 0.2, 0.25, 0.7]
    found = fitted_minimum({rate: [mean] for rate, mean in zip(rates, means, strict=True)})
    # Left of 4: 0.2 - 0.05 u from the right, 0 + 0.3 u from the left; right of it: 0.2 - 0.1 u and -0.2 + 0.45 u.
    least = min(0.2 - 0.05 * 0.2 / 0.35, 0.2 - 0.1 * 0.4 / 0.55)
    assert found.doubt == pytest.approx(max(found.values[0] - least, 0.2 - found.values[0]))


def test_before_a_cliff_the_curve_may_fall_on_up_to_the_next_rate():
    found = fitted_minimum({1.0: [0.3], 2.0: [0.2], 4.0: [0.1], 8.0: [0.45], 16.0: [0.5]})
    assert found.values[0] - found.doubt == pytest.approx(0.0)


def test_which_of_two_rates_is_the_best_by_a_hair_makes_no_difference():
    """A parabola about the best rate would jump by 0.04 here."""
    curve = {1e-3: 2.0, 2e-3: 1.9, 4e-3: 1.8, 8e-3: 1.8, 16e-3: 2.2}
    low, high = (
        fitted_minimum({rate: [loss + by * (rate == 8e-3)] for rate, loss in curve.items()}) for by in (-1e-9, 1e-9)
    )
    assert low.values == pytest.approx(high.values, abs=1e-6)
    assert low.doubt == pytest.approx(high.doubt, abs=1e-6)


def test_at_the_second_rate_from_the_end_a_parabola_takes_the_place_of_the_cubic():
    found = fitted_minimum({1.0: [1.5], 2.0: [1.0], 4.0: [1.2], 8.0: [4.0]})
    assert found.window == (1.0, 2.0, 4.0, 8.0)
    found = fitted_minimum({1.0: [1.2], 2.0: [1.0], 4.0: [1.5], 8.0: [4.0]})
    assert found.window == (1.0, 2.0, 4.0)
    assert found.values[0] == pytest.approx(1.0 - 0.15**2 / (4 * 0.35))
    assert found.values[0] - found.doubt == pytest.approx(0.5)  # the line over the lowest mean, down to the grid's end


def test_what_the_doubt_explains_is_not_tested():
    doubt = Doubt(below=0.05, above=0.02)
    assert beyond_doubt([0.1, 0.3], doubt) == pytest.approx([0.05, 0.25])
    assert beyond_doubt([-0.1, -0.3], doubt) == pytest.approx([-0.08, -0.28])
    assert np.mean(beyond_doubt([0.1, 0.3], Doubt(0.5, 0.0))) == pytest.approx(0.0)
    assert Doubt(0.3, 0.0).minus(Doubt(0.1, 0.02)) == Doubt(0.3 + 0.02, 0.1)
    # The widened interval leaves out 0 where the test of what is beyond doubt rejects it, and nowhere else.
    for shift in np.linspace(-0.4, 0.4, 81):
        deltas = [shift + delta for delta in (-0.1, 0.0, 0.1)]
        wide = widened(paired_t_interval(deltas, level=0.95), doubt)
        assert (wide.low > 0 or wide.high < 0) == (paired_t_test(beyond_doubt(deltas, doubt)).p < 0.05)


def test_where_a_parabola_says_nothing_there_is_none():
    assert fitted_minimum({1.0: [1.0], 2.0: [2.0], 4.0: [3.0]}).status == "grid-edge"
    assert fitted_minimum({1.0: [2.0], 3.0: [1.0], 9.0: [2.0]}).status == "coarse-grid"
    assert fitted_minimum({1.0: [1.0], 2.0: [1.0], 4.0: [1.0]}).status == "grid-edge"
    with pytest.raises(StatisticsError, match="same seeds"):
        fitted_minimum({1.0: [1.0], 2.0: []})


CURVES = {
    "parabola": lambda d: 0.05 * d**2,
    "steep on one side": lambda d: np.where(d < 0, 0.04 * d**2, 0.3 * d**2),
    "a cliff": lambda d: np.where(d < 0.3, 0.05 * d**2, 0.4),
    "a V": lambda d: np.where(d < 0, -0.15 * d, 0.4 * d),
    "falling to a cliff": lambda d: np.where(d <= 0, -0.1 * d, 0.4 + 0.05 * d),
}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_equal_curves_are_called_different_no_more_often_than_alpha_whatever_their_shape(curve):
    rng, rates, seeds, noise = np.random.default_rng(3), 2.0 ** np.arange(-3, 4), 8, 0.005
    rejected = used = 0
    for _ in range(300):
        fits = []
        for best in rng.uniform(-0.7, 0.7, 2):
            drawn = curve(np.log2(rates) - best)[:, None] + noise * rng.normal(size=(len(rates), seeds))
            fits.append(fitted_minimum(dict(zip(rates.tolist(), drawn.tolist(), strict=True))))
        if all(fit.status == "ok" for fit in fits):
            used += 1
            deltas = np.subtract(fits[0].values, fits[1].values).tolist()
            both = fits[0].doubt + fits[1].doubt
            rejected += paired_t_test(beyond_doubt(deltas, Doubt(both, both))).p <= 0.05
    assert used > 250
    assert rejected / used <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / used)


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


def test_on_a_narrow_grid_far_from_the_optimum_noise_makes_no_best_rate():
    rng = np.random.default_rng(0)
    narrow = [losses([2e-2 * 1.001**k for k in range(5)], 4e-3, rng, curvature=0.1) for _ in range(100)]
    assert {fitted_minimum(study).status for study in narrow} == {"grid-edge"}


# --- two stages -----------------------------------------------------------------------------------------------


def curve(rates, levels, cost=0.1, best=3e-3, noise=0.0, rng=None):
    rng = rng or np.random.default_rng(0)
    return {
        rate: [level + cost * np.log2(rate / best) ** 2 + noise * rng.normal() for level in levels] for rate in rates
    }


COARSE = [1e-3, 2e-3, 4e-3, 8e-3]
CLOSE = [2.824e-3, 3.361e-3, 4e-3, 4.76e-3, 5.664e-3]


def test_levels_of_seeds_neither_choose_the_rate_nor_enter_its_doubt():
    plain = best_of_stages(curve(COARSE, [2.0, 2.1]), curve(CLOSE, [2.0, 2.1, 2.2]))
    moved = best_of_stages(curve(COARSE, [0.0, 9.0]), curve(CLOSE, [5.0, -3.0, 40.0]))
    assert plain.lr == moved.lr == 2.824e-3, "of both stages the nearest to 3e-3"
    assert moved.doubt == pytest.approx(plain.doubt)


@pytest.mark.parametrize("best", np.geomspace(1.5e-3, 6e-3, 9))
def test_without_noise_the_doubt_covers_what_the_rate_costs_and_a_finer_stage_makes_it_smaller(best):
    first = curve(COARSE, [2.0, 2.1], best=best)
    centre = min(first, key=lambda rate: first[rate][0])
    close = [centre * 1.19**step for step in (-2, -1, 1, 2)]
    found = best_of_stages(first, curve([*close, centre], [2.5, 2.0], best=best))
    assert 0.1 * np.log2(found.lr / best) ** 2 <= found.doubt
    if (alone := fitted_minimum(first)).status == "ok":
        assert found.doubt < alone.doubt


def test_noise_between_the_rates_of_a_seed_is_doubted_with_two_standard_errors():
    rng = np.random.default_rng(1)
    levels = rng.normal(size=400).tolist()
    stages = [curve(rates, levels, noise=0.2, rng=rng) for rates in (COARSE, CLOSE)]
    assert _error(stages, [*COARSE, *CLOSE]) == pytest.approx(0.2 / np.sqrt(400), rel=0.1)
    assert _error([curve(COARSE, levels)], COARSE) == pytest.approx(0, abs=1e-9)
    assert best_of_stages(*stages).doubt > 2 * _error(stages, CLOSE)


def test_stages_without_a_common_rate_or_with_lost_losses_are_refused_and_an_edge_has_no_doubt():
    with pytest.raises(StatisticsError, match="a common rate"):
        best_of_stages(curve(COARSE, [0.0, 1.0]), curve([2.5e-3, 3.1e-3], [0.0, 1.0]))
    with pytest.raises(StatisticsError, match="the losses of the same seeds"):
        best_of_stages(curve(COARSE, [0.0, 1.0]) | {4e-3: [0.0]}, curve(CLOSE, [0.0, 1.0]))
    edge = best_of_stages(curve(COARSE, [0.0, 1.0], best=0.1), curve([6.7e-3, 8e-3, 9.5e-3], [0.0, 1.0], best=0.1))
    assert (edge.status, edge.lr, edge.doubt) == ("grid-edge", 9.5e-3, 0.0)


def test_equal_arms_are_called_better_or_worse_beyond_the_doubt_of_the_other_in_at_most_five_percent():
    """Two curves whose doubts are least alike, judged on so many seeds that the doubt decides."""
    rng, false, studies = np.random.default_rng(3), 0, 400
    shapes = (lambda d: 0.01 * d**2, lambda d: np.where(d < 0, -0.15 * d, 0.4 * d))
    for _ in range(studies):
        judged, doubts = [], []
        for shape in shapes:
            best, rates = rng.uniform(-0.5, 0.5), 2.0 ** np.arange(-2, 3)

            def stage(rates, shape=shape, best=best):
                return {r: (shape(np.log2(r) - best) + 0.007 * rng.normal(size=3)).tolist() for r in rates}

            first = stage(rates.tolist())
            centre = min(first, key=lambda rate, losses=first: np.mean(losses[rate]))
            found = best_of_stages(
                first, stage([centre * 1.19**k for k in (-2, -1)] + [centre, centre * 1.19, centre * 1.4])
            )
            judged.append(shape(np.log2(found.lr) - best) + 0.007 * rng.normal(size=60))
            doubts.append(Doubt(below=found.doubt))
        deltas = (judged[1] - judged[0]).tolist()
        doubt = doubts[1].minus(doubts[0])
        false += sure_p(paired_t_test(beyond_doubt(deltas, doubt)), deltas, doubt).p <= 0.05
    assert stats.binomtest(false, studies, 0.05, alternative="greater").pvalue > 0.001


def test_the_expected_doubt_falls_with_closer_rates_and_more_seeds_and_scales_with_the_cost():
    finer = (lambda centre: [centre * 1.19**k if k else centre for k in range(-2, 3)], 3)
    for cost in (3, 10):
        assert expected_doubt(COARSE, 3, cost, finer) < expected_doubt(COARSE, 8, cost)
    assert expected_doubt(COARSE, 5, 1000) == pytest.approx(10 * expected_doubt(COARSE, 5, 100), rel=0.05)
    assert expected_doubt(COARSE, 3, 1, finer) > expected_doubt(COARSE, 12, 1, (finer[0], 12))
    assert expected_doubt([1e-3, 4e-3, 16e-3], 3, 10) == np.inf
