"""Baseline runs of an earlier study that serve in a new one. Tiny models, trained for real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ablationlab import pipeline
from ablationlab.analysis import read_results
from ablationlab.analysis.verify import chain
from ablationlab.analysis.wording import deviation
from ablationlab.core.errors import AblationLabError, PlanError, StudyError
from ablationlab.records.analysis import DeviationCode, ReadingGap
from ablationlab.records.plan import Plan, Reuse
from ablationlab.records.results import Results
from ablationlab.records.seal import RunSeal, file_hash
from ablationlab.records.settings import Study
from ablationlab.records.storage import TEMPORARY, ResultsFolder
from ablationlab.report.effects import answer_flags
from ablationlab.report.page.build import page_html
from ablationlab.study import reuse
from ablationlab.study.load import load_study, parse_study
from conftest import TINY, corpus_text, run_here, to_toml, with_changes

PRIMARY = {"metric": "validation_loss", "role": "primary", "smallest_effect": 1e-6}
OLD = {
    "name": "old",
    "variants": ["none", "layernorm"],
    "seeds": [1, 2, 3],
    "training.steps": 4,
    "training.warmup": 1,
    "criteria": [PRIMARY],
}
NEW = {**OLD, "name": "new", "variants": ["none", "rmsnorm"], "seeds": [1, 2, 3, 4]}
OPTIONS = pipeline.Options(device="cpu", workers=1)
#: Of a run, what every study makes for itself, and the seal that names it.
OWN = ("evaluation.json", "samples.parquet", "seal.json")


def study(corpus: Path, changes: Mapping[str, Any]) -> Study:
    return parse_study(with_changes(TINY, {"data.corpus": str(corpus), **changes}))


def run(asked: Study, out: Path) -> list[pipeline.PipelineEvent]:
    events: list[pipeline.PipelineEvent] = []
    pipeline.run(asked, out, listen=events.append, device="cpu", workers=1)
    return events


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text(corpus_text())
    return path


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """old/, new/ with its baseline from there, and whole/, the same study trained in full; not to be changed."""
    folder = tmp_path_factory.mktemp("studies")
    run(study(corpus, OLD), folder / "old")
    shutil.copytree(folder / "old", folder / "before")
    run(study(corpus, {**NEW, "reuse": str(folder / "old")}), folder / "new")
    run(study(corpus, NEW), folder / "whole")
    return folder


@pytest.fixture
def old(trained: Path, tmp_path: Path) -> Path:
    """A copy of the earlier study that no other uses."""
    return Path(shutil.copytree(trained / "before", tmp_path / "old"))


@pytest.fixture
def new(trained: Path, old: Path, corpus: Path, tmp_path: Path) -> Path:
    """A copy of the study that reuses it."""
    shutil.copytree(trained / "old/reused", old / "reused")
    folder = Path(shutil.copytree(trained / "new", tmp_path / "new"))
    places = json.loads((folder / "places.json").read_text())
    (folder / "places.json").write_text(json.dumps({**places, "./old": str(old)}))
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Every file of the baseline's runs that the earlier study has too, by path."""
    runs = [run for run in Results.open(folder).runs if run.variant == "none" and run.seed <= 3]
    paths = [path for run in runs for path in run.folder.path.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths if path.name not in OWN}


def states(folder: Path) -> dict[str, str]:
    return {link.file: link.state for link in chain(folder)}


def refused(corpus: Path, old: Path, **changes: Any) -> str:
    with pytest.raises((PlanError, StudyError)) as caught:
        pipeline.resolve(study(corpus, {**NEW, "reuse": str(old), **changes}), "cpu", 1)
    return str(caught.value)


def same_but_labels(ours: Results, theirs: Results) -> bool:
    """Whether two analyses have the same comparisons, but for their labels and what a clock measured."""
    made = [
        {
            c.id: c.model_dump(exclude={"label"})
            for c in each.analysis.comparisons
            if each.metrics[c.metric].family != "throughput"
        }
        for each in (ours, theirs)
    ]
    return made[0] == made[1]


# --- what is gained ----------------------------------------------------------------------------------------------


def test_reused_runs_are_those_of_the_earlier_study_byte_for_byte(trained):
    assert files(trained / "new") == files(trained / "before") == files(trained / "old")
    plan = Plan.read(trained / "new/plan.lock")
    assert [(each.study, each.studies, len(each.files)) for each in plan.reused] == [("old", 2, 3)]
    assert {plan.made_under(run.id) for run in plan.runs if run.seed == 4} == {plan.plan_hash}
    assert len(plan.stacks) == 8


