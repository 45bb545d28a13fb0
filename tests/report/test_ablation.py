"""The ablation table: the numbers of the analysis and the answers of the verdict."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
import subprocess
from pathlib import Path
from statistics import fmean, stdev

import pytest

from ablationlab.records.analysis import TunedMinimum
from ablationlab.records.metrics import METRICS
from ablationlab.records.results import Results
from ablationlab.records.settings import TUNED
from ablationlab.report.make import with_analysis
from ablationlab.report.tables import ablation_table
from ablationlab.report.tables.ablation import arm_table
from ablationlab.stats.results import FittedMinimum
from analysis.builder import build, outcome, study
from report.maker import made, sweep


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return made(tmp_path_factory.mktemp("ablation"))


def test_each_arm_has_its_mean_and_the_interval_that_decides(results: Results):
    analysis = results.analysis
    table = ablation_table(analysis, results.verdict)
    rows = {row["variant"]: row for row in csv.DictReader(io.StringIO(table.csv()))}
    assert list(rows) == ["none", "layernorm", "rmsnorm"]
    for variant in ("layernorm", "rmsnorm"):
        comparison = analysis.comparison("validation_loss", "default", variant, "none")
        row = rows[variant]
        assert float(row["mean"]) == comparison.variant_mean
        deciding = comparison.deciding
        shown = (float(row["low"]), float(row["high"]), float(row["level"]))
        assert shown == (deciding.low, deciding.high, deciding.level)
        judged = next(verdict for verdict in results.verdict.verdicts if verdict.variant == variant)
        assert row["answer"] == judged.answer
        assert deciding.level != comparison.intervals[comparison.interval].level
    assert rows["none"]["answer"] == "baseline"
    assert (
        float(rows["none"]["mean"])
        == analysis.comparison("validation_loss", "default", "layernorm", "none").reference_mean
    )
    assert "corrected by Holm for 2 tests" in table.note


@pytest.mark.needs("pdflatex")
@pytest.mark.parametrize("options", ["", "[twocolumn]"])
def test_the_copied_latex_compiles_with_the_packages_it_names_and_fits_the_text(results: Results, tmp_path, options):
    text = ablation_table(results.analysis, results.verdict).latex()
    packages = text.partition("\n")[0].removeprefix("% Needs ").removesuffix(".")
    source = f"\\documentclass{options}{{article}}\n{packages}\n\\begin{{document}}\n{text}\\end{{document}}\n"
    (tmp_path / "table.tex").write_text(source)
    made = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "table"], cwd=tmp_path, check=False, capture_output=True, timeout=120
    )
    assert not re.findall(r"^!.*|Overfull .hbox.*", made.stdout.decode(errors="replace"), re.MULTILINE)


def test_an_arms_mean_is_over_its_own_runs_where_those_of_others_are_missing(tmp_path: Path):
    def ended(variant: str, regime: str, seed: int):
        return None if variant == "layernorm" and seed > 3 else outcome(variant, regime, seed)

    build(tmp_path, study(seeds=[*range(1, 9)]), outcomes=ended)
    results = with_analysis(Results.open(tmp_path), say=lambda text: None)
    table = ablation_table(results.analysis, results.verdict)
    rows = {row["variant"]: row for row in csv.DictReader(io.StringIO(table.csv()))}
    losses = [outcome("none", "default", seed)["validation_loss"] for seed in range(1, 9)]
    assert float(rows["none"]["mean"]) == pytest.approx(fmean(losses))
    assert float(rows["none"]["sd"]) == pytest.approx(stdev(losses))
    assert [rows[arm]["n"] for arm in ("none", "layernorm")] == ["8", "3"]
    assert table.note.startswith("Mean ± SD over 3 to 8 seeds.")
    assert table.note.endswith(" Δ over pairs in which both runs have a value.")
    arms = next(
        csv.DictReader(io.StringIO(arm_table(results.analysis).csv()))
    )  # what the paper's headline table prints
    assert (arms["metric"], arms["none_n"], arms["none_mean"]) == ("validation_loss", "8", rows["none"]["mean"])


def test_the_rates_of_tuned_arms_are_told_beside_their_numbers(results: Results):
    assert "Tuned arms" not in ablation_table(results.analysis, results.verdict).note
    swept = sweep().model_copy(update={"tuned_at": "fitted-minima"})
    tuned = [comparison.model_copy(update={"regime": TUNED}) for comparison in results.analysis.comparisons]
    analysis = results.analysis.model_copy(update={"sweep": swept, "comparisons": tuple(tuned)})
    note = ablation_table(analysis, None).note
    assert note.endswith("Tuned arms: validation loss at each arm's fitted best rate.")


def test_runs_at_another_rate_than_that_of_the_loss_do_not_stand_beside_it(results: Results):
    """Rates 1e-3 and 3e-3: of layernorm, whose best rate is fitted at 2.99e-3, the runs at the chosen 1e-3 are others."""
    fits = {"none": 2e-3, "layernorm": 2.99e-3, "rmsnorm": 1e-3}
    minima = [
        TunedMinimum(variant=arm, minimum=FittedMinimum(status="ok", lr=rate, window=(), values=(2.0,)))
        for arm, rate in fits.items()
    ]
    swept = sweep().model_copy(update={"tuned_at": "fitted-minima", "minima": tuple(minima)})
    assert [arm for arm in fits if swept.chosen_elsewhere(arm)] == ["layernorm"]
    tuned = {"regime": TUNED}
    arms = tuple(arm.model_copy(update=tuned) for arm in results.analysis.stability.arms)
    changes = {
        "sweep": swept,
        "comparisons": tuple(comparison.model_copy(update=tuned) for comparison in results.analysis.comparisons),
        "stability": results.analysis.stability.model_copy(update={"arms": arms}),
    }
    table = ablation_table(results.analysis.model_copy(update=changes), None)
    shown = {row["variant"]: row["unstable"] for row in csv.DictReader(io.StringIO(table.csv()))}
    assert shown == {"none": "0", "layernorm": "", "rmsnorm": "0"}
    assert table.note.endswith(
        " Left out: unstable runs of layernorm, whose chosen rate is a step of the sweep or more away from the fitted "
        "best one."
    )


def test_one_run_per_arm_is_no_mean_and_has_no_interval(tmp_path: Path):
    results = made(tmp_path, seeds=[1])
    note = ablation_table(results.analysis, results.verdict).note
    assert note.startswith("One run per arm. Δ: arm − none, paired by seed; too few for an interval.")
    assert {verdict.answer for verdict in results.verdict.verdicts} == {"undecided"}


def test_it_has_columns_only_for_what_was_measured(results: Results):
    table = ablation_table(results.analysis, results.verdict)
    printed = {column.key for column in table.columns if column.printed}
    assert printed == {"variant", "mean", "delta", "low", "unstable", "answer"}
    assert table.markdown().startswith("| Variant | Validation loss (nats/token) | Δ | Interval |")
    assert r"\toprule" in table.latex()


def test_an_answer_that_was_not_registered_says_so(tmp_path: Path):
    def cells(results: Results) -> list[str]:
        table = ablation_table(results.analysis, results.verdict)
        return [row[-1].whole for row in table.rows[1:]]

    assert all("exploratory" in cell for cell in cells(made(tmp_path / "none", criteria=[])))
    assert not any("exploratory" in cell for cell in cells(made(tmp_path / "some")))


def test_a_study_of_many_regimes_has_a_row_for_each_arm_in_each(tmp_path: Path):
    regimes = {f"r{rate}": {"training": {"lr": rate * 1e-3}} for rate in (2, 3, 4, 5)}

    build(tmp_path, study(regimes=regimes))
    results = with_analysis(Results.open(tmp_path), say=lambda text: None)
    table = ablation_table(results.analysis, results.verdict)
    assert [row[1].text for row in table.rows] == [name for name in ("default", *regimes) for _ in range(2)]


def test_a_crowded_table_shows_what_is_registered_and_names_the_rest(tmp_path: Path):
    criteria = [{"metric": "validation_loss", "role": "primary", "regime": "hot"}]
    build(tmp_path, study(regimes={"hot": {"training": {"lr": 0.01}}}, criteria=criteria))
    results = with_analysis(Results.open(tmp_path), say=lambda text: None)
    every = ablation_table(results.analysis, results.verdict, most=2)
    crowded = ablation_table(results.analysis, results.verdict, most=1)
    assert {row[1].text for row in every.rows} == {"hot", "default"}
    assert {row[1].text for row in crowded.rows} == {"hot"}
    assert crowded.note.endswith("Regimes that are not registered are in the other tables: default.")


def test_the_note_says_what_a_speed_was_measured_by(tmp_path):
    bare = made(tmp_path).analysis
    speeds = [
        c.model_copy(update={"metric": "training_speed", "id": c.id.replace("validation_loss", "training_speed")})
        for c in bare.comparisons
        if c.metric == "validation_loss"
    ]
    ours = METRICS["training_speed"]

    def with_speed(metric):
        metrics = {**bare.metrics, "training_speed": metric}
        return bare.model_copy(update={"comparisons": (*bare.comparisons, *speeds), "metrics": metrics})

    timed, reported = with_speed(ours), with_speed(dataclasses.replace(ours, family="training_speed"))
    told = "Speed: a benchmark of its own after training"
    assert told in ablation_table(timed, None).notes
    assert told not in ablation_table(bare, None).notes
    assert told not in ablation_table(reported, None).notes, "a trainer of the user's own reported it"
    assert told not in ablation_table(timed.model_copy(update={"source": "table"}), None).notes
