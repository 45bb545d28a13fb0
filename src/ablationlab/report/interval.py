"""The one interval: a line, its estimate and a tick per seed, on a shared axis where better is left.

x is in percent and y in pixels, so that a picture fits any width and its text never stretches. It needs no style sheet:
what is not of a variant's colour is ``currentColor``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ablationlab.core.format import fixed
from ablationlab.report.colours import RING, SHAPES

#: What is left free at either end, in percent.
MARGIN: Final = 2.0
#: What is beyond so many times the usual distance from zero is an arrow.
FAR: Final = 12.0
#: What is around a mark and inside a ring: the ground of the page, which the style sheet of a page knows.
PAPER_COLOUR: Final = "var(--paper,none)"


@dataclass(frozen=True)
class Axis:
    """From *low* to *high*, as shares of the width. An interval that leaves it ends in an arrow."""

    low: float
    high: float

    @classmethod
    def around(
        cls,
        drawn: Iterable[tuple[float, float | None, float | None] | None],
        smallest: Iterable[float | None] = (),
        ticks: Iterable[float] = (),
    ) -> Axis | None:
        """Zero, the smallest effects, every estimate and interval; an absurd one does not flatten all others."""
        known = [row for row in drawn if row is not None]
        ends = sorted((end for row in known for end in row if end is not None and math.isfinite(end)), key=abs)
        if not ends:
            return None
        usual = abs(ends[len(ends) // 2]) or abs(ends[-1])
        most = max(abs(end) for end in ends if abs(end) <= FAR * usual)
        reach = [0.0, *(min(max(end, -most), most) for end in ends)]
        reach += [tick for tick in ticks if abs(tick) <= 2 * most]
        reach += [side * effect for effect in smallest if effect for side in (-1, 1)]
        return cls(min(reach), max(reach)) if max(reach) > min(reach) else None

    def place(self, value: float) -> float:
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def at(self, value: float) -> str:
        """Its x, in percent."""
        return f"{MARGIN + (100 - 2 * MARGIN) * self.place(value):.2f}%"

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def step(self) -> float:
        """Between two numbers below it."""
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))

    def ticks(self) -> list[float]:
        """Round values within it."""
        step = self.step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(place * step, 12) for place in range(first, last + 1)]

    def text(self, value: float) -> str:
        """With as many decimals as tell two numbers apart."""
        return fixed(value, max(0, -math.floor(math.log10(self.step) + 1e-9)), sign=True)


@dataclass(frozen=True)
class Drawn:
    """What one row draws, as costs: positive is worse. *colour*: in the words of CSS; *hollow*: no margin is set for it.

    An end that is missing while the other is there is beyond every axis.
    """

    estimate: float | None
    low: float | None = None
    high: float | None = None
    ticks: tuple[float, ...] = ()
    colour: str = "currentColor"
    shape: str = "circle"
    hollow: bool = False
    thin: bool = False


def interval_svg(
    axis: Axis,
    rows: Sequence[Drawn],
    *,
    height: int = 44,
    smallest: float | None = None,
    grid: Iterable[float] = (),
    paper: str = PAPER_COLOUR,
) -> str:
    """A strip as wide as its place: the band of the smallest effect, zero, and the rows evenly below one another."""
    body = "".join((*_ground(axis, height, smallest, grid), *_rows(axis, rows, height, paper)))
    return f'<svg class="plot" width="100%" height="{height}" aria-hidden="true" focusable="false">{body}</svg>'


def axis_svg(axis: Axis, text: Callable[[float], str]) -> str:
    """The numbers below."""
    marks = (
        f'<line x1="{axis.at(value)}" x2="{axis.at(value)}" y1="0" y2="5" stroke="currentColor" opacity="0.5"/>'
        f'<text x="{axis.at(value)}" y="18" text-anchor="middle" font-size="13" fill="currentColor">{text(value)}</text>'
        for value in axis.ticks()
    )
    return f'<svg class="plot" width="100%" height="22" aria-hidden="true" focusable="false">{"".join(marks)}</svg>'


def mark_svg(
    shape: str,
    colour: str,
    x: str = "50%",
    y: float = 8.0,
    *,
    hollow: bool = False,
    scale: float = 1.0,
    paper: str = PAPER_COLOUR,
) -> str:
    """A mark at a place; that of a baseline is a ring."""
    open_ = hollow or shape == RING
    path = SHAPES["circle" if shape == RING else shape]
    turn = f' transform="scale({scale:g})"' if scale != 1 else ""
    fill, stroke, width = (paper, colour, 2.2) if open_ else (colour, paper, 1.4)
    style = f"fill:{fill};stroke:{stroke};stroke-width:{width}"
    return f'<svg x="{x}" y="{y:g}" overflow="visible"><path d="{path}"{turn} style="{style}"/></svg>'


def _ground(axis: Axis, height: int, smallest: float | None, grid: Iterable[float]) -> Iterator[str]:
    if smallest:
        width = (100 - 2 * MARGIN) * (axis.place(smallest) - axis.place(-smallest))
        at = f'x="{axis.at(-smallest)}" y="0" width="{width:.2f}%" height="{height}"'
        yield f'<rect {at} fill="currentColor" opacity="0.08"/>'
    for value in grid:
        at = f'x1="{axis.at(value)}" x2="{axis.at(value)}" y1="0" y2="{height}"'
        yield f'<line {at} stroke="currentColor" opacity="0.12"/>'
    if axis.holds(0):
        yield f'<line x1="{axis.at(0)}" x2="{axis.at(0)}" y1="0" y2="{height}" stroke="currentColor" opacity="0.75"/>'


def _rows(axis: Axis, rows: Sequence[Drawn], height: int, paper: str) -> Iterator[str]:
    rug = 11 if any(row.ticks for row in rows) else 0
    pitch = height / max(1, len(rows))
    for place, row in enumerate(rows):
        y = place * pitch + (pitch - rug) / 2
        yield f'<g style="color:{row.colour}">{"".join(_row(axis, row, y, pitch, paper))}</g>'


def _row(axis: Axis, row: Drawn, y: float, pitch: float, paper: str) -> Iterator[str]:
    line = 'stroke="currentColor"'
    if row.estimate is None:
        return
    low = high = row.estimate
    if row.low is not None or row.high is not None:
        low, high = -math.inf if row.low is None else row.low, math.inf if row.high is None else row.high
        at = f'x1="{axis.at(low)}" x2="{axis.at(high)}" y1="{y:g}" y2="{y:g}"'
        yield f'<line {at} {line} stroke-width="{1.3 if row.thin else 3}"/>'
    for reach, end, path in ((low - axis.low, axis.low, "M-7 0 1-5V5Z"), (axis.high - high, axis.high, "M7 0-1-5V5Z")):
        if reach < -1e-9 * (axis.high - axis.low):
            yield f'<svg x="{axis.at(end)}" y="{y:g}" overflow="visible"><path d="{path}" fill="currentColor"/></svg>'
    for tick in row.ticks:
        if axis.holds(tick):
            at = f'x1="{axis.at(tick)}" x2="{axis.at(tick)}" y1="{y + 9:g}" y2="{y + 16:g}"'
            yield f'<line {at} {line} stroke-width="1.4" opacity="0.75"/>'
    if axis.holds(row.estimate):
        scale = 0.35 if row.thin else 0.8 if pitch < 24 else 1.0
        yield mark_svg(row.shape, "currentColor", axis.at(row.estimate), y, hollow=row.hollow, scale=scale, paper=paper)
