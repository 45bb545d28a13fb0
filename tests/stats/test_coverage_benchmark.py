"""Simulation computes many samples at once; its formulas are compared with the package's, one by one."""

from __future__ import annotations

import pytest

from ablationlab.stats import paired_t_interval, sign_flip_test, simulation, wilcoxon_test

from .strategies import generator


@pytest.fixture(scope="module")
def coverage(load_benchmark):
    return load_benchmark("coverage")


@pytest.mark.parametrize("n", [3, 5, 8])
def test_vectorized_formulas_equal_the_package(n):
    x = generator(n).normal(0.5, 1, (20, n))
    low, high = simulation.t_bounds(x, 0.95)
    flips = simulation.flip_p(x, *simulation.sign_patterns(n, generator()))
    ranks = simulation.wilcoxon_p(x)
    for row, deltas in enumerate(x):
        interval = paired_t_interval(deltas)
        assert (low[row], high[row]) == pytest.approx((interval.low, interval.high))
        assert flips[row] == pytest.approx(sign_flip_test(deltas, rng=generator()).p)
        assert ranks[row] == pytest.approx(wilcoxon_test(deltas).p)


def test_a_small_run_gives_a_rate_for_every_cell(coverage):
    intervals, tests = simulation.simulate(coverage.DISTRIBUTIONS["normal"], 5, 300, generator(1))
    assert intervals["paired-t"].rate == pytest.approx(0.95, abs=0.05)
    assert intervals["percentile"].rate == pytest.approx(0.84, abs=0.07)
    assert tests["sign-flip"].rate == 0.0
    assert all(cell.total == 300 for cell in [*intervals.values(), *tests.values()])
