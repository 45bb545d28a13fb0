"""Evaluations of runs as material: values per run and task, which tasks are sensitive, and what the items say.

Scores are compared only where they are scores of the same thing: the same task by its hash, made in the same way (harness,
precision, device, code). A run that was evaluated otherwise has no value, and the reason is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from ablationlab.analysis.comparisons import number_or_why
from ablationlab.analysis.items import ItemScores, TaskScores, compare_items
from ablationlab.analysis.material import Arm, Material
from ablationlab.conclusions_evaluation import EvaluationPart, ItemContrastPart, TaskSensitivityPart
from ablationlab.conclusions_parts import Seed, SensitivityPart
from ablationlab.errors import RecordError
from ablationlab.evaluation_records import (
    Evaluation,
    HowPart,
    Suite,
    TaskResult,
    Weights,
    evaluation_path,
    samples_path,
    suite_path,
)
from ablationlab.folders import ResultsFolder
from ablationlab.metrics import METRICS
from ablationlab.records import Plan, PlannedRun
from ablationlab.stats import sensitivity
from ablationlab.storage import content_hash, sha256_file

Cells = dict[Arm, dict[Seed, float | str]]
#: Per-task metrics: how each is read from a result, and whether guessing has a level in it.
_PER_TASK: dict[str, tuple[Callable[[TaskResult], float | None], bool]] = {
    "task_accuracy": (lambda result: result.accuracy, True),
    "choice_log_probability": (lambda result: result.log_probability, False),
    "choice_margin": (lambda result: result.margin, False),
}
_MACRO = {"macro_accuracy": False, "macro_accuracy_fewshot": True}
Gate = dict[tuple[str, str | None, str], SensitivityPart]


@dataclass(frozen=True)
class AskedTask:
    """A task with a number of examples: the templates it was put in, each with the hash that counts."""

    name: str
    fewshot: int
    hashes: dict[str, str]

    @property
    def label(self) -> str:
        """As it stands in comparisons."""
        return self.name if self.fewshot == 0 else f"{self.name}, {self.fewshot}-shot"


@dataclass(frozen=True)
class Evaluated:
    """Everything that was evaluated, by run."""

    runs: dict[str, Evaluation]
    how: HowPart
    tasks: tuple[AskedTask, ...]
    suite: dict[str, dict[str, float]]  # n-gram accuracies by task hash
    notes: tuple[str, ...]

    @property
    def metrics(self) -> set[str]:
        """Every metric that some run has a value of."""
        names = {name for one in self.runs.values() for name in one.metrics}
        if self.tasks:
            names |= {*_PER_TASK, "macro_accuracy"}
        if any(task.fewshot for task in self.tasks):
            names.add("macro_accuracy_fewshot")
        return names

    def why_not(self, run_id: str) -> str | None:
        """Why a run's evaluation does not count, if so."""
        found = self.runs.get(run_id)
        if found is None:
            return "not evaluated"
        if found.status == "not-evaluable":
            return f"not evaluable: {found.why}"
        return None if found.how == self.how else "evaluated in another way (harness, device, code or precision)"

    def score(
        self, run_id: str, task: AskedTask, value: Callable[[TaskResult], float | None], weights: Weights = "final"
    ) -> float | str:
        """Mean over templates, or why there is none."""
        why = self.why_not(run_id)
        if why is not None:
            return why
        found = []
        for template, digest in task.hashes.items():
            result = next(
                (
                    one
                    for one in self.runs[run_id].tasks
                    if (one.task, one.template, one.fewshot, one.weights)
                    == (task.name, template, task.fewshot, weights)
                ),
                None,
            )
            if result is None:
                return f"not evaluated on {task.label} ({template})"
            if result.task_hash != digest:
                return f"evaluated on another version of {task.label} ({template})"
            number = value(result)
            if number is None:
                return "no value recorded"
            found.append(number)
        return number_or_why(fmean(found))


