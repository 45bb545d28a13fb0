"""A results folder as a dataset: checked against the sealed plan and the ledger, with the values of every run, and what is
not as it was registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablationlab.analysis.courses import courses_of
from ablationlab.analysis.dataset import Absent, Arm, Dataset, Values
from ablationlab.analysis.diagnostics import probe_diagnostics
from ablationlab.analysis.evaluation import Evaluated, read_evaluations, values_of, with_evaluation
from ablationlab.analysis.fairness import conditions
from ablationlab.analysis.interactions import crossing_of
from ablationlab.analysis.noise import noise_sources
from ablationlab.analysis.readings import readings
from ablationlab.analysis.stability import EndedRun, ended_run, measured_names, stability_of, value_of
from ablationlab.analysis.stages import stage_folder
from ablationlab.analysis.sweeps import swept
from ablationlab.core.errors import MismatchError, RecordError, StatisticsError
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Absence, Deviation, DeviationCode, LedgerCheck, RunStability
from ablationlab.records.environment import changes, drift
from ablationlab.records.metrics import across_tokenizers
from ablationlab.records.plan import Plan, Reused
from ablationlab.records.results import Cache, Results, Run
from ablationlab.records.seal import ABSENT
from ablationlab.records.settings import REGISTERED, TUNED, Study
from ablationlab.records.storage import ResultsFolder
from ablationlab.study.differences import differences
from ablationlab.study.ledger import (
    check_ledger,
    planned_inputs,
    record_mismatches,
    refuse,
    reported_inputs,
)


def read_results(
    folder: Path, study_file: Study | None = None, *, accept_altered: bool = False, cache: Cache | None = None
) -> Dataset:
    """Read and check a results folder; *study_file* is compared with what was sealed, *cache* keeps what was read.

    Raises `MismatchError` where arms differ in what no variant declared, or a run is not what the plan says, and
    `AlteredError` where a file is not as it was sealed, unless *accept_altered* makes that a deviation.
    """
    results = _at_last_look(Results.open(folder, strict=True, cache=cache, accept_altered=accept_altered))
    plan, sealed = results.plan, results.sealed
    if plan is None:
        raise RecordError(f"{folder} is not a results folder: it has no plan.lock")
    look = _look(plan, results)
    as_planned = sealed and (plan.study.design is None or look is not None) and not _added_seeds(plan)
    as_planned = as_planned and not plan.reused  # which baseline is reused may hang on what was seen of it
    study = plan.study
    done = [ended for run in results.runs if (ended := ended_run(run)) is not None]
    if not done:
        raise StatisticsError(f"{folder}: no run has a result yet, so there is nothing to analyze. Train it first")
    results.check_runs()
    if sealed:
        _check_against_plan(plan, done)
    _ = results.suite  # the last file that may be altered
    altered = results.reader.altered
    as_planned = as_planned and not altered
    extra = study_file.contrasts if study_file is not None else ()
    extra = tuple(pair for pair in extra if set(pair) <= set(study.variants))
    registered = study.contrasts + tuple(c.contrast for c in study.criteria if c.contrast is not None)
    checked = _check_arms(plan, results, done, registered + extra)
    names = [name for name in plan.metrics if any(name in ended.result.metrics for ended in done)]
    names = list(dict.fromkeys([*names, *measured_names(done)]))
    against = [(name, study.baseline) for name in study.variants if name != study.baseline]
    sweep = swept(study, plan, done, names, [*against, *registered, *extra])
    checked += sweep.checked_pairs if sweep is not None else 0
    by_id = {ended.run.id: ended for ended in done}
    own = plan.model_copy(update={"runs": plan.compared})
    stable = [stability_of(run, by_id.get(run.id), study.stability) for run in own.runs]
    finished = [run for run in results.runs if run.planned.is_scored and run.state == "finished"]
    evaluated = read_evaluations(own, results, finished)
    values = _values(own, by_id, names) | (sweep.values if sweep is not None else {})
    if evaluated:
        values |= values_of(own, evaluated, _endings(own, by_id))
    checks = _ledger(plan, done, checked)
    at_own_rates = () if sweep is None else tuple(by_id[run.run] for run in sweep.runs if run.run in by_id)
    other_curves = readings(plan, done, at_own_rates)
    deviations = tuple(_deviations(plan, results, done, study_file, evaluated))
    in_tokens = [name for name in study.variants if _comparable(plan, name)]
    seen = (*stable, *(sweep.runs if sweep is not None else ()))
    deciding = dict.fromkeys(c.regime for c in study.criteria if c.role == "primary" and c.regime is not None)
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
        registered=as_planned,
        hypotheses=study.hypotheses,
        metrics=plan.metrics,
        values=values,
        tie_breakers=study.tie_breakers,
        stability=study.stability,
        runs=seen,
        ledger=checks,
        budget_unknown=_budget_unknown(plan, done),
        reused=_reused_in(plan),
        again=tuple(name for name, table in study.tables.items() if table.empty and name != study.baseline),
        deviations=deviations,
        own_seeds=study.own_seeds(),
        sweep=sweep.part if sweep is not None else None,
        noise=noise_sources(study, plan, by_id, names),
        crossing=crossing_of(study),
        readings=other_curves,
        loss_curves=courses_of(seen, by_id, study.baseline, in_tokens),
        diagnostics=probe_diagnostics(
            (*deciding, *study.regime_names()),
            seen,
            {name: ended.run for name, ended in by_id.items()},
            plan.probes,
            study.baseline,
            in_tokens,
        ),
        fair=conditions(
            plan,
            checks,
            sweep.part if sweep is not None else None,
            other_curves,
            deviations,
            _paired(seen, by_id, study),
        ),
        about={name: plan.variants[name].about for name in study.variants if plan.variants[name].about},
        added=frozenset(name for amendment in plan.amendments for name in amendment.variants),
        design=study.design,
        look=look,
        own=len(Plan.read_sealed(results.folder / "plan.lock").study.seeds),
        doubts=sweep.doubts if sweep is not None else {},
        inputs=results.inputs,
        altered=altered,
    )
    return with_evaluation(dataset, plan, evaluated) if evaluated else dataset


def _at_last_look(results: Results) -> Results:
    """Without the runs of a look that was asked for, until all of them have ended: they are the last look's results."""
    plan = results.plan
    if plan is None or plan.study.design is None or _added_seeds(plan):
        return results
    begun = min((plan.study.look_of(run.seed) for run in results.runs if not run.done), default=1)
    if begun == 1:
        return results
    before = Plan.read_sealed(results.folder / "plan.lock").in_force(
        tuple(look for look in plan.looks if look.result.number < begun - 1),
        tuple(amendment for amendment in plan.amendments if (amendment.look or 1) < begun),
    )
    kept = {run.id for run in before.runs}
    return results.changed(plan=before, runs=tuple(run for run in results.runs if run.id in kept))


