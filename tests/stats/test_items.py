from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from ablationlab.core.errors import StatisticsError
from ablationlab.stats import crossed_bootstrap, item_bootstrap, item_pairs, mcnemar_tests

from .strategies import generator


def right_wrong(seed, seeds=5, items=400, gain=0.05):
    rng = generator(seed)
    reference = rng.random((seeds, items)) < 0.5
    variant = np.where(rng.random((seeds, items)) < 0.2, rng.random((seeds, items)) < 0.5 + gain, reference)
    return item_pairs(variant, reference)


def real_valued(seed, seeds=5, items=400):
    rng = generator(seed)
    effect = rng.normal(0, 0.1, (seeds, 1))
    return item_pairs(effect + rng.normal(0, 1, (seeds, items)), rng.normal(0, 0.2, (seeds, items)))


def brute_force(tasks, resamples, rng):
    """Crossed resamples drawn item by item: seeds jointly for all tasks, items within each."""
    deltas = [pairs.deltas for pairs in tasks.values()]
    means = np.empty((len(deltas), resamples))
    for r in range(resamples):
        seeds = rng.integers(0, len(deltas[0]), len(deltas[0]))
        for t, delta in enumerate(deltas):
            items = rng.integers(0, delta.shape[1], delta.shape[1])
            means[t, r] = delta[np.ix_(seeds, items)].mean()
    return means


def test_mcnemar_matches_statsmodels():
    pairs = right_wrong(1)
    for seed, result in enumerate(mcnemar_tests(pairs)):
        a, b = pairs.variant[seed], pairs.reference[seed]
        table = [[np.sum((a == i) & (b == j)) for j in (1, 0)] for i in (1, 0)]
        assert result.p == pytest.approx(mcnemar(table, exact=True).pvalue)
        assert (result.variant_only, result.reference_only) == (table[0][1], table[1][0])


def test_mcnemar_without_disagreement_is_no_evidence():
    (result,) = mcnemar_tests(item_pairs([1, 0, 1], [1, 0, 1]))
    assert (result.p, result.minimum_p) == (1.0, 1.0)


def test_mcnemar_refuses_scores_that_are_not_right_or_wrong():
    with pytest.raises(StatisticsError, match="variant must hold only 0 and 1"):
        mcnemar_tests(item_pairs([0.5, 1.0], [0.0, 1.0]))


@pytest.mark.parametrize("pairs", [right_wrong(2), real_valued(2)], ids=["right/wrong", "real-valued"])
def test_item_bootstrap_agrees_with_scipy_for_each_seed(pairs):
    intervals = item_bootstrap(pairs, rng=generator(3))
    assert len(intervals) == pairs.seeds
    for delta, interval in zip(pairs.deltas, intervals, strict=True):
        expected = stats.bootstrap((delta,), np.mean, method="percentile", rng=generator(4)).confidence_interval
        width = expected.high - expected.low
        assert interval.estimate == pytest.approx(delta.mean())
        assert (interval.low, interval.high) == pytest.approx(tuple(expected), abs=0.06 * width)


def test_item_bootstrap_of_identical_answers_is_degenerate():
    (interval,) = item_bootstrap(item_pairs([1, 0, 1], [1, 0, 1]), rng=generator())
    assert (interval.status, interval.low) == ("degenerate", None)


@pytest.mark.parametrize("make", [right_wrong, real_valued])
def test_crossed_bootstrap_has_the_distribution_of_drawing_items_one_by_one(make):
    tasks = {"a": make(5, items=150), "b": make(6, items=300)}
    result = crossed_bootstrap(tasks, resamples=20_000, rng=generator(7))
    means = brute_force(tasks, 6_000, generator(8))
    for interval, drawn in [
        *zip(result.tasks.values(), means, strict=True),
        (result.macro, means.mean(axis=0)),
    ]:
        expected = np.quantile(drawn, [0.025, 0.975])
        width = expected[1] - expected[0]
        assert (interval.low, interval.high) == pytest.approx(tuple(expected), abs=0.04 * width)


