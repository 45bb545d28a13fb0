"""Many regimes: small forests on one shared axis, a group of rows per regime, with unstable runs as squares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from ablationlab.core.grouping import grouped
from ablationlab.report.charts.chart import Chart
from ablationlab.report.charts.failures import failed_text, squares
from ablationlab.report.charts.rows import answer_word, head, mark, row
from ablationlab.report.effects import Effect
from ablationlab.report.failures import RunEnd
from ablationlab.report.forest import axis_of, axis_text, drawn_of, estimate_text, level_text, name_of
from ablationlab.report.interval import Axis, axis_svg, interval_svg
from ablationlab.report.study_report import StudyReport
from ablationlab.report.table import Cell, Table, html_text

#: With more seeds their ticks are a blur.
MOST_TICKS: Final = 12


def grid_chart(report: StudyReport, *, every: bool = False) -> Chart | None:
    """The answers of a study with several regimes, or the primary metric in *every* regime; nothing where there is one."""
    effects = _everywhere(report) if every else report.answers
    axis = axis_of(effects)
    if axis is None or len({effect.regime for effect in effects}) < 2:
        return None
    failed = any(end.failed for end in report.ends)
    ends = grouped(((end.regime, end.variant), end) for end in report.ends) if failed else {}
    body = "".join(_rows(report, effects, axis, ends))
    below = axis_svg(axis, _escaped(report, axis))
    kind = " with-squares" if failed else ""
    ground = f"{head(axis, level_text(effects), 'unstable runs' if failed else '')}{body}{row('', below, kind='foot')}"
    return Chart(f'<div class="ch ch-grid{kind}">{ground}</div>', _table(effects))


def _everywhere(report: StudyReport) -> tuple[Effect, ...]:
    """Against the baseline, by regime, in the order of the variants."""
    metric = next((row.metric for row in report.answers), "")
    found = [row for row in report.effects if row.metric == metric and row.reference == report.baseline and row.drawn]
    regimes = list(dict.fromkeys(row.regime for row in found))
    return tuple(sorted(found, key=lambda row: (regimes.index(row.regime), report.variants.index(row.variant))))


def _escaped(report: StudyReport, axis: Axis) -> Callable[[float], str]:
    text = axis_text(report, axis)
    return lambda value: html_text(text(value))


def _rows(
    report: StudyReport, shown: Sequence[Effect], axis: Axis, ends: dict[tuple[str, str], list[RunEnd]]
) -> Iterator[str]:
    by_regime = grouped((effect.regime, effect) for effect in shown)
    for place, (regime, effects) in enumerate(by_regime.items()):
        yield _baseline(report, regime, effects, axis, ends.get((regime, report.baseline), ()), first=not place)
        for effect in effects:
            yield _row(report, effect, axis, ends.get((regime, effect.variant), ()))


def _baseline(
    report: StudyReport, regime: str, effects: Sequence[Effect], axis: Axis, ends: Sequence[RunEnd], *, first: bool
) -> str:
    """The regime, and what the baseline reaches there."""
    value = next((effect.baseline.text for effect in effects if effect.baseline.at), "")
    strip = interval_svg(axis, (), height=40, smallest=_smallest(effects))
    name = f'<div class="ch-regime">{html_text(regime)}</div>{mark(report.emblems[report.baseline])}'
    name += html_text(report.baseline)
    return row(name, _squares(ends) + strip, html_text(value), kind="base" if first else "base group")


def _row(report: StudyReport, effect: Effect, axis: Axis, ends: Sequence[RunEnd]) -> str:
    emblem = report.emblems[effect.variant]
    drawn = drawn_of(effect, emblem.css, emblem.shape)
    drawn = drawn if len(drawn.ticks) <= MOST_TICKS else replace(drawn, ticks=())
    strip = interval_svg(axis, [drawn], height=40 if drawn.ticks else 28, smallest=effect.smallest)
    name = html_text(name_of(effect, report.baseline))
    numbers = f"{html_text(estimate_text(effect))}<small>{html_text(effect.interval)}</small>"
    label = f"{effect.regime}, {effect.variant}: {estimate_text(effect)}, {effect.interval}, {effect.word}"
    return row(mark(emblem) + name, _squares(ends) + strip, numbers, answer_word(effect), label=label)


def _smallest(effects: Sequence[Effect]) -> float | None:
    return next((effect.smallest for effect in effects), None)


def _squares(ends: Sequence[RunEnd]) -> str:
    return f'{squares(ends)}<div class="ch-count">{failed_text(ends)}</div>' if ends else ""


def _table(effects: Sequence[Effect]) -> Table:
    rows = [
        (
            effect.regime,
            Cell.name(effect.variant),
            Cell.of(effect.estimate.value, estimate_text(effect)),
            effect.interval,
            effect.word.text,
        )
        for effect in effects
    ]
    heads = ["regime", "variant", "difference", "interval", "answer"]
    return Table.simple("Answers by regime", heads, rows, right=["difference", "interval"])
