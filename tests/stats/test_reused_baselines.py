"""What it does to reuse a baseline: the simulation behind docs/validation.md, with few labs."""

from __future__ import annotations

import numpy as np
import pytest

from ablationlab.stats import paired_t_test


@pytest.fixture(scope="module")
def benchmark(load_benchmark):
    return load_benchmark("reused_baselines")


def test_its_claims_are_those_of_the_paired_t_test(benchmark):
    rng = np.random.default_rng(1)
    variant, baseline = rng.normal(size=(200, 5)), rng.normal(0.7, size=(200, 5))
    better, worse = benchmark.claims(benchmark.t_of(variant, baseline), 5)
    tests = [paired_t_test(costs.tolist()).p <= 0.05 for costs in variant - baseline]
    assert (better | worse).tolist() == tests
    assert better.sum() > worse.sum()


def test_studies_on_one_baseline_are_wrong_as_often_and_together(benchmark):
    own, reused = (benchmark.together(np.random.default_rng(2), 20, 5, 4_000, reused=each) for each in (False, True))
    for better, worse in ((own[0], own[1]), (reused[0], reused[1])):
        assert 0.02 < better < 0.03
        assert 0.02 < worse < 0.03
    assert float(reused[2]) > 1.3 > float(own[2])
    assert reused[4] > own[4] + 0.02


def test_a_baseline_that_was_chosen_by_what_was_seen_makes_false_claims(benchmark):
    rows = {row[2]: row[3:] for row in benchmark.chosen(np.random.default_rng(3), 5, 0.0, 1_000)}
    assert 0.02 < rows["always"][0] < 0.03
    assert rows["after *better*"][0] > 0.08
    assert rows["half of the seeds"][0] > 0.08
    assert all(worse < 0.03 for _, worse in rows.values())
