"""Planned looks: the interval that is printed agrees with the adjusted p, at the level that decides."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ablationlab.analysis import analyze
from ablationlab.analysis.verdict import decide
from ablationlab.records.settings import Criterion, Design
from ablationlab.stats.results import Spending
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


GUARD = Criterion(metric="token_ece", role="guard", margin=0.01)


@given(st.integers(0, 10_000), st.floats(-0.02, 0.02), st.floats(0.001, 0.02), st.sampled_from(get_args(Spending)))
@settings(max_examples=40, deadline=None)
def test_continuing_takes_back_nothing_that_an_earlier_look_showed(seed, effect, sd, spending):
    rng, base = np.random.default_rng(seed), np.full(12, 2.0)
    values = {
        metric: {"none": base, "layernorm": base + effect + sd * rng.normal(size=12)}
        for metric in ("validation_loss", "token_ece")
    }
    before = None
    for look, n in enumerate(LOOKS, start=1):
        so_far = {metric: {arm: runs[:n] for arm, runs in arms.items()} for metric, arms in values.items()}
        design = Design(looks=LOOKS, spending=spending)
        analysis = analyze(dataset(so_far, (LOSS, GUARD), design=design, look=look))
        primary, guard = (analysis.comparison(metric, "default", "layernorm", "none") for metric in values)
        (judged,) = decide(analysis).verdicts
        assert judged.label == "registered"
        kept = next(guard.standing == "kept" for guard in judged.guards if guard.name == "token_ece")
        now = (primary.p, primary.outcome, primary.cost.same, guard.cost.high, kept, judged.answer)
        if before is not None:
            p, outcome, same, high, was_kept, answer = before
            assert answer not in ("better", "worse") or primary.outcome != outcome or judged.answer == answer
            assert primary.p <= p
            assert outcome == "not-shown" or primary.outcome == outcome
            assert primary.cost.same >= same
            assert guard.cost.high <= high or guard.cost.low > guard.cost.high - 1e-9 or not was_kept
            assert kept >= was_kept
        before = now


def sized(deltas, look, spending="pocock"):
    """A gain by seed, at a look of three."""
    n = LOOKS[look - 1]
    base = 2.0 + 0.05 * np.sin(np.arange(n))
    values = {"validation_loss": {"none": base, "layernorm": base - np.array(deltas[:n])}}
    analysis = analyze(dataset(values, (LOSS,), design=Design(looks=LOOKS, spending=spending), look=look))
    (judged,), (comparison,) = decide(analysis).verdicts, primaries(analysis)
    return judged, comparison


def test_an_estimate_just_above_the_smallest_effect_is_not_yet_better():
    noise = 0.001 * np.array([1, -1, 1, -1] * 3)
    for gain, answer, lacks in ((0.0101, "undecided", ("size",)), (0.02, "better", ())):
        judged, comparison = sized(gain + noise, look=1)
        assert comparison.outcome == "better"
        assert comparison.cost.better == pytest.approx(-gain)
        level = Looks(LOOKS, "pocock").size_levels()[0]
        bound = -gain - stats.t.ppf(level, 3) * stats.sem(noise[:4])
        assert comparison.cost.size_better == pytest.approx(bound)
        assert (judged.answer, judged.lacks) == (answer, lacks)


def test_a_size_that_an_earlier_look_claimed_stays_claimed():
    noise = 0.0005 * np.array([1, -1, 1, -1] * 3)
    deltas = np.r_[[0.011] * 4, [0.009] * 8] + noise
    assert np.mean(deltas) < 0.01
    for look in (1, 2, 3):
        judged, _ = sized(deltas, look)
        assert judged.answer == "better"


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_worse_mirrors_better_at_a_look(direction):
    noise = 0.001 * np.random.default_rng(3).normal(size=12)
    for look in (1, 2, 3):
        _, found = sized(direction * (0.0105 + noise), look)
        sizes = (found.cost.size_better, found.cost.size_worse)
        _, mirrored = sized(-direction * (0.0105 + noise), look)
        assert (mirrored.cost.size_worse, mirrored.cost.size_better) == pytest.approx(tuple(-size for size in sizes))


def test_the_verdict_names_the_look_that_can_help():
    base = np.full(4, 2.0)
    rng = np.random.default_rng(1)
    for effect, sd, expected in ((-0.05, 0.001, 20), (0.05, 0.001, None), (0.0, 0.02, 8)):
        values = {"validation_loss": {"none": base, "layernorm": base + effect + sd * rng.normal(size=4)}}
        design = Design(looks=(4, 8, 20), spending="front-loaded", futility=0.0)
        verdict = decide(analyze(dataset(values, (LOSS,), design=design, look=1)))
        # A gain lacks its guard of failures alone, which eight seeds cannot close; a loss lacks nothing.
        assert verdict.next_look == expected


def test_a_difference_keeps_the_direction_in_which_it_was_shown():
    """Four clear losses of cost, then eight that turn the mean: neither is shown again, and *worse* never was."""
    base = 2.0 + 0.05 * np.sin(np.arange(12))
    costs = np.array([-0.050, -0.049, -0.051, -0.050, 0.30, -0.1, 0.25, 0.05, 0.28, -0.02, 0.2, 0.1])
    for sign, shown in ((1.0, "better"), (-1.0, "worse")):
        found = []
        for look, n in enumerate(LOOKS, start=1):
            values = {"none": base[:n], "v0": (base + sign * costs)[:n]}
            made = dataset(
                {"validation_loss": values}, (LOSS,), design=Design(looks=LOOKS, spending="pocock"), look=look
            )
            found.append(primaries(analyze(made))[0])
        assert [comparison.outcome for comparison in found] == [shown] * 3
        assert sign * found[-1].delta > 0
