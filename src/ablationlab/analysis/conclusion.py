"""The one end of every analysis: from a dataset to analysis.json and verdict.json."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

from ablationlab.analysis.comparisons import RESAMPLES, compare_all
from ablationlab.analysis.dataset import Dataset
from ablationlab.analysis.diagnostics import metric_diagnostics
from ablationlab.analysis.interactions import interactions, with_simple_effects
from ablationlab.analysis.looks import look_result
from ablationlab.analysis.medians import with_median
from ablationlab.analysis.stability import stability
from ablationlab.analysis.study_power import power_of, with_seeds_to_keep
from ablationlab.analysis.verdict import decide
from ablationlab.records.analysis import Analysis
from ablationlab.records.courses import COURSES, Courses
from ablationlab.records.results import Results
from ablationlab.records.seal import AlteredError
from ablationlab.records.settings import SWEEP, TUNED
from ablationlab.records.table_curves import TableRun, write_table_curves
from ablationlab.records.verdict import Verdict


def analyze(dataset: Dataset) -> Analysis:
    """Every comparison, corrected and labelled; the same dataset gives the same bytes."""
    comparisons, families = compare_all(dataset)
    used = {comparison.metric for comparison in comparisons} | {criterion.metric for criterion in dataset.criteria}
    swept = tuple(comparison.id for comparison in comparisons if comparison.regime in (SWEEP, TUNED))
    analysis = Analysis(
        study=dataset.name,
        question=dataset.question,
        source=dataset.source,
        source_hash=dataset.source_hash,
        criteria_hash=dataset.criteria_hash,
        baseline=dataset.baseline,
        variants=dataset.variants,
        regimes=dataset.regimes,
        seeds=dataset.seeds,
        criteria=dataset.criteria if dataset.source == "records" else (),
        primary=dataset.primary,
        tie_breakers=dataset.tie_breakers,
        hypotheses=dataset.hypotheses,
        metrics={name: metric for name, metric in dataset.metrics.items() if name in used},
        resamples=RESAMPLES,
        comparisons=tuple(c if dataset.brief else with_median(with_seeds_to_keep(c)) for c in comparisons),
        families=tuple(families),
        stability=stability(dataset, comparisons),
        sweep=dataset.sweep.model_copy(update={"comparisons": swept}) if dataset.sweep is not None else None,
        interactions=with_simple_effects(interactions(dataset), comparisons, dataset.baseline),
        readings=dataset.readings,
        noise=dataset.noise,
        fair=dataset.fair,
        about=dict(dataset.about),
        power=() if dataset.brief else power_of(comparisons, dataset),
        ledger=dataset.ledger,
        deviations=dataset.deviations,
        evaluation=dataset.evaluation,
        look=look_result(dataset, comparisons),
        again=dataset.again,
        budget_unknown=dataset.budget_unknown,
        reused=dict(dataset.reused),
        inputs=dict(dataset.inputs),
        altered=dict(dataset.altered),
    )
    return analysis if dataset.brief else analysis.sealed()


@dataclass(frozen=True)
class Conclusion:
    """What a dataset gives: its comparisons, the verdict of the rules, the course of its runs, and a table's curves."""

    analysis: Analysis
    verdict: Verdict
    courses: Courses | None = None
    curves: tuple[TableRun, ...] = ()

    def write(self, folder: Path) -> None:
        """A user's table brings its curves, which no run's folder has."""
        self.analysis.replace(folder / "analysis.json")
        self.verdict.replace(folder / "verdict.json")
        if self.courses is not None:
            self.courses.replace(folder / COURSES)
        if self.analysis.source == "table":
            write_table_curves(self.curves, folder)


def conclude(dataset: Dataset) -> Conclusion:
    """Analyze and decide; writes nothing."""
    analysis = analyze(dataset)
    courses = Courses(
        analysis_hash=analysis.seal,
        curves=dataset.loss_curves,
        diagnostics=dataset.diagnostics or metric_diagnostics(analysis),
    )
    return Conclusion(analysis, decide(analysis), courses, dataset.curves)


def decided_again(results: Results) -> Results:
    """The results for those who show their verdict: one that the rules do not give for the analysis is damaged.

    Its own hash may hold, where it was computed anew after an edit.
    """
    analysis, verdict, path = results.analysis, results.verdict, results.folder / "verdict.json"
    if analysis is None or verdict is None or verdict.analysis_hash != analysis.seal:
        return results

    def follows(path: Path) -> bool:
        if _alike(_content(decide(analysis)), _content(verdict)):
            return True
        raise AlteredError("is not what the rules give for analysis.json", path, Verdict.MEND)

    holds = results.reader.read(path, follows, beside=[results.folder / "analysis.json"])
    return results if holds else results.changed(verdict=None)


def _content(verdict: Verdict) -> Any:
    return verdict.model_dump(mode="json", exclude={"seal"})


def _alike(ours: Any, theirs: Any) -> bool:
    """Whether two decisions are the same; numbers may differ in their last bits, which another processor rounds otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_alike(value, theirs[key]) for key, value in ours.items())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_alike, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12)
    return bool(ours == theirs)
