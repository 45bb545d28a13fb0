"""Learning rates: every rate of a sweep, and those that were chosen."""

from __future__ import annotations

from collections.abc import Sequence

from ablationlab.core.format import (
    DASH,
    difference,
    mean_sd,
    number,
    ranges,
    setting,
)
from ablationlab.records.analysis import SweepAnalysis
from ablationlab.records.metrics import metric_name
from ablationlab.report.table import Cell, Cells, Column, Table


def sweep_table(sweep: SweepAnalysis, variants: Sequence[str]) -> Table:
    """A row per rate, a column per variant: mean counted loss, and how many runs were unstable."""
    curves = {(curve.variant, curve.lr): curve for curve in sweep.curves}
    rows = []
    for lr in sweep.rates:
        cells = {Column("lr", "Learning rate", "right"): Cell.of(lr, setting)}
        for variant in variants:
            column, curve = Column(variant, variant, "right", name=True), curves.get((variant, lr))
            if curve is None:  # the variant has rates of its own
                cells[column] = Cell.of(None, DASH)
                continue
            marks = [f"{curve.diverged} diverged"] if curve.diverged else []
            marks += [f"{curve.unstable} unstable"] if curve.unstable > curve.diverged else []
            cells[column] = Cell.of(curve.mean, mean_sd(curve.mean, curve.sd), note=", ".join(marks))
        rows.append(cells)
    seeds = len(sweep.seeds) + (len(sweep.selection_seeds) if sweep.stages == 1 else 0)
    return Table.of("sweep", f"Sweep: {metric_name(sweep.metric)}, {seeds} seeds", rows)


def rate_table(sweep: SweepAnalysis) -> Table:
    """Learning-rate sensitivity and the rate of the sweep that was chosen for every variant."""
    best, select = {chosen.variant: chosen for chosen in sweep.best}, bool(sweep.best)
    if sweep.stages == 2:
        return _found_table(sweep)
    missing = any(chosen.missing for chosen in sweep.best)
    rows: list[Cells] = []
    for summary in sweep.summaries:
        chosen = best.get(summary.variant)
        shown = difference(summary.mean, summary.low, summary.high, sign=False)
        known = chosen is not None and chosen.lr is not None
        edge = "edge" if chosen is not None and chosen.edge and known else ""
        loss = None if chosen is None else chosen.mean_loss
        rows.append(
            {
                Column("variant", "Variant"): Cell.name(summary.variant),
                Column("n", "n", "right"): summary.n,
                Column("sensitivity", "Sensitivity", "right"): Cell.of(summary.mean, shown.delta),
                Column("interval", "Interval", "right", below=True): Cell.of(summary.low, shown.interval),
                Column("lr", "Chosen rate", "right", printed=select): Cell.of(
                    None if chosen is None else chosen.lr, setting, note=edge
                ),
                Column("mean_loss", "Mean loss", "right", printed=select): Cell.of(loss, number(loss, 4)),
                Column("chosen_on", "Chosen on seeds", printed=select): ranges(chosen.chosen_on) if chosen else "",
                Column("judged_on", "Judged on seeds", printed=select): ranges(chosen.judged_on) if chosen else "",
                Column("missing", "No loss at", printed=missing): ", ".join(map(setting, chosen.missing))
                if chosen
                else "",
            }
        )
    chosen_too = ", and the rate of the sweep that was chosen for each variant" if select else ""
    return Table.of("rates", f"Learning-rate sensitivity{chosen_too}.", rows)


def _found_table(sweep: SweepAnalysis) -> Table:
    minima = {tuned.variant: tuned.minimum for tuned in sweep.minima if tuned.minimum is not None}
    rows: list[Cells] = [
        {
            Column("variant", "Variant"): Cell.name(chosen.variant),
            Column("lr", "Rate", "right"): Cell.of(chosen.lr, setting, note="edge" if chosen.edge else ""),
            Column("second", sweep.second or "", "right", printed=sweep.second is not None): Cell.of(
                minima[chosen.variant].second, setting
            ),
            Column("doubt", "Doubt", "right"): Cell.of(minima[chosen.variant].doubt or None, number),
            Column("chosen_on", "Found on seeds"): ranges(chosen.chosen_on),
            Column("judged_on", "Judged on seeds"): ranges(chosen.judged_on),
        }
        for chosen in sweep.best
    ]
    return Table.of("rates", "The rate that two stages found for each variant.", rows)
