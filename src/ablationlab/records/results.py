"""The one reader of a results folder: `Results.open` and its runs.

Files are read when they are first asked for, and the types of an analysis are imported then: `status` needs none. What is not
there is None. By default damage is noted in ``problems`` and the rest is read; with ``strict`` it raises `RecordError`. A
file that is not as it was sealed (seal.py) is damage, too, unless the analysis on disk was made with it on request
(``--accept-altered``). Nothing here consults a registry: variants and metrics are as the plan, or the analysis of a user's
table, defines them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from ablationlab.core.errors import RecordError
from ablationlab.core.grouping import grouped
from ablationlab.core.paths import did_you_mean_beside
from ablationlab.records.evaluation import (
    EVALUATION,
    SAMPLES,
    Evaluation,
    Suite,
    evaluation_path,
    samples_path,
    suite_path,
)
from ablationlab.records.metrics import Metric
from ablationlab.records.plan import AMENDMENTS, LOOKS, Plan, PlannedRun
from ablationlab.records.probes import ProbeTable, read_table
from ablationlab.records.run import Result, RunRecord, TrainerFailure, read_curves, read_progress
from ablationlab.records.seal import ABSENT, MEND_RUN, AlteredError, RunSeal, file_hash, hash_known, stamp
from ablationlab.records.settings import primary_criterion
from ablationlab.records.storage import MEND_PLAN, Lock, ResultsFolder, RunFolder, inside, is_folder, numbered
from ablationlab.records.table_curves import TABLE_CURVES, TableRun, read_table_curves

if TYPE_CHECKING:
    import pandas as pd

    from ablationlab.records.analysis import Analysis, Comparison, LedgerInput, Seed
    from ablationlab.records.courses import Courses
    from ablationlab.records.energy import Energy
    from ablationlab.records.replication import Replication
    from ablationlab.records.run import FloatArray
    from ablationlab.records.verdict import Verdict

T = TypeVar("T")
#: How a run stands. "started" is one that stopped in the middle, "failed" one that its own trainer did not end well.
State = Literal["waiting", "started", "failed", "running", "finished", "diverged", "damaged"]
#: Files of a run that an analysis reads: without one of them its numbers cannot be made again.
ANALYZED = frozenset({"run.json", "result.json", EVALUATION})
#: Folders of a run that hold its weights.
WEIGHTS = frozenset({"checkpoints", "halfway"})
#: A published table compared with these results, written by `ablationlab replicate`.
REPLICATION = "replication.json"
#: What was read before, by file and reader, with the file's stamp: what did not change is not read again.
#: Runs that have ended are kept whole, by their folder.
Cache = dict[tuple[Path, str], tuple[tuple[int, ...], Any]]


@dataclass(frozen=True)
class Damage:
    """A file that could not be read, relative to the results folder, and what is wrong with it."""

    file: str
    problem: str
    advice: str = ""

    @property
    def text(self) -> str:
        """The problem, and what to do about it."""
        return f"{self.problem}. {self.advice}" if self.advice else self.problem


@dataclass(frozen=True)
class Stale:
    """Why the analysis or the verdict is not that of the records: a file, and what is the matter with it."""

    code: Literal["other-analysis", "other-plan", "new", "gone", "changed", "damaged"]
    file: str
    damage: str = ""


class Reader:
    """Reads the files of one folder; absent ones are None, damaged ones are noted, or raise where it is *strict*."""

    def __init__(
        self, folder: Path, cache: Cache | None = None, *, strict: bool = False, accept_altered: bool = False
    ) -> None:
        self.folder, self.cache, self.strict, self.accept_altered = folder, cache, strict, accept_altered
        self.damage: dict[str, Damage] = {}
        #: Files that are not as they were sealed and are read on request, with the hash that they have.
        self.altered: dict[str, str] = {}
        self._kept: dict[str, bool] = {}  # whether any run has such a file

    def read(
        self,
        path: Path,
        reader: Callable[[Path], T],
        sealed: Collection[str] | None = None,
        beside: Collection[Path] = (),
    ) -> T | None:
        """*sealed*: the hashes that the file may have; *beside*: what else *reader* reads, files and folders."""
        try:
            if sealed is not None:
                self.check(path, sealed)
            if not os.path.lexists(path):  # a link in a loop is there, and damaged
                return None
            return reader(path) if self.cache is None else self._cached(self.cache, path, reader, beside)
        except (RecordError, OSError, ValueError) as error:
            path = next((file for file in beside if file == getattr(error, "path", None)), path)
            name = path.relative_to(self.folder).as_posix()
            if isinstance(error, OSError):
                error = RecordError(f"cannot be read: {error.strerror}", path, _mend(name))
            if self.strict:
                raise error from None
            if isinstance(error, RecordError) and error.path == path:
                self.note(name, error.problem, error.advice)
            else:
                self.note(name, str(error))
            return None

    def check(self, path: Path, sealed: Collection[str]) -> None:
        """Raise `AlteredError` if a file is not as it was sealed, unless that was accepted."""
        name = path.relative_to(self.folder).as_posix()
        try:
            now = file_hash(path)
        except RecordError as error:  # no file that could be accepted
            raise AlteredError(error.problem, error.path, _mend(name)) from error
        if now in sealed:
            return
        if not self.accept_altered and self._accepted.get(name) != now:
            problem, advice = _what_was_altered(name, now, added=set(sealed) == {ABSENT})
            raise AlteredError(problem, path, advice)
        self.altered[name] = now

    def accepted(self, path: Path) -> bool:
        """Whether a file is read although it is not as it was sealed."""
        return path.relative_to(self.folder).as_posix() in self.altered

    @cached_property
    def _accepted(self) -> Mapping[str, str]:
        """Altered files that the analysis on disk was made with, on request."""
        from ablationlab.records.analysis import Analysis

        path = self.folder / "analysis.json"
        try:
            return Analysis.read(path).altered if path.exists() else {}
        except RecordError:
            return {}

    def may_leave_out(self, kind: str) -> bool:
        """Whether a file or folder that a run lacks was left out to save room; otherwise it is missing.

        Weights may be left out of any run; any other that no analysis reads, of all runs at once.
        """
        if kind in ANALYZED or kind in WEIGHTS:
            return kind in WEIGHTS
        if kind not in self._kept:
            self._kept[kind] = next(ResultsFolder(self.folder).runs.glob(f"*/{kind}"), None) is not None
        return not self._kept[kind]

    def note(self, file: str, problem: str, advice: str = "") -> None:
        self.damage.setdefault(file, Damage(file, problem, advice))

    @staticmethod
    def _cached(cache: Cache, path: Path, reader: Callable[[Path], T], beside: Collection[Path]) -> T:
        stamps = tuple(value for file in (path, *beside) if file.exists() for value in stamp(file.stat()))
        key = (path, reader.__qualname__)
        if key not in cache or cache[key][0] != stamps:
            cache[key] = (stamps, reader(path))
        kept: T = cache[key][1]
        return kept


def _what_was_altered(name: str, now: str, *, added: bool) -> tuple[str, str]:
    """What is wrong with a file that is not as it was sealed, and how it is mended."""
    what = "is not as it was sealed when its run ended: it was changed since"
    if name == SUITE:
        what = "is missing, though runs were scored on its tasks"
    elif now == ABSENT:
        what = "is missing, though its run has ended"
    elif added:
        return "is not in the seal of its run: it was added later", f"Move it away; {_ACCEPT}"
    return what, f"{_mend(name)}; {_ACCEPT}"


def _mend(name: str) -> str:
    """What to do about a damaged file, by its name in the results folder."""
    if name == SUITE:
        return f"Restore it, or {_WRITES_SUITE}"
    if Path(name).name in (EVALUATION, SAMPLES):
        return "Restore it, or `ablationlab evaluate` scores the run again"
    return MEND_RUN if name.startswith("runs/") else "Restore it, or move it away"


SUITE = "evaluation/suite.json"
_WRITES_SUITE = "`ablationlab evaluate` writes it again"
_ACCEPT = "`ablationlab analyze --accept-altered` uses the folder as it is and says so everywhere"


@dataclass(frozen=True)
class Run:
    """One planned run and what is on disk of it. ``locked``: another process holds its stack."""

    planned: PlannedRun
    folder: RunFolder
    reader: Reader
    locked: bool = False

    @property
    def id(self) -> str:
        return self.planned.id

    @property
    def variant(self) -> str:
        return self.planned.variant

    @property
    def regime(self) -> str:
        return self.planned.regime

    @property
    def seed(self) -> int:
        return self.planned.seed

    @property
    def lr(self) -> float:
        return self.planned.lr

    @property
    def steps(self) -> int:
        """The steps of its budget; of a trainer that names none, those it has made."""
        return self.planned.steps or max(self.step, 1)

    @cached_property
    def seal(self) -> RunSeal | None:
        """None for a run that has not ended, and where it cannot be read (`unsealed`)."""
        if not os.path.lexists(self.folder.result):
            return None
        return self.reader.read(self.folder.seal, self._read_seal, None if self.folder.seal.exists() else ())

    def _read_seal(self, path: Path) -> RunSeal:
        seal = RunSeal.read(path)
        if seal.id != self.id:
            raise AlteredError(f"belongs to {seal.id}", path, MEND_RUN)
        return seal

    @property
    def unsealed(self) -> bool:
        """Whether it has ended and its seal is lost, damaged or another run's, so that none of its files can be checked."""
        return self.seal is None and f"runs/{self.id}/seal.json" in self.reader.damage

    def sealed(self, path: Path) -> Collection[str] | None:
        """The hashes that a file in this run's folder may have; None before it has ended."""
        if self.seal is None:
            return None
        allowed = self.seal.allowed(path.name)
        return (*allowed, ABSENT) if not os.path.lexists(path) and self.left_out(path.name) else allowed

    def left_out(self, name: str) -> bool:
        """Whether a file, or the folder that it is in, is not there to save room."""
        kind = name.partition("/")[0]
        return not os.path.lexists(self.folder.path / kind) and self.reader.may_leave_out(kind)

    def _read(self, path: Path, reader: Callable[[Path], T]) -> T | None:
        return None if self.unsealed else self.reader.read(path, reader, self.sealed(path))

    @cached_property
    def record(self) -> RunRecord | None:
        return self._read(self.folder.record, self._read_record)

    def _read_record(self, path: Path) -> RunRecord:
        record = RunRecord.read(path)
        if record.id != self.id:
            raise AlteredError(f"belongs to {record.id}", path, MEND_RUN)
        return record

    @cached_property
    def result(self) -> Result | None:
        return self._read(self.folder.result, Result.read)

    @cached_property
    def failure(self) -> TrainerFailure | None:
        """Why it failed the last time, of a run without a result."""
        return None if os.path.lexists(self.folder.result) else self._read(self.folder.failure, TrainerFailure.read)

    @cached_property
    def evaluation(self) -> Evaluation | None:
        return self._read(evaluation_path(self.folder), Evaluation.read)

    @cached_property
    def curves(self) -> Mapping[str, FloatArray]:
        """metrics.jsonl by column; empty before the first step. A file that is not hashed yet is hashed as it is parsed."""
        path = self.folder.metrics
        if not self.folder.done:
            return self._read(path, read_progress) or {}
        if self.unsealed or self.seal is None or not path.is_file() or hash_known(path):
            return self._read(path, read_curves) or {}
        return self.reader.read(path, self._hashed_curves) or {}

    def _hashed_curves(self, path: Path) -> Mapping[str, FloatArray]:
        sealed = self.sealed(path)
        assert sealed is not None
        try:
            curves = read_curves(path)
        except RecordError:
            self.reader.check(path, sealed)  # that it was altered says more
            raise
        self.reader.check(path, sealed)
        return curves

    @cached_property
    def state(self) -> State:
        if not {"runs", f"runs/{self.id}"}.isdisjoint(self.reader.damage):
            return "damaged"
        if (self.record is None and os.path.lexists(self.folder.record)) or (
            self.result is None and os.path.lexists(self.folder.result)
        ):
            return "damaged"
        if self.record is not None and self.result is not None:
            return self.result.status
        if self.locked:
            return "running"
        return "waiting" if self.record is None else "started" if self.failure is None else "failed"

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly."""
        return self.state in ("finished", "diverged")

    @property
    def step(self) -> int:
        """How far it is."""
        if self.done and self.result is not None:
            return self.result.steps
        steps = self.curves.get("step")
        return int(steps[-1]) if steps is not None and steps.size else 0

    def metric(self, name: str) -> float | None:
        """A run-level metric of its result."""
        return None if self.result is None else self.result.metrics.get(name)

    @cached_property
    def checked(self) -> bool:
        """Check every file that an analysis or a report may read against its seal: whether all are whole."""
        _ = self.record, self.result, self.evaluation
        for path in (self.folder.metrics, samples_path(self.folder), self.folder.probe_table):
            self.reader.read(path, lambda _: None, self.sealed(path))
        if self.seal is None or self.reader.accepted(self.folder.metrics):  # what is as sealed is whole
            _ = self.curves
        return not any(file.startswith(f"runs/{self.id}/") for file in self.reader.damage)

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The names of its files and folders."""
        return tuple(sorted(path.name for path in self.folder.path.iterdir())) if self.folder.path.is_dir() else ()

    def samples(self) -> pd.DataFrame | None:
        """samples.parquet: one row per task, item and set of weights; None where nothing was scored."""
        return self._read(samples_path(self.folder), _parquet)

    def probes(self) -> pd.DataFrame | None:
        """probes.parquet: one row per step, probe, measure and group; None where nothing was probed."""
        return self._read(self.folder.probe_table, _parquet)

    def probe_table(self) -> ProbeTable:
        """The same as tuples, of a run in progress, too; raises `RecordError` where it is damaged."""
        if self.unsealed:
            damage = self.reader.damage[f"runs/{self.id}/seal.json"]
            raise AlteredError(damage.problem, self.folder.seal, damage.advice)
        read = (self.folder.probe_table, *(() if self.folder.probe_table.exists() else (self.folder.probes,)))
        for path in read:
            if (sealed := self.sealed(path)) is not None:
                self.reader.check(path, sealed)
        return read_table(self.folder)

    def changed(self, **values: Any) -> Self:
        """A copy with *values* in the place of what is on disk."""
        return _changed(self, values)


