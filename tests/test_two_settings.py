"""A sweep over the learning rate and a second setting, trained for real: what it trains, chooses, seals and refuses."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from itertools import product
from pathlib import Path

import pytest

from ablationlab import pipeline
from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.stages import losses_of
from ablationlab.analysis.verify import chain
from ablationlab.core.errors import StudyError
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results
from ablationlab.records.settings import Second, Sweep
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.designs import found_line
from ablationlab.report.page.build import page_html
from ablationlab.report.paper.compose import document_of
from ablationlab.stats.rates import best_trial
from ablationlab.stats.results import Doubt
from ablationlab.study.load import parse_study
from ablationlab.study.plan import run_count
from conftest import TINY, corpus_text, with_changes
from report.test_paper import said
from test_two_stages import OPTIONS, bits, run

RATES, VALUES = [4e-3, 8e-3, 16e-3], [0.05, 0.2, 0.8]
BOTH = {
    "variants": ["none", "layernorm"],
    "seeds": [1, 2, 3],
    "training.steps": 6,
    "training.warmup": 1,
    "training.lr": 8e-3,
    "criteria": [{"metric": "validation_loss", "regime": "tuned", "role": "primary", "smallest_effect": 0.01}],
    "sweep": {
        "lr": RATES,
        "selection_seeds": [11, 12, 13],
        "finer": {"seeds": [21, 22, 23]},
        "second": {"setting": "weight_decay", "values": VALUES},
    },
    "execution": {"stack_width": 4, "threads": 1},
}


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text(corpus_text())
    return path


@pytest.fixture(scope="module")
def whole(corpus_file, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("two-settings") / "whole"
    run(parse_study(with_changes(TINY, {"data.corpus": str(corpus_file), **BOTH})), out)
    return out


def test_arms_are_trained_at_every_pair_then_about_their_best_and_judged_at_the_best_of_both(whole):
    results, plan = ResultsFolder(whole), Plan.of(ResultsFolder(whole))
    first, second = losses_of(results, 1), losses_of(results, 2)
    for variant, found in plan.tuned.minima.items():
        assert sorted(first[variant]) == sorted(product(RATES, VALUES))
        centre = best_trial(first[variant])
        assert sorted(second[variant]) == sorted(plan.study.sweep.about(centre))
        assert len(second[variant]) == 9
        assert (found.lr, found.second) in first[variant].keys() | second[variant].keys()
        judged = [
            run.seed
            for run in plan.runs
            if (run.variant, run.lr, run.training.weight_decay) == (variant, found.lr, found.second)
        ]
        assert judged == [1, 2, 3]
    stages = [Plan.of(ResultsFolder(whole / f"calibration/sweep/{n:02d}")) for n in (1, 2)]
    assert [len(stage.runs) // 2 for stage in stages] == list(plan.study.sweep.stage_runs()) == [27, 27]
    assert run_count(plan.study) == len(plan.runs) + sum(len(stage.runs) for stage in stages)


def test_the_tuned_comparison_is_of_the_judged_runs_and_other_settings_stay_equal(whole):
    analysis, plan = analyze(read_results(whole)), Plan.of(ResultsFolder(whole))
    compared = next(one for one in analysis.comparisons if one.id == "validation_loss/tuned/layernorm:none")
    minima = plan.tuned.minima
    assert analysis.sweep.second == "weight_decay"
    losses = {
        (run.planned.variant, run.planned.seed): run.result.metrics["validation_loss"]
        for run in Results.open(whole).runs
        if (run.planned.lr, run.planned.training.weight_decay)
        == (minima[run.planned.variant].lr, minima[run.planned.variant].second)
    }
    if all(found.status == "ok" for found in minima.values()):
        assert compared.doubt == Doubt(below=minima["layernorm"].doubt, above=minima["none"].doubt)
    if minima["none"].status == "ok" or minima["layernorm"].status != "ok":
        assert [pair.variant for pair in compared.pairs] in ([losses["layernorm", s] for s in (1, 2, 3)], [])


def test_killed_between_and_within_stages_it_finds_the_same_bits(study_table, whole, tmp_path):
    study, results = parse_study(study_table(BOTH)), ResultsFolder(tmp_path / "killed")
    for stop in (10, 80):

        def killed(event: pipeline.PipelineEvent, stop: int = stop) -> None:
            if len(list(results.path.glob("calibration/sweep/*/runs/*/result.json"))) >= stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pipeline.train(study, results, OPTIONS, killed)
        assert not results.plan.exists()
    pipeline.train(study, results, OPTIONS, lambda _: None)
    assert bits(results.path) == bits(whole)
    assert Plan.of(results).tuned.minima == Plan.of(ResultsFolder(whole)).tuned.minima


def test_verify_works_the_pairs_out_again(whole, tmp_path):
    assert {link.file: link.state for link in chain(whole)}["calibration"] == "holds"
    shutil.copytree(whole, tmp_path / "chosen")
    path = tmp_path / "chosen/plan.lock"
    plan = json.loads(path.read_text())
    plan["tuned"]["minima"]["layernorm"]["second"] = 0.31
    plan["plan_hash"] = Plan.seal(plan)
    path.write_text(json.dumps(plan))
    link = next(link for link in chain(tmp_path / "chosen") if link.file == "calibration/sweep")
    assert link.state == "differs"


def test_what_was_found_is_shown_and_is_no_part_of_the_hashes(whole, study_table, cli):
    results, plan = Results.open(whole), Plan.of(ResultsFolder(whole))
    study = parse_study(study_table(BOTH))
    assert (plan.study.hash, plan.study.criteria_hash) == (study.hash, study.criteria_hash)
    assert "weight_decay" in page_html(results)
    assert "weight_decay" in said(document_of([results], {}))
    assert all(name in found_line(plan.tuned) for name in ("none", "layernorm"))
    assert "Best rates, found in two stages" in " ".join(cli("status", whole)[1].split())


def test_random_points_are_the_same_for_every_arm_and_within_its_ranges():
    second = Second(setting="warmup", values=(10, 40, 160), trials=20)
    own = (1e-2, 2e-2, 4e-2)
    sweep = Sweep(
        lr=(1e-3, 2e-3, 4e-3),
        variant_lr={"muon": own},
        selection_seeds=(11, 12, 13),
        second=second,
        finer={"seeds": (1, 2, 3)},
    )
    plain, muon = sweep.trials("none"), sweep.trials("muon")
    assert plain == sweep.trials("layernorm")
    assert len(set(plain)) == len(muon) == 20 == sweep.stage_runs()[0] // 3
    assert all(1e-3 <= lr <= 4e-3 and 10 <= steps <= 160 and steps == int(steps) for lr, steps in plain)
    assert [lr / 10 for lr, _ in muon] == pytest.approx([lr for lr, _ in plain], rel=1e-3)
    assert plain != sweep.changed(selection_seeds=(12, 13, 14)).trials("none")
    assert sweep.settings_of(plain[0]).keys() == {"lr", "warmup"}


@pytest.mark.parametrize(("centre", "about"), [(4.0, (3.0, 4.0, 6.0)), (40.0, (28.0, 40.0, 56.0))])
def test_steps_of_warmup_stay_whole_and_different(centre, about):
    assert Second(setting="warmup", values=(4, 20, 40)).about(centre) == about


@pytest.mark.parametrize(
    ("changes", "key", "text"),
    [
        ({"sweep.finer": None}, "sweep.finer", "without a second stage"),
        ({"sweep.finer.rates": 5}, "sweep.finer.rates", "leave it out"),
        ({"sweep.second.setting": "weight_decai"}, "sweep.second.setting", "weight_decay"),
        ({"sweep.second.setting": "betas"}, "sweep.second.setting", "weight_decay"),
        ({"sweep.second.values": [0.1, 0.2]}, "sweep.second.values", "3"),
        ({"sweep.second.values": [0.0, 0.1, 0.2]}, "sweep.second.values[0]", "0"),
        ({"sweep.second.values": [0.01, 0.1, 0.2]}, "sweep.second.values", "factor of 4"),
        ({"sweep.second.trials": 8}, "sweep.second.trials", "16"),
        ({"sweep.second.found": {"none": 0.1}}, "sweep.second.found", "leave it out"),
        ({"sweep.points": {"none": [[1e-3, 0.1]]}}, "sweep.points", "leave them out"),
        ({"sweep.second": {"setting": "warmup", "values": [2, 4, 8]}}, "sweep.second.values", "4 or more"),
        ({"sweep.second": {"setting": "warmup", "values": [4, 5, 6]}}, "sweep.second.values", "longer than a run"),
        (
            {"tables": {"plain": {"training": {"weight_decay": 0.3}}}, "variants": ["none", "plain"]},
            "variants.plain.training.weight_decay",
            "tunes this setting",
        ),
    ],
)
def test_what_two_settings_cannot_do_is_refused(study_table, changes, key, text):
    with pytest.raises(StudyError) as refused:
        parse_study(study_table({**deepcopy(BOTH), **changes}))
    assert any(problem.key == key and text in str(problem) for problem in refused.value.problems), refused.value
