from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import warm
from ablationlab import __version__
from ablationlab.cli.common import Printer
from ablationlab.core.processes import WorkerError
from ablationlab.model.machine import choose_device
from ablationlab.records.metrics import METRICS
from ablationlab.records.plan import Plan
from ablationlab.records.run import Result
from ablationlab.records.settings import PRESETS
from ablationlab.records.storage import ResultsFolder
from ablationlab.records.verdict import Answer
from ablationlab.study.load import load_study
from ablationlab.study.variants import VARIANTS

VERBS = {
    (): [
        *("data", "export", "metrics", "plan", "presets", "run", "status", "variants", "--debug"),
        *("init", "schema", "ls", "show", "diff", "open", "analyze", "compare", "power"),
    ],
    ("init",): ["FILE", "--name", "--question", "--baseline", "--variants", "--seeds", "--corpus", "--smallest-effect"],
    ("schema",): ["--out", "#:schema"],
    ("ls",): ["FOLDER"],
    ("show",): [
        "PLACE",
        "results/<study>/runs/<id>",
        "--guards",
        "--tasks",
        "--probes",
        "--all",
        "--format",
        "--quiet",
    ],
    ("diff",): ["A", "B", "plan.lock"],
    ("open",): ["RESULTS", "--part", "page, paper"],
    ("compare",): [
        "A",
        "B",
        "--baseline",
        "--metric",
        "--filter",
        "--allow-unpaired",
        "--out",
        "inspect_ai",
        "one family",
    ],
    ("analyze",): [
        *("RESULTS", "--baseline", "--variant", "--seed", "--regime", "--metric", "--where", "--run-names", "--at"),
        *("--unpaired", "--primary", "--lower", "--higher", "--log", "--out", "--study", "--all", "Welch"),
    ],
    ("trend",): ["RESULTS", "--variant", "--metric", "--regime", "--by", "--at", "--level"],
    ("plan",): ["STUDY", "--out", "--device", "auto, cpu, cuda", "--workers", "--set", "plan.lock"],
    ("run",): [
        "STUDY",
        "--out",
        "--device",
        "--workers",
        "--set",
        "--accept-drift",
        "--no-report",
        "Ctrl-C",
        "diverged",
    ],
    ("status",): ["STUDY", "--out", "--set"],
    ("variants",): ["formula"],
    ("presets",): ["parameter counts"],
    ("metrics",): ["unit"],
    ("data",): ["list", "fetch"],
    ("data", "list"): ["cache"],
    ("data", "fetch"): ["NAME", "checksum", "ABLATIONLAB_CACHE"],
    ("export",): ["RUN", "DIRECTORY", "from_pretrained"],
    ("replicate",): ["TABLE", "--results", "--out", "--study", "--quick", "--set", "--device", "--no-report", "Welch"],
}


def flat(text: str) -> str:
    """Without the line breaks and frames of a terminal's layout."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def refused(answer: tuple[int, str, str], *says: object, code: int = 2) -> str:
    """The error text of a command that was refused as it should be: one message, no traceback, nothing printed."""
    ended, output, errors = answer
    assert ended == code
    assert output == ""
    assert errors.startswith("error: ")
    assert errors.count("error: ") == 1
    assert "Traceback" not in errors
    assert "looks like a bug" not in errors
    for words in says:
        assert str(words) in errors
    return errors


# --- help, versions, imports ------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb) or "top")
def test_help_names_every_option_and_is_worth_reading(cli, verb):
    code, output, errors = cli(*verb, "--help")
    assert (code, errors) == (0, "")
    missing = [word for word in VERBS[verb] if word not in flat(output)]
    assert not missing, f"`ablationlab {' '.join([*verb, '--help'])}` no longer says {', '.join(missing)}"
    assert "--empty-" not in output, "a list that must be given has no option to empty it"


@pytest.mark.parametrize("verb", ["plan", "run", "status"])
def test_help_says_where_results_go(cli, verb):
    assert "results/<study name>" in flat(cli(verb, "--help")[1])


def test_help_says_what_folder_export_takes(cli):
    assert "results/<study>/runs/<id>" in flat(cli("export", "--help")[1])


def test_without_a_verb_the_help_is_shown(cli):
    assert cli() == cli("--help")


def test_the_version_is_the_one_of_the_package(cli):
    assert cli("--version")[:2] == (0, f"{__version__}\n")


LIGHT = """
import json, sys
from ablationlab.cli.app import main
at_import = [name for name in {heavy!r} if name in sys.modules]
try:
    main({arguments!r})
