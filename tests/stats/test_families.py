from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.stats import adjust, family_inference, gatekeep, paired_t_interval
from ablationlab.stats.families import (
    deciding_interval,
    gate_graph,
    graph_test,
)
from ablationlab.stats.significance import RESAMPLES, TESTS

from .strategies import quick

RNG = np.random.default_rng(0)


def members(deltas, test="paired-t"):
    return [(row, TESTS[test](row, RESAMPLES, np.random.default_rng(1)).p) for row in deltas]


@quick
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(4, 8),
    m=st.integers(1, 5),
    correction=st.sampled_from(["holm", "bonferroni", "benjamini-hochberg", "none"]),
    test=st.sampled_from(["paired-t", "sign-flip", "wilcoxon"]),
)
def test_no_interval_contradicts_its_adjusted_p(seed, n, m, correction, test):
    deltas = np.random.default_rng(seed).normal(0.8, 1.0, (m, n))
    family = family_inference(members(deltas, test), correction=correction, alpha=0.1, test=test, rng=RNG)
    for member in family.members:
        assert member.rejected == (member.p_adjusted <= 0.1)
        excludes = member.interval.excludes(0.0)
        assert (excludes is None and not member.rejected) or excludes == member.rejected


def test_holm_members_carry_bonferroni_intervals_unless_a_later_step_rejected_them():
    deltas = [np.array([0.9, 1.0, 1.1, 1.0]), np.array([0.2, 0.9, 1.2, 0.7]), np.array([-0.5, 0.6, 0.1, 0.2])]
    family = family_inference(members(deltas), correction="holm", rng=RNG)
    assert [member.rejected for member in family.members] == [True, False, False]
    assert [member.level for member in family.members] == pytest.approx([0.05 / 3] * 3)
    expected = paired_t_interval(deltas[1], level=1 - 0.05 / 3)
    assert (family.members[1].interval.low, family.members[1].interval.high) == (expected.low, expected.high)
    p = [1e-4, 0.02, 0.9]  # 0.02 > 0.05 / 3, but at most 0.05 / 2, Holm's second step
    family = family_inference(list(zip(deltas, p, strict=True)), correction="holm", rng=RNG)
    assert [member.level for member in family.members] == pytest.approx([0.05 / 3, 0.05 / 2, 0.05 / 3])


def test_the_sign_flip_interval_ends_at_means_of_subsets():
    # Hartigan 1969: the bounds are order statistics of the means of all subsets.
    deltas = np.array([0.3, 1.1, 0.7, 1.9, 0.2, 1.4])
    means = [deltas[[bool(code >> place & 1) for place in range(6)]].mean() for code in range(1, 64)]
    interval = deciding_interval(deltas, test="sign-flip", alpha=0.0625, rejected=True, rng=RNG)
    for end in (interval.low, interval.high):
        assert min(abs(end - mean) for mean in means) < 1e-9
    few = deciding_interval(deltas[:4], test="sign-flip", alpha=0.05, rejected=False, rng=RNG)
    assert (few.status, few.low) == ("unbounded", None)


def test_a_graph_that_passes_everything_to_the_other_primaries_is_holm():
    p = [0.01, 0.04, None, 0.03, 0.2]
    weights, passes = gate_graph([value is not None for value in p], [0] * 5, 1.0)
    assert graph_test(p, weights, passes, 0.05)[0] == pytest.approx(adjust(p, method="holm").adjusted)


def test_secondaries_wait_for_their_primary_and_for_their_order():
    row = np.array([1.0, 2.0, 1.5, 1.2])
    gate = gatekeep([(row, 0.3)], [[(row, 1e-6), (row, 1e-6)]], rng=RNG)
    assert [member.rejected for member in gate.secondaries[0]] == [False, False]
    gate = gatekeep([(row, 0.04)], [[(row, 0.045), (row, 0.2), (row, 1e-6)]], rng=RNG)
    # One primary passes its full alpha on; what follows the first failure is not claimed.
    assert [member.rejected for member in gate.secondaries[0]] == [True, False, False]
    assert gate.primaries[0].p_adjusted == pytest.approx(0.04)
    two = gatekeep([(row, 0.001), (row, 0.9)], [[(row, 0.0124)], [(row, 1e-6)]], rng=RNG)
    assert [chain[0].rejected for chain in two.secondaries] == [True, False]  # alpha / 4 from one of two
    both = gatekeep([(row, 0.001), (row, 0.001)], [[(row, 0.0249)], [(row, 0.0249)]], rng=RNG)
    assert [chain[0].rejected for chain in both.secondaries] == [True, True]  # alpha / 2 each


def test_secondaries_cost_a_single_primary_nothing():
    row = np.array([1.0, 2.0, 1.5, 1.2])
    for chain in ([], [(row, 0.5)], [(row, 0.5)] * 8):
        assert gatekeep([(row, 0.049)], [chain], rng=RNG).primaries[0].p_adjusted == pytest.approx(0.049)


def test_gatekeeping_bounds_false_claims_of_primaries_and_secondaries_together():
    # One variant is better, so its gate is open; the other variant and every secondary are null.
    rng = np.random.default_rng(3)
    weights, passes = gate_graph([True, True], [2, 2], 0.5)
    false = 0
    for p in rng.uniform(size=(4_000, 5)):
        adjusted, _ = graph_test([0.0, *p], weights, passes, 0.05)
        false += min(adjusted[1:]) <= 0.05
    assert false / 4_000 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4_000)
