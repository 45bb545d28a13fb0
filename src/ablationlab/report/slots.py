"""A value as it is printed, with the field of a record that it is; and fixed clauses about such values."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Final, Literal

from ablationlab.core.format import DASH, count

#: How a text follows from the field: as it stands; as the change in percent, or the factor, of a logarithm; of a share.
Scale = Literal["as it is", "change", "factor", "percent"]


@dataclass(frozen=True)
class Slot:
    """A value as it is printed. *at*: its field, as ``analysis.json#/comparisons/0/delta``; *value*: what stands there."""

    text: str
    at: str = ""
    value: float | str | None = None
    scale: Scale = "as it is"

    def __str__(self) -> str:
        return self.text


#: Nothing to print.
NOTHING: Final = Slot(DASH)


def tally(value: int, at: str = "") -> Slot:
    return Slot(count(value), at, value)


def escaped(key: str) -> str:
    """A key in a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


@dataclass(frozen=True)
class Statement:
    """One fixed clause of statements.toml, with its slots."""

    code: str
    slots: Mapping[str, Slot] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return statements()[self.code].format_map(self.slots)


@cache
def statements() -> Mapping[str, str]:
    """Every clause by its code, as ``guards.kept``."""
    tables = tomllib.loads(files("ablationlab.report").joinpath("statements.toml").read_text(encoding="utf-8"))
    return {f"{section}.{code}": clause for section, clauses in tables.items() for code, clause in clauses.items()}
