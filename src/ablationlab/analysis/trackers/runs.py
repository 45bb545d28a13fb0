"""What every tracker's reader gives: runs with their settings, final values and curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ablationlab.core.format import setting
from ablationlab.records.settings import flattened

#: A cell of a table, or a setting of a run.
Cell = str | float | int | bool | None


def as_step(number: float) -> float:
    """A step as it was counted: whole where it is, so that it is written without a fraction."""
    return int(number) if float(number).is_integer() else number


@dataclass(frozen=True)
class Curve:
    """One metric of one run, by step, which may be a part of an epoch; at equal steps the later value counts."""

    steps: tuple[float, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> Curve:
        ordered = sorted({as_step(step): value for step, value in points}.items())
        return cls(tuple(step for step, _ in ordered), tuple(value for _, value in ordered))

    def at(self, step: float) -> float | None:
        return dict(zip(self.steps, self.values, strict=True)).get(step)

    def best(self, direction: str) -> float:
        """The lowest or highest value; NaN where no value is finite."""
        finite = [value for value in self.values if math.isfinite(value)]
        return (min(finite) if direction == "lower" else max(finite)) if finite else math.nan

    def reaches(self, target: float, direction: str) -> float | None:
        """The step at which it is first at *target* or better, on the line between its two nearest values; None if it
        never is, minus infinity if its first value is."""
        sign = 1.0 if direction == "lower" else -1.0
        before: tuple[float, float] | None = None
        for step, value in zip(self.steps, self.values, strict=True):
            above = sign * (value - target)
            if above <= 0:
                return -math.inf if before is None else step - (step - before[0]) * above / (above - before[1])
            before = (step, above) if math.isfinite(above) else before
        return None

    def within(self, other: Curve) -> bool:
        """Whether all its points are points of *other*."""
        return set(zip(self.steps, self.values, strict=True)) <= set(zip(other.steps, other.values, strict=True))


@dataclass(frozen=True)
class TrackedRun:
    """A run as its tracker has it. *place* is where it was found: a line of a table, a folder.

    *state* is "" where the tracker says nothing of it, else "finished" or its own word ("crashed", "running"). *unreadable*
    says what is wrong with a curve, and where: a cell that is no number, or two values at one step, as of two runs. *holds*:
    the runs in its log, of which it is the first; 0 of the others.
    """

    place: str
    name: str
    cells: Mapping[str, Cell]
    curves: Mapping[str, Curve] = field(default_factory=dict)
    state: str = ""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    holds: int = 1


@dataclass(frozen=True)
class Point:
    """A value of a curve, and where it was read."""

    place: str
    step: float
    value: float


def repeated_step(points: Iterable[Point], advice: str) -> str | None:
    """What is wrong with a curve that has two values at one step."""
    first: dict[float, Point] = {}
    for point in points:
        other = first.setdefault(point.step, point)
        if other.value != point.value and not (math.isnan(other.value) and math.isnan(point.value)):
            return (
                f"{setting(point.value)} at step {setting(point.step)} in {point.place}, and {setting(other.value)} in "
                f"{other.place}: are these two runs? {advice}"
            )
    return None


def cells_of(table: Mapping[str, Any], prefix: str = "") -> dict[str, Cell]:
    """Nested settings as cells under dotted names."""
    return {
        name: value if value is None or isinstance(value, str | float | int | bool) else str(value)
        for name, value in flattened(table, prefix).items()
    }