def read_evaluations(plan: Plan, results: ResultsFolder, finished: Sequence[PlannedRun]) -> Evaluated | None:
    """Every evaluation.json of the plan's runs; None where there is none."""
    runs: dict[str, Evaluation] = {}
    for run in finished:
        path = evaluation_path(results.run(run.id))
        if path.exists():
            found = Evaluation.read(path)
            if (found.id, found.plan_hash) != (run.id, plan.plan_hash):
                raise RecordError(f"{path} belongs to another run or another plan; run ablationlab evaluate again")
            runs[run.id] = found
    scored = [one for one in runs.values() if one.how is not None]
    if not scored:
        return None
    how = _commonest(scored)
    suite = Suite.read(suite_path(results)).tasks if suite_path(results).exists() else ()
    odd = [one.id for one in scored if one.how != how]
    notes = [f"evaluated in another way than the others, and not used: {', '.join(odd)}"] if odd else []
    tasks = _tasks(one for one in scored if one.how == how)
    return Evaluated(runs, how, tasks, {task.task_hash: task.ngrams for task in suite}, tuple(notes))


def _commonest(scored: Sequence[Evaluation]) -> HowPart:
    """The way that most runs were evaluated in."""
    by_text = {one.how.model_dump_json(): one.how for one in scored if one.how is not None}
    counts = Counter(one.how.model_dump_json() for one in scored if one.how is not None)
    return by_text[counts.most_common(1)[0][0]]


def _tasks(evaluations: Iterable[Evaluation]) -> tuple[AskedTask, ...]:
    """Every task that offers choices; where versions differ between runs, the one that most runs have."""
    hashes: dict[tuple[str, int], dict[str, Counter[str]]] = {}
    for one in evaluations:
        for result in one.tasks:
            if result.weights == "final" and result.chance is not None:
                by_template = hashes.setdefault((result.task, result.fewshot), {})
                by_template.setdefault(result.template, Counter())[result.task_hash] += 1
    return tuple(
        AskedTask(name, fewshot, {t: counts.most_common(1)[0][0] for t, counts in sorted(templates.items())})
        for (name, fewshot), templates in sorted(hashes.items(), key=lambda entry: (entry[0][1], entry[0][0]))
    )


def values_of(plan: Plan, evaluated: Evaluated, whys: Mapping[str, str]) -> Cells:
    """Run-level metrics and per-task values of every planned run, or why there is none."""
    values: Cells = {}
    names = [name for name in METRICS if any(name in one.metrics for one in evaluated.runs.values())]
    for run in plan.runs:
        gone = whys.get(run.id) or evaluated.why_not(run.id)
        for name in names:
            cell = values.setdefault(Arm(name, None, run.regime, run.variant), {})
            cell[run.seed] = gone or number_or_why(evaluated.runs[run.id].metrics.get(name))
        for task in evaluated.tasks:
            for name, (value, _) in _PER_TASK.items():
                cell = values.setdefault(Arm(name, task.label, run.regime, run.variant), {})
                cell[run.seed] = gone or evaluated.score(run.id, task, value)
    return values


def with_evaluation(material: Material, plan: Plan, results: ResultsFolder, evaluated: Evaluated) -> Material:
    """Add sensitivity, the macro accuracies over sensitive tasks, and the item-level comparisons."""
    gate: Gate = {}
    parts: list[TaskSensitivityPart] = []
    values: Cells = {arm: dict(cell) for arm, cell in material.values.items()}
    for regime in material.regimes:
        baselines = [run for run in plan.runs if (run.variant, run.regime) == (material.baseline, regime)]
        if not baselines:  # a comparison of its own, such as tuned arms: nothing was evaluated there
            continue
        for task in evaluated.tasks:
            for name, (value, guessable) in _PER_TASK.items():
                gate[name, task.label, regime] = _gated(evaluated, baselines, [task], value, guessable=guessable)
            parts.append(_described(evaluated, baselines, task, regime, gate["task_accuracy", task.label, regime]))
        for name, many in _MACRO.items():
            most = max((task.fewshot for task in evaluated.tasks), default=0)
            mine = [t for t in evaluated.tasks if t.fewshot == (most if many else 0)] if most or not many else []
            if not mine:
                continue
            good = [task for task in mine if gate["task_accuracy", task.label, regime].sensitive]
            gate[name, None, regime] = _macro_gate(evaluated, baselines, good, mine)
            for variant in material.variants:
                cell = [values[Arm("task_accuracy", task.label, regime, variant)] for task in good or mine]
                values[Arm(name, None, regime, variant)] = {seed: _macro([c[seed] for c in cell]) for seed in cell[0]}
    part = EvaluationPart(
        harness=evaluated.how.harness,
        precision=evaluated.how.precision,
        tasks=tuple(parts),
        contrasts=tuple(_contrasts(material, plan, results, evaluated)),
        notes=evaluated.notes,
    )
    return replace(material, values=values, sensitivity=gate, evaluation=part)


