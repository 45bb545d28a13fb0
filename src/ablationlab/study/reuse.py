"""Baseline runs of an earlier study that serve in a new one: which may, what the plan says of them, their copies.

A run may serve where it is what this study would train, bit for bit, as far as its records tell: anything that differs
refuses the plan. All seeds of the earlier baseline serve or none, finished and diverged alike, for they were seen. A seed
that it lacks is trained as usual. Variants never serve: they are known to be good or bad.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ablationlab.core.errors import PlanError, RecordError
from ablationlab.core.format import ranges
from ablationlab.core.grouping import grouped
from ablationlab.data.batches import planned_data_order
from ablationlab.records.environment import drift
from ablationlab.records.evaluation import EVALUATION, SAMPLES
from ablationlab.records.plan import REUSED, Plan, PlannedRun, Reuse, Reused
from ablationlab.records.results import WEIGHTS, Results, Run
from ablationlab.records.run import Result, RunRecord
from ablationlab.records.seal import RunSeal, file_hash
from ablationlab.records.settings import Study, file_name
from ablationlab.records.storage import (
    Lock,
    ResultsFolder,
    RunFolder,
    inside,
    make_folder,
    new_folder,
    not_a_link,
    numbered,
    open_regular,
    storage_errors,
    sweep,
    timestamp,
    write_bytes,
)
from ablationlab.study.ledger import result_mismatches, setting_mismatches

#: Regime, and seed of every stream.
Cell = tuple[str, tuple[int, int, int]]
#: What every study makes of a run for itself.
_SCORES = frozenset({EVALUATION, SAMPLES})
#: What decides bits beside the recipe of a run; width and threads stand in its record.
_BITS = ("kernels", "deterministic", "parallel", "activation_checkpointing")
_MOST_NAMED = 5
_CHUNK = 1 << 20
# Between two looks at the lock of another command that copies the same runs.
_WAIT_SECONDS = 0.2


@dataclass(frozen=True)
class EarlierStudy:
    """An earlier study, and the runs of its baseline."""

    path: Path
    plan: Plan
    runs: Mapping[Cell, Run]


def open_sources(study: Study) -> tuple[EarlierStudy, ...]:
    """The studies that ``reuse`` names; one that is not whole and sealed is refused."""
    return tuple(_opened(study, Path(path)) for path in study.reuse)


def _opened(study: Study, path: Path) -> EarlierStudy:
    try:
        results = Results.open(path, strict=True)
    except RecordError as error:
        raise PlanError(f"reuse: {error}") from error
    plan = results.plan
    if plan is None or not results.sealed:
        raise PlanError(f"reuse: {path} has no plan.lock that is as it was sealed, so nothing says what its runs are")
    if plan.study.baseline != study.baseline:
        raise PlanError(
            f"reuse: the baseline of {path} is {plan.study.baseline!r}, and {study.baseline!r} here. Only the baseline of an "
            "earlier study is reused: which of its variants are good was seen"
        )
    for table, there in (("[design]", plan.study.design), ("[sweep]", plan.study.sweep)):
        if there is not None:
            raise PlanError(
                f"reuse: {path} has a {table}, so what it found decided which runs of its baseline there are"
            )
    return EarlierStudy(path, plan, {_cell(run.planned): run for run in results.runs if _serves(plan, run.planned)})


def _cell(run: PlannedRun) -> Cell:
    return run.regime, run.seed_triple


def _serves(plan: Plan, run: PlannedRun) -> bool:
    return run.role == "compared" and run.variant == plan.study.baseline


def reused_ids(study: Study, planned: Iterable[PlannedRun], sources: Sequence[EarlierStudy]) -> frozenset[str]:
    """Runs of the baseline that an earlier study has; `with_reused` says whether they are the same."""
    cells = {cell for source in sources for cell in source.runs}
    ours = (run for run in planned if run.role == "compared" and run.variant == study.baseline)
    return frozenset(run.id for run in ours if _cell(run) in cells)


def with_reused(plan: Plan, sources: Sequence[EarlierStudy]) -> Plan:
    """The plan with what it takes from *sources*; not sealed. Raises `PlanError` where a run is not what it would be."""
    ours = {_cell(run): run for run in plan.runs if _serves(plan, run)}
    taken: dict[Cell, Path] = {}
    reused = []
    for source in sources:
        common = [cell for cell in source.runs if cell in ours]
        _check_cells(source, ours, common)
        if twice := [cell for cell in common if cell in taken]:
            raise PlanError(
                f"reuse: {taken[twice[0]]} and {source.path} both have seed {twice[0][1][0]} of {twice[0][0]}; name one"
            )
        taken |= dict.fromkeys(common, source.path)
        refused = {ours[cell].id: list(_mismatches(plan, ours[cell], source, source.runs[cell])) for cell in common}
        _refuse(source, refused)
        files = {ours[cell].id: _files(plan, source, source.runs[cell]) for cell in common}
        users = {note.by for note in notes(source.path, source.plan) if set(note.runs).intersection(files)}
        known = {"study": source.plan.study.name, "plan_hash": source.plan.plan_hash, "created": source.plan.created}
        reused.append(Reused(source=str(source.path), studies=len(users) + 2, files=files, **known))
    return plan.model_copy(update={"reused": tuple(reused)})


def _check_cells(source: EarlierStudy, ours: Mapping[Cell, PlannedRun], common: Sequence[Cell]) -> None:
    """All seeds of a regime, or none."""
    if not common:
        raise PlanError(f"reuse: {source.path} has no seed of the baseline that this study has, in any regime")
    regimes = {regime for regime, _ in common}
    left = [seeds[0] for regime, seeds in source.runs if regime in regimes and (regime, seeds) not in ours]
    if left:
        raise PlanError(
            f"reuse: {source.path} also has seeds {ranges(sorted(set(left)))} of the baseline, and this study does not. They "
            "were seen, so all of them are reused or none; add these seeds"
        )
    if waiting := [run.id for cell in common if not (run := source.runs[cell]).done]:
        raise PlanError(
            f"reuse: {len(waiting)} runs of {source.path} have not ended; `ablationlab run` ends them: {waiting[0]}"
        )


def _refuse(source: EarlierStudy, refused: Mapping[str, Sequence[str]]) -> None:
    found = grouped((text, run_id) for run_id, texts in refused.items() for text in texts)
    if found:
        lines = (
            f"\n  - {text} ({ids[0]}{f' and {len(ids) - 1} more' if ids[1:] else ''})" for text, ids in found.items()
        )
        shown = "".join(list(lines)[:_MOST_NAMED])
        raise PlanError(
            f"reuse: runs of {source.path} are not those that this study would train:{shown}\nMake them equal, or leave "
            "`reuse` out and they are trained here"
        )


def _mismatches(plan: Plan, planned: PlannedRun, source: EarlierStudy, run: Run) -> Iterator[str]:
    """Whatever the records tell of a run that would be otherwise if this study trained it."""
    record, result = run.record, run.result
    assert record is not None
    assert result is not None
    origin = source.plan.reused_from(run.id)
    if origin is not None:
        yield f"was itself reused, from {origin.study!r}: name the folder that trained it"
        return
    if record.plan_hash != source.plan.plan_hash:
        yield "was made under another plan"
    settings = list(_setting_mismatches(plan, planned, record))
    yield from settings
    if planned.id != record.id and not settings:
        yield "what identifies the run differs, such as its text or the [data] of the study"
    yield from _study_mismatches(plan, source.plan)
    yield from _made_otherwise(plan, planned, record, result)
    yield from result_mismatches(record, result)
    if result.unmeasured:
        yield f"has no value for {', '.join(result.unmeasured)}: `ablationlab run` there tries again"


def _setting_mismatches(plan: Plan, planned: PlannedRun, record: RunRecord) -> Iterator[str]:
    declares = plan.variants[planned.variant].moved(file_name)
    if (declares.settings, declares.parameters, declares.data) != (
        record.declares.settings,
        record.declares.parameters,
        record.declares.data,
    ):
        yield "the baseline declares other settings"
    if planned.recipe is None or record.recipe is None:
        if planned.recipe is not record.recipe or planned.settings != record.settings:
            yield "the tables of the trainer differ"
        return
    yield from setting_mismatches(planned, record, ())
    corpus = plan.corpus_of(planned.variant)
    if corpus != record.corpus:
        yield "corpus differs"
        return
    shape = {"batch": planned.training.batch, "context": planned.model.context}
    order = planned_data_order(planned.seed_triple[1], corpus, steps=planned.budget.steps, **shape)
    if order != record.data_order_hash:
        yield "data_order_hash differs"


def _study_mismatches(plan: Plan, other: Plan) -> Iterator[str]:
    """What the study says that reaches the files of a run."""
    ours, theirs = plan.study, other.study
    code = [sorted((file.name, file.sha256) for file in study.use) for study in (ours, theirs)]
    trainers = [None if study.trainer is None else study.trainer.moved(file_name) for study in (ours, theirs)]
    differs = {
        "use": code[0] != code[1],
        "trainer": trainers[0] != trainers[1] or plan.files.keys() != other.files.keys(),
        "the program of the trainer": [*plan.files.values()] != [*other.files.values()],
        "metrics": plan.metrics.keys() != other.metrics.keys(),
        "probes": ours.probes != theirs.probes,
        **{f"stability.{key}": getattr(ours.stability, key) != getattr(theirs.stability, key) for key in _COURSE},
        **{f"execution.{key}": getattr(ours.execution, key) != getattr(theirs.execution, key) for key in _BITS},
        **{f"evaluation.{key}": getattr(ours.evaluation, key) != getattr(theirs.evaluation, key) for key in _CURVE},
    }
    yield from (f"{name} differs" for name, there in differs.items() if there)


#: Rules by which a run's course is measured when it ends, and what is read of its validation loss on the way.
_COURSE, _CURVE = ("loss_threshold", "spike_score"), ("curve_every", "curve_windows")


def _made_otherwise(plan: Plan, planned: PlannedRun, record: RunRecord, result: Result) -> Iterator[str]:
    """Device, width, threads, libraries, code: of every start that the weights go back to."""
    ours, theirs = (execution.model_dump() for execution in (plan.execution_of(planned), record.execution))
    yield from (f"{key}: {ours[key]!r} here, {theirs[key]!r} there" for key in ours if ours[key] != theirs[key])
    for change in drift(record.environment, plan.environment):
        yield str(change)
    here = (plan.environment.versions, plan.environment.code_hash, plan.environment.processor)
    place = (plan.execution.device_name, plan.execution.threads)
    starts = [(start.versions, start.code_hash, start.processor) for start in result.history]
    places = [(start.device_name, start.threads) for start in result.history]
    if any(start != here for start in starts) or any(other != place for other in places):
        yield "was continued on another device or with other libraries"
    if record.drift or any(start.drift for start in result.history):
        yield "was trained with accepted drift"


def _files(plan: Plan, source: EarlierStudy, run: Run) -> dict[str, str]:
    """What the run sealed when it ended, each file whole; weights may be absent where nothing is scored."""
    assert run.seal is not None
    sealed = {name: sha256 for name, sha256 in run.seal.files.items() if name not in _SCORES}
    absent = [name for name in sealed if run.left_out(name)]
    if any(name.partition("/")[0] not in WEIGHTS for name in absent):
        raise PlanError(f"reuse: {source.path} does not keep {absent[0]} of its runs; use the complete folder")
    if absent and plan.study.evaluation.tasks:
        raise PlanError(f"reuse: {source.path} does not keep the weights of {run.id}, and evaluation.tasks needs them")
    kept = {name: sha256 for name, sha256 in sealed.items() if name not in absent}
    for name, sha256 in kept.items():
        if file_hash(inside(run.folder.path, name)) != sha256:
            raise PlanError(f"reuse: {run.folder.path / name} is not as it was sealed when its run ended")
    return kept


# --- who uses them -----------------------------------------------------------------------------------------------


def notes(folder: Path, plan: Plan) -> tuple[Reuse, ...]:
    """The studies that use runs of this one, in their order. Each record names the one before it, so only the last could be
    lost unseen, and the studies that came later know the count."""
    found: list[Reuse] = []
    for number, path in enumerate(numbered(folder / REUSED), start=1):
        note, before = Reuse.read(path), found[-1].seal if found else ""
        if (note.plan_hash, note.before, int(path.stem)) != (plan.plan_hash, before, number):
            raise RecordError("does not follow the record before it", path, Reuse.MEND)
        found.append(note)
    return tuple(found)


def _note(plan: Plan, reused: Reused, source: Plan) -> None:
    """Write down, beside the plan that the runs come from, that this study uses them."""
    folder = Path(reused.source) / REUSED
    not_a_link(folder)
    while True:
        known = notes(folder.parent, source)
        if any(note.by == plan.plan_hash for note in known):
            return
        note = Reuse(
            plan_hash=reused.plan_hash,
            study=plan.study.name,
            by=plan.plan_hash,
            runs=tuple(reused.files),
            before=known[-1].seal if known else "",
            created=timestamp(),
        )
        with suppress(FileExistsError):  # another study was noted at the same moment
            note.create(folder / f"{len(known) + 1:04d}.json")


def checked_source(plan: Plan, reused: Reused, *, copied: bool) -> int | None:
    """How many studies rest on these runs by now; None where the earlier study is not here. Raises where it is not the one
    that the plan names, or does not count this one although runs were *copied*."""
    source = ResultsFolder(Path(reused.source))
    if not os.path.lexists(source.plan):
        return None
    origin = _same(source, reused, [*reused.files])
    for run_id, files in reused.files.items():
        for name, sha256 in files.items():
            path = inside(source.run(run_id).path, name)
            if (now := file_hash(path)) != sha256 and (now or name.partition("/")[0] not in WEIGHTS):
                raise RecordError("is not as the plan of this study names it" if now else "is missing", path)
    users = {note.by for note in notes(source.path, origin) if set(note.runs).intersection(reused.files)}
    if copied and plan.plan_hash not in users:
        raise RecordError("does not have this study, which uses runs from here", source.path / REUSED)
    if len(users) + 1 < reused.studies - (not copied):
        text = f"counts {len(users) + 1} studies, and {reused.studies} when this plan was sealed"
        raise RecordError(text, source.path / REUSED)
    return len(users) + 1


# --- copies ------------------------------------------------------------------------------------------------------


def copy_reused(plan: Plan, results: ResultsFolder) -> None:
    """Bring the reused runs that are not here. Each appears whole or not at all, with the bytes that the plan names."""
    absent = [[run_id for run_id in reused.files if not results.run(run_id).done] for reused in plan.reused]
    if not any(absent):
        return
    lock = Lock(results.locks / REUSED)
    while not lock.acquire():
        time.sleep(_WAIT_SECONDS)
    try:
        if results.runs.is_dir():
            sweep(results.runs)
        for reused, run_ids in zip(plan.reused, absent, strict=True):
            if not run_ids:
                continue
            source = ResultsFolder(Path(reused.source))
            _note(plan, reused, _same(source, reused, run_ids))
            for run_id in run_ids:
                if not results.run(run_id).done:  # of another command, which had the lock
                    _copy(source.run(run_id), results.run(run_id), reused)
    finally:
        lock.release()


def _same(source: ResultsFolder, reused: Reused, run_ids: Sequence[str]) -> Plan:
    """The plan that the runs were made under."""
    needed = f"{run_ids[0]}{f' and {len(run_ids) - 1} more' if run_ids[1:] else ''} come from it; restore it"
    if not os.path.lexists(source.plan):
        raise PlanError(f"reuse: {source.path} is not there, and {needed}")
    plan = Plan.read(source.plan)
    if plan.plan_hash != reused.plan_hash:
        raise PlanError(f"reuse: {source.path} has another plan than when this one was sealed, and {needed}")
    return plan


def _copy(source: RunFolder, target: RunFolder, reused: Reused) -> None:
    name = target.path.name
    if target.path.exists():
        raise RecordError("is reused and not whole; move it away, and `ablationlab run` copies it again", target.path)
    files = reused.files[name]
    seal = RunSeal(id=name, plan_hash=reused.plan_hash, files=files)
    with new_folder(target.path) as folder:
        for file, sha256 in files.items():
            _copy_file(inside(source.path, file), inside(folder, file), sha256)
        write_bytes(folder / target.seal.name, seal.to_bytes())


def _copy_file(source: Path, target: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    try:
        with open_regular(source, most=None) as file, storage_errors(target):
            make_folder(target.parent)
            with target.open("xb") as copy:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    copy.write(chunk)
                copy.flush()
                os.fsync(copy.fileno())
    except FileNotFoundError as error:
        raise PlanError(f"reuse: {source} is not there any more; restore it") from error
    if digest.hexdigest() != sha256:
        raise PlanError(f"reuse: {source} is not as the plan names it: it was changed since; restore it")