def _look(plan: Plan, results: Results) -> int | None:
    """The planned look that these runs are: all of them have ended, and none was added beside the design."""
    if plan.study.design is None or results.interim or _added_seeds(plan):
        return None
    return max(plan.study.look_of(seed) for seed in plan.study.seeds)


def _added_seeds(plan: Plan) -> tuple[int, ...]:
    """Those that no look has."""
    return tuple(seed for amendment in plan.amendments if amendment.look is None for seed in amendment.seeds)


def _ledger(plan: Plan, done: Sequence[EndedRun], pairs: int) -> LedgerCheck:
    if plan.study.trainer is not None:
        return reported_inputs(plan, {run.result.id: run.result for run in done})
    return planned_inputs(plan, pairs)


def _paired(seen: Sequence[RunStability], done: Mapping[str, EndedRun], study: Study) -> set[str]:
    """Variants with a run that ended beside one of the baseline."""
    ended = {(run.variant, run.regime, run.seed) for run in seen if run.run in done}
    return {variant for variant, regime, seed in ended if (study.baseline, regime, seed) in ended}


def _budget_unknown(plan: Plan, done: Sequence[EndedRun]) -> tuple[str, ...]:
    """Variants of which, or of the baseline, a finished run of the user's own trainer says neither tokens nor steps."""
    if plan.study.trainer is None:
        return ()  # the ledger has checked it
    arms = grouped((run.run.variant, run.result) for run in done if run.result.status == "finished")

    def known(name: str) -> bool:
        runs = [*arms.get(name, ()), *arms.get(plan.study.baseline, ())]
        return all(run.tokens is not None for run in runs) or all(run.steps > 0 for run in runs)

    return tuple(name for name in plan.study.variants if name != plan.study.baseline and not known(name))


