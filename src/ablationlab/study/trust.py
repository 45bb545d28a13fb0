"""Consent to code that a study carries: files of ``use``, its own trainer, task files that name Python functions.

A study file that you run is your own: its code is told and remembered by its hash. A results folder may come from someone
else: what it carries runs only if its hash is remembered, or on request (``--trust-code``), which remembers it. Entry points
of installed packages are not asked about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ablationlab.core.errors import CodeError, StorageError
from ablationlab.data.sources import cache_folder
from ablationlab.records.settings import Study
from ablationlab.records.storage import content_hash, read_regular, replace, sha256_file

#: Hashes that this process may run, should the user's folder not be writable.
_trusted: set[str] = set()
_INCLUDED = re.compile(r"^\s*include\s*:\s*(.+?)\s*$", re.MULTILINE)


def carried_code(study: Study, tasks: Iterable[str] | None = None) -> dict[str, str]:
    """What it would run, by name, with a hash of each. *tasks*: those of the study unless given."""
    code = {file.name: file.sha256 for file in study.use if not file.entry_point}
    trainer = study.trainer
    if trainer is not None and trainer.command is not None:
        code[" ".join(trainer.command)] = content_hash(["command", trainer.directory, *trainer.command])
    return code | task_code(study.evaluation.tasks if tasks is None else tasks)


def task_code(names: Iterable[str]) -> dict[str, str]:
    """Task files that name Python functions, with a hash of everything they consist of."""
    code = {}
    for name in names:
        if name.endswith((".yaml", ".yml")) or "/" in name:
            files = _task_files(Path(name))
            if any(file.suffix == ".py" for file in files):
                code[name] = content_hash([sha256_file(file) for file in files])
    return code


def _task_files(path: Path) -> list[Path]:
    """A task's YAML files, and the Python files beside those that name functions."""
    files: dict[Path, None] = {}
    waiting = [path]
    while waiting:
        here = waiting.pop()
        if here in files or not here.is_file():
            continue
        files[here] = None
        text = read_regular(here).decode(errors="replace")
        if "!function" in text:
            files |= dict.fromkeys(sorted(here.parent.glob("*.py")))
        waiting += [here.parent / name.strip("'\"") for name in _INCLUDED.findall(text)]
    return list(files)


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
