"""A sweep of two stages, trained for real: what it chooses, what it seals, and that a kill changes nothing."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from ablationlab import pipeline
from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.from_results import _drift_of_stages
from ablationlab.analysis.stages import found_by_stages, losses_of
from ablationlab.analysis.verify import chain
from ablationlab.core.errors import AblationLabError, PlanError, StudyError
from ablationlab.records.environment import current
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results
from ablationlab.records.settings import Study
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.designs import found_line
from ablationlab.report.page.build import page_html
from ablationlab.report.paper.compose import document_of
from ablationlab.report.paper.facts import StudyView
from ablationlab.stats.rates import best_rate
from ablationlab.stats.results import Doubt
from ablationlab.study import plan as plans
from ablationlab.study.load import parse_study
from ablationlab.study.plan import run_count
from ablationlab.study.stages import stage_study
from conftest import TINY, corpus_text, with_changes
from report.test_paper import said

RATES = [2e-3 * 2**k for k in range(7)]
FINER = {"seeds": [21, 22, 23]}
TWO = {
    "variants": ["none", "layernorm"],
    "seeds": [1, 2, 3],
    "training.steps": 6,
    "training.warmup": 1,
    "criteria": [{"metric": "validation_loss", "regime": "tuned", "role": "primary", "smallest_effect": 0.01}],
    "sweep": {"lr": RATES, "selection_seeds": [11, 12, 13], "finer": FINER},
    "execution": {"stack_width": 4, "threads": 1},
}
OPTIONS = pipeline.Options(device="cpu", workers=1)


def run(study: Study, out: Path, **options) -> list[pipeline.PipelineEvent]:
    events: list[pipeline.PipelineEvent] = []
    pipeline.run(study, out, listen=events.append, device="cpu", workers=1, **options)
    return events


def bits(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("metrics.jsonl")}


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text(corpus_text())
    return path


@pytest.fixture(scope="module")
def whole(corpus_file, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("two-stages") / "whole"
    run(parse_study(with_changes(TINY, {"data.corpus": str(corpus_file), **TWO})), out)
    return out


def test_the_second_stage_surrounds_the_first_s_best_and_arms_are_judged_at_the_best_of_both(whole):
    results, plan = ResultsFolder(whole), Plan.of(ResultsFolder(whole))
    first, second = losses_of(results, 1), losses_of(results, 2)
    for variant, minimum in plan.tuned.minima.items():
        assert sorted(first[variant]) == sorted(RATES)
        centre = best_rate(first[variant]).lr
        assert sorted(second[variant]) == sorted(plan.study.sweep.finer.about(centre))
        assert len(first[variant][centre]) == len(second[variant][centre]) == 3
        assert minimum.lr in first[variant].keys() | second[variant].keys()
        judged = [r for r in plan.runs if (r.variant, r.lr) == (variant, minimum.lr)]
        assert [run.seed for run in judged] == [1, 2, 3]
    seeds = [{run.seed for run in Results.open(whole / f"calibration/sweep/{n:02d}").runs} for n in (1, 2)]
    assert seeds == [{11, 12, 13}, {21, 22, 23}]
    assert not {11, 12, 13, 21, 22, 23} & {run.seed for run in plan.runs}


def test_all_arms_have_as_many_runs_in_every_stage_as_the_study_says(whole):
    plan = Plan.of(ResultsFolder(whole))
    for number, each in enumerate(plan.study.sweep.stage_runs(), start=1):
        stage = Plan.of(ResultsFolder(whole / f"calibration/sweep/{number:02d}"))
        assert [sum(run.variant == name for run in stage.runs) for name in plan.study.variants] == [each, each]
    stages = sum(len(Plan.of(ResultsFolder(whole / f"calibration/sweep/{n:02d}")).runs) for n in (1, 2))
    assert run_count(plan.study) == len(plan.runs) + stages


def test_the_tuned_comparison_is_of_the_judged_runs_beyond_the_doubt_of_its_side(whole):
    analysis, plan = analyze(read_results(whole)), Plan.of(ResultsFolder(whole))
    compared = next(one for one in analysis.comparisons if one.id == "validation_loss/tuned/layernorm:none")
    assert compared.label == "registered"
    minima = plan.tuned.minima
    assert compared.doubt == Doubt(below=minima["layernorm"].doubt, above=minima["none"].doubt)
    losses = {
        (run.planned.variant, run.planned.seed): run.result.metrics["validation_loss"]
        for run in Results.open(whole).runs
        if run.planned.lr == plan.tuned.minima[run.planned.variant].lr
    }
    assert [pair.variant for pair in compared.pairs] == [losses["layernorm", seed] for seed in (1, 2, 3)]
    assert analysis.sweep.stages == 2
    assert not any(one.regime == "sweep" for one in analysis.comparisons)


def test_killed_between_and_within_stages_it_finds_the_same_bits(study_table, whole, tmp_path):
    study, results = parse_study(study_table(TWO)), ResultsFolder(tmp_path / "killed")
    for stop in (3, 33, 50):  # within the first stage, and within the second
        ended = 0

        def killed(event: pipeline.PipelineEvent, stop: int = stop) -> None:
            nonlocal ended
            ended = len(list(results.path.glob("calibration/sweep/*/runs/*/result.json")))
            if ended >= stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pipeline.train(study, results, OPTIONS, killed)
        assert not results.plan.exists()
    with pytest.raises(PlanError, match="Its calibration or sweep has begun"):
        pipeline.train(study.changed(seeds=(1, 2)), results, OPTIONS, lambda _: None)
    pipeline.train(study, results, OPTIONS, lambda _: None)
    assert bits(results.path) == bits(whole)
    assert Plan.of(results).tuned.minima == Plan.of(ResultsFolder(whole)).tuned.minima


def test_what_changes_between_the_stages_and_the_plan_is_refused_or_labelled(study_table, whole, tmp_path, monkeypatch):
    study, place = parse_study(study_table(TWO)), tmp_path / "drifted"
    shutil.copytree(whole, place)
    (place / "plan.lock").unlink()
    assert not [each for each in analyze(read_results(whole)).deviations if each.code == "drift"]
    now = current()
    monkeypatch.setattr(plans, "current", lambda: now.model_copy(update={"code_hash": "f" * 64}))
    with pytest.raises(AblationLabError, match="not the environment that the plan was sealed in"):
        pipeline.tune(study, ResultsFolder(place), OPTIONS, lambda _: None)
    assert pipeline.tune(study, ResultsFolder(place), replace(OPTIONS, accept_drift=True), lambda _: None)
    shutil.copytree(whole, tmp_path / "sealed")
    path = tmp_path / "sealed/plan.lock"
    plan = json.loads(path.read_text())
    plan["execution"]["device_name"] = "another"
    plan["plan_hash"] = Plan.seal(plan)
    path.write_text(json.dumps(plan))
    results = Results.open(tmp_path / "sealed")
    labelled = _drift_of_stages(results.plan, results)
    assert [each.details["runs"] for each in labelled] == [["calibration/sweep/01"], ["calibration/sweep/02"]]
    assert all("device" in each.details["change"] for each in labelled)


def test_seeds_are_added_at_the_rates_found_and_variants_are_refused(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "more")
    pipeline.extend(tmp_path / "more", OPTIONS, seeds=[4], listen=lambda _: None)
    before, plan = Plan.of(ResultsFolder(whole)), Plan.of(ResultsFolder(tmp_path / "more"))
    added = [run for run in plan.runs if run.seed == 4 and run.role == "sweep"]
    assert {run.variant: run.lr for run in added} == {name: found.lr for name, found in before.tuned.minima.items()}
    with pytest.raises(PlanError, match="cannot be added, for the best rates of all arms"):
        pipeline.extend(tmp_path / "more", OPTIONS, variants=["rmsnorm"], listen=lambda _: None)
    for seed in (11, 21):
        with pytest.raises(PlanError, match=r"are in sweep\."):
            pipeline.extend(tmp_path / "more", OPTIONS, seeds=[seed], listen=lambda _: None)


def test_verify_finds_a_stage_that_was_changed_exchanged_or_from_which_other_rates_follow(whole, tmp_path):
    def links(folder: Path) -> dict[str, str]:
        return {link.file: link.state for link in chain(folder)}

    assert links(whole)["calibration"] == "holds"
    place = tmp_path / "altered"
    shutil.copytree(whole, place)
    result = next(place.glob("calibration/sweep/01/runs/*/result.json"))
    found = json.loads(result.read_text())
    found["metrics"]["validation_loss"] -= 1
    result.write_text(json.dumps(found))
    assert any(state == "differs" and "sweep/01" in file for file, state in links(place).items())
    shutil.copytree(whole, tmp_path / "swapped")
    first, second = (tmp_path / f"swapped/calibration/sweep/{n:02d}" for n in (1, 2))
    shutil.rmtree(second)
    shutil.copytree(first, second)
    assert links(tmp_path / "swapped")["calibration/sweep/02/plan.lock"] == "differs"
    shutil.copytree(whole, tmp_path / "none")
    shutil.rmtree(tmp_path / "none/calibration")
    assert links(tmp_path / "none")["calibration"] == "not kept"


def test_a_plan_whose_rates_do_not_follow_from_its_stages_is_found(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "chosen")
    path = tmp_path / "chosen/plan.lock"
    plan = json.loads(path.read_text())
    plan["tuned"]["minima"]["layernorm"]["doubt"] = 0.0
    plan["plan_hash"] = Plan.seal(plan)
    path.write_text(json.dumps(plan))
    link = next(link for link in chain(tmp_path / "chosen") if link.file == "calibration/sweep")
    assert (link.state, link.code) == ("differs", "other-rates")


def test_what_was_found_is_no_part_of_the_hashes_and_a_stage_of_another_study_is_refused(study_table, whole):
    plan, study = Plan.of(ResultsFolder(whole)), parse_study(study_table(TWO))
    assert plan.study.sweep.finer.found
    assert (plan.study.hash, plan.study.criteria_hash) == (study.hash, study.criteria_hash)
    assert stage_study(plan.study).hash == stage_study(study).hash
    other = parse_study(study_table({**TWO, "training.steps": 7}))
    with pytest.raises(PlanError, match=r"training\.steps"):
        found_by_stages(other, ResultsFolder(whole))


def test_a_study_registered_otherwise_finds_no_stages_of_its_own(study_table, whole):
    """What the losses of all arms showed can be no reason for another registration."""
    for changes in ({"seeds": [4, 5, 6]}, {"criteria": [{**TWO["criteria"][0], "smallest_effect": 0.5}]}):
        with pytest.raises(PlanError, match="question"):
            found_by_stages(parse_study(study_table({**TWO, **changes})), ResultsFolder(whole))


def test_an_arm_without_a_loss_is_not_measured_and_the_others_are(study_table, tmp_path):
    huge = {
        **TWO,
        "variants": ["none", "layernorm", "huge"],
        "tables": {"huge": {"model": {"init_std": 1e25}}},
    }
    table = study_table(huge)
    pipeline.train(parse_study(table), ResultsFolder(tmp_path / "huge"), OPTIONS, lambda _: None)
    plan = Plan.of(ResultsFolder(tmp_path / "huge"))
    assert plan.tuned.minima["huge"].status == "no-loss"
    assert "huge 0.016 (no fit)" in found_line(plan.tuned)
    analysis = analyze(read_results(tmp_path / "huge"))
    shown = {
        one.variant: one.n for one in analysis.comparisons if one.regime == "tuned" and one.metric == "validation_loss"
    }
    assert shown["layernorm"] == 3
    assert shown.get("huge", 0) == 0


def test_page_paper_and_status_say_what_was_found(whole, cli):
    results = Results.open(whole)
    assert "found in two stages" in page_html(results)
    assert any("found in two stages" in line for line in StudyView(results).stages)
    assert "was swept in two stages: seven learning rates on three seeds" in said(document_of([results], {}))
    assert "Best rates, found in two stages" in " ".join(cli("status", whole)[1].split())


def test_before_there_is_a_plan_the_stages_and_their_runs_are_shown(study_file, cli, tmp_path):
    study = study_file(TWO)
    code, output, _ = cli("plan", study, "--out", tmp_path / "results")
    assert code == 0
    shown = " ".join(output.split())
    assert "1 7 rates 3 21 42 2 5 rates 3 15 30 judged its best 3 3 6" in shown
    assert "doubt" in shown
    assert (tmp_path / "results/study.lock").exists()
    assert not (tmp_path / "results/plan.lock").exists()


@pytest.mark.parametrize(
    ("changes", "key", "text"),
    [
        ({"sweep.selection_seeds": [11, 12]}, "sweep.selection_seeds", "three or more"),
        ({"sweep.finer.seeds": [12, 21, 22]}, "sweep.finer.seeds", "seeds of its own"),
        ({"sweep.finer.seeds": [3, 21, 22]}, "sweep.finer.seeds", "seeds of its own"),
        ({"sweep.finer.seeds": [21, 22]}, "sweep.finer.seeds", "3"),
        ({"sweep.finer.rates": 6}, "sweep.finer.rates", "odd"),
        ({"sweep.finer.factor": 1.0}, "sweep.finer.factor", "1.05"),
        ({"sweep.finer.found": {"none": 1e-3}}, "sweep.finer.found", "leave it out"),
        ({"sweep.stage": 1}, "sweep.stage", "leave it out"),
        ({"sweep.lr": [1e-3, 2e-3]}, "sweep.lr", "three or more"),
        ({"sweep.lr": [1e-3, 2e-3, 8e-3]}, "sweep.lr", "factor of two"),
        ({"sweep.variant_lr": {"layernorm": [1e-3, 2e-3, 4e-3]}}, "sweep.variant_lr.layernorm", "same effort"),
        ({"budget": {"match": "time"}}, "budget.match", "every stage anew"),
        ({"criteria": [{"metric": "lr_sensitivity", "regime": "sweep"}]}, "criteria[0].regime", "sweep"),
    ],
)
def test_what_two_stages_cannot_do_is_refused(study_table, changes, key, text):
    with pytest.raises(StudyError) as refused:
        parse_study(study_table({**deepcopy(TWO), **changes}))
    assert any(problem.key == key and text in str(problem) for problem in refused.value.problems), refused.value
