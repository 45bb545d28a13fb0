"""Every figure of a study, by section of the page, and as files for the paper and the README."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ablationlab.report.charts import curves, diagnostics, evaluation, paired, power, stability, sweeps, tradeoff
from ablationlab.report.charts.theme import Figure
from ablationlab.storage import replace

if TYPE_CHECKING:
    from ablationlab.report.material import Material

Draw = Callable[["Material"], tuple[Figure, ...]]

#: Section of the page -> what is drawn in it, in this order.
SECTIONS: Mapping[str, tuple[Draw, ...]] = {
    "tradeoff": (tradeoff.tradeoff,),
    "paired": (paired.differences, paired.slopes),
    "curves": (curves.curves,),
    "stability": (stability.spikes, stability.ends, sweeps.sweep_curves, sweeps.sensitivity, sweeps.divergence_map),
    "evaluation": (evaluation.tasks, evaluation.positions),
    "calibration": (evaluation.reliability, evaluation.temperature),
    "power": (power.power,),
}


@dataclass(frozen=True)
class Figures:
    """The figures of a study by section; ``probe_failures`` is what went wrong while probing, by probe."""

    by_section: Mapping[str, tuple[Figure, ...]]
    probe_failures: Mapping[str, list[str]]

    def every(self) -> tuple[Figure, ...]:
        """All of them, in the page's order."""
        return tuple(figure for figures in self.by_section.values() for figure in figures)

    def get(self, key: str) -> Figure | None:
        """The figure of that key, where there is one."""
        return next((figure for figure in self.every() if figure.key == key), None)


def draw_figures(material: Material) -> Figures:
    """Draw whatever the material allows."""
    found = {name: tuple(figure for draw in draws for figure in draw(material)) for name, draws in SECTIONS.items()}
    found["diagnostics"], failures = diagnostics.diagnostics(material)
    return Figures(found, failures)


def save_figures(
    material: Material,
    folder: Path,
    *,
    figures: Figures | None = None,
    formats: Iterable[str] = ("pdf", "svg", "png"),
    width: int = 420,
) -> dict[str, Figure]:
    """Write every figure as ``folder/<key>.<format>`` (light ground) and give them back by key.

    A figure whose SVG is there unchanged is left as it is: the same records leave the same bytes.
    """
    import vl_convert

    drawn = figures or draw_figures(material)
    chosen = tuple(formats)
    for figure in drawn.every():
        # One trip through Vega gives the SVG, from which the other formats are made.
        svg = vl_convert.vegalite_to_svg(figure.spec(width=width))
        if _there(folder, figure.key, svg, chosen):
            continue
        for kind in chosen:
            if kind == "svg":
                data = svg.encode()
            elif kind == "pdf":
                data = vl_convert.svg_to_pdf(svg)
            else:
                data = vl_convert.svg_to_png(svg, scale=2)
            replace(folder / f"{figure.key}.{kind}", data)
    return {figure.key: figure for figure in drawn.every()}


def _there(folder: Path, key: str, svg: str, formats: Iterable[str]) -> bool:
    paths = [folder / f"{key}.{kind}" for kind in formats]
    drawn = folder / f"{key}.svg"
    return drawn in paths and all(path.is_file() for path in paths) and drawn.read_bytes() == svg.encode()
