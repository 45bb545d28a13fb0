from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from ablationlab.core.errors import StatisticsError, UnknownNameError
from ablationlab.stats import adjust

from .strategies import quick

METHODS = {"holm": "holm", "bonferroni": "bonferroni", "benjamini-hochberg": "fdr_bh"}
p_lists = st.lists(st.floats(0, 1) | st.sampled_from([0.01, 0.05, 0.5]), min_size=1, max_size=20)


def holm(p):
    return adjust(p, method="holm")


@pytest.mark.parametrize("method", METHODS)
@settings(quick, max_examples=15)  # statsmodels' Holm collects garbage on every call
@given(p_lists)
def test_adjusted_p_equal_statsmodels(method, p):
    expected = multipletests(p, method=METHODS[method])[1]
    assert adjust(p, method=method).adjusted == pytest.approx(tuple(expected), rel=1e-12, abs=1e-300)


def test_holm_by_hand_in_input_order():
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1, then the running maximum.
    assert holm([0.01, 0.04, 0.03, 0.005]).adjusted == pytest.approx((0.03, 0.06, 0.06, 0.02))


@pytest.mark.parametrize("method", METHODS)
@quick
@given(p_lists)
def test_adjusted_p_are_never_smaller_and_keep_the_order(method, p):
    adjusted = adjust(p, method=method).adjusted
    assert all(before <= after <= 1 for before, after in zip(p, adjusted, strict=True))
    order = np.argsort(p, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()


@quick
@given(p_lists)
def test_holm_is_never_weaker_than_bonferroni_nor_stronger_than_benjamini_hochberg(p):
    for h, b, f in zip(*(adjust(p, method=method).adjusted for method in METHODS), strict=True):
        assert f <= h * (1 + 1e-12)
        assert h <= b * (1 + 1e-12)


@quick
@given(p_lists, st.randoms(use_true_random=False))
def test_permuting_the_family_permutes_the_answer(p, shuffle):
    order = list(range(len(p)))
    shuffle.shuffle(order)
    before, after = holm(p).adjusted, holm([p[i] for i in order]).adjusted
    assert [before[i] for i in order] == list(after)


def test_missing_p_stay_missing_and_do_not_count():
    result = holm([0.02, None, math.nan, 0.03])
    assert result.adjusted == pytest.approx((0.04, None, None, 0.04))
    assert result.family_size == 2
    assert result.rejected(0.05) == (True, None, None, True)


def test_an_empty_family_is_empty():
    assert holm([]).adjusted == ()
    assert holm([None]).family_size == 0


def test_impossible_p_and_unknown_methods_are_named():
    with pytest.raises(StatisticsError, match=r"p_values\[1\] is 1.5"):
        holm([0.1, 1.5])
    with pytest.raises(StatisticsError, match=r"p_values\[0\] is inf"):
        holm([math.inf])
    with pytest.raises(UnknownNameError, match="did you mean 'holm'"):
        adjust([0.1], method="hold")


def test_holm_bounds_the_family_wise_error_rate():
    p = np.random.default_rng(1).random((4000, 6))
    false = np.mean([any(holm(row.tolist()).rejected(0.05)) for row in p])
    assert false == pytest.approx(1 - (1 - 0.05 / 6) ** 6, abs=0.011)
