"""Arms with their means over seeds, or their medians where a few runs make the mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median, stdev

from ablationlab.analysis.wording import arm_text, name_of
from ablationlab.core.format import DASH, mean_sd, number
from ablationlab.records.analysis import MACRO, Analysis, Comparison, Seed
from ablationlab.records.settings import TUNED
from ablationlab.report.naming import printed_unit
from ablationlab.report.table import Cell, Cells, Column, Table
from ablationlab.report.tables.setup import regime_column


def arm_mean(analysis: Analysis, comparison: Comparison, arm: str) -> tuple[float | None, float | None, int]:
    """Mean, SD and n of an arm; where pairs are missing, over all its runs that have a value, in a pair or not."""
    if _incomplete(analysis, comparison):
        values = _values(analysis, comparison, arm)
        return fmean(values) if values else None, stdev(values) if len(values) > 1 else None, len(values)
    of_variant, of_reference = comparison.arm_sizes
    if arm == comparison.reference:
        return comparison.reference_mean, comparison.reference_sd, of_reference
    return comparison.variant_mean, comparison.variant_sd, of_variant


def arm_words(analysis: Analysis, comparison: Comparison, arm: str, *, beside: Iterable[Comparison] = ()) -> str:
    """``mean ± SD`` of an arm; its median where unstable runs make the mean, or that of an arm *beside* it."""
    medians = any(other.unstable_means for other in (comparison, *beside))
    if medians and _incomplete(analysis, comparison) and (values := _values(analysis, comparison, arm)):
        return f"median {number(median(values))}"
    if medians or arm in comparison.skewed:
        return arm_text(comparison, arm, as_median=medians)
    mean, sd, _ = arm_mean(analysis, comparison, arm)
    return mean_sd(mean, sd)


def median_note(comparisons: Sequence[Comparison]) -> str:
    """What a median stands for in a table, where one does."""
    arms = [(comparison, arm) for comparison in comparisons for arm in (comparison.variant, comparison.reference)]
    skewed = " Where a few runs make a mean more than ten times its median, the median is shown."
    skewed = skewed if any(arm[1] in arm[0].skewed and arm[1] not in arm[0].unstable_means for arm in arms) else ""
    if not any(comparison.unstable_means for comparison in comparisons):
        return skewed
    differs = " No difference of such means is shown; it is tested as registered, and analysis.json has it."
    return (
        " Medians: unstable runs dominate the mean of one of these arms (its SD is above its median, and none of its stable "
        f"runs reaches the mean).{differs if any(comparison.told_by_medians for comparison in comparisons) else ''}{skewed}"
    )


def _incomplete(analysis: Analysis, comparison: Comparison) -> bool:
    """Whether an arm may have more runs than pairs; at fitted rates, no run has the value that is compared."""
    fitted = analysis.sweep is not None and analysis.sweep.tuned_at == "fitted-minima" and comparison.regime == TUNED
    return comparison.design == "paired" and comparison.n < comparison.planned_pairs and not fitted


def _values(analysis: Analysis, comparison: Comparison, arm: str) -> list[float]:
    """The values of an arm's runs: from every pair that they are in, and the loss of those that are in none."""
    found: dict[Seed, float] = {}
    if comparison.metric == "validation_loss" and analysis.stability is not None:
        here = (run for run in analysis.stability.runs if (run.variant, run.regime) == (arm, comparison.regime))
        found = {run.seed: run.loss for run in here if run.state == "finished" and run.loss is not None}
    same = (comparison.metric, comparison.task, comparison.regime)
    for other in analysis.comparisons:
        if (other.metric, other.task, other.regime) == same and arm in (other.variant, other.reference):
            found |= {pair.seed: pair.variant if arm == other.variant else pair.reference for pair in other.pairs}
    return list(found.values())


def arm_table(analysis: Analysis) -> Table:
    """Mean and SD over seeds of every metric for every arm that is compared with the baseline."""
    baseline = analysis.baseline
    arms: dict[tuple[str, str], dict[str, Comparison]] = {}
    for comparison in analysis.comparisons:
        if comparison.reference != baseline or comparison.task not in (None, MACRO):
            continue
        row = arms.setdefault((comparison.metric, comparison.regime), {})
        row[comparison.variant] = comparison
        if baseline not in row or row[baseline].n < comparison.n:
            row[baseline] = comparison
    names = [
        name for name in dict.fromkeys((baseline, *analysis.variants)) if any(name in row for row in arms.values())
    ]
    rows: list[Cells] = []
    for (metric, regime), row in arms.items():
        first = next(iter(row.values()))
        unit = first.unit
        cells: dict[Column, Cell] = {
            Column("metric", "Metric"): Cell.of(metric, name_of(first), note=printed_unit(unit)),
            regime_column(analysis): Cell.name(regime),
            Column("unit", printed=False): Cell.of(unit),
        }
        for name in names:
            mean, sd, n = arm_mean(analysis, row[name], name) if name in row else (None, None, None)
            cells |= {
                Column(f"{name}_n", printed=False): Cell.of(n),
                Column(f"{name}_mean", name, "right", name=True): Cell.of(
                    mean, arm_words(analysis, row[name], name, beside=row.values()) if name in row else DASH
                ),
                Column(f"{name}_sd", printed=False): Cell.of(sd),
            }
        rows.append(cells)
    shown = [comparison for row in arms.values() for comparison in row.values()]
    return Table.of("arms", "Mean and standard deviation over seeds, per arm.", rows, median_note(shown).strip())