@dataclass(frozen=True)
class Results:
    """A results folder.

    ``plan`` is None for the analysis of a user's own table; ``analysis`` and ``verdict`` are None until `ablationlab analyze`
    has written them. ``sealed``: the plan is as it was sealed.
    """

    folder: Path
    plan: Plan | None
    sealed: bool
    runs: tuple[Run, ...]
    reader: Reader

    @classmethod
    def open(
        cls, path: str | Path, *, strict: bool = False, cache: Cache | None = None, accept_altered: bool = False
    ) -> Self:
        """Open a results folder; raises `RecordError` where nothing of a study is there.

        With a *cache*, which it fills, a second opening reads only what changed. *accept_altered*: files that are not as
        they were sealed are read, and listed in ``reader.altered``.
        """
        path = Path(path)
        if not path.is_dir():
            if path.is_file():
                raise RecordError(
                    f"{path} is a file, not a results folder. For a table of runs: ablationlab analyze {path}"
                )
            raise RecordError(f"is not a results folder: there is no such folder{did_you_mean_beside(path)}", path)
        reader = Reader(path, cache, strict=strict, accept_altered=accept_altered)
        folder = ResultsFolder(path)
        later = [file for kind in (LOOKS, AMENDMENTS) for file in (path / kind, *path.glob(f"{kind}/*.json"))]
        plan, sealed = reader.read(folder.plan, Plan.read_with_seal, beside=later) or (None, False)
        if plan is not None and not sealed:
            text = (
                "was changed after it was sealed: its content does not match plan_hash, so nothing counts as registered"
            )
            reader.note(folder.plan.name, text)
        results = cls(path, plan, sealed, read_runs(plan, folder, reader) if plan is not None else (), reader)
        if plan is None and results.analysis is None:
            if reader.damage:
                listed = "\n".join(f"  - {damage.file}: {damage.text}" for damage in reader.damage.values())
                raise RecordError(f"neither a plan nor an analysis can be read\n{listed}", path, joint=": ")
            if folder.runs.is_dir():
                folder.check_planned()
            raise RecordError("is not a results folder: it has neither plan.lock nor analysis.json", path)
        if plan is None and results.analysis is not None and results.analysis.source == "records":
            kinds = (folder.plan.name, LOOKS, AMENDMENTS)
            lost = [damage for file, damage in reader.damage.items() if file.partition("/")[0] in kinds]
            lost = lost or [Damage(folder.plan.name, "is missing", MEND_PLAN)]
            raise RecordError(lost[0].problem, path / lost[0].file, lost[0].advice)
        return results

    @cached_property
    def analysis(self) -> Analysis | None:
        from ablationlab.records.analysis import Analysis

        return self.reader.read(self.folder / "analysis.json", Analysis.read)

    @cached_property
    def verdict(self) -> Verdict | None:
        from ablationlab.records.verdict import Verdict

        return self.reader.read(self.folder / "verdict.json", Verdict.read)

    @cached_property
    def courses(self) -> Courses | None:
        """courses.json, of the analysis at hand."""
        from ablationlab.records.courses import COURSES, Courses

        found = self.reader.read(self.folder / COURSES, Courses.read)
        known = found is not None and self.analysis is not None and found.analysis_hash == self.analysis.seal
        return found if known else None

    @cached_property
    def table_runs(self) -> tuple[TableRun, ...]:
        """curves.parquet: runs of a user's table that have curves."""
        return self.reader.read(self.folder / TABLE_CURVES, read_table_curves) or ()

    @cached_property
    def suite(self) -> Suite | None:
        """evaluation/suite.json: the tasks that were asked. It must be there if any run was scored on tasks."""
        path = suite_path(ResultsFolder(self.folder))
        lost = not os.path.lexists(path) and any(run.evaluation and run.evaluation.tasks for run in self.runs)
        return self.reader.read(path, self._read_suite, () if lost else None)

    def _read_suite(self, path: Path) -> Suite:
        suite = Suite.read(path)
        if self.plan is not None and suite.plan_hash != self.plan.plan_hash:
            raise AlteredError(f"belongs to another plan than plan.lock; {_WRITES_SUITE}", path)
        return suite

    @cached_property
    def inputs(self) -> Mapping[str, str]:
        """SHA-256 of everything that an analysis of these records follows from; runs by their seals."""
        if self.plan is None:
            return {}
        amendments = numbered(self.folder / AMENDMENTS)
        seals = [run.folder.seal for run in self.runs if run.done]
        files = [ResultsFolder(self.folder).plan, *amendments, *seals, suite_path(ResultsFolder(self.folder))]
        hashes = ((file.relative_to(self.folder).as_posix(), self.reader.read(file, file_hash)) for file in files)
        return {name: sha256 for name, sha256 in hashes if sha256}

    @cached_property
    def replication(self) -> Replication | None:
        """replication.json, if it is of this very plan."""
        from ablationlab.records.replication import Replication

        replication = self.reader.read(self.folder / REPLICATION, Replication.read)
        if replication is None or self.plan is None or replication.source_hash == self.plan.plan_hash:
            return replication
        text = "belongs to another plan than plan.lock and is left out; `ablationlab replicate` writes it again"
        self.reader.note(REPLICATION, text)
        return None

    @cached_property
    def energy(self) -> tuple[Energy, ...]:
        """energy/: what the commands of this study measured, in their order."""
        from ablationlab.records.energy import ENERGY

        paths = self.reader.read(self.folder / ENERGY, numbered) or []
        return tuple(record for path in paths if (record := self.reader.read(path, self._read_energy)) is not None)

    def _read_energy(self, path: Path) -> Energy:
        from ablationlab.records.energy import Energy

        energy = Energy.read(path)
        if self.plan is not None and energy.plan_hash != self.plan.plan_hash:
            raise AlteredError("belongs to another plan than plan.lock; move it away", path)
        return energy

    def check_runs(self) -> None:
        """Check every file of every run that an analysis or a report may read against its seal."""
        for run in self.runs:
            _ = run.checked

    @cached_property
    def problems(self) -> tuple[Damage, ...]:
        """Files that are damaged; all of them are read for this."""
        self.check_runs()
        _ = self.analysis, self.verdict, self.suite, self.replication, self.energy, self.table_runs
        return tuple(self.reader.damage.values())

    @cached_property
    def stale(self) -> tuple[Stale, ...]:
        """Why the analysis or the verdict is not that of these records; empty where it is."""
        return tuple(_why_stale(self))

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """Every metric by its name, as it was defined when the plan was sealed, or by the user's table."""
        defined = {} if self.analysis is None else self.analysis.metrics
        return defined if self.plan is None else defined | self.plan.metrics

    def metric(self, name: str) -> Metric | None:
        """A metric as these results define it; None for any other name."""
        return self.metrics.get(name)

    def unit(self, name: str) -> str:
        """The unit of a metric; empty for one that these results do not define."""
        return self.metrics[name].unit if name in self.metrics else ""

    @property
    def own_trainer(self) -> bool:
        """Whether the user's own code trained the runs, so that only what it reports is known of them."""
        return self.plan is not None and self.plan.study.trainer is not None

    @property
    def shared_inputs(self) -> tuple[LedgerInput, ...]:
        """Which of data order and initial weights both runs of every pair are known to share."""
        from ablationlab.records.analysis import LedgerInput

        ledger = self.analysis.ledger if self.analysis is not None else None
        shared = () if ledger is None else ledger.shared
        return tuple(name for name in (LedgerInput.ORDER, LedgerInput.START) if name in shared)

    @property
    def name(self) -> str:
        if self.plan is not None:
            return self.plan.study.name
        return self.analysis.study if self.analysis is not None else self.folder.name

    @property
    def question(self) -> str:
        if self.plan is not None:
            return self.plan.study.question
        return self.analysis.question if self.analysis is not None else ""

    @property
    def baseline(self) -> str:
        """The variant that the others are compared with."""
        if self.plan is not None:
            return self.plan.study.baseline
        return self.analysis.baseline if self.analysis is not None else ""

    @property
    def variants(self) -> tuple[str, ...]:
        """Every variant, the baseline first, then in the study's order; colours go by this order."""
        if self.plan is not None:
            names = self.plan.study.variants
        else:
            names = self.analysis.variants if self.analysis is not None else ()
        return tuple(dict.fromkeys((self.baseline, *names)) if self.baseline in names else names)

    @cached_property
    def regimes(self) -> tuple[str, ...]:
        """Every regime that has a run."""
        if self.analysis is not None:
            return self.analysis.regimes
        return tuple(dict.fromkeys(run.regime for run in self.runs))

    @property
    def deciding_first(self) -> tuple[str, ...]:
        """Every regime, those first in which a comparison of the primary metric was registered."""
        compared = self.analysis.comparisons if self.analysis is not None else ()
        registered = {c.regime for c in compared if c.label == "registered" and c.metric == self.primary}
        return tuple(sorted(self.regimes, key=lambda regime: regime not in registered))

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
        criteria = self.plan.study.criteria if self.plan is not None else ()
        asked = primary_criterion(criteria)
        return None if asked is None else asked.metric

    @property
    def interim(self) -> bool:
        """Whether a planned run has not ended, or could not be read: nothing is inference then."""
        return any(not run.done for run in self.runs)

    @property
    def ended(self) -> int:
        return sum(run.done for run in self.runs)

    @property
    def share_done(self) -> float:
        """Run-steps done, of those planned; a diverged run counts as done."""
        weights = [run.planned.steps or 1 for run in self.runs]
        shares = [1.0 if run.done else run.step / run.steps if run.planned.steps else 0.0 for run in self.runs]
        return sum(weight * share for weight, share in zip(weights, shares, strict=True)) / max(sum(weights), 1)

    @property
    def compared(self) -> list[Run]:
        """The runs that are compared: a sweep's other rates, the gate's runs and those that measure noise are not."""
        return [run for run in self.runs if run.planned.role == "compared"]

    def run(self, run_id: str) -> Run | None:
        return self._by_id.get(run_id)

    @cached_property
    def _by_id(self) -> dict[str, Run]:
        return {run.id: run for run in self.runs}

    def run_of(self, variant: str, regime: str, seed: Seed) -> Run | None:
        """The run of one cell of the study; None where there is none, or a sweep has several."""
        cell = self._cells.get((variant, regime, seed), [])
        return cell[0] if len(cell) == 1 else None

    @cached_property
    def _cells(self) -> dict[tuple[str, str, Seed], list[Run]]:
        return grouped(((run.variant, run.regime, run.seed), run) for run in self.runs if run.planned.role != "noise")

    def comparison(self, comparison_id: str) -> Comparison | None:
        return self._comparisons.get(comparison_id)

    @cached_property
    def _comparisons(self) -> dict[str, Comparison]:
        return {} if self.analysis is None else {comparison.id: comparison for comparison in self.analysis.comparisons}

    def contrasts(self) -> tuple[tuple[str, str], ...]:
        """(variant, reference) as compared: every variant against the baseline first."""
        if self.analysis is not None:
            pairs = dict.fromkeys((c.variant, c.reference) for c in self.analysis.comparisons)
            return tuple(sorted(pairs, key=lambda pair: pair[1] != self.baseline))
        return tuple((variant, self.baseline) for variant in self.variants if variant != self.baseline)

    def changed(self, **values: Any) -> Self:
        """A copy with *values* in the place of what is on disk."""
        return _changed(self, values)


