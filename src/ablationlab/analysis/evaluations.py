"""Evaluations of runs as material: values per run and task, which tasks are sensitive, and what the items say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ablationlab.analysis.answers import item_contrasts
from ablationlab.analysis.comparisons import number_or_why
from ablationlab.analysis.evaluated import PER_TASK, Evaluated
from ablationlab.analysis.material import Arm, Material
from ablationlab.analysis.sensitive import described, gated, macro_gate, macro_mean
from ablationlab.records.analysis import EvaluationAnalysis, Seed, TaskSensitivity
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import Plan
from ablationlab.stats.results import Sensitivity
from ablationlab.tasks import TASK_MEANS

Cells = dict[Arm, dict[Seed, float | str]]
_MACRO = ("macro_accuracy", "macro_accuracy_fewshot")
Gate = dict[tuple[str, str | None, str], Sensitivity]


def values_of(plan: Plan, evaluated: Evaluated, whys: Mapping[str, str]) -> Cells:
    """Run-level metrics and per-task values of every planned run, or why there is none."""
    values: Cells = {}
    recorded = {name for one in evaluated.runs.values() for name in one.metrics} - TASK_MEANS.keys()
    averaged = {name: evaluated.averaged(name) for name in TASK_MEANS}
    names = [name for name in plan.metrics if name in recorded or averaged.get(name)]
    for run in plan.runs:
        gone = whys.get(run.id) or evaluated.why_not(run.id)
        for name in names:
            cell = values.setdefault(Arm(name, None, run.regime, run.variant), {})
            if name in recorded:
                cell[run.seed] = gone or number_or_why(evaluated.runs[run.id].metrics.get(name))
            else:
                scores = [evaluated.score(run.id, task, TASK_MEANS[name]) for task in averaged[name]]
                cell[run.seed] = gone or macro_mean(scores)
        for task in evaluated.tasks:
            for name, (value, _) in PER_TASK.items():
                cell = values.setdefault(Arm(name, task.label, run.regime, run.variant), {})
                cell[run.seed] = gone or evaluated.score(run.id, task, value)
    return values


def with_evaluation(material: Material, plan: Plan, results: ResultsFolder, evaluated: Evaluated) -> Material:
    """Add sensitivity, the macro accuracies over sensitive tasks, and the item-level comparisons."""
    gate: Gate = {}
    parts: list[TaskSensitivity] = []
    values: Cells = {arm: dict(cell) for arm, cell in material.values.items()}
    for regime in material.regimes:
        baselines = [run for run in plan.runs if (run.variant, run.regime) == (material.baseline, regime)]
        if not baselines:  # a comparison of its own, such as tuned arms: nothing was evaluated there
            continue
        for task in evaluated.tasks:
            for name, (value, guessable) in PER_TASK.items():
                gate[name, task.label, regime] = gated(evaluated, baselines, [task], value, guessable=guessable)
            parts.append(described(evaluated, baselines, task, regime, gate["task_accuracy", task.label, regime]))
        for name in _MACRO:
            mine = evaluated.averaged(name)
            if not mine:
                continue
            good = [task for task in mine if gate["task_accuracy", task.label, regime].sensitive]
            gate[name, None, regime] = macro_gate(evaluated, baselines, good, mine)
            for variant in material.variants:
                cell = [values[Arm("task_accuracy", task.label, regime, variant)] for task in good or mine]
                values[Arm(name, None, regime, variant)] = {
                    seed: macro_mean([c[seed] for c in cell]) for seed in cell[0]
                }
    contrasts, left_out = item_contrasts(material, plan, results, evaluated)
    part = EvaluationAnalysis(
        harness=evaluated.how.harness,
        precision=evaluated.how.precision,
        tasks=tuple(parts),
        contrasts=tuple(contrasts),
        notes=(*evaluated.notes, *left_out),
    )
    besides = frozenset(task.label for task in evaluated.tasks if not task.planned)
    return replace(material, values=values, sensitivity=gate, evaluation=part, exploratory_tasks=besides)
