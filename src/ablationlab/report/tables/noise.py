"""Where the noise of runs comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ablationlab.core.format import DASH, number, percent
from ablationlab.records.analysis import NoiseSources
from ablationlab.records.metrics import metric_name
from ablationlab.report.table import Cell, Cells, Column, Table

#: Sources of variance in words.
NOISE: Final = {"init": "initial weights", "data": "data order", "dropout": "dropout", "rest": "all else"}


def noise_table(noise: Sequence[NoiseSources], metric: str | None = None) -> Table | None:
    """A row per metric and arm or difference: the SD that each source makes, its interval and its share of the variance.

    *metric*: of that one alone.
    """
    shown = [sources for sources in noise if metric in (None, sources.metric)]
    if not shown:
        return None
    names = list(dict.fromkeys(part.source for sources in shown for part in sources.components))
    gaps = any(sources.missing for sources in shown)
    rows: list[Cells] = []
    for sources in shown:
        what = sources.variant if sources.reference is None else f"{sources.variant} − {sources.reference}"
        scale = " (log)" if sources.transform == "log" else ""
        row: dict[Column, Cell] = {
            Column("metric", "Metric"): Cell.name(metric_name(sources.metric) + scale),
            Column("of", "Of"): Cell.of(what),
            Column("n", "Cells", "right"): Cell.of(sources.runs),
        }
        parts = {part.source: part for part in sources.components}
        for name in names:
            part = parts.get(name)
            reach = f"{number(part.low, 2)} to {number(part.high, 2)}" if part is not None else DASH
            row |= {
                Column(f"{name}_sd", f"SD by {NOISE[name]}", "right"): Cell.of(
                    None if part is None else part.sd, number
                ),
                Column(f"{name}_low", "Interval", "right", below=True): Cell.of(
                    None if part is None else part.low, reach
                ),
                Column(f"{name}_high", printed=False): Cell.of(None if part is None else part.high),
                Column(f"{name}_share", "Share", "right"): Cell.of(None if part is None else part.share, percent),
            }
        rows.append({**row, Column("missing", "Missing", "right", printed=gaps): Cell.of(sources.missing)})
    title = "Where the noise comes from: standard deviations by source, over every combination of seeds"
    return Table.of("noise", title, rows)