def _check_against_plan(plan: Plan, done: Sequence[EndedRun]) -> None:
    """Every run must be the one that was planned (the ledger checks that it was made under this very seal)."""
    for ended in done:
        planned = ended.run.planned
        fields = ("id", "variant", "regime", "seed", "streams", "recipe", "settings")
        differs = [
            f"{name} in run.json is not what plan.lock says"
            for name in fields
            if getattr(ended.record, name) != getattr(planned, name)
        ]
        source, seal = plan.reused_from(planned.id), ended.run.seal
        if source is None and ended.record.study_hash != plan.study_hash:
            differs.append("study_hash in run.json is not that of plan.lock")
        if seal is not None and seal.plan_hash != plan.made_under(planned.id):
            differs.append("seal.json was made under another plan")
        if source is not None and seal is not None and not source.files[planned.id].items() <= seal.files.items():
            differs.append("seal.json does not have the files that plan.lock names")
        if ended.result.id != planned.id:
            differs.append(f"result.json belongs to {ended.result.id}")
        if differs:
            lines = "\n".join(f"  - {line}" for line in differs)
            raise MismatchError(f"{planned.id} is not the run that was planned:\n{lines}")


def _check_arms(plan: Plan, results: Results, done: Sequence[EndedRun], contrasts: Iterable[tuple[str, str]]) -> int:
    """The ledger over every variant-baseline pair and every contrast; the number of pairs that match."""
    checked = check_ledger(plan, results.runs)
    cells = {(plan.study.pair_of(ended.record), ended.run.variant): ended.record for ended in done}
    baseline = plan.study.baseline
    for variant, reference in dict.fromkeys(contrasts):
        if baseline in (variant, reference):
            continue
        for (pair, name), record in cells.items():
            other = cells.get((pair, reference)) if name == variant else None
            if other is not None:
                refuse(record.id, other.id, record_mismatches(record, other))
                checked += 1
    return checked


def _values(own: Plan, done: Mapping[str, EndedRun], names: Sequence[str]) -> Values:
    """Every metric of the study's own cells; runs of a sweep beside them are not compared here."""

    values: Values = {}
    for planned in own.runs:
        for name in names:
            cell = values.setdefault(Arm(name, None, planned.regime, planned.variant), {})
            comparable = _comparable(own, planned.variant) or across_tokenizers(own.metrics[name])
            value = value_of(done.get(planned.id), name)
            cell[planned.seed] = value if comparable else Absent(Absence.OTHER_TOKENIZER)
    return values


def _comparable(plan: Plan, variant: str) -> bool:
    """Whether it cuts its text into the baseline's tokens."""
    return plan.lab_corpus is None or plan.corpus_of(variant).tokenizer == plan.corpus_of(plan.study.baseline).tokenizer


def _endings(plan: Plan, done: Mapping[str, EndedRun]) -> dict[str, Absent]:
    """Why a run has no evaluation, for those that cannot have one."""
    endings = {}
    for planned in plan.runs:
        value = value_of(done.get(planned.id), "validation_loss")
        if isinstance(value, Absent):
            endings[planned.id] = value
    return endings


