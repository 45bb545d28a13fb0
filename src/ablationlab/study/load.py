"""The study file: one TOML document, validated whole before anything runs.

`load_study` reports every problem at once, each with its key, its value, what is allowed and the nearest match.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ablationlab.core.code import CodeFile, using
from ablationlab.core.code import load as load_code
from ablationlab.core.errors import AblationLabError, CodeError, Problem, StudyError, nearest
from ablationlab.core.format import count
from ablationlab.core.paths import user_path, with_home
from ablationlab.core.problems import problems_of
from ablationlab.model.parts import MLPS, PARTS
from ablationlab.records.settings import Factors, ModelConfig, Study, flattened, looks_like_path, merged, validated
from ablationlab.records.storage import TOO_LONG, user_tables
from ablationlab.study.checks import cross_checks
from ablationlab.study.code import found_code
from ablationlab.study.text import read_text, text_problems
from ablationlab.study.trainers import SCRIPTS, TRAINER_KEYS, has_own_trainer, with_trainer
from ablationlab.study.trust import carried_code, remember
from ablationlab.study.variants import VARIANTS

#: Levels of tables and lists in a study file; the deepest setting has six.
DEEPEST = 20
#: Characters of a text or a name, items of a list or a table, and whole numbers of a list, which may be seeds. The texts of
#: the paper are limited by their file.
LONGEST_TEXT, MOST_ITEMS, MOST_NUMBERS = 10_000, 1_000, 20_000
_TOO_DEEP = Problem("", f"tables and lists are nested more than {DEEPEST} deep")


def _too_large(data: Mapping[str, Any]) -> Problem | None:
    """The first value that is nested too deeply, too long, or holds too much, found one level at a time."""
    level: list[tuple[str, Any]] = [("", {key: value for key, value in data.items() if key != "text"})]
    items = 0
    for _ in range(DEEPEST + 1):
        below: list[tuple[str, Any]] = []
        for key, value in level:
            inner: Iterable[tuple[str, Any]] = ()
            if isinstance(value, str) and len(value) > LONGEST_TEXT:
                return Problem(key, f"has {count(len(value))} characters", allowed=f"up to {count(LONGEST_TEXT)}")
            if isinstance(value, Mapping):
                if any(len(str(name)) > LONGEST_TEXT for name in value):
                    return Problem(key, "has a key that is too long", allowed=f"up to {count(LONGEST_TEXT)} characters")
                inner = ((f"{key}.{name}".lstrip("."), item) for name, item in value.items())
            elif isinstance(value, list | tuple):
                inner = ((f"{key}[{number}]", item) for number, item in enumerate(value))
            if inner:
                items += len(value)
                numbers = isinstance(value, list | tuple) and all(type(item) is int for item in value)
                most = MOST_NUMBERS if numbers else MOST_ITEMS
                if len(value) > most or items > 5 * MOST_NUMBERS:
                    return Problem(key, f"has {count(len(value))} items", allowed=f"up to {count(most)}")
                below += inner
        level = below
    return _TOO_DEEP if any(isinstance(value, Mapping | list | tuple) for _, value in level) else None


def parse_study(data: Mapping[str, Any], source: str = "study", folder: Path | None = None) -> Study:
    """Validate a study given as nested tables; raises `StudyError` with every problem. Paths of ``use`` are relative to
    *folder*, or to the current one. The code there is run, for what it registers may be named in the study."""
    if problem := _too_large(data):
        raise StudyError(source, [problem])
    given = data = dict(data)
    code, problems = found_code(data, folder or Path.cwd())
    if "use" in data:
        data["use"] = code
    files = [CodeFile(**{**entry, "path": Path(entry["path"])}) for entry in code] if not problems else []
    if not problems:
        try:
            load_code(files)
        except CodeError as error:
            problems.append(Problem("use", str(error)))
            files = []
    broken_code = bool(problems)
    with using(files):
        data = with_tables(with_trainer(with_factors(data, problems)))
        study, of_study = _validated(data)
        of_study += cross_checks(data)
    of_study = [_part_by_name(problem) for problem in of_study]
    if broken_code:
        of_study = [problem for problem in of_study if not _may_be_of_code(problem)]
    if "variants" not in data and "factors" in given:  # the factors are wrong, so nothing came of them
        of_study = [problem for problem in of_study if problem.key not in ("baseline", "variants")]
    problems += of_study
    if study is not None and study.text is not None:
        problems += text_problems(study.text)
    if problems:
        raise StudyError(source, list(dict.fromkeys(problems)))
    assert study is not None
    remember(carried_code(study))
    return study


#: What other programs call the setting that `model.mlp` is.
_ACTIVATIONS = ("activation", "activation_function", "hidden_act", "nonlinearity")


def _part_by_name(problem: Problem) -> Problem:
    """A part that is given as other programs have it, answered with how it is written here."""
    setting = problem.key.rpartition(".")[2]
    if setting in _ACTIVATIONS and problem.kind == "unknown-key":
        return replace(problem, allowed=f"mlp, which names the activation: {', '.join(MLPS)}", nearest="mlp")
    if setting not in PARTS or problem.kind != "table-for-value":
        return problem
    beside = [name for name in ModelConfig.model_fields if name.startswith(f"{setting}_")]
    beside = [f"model.{name}" for name in beside] + ["model.options for a part of your own"]
    return replace(
        problem, allowed=f'a name, such as "{next(iter(PARTS[setting]))}"; its settings are {", ".join(beside)}'
    )


def _may_be_of_code(problem: Problem) -> bool:
    """Whether it may be gone once the study's own code, which could not be run, registers what it should."""
    return problem.kind == "unknown-name" or problem.key == "metrics"


