"""benchmarks/decisions.py draws whole studies and counts what the rules answer: its table, its limits, and theory.

The whole grid is checked by `make decisions`, every night.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from scipy import integrate, stats

import scenarios
from ablationlab.analysis.dataset import Arm
from ablationlab.records.settings import TUNED, Criterion
from ablationlab.records.verdict import Answer
from ablationlab.stats.results import Spending
from scenarios import Loss, Scenario
from simulated import SweptDataset

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark(load_benchmark):
    return load_benchmark("decisions")


def rows(benchmark):
    return [*benchmark.grid(), *benchmark.null(), *benchmark.different()]


def test_every_row_is_a_study_of_its_own_and_the_grid_has_what_can_be_registered(benchmark):
    made = rows(benchmark)
    assert len({row.key for row in made}) == len(made)
    studies = [row.study() for row in benchmark.grid()]
    criteria = [criterion for study in studies for criterion in study.criteria]
    assert {study.design.spending for study in studies if study.design is not None} == {*get_args(Spending)}
    for name in ("test", "correction", "variance", "role"):
        allowed = get_args(Criterion.model_fields[name].annotation)
        assert {getattr(asked, name) for asked in criteria} == {*allowed} - {"dunnett", "bootstrap"}  # refused
    assert {study.sweep.finer is not None for study in studies if study.sweep is not None} == {False, True}
    assert any(study.stability.diverged == "refuse" for study in studies)
    assert any(row.unpaired for row in made)
    assert {row.loss.name for row in benchmark.grid()} == {loss.name for loss in benchmark.LOSSES}
    assert {row.effect for row in made} == {0.0, 1.0, -1.0, 2.0, -2.0}
    assert set(scenarios.COLUMNS) == {answer.value for answer in Answer} | {scenarios.COUNTED}


def test_a_row_that_was_counted_is_not_drawn_again(benchmark, tmp_path):
    row = next(benchmark.null())
    (first,) = benchmark.results([row], 25, 1, benchmark.Counts(tmp_path / "counts"))
    (second,) = benchmark.results([row], 400, 1, benchmark.Counts(tmp_path / "counts"))
    assert second == first
    assert second.studies == 25


def test_the_table_is_the_same_for_any_number_of_jobs(benchmark, tmp_path, monkeypatch, capsys):
    asked = ["benchmarks/decisions.py", "--studies", "50", "--rows", "^bonferroni|heavy tails", "--check", "--out"]
    two, one = tmp_path / "two.md", tmp_path / "one.md"
    command = [sys.executable, *asked, two, "--jobs", "2"]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": "src"}, check=True, capture_output=True)
    monkeypatch.setattr(sys, "argv", [*asked, str(one)])
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    printed = capsys.readouterr()
    assert not ended.value.code
    assert printed.err.endswith("0 limits broken\n")
    assert one.read_text() == two.read_text() == printed.out
    assert printed.out.count("| bonferroni |") == 1
    table = [line.removeprefix("| ").split(" | ") for line in printed.out.splitlines() if "heavy tails" in line]
    assert sum(map(float, table[1][5:13])) == pytest.approx(100, abs=0.5)


def power(n, gain, sd, level):
    """Of *better*: the chance that a two-sided t-test rejects and the estimate is at least 1."""
    reach = stats.t.ppf(1 - level / 2, n - 1)

    def given(square):
        least = max(1.0, reach * sd * np.sqrt(square / (n - 1) / n))
        return stats.norm.sf((least - gain) / (sd / np.sqrt(n))) * stats.chi2.pdf(square, n - 1)

    return integrate.quad(given, 0, np.inf)[0]


@pytest.mark.parametrize(
    ("variants", "correction", "seeds", "effect"),
    [(1, "holm", 10, 1.0), (1, "holm", 5, 2.0), (2, "bonferroni", 5, 2.0)],
)
def test_better_is_given_as_often_as_the_power_of_the_t_test_says(benchmark, variants, correction, seeds, effect):
    plain = next(row for row in benchmark.different() if row.name == "plain")
    changes = benchmark.ALONE | {"criteria": [benchmark.ALONE["criteria"][0] | {"correction": correction}]}
    row = replace(plain, seeds=seeds, effect=effect, variants=variants, changes=changes)
    (result,) = benchmark.results([row], 400, 1)
    expected = power(seeds, effect, row.noise, 0.05 / variants)
    error = np.sqrt(expected * (1 - expected) / result.studies)
    assert result.studies == 200
    assert result.counts["better"] / result.studies == pytest.approx(expected, abs=4 * error)


def test_a_plain_t_claims_what_scipy_and_holm_reject(benchmark):
    row = next(row for row in benchmark.null() if row.name.startswith("skewed") and row.seeds == 10)
    claims = set()
    for effect in (0.0, 1.0, -1.0):
        asked = replace(row, effect=effect)
        for drawn, _ in asked.datasets(10, np.random.default_rng(1)):
            arms = {
                (arm.regime, arm.variant): [*by_seed.values()]
                for arm, by_seed in drawn.values.items()
                if arm.metric == "validation_loss"
            }
            tests = [
                stats.ttest_rel(values, arms[regime, "none"])
                for (regime, variant), values in arms.items()
                if variant != "none"
            ]
            expected, left = {"t: better": 0, "t: worse": 0}, len(tests)
            for test in sorted(tests, key=lambda test: test.pvalue):
                if test.pvalue > 0.05 / left:
                    break
                expected["t: better" if test.statistic < 0 else "t: worse"], left = 1, left - 1
            assert dict(row.t_events(drawn, "t", whole=True)) == expected
            claims |= {name for name, count in expected.items() if count}
    assert claims == {"t: better", "t: worse"}


@pytest.mark.parametrize("unpaired", [False, True])
def test_a_t_of_survivors_drops_pairs_and_of_independent_arms_runs(benchmark, unpaired):
    row = Scenario("one", 10, variants=1, unpaired=unpaired, loss=Loss("20 %", 0.2, 0.2), **benchmark.registered())
    for drawn, kept in row.datasets(20, np.random.default_rng(2)):
        arms = [dict(kept.values[Arm(row.primary, None, "default", arm)]) for arm in (row.first, "none")]
        there = [[seed for seed, value in arm.items() if isinstance(value, float)] for arm in arms]
        if unpaired:
            test = stats.ttest_ind(*([arm[seed] for seed in seeds] for arm, seeds in zip(arms, there, strict=True)))
        else:
            both = [seed for seed in there[0] if seed in there[1]]
            test = stats.ttest_rel(*([arm[seed] for seed in both] for arm in arms))
        found = row.t_events(kept, "t", whole=False)
        assert bool(found.total()) == (test.pvalue <= 0.05)
        assert all(isinstance(value, float) for arm in drawn.values.values() for value in arm.values())


def test_a_limit_is_broken_where_chance_does_not_explain_the_rate(benchmark):
    assert benchmark.broken(40, 800, 0.025)
    assert not benchmark.broken(30, 800, 0.025)
    row = next(row for row in benchmark.different() if (row.name, row.effect) == ("plain", 1.0))
    result = benchmark.Result(
        row, {"better": 70.0, "worse": 0.0, "same": 0.0, "unstable": 15.0, "more stable": 0.0, "H1b": 0.0}, 100
    )
    assert set(result.broken) == {"better", "unstable"}
    assert result.rate("better") == "**70.0**"


@pytest.mark.parametrize("name", ["the worst of each variant", "5 % of all records missing", "-20 SD", "heavy tails"])
def test_runs_are_spoiled_as_the_row_says(benchmark, name):
    row = next(row for row in rows(benchmark) if name in (row.loss.name, row.name) or name in row.name)
    ((drawn, spoiled),) = row.datasets(1, np.random.default_rng(3))
    gone = [run for run in spoiled.runs if run.state != "finished"]
    moved = [
        spoiled.values[arm][seed] - value
        for arm, by_seed in drawn.values.items()
        for seed, value in by_seed.items()
        if isinstance(spoiled.values[arm][seed], float) and spoiled.values[arm][seed] != value
    ]
    if name == "the worst of each variant":
        assert [run.variant for run in gone] == [*row.names]
        for run in gone:
            losses = drawn.values[Arm(row.primary, None, row.regime, run.variant)]
            assert losses[run.seed] == max(losses.values())
    elif name == "-20 SD":
        assert moved == [pytest.approx(-20 * row.noise * benchmark.EFFECT)]
    else:
        assert bool(gone) == ("missing" in name)
        assert {run.unstable for run in gone} <= {None}
        assert not moved


def test_noise_of_the_gallery_is_that_of_its_pairs(benchmark):
    for entry, regime in benchmark.ENTRIES:
        baseline, middle, *others = benchmark.spreads_of(entry, regime).values()
        assert baseline**2 + middle**2 == pytest.approx(2)  # as noisy as a row says
        louder = sum(other > middle for other in others)
        assert abs(louder - len(others) / 2) <= 1


def test_a_shared_variance_shows_more_and_an_absurd_run_of_another_takes_little(benchmark):
    asked = [row for row in (*benchmark.grid(), *benchmark.different()) if row.variants == 12 and row.effect == 2.0]
    asked = [row for row in asked if row.loss == Loss()]
    found = {result.row.name: result.counts["better"] / result.studies for result in benchmark.results(asked, 200, 1)}
    assert 0.2 < found["own variance"] < 0.46
    assert 0.44 < found["shared variance"] < 0.73
    assert found["shared variance, one run of another variant +20 SD"] > 0.38


@pytest.mark.parametrize("stages", ["one stage", "two stages"])
def test_a_sweep_is_judged_on_the_losses_of_the_rates_that_it_found(benchmark, stages):
    row = next(row for row in benchmark.grid() if row.name == f"tuned, {stages}" and row.effect == 2.0)
    quiet = replace(row, noise=1e-3)
    for dataset, _ in quiet.datasets(5, np.random.default_rng(1)):
        assert isinstance(dataset, SweptDataset)
        assert dataset.sweep.stages == (1 if stages == "one stage" else 2)
        arms = [dataset.values[Arm("validation_loss", None, TUNED, arm)].values() for arm in (row.first, "none")]
        gain = np.mean([*arms[1]]) - np.mean([*arms[0]])
        doubt = dataset.doubt_of(*(Arm("validation_loss", None, TUNED, arm) for arm in (row.first, "none")))
        assert abs(gain - 2 * benchmark.EFFECT) <= doubt.larger < 2 * benchmark.EFFECT
    lossy = replace(row, loss=benchmark.VARIANTS_ONLY)
    lost = Counter(
        run.variant
        for dataset, _ in lossy.datasets(50, np.random.default_rng(2))
        for run in dataset.runs
        if run.regime == TUNED and run.state == "diverged"
    )
    assert not lost["none"]
    if stages == "two stages":
        assert lost[row.first] / (50 * row.seeds) == pytest.approx(0.2, abs=0.07)
