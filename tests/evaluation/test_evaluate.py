"""`evaluate` as a user meets it: a trained study, its records, what is done again and what is not, what goes wrong."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warm
from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.verdict import decide
from ablationlab.analysis.wording import deviation
from ablationlab.data.corpus import load_corpus
from ablationlab.evaluation import Measurement, ProcessTaskBuilder, ScoringQueue, evaluate
from ablationlab.evaluation.context import task_folder
from ablationlab.pipeline import run
from ablationlab.records.evaluation import SAMPLE_COLUMNS, Evaluation, Suite, suite_path
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results
from ablationlab.records.run import Checkpoint, Result
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.layout import TerminalTable
from ablationlab.report.tables.tasks import task_table
from ablationlab.tasks import TaskRequest
from ablationlab.tasks.harness_tasks import _documents_hash
from analysis.builder import seal_again
from conftest import run_here, to_toml

from .hub import hub
from .play import play

pytestmark = pytest.mark.filterwarnings("ignore")
STUDY = {
    "name": "evaluated",
    "baseline": "none",
    "variants": ["none", "layernorm"],
    "seeds": [1, 2, 3],
    "model": {"layers": 1, "width": 32, "heads": 2, "context": 64},
    "training": {"steps": 60, "batch": 8, "lr": 5e-3, "warmup": 4, "precision": "fp32"},
    "data": {"corpus": "./play.txt"},
    "execution": {"checkpoint_every": 20, "threads": 1},
    "evaluation": {"tasks": ["spelling", "last-word"], "items": 80, "gate_seeds": [11, 12, 13]},
    "criteria": [],
}


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six runs and three of the gate, trained and evaluated by one `run`; not to be changed."""
    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "play.txt").write_text(play(60_000))
    text = to_toml({key: value for key, value in STUDY.items() if key != "criteria"})
    text += '\n[[criteria]]\nmetric = "macro_accuracy"\nrole = "primary"\nsmallest_effect = 0.05\n'
    text += '\n[[criteria]]\nmetric = "token_ece"\nrole = "guard"\nmargin = 0.05\n'
    text += (
        '\n[[hypotheses]]\nname = "H0"\nstatement = "Nothing changes."\nrule = "no-change"\nmetric = "macro_accuracy"\n'
    )
    (folder / "study.toml").write_text(text)
    words = ["run", "study.toml", "--out", "results", "--workers", "1", "--device", "cpu"]
    code, output, errors = run_here(*words, folder=folder)
    assert code == 0, output + errors
    assert "runs scored" in output
    return folder / "results"


@pytest.fixture
def copy(evaluated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(evaluated, tmp_path / "results"))


def evaluations(results: Path) -> dict[str, Evaluation]:
    return {path.parent.name: Evaluation.read(path) for path in sorted(results.glob("runs/*/evaluation.json"))}


def test_every_run_has_its_record_and_its_items_and_they_agree(evaluated):
    found = evaluations(evaluated)
    assert len(found) == 6 + 3
    for name, one in found.items():
        gate = name.startswith("gate")
        halves = 2 if gate else 0
        assert len(one.tasks) == 2 + halves
        table = pq.read_table(evaluated / "runs" / name / "samples.parquet")
        assert tuple(table.column_names) == SAMPLE_COLUMNS
        rows = table.to_pylist()
        for task in one.tasks:
            mine = [r for r in rows if (r["task"], r["weights"]) == (task.task, task.weights)]
            assert len(mine) == task.items >= 40
            assert task.accuracy == pytest.approx(sum(r["correct"] for r in mine) / task.items)
            assert task.accuracy == pytest.approx(task.harness["acc"])
            by_item = sorted((r["item"], r["correct"]) for r in mine)
            assert task.correct.tolist() == [correct for _, correct in by_item]
            assert task.truncated == 0
            assert all(
                r["chosen"] == max(range(len(r["choice_scores"])), key=r["choice_scores"].__getitem__) for r in mine
            )
        if gate:  # its runs answer tasks and nothing else
            assert (one.tokens, one.length, one.throughput) == (None, None, None)
            continue
        result = Result.read(evaluated / "runs" / name / "result.json")
        assert one.tokens is not None
        assert one.tokens.loss == pytest.approx(result.metrics["validation_loss"], rel=1e-5)
        assert one.metrics["token_ece"] == one.tokens.calibration.ece_equal_mass_debiased


