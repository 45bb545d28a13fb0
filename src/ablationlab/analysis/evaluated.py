"""What the evaluations of a plan's runs say, as they are read.

Scores are compared only where they are scores of the same thing: the same task by its hash, made in the same way (harness,
precision, device, code). A run that was evaluated otherwise has no value, and the reason is said. Means over tasks are over
those that the plan names, with the plan's settings; what was scored besides is shown by itself, as exploratory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ablationlab.analysis.comparisons import number_or_why
from ablationlab.core.errors import RecordError
from ablationlab.records.evaluation import (
    Evaluation,
    Provenance,
    Suite,
    TaskKey,
    TaskResult,
    Weights,
    evaluation_path,
    suite_path,
)
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.settings import EvaluationConfig
from ablationlab.tasks import STOCK, TASK_MEANS, PlannedTasks, TaskName, planned_tasks
from ablationlab.tasks.scores import OF_CALIBRATED, unspellable

#: At the end of a task's name in comparisons: not asked by the plan, or not so.
EXPLORATORY = "exploratory"
#: Per-task metrics: how each is read from a result, and whether guessing has a level in it.
PER_TASK: dict[str, tuple[Callable[[TaskResult], float | None], bool]] = {
    "task_accuracy": (lambda result: result.accuracy, True),
    "choice_log_probability": (lambda result: result.log_probability, False),
    "choice_margin": (lambda result: result.margin, False),
}


@dataclass(frozen=True)
class AskedTask:
    """A task with a number of examples: the templates it was put in, each with the hash that counts.

    *label* is its name in comparisons; *planned* says whether the sealed plan asks it so.
    """

    name: str
    fewshot: int
    hashes: dict[str, str]
    label: str
    planned: bool


@dataclass(frozen=True)
class Evaluated:
    """Everything that was evaluated, by run. *otherwise*: in words, what was planned and not scored as planned."""

    runs: dict[str, Evaluation]
    how: Provenance
    tasks: tuple[AskedTask, ...]
    most_examples: int  # the largest number of examples that the plan names
    suite: dict[str, dict[str, float]]  # n-gram accuracies by task hash
    otherwise: tuple[str, ...]
    notes: tuple[str, ...]

    def averaged(self, name: str) -> list[AskedTask]:
        """The planned tasks that a mean over tasks is of, by the mean's name."""
        most = self.most_examples if name.endswith("_fewshot") else 0
        if name.endswith("_fewshot") and not most:
            return []
        tasks = [task for task in self.tasks if task.planned and task.fewshot == most]
        if name in OF_CALIBRATED:
            return [task for task in tasks if any_result(self, task).calibration is not None]
        return tasks

    @property
    def metrics(self) -> set[str]:
        """Every metric that some run has a value of."""
        names = {name for one in self.runs.values() for name in one.metrics} - TASK_MEANS.keys()
        names |= {name for name in (*TASK_MEANS, "macro_accuracy", "macro_accuracy_fewshot") if self.averaged(name)}
        return names | PER_TASK.keys() if self.tasks else names

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
            key = TaskKey(task.name, template, task.fewshot, weights)
            same = [one for one in self.runs[run_id].tasks if one.key == key]
            result = next((one for one in same if one.task_hash == digest), None)
            if result is None:
                what = "evaluated on another version of" if same else "not evaluated on"
                return f"{what} {task.label} ({template})"
            number = value(result)
            if number is None:
                return "no value recorded"
            found.append(number)
        return number_or_why(fmean(found))


def read_evaluations(
    plan: Plan, config: EvaluationConfig, results: ResultsFolder, finished: Sequence[PlannedRun]
) -> Evaluated | None:
    """Every evaluation.json of the plan's runs; None where there is none. *config*: the sealed study's."""
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
    used = [[task for task in one.tasks if task.weights == "final"] for one in scored if one.how == how]
    planned = planned_tasks(config, results, suite, (task for tasks in used for task in tasks))
    left_out: set[tuple[TaskName, str]] = set()
    for name, wordings in planned.templates.items():
        lacking = [
            w for w in wordings if not any((planned.named(t), t.template) == (name, w) for ts in used for t in ts)
        ]
        unspelt = unspellable(results, plan.corpus.tokenizer, name, lacking) if len(lacking) < len(wordings) else ()
        left_out |= {(name, one) for one in unspelt}
        if unspelt:
            notes.append(
                f"{name.name} was not put as {', '.join(unspelt)}: the vocabulary seems to lack the characters"
            )
    tasks = _tasks(planned, [task for tasks in used for task in tasks], left_out)
    besides = [task.label for task in tasks if not task.planned]
    if besides:
        notes.append(f"scored besides what was planned, exploratory, and in no mean over tasks: {'; '.join(besides)}")
    if planned.beyond and any(planned.named(t).source == "harness" for ts in used for t in ts):
        named = sorted({t.task for ts in used for t in ts if planned.named(t).source == "harness"})
        notes.append(
            f"the plan names {', '.join(planned.beyond)}, which the harness opens by itself: its tasks "
            f"({', '.join(named)}) are all taken as planned"
        )
    ngrams = {task.task_hash: task.ngrams for task in suite}
    most = max(planned.fewshot, default=0)
    return Evaluated(runs, how, tasks, most, ngrams, tuple(_otherwise(planned, used, left_out)), tuple(notes))


