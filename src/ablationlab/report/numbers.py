"""Names the paper still uses for core.format's functions."""

from __future__ import annotations

from ablationlab.core.format import DASH as NONE
from ablationlab.core.format import MINUS as _MINUS
from ablationlab.core.format import NARROW as THIN
from ablationlab.core.format import (
    Difference,
    counted,
    level,
    number,
    p_clause,
    part,
    percent,
    setting,
    with_unit,
)
from ablationlab.core.format import amount as scaled
from ablationlab.core.format import count_word as count
from ablationlab.report.tables.comparisons import difference_of as shown

__all__ = [
    "NONE",
    "THIN",
    "Difference",
    "count",
    "counted",
    "level",
    "number",
    "p_clause",
    "part",
    "percent",
    "scaled",
    "setting",
    "shown",
    "signed",
    "tens",
    "with_unit",
]


def signed(text: str) -> str:
    """The sign of a number as a typographer sets it."""
    return text.replace("-", _MINUS)


def tens(text: str) -> str:
    """A number that Python writes with an exponent, as a power of ten."""
    return setting(float(text))