def _macro(values: Sequence[float | str]) -> float | str:
    wrong = next((value for value in values if isinstance(value, str)), None)
    return wrong if wrong is not None else fmean(value for value in values if not isinstance(value, str))


def _gated(
    evaluated: Evaluated,
    baselines: Sequence[PlannedRun],
    tasks: Sequence[AskedTask],
    value: Callable[[TaskResult], float | None],
    *,
    guessable: bool,
) -> SensitivityPart:
    """The protocol's gate on the mean over *tasks*.

    Baselines on other seeds must beat chance, whichever seed is compared: all but the best one are asked, which is the least
    favourable choice of "other seeds".
    """
    scores, halves = [], []
    for run in baselines:
        final = _macro([evaluated.score(run.id, task, value) for task in tasks])
        half = _macro([evaluated.score(run.id, task, value, "half") for task in tasks])
        if not isinstance(final, str):
            scores.append(final)
            if not isinstance(half, str):
                halves.append((half, final))
    if len(scores) < 2:
        why = f"baselines on two seeds or more are needed, and {len(scores)} have a value"
        return SensitivityPart(
            sensitive=False, beats_chance=None, chance_p=None, control_told_apart=False, control_p=None, reasons=(why,)
        )
    results = [_any_result(evaluated, task) for task in tasks]
    control = ([half for half, _ in halves], [final for _, final in halves]) if len(halves) >= 2 else None
    found = sensitivity(
        sorted(scores)[:-1],
        items=sum(result.items for result in results),
        chance=fmean(result.chance or 0.0 for result in results) if guessable else None,
        control=control,
    )
    return SensitivityPart(**found.as_dict())


def _any_result(evaluated: Evaluated, task: AskedTask) -> TaskResult:
    template, digest = next(iter(task.hashes.items()))
    return next(
        result
        for one in evaluated.runs.values()
        for result in one.tasks
        if (result.task, result.template, result.fewshot, result.task_hash)
        == (task.name, template, task.fewshot, digest)
    )


def _macro_gate(
    evaluated: Evaluated, baselines: Sequence[PlannedRun], good: Sequence[AskedTask], mine: Sequence[AskedTask]
) -> SensitivityPart:
    found = _gated(evaluated, baselines, good or mine, lambda result: result.accuracy, guessable=True)
    counted = ", ".join(task.label for task in good)
    if good:
        why = f"the mean is over the {len(good)} of {len(mine)} tasks that are sensitive: {counted}"
        return found.model_copy(update={"reasons": (why, *found.reasons)})
    why = f"none of the {len(mine)} tasks is sensitive; the mean shown is over all of them"
    return found.model_copy(update={"sensitive": False, "reasons": (why, *found.reasons)})


def _described(
    evaluated: Evaluated, baselines: Sequence[PlannedRun], task: AskedTask, regime: str, gate: SensitivityPart
) -> TaskSensitivityPart:
    def mean(weights: Weights, hashes: dict[str, str]) -> float | None:
        one = AskedTask(task.name, task.fewshot, hashes)
        scores = [evaluated.score(run.id, one, lambda result: result.accuracy, weights) for run in baselines]
        numbers = [score for score in scores if not isinstance(score, str)]
        return fmean(numbers) if numbers else None

    by_template = [mean("final", {template: digest}) for template, digest in task.hashes.items()]
    known = [value for value in by_template if value is not None]
    result = _any_result(evaluated, task)
    return TaskSensitivityPart(
        task=task.label,
        name=task.name,
        fewshot=task.fewshot,
        regime=regime,
        templates=tuple(task.hashes),
        items=result.items,
        chance=result.chance,
        ngrams=evaluated.suite.get(result.task_hash, {}),
        baseline_accuracy=mean("final", task.hashes),
        control_accuracy=mean("half", task.hashes),
        template_spread=stdev(known) if len(known) > 1 else None,
        sensitivity=gate,
    )


