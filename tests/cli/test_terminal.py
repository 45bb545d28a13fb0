"""What the command line says around a study: widths, help, mistakes, what was assumed, and how long it will take."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from ablationlab.cli import common
from ablationlab.data.corpus import load_corpus
from ablationlab.instrument.costing import estimate as costing
from ablationlab.pipeline import Planned
from ablationlab.records.plan import Plan
from ablationlab.records.results import read_runs
from ablationlab.records.storage import ResultsFolder
from ablationlab.study.checks import assumptions, study_warnings
from ablationlab.study.load import parse_study
from ablationlab.study.plan import make_plan

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("verb", ["metrics", "presets", "variants", "probes"])
def test_output_through_a_pipe_honours_columns(cli, monkeypatch, verb, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, output, _ = cli(verb)
    assert code == 0
    assert max(map(cell_len, output.splitlines())) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_an_unknown_study_lists_the_names_most_like_it_within_the_width(cli, monkeypatch, study_file, width):
    for number in range(40):
        study_file(name=f"embedding-norm-of-many-{number}.toml")
    monkeypatch.setenv("COLUMNS", str(width))
    message = cli("plan", "embedding-norm-of-mani-7")[2]
    assert "did you mean 'embedding-norm-of-many-7'?" in " ".join(message.split())
    assert message.count("embedding-norm-of-many-") == 13  # the guess, and twelve
    assert "and 28 more" in " ".join(message.split())
    lines = message.splitlines()
    assert max(map(len, lines)) <= width
    assert all(line.startswith("    ") for line in lines[2:])


def test_a_command_to_copy_has_a_line_of_its_own_where_it_does_not_fit(monkeypatch, capsys):
    for width, lines in (
        (80, ["Train it with: ablationlab run study.toml"]),
        (30, ["Train it with:", "  ablationlab run study.toml"]),
    ):
        monkeypatch.setenv("COLUMNS", str(width))
        common.Printer().command("Train it with:", "ablationlab run study.toml")
        assert capsys.readouterr().out.splitlines() == lines


def test_check_fits_the_width(cli, monkeypatch):
    from ablationlab.instrument import own_code

    found = {"error": 0.000231, "parameter": "blocks.0.final_norm.gain.of.a.long.name"}
    tests = [own_code.CodeCheck("mlp gated", "gradients against differences", True, found)]
    monkeypatch.setattr(own_code, "check_code", lambda *_: tests)
    monkeypatch.setenv("COLUMNS", "80")
    code, output, _ = cli("check", "mine.py")
    assert code == 0
    assert max(map(cell_len, output.splitlines())) <= 80
    assert "(blocks.0.final_norm.gain.of.a.long.name)" in output


def test_only_the_first_page_of_help_speaks_of_debug(cli):
    assert "--debug" in cli("--help")[1]
    assert "--debug" not in cli("run", "--help")[1]


def test_the_usage_of_compare_names_its_arguments_and_the_sign_of_a_difference(cli):
    _, text, _ = cli("compare", "--help")
    assert "Usage: ablationlab compare [OPTIONS] A B [MORE...]\n" in text
    assert "ARGS" not in text
    assert "Δ = B − A" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (("ls",), "ls [FOLDER]"),
        (("init",), "init [OPTIONS] [FILE]"),
        (("probes",), "probes [RUN]"),
        (("replicate",), "replicate [OPTIONS] [TABLE]"),
        (("check",), "check FILES..."),
        (("paper",), "paper --out PATH [OPTIONS] RESULTS..."),
        (("data", "prepare"), "data prepare [OPTIONS] INPUTS..."),
    ],
)
def test_a_usage_names_every_argument_and_which_may_be_left_out_or_repeated(cli, words, usage):
    assert f"Usage: ablationlab {usage}\n" in cli(*words, "--help")[1]


def test_a_wrong_option_names_the_help_of_its_verb(cli):
    assert cli("run", "--foo")[2].endswith("See: ablationlab run --help\n")
    assert cli("data", "fetch")[2].endswith("See: ablationlab data fetch --help\n")


def test_a_misspelt_study_file_gets_the_nearest_one(cli, study_file):
    study_file(name="embedding-norm.toml")
    assert "did you mean 'embedding-norm.toml'?" in cli("status", "embeding-norm.toml")[2]
    assert "did you mean 'embedding-norm'?" in cli("status", "embeding-norm")[2]


def test_plan_says_what_the_study_file_leaves_open(study_table):
    table = study_table()
    table["training"] = {"steps": 40, "lr": 1e-3, "optimizer": "lion"}
    text = assumptions(parse_study(table))
    assert 'schedule = "warmup-cosine", warmup = 30' in text
    assert "optimizer" not in text
    assert "betas = [0.9,0.95]" in text


def test_plan_warns_of_few_seeds_and_of_a_warmup_that_takes_most_of_the_run(study_table):
    few = parse_study(study_table({"seeds": [1], "training.warmup": 8}))
    warnings = " ".join(study_warnings(few))
    assert "one seed: no interval and no test" in warnings
    assert "training.warmup = 8 is more than half of the 12 steps" in warnings
    enough = parse_study(study_table({"seeds": [1, 2, 3], "training.warmup": 2}))
    assert not [warning for warning in study_warnings(enough) if "seed" in warning or "warmup" in warning]


def test_a_study_that_takes_long_says_so_and_names_a_shorter_one(trained, tmp_path, monkeypatch):
    shutil.copy(ResultsFolder(trained.results).plan, tmp_path)  # planned, and nothing trained
    results = ResultsFolder(tmp_path)
    plan = Plan.read(results.plan)
    event = Planned(plan, results, read_runs(plan, results), "", None)
    assert common._long(event, None) == ""  # tiny: nothing is even timed
    monkeypatch.setattr(costing, "on_slow_machine", lambda plan, workers: costing.Estimate(9000.0, 0.0, "", 0, 0))
    monkeypatch.setattr(costing, "estimate", lambda plan, workers: costing.Estimate(3000.0, 1200.0, "", 0, 0))
    monkeypatch.chdir(STUDIES.parent)
    assert common._long(event, Path("embedding-norm")) == (
        "This study takes about 50 min to train and 20 min to score on this machine. "
        "Meanwhile, a shorter one: ablationlab run studies/quick.toml"
    )
    monkeypatch.setattr(
        costing, "estimate", lambda plan, workers: costing.Estimate(1600.0 / workers, 800.0 / workers, "", 0, 0)
    )
    assert common._long(replace(event, workers=8), None) == ""
    assert "takes about 27 min to train and 13 min to score" in common._long(replace(event, workers=1), None)


def test_the_quick_version_of_a_study_is_the_shorter_one(monkeypatch):
    monkeypatch.chdir(STUDIES.parent)
    quick = "studies/embedding-norm-stability-quick.toml"
    assert common.shorter_study(Path("embedding-norm-stability"), 1000.0) == quick


def test_where_no_quick_study_is_there_the_shorter_one_is_the_study_with_fewer_steps(study_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = study_file({"training.steps": 1000, "training.warmup": 2}, name="mine.toml")
    shorter = common.shorter_study(file, 1200.0)
    assert shorter == f"{file} --set training.steps=100 --out results/mine-short"
    assert (
        common.shorter_study(file, 120_000.0)
        == f"{file} --set training.steps=2 --set training.warmup=1 --out results/mine-short"
    )
    nameless = file.rename(tmp_path / "mine")
    assert common.shorter_study(nameless, 1200.0) == f"{nameless} --set training.steps=100 --out results/mine-short"
    (tmp_path / "quick.toml").write_text(nameless.read_text())
    assert common.shorter_study(nameless, 1200.0) == str(tmp_path / "quick.toml")  # beside it, wherever one works


def test_the_estimate_counts_what_scoring_reads(study_table):
    asked = {"tasks": ["spelling"], "fewshot": [0, 2], "items": 50, "gate_seeds": [7, 8, 9]}
    study = parse_study(study_table({"evaluation": asked, "model.context": 128, "seeds": [1, 2]}))
    plan = make_plan(study, load_corpus(study.data), "cpu")
    items = 2 * 50 * 128
    text = plan.corpus.validation_tokens
    for run in plan.runs:
        assert costing._scored_tokens(plan, run) == (2 * items if run.role == "gate" else items + text)
    assert {run.role for run in plan.runs} == {"compared", "gate"}


def test_a_study_that_is_long_even_by_arithmetic_is_timed(study_table, monkeypatch):
    study = parse_study(study_table({"training.steps": 20_000}))
    plan = make_plan(study, load_corpus(study.data), "cpu")
    arithmetic = costing.on_slow_machine(plan, 1)
    assert arithmetic.seconds > 6 * 20_000 * 8e-3  # steps of one layer take a slow machine 8 ms, whatever their FLOPs
    monkeypatch.setattr(costing, "_step_seconds", lambda plan, device: 0.001)
    assert costing.estimate(plan, 1).basis.startswith("from a training step timed here")
    assert costing.estimate(plan, 1).seconds == pytest.approx(6 * 20.0, rel=0.1)
