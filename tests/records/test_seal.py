"""The chain of hashes: nothing altered goes unnoticed, and no kill leaves a run that has ended and is not sealed."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ablationlab import pipeline
from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.verdict import decide
from ablationlab.analysis.verify import chain
from ablationlab.core.errors import MismatchError, RecordError
from ablationlab.pipeline import conclude
from ablationlab.records import seal, storage
from ablationlab.records.analysis import Analysis
from ablationlab.records.evaluation import Evaluation
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results, Stale, read_runs, without_weights
from ablationlab.records.seal import AlteredError, RunSeal, close_evaluation, seal_evaluation
from ablationlab.records.storage import ResultsFolder, sha256_file
from ablationlab.records.verdict import Verdict
from ablationlab.report.make import make_report, with_analysis
from analysis.builder import build, outcome, seal_again, study
from analysis.scores import Put, evaluate

RUN = "default-layernorm-s1"


@pytest.fixture(scope="module")
def concluded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study with scores and a verdict."""
    folder = tmp_path_factory.mktemp("concluded")
    made = study(evaluation={"tasks": ["spelling"]})
    evaluate(folder, build(folder, made), lambda run: [Put("spelling", items=12)])
    conclude(folder)
    return folder


@pytest.fixture
def folder(concluded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(concluded, tmp_path / "results")


def lowered(path: Path) -> None:
    record = json.loads(path.read_text())
    record["metrics"]["validation_loss"] -= 0.2
    path.write_text(json.dumps(record))


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeroed(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def repeated(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, *lines[1:]]))


def spiked(path: Path) -> None:
    head, first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([head, json.dumps({**json.loads(first), "loss": 50.0}) + "\n", *rest]))


def of_another_run(path: Path) -> None:
    path.write_bytes((path.parent.parent / "default-none-s2" / path.name).read_bytes())


ALTERATIONS: list[tuple[str, Callable[[Path], None]]] = [
    ("result.json", lowered),
    ("result.json", of_another_run),
    *(("metrics.jsonl", change) for change in (cut_in_half, Path.unlink, zeroed, repeated, spiked, of_another_run)),
    ("evaluation.json", Path.unlink),
    ("evaluation.json", of_another_run),
    ("samples.parquet", of_another_run),
    ("samples.parquet", Path.unlink),
    ("seal.json", Path.unlink),
    ("seal.json", of_another_run),
    ("seal.json", cut_in_half),
]


@pytest.mark.parametrize(("name", "alter"), ALTERATIONS, ids=lambda given: getattr(given, "__name__", given))
def test_an_altered_file_is_named_by_the_analysis_and_kept_off_the_page(folder, name, alter):
    alter(folder / "runs" / RUN / name)
    with pytest.raises(RecordError, match=f"{RUN}/{name}"):
        read_results(folder)
    shown = with_analysis(Results.open(folder), say=lambda text: None)
    assert shown.analysis is None
    assert shown.verdict is None
    assert f"runs/{RUN}/{name}" in [problem.file for problem in shown.problems]


@pytest.mark.parametrize("alter", [Path.unlink, cut_in_half, of_another_run])
def test_nothing_of_a_run_is_shown_without_its_seal(folder, alter):
    run = folder / "runs" / RUN
    lowered(run / "result.json")
    alter(run / "seal.json")
    results = Results.open(folder)
    shown = results.run(RUN)
    assert (shown.state, shown.result, shown.evaluation, shown.samples(), shown.curves) == ("damaged", *[None] * 3, {})
    assert not shown.checked
    with pytest.raises(AlteredError, match=r"seal\.json"):
        shown.probe_table()
    assert [why.file for why in results.stale] == [f"runs/{RUN}/seal.json"]


