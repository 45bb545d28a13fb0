"""The evaluations of a study's runs: values per run and task, which tasks are sensitive, and the comparisons item by item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from pydantic import JsonValue

from ablationlab.analysis.dataset import Absent, Arm, Dataset, Value, Values, absent, mean_or_absent, value_or_absent
from ablationlab.analysis.items import item_contrasts
from ablationlab.core.errors import RecordError
from ablationlab.records.analysis import (
    Absence,
    ComparedTask,
    EvaluationAnalysis,
    EvaluationNote,
    EvaluationNoteCode,
    TaskSensitivity,
    TextContrast,
)
from ablationlab.records.evaluation import (
    Evaluation,
    Provenance,
    TaskKey,
    TaskResult,
    Weights,
    evaluation_path,
)
from ablationlab.records.metrics import GATED
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.results import Results, Run
from ablationlab.records.settings import ALPHA
from ablationlab.records.storage import ResultsFolder
from ablationlab.stats import crossed_mean, sensitivity
from ablationlab.stats._common import complement
from ablationlab.stats.results import Sensitivity
from ablationlab.tasks import STOCK, TASK_MEANS, PlannedTasks, TaskName, planned_tasks
from ablationlab.tasks.scores import OF_CALIBRATED

#: Per-task metrics: how each is read from a result, and whether guessing has a level in it.
PER_TASK: dict[str, tuple[Callable[[TaskResult], float | None], bool]] = {
    "task_accuracy": (lambda result: result.accuracy, True),
    "choice_log_probability": (lambda result: result.log_probability, False),
    "choice_margin": (lambda result: result.margin, False),
}


@dataclass(frozen=True)
class AskedTask:
    """A task as it is compared, its *name* in the records, and the templates it was put in, with the hashes that count."""

    compared: ComparedTask
    name: str
    hashes: dict[str, str]


@dataclass(frozen=True)
class Evaluated:
    """Everything that was evaluated, by run. *otherwise*: in words, what was planned and not scored as planned."""

    runs: dict[str, Evaluation]
    provenance: Provenance
    tasks: tuple[AskedTask, ...]
    most_examples: int  # the largest number of examples that the plan names
    suite: dict[str, dict[str, float]]  # n-gram accuracies by task hash
    otherwise: tuple[dict[str, JsonValue], ...]  # tasks that were planned and scored on other items, or not at all
    notes: tuple[EvaluationNote, ...]

    def averaged(self, name: str) -> list[AskedTask]:
        """The planned tasks that a mean over tasks is of, by the mean's name."""
        most = self.most_examples if name.endswith("_fewshot") else 0
        if name.endswith("_fewshot") and not most:
            return []
        tasks = [task for task in self.tasks if task.compared.planned and task.compared.fewshot == most]
        if name in OF_CALIBRATED:
            return [task for task in tasks if self.any_result(task).calibration is not None]
        return tasks

    @property
    def metrics(self) -> set[str]:
        """Every metric that some run has a value of."""
        names = {name for evaluation in self.runs.values() for name in evaluation.metrics} - TASK_MEANS.keys()
        names |= {name for name in (*TASK_MEANS, "macro_accuracy", "macro_accuracy_fewshot") if self.averaged(name)}
        return names | PER_TASK.keys() if self.tasks else names

    def any_result(self, task: AskedTask) -> TaskResult:
        """Some run's result of a task, for what is equal in all of them: items, chance, hash."""
        template, digest = next(iter(task.hashes.items()))
        return next(
            result
            for evaluation in self.runs.values()
            for result in evaluation.tasks
            if (result.task, result.template, result.fewshot, result.task_hash)
            == (task.name, template, task.compared.fewshot, digest)
        )

    def why_not(self, run_id: str) -> Absent | None:
        """Why a run's evaluation does not count, if so."""
        evaluation = self.runs.get(run_id)
        if evaluation is None:
            return absent(Absence.NOT_EVALUATED)
        if evaluation.status == "not-evaluable":
            return absent(Absence.NOT_EVALUABLE, why=evaluation.why)
        return None if evaluation.how == self.provenance else absent(Absence.EVALUATED_OTHERWISE)

    def score(
        self, run_id: str, task: AskedTask, value: Callable[[TaskResult], float | None], weights: Weights = "final"
    ) -> Value:
        """Mean over templates, or why there is none."""
        why = self.why_not(run_id)
        if why is not None:
            return why
        scores = []
        for template, digest in task.hashes.items():
            key = TaskKey(task.name, template, task.compared.fewshot, weights)
            same = [result for result in self.runs[run_id].tasks if result.key == key]
            result = next((result for result in same if result.task_hash == digest), None)
            if result is None:
                reason = Absence.OTHER_TASK_VERSION if same else Absence.TASK_NOT_EVALUATED
                return absent(reason, task=task.compared.label, template=template)
            number = value(result)
            if number is None:
                return absent(Absence.NOT_RECORDED)
            scores.append(number)
        return value_or_absent(fmean(scores))


