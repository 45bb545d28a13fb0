"""The figures of the paper: the page's charts, drawn to the width of a column so that their text can be read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablationlab.report.material import Material

if TYPE_CHECKING:
    from ablationlab.report.charts.theme import Figure
    from ablationlab.report.figures import Figures

#: Width of a column in CSS pixels: (210 mm − 2 · 17.5 mm − 6.5 mm) / 2 at 96 dots an inch.
COLUMN = 318
HIGHEST = 225
FACE = "Libertinus Serif, Liberation Serif, Times New Roman, serif"
#: Names of arms side by side above a chart.
LEGEND_COLUMNS = 3
#: Figures of one kind, where there is one for each regime.
MOST_OF_A_KIND = 2

_BAND = "Line: mean over seeds; band: their range, lowest to highest, which is no interval."


@dataclass(frozen=True)
class Kind:
    """Charts whose key begins so, where they go in the paper, and a caption of our own where the page's is of no "
    "use."""

    start: str
    section: str
    caption: str = ""
    most: int = MOST_OF_A_KIND
    height: int = 200


KINDS = (
    Kind("paired-", "results", most=1, height=150),
    Kind("curve-loss", "results", _BAND, height=145),
    Kind(
        "curve-gap",
        "results",
        f"Both runs of a pair see the same batch at the same step, so the noise of batches cancels. {_BAND}",
        height=145,
    ),
    Kind("tradeoff", "stability", most=1, height=180),
    Kind("sweep-curves", "stability", most=1),
    Kind("sweep-sensitivity", "stability", most=1),
    Kind(
        "probe-residual-depth",
        "diagnostics",
        "Mean norm of the residual stream over tokens. Line: mean over seeds; marks: seeds.",
        most=1,
        height=150,
    ),
    Kind("tasks", "evaluation", most=1, height=HIGHEST),
    Kind("reliability", "evaluation", most=1, height=HIGHEST),
)
#: Drawn only where a run was unstable: otherwise they show nothing but dots at rest.
UNSTABLE = Kind("spikes", "stability", most=1)


@dataclass(frozen=True)
class Picture:
    """One figure: its file, its place, its words."""

    key: str
    section: str
    title: str
    caption: str
    svg: str
    wide: bool = False
    alt: str = ""

    @property
    def path(self) -> str:
        """Where the file goes, relative to the paper."""
        return f"figures/paper-{self.key}.svg"

    @property
    def label(self) -> str:
        """What the text refers to it by."""
        return f"fig-{self.key}"


def pictures(material: Material, figures: Figures | None = None) -> list[Picture]:
    """Those that there are data for, in the order of the paper; *figures* spares drawing them again."""
    from ablationlab.report.figures import draw_figures

    drawn = figures or draw_figures(material)
    stability = material.analysis.stability if material.analysis is not None else None
    unstable = stability is not None and any(arm.unstable for arm in stability.arms)
    kinds = (*KINDS, UNSTABLE) if unstable else KINDS
    return [
        Picture(
            key=re.sub(r"[^a-z0-9-]", "-", figure.key.lower()),
            section=kind.section,
            title=figure.title,
            caption=f"{figure.title.rstrip('.')}. {kind.caption or figure.caption}",
            svg=column_svg(figure, kind.height),
            alt=figure.alt,
        )
        for kind in kinds
        for figure in _of(kind, drawn.every())
    ]


def _of(kind: Kind, figures: Iterable[Figure]) -> list[Figure]:
    return [figure for figure in figures if figure.key.startswith(kind.start)][: kind.most]


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
    import vl_convert

    svg, width = "", COLUMN - 60
    for _ in range(2):
        spec = {**_plain(figure.spec(width=max(190, width))), "height": min(height, figure.height)}
        config = spec.get("config", {})
        spec["config"] = {**config, "font": FACE, "legend": {**config.get("legend", {}), "columns": LEGEND_COLUMNS}}
        svg = str(vl_convert.vegalite_to_svg(spec))
        found = re.search(r'<svg[^>]*\swidth="([\d.]+)"', svg)
        if found is None or abs(float(found[1]) - COLUMN) < 2:
            break
        width -= round(float(found[1]) - COLUMN)
    return svg