def test_probe_lines_are_checked_where_no_table_of_them_is_kept(folder):
    run = folder / "runs" / RUN
    (run / "probes.jsonl").write_text("")
    seal = RunSeal.read(run / "seal.json")
    files = {**seal.files, "probes.jsonl": sha256_file(run / "probes.jsonl"), "probes.parquet": "0" * 64}
    seal.model_copy(update={"files": files}).replace(run / "seal.json")
    assert Results.open(folder).run(RUN).probe_table().rows == []
    (run / "probes.jsonl").write_text("\n")
    with pytest.raises(AlteredError, match=r"probes\.jsonl is not as it was sealed"):
        Results.open(folder).run(RUN).probe_table()


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_in_the_folder_of_another_is_not_shown_under_its_name(folder, ended):
    run, other = folder / "runs" / RUN, folder / "runs" / "default-none-s2"
    shutil.rmtree(run)
    shutil.copytree(other, run)
    if not ended:
        (run / "seal.json").unlink()
        (run / "result.json").unlink()
    results = Results.open(folder)
    assert (results.run(RUN).state, results.run(RUN).record) == ("damaged", None)
    file = f"runs/{RUN}/{'seal' if ended else 'run'}.json"
    assert results.reader.damage[file].text.startswith(f"belongs to {other.name}. Restore it, or move the run's")


@pytest.mark.parametrize(
    ("name", "alter"),
    [
        ("result.json", lowered),
        ("metrics.jsonl", spiked),
        ("evaluation.json", Path.unlink),
        ("samples.parquet", of_another_run),
    ],
)
def test_an_altered_file_is_accepted_on_request_as_a_deviation_that_stays(folder, name, alter):
    alter(folder / "runs" / RUN / name)
    analysis = analyze(read_results(folder, accept_altered=True))
    assert analysis.altered.keys() == {f"runs/{RUN}/{name}"}
    assert "altered-records" in [deviation.code for deviation in analysis.deviations]
    assert {comparison.label for comparison in analysis.comparisons} == {"exploratory"}
    analysis.replace(folder / "analysis.json")
    again = conclude(folder)[0]  # what was accepted once is known by its hash
    assert again.altered == analysis.altered
    assert {judged.label for judged in decide(again).verdicts} == {"exploratory"}
    page = make_report(folder, parts=["page"], say=lambda text: None)[0].read_text()
    assert "altered records" in page
    assert f"runs/{RUN}/{name}" in page
    (folder / "runs" / RUN / "metrics.jsonl").write_text("another change")
    with pytest.raises(RecordError, match=r"metrics\.jsonl"):
        read_results(folder)


def test_curves_that_no_run_keeps_are_not_missed_and_change_no_number(folder):
    whole = analyze(read_results(folder))
    for name in ("metrics.jsonl", "samples.parquet"):
        assert [path.unlink() for path in folder.glob(f"runs/*/{name}")], name
    assert analyze(read_results(folder)) == whole
    page = make_report(folder, parts=["page"], say=lambda text: None)[0].read_text()
    assert "altered records" not in page


def test_a_page_reads_every_curve_once(folder, monkeypatch):
    opened: list[Path] = []

    def counted(path: Path) -> int:
        opened.append(path)
        return descriptor(path)

    descriptor = storage._descriptor
    monkeypatch.setattr(storage, "_descriptor", counted)
    seal._digests.clear()
    make_report(folder, parts=["page"], say=lambda text: None)
    curves = [path for path in opened if path.name == "metrics.jsonl"]
    assert len(curves) == len({*curves}) == len(list(folder.glob("runs/*/metrics.jsonl")))


def test_lowering_three_losses_no_longer_turns_the_verdict(tmp_path):
    def worse(variant: str, regime: str, seed: int):
        found = dict(outcome("none", regime, seed) or {})
        return found | {"validation_loss": found["validation_loss"] + (0.05 + 0.01 * seed if variant != "none" else 0)}

    build(tmp_path, outcomes=worse)
    before = conclude(tmp_path)[1]
    for seed in (1, 2, 3):
        lowered(tmp_path / "runs" / f"default-layernorm-s{seed}" / "result.json")
    with pytest.raises(AlteredError, match=r"default-layernorm-s1/result\.json is not as it was sealed"):
        conclude(tmp_path)
    assert Verdict.read(tmp_path / "verdict.json") == before


