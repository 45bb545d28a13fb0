from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from ablationlab.core.errors import StatisticsError
from ablationlab.stats import detectable_effect
from ablationlab.stats.results import Spending
from ablationlab.stats.sequential import Looks, chance_of_showing


@pytest.mark.parametrize(
    ("spending", "published"),
    [
        ("obrien-fleming", [4.8769, 3.3569, 2.6803, 2.2898, 2.0310]),
        ("pocock", [2.4380, 2.4268, 2.4101, 2.3966, 2.3859]),
    ],
)
def test_with_many_pairs_the_bounds_are_those_published_for_known_variances(
    spending: Spending, published: list[float]
) -> None:
    # Two-sided 0.05, five equally spaced looks: the tables of Lan-DeMets programs (ld98, ldbounds, gsDesign).
    levels = Looks(tuple(range(2_000, 10_001, 2_000)), spending).levels(0.05)
    assert -special.ndtri(levels / 2) == pytest.approx(published, abs=5e-4)


def t_tests(deltas: np.ndarray, looks: Looks) -> np.ndarray:
    """p-values by study and look, by scipy's own t-test."""
    return np.stack([stats.ttest_1samp(deltas[:, :n], 0.0, axis=1).pvalue for n in looks.pairs], axis=1)


@pytest.mark.parametrize("spending", ["obrien-fleming", "pocock", "front-loaded"])
@pytest.mark.parametrize("pairs", [(5, 8, 12, 20), (3, 4, 6)])
def test_with_few_pairs_exactly_alpha_is_spent_at_every_look(pairs: tuple[int, ...], spending: Spending) -> None:
    looks = Looks(pairs, spending)
    p = t_tests(np.random.default_rng(1).normal(size=(100_000, pairs[-1])), looks)
    crossed = np.cumsum(p <= looks.levels(0.05), axis=1) > 0
    spent = looks.spent(0.05)
    error = np.sqrt(spent / 100_000)
    assert np.all(np.abs(crossed.mean(axis=0) - spent) < 4 * error)
    assert spent[-1] == pytest.approx(0.05)


def test_levels_for_known_variances_would_claim_too_much_with_few_pairs() -> None:
    few, many = Looks((3, 4, 5, 6), "pocock"), Looks((3_000, 4_000, 5_000, 6_000), "pocock")
    p = t_tests(np.random.default_rng(2).normal(size=(100_000, 6)), few)
    normal = special.stdtr(np.array([2, 3, 4, 5]), special.ndtri(many.levels(0.05) / 2)) * 2
    exact = (p <= few.levels(0.05)).any(axis=1).mean()
    assert exact == pytest.approx(0.05, abs=0.003)
    assert (p <= normal).any(axis=1).mean() > exact  # t quantiles at the normal bounds' z


@pytest.mark.parametrize("spending", ["obrien-fleming", "pocock", "front-loaded"])
def test_the_sequential_p_is_at_most_alpha_exactly_where_a_bound_is_crossed(spending: Spending) -> None:
    looks = Looks((5, 8, 12), spending)
    p = t_tests(np.random.default_rng(3).normal(0.5, 1.0, size=(400, 12)), looks)
    for alpha in (0.05, 0.0125):
        levels = looks.levels(alpha)
        for row in p:
            for look in (1, 2, 3):
                value, nearest = looks.p_value(tuple(row[:look])), np.min(row[:look] / levels[:look])
                assert value is not None
                if abs(nearest - 1) > 2e-3:  # nearer to a bound, both are rounded
                    assert (value <= alpha) == bool(nearest <= 1)