def _validated(data: Mapping[str, Any]) -> tuple[Study | None, list[Problem]]:
    try:
        return validated(Study, data), []
    except ValidationError as error:
        return None, [_where_written(problem) for problem in problems_of(error, Study, data)]


def with_factors(data: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """A study whose ``[factors]`` are expanded to a ``[variants.NAME]`` table for every cell; the first is the baseline."""
    table = data.get("factors")
    if not isinstance(table, Mapping) or "levels" in table:  # already read, or no table at all
        return dict(data)
    others = {key: table[key] for key in ("design", "effects") if key in table}
    named = {
        key: {level: flattened(settings) for level, settings in value.items()}
        for key, value in table.items()
        if isinstance(value, Mapping) and all(isinstance(level, Mapping) for level in value.values())
        if key not in ("model", "training", "data", *others)
    }
    levels = flattened({key: value for key, value in table.items() if key not in (*others, *named)})
    # In the order of the file: the first factor varies slowest.
    order = {key: position for position, key in enumerate(table)}
    levels |= {key: list(value) for key, value in named.items()}
    levels = dict(sorted(levels.items(), key=lambda item: order.get(item[0], order.get(item[0].partition(".")[0], 0))))
    found = {**data, "factors": {"levels": levels, "named": named, **others}}
    if "variants" in data:
        problems.append(Problem("variants", "[factors] make the variants of a study; leave one of the two out"))
        return found
    try:
        factors = validated(Factors, found["factors"])
    except ValidationError as error:
        problems += [
            replace(problem.under("factors"), key=f"factors.{problem.key.removeprefix('levels.')}".rstrip("."))
            for problem in problems_of(error, Factors, found["factors"])
        ]
        return {key: value for key, value in found.items() if key != "factors"}
    cells = {name: _nested(factors.settings(cell)) for name, cell in factors.cells().items()}
    for name, cell in factors.cells().items() if named else ():
        cells[name]["about"] = ", ".join(f"{key} {level}" for key, level in cell.items())
    return {"baseline": next(iter(cells)), **found, "variants": cells}


def _nested(cell: Mapping[str, Any]) -> dict[str, Any]:
    tables: dict[str, Any] = {}
    for key, value in cell.items():
        *path, last = key.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    return tables


def with_tables(data: Mapping[str, Any]) -> dict[str, Any]:
    """A study whose ``[variants.NAME]`` tables stand apart from the names; an empty one of a known variant is that itself."""
    variants = data.get("variants")
    if not isinstance(variants, Mapping):
        return dict(data)
    return {
        **data,
        "variants": list(variants),
        "tables": {name: table for name, table in variants.items() if table != {} or name not in VARIANTS},
    }


def _where_written(problem: Problem) -> Problem:
    if problem.kind == "unknown-key" and "." not in problem.key:
        allowed = [*(key for key in Study.model_fields if key != "tables"), *TRAINER_KEYS]
        return replace(problem, allowed=", ".join(allowed), nearest=nearest(problem.key, allowed))
    key = re.sub(r"^trainer\.(settings\.)?(?!name$)", "", problem.key).replace("trainer.name", "trainer")
    return replace(problem, key=re.sub(r"^tables\b", "variants", key))


def load_study(path: Path, overrides: Iterable[str] = ()) -> Study:
    """Read, override and validate a study file; a path in it, of a corpus or the paper's text, is relative to the file."""
    try:
        data = user_tables(path, "study file")
    except AblationLabError as error:
        beside = [*path.parent.glob("*.toml"), *(file.parent for file in path.parent.glob("*/plan.lock"))]
        siblings = [] if path.exists() else sorted(map(str, beside))
        raise StudyError(str(path), [Problem("", str(error), nearest=nearest(str(path), siblings))]) from error
    _resolve_paths(data, path.parent, str(path))
    wrong = [problem for override in overrides for problem in _apply_override(data, override)]
    if wrong:
        raise StudyError("--set", wrong)
    _resolve_paths(data, Path.cwd(), "--set")
    return parse_study(data, str(path), path.parent)


def _resolve_paths(data: dict[str, Any], folder: Path, source: str) -> None:
    """Read the paper's text, and make corpora given by path absolute.

    In a file, paths are relative to the file; in --set, to the current folder.
    """
    if isinstance(data.get("text"), str) and len(data["text"]) > LONGEST_TEXT:
        raise StudyError(source, [Problem("text", "is no usable path: it is too long")])
    if isinstance(data.get("text"), str):
        data["text"] = read_text(folder / with_home(data["text"]), source)
    command = data.get("command")
    if isinstance(command, list):  # it runs in its directory, so that it does the same from anywhere
        directory = user_path(str(data.get("directory", ".")), folder)
        data["directory"] = str(directory)
        data["command"] = [_program_file(word, directory) for word in command]
    if "reuse" in data:
        data["reuse"] = _results_folders(data["reuse"], folder)
    if has_own_trainer(data):
        return  # its [data] is its own trainer's
    tables = {"data": data.get("data")}
    variants = data.get("variants")
    for name, variant in variants.items() if isinstance(variants, dict) else ():
        tables[f"variants.{name}.data"] = variant.get("data") if isinstance(variant, dict) else None
    for key, table in tables.items():
        if not isinstance(table, dict):
            continue
        corpus, mixture = table.get("corpus"), table.get("mixture")
        if isinstance(corpus, str):
            table["corpus"] = _resolved(corpus, folder, source, f"{key}.corpus")
        if isinstance(mixture, dict):
            table["mixture"] = {_resolved(name, folder, source, f"{key}.mixture"): mixture[name] for name in mixture}


def _results_folders(given: Any, folder: Path) -> Any:
    """Folders of ``reuse``, seen from the study file, or from the current folder where there is none."""
    paths = [given] if isinstance(given, str) else given
    if not isinstance(paths, list) or not all(isinstance(path, str) and "\0" not in path for path in paths):
        return given
    seen = [user_path(path, folder) for path in paths]
    return [str(there if there.exists() else user_path(path)) for path, there in zip(paths, seen, strict=True)]


def _program_file(word: Any, folder: Path) -> Any:
    """A word that names a file in *folder*, or that can only be a script, as a whole path."""
    if not isinstance(word, str) or "{" in word or "\0" in word or word.startswith("-"):
        return word
    path = user_path(word, folder)
    found = "/" in word and path.is_file()
    return str(path) if found or word.endswith(SCRIPTS) else word


def _resolved(corpus: str, folder: Path, source: str, key: str) -> str:
    if not looks_like_path(corpus):
        return corpus
    if str(with_home(corpus)).startswith("~"):
        raise StudyError(source, [Problem(key, "is no usable path: there is no such home", repr(corpus))])
    try:
        return str(user_path(corpus, folder))
    except (ValueError, OSError) as error:
        raise StudyError(source, [Problem(key, f"is no usable path: {error}", repr(corpus))]) from error


def _apply_override(data: dict[str, Any], override: str) -> list[Problem]:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        return [Problem(repr(override), "expected key=value, for example --set training.steps=100")]
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except RecursionError:
        return [replace(_TOO_DEEP, key=key.strip())]
    except ValueError:
        return [Problem(key.strip(), TOO_LONG)]
    table = data
    if parts[-1] in ("steps", "tokens") and parts[-2:-1] == ["training"]:
        _forget_budget(data, parts[:-1])
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return [Problem(repr(override), f"{part!r} is a value, not a table")]
    if isinstance(value, dict) and isinstance(table.get(parts[-1]), dict):
        value = merged(table[parts[-1]], value)
    table[parts[-1]] = value
    return []


def _forget_budget(data: dict[str, Any], path: Sequence[str]) -> None:
    """Steps given on the command line take the place of tokens in the file, and the other way round."""
    table: Any = data
    for part in path:
        table = table.get(part) if isinstance(table, dict) else None
    if isinstance(table, dict):
        for name in ("steps", "tokens"):
            table.pop(name, None)
