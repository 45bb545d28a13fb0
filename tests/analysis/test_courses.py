"""The course of runs as stored: what is drawn of it is what the records say, and nothing that decides hangs on it."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest

from ablationlab.analysis.conclusion import conclude
from ablationlab.analysis.courses import RunLoss, courses
from ablationlab.analysis.diagnostics import metric_diagnostics
from ablationlab.analysis.from_results import read_results
from ablationlab.records.analysis import Instability
from ablationlab.records.courses import COURSES, Courses
from ablationlab.records.fairness import FairName, FairState
from ablationlab.records.results import Results
from analysis.builder import STEPS, build, calm, outcome, seal_again, study

ARMS = ["none", "layernorm", "rmsnorm"]
STEP = np.arange(1.0, 61.0)


def run(variant, seed, losses, *, length=60, **how):
    losses = np.asarray(losses, dtype=np.float64)
    return RunLoss(variant, "default", seed, np.arange(1.0, losses.size + 1), losses, length, **how)


def test_the_difference_is_that_of_the_same_step_of_the_same_seed():
    noise = {seed: np.random.default_rng(seed).normal(size=60) for seed in range(5)}
    gap = np.linspace(1, 0.2, 60)
    runs = [run("a", s, noise[s]) for s in noise] + [run("b", s, noise[s] + gap) for s in noise]
    found = courses(runs, "loss", "a", ["a", "b"], whole=True)
    assert found is not None
    assert (found.along, found.steps_per_point) == ("steps", 1.0)
    arm = found.arm("b", "default")
    assert arm is not None
    assert arm.places == tuple(STEP)
    assert arm.difference == pytest.approx(gap, rel=1e-4)
    assert arm.low == pytest.approx(gap, rel=1e-4)
    assert (arm.n, arm.centre, arm.level) == (5, "mean", 0.95)


def test_runs_of_unequal_length_are_compared_at_equal_shares():
    runs = [run("a", s, 10 - STEP / 60, length=60) for s in range(3)]
    runs += [run("b", s, 9 - np.arange(1, 31) / 30, length=30) for s in range(3)]
    found = courses(runs, "loss", "a", ["a", "b"], whole=True)
    assert found is not None
    assert found.along == "share"
    arm = found.arm("b", "default")
    assert arm is not None
    known = [value for value in arm.difference if value is not None]
    assert known == pytest.approx([-1.0] * len(known), abs=0.02)
    assert 0 < arm.places[0] < arm.places[-1] <= 1


def test_a_diverged_run_counts_as_the_worst_from_where_it_ended_and_never_helps_its_arm():
    runs = [run("a", s, np.full(60, 2.0)) for s in range(7)]
    runs += [run("b", s, np.full(60, 1.0 + 0.1 * s)) for s in range(6)]
    runs.append(run("b", 6, np.full(30, 0.5), lost=True))
    found = courses(runs, "loss", "a", ["a", "b"], whole=True)
    assert found is not None
    arm = found.arm("b", "default")
    assert arm is not None
    assert arm.centre == "median"
    assert arm.difference[0] == pytest.approx(float(np.median([-1.5, *(0.1 * s - 1 for s in range(6))])))
    assert arm.difference[-1] == pytest.approx(float(np.median([*(0.1 * s - 1 for s in range(6)), math.inf])))
    assert arm.high[-1] is None  # the worst of seven has no end


def test_seeds_of_one_arm_alone_are_no_pairs():
    runs = [run("a", s, STEP) for s in range(4)] + [run("b", s, STEP + 1) for s in range(2, 6)]
    found = courses(runs, "loss", "a", ["a", "b"], whole=True)
    assert found is not None
    arm = found.arm("b", "default")
    assert arm is not None
    assert arm.n == 2
    assert arm.level is None
    assert not arm.low


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("courses") / "results"

    def ended(variant, regime, seed):
        if (variant, seed) == ("rmsnorm", 3):
            return None
        return {**(outcome(variant, regime, seed) or {}), "mean_embedding_norm": 2.0 if variant == "layernorm" else 1.0}

    def curve(variant, regime, seed):
        return calm(seed)[: 20 if ended(variant, regime, seed) is None else None]

    build(folder, study(variants=ARMS), outcomes=ended, curves=curve)
    conclude(read_results(folder)).write(folder)
    return folder


def test_courses_belong_to_their_analysis(made, tmp_path):
    results = Results.open(made)
    courses = results.courses
    assert courses is not None
    assert courses == Courses.read(made / COURSES)
    assert courses.curves is not None
    assert {arm.variant for arm in courses.curves.arms} == set(ARMS)
    assert results.analysis is not None
    other = courses.model_copy(update={"analysis_hash": "another"})
    other.replace(tmp_path / COURSES)
    kept = (made / COURSES).read_bytes()
    try:
        other.replace(made / COURSES)
        assert Results.open(made).courses is None
    finally:
        (made / COURSES).write_bytes(kept)


def test_a_failed_run_has_the_step_of_its_failure(made):
    analysis = Results.open(made).analysis
    assert analysis is not None
    assert analysis.stability is not None
    runs = {run.run: run for run in analysis.stability.runs}
    diverged = [run for run in runs.values() if run.reason == Instability.DIVERGED]
    assert [run.seed for run in diverged] == [3]
    assert diverged[0].failed_at == diverged[0].diverged_at
    assert all((run.failed_at is None) == (not run.unstable) for run in runs.values())


def test_every_condition_is_asked_of_every_variant(made):
    analysis = Results.open(made).analysis
    assert analysis is not None
    found = {condition.name: condition for condition in analysis.fair}
    assert set(found) >= {
        FairName.TOKENS,
        FairName.FLOPS,
        FairName.ORDER,
        FairName.START,
        FairName.PLACE,
        FairName.RATE,
    }
    assert all(set(condition.arms) == set(ARMS[1:]) for condition in found.values())
    assert {arm.state for arm in found[FairName.TOKENS].arms.values()} == {FairState.EQUAL}
    assert found[FairName.TOKENS].value == STEPS * 64
    assert {arm.state for arm in found[FairName.RATE].arms.values()} == {FairState.NOT_CHECKED}


def test_nothing_recorded_is_equal_for_a_variant_without_a_run_beside_the_baseline(made, tmp_path):
    folder = tmp_path / "lost"
    shutil.copytree(made, folder)
    for run in (folder / "runs").glob(f"*{ARMS[1]}*"):
        shutil.rmtree(run)
    analysis = conclude(read_results(folder)).analysis
    found = {condition.name: condition for condition in analysis.fair}
    for name in (FairName.TOKENS, FairName.FLOPS, FairName.ORDER, FairName.START, FairName.PLACE):
        assert found[name].arms[ARMS[1]].state == FairState.NOT_CHECKED


def test_diagnostics_are_ranked_by_what_their_interval_leaves(made):
    analysis = Results.open(made).analysis
    assert analysis is not None
    ranked = metric_diagnostics(analysis)
    assert [one.moved for one in ranked] == sorted((one.moved for one in ranked), reverse=True)
    first = next(one for one in ranked if one.measure == "mean_embedding_norm")
    assert (first.variant, first.ratio) == ("layernorm", pytest.approx(2.0))
    for one in ranked:
        held = one.low is None or one.high is None or one.low <= 1 <= one.high
        assert one.moved == pytest.approx(
            0.0 if held else min(abs(math.log(one.low or 1)), abs(math.log(one.high or 1)))
        )


def test_what_a_study_says_of_its_variants_is_kept(tmp_path):
    variants = {"none": {}, "scaled": {"about": "twice <b>the</b> rate", "training": {"lr": 2e-3}}}
    build(tmp_path / "results", study(variants=variants))
    assert conclude(read_results(tmp_path / "results")).analysis.about["scaled"] == "twice <b>the</b> rate"


def test_a_log_of_some_steps_leaves_no_gaps(tmp_path):
    """Then the curves that results keep are drawn, which have every one of their points."""
    folder = tmp_path / "results"
    build(folder, study(variants=ARMS))
    for path in folder.glob("runs/*/metrics.jsonl"):
        head, *lines = path.read_text().splitlines()
        path.write_text("\n".join([head, *lines[::7], ""]))
    seal_again(folder)
    courses = conclude(read_results(folder)).courses
    assert courses is not None
    assert courses.curves is not None
    assert courses.curves.steps_per_point is None
    for one in courses.curves.arms:
        assert None not in one.losses
        assert len(one.places) == 9
