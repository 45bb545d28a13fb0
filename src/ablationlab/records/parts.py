"""The single statistics that analysis.json and comparison.json are made of: intervals, p-values, effect sizes, caveats."""

from __future__ import annotations

from ablationlab.records.schema import Part

Seed = int | str


class IntervalPart(Part):
    """low <= mean delta <= high at *level*; without bounds where *status* is not "ok", and *note* says why."""

    method: str
    level: float
    estimate: float
    low: float | None
    high: float | None
    n: int
    exact: bool
    status: str = "ok"
    note: str = ""


class PValuePart(Part):
    """A two-sided p-value; *minimum_p* is the smallest that the test could have given for so many pairs."""

    test: str
    p: float | None
    statistic: float | None
    n: int
    exact: bool
    minimum_p: float | None = None
    status: str = "ok"
    note: str = ""


class EffectPart(Part):
    """A standardized effect size with its interval."""

    name: str
    estimate: float | None
    low: float | None
    high: float | None
    level: float
    n: int
    status: str = "ok"
    note: str = ""


class EquivalencePart(Part):
    """Two one-sided tests against *bounds*; *equivalent* false means "not shown", null "could not be tested"."""

    bounds: tuple[float, float]
    alpha: float
    p: float | None
    p_low: float | None
    p_high: float | None
    low: float | None
    high: float | None
    equivalent: bool | None
    n: int
    status: str = "ok"
    note: str = ""


class RatioPart(Part):
    """A difference of logs shown as a ratio of geometric means."""

    ratio: float
    low: float | None = None
    high: float | None = None


class CaveatPart(Part):
    """One thing to know before believing a number."""

    code: str
    about: str
    text: str


class SensitivityPart(Part):
    """Whether a task can tell models apart at this scale; one that cannot never counts as evidence."""

    sensitive: bool
    beats_chance: bool | None
    chance_p: float | None
    control_told_apart: bool
    control_p: float | None
    reasons: tuple[str, ...]
