"""Failures: a square per run, the worst first; and when along training runs failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ablationlab.core.format import count
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Instability
from ablationlab.report.charts.chart import Chart
from ablationlab.report.charts.plot import Scale
from ablationlab.report.charts.rows import legend, mark, row
from ablationlab.report.failures import FAILED, RunEnd
from ablationlab.report.slots import Statement
from ablationlab.report.study_report import StudyReport
from ablationlab.report.table import Cell, Table, html_text

#: With more arms, those without a failure are left to the table.
MOST_ARMS: Final = 24
Arms = dict[tuple[str, str], list[RunEnd]]


def failures_chart(report: StudyReport) -> Chart | None:
    """By regime, an arm's runs as squares; nothing where every run is stable."""
    arms = _arms(report)
    if not arms:
        return None
    rows = [
        row(_name(report, variant), squares(ends), failed_text(ends), label=_label(variant, regime, ends))
        for (regime, variant), ends in arms.items()
    ]
    kinds = [*FAILED, *([Instability.NOT_FINISHED] if any(map(_missing, _all(arms))) else [])]
    items = [f'<i class="{kind}"></i>{html_text(Statement(f"failures.{_kind(kind)}").text)}' for kind in kinds]
    items.append(f"<i></i>{html_text(Statement('failures.calm').text)}")
    return Chart(f'<div class="ch ch-squares">{_with_regimes(arms, rows)}{legend(items)}</div>', _table(arms))


def failure_times_chart(report: StudyReport) -> Chart | None:
    """A tick per failed run, at the step where it failed, on an axis of the whole run."""
    arms = {arm: ends for arm, ends in _arms(report).items() if any(end.at.at for end in ends)}
    longest = max((_last(end) for ends in arms.values() for end in ends), default=0.0)
    if not arms or longest <= 0:
        return None
    x = Scale(0.0, longest)
    rows = []
    for (regime, variant), ends in arms.items():
        strip = _ticks(ends, x, report.emblems[variant].css)
        rows.append(row(_name(report, variant), strip, failed_text(ends), label=_label(variant, regime, ends)))
    axis = _steps(x)
    items = [html_text(Statement("failures.tick").text)]
    svg = f'<div class="ch ch-times">{_with_regimes(arms, rows)}{row("", axis, kind="foot")}{legend(items)}</div>'
    return Chart(svg, _table(arms))


def _arms(report: StudyReport) -> Arms:
    """In the order of regimes and variants; where there are many, those with a failure."""
    if not any(end.failed for end in report.ends):
        return {}
    found = grouped(((end.regime, end.variant), end) for end in report.ends)
    regimes = dict.fromkeys((*report.regimes, *(end.regime for end in report.ends)))
    order = [(regime, variant) for regime in regimes for variant in (report.baseline, *report.variants)]
    arms = {arm: found[arm] for arm in dict.fromkeys(order) if arm in found}
    if len(arms) <= MOST_ARMS:
        return arms
    return {arm: ends for arm, ends in arms.items() if any(end.failed for end in ends)}


def _all(arms: Arms) -> list[RunEnd]:
    return [end for ends in arms.values() for end in ends]


def _with_regimes(arms: Arms, rows: Sequence[str]) -> str:
    """A regime's name above its rows, where there are several."""
    regimes = [regime for regime, _ in arms]
    several = len(set(regimes)) > 1
    parts = []
    for place, (regime, made) in enumerate(zip(regimes, rows, strict=True)):
        if several and (not place or regimes[place - 1] != regime):
            parts.append(f'<div class="ch-regime">{html_text(regime)}</div>')
        parts.append(made)
    return "".join(parts)


def squares(ends: Sequence[RunEnd]) -> str:
    """A square per run, the worst first."""
    inner = "".join(f'<i class="{_kind(end.reason)}"></i>' if _marked(end) else "<i></i>" for end in ends)
    return f'<div class="ch-sq" aria-hidden="true">{inner}</div>'


def _marked(end: RunEnd) -> bool:
    return end.failed or _missing(end)


def _missing(end: RunEnd) -> bool:
    return end.reason == Instability.NOT_FINISHED


def _kind(reason: Instability) -> str:
    return "missing" if reason == Instability.NOT_FINISHED else reason.value


def _name(report: StudyReport, variant: str) -> str:
    return mark(report.emblems[variant]) + html_text(variant)


def failed_text(ends: Sequence[RunEnd]) -> str:
    there = [end for end in ends if not _missing(end)]
    return html_text(f"{count(sum(end.failed for end in there))} of {count(len(there))}")


def _label(variant: str, regime: str, ends: Sequence[RunEnd]) -> str:
    told = [f"{Statement(f'failures.{kind}').text} {count(sum(e.reason == kind for e in ends))}" for kind in FAILED]
    return f"{variant}, {regime}: {', '.join(told)}; {count(len(ends))}"


def _last(end: RunEnd) -> float:
    at = float(end.at.value) if isinstance(end.at.value, int | float) else 0.0
    return max(at, float(end.steps or 0))


def _ticks(ends: Sequence[RunEnd], x: Scale, colour: str) -> str:
    places = [f"{100 * x.place(end.at.value):.2f}%" for end in ends if isinstance(end.at.value, int | float)]
    marks = "".join(f'<line x1="{place}" x2="{place}" y1="2" y2="16"/>' for place in places)
    ground = '<line x1="0" x2="100%" y1="9" y2="9" stroke="currentColor" stroke-width="1" opacity="0.15"/>'
    inside = f'{ground}<g style="stroke:{colour};stroke-width:1.6">{marks}</g>'
    return f'<svg class="plot" width="100%" height="18" aria-hidden="true" focusable="false">{inside}</svg>'


def _steps(x: Scale) -> str:
    texts = []
    for value in x.ticks:
        share = x.place(value)
        anchor = "start" if share < 0.02 else "end" if share > 0.98 else "middle"
        said = f"step {count(round(value))}" if value == 0 else count(round(value))
        texts.append(f'<text x="{100 * share:.2f}%" y="16" text-anchor="{anchor}">{html_text(said)}</text>')
    return f'<svg class="plot" width="100%" height="20" aria-hidden="true" focusable="false">{"".join(texts)}</svg>'


def _table(arms: Arms) -> Table:
    """Every run that failed."""
    rows = [
        (
            end.regime,
            Cell.name(end.variant),
            str(end.seed),
            end.reason.value.replace("-", " "),
            Cell.of(end.at.value, end.at.text),
        )
        for ends in arms.values()
        for end in ends
        if end.failed
    ]
    title = Statement("failures.title").text
    return Table.simple(title, ["regime", "variant", "seed", "how", "step"], rows, right=["step"])