@pytest.mark.parametrize("name", ["verdict.json", "analysis.json", "evaluation/suite.json", f"runs/{RUN}/seal.json"])
def test_no_bit_flip_in_a_sealed_record_is_read_as_something_else(folder, name):
    path = folder / name
    kind = {"verdict.json": Verdict, "analysis.json": Analysis, f"runs/{RUN}/seal.json": RunSeal}.get(name)
    if kind is None:
        from ablationlab.records.evaluation import Suite as kind
    whole, record = path.read_bytes(), kind.read(path)
    rng = random.Random(7)
    for _ in range(60):
        place, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            read = kind.read(path)
        except RecordError:
            continue
        assert read == record  # between two tokens of JSON, where nothing is said


def test_an_edited_verdict_is_made_again_for_the_report(folder):
    right = Verdict.read(folder / "verdict.json")
    path = folder / "verdict.json"
    path.write_text(path.read_text().replace('"answer": "', '"answer": "un', 1))
    assert with_analysis(Results.open(folder), say=lambda text: None).verdict == right
    data = json.loads(path.read_text())
    data["primary"] = "perplexity"
    path.write_text(json.dumps(data))
    shown = with_analysis(Results.open(folder), say=lambda text: None)
    assert shown.verdict == right


def test_without_its_plan_a_study_is_not_reported(folder):
    (folder / "plan.lock").unlink()
    with pytest.raises(RecordError, match=r"plan\.lock is missing\. Restore it: the runs are judged by it"):
        make_report(folder, say=lambda text: None)


def deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("make", "words"),
    [(deep, "nested too deeply"), (loop, "Too many levels of symbolic links"), (os.mkfifo, "is not a regular file")],
)
def test_a_plan_that_cannot_be_read_is_named_with_the_reason(folder, make, words):
    (folder / "plan.lock").unlink()
    make(folder / "plan.lock")
    with pytest.raises(RecordError, match=rf"plan\.lock .*{words}"):
        make_report(folder, say=lambda text: None)
    (link,) = chain(folder)
    assert (link.file, link.state) == ("plan.lock", "differs")
    assert words in link.told["why"]


@pytest.mark.parametrize("verb", ["status", "plan", "run"])
def test_a_folder_that_lost_its_plan_gets_no_other_one(cli, trained, tmp_path, verb):
    """A plan that is made after the runs could be made to fit them."""
    out = Path(shutil.copytree(trained.results, tmp_path / "results"))
    (out / "plan.lock").unlink()
    code, _, errors = cli(verb, trained.study, "--out", out)
    assert code == 2
    assert f"{out / 'plan.lock'} cannot be found, and there are runs in {out / 'runs'}" in errors
    assert not (out / "plan.lock").exists()


@pytest.mark.parametrize("field", ["study_hash", "criteria_hash"])
def test_hashes_inside_the_plan_are_computed_again(folder, field):
    path = folder / "plan.lock"
    plan = Plan.read_sealed(path)
    plan.model_copy(update={field: "0" * 64}).sealed().replace(path)
    assert not Plan.read_with_seal(path)[1]
    with pytest.raises(RecordError, match="was changed after it was sealed"):
        Plan.read(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r'"commit":(null|"\w+")', '"commit":"0000000000000000000000000000000000000000"'),
        (r'"dirty":(null|true|false)', '"dirty":%s'),
        (r'"created":"[^"]+"', '"created":"2020-01-01T00:00:00+00:00"'),
    ],
)
def test_commit_and_time_of_a_plan_are_inside_its_seal(folder, old, new):
    path = folder / "plan.lock"
    text = json.dumps(json.loads(path.read_text()), separators=(",", ":"))
    path.write_text(text)
    assert Plan.read_with_seal(path)[1]
    flipped = "false" if re.search(old, text)[0].endswith("true") else "true"
    path.write_text(re.sub(old, new.replace("%s", flipped), text))
    with pytest.raises(RecordError, match="was changed after it was sealed"):
        Plan.read(path)


def test_criteria_that_are_swapped_and_sealed_again_are_refused(folder):
    path = folder / "plan.lock"
    plan = Plan.read_sealed(path)
    easier = plan.study.changed(criteria=(plan.study.criteria[0].model_copy(update={"smallest_effect": 0.001}),))
    update = {"study": easier, "study_hash": easier.hash, "criteria_hash": easier.criteria_hash}
    plan.model_copy(update=update).sealed().replace(path)
    with pytest.raises(MismatchError, match="made under another plan"):
        read_results(folder)
    for record in folder.glob("runs/*/run.json"):  # the runs forged, too, but not their seals
        text = record.read_text().replace(plan.plan_hash, Plan.read(path).plan_hash)
        record.write_text(text.replace(plan.study_hash, easier.hash))
    with pytest.raises(AlteredError, match=r"run\.json is not as it was sealed"):
        read_results(folder)
    seal_again(folder)
    with pytest.raises(MismatchError, match=r"seal\.json was made under another plan"):
        read_results(folder)