@pytest.mark.parametrize("effect", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("spending", ["obrien-fleming", "pocock", "front-loaded"])
def test_what_looks_show_and_the_seeds_they_take_are_those_of_simulated_studies(
    spending: Spending, effect: float
) -> None:
    looks = Looks((5, 10, 18), spending)
    p = t_tests(np.random.default_rng(6).normal(effect, 1.0, size=(40_000, 18)), looks)
    crossed = np.cumsum(p <= looks.levels(0.05), axis=1) > 0
    assert looks.shown_by(effect, 0.05) == pytest.approx(crossed.mean(axis=0), abs=0.01)
    first = np.where(crossed.any(axis=1), crossed.argmax(axis=1), 2)
    assert looks.expected_pairs(effect, 0.05)[-1] == pytest.approx(np.array(looks.pairs)[first].mean(), abs=0.1)


def test_the_first_look_of_a_front_loaded_design_is_nearly_as_good_as_one_without_later_looks() -> None:
    looks = Looks((5, 10, 18), "front-loaded")
    for alpha in (0.05, 0.0125):
        assert looks.seen_by(0, alpha, 0.8) == pytest.approx(detectable_effect(5, alpha=0.9 * alpha), rel=1e-3)
        assert looks.seen_by(0, alpha, 0.8) < 1.04 * detectable_effect(5, alpha=alpha)
    assert looks.seen_by(0, 1e-16, 0.8) is None  # beyond any effect


def test_a_single_look_is_the_paired_t_test() -> None:
    assert Looks((7,)).levels(0.05) == pytest.approx([0.05])
    assert Looks((7,)).p_value((0.031,)) == pytest.approx(0.031, rel=1e-3)


@pytest.mark.parametrize("spending", ["obrien-fleming", "pocock", "front-loaded"])
@pytest.mark.parametrize("pairs", [(5, 8, 12, 20), (5, 10, 18)])
def test_a_true_effect_of_exactly_the_smallest_is_claimed_to_be_as_large_in_half_of_all_studies(
    pairs: tuple[int, ...], spending: Spending
) -> None:
    looks, smallest = Looks(pairs, spending), 0.7
    deltas = np.random.default_rng(7).normal(smallest, 1.0, size=(100_000, pairs[-1]))
    p = [stats.ttest_1samp(deltas[:, :n], smallest, axis=1, alternative="greater").pvalue for n in pairs]
    claimed = np.cumsum(np.stack(p, axis=1) <= looks.size_levels(), axis=1) > 0
    spent = looks.spent(0.5)
    assert np.all(np.abs(claimed.mean(axis=0) - spent) < 4 * np.sqrt(spent * (1 - spent) / 100_000))
    assert spent[-1] == pytest.approx(0.5)


@pytest.mark.parametrize("spending", ["obrien-fleming", "pocock", "front-loaded"])
def test_with_one_look_the_estimate_itself_is_compared_with_the_smallest_effect(spending: Spending) -> None:
    assert Looks((7,), spending).size_levels().tolist() == [0.5]


def test_a_look_that_could_not_be_tested_counts_for_nothing() -> None:
    looks = Looks((5, 8))
    assert looks.p_value((None, None)) is None
    assert looks.p_value((None, 0.02)) == looks.p_value((1.0, 0.02))


def test_repeated_intervals_cover_at_all_looks_together() -> None:
    looks = Looks((5, 8, 12, 20), "pocock")
    deltas = np.random.default_rng(4).normal(0.7, 1.0, size=(40_000, 20))
    held = np.ones(40_000, dtype=bool)
    for n, level in zip(looks.pairs, looks.levels(0.05), strict=True):
        mean, error = deltas[:, :n].mean(axis=1), deltas[:, :n].std(axis=1, ddof=1) / np.sqrt(n)
        held &= np.abs(mean - 0.7) <= -special.stdtrit(n - 1, level / 2) * error
    assert held.mean() == pytest.approx(0.95, abs=0.004)


def test_futility_predicts_what_the_last_look_shows() -> None:
    looks = Looks((5, 8, 20))
    rng = np.random.default_rng(5)
    assert chance_of_showing(looks, 1, 3.0, 1.0, alpha=0.05, smallest_effect=None) > 0.999
    assert chance_of_showing(looks, 1, 0.0, 1.0, alpha=0.05, smallest_effect=5.0) > 0.999
    # By simulation of the 12 pairs to come, with the spread known to stay as it is.
    mean = 0.4 + rng.standard_t(7, 200_000) * np.sqrt((20 - 8) / (8 * 20))
    p = 2 * special.stdtr(19, -np.abs(mean) * np.sqrt(20))
    predicted = chance_of_showing(looks, 1, 0.4, 1.0, alpha=0.05, smallest_effect=None)
    assert predicted == pytest.approx((p <= looks.levels(0.05)[-1]).mean(), abs=0.005)


@pytest.mark.parametrize("pairs", [(), (2, 5), (5, 5), (8, 5)])
def test_looks_that_do_not_rise_are_refused(pairs: tuple[int, ...]) -> None:
    with pytest.raises(StatisticsError, match="looks must rise"):
        Looks(pairs)
