"""Names that may stand for tasks, known without loading anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: All tasks that are built from the held-out text.
SUITE_GROUP = "suite"
#: All real benchmarks that are read from local files.
BENCHMARK_GROUP = "benchmarks"
#: Before a name: the harness's own task with its own data source, which needs the internet.
STOCK = "harness:"


@dataclass(frozen=True)
class Question:
    """What was asked for, before it is resolved."""

    tasks: tuple[str, ...]
    fewshot: tuple[int, ...]
    templates: Literal["one", "all"]
    items: int | None
