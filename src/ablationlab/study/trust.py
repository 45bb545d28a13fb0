"""Consent to code that a study carries: files of ``use``, its own trainer, task files that name Python functions.

A study file that you run is your own: its code is told and remembered by its hash. A results folder may come from someone
else: what it carries runs only if its hash is remembered, or on request (``--trust-code``), which remembers it. Entry points
of installed packages are not asked about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ablationlab.core.errors import CodeError, DataError, StorageError
from ablationlab.data.sources import cache_folder
from ablationlab.records.settings import Study
from ablationlab.records.storage import content_hash, replace, sha256_file

if TYPE_CHECKING:
    import yaml

#: Hashes that this process may run, should the user's folder not be writable.
_trusted: set[str] = set()
#: Tags of YAML that holds values alone.
_PLAIN = re.compile(r"tag:yaml\.org,2002:(?!python/).*")


def carried_code(study: Study, tasks: Iterable[str] | None = None) -> dict[str, str]:
    """What it would run, by name, with a hash of each. *tasks*: those of the study unless given."""
    code = {file.name: file.sha256 for file in study.use if not file.entry_point}
    trainer = study.trainer
    if trainer is not None and trainer.command is not None:
        code[" ".join(trainer.command)] = content_hash(["command", trainer.directory, *trainer.command])
    return code | task_code(study.evaluation.tasks if tasks is None else tasks)


def task_code(names: Iterable[str]) -> dict[str, str]:
    """Task files that name Python functions, objects or metrics, with a hash of everything they consist of."""
    code = {}
    for name in names:
        if (name.endswith((".yaml", ".yml")) or "/" in name) and (files := _files_with_code(Path(name))):
            code[name] = content_hash([sha256_file(file) for file in files])
    return code


def _files_with_code(path: Path) -> list[Path]:
    """A task's YAML files, and the Python files beside those that name code; none where no code is named.

    The harness imports whatever `!function` names, from the place that a link leads to. So every tag that is not of plain
    YAML counts, as does a file that cannot be parsed, or that its two parsers read differently.
    """
    from ablationlab.tasks.request import composed, included_by, nodes_of

    files: dict[Path, None] = {}
    waiting, runs = [path], False
    while waiting:
        here = waiting.pop()
        if not here.is_file() or (here := here.resolve()) in files:
            continue
        files[here] = None
        try:
            trees = [nodes_of(root) if root is not None else [] for root in composed(here, str(here))]
        except DataError:
            runs = True
            continue
        runs = runs or any(_content(tree) != _content(trees[0]) for tree in trees[1:])
        for tree in trees:
            tagged = [node for node in tree if not _PLAIN.fullmatch(node.tag)]
            metrics = _foreign_metrics(tree[0]) if tree else []
            runs = runs or bool(tagged) or bool(metrics)
            modules = [str(node.value).rpartition(".")[0].replace(".", "/") for node in tagged]
            folders = [here.parent, *((here.parent / f"{module}.py").parent for module in modules)] if tagged else []
            folders += [path if path.is_dir() else path.parent for path in map(Path, metrics) if path.exists()]
            for folder in dict.fromkeys(folders):
                files |= dict.fromkeys(sorted(folder.glob("*.py")))
            waiting += [here.parent / name for name in (included_by(tree[0]) if tree else ())]
    return list(files) if runs else []


def _content(nodes: Sequence[yaml.Node]) -> list[tuple[str, str]]:
    return [(node.tag, node.value if node.id == "scalar" else "") for node in nodes]


def _foreign_metrics(root: yaml.Node) -> list[str]:
    """Metrics that are not the harness's own: the library `evaluate` runs them as scripts, from a path or the hub."""
    from ablationlab.tasks.request import harness_metrics, values_of

    named = [node.value for node in values_of(root, "metric") if node.id == "scalar"]
    return named if values_of(root, "hf_evaluate") else [name for name in named if name not in harness_metrics()]


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
