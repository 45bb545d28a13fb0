"""Results to report.html."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ablationlab import __version__
from ablationlab.analysis import wording
from ablationlab.core.format import DASH, count
from ablationlab.records import storage
from ablationlab.records.verdict import Answer, Standing
from ablationlab.report import fonts
from ablationlab.report.charts.grid import grid_chart
from ablationlab.report.charts.plot import stylesheet
from ablationlab.report.charts.sections import pictures
from ablationlab.report.colours import BASELINE, BETTER, HUES, INK, PAPER, QUIET, WORSE
from ablationlab.report.effects import LOST, MEDIANS, Effect, smallest_text
from ablationlab.report.fairness import Condition, Equality
from ablationlab.report.forest import (
    axis_of,
    axis_text,
    drawn_of,
    estimate_text,
    forest_svg,
    level_text,
    name_of,
)
from ablationlab.report.interim import interim_effects
from ablationlab.report.interval import Axis, Drawn, axis_svg, interval_svg, mark_svg
from ablationlab.report.page.embed import asset, json_for_script, policy, render, safe
from ablationlab.report.page.rest import rest_of
from ablationlab.report.study_report import AnswerGroup, StudyReport, study_report
from ablationlab.report.table import html_text
from ablationlab.report.tables.effects import effects_table

if TYPE_CHECKING:
    from ablationlab.records.courses import Courses
    from ablationlab.records.results import Results
    from ablationlab.report.live import LiveState

#: From so many rows of a block on, its undecided ones are one grey row.
FOLD_FROM: Final = 9
#: More undecided names, and more names in several regimes, than this are counted.
MOST_NAMED: Final = 4
#: Variants that have a column of their own in the table of what was equal.
MOST_COLUMNS: Final = 4
#: Signs in a box of 16, drawn rather than typed: a font may lack them.
_SIGNS: Final[Mapping[str, str]] = {
    Answer.BETTER: '<path d="M12 2 3 8l9 6Z" fill="currentColor"/>',
    Answer.WORSE: '<path d="M4 2l9 6-9 6Z" fill="currentColor"/>',
    Answer.SAME: '<path d="M3 5.5h10M3 10.5h10" class="g"/>',
    Answer.UNDECIDED: '<circle cx="8" cy="8" r="5" class="g"/>',
    Answer.UNSTABLE: '<path d="M1 9l3-6 4 11 4-9 3 5" class="g"/>',
    Answer.MORE_STABLE: '<path d="M2 4h12M2 8h12M2 12h12" class="g"/>',
    Answer.NOT_MEASURED: '<path d="M4 8h8" class="g"/>',
    Standing.KEPT: '<path d="M2.5 8.5l3.5 4 7.5-9" class="g"/>',
    Standing.OPEN: '<circle cx="8" cy="8" r="5" class="g" stroke-dasharray="2.6 2.6"/>',
    Standing.BROKEN: '<path d="M3 3l10 10M13 3 3 13" class="g"/>',
}


def write_page(results: Results, folder: Path) -> Path:
    """Write ``folder/report.html`` and give its path."""
    path = folder / "report.html"
    storage.replace(path, page_html(results).encode())
    return path


def page_html(results: Results) -> str:
    """The page as text."""
    return _page(study_report(results, results.analysis, results.verdict), results, None)


def live_html(results: Results, live: LiveState, courses: Courses | None) -> str:
    """The page of a study that is watched: nothing is tested, and what is only of the end is left out."""
    told = tuple(row for row in interim_effects(results) if row.role == "primary")
    metric = next((row.name for row in told), "")
    unit = next((row.unit for row in told), "")
    report = replace(study_report(results, None, None), answers=told, courses=courses, metric=metric, unit=unit)
    return _page(report, results, live)


def waiting_html(name: str, live: LiveState) -> str:
    """The page of a folder without a plan."""
    return _page(StudyReport.empty(name), None, live)


def _page(report: StudyReport, results: Results | None, live: LiveState | None) -> str:
    script = asset("page.js")
    shown = [row for _, _, rows in report.blocks for row in rows]
    axis = axis_of(shown)
    emblems = report.emblems

    def plot(row: Effect | Drawn, height: int) -> Any:
        if axis is None:
            return ""
        if isinstance(row, Drawn):
            return safe(interval_svg(axis, [row], height=height, smallest=smallest))
        emblem = emblems.get(row.variant) if row.reference == report.baseline else None
        colour, shape = ("currentColor", "circle") if emblem is None else (emblem.css, emblem.shape)
        drawn = drawn_of(row, colour, shape, ticks=height >= _TICKS_FROM)
        return safe(interval_svg(axis, [drawn], height=height, smallest=row.smallest))

    def bundle(rows: Sequence[Effect]) -> Any:
        drawn = [replace(drawn_of(row, "var(--ink2)", ticks=False), thin=True) for row in rows]
        return "" if axis is None else safe(interval_svg(axis, drawn, height=12 + 7 * len(rows), smallest=smallest))

    smallest = next((row.smallest for row in shown if row.smallest is not None), None)
    grid = grid_chart(report) if live is None else None
    context: dict[str, Any] = {
        "version": __version__,
        "report": report,
        "baseline": report.baseline,
        "emblems": emblems,
        "live": live,
        "problems": [] if results is None else list(_problems(results)),
        "nothing": "" if live is not None or results is None else _nothing(results),
        "blocks": _blocks(report) if shown and grid is None else [],
        "grid": grid,
        "several": len(report.regimes) > 1,
        "small": len(shown) > 2 * FOLD_FROM or len(report.regimes) > 1,
        "level": level_text(report.answers),
        "plot": plot,
        "bundle": bundle,
        "sides": "" if axis is None else safe(_sides(axis)),
        "axis": "" if axis is None else safe(axis_svg(axis, _escaped(axis_text(report, axis)))),
        "legend": safe(_legend(report)),
        "answers": effects_table(shown, "Answers"),
        "pictures": pictures(report),
        "columns": _columns(report),
        "rest": [] if results is None or live is not None else list(rest_of(results, report)),
        "pictures_json": safe(json_for_script(_files(report))) if shown else "",
        "policy": policy(script, live=live is not None),
        "fonts": safe(fonts.css()),
        "style": safe(_variables() + asset("page.css") + stylesheet()),
        "script": safe(script),
        "key": lambda variant: safe(_key(emblems[variant].shape, emblems[variant].css)),
        "sign": lambda word: safe(_sign(str(word))),
        "table": lambda table: safe(table.html()) if table is not None else "",
        "estimate": estimate_text,
        "interval": lambda row: row.interval if live is None else f"{row.n} pairs",
        "fair_cell": _fair_cell,
        "name_of": lambda row: name_of(row, report.baseline),
        "flags": lambda row: [flag for flag in row.flags if flag not in (MEDIANS, LOST)],
        "names": lambda group: _names(group, len(report.regimes) > 1),
        "fact_name": lambda fact: fact.code.partition(".")[2].partition("-of")[0].replace("-", " "),
    }
    return render("page.html.j2", context)


#: A row that is lower than this has no room for ticks.
_TICKS_FROM: Final = 40


@dataclass(frozen=True)
class _Block:
    """The effects of one regime against one reference; *folded*: the undecided ones of many."""

    regime: str
    reference: str
    value: str
    baseline: bool
    rows: tuple[Effect, ...]
    folded: tuple[Effect, ...]

    @property
    def zero(self) -> Drawn:
        return Drawn(0.0, colour=BASELINE.css, shape=BASELINE.shape)


def _blocks(report: StudyReport) -> list[_Block]:
    blocks = []
    for regime, reference, rows in report.blocks:
        value = next((row.baseline.text for row in rows if row.baseline.at), DASH)
        folded = tuple(row for row in rows if row.answer == Answer.UNDECIDED) if len(rows) >= FOLD_FROM else ()
        folded = folded if len(folded) > 1 else ()
        left = tuple(row for row in rows if row not in folded)
        blocks.append(_Block(regime, reference, value, reference == report.baseline, left, folded))
    return blocks


def _columns(report: StudyReport) -> list[str]:
    """The variants with a column of their own where arms are compared."""
    changed = [variant for variant in report.variants if variant != report.baseline]
    return changed if len(changed) <= MOST_COLUMNS else []


def _fair_cell(condition: Condition, variant: str) -> Any:
    """A tick where arms are equal; by how much one differs, or, without a *variant*, each that does."""
    if condition.state == Equality.EQUAL:
        return safe(
            f'<span class="ok">{_sign(Standing.KEPT)}</span><span class="vh">{html_text(condition.state)}</span>'
        )
    if condition.pairs is not None:
        return f"{condition.state} in {condition.pairs[0]} of {condition.pairs[1]} pairs"
    if not condition.arms:
        return condition.state.value
    if variant:
        own = condition.of(variant)
        return str(own) if own is not None else _fair_cell(Condition(condition.name, Equality.EQUAL), variant)
    told = [name if slot.value is None else f"{name} {slot}" for name, slot in condition.arms.items()]
    return f"{condition.state}: {', '.join(told) if len(told) <= MOST_NAMED else count(len(told))}"


def _names(group: AnswerGroup, several: bool) -> str:
    names = [f"{variant} in {regime}" if several else variant for variant, regime in group.places]
    open_ = group.answer in (Answer.UNDECIDED, Answer.NOT_MEASURED)
    return ", ".join(names) if len(names) <= MOST_NAMED or not (several or open_) else count(len(names))


def _problems(results: Results) -> Iterator[tuple[str, str]]:
    """What is damaged, and why the analysis is not of these records."""
    for problem in results.problems:
        yield problem.file, problem.text
    for reason in results.stale:
        yield "analysis.json", wording.stale(reason)


def _nothing(results: Results) -> str:
    """Why there is no answer; empty where there is one."""
    if results.verdict is not None and results.analysis is not None:
        return ""
    if results.analysis is None and not any(run.done for run in results.runs):
        return "No run has ended yet."
    damaged = [name for name in ("analysis.json", "verdict.json") if name in results.reader.damage]
    lacking = damaged[0] if damaged else "analysis.json" if results.analysis is None else "verdict.json"
    return f"No answer without {lacking}: ablationlab analyze {results.folder}"


def _key(shape: str, colour: str) -> str:
    """A variant's mark before its name."""
    mark = mark_svg(shape, colour, "8")
    return f'<svg class="key" width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">{mark}</svg>'


