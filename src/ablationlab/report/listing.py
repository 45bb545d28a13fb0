"""The studies and results below a folder: how far each is, and what it answered."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablationlab.analysis.conclusion import decided_again
from ablationlab.analysis.wording import stale
from ablationlab.core.errors import AblationLabError, RecordError, StudyError
from ablationlab.core.grouping import grouped
from ablationlab.core.paths import real_path
from ablationlab.records.results import Results
from ablationlab.records.storage import ResultsFolder, user_text
from ablationlab.records.verdict import Answer, Verdict
from ablationlab.study.load import load_study
from ablationlab.study.places import (
    default_folder,
    unchecked_tables,
)
from ablationlab.study.plan import run_count
from ablationlab.tasks.request import is_file

if TYPE_CHECKING:
    pass

#: How deep it looks, and folders that it does not enter.
_DEPTH = 4
_SKIPPED = frozenset({"node_modules", "runs", "figures", "tables", "wandb", "mlruns", "__pycache__", "site-packages"})


@dataclass(frozen=True)
class ListedResults:
    """A results folder: runs that *ended* of those planned; of a table, none. *answers*: names by answer word."""

    folder: Path
    ended: int
    planned: int
    diverged: int
    damaged: int
    answers: Mapping[Answer, tuple[str, ...]]
    problem: str = ""


@dataclass(frozen=True)
class ListedStudy:
    """A study file without results. *runs* is not known of one that carries code; *problems* are those of a broken one."""

    file: Path
    runs: int | None
    question: str
    problems: int = 0


@dataclass(frozen=True)
class Listing:
    """*unreadable*: folders by what is the matter with them."""

    folder: Path
    results: tuple[ListedResults, ...]
    studies: tuple[ListedStudy, ...]
    unreadable: Mapping[str, tuple[Path, ...]]


def listing(folder: Path) -> Listing:
    """Results, then study files that have none; what cannot be read stops nothing."""
    files, places, closed = _found(folder)
    results = []
    for place in places:
        try:
            results.append(_listed(place, Results.open(place)))
        except RecordError as error:
            closed[place] = error.seen_from(place).splitlines()[0]
    planned = {real_path(place) for place in places}
    studies = [study for file in files if (study := _waiting(file, folder, planned)) is not None]
    unreadable = {why: tuple(each) for why, each in grouped((why, place) for place, why in closed.items()).items()}
    return Listing(folder, tuple(results), tuple(studies), unreadable)


def _waiting(file: Path, folder: Path, planned: Collection[Path]) -> ListedStudy | None:
    tables = unchecked_tables(file)
    if _carries_code(tables):  # which only those who run the study should run
        return ListedStudy(file, None, str(tables.get("question", ""))) if _is_study(file) else None
    try:
        study = load_study(file)
    except StudyError as error:
        return ListedStudy(file, None, "", len(error.problems)) if _is_study(file) else None
    if {real_path(base / default_folder(study)) for base in (Path(), folder)} & set(planned):
        return None
    return ListedStudy(file, run_count(study), study.question)


def _found(folder: Path) -> tuple[list[Path], list[Path], dict[Path, str]]:
    """(TOML files, results folders, folders that cannot be read and why), not too deep."""
    files, places, level, closed = [], [], [folder], {}
    for _ in range(_DEPTH):
        below: list[Path] = []
        for here in level:
            try:
                inner = sorted(here.iterdir())
            except OSError as error:
                closed[here] = error.strerror or str(error)
                continue
            if {ResultsFolder(here).plan, here / "analysis.json"} & {*inner}:
                places.append(here)
                continue
            files += [path for path in inner if path.suffix == ".toml"]
            below += [path for path in inner if path.is_dir() and path.name not in _SKIPPED and path.name[0] != "."]
        level = below
    return files, places, closed


def _carries_code(tables: Mapping[str, Any]) -> bool:
    """Whether loading a study would run its code, or allow it to be run."""
    evaluation = tables.get("evaluation")
    tasks = evaluation.get("tasks") if isinstance(evaluation, dict) else None
    files = isinstance(tasks, list) and any(is_file(str(name)) for name in tasks)
    return files or not {"use", "command", "trainer"}.isdisjoint(tables)


def _is_study(file: Path) -> bool:
    """Whether a TOML file means to be a study; one that cannot be parsed, by its lines."""
    if tables := unchecked_tables(file):
        return not {"baseline", "variants"}.isdisjoint(tables) and not isinstance(tables.get("variants"), str)
    try:
        return re.search(r"^\[?(baseline|variants)\b", user_text(file, "study file"), re.MULTILINE) is not None
    except AblationLabError:
        return False


def _listed(place: Path, results: Results) -> ListedResults:
    results = decided_again(results)
    damage = results.reader.damage
    lost = damage.get("analysis.json") or damage.get("verdict.json")
    foreign = [reason for reason in results.stale if reason.code in ("other-plan", "other-analysis")]
    problem = f"{lost.file} {lost.text}" if lost else f"{stale(foreign[0])}. {Verdict.MEND}" if foreign else ""
    verdicts = () if results.verdict is None or problem else results.verdict.verdicts
    where = len(results.regimes) > 1
    answers = grouped((known.answer, f"{known.variant}{f' ({known.regime})' if where else ''}") for known in verdicts)
    states = [run.state for run in results.runs]
    return ListedResults(
        place,
        results.ended,
        len(states),
        states.count("diverged"),
        states.count("damaged"),
        {answer: tuple(names) for answer, names in answers.items()},
        problem,
    )
