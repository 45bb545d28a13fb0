"""The whole analysis of a dataset: analysis.json."""

from __future__ import annotations

from ablationlab.analysis.comparisons import RESAMPLES, compare_all
from ablationlab.analysis.dataset import Dataset
from ablationlab.analysis.interactions import interactions
from ablationlab.analysis.looks import look_result
from ablationlab.analysis.power import power_of
from ablationlab.analysis.stability import stability
from ablationlab.records.analysis import Analysis
from ablationlab.records.settings import SWEEP, TUNED


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
