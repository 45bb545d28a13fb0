"""What the pairs at hand can show, and the seeds that would decide."""

from __future__ import annotations

from ablationlab.analysis import wording
from ablationlab.analysis.wording import name_of as metric_of
from ablationlab.core.format import count, number, percent, setting
from ablationlab.records.analysis import Analysis
from ablationlab.report.effects import TOO_CLOSE
from ablationlab.report.naming import placed, printed_unit
from ablationlab.report.table import Cell, Cells, Column, Table
from ablationlab.report.tables.setup import regime_column


def power_table(analysis: Analysis) -> Table:
    """Power at this number of seeds."""
    comparisons = {comparison.id: comparison for comparison in analysis.comparisons}
    metrics = len({metric_of(comparisons[power.comparison]) for power in analysis.power}) > 1
    rows: list[Cells] = []
    asked = any(power.smallest_effect is not None for power in analysis.power)
    known = [power for power in analysis.power if not comparisons[power.comparison].told_by_medians]
    for power in known:
        comparison = comparisons[power.comparison]
        unit = "log" if comparison.transform == "log" else printed_unit(comparison.unit)
        effect = power.smallest_effect
        reached = effect is not None and power.detectable_80 <= effect
        contrast = Cell.contrast(comparison.variant, comparison.reference)
        rows.append(
            {
                Column("comparison", printed=False): Cell.name(power.comparison),
                Column("metric", "Metric", printed=metrics): Cell.of(comparison.metric, metric_of(comparison)),
                regime_column(analysis): Cell.name(comparison.regime),
                Column("variant", "Contrast"): contrast,
                Column("reference", printed=False): Cell.name(comparison.reference),
                Column("n", "n", "right"): power.n,
                Column("sd", "SD", "right"): Cell.of(power.sd, number),
                Column("detectable_80", "Detectable", "right"): Cell.of(power.detectable_80, number, note=unit),
                Column("alpha", "at level", "right", below=True, prefix="at level"): Cell.of(
                    power.alpha, wording.power_level(power, comparison)
                ),
                Column("limit", "Limited by"): Cell.of(power.limit),
                Column("smallest_effect", "Smallest effect", "right", printed=asked): Cell.of(
                    effect,
                    setting,
                    note="" if effect is None else "within reach" if reached else "out of reach",
                    tone="" if effect is None else "good" if reached else "warn",
                ),
                Column("decided_by", "Seeds to decide", "right"): Cell.of(
                    power.decided_by, count if power.decided_by is not None else TOO_CLOSE
                ),
            }
        )
    title = f"What these pairs see with {percent(0.8)} power, at the observed SD of the differences."
    about = "Seeds to decide: if the effect is as large as seen."
    left_out = [comparisons[p.comparison] for p in analysis.power if p not in known]
    where = placed(analysis.regimes, left_out)
    note = f"Left out, since unstable runs dominate the differences: {where}." if left_out else ""
    return Table.of("power", title, rows, note, about)
