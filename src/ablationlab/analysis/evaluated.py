"""What the evaluations of a plan's runs say, as they are read.

Scores are compared only where they are scores of the same thing: the same task by its hash, made in the same way (harness,
precision, device, code). A run that was evaluated otherwise has no value, and the reason is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ablationlab.analysis.comparisons import number_or_why
from ablationlab.errors import RecordError
from ablationlab.evaluation_records import Evaluation, HowPart, Suite, TaskResult, Weights, evaluation_path, suite_path
from ablationlab.folders import ResultsFolder
from ablationlab.records import Plan, PlannedRun

#: Per-task metrics: how each is read from a result, and whether guessing has a level in it.
PER_TASK: dict[str, tuple[Callable[[TaskResult], float | None], bool]] = {
    "task_accuracy": (lambda result: result.accuracy, True),
    "choice_log_probability": (lambda result: result.log_probability, False),
    "choice_margin": (lambda result: result.margin, False),
}


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
            names |= {*PER_TASK, "macro_accuracy"}
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
