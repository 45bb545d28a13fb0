"""analyze, power and compare as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import warm
from ablationlab.records.analysis import Analysis, ItemComparison
from ablationlab.records.storage import ResultsFolder
from ablationlab.records.verdict import Verdict
from analysis.builder import build, outcome, study

FIXTURE = Path(__file__).parents[1] / "analysis" / "fixtures" / "lm_eval"
STUDY = Path(__file__).parents[2] / "studies" / "quick.toml"


def test_analyze_prints_a_table_and_writes_both_files(command, tmp_path):
    build(tmp_path / "r")
    code, printed, _ = command("analyze", "r")
    assert code == 0
    assert "◀ better: layernorm → adopt" in printed
    assert "deviates" not in printed
    assert "asked" not in printed
    analysis, verdict = Analysis.read(tmp_path / "r/analysis.json"), Verdict.read(tmp_path / "r/verdict.json")
    assert verdict.source_hash == analysis.source_hash
    before = (tmp_path / "r/analysis.json").read_bytes()
    code, printed, _ = command("analyze", "r", "--all")
    assert code == 0
    for words in ("layernorm − none", "adjusted p", "Guards", "Failures"):
        assert words in printed
    assert (tmp_path / "r/analysis.json").read_bytes() == before


def test_analyze_takes_another_folder_and_a_study_file(command, tmp_path):
    build(tmp_path / "r")
    code, printed, _ = command("analyze", "r", "--out", "elsewhere", "--study", STUDY)
    assert code == 0
    assert "changed criteria" in printed
    assert (tmp_path / "elsewhere/verdict.json").exists()
    assert not (tmp_path / "r/verdict.json").exists()


def test_analyze_shows_diverged_and_missing_runs(command, tmp_path):
    build(
        tmp_path / "r",
        outcomes=lambda v, r, s: None if (v, s) == ("none", 2) else outcome(v, r, s),
        only=lambda run: run.seed != 5,
    )
    code, printed, _ = command("analyze", "r")
    assert code == 0
    assert "8 of 10 runs ended · 1 diverged" in printed
    assert "missing runs · diverged runs" in printed
    code, printed, _ = command("analyze", "r", "--all")
    assert "runs default-none-s2" in " ".join(printed.split())


def test_analyze_of_a_tampered_plan_is_labelled_everywhere(command, tmp_path):
    build(tmp_path / "r")
    path = ResultsFolder(tmp_path / "r").plan
    data = json.loads(path.read_text())
    data["study"]["criteria"][0]["margin"] = 99.0
    path.write_text(json.dumps(data))
    code, printed, _ = command("analyze", "r")
    assert code == 0
    assert "exploratory 1 of 1" in printed
    assert "tampered plan" in printed
    assert {v.label for v in Verdict.read(tmp_path / "r/verdict.json").verdicts} == {"exploratory"}


def test_analyze_refuses_an_altered_file_and_takes_it_on_request_under_a_deviation(command, tmp_path):
    build(tmp_path / "r")
    path = tmp_path / "r/runs/default-layernorm-s1/result.json"
    path.write_text(path.read_text().replace('"validation_loss":', '"validation_loss": '))
    code, _, errors = command("analyze", "r")
    assert code == 2
    assert "runs/default-layernorm-s1/result.json" in errors
    assert "--accept-altered" in errors
    assert not (tmp_path / "r/verdict.json").exists()
    code, printed, _ = command("analyze", "r", "--accept-altered")
    assert code == 0
    assert "exploratory 1 of 1" in printed
    assert "altered records" in printed
    assert "default-layernorm-s1/result.json" in command("analyze", "r", "--accept-altered", "--all")[1]
    assert {v.label for v in Verdict.read(tmp_path / "r/verdict.json").verdicts} == {"exploratory"}


def test_text_from_records_is_never_markup(command, tmp_path):
    build(tmp_path / "r", study(name="[bold]x[/nope]"))
    code, _, errors = command("analyze", "r")
    assert (code, errors) == (0, "")


def test_analyze_a_csv(command, tmp_path):
    lines = [
        f"{v},{s},loss,{2 + s / 10 + d + 0.01 * (s % 2) * d}" for v, d in (("none", 0), ("ln", -1)) for s in range(5)
    ]
    (tmp_path / "runs.csv").write_text("variant,seed,metric,value\n" + "\n".join(lines))
    code, printed, _ = command("analyze", "runs.csv", "--baseline", "none", "--lower", "loss", "--out", "o")
    assert code == 0
    assert "exploratory 1 of 1" in printed
    assert "not registered" in printed
    assert "◀ better" in printed
    assert "spike" not in printed, "a table without curves says nothing of spikes"
    (judged,) = Verdict.read(tmp_path / "o/verdict.json").verdicts
    assert judged.answer == "better"
    assert not judged.confirmed, "nothing is known of its failures"
    assert command("analyze", "runs.csv", "--baseline", "none", "--lower", "loss")[0] == 0
    assert (tmp_path / "runs-analysis" / "verdict.json").read_bytes() == (tmp_path / "o/verdict.json").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nope.csv", "--baseline", "none", "--out", "o"], "no such file or results folder"),
        (["runs.csv"], "1 problem\n  - --baseline says which variant the others are compared with: none\n"),
        (["odd.csv"], "2 problems\n  - is not CSV at line 2: ',' expected after '\"'\n  - --baseline says"),
        (["runs.csv", "--baseline", "none", "--out", "o", "--alpha", "2"], "--alpha 2.0: must lie between"),
        (["r", "--baseline", "none"], "--baseline: a results folder is judged by what its plan registered"),
        (["r", "--alpha", "0.2", "--primary", "x"], "--primary, --alpha: a results folder"),
        (["empty"], "is not a results folder"),
    ],
)
def test_analyze_answers_mistakes_without_writing(command, tmp_path, arguments, says):
    (tmp_path / "runs.csv").write_text("variant,seed,metric,value\nnone,1,loss,2\n")
    (tmp_path / "odd.csv").write_text('variant,seed,loss\n"none" ,1,2\n')
    (tmp_path / "empty").mkdir()
    build(tmp_path / "r", study(seeds=[1]))
    code, printed, errors = command("analyze", *arguments)
    assert code == 2
    assert says in errors
    assert printed == ""
    assert not list(tmp_path.rglob("analysis.json"))


def test_power_prints_how_many_seeds_the_effects_need(command, tmp_path):
    code, printed, _ = command("power", STUDY, "--sd", "0.02")
    assert code == 0
    for words in ("What 3 seeds can show, with 80 % power", "needs", "same", "stays open below 18 seeds"):
        assert words in printed
    build(tmp_path / "pilot", study(variants=["none", "layernorm", "rmsnorm"]))
    code, printed, _ = command("power", STUDY, "--pilot", "pilot")
    assert code == 0
    assert "needs" in printed
    code, printed, _ = command("power", STUDY)
    assert code == 0
    assert ("--from" in printed, "needs" in printed) == (True, False)
    assert "4.62 SD" in printed  # two variants at three seeds
    assert command("power", STUDY, "--sd", "1", "--pilot", "pilot")[0] == 2


def test_compare_reads_real_lm_eval_samples(command, tmp_path):
    code, printed, _ = command("compare", FIXTURE / "none", FIXTURE / "layernorm", "--out", "o")
    assert code == 0
    for words in ("layernorm − none, 3 seeds", "tiny_colours (acc)", "macro average", "McNemar p", "crossed"):
        assert words in printed
    assert ItemComparison.read(tmp_path / "o/comparison.json").variant == "layernorm"
    code, printed, _ = command("compare", FIXTURE / "none/seed-1", FIXTURE / "layernorm/seed-1")
    assert code == 0
    assert "too few seeds" in printed


def test_compare_answers_mistakes(command, tmp_path):
    code, _, errors = command("compare", tmp_path, FIXTURE / "none")
    assert code == 2
    assert "--log_samples" in errors
    assert command("compare", FIXTURE / "none", FIXTURE / "none", "--alpha", "7")[0] == 2


def test_the_command_line_starts_without_the_statistics():
    import subprocess

    script = (
        "import sys, ablationlab.cli.app; sys.exit(any(m in sys.modules for m in ('scipy', 'statsmodels', 'numpy')))"
    )
    assert subprocess.run([warm.FRESH, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("form", ["json", "markdown", "csv", "latex"])
def test_every_form_prints_a_row_per_comparison(command, tmp_path, form):
    build(tmp_path / "r")
    assert command("analyze", "r")[0] == 0
    code, printed, errors = command("show", "r", "--format", form)
    assert (code, errors) == (0, "")
    many = len(Analysis.read(tmp_path / "r/analysis.json").comparisons)
    count = {"json": '"variant":', "markdown": "\n| ", "csv": "layernorm", "latex": r" \\"}[form]
    assert many <= printed.count(count) <= 3 * many + 2
    if form == "json":
        assert len(json.loads(printed)) == many


def test_quiet_prints_one_line_per_variant(command, tmp_path):
    build(tmp_path / "r")
    assert command("analyze", "r", "--quiet") == (0, "layernorm default better\n", "")
    assert command("show", "r", "--quiet") == (0, "layernorm default better\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--discordance", "2"], "--discordance 2.0: must lie"),
        (["--set", f"seeds={'[' * 5000}"], "nested more than"),
    ],
)
def test_power_refuses_what_it_could_only_choke_on(cli, words, said):
    code, _, errors = cli("power", STUDY, "--sd", "0.1", *words)
    assert (code, said in errors) == (2, True)