def test_all_runs_answered_the_same_prompts(evaluated):
    prompts = set()
    for name in evaluations(evaluated):
        rows = pq.read_table(evaluated / "runs" / name / "samples.parquet").to_pylist()
        prompts.add(tuple((r["task"], r["item"], r["prompt_hash"]) for r in rows if r["weights"] == "final"))
    assert len(prompts) == 1
    assert len({one.throughput.together for one in evaluations(evaluated).values() if one.throughput}) == 1


def test_work_put_off_while_a_device_is_busy_changes_no_record(evaluated, copy, monkeypatch):
    """As on a GPU: processes build the tasks; all but scoring waits until the device has the next task, or for the end."""
    for path in copy.glob("runs/*/evaluation.json"):
        path.unlink()
        path.with_name("samples.parquet").unlink()
    deferred, later = [], ScoringQueue.later

    def watched(queue: ScoringQueue, measurement: Measurement, save: Callable[[], None]) -> None:
        assert suite_path(results).exists()  # scores without it are refused
        deferred.append(measurement)
        later(queue, measurement, save)

    monkeypatch.setattr(ScoringQueue, "overlaps", True)
    monkeypatch.setattr(ScoringQueue, "later", watched)
    results = ResultsFolder(copy)
    (copy / "evaluation" / "suite.json").unlink()
    study = Plan.of(results).study
    builder = ProcessTaskBuilder(
        TaskRequest.of(study), study.data, load_corpus(study.data), 64, task_folder(results), 2, describe=True
    )
    evaluate(copy, device="cpu", builder=builder)
    assert Suite.read(suite_path(results)) == Suite.read(suite_path(ResultsFolder(evaluated)))
    # Next tokens, length, tasks of the final weights, those of the gate's halfway weights, speed.
    assert len(deferred) == 6 + 6 + 9 + 3 + 6
    for name, one in evaluations(evaluated).items():
        again = evaluations(copy)[name]
        assert (again.tokens, again.length, again.tasks) == (one.tokens, one.length, one.tasks)
        assert again.samples_sha256 == one.samples_sha256
        assert (again.throughput is None) == name.startswith("gate-")  # gate runs are not timed
        if again.throughput is not None:
            assert again.throughput.together == one.throughput.together
        assert again.metrics.keys() == one.metrics.keys()


def test_the_suite_says_what_guessing_and_n_grams_reach(evaluated):
    suite = Suite.read(evaluated / "evaluation" / "suite.json")
    by_name = {task.task: task for task in suite.tasks}
    assert by_name["spelling"].chance == 0.5
    assert by_name["last-word"].chance == 0.25
    assert by_name["spelling"].ngrams["trigram"] > 0.8 > by_name["spelling"].ngrams["unigram"]


def test_the_control_is_a_gate_run_at_half_its_steps(evaluated):
    for folder in (evaluated / "runs").iterdir():
        kept = folder / "halfway" / "checkpoint.json"
        assert kept.exists() == folder.name.startswith("gate")
        if kept.exists():
            assert Checkpoint.read(kept).step == 30
            one = Evaluation.read(folder / "evaluation.json")
            assert one.half_weights_sha256 not in (None, one.weights_sha256)


def test_the_analysis_gates_tasks_pairs_items_and_judges_macro_accuracy(evaluated):
    analysis = analyze(read_results(evaluated))
    part = analysis.evaluation
    assert part is not None
    assert [task.task.label for task in part.tasks] == ["last-word", "spelling"]
    spelling = part.tasks[1]
    assert spelling.sensitivity.beats_chance
    assert "all" not in spelling.templates
    one = analysis.comparison("macro_accuracy", "default", "layernorm", "none")
    assert one is not None
    assert one.label == "registered"
    assert one.sensitivity is not None
    assert one.n == 3
    accuracy = next(c for c in analysis.comparisons if (c.metric, c.task_label) == ("task_accuracy", "spelling"))
    items = part.contrasts[0].comparison
    task = next(task for task in items.tasks if task.task == "spelling")
    assert task.delta == pytest.approx(accuracy.delta)
    assert set(task.mcnemar) == {"1", "2", "3"}
    assert not [d for d in analysis.deviations if d.code == "missing-metric"]
    assert bool(decide(analysis).hypotheses["H0"].answers) == one.sensitivity.sensitive


def test_nothing_that_scoring_writes_names_a_folder_of_this_machine(evaluated):
    paths = [path for path in evaluated.rglob("*") if path.is_file() and path.name != "places.json"]
    assert any(path.name == "task.yaml" for path in paths)
    assert not [path for path in paths if str(evaluated.parent).encode() in path.read_bytes()]


