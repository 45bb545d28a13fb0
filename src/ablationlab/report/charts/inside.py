"""Inside: the three diagnostics that moved most, each with one clause: lines of all arms, or a row per variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from typing import Final

from ablationlab.core.format import count, number
from ablationlab.records.courses import Diagnostic
from ablationlab.records.metrics import metric_name
from ablationlab.report.charts.chart import Chart
from ablationlab.report.charts.plot import Line, Scale, merged, plot_svg
from ablationlab.report.charts.rows import legend, mark, row, shown_variants
from ablationlab.report.effects import Effect
from ablationlab.report.forest import drawn_of, estimate_text
from ablationlab.report.interval import Axis, interval_svg
from ablationlab.report.slots import Slot, Statement
from ablationlab.report.study_report import StudyReport
from ablationlab.report.table import Cell, Table, html_text

#: So many are drawn, and of those without lines so many rows.
MOST: Final = 3
MOST_ROWS: Final = 12
#: Factors that an axis may name.
_ROUND: Final = (1.0, 1.05, 1.1, 1.2, 1.5, *(factor * 10.0**power for power in range(3) for factor in (2, 3, 5, 10)))
_POWERS: Final = tuple(10.0**power for power in range(4, 300))
#: From here on a ratio is printed as ×1.00.
_SAME: Final = 0.995
_RAISED: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def inside_chart(report: StudyReport) -> Chart | None:
    """Of what was probed; else of the metrics of runs that describe them."""
    found = () if report.courses is None else report.courses.diagnostics
    probed = [(place, one) for place, one in enumerate(found) if one.lines][:MOST]
    if probed:
        return _lines(report, probed)
    return _forests(report, [(place, one) for place, one in enumerate(found) if one.probe is None][:MOST])


def _said(one: Diagnostic, place: int) -> Statement:
    ratio = Slot(_ratio(one.ratio), f"courses.json#/diagnostics/{place}/ratio", one.ratio)
    slots = {"ratio": ratio, "variant": Slot(one.variant)}
    if one.group:
        return Statement(f"inside.{one.over}", {**slots, "group": Slot(_group(one))})
    return Statement("inside.whole", slots)


def _ratio(ratio: float) -> str:
    """A factor above one; one below is what it divides by."""
    return f"×{number(ratio)}" if ratio >= _SAME else f"÷{number(1 / ratio)}"


def _name(one: Diagnostic) -> str:
    """``residual norm``: the probe and its measure, where the one does not end in the other."""
    if one.probe is None:
        return metric_name(one.measure)
    words = one.probe if one.probe.endswith(one.measure) else f"{one.probe} {one.measure}"
    return words.replace("-", " ").replace("_", " ")


def _figure(one: Diagnostic, place: int, inside: str) -> str:
    caption = f"<b>{html_text(_name(one))}</b><br>{html_text(_said(one, place).text)}"
    return f"<figure><figcaption>{caption}</figcaption>{inside}</figure>"


def _group(one: Diagnostic) -> str:
    return (one.group or "").replace("block-", "block ")


# --- probes: lines ------------------------------------------------------------------------------------------------


def _lines(report: StudyReport, found: Sequence[tuple[int, Diagnostic]]) -> Chart | None:
    figures, rows = [], []
    drawn: dict[tuple[str, ...], None] = {}
    for place, one in found:
        lines = [Line((line.variant,), one.places, line.values) for line in one.lines if line.variant in report.emblems]
        x = Scale(min(one.places), max(one.places)) if len(one.places) > 1 else None
        values = [value for line in lines for value in line.values]
        y = Scale.around(values, log=all(value is None or value > 0 for value in values))
        rows += [
            (_name(one), line.variant, at, value)
            for line in one.lines
            for at, value in zip(one.places, line.values, strict=True)
        ]
        if x is None or y is None:
            continue
        together = merged(lines, y)
        drawn |= dict.fromkeys(line.names for line in together)
        svg = plot_svg(
            together,
            report.emblems,
            x=x,
            y=y,
            x_ticks=_ticks(one),
            y_text=lambda value: number(value, 2),
            height=180,
            names=False,
        )
        figures.append(_figure(one, place, svg))
    if not figures:
        return None
    names = [name for name in (report.baseline, *report.variants) if any(name in line for line in drawn)]
    items = [_key(report, name) for name in dict.fromkeys(names)]
    svg = f'<div class="ch"><div class="ch-trio">{"".join(figures)}</div>{legend(items)}</div>'
    table = Table.simple(
        "Diagnostics",
        ["measure", "variant", "place", "value"],
        [
            (measure, Cell.name(variant), Cell.of(at, number), Cell.of(value, number))
            for measure, variant, at, value in rows
        ],
        right=["place", "value"],
    )
    return Chart(svg, table)


def _ticks(one: Diagnostic) -> list[tuple[float, str]]:
    first, last = one.places[0], one.places[-1]
    if one.over == "depth":
        return [(first, "input" if first == 0 else f"block {first:g}"), (last, f"block {last:g}")]
    return [(first, f"step {count(round(first))}"), (last, count(round(last)))]


def _key(report: StudyReport, name: str) -> str:
    colour = report.emblems[name].css
    line = f'<line x1="0" x2="22" y1="8" y2="8" stroke="{colour}" stroke-width="2.6"/>'
    return f'<svg class="mk" width="22" height="16" aria-hidden="true">{line}</svg>{html_text(name)}'


# --- metrics: a forest of ratios for each ---------------------------------------------------------------------------


def _forests(report: StudyReport, found: Sequence[tuple[int, Diagnostic]]) -> Chart | None:
    """One row per variant and regime, in the order of the answers; a column with an axis of its own per metric."""
    by_place = {
        (row.metric, row.regime, row.variant): row for row in report.effects if row.reference == report.baseline
    }
    moved_most = {one.variant for _, one in found}
    names = [name for name in report.variants if name in moved_most.union(shown_variants(report))]
    shown = [(regime, name) for regime in report.regimes for name in names]
    rows = [arm for arm in shown if any((one.measure, *arm) in by_place for _, one in found)]
    if not rows or not found:
        return None
    moved = sorted(rows, key=lambda arm: -max(_size(by_place.get((one.measure, *arm))) for _, one in found))[:MOST_ROWS]
    rows = [arm for arm in rows if arm in moved]
    figures = list(filter(None, (_forest(report, one, place, rows, by_place) for place, one in found)))
    if not figures:
        return None
    table = Table.simple(
        "Diagnostics",
        ["metric", "regime", "variant", "baseline", "value", "difference", "interval"],
        [
            _cells(effect)
            for _, one in found
            for arm in rows
            if (effect := by_place.get((one.measure, *arm))) is not None
        ],
        right=["baseline", "value", "difference", "interval"],
    )
    return Chart(f'<div class="ch ch-trio ch-ratios">{"".join(figures)}</div>', table)


def _size(effect: Effect | None) -> float:
    return abs(effect.drawn[0]) if effect is not None and effect.drawn is not None else 0.0


def _forest(
    report: StudyReport,
    one: Diagnostic,
    place: int,
    rows: Sequence[tuple[str, str]],
    effects: dict[tuple[str, str, str], Effect],
) -> str:
    known = [effect for arm in rows if (effect := effects.get((one.measure, *arm))) is not None]
    axis = Axis.around(effect.drawn for effect in known)
    if axis is None:
        return ""
    several = len({regime for regime, _ in rows}) > 1
    inside = "".join(_ratio_row(report, effect, axis, several=several) for effect in known)
    return _figure(one, place, inside + row("", _factors(axis), kind="foot"))


def _ratio_row(report: StudyReport, effect: Effect, axis: Axis, *, several: bool) -> str:
    emblem = report.emblems[effect.variant]
    drawn = replace(drawn_of(effect, emblem.css, emblem.shape), ticks=(), hollow=False)
    strip = interval_svg(axis, [drawn], height=28)
    regime = f"<small>{html_text(effect.regime)}</small>" if several else ""
    text = (
        _ratio(exp(min(max(effect.estimate.value, -700.0), 700.0)))
        if isinstance(effect.estimate.value, float)
        else estimate_text(effect)
    )
    return row(
        mark(emblem) + html_text(effect.variant) + regime,
        strip,
        html_text(text),
        label=f"{effect.name}, {effect.variant}, {effect.regime}: {text}",
    )


def _factors(axis: Axis) -> str:
    """×1, and a round factor towards either end that has room."""
    ends = [(1, axis.high), (-1, axis.low)]
    wide = [(side, end) for side, end in ends if abs(end) > 0.34 * (axis.high - axis.low)]
    factors = (*_ROUND, *_POWERS)
    values = [0.0, *(side * max(log(factor) for factor in factors if log(factor) <= abs(end)) for side, end in wide)]
    texts = (
        f'<text x="{axis.at(value)}" y="16" text-anchor="middle">{html_text(_round_ratio(value))}</text>'
        for value in dict.fromkeys(values)
    )
    return f'<svg class="plot" width="100%" height="20" aria-hidden="true" focusable="false">{"".join(texts)}</svg>'


def _round_ratio(value: float) -> str:
    """A round factor without digits that say nothing."""
    sign = "÷" if value < 0 else "×"
    factor = exp(abs(value)) if abs(value) < 700 else float("inf")
    if factor > 999:
        return f"{sign}10{str(round(abs(value) / log(10))).translate(_RAISED)}"
    return f"{sign}{factor:.3g}"


def _cells(effect: Effect) -> list[Cell | str]:
    values = [Cell.of(slot.value, slot.text) for slot in (effect.baseline, effect.value)]
    estimate = Cell.of(effect.estimate.value, estimate_text(effect))
    return [effect.name, effect.regime, Cell.name(effect.variant), *values, estimate, effect.interval]