def test_the_analysis_is_that_of_the_study_trained_in_full(trained):
    ours, theirs = (Results.open(trained / name) for name in ("new", "whole"))
    assert {run.id for run in ours.runs} == {run.id for run in theirs.runs}
    assert same_but_labels(ours, theirs)
    clocks = {reading.gap for reading in ours.analysis.readings.readings if reading.kind == "time"}
    assert clocks == {ReadingGap.OTHER_CONDITIONS}  # trained on another day
    assert [each.answer for each in ours.verdict.verdicts] == [each.answer for each in theirs.verdict.verdicts]


def test_an_answer_on_reused_runs_is_exploratory_and_says_how_many_studies_rest_on_them(trained):
    ours, theirs = (Results.open(trained / name) for name in ("new", "whole"))
    assert {each.label for each in ours.analysis.comparisons} == {"exploratory"}
    assert [(each.reused, each.confirmed, each.label) for each in ours.verdict.verdicts] == [(2, False, "exploratory")]
    assert {each.reused for each in theirs.verdict.verdicts} == {0}
    assert "reused (2)" in answer_flags(ours.verdict.verdicts[0])
    found = [each for each in ours.analysis.deviations if each.code == DeviationCode.REUSED]
    assert [(each.about, each.details["studies"], len(each.details["runs"])) for each in found] == [("old", 2, 3)]
    assert "3 runs of the baseline of study old" in deviation(found[0])
    assert "reused (2)" in page_html(ours)


def test_a_seed_that_the_earlier_study_lacks_is_trained(corpus, old, tmp_path):
    events = run(study(corpus, {**NEW, "reuse": str(old)}), tmp_path / "new")
    assert len([event for event in events if getattr(event, "kind", "") == "done"]) == 5


def test_without_the_earlier_study_the_new_one_is_whole(new, old, corpus, trained):
    shutil.rmtree(old)
    before = files(new)
    asked = Plan.read_sealed(new / "plan.lock").study
    assert not any(isinstance(event, pipeline.TrainingStarted) for event in run(asked, new))
    assert states(new)["reused from old"] == "unchecked"
    assert "differs" not in states(new).values()
    pipeline.extend(new, OPTIONS, seeds=[5], variants=["layernorm"], listen=lambda _: None)
    extended = Results.open(new)
    assert files(new) == before
    assert {(run.variant, run.seed) for run in extended.runs if run.done} == {
        (name, seed) for name in ("none", "rmsnorm", "layernorm") for seed in (1, 2, 3, 4, 5)
    }
    assert {each.reused for each in extended.verdict.verdicts} == {2}
    assert "differs" not in states(new).values()


def test_tasks_are_scored_on_copied_weights_as_on_trained_ones(corpus, tmp_path):
    longer, old = {"model.context": 64, "seeds": [1, 2, 3]}, tmp_path / "old"
    tasks = {**longer, "evaluation": {"tasks": ["spelling"], "items": 10}}
    run(study(corpus, {**OLD, **longer}), old)
    for name, more in (("less", {"reuse": str(old)}), ("whole", {})):
        run(study(corpus, {**NEW, **tasks, **more}), tmp_path / name)
    ours, theirs = (Results.open(tmp_path / name) for name in ("less", "whole"))
    assert same_but_labels(ours, theirs)
    assert any(comparison.task is not None for comparison in ours.analysis.comparisons)
    assert "differs" not in states(tmp_path / "less").values()
    assert files(tmp_path / "less") == files(old)
    for path in old.glob("runs/none-*/checkpoints"):
        shutil.rmtree(path)
    assert "does not keep the weights of none-s1-" in refused(corpus, old, **tasks)
    plan, _ = pipeline.resolve(study(corpus, {**NEW, **longer, "reuse": str(old)}), "cpu", 1)  # nothing is scored
    assert all(
        "result.json" in kept and not any("weights" in name for name in kept) for kept in plan.reused[0].files.values()
    )