#: What follows from the rest, and is computed again in a changed copy.
_DERIVED = ("state", "checked", "metrics", "regimes", "seeds", "_by_id", "_cells", "_comparisons")
_Object = TypeVar("_Object", bound=Run | Results)


def _changed(given: _Object, values: Mapping[str, Any]) -> _Object:
    copy = dataclasses.replace(given)
    again = (*_DERIVED, *(("stale",) if "analysis" in values else ()))
    copy.__dict__.update({name: value for name, value in given.__dict__.items() if name not in again})
    copy.__dict__.update(values)
    return copy


def not_kept(runs: Iterable[Run]) -> dict[str, list[str]]:
    """What runs that have ended left out to save room: files and folders, by their names, with the ids of the runs."""
    sealed = (
        (run, sorted({name.partition("/")[0] for name in run.seal.files})) for run in runs if run.seal is not None
    )
    return dict(
        sorted(grouped((kind, run.id) for run, kinds in sealed for kind in kinds if run.left_out(kind)).items())
    )


def without_weights(runs: Iterable[Run]) -> list[Run]:
    """Runs that can be scored but for their weights, which were left out. Those of a sweep alone are never scored."""
    trained = [run for run in runs if run.state == "finished" and run.planned.is_scored]
    return [run for run in trained if run.left_out("checkpoints")]


