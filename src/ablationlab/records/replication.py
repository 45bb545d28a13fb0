"""replication.json: published figures and directions beside ours."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import JsonValue

from ablationlab.records.analysis import Absence
from ablationlab.records.seal import SealedRecord
from ablationlab.records.storage import StoredValue
from ablationlab.stats.results import Sensitivity, Status

FigureOutcome = Literal["within", "outside", "no-interval", "not-measured"]
DirectionOutcome = Literal["transfers", "reversed", "absent", "undecided", "not-measured"]


#: What decides a direction: the corrected test, the test of equivalence, or what stands in the way of both.
DirectionReason = Literal["no-comparison", "not-sensitive", "difference-shown", "equivalent", "no-difference-shown"]


class RunValue(StoredValue):
    """The value of one of our runs."""

    run: str
    seed: int
    value: float


class RunWithoutValue(StoredValue):
    """A run of ours without a value; *details* is what the reason speaks of."""

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
    """One published number and ours; *difference* is ours − published, with its interval.

    *beside*: in a regime that the publication does not speak of, for contrast.
    """

    metric: str
    take: str | None
    published_as: str
    definition: str
    same_definition: bool
    note: str
    regime: str
    beside: bool
    variant: str
    published: float
    published_sd: float | None
    published_n: int
    digits: int | None
    values: tuple[RunValue, ...]
    missing: tuple[RunWithoutValue, ...]
    mean: float | None
    sd: float | None
    difference: float | None
    low: float | None
    high: float | None
    level: float
    method: Literal["welch", "prediction"] | None
    status: Status | None  # of the interval; null where nothing was measured
    outcome: FigureOutcome


class ReplicatedDirection(StoredValue):
    """One published sign and our comparison; *low* and *high* are of the interval that its criterion names."""

    metric: str
    published_as: str
    note: str
    regime: str
    beside: bool
    variant: str
    reference: str
    sign: Literal["lower", "higher"]
    pairs: int
    contrary: int
    comparison: str | None
    label: str | None
    n: int
    delta: float | None
    low: float | None
    high: float | None
    transform: str
    unit: str
    p_adjusted: float | None
    outcome: DirectionOutcome
    reason: DirectionReason
    smallest_effect: float | None
    survivors_only: bool
    sensitivity: Sensitivity | None
    unstable: tuple[UnstableRuns, ...]


class Replication(SealedRecord):
    """replication.json."""

    KIND: ClassVar[str] = "replication"
    SEAL_OPTIONAL: ClassVar[bool] = True
    VERSION: ClassVar[int] = 5
    MEND: ClassVar[str] = "`ablationlab replicate` writes it again"
    table: str
    title: str
    about: str
    citation: str
    date: str
    url: str | None
    table_hash: str
    study: str
    source_hash: str
    runs_ended: int
    runs_planned: int
    # Settings in which the runs differ from the table's study: then it is no replication. Apart: those of regimes beside.
    changed: tuple[ChangedSetting, ...]
    changed_beside: tuple[ChangedSetting, ...]
    level: float
    figures: tuple[ReplicatedFigure, ...]
    directions: tuple[ReplicatedDirection, ...]
