"""The rows of benchmarks/decisions.py can be drawn and decided, and its fast version of the rules before is right."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablationlab.analysis import analyze
from ablationlab.analysis.dataset import Arm


@pytest.fixture(scope="module")
def benchmark(load_benchmark):
    return load_benchmark("decisions")


def test_every_row_is_a_study_and_says_what_is_in_play(benchmark):
    rows = list(benchmark.scenarios())
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    studies = [row.study() for row in rows]
    assert any(study.design is not None for study in studies)
    assert any(study.sweep is not None for study in studies)
    assert any(row.tasks is not None for row in rows)
    assert any(row.unpaired for row in rows)
    assert max(len(study.regimes) for study in studies) >= 8


@pytest.mark.parametrize(
    "name", ["unpaired, half break", "a guard at its margin", "6 tasks that gain 2", "each 2 times"]
)
def test_a_row_counts_its_events(benchmark, name):
    row = next(row for row in benchmark.scenarios() if name in row.name)
    now, before = benchmark.chunk_rates((row, 1.0, 0, 2))
    assert now["seeds"] == 2 * row.seeds
    assert all(0 <= count <= 2 for counts in (now, before) for event, count in counts.items() if event != "seeds")


@pytest.mark.parametrize(
    ("name", "design"), [("10 runs, SD 1.5, unpaired", "unpaired"), ("10 seeds, SD 1.5", "paired")]
)
def test_a_row_is_compared_by_its_design(benchmark, name, design):
    row = next(row for row in benchmark.scenarios() if row.name == name)
    (dataset,) = row.datasets(0.0, 1, np.random.default_rng(0))
    primaries = [comparison for comparison in analyze(dataset).comparisons if comparison.role == "primary"]
    assert {comparison.design for comparison in primaries} == {design}
    assert len(primaries) == 4


def test_the_rules_before_keep_the_baseline_where_scipy_and_holm_reject(benchmark):
    row = next(row for row in benchmark.scenarios() if row.name == "10 seeds, SD 1.5")
    kept = 0
    for dataset in row.datasets(-1.0, 20, np.random.default_rng(1)):
        places = [(regime, variant) for regime in dataset.regimes for variant in dataset.variants[1:]]
        arms = {
            (regime, variant): [
                list(dataset.values[Arm("validation_loss", None, regime, arm)].values()) for arm in (variant, "none")
            ]
            for regime, variant in places
        }
        p = {place: stats.ttest_rel(*pair).pvalue for place, pair in arms.items()}
        adjusted, largest = {}, 0.0
        for rank, place in enumerate(sorted(p, key=p.get)):
            largest = max(largest, p[place] * (4 - rank))
            adjusted[place] = largest
        decisions = benchmark.old_decisions(dataset)
        for place, pair in arms.items():
            rejected = adjusted[place] <= 0.05 and np.mean(pair[0]) > np.mean(pair[1])
            assert (decisions[place] == "keep-baseline") == rejected
            kept += rejected
    assert kept > 0