def test_the_definition_of_a_task_is_sealed_and_written_anew_where_it_is_asked(copy, cli):
    definition = next(copy.glob("evaluation/tasks/spelling-*/task.yaml"))
    whole, name = definition.read_bytes(), definition.relative_to(copy).as_posix()
    definition.write_text("task: other\n")
    code, output, _ = cli("verify", copy)
    assert (code, f"differs   {name}" in output) == (1, True)
    assert cli("evaluate", copy, "--workers", "1", "--device", "cpu", "--no-throughput")[0] == 0
    assert definition.read_bytes() == whole
    assert f"differs   {name}" not in cli("verify", copy)[1]


def test_running_it_again_scores_nothing_and_changes_no_byte(copy, cli):
    kept = [p for p in copy.rglob("*") if p.is_file() and "locks" not in p.parts]
    before = {path: path.read_bytes() for path in kept}
    code, output, _ = cli("evaluate", copy, "--workers", "1", "--device", "cpu")
    assert code == 0
    assert "0 runs scored, 9 had everything already" in output
    assert {path: path.read_bytes() for path in before} == before


def test_a_change_of_the_code_or_a_library_scores_again_and_says_why(copy, cli, monkeypatch):
    options = ("--workers", "1", "--device", "cpu", "--no-throughput")
    assert "scored again" not in cli("evaluate", copy, *options)[1]
    code = next(iter(evaluations(copy).values())).how.versions["evaluation code"]
    monkeypatch.setattr("ablationlab.evaluation.runs._code_hash", lambda: "0123456789abcdef")
    _, output, _ = cli("evaluate", copy, *options)
    text = " ".join(output.split())
    assert "all nine runs are scored again, because only scores that are made alike can be compared: " in text
    assert f"compared: evaluation code was {code[:12]}, is 0123456789ab" in text
    assert "9 runs scored" in output


def test_only_what_is_missing_is_scored_and_another_version_of_a_task_counts_as_missing(copy, cli):
    names = sorted(name for name in evaluations(copy) if not name.startswith("gate"))
    (copy / "runs" / names[0] / "evaluation.json").unlink()  # gone
    (copy / "runs" / names[1] / "samples.parquet").write_bytes(b"torn")  # a kill between the two files
    old = evaluations(copy)
    path = copy / "runs" / names[2] / "evaluation.json"
    changed = json.loads(path.read_text())
    changed["tasks"][0]["task_hash"] = "of an older version"
    changed["tasks"][0]["accuracy"] = 0.123
    path.write_text(json.dumps(changed))
    code, output, _ = cli("evaluate", copy, "--workers", "1", "--device", "cpu", "--no-throughput")
    assert code == 0
    assert "3 runs scored, 6 had everything already" in output
    new = evaluations(copy)
    assert new[names[2]].tasks == old[names[2]].tasks
    assert read_results(copy).evaluation is not None
    assert new[names[1]].tasks == old[names[1]].tasks  # the same numbers again


def test_settings_besides_the_plan_are_not_registered_and_evaluating_as_planned_restores_it(evaluated, copy, cli):
    planned = analyze(read_results(evaluated))
    assert "scored-otherwise" not in [d.code for d in planned.deviations]
    words = ("--workers", "1", "--device", "cpu", "--no-throughput")
    assert cli("evaluate", copy, "--items", "20", *words)[0] == 0
    assert {(task.items, task.whole) for one in evaluations(copy).values() for task in one.tasks} == {(20, False)}
    other = analyze(read_results(copy))
    said = next(deviation(d) for d in other.deviations if d.code == "scored-otherwise")
    assert "spelling; last-word: on 20 items in 9 of 9 runs, where 80 at most were planned" in said
    assert other.comparison("macro_accuracy", "default", "layernorm", "none") is None
    assert cli("evaluate", copy, *words)[0] == 0
    again = analyze(read_results(copy))
    assert again.comparisons == planned.comparisons
    assert again.deviations == planned.deviations
    assert again.evaluation == planned.evaluation


