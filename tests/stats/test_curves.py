"""Curves read at equal cost and at equal loss, by hand; and what two equal arms give."""

from __future__ import annotations

import numpy as np
import pytest

from ablationlab.stats import paired_t_interval
from ablationlab.stats.curves import POINTS, LossCurve, at_equal_cost, at_equal_loss, smoothed, thinned


def test_a_costlier_arm_is_read_where_the_cheaper_one_ends():
    reference = LossCurve.of([10, 20, 30, 40], [4.0, 3.0, 2.5, 2.2], 40)
    variant = LossCurve.of([15, 30, 45, 60], [3.9, 2.8, 2.2, 1.9], 60)
    found = at_equal_cost(variant, reference)
    assert found.delta == pytest.approx(2.8 - 0.6 * 10 / 15 - 2.2)
    assert (found.variant_share, found.reference_share) == pytest.approx((40 / 60, 1.0))


def test_nothing_is_read_beyond_the_ends_of_a_curve():
    late, early = LossCurve.of([50, 60], [2.0, 1.0], 60), LossCurve.of([10, 20], [4.0, 3.0], 20)
    assert at_equal_cost(late, early) is None
    assert early.at(5) is None
    assert early.at(25) is None
    assert early.reaches(2.9) is None
    assert early.reaches(4.5) is None  # reached before its first point: when, nobody knows
    assert early.reaches(3.5) == pytest.approx(15)


def test_tokens_to_one_loss_are_read_at_the_higher_final_loss():
    reference = LossCurve.of([10, 20, 30, 40], [4.0, 3.0, 2.5, 2.2], 40)
    variant = LossCurve.of([10, 20, 30, 40], [3.5, 2.4, 2.0, 1.8], 40)
    better, worse = at_equal_loss(variant, reference), at_equal_loss(reference, variant)
    assert better.ratio == pytest.approx((20 + 10 * 0.2 / 0.4) / 40)
    assert better.reached
    assert worse.ratio == pytest.approx(1 / better.ratio)
    assert not worse.reached


def test_smoothing_takes_the_mean_of_the_neighbours_that_there_are():
    losses = np.arange(100.0) ** 2
    found = smoothed(losses)
    assert found[50] == pytest.approx(losses[48:53].mean())
    assert found[0] == pytest.approx(losses[:3].mean())
    assert found[99] == pytest.approx(losses[97:].mean())
    assert smoothed([3.0, 1.0]).tolist() == [3.0, 1.0]


def test_equal_arms_are_found_equal_as_often_as_the_level_says():
    rng = np.random.default_rng(7)
    steps = np.arange(1, 101.0)
    outside = dict.fromkeys(["cost", "loss"], 0)
    studies = 600
    for _ in range(studies):
        values: dict[str, list[float]] = {"cost": [], "loss": []}
        for _ in range(5):
            shared = 2 + 2 * np.exp(-steps / 40) + rng.normal(0, 0.05)
            arms = [
                LossCurve.of(steps, shared + rng.normal(0, 0.02) + 0.01 * rng.standard_normal(100), 100)
                for _ in range(2)
            ]
            values["cost"].append(at_equal_cost(*arms).delta)
            values["loss"].append(np.log(at_equal_loss(*arms).ratio))
        for name, deltas in values.items():
            interval = paired_t_interval(deltas)
            outside[name] += not interval.low <= 0 <= interval.high
    for name, times in outside.items():
        assert times / studies == pytest.approx(0.05, abs=0.03), name


def test_a_thinned_curve_reads_like_the_whole_one():
    steps = np.arange(1.0, 5001)
    losses = 1.5 + 2.7 * np.exp(-steps / 700) + 0.04 * np.random.default_rng(0).standard_normal(5000)
    few, whole = thinned({"step": steps, "loss": losses}), LossCurve.of(steps, smoothed(losses), 5000)
    assert (few.metric, len(few.steps), few.steps[0], few.steps[-1]) == ("loss", POINTS, 1, 5000)
    kept = LossCurve.of(few.steps, few.losses, 5000)
    for cost in (800.0, 2000.0, 4999.0):
        assert kept.at(cost) == pytest.approx(whole.at(cost), abs=0.01)
    assert kept.reaches(2.0) == pytest.approx(whole.reaches(2.0), rel=0.02)


def test_the_validation_loss_is_kept_where_it_was_taken():
    steps = np.arange(1.0, 31)
    taken = np.where(steps % 10 == 0, 3.0 - steps / 100, np.nan)
    few = thinned({"step": steps, "loss": np.full(30, 9.0), "curve_loss": taken})
    assert (few.metric, few.steps, few.losses) == ("curve_loss", (10, 20, 30), (2.9, 2.8, 2.7))
    assert thinned({"step": steps[:1], "loss": np.array([2.0])}) is None
    assert thinned({}) is None