def read_evaluations(plan: Plan, results: Results, finished: Sequence[Run]) -> Evaluated | None:
    """The evaluation.json of every run that has one; None where there is none."""
    runs: dict[str, Evaluation] = {}
    for run in finished:
        evaluation = run.evaluation
        if evaluation is not None:
            if (evaluation.id, evaluation.plan_hash) != (run.id, plan.plan_hash):
                path = evaluation_path(run.folder)
                raise RecordError("belongs to another run or another plan; run ablationlab evaluate again", path)
            runs[run.id] = evaluation
    scored = [evaluation for evaluation in runs.values() if evaluation.how is not None]
    if not scored:
        return None
    provenance = _commonest(scored)
    suite = () if results.suite is None else results.suite.tasks
    folder = ResultsFolder(results.folder)
    odd = [evaluation.id for evaluation in scored if evaluation.how != provenance]
    notes = [_note(EvaluationNoteCode.OTHER_CONDITIONS, runs=odd)] if odd else []
    used = [
        [task for task in evaluation.tasks if task.weights == "final"]
        for evaluation in scored
        if evaluation.how == provenance
    ]
    planned = planned_tasks(plan, (task for tasks in used for task in tasks))
    left_out: set[tuple[TaskName, str]] = set()
    for name, wordings in planned.templates.items():
        lacking = [
            w for w in wordings if not any((planned.named(t), t.template) == (name, w) for ts in used for t in ts)
        ]
        unspelt = (
            planned.unspellable(folder, plan.corpus.tokenizer, name, lacking) if len(lacking) < len(wordings) else ()
        )
        left_out |= {(name, template) for template in unspelt}
        if unspelt:
            notes.append(_note(EvaluationNoteCode.UNSPELLABLE, task=name.name, templates=list(unspelt)))
    tasks = _tasks(planned, [task for tasks in used for task in tasks], left_out)
    besides = [task.compared.label for task in tasks if not task.compared.planned]
    if besides:
        notes.append(_note(EvaluationNoteCode.NOT_PLANNED, tasks=besides))
    if planned.beyond and any(planned.named(t).source == "harness" for ts in used for t in ts):
        named = sorted({t.task for ts in used for t in ts if planned.named(t).source == "harness"})
        notes.append(_note(EvaluationNoteCode.OPENED_BY_HARNESS, groups=list(planned.beyond), tasks=named))
    ngrams = {task.task_hash: task.ngrams for task in suite}
    most = max(planned.fewshot, default=0)
    return Evaluated(runs, provenance, tasks, most, ngrams, tuple(_otherwise(planned, used, left_out)), tuple(notes))


def _note(code: EvaluationNoteCode, **details: Any) -> EvaluationNote:
    return EvaluationNote(code=code, details=details)


def _commonest(scored: Sequence[Evaluation]) -> Provenance:
    """The way that most runs were evaluated in."""
    by_text = {evaluation.how.model_dump_json(): evaluation.how for evaluation in scored if evaluation.how is not None}
    counts = Counter(evaluation.how.model_dump_json() for evaluation in scored if evaluation.how is not None)
    return by_text[counts.most_common(1)[0][0]]


def _tasks(
    planned: PlannedTasks, scored: Iterable[TaskResult], left_out: Container[tuple[TaskName, str]]
) -> tuple[AskedTask, ...]:
    """Every task that offers choices, as planned and besides; where versions differ between runs, the one that most have."""
    groups: dict[tuple[TaskName, int], dict[bool, dict[str, Counter[str]]]] = {}
    for result in scored:
        if result.chance is not None:
            group = groups.setdefault((planned.named(result), result.fewshot), {True: {}, False: {}})
            group[planned.counts(result)].setdefault(result.template, Counter())[result.task_hash] += 1
    tasks = []
    sources = Counter((name.name, fewshot) for name, fewshot in groups)
    for (name, fewshot), group in sorted(
        groups.items(), key=lambda entry: (entry[0][1], entry[0][0].name, entry[0][0])
    ):
        wanted = {w for w in planned.templates.get(name, ()) if (name, w) not in left_out}
        if wanted - group[True].keys():  # not all of its wordings: not the mean that was planned
            group[False] |= {t: counts + group[False].get(t, Counter()) for t, counts in group[True].items()}
            group[True] = {}
        ambiguous = sources[name.name, fewshot] > 1 and name.source == "harness"
        shown = f"{STOCK}{name.name}" if ambiguous else name.name
        for as_planned, templates in group.items():
            if templates:
                hashes = {template: counts.most_common(1)[0][0] for template, counts in sorted(templates.items())}
                tasks.append(AskedTask(ComparedTask(shown, fewshot, as_planned), name.name, hashes))
    return tuple(tasks)


