"""What the fields of a class mean, read from its source: for the schema of study files and the generated reference."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from types import ModuleType


@cache
def meanings(kind: type) -> dict[str, str]:
    """The text behind each field: the string below it, else the comment beside or above it. Inherited ones come first."""
    found: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        module = inspect.getmodule(parent)
        if module is not None and module.__name__.partition(".")[0] == kind.__module__.partition(".")[0]:
            found |= _of_module(module).get(parent.__qualname__, {})
    return found


@cache
def _of_module(module: ModuleType) -> dict[str, dict[str, str]]:
    source = inspect.getsource(module)
    lines = source.splitlines()
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return {node.name: _of_class(node, lines) for node in classes}


def _of_class(node: ast.ClassDef, lines: list[str]) -> dict[str, str]:
    found = {}
    for field, below in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        match below:
            case ast.Expr(value=ast.Constant(value=str(text))):
                found[field.target.id] = " ".join(text.split())
            case _:
                found[field.target.id] = _comment(lines, field)
    return found


def _comment(lines: list[str], field: ast.AnnAssign) -> str:
    assert field.end_lineno is not None
    end = lines[field.end_lineno - 1].encode()[field.end_col_offset :].decode()
    beside = re.fullmatch(r"\s*#\s*(.*)", end)
    if beside is not None:
        return beside[1]
    above: list[str] = []
    for line in reversed(lines[: field.lineno - 1]):
        if not line.lstrip().startswith("#"):
            break
        above.insert(0, line.lstrip(" #:"))
    return " ".join(above)
