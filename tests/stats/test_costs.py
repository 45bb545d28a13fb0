"""One cost per seed: against the paired t-test, against the exact sign test, and what must hold whatever the costs are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from ablationlab.stats.costs import CAPPED, Costs, may_share, shared_sd
from ablationlab.stats.results import NO_DOUBT, Doubt

#: Where an answer is decided: what lies far below any alpha is not ordered.
DECIDED = 1e-6
SIZES = st.sampled_from([3, 5, 6, 7, 10, 11, 20, 21, 30])


@st.composite
def samples(draw):
    """Costs with a few that lie far out, or equal ones."""
    n = draw(SIZES)
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    costs = rng.normal(draw(st.sampled_from([-3.0, -2.0, -1.0, -0.3, 0.0, 0.5])), 1, n)
    if draw(st.booleans()):
        costs = np.round(costs)
    for place in range(draw(st.integers(0, min(3, n)))):
        costs[place] += draw(st.sampled_from([-100.0, -20.0, -5.0, 3.0, 5.0, 20.0, 100.0]))
    return tuple(costs.tolist())


def counted(values, lost=0, by_reference=0, *, size=5.0, doubt=NO_DOUBT, others=()):
    return Costs(tuple(values), tuple(max(size, abs(value)) for value in values), lost, by_reference, doubt, others)


#: SDs of the other arms, where variances are shared.
OTHERS = st.sampled_from([(), (), (1.0,), (0.0, 1.0), (0.3, 0.5, 2.0), (1.0,) * 11, (0.2,) * 5 + (1.0, 1.5, 50.0)])


#: Without the best run, what the lost one counts as would shrink by more than another lost run costs.
TIGHT = (-6.73, -3.04, -3.43, -4.51, -2.78, -1.85, -3.23, -2.74, -3.18, -3.88)


#: Beside runs far out, which way is the mildest changes with a lost run.
ABSURD = (
    (0, -60, -18, -23, -23, -19, -18, -20, -17, -23),
    (-50, 0, -17, -21, -19, -22, -18, -17, -17, -19),
    (-70, -60, -22, -17, -20, -22, -23, -21, -18, -19, -21),
)


def estimate(costs, alpha=0.05, smallest=0.0):
    way = costs.deciding(alpha, smallest)
    return None if way is None else way.mean


def claimed(costs, smallest, alpha=0.05, level=0.5):
    """Whether the variant is better: shown, and by at least the smallest effect."""
    way = costs.deciding(alpha, smallest, level=level)
    return costs.p_better() <= alpha and costs.size(way, level) <= costs.slack - smallest


@given(samples(), st.integers(0, 2), st.integers(0, 29), st.sampled_from([0.3, 1.7, 1.8, 2.0, 2.1, 3.0]), OTHERS)
@example(TIGHT, 1, 0, 2.0, ())
@example(tuple(0.1 * cost for cost in ABSURD[0]), 0, 1, 1.8, ())
@example(tuple(0.1 * cost for cost in ABSURD[1]), 0, 2, 1.7, ())
@example(tuple(0.1 * cost for cost in ABSURD[2]), 0, 4, 2.1, ())
@settings(max_examples=600, deadline=None)
def test_losing_a_run_never_speaks_for_its_arm(values, lost, place, smallest, others):
    place %= len(values)
    before = counted(values, lost, others=others)
    after = counted((*values[:place], *values[place + 1 :]), lost + 1, others=others)
    assert max(after.p_better(), DECIDED) >= before.p_better() * (1 - 1e-9)
    if len(values) > 3:
        ends = [(before.most(level), after.most(level)) for level in (0.6, 0.95, 0.99)]
        assert all(end is None or (first is not None and first <= end + 1e-9) for first, end in ends)
    for level in (0.5, 0.45, 0.2, 0.05):
        assert claimed(before, smallest, level=level) or not claimed(after, smallest, level=level)


@given(samples(), st.integers(0, 2), st.sampled_from([0.01, 0.3, 2.0]), OTHERS)
@settings(max_examples=300, deadline=None)
def test_a_variant_that_is_worse_by_the_same_amount_everywhere_is_no_better(values, lost, more, others):
    before, after = (counted(costs, lost, others=others) for costs in (values, tuple(cost + more for cost in values)))
    assert max(after.p_better(), DECIDED) >= before.p_better() * (1 - 1e-9)


@given(samples(), st.integers(0, 2), st.integers(0, 2), st.sampled_from([1e-9, 1e-3, 1e9]), OTHERS)
@settings(max_examples=300, deadline=None)
def test_units_and_the_order_of_the_arms_change_nothing(values, lost, by_reference, unit, others):
    costs = counted(values, lost, by_reference, others=others)
    all_scaled = [[value * unit for value in sample] for sample in (values, others)]
    scaled = counted(all_scaled[0], lost, by_reference, size=5.0 * unit, others=tuple(all_scaled[1]))
    swapped = counted([-value for value in values], by_reference, lost, others=others)
    assert swapped.ordinary_sd == costs.ordinary_sd
    assert scaled.ordinary_sd == pytest.approx(costs.ordinary_sd * unit, rel=1e-6)
    assert scaled.p_better() == pytest.approx(costs.p_better(), rel=1e-6)
    assert swapped.mirrored.p_better() == costs.p_better()
    assert swapped.same(1.0, alpha=0.05) == costs.same(1.0, alpha=0.05)
    low, high = costs.bounds(0.95)
    assert swapped.bounds(0.95) == (None if high is None else -high, None if low is None else -low)


@given(samples(), st.integers(0, 2), st.integers(0, 2), st.sampled_from([0.9, 0.95, 0.99]), OTHERS)
@settings(max_examples=300, deadline=None)
def test_the_interval_holds_zero_exactly_where_nothing_is_shown(values, lost, by_reference, level, others):
    costs = counted(values, lost, by_reference, others=others)
    low, high = costs.bounds(level)
    assert (high is not None and high < 0) == (costs.p_better() <= 1 - level + 1e-12) or costs.p() is None
    assert (low is not None and low > 0) == (costs.mirrored.p_better() <= 1 - level + 1e-12) or costs.p() is None


@pytest.mark.parametrize("n", [3, 5, 6, 10, 20])
def test_on_clean_costs_it_is_the_paired_t_test(n):
    rng = np.random.default_rng(n)
    differs = 0
    for costs in rng.normal(-0.5, 1, (300, n)):
        test, ours = stats.ttest_1samp(costs, 0), counted(tuple(costs))
        if any(side.mildest(0.05).as_lost for side in (ours, ours.mirrored)):
            differs += (test.pvalue <= 0.05) != (ours.p() <= 0.05)
            continue
        assert ours.p() == pytest.approx(test.pvalue)
        interval = test.confidence_interval(0.95)
        assert ours.bounds(0.95) == pytest.approx((interval.low, interval.high))
    assert differs <= 3


def test_a_lost_run_counts_as_one_in_a_thousand_further_runs_would():
    values = (-2.1, -1.9, -2.0, -2.3, -1.8, -2.2, -1.7, -2.05, -1.95)
    (way,) = [way for way in counted(values, 1).ways if not way.as_lost]
    mean, sd = np.mean(values), np.std(values, ddof=1)
    assert way.costs[-1] == pytest.approx(mean + stats.t.ppf(0.999, 8) * sd * math.sqrt(1 + 1 / 9))
    assert counted(values, 1).p_better() == pytest.approx(stats.ttest_1samp(way.costs, 0).pvalue)


@pytest.mark.parametrize(
    ("n", "lost", "within"),
    [(5, 1, True), (4, 1, False), (9, 1, True), (8, 2, False), (9, 2, True), (17, 3, False), (18, 3, True)],
)
def test_one_run_in_ten_may_be_lost_and_five_others_must_remain(n, lost, within):
    values = tuple(-2 + 0.1 * np.sin(np.arange(n)))
    assert (counted(values, lost).p_better() < 0.05) == within
    assert (counted(values, lost).bounds(0.95)[1] is not None) == within
    # What only the reference lost is left out, however often.
    assert counted(values, 0, lost).p_better() < 0.05


@pytest.mark.parametrize("off", [20.0, -20.0, 1e300])
def test_one_absurd_run_neither_makes_nor_destroys_a_gain_and_is_named(off):
    rng = np.random.default_rng(1)
    values = rng.normal(-2, 1, 40)
    values[7] += off
    costs = counted(values)
    assert costs.p_better() < 1e-6
    assert 7 in costs.mildest(0.05).as_lost
    assert counted(-values).mirrored.p_better() == pytest.approx(costs.p_better())


@pytest.mark.parametrize(("n", "lost", "p"), [(5, 0, 2 / 32), (6, 0, 2 / 64), (9, 1, 22 / 1024)])
def test_constant_costs_are_judged_by_the_exact_sign_test_with_lost_runs_as_signs_against(n, lost, p):
    costs = counted((-0.5,) * n, lost)
    assert costs.p_better() == pytest.approx(p)
    wobbling = counted(-0.5 + 1e-10 * np.sin(np.arange(n)), lost)
    assert wobbling.p_better() == pytest.approx(p)


def test_a_rest_that_is_constant_is_no_proof():
    costs = counted((-0.5,) * 9 + (20.0,))
    assert costs.p_better() == pytest.approx(22 / 1024)


@pytest.mark.parametrize("smallest", [None, 0.01])
def test_identical_arms_are_the_same(smallest):
    assert counted((0.0, 0.0, 0.0)).same(smallest, alpha=0.05)
    assert counted((1e-10, -1e-10, 0.0)).same(smallest, alpha=0.05)
    assert not counted((0.0, 0.0)).same(smallest, alpha=0.05)
    assert not counted((0.0,) * 5, 1).same(smallest, alpha=0.05)
    assert not counted((0.0,) * 5, 0, 1).same(smallest, alpha=0.05)


@given(samples(), st.sampled_from([0.3, 1.0, 3.0]))
@settings(max_examples=100, deadline=None)
def test_same_is_two_one_sided_t_tests(values, smallest):
    if np.ptp(values) < 1e-6:
        return
    lower = stats.ttest_1samp(values, -smallest, alternative="greater").pvalue
    upper = stats.ttest_1samp(values, smallest, alternative="less").pvalue
    if abs(max(lower, upper) - 0.05) > 1e-6:
        assert counted(values).same(smallest, alpha=0.05) == (max(lower, upper) <= 0.05)


def test_a_doubt_counts_against_the_claim_of_its_side():
    values = tuple(-0.5 + 0.1 * np.sin(np.arange(8)))
    clean, doubted = counted(values), counted(values, doubt=Doubt(0.3, 0.4))
    assert doubted.p_better() == pytest.approx(stats.ttest_1samp(np.add(values, 0.4), 0).pvalue)
    assert doubted.bounds(0.95) == pytest.approx((clean.bounds(0.95)[0] - 0.3, clean.bounds(0.95)[1] + 0.4))
    assert counted(values, doubt=Doubt(above=0.6)).p_better() == 1.0
    # What the variant may be better than it looks takes nothing from *better*, and all from *worse* and *same*.
    assert counted(values, doubt=Doubt(below=0.6)).p_better() == clean.p_better()
    assert counted(values, doubt=Doubt(below=0.6)).mirrored.p_better() == 1.0
    assert counted(values).same(0.6, alpha=0.05)
    assert not counted(values, doubt=Doubt(below=0.1)).same(0.6, alpha=0.05)
    assert counted(values, doubt=Doubt(above=0.6)).same(0.6, alpha=0.05)


@given(
    samples(), st.floats(0, 3), st.floats(0, 3), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2), st.integers(0, 2)
)
@settings(max_examples=300, deadline=None)
def test_what_doubt_allows_is_claimed_whatever_is_true_within_it(
    values, below, above, share, other, lost, by_reference
):
    """Costs that are off by as much as their doubts allow claim no more than the true ones would."""
    seen = counted(values, lost, by_reference, size=100.0, doubt=Doubt(below, above))
    true = counted([v - share * below + other * above for v in values], lost, by_reference, size=100.0)
    assert seen.p_better() >= true.p_better() * (1 - 1e-6)
    assert seen.mirrored.p_better() >= true.mirrored.p_better() * (1 - 1e-6)
    assert seen.p() == seen.mirrored.p()
    for doubted, plain, sign in zip(seen.bounds(0.95), true.bounds(0.95), (-1, 1), strict=True):
        assert (doubted is None) == (plain is None)
        assert doubted is None or plain is None or sign * (doubted - plain) >= -1e-6
    assert true.same(1.0, alpha=0.05) or not seen.same(1.0, alpha=0.05)


@given(samples(), st.sampled_from([-1e6, 1e6]), st.integers(0, 10**6))
@settings(max_examples=300, deadline=None)
def test_a_run_that_is_far_out_claims_no_more_than_a_lost_one(values, off, where):
    """Neither p nor the estimate: a bad run of the baseline makes no gain, and the interval holds the estimate."""
    place = where % len(values)
    rest = (*values[:place], *values[place + 1 :])
    far = counted((*values[:place], values[place] + off, *values[place + 1 :]), size=5.0)
    lost = counted(rest, int(off > 0), int(off < 0))
    if far.p_better() <= 0.05:
        if len(values) >= 6 and lost.ways:
            assert max(far.p_better(), DECIDED) >= lost.p_better() * (1 - 1e-6)
        low, high = far.bounds(0.95)
        assert (-math.inf if low is None else low) <= estimate(far) + 1e-9
        assert estimate(far) <= high + 1e-9


def test_a_blow_up_in_both_arms_makes_no_other_difference_a_constant():
    values = (-0.05, -0.051, -0.049, -0.052, 1e-7, -0.048, -0.05, 0.01, -0.05, -0.051)
    sizes = tuple(1e8 if place == 4 else 2.0 for place in range(10))
    assert not Costs(values, sizes).same(0.01, alpha=0.05)
    assert Costs(values, sizes).p_better() < 1.0


def test_constant_costs_are_compared_with_the_smallest_effect_but_for_rounding_and_with_enough_seeds():
    exactly = (0.1 + 0.2 - 0.3 + 0.01,) * 6  # a few units in the last place beyond 0.01
    assert counted(exactly, size=1.0).same(0.01, alpha=0.05)
    assert not counted(exactly[:4], size=1.0).same(0.01, alpha=0.05)
    assert counted((-1e-10,) * 8, size=1.0).p_better() == 1.0
    assert not counted((0.0,) * 8, doubt=Doubt(0.02, 0.02)).same(0.01, alpha=0.05)
    assert counted((0.0,) * 8, doubt=Doubt(0.005, 0.005)).same(0.01, alpha=0.05)


def test_moderately_bad_runs_that_are_lost_do_not_make_others_lost():
    """A run within the limit counts at its own cost, though the limit is that of the others."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        values = np.sort(rng.normal(-3, 1, 12))
        values[-2:] += rng.uniform(2, 8, 2)
        for place in (10, 11):
            before, after = counted(tuple(values)), counted(tuple(np.delete(values, place)), 1)
            assert after.p_better() >= before.p_better() * (1 - 1e-9)