def _otherwise(
    planned: PlannedTasks, used: Sequence[Sequence[TaskResult]], left_out: Container[tuple[TaskName, str]]
) -> Iterable[dict[str, JsonValue]]:
    """What was planned and scored on other numbers of *items* by some *runs*, or by none at all; alike cases together."""
    alike: dict[tuple[tuple[int, ...], int], list[str]] = {}
    for name, template, fewshot in planned.asked():
        mine = [t for ts in used for t in ts if (planned.named(t), t.template, t.fewshot) == (name, template, fewshot)]
        others = [result.items for result in mine if not planned.counts(result)]
        several = f" ({template})" if len(planned.templates[name]) > 1 else ""
        what = ComparedTask(name.name, fewshot).label + several
        if others or (not mine and (name, template) not in left_out):
            alike.setdefault((tuple(sorted(set(others))), len(others)), []).append(what)
    return [
        {
            "tasks": list[JsonValue](tasks),
            "items": list[JsonValue](items),
            "runs": runs,
            "of": len(used),
            "planned": planned.items,
        }
        for (items, runs), tasks in alike.items()
    ]


def gated(
    evaluated: Evaluated,
    gate_runs: Sequence[PlannedRun],
    tasks: Sequence[AskedTask],
    value: Callable[[TaskResult], float | None],
    *,
    guessable: bool,
) -> Sensitivity:
    """The protocol's gate on the mean over *tasks*: decided on baselines that are never compared."""
    scores, halves = [], []
    for run in gate_runs:
        final = mean_or_absent([evaluated.score(run.id, task, value) for task in tasks])
        half = mean_or_absent([evaluated.score(run.id, task, value, "half") for task in tasks])
        if not isinstance(final, Absent):
            scores.append(final)
            if not isinstance(half, Absent):
                halves.append((half, final))
    if len(scores) < 2:
        return Sensitivity(sensitive=False, gate_runs=len(scores), planned_gate_runs=len(gate_runs))
    results = [evaluated.any_result(task) for task in tasks]
    control = ([half for half, _ in halves], [final for _, final in halves]) if len(halves) >= 2 else None
    return sensitivity(
        scores,
        items=sum(result.items for result in results),
        chance=fmean(result.chance or 0.0 for result in results) if guessable else None,
        control=control,
    )


def macro_gate(
    evaluated: Evaluated, gate_runs: Sequence[PlannedRun], good: Sequence[AskedTask], mine: Sequence[AskedTask]
) -> Sensitivity:
    """The gate on a macro average: over the *good* ones of *mine*, over all of *mine* where none is."""
    gate = gated(evaluated, gate_runs, good or mine, lambda result: result.accuracy, guessable=True)
    return replace(
        gate,
        sensitive=bool(good) and gate.sensitive,
        sensitive_tasks=tuple(task.compared.label for task in good),
        tasks=len(mine),
    )


def described(
    evaluated: Evaluated, gate_runs: Sequence[PlannedRun], task: AskedTask, regime: str, gate: Sensitivity
) -> TaskSensitivity:
    """A task with its size, its level of chance, what n-grams reach, and how the gate's runs and their controls do."""

    def mean(weights: Weights, hashes: dict[str, str]) -> float | None:
        asked = replace(task, hashes=hashes)
        scores = [evaluated.score(run.id, asked, lambda result: result.accuracy, weights) for run in gate_runs]
        numbers = [score for score in scores if not isinstance(score, Absent)]
        return fmean(numbers) if numbers else None

    by_template = [mean("final", {template: digest}) for template, digest in task.hashes.items()]
    known = [value for value in by_template if value is not None]
    result = evaluated.any_result(task)
    return TaskSensitivity(
        task=task.compared,
        regime=regime,
        gate_seeds=tuple(run.seed for run in gate_runs),
        templates=tuple(task.hashes),
        items=result.items,
        chance=result.chance,
        ngrams=evaluated.suite.get(result.task_hash, {}),
        baseline_accuracy=mean("final", task.hashes),
        control_accuracy=mean("half", task.hashes),
        template_spread=stdev(known) if len(known) > 1 else None,
        sensitivity=gate,
    )


Gate = dict[tuple[str, ComparedTask | None, str], Sensitivity]


