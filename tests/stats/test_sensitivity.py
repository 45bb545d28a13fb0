from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablationlab.core.errors import StatisticsError
from ablationlab.stats import sensitivity

TOLD_APART = ([0.40, 0.41, 0.39, 0.42], [0.50, 0.52, 0.50, 0.51])
NOT_TOLD_APART = ([0.50, 0.53, 0.49, 0.52], [0.50, 0.52, 0.50, 0.51])


def test_a_task_above_chance_whose_control_is_told_apart_is_sensitive():
    result = sensitivity([0.5, 0.52], items=1000, chance=0.25, control=TOLD_APART)
    assert result.sensitive
    assert result.beats_chance
    assert result.control == "told-apart"


def test_a_task_at_chance_never_counts_even_if_the_control_differs():
    result = sensitivity([0.255, 0.248, 0.251], items=1000, chance=0.25, control=TOLD_APART)
    assert not result.sensitive
    assert result.beats_chance is False
    assert (result.accuracy, result.items, result.chance) == (pytest.approx(0.25133, abs=1e-5), 1000, 0.25)


def test_a_task_that_misses_the_control_is_not_sensitive():
    result = sensitivity([0.5, 0.52], items=1000, chance=0.25, control=NOT_TOLD_APART)
    assert not result.sensitive
    assert result.control == "not-told-apart"


def test_without_a_control_a_task_is_not_sensitive():
    result = sensitivity([0.5, 0.52], items=1000, chance=0.25, control=None)
    assert (result.sensitive, result.control_p) == (False, None)


def test_a_control_that_is_better_is_the_wrong_direction():
    result = sensitivity([0.5, 0.52], items=1000, chance=0.25, control=TOLD_APART[::-1])
    assert not result.sensitive
    assert result.control == "wrong-direction"
    assert result.control_delta > 0


def test_a_loss_has_no_chance_level_and_lower_is_better():
    losses = ([1.9, 1.92, 1.88], [1.7, 1.71, 1.69])
    result = sensitivity([], items=1, chance=None, control=losses, higher_is_better=False)
    assert result.sensitive
    assert result.beats_chance is result.chance_p is None


@pytest.mark.parametrize("control", [([0.4, 0.4], [0.5, 0.6]), ([0.4, 0.4, 0.4], [0.5, 0.5, 0.5])])
def test_a_control_that_cannot_be_judged_is_not_told_apart(control):
    result = sensitivity([0.5], items=1000, chance=0.25, control=control)
    assert not result.sensitive
    assert (result.control, result.control_p) == ("not-testable", None)


def test_chance_is_judged_by_an_exact_binomial_test():
    result = sensitivity([0.30], items=200, chance=0.25, control=None)
    assert result.chance_p == pytest.approx(stats.binomtest(60, 200, 0.25, "greater").pvalue)


def test_more_runs_on_the_same_items_do_not_multiply_the_items():
    one = sensitivity([0.28], items=200, chance=0.25, control=None)
    many = sensitivity([0.28] * 10, items=[200] * 10, chance=0.25, control=None)
    assert one.chance_p == many.chance_p


def test_models_at_chance_pass_at_most_as_often_as_alpha():
    right = np.random.default_rng(1).binomial(500, 0.5, size=(2000, 3)) / 500
    passed = np.mean([sensitivity(row, items=500, chance=0.5, control=None).beats_chance for row in right])
    assert passed <= 0.05


def test_impossible_input_is_named():
    with pytest.raises(StatisticsError, match="baseline_accuracies must lie between 0 and 1"):
        sensitivity([50.0], items=100, chance=0.25, control=None)
    with pytest.raises(StatisticsError, match="got 2 for 1"):
        sensitivity([0.5], items=[100, 100], chance=0.25, control=None)
    with pytest.raises(StatisticsError, match="chance must lie strictly"):
        sensitivity([0.5], items=100, chance=1.0, control=None)