def _contrasts(
    material: Material, plan: Plan, results: ResultsFolder, evaluated: Evaluated
) -> Iterable[ItemContrastPart]:
    """Item-level statistics of every contrast, from samples.parquet, on the first template of every task."""
    samples = _Samples(results, evaluated)
    by_cell: dict[tuple[str, str, Seed], str] = {(r.variant, r.regime, r.seed): r.id for r in plan.runs}
    for regime in material.regimes:
        for variant, reference in material.pairs():
            for fewshot in sorted({task.fewshot for task in evaluated.tasks}):
                tasks = [task for task in evaluated.tasks if task.fewshot == fewshot]
                pairs = {
                    seed: (by_cell.get((variant, regime, seed)), by_cell.get((reference, regime, seed)))
                    for seed in material.seeds
                }
                whole = {
                    seed: (a, b) for seed, (a, b) in pairs.items() if samples.has(a, tasks) and samples.has(b, tasks)
                }
                if whole:
                    scores = _item_scores(samples, tasks, whole)
                    yield ItemContrastPart(
                        regime=regime, fewshot=fewshot, comparison=compare_items(scores, variant, reference)
                    )


def _item_scores(
    samples: _Samples, tasks: Sequence[AskedTask], pairs: Mapping[Seed, tuple[str | None, str | None]]
) -> ItemScores:
    found = []
    for task in tasks:
        columns = [[samples.correct(ids[side], task) for ids in pairs.values()] for side in (0, 1)]
        found.append(
            TaskScores(
                task=task.label,
                metric="acc",
                variant=np.stack(columns[0]),
                reference=np.stack(columns[1]),
                chance=_any_result(samples.evaluated, task).chance,
            )
        )
    used = [samples.evaluated.runs[run].samples_sha256 for ids in pairs.values() for run in ids if run]
    return ItemScores(tuple(found), tuple(str(seed) for seed in pairs), content_hash([*used, [t.label for t in tasks]]))


class _Samples:
    """samples.parquet of the runs, read once each; rows are checked to be of the same items everywhere."""

    def __init__(self, results: ResultsFolder, evaluated: Evaluated) -> None:
        self.results, self.evaluated = results, evaluated
        self._rows: dict[str, dict[tuple[str, int], NDArray[np.float64]]] = {}
        self._items: dict[tuple[str, int], tuple[str, ...]] = {}

    def has(self, run: str | None, tasks: Sequence[AskedTask]) -> bool:
        """Whether a run answered all of these."""
        if run is None:
            return False
        accuracy = [self.evaluated.score(run, task, lambda result: result.accuracy) for task in tasks]
        return not any(isinstance(value, str) for value in accuracy)

    def correct(self, run: str | None, task: AskedTask) -> NDArray[np.float64]:
        """1 where the item was answered rightly."""
        assert run is not None
        if run not in self._rows:
            self._rows[run] = self._read(run)
        return self._rows[run][task.name, task.fewshot]

    def _read(self, run: str) -> dict[tuple[str, int], NDArray[np.float64]]:
        import pyarrow.parquet as pq

        path = samples_path(self.results.run(run))
        if not path.exists() or sha256_file(path) != self.evaluated.runs[run].samples_sha256:
            raise RecordError(
                f"{path} is not the one that evaluation.json was written with; run ablationlab evaluate again"
            )
        columns = [
            "task",
            "template",
            "fewshot",
            "weights",
            "item",
            "prompt_hash",
            "doc_hash",
            "target_hash",
            "correct",
        ]
        wanted = {(task.name, task.fewshot, next(iter(task.hashes))) for task in self.evaluated.tasks}
        rows: dict[tuple[str, int], list[tuple[int, str, bool]]] = {}
        for row in pq.read_table(path, columns=columns).to_pylist():
            if row["weights"] == "final" and (row["task"], row["fewshot"], row["template"]) in wanted:
                identity = row["prompt_hash"] + row["doc_hash"] + row["target_hash"]
                rows.setdefault((row["task"], row["fewshot"]), []).append((row["item"], identity, row["correct"]))
        found = {}
        for key, entries in rows.items():
            entries.sort()
            items = tuple(f"{item} {identity}" for item, identity, _ in entries)
            if self._items.setdefault(key, items) != items:
                raise RecordError(f"{path}: its items of {key[0]} are not those of the other runs; evaluate again")
            found[key] = np.asarray([float(correct) for _, _, correct in entries])
        return found