def test_a_diverged_run_of_the_baseline_is_reused_like_any_other(corpus, tmp_path):
    hot = {"training.lr": 1e30, "training.warmup": 1, "training.schedule": "constant"}
    run(study(corpus, {**OLD, **hot}), tmp_path / "old")
    assert {r.state for r in Results.open(tmp_path / "old").runs if r.variant == "none"} == {"diverged"}
    run(study(corpus, {**NEW, **hot, "reuse": str(tmp_path / "old")}), tmp_path / "new")
    assert {r.state for r in Results.open(tmp_path / "new").runs if r.variant == "none"} == {"diverged"}
    assert files(tmp_path / "new") == files(tmp_path / "old")


def test_width_and_threads_that_are_not_asked_for_are_those_of_the_earlier_study(corpus, tmp_path):
    run(study(corpus, {**OLD, "execution": {"stack_width": 2, "threads": 2}}), tmp_path / "old")
    asked = study(corpus, {**NEW, "execution": {}, "reuse": str(tmp_path / "old")})
    plan, _ = pipeline.resolve(asked, "cpu", 1)
    assert (plan.execution.stack_width, plan.execution.threads) == (2, 2)
    assert sorted(map(len, plan.stacks)) == [1, 1, 1, 1, 2, 2]
    for name, more in (("less", {"reuse": str(tmp_path / "old")}), ("whole", {})):
        run(study(corpus, {**NEW, "execution": {"stack_width": 2, "threads": 2}, **more}), tmp_path / name)
    assert same_but_labels(Results.open(tmp_path / "less"), Results.open(tmp_path / "whole"))
    asked = study(corpus, {**NEW, "execution": {"stack_width": 1, "threads": 2}, "reuse": str(tmp_path / "old")})
    with pytest.raises(PlanError, match="stack_width: 1 here, 2 there"):
        pipeline.resolve(asked, "cpu", 1)


def test_runs_of_a_trainer_of_ones_own_are_reused_and_another_program_is_not(tmp_path):
    program = "import sys\nprint(f'val_loss={float(sys.argv[1]) * float(sys.argv[2])}')\n"
    (tmp_path / "train.py").write_text(program)
    table = {
        "name": "old",
        "baseline": "base",
        "seeds": [1, 2, 3],
        "command": ["{python}", "train.py", "{seed}", "{training.lr}"],
        "metrics": {"val_loss": "lower"},
        "patterns": {"val_loss": "val_loss=(?P<value>.*)"},
        "training": {"lr": 0.01},
        "variants": {"base": {}, "fast": {"training": {"lr": 0.02}}},
    }
    other = {**table, "name": "new", "reuse": "old", "variants": {"base": {}, "slow": {"training": {"lr": 0.005}}}}
    for name, each in (("old", table), ("new", other)):
        (tmp_path / f"{name}.toml").write_text(to_toml(each))
    run(load_study(tmp_path / "old.toml"), tmp_path / "old")
    run(load_study(tmp_path / "new.toml"), tmp_path / "new")
    ours = {path.relative_to(tmp_path / "new"): path.read_bytes() for path in tmp_path.glob("new/runs/base-*/*")}
    assert len(ours) > 9
    assert all((tmp_path / "old" / path).read_bytes() == data for path, data in ours.items())
    assert "differs" not in states(tmp_path / "new").values()
    (tmp_path / "train.py").write_text(program + "\n")
    with pytest.raises(PlanError, match="the program of the trainer differs"):
        pipeline.resolve(load_study(tmp_path / "new.toml"), "cpu", 1)


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"training.lr": 2e-3}, "training.lr: 0.002 against 0.001 (none-s1-"),
        ({"training.steps": 5}, "training.steps: 5 against 4"),
        ({"model.width": 32}, "model.width: 32 against 16"),
        ({"data.validation": 0.2}, "corpus differs"),
        ({"probes": {"cosine": 2}}, "probes differs"),
        ({"stability": {"spike_score": 9.0}}, "stability.spike_score differs"),
        ({"evaluation": {"curve_every": 2}}, "evaluation.curve_every differs"),
        ({"execution": {"threads": 2}}, "threads: 2 here, 1 there"),
        ({"seeds": [1, 2, 4]}, "also has seeds 3 of the baseline, and this study does not"),
        ({"seeds": [7, 8, 9]}, "has no seed of the baseline that this study has"),
        ({"baseline": "rmsnorm"}, "the baseline of"),
        ({"design": {"looks": [3, 4]}}, "design: does not work with `reuse`"),
        ({"sweep": {"lr": [1e-3, 2e-3, 4e-3]}}, "sweep: does not work with `reuse`"),
        ({"budget": {"match": "time"}}, "budget.match: does not work with `reuse`"),
        ({"execution": {"deterministic": False}}, "execution.deterministic: does not work with `reuse`"),
        ({"execution": {"parallel": "ddp"}}, "execution.parallel: does not work with `reuse`"),
        (
            {"regimes.hot.calibrate": {"setting": "training.lr", "low": 1e-3, "high": 1.0, "seeds": [101, 102]}},
            "regimes.hot.calibrate: does not work with `reuse`",
        ),
    ],
)
def test_runs_that_the_study_would_not_train_are_refused(corpus, trained, changes, text):
    assert text in refused(corpus, trained / "before", **changes)


