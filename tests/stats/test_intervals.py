from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ablationlab.core.errors import StatisticsError, UnknownNameError
from ablationlab.stats import (
    all_intervals,
    bootstrap_interval,
    paired_deltas,
    paired_t_interval,
)
from ablationlab.stats._bootstrap import every

from .strategies import generator, paired_samples, quick

DELTAS = np.array([-0.21, 0.05, -0.4, -0.11, -0.35])
MANY = np.random.default_rng(5).exponential(size=25) - 0.8


def ends(interval):
    return interval.low, interval.high


def test_paired_t_matches_scipy():
    expected = stats.ttest_1samp(DELTAS, 0).confidence_interval(0.9)
    assert ends(paired_t_interval(DELTAS, level=0.9)) == pytest.approx(tuple(expected))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_enumerated_resamples_are_all_n_to_the_n_draws(n):
    drawn = every(n)
    seen: dict[tuple[float, ...], int] = {}
    for draw in itertools.product(range(n), repeat=n):
        key = tuple(np.bincount(draw, minlength=n).astype(float))
        seen[key] = seen.get(key, 0) + 1
    ours = {tuple(row): p for row, p in zip(drawn.counts, drawn.probability, strict=True)}
    assert ours.keys() == seen.keys()
    for key, number in seen.items():
        assert ours[key] == pytest.approx(number / n**n)
    assert drawn.total == n**n


def test_exact_percentile_is_the_quantile_of_all_resampled_means():
    means = np.sort([np.mean(draw) for draw in itertools.product(DELTAS, repeat=5)])
    expected = means[int(np.ceil(0.025 * 5**5)) - 1], means[-int(np.ceil(0.025 * 5**5))]
    interval = bootstrap_interval("percentile", DELTAS, rng=generator())
    assert interval.exact
    assert ends(interval) == pytest.approx(expected)


def test_exact_bootstrap_t_is_the_quantile_of_all_resampled_t():
    draws = np.array(list(itertools.product(DELTAS, repeat=5)))
    distance, flat = draws.mean(axis=1) - DELTAS.mean(), np.ptp(draws, axis=1) == 0
    with np.errstate(divide="ignore"):
        t = np.sort(distance / np.where(flat, 0.0, draws.std(axis=1, ddof=1) / np.sqrt(5)))
    k, error = int(np.ceil(0.025 * 5**5)), DELTAS.std(ddof=1) / np.sqrt(5)
    expected = DELTAS.mean() - t[-k] * error, DELTAS.mean() - t[k - 1] * error
    assert ends(bootstrap_interval("bootstrap-t", DELTAS, rng=generator())) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("percentile", "percentile"), ("bca", "BCa")],
    ids=["percentile", "bca"],
)
@pytest.mark.parametrize("deltas", [DELTAS, MANY], ids=["exact", "random"])
def test_bootstrap_agrees_with_scipy(ours, theirs, deltas):
    expected = stats.bootstrap(
        (deltas,), np.mean, n_resamples=60_000, method=theirs, rng=generator(3)
    ).confidence_interval
    interval = bootstrap_interval(ours, deltas, resamples=60_000, rng=generator(4))
    # Both have Monte-Carlo error beyond n = 8; at n = 5 the distribution has steps of about this size.
    assert ends(interval) == pytest.approx(tuple(expected), abs=0.02)


def test_bootstrap_approaches_t_for_many_normal_deltas():
    deltas = generator(7).normal(0.3, 1, 400)
    expected = ends(paired_t_interval(deltas))
    for interval in all_intervals(deltas, resamples=20_000, rng=generator(8)).values():
        assert ends(interval) == pytest.approx(expected, abs=0.01)


def test_bca_and_bootstrap_t_lean_towards_the_long_tail():
    symmetric = bootstrap_interval("percentile", MANY, rng=generator())
    for method in ("bca", "bootstrap-t"):
        assert bootstrap_interval(method, MANY, rng=generator()).high > symmetric.high


def test_paired_t_covers_95_percent_of_normal_samples_and_percentile_84():
    x = generator(11).normal(size=(1500, 5))
    covered = {"paired-t": 0, "percentile": 0}
    for deltas in x:
        covered["paired-t"] += paired_t_interval(deltas).excludes(0.0) is False
        covered["percentile"] += bootstrap_interval("percentile", deltas, rng=generator()).excludes(0.0) is False
    assert covered["paired-t"] / 1500 == pytest.approx(0.95, abs=0.02)
    assert covered["percentile"] / 1500 == pytest.approx(0.835, abs=0.03)