def test_a_shared_variance_is_the_larger_of_its_own_and_the_mean():
    """By hand, with scipy: mean variance 2.25 of three arms, twice the degrees of freedom."""
    values, others = (-3.0, -2.0, -2.5, -3.5, -1.5), (1.0, math.sqrt(5.125))
    own = float(np.std(values, ddof=1))
    assert own**2 == pytest.approx(0.625)
    quiet = counted(values, others=others)
    error = math.sqrt((0.625 + 1 + 5.125) / 3 / 5)
    assert quiet.p_better() == pytest.approx(2 * stats.t.cdf(-2.5 / error, 8))
    assert quiet.bounds(0.95) == pytest.approx(tuple(stats.t.interval(0.95, 8, -2.5, error)))
    noisy = counted(values, others=(0.1, 0.1))
    assert noisy.p_better() == pytest.approx(2 * stats.t.cdf(-2.5 / (own / math.sqrt(5)), 8))
    for costs in (quiet, noisy):  # no correction over arms stands behind these
        assert costs.own.bounds(0.95) == pytest.approx(tuple(stats.t.interval(0.95, 4, -2.5, own / math.sqrt(5))))
        assert all(costs.same(within, alpha=0.05) == counted(values).same(within, alpha=0.05) for within in (3.0, 3.5))