except SystemExit as ended:
    code = ended.code
after = [name for name in {heavy!r} if name in sys.modules]
print(json.dumps([at_import, after, code]), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["presets"], ["status", "STUDY"]])
def test_what_needs_no_torch_imports_none(study_file, tmp_path, arguments):
    arguments = [str(study_file()) if word == "STUDY" else word for word in arguments]
    heavy = ["torch", "scipy", "statsmodels", "transformers", "pandas"]
    code = LIGHT.format(heavy=heavy, arguments=arguments)
    answer = subprocess.run(
        [warm.FRESH, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(answer.stderr) == [[], [], 0]


REFUSED = """
import contextlib, io, sys
from ablationlab.cli.app import main
for study in sys.argv[1:]:
    with contextlib.redirect_stderr(io.StringIO()) as told, contextlib.suppress(SystemExit):
        main(["plan", study, "--out", "results", "--device", "cpu"])
    print(" ".join(told.getvalue().split()), [name for name in ("torch", "lm_eval", "scipy") if name in sys.modules])
"""


def test_what_torch_is_not_needed_for_is_refused_before_it_is_imported(study_file, tmp_path):
    """Torch alone takes longer to import than a mistake in a study file may take to be told (two seconds)."""
    choose_device("cpu")  # what torch says of the processor is in the cache
    refusals = {
        "about 60,000 runs; a study may have 20,000": {"seeds": {"first": 1, "count": 20_000}},
        "for weights, gradients and moments alone": {"model.layers": 20, "model.width": 30_000},
        "unknown task 'helaswag'": {"evaluation.tasks": ["helaswag"], "model.context": 128},
        "leaves 20 characters per item, and 22 are needed": {
            "evaluation.tasks": ["spelling"],
            "evaluation.fewshot": [2],
            "model.context": 64,
        },
    }
    studies = [study_file(changes, f"study-{number}.toml") for number, changes in enumerate(refusals.values())]
    answer = subprocess.run([warm.FRESH, "-c", REFUSED, *studies], cwd=tmp_path, capture_output=True, text=True)
    for words, told in zip(refusals, answer.stdout.splitlines(), strict=True):
        assert words in told
        assert told.endswith(" []")


def test_importing_the_command_line_imports_core_alone():
    code = (
        "import sys, ablationlab.cli.app; print([n for n in sys.modules if n.startswith(('ablationlab', 'pydantic'))])"
    )
    answer = subprocess.run([warm.FRESH, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    found = set(re.findall(r"'([\w.]+)'", answer.stdout))
    assert {".".join(name.split(".")[:2]) for name in found} == {"ablationlab", "ablationlab.cli", "ablationlab.core"}


# --- lists ------------------------------------------------------------------------------------------------


def test_variants_explains_each_with_its_formula(cli):
    code, output, _ = cli("variants")
    assert code == 0
    for name, variant in VARIANTS.items():
        line = next(line for line in output.splitlines() if line.split()[:1] == [name])
        assert variant.table.formula in line
    assert "x / sqrt(mean(x²) + 1e-6)" in output


def test_presets_have_their_true_parameter_counts(cli):
    code, output, _ = cli("presets")
    assert code == 0
    rows = {line.split()[0]: line for line in output.splitlines() if line.split()[:1] and line.split()[0] in PRESETS}
    assert set(rows) == set(PRESETS)
    assert "124,439,808" in rows["gpt2-small"]
    assert "354,823,168" in rows["gpt2-medium"]


def test_metrics_lists_every_metric(cli):
    code, output, _ = cli("metrics")
    assert code == 0
    assert set(METRICS) <= {line.split()[0] for line in output.splitlines() if line.strip()}


def test_data_list_says_what_is_in_the_cache(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    code, output, _ = cli("data", "list")
    assert code == 0
    line = next(line for line in output.splitlines() if line.startswith("tiny-shakespeare"))
    assert "1,115,394" in line
    assert "not fetched" in line


def test_data_fetch_without_network_or_cache_says_what_to_do(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ABLATIONLAB_OFFLINE", "1")
    refused(cli("data", "fetch", "tiny-shakespeare"), tmp_path / "cache", "1,115,394 bytes", "data.corpus=path/to")


# --- bad input: the study file ----------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["plan", "run", "status"])
def test_every_verb_reports_all_problems_of_a_study_at_once(cli, study_file, tmp_path, verb):
    path = study_file({"variants": ["none", "layernrom"], "model.heads": 3, "seeds": [], "training.lrr": 1})
    refused(
        cli(verb, path),
        f"{path}: 4 problems",
        "variants[1]: unknown variant (got 'layernrom'); did you mean 'layernorm'? (allowed: none, layernorm",
        "model.heads: 3 does not divide width = 16",
        "seeds: must not be empty",
        "training.lrr: unknown key; did you mean 'lr'? (allowed: steps",
    )
    assert not (tmp_path / "results").exists()


def test_a_real_process_ends_with_code_2_one_message_and_no_traceback(ablationlab, study_file):
    ended = ablationlab("plan", study_file({"model.preset": "gpt2-smal"}))
    text = refused((ended.returncode, ended.stdout, ended.stderr), "model.preset: unknown preset (got 'gpt2-smal')")
    assert "did you mean 'gpt2-small'?" in text


def test_debug_shows_the_traceback_and_still_fails(ablationlab, study_file):
    path = study_file({"model.width": -16})
    plain, debug = ablationlab("plan", path), ablationlab("plan", path, "--debug")
    assert "Traceback" not in plain.stderr
    assert "Traceback (most recent call last)" in debug.stderr
    assert "model.width: is out of range (got -16); allowed: at least 1" in debug.stderr
    assert debug.returncode != 0
    assert plain.returncode == 2


def test_a_missing_study_file_is_named(cli):
    refused(cli("run", "nowhere.toml"), "nowhere.toml: 1 problem", "no such study file")


def test_a_wrong_set_is_refused_with_the_nearest_key(cli, study_file):
    refused(cli("plan", study_file(), "--set", "training.stps=3"), "training.stps: unknown key", "did you mean 'steps'")
    refused(cli("plan", study_file(), "--set", "steps"), "--set: 1 problem", "'steps': expected key=value")


# --- bad input: the command -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pln", "STUDY"], 'Did you mean "plan"?'),
        (["plan"], "STUDY is missing"),
        (["plan", "study.toml", "--set"], "--set has no value"),
        (["paper", "results"], "--out is missing, or has no value"),
        (["metrics", "loss"], "`ablationlab metrics` takes no name or path: loss\n"),
        (["data", "list", "mine"], "`ablationlab data list` takes no name or path: mine\n"),
        (["export", ".", "target"], "is not a run's folder"),
        (["open", "."], "is not a results folder"),
        (["plan", "STUDY", "--device", "gpu"], "--device gpu: a GPU is called cuda here; allowed: auto, cpu, cuda"),
        (["plan", "STUDY", "--workers", "two"], "--workers two: expected a whole number"),
        (["plan", "STUDY", "--wrokers", "2"], "unknown option --wrokers; did you mean --workers?"),
        (["evaluate", "results", "--metric", "x"], "unknown option --metric\n"),
        (["paper", "results", "--out", "mine.pdf"], "--out mine.pdf: name a folder; the paper is mine/paper.pdf then"),
        (["export", "results", "--run", "none-s1"], "one argument too many, or in the wrong order: results"),
        (["verify", "tests/reprot"], "is not a results folder: there is no such folder"),
        (["plan", "STUDY", "--workers", "0"], "--workers 0: at least one process is needed"),
        (
            ["data", "fetch", "tiny-shakespear"],
            "'tiny-shakespear'; did you mean 'tiny-shakespeare'? (known: ",
        ),
        (["export", "no-such-run", "target"], "no-such-run: no such run folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_answered_in_one_message(cli, study_file, arguments, says):
    path = study_file()
    refused(cli(*(path if word == "STUDY" else word for word in arguments)), says)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_device_that_is_not_there_is_refused(cli, study_file):
    refused(cli("plan", study_file(), "--device", "cuda"), "--device cuda: this torch sees no CUDA GPU")
    tf32 = cli("plan", study_file({"training.precision": "tf32"}), "--device", "cpu")
    refused(tf32, "training.precision = 'tf32' exists on CUDA GPUs only")


def test_a_closed_pipe_ends_quietly(study_file, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "ablationlab", "variants"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert ended.stderr == ""


def test_an_output_that_cannot_show_every_sign_is_no_bug_of_the_program(ablationlab):
    ended = ablationlab("variants", env={"PYTHONIOENCODING": "ascii"})
    assert ended.returncode == 0
    assert "layernorm" in ended.stdout


# --- bad input: data --------------------------------------------------------------------------------------


def test_a_corpus_shorter_than_a_context_is_refused_before_anything_is_written(cli, study_file, tmp_path):
    answer = cli("run", study_file({"model.context": 3000}), "--device", "cpu")
    refused(answer, "corpus 'corpus.txt': its validation part has", "one context needs 3000 + 1")
    assert not (tmp_path / "results").exists()


def test_a_corpus_that_cannot_be_read_is_named(cli, study_file, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    refused(cli("plan", study_file({"data.corpus": "./latin.txt"})), tmp_path / "latin.txt", "not UTF-8 at byte 3")
    refused(cli("plan", study_file({"data.corpus": "./no.txt"})), tmp_path / "no.txt", "no such file or folder")
    refused(cli("plan", study_file({"data.corpus": "~no-such-user-here/a.txt"})), "data.corpus", "no such home")
    assert not (tmp_path / "results").exists()


# --- bad input: the results folder ------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["plan", "run", "status"])
def test_the_folder_of_another_study_is_refused_and_left_alone(cli, study_file, tmp_path, trained, verb):
    content = {path: path.stat().st_mtime_ns for path in trained.results.rglob("*")}
    answer = cli(verb, study_file({"name": "other"}), "--out", trained.results)
    refused(answer, f"{trained.results} holds another study", "'tiny'", "choose another folder with --out")
    assert {path: path.stat().st_mtime_ns for path in trained.results.rglob("*")} == content


def test_a_plan_that_was_tampered_with_is_refused(cli, trained, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    plan = json.loads((trained.results / "plan.lock").read_text())
    plan["execution"]["threads"] += 1
    (out / "plan.lock").write_text(json.dumps(plan))
    refused(cli("run", trained.study, "--out", out), out / "plan.lock", "was changed after it was sealed")
    (out / "plan.lock").write_text('{"kind": "pl')
    refused(cli("status", trained.study, "--out", out), out / "plan.lock", "cannot be read as JSON")


@pytest.mark.parametrize("place", ["tiny.toml", "tiny.toml/inner"])
def test_a_place_that_cannot_be_written_is_refused(cli, study_file, place):
    text = refused(cli("plan", study_file(), "--out", place, "--device", "cpu"), f"cannot write {place}/plan.lock: ")
    assert "--out" in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(cli, study_file, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    answer = cli("plan", study_file(), "--out", "locked/out", "--device", "cpu")
    refused(answer, "the folder cannot be written; choose another with --out")


def test_a_full_disk_fails_the_runs_in_words_and_loses_nothing(ablationlab, study_file, tmp_path, trained):
    study = study_file()
    out = tmp_path / "out"
    # Room for the runs' records and not for a checkpoint's weights; two workers, so that the errors cross processes.
    words = ["run", study, "--out", out, "--device", "cpu"]
    assert ablationlab("plan", *words[1:]).returncode == 0
    ended = ablationlab(*words, "--workers", "2", largest_file=12_000)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.stderr.startswith("error: some runs were not trained; run the same command again to continue")
    assert "the disk (or a quota on it) is full; free some space" in ended.stderr
    assert "looks like a bug" not in ended.stderr
    assert not list(out.rglob(".tmp-*"))
    assert not list(out.rglob("result.json"))
    again = ablationlab(*words, "--workers", "1")
    assert again.returncode == 0, again.stderr
    runs = sorted(path.name for path in (out / "runs").iterdir())
    assert runs == sorted(path.name for path in (trained.results / "runs").iterdir())
    for run in runs:
        ours, theirs = (folder / "runs" / run for folder in (out, trained.results))
        assert (ours / "metrics.jsonl").read_bytes() == (theirs / "metrics.jsonl").read_bytes()
        assert Result.read(ours / "result.json").weights_sha256 == Result.read(theirs / "result.json").weights_sha256


def test_a_full_disk_while_planning_leaves_no_plan(ablationlab, study_file, tmp_path):
    ended = ablationlab("plan", study_file(), "--out", "out", "--device", "cpu", largest_file=1000)
    refused((ended.returncode, ended.stdout, ended.stderr), "is full; free some space")
    assert list((tmp_path / "out").iterdir()) == []


def test_something_in_the_way_of_a_checkpoint_is_told_without_a_traceback(cli, trained, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(trained.results / "plan.lock", out)
    for run in Plan.read(out / "plan.lock").runs:
        (out / "runs" / run.id).mkdir(parents=True)
        (out / "runs" / run.id / "checkpoints").write_text("in the way")
    code, output, errors = cli("run", trained.study, "--out", out, "--workers", "1", "--accept-drift")
    assert code == 1
    assert "some runs were not trained" in errors
    assert "checkpoints" in errors
    assert "Traceback" not in output + errors


# --- a study from its first command to its last -----------------------------------------------------------


def test_status_before_planning_says_how_to_start_and_writes_nothing(cli, study_file, tmp_path):
    path = study_file()
    code, output, errors = cli("status", path)
    assert (code, errors) == (0, "")
    assert flat(output) == f"results/tiny: not planned yet. Start with: ablationlab run {path}"
    assert not (tmp_path / "results").exists()


def test_a_plan_says_how_many_runs_train_together(cli, study_file, tmp_path):
    seeds = f"seeds={list(range(1, 22))}"
    code, output, _ = cli("plan", study_file(), "--set", seeds, "--set", "execution.stack_width=4")
    assert code == 0
    plan = Plan.read(tmp_path / "results" / "tiny" / "plan.lock")
    assert f"runs {len(plan.runs)} · in {len(plan.stacks)} stacks of up to 4" in flat(output)
    assert plan.runs[0].id not in output


def test_plan_prints_runs_tokens_flops_parameters_time_and_disk(cli, study_file, tmp_path):
    code, output, errors = cli("plan", study_file(), "--device", "cpu", "--workers", "2")
    assert (code, errors) == (0, "")
    plan = Plan.read(tmp_path / "results" / "tiny" / "plan.lock")
    for run in plan.runs:
        assert f"{run.budget.parameters:,}" in output
    assert "none (baseline)" in output
    assert "runs 6 · 4,608 tokens" in flat(output)
    assert "regime" not in output  # there is one
    assert "FLOP of matrix products" in output
    estimated = (
        r"about 4\.\d s to train \(estimated for a slow machine; too short to be timed\) · disk [\d.]+ kB, at most"
    )
    assert re.search(estimated, flat(output))
    assert "processes 2" in output
    assert f"plan {plan.plan_hash[:12]}, study {plan.study_hash[:12]}" in output


def test_planning_twice_keeps_the_plan_and_other_settings_are_refused(cli, study_file, tmp_path):
    path = study_file()
    assert cli("plan", path, "--device", "cpu")[0] == 0
    lock = tmp_path / "results" / "tiny" / "plan.lock"
    content = lock.read_bytes()
    assert cli("plan", path, "--device", "cpu")[0] == 0
    refused(cli("plan", path, "--device", "cpu", "--set", "seeds=[3]"), "or this one with other settings: 'tiny'")
    assert lock.read_bytes() == content


def test_what_to_do_next_repeats_the_options_that_matter(cli, study_file):
    path = study_file()
    options = ["--out", "elsewhere", "--set", "seeds=[3]"]
    for verb in ("status", "plan"):
        advice = flat(cli(verb, path, *options)[1]).split("ablationlab run ")[-1]
        assert "--out elsewhere" in advice
        assert "seeds=[3]" in advice


def test_set_reaches_the_sealed_plan(cli, study_file, tmp_path):
    code, _, _ = cli("plan", study_file(), "--device", "cpu", "--set", "training.steps=5", "--set", "seeds=[8, 9]")
    assert code == 0
    plan = Plan.read(tmp_path / "results" / "tiny" / "plan.lock")
    assert plan.study.seeds == (8, 9)
    assert {run.budget.steps for run in plan.runs} == {5}


def test_run_trains_every_run_and_reports_each_arm(trained):
    results = ResultsFolder(trained.results)
    plan = Plan.read(results.plan)
    assert "tiny: 0 of 6 runs done" in trained.output
    for run in plan.runs:
        result = Result.read(results.run(run.id).result)
        assert (result.status, result.steps, result.tokens) == ("finished", 12, 768)
        assert f"{run.variant}-s{run.seed}: done" in trained.output
        loss = result.metrics["validation_loss"]
        assert loss is not None
        assert 0 < loss < 10
    assert "6 pairs of runs checked" in trained.output or "4 pairs of runs checked" in trained.output
    said = "|".join(answer.said for answer in Answer)
    assert len(re.findall(rf"^  rmsnorm .* ({said})", trained.output, re.MULTILINE)) == 1


def test_run_again_trains_nothing_and_tells_the_same(cli, trained):
    before = {path: path.read_bytes() for path in trained.results.rglob("*") if path.is_file()}
    code, output, errors = cli("run", trained.study, "--out", trained.results)
    assert (code, errors) == (0, "")
    assert "tiny: 6 of 6 runs done" in output
    assert output.split("  sealed ")[1] == trained.output.split("  sealed ")[1]
    assert {path: path.read_bytes() for path in trained.results.rglob("*") if path.is_file()} == before


def test_status_after_training_shows_every_run_with_its_loss(cli, trained):
    code, output, _ = cli("status", trained.study, "--out", trained.results)
    assert code == 0
    results = ResultsFolder(trained.results)
    for run in Plan.read(results.plan).runs:
        loss = Result.read(results.run(run.id).result).metrics["validation_loss"]
        assert re.search(rf"^{run.id} +finished +12 +12 +{loss:.4f} ", output, re.MULTILINE)


def test_another_environment_is_refused_unless_it_is_accepted(cli, trained, tmp_path):
    results = ResultsFolder(tmp_path / "out")
    plan = Plan.read(trained.results / "plan.lock")
    sealed = plan.environment.model_copy(update={"versions": {**plan.environment.versions, "torch": "1.0"}})
    old = plan.model_copy(update={"environment": sealed})
    old.sealed().create(results.plan)
    text = refused(
        cli("run", trained.study, "--out", results.path),
        "this is not the environment that the plan was sealed in",
        f"torch 1.0 -> {plan.environment.versions['torch']}",
        "--accept-drift",
    )
    assert "--out" in text
    assert not results.runs.exists()


def test_changed_data_is_refused_after_sealing(cli, study_file, tmp_path):
    path = study_file()
    assert cli("plan", path, "--device", "cpu")[0] == 0
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(corpus.read_text().upper())
    refused(
        cli("run", path),
        f"corpus '{corpus.name}' has changed since the plan was sealed",
        "restore it, or make a new plan",
    )


def test_a_damaged_result_is_named(cli, trained, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(trained.results, out)
    result = next(out.rglob("result.json"))
    result.write_bytes(result.read_bytes()[:-20])
    refused(cli("status", trained.study, "--out", out), f"{result} is not as it was sealed when its run ended")


def test_export_refuses_what_it_cannot_do_and_never_overwrites(cli, trained, tmp_path):
    runs = sorted((trained.results / "runs").iterdir())
    baseline = next(run for run in runs if run.name.startswith("none"))
    layernorm = next(run for run in runs if run.name.startswith("layernorm"))
    refused(cli("export", layernorm, "target"), "The nearest, GPT-2, has no place for the front end (norm = layernorm")
    assert not (tmp_path / "target").exists()
    assert cli("export", baseline, "target")[:2] == (0, "Written to target\n")
    written = {path.name for path in (tmp_path / "target").iterdir()}
    assert written == {"config.json", "model.safetensors", "characters.json"}
    refused(cli("export", baseline, "target"), "target exists already; an export never overwrites")
    refused(cli("export", trained.results, "other"), f"{trained.results} is not a run's folder")


@pytest.mark.parametrize("study", sorted((Path(__file__).parents[2] / "studies").glob("*.toml")), ids=lambda p: p.stem)
def test_the_status_of_a_shipped_study_names_its_folder(cli, study):
    code, output, _ = cli("status", study)
    assert code == 0
    assert f"results/{load_study(study).name}: not planned yet" in flat(output)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        WorkerError("RuntimeError: [enforce fail at alloc_cpu.cpp:113] data. DefaultCPUAllocator: not enough memory"),
    ],
)
def test_memory_that_ends_outside_training_is_no_bug(cli, monkeypatch, error):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("ablationlab.study.places.find_results", fail)
    code, _, printed = cli("verify", "results")
    assert code == 1
    assert "has no memory left" in printed
    assert "looks like a bug" not in printed


def test_names_between_colons_are_printed_as_they_are(cli, tmp_path, capsys):
    _, _, printed = cli("verify", tmp_path / "a:cat:b")
    assert "a:cat:b" in printed
    Printer().text("a:cat:b", wrap=False)
    assert "a:cat:b" in capsys.readouterr().out


def test_a_pipe_as_a_study_is_refused_and_nothing_waits_for_its_writer(cli, tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    code, _, errors = cli("power", tmp_path / "pipe.toml", "--sd", "0.1")
    assert (code, "is not a regular file" in errors) == (2, True)


@pytest.mark.parametrize(
    "words", [["analyze", "pipe.csv"], ["replicate", "pipe.toml"], ["plan", "uses.toml"], ["plan", "texts.toml"]]
)
def test_a_pipe_in_the_place_of_any_file_is_refused(cli, study_file, tmp_path, words):
    for name in ("pipe.csv", "pipe.toml", "pipe.py", "pipe.md"):
        os.mkfifo(tmp_path / name)
    study_file({"use": ["./pipe.py"]}, name="uses.toml")
    study_file({"text": "./pipe.md"}, name="texts.toml")
    code, _, errors = cli(*words)
    assert code == 2
    assert "pipe." in errors
    assert "looks like a bug" not in errors


@pytest.mark.parametrize("words", [["trend", "x" * 5000], ["power", "\x1b[31mred.toml"]])
def test_names_in_errors_are_neither_bugs_nor_obeyed_by_the_terminal(cli, words):
    code, _, errors = cli(*words)
    assert code == 2
    assert "looks like a bug" not in errors
    assert "\x1b" not in errors
    assert len(errors) < 500


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "uses.toml"],
        ["plan", "tasks.toml"],
        ["plan", "texts.toml"],
        ["plan", "corpus.toml"],
        ["plan", "loop.toml"],
        ["check", "loop.py"],
        ["data", "prepare", "loop.txt", "--out", "prepared"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("home", [False, True], ids=["loop", "home of nobody"])
def test_a_path_that_leads_nowhere_is_no_bug(cli, study_file, tmp_path, words, home):
    for name in ("loop.py", "loop.yaml", "loop.txt", "loop.md", "loop.toml"):
        (tmp_path / name).symlink_to(name)
    place = "~nobody-of-this-name" if home else "."
    study_file({"use": [f"{place}/loop.py"]}, name="uses.toml")
    study_file({"evaluation.tasks": [f"{place}/loop.yaml"]}, name="tasks.toml")
    study_file({"text": f"{place}/loop.md"}, name="texts.toml")
    study_file({"data.corpus": f"{place}/loop.txt"}, name="corpus.toml")
    words = [f"{place}/{word}" if home and word.startswith("loop") else word for word in words]
    code, _, errors = cli(*words)
    assert (code, "looks like a bug" in errors) == (2, False)
    assert "loop." in errors
    assert "did you mean 'loop" not in errors


@pytest.mark.parametrize("verb", ["run", "evaluate"])
def test_with_too_little_address_space_training_and_scoring_are_refused(trained, tmp_path, verb):
    """Torch, Arrow and the harness die of a signal where they cannot map what they need."""
    folder = shutil.copytree(trained.results, tmp_path / "results")
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9))\n"
    start = [warm.FRESH, "-c", f"{limited}from ablationlab.cli import main; main()"]
    done = subprocess.run([*start, verb, folder], capture_output=True, text=True, check=False, timeout=300)
    what = "training" if verb == "run" else "scoring"
    assert (done.returncode, f"{what} needs at least 1.50 GB" in " ".join(done.stderr.split())) == (2, True)
