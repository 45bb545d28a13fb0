"""Records, or a table of runs, to comparisons: analysis.json. No torch.

:func:`analyze` takes material from :func:`read_results` (a results folder) or :func:`read_table` (a CSV file).
"""

from __future__ import annotations

from ablationlab.analysis.arms import stability
from ablationlab.analysis.comparisons import RESAMPLES, comparisons, corrected
from ablationlab.analysis.from_csv import TableOptions, read_table
from ablationlab.analysis.from_records import read_results
from ablationlab.analysis.interactions import interactions
from ablationlab.analysis.material import Material
from ablationlab.analysis.power import power_of
from ablationlab.analysis.questions import questions
from ablationlab.records.analysis import Analysis, Comparison, SweepAnalysis
from ablationlab.records.settings import SWEEP, TUNED

__all__ = ["Material", "TableOptions", "analyze", "read_results", "read_table"]


def analyze(material: Material) -> Analysis:
    """Every comparison, corrected and labelled; the same material gives the same bytes."""
    found, families = corrected(comparisons(material, questions(material)))
    named = {one.metric for one in found} | {str(criterion["metric"]) for criterion in material.criteria}
    return Analysis(
        study=material.name,
        question=material.question,
        source=material.source,
        source_hash=material.source_hash,
        criteria_hash=material.criteria_hash,
        baseline=material.baseline,
        variants=material.variants,
        regimes=material.regimes,
        seeds=material.seeds,
        criteria=material.criteria,
        primary=material.primary,
        tie_breakers=material.tie_breakers,
        resamples=RESAMPLES,
        metrics={name: metric for name, metric in material.metrics.items() if name in named},
        comparisons=tuple(found),
        families=tuple(families),
        stability=stability(material),
        sweep=_sweep(material, found),
        interactions=interactions(material),
        power=power_of(found, material.primary),
        ledger=material.ledger,
        deviations=material.deviations,
        evaluation=material.evaluation,
    )


def _sweep(material: Material, found: list[Comparison]) -> SweepAnalysis | None:
    """The sweep with the ids of what it compares."""
    ids = tuple(one.id for one in found if one.regime in (SWEEP, TUNED))
    return None if material.sweep is None else material.sweep.model_copy(update={"comparisons": ids})
