"""A results folder into memory: read once, checked, and tolerant of what is not there.

`load_material` never fails on a study that is not finished: what is there is read, what is missing is absent, what is
damaged is named in ``problems``. Only a folder that holds nothing of a study is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ablationlab.core.errors import RecordError
from ablationlab.records.analysis import Analysis
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.replication import Replication
from ablationlab.records.run import Result, RunRecord
from ablationlab.records.storage import Lock, read_json
from ablationlab.records.verdict import Verdict
from ablationlab.report.material import EXTRAS, Damage, FloatArray, Material, RunMaterial, State
from ablationlab.report.staleness import why_stale

Read = TypeVar("Read")
#: A published table beside these results, written by `ablationlab replicate`.
REPLICATION = "replication.json"
#: What was read before, by file and reader, with the file's time and size: files that did not change are not read again.
Cache = dict[tuple[Path, str], tuple[tuple[int, int], Any]]


def load_material(folder: Path, cache: Cache | None = None) -> Material:
    """Read a results folder. Raises `RecordError` only where nothing of a study is there.

    With a *cache*, which it fills, a second reading opens only what changed.
    """
    results = ResultsFolder(folder)
    problems: list[Damage] = []

    def read(path: Path, reader: Callable[[Path], Read]) -> Read | None:
        """What *reader* makes of a file: None where it is absent, and where it is damaged, which is noted."""
        if not path.exists():
            return None
        try:
            return reader(path) if cache is None else _cached(cache, path, reader)
        except RecordError as error:
            problems.append(Damage(_relative(path, folder), _without(str(error), path)))
        except (OSError, ValueError) as error:
            problems.append(Damage(_relative(path, folder), str(error)))
        return None

    if not folder.is_dir():
        raise RecordError(f"{folder} is no results folder: there is no such folder")
    found_plan = read(results.plan, Plan.read_with_seal)
    plan, sealed = found_plan if found_plan is not None else (None, False)
    if found_plan is not None and not sealed:
        text = "was changed after it was sealed: its content does not match plan_hash, so nothing counts as registered"
        problems.append(Damage(results.plan.name, text))
    analysis = read(folder / "analysis.json", Analysis.read)
    verdict = read(folder / "verdict.json", Verdict.read)
    if plan is None and analysis is None:
        if problems:
            listed = "\n".join(f"  - {problem.file}: {problem.text}" for problem in problems)
            raise RecordError(f"{folder}: neither a plan nor an analysis can be read\n{listed}")
        raise RecordError(f"{folder} is no results folder of a study: it has neither plan.lock nor analysis.json")
    runs = () if plan is None else _runs(plan, results, read)
    suite = read(folder / "evaluation" / "suite.json", _mapping)
    replication = _replication(read(folder / REPLICATION, Replication.read), plan, problems)
    whole = {} if analysis is None else _mapping(folder / "analysis.json")
    return Material(
        folder=folder,
        plan=plan,
        sealed=sealed,
        analysis=analysis,
        verdict=verdict,
        runs=runs,
        problems=tuple(problems),
        stale=tuple(why_stale(plan, analysis, verdict, runs)),
        sweep=whole.get("sweep"),
        interactions=whole.get("interactions"),
        evaluation=whole.get("evaluation"),
        suite=suite,
        replication=replication,
    )


def _replication(found: Replication | None, plan: Plan | None, problems: list[Damage]) -> Replication | None:
    """The replication, if it is of this very plan."""
    if found is None or (plan is not None and found.source_hash == plan.plan_hash):
        return found
    problems.append(Damage(REPLICATION, "belongs to another plan than plan.lock and is left out"))
    return None


def _cached(cache: Cache, path: Path, reader: Callable[[Path], Read]) -> Read:
    found = path.stat()
    stamp, key = (found.st_mtime_ns, found.st_size), (path, reader.__qualname__)
    if key not in cache or cache[key][0] != stamp:
        cache[key] = (stamp, reader(path))
    kept: Read = cache[key][1]
    return kept


def _runs(plan: Plan, results: ResultsFolder, read: Callable[..., Any]) -> tuple[RunMaterial, ...]:
    held = {number for number in range(len(plan.stacks)) if Lock(results.stack_lock(number)).held_elsewhere()}
    return tuple(_run(planned, results, planned.stack in held, read) for planned in plan.runs)


def _run(planned: PlannedRun, results: ResultsFolder, held: bool, read: Callable[..., Any]) -> RunMaterial:
    folder = results.run(planned.id)
    record = read(folder.record, RunRecord.read)
    result = read(folder.result, Result.read)
    curves = read(folder.metrics, read_curves)
    evaluation = read(folder.path / EXTRAS["evaluation"], _mapping)
    damaged = (record is None and folder.record.exists()) or (result is None and folder.result.exists())
    state: State = "waiting"
    if damaged:
        state = "damaged"
    elif result is not None and record is not None:
        state = result.status
    elif held:
        state = "running"
    elif record is not None:
        state = "started"
    steps = curves["step"] if curves else np.empty(0)
    there = sorted(path.name for path in folder.path.iterdir()) if folder.path.is_dir() else []
    return RunMaterial(
        id=planned.id,
        variant=planned.variant,
        regime=planned.regime,
        seed=planned.seed,
        lr=planned.lr,
        steps=planned.budget.steps,
        state=state,
        step=int(steps[-1]) if steps.size else 0,
        planned=planned,
        record=record,
        result=result,
        curves=curves or {},
        evaluation=evaluation,
        files=tuple(there),
        folder=folder.path,
    )


def read_curves(path: Path) -> dict[str, FloatArray]:
    """The numbers of a metrics.jsonl by column, NaN where a line lacks one.

    A torn last line (a run in progress) is left out; any other damage is named. Columns that this program does not know are
    read like the others.
    """
    lines = path.read_bytes().split(b"\n")[:-1]
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RecordError(f"line {number}: {error}") from error
        if number == 1:
            if not isinstance(row, dict) or row.get("kind") != "metrics":
                raise RecordError("line 1: no metrics header")
            continue
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise RecordError(f"line {number}: no step in it")
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([as_number(row.get(name)) for row in rows], dtype=np.float64) for name in names}


def as_number(value: object) -> float:
    """A JSON number, or one of the words that stand for what JSON lacks; NaN for anything else."""
    if isinstance(value, bool) or value is None:
        return math.nan
    if isinstance(value, int | float):
        return float(value)
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(value, math.nan) if isinstance(value, str) else math.nan


def _mapping(path: Path) -> Mapping[str, Any]:
    data = read_json(path)
    if not isinstance(data, dict):
        raise RecordError(f"{path} is no JSON object")
    return data


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _without(text: str, path: Path) -> str:
    """An error's text without the path that stands beside it anyway."""
    return text.removeprefix(str(path)).lstrip(": ,") or text
