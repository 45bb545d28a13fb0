"""What a report is made from: everything a results folder holds, read once, checked, and tolerant of what is not there.

`load_material` never fails on a study that is not finished: what is there is read, what is missing is absent, what is
damaged is named in ``problems``. Only a folder that holds nothing of a study is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ablationlab.conclusions import Analysis, ComparisonPart
from ablationlab.conclusions_parts import Seed
from ablationlab.conclusions_verdict import Verdict
from ablationlab.errors import RecordError
from ablationlab.folders import ResultsFolder
from ablationlab.metrics import METRICS
from ablationlab.records import Plan, PlannedRun, Result, RunRecord
from ablationlab.replication.records import Replication
from ablationlab.storage import Lock, content_hash, read_json

FloatArray = NDArray[np.float64]
State = Literal["waiting", "started", "running", "finished", "diverged", "damaged"]
Read = TypeVar("Read")

#: A published table beside these results, written by `ablationlab replicate`.
REPLICATION = "replication.json"
#: Files of one run beyond the three of the contract, by the name they are kept under.
EXTRAS: Mapping[str, str] = {
    "evaluation": "evaluation.json",
    "samples": "samples.parquet",
    "probes": "probes.parquet",
    "probes_log": "probes.jsonl",
}


@dataclass(frozen=True)
class Damage:
    """A file that could not be read, relative to the results folder, and what is wrong with it."""

    file: str
    text: str


@dataclass(frozen=True)
class RunMaterial:
    """One run as it stands: its plan, its records, its curves. ``lr`` is the peak rate that a sweep varies."""

    id: str
    variant: str
    regime: str
    seed: Seed
    lr: float
    steps: int
    state: State
    step: int
    planned: PlannedRun | None
    record: RunRecord | None
    result: Result | None
    curves: Mapping[str, FloatArray] = field(default_factory=dict)
    evaluation: Mapping[str, Any] | None = None
    files: tuple[str, ...] = ()
    folder: Path | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly."""
        return self.state in ("finished", "diverged")

    def path(self, name: str) -> Path | None:
        """The path of one of `EXTRAS`, where the file is there."""
        return self.folder / EXTRAS[name] if self.folder is not None and EXTRAS[name] in self.files else None

    def metric(self, name: str) -> float | None:
        """A run-level metric of a finished run."""
        return None if self.result is None else self.result.metrics.get(name)


