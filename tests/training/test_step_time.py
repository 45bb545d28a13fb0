"""Arms at equal time: steps follow from step times that are measured before the plan is sealed."""

from __future__ import annotations

import pytest

from ablationlab.core.errors import MismatchError, PlanError, StudyError
from ablationlab.core.format import plain
from ablationlab.data.corpus import load_corpus
from ablationlab.pipeline import Options, open_study, train
from ablationlab.records.plan import Plan, StepTime
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.designs import step_times_line
from ablationlab.study import ledger
from ablationlab.study.load import parse_study
from ablationlab.study.plan import extension, make_plan
from conftest import write_study

DEEP = {"none": {}, "deep": {"model": {"layers": 4}}}


def times(plan: Plan, **seconds: float) -> tuple[StepTime, ...]:
    regimes = plan.study.regime_names()
    return tuple(
        StepTime(regime=regime, variant=name, seed=9, rounds=(each,) * 7)
        for regime in regimes
        for name, each in seconds.items()
    )


@pytest.fixture
def plan_at(study_table):
    """The plan of the tiny study at equal time, for given seconds per step."""

    def make(tables: dict, changes: dict | None = None, **seconds: float) -> Plan:
        table = study_table({"variants": tables, "budget.match": "time", "training.steps": 50, **(changes or {})})
        study = parse_study(table)
        measure = lambda draft: times(draft, **seconds)  # noqa: E731
        return make_plan(study, load_corpus(study.data), "cpu", measure=measure)

    return make


@pytest.mark.parametrize(("seconds", "steps"), [(0.002, 50), (0.004, 25), (0.0041, 24), (0.0013, 76)])
def test_steps_are_the_most_that_fit_into_the_baselines_time(plan_at, seconds, steps):
    plan = plan_at(DEEP, none=0.002, deep=seconds)
    budgets = {run.variant: run.budget for run in plan.runs}
    assert budgets["none"].steps == 50
    assert budgets["deep"].steps == steps
    total = 50 * 0.002
    assert 0 <= total - steps * seconds < seconds + 1e-12
    assert budgets["deep"].step_seconds == seconds
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_an_arm_that_takes_other_time_than_its_baseline_is_refused(plan_at):
    plan = plan_at(DEEP, none=0.002, deep=0.004)
    deep, none = (next(run for run in plan.runs if run.variant == name) for name in ("deep", "none"))
    longer = deep.budget.model_copy(update={"steps": 27})
    moved = deep.model_copy(update={"recipe": deep.recipe.model_copy(update={"budget": longer})})
    declared = [plan.variants["deep"], plan.variants["none"]]
    assert ledger.setting_mismatches(deep, none, declared) == []
    assert any("steps x measured step time" in text for text in ledger.setting_mismatches(moved, none, declared))
    with pytest.raises(MismatchError):
        ledger.refuse(moved.id, none.id, ledger.setting_mismatches(moved, none, declared))


def test_the_ledger_says_what_matched_and_what_did_not(plan_at):
    check = ledger.planned_inputs(plan_at(DEEP, none=0.002, deep=0.004), 1)
    differs = check.differs
    assert check.nearly == ("training time", "data order")
    assert (differs[0].name, differs[0].variants) == ("tokens", {"deep": pytest.approx(-0.5)})
    assert differs[1].name == "FLOPs"
    assert differs[1].variants["deep"] > 0


def test_arms_of_equal_shape_never_share_a_stack_whose_steps_would_take_one_time(plan_at):
    changes = {"execution.stack_width": 4}
    tables = {"none": {}, "rmsnorm": {}}
    together = [{run.split("-")[0] for run in stack} for stack in plan_at(tables, changes, none=1, rmsnorm=1).stacks]
    assert together == [{"none"}, {"rmsnorm"}]


def test_a_noisy_measurement_is_said_plainly(plan_at):
    plan = plan_at(DEEP, none=0.002, deep=0.004)
    assert "The rounds of an arm spread by up to 0 % of its median." in plain(step_times_line(plan))
    rounds = (0.004, 0.005, 0.003, 0.006, 0.004, 0.0045, 0.0035)
    noisy = StepTime(regime="default", variant="deep", seed=9, rounds=rounds)
    # Quartiles of the sorted rounds by hand: 0.00375 and 0.00475 around 0.004.
    assert noisy.spread == pytest.approx(0.001 / 0.004)
    line = step_times_line(plan.model_copy(update={"step_times": (plan.step_times[0], noisy)}))
    assert "The measurement was noisy: the rounds of deep spread by 25 % of their median" in plain(line)


def test_a_plan_at_equal_time_needs_a_measurement(study_table):
    study = parse_study(study_table({"variants": DEEP, "budget.match": "time"}))
    with pytest.raises(PlanError, match="step times that are measured here"):
        make_plan(study, load_corpus(study.data), "cpu")


def test_runs_spread_over_processes_and_arms_with_their_own_steps_are_refused(study_table):
    tables = {"none": {}, "long": {"training": {"steps": 99}}}
    table = study_table({"variants": tables, "budget.match": "time", "execution.parallel": "ddp"})
    with pytest.raises(StudyError) as error:
        parse_study(table)
    assert [problem.key for problem in error.value.problems] == ["budget.match", "variants.long.training.steps"]


def test_a_study_at_equal_time_is_timed_sealed_trained_and_extended(tmp_path):
    """Steps x measured seconds agree to within one step, whatever the clock says of four layers beside one."""
    changes = {"variants": DEEP, "budget.match": "time", "training.steps": 40, "execution.checkpoint_every": "auto"}
    path = write_study(tmp_path, changes)
    train(*open_study(path, tmp_path / "out"), Options(workers=1), lambda _: None)  # the ledger is checked at its end
    plan = Plan.read(tmp_path / "out" / "plan.lock")
    seconds = {time.variant: time.seconds for time in plan.step_times}
    steps = {planned.variant: planned.budget.steps for planned in plan.runs}
    assert not {time.seed for time in plan.step_times} & set(plan.study.seeds)
    assert steps["none"] == 40
    assert abs(steps["deep"] * seconds["deep"] - 40 * seconds["none"]) < seconds["deep"]
    results, text = ResultsFolder(tmp_path / "out"), load_corpus(plan.study.data)
    with pytest.raises(PlanError, match="rmsnorm cannot be added"):
        extension(results, text, {}, (), ["rmsnorm"], "")
    added = extension(results, text, {}, [3], (), "")
    assert {planned.variant: planned.budget.steps for planned in added.runs} == steps
