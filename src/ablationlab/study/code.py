"""The study's own code: found when it is loaded, kept with the results, run from there by whoever trains or evaluates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ablationlab.core.code import CodeFile, activate, find, using
from ablationlab.core.errors import WRONG_TYPE, CodeError, Problem
from ablationlab.records.settings import Study
from ablationlab.records.storage import ResultsFolder, inside, make_folder, replace, sha256_file
from ablationlab.study.trust import carried_code, require_trust, task_code


def found_code(data: Mapping[str, Any], folder: Path) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The entries of ``use`` with what they contain, and what is wrong with them."""
    entries = data.get("use")
    if not isinstance(entries, list):
        return [], [] if entries is None else [Problem("use", WRONG_TYPE, repr(entries), "a list of files")]
    read: list[dict[str, Any]] = []
    problems = []
    for position, entry in enumerate(entries):
        if isinstance(entry, Mapping):  # found before
            if not all(isinstance(entry.get(key), str) for key in ("name", "path", "sha256")):
                problems.append(Problem(f"use[{position}]", WRONG_TYPE, repr(dict(entry)), "the path of a file"))
                continue
            read.append({key: entry[key] for key in ("name", "path", "sha256", "entry_point") if key in entry})
            continue
        try:
            code = find(str(entry), folder)
        except CodeError as error:
            problems.append(Problem(f"use[{position}]", str(error)))
            continue
        if any(code.name == other["name"] for other in read):
            problems.append(
                Problem(f"use[{position}]", "has the name of another; the copies stand in one folder", code.name)
            )
        read.append({"name": code.name, "path": str(code.path), "sha256": code.sha256, "entry_point": code.entry_point})
    return read, problems


def code_files(study: Study, results: ResultsFolder | None = None) -> tuple[CodeFile, ...]:
    """The files to run: the copies in a results folder where it has them, else those that the study names."""
    files = []
    for code in study.use:
        copy = None if results is None or code.entry_point else inside(results.code, code.name)
        path = Path(code.path)
        if copy is not None and copy.exists() and (sha256_file(copy) == code.sha256 or not path.exists()):
            path = copy
        if not path.exists():
            raise CodeError(
                f"{path} is not there: the study uses this code (sha256 {code.sha256[:12]}), so it cannot be trained or "
                "evaluated without it. What is recorded can be analyzed and reported"
            )
        files.append(CodeFile(code.name, path, code.sha256, code.entry_point))
    return tuple(files)


@contextmanager
def study_code(study: Study, results: ResultsFolder | None = None) -> Iterator[None]:
    """Have what the study's own code registers in all registries meanwhile."""
    require_trust(carried_code(study, ()), study.name if results is None else results.path)
    with using(code_files(study, results)):
        yield


def activate_code(study: Study, results: ResultsFolder) -> None:
    """The same for the rest of a worker's life."""
    activate(code_files(study, results))


def keep_code(study: Study, results: ResultsFolder) -> None:
    """Copy the study's own code into the results folder, before its plan is sealed."""
    for code in study.use:
        if code.entry_point:
            continue
        data = Path(code.path).read_bytes()
        if hashlib.sha256(data).hexdigest() != code.sha256:
            raise CodeError(f"{code.path} has changed while the study was planned; plan again")
        make_folder(results.code)
        replace(inside(results.code, code.name), data)


def code_notice(study: Study) -> str:
    """What the user is told before anything runs."""
    names = ", ".join(f"{code.name} (sha256 {code.sha256[:12]})" for code in study.use)
    names = ", ".join(filter(None, [names, *(task.name for task in task_code(study.evaluation.tasks))]))
    return f"This study runs your own code and task files, in every worker, with your rights: {names}" if names else ""