def test_a_folder_that_is_no_whole_sealed_study_is_refused(corpus, old, tmp_path):
    assert "there is no such folder; did you mean" in refused(corpus, tmp_path / "older")
    run_id = next(run.id for run in Results.open(old).runs if run.variant == "none")
    shutil.move(old / "runs" / run_id / "result.json", tmp_path / "kept.json")
    assert "1 runs of" in refused(corpus, old)
    shutil.move(tmp_path / "kept.json", old / "runs" / run_id / "result.json")
    (old / "plan.lock").write_text((old / "plan.lock").read_text().replace('"tiny', '"Tiny').replace('"old"', '"odd"'))
    assert "no plan.lock that is as it was sealed" in refused(corpus, old)


def test_an_altered_run_is_refused(corpus, old):
    for name in sorted(files(old)):
        path = old / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-2] + b" \n")
        with pytest.raises(AblationLabError):
            pipeline.resolve(study(corpus, {**NEW, "reuse": str(old)}), "cpu", 1)
        path.write_bytes(whole)


def test_reused_runs_are_not_reused_again_and_no_seed_comes_from_two_studies(corpus, new, old):
    assert "was itself reused, from 'old'" in refused(corpus, new)
    twice = Path(shutil.copytree(old, old.with_name("twice")))
    assert "both have seed 1 of default; name one" in refused(corpus, old, reuse=[str(old), str(twice)])


def test_a_run_that_another_plan_made_is_refused(corpus, old, trained):
    for folder in old.glob("runs/none-*"):
        shutil.rmtree(folder)
        shutil.copytree(trained / "whole/runs" / folder.name, folder)
    assert "was made under another plan (none-s1-" in refused(corpus, old)


def test_libraries_and_code_of_another_day_are_refused(corpus, trained, monkeypatch):
    monkeypatch.setattr("ablationlab.records.environment.code_hash", lambda: "00")
    assert "ablationlab's source" in refused(corpus, trained / "before")


# --- who uses them -----------------------------------------------------------------------------------------------


def test_every_reuse_is_counted_beside_the_plan_and_a_lost_count_is_found(corpus, new, old, tmp_path):
    third = study(corpus, {**NEW, "name": "third", "variants": ["none", "layernorm"], "reuse": str(old)})
    run(third, tmp_path / "third")
    assert [Reuse.read(path).study for path in sorted(old.glob("reused/*.json"))] == ["new", "third"]
    assert Results.open(tmp_path / "third").verdict.verdicts[0].reused == 3
    run(third, tmp_path / "third")  # once more: still one study
    assert len(list(old.glob("reused/*.json"))) == 2
    assert states(old)["reused"] == states(new)["reused from old"] == "holds"
    assert files(old) == files(new)
    (old / "reused/0001.json").unlink()
    assert (
        states(old)["reused"]
        == states(new)["reused from old"]
        == states(tmp_path / "third")["reused from old"]
        == "differs"
    )
    assert "does not follow the record before it" in str(refused_run(corpus, old, tmp_path / "fourth"))
    (old / "reused/0002.json").unlink()
    assert states(tmp_path / "third")["reused from old"] == states(new)["reused from old"] == "differs"


def refused_run(corpus: Path, old: Path, out: Path) -> AblationLabError:
    with pytest.raises(AblationLabError) as caught:
        run(study(corpus, {**NEW, "reuse": str(old)}), out)
    return caught.value