def test_the_suite_of_another_study_is_refused(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    evaluate(other, build(other, study(name="other")), lambda run: [Put("spelling")])
    (folder / "evaluation" / "suite.json").write_bytes((other / "evaluation" / "suite.json").read_bytes())
    with pytest.raises(AlteredError, match=r"suite\.json belongs to another plan"):
        read_results(folder)


def test_a_lost_suite_is_refused_and_accepted_on_request_as_a_deviation(folder, cli):
    (folder / "evaluation" / "suite.json").unlink()
    with pytest.raises(AlteredError, match=r"suite\.json is missing, .*`ablationlab evaluate` writes it again"):
        read_results(folder)
    code, output, errors = cli("report", folder, "--only", "tables")
    assert code == 1
    assert "evaluation/suite.json: is missing" in output + errors
    assert not (folder / "tables").exists()
    assert analyze(read_results(folder, accept_altered=True)).altered == {"evaluation/suite.json": ""}


def test_a_report_of_a_damaged_suite_ends_with_1(folder, cli):
    (folder / "evaluation" / "suite.json").write_text("{}")
    code, output, _ = cli("report", folder, "--only", "tables")
    assert code == 1
    assert "evaluation/suite.json" in output


@pytest.mark.parametrize("name", ["analysis.json", "verdict.json"])
def test_a_damaged_conclusion_that_is_regenerated_is_told(folder, name):
    (folder / name).write_text("{")
    said: list[str] = []
    assert with_analysis(Results.open(folder), say=said.append).verdict is not None
    assert [line for line in said if line.startswith(f"{name} ") and line.endswith("regenerated from the records.")]


def test_the_analysis_names_what_it_was_made_from_and_is_outdated_by_a_new_file(folder):
    analysis = Analysis.read(folder / "analysis.json")
    assert {"plan.lock", "evaluation/suite.json", f"runs/{RUN}/seal.json"} <= analysis.inputs.keys()
    assert Results.open(folder).stale == ()
    seal = ResultsFolder(folder).run(RUN).seal
    RunSeal.read(seal).model_copy(update={"before": {"evaluation.json": "0" * 64}}).replace(seal)
    assert Results.open(folder).stale == (Stale("changed", f"runs/{RUN}/seal.json"),)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda task: task.update(answers=task["answers"] + "00"), "answers are not those of 12 items"),
        (lambda task: task.update(items=10**30), "answers are not those of"),
        (lambda task: task.update(answers=task["answers"][:-1] + "f"), "answers are not those of 12 items"),
        (lambda task: task.update(answers="0000"), "0 of 12 answers are right, which is not the accuracy"),
        (lambda task: task.update(accuracy=None), "which is not the accuracy"),
    ],
)
def test_answers_are_one_bit_per_item_and_give_the_accuracy(folder, change, words):
    path = folder / "runs" / RUN / "evaluation.json"
    record = json.loads(path.read_text())
    change(record["tasks"][0])
    path.write_text(json.dumps(record))
    with pytest.raises(RecordError, match=words):
        Evaluation.read(path)


def test_probes_that_are_not_kept_are_told_from_none(folder, cli):
    run = folder / "runs" / RUN
    assert "no probe has measured this run" in cli("probes", run)[1]
    seal = RunSeal.read(run / "seal.json")
    seal.model_copy(update={"files": {**seal.files, "probes.jsonl": "0" * 64}}).replace(run / "seal.json")
    code, _, errors = cli("probes", run)
    assert (code, "probes.jsonl is not kept, though it was sealed" in errors) == (2, True)


def packed(results: Path, to: Path) -> Path:
    """Records without what no analysis reads: no curves, samples and weights."""
    return Path(
        shutil.copytree(results, to, ignore=shutil.ignore_patterns("metrics.jsonl", "*.parquet", "checkpoints"))
    )