@pytest.mark.parametrize("deltas", [DELTAS, MANY], ids=["exact", "random"])
def test_same_seed_same_interval(deltas):
    once, again = (all_intervals(deltas, rng=generator(42)) for _ in range(2))
    assert once == again


def test_random_resamples_follow_the_generator():
    assert bootstrap_interval("percentile", MANY, rng=generator(1)) != bootstrap_interval(
        "percentile", MANY, rng=generator(2)
    )
    assert bootstrap_interval("percentile", DELTAS, rng=generator(1)) == bootstrap_interval(
        "percentile", DELTAS, rng=generator(2)
    )


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_pairs_give_no_interval(n):
    for interval in all_intervals(DELTAS[:n], rng=generator()).values():
        assert interval.low is interval.high is None
        assert interval.status == "too-few-pairs"
        assert interval.n == n
        assert interval.excludes(0.0) is None
        assert interval.estimate == pytest.approx(DELTAS[:n].mean())


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
def test_constant_deltas_give_a_labelled_result_not_a_zero_width(value):
    for interval in all_intervals(np.full(5, value), rng=generator()).values():
        assert interval.low is interval.high is None
        assert interval.status == "degenerate"
        assert interval.estimate == value


def test_bootstrap_t_is_unbounded_at_three_pairs():
    interval = bootstrap_interval("bootstrap-t", DELTAS[:3], rng=generator())
    assert interval.status == "unbounded"
    assert interval.low is interval.high is None
    # One third of the resamples of (0, 0, 0, 0, 1) hold zeros only.
    assert bootstrap_interval("bootstrap-t", [0.0, 0.0, 0.0, 0.0, 1.0], rng=generator()).status == "unbounded"


@quick
@given(paired_samples())
def test_swapping_arms_mirrors_every_interval_exactly(arms):
    forward = all_intervals(paired_deltas(*arms), resamples=200, rng=generator())
    backward = all_intervals(paired_deltas(*arms[::-1]), resamples=200, rng=generator())
    for name, interval in forward.items():
        mirrored = backward[name]
        assert interval.status == mirrored.status
        assert interval.estimate == -mirrored.estimate
        if interval.low is not None:
            assert (interval.low, interval.high) == (-mirrored.high, -mirrored.low)


@quick
@given(paired_samples(), st.randoms(use_true_random=False))
def test_permuting_pairs_changes_nothing(arms, shuffle):
    order = list(range(arms[0].size))
    shuffle.shuffle(order)
    before = all_intervals(paired_deltas(*arms), resamples=200, rng=generator())
    after = all_intervals(paired_deltas(arms[0][order], arms[1][order]), resamples=200, rng=generator())
    assert before == after


@quick
@given(paired_samples(), st.integers(-100, 100))
def test_adding_a_constant_to_both_arms_changes_nothing(arms, shift):
    before = all_intervals(paired_deltas(*arms), resamples=200, rng=generator())
    after = all_intervals(paired_deltas(arms[0] + shift, arms[1] + shift), resamples=200, rng=generator())
    assert before == after


@quick
@given(paired_samples(), st.sampled_from([0.001, 0.3, 7.0, 1e6]))
def test_scaling_the_deltas_scales_the_interval(arms, factor):
    deltas = paired_deltas(*arms)
    before = all_intervals(deltas, resamples=200, rng=generator())
    after = all_intervals(deltas * factor, resamples=200, rng=generator())
    for name, interval in before.items():
        assert after[name].status == interval.status
        if interval.low is not None:
            expected = (interval.low * factor, interval.high * factor)
            assert ends(after[name]) == pytest.approx(expected, rel=1e-9, abs=1e-9 * factor)


@quick
@given(paired_samples())
def test_a_higher_level_gives_a_wider_interval(arms):
    deltas = paired_deltas(*arms)
    narrow = all_intervals(deltas, level=0.8, resamples=200, rng=generator())
    wide = all_intervals(deltas, level=0.95, resamples=200, rng=generator())
    for name, interval in wide.items():
        if interval.low is not None:
            assert interval.low <= narrow[name].low <= narrow[name].high <= interval.high


def test_bad_arguments_are_named():
    with pytest.raises(StatisticsError, match=r"level must lie strictly between 0 and 1, got 95"):
        paired_t_interval(DELTAS, level=95)
    with pytest.raises(StatisticsError, match="resamples must be a whole number of at least 100, got 10"):
        bootstrap_interval("percentile", DELTAS, resamples=10, rng=generator())
    with pytest.raises(StatisticsError, match=r"deltas\[2\] is nan"):
        paired_t_interval([1.0, 2.0, np.nan])
    with pytest.raises(UnknownNameError, match="did you mean 'percentile'"):
        bootstrap_interval("percentil", DELTAS, rng=generator())
