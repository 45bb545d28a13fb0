"""Scores of what the plan names are registered; others are shown as exploratory, and enter no mean over tasks."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.verdict import decide
from ablationlab.analysis.wording import absence, deviation
from ablationlab.records.analysis import Analysis
from ablationlab.records.evaluation import Evaluation, evaluation_path
from ablationlab.records.results import Reader, Results
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.notebook import StudyResults
from ablationlab.report.terminal.details import details_view
from ablationlab.tasks import benchmarks, suite

from .builder import HYPOTHESES, build, study
from .scores import Put, evaluate

CRITERIA = [
    {"metric": "macro_accuracy", "role": "primary", "smallest_effect": 0.05},
    {"metric": "task_accuracy", "role": "secondary", "smallest_effect": 0.05},
]
SPELLING, ORDER = Put("spelling"), Put("word-order")
PLAIN, SAY, DOTS = (Put("last-word", template, choices=4) for template in ("plain", "say", "dots"))
MEANS = (
    "mean_task_accuracy",
    "choice_log_probability",
    "choice_margin",
    "choice_probability",
    "task_ece",
    "task_brier",
)
FEW = "mean_task_accuracy_fewshot"


def analysis_of(folder, put, tasks=("spelling", "word-order"), **settings) -> Analysis:
    """Five seeds of two arms; *put* gives the tasks of a run."""
    table = {"tasks": list(tasks), "items": 40, "gate_seeds": [11, 12, 13, 14, 15], **settings}
    made = study(evaluation=table, hypotheses=HYPOTHESES, **({"criteria": CRITERIA} if tasks else {}))
    plan = build(folder, made)
    evaluate(folder, plan, put if callable(put) else lambda run: put)
    return analyze(read_results(folder))


def recorded(folder) -> dict[tuple[str, int], Evaluation]:
    results = ResultsFolder(folder)
    return {
        (run.name.split("-")[1], int(run.name.rpartition("s")[2])): Evaluation.read(
            evaluation_path(results.run(run.name))
        )
        for run in results.runs.iterdir()
    }


def one(analysis: Analysis, metric: str, task: str | None = None):
    found = [c for c in analysis.comparisons if (c.metric, c.task_label) == (metric, task)]
    assert len(found) <= 1
    return found[0] if found else None


def deviations(analysis: Analysis) -> dict[str, str]:
    return {d.code: deviation(d) for d in analysis.deviations}


def same_numbers(a: Analysis, b: Analysis) -> None:
    """Everything about what was planned is equal, to the last bit; exploratory ones share a correction, so not that."""
    others = {c.id: c for c in b.comparisons}
    free = {"p_adjusted", "family_size", "outcome", "deciding"}
    for mine in a.comparisons:
        left_out = free if mine.label == "exploratory" else set()
        assert others[mine.id].model_dump(exclude=left_out) == mine.model_dump(exclude=left_out)
    assert a.evaluation is not None
    assert b.evaluation is not None
    assert set(map(str, a.evaluation.tasks)) <= set(map(str, b.evaluation.tasks))
    assert [(c.regime, c.fewshot, c.comparison.tasks) for c in a.evaluation.contrasts] != []


@pytest.mark.parametrize("whole", [False, True])
def test_evaluated_as_planned_the_means_are_those_of_the_records(tmp_path, whole):
    """The text may give fewer items than the cap allows (15 of 40), and the record says so."""
    few = replace(SPELLING, fewshot=2, items=15, whole=True)
    put = [replace(SPELLING, whole=whole), replace(ORDER, whole=whole), few, replace(ORDER, fewshot=2, whole=whole)]
    found = analysis_of(tmp_path, put, fewshot=[0, 2])
    assert found.deviations == ()
    assert found.evaluation.notes == ()
    runs = recorded(tmp_path)
    for name in (*MEANS, FEW):
        pairs = {pair.seed: (pair.variant, pair.reference) for pair in one(found, name).pairs}
        assert len(pairs) == 5
        for seed, (variant, reference) in pairs.items():
            assert variant == runs["layernorm", seed].metrics[name]
            assert reference == runs["none", seed].metrics[name]
    macro = one(found, "macro_accuracy")
    assert macro.label == "registered"
    tasks = {t.task.name: t.sensitivity.sensitive for t in found.evaluation.tasks if t.task.fewshot == 0}
    counted = [t for t, good in tasks.items() if good or not any(tasks.values())]
    for pair in macro.pairs:
        mine = [t.accuracy for t in runs["layernorm", pair.seed].tasks if t.fewshot == 0 and t.task in counted]
        assert pair.variant == pytest.approx(fmean(mine), abs=1e-15)


def test_what_is_scored_besides_is_exploratory_and_changes_no_planned_number(tmp_path):
    planned = analysis_of(tmp_path / "planned", [SPELLING, PLAIN], tasks=("spelling", "last-word"))
    extra = [Put("toolong", "stock", source="harness"), replace(SPELLING, fewshot=2), SAY, DOTS]
    found = analysis_of(tmp_path / "more", [SPELLING, PLAIN, *extra], tasks=("spelling", "last-word"))
    same_numbers(planned, found)
    assert found.deviations == ()
    names = ["last-word, exploratory", "toolong, exploratory", "spelling, 2-shot, exploratory"]
    assert [t.task.label for t in found.evaluation.tasks if not t.task.planned] == names
    assert all(one(found, "task_accuracy", name).label == "exploratory" for name in names)
    assert one(found, "task_accuracy", "spelling").label == "registered"
    assert one(found, FEW) is None
    assert one(found, "macro_accuracy_fewshot") is None
    assert found.evaluation.notes[0].details["tasks"] == names
    assert "\nScores of tasks\n" in printed(found)
    assert "Scores of tasks" not in printed(planned)


def printed(analysis) -> str:
    console = Console(file=StringIO(), width=1000)
    results = Results(Path(), None, False, (), Reader(Path())).changed(analysis=analysis, verdict=decide(analysis))
    console.print(*details_view(results, StudyResults(results).report, ["all"]), sep="\n")
    return console.file.getvalue()


def test_tasks_of_a_study_that_names_none_are_exploratory(tmp_path):
    found = analysis_of(tmp_path, [SPELLING, ORDER], tasks=())
    assert one(found, "macro_accuracy") is None
    assert one(found, "task_accuracy", "spelling, exploratory").label == "exploratory"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("items", [30, 60])
def test_another_number_of_items_is_not_what_was_planned(tmp_path, items, whole):
    """Unless these are all items that there are."""
    other = replace(SPELLING, items=items, whole=whole)
    found = analysis_of(tmp_path, [other, replace(ORDER, whole=False)])
    if items == 30 and whole:
        assert found.deviations == ()
        assert one(found, "task_accuracy", "spelling").label == "registered"
        return
    said = deviations(found)["scored-otherwise"]
    assert f"spelling: on {items} items in 15 of 15 runs, where 40 at most were planned" in said
    assert "word-order" not in said
    alone = analysis_of(tmp_path / "alone", [ORDER], tasks=("word-order",))
    for name in ("macro_accuracy", *MEANS):
        assert one(found, name).pairs == one(alone, name).pairs
    assert one(found, "task_accuracy", "spelling, exploratory").label == "exploratory"


def test_planned_were_all_items(tmp_path):
    found = analysis_of(tmp_path, [replace(SPELLING, whole=False), replace(ORDER, whole=True)], items=None)
    assert (
        "spelling: on 40 items in 15 of 15 runs, where all of them were planned"
        in deviations(found)["scored-otherwise"]
    )


def test_tasks_that_are_not_installed_any_more_are_read_from_the_plan(tmp_path, monkeypatch):
    put, tasks = [PLAIN, SAY, DOTS, Put("sciq", "stock", source="benchmark", choices=4)], ("last-word", "sciq")
    known = analysis_of(tmp_path, put, tasks=tasks, templates="all")
    monkeypatch.setattr(suite, "KINDS", {})
    monkeypatch.setattr(benchmarks, "CATALOGUE", {})
    same_numbers(known, analyze(read_results(tmp_path)))


def test_nothing_as_planned_leaves_h0_and_h1a_undecided(tmp_path):
    found = analysis_of(tmp_path, [replace(SPELLING, items=60), replace(ORDER, items=60)])
    assert one(found, "macro_accuracy") is None
    assert {"missing-metric", "scored-otherwise"} <= deviations(found).keys()
    assert {decide(found).hypotheses[name].status for name in ("H0", "H1a")} == {"undecided"}


def test_a_planned_task_that_no_run_was_put_is_a_deviation(tmp_path):
    found = analysis_of(tmp_path, [SPELLING])
    assert deviations(found)["scored-otherwise"].startswith("Not scored as planned: word-order: by no run.")


def test_templates_fewer_than_planned_do_not_count(tmp_path):
    text = "".join(f'{{"text": "{c}", "choices": ["a", "b"], "target": 0}}\n' for c in "Say: .")
    kept = tmp_path / "evaluation" / "tasks" / "last-word-plain-0shot-0123456789ab"
    kept.mkdir(parents=True)
    (kept / "items.jsonl").write_text(text)  # so the vocabulary has what the other templates are spelt with
    found = analysis_of(tmp_path, [PLAIN, SPELLING], tasks=("last-word", "spelling"), templates="all")
    assert "last-word (say); last-word (dots): by no run" in deviations(found)["scored-otherwise"]
    assert one(found, "task_accuracy", "last-word, exploratory").label == "exploratory"
    assert one(found, "mean_task_accuracy").pairs == one(found, "task_accuracy", "spelling").pairs


def test_templates_that_the_vocabulary_lacks_are_said_and_cost_nothing(tmp_path):
    found = analysis_of(tmp_path, [PLAIN, SPELLING], tasks=("last-word", "spelling"), templates="all")
    assert found.deviations == ()
    assert one(found, "task_accuracy", "last-word").label == "registered"
    assert found.evaluation.notes[0].details == {"task": "last-word", "templates": ["say", "dots"]}


def test_means_over_tasks_are_of_one_version_and_the_run_of_another_is_missing(tmp_path):
    """One run was scored on an older version, as after a checkpoint that could not be read again."""

    def put(run):
        old = (run.variant, run.seed) == ("none", 2)
        return [replace(SPELLING, version="0") if old else SPELLING, ORDER, replace(ORDER, fewshot=2)]

    found = analysis_of(tmp_path, put, tasks=("spelling", "word-order"), fewshot=[0, 2])
    why = "evaluated on another version of spelling (plain)"
    for name in ("macro_accuracy", *MEANS):
        comparison = one(found, name)
        assert [pair.seed for pair in comparison.pairs] == [1, 3, 4, 5]
        assert [(m.seed, m.arm, absence(m)) for m in comparison.missing] == [(2, "none", why)]
    seeds = {c.fewshot: c.comparison.seeds for c in found.evaluation.contrasts}
    assert seeds == {0: ("1", "3", "4", "5"), 2: ("1", "2", "3", "4", "5")}
    assert ["default-none-s2"] in [note.details.get("runs") for note in found.evaluation.notes]


def test_items_average_their_templates_as_the_task_does(tmp_path):
    tasks = ("last-word", "spelling")
    found = analysis_of(tmp_path, [PLAIN, SAY, DOTS, SPELLING], tasks=tasks, templates="all")
    part = next(t for t in found.evaluation.contrasts[0].comparison.tasks if t.task == "last-word")
    headline = one(found, "task_accuracy", "last-word")
    assert part.delta == pytest.approx(headline.delta, abs=1e-12)
    assert part.variant_mean == pytest.approx(headline.variant_mean, abs=1e-12)
    assert part.seed_p == pytest.approx(headline.tests["paired-t"].p)
    assert part.items == 40
    assert part.mcnemar == {}  # a share of three templates is not right or wrong
    alone = analysis_of(tmp_path / "one", [DOTS, SPELLING], tasks=())
    assert one(alone, "task_accuracy", "last-word, exploratory").delta != pytest.approx(headline.delta)


def test_tasks_of_one_name_and_several_sources_stay_apart(tmp_path):
    planned = analysis_of(tmp_path / "planned", [SPELLING, ORDER])
    mine = Put("spelling", "stock", source="harness", choices=4)
    found = analysis_of(tmp_path / "both", [SPELLING, ORDER, mine])
    same_numbers(planned, found)
    assert one(found, "task_accuracy", "harness:spelling, exploratory").label == "exploratory"
    assert [t.templates for t in found.evaluation.tasks if "spelling" in t.task.name] == [("stock",), ("plain",)]


def test_both_sources_may_be_planned(tmp_path):
    local, stock = (Put("sciq", "stock", source=source, choices=4) for source in ("benchmark", "harness"))
    found = analysis_of(tmp_path, [local, stock], tasks=("sciq", "harness:sciq"))
    assert [t.task.label for t in found.evaluation.tasks] == ["sciq", "harness:sciq"]
    assert one(found, "task_accuracy", "sciq").label == "registered"
    assert one(found, "task_accuracy", "harness:sciq").label == "registered"
    assert found.deviations == ()


def test_a_file_of_the_harness_is_taken_as_planned_and_it_is_said(tmp_path):
    found = analysis_of(tmp_path, [SPELLING, Put("mine", "stock", source="harness")], tasks=("spelling", "./mine.yaml"))
    assert one(found, "task_accuracy", "mine").label == "registered"
    assert found.evaluation.notes[0].details["groups"] == ["./mine.yaml"]
