"""The figures of the paper: the page's charts, drawn to the width of a column so that their text can be read."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablationlab.records.results import Results
from ablationlab.report.convert import NOT_DRAWN, PROCESSES, not_drawn, svg_of

if TYPE_CHECKING:
    from ablationlab.report.charts import Figure
    from ablationlab.report.figures import Figures

#: Width of a column in CSS pixels: (210 mm − 2 · 17.5 mm − 6.5 mm) / 2 at 96 dots per inch.
COLUMN = 318
FACE = "Libertinus Serif, Liberation Serif, Times New Roman, serif"
#: Names of arms side by side above a chart.
LEGEND_COLUMNS = 3


@dataclass(frozen=True)
class Kind:
    """Charts of the page whose key begins with *start*: at most *most* of them, in this section of the paper."""

    key: str
    start: str
    section: str
    most: int = 1
    height: int = 200
    only_unstable: bool = False  # where no run was unstable, the chart shows nothing but dots at rest


KINDS = (
    Kind("paired", "paired-", "results", height=150),
    Kind("curve-loss", "curve-loss", "results", most=2, height=145),
    Kind("curve-gap", "curve-gap", "results", most=2, height=145),
    Kind("tradeoff", "tradeoff", "stability", height=180),
    Kind("sweep-curves", "sweep-curves", "stability"),
    Kind("sweep-sensitivity", "sweep-sensitivity", "stability"),
    Kind("residual-depth", "probe-residual-depth", "diagnostics", height=150),
    Kind("tasks", "tasks", "evaluation", height=225),
    Kind("reliability", "reliability", "evaluation", height=225),
    Kind("spikes", "spikes", "stability", only_unstable=True),
)


@dataclass(frozen=True)
class Picture:
    """One figure; *kind* is what the template's words go by, *caption* the page's."""

    key: str
    kind: str
    section: str
    title: str
    caption: str
    alt: str
    svg: str


def pictures(results: Results, figures: Figures | None = None, say: Callable[[str], None] = print) -> list[Picture]:
    """Those that there are data for and that can be drawn, in the order of the paper; *figures* spares making them again."""
    from ablationlab.report.figures import draw_figures

    drawn = (figures or draw_figures(results)).every()
    stability = results.analysis.stability if results.analysis is not None else None
    unstable = stability is not None and any(arm.unstable for arm in stability.arms)
    chosen = [
        (kind, figure)
        for kind in KINDS
        if unstable or not kind.only_unstable
        for figure in [figure for figure in drawn if figure.key.startswith(kind.start)][: kind.most]
    ]
    with ThreadPoolExecutor(PROCESSES) as drawing:  # each waits for a worker
        svgs = [drawing.submit(column_svg, figure, kind.height) for kind, figure in chosen]
    made, failed = [], {}
    for (kind, figure), svg in zip(chosen, svgs, strict=True):
        try:
            content = svg.result()
        except NOT_DRAWN as error:
            failed[figure.key] = error
            continue
        made.append(
            Picture(
                key=re.sub(r"[^a-z0-9-]", "-", figure.key.lower()),
                kind=kind.key,
                section=kind.section,
                title=figure.title.rstrip("."),
                caption=figure.caption,
                alt=figure.alt,
                svg=content,
            )
        )
    for note in not_drawn(failed):
        say(f"{note} (paper)")
    return made


def _plain(spec: dict[str, Any]) -> dict[str, Any]:
    """Without the words in a chart's corners, for which a column is too narrow."""
    layers = [layer for layer in spec.get("layer", ()) if not _is_remark(layer.get("mark"))]
    return {**spec, "layer": layers} if layers else spec


def _is_remark(mark: object) -> bool:
    return isinstance(mark, dict) and mark.get("type") == "text" and mark.get("fontStyle") == "italic"


def column_svg(figure: Figure, height: int) -> str:
    """The chart as wide as a column, axes and legend included; the second drawing knows how wide those are.

    SVG, since its bytes repeat where those of the converter's PDFs do not; its text is set in the paper's own face.
    """
    svg, width = "", COLUMN - 60
    for _ in range(2):
        spec = {**_plain(figure.spec(width=max(190, width))), "height": min(height, figure.height)}
        config = spec.get("config", {})
        spec["config"] = {**config, "font": FACE, "legend": {**config.get("legend", {}), "columns": LEGEND_COLUMNS}}
        svg = svg_of(spec)
        found = re.search(r'<svg[^>]*\swidth="([\d.]+)"', svg)
        if found is None or abs(float(found[1]) - COLUMN) < 2:
            break
        width -= round(float(found[1]) - COLUMN)
    return svg
