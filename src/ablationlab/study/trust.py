"""Consent to code that a study carries: files of ``use``, its own trainer, task files.

A study file that you run is your own: its code is told and remembered by its hash. A results folder may come from someone
else: what it carries runs only if its hash is remembered, or on request (``--trust-code``), which remembers it. Entry points
of installed packages are not asked about.

Every task file counts as code. It may name Python functions and metrics in more ways than a search would find, and its
templates and loaders may write files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ablationlab.core.code import is_installed
from ablationlab.core.errors import CodeError, DataError, StorageError
from ablationlab.data.sources import cache_folder
from ablationlab.records.settings import Study
from ablationlab.records.storage import content_hash, replace, sha256_file
from ablationlab.study.trainers import program_files

#: Hashes that this process may run, should the user's folder not be writable.
_trusted: set[str] = set()


def carried_code(study: Study, tasks: Iterable[str] | None = None) -> dict[str, str]:
    """What it would run, by name, with a hash of each. *tasks*: those of the study unless given."""
    code = {file.name: file.sha256 for file in study.use if not is_installed(file.name, file.sha256)}
    trainer = study.trainer
    if trainer is not None and trainer.command is not None:
        code[" ".join(trainer.command)] = content_hash(
            ["command", trainer.directory, *trainer.command, program_files(trainer)]
        )
    return code | task_code(study.evaluation.tasks if tasks is None else tasks)


def task_code(names: Iterable[str]) -> dict[str, str]:
    """Those that are task files, with a hash of everything they consist of."""
    files = [name for name in names if name.endswith((".yaml", ".yml")) or "/" in name]
    return {name: content_hash(_named_hashes(Path(name).expanduser())) for name in files}


def _named_hashes(path: Path) -> list[tuple[str, str]]:
    """A task's YAML files, and the Python files beside those that name code: the harness imports whatever `!function` names,
    from the place that a link leads to."""
    from ablationlab.tasks.request import composed, included_by, is_plain, nodes_of, values_of

    files: dict[Path, None] = {}
    waiting = [path]
    while waiting:
        here = waiting.pop()
        if not here.is_file() or (here := here.resolve()) in files:
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
    root = path.resolve().parent
    return [(os.path.relpath(file, root), sha256_file(file)) for file in files]


def remember(code: Mapping[str, str]) -> None:
    """Let this code run from now on."""
    _trusted.update(code.values())
    for name, sha256 in code.items():
        path = cache_folder() / "trusted" / sha256
        if not path.exists():
            with suppress(StorageError, OSError):
                replace(path, f"{name}\n".encode())


def require_trust(code: Mapping[str, str], where: Path | str) -> None:
    """Raise `CodeError` if any of this code was never run or allowed here."""
    unknown = [
        name
        for name, sha256 in code.items()
        if sha256 not in _trusted and not (cache_folder() / "trusted" / sha256).exists()
    ]
    if unknown:
        listed = ", ".join(f"{name} ({code[name][:12]})" for name in unknown)
        raise CodeError(
            f"{where} carries code that was never run here: {listed}. It would run with your rights. Read it; if you trust "
            "it, add --trust-code once to `ablationlab run`, `extend` or `evaluate` (in Python: trust_code=True)"
        )
