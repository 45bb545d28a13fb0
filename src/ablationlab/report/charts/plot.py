"""Lines of variants along an axis, as SVG that fits any width: x in percent, y in pixels, so that no text ever stretches.

Lines that coincide are one striped line with all their names. What is of no variant is ``currentColor``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Final

from ablationlab.report.colours import Emblem
from ablationlab.report.table import html_text

#: Lines that nowhere differ by so much of the range coincide.
SAME: Final = 0.02
#: The height of a name beside its line.
NAME: Final = 17
#: The height of a label within a plot; one that has no room is left out.
LABEL: Final = 15
#: What lines are drawn in before they are stretched to the width.
_WIDE: Final = 1000
_DASH: Final = 9


@dataclass(frozen=True)
class Scale:
    """From *low* to *high*; *log*: by factors."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def around(cls, values: Iterable[float | None], *, zero: bool = False, log: bool = False) -> Scale | None:
        """All of *values*, with round ends; None without two different ones."""
        known = [value for value in values if value is not None and math.isfinite(value) and (value > 0 or not log)]
        known += [0.0] if zero and known else []
        if not known or min(known) == max(known):
            return None
        if log:
            return cls(min(known), max(known), log=True)
        low, high, step = min(known), max(known), _step(max(known) - min(known))
        return cls(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.log:
            return math.log(max(value, 1e-300) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        """Round values, five or so."""
        if self.log and len(powers := self._powers()) > 1:
            return powers
        step = _step(self.high - self.low)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{place * step:.10g}") for place in range(first, last + 1)]

    def _powers(self) -> list[float]:
        low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        within: list[float] = []
        for factors in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
            known = [10.0**power * factor for power in range(low, high + 1) for factor in factors]
            within = [value for value in known if -1e-9 <= self.place(value) <= 1 + 1e-9]
            if len(within) >= 3:
                return within[:: math.ceil(len(within) / 6)]
        return within


def _step(span: float) -> float:
    power = 10.0 ** math.floor(math.log10(span / 5))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / 5 * (1 - 1e-9))


@dataclass(frozen=True)
class Line:
    """One line, and those that coincide with it; *ends*: what stands beside each name."""

    names: tuple[str, ...]
    places: tuple[float, ...]
    values: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    ends: Mapping[str, str] = field(default_factory=dict)

    def last(self) -> float | None:
        return next((value for value in reversed(self.values) if value is not None), None)


def merged(lines: Iterable[Line], scale: Scale) -> list[Line]:
    """Those that coincide as one: with the first of them, which nowhere differs by `SAME` of the range."""
    found: list[Line] = []
    for line in lines:
        for place, known in enumerate(found):
            if known.places == line.places and _coincide(known.values, line.values, scale):
                found[place] = replace(known, names=known.names + line.names, ends={**known.ends, **line.ends})
                break
        else:
            found.append(line)
    return found


def _coincide(one: Sequence[float | None], other: Sequence[float | None], scale: Scale) -> bool:
    pairs = list(zip(one, other, strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        return False
    return all(abs(scale.place(a) - scale.place(b)) < SAME for a, b in pairs if a is not None and b is not None)


def plot_svg(
    lines: Sequence[Line],
    emblems: Mapping[str, Emblem],
    *,
    x: Scale,
    y: Scale,
    x_ticks: Sequence[tuple[float, str]],
    y_text: Callable[[float], str],
    height: int = 280,
    smallest: float | None = None,
    levels: Sequence[tuple[float, str]] = (),
    names: bool = True,
) -> str:
    """Grid, band of the smallest effect, dotted levels, lines with their bands, and names where lines end."""

    def at(value: float) -> float:
        return height - 10 - (height - 20) * y.place(value)

    parts = [*_ground(y, at, y_text, smallest, levels)]
    inside = "".join(part for line in lines for part in _drawn(line, emblems, x, at))
    stretched = f'viewBox="0 0 {_WIDE} {height}" preserveAspectRatio="none" overflow="hidden"'
    parts.append(f'<svg width="100%" height="{height}" {stretched}>{inside}</svg>')
    for value, text in x_ticks:
        share = x.place(value)
        anchor = "start" if share < 0.02 else "end" if share > 0.98 else "middle"
        parts.append(f'<text x="{100 * share:.2f}%" y="{height + 16}" text-anchor="{anchor}">{html_text(text)}</text>')
    svg = f'<svg class="plot" width="100%" height="{height + 22}" aria-hidden="true" focusable="false">{"".join(parts)}</svg>'
    beside = "".join(_names(lines, emblems, at, height)) if names else ""
    return f'<div class="ch-plot{" named" if names else ""}">{svg}{beside}</div>'


def _ground(
    y: Scale,
    at: Callable[[float], float],
    text: Callable[[float], str],
    smallest: float | None,
    levels: Sequence[tuple[float, str]],
) -> Iterator[str]:
    if smallest:
        top, bottom = at(min(smallest, y.high)), at(max(-smallest, y.low))
        yield f'<rect width="100%" y="{top:.1f}" height="{bottom - top:.1f}" fill="currentColor" opacity="0.08"/>'
    for value in y.ticks:
        opacity = 0.75 if value == 0 and not y.log else 0.12
        line = f'x1="0" x2="100%" y1="{at(value):.1f}" y2="{at(value):.1f}"'
        yield f'<line {line} stroke="currentColor" opacity="{opacity}"/>'
        yield f'<text x="-8" y="{at(value) + 4:.1f}" text-anchor="end">{html_text(text(value))}</text>'
    above = -math.inf
    for value, name in sorted(levels, reverse=True):
        line = f'x1="0" x2="100%" y1="{at(value):.1f}" y2="{at(value):.1f}"'
        yield f'<line {line} stroke="currentColor" opacity="0.6" stroke-dasharray="2 4"/>'
        if at(value) - above < LABEL:
            continue
        above, end = at(value), y.place(value) > 0.5
        anchor = 'x="100%" text-anchor="end"' if end else 'x="0"'
        yield f'<text {anchor} y="{at(value) - 4:.1f}">{html_text(name)}</text>'


def _drawn(line: Line, emblems: Mapping[str, Emblem], x: Scale, at: Callable[[float], float]) -> Iterator[str]:
    across = [_WIDE * x.place(place) for place in line.places]
    first = emblems[line.names[0]].css
    for piece in _pieces(zip(across, line.low, line.high, strict=True)) if line.low else ():
        upper = [f"{px:.0f} {at(high):.1f}" for px, _, high in piece]
        lower = [f"{px:.0f} {at(low):.1f}" for px, low, _ in reversed(piece)]
        yield f'<path d="M{"L".join([*upper, *lower])}Z" fill="{first}" opacity="0.16"/>'
    data = [
        "M" + "L".join(f"{px:.0f} {at(value):.1f}" for px, value in piece)
        for piece in _pieces(zip(across, line.values, strict=True))
    ]
    for turn, name in enumerate(line.names[:4]):
        several = min(len(line.names), 4)
        dash = f' stroke-dasharray="{_DASH} {_DASH * (several - 1)}" stroke-dashoffset="{-_DASH * turn}"'
        style = 'fill="none" stroke-width="2.4" vector-effect="non-scaling-stroke" stroke-linejoin="round"'
        dashed = dash if turn else ""
        yield from (f'<path d="{path}" stroke="{emblems[name].css}" {style}{dashed}/>' for path in data)


def _pieces(points: Iterable[tuple[float | None, ...]]) -> Iterator[list[tuple[float, ...]]]:
    """Runs of points that are all there."""
    piece: list[tuple[float, ...]] = []
    for point in points:
        whole = tuple(value for value in point if value is not None)
        if len(whole) == len(point):
            piece.append(whole)
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _names(
    lines: Sequence[Line], emblems: Mapping[str, Emblem], at: Callable[[float], float], height: int
) -> Iterator[str]:
    """From the top down, each as near to the end of its line as the others leave room."""
    ended = sorted(((at(last), line) for line in lines if (last := line.last()) is not None), key=lambda pair: pair[0])
    sizes = [NAME * sum(1 + bool(line.ends.get(name)) for name in line.names) for _, line in ended]
    tops = _apart([y - size / 2 for (y, _), size in zip(ended, sizes, strict=True)], sizes, height)
    for top, (_, line) in zip(tops, ended, strict=True):
        inner = "".join(
            f'<div style="color:{emblems[name].css}">{html_text(name)}</div>'
            + (f'<div class="end">{html_text(end)}</div>' if (end := line.ends.get(name)) else "")
            for name in line.names
        )
        yield f'<div class="ch-name" style="top:{top:.0f}px">{inner}</div>'


def _apart(tops: Sequence[float], sizes: Sequence[int], height: int) -> list[float]:
    """Moved down where they overlap, then up where they leave the bottom."""
    moved: list[float] = []
    for top, _ in zip(tops, sizes, strict=True):
        floor = moved[-1] + sizes[len(moved) - 1] if moved else 0.0
        moved.append(max(top, floor))
    limit = float(height)
    for place in reversed(range(len(moved))):
        moved[place] = min(moved[place], limit - sizes[place])
        limit = moved[place]
    return moved


@cache
def stylesheet() -> str:
    """The style of every chart: what a page has once."""
    return files("ablationlab.report.charts").joinpath("charts.css").read_text(encoding="utf-8")