def no_weights(first: RunFolder, *others: RunFolder) -> RecordError:
    """What to say of runs whose weights were left out."""
    names = first.path.name + (f" and {len(others)} more" if others else "")
    again = "move the folders of these runs away, and `ablationlab run` trains them again"
    if not first.metrics.exists():
        again = "train the study again with `ablationlab run --out`"
    return RecordError(
        f"the weights of {names} are not kept: there is no {first.checkpoints}. Scores that were made with them stay, and "
        "`ablationlab analyze` and `ablationlab report` use them. To score or export these runs, restore that folder, or "
        f"{again}"
    )


def read_runs(plan: Plan, folder: ResultsFolder, reader: Reader | None = None) -> tuple[Run, ...]:
    """The runs of a plan, in its order; strict unless a *reader* says otherwise."""
    reader = reader or Reader(folder.path, strict=True)
    kept = {} if reader.cache is None else _unchanged_runs(plan, folder, reader.cache)
    for path in (folder.runs, *(folder.run(planned.id).path for planned in plan.runs if planned.id not in kept)):
        reader.read(path, is_folder)
    stacks = {planned.stack for planned in plan.runs if planned.id not in kept}
    locked = {number for number in stacks if Lock(folder.stack_lock(number)).held_elsewhere()}
    runs = tuple(
        kept.get(planned.id) or Run(planned, folder.run(planned.id), reader, planned.stack in locked)
        for planned in plan.runs
    )
    if reader.cache is not None:
        stamped = {run.folder.path: (_stamp(str(run.folder.path)), run) for run in runs if run.id not in kept}
        reader.cache.update({(path, "run"): entry for path, entry in stamped.items()})
    return runs