@dataclass(frozen=True)
class Material:
    """A results folder in memory.

    ``interim``: not every planned run has ended, so nothing in it is inference. ``plan`` is None for an analysis of a
    user's own table; ``analysis`` and ``verdict`` are None until `ablationlab analyze` has written them.
    """

    folder: Path
    plan: Plan | None
    sealed: bool
    analysis: Analysis | None
    verdict: Verdict | None
    runs: tuple[RunMaterial, ...]
    problems: tuple[Damage, ...]
    stale: tuple[str, ...]
    sweep: Mapping[str, Any] | None = None
    interactions: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None
    suite: Mapping[str, Any] | None = None
    replication: Replication | None = None

    @property
    def name(self) -> str:
        """The study's name."""
        if self.plan is not None:
            return str(self.plan.study["name"])
        return self.analysis.study if self.analysis is not None else self.folder.name

    @property
    def question(self) -> str:
        """The question the study asks."""
        if self.plan is not None:
            return str(self.plan.study.get("question") or "")
        return self.analysis.question if self.analysis is not None else ""

    @property
    def baseline(self) -> str:
        """The variant that the others are held against."""
        if self.plan is not None:
            return str(self.plan.study["baseline"])
        return self.analysis.baseline if self.analysis is not None else ""

    @property
    def variants(self) -> tuple[str, ...]:
        """Every variant, the baseline first, then in the study's order; colours go by this order."""
        if self.plan is not None:
            names = tuple(map(str, self.plan.study["variants"]))
        else:
            names = self.analysis.variants if self.analysis is not None else ()
        return tuple(dict.fromkeys((self.baseline, *names)) if self.baseline in names else names)

    @cached_property
    def regimes(self) -> tuple[str, ...]:
        """Every regime that has a run."""
        if self.analysis is not None:
            return self.analysis.regimes
        return tuple(dict.fromkeys(run.regime for run in self.runs))

    @cached_property
    def seeds(self) -> tuple[Seed, ...]:
        """Every seed, in the study's order."""
        if self.analysis is not None and self.plan is None:
            return self.analysis.seeds
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    @property
    def primary(self) -> str | None:
        """The metric that decides."""
        if self.analysis is not None:
            return self.analysis.primary
        criteria = self.plan.study.get("criteria", ()) if self.plan is not None else ()
        return next((str(c["metric"]) for c in criteria if c.get("role") == "primary"), None)

    @property
    def interim(self) -> bool:
        """Whether a planned run has not ended, or could not be read."""
        return any(not run.done for run in self.runs)

    @property
    def ended(self) -> int:
        """How many runs have ended."""
        return sum(run.done for run in self.runs)

    @property
    def share_done(self) -> float:
        """Run-steps done, of those planned; a diverged run counts as done."""
        total = sum(run.steps for run in self.runs)
        return sum(run.steps if run.done else run.step for run in self.runs) / total if total else 1.0

    def run(self, run_id: str) -> RunMaterial | None:
        """The run of that id."""
        return self._by_id.get(run_id)

    @cached_property
    def _by_id(self) -> dict[str, RunMaterial]:
        return {run.id: run for run in self.runs}

    def run_of(self, variant: str, regime: str, seed: Seed) -> RunMaterial | None:
        """The run of one cell of the study; None where there is none, or a sweep has several."""
        cell = self._cells.get((variant, regime, seed), [])
        return cell[0] if len(cell) == 1 else None

    @cached_property
    def _cells(self) -> dict[tuple[str, str, Seed], list[RunMaterial]]:
        cells: dict[tuple[str, str, Seed], list[RunMaterial]] = {}
        for run in self.runs:
            cells.setdefault((run.variant, run.regime, run.seed), []).append(run)
        return cells

    def comparison(self, comparison_id: str) -> ComparisonPart | None:
        """The comparison of that id."""
        return self._comparisons.get(comparison_id)

    @cached_property
    def _comparisons(self) -> dict[str, ComparisonPart]:
        return {} if self.analysis is None else {found.id: found for found in self.analysis.comparisons}

    def contrasts(self) -> tuple[tuple[str, str], ...]:
        """(variant, reference) as compared: every variant against the baseline first."""
        if self.analysis is not None:
            found = dict.fromkeys((c.variant, c.reference) for c in self.analysis.comparisons)
            return tuple(sorted(found, key=lambda pair: pair[1] != self.baseline))
        return tuple((variant, self.baseline) for variant in self.variants if variant != self.baseline)


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
        stale=tuple(_stale(plan, analysis, verdict, runs)),
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


def _stale(
    plan: Plan | None, analysis: Analysis | None, verdict: Verdict | None, runs: tuple[RunMaterial, ...]
) -> list[str]:
    """Why the analysis or the verdict is not that of these records; empty where it is."""
    if analysis is None:
        return []
    found = []
    if verdict is not None and verdict.analysis_hash != content_hash(json.loads(analysis.model_dump_json())):
        found.append("verdict.json follows from another analysis than analysis.json")
    if plan is None or analysis.source != "records":
        return found
    if analysis.source_hash != plan.plan_hash:
        found.append("analysis.json belongs to another plan than plan.lock")
        return found
    found += _disagreements(analysis, runs)
    return found


def _disagreements(analysis: Analysis, runs: tuple[RunMaterial, ...]) -> list[str]:
    found = []
    if analysis.stability is not None:
        states = {run.id: run.state for run in runs}
        for seen in analysis.stability.runs:
            now = states.get(seen.run, "waiting")
            ended = now in ("finished", "diverged")
            if (seen.state in ("finished", "diverged")) != ended or (ended and seen.state != now):
                found.append(f"{seen.run} is {now}, but {seen.state} in analysis.json")
    cells: dict[tuple[str, str, Seed], list[RunMaterial]] = {}
    for run in runs:
        cells.setdefault((run.variant, run.regime, run.seed), []).append(run)
    seen_values = set()
    for comparison in analysis.comparisons:
        if comparison.task is not None or comparison.metric not in METRICS:
            continue
        for pair in comparison.pairs:
            for variant, value in ((comparison.variant, pair.variant), (comparison.reference, pair.reference)):
                cell = cells.get((variant, comparison.regime, pair.seed), [])
                recorded = cell[0].metric(comparison.metric) if len(cell) == 1 else None
                key = (variant, comparison.regime, pair.seed, comparison.metric)
                if recorded is not None and recorded != value and key not in seen_values:
                    seen_values.add(key)
                    found.append(f"{comparison.metric} of {cell[0].id} is {recorded:g}, but {value:g} in analysis.json")
    return found


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _without(text: str, path: Path) -> str:
    """An error's text without the path that stands beside it anyway."""
    return text.removeprefix(str(path)).lstrip(": ,") or text
