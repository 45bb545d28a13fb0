"""One results folder to everything a reader wants: page, figures, tables, paper. The last step of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ablationlab.core.errors import AblationLabError, StorageError
from ablationlab.core.grouping import grouped
from ablationlab.core.processes import require_memory
from ablationlab.records.results import Damage, Results
from ablationlab.records.storage import not_a_link, replace, sweep_abandoned

if TYPE_CHECKING:
    from ablationlab.report.figures import Figures

Part = Literal["page", "forest", "figures", "tables", "paper"]
PARTS: tuple[Part, ...] = ("page", "forest", "figures", "tables", "paper")
Say = Callable[[str], None]
#: Hears what is being written: its name, its number, and of how many.
Step = Callable[[str, int, int], None]


def make_report(
    folder: Path,
    out: Path | None = None,
    *,
    parts: Iterable[Part] = PARTS,
    say: Say = print,
    warn: Say | None = None,
    step: Step = lambda part, number, of: None,
) -> list[Path]:
    """Write the report of *folder* into *out* (the folder itself unless given) and give the paths that people open.

    A study that is not finished gives an interim report. A missing or outdated analysis is regenerated where the records
    allow; where they do not, the page is written all the same and says why, and what rests on the analysis is left out.
    *warn* hears of damaged files, and *say* where there is none.
    """
    from ablationlab.report.convert import LEAST_MEMORY, start_converters

    require_memory(LEAST_MEMORY, "the report")
    target = out or folder
    for place in ("figures", "tables", "paper", "paper/figures"):
        not_a_link(target / place)
    for place in ("", "figures", "tables", "paper", "paper/figures"):
        sweep_abandoned(target / place)
    wanted = set(parts)
    opened = Results.open(folder, cache={})
    charts = bool(wanted & {"figures", "paper"})
    if wanted & {"forest", "figures", "paper"}:
        start_converters()  # beside the imports that analysis and charts take
    if charts:
        read_drawn(opened)
    results = with_analysis(opened, say)
    from ablationlab.report.page.build import write_page

    for line in _problem_lines(results.problems):
        (warn or say)(line)
    if results.interim:
        say(f"Interim: {results.ended} of {len(results.runs)} runs have ended; nothing in this report is inference.")
    order = [*(["charts"] if charts else []), *(part for part in PARTS if part in wanted and part != "figures")]
    figures = None
    if charts:
        step(order[0], 1, len(order))
        figures = _drawn(results)
    written: list[Path] = []
    with _saving(figures if "figures" in wanted else None, target / "figures", say):
        if "page" in wanted:
            step("page", order.index("page") + 1, len(order))
            written.append(write_page(results, target))
        if "figures" in wanted:
            written.append(target / "figures")
        rest = [(part, write) for part, write in _rest(results, target, figures, say) if part in wanted]
        if rest and (results.analysis is None or results.verdict is None):
            say(f"No {' and no '.join(part for part, _ in rest)}: there is no analysis to print.")
            rest = []
        for part, write in rest:
            step(part, order.index(part) + 1, len(order))
            try:
                written += write()
            except StorageError:
                raise
            except AblationLabError as error:
                say(f"No {part}: {error}")
    return [path for path in written if path.exists()]  # where no chart could be drawn, there are no figures


def _drawn(results: Results) -> Figures:
    from altair.utils.schemapi import debug_mode

    from ablationlab.report.figures import draw_figures

    with debug_mode(False):  # Altair need not validate what tests draw validated: a fifth of the time
        return draw_figures(results)


def _saving(figures: Figures | None, folder: Path, say: Say) -> AbstractContextManager[None]:
    if figures is None:
        return nullcontext()
    from ablationlab.report.figures import saving

    return saving(figures, folder, say)


def read_drawn(results: Results) -> None:
    """Parse the curves that are drawn, which hashes them: each file is then read once, before anything is shown."""
    from ablationlab.report.charts.theme import drawn_seeds

    seeds = drawn_seeds(results)
    for run in results.compared:
        if run.seed in seeds:
            _ = run.curves


def _problem_lines(problems: Iterable[Damage]) -> list[str]:
    """A line per problem; what is wrong with many files is said once."""
    files = grouped((problem.text, problem.file) for problem in problems)
    return [
        f"{names[0]}{f' and {len(names) - 1} more files' if len(names) > 1 else ''}: {text}"
        for text, names in files.items()
    ]


def _rest(
    results: Results, target: Path, figures: Figures | None, say: Say
) -> list[tuple[Part, Callable[[], list[Path]]]]:
    """The parts that need an analysis, as (name, how to write it)."""

    def forest() -> list[Path]:
        return write_forest(results, target / "figures", say)

    def tables() -> list[Path]:
        from ablationlab.report.tables import write_tables

        write_tables(results, target)
        return [target / "tables"]

    def paper() -> list[Path]:
        from ablationlab.report.paper import write_paper

        return [write_paper(results, target, figures=figures, say=say)]

    return [("forest", forest), ("tables", tables), ("paper", paper)]


def write_forest(results: Results, folder: Path, say: Say) -> list[Path]:
    """forest.svg and forest.png, and both for a dark ground; the SVG has its font inside. What people open first."""
    from ablationlab.report import fonts
    from ablationlab.report.convert import NOT_DRAWN, not_drawn, png_of
    from ablationlab.report.forest import forest_svg
    from ablationlab.report.study_report import study_report

    report = study_report(results, results.analysis, results.verdict)
    for name, dark in (("forest", False), ("forest-dark", True)):
        picture = forest_svg(report, dark=dark)
        start = picture.index(">") + 1
        whole = f"{picture[:start]}<style>{fonts.css()}</style>{picture[start:]}"
        replace(folder / f"{name}.svg", whole.encode())
        try:
            replace(folder / f"{name}.png", png_of(picture))
        except NOT_DRAWN as error:
            for note in not_drawn({f"{name}.png": error}):
                say(note)
    return [folder / "forest.svg", folder / "forest.png"]


def with_analysis(results: Results, say: Say) -> Results:
    """The results with an analysis and a verdict of their records: those on disk where they are, else made now."""
    from ablationlab.analysis import read_results, wording
    from ablationlab.analysis.conclusion import conclude, decided_again

    results = decided_again(results)
    results.check_runs()
    _ = results.suite
    damaged = any(file.startswith(("runs", "evaluation/")) for file in results.reader.damage)
    there = results.analysis is not None and results.verdict is not None and not results.stale and not damaged
    if there or results.plan is None or not any(run.done for run in results.runs):
        return results
    try:
        concluded = conclude(read_results(results.folder, None, cache=results.reader.cache))
    except AblationLabError as error:
        # What is on disk then belongs to other records, or to none: it must not stand beside these.
        found = Damage("analysis.json", f"cannot be made from these records: {error}")
        return results.changed(analysis=None, verdict=None, stale=(), problems=(*results.problems, found))
    for name in ("analysis.json", "verdict.json"):
        if name in results.reader.damage:
            say(f"{name} cannot be used ({results.reader.damage[name].text}): regenerated from the records.")
    if results.stale:
        why = "; ".join(wording.stale(reason) for reason in results.stale[:2])
        say(f"The analysis on disk is not that of these records ({why}): regenerated.")
    try:
        concluded.write(results.folder)
    except StorageError:
        say(f"{results.folder} cannot be written: analysis.json and verdict.json are in the report alone.")
        return results.changed(
            analysis=concluded.analysis, verdict=concluded.verdict, courses=concluded.courses, stale=()
        )
    return Results.open(results.folder, cache=results.reader.cache)