def test_macro_average_weighs_tasks_equally_and_keeps_their_common_seeds():
    rng = generator(9)
    effect = rng.normal(0, 0.3, (6, 1))
    tasks = {
        name: item_pairs(effect + rng.normal(0, 0.01, (6, items)), np.zeros((6, items)))
        for name, items in (("small", 20), ("large", 200))
    }
    result = crossed_bootstrap(tasks, rng=generator(10))
    assert result.macro.estimate == pytest.approx(np.mean([i.estimate for i in result.tasks.values()]))
    # The seeds are shared, so averaging tasks does not average the seed noise away.
    widths = {name: i.high - i.low for name, i in [*result.tasks.items(), ("macro", result.macro)]}
    assert widths["macro"] == pytest.approx(widths["large"], rel=0.1)


def test_crossed_bootstrap_is_wider_than_either_source_alone():
    pairs = right_wrong(11, items=200)
    crossed = crossed_bootstrap({"task": pairs}, rng=generator(12)).macro
    over_seeds = np.quantile(generator(13).choice(pairs.deltas.mean(axis=1), (10_000, 5)).mean(axis=1), [0.025, 0.975])
    pooled = item_bootstrap(item_pairs(pairs.variant.mean(axis=0), pairs.reference.mean(axis=0)), rng=generator())
    assert crossed.high - crossed.low > np.ptp(over_seeds)
    assert crossed.high - crossed.low > pooled[0].high - pooled[0].low


def test_same_seed_same_crossed_interval():
    tasks = {"a": right_wrong(14), "b": real_valued(14, items=300)}
    assert crossed_bootstrap(tasks, rng=generator(1)) == crossed_bootstrap(tasks, rng=generator(1))
    assert crossed_bootstrap(tasks, rng=generator(1)) != crossed_bootstrap(tasks, rng=generator(2))


def test_tiny_real_deltas_are_not_rounded_away():
    pairs = real_valued(15, items=50)
    tiny = item_pairs(pairs.variant * 1e-14, pairs.reference * 1e-14)
    whole = crossed_bootstrap({"t": pairs}, rng=generator(1)).macro
    small = crossed_bootstrap({"t": tiny}, rng=generator(1)).macro
    assert (small.low * 1e14, small.high * 1e14) == pytest.approx((whole.low, whole.high))


def test_two_seeds_give_no_crossed_interval():
    result = crossed_bootstrap({"t": right_wrong(16, seeds=2)}, rng=generator())
    assert result.macro.status == result.tasks["t"].status == "too-few-pairs"
    assert result.macro.low is None


def test_identical_arms_are_degenerate_and_do_not_hide_the_other_tasks():
    same = item_pairs(np.ones((3, 10)), np.ones((3, 10)))
    result = crossed_bootstrap({"same": same, "other": right_wrong(17, seeds=3)}, rng=generator())
    assert result.tasks["same"].status == "degenerate"
    assert result.tasks["other"].status == result.macro.status == "ok"
    assert crossed_bootstrap({"same": same}, rng=generator()).macro.status == "degenerate"


def test_unusable_item_scores_are_named():
    with pytest.raises(StatisticsError, match=r"reference\[\(1, 2\)\] is nan"):
        item_pairs(np.zeros((2, 3)), [[0, 0, 0], [0, 0, np.nan]])
    with pytest.raises(StatisticsError, match=r"got \(2, 3\) and \(2, 4\)"):
        item_pairs(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(StatisticsError, match="got \\(1, 0\\)"):
        item_pairs([], [])
    with pytest.raises(StatisticsError, match="tasks is empty"):
        crossed_bootstrap({}, rng=generator())
    with pytest.raises(StatisticsError, match=r"numbers of seeds \{'a': 3, 'b': 4\}"):
        crossed_bootstrap({"a": right_wrong(1, seeds=3), "b": right_wrong(1, seeds=4)}, rng=generator())