def _unchanged_runs(plan: Plan, folder: ResultsFolder, cache: Cache) -> dict[str, Run]:
    """Runs of an earlier opening that had ended, were whole, and whose files have not changed since."""
    kept = {}
    for planned in plan.runs:
        before, run = cache.get((inside(folder.runs, planned.id), "run"), ((), None))
        if run is None or run.planned is not planned or not (run.done and run.checked):
            continue
        if before == _stamp(str(run.folder.path)):
            kept[planned.id] = run
    return kept


def _stamp(folder: str) -> tuple[int, ...]:
    """The stamp of every file of a run that `Run.checked` reads; empty while it has no result."""
    found: list[int] = []
    for name in _CHECKED:
        try:
            found += stamp(os.stat(f"{folder}/{name}"))  # noqa: PTH116 (ten thousand runs at every poll)
        except OSError:
            if name == _CHECKED[0]:
                return ()
            found.append(-1)
    return tuple(found)


_CHECKED = ("result.json", "run.json", "seal.json", "metrics.jsonl", EVALUATION, SAMPLES, "probes.parquet")
#: Files of a run that are read, whether or not its seal names them.
RUN_FILES = frozenset({*_CHECKED, "probes.jsonl"})


def _parquet(path: Path) -> pd.DataFrame | None:
    import pandas as pd

    if not path.exists():
        return None
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot be read as Parquet: {error}", path, MEND_RUN) from error