def _commonest(scored: Sequence[Evaluation]) -> Provenance:
    """The way that most runs were evaluated in."""
    by_text = {one.how.model_dump_json(): one.how for one in scored if one.how is not None}
    counts = Counter(one.how.model_dump_json() for one in scored if one.how is not None)
    return by_text[counts.most_common(1)[0][0]]


def _tasks(
    planned: PlannedTasks, scored: Iterable[TaskResult], left_out: Container[tuple[TaskName, str]]
) -> tuple[AskedTask, ...]:
    """Every task that offers choices, as planned and besides; where versions differ between runs, the one that most have."""
    groups: dict[tuple[TaskName, int], dict[bool, dict[str, Counter[str]]]] = {}
    for one in scored:
        if one.chance is not None:
            group = groups.setdefault((planned.named(one), one.fewshot), {True: {}, False: {}})
            group[planned.counts(one)].setdefault(one.template, Counter())[one.task_hash] += 1
    found = []
    sources = Counter((name.name, fewshot) for name, fewshot in groups)
    for (name, fewshot), group in sorted(
        groups.items(), key=lambda entry: (entry[0][1], entry[0][0].name, entry[0][0])
    ):
        wanted = {w for w in planned.templates.get(name, ()) if (name, w) not in left_out}
        if wanted - group[True].keys():  # not all of its wordings: not the mean that was planned
            group[False] |= {t: counts + group[False].get(t, Counter()) for t, counts in group[True].items()}
            group[True] = {}
        label = f"{STOCK}{name.name}" if sources[name.name, fewshot] > 1 and name.source == "harness" else name.name
        label += f", {fewshot}-shot" if fewshot else ""
        for as_planned, templates in group.items():
            if templates:
                hashes = {template: counts.most_common(1)[0][0] for template, counts in sorted(templates.items())}
                shown = label if as_planned else f"{label}, {EXPLORATORY}"
                found.append(AskedTask(name.name, fewshot, hashes, shown, as_planned))
    return tuple(found)


def _otherwise(
    planned: PlannedTasks, used: Sequence[Sequence[TaskResult]], left_out: Container[tuple[TaskName, str]]
) -> Iterable[str]:
    """What was planned and scored on another number of items by some run, or by none at all; alike cases in one line."""
    cap = "all of them" if planned.items is None else f"{planned.items} at most"
    lines: dict[str, list[str]] = {}
    for name, wording, fewshot in planned.asked():
        mine = [t for ts in used for t in ts if (planned.named(t), t.template, t.fewshot) == (name, wording, fewshot)]
        others = [one.items for one in mine if not planned.counts(one)]
        several = f" ({wording})" if len(planned.templates[name]) > 1 else ""
        what = name.name + (f", {fewshot}-shot" if fewshot else "") + several
        if others:
            numbers = " or ".join(map(str, sorted(set(others))))
            line = f"on {numbers} items in {len(others)} of {len(used)} runs, where {cap} were planned"
            lines.setdefault(line, []).append(what)
        elif not mine and (name, wording) not in left_out:
            lines.setdefault("by no run", []).append(what)
    return [f"{'; '.join(tasks)}: {line}" for line, tasks in lines.items()]


def any_result(evaluated: Evaluated, task: AskedTask) -> TaskResult:
    """Some run's result of a task, for what is equal in all of them: items, chance, hash."""
    template, digest = next(iter(task.hashes.items()))
    return next(
        result
        for one in evaluated.runs.values()
        for result in one.tasks
        if (result.task, result.template, result.fewshot, result.task_hash)
        == (task.name, template, task.fewshot, digest)
    )
