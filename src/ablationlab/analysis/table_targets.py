"""Curves of a user's table: runs that stand twice, and the steps that each run takes to a target."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from ablationlab.analysis.dataset import Absent, absent
from ablationlab.analysis.trackers import Curve
from ablationlab.core.format import setting
from ablationlab.records.analysis import Absence, Deviation, DeviationCode

if TYPE_CHECKING:
    from ablationlab.analysis.from_table import TableProblems, TableRow

#: Two runs do not share so many different values by accident.
_SHARED: Final = 5
#: (variant, regime, seed)
Run = tuple[str, str, str]


def without_copies(rows: Sequence[TableRow], *, unpaired: bool) -> tuple[list[TableRow], list[Deviation]]:
    """The rows, and what runs share a curve; of those of one independent arm only the longest is left."""
    runs: dict[Run, dict[tuple[str, str | None], Curve]] = {}
    for row in rows:
        if row.curve is not None:
            runs.setdefault((row.variant, row.regime, row.seed), {})[row.metric, row.task] = row.curve
    alike: dict[tuple[object, ...], list[Run]] = {}
    for run, curves in sorted(runs.items(), key=lambda item: -sum(len(curve.steps) for curve in item[1].values())):
        ends = [(metric, curve.steps[-_SHARED:], curve.values[-_SHARED:]) for metric, curve in curves.items()]
        if any(len({*curve.values}) >= _SHARED for curve in curves.values()):
            alike.setdefault((run[1], *ends), []).append(run)
    copies: dict[Run, str] = {}
    across: list[str] = []
    for group in alike.values():
        for place, run in enumerate(group):
            same = [
                other
                for other in group[:place]
                if all(c.within(runs[other][metric]) for metric, c in runs[run].items())
            ]
            own = next((other for other in same if other[0] == run[0]), None)
            if own is not None:
                copies[run] = f"{run[0]} {run[2]} = {own[2]}"
            across += [f"{run[0]} {run[2]} = {other[0]} {other[2]}" for other in same if other[0] != run[0] and not own]
    if unpaired:
        rows = [row for row in rows if (row.variant, row.regime, row.seed) not in copies]
    details: dict[str, JsonValue] = {"runs": [*copies.values(), *across]}
    return list(rows), [Deviation(code=DeviationCode.COPIED_RUNS, about="runs", details=details)] if details[
        "runs"
    ] else []


def steps_to_target(
    rows: Iterable[TableRow], name: str, target: float, direction: str, problems: TableProblems
) -> tuple[list[TableRow], list[Deviation]]:
    """Each run's steps to the target, as the metric *name*; a run that does not reach it needs more than it has.

    And which never do, and where the values around the target are farther apart in one arm than in another.
    """
    found: list[TableRow] = []
    gaps: dict[str, float] = {}
    runs: dict[str, list[bool]] = {}  # of each arm, whether it reaches it
    for row in rows:
        measured = row.metric
        if row.curve is None:
            problems.at(row.place, f"{measured} has no steps, so its steps to {setting(target)} are unknown")
            continue
        value, reached = row.value, row.curve.reaches(target, direction)
        if reached == -math.inf:
            first = f"{measured} is at {setting(target)} at its first step, {setting(row.curve.steps[0])}"
            problems.at(row.place, f"{first}: its steps to it are unknown; leave it out with --where")
        elif reached is not None:
            value, after = reached, bisect_left(row.curve.steps, reached)
            gaps[row.variant] = max(gaps.get(row.variant, 0), row.curve.steps[after] - row.curve.steps[after - 1])
        elif not isinstance(value, Absent):
            value = absent(Absence.NOT_REACHED, target=target, step=row.curve.steps[-1])
        if reached is not None or (isinstance(value, Absent) and value.reason == Absence.NOT_REACHED):
            runs.setdefault(row.variant, []).append(reached is not None)
        found.append(replace(row, metric=name, value=value, measured=measured))
    never: list[JsonValue] = [
        f"{arm}: {each.count(False)} of {len(each)}" for arm, each in runs.items() if not all(each)
    ]
    noted = [Deviation(code=DeviationCode.UNREACHED_TARGET, about=name, details={"runs": never})] if never else []
    least, most = min(gaps.values(), default=0.0), max(gaps.values(), default=0.0)
    if not math.isclose(least, most, rel_tol=1e-6):
        apart: dict[str, JsonValue] = {"least": least, "most": most}
        noted.append(Deviation(code=DeviationCode.COARSE_CURVES, about=name, details=apart))
    return found, noted