def _why_stale(results: Results) -> Iterator[Stale]:
    plan, analysis, verdict = results.plan, results.analysis, results.verdict
    if analysis is None:
        return
    if verdict is not None and verdict.analysis_hash != analysis.sealed().seal:
        yield Stale("other-analysis", "verdict.json")
    if plan is None or analysis.source != "records":
        return
    if analysis.source_hash != plan.plan_hash:
        yield Stale("other-plan", "analysis.json")
        return
    now = results.inputs
    yield from (Stale("new", file) for file in now if file not in analysis.inputs)
    unread = {f"runs/{run.id}/seal.json": run for run in results.runs if run.state == "damaged"}
    found: dict[str, None] = {}
    for file in analysis.inputs:
        if file in unread:
            folder = unread[file].folder
            lost = (folder.path.parent, folder.path, folder.seal, folder.record, folder.result)
            found |= dict.fromkeys(path.relative_to(results.folder).as_posix() for path in lost)
        elif file not in now and os.path.lexists(results.folder / file):
            found[file] = None
        elif file not in now:
            yield Stale("gone", file)
    damages = [damage for name in found if (damage := results.reader.damage.get(name)) is not None]
    yield from (Stale("damaged", damage.file, damage.text) for damage in damages)
    both = [file for file in now if file in analysis.inputs]
    yield from (Stale("changed", file) for file in both if now[file] != analysis.inputs[file])
