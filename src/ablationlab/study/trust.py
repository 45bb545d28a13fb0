"""Consent to code that a study carries: files of ``use``, its own trainer, task files.

A study file that you run is your own: its code is told and remembered by its hash. A results folder may come from someone
else: what it carries runs only if its hash is remembered, or on request (``--trust-code``), which remembers it. Entry points
of installed packages are not asked about.

Every task file counts as code. It may name Python functions and metrics in more ways than a search would find, and its
templates and loaders may write files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ablationlab.core.code import is_installed
from ablationlab.core.errors import CodeError, DataError, StorageError
from ablationlab.core.paths import real_path, user_path
from ablationlab.data.sources import cache_folder
from ablationlab.records.settings import Study, Trainer
from ablationlab.records.storage import content_hash, replace, sha256_file
from ablationlab.study.trainers import program_files

#: Hashes that this process may run, should the user's folder not be writable.
_trusted: set[str] = set()


class Carried(NamedTuple):
    """A piece of code: its name, which is its author's choice and tells nothing apart, and a hash of all that it is."""

    name: str
    sha256: str


def carried_code(study: Study, tasks: Iterable[str] | None = None) -> list[Carried]:
    """What it would run. *tasks*: those of the study unless given."""
    code = [Carried(file.name, file.sha256) for file in study.use if not is_installed(file.name, file.sha256)]
    if study.trainer is not None and study.trainer.command is not None:
        code.append(command_code(study.trainer))
    return code + task_code(study.evaluation.tasks if tasks is None else tasks)


def command_code(own: Trainer) -> Carried:
    """A trainer's command, with the files that it names as they are now."""
    words = own.command or ()
    return Carried(" ".join(words), content_hash(["command", own.directory, *words, program_files(own)]))


def task_code(names: Iterable[str]) -> list[Carried]:
    """Those that are task files, with a hash of everything they consist of."""
    files = [name for name in names if name.endswith((".yaml", ".yml")) or "/" in name]
    return [Carried(name, content_hash(_named_hashes(user_path(name)))) for name in files]


def _named_hashes(path: Path) -> list[tuple[str, str]]:
    """A task's YAML files, and the Python files beside those that name code: the harness imports whatever `!function` names,
    from the place that a link leads to."""
    from ablationlab.tasks.request import composed, included_by, is_plain, nodes_of, values_of

    files: dict[Path, None] = {}
    waiting = [path]
    while waiting:
        here = waiting.pop()
        if not here.is_file() or (here := real_path(here)) in files:
            continue
        files[here] = None
        try:
            trees = [nodes_of(root) if root is not None else [] for root in composed(here, str(here))]
        except DataError:
            continue
        for tree in filter(None, trees):
            tagged = [node for node in tree if not is_plain(node)]
            modules = [str(node.value).rpartition(".")[0].replace(".", "/") for node in tagged]
            folders = [here.parent, *((here.parent / f"{module}.py").parent for module in modules)] if tagged else []
            scripts = [Path(node.value) for node in values_of(tree[0], "metric") if node.id == "scalar"]
            folders += [script if script.is_dir() else script.parent for script in scripts if script.exists()]
            for folder in dict.fromkeys(folders):
                files |= dict.fromkeys(sorted(folder.glob("*.py")))
            waiting += [here.parent / name for name in included_by(tree[0])]
    root = path.parent
    return [(os.path.relpath(file, root), sha256_file(file)) for file in files]


def remember(code: Iterable[Carried]) -> None:
    """Let this code run from now on."""
    for name, sha256 in code:
        _trusted.add(sha256)
        path = cache_folder() / "trusted" / sha256
        if not path.exists():
            with suppress(StorageError, OSError):
                replace(path, f"{name}\n".encode())


def require_trust(code: Iterable[Carried], where: Path | str) -> None:
    """Raise `CodeError` if any of this code was never run or allowed here."""
    unknown = [
        f"{name} ({sha256[:12]})"
        for name, sha256 in code
        if sha256 not in _trusted and not (cache_folder() / "trusted" / sha256).exists()
    ]
    if unknown:
        listed = ", ".join(unknown)
        raise CodeError(
            f"{where} carries code that was never run here: {listed}. It would run with your rights. Read it; if you trust "
            "it, add --trust-code once to `ablationlab run`, `extend` or `evaluate` (in Python: trust_code=True)"
        )
