"""Which tasks count is decided on baseline runs that are never compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.wording import name_of as metric_of
from ablationlab.analysis.wording import sensitivity_reasons
from ablationlab.core.errors import StudyError
from ablationlab.records.analysis import ComparedTask
from ablationlab.records.plan import PlannedRun

from .builder import build, study
from .scores import Put, evaluate

CRITERIA = [{"metric": "macro_accuracy", "role": "primary", "smallest_effect": 0.05}]
SPELLING, ORDER = Put("spelling", items=400), Put("word-order", items=400)
GATE = [11, 12, 13, 14, 15]


class Flat(Put):
    """As good after half of the steps as at the end."""

    def answered(self, run, weights):
        return super().answered(run, "final") if weights == "final" else self._as_final(run)

    def _as_final(self, run):
        result, rows = super().answered(run, "final")
        place = rows.schema.get_field_index("weights")
        halves = rows.set_column(place, rows.schema.field(place), [["half"] * rows.num_rows])
        return result.model_copy(update={"weights": "half"}), halves


def analyzed(folder: Path, put, **settings):
    table = {"tasks": ["spelling", "word-order"], "items": 400, "gate_seeds": GATE, **settings}
    plan = build(folder, study(evaluation=table, criteria=CRITERIA))
    evaluate(folder, plan, put if callable(put) else lambda run: put)
    return analyze(read_results(folder))


def macro(analysis):
    return next(comparison for comparison in analysis.comparisons if comparison.metric == "macro_accuracy")


def test_runs_of_the_gate_are_in_no_comparison_and_in_no_stability(tmp_path):
    found = analyzed(tmp_path, [SPELLING, ORDER])
    assert {pair.seed for comparison in found.comparisons for pair in comparison.pairs} == {1, 2, 3, 4, 5}
    assert not any(run.run.startswith("gate") for run in found.stability.runs)
    assert all(task.gate_seeds == tuple(GATE) for task in found.evaluation.tasks)
    assert all(task.sensitivity.sensitive for task in found.evaluation.tasks)


def test_the_gate_does_not_look_at_compared_runs(tmp_path):
    """Compared baselines at the level of chance change the comparison, and nothing in the gate."""

    def weak(run: PlannedRun) -> list[Put]:
        return (
            [SPELLING, ORDER]
            if run.role == "gate" or run.variant != "none"
            else [replace(SPELLING), Flat("word-order", items=400)]
        )

    plain, other = analyzed(tmp_path / "a", [SPELLING, ORDER]), analyzed(tmp_path / "b", weak)
    assert [task.sensitivity for task in plain.evaluation.tasks] == [
        task.sensitivity for task in other.evaluation.tasks
    ]


def test_an_average_of_one_task_goes_by_the_name_of_that_task(tmp_path):
    both = macro(analyzed(tmp_path / "a", [SPELLING, ORDER]))
    assert both.averaged == (ComparedTask("spelling"), ComparedTask("word-order"))
    assert metric_of(both) == "macro accuracy (spelling and word-order)"
    one = macro(analyzed(tmp_path / "b", [SPELLING, Flat("word-order", items=400)]))
    assert one.averaged == (ComparedTask("spelling"),)
    assert metric_of(one) == "task accuracy, spelling"


def test_without_gate_seeds_no_task_counts(tmp_path):
    found = analyzed(tmp_path, [SPELLING, ORDER], gate_seeds=[])
    assert not any(task.sensitivity.sensitive for task in found.evaluation.tasks)
    gate = found.evaluation.tasks[0].sensitivity
    assert (gate.gate_runs, gate.planned_gate_runs, gate.chance_p) == (0, 0, None)
    assert sensitivity_reasons(gate) == ["it takes gate runs on two seeds or more, and 0 of 0 have a value"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"evaluation": {"gate_seeds": [5, 6, 7]}}, "tasks must be chosen on other seeds than those that are compared"),
        ({"evaluation": {"gate_seeds": [6, 7]}}, "2 seeds cannot show that a task tells models apart"),
        ({"evaluation": {"gate_seeds": [6, 7, 7]}}, "given more than once: 7"),
    ],
)
def test_a_gate_that_cannot_be_fair_is_refused(changes, says):
    with pytest.raises(StudyError) as caught:
        study(**changes)
    assert says in str(caught.value)


def test_only_a_gate_of_its_own_seeds_keeps_both_error_rates(load_benchmark):
    gate = load_benchmark("gate")
    world = gate.World(27, 27, 1.0, 0.5)
    rates = {name: gate.simulate(world, name, 4_000, np.random.default_rng(1)) for name in gate.DESIGNS}
    assert rates["compared"]["worse"] > 0.10
    assert rates["halves"]["worse"] > 0.035
    for side in ("better", "worse"):
        assert abs(rates["own-5"][side] - 0.025) < 0.008
