"""One results folder to everything a reader wants: page, figures, tables, paper. The last step of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.verdict import decide
from ablationlab.core.errors import AblationLabError, StorageError
from ablationlab.records.results import Damage, Results

Part = Literal["page", "figures", "tables", "paper"]
PARTS: tuple[Part, ...] = ("page", "figures", "tables", "paper")
Say = Callable[[str], None]


def make_report(
    folder: Path, out: Path | None = None, *, parts: Iterable[Part] = PARTS, say: Say = print
) -> list[Path]:
    """Write the report of *folder* into *out* (the folder itself unless given) and give the paths that people open.

    A study that is not finished gives an interim report. A missing or outdated analysis is made anew where the records
    allow; where they do not, the page is written all the same and says why, and what rests on the analysis is left out.
    """
    from ablationlab.report.figures import draw_figures, saving
    from ablationlab.report.page import write_page

    target = out or folder
    wanted = set(parts)
    material = with_analysis(Results.open(folder), say)
    for problem in material.problems:
        say(f"{problem.file}: {problem.text}")
    if material.interim:
        say(f"Interim: {material.ended} of {len(material.runs)} runs have ended; nothing in this report is inference.")
    figures = draw_figures(material)
    written: list[Path] = []
    with saving(figures, target / "figures") if "figures" in wanted else nullcontext():
        if "page" in wanted:
            written.append(write_page(material, target, figures=figures))
        if "figures" in wanted:
            written.append(target / "figures")
        for part, write in _rest(material, target, figures):
            if part in wanted:
                try:
                    written += write()
                except StorageError:
                    raise
                except AblationLabError as error:
                    say(f"No {part}: {error}")
    return written


def _rest(material: Results, target: Path, figures: object) -> list[tuple[Part, Callable[[], list[Path]]]]:
    """The parts that need an analysis, as (name, how to write it)."""

    def tables() -> list[Path]:
        from ablationlab.report.tables import write_tables

        write_tables(material, target)
        return [target / "tables"]

    def paper() -> list[Path]:
        from ablationlab.report.paper import write_paper

        return [write_paper(material, target, figures=figures)]  # type: ignore[arg-type]

    return [("tables", tables), ("paper", paper)]


def with_analysis(material: Results, say: Say) -> Results:
    """The material with an analysis and a verdict of its records: those on disk where they are, else made now."""
    there = material.analysis is not None and material.verdict is not None and not material.stale
    if there or material.plan is None or not any(run.done for run in material.runs):
        return material
    if material.stale:
        say("The analysis on disk is not that of these records (" + "; ".join(material.stale[:2]) + "): made anew.")
    try:
        analysis = analyze(read_results(material.folder, None))
    except AblationLabError as error:
        # What is on disk then belongs to other records, or to none: it must not stand beside these.
        found = Damage("analysis.json", f"cannot be made from these records: {error}")
        return material.changed(
            analysis=None,
            verdict=None,
            stale=(),
            problems=(*material.problems, found),
        )
    verdict = decide(analysis)
    try:
        analysis.replace(material.folder / "analysis.json")
        verdict.replace(material.folder / "verdict.json")
    except StorageError:
        say(f"{material.folder} cannot be written: analysis.json and verdict.json are in the report alone.")
        return material.changed(
            analysis=analysis,
            verdict=verdict,
            stale=(),
        )
    return Results.open(material.folder)
