"""From pydantic's validation errors to our `Problem`s: key, value, what is allowed, the nearest match."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ablationlab.core.errors import WRONG_TYPE, Problem, UnknownNameError, nearest

_LONGEST_VALUE = 80


def problems_of(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """One problem per thing wrong; the branches of a union that all failed count as one thing."""
    by_key: dict[str, Problem] = {}
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]:
            continue  # its elements are wrong, and are reported themselves
        location = _location(detail["loc"], data)
        problem = _problem(detail, location, model)
        if detail["type"] in _BRANCHES and problem.key in by_key:
            earlier = by_key[problem.key]
            allowed = " or ".join(dict.fromkeys(filter(None, (earlier.allowed, problem.allowed))))
            problem = replace(earlier, value=problem.value, allowed=allowed, nearest=earlier.nearest or problem.nearest)
        by_key[problem.key if detail["type"] != "value_error" else f"{problem.key}:{problem.message}"] = problem
    return list(by_key.values())


def _location(loc: Sequence[str | int], data: Any) -> tuple[str | int, ...]:
    """The part of pydantic's location that is in the user's file: names of union branches are dropped."""
    kept: list[str | int] = []
    here: Any = data
    for position, part in enumerate(loc):
        if isinstance(here, Mapping) and (part in here or position == len(loc) - 1):
            kept.append(part)
            here = here.get(part)
        elif isinstance(here, Sequence) and not isinstance(here, str) and isinstance(part, int):
            kept.append(part)
            here = here[part] if part < len(here) else None
        elif isinstance(here, Mapping):
            kept.append(part)
            here = None
    return tuple(kept)


def _key(location: Sequence[str | int]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _problem(detail: Any, location: tuple[str | int, ...], model: type[BaseModel]) -> Problem:
    key, kind, context = _key(location), detail["type"], detail.get("ctx", {})
    value = _shown(detail.get("input"))
    if kind == "extra_forbidden":
        allowed = _fields(model, location[:-1])
        near = nearest(str(location[-1]), allowed)
        return Problem(key, "unknown key", None, ", ".join(allowed), near, "unknown-key")
    if kind == "missing":
        return Problem(key, "is missing")
    if kind == "literal_error":
        choices = _choices(context["expected"])
        guess = nearest(str(detail["input"]), choices) if isinstance(detail["input"], str) else None
        return Problem(key, "is not an allowed value", value, ", ".join(choices), guess)
    if kind == "value_error":
        cause = context.get("error")
        if isinstance(cause, UnknownNameError):
            return Problem.unknown(key, cause.kind, cause.name, cause.allowed)
        return Problem(key, str(cause))
    if kind.endswith(("_type", "_parsing")):
        wanted = _WANTED.get(kind, detail["msg"].removeprefix("Input should be "))
        is_table = isinstance(detail["input"], Mapping)
        return Problem(key, WRONG_TYPE, value, wanted, kind="table-for-value" if is_table else None)
    if kind in _BOUNDS:
        return Problem(key, "is out of range", value, f"{_BOUNDS[kind][0]} {context[_BOUNDS[kind][1]]}")
    if kind == "finite_number":
        return Problem(key, "is not a finite number", value)
    if kind in ("too_short", "string_too_short"):
        least = context.get("min_length", 1)
        return (
            Problem(key, "must not be empty") if least < 2 else Problem(key, "is too short", value, f"{least} or more")
        )
    return Problem(key, detail["msg"].removeprefix("Input should be ").removeprefix("Value error, "), value)


#: Of a setting that may be of several types, each of which fails for itself.
_BRANCHES = ("literal_error", "bool_type", "float_type", "int_type", "string_type", "greater_than")
_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "int_from_float": "a whole number",
}
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def _choices(expected: str) -> list[str]:
    return [part.strip().strip("'\"") for part in expected.replace(" or ", ", ").split(",") if part.strip()]


def _shown(value: Any) -> str | None:
    if isinstance(value, BaseModel):
        return None
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _fields(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Field names of the table at *location*, by walking the annotations."""
    here: Any = model
    for part in location:
        if isinstance(part, int) or not (isinstance(here, type) and issubclass(here, BaseModel)):
            continue
        field = here.model_fields.get(str(part))
        here = _table_in(field.annotation) if field is not None else here
    if not (isinstance(here, type) and issubclass(here, BaseModel)):
        return []
    return [field.alias or name for name, field in here.model_fields.items()]


def _table_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        table = _table_in(inner)
        if table is not None:
            return table
    return None