def test_a_damaged_checkpoint_is_named_and_the_other_runs_are_scored(copy, cli):
    name = sorted(evaluations(copy))[0]
    for path in copy.glob("runs/*/evaluation.json"):
        path.unlink()
    weights = next((copy / "runs" / name / "checkpoints").rglob("weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    code, _, errors = cli("evaluate", copy, "--tasks", "spelling", "--items", "20", "--workers", "1", "--device", "cpu")
    assert code == 1
    assert f"{weights} is damaged: its checksum does not match" in errors
    assert f"move the run's folder out of {copy / 'runs'} and use `ablationlab run`" in errors
    assert len(evaluations(copy)) == 8


def test_a_diverged_run_is_recorded_as_not_evaluable(copy, cli):
    name = sorted(evaluations(copy))[0]
    path = copy / "runs" / name / "result.json"
    result = json.loads(path.read_text())
    result |= {"status": "diverged", "divergence": {"step": 7, "metric": "loss", "value": "nan"}}
    path.write_text(json.dumps(result))
    seal_again(copy)
    code, output, _ = cli("evaluate", copy, "--workers", "1", "--device", "cpu", "--no-throughput")
    assert code == 0
    assert f"{name}: not evaluable, diverged at step 7" in output
    assert evaluations(copy)[name].status == "not-evaluable"


def test_a_study_whose_runs_all_diverge_continues_to_its_verdict_and_evaluate_says_why_it_scores_nothing(
    tmp_path, cli, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "play.txt").write_text(play(60_000))
    hot = {**STUDY, "seeds": [1, 2], "training": {**STUDY["training"], "lr": 3000.0, "steps": 40}}
    (tmp_path / "hot.toml").write_text(to_toml({key: value for key, value in hot.items() if key != "criteria"}))
    code, output, errors = cli("run", "hot.toml", "--out", "results", "--workers", "1", "--device", "cpu")
    assert code == 0, errors
    assert "no weights to score: diverged 7 of 7" in output
    assert (tmp_path / "results" / "analysis.json").exists()
    assert (tmp_path / "results" / "verdict.json").exists()
    assert {one.status for one in evaluations(tmp_path / "results").values()} == {"not-evaluable"}
    code, _, errors = cli("evaluate", "results", "--workers", "1", "--device", "cpu")
    assert code == 2
    assert "results: no weights to score: diverged 7 of 7" in errors
    assert "has finished training" not in errors
    run("hot.toml", "results", device="cpu", workers=1)  # the notebook's way


HARNESS = ("arc_easy", "hellaswag", "mmlu", "mmlu_prehistory", "mmlu_world_history", "spell_it", "wikitext")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "speling"], "did you mean 'spelling'?"),
        (["--tasks", "speling"], "known: suite (last-word, next-line,"),
        (["--tasks", "helaswag"], "did you mean 'hellaswag'?"),
        (["--tasks", "benchmark"], "did you mean 'benchmarks'?"),
        (["--tasks", "mmlu_hist"], "did you mean 'mmlu_prehistory'? Or: mmlu_world_history, mmlu"),
        (["--tasks", "harness:hella"], "did you mean 'harness:hellaswag'?"),
        (["--tasks", "xyzzy"], "7 tasks, tags and groups of lm-evaluation-harness (`lm-eval ls tasks` lists them)"),
        (["--tasks", "hellaswag"], "needs a context of at least 512 tokens, and these models have 64"),
        (["--tasks", "./nowhere.yaml"], "task file ./nowhere.yaml: no such file"),
        (["--fewshot", "2"], "a context of 64 leaves 20 characters per item, and 22 are needed"),
        (["--items", "3"], "--items 3: must be >= 10"),
        (["--workers", "0"], "at least one process"),
    ],
)
def test_bad_input_is_answered_in_one_message(evaluated, cli, words, said, monkeypatch):
    from ablationlab.tasks import request as tasks

    # The harness's own 14,000 names take ten seconds to list; a handful of them does here.
    monkeypatch.setattr(tasks, "_harness_index", lambda: HARNESS)
    code, _, errors = cli("evaluate", evaluated, *words, *([] if "--workers" in words else ["--workers", "1"]))
    assert code == 2
    assert said in errors
    assert "Traceback" not in errors


def test_a_folder_that_is_none_is_refused(cli, tmp_path):
    code, _, errors = cli("evaluate", tmp_path)
    assert code == 2
    assert "it has no plan.lock" in errors


def test_help_and_training_import_neither_the_harness_nor_pandas():
    script = (
        "import sys, ablationlab.cli.app, ablationlab.training.loop, ablationlab.training.executors.local; "
        "sys.exit(any(name in sys.modules for name in ('lm_eval', 'pandas', 'datasets', 'pyarrow', 'transformers')))"
    )
    assert subprocess.run([warm.FRESH, "-c", script], check=False).returncode == 0


