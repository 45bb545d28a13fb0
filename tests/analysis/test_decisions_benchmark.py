"""benchmarks/decisions.py draws whole studies and counts what the rules answer: its table, its limits, and theory.

The whole grid is checked by `make decisions`, every night.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from ablationlab.records.verdict import Answer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark(load_benchmark):
    return load_benchmark("decisions")


def rows(benchmark):
    return [*benchmark.null(), *benchmark.different()]


def test_every_row_is_a_study_of_its_own_and_the_grid_has_what_can_be_registered(benchmark):
    made = rows(benchmark)
    assert len({row.key for row in made}) == len(made)
    studies = [row.study() for row in made]
    assert {study.design.spending for study in studies if study.design is not None} == {"obrien-fleming", "pocock"}
    assert {criterion.test for study in studies for criterion in study.criteria} >= {"sign-flip", "wilcoxon"}
    assert {criterion.correction for study in studies for criterion in study.criteria} >= {"holm", "bonferroni"}
    assert any(study.sweep is not None for study in studies)
    assert {len(study.variants) - 1 for study in studies} == {1, 2, 3, 4, 5, 8, 12}
    assert {criterion.variance for study in studies for criterion in study.criteria} == {"own", "shared"}
    assert {row.effect for row in made} == {0.0, 1.0, -1.0, 2.0, -2.0}
    assert set(benchmark.COLUMNS) == {answer.value for answer in Answer} | {benchmark.COUNTED}


def test_the_table_is_the_same_for_any_number_of_jobs(benchmark, tmp_path, monkeypatch, capsys):
    asked = ["benchmarks/decisions.py", "--studies", "50", "--rows", "Bonferroni|headline: one", "--check", "--out"]
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
    table = [line.removeprefix("| ").split(" | ") for line in printed.out.splitlines() if "headline" in line]
    assert sum(map(float, table[0][5:13])) == pytest.approx(100, abs=0.5)
    assert printed.out.count("Bonferroni") == 2


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
        for drawn, _ in replace(row, effect=effect).datasets(10, np.random.default_rng(1)):
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
            expected, left = {"plain better": 0, "plain worse": 0}, len(tests)
            for test in sorted(tests, key=lambda test: test.pvalue):
                if test.pvalue > 0.05 / left:
                    break
                expected["plain better" if test.statistic < 0 else "plain worse"], left = 1, left - 1
            assert dict(benchmark.plain(drawn, row.primary)) == expected
            claims |= {name for name, count in expected.items() if count}
    assert claims == {"plain better", "plain worse"}


def test_a_limit_is_broken_where_chance_does_not_explain_the_rate(benchmark):
    assert benchmark.broken(40, 800, benchmark.NOMINAL)
    assert not benchmark.broken(30, 800, benchmark.NOMINAL)
    row = next(row for row in benchmark.different() if (row.name, row.effect) == ("plain", 1.0))
    result = benchmark.Result(
        row, {"better": 70.0, "worse": 0.0, "same": 0.0, "unstable": 15.0, "more stable": 0.0, "H1b": 0.0}, 100
    )
    assert set(result.broken) == {"better", "unstable"}
    assert result.rate("better") == "**70.0**"


@pytest.mark.parametrize("name", ["loses its worst run", "5 % of all records missing", "-20 SD", "heavy tails"])
def test_runs_are_spoiled_as_the_row_says(benchmark, name):
    row = next(row for row in benchmark.null() if name in row.name and "skewed" not in row.name)
    ((drawn, spoiled),) = row.datasets(1, np.random.default_rng(3))
    gone = [run for run in spoiled.runs if run.state != "finished"]
    moved = [
        spoiled.values[arm][seed] - value
        for arm, by_seed in drawn.values.items()
        for seed, value in by_seed.items()
        if isinstance(spoiled.values[arm][seed], float) and spoiled.values[arm][seed] != value
    ]
    if name == "loses its worst run":
        ((variant, seed),) = [(run.variant, run.seed) for run in gone]
        losses = next(v for arm, v in drawn.values.items() if (arm.metric, arm.variant) == (row.primary, variant))
        assert losses[seed] == max(losses.values())
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
    rows = [row for row in benchmark.shared_different() if row.variants == 12 and row.seeds == 5 and row.effect == 2.0]
    found = {result.row.name: result.counts["better"] / result.studies for result in benchmark.results(rows, 400, 1)}
    assert 0.25 < found["own variance"] < 0.40
    assert 0.50 < found["shared variance"] < 0.68
    assert found["shared variance, one run of another variant +20 SD"] > 0.45
    assert found["shared variance, noise of `scoreboard`"] > found["own variance, noise of `scoreboard`"] + 0.1
