from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablationlab.core.errors import StatisticsError
from ablationlab.stats import crossed_mean, crossed_means, item_pairs, paired_t_interval


def table(rng, seeds, items, seed_sd, item_sd, rest_sd):
    shape = (seeds, items)
    return seed_sd * rng.normal(size=(seeds, 1)) + item_sd * rng.normal(size=items) + rest_sd * rng.normal(size=shape)


def test_the_variance_is_that_of_the_two_way_table():
    delta = table(np.random.default_rng(1), 6, 30, 0.5, 1.0, 1.0)
    found = crossed_mean(delta)
    rows, columns = delta.mean(axis=1), delta.mean(axis=0)
    ms_seed, ms_item = 30 * rows.var(ddof=1), 6 * columns.var(ddof=1)
    ms_rest = ((delta - rows[:, None] - columns + delta.mean()) ** 2).sum() / (5 * 29)
    total = ms_seed + ms_item - ms_rest
    freedom = total**2 / (ms_seed**2 / 5 + ms_item**2 / 29 + ms_rest**2 / (5 * 29))
    assert found.degrees_of_freedom == pytest.approx(freedom)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(total / 180)
    assert (found.interval.low, found.interval.high) == pytest.approx((delta.mean() - half, delta.mean() + half))
    parts = found.seed_variance + found.item_variance + found.rest_variance
    assert parts == pytest.approx(total / 180)


def test_without_item_noise_it_is_paired_t_over_seeds():
    rng = np.random.default_rng(2)
    delta = rng.normal(size=(5, 1)) + 1e-9 * rng.normal(size=(5, 40))
    expected = paired_t_interval(delta.mean(axis=1))
    found = crossed_mean(delta)
    assert (found.interval.low, found.interval.high) == pytest.approx((expected.low, expected.high))
    assert found.degrees_of_freedom == pytest.approx(4)


def test_the_interval_excludes_zero_just_when_p_is_below_alpha():
    rng = np.random.default_rng(3)
    for _ in range(40):
        found = crossed_mean(0.25 + table(rng, 4, 50, 0.1, 0.5, 1.0))
        assert found.interval.excludes(0.0) == (found.p < 0.05)


@pytest.mark.parametrize("noise", [(1.0, 0.1, 0.3), (0.0, 1.0, 1.0), (0.15, 1.0, 1.0)], ids=["seeds", "items", "both"])
def test_coverage_is_near_what_it_says(noise):
    rng = np.random.default_rng(4)
    covered = np.mean([not crossed_mean(table(rng, 5, 60, *noise)).interval.excludes(0.0) for _ in range(600)])
    assert 0.92 <= covered <= 0.985


def test_weights_give_the_corpus_mean_and_the_error_of_a_ratio():
    rng = np.random.default_rng(5)
    delta, tokens = table(rng, 5, 40, 0.1, 1.0, 0.2), rng.integers(10, 500, 40)
    found = crossed_mean(delta, weights=tokens)
    assert found.interval.estimate == pytest.approx((delta @ tokens).mean() / tokens.sum())
    equal = crossed_mean(delta, weights=np.full(40, 7))
    assert equal.interval.low == pytest.approx(crossed_mean(delta).interval.low)
    # Against a bootstrap over documents, where they make the noise.
    means = []
    for _ in range(3000):
        chosen = rng.integers(0, 40, 40)
        means.append((delta[:, chosen] @ tokens[chosen]).mean() / tokens[chosen].sum())
    width = found.interval.high - found.interval.low
    assert np.std(means) * 2 * stats.t.ppf(0.975, found.degrees_of_freedom) == pytest.approx(width, rel=0.2)
    with pytest.raises(StatisticsError, match="weights"):
        crossed_mean(delta, weights=[1.0, 2.0])


def test_a_few_long_documents_count_as_few():
    """One of four documents has nearly all tokens: nearly nothing is known of other text."""
    rng = np.random.default_rng(8)
    delta = table(rng, 5, 40, 0.0, 1.0, 0.1)
    freedom = [crossed_mean(delta, weights=w).degrees_of_freedom for w in (np.ones(40), [*[1.0] * 38, 40.0, 40.0])]
    assert freedom[0] > 30
    assert freedom[1] < 5


@pytest.mark.parametrize("documents", [20, 50])
def test_coverage_holds_where_documents_have_unequal_lengths(documents):
    rng = np.random.default_rng(9)
    covered = 0
    for _ in range(500):
        tokens = np.exp(1.5 * rng.normal(size=documents))
        covered += not crossed_mean(table(rng, 5, documents, 0.0, 1.0, 0.3), weights=tokens).interval.excludes(0.0)
    assert covered / 500 >= 0.93


def test_a_macro_average_shares_seeds_and_adds_the_items_of_its_tasks():
    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(400):
        shared = 0.1 * rng.normal(size=(5, 1))
        tasks = {}
        for name, items in (("a", 30), ("b", 60), ("c", 90)):
            delta = shared + table(rng, 5, items, 0.05, 0.7, 1.0)
            tasks[name] = item_pairs(delta, np.zeros_like(delta))
        found = crossed_means(tasks)
        assert found.macro.interval.estimate == pytest.approx(
            np.mean([pairs.deltas.mean() for pairs in tasks.values()])
        )
        covered += not found.macro.interval.excludes(0.0)
    assert 0.92 <= covered / 400 <= 0.985
    one = crossed_means({"a": tasks["a"]})
    assert one.macro == one.tasks["a"]


def test_too_few_seeds_and_tables_without_noise_have_no_interval():
    assert crossed_mean(np.ones((2, 9))).interval.status == "too-few-pairs"
    assert crossed_mean(np.ones((4, 9))).interval.status == "degenerate"
    assert crossed_mean([0.1, 0.2, 0.3]).seeds == 1


@pytest.mark.parametrize("share", [1e6, 1e9, 1e18])
def test_of_two_items_one_with_nearly_all_of_the_weight_says_little(share):
    """Two items are one degree of freedom, whatever their weights."""
    deltas = np.random.default_rng(3).normal(size=(5, 2)) * 1e-3 + [0.0, 1.0]
    found = crossed_mean(deltas, weights=[share, 1.0])
    assert found.degrees_of_freedom == pytest.approx(1.0, rel=0.01)
    assert found.interval.low < -1 < 1 < found.interval.high
