"""A results folder as material for the analysis: the sealed plan, the runs' records, their values and their course."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ablationlab.analysis.dataset import Absent, Arm, Dataset, Values
from ablationlab.analysis.deviations import against_file, of_plan, of_runs
from ablationlab.analysis.evaluation import Evaluated, read_evaluations, values_of, with_evaluation
from ablationlab.analysis.interactions import crossing_of
from ablationlab.analysis.stability import DoneRun, measured_names, read_run, stability_of, value_of
from ablationlab.analysis.sweeps import swept
from ablationlab.analysis.wording import deviation
from ablationlab.core.errors import MismatchError, RecordError, StatisticsError
from ablationlab.records.analysis import Deviation, DeviationCode, LedgerCheck
from ablationlab.records.plan import Plan
from ablationlab.records.results import read_runs
from ablationlab.records.settings import TUNED, Study
from ablationlab.records.storage import ResultsFolder
from ablationlab.study.ledger import check_ledger, record_mismatches, refuse


def read_results(folder: Path, study_file: Study | None = None) -> Dataset:
    """Read and check a results folder; *study_file* is compared with what was sealed.

    Raises `MismatchError` where arms differ in what no variant declared, or a run is not what the plan says.
    """
    results = ResultsFolder(folder)
    plan, sealed = _read_plan(results)
    study = plan.study
    done = [read_run(results, run, study.stability) for run in plan.runs if results.run(run.id).done]
    if not done:
        raise StatisticsError(f"{folder}: no run has a result yet, so there is nothing to analyze. Train it first")
    if sealed:
        _check_against_plan(done)
    extra = study_file.contrasts if study_file is not None else ()
    extra = tuple(pair for pair in extra if set(pair) <= set(study.variants))
    registered = study.contrasts + tuple(c.contrast for c in study.criteria if c.contrast is not None)
    checked = _check_arms(plan, results, done, registered + extra)
    names = [name for name in plan.metrics if any(name in run.result.metrics for run in done)]
    names = list(dict.fromkeys([*names, *measured_names(done)]))
    against = [(name, study.baseline) for name in study.variants if name != study.baseline]
    sweep = swept(study, plan, done, names, [*against, *registered, *extra])
    checked += sweep.checked_pairs if sweep is not None else 0
    by_id = {run.planned.id: run for run in done}
    threshold = study.stability.spike_score
    stable = [stability_of(run, by_id.get(run.id), study.stability) for run in plan.runs if study.owns(run)]
    own = plan.model_copy(update={"runs": tuple(run for run in plan.runs if study.owns(run))})
    finished = [run for run in own.runs if run.id in by_id and by_id[run.id].result.status == "finished"]
    evaluated = read_evaluations(own, results, finished)
    values = _values(plan, done, study, names) | (sweep.values if sweep is not None else {})
    if evaluated:
        values |= values_of(own, evaluated, _endings(own, by_id))
    dataset = Dataset(
        name=study.name,
        question=study.question,
        source="records",
        source_hash=plan.plan_hash,
        criteria_hash=plan.criteria_hash,
        baseline=study.baseline,
        variants=study.variants,
        regimes=(*study.regime_names(), *([TUNED] if sweep is not None and sweep.runs else [])),
        seeds=study.seeds,
        contrasts=study.contrasts + extra,
        criteria=study.criteria,
        registered=sealed,
        hypotheses=study.hypotheses,
        metrics=plan.metrics,
        values=values,
        tie_breakers=study.tie_breakers,
        spike_threshold=threshold,
        diverged=study.stability.diverged,
        runs=(*stable, *(sweep.runs if sweep is not None else ())),
        ledger=LedgerCheck(checked_pairs=checked, text=_LEDGER.format(pairs=checked)),
        deviations=tuple(_deviations(plan, results, done, study, study_file, sealed, evaluated)),
        own_seeds=study.own_seeds(),
        sweep=sweep.part if sweep is not None else None,
        crossing=crossing_of(study),
    )
    return with_evaluation(dataset, own, results, evaluated) if evaluated else dataset


_LEDGER = (
    "{pairs} pairs of runs match in tokens, FLOPs, data order, shared initial weights, precision, stack width, threads and "
    "versions, up to what their variants declare."
)


def _read_plan(results: ResultsFolder) -> tuple[Plan, bool]:
    """The plan, and whether its seal holds; a broken seal is reported, and then nothing counts as registered."""
    if not results.plan.exists():
        raise RecordError(f"{results.path} is not a results folder: it has no {results.plan.name}")
    return Plan.read_with_seal(results.plan)


def _check_against_plan(done: Sequence[DoneRun]) -> None:
    """Every run must be the one that was planned (the ledger checks that it was made under this very seal)."""
    for run in done:
        fields = ("id", "variant", "regime", "seed", "model", "training", "budget")
        differs = [
            f"{name} in run.json is not what plan.lock says"
            for name in fields
            if getattr(run.record, name) != getattr(run.planned, name)
        ]
        if run.result.id != run.planned.id:
            differs.append(f"result.json belongs to {run.result.id}")
        if differs:
            lines = "\n".join(f"  - {line}" for line in differs)
            raise MismatchError(f"{run.planned.id} is not the run that was planned:\n{lines}")


def _check_arms(
    plan: Plan, results: ResultsFolder, done: Sequence[DoneRun], contrasts: Iterable[tuple[str, str]]
) -> int:
    """The ledger over every variant-baseline pair and every contrast; the number of pairs that match."""
    checked = check_ledger(plan, read_runs(plan, results))
    cells = {(run.planned.regime, run.planned.seed, run.planned.lr, run.planned.variant): run.record for run in done}
    baseline = plan.study.baseline
    for variant, reference in dict.fromkeys(contrasts):
        if baseline in (variant, reference):
            continue
        for (regime, seed, lr, name), record in cells.items():
            other = cells.get((regime, seed, lr, reference)) if name == variant else None
            if other is not None:
                refuse(record.id, other.id, record_mismatches(record, other))
                checked += 1
    return checked


def _values(plan: Plan, done: Sequence[DoneRun], study: Study, names: Sequence[str]) -> Values:
    """Every metric of the study's own cells; runs of a sweep beside them are not compared here."""
    by_id = {run.planned.id: run for run in done}
    values: Values = {}
    for planned in plan.runs:
        if study.owns(planned):
            for name in names:
                cell = values.setdefault(Arm(name, None, planned.regime, planned.variant), {})
                cell[planned.seed] = value_of(by_id.get(planned.id), name)
    return values