def test_studies_that_are_noted_at_the_same_moment_are_all_counted(new, old):
    plan, source = Plan.read(new / "plan.lock"), Plan.read(old / "plan.lock")
    others = [plan.model_copy(update={"plan_hash": f"{number:064x}"}) for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda each: reuse._note(each, plan.reused[0], source), (*others, *others)))
    assert {note.by for note in reuse.notes(old, source)} == {plan.plan_hash, *(each.plan_hash for each in others)}
    assert len(reuse.notes(old, source)) == 13


# --- copies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [0, 1, 4, 8])
def test_killed_while_copying_and_run_again_it_has_the_same_files(corpus, old, tmp_path, monkeypatch, copied):
    copy_file, left = reuse._copy_file, iter(range(copied))

    def killed(*given: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        copy_file(*given)

    asked, results = study(corpus, {**NEW, "reuse": str(old)}), ResultsFolder(tmp_path / "new")
    plan, _ = pipeline.seal(asked, results, "cpu", 1)
    with monkeypatch.context() as patched:
        patched.setattr(reuse, "_copy_file", killed)
        patched.setattr("shutil.rmtree", lambda *_, **__: None)  # what is killed clears nothing away
        with pytest.raises(KeyboardInterrupt):
            reuse.copy_reused(plan, results)
    assert any(results.runs.glob(f"{TEMPORARY}*"))
    reuse.copy_reused(plan, results)
    assert files(results.path) == files(old)
    assert not any(results.runs.glob(f"{TEMPORARY}*"))
    assert len(list(old.glob("reused/*.json"))) == 1


def test_a_source_that_changed_or_went_between_plan_and_copy_is_refused(corpus, old, tmp_path):
    asked, results = study(corpus, {**NEW, "reuse": str(old)}), ResultsFolder(tmp_path / "new")
    plan, _ = pipeline.seal(asked, results, "cpu", 1)
    path = next(old.glob("runs/none-s2-*/metrics.jsonl"))
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(PlanError, match="is not as the plan names it"):
        reuse.copy_reused(plan, results)
    shutil.rmtree(old)
    with pytest.raises(PlanError, match=r"is not there, and none-s2-\w+ and 1 more come from it"):
        reuse.copy_reused(plan, results)


def test_whatever_is_changed_in_a_copy_is_found(new):
    for name in sorted(files(new)):
        path = new / name
        whole, folder = path.read_bytes(), new / Path(name).parts[0] / Path(name).parts[1]
        seal_file = folder / "seal.json"
        seal, sealed = RunSeal.read(seal_file), seal_file.read_bytes()
        path.write_bytes(whole[:-2] + b" \n")
        assert "differs" in states(new).values(), name
        # Sealed again, it is as its seal says, and not as the plan does.
        changed = {**seal.files, path.relative_to(folder).as_posix(): file_hash(path)}
        seal.model_copy(update={"files": changed}).sealed().replace(seal_file)
        assert states(new)[f"{folder.relative_to(new)}/seal.json"] == "differs", name
        with pytest.raises(AblationLabError):
            read_results(new, None)
        path.write_bytes(whole)
        seal_file.write_bytes(sealed)
    assert "differs" not in states(new).values()


def test_whatever_is_changed_at_the_source_is_found(new, old):
    assert states(new)["reused from old"] == "holds"
    for name in sorted(files(old)):
        whole = (old / name).read_bytes()
        (old / name).write_bytes(whole[:-2] + b" \n")
        assert states(new)["reused from old"] == "differs", name
        (old / name).write_bytes(whole)


# --- as a user ---------------------------------------------------------------------------------------------------


def test_the_plan_shows_what_is_reused_and_verify_follows_it(corpus, old, tmp_path):
    path = tmp_path / "new.toml"
    path.write_text(to_toml(with_changes(TINY, {"data.corpus": str(corpus), **NEW, "reuse": "old"})))
    code, printed, errors = run_here("plan", path, "--out", tmp_path / "new", "--device", "cpu", folder=tmp_path)
    assert (code, errors) == (0, "")
    assert "Reused baseline runs" in printed
    assert "  runs     5 · " in printed
    code, printed, _ = run_here(
        "run", path, "--out", tmp_path / "new", "--device", "cpu", "--workers", "1", folder=tmp_path
    )
    assert code == 0
    assert "reused (2)" in printed
    code, printed, _ = run_here("verify", tmp_path / "new", folder=tmp_path)
    assert (code, "studies on them 2" in " ".join(printed.split())) == (0, True)
