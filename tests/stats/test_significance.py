from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ablationlab.stats import (
    all_tests,
    bootstrap_test,
    paired_deltas,
    paired_t_test,
    sign_flip_floor,
    sign_flip_test,
    wilcoxon_test,
)
from ablationlab.stats._common import average_ranks

from .strategies import generator, paired_samples, quick

DELTAS = np.array([-0.21, 0.05, -0.4, -0.11, -0.35])
MANY = np.random.default_rng(6).normal(0.35, 1, 20)


def test_paired_t_matches_scipy():
    rng = generator(1)
    a, b = rng.normal(size=6), rng.normal(size=6)
    expected = stats.ttest_rel(a, b)
    result = paired_t_test(a - b)
    assert result.p == pytest.approx(expected.pvalue)
    assert result.statistic == pytest.approx(expected.statistic)


@pytest.mark.parametrize("n", [3, 5, 8])
def test_exact_sign_flip_matches_scipys_permutation_test(n):
    deltas = generator(n).normal(0.5, 1, n)
    expected = stats.permutation_test(
        (deltas,),
        lambda x, axis: np.abs(x.mean(axis=axis)),
        permutation_type="samples",
        alternative="greater",
    )
    result = sign_flip_test(deltas, rng=generator())
    assert result.exact
    assert result.p == pytest.approx(expected.pvalue)


def test_sign_flip_counts_every_pattern():
    flips = np.array(list(itertools.product([1, -1], repeat=5)))
    expected = np.mean(np.abs(flips @ DELTAS) >= abs(DELTAS.sum()) - 1e-12)
    assert sign_flip_test(DELTAS, rng=generator()).p == pytest.approx(expected)


@pytest.mark.parametrize(("n", "floor"), [(1, 1.0), (2, 0.5), (3, 0.25), (5, 0.0625), (6, 0.03125)])
def test_sign_flip_cannot_go_below_two_over_two_to_the_n(n, floor):
    result = sign_flip_test(np.arange(1.0, n + 1), rng=generator())
    assert result.p == result.minimum_p == sign_flip_floor(n) == floor


def test_zero_deltas_raise_the_floor():
    result = sign_flip_test([1.0, 2.0, 0.0, 3.0], rng=generator())
    assert result.minimum_p == result.p == 0.25


def test_random_sign_flip_agrees_with_enumeration_beyond_sixteen_pairs():
    deltas = generator(3).normal(0.5, 1, 18)
    sums = np.zeros(1)
    for delta in deltas:
        sums = np.concatenate([sums + delta, sums - delta])
    expected = np.mean(np.abs(sums) >= abs(deltas.sum()) - 1e-12)
    result = sign_flip_test(deltas, resamples=40_000, rng=generator())
    assert not result.exact
    assert result.p == pytest.approx(expected, abs=0.004)


def test_random_sign_flip_is_never_zero():
    result = sign_flip_test(np.arange(1.0, 41), resamples=999, rng=generator())
    assert result.p == result.minimum_p == 0.001


def test_exact_bootstrap_p_counts_all_shifted_resamples():
    shifted = DELTAS - DELTAS.mean()
    means = np.array([np.mean(draw) for draw in itertools.product(shifted, repeat=5)])
    extreme = np.count_nonzero(np.abs(means) >= abs(DELTAS.mean()) - 1e-12)
    assert bootstrap_test(DELTAS, rng=generator()).p == pytest.approx((1 + extreme) / (1 + 5**5))


def test_random_bootstrap_p_approaches_the_t_test_for_many_deltas():
    deltas = generator(9).normal(0.08, 1, 500)
    result = bootstrap_test(deltas, resamples=40_000, rng=generator())
    assert result.p == pytest.approx(paired_t_test(deltas).p, abs=0.01)


@pytest.mark.parametrize("n", [4, 9, 16, 30])
def test_wilcoxon_matches_scipys_exact_test(n):
    deltas = generator(n).normal(0.3, 1, n)
    result = wilcoxon_test(deltas)
    assert result.exact
    assert result.p == pytest.approx(stats.wilcoxon(deltas, method="exact").pvalue)


