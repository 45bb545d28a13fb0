"""When: the difference to the baseline along training, and small beside it the curves themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ablationlab.core.format import count, fixed, level, number, percent
from ablationlab.records.courses import ArmCourse, LossCurves
from ablationlab.records.metrics import metric_name
from ablationlab.report.charts.chart import Chart
from ablationlab.report.charts.plot import Line, Scale, merged, plot_svg
from ablationlab.report.charts.rows import MOST, OPEN
from ablationlab.report.effects import Effect
from ablationlab.report.slots import Slot, Statement
from ablationlab.report.study_report import StudyReport
from ablationlab.report.table import Cell, Table, html_text

#: So many regimes have a picture; so many places a row of the table.
MOST_REGIMES, MOST_ROWS = 6, 25
_AT: Final = "courses.json#/curves/arms"


def difference_chart(report: StudyReport) -> Chart | None:
    """One regime with its curves, or several beside one another, each with an axis of its own."""
    curves = None if report.courses is None else report.courses.curves
    if curves is None:
        return None
    regimes = [regime for regime in report.regimes if _shown(report, curves, regime)][:MOST_REGIMES]
    if not regimes:
        return None
    pictures = [picture for regime in regimes for picture in _regime(report, curves, regime, len(regimes) > 1)]
    if not pictures:
        return None
    grid = "ch-duo" if len(regimes) == 1 else "ch-trio"
    svg = f'<div class="ch {grid}">{"".join(pictures)}</div>'
    return Chart(svg, _table(report, curves, regimes), tuple(_clauses(report, curves, regimes)))


def _shown(report: StudyReport, curves: LossCurves, regime: str) -> list[tuple[Effect, ArmCourse]]:
    """The variants that have a line: those with a decided answer before others, and these by size."""
    rows = {row.variant: row for row in report.answers if row.regime == regime and row.reference == report.baseline}
    found = [
        (row, course)
        for name, row in rows.items()
        if (course := curves.arm(name, regime)) is not None and any(value is not None for value in course.difference)
    ]
    found.sort(key=lambda pair: (pair[0].answer in OPEN, -abs(pair[0].drawn[0]) if pair[0].drawn else 0.0))
    decided = [pair for pair in found if pair[0].answer not in OPEN]
    return (decided or found)[:MOST]


def _regime(report: StudyReport, curves: LossCurves, regime: str, several: bool) -> Iterable[str]:
    shown = [course for _, course in _shown(report, curves, regime)]
    smallest = next((row.smallest for row in report.answers if row.regime == regime), None)
    smallest = smallest if _in_the_metric(report, curves) else None
    most = _most(shown)
    reach = [min(max(v, -most), most) for c in shown for v in (*c.difference, *c.low, *c.high) if v is not None]
    y = Scale.around([*reach, smallest], zero=True)
    x = _across(shown)
    if y is None or x is None:
        return
    places = _place_ticks(curves, x)
    lines = [_line(course, course.difference, course.low, course.high, end=not several) for course in shown]
    svg = plot_svg(
        merged(lines, y),
        report.emblems,
        x=x,
        y=y,
        x_ticks=[places[0], places[-1]] if several else places,
        y_text=lambda value: _axis_text(y, value, sign=True),
        height=180 if several else 280,
        smallest=smallest,
    )
    title = html_text(regime) if several else html_text(_title(report, curves).text)
    how = (
        "" if several else f"<br>{html_text(', '.join(filter(None, (report.unit, _how(report, curves, shown).text))))}"
    )
    yield f"<figure><figcaption><b>{title}</b>{how}</figcaption>{svg}</figure>"
    if not several:
        yield from _curves(report, curves, regime, shown, x, places)


def _curves(
    report: StudyReport,
    curves: LossCurves,
    regime: str,
    shown: Sequence[ArmCourse],
    x: Scale,
    places: Sequence[tuple[float, str]],
) -> Iterable[str]:
    base = curves.arm(report.baseline, regime)
    arms = [*([] if base is None else [base]), *shown]
    y = Scale.around(value for arm in arms for value in arm.losses)
    if y is None:
        return
    lines = merged([_line(arm, arm.losses) for arm in arms], y)
    levels = [
        (float(slot.value), name)
        for name, slot in report.references
        if isinstance(slot.value, float) and y.low <= slot.value <= y.high
    ]
    svg = plot_svg(
        lines,
        report.emblems,
        x=x,
        y=y,
        x_ticks=[places[0], places[-1]],
        y_text=lambda value: _axis_text(y, value),
        levels=levels,
    )
    unit = f"<br>{html_text(report.unit)}" if report.unit else "<br>&nbsp;"
    yield f"<figure><figcaption><b>{html_text(Statement('when.curves').text)}</b>{unit}</figcaption>{svg}</figure>"


def _line(
    course: ArmCourse,
    values: tuple[float | None, ...],
    low: tuple[float | None, ...] = (),
    high: tuple[float | None, ...] = (),
    *,
    end: bool = False,
) -> Line:
    known = [value for value in values if value is not None]
    ends = {course.variant: number(known[-1], 3, sign=True)} if end and known else {}
    return Line((course.variant,), course.places, values, low, high, ends)


def _most(courses: Sequence[ArmCourse]) -> float:
    """Beyond this a curve leaves its picture: three times what four fifths of all points are within."""
    sizes = sorted(abs(value) for course in courses for value in course.difference if value is not None)
    return 3 * sizes[4 * len(sizes) // 5] or sizes[-1]


def _across(courses: Sequence[ArmCourse]) -> Scale | None:
    places = [place for course in courses for place in course.places]
    return Scale(min(places), max(places)) if max(places) > min(places) else None


def _place_ticks(curves: LossCurves, x: Scale) -> list[tuple[float, str]]:
    if curves.along == "share":
        return [(x.low, "0 %"), ((x.low + x.high) / 2, "50 %"), (x.high, "100 %")]
    within = [value for value in x.ticks if x.place(value) > 0.1 and value < x.high - 0.1 * (x.high - x.low)]
    first, last = count(round(x.low)), count(round(x.high))
    return [(x.low, f"step {first}"), *((value, count(round(value))) for value in within), (x.high, last)]


def _axis_text(y: Scale, value: float, *, sign: bool = False) -> str:
    ticks = y.ticks
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    decimals = next((places for places in range(6) if abs(round(step, places) - step) < 1e-9), 6)
    return fixed(value, decimals, sign=sign)


def _in_the_metric(report: StudyReport, curves: LossCurves) -> bool:
    """Whether the smallest effect is one of this loss."""
    primary = report.answers[0].metric if report.answers else ""
    return primary == curves.metric or primary == "validation_loss"


def _title(report: StudyReport, curves: LossCurves) -> Statement:
    name = "training_loss" if curves.metric == "loss" else curves.metric
    return Statement("when.difference", {"metric": Slot(metric_name(name)), "baseline": Slot(report.baseline)})


def _how(report: StudyReport, curves: LossCurves, shown: Sequence[ArmCourse]) -> Statement:
    kind = "share" if curves.along == "share" else "batches" if curves.metric == "loss" else "texts"
    median = any(course.centre == "median" for course in shown)
    levels = [course.level for course in shown if course.level is not None]
    return Statement(f"when.{kind}{'-median' if median else ''}", {"level": Slot(level(levels[0]) if levels else "no")})


def _clauses(report: StudyReport, curves: LossCurves, regimes: Sequence[str]) -> Iterable[Statement]:
    """Where the difference is the largest and how it ends, if one line is drawn."""
    shown = [course for regime in regimes for _, course in _shown(report, curves, regime)]
    y = Scale.around((value for course in shown for value in course.difference), zero=True)
    if len(regimes) != 1 or y is None or len(merged([_line(course, course.difference) for course in shown], y)) > 1:
        return
    course = shown[0]
    at = f"{_AT}/{curves.arms.index(course)}/difference"
    known = [(abs(value), place, value) for place, value in enumerate(course.difference) if value is not None]
    _, end, last = max(known, key=lambda point: point[1])
    size, peak, value = max(known)
    slots = {"end": _slot(last, f"{at}/{end}")}
    if peak < end and size > 1.5 * abs(last):
        place = course.places[peak]
        text = percent(place) if curves.along == "share" else f"step {count(round(place))}"
        yield Statement("when.peak", {**slots, "peak": _slot(value, f"{at}/{peak}"), "place": Slot(text)})
    else:
        yield Statement("when.end", slots)


def _slot(value: float, at: str) -> Slot:
    return Slot(number(value, 3, sign=True), at, value)


def _table(report: StudyReport, curves: LossCurves, regimes: Sequence[str]) -> Table:
    """At some places: the difference of every variant with its interval."""
    rows: list[dict[str, Cell | str]] = []
    for regime in regimes:
        arms = [arm for arm in curves.arms if arm.regime == regime and arm.difference]
        every = len(arms[0].places)
        for place in dict.fromkeys(round(k * (every - 1) / (MOST_ROWS - 1)) for k in range(MOST_ROWS)):
            at = arms[0].places[place]
            row: dict[str, Cell | str] = {"regime": regime} if len(regimes) > 1 else {}
            text = percent(at) if curves.along == "share" else count(round(at))
            rows.append({**row, "place": Cell.of(at, text), **{arm.variant: _cell(arm, place) for arm in arms}})
    heads = list(dict.fromkeys(key for row in rows for key in row))
    lines = [[row.get(head) for head in heads] for row in rows]
    names = ["step" if head == "place" and curves.along == "steps" else head for head in heads]
    return Table.simple(_title(report, curves).text, names, lines, right=names)


def _cell(arm: ArmCourse, place: int) -> Cell:
    if place >= len(arm.difference) or arm.difference[place] is None:
        return Cell.of(None)
    low, high = (ends[place] if ends else None for ends in (arm.low, arm.high))
    note = "" if low is None or high is None else f"{number(low, 3, sign=True)} .. {number(high, 3, sign=True)}"
    return Cell.of(arm.difference[place], number(arm.difference[place], 3, sign=True), note=note)
