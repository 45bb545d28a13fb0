"""The figures of a study for its paper, as files and for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ablationlab.report.charts import curves, diagnostics, evaluation, factors, paired, stability, sweeps, tradeoff
from ablationlab.report.charts.theme import Figure
from ablationlab.report.convert import converting

if TYPE_CHECKING:
    from ablationlab.records.results import Results

FORMATS = ("pdf", "svg", "png")
WIDTH = 420

#: What is drawn, in this order.
DRAWS: tuple[Callable[[Results], tuple[Figure, ...]], ...] = (
    tradeoff.tradeoff,
    factors.interaction,
    paired.differences,
    curves.curves,
    stability.ends,
    stability.survival,
    sweeps.sweep_curves,
    sweeps.divergence_map,
    evaluation.tasks,
    evaluation.reliability,
    diagnostics.diagnostics,
)


@dataclass(frozen=True)
class Figures:
    """The figures of a study."""

    drawn: tuple[Figure, ...]

    def every(self) -> tuple[Figure, ...]:
        """All of them."""
        return self.drawn

    def get(self, key: str) -> Figure | None:
        """The figure of that key, where there is one."""
        return next((figure for figure in self.drawn if figure.key == key), None)


def draw_figures(results: Results) -> Figures:
    """Draw whatever the results allow."""
    return Figures(tuple(figure for draw in DRAWS for figure in draw(results)))


def saving(figures: Figures, folder: Path, say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Write every figure as ``folder/<key>.<format>`` in workers, while the block runs.

    A figure whose SVG is there unchanged is left as it is: the same records leave the same bytes. *say* hears
    which could not be drawn.
    """
    return converting({figure.key: figure.spec(width=WIDTH) for figure in figures.every()}, folder, FORMATS, say)
