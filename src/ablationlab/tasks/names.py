"""Names that may stand for tasks, known without loading anything heavy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from typing import Literal

#: All tasks that are built from the held-out text.
SUITE_GROUP = "suite"
#: All real benchmarks that are read from local files.
BENCHMARK_GROUP = "benchmarks"
#: Before a name: the harness's own task with its own data source, which needs the internet.
STOCK = "harness:"
#: Names that are suggested in the place of an unknown one, at most.
MOST_ALIKE = 8


@dataclass(frozen=True)
class Question:
    """What was asked for, before it is resolved."""

    tasks: tuple[str, ...]
    fewshot: tuple[int, ...]
    templates: Literal["one", "all"]
    items: int | None


def alike(name: str, names: Sequence[str]) -> list[str]:
    """Of thousands of names those that may be meant: spelt like it, or with all of its parts in them; the likeliest first.

    Of two that are as likely, the one that stands first.
    """
    wanted = name.lower()
    parts = [part for part in re.split(r"[^a-z0-9]+", wanted) if part]
    holding = [one for one in names if parts and all(part in one.lower() for part in parts)]
    spelt = get_close_matches(wanted, [one.lower() for one in names], n=2 * MOST_ALIKE, cutoff=0.6)
    candidates = {*holding, *(one for one in names if one.lower() in spelt)}

    def likeness(one: str) -> float:
        begins = 0.1 if parts and one.lower().startswith(parts[0]) else 0.0
        return SequenceMatcher(None, wanted, one.lower()).ratio() + (0.2 + begins if one in held else 0.0)

    held = set(holding)
    place = {one: number for number, one in enumerate(names)}
    return sorted(candidates, key=lambda one: (-likeness(one), place[one]))[:MOST_ALIKE]
