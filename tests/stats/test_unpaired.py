"""The difference of two means: against scipy, against simulation, and at its edges."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestIndPower

from ablationlab.core.errors import StatisticsError
from ablationlab.stats import compare_unpaired, known_noise, runs_to_decide
from ablationlab.stats.intervals import difference_of_means
from ablationlab.stats.unpaired import with_unreached


@pytest.mark.parametrize(("n", "m", "spread"), [(3, 3, 1.0), (3, 10, 0.2), (8, 2, 5.0)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_welch_is_scipys(n, m, spread, level):
    rng = np.random.default_rng(n * 100 + m)
    ours, theirs = rng.normal(5, 1, n), rng.normal(4, spread, m)
    made = difference_of_means(ours, theirs.mean(), n=m, sd=theirs.std(ddof=1), level=level)
    wanted = stats.ttest_ind(ours, theirs, equal_var=False)
    interval = wanted.confidence_interval(level)
    assert made.method == "welch"
    assert made.estimate == pytest.approx(ours.mean() - theirs.mean())
    assert (made.low, made.high) == pytest.approx((interval.low, interval.high))
    assert made.degrees_of_freedom == pytest.approx(wanted.df)
    assert made.holds_zero == (wanted.pvalue > 1 - level)


def test_the_prediction_interval_is_the_textbooks():
    ours = np.array([1.0, 2.0, 4.0, 5.0])
    made = difference_of_means(ours, 3.5, n=1)
    half = stats.t.ppf(0.975, 3) * ours.std(ddof=1) * np.sqrt(1 + 1 / 4)
    assert made.method == "prediction"
    assert (made.low, made.high) == pytest.approx((-0.5 - half, -0.5 + half))


@pytest.mark.parametrize(("n", "m", "published_spread"), [(3, 3, False), (3, 1, False), (5, 3, True), (3, 3, True)])
def test_the_interval_covers_as_often_as_it_says(n, m, published_spread):
    # One truth for both: then zero should lie within 95 % of the time. Welch at such sizes is known to be a little too wide.
    rng = np.random.default_rng(20)
    repeats, within = 4000, 0
    for _ in range(repeats):
        ours, theirs = rng.normal(7, 2, n), rng.normal(7, 2, m)
        sd = float(theirs.std(ddof=1)) if published_spread else None
        within += bool(difference_of_means(ours, float(theirs.mean()), n=m, sd=sd).holds_zero)
    slack = 4 * np.sqrt(0.95 * 0.05 / repeats)
    assert 0.95 - slack < within / repeats < (0.985 if published_spread else 0.95 + slack)


def test_a_shifted_published_mean_falls_outside():
    ours = np.random.default_rng(1).normal(0, 1, 5)
    assert difference_of_means(ours, float(ours.mean()) + 100, n=3, sd=1.0).holds_zero is False


def test_rounding_widens_by_half_a_digit_on_both_sides():
    ours = [11.66, 11.65, 11.68]
    bare, rounded = (difference_of_means(ours, 11.68, n=3, rounding=by) for by in (0.0, 0.005))
    assert (rounded.low, rounded.high) == pytest.approx((bare.low - 0.005, bare.high + 0.005))


def test_swapping_signs_mirrors_the_interval_and_scale_scales_it():
    ours = np.array([1.0, 1.5, 2.5])
    made, mirrored = difference_of_means(ours, 2.0, n=4, sd=0.3), difference_of_means(-ours, -2.0, n=4, sd=0.3)
    assert (mirrored.low, mirrored.high) == pytest.approx((-made.high, -made.low))
    tiny = difference_of_means(ours * 1e-200, 2e-200, n=4, sd=0.3e-200)
    assert (tiny.low * 1e200, tiny.high * 1e200) == pytest.approx((made.low, made.high))


@pytest.mark.parametrize(
    ("ours", "options", "status"),
    [
        ([1.0, 2.0], {"n": 3, "sd": 1.0}, "too-few-pairs"),
        ([2.0], {"n": 1}, "too-few-pairs"),
        ([1.0] * 3, {"n": 3}, "degenerate"),
    ],
)
def test_without_spread_or_runs_there_is_no_interval(ours, options, status):
    made = difference_of_means(ours, 1.0, **options)
    assert (made.status, made.low, made.high, made.holds_zero) == (status, None, None, None)
    assert made.estimate == pytest.approx(np.mean(ours) - 1.0)


def test_equal_runs_of_ours_lean_on_the_published_spread():
    made = difference_of_means([1.0, 1.0, 1.0], 1.2, n=3, sd=0.5)
    half = stats.t.ppf(0.975, 2) * 0.5 / np.sqrt(3)
    assert (made.low, made.high) == pytest.approx((-0.2 - half, -0.2 + half))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n": 1, "sd": 0.1}, "sd"),
        ({"n": 3, "sd": -1.0}, "sd"),
        ({"n": 0}, "n must"),
        ({"n": 3, "rounding": -0.1}, "rounding"),
        ({"n": 3, "level": 1.0}, "level"),
    ],
)
def test_impossible_arguments_are_named(options, says):
    with pytest.raises(StatisticsError, match=says):
        difference_of_means([1.0, 2.0, 3.0], 1.0, **options)
    with pytest.raises(StatisticsError, match="ours"):
        difference_of_means([1.0, float("nan")], 1.0, n=3)


# --- whole comparisons ------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", ["identity", "log"])
def test_an_unpaired_comparison_is_scipys_and_changes_sign_with_its_arms(transform):
    rng = np.random.default_rng(5)
    a, b = np.exp(rng.normal(1.0, 0.1, 6)), np.exp(rng.normal(1.2, 0.3, 4))
    x, y = (a, b) if transform == "identity" else (np.log(a), np.log(b))
    made = compare_unpaired(a, b, smallest_effect=2.0, transform=transform)
    wanted = stats.ttest_ind(x, y, equal_var=False)
    assert made.test.p == pytest.approx(wanted.pvalue, rel=1e-9)
    assert made.test.statistic == pytest.approx(wanted.statistic, rel=1e-9)
    assert made.difference_sd == pytest.approx(np.hypot(x.std(ddof=1), y.std(ddof=1)))
    assert (made.variant_mean, made.reference_mean) == pytest.approx((a.mean(), b.mean()))
    other = compare_unpaired(b, a, smallest_effect=2.0, transform=transform)
    assert (other.delta, other.test.p) == pytest.approx((-made.delta, made.test.p), rel=1e-12)
    if transform == "log":
        assert made.ratio.ratio == pytest.approx(np.exp(x.mean() - y.mean()))


def test_equivalence_agrees_with_two_one_sided_tests_of_scipy():
    rng = np.random.default_rng(8)
    a, b = rng.normal(0.0, 0.1, 8), rng.normal(0.02, 0.1, 9)
    made = compare_unpaired(a, b, smallest_effect=0.2).equivalence
    low = stats.ttest_ind(a + 0.2, b, equal_var=False, alternative="greater").pvalue
    high = stats.ttest_ind(a - 0.2, b, equal_var=False, alternative="less").pvalue
    assert (made.p_low, made.p_high) == pytest.approx((low, high), rel=1e-9)
    assert made.equivalent == (max(low, high) < 0.05)


@pytest.mark.parametrize(
    ("a", "b", "status"), [([1.0, 2.0], [1.0, 2.0, 3.0], "too-few-pairs"), ([1.0] * 3, [2.0] * 4, "degenerate")]
)
def test_too_few_or_constant_runs_give_a_difference_and_no_inference(a, b, status):
    made = compare_unpaired(a, b, smallest_effect=0.1)
    assert (made.test.status, made.interval.status, made.equivalence.status) == (status,) * 3
    assert (made.test.p, made.interval.low, made.equivalence.equivalent) == (None, None, None)
    assert made.delta == pytest.approx(np.mean(a) - np.mean(b))


def test_welchs_false_positives_are_those_of_the_published_table():
    rng = np.random.default_rng(3)
    false = [compare_unpaired(rng.normal(0, 1, 5), rng.normal(0, 1, 5)).test.p <= 0.05 for _ in range(3000)]
    assert np.mean(false) == pytest.approx(0.044, abs=4 * np.sqrt(0.044 * 0.956 / 3000))


def test_known_noise_is_the_z_test_of_the_textbooks():
    a, b = [3.2785, 3.2771, 3.2790], [3.2799]
    interval, test = known_noise(a, b, sd=0.0013, level=0.99)
    error, delta = 0.0013 * np.sqrt(1 / 3 + 1), np.mean(a) - 3.2799
    assert test.p == pytest.approx(2 * stats.norm.sf(abs(delta) / error))
    assert (interval.low, interval.high) == pytest.approx(stats.norm.interval(0.99, delta, error))
    with pytest.raises(StatisticsError, match="must be above 0"):
        known_noise(a, b, sd=0.0)


@pytest.mark.parametrize(("effect", "alpha"), [(0.5, 0.05), (1.0, 0.01), (2.0, 0.05)])
def test_runs_to_decide_are_those_of_the_two_sample_t_test_where_spreads_agree(effect, alpha):
    wanted = TTestIndPower().solve_power(effect, alpha=alpha / 2, power=0.8, alternative="larger", ratio=1)
    assert runs_to_decide(effect, 1.0, 1.0, alpha=alpha) == int(np.ceil(wanted))


def test_runs_to_decide_have_the_power_that_they_are_for_where_spreads_differ():
    n = runs_to_decide(1.0, 1.5, 0.5)
    rng = np.random.default_rng(3)
    a, b = rng.normal(1, 1.5, (20_000, n)), rng.normal(0, 0.5, (20_000, n))
    share = (stats.ttest_ind(a, b, axis=1, equal_var=False).pvalue <= 0.05).mean()
    assert 0.79 < share < 0.84
    assert runs_to_decide(0.0, 1.0, 1.0) is None
    assert runs_to_decide(1e-6, 1.0, 1.0) is None


def test_runs_that_never_reach_a_target_make_no_more_false_claims():
    # Equal arms; the variant stops where one run in ten is not there yet.
    rng = np.random.default_rng(5)
    false = judged = 0
    for _ in range(3000):
        a, b = rng.normal(0, 1, 12), rng.normal(0, 1, 12)
        last = 1.2816
        counted = with_unreached(a[a <= last], [last] * int((a > last).sum()))
        if counted is not None:
            made = compare_unpaired(counted, b)
            false += made.test.p <= 0.05 and made.delta < 0
            judged += 1
    assert judged > 2000
    assert false / 3000 < 0.025 + 4 * np.sqrt(0.025 * 0.975 / 3000)


def test_no_more_than_one_run_in_ten_may_be_unreached_and_five_must_remain():
    assert with_unreached(np.arange(20.0), [30.0, 30.0, 30.0]).size == 23
    assert with_unreached(np.arange(20.0), [30.0] * 4) is None
    assert with_unreached(np.arange(4.0), [30.0]) is None
    assert with_unreached(np.arange(4.0), []).tolist() == [0, 1, 2, 3]
    assert with_unreached([], [30.0] * 6) is None


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_runs_to_decide_do_not_change_with_the_unit(scale):
    assert runs_to_decide(scale, 1.5 * scale, 0.5 * scale) == runs_to_decide(1.0, 1.5, 0.5)


def test_runs_to_decide_refuse_what_is_no_spread_and_bear_any_effect():
    for wrong in ((0.1, -1.0, 1.0), (0.1, 1.0, -1.0), (float("nan"), 1.0, 1.0), (0.1, float("inf"), 1.0)):
        with pytest.raises(StatisticsError, match="must be a finite number"):
            runs_to_decide(*wrong)
    assert runs_to_decide(1e300, 1e-300, 1e-300) == 3
    assert runs_to_decide(1e-300, 1e300, 1.0) is None
