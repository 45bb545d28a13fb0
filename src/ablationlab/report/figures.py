"""Every figure of a study, by section of the page, and as files for the paper and the README."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ablationlab.report.charts import (
    curves,
    diagnostics,
    evaluation,
    factors,
    paired,
    power,
    stability,
    sweeps,
    tradeoff,
)
from ablationlab.report.charts.theme import Figure
from ablationlab.report.convert import converting

if TYPE_CHECKING:
    from ablationlab.records.results import Results

Draw = Callable[["Results"], tuple[Figure, ...]]

FORMATS = ("pdf", "svg", "png")
WIDTH = 420

#: Section of the page -> what is drawn in it, in this order.
SECTIONS: Mapping[str, tuple[Draw, ...]] = {
    "tradeoff": (tradeoff.tradeoff,),
    "paired": (factors.interaction, paired.differences, paired.slopes),
    "curves": (curves.curves,),
    "stability": (
        stability.spikes,
        stability.ends,
        stability.survival,
        sweeps.sweep_curves,
        sweeps.sensitivity,
        sweeps.divergence_map,
    ),
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


def draw_figures(results: Results) -> Figures:
    """Draw whatever the results allow."""
    drawn = {name: tuple(figure for draw in draws for figure in draw(results)) for name, draws in SECTIONS.items()}
    drawn["diagnostics"], failures = diagnostics.diagnostics(results)
    return Figures(drawn, failures)


def saving(figures: Figures, folder: Path, say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Write every figure as ``folder/<key>.<format>`` (light ground) in workers, while the block runs.

    A figure whose SVG is there unchanged is left as it is: the same records leave the same bytes. *say* hears
    which could not be drawn.
    """
    return converting({figure.key: figure.spec(width=WIDTH) for figure in figures.every()}, folder, FORMATS, say)