def _deviations(
    plan: Plan,
    results: Results,
    done: Sequence[EndedRun],
    study_file: Study | None,
    evaluated: Evaluated | None,
) -> list[Deviation]:
    study = plan.study
    deviations = _of_plan(sealed=results.sealed) + _of_files(results) + _of_design(plan, results)
    deviations += _of_runs(plan, results) + [_of_reuse(plan, each) for each in plan.reused]
    if study_file is not None:
        deviations += _against_file(Plan.read_sealed(results.folder / "plan.lock").study, study_file)
    measured = {"spike_score", *measured_names(done)}.union(*(ended.result.metrics for ended in done))
    measured |= {name for name, metric in plan.metrics.items() if metric.level == "sweep"}
    measured |= evaluated.metrics if evaluated else set()
    unanswered = dict.fromkeys(criterion.metric for criterion in study.criteria if criterion.metric not in measured)
    deviations += [_deviation(DeviationCode.MISSING_METRIC, name) for name in unanswered]
    planned = [task for task in evaluated.tasks if task.compared.planned] if evaluated else []
    if study.evaluation.tasks and not planned and "macro_accuracy" not in unanswered:
        tasks = list(study.evaluation.tasks)
        deviations.append(_deviation(DeviationCode.NOT_SCORED, "evaluation.tasks", tasks=tasks))
    if evaluated and evaluated.otherwise and any(evaluation.tasks for evaluation in evaluated.runs.values()):
        scored = list(evaluated.otherwise)
        deviations.append(_deviation(DeviationCode.SCORED_OTHERWISE, "evaluation", scored=scored))
    if any(criterion.role == "primary" and criterion.correction == "dunnett" for criterion in study.criteria):
        deviations.append(_deviation(DeviationCode.OTHER_CORRECTION, "criteria", registered="dunnett", applied="holm"))
    if not study.criteria:
        deviations.append(_deviation(DeviationCode.NO_CRITERIA, "criteria"))
    return deviations


def _deviation(code: DeviationCode, about: str, **details: Any) -> Deviation:
    return Deviation(code=code, about=about, details=details)


def _of_plan(*, sealed: bool) -> list[Deviation]:
    """A plan whose seal is broken; one that was sealed again is refused by the ledger, for its runs carry the old seal."""
    return [] if sealed else [_deviation(DeviationCode.TAMPERED_PLAN, "plan.lock")]


def _of_files(results: Results) -> list[Deviation]:
    """Files that are not as they were sealed, and were accepted."""
    altered = results.reader.altered
    if not altered:
        return []
    files = [f"{file} (missing)" if sha256 == ABSENT else file for file, sha256 in altered.items()]
    return [_deviation(DeviationCode.ALTERED_RECORDS, "runs", files=files)]


def _of_design(plan: Plan, results: Results) -> list[Deviation]:
    """Looks that were not planned, and what was added after the plan was sealed."""
    deviations = []
    design = plan.study.design
    if design is not None and not _added_seeds(plan) and _look(plan, results) is None:
        missing = {run.seed for run in results.runs if not run.done}
        complete = sum(seed not in missing for seed in plan.study.seeds)
        looks = list(design.looks)
        deviations.append(_deviation(DeviationCode.NOT_A_LOOK, "design", looks=looks, complete=complete))
    for regime, calibrated in plan.calibrations.items():
        asked, chosen = plan.study.regimes[regime].calibrate, calibrated.chosen
        if asked is not None and not chosen.near(asked.target):
            tried = {"target": asked.target, "broken": chosen.broken, "seeds": len(chosen.seeds)}
            found = {"setting": calibrated.setting, "value": calibrated.value}
            deviations.append(_deviation(DeviationCode.OFF_TARGET, regime, **found, **tried))
    for amendment in plan.amendments:
        details = {"date": amendment.created[:10], "reason": amendment.reason}
        if amendment.seeds and amendment.look is None:
            deviations.append(_deviation(DeviationCode.EXTENDED, "seeds", seeds=list(amendment.seeds), **details))
        if amendment.variants:
            names = list(amendment.variants)
            deviations.append(_deviation(DeviationCode.ADDED_VARIANTS, "variants", variants=names, **details))
    return deviations


