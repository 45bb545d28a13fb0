"""What a terminal shows of a folder of studies: a line each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from ablationlab.core.format import DASH, count
from ablationlab.report.listing import ListedResults, ListedStudy, Listing
from ablationlab.report.slots import Slot, Statement
from ablationlab.report.table import Table

#: Answers that are named; more are counted.
MOST_NAMED = 4


def listing_view(found: Listing, width: int) -> Iterator[RenderableType]:
    """Results with their state and answers, what cannot be read, then study files that have none."""
    if found.results:
        rows = [(_shown(each.folder, found.folder), _state(each), _answers(each)) for each in found.results]
        yield Table.simple("Results", ["folder", "runs", "answers"], rows).terminal()
    for why, places in found.unreadable.items():
        names = ", ".join(_shown(place, found.folder) for place in places)
        yield _said("ls.unreadable", names=names, why=why)
    if found.studies:
        files = [_shown(each.file, found.folder) for each in found.studies]
        room = max(20, width - 12 - max(map(len, files)))
        rows = [
            (file, DASH if each.runs is None else count(each.runs), _question(each, room))
            for file, each in zip(files, found.studies, strict=True)
        ]
        yield Table.simple("Studies without results", ["file", "runs", "question"], rows, ["runs"]).terminal()
    if not (found.results or found.studies or found.unreadable):
        yield _said("ls.nothing", folder=str(found.folder))


def _said(code: str, **slots: str) -> Text:
    return Text(Statement(code, {name: Slot(text) for name, text in slots.items()}).text)


def _question(study: ListedStudy, room: int) -> str:
    if study.problems:
        return _said("ls.problems", n=count(study.problems), file=str(study.file)).plain
    text = study.question
    return text if len(text) <= room else f"{text[: room - 1].rstrip()}…"


def _state(results: ListedResults) -> str:
    """``10 of 12, diverged 1``"""
    state = f"{results.ended} of {results.planned}" if results.planned else "table"
    odd = {"diverged": results.diverged, "damaged": results.damaged}
    return ", ".join([state, *(f"{name} {n}" for name, n in odd.items() if n)])


def _answers(results: ListedResults) -> str:
    """``better: layernorm; same: rmsnorm``; of many, how many."""
    if results.problem:
        return results.problem
    named = sum(map(len, results.answers.values())) <= MOST_NAMED
    told = {answer: ", ".join(names) if named else count(len(names)) for answer, names in results.answers.items()}
    return "; ".join(f"{answer}: {names}" for answer, names in told.items()) or DASH


def _shown(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path != folder and path.is_relative_to(folder) else str(path)