@pytest.mark.parametrize(("others", "pairs", "shares"), [(0, 20, False), (1, 5, False), (1, 6, True), (2, 3, False)])
def test_too_few_arms_and_pairs_share_nothing(others, pairs, shares):
    values = tuple(-2 + np.sin(np.arange(pairs)))
    alone, together = counted(values), counted(values, others=(0.01,) * others)
    assert (alone.p_better() != together.p_better()) == shares


@pytest.mark.parametrize("arms", [2, 3, 4, 5, 8, 12])
def test_variances_are_shared_where_an_arm_that_hides_all_others_keeps_bonferronis_level(arms):
    """It is then judged by its own SD with n - 1 degrees of freedom, by the quantiles of 2 (n - 1)."""

    def claimed(pairs):
        return 2 * stats.t.sf(stats.t.isf(0.025 / arms, 2 * (pairs - 1)), pairs - 1)

    shared = [pairs for pairs in range(3, 30) if may_share(arms, pairs)]
    assert shared == [pairs for pairs in range(3, 30) if claimed(pairs) <= 0.05]
    assert not may_share(1, 100)


def test_from_eight_arms_one_absurd_run_of_another_takes_no_power():
    assert shared_sd((1.0,) * 7 + (100.0,), 5) == 1.0
    assert shared_sd((1.0,) * 6 + (100.0,), 5) > 30
    assert shared_sd((1.0,) * 7 + (100.0,), 4) > 30
    assert shared_sd((0.0, 0.0), 6) == 0.0
    assert shared_sd((1e300,) * 3, 5) == pytest.approx(1e300)


