"""What a publication says, as a table's file gives it, and replication.json: each figure and direction of it beside ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import mean, stdev
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, ValidationInfo, field_validator, model_validator

from ablationlab.core.errors import UnknownNameError
from ablationlab.core.format import setting
from ablationlab.records.analysis import Absence, Comparison
from ablationlab.records.metrics import Metric
from ablationlab.records.seal import SealedRecord
from ablationlab.records.settings import DEFAULT_REGIME, SWEEP, Count, Frozen, NonNegative
from ablationlab.records.storage import StoredValue
from ablationlab.stats.results import CaveatCode, DifferenceOfMeans, Transform

FigureOutcome = Literal["within", "outside", "no-interval", "not-measured"]
DirectionOutcome = Literal["transfers", "reversed", "absent", "undecided", "not-measured"]


#: What decides a direction: the corrected test, the test of equivalence, or what stands in the way of both.
DirectionReason = Literal["no-comparison", "not-sensitive", "difference-shown", "equivalent", "no-difference-shown"]


def _printable(text: str) -> str:
    # These texts reach terminals and pages; an escape sequence has no place in any of them.
    if any(not (char.isprintable() or char in "\n\t") for char in text):
        raise ValueError("contains characters that cannot be printed")
    return " ".join(text.split())


def _level(metric: str, info: ValidationInfo) -> str | None:
    """How often a metric is measured, by the definitions that a table's file is read with; None in a record, which was."""
    metrics: Mapping[str, Metric] | None = (info.context or {}).get("metrics")
    if metrics is None:
        return None
    if metric not in metrics:
        raise UnknownNameError("metric", metric, metrics)
    return metrics[metric].level


Text = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_printable)]
Note = Annotated[str, Field(max_length=2000), AfterValidator(_printable)]


class Publication(Frozen):
    """Where the figures were published."""

    citation: Text
    date: Text
    url: str | None = None

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is not None and not re.fullmatch(r"https?://[^\s<>\"']{3,500}", url):
            raise ValueError("an address starts with https:// or http:// and has no spaces, quotes or angle brackets")
        return url


