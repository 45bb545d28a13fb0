"""What a report is made from: everything a results folder holds, in memory; what is missing is absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ablationlab.records.analysis import Analysis, Comparison, Seed
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.replication import Replication
from ablationlab.records.run import Result, RunRecord
from ablationlab.records.verdict import Verdict

FloatArray = NDArray[np.float64]
State = Literal["waiting", "started", "running", "finished", "diverged", "damaged"]
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
            return self.plan.study.name
        return self.analysis.study if self.analysis is not None else self.folder.name

    @property
    def question(self) -> str:
        """The question the study asks."""
        if self.plan is not None:
            return self.plan.study.question
        return self.analysis.question if self.analysis is not None else ""

    @property
    def baseline(self) -> str:
        """The variant that the others are held against."""
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
        return next((criterion.metric for criterion in criteria if criterion.role == "primary"), None)

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

    def comparison(self, comparison_id: str) -> Comparison | None:
        """The comparison of that id."""
        return self._comparisons.get(comparison_id)

    @cached_property
    def _comparisons(self) -> dict[str, Comparison]:
        return {} if self.analysis is None else {found.id: found for found in self.analysis.comparisons}

    def contrasts(self) -> tuple[tuple[str, str], ...]:
        """(variant, reference) as compared: every variant against the baseline first."""
        if self.analysis is not None:
            found = dict.fromkeys((c.variant, c.reference) for c in self.analysis.comparisons)
            return tuple(sorted(found, key=lambda pair: pair[1] != self.baseline))
        return tuple((variant, self.baseline) for variant in self.variants if variant != self.baseline)