def values_of(plan: Plan, evaluated: Evaluated, endings: Mapping[str, Absent]) -> Values:
    """Run-level metrics and per-task values of every planned run, or why there is none."""
    values: Values = {}
    recorded = {name for evaluation in evaluated.runs.values() for name in evaluation.metrics} - TASK_MEANS.keys()
    averaged = {name: evaluated.averaged(name) for name in TASK_MEANS}
    names = [name for name in plan.metrics if name in recorded or averaged.get(name)]
    for run in plan.runs:
        gone = endings.get(run.id) or evaluated.why_not(run.id)
        for name in names:
            cell = values.setdefault(Arm(name, None, run.regime, run.variant), {})
            if name in recorded:
                cell[run.seed] = gone or value_or_absent(evaluated.runs[run.id].metrics.get(name))
            else:
                scores = [evaluated.score(run.id, task, TASK_MEANS[name]) for task in averaged[name]]
                cell[run.seed] = gone or mean_or_absent(scores)
        for task in evaluated.tasks:
            for name, (value, _) in PER_TASK.items():
                cell = values.setdefault(Arm(name, task.compared, run.regime, run.variant), {})
                cell[run.seed] = gone or evaluated.score(run.id, task, value)
    return values


def text_contrasts(dataset: Dataset, plan: Plan, evaluated: Evaluated) -> Iterator[TextContrast]:
    """Loss differences over seeds and documents, of every contrast that has seeds whose runs read the same documents."""
    losses = {
        (run.regime, run.variant, run.seed): scores.documents
        for run in plan.compared
        if evaluated.why_not(run.id) is None
        if (scores := evaluated.runs[run.id].tokens) is not None
    }
    asked = [criterion.alpha for criterion in dataset.criteria if criterion.metric == "validation_loss"]
    level = complement(asked[0] if asked else ALPHA)
    for regime in dataset.regimes:
        for variant, reference in dataset.pairs():
            pairs = [
                (losses[regime, variant, seed], losses[regime, reference, seed])
                for seed in plan.study.seeds
                if {(regime, variant, seed), (regime, reference, seed)} <= losses.keys()
            ]
            texts = {(ours.kind, ours.tokens) for pair in pairs for ours in pair}
            if len(texts) != 1 or len(pairs[0][0].tokens) < 2:
                continue
            (kind, tokens) = texts.pop()
            deltas = [[a - b for a, b in zip(ours.losses, theirs.losses, strict=True)] for ours, theirs in pairs]
            crossed = crossed_mean(deltas, weights=tokens, level=level)
            yield TextContrast(variant=variant, reference=reference, regime=regime, kind=kind, crossed=crossed)


def with_evaluation(dataset: Dataset, plan: Plan, evaluated: Evaluated) -> Dataset:
    """Add sensitivity, the macro accuracies over sensitive tasks, and the item-level comparisons."""
    gate: Gate = {}
    averaged: dict[tuple[str, str], tuple[ComparedTask, ...]] = {}
    parts: list[TaskSensitivity] = []
    values: Values = {arm: dict(cell) for arm, cell in dataset.values.items()}
    for regime in dataset.regimes:
        if not any(run.regime == regime for run in plan.runs):  # tuned arms: nothing was evaluated there
            continue
        gate_runs = [run for run in plan.runs if (run.role, run.regime) == ("gate", regime)]
        for task in evaluated.tasks:
            for name, (value, guessable) in PER_TASK.items():
                gate[name, task.compared, regime] = gated(evaluated, gate_runs, [task], value, guessable=guessable)
            parts.append(described(evaluated, gate_runs, task, regime, gate["task_accuracy", task.compared, regime]))
        for name in GATED:
            mine = evaluated.averaged(name)
            if not mine:
                continue
            good = [task for task in mine if gate["task_accuracy", task.compared, regime].sensitive]
            averaged[name, regime] = tuple(task.compared for task in good or mine)
            gate[name, None, regime] = macro_gate(evaluated, gate_runs, good, mine)
            for variant in dataset.variants:
                cell = [values[Arm("task_accuracy", task.compared, regime, variant)] for task in good or mine]
                values[Arm(name, None, regime, variant)] = {
                    seed: mean_or_absent([c[seed] for c in cell]) for seed in cell[0]
                }
    contrasts, left_out = item_contrasts(dataset, plan, evaluated)
    part = EvaluationAnalysis(
        harness=evaluated.provenance.harness,
        precision=evaluated.provenance.precision,
        tasks=tuple(parts),
        contrasts=tuple(contrasts),
        texts=tuple(text_contrasts(dataset, plan, evaluated)),
        notes=(*evaluated.notes, *left_out),
    )
    return replace(dataset, values=values, sensitivity=gate, evaluation=part, averaged=averaged)