class PublishedValue(Frozen):
    """A published mean of *n* runs, and their standard deviation where it was published; or the ``runs`` themselves, which
    give all three.
    """

    mean: float
    n: Count
    sd: NonNegative | None = None
    runs: tuple[float, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_runs(cls, data: Any) -> Any:
        runs = data.get("runs") if isinstance(data, dict) else None
        if not isinstance(runs, list | tuple) or not all(isinstance(run, int | float) for run in runs):
            return data
        given = {**data, "runs": tuple(runs)}
        if not runs and "mean" in given:  # as a record has it
            return given
        if not runs:
            raise ValueError("runs is empty: give the value of every run, or mean and n")
        whole = {"runs": tuple(runs), "mean": mean(runs), "n": len(runs), "sd": stdev(runs) if len(runs) > 1 else None}
        if set(given) != {"runs"} and given != whole:  # a record has all four
            raise ValueError("runs gives mean, sd and n: give either the runs or those")
        return whole

    @model_validator(mode="after")
    def _spread_needs_two(self) -> Self:
        if self.sd is not None and self.n < 2:
            raise ValueError(f"sd = {setting(self.sd)} of n = {self.n}: a standard deviation needs two runs or more")
        return self


class PublishedFigure(Frozen):
    """One published metric of one or more variants.

    ``metric`` is ours (`ablationlab metrics`); a metric that has a number per step needs ``take``. ``definition`` is the
    publication's own; where it is known to be another than ours, ``same_definition`` is false and ``note`` says how.
    """

    metric: str
    published_as: Text
    definition: Text
    values: Annotated[dict[str, PublishedValue], Field(min_length=1)]
    regime: str = DEFAULT_REGIME
    take: Literal["minimum", "maximum", "last"] | None = None
    digits: Annotated[int, Field(ge=0, le=12)] | None = None
    same_definition: bool = True
    note: Note = ""

    @field_validator("metric")
    @classmethod
    def _metric_exists(cls, name: str, info: ValidationInfo) -> str:
        if _level(name, info) not in ("run", "step", None):
            raise ValueError(f"{name!r} is not a number of a run; a figure needs one per run or per step")
        return name

    @model_validator(mode="after")
    def _take_fits(self, info: ValidationInfo) -> Self:
        level = _level(self.metric, info)
        if level == "step" and self.take is None:
            raise ValueError(
                f"{self.metric!r} is a number per step: take = 'minimum', 'maximum' or 'last' says which one"
            )
        if level == "run" and self.take is not None:
            raise ValueError(f"take belongs to a metric per step; {self.metric!r} is one number per run")
        return self

    @property
    def rounding(self) -> float:
        """Half a unit of the last published digit."""
        return 0.0 if self.digits is None else 0.5 * 10.0**-self.digits


class PublishedPair(Frozen):
    """One published comparison behind a direction: what it was measured on, and both values."""

    what: Text
    variant: float
    reference: float


class PublishedDirection(Frozen):
    """A published sign: ``metric`` of ``variant`` is lower, or higher, than that of ``reference``.

    ``pairs`` are the published numbers behind it, where there are any; one that points the other way is counted and shown.
    """

    metric: str
    variant: str
    sign: Literal["lower", "higher"]
    published_as: Text
    reference: str = "none"
    regime: str = DEFAULT_REGIME
    pairs: tuple[PublishedPair, ...] = ()
    note: Note = ""

    @field_validator("metric")
    @classmethod
    def _metric_exists(cls, name: str, info: ValidationInfo) -> str:
        if _level(name, info) == "step":
            raise ValueError(f"{name!r} is a number per step; a direction needs one per run or per sweep")
        return name

    @model_validator(mode="after")
    def _sweep_metrics(self, info: ValidationInfo) -> Self:
        level = _level(self.metric, info)
        if level is not None and (level == "sweep") != (self.regime == SWEEP):
            wanted = f"regime = {SWEEP!r}" if level == "sweep" else f"another regime than {SWEEP!r}"
            raise ValueError(f"{self.metric!r} needs {wanted}")
        return self

    @property
    def contrary(self) -> int:
        """Published pairs that do not have the sign."""
        return sum((pair.variant < pair.reference) != (self.sign == "lower") for pair in self.pairs)


class RunValue(StoredValue):
    """The value of one of our runs."""

    run: str
    seed: int
    value: float


class RunWithoutValue(StoredValue):
    """A run of ours without a value; *details* are the values that the reason mentions."""

    run: str
    reason: Absence
    details: dict[str, JsonValue]


class UnstableRuns(StoredValue):
    """How many runs of an arm were unstable."""

    variant: str
    unstable: int
    runs: int


class ChangedSetting(StoredValue):
    """A setting of the runs that is not the one of the table's study; null: not set."""

    key: str
    ours: JsonValue
    asked: JsonValue


class ReplicatedFigure(StoredValue):
    """A published figure and ours of one variant in one regime; *difference* is ours − published."""

    published: PublishedFigure
    regime: str
    variant: str
    values: tuple[RunValue, ...]
    missing: tuple[RunWithoutValue, ...]
    mean: float | None
    sd: float | None
    difference: DifferenceOfMeans | None  # ours − published, with its interval; null where nothing was measured
    outcome: FigureOutcome

    @property
    def beside(self) -> bool:
        """Whether the regime is one that the publication does not speak of: for contrast."""
        return self.regime != self.published.regime

    @property
    def estimate(self) -> tuple[float | None, float | None, float | None]:
        """The difference, and the bounds of its interval."""
        made = self.difference
        return (None, None, None) if made is None else (made.estimate, made.low, made.high)

    @property
    def published_value(self) -> PublishedValue:
        """What was published of this variant."""
        return self.published.values[self.variant]


class ReplicatedDirection(StoredValue):
    """A published sign and our comparison in one regime, as the analysis has it."""

    published: PublishedDirection
    regime: str
    comparison: Comparison | None
    transform: Transform
    outcome: DirectionOutcome
    reason: DirectionReason
    unstable: tuple[UnstableRuns, ...]

    @property
    def beside(self) -> bool:
        """Whether the regime is one that the publication does not speak of: for contrast."""
        return self.regime != self.published.regime

    @property
    def estimate(self) -> tuple[float | None, float | None, float | None]:
        """Our difference, and the bounds of the interval that decides."""
        delta = None if self.comparison is None else self.comparison.delta
        interval = None if self.comparison is None else self.comparison.main_interval
        return (delta, None, None) if interval is None else (delta, interval.low, interval.high)

    @property
    def survivors_only(self) -> bool:
        """Whether pairs with a diverged run are left out."""
        caveats = () if self.comparison is None else self.comparison.caveats
        return any(caveat.code == CaveatCode.SURVIVORS_ONLY for caveat in caveats)


class Replication(SealedRecord):
    """replication.json."""

    KIND: ClassVar[str] = "replication"
    SEAL_OPTIONAL: ClassVar[bool] = True
    VERSION: ClassVar[int] = 7
    MEND: ClassVar[str] = "`ablationlab replicate` writes it again"
    table: str
    title: str
    about: str
    source: Publication
    table_hash: str
    study: str
    source_hash: str
    runs_ended: int
    runs_planned: int
    # Settings in which the runs differ from the table's study, so that it is not a replication. Regimes beside it: below.
    changed: tuple[ChangedSetting, ...]
    changed_beside: tuple[ChangedSetting, ...]
    level: float
    figures: tuple[ReplicatedFigure, ...]
    directions: tuple[ReplicatedDirection, ...]
