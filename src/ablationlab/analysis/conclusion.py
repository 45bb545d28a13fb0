"""The one end of every analysis: from a dataset to analysis.json and verdict.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ablationlab.analysis.comparisons import RESAMPLES, compare_all
from ablationlab.analysis.dataset import Dataset
from ablationlab.analysis.interactions import interactions
from ablationlab.analysis.looks import look_result
from ablationlab.analysis.power import power_of
from ablationlab.analysis.stability import stability
from ablationlab.analysis.verdict import decide
from ablationlab.records.analysis import Analysis
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
        comparisons=tuple(comparisons),
        families=tuple(families),
        stability=stability(dataset, comparisons),
        sweep=dataset.sweep.model_copy(update={"comparisons": swept}) if dataset.sweep is not None else None,
        interactions=interactions(dataset),
        readings=dataset.readings,
        noise=dataset.noise,
        power=() if dataset.brief else power_of(comparisons, dataset.primary),
        ledger=dataset.ledger,
        deviations=dataset.deviations,
        evaluation=dataset.evaluation,
        look=look_result(dataset, comparisons),
        inputs=dict(dataset.inputs),
        altered=dict(dataset.altered),
    )
    return analysis if dataset.brief else analysis.sealed()


@dataclass(frozen=True)
class Conclusion:
    """What a dataset gives: its comparisons, the verdict of the rules, and the curves of a user's table."""

    analysis: Analysis
    verdict: Verdict
    curves: tuple[TableRun, ...] = ()

    def write(self, folder: Path) -> None:
        """A user's table brings its curves, which no run's folder has."""
        self.analysis.replace(folder / "analysis.json")
        self.verdict.replace(folder / "verdict.json")
        if self.analysis.source == "table":
            write_table_curves(self.curves, folder)


def conclude(dataset: Dataset) -> Conclusion:
    """Analyze and decide; writes nothing."""
    analysis = analyze(dataset)
    return Conclusion(analysis, decide(analysis), dataset.curves)