# The harness reads the definitions of all its 14,000 tasks, for twenty seconds; here those of the folder that has this one.
ONE_FOLDER = """
import functools, pathlib
import lm_eval.tasks
folder = pathlib.Path(lm_eval.tasks.__file__).with_name("sciq")
lm_eval.tasks.TaskManager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False, include_path=str(folder))
from ablationlab.cli.app import main
main()
"""


def test_a_stock_task_comes_from_the_hub(copy, tmp_path):
    """`harness:sciq` by the harness's own definition, over HTTP, through the real client; only the hub is on this machine."""
    rows = [
        {"question": f"Mirsa {i}?", "support": "Lo mirsa den.", "correct_answer": "den"}
        | {f"distractor{n}": word for n, word in enumerate(("ba", "tor", "wen"), start=1)}
        for i in range(24)
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    files = {f"data/{split}-00000-of-00001.parquet": sink.getvalue() for split in ("train", "validation", "test")}
    with hub("allenai/sciq", files) as (address, fetched):
        own = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        own |= {"HF_HUB_DISABLE_XET": "1", "HF_DATASETS_OFFLINE": "0"}
        words = ["evaluate", str(copy), "--tasks", "harness:sciq", "--items", "10", "--no-throughput"]
        ended = warm.python("-c", ONE_FOLDER, *words, "--device", "cpu", "--workers", "1", env=own, timeout=600)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert fetched
    found = [task for one in evaluations(copy).values() for task in one.tasks if task.task == "sciq"]
    assert [task.items for task in found] == [10] * 12  # nine runs, and the halfway weights of three
    assert all(task.choices == 4 and task.accuracy is not None for task in found)


def test_a_data_set_that_changed_at_its_source_is_another_task():
    def task(question: str, example: str) -> SimpleNamespace:
        return SimpleNamespace(eval_docs=[{"q": question}, {"q": "b"}], fewshot_docs=lambda: [{"q": example}])

    same = [_documents_hash(task("a", "e"), 1) for _ in range(2)]
    others = [
        _documents_hash(task("A", "e"), 1),
        _documents_hash(task("a", "E"), 1),
        _documents_hash(task("a", "e"), 0),
    ]
    assert same[0] == same[1]
    assert len({same[0], *others}) == 4
    assert _documents_hash(task("a", "e"), 0) == _documents_hash(task("a", "E"), 0)


def test_offline_means_that_the_hub_is_not_asked_and_an_error_says_what_to_do(monkeypatch):
    script = (
        "import ablationlab.tasks.request, huggingface_hub.constants as hub, os, sys; "
        "sys.exit(not (hub.HF_HUB_OFFLINE and os.environ['HF_DATASETS_OFFLINE'] == '1'))"
    )
    env = os.environ | {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
    command = [warm.FRESH, "-c", script]
    assert subprocess.run(command, env=env | {"ABLATIONLAB_OFFLINE": "1"}, check=False).returncode == 0

    class Unreachable:
        def load(self, _: list[str]) -> None:
            raise ConnectionError("Couldn't reach the hub")

    from ablationlab.core.errors import DataError
    from ablationlab.tasks import harness_tasks as tasks

    monkeypatch.setattr(tasks, "full_manager", Unreachable)
    monkeypatch.setenv("ABLATIONLAB_OFFLINE", "1")
    question = TaskRequest(("harness:rte",), (0,), "one", None)
    with pytest.raises(DataError, match=r"ABLATIONLAB_OFFLINE is set.*'rte' \(without 'harness:'\) reads local files"):
        tasks._stock_tasks("harness:rte", question, None)


def test_the_table_counts_items_that_were_cut(evaluated, copy):
    whole = task_table(Results.open(evaluated)).terminal()
    assert isinstance(whole, TerminalTable)
    assert "cut" not in [column.title for column in whole.columns]
    for label in evaluations(copy):
        path = copy / "runs" / label / "evaluation.json"
        record = json.loads(path.read_text())
        for task in record["tasks"]:
            task["truncated"] = 7 if task["task"] == "spelling" else 0
        path.write_text(json.dumps(record))
    seal_again(copy)
    table = task_table(Results.open(copy)).terminal()
    assert isinstance(table, TerminalTable)
    cut = next(column for column in table.columns if column.title == "cut")
    assert sorted(map(str, cut.cells)) == ["0", "7"]
