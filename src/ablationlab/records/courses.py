"""courses.json: what the course of the runs shows: loss curves, the difference along training, the diagnostics that moved.

It is made with the analysis from files that runs may leave out, so it is no part of it: all of it describes, and nothing here
decides.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from ablationlab.records.seal import SealedRecord
from ablationlab.records.storage import StoredValue

#: Beside analysis.json.
COURSES = "courses.json"


class ArmCourse(StoredValue):
    """The loss of one arm along training, and of a variant the difference to the baseline, paired by seed.

    *places*: steps, or of runs of unequal length the share of the run. *centre*: means with t intervals, or, where a run of
    either arm was unstable, medians with order statistics, in which a run that has diverged counts as the worst. null:
    not to be had, or infinite. *n*: pairs; of the baseline, runs. *level* null: too few for an interval.
    """

    variant: str
    regime: str
    n: int
    centre: Literal["mean", "median"]
    level: float | None
    places: tuple[float, ...]
    losses: tuple[float | None, ...]
    difference: tuple[float | None, ...] = ()
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


class LossCurves(StoredValue):
    """Loss curves by arm and regime.

    *metric*: the training loss, whose pairs see the same batch at the same step, or the thinned curve that a result keeps.
    *along*: places are steps, or shares of runs whose lengths differ. *steps_per_point*: a point is a mean over so many
    steps; null: of curves that were thinned before.
    """

    metric: str
    along: Literal["steps", "share"]
    steps_per_point: float | None
    arms: tuple[ArmCourse, ...]

    def arm(self, variant: str, regime: str) -> ArmCourse | None:
        return next((arm for arm in self.arms if (arm.variant, arm.regime) == (variant, regime)), None)


class DiagnosticLine(StoredValue):
    """The mean over seeds of one arm at each place: geometric, as the ratio is."""

    variant: str
    values: tuple[float | None, ...]


class Diagnostic(StoredValue):
    """A measure of the inside of runs, and how far the variant that moved it most did.

    *probe*, *measure*, *group*: of the probe records at the last step; without a probe, *measure* is a metric. *ratio*,
    *low*, *high*: variant / baseline, geometric mean over *n* seeds with its t interval at *level*. *moved*: the size of
    the logarithm that the interval leaves at least; 0 where it holds 1. *places* of *lines*: depths (0 is what enters block
    1) or steps; there are none beyond the first few.
    """

    probe: str | None
    measure: str
    group: str | None
    regime: str
    variant: str
    n: int
    ratio: float
    low: float | None
    high: float | None
    level: float
    moved: float
    over: Literal["depth", "steps"] | None = None
    places: tuple[float, ...] = ()
    lines: tuple[DiagnosticLine, ...] = ()


class Courses(SealedRecord):
    """courses.json. *curves*: none where no run has a curve; *diagnostics*: those that moved most first."""

    KIND: ClassVar[str] = "courses"
    MEND: ClassVar[str] = "`ablationlab analyze` writes it again"
    analysis_hash: str  # the seal of the analysis.json that it was made with
    curves: LossCurves | None
    diagnostics: tuple[Diagnostic, ...]