def _endings(plan: Plan, done: Mapping[str, DoneRun]) -> dict[str, Absent]:
    """Why a run has no evaluation, for those that cannot have one."""
    endings = {}
    for planned in plan.runs:
        value = value_of(done.get(planned.id), "validation_loss")
        if isinstance(value, Absent):
            endings[planned.id] = value
    return endings


def _deviations(
    plan: Plan,
    results: ResultsFolder,
    done: Sequence[DoneRun],
    study: Study,
    study_file: Study | None,
    sealed: bool,
    evaluated: Evaluated | None,
) -> list[Deviation]:
    found = of_plan(sealed=sealed)
    found += of_runs(plan, results, {run.planned.id: (run.record, run.result) for run in done})
    if study_file is not None:
        found += against_file(study, study_file)
    measured = {"spike_score", *measured_names(done)}.union(*(run.result.metrics for run in done))
    measured |= {name for name, metric in plan.metrics.items() if metric.level == "sweep"}
    measured |= evaluated.metrics if evaluated else set()
    unanswered = dict.fromkeys(criterion.metric for criterion in study.criteria if criterion.metric not in measured)
    found += [deviation(DeviationCode.MISSING_METRIC, name, metric=name) for name in unanswered]
    planned = [task for task in evaluated.tasks if task.planned] if evaluated else []
    if study.evaluation.tasks and not planned and "macro_accuracy" not in unanswered:
        names = ", ".join(study.evaluation.tasks)
        found.append(deviation(DeviationCode.NOT_SCORED, "evaluation.tasks", tasks=names))
    if evaluated and evaluated.otherwise and any(one.tasks for one in evaluated.runs.values()):
        found.append(deviation(DeviationCode.SCORED_OTHERWISE, "evaluation", what=". ".join(evaluated.otherwise)))
    if not study.criteria:
        found.append(deviation(DeviationCode.NO_CRITERIA, "criteria"))
    return found