@pytest.mark.parametrize(("arms", "noisy"), [(4, 2), (8, 3), (12, 3), (12, 0)])
def test_of_arms_of_any_noise_no_more_than_alpha_is_falsely_claimed(arms, noisy):
    """Were the largest variance left out, three noisy arms of eight would be claimed in 5.5 %."""
    rng, studies, n = np.random.default_rng(7), 60_000, 5
    costs = rng.normal(0, 1, (studies, arms, n)) * np.r_[[1000.0] * noisy, [1.0] * (arms - noisy)][:, None]
    variances = np.sort(costs.var(axis=2, ddof=1), axis=1)
    if arms >= CAPPED[0]:
        variances[:, -1] = variances[:, -2]
    sds = np.maximum(costs.std(axis=2, ddof=1), np.sqrt(variances.mean(axis=1))[:, None])
    t = np.abs(costs.mean(axis=2)) / sds * math.sqrt(n)
    shown = (t >= stats.t.isf(0.025 / arms, 2 * (n - 1))).any(axis=1)
    assert shown.mean() <= 0.05
    ours = [
        counted(costs[0, arm], others=tuple(np.delete(costs[0].std(axis=1, ddof=1), arm))).p() for arm in range(arms)
    ]
    assert ours == pytest.approx(2 * stats.t.sf(t[0], 2 * (n - 1)))