def test_wilcoxon_with_ties_is_exact_over_signs_and_ignores_rounding():
    deltas = np.array([0.3 - 0.1, 0.4 - 0.2, -0.2, 0.5, 0.0])
    ranks = np.array([2.0, 2.0, -2.0, 4.0])
    flips = np.array(list(itertools.product([1, -1], repeat=4)))
    expected = np.mean(np.abs(flips @ np.abs(ranks)) >= abs(ranks.sum()))
    result = wilcoxon_test(deltas)
    assert result.p == pytest.approx(expected)
    assert result.statistic == 6.0


def test_wilcoxon_beyond_fifty_pairs_uses_the_normal_approximation():
    deltas = generator(1).normal(0.2, 1, 60)
    result = wilcoxon_test(deltas)
    assert not result.exact
    assert result.minimum_p is None
    assert result.p == pytest.approx(stats.wilcoxon(deltas, method="asymptotic").pvalue)


def test_tests_hold_their_level_under_a_symmetric_null():
    x = generator(12).standard_t(3, size=(1500, 7))
    rejected = dict.fromkeys(("paired-t", "sign-flip", "wilcoxon"), 0)
    for deltas in x:
        rejected["paired-t"] += paired_t_test(deltas).p <= 0.05
        rejected["sign-flip"] += sign_flip_test(deltas, rng=generator()).p <= 0.05
        rejected["wilcoxon"] += wilcoxon_test(deltas).p <= 0.05
    # The exact tests hold 5 % exactly or less; 0.017 is three standard errors.
    assert all(number / 1500 <= 0.05 + 0.017 for number in rejected.values())
    assert rejected["sign-flip"] / 1500 == pytest.approx(3 / 64, abs=0.017)


def test_too_few_pairs_have_no_t_or_bootstrap_p():
    for test in ("paired-t", "bootstrap"):
        result = all_tests([1.0, 2.0], rng=generator())[test]
        assert result.p is None
        assert result.status == "too-few-pairs"


def test_constant_deltas_have_no_t_or_bootstrap_p_but_exact_tests_stand():
    results = all_tests(np.full(5, 0.1), rng=generator())
    assert results["paired-t"].p is results["bootstrap"].p is None
    assert results["paired-t"].status == "degenerate"
    assert results["sign-flip"].p == results["wilcoxon"].p == 0.0625


def test_all_zero_deltas_are_no_evidence():
    results = all_tests(np.zeros(5), rng=generator())
    assert results["sign-flip"].p == results["wilcoxon"].p == 1.0


def test_same_seed_same_p():
    assert all_tests(MANY, rng=generator(5)) == all_tests(MANY, rng=generator(5))
    assert sign_flip_test(MANY, rng=generator(5)) != sign_flip_test(MANY, rng=generator(6))


@quick
@given(paired_samples(minimum=1, maximum=20), st.randoms(use_true_random=False))
def test_swapping_arms_or_permuting_pairs_keeps_every_p(arms, shuffle):
    order = list(range(arms[0].size))
    shuffle.shuffle(order)
    before = all_tests(paired_deltas(*arms), resamples=200, rng=generator())
    permuted = all_tests(paired_deltas(arms[0][order], arms[1][order]), resamples=200, rng=generator())
    swapped = all_tests(paired_deltas(*arms[::-1]), resamples=200, rng=generator())
    assert before == permuted
    for name, result in before.items():
        assert swapped[name].p == result.p
        if result.statistic is not None:
            assert swapped[name].statistic == -result.statistic


@quick
@given(paired_samples(minimum=1, maximum=20))
def test_every_p_lies_between_its_floor_and_one(arms):
    for result in all_tests(paired_deltas(*arms), resamples=200, rng=generator()).values():
        if result.p is not None:
            assert (result.minimum_p or 0.0) <= result.p <= 1.0


@pytest.mark.parametrize("values", [[3.0], [2.0, 2.0], [0.5, -1.0, 0.5, 7.0, 0.5, -1.0], [4.0, 3.0, 2.0, 1.0]])
def test_equal_values_share_their_mean_rank_as_in_scipy(values):
    assert average_ranks(np.array(values)).tolist() == stats.rankdata(values).tolist()