def test_nothing_is_trained_or_scored_in_a_folder_of_packed_records_and_the_message_says_why(cli, trained, tmp_path):
    out = packed(trained.results, tmp_path / "results")
    before = sorted(path for path in out.rglob("*") if "locks" not in path.parts)
    code, _, errors = cli("extend", out, "--seeds", "3", "--device", "cpu", "--workers", "1")
    assert (code, "do not keep metrics.jsonl. Runs that are trained now would" in errors) == (2, True)
    run = next((out / "runs").iterdir())
    for words in (["evaluate", out, "--tasks", "spelling"], ["export", run, tmp_path / "exported"]):
        code, _, errors = cli(*words)
        assert (code, "are not kept: there is no" in errors) == (2, True)
        assert "train the study again with `ablationlab run --out`" in errors
    assert before == sorted(path for path in out.rglob("*") if "locks" not in path.parts)
    shutil.rmtree(run)
    code, _, errors = cli("run", trained.study, "--out", out, "--device", "cpu", "--workers", "1")
    assert (code, "do not keep metrics.jsonl" in errors) == (2, True)
    assert not run.exists()


def test_scores_stay_where_the_weights_are_not_kept(folder, monkeypatch):
    monkeypatch.setattr(pipeline, "train", lambda *_: None)  # all is trained
    plan, results = Plan.read(folder / "plan.lock"), ResultsFolder(folder)
    lost = without_weights(read_runs(plan, results))
    assert len(lost) == len(plan.runs)
    heard: list[object] = []
    pipeline._carry_out(plan.study, results, pipeline.Options(device="cpu"), heard.append, report=False)
    assert [event.text for event in heard if isinstance(event, pipeline.Note)] == [
        "The weights are not kept, so nothing is scored again; the scores stay"
    ]


def test_a_change_whose_time_was_set_back_is_seen(tmp_path):
    path = tmp_path / "record.json"
    path.write_text("1")
    before, found = seal.file_hash(path), path.stat()
    path.write_text("2")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert seal.file_hash(path) != before


# --- kills ------------------------------------------------------------------------------------------------


def test_a_run_killed_between_its_seal_and_its_result_has_not_ended(folder):
    run = ResultsFolder(folder).run(RUN)
    run.result.unlink()
    run.metrics.write_text(run.metrics.read_text() + '{"step": 61, "lo')
    (status,) = (run for run in Results.open(folder, strict=True).runs if run.id == RUN)
    assert (status.state, status.seal) == ("started", None)


def test_every_moment_of_a_new_evaluation_is_readable_and_a_change_in_between_is_not(folder):
    run, name = ResultsFolder(folder).run(RUN), "evaluation.json"
    old, seal = (run.path / name).read_bytes(), RunSeal.read(run.seal)
    for file in (name, "samples.parquet"):
        (run.path / file).unlink()
    trained = {file: sha256 for file, sha256 in seal.files.items() if (run.path / file).exists()}
    seal.model_copy(update={"files": trained}).replace(run.seal)
    assert _evaluation(folder) is None
    seal_evaluation(run, {name: old})  # killed before the file is there
    assert _evaluation(folder) is None
    (run.path / name).write_bytes(old)  # killed after it
    assert _evaluation(folder).checkpoint == "step-1"
    newer = old.replace(b'"step-1"', b'"step-2"')
    seal_evaluation(run, {name: newer})  # killed before it is replaced
    assert _evaluation(folder).checkpoint == "step-1"
    (run.path / name).write_bytes(newer)
    assert _evaluation(folder).checkpoint == "step-2"
    close_evaluation(run)
    assert RunSeal.read(run.seal).before == {}
    (run.path / name).write_bytes(old)
    with pytest.raises(AlteredError, match=name):
        _evaluation(folder)
    seal_evaluation(run, {name: newer})  # killed before it is scored again: what was altered is so still
    with pytest.raises(AlteredError, match=name):
        _evaluation(folder)


def _evaluation(folder: Path):
    return next(run.evaluation for run in Results.open(folder, strict=True).runs if run.id == RUN)