def test_constant_costs_are_no_constant_where_other_arms_are_noisy():
    still, noisy = counted((-0.5,) * 6, others=(0.0, 0.0)), counted((-0.5,) * 6, others=(1.0, 1.0))
    assert still.p_better() == pytest.approx(2 / 64)
    assert noisy.p_better() == pytest.approx(2 * stats.t.cdf(-0.5 / math.sqrt(2 / 3 / 6), 10))
    assert counted((0.0,) * 6, others=(1.0, 1.0)).same(None, alpha=0.05)


def test_what_an_arm_shares_is_without_its_far_out_runs():
    rng = np.random.default_rng(2)
    values = rng.normal(0, 1, 12)
    for off in (1e6, -1e6):
        spoiled = np.r_[values, off]
        assert counted(spoiled).ordinary_sd == pytest.approx(np.std(values, ddof=1))
    assert counted(values[:5]).ordinary_sd == pytest.approx(np.std(values[:5], ddof=1))
    assert counted(values[:2]).ordinary_sd is None


def test_a_size_at_a_look_is_bounded_by_the_arms_own_variance_and_else_the_mean():
    values = (-1.0, -1.5, -2.0, -1.2, -1.8)
    for costs in (counted(values), counted(values, others=(9.0, 9.0, 9.0))):
        (way,) = costs.ways
        assert costs.size(way) == way.mean
        bound = way.mean + stats.t.ppf(0.8, 4) * stats.sem(values)
        assert costs.size(way, 0.2) == pytest.approx(bound)


def test_constant_costs_are_as_large_as_they_are_where_the_sign_test_may_say_so():
    costs = counted([-1.0] * 5)
    (way,) = costs.ways
    assert costs.size(way, 0.5**5) == -1.0
    assert costs.size(way, 0.5**6) == math.inf


@given(samples(), st.floats(0, 3), st.floats(0, 3))
def test_a_size_holds_whatever_the_doubt_hides(values, below, above):
    """The true costs lie between *below* less and *above* more: a gain as large as the smallest effect stays one."""
    doubted, clean = counted(values, doubt=Doubt(below, above)), counted(values)
    for ours, theirs, off in ((doubted, clean, above), (doubted.mirrored, clean.mirrored, below)):
        for ways in zip(ours.ways, theirs.ways, strict=True):
            assert ours.size(ways[0]) == pytest.approx(theirs.size(ways[1]) + off)
