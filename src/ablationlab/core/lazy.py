"""Names that a package exports without importing their modules first, so that importing one module of it stays light."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_exports(package: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: what it imports under ``if TYPE_CHECKING:`` is imported on first use."""

    @cache
    def home_of() -> dict[str, str]:
        source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
        blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
        imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: node.module or "" for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if not name.startswith("__") and name in home_of():
            return getattr(import_module(home_of()[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
