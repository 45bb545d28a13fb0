"""A results folder as material for the analysis: the sealed plan, the runs' records, their values and their course."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablationlab.analysis.comparisons import number_or_why
from ablationlab.analysis.deviations import against_file, of_plan, of_runs
from ablationlab.analysis.evaluations import Evaluated, read_evaluations, values_of, with_evaluation
from ablationlab.analysis.material import Arm, Ask, Material
from ablationlab.conclusions import DeviationPart, LedgerPart, RunStabilityPart, Seed
from ablationlab.errors import MismatchError, RecordError, StatisticsError
from ablationlab.ledger import record_mismatches, refuse
from ablationlab.metrics import METRICS
from ablationlab.records import Plan, PlannedRun, Result, ResultsFolder, RunRecord, read_metrics
from ablationlab.stability import Spike, spike_score
from ablationlab.status import check_ledger
from ablationlab.study import Study, parse_study


@dataclass(frozen=True)
class DoneRun:
    """A planned run that has its result."""

    planned: PlannedRun
    record: RunRecord
    result: Result
    spike: Spike


def read_results(folder: Path, study_file: Study | None = None) -> Material:
    """Read and check a results folder; *study_file* is compared with what was sealed.

    Raises `MismatchError` where arms differ in what no variant declared, or a run is not what the plan says.
    """
    results = ResultsFolder(folder)
    plan, sealed = _read_plan(results)
    study = parse_study(plan.study, f"{results.plan}, study")
    done = [_read_run(results, run) for run in plan.runs if results.run(run.id).done]
    if not done:
        raise StatisticsError(f"{folder}: no run has a result yet, so there is nothing to analyze. Train it first")
    if sealed:
        _check_against_plan(done)
    extra = study_file.contrasts if study_file is not None else ()
    extra = tuple(pair for pair in extra if set(pair) <= set(study.variants))
    registered = study.contrasts + tuple(c.contrast for c in study.criteria if c.contrast is not None)
    checked = _check_arms(plan, results, done, registered + extra)
    evaluated = read_evaluations(plan, results, [run.planned for run in done if run.result.status == "finished"])
    material = Material(
        name=study.name,
        question=study.question,
        source="records",
        source_hash=plan.plan_hash,
        criteria_hash=plan.criteria_hash,
        baseline=study.baseline,
        variants=study.variants,
        regimes=study.regime_names(),
        seeds=study.seeds,
        contrasts=study.contrasts + extra,
        asks=tuple(Ask.from_criterion(criterion, registered=sealed) for criterion in study.criteria),
        metrics=dict(METRICS.items()),
        values=_values(plan, done) | (values_of(plan, evaluated, _whys(plan, done)) if evaluated else {}),
        tie_breakers=study.tie_breakers,
        spike_threshold=study.stability.spike_score,
        diverged=study.stability.diverged,
        runs=tuple(_stability(run, done, study.stability.spike_score) for run in plan.runs),
        ledger=LedgerPart(checked_pairs=checked, text=_LEDGER.format(pairs=checked)),
        deviations=tuple(_deviations(plan, results, done, study, study_file, sealed, evaluated)),
        criteria=tuple(criterion.model_dump(mode="json") for criterion in study.criteria),
    )
    return with_evaluation(material, plan, results, evaluated) if evaluated else material


_LEDGER = (
    "{pairs} pairs of runs match in tokens, FLOPs, data order, shared initial weights, precision, stack width, threads and "
    "versions, up to what their variants declare."
)


def _read_plan(results: ResultsFolder) -> tuple[Plan, bool]:
    """The plan, and whether its seal holds; a broken seal is reported, and then nothing counts as registered."""
    if not results.plan.exists():
        raise RecordError(f"{results.path} is no results folder of a study: it has no {results.plan.name}")
    return Plan.read_with_seal(results.plan)


def _read_run(results: ResultsFolder, run: PlannedRun) -> DoneRun:
    folder = results.run(run.id)
    losses = [line.loss for line in read_metrics(folder.metrics)] if folder.metrics.exists() else []
    return DoneRun(run, RunRecord.read(folder.record), Result.read(folder.result), spike_score(losses))


def _check_against_plan(done: Sequence[DoneRun]) -> None:
    """Every run must be the one that was planned (the ledger checks that it was made under this very seal)."""
    for run in done:
        fields = ("id", "variant", "regime", "seed", "lr", "model", "training", "budget")
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
    checked = check_ledger(plan, results)
    cells = {(run.planned.regime, run.planned.seed, run.planned.variant): run.record for run in done}
    baseline = str(plan.study["baseline"])
    for variant, reference in dict.fromkeys(contrasts):
        if baseline in (variant, reference):
            continue
        for (regime, seed, name), record in cells.items():
            other = cells.get((regime, seed, reference)) if name == variant else None
            if other is not None:
                refuse(record.id, other.id, record_mismatches(record, other))
                checked += 1
    return checked


def _values(plan: Plan, done: Sequence[DoneRun]) -> dict[Arm, dict[Seed, float | str]]:
    by_id = {run.planned.id: run for run in done}
    names = [name for name in METRICS if any(name in run.result.metrics for run in done)]
    if any(run.spike.score is not None for run in done):
        names.append("spike_score")
    values: dict[Arm, dict[Seed, float | str]] = {}
    for planned in plan.runs:
        for name in dict.fromkeys(names):
            cell = values.setdefault(Arm(name, None, planned.regime, planned.variant), {})
            if planned.seed in cell:
                raise StatisticsError(
                    f"the plan holds several runs of {planned.variant}, regime {planned.regime}, seed {planned.seed}; "
                    "a sweep over learning rates is not analyzed by this version"
                )
            cell[planned.seed] = _value(by_id.get(planned.id), name)
    return values


def _value(run: DoneRun | None, name: str) -> float | str:
    if run is None:
        return "not finished"
    if run.result.status == "diverged":
        at = run.result.divergence
        return "diverged" if at is None else f"diverged at step {at.step} ({at.cause})"
    return number_or_why(run.spike.score if name == "spike_score" else run.result.metrics.get(name))


def _whys(plan: Plan, done: Sequence[DoneRun]) -> dict[str, str]:
    """Why a run has no evaluation, for those that cannot have one."""
    by_id = {run.planned.id: run for run in done}
    whys = {planned.id: _value(by_id.get(planned.id), "validation_loss") for planned in plan.runs}
    return {name: why for name, why in whys.items() if isinstance(why, str)}


def _stability(planned: PlannedRun, done: Sequence[DoneRun], threshold: float) -> RunStabilityPart:
    run = next((one for one in done if one.planned.id == planned.id), None)
    where = {"run": planned.id, "variant": planned.variant, "regime": planned.regime, "seed": planned.seed}
    if run is None:
        return RunStabilityPart(
            **where, state="missing", spike_score=None, spike_step=None, unstable=None, why="not finished"
        )
    score = run.spike.score
    diverged = run.result.status == "diverged"
    spiked = score is not None and score > threshold
    if diverged:
        why = str(_value(run, "spike_score"))
    elif score is None:
        why = "finished; too short a curve for a spike score"
    else:
        why = f"spike score {score:.3g} {'above' if spiked else 'within'} {threshold:g}"
    return RunStabilityPart(
        **where,
        state=run.result.status,
        spike_score=score,
        spike_step=run.spike.step,
        unstable=diverged or spiked,
        why=why,
    )


def _deviations(
    plan: Plan,
    results: ResultsFolder,
    done: Sequence[DoneRun],
    study: Study,
    study_file: Study | None,
    sealed: bool,
    evaluated: Evaluated | None,
) -> list[DeviationPart]:
    found = of_plan(sealed=sealed)
    found += of_runs(plan, results, {run.planned.id: (run.record, run.result) for run in done})
    if study_file is not None:
        found += against_file(study, study_file)
    measured = {"spike_score"}.union(*(run.result.metrics for run in done), evaluated.metrics if evaluated else ())
    for name in dict.fromkeys(criterion.metric for criterion in study.criteria if criterion.metric not in measured):
        text = f"{name} is registered, but no run has a value of it: its question is not answered."
        found.append(DeviationPart(code="missing-metric", about=name, text=text))
    if not study.criteria:
        text = "The study registers no criteria: every comparison and verdict is exploratory."
        found.append(DeviationPart(code="no-criteria", about="criteria", text=text))
    return found