def _of_reuse(plan: Plan, reused: Reused) -> Deviation:
    """Baseline runs that an earlier study trained."""
    runs = [run.id for run in plan.runs if run.id in reused.files]
    known = {"runs": runs, "studies": reused.studies, "date": reused.created[:10]}
    return _deviation(DeviationCode.REUSED, reused.study, **known)


def _reused_in(plan: Plan) -> dict[str, int]:
    """By regime, how many studies rest on its baseline runs."""
    found: dict[str, int] = {}
    for run in plan.runs:
        if (source := plan.reused_from(run.id)) is not None:
            found[run.regime] = max(found.get(run.regime, 0), source.studies)
    return found


def _of_runs(plan: Plan, results: Results) -> list[Deviation]:
    """Runs that are missing, extra, diverged, or made in another environment than the plan was sealed in."""
    folders = sorted(path.parent.name for path in (results.folder / "runs").glob("*/run.json"))
    asked = {
        run.id for run in Plan.read_with_seal(results.folder / "plan.lock")[0].runs
    }  # those of an unfinished look, too
    runs = {
        DeviationCode.MISSING_RUNS: [run.id for run in results.runs if not run.done],
        DeviationCode.EXTRA_RUNS: [name for name in folders if name not in asked],
        DeviationCode.DIVERGED_RUNS: [run.id for run in results.runs if run.state == "diverged"],
    }
    deviations = [_deviation(code, "runs", planned=len(plan.runs), runs=names) for code, names in runs.items() if names]
    return deviations + _drift(plan, results.runs) + _drift_of_stages(plan, results)


def _drift_of_stages(plan: Plan, results: Results) -> list[Deviation]:
    """What changed within a stage of a sweep, and between it and the plan."""
    deviations: list[Deviation] = []
    for number in range(1, 1 + (0 if plan.tuned is None else len(plan.tuned.plans))):
        folder = stage_folder(ResultsFolder(results.folder), number)
        if not folder.plan.exists():
            continue
        opened = Results.open(folder.path)
        if (stage := opened.plan) is None:
            continue
        devices = ({"device": sealed.execution.device_name} for sealed in (stage, plan))
        about = str(folder.path.relative_to(results.folder))
        deviations += [
            _deviation(DeviationCode.DRIFT, str(change), runs=[about], change=str(change))
            for change in (*drift(stage.environment, plan.environment), *changes(*devices))
        ]
        deviations += _drift(stage, opened.runs)
    return deviations


def _drift(plan: Plan, runs: Iterable[Run]) -> list[Deviation]:
    by_change: dict[str | None, list[str]] = {}  # None: an environment changed, and no record says how
    for run in runs:
        record, result = run.record, run.result
        if record is None or result is None:
            continue
        drifts = (*record.drift, *(drift for start in result.history for drift in start.drift))
        changes: list[str | None] = [*map(str, drifts)]
        sealed, made = plan.environment, record.environment
        if not changes and (sealed.versions, sealed.code_hash) != (made.versions, made.code_hash):
            changes = [None]
        for change in dict.fromkeys(changes):
            by_change.setdefault(change, []).append(run.id)
    return [
        _deviation(DeviationCode.DRIFT, change or "environment", runs=names, **({"change": change} if change else {}))
        for change, names in by_change.items()
    ]


def _against_file(sealed: Study, given: Study) -> list[Deviation]:
    """Where the study file as it stands now differs from the sealed one; the sealed one is what is applied."""
    before, now = (study.model_dump(mode="json", exclude={"text"}) for study in (sealed, given))
    deviations = [
        _deviation(DeviationCode.CHANGED_CRITERIA, name, before=before[name], now=now[name])
        for name in REGISTERED
        if before[name] != now[name]
    ]
    rest = [{k: v for k, v in table.items() if k not in REGISTERED} for table in (before, now)]
    changed = differences(*rest)
    if changed:
        keys = ", ".join(difference.key for difference in changed)
        changes = {difference.key: [difference.first, difference.second] for difference in changed}
        deviations.append(_deviation(DeviationCode.CHANGED_SETTINGS, keys, changes=changes))
    return deviations
