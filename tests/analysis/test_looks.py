"""Planned looks: the interval that is printed agrees with the adjusted p, at the level that decides."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablationlab.analysis import analyze
from ablationlab.analysis.verdict import decide
from ablationlab.records.settings import Criterion, Design
from ablationlab.stats.sequential import Looks

from .verdict.studies import dataset

LOOKS = (4, 8, 12)
LOSS = Criterion(metric="validation_loss", role="primary", smallest_effect=0.01)


def looked_at(look, effects, seed=0, sd=0.004, criteria=(LOSS,)):
    """A study of several variants at one of its looks."""
    n, rng = LOOKS[look - 1], np.random.default_rng(seed)
    base = 2.0 + 0.05 * np.sin(np.arange(n))
    values = {"none": base} | {f"v{i}": base + effect + sd * rng.normal(size=n) for i, effect in enumerate(effects)}
    more = {"perplexity": {name: np.exp(losses) for name, losses in values.items()}}
    made = dataset({"validation_loss": values} | more, criteria, design=Design(looks=LOOKS), look=look)
    return analyze(made)


def primaries(analysis):
    return [comparison for comparison in analysis.comparisons if comparison.role == "primary"]


@pytest.mark.parametrize("look", [1, 2, 3])
def test_the_deciding_interval_excludes_zero_exactly_where_a_difference_is_shown(look):
    outcomes = set()
    for seed in range(4):
        for comparison in primaries(looked_at(look, (0.0, 0.004, 0.006, 2.0), seed)):
            shown = comparison.p_adjusted <= comparison.alpha
            assert comparison.deciding.excludes(0.0) is shown
            assert comparison.deciding.method == "repeated-t"
            outcomes.add(shown)
    assert outcomes == {True, False}


def test_the_level_is_that_of_the_look_after_the_correction_over_variants():
    first, second = primaries(looked_at(1, (0.0, 0.0)))
    for comparison in (first, second):  # neither is shown, so Holm leaves each half of alpha
        assert comparison.deciding.level == pytest.approx(0.975)
        deltas = np.array([pair.delta for pair in comparison.pairs])
        spent = Looks(LOOKS).levels(0.025)[0]
        low, high = stats.t.interval(1 - spent, 3, deltas.mean(), stats.sem(deltas))
        assert (comparison.deciding.low, comparison.deciding.high) == (pytest.approx(low), pytest.approx(high))


def test_a_metric_that_shares_the_test_has_the_repeated_interval_too():
    analysis = looked_at(2, (0.02,))
    shared = next(c for c in analysis.comparisons if c.metric == "perplexity")
    assert shared.shares_test_of == primaries(analysis)[0].id
    assert shared.deciding.method == "repeated-t"
    assert shared.deciding.excludes(0.0)


def test_an_earlier_look_that_showed_a_difference_keeps_it_shown():
    base = np.full(12, 2.0)
    deltas = np.r_[0.01 + 0.0001 * np.arange(8), -0.04, 0.05, -0.05, 0.04]
    made = dataset(
        {"validation_loss": {"none": base, "layernorm": base + deltas}}, (LOSS,), design=Design(looks=LOOKS), look=3
    )
    (comparison,) = primaries(analyze(made))
    assert stats.ttest_1samp(deltas, 0).pvalue > 0.05  # the last look alone shows nothing
    assert comparison.outcome == "worse"
    assert comparison.deciding.excludes(0.0)


def test_no_seed_is_left_out_at_a_look():
    (verdict,) = decide(looked_at(2, (0.02,))).verdicts
    assert (verdict.left_out, verdict.without) == (0, ())