def _sign(word: str) -> str:
    drawn = _SIGNS.get(word)
    if drawn is None:
        return ""
    return f'<svg class="gl" viewBox="0 0 16 16" width="15" height="15" aria-hidden="true">{drawn}</svg>'


def _sides(axis: Axis) -> str:
    """Which side of zero is which; neither word leaves a narrow screen."""
    columns = f"grid-template-columns:minmax(max-content,{axis.at(0)}) minmax(max-content,1fr)"
    return f'<div class="sides" style="{columns}"><span>← better</span><span>worse →</span></div>'


def _legend(report: StudyReport) -> str:
    """The marks of the picture, each with its name."""
    line = (
        '<path d="M0 8h30" stroke="currentColor" stroke-width="3"/><circle cx="15" cy="8" r="5" fill="currentColor"/>'
    )
    rug = '<path d="M4 4v8M9 4v8M16 4v8" stroke="currentColor" stroke-width="1.4"/>'
    band = '<rect width="24" height="14" y="1" fill="currentColor" opacity=".12"/>'
    told = [(line, 30, level_text(report.answers)), (rug, 20, "one seed")]
    if smallest := smallest_text(report.answers):
        told.append((band, 24, f"smallest effect, {smallest}"))
    return "".join(
        f'<span><svg width="{width}" height="16" aria-hidden="true">{drawn}</svg>{html_text(text)}</span>'
        for drawn, width, text in told
    )


def _escaped(text: Any) -> Any:
    return lambda value: html_text(text(value))


def _files(report: StudyReport) -> dict[str, str]:
    """What the page's buttons save."""
    return {"name": f"{report.name}-forest", "light": forest_svg(report), "dark": forest_svg(report, dark=True)}


def _variables() -> str:
    """Every colour of `report.colours` in both themes; paper is light ground."""

    def rules(place: int) -> str:
        named = {"paper": PAPER, "ink": INK, "ink2": QUIET, "better": BETTER, "worse": WORSE}
        named |= {f"h{number}": hue for number, hue in enumerate(HUES)}
        grey = {"ink3": "#8b9098", "hair": "#2c3036", "panel": "#1a1d21"} if place else {}
        every = {name: pair[place] for name, pair in named.items()} | grey
        return ";".join(f"--{name}:{colour}" for name, colour in every.items())

    light, dark = rules(0), f"color-scheme:dark;{rules(1)}"
    return (
        f":root{{{light}}}\n@media screen{{:root[data-theme=dark]{{{dark}}}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
    )
