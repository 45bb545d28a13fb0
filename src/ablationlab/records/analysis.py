"""analysis.json: what was compared, and what the statistics found.

docs/analysis.md describes it field by field, and verdict.json too. Neither holds a clock time or a path, so the same records
give the same bytes. A number that could not be had is null, and a status, a note or a caveat beside it says why.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from ablationlab.records.analysis_evaluation import EvaluationPart
from ablationlab.records.analysis_stability import StabilityPart
from ablationlab.records.analysis_sweeps import InteractionsPart, SweepPart
from ablationlab.records.parts import (
    CaveatPart,
    EffectPart,
    EquivalencePart,
    IntervalPart,
    PValuePart,
    RatioPart,
    Seed,
    SensitivityPart,
)
from ablationlab.records.schema import Part, Record

Label = Literal["registered", "exploratory"]
Role = Literal["primary", "secondary", "guard"]
Direction = Literal["lower", "higher"]
Outcome = Literal["better", "worse", "different", "not-shown", "not-tested"]

#: The name that a macro average over tasks stands under, in the place of a task's name.
MACRO = "macro average"
#: Code of the deviation that says that tasks which the study names were never scored.
NOT_SCORED = "tasks-not-scored"
#: Code of the deviation that says that planned tasks were scored with other settings, or some of them not at all.
SCORED_OTHERWISE = "scored-otherwise"


class PairPart(Part):
    """The two values of one seed, as recorded, and their delta on the tested scale."""

    seed: Seed
    variant: float
    reference: float
    delta: float


class MissingPart(Part):
    """A seed that could not be paired, and why."""

    seed: Seed
    arm: str
    why: str


class ComparisonPart(Part):
    """One variant against one reference on one metric in one regime, paired by seed; delta = variant - reference."""

    id: str
    metric: str
    task: str | None
    regime: str
    variant: str
    reference: str
    direction: Direction | None
    unit: str
    transform: Literal["identity", "log"]
    label: Label
    role: Role | None
    n: int
    planned_pairs: int
    pairs: tuple[PairPart, ...]
    missing: tuple[MissingPart, ...]
    variant_mean: float | None
    variant_sd: float | None
    reference_mean: float | None
    reference_sd: float | None
    delta: float | None
    delta_sd: float | None
    correlation: float | None
    variance_reduction: float | None
    interval: str
    test: str
    alpha: float
    intervals: dict[str, IntervalPart]
    tests: dict[str, PValuePart]
    effects: dict[str, EffectPart]
    ratios: dict[str, RatioPart]
    p: float | None
    p_adjusted: float | None
    correction: str
    family: str
    family_size: int
    outcome: Outcome
    smallest_effect: float | None
    margin: float | None
    equivalence: EquivalencePart | None
    sensitivity: SensitivityPart | None = None
    caveats: tuple[CaveatPart, ...]

    @property
    def main_interval(self) -> IntervalPart | None:
        """The interval that the criterion names; None without pairs."""
        return self.intervals.get(self.interval)

    @property
    def ratio(self) -> RatioPart | None:
        """That interval as a ratio, for metrics tested on logs."""
        return self.ratios.get(self.interval)

    def loss(self) -> tuple[float | None, float | None, float | None]:
        """(estimate, low, high) of what the variant costs: positive is worse, whichever way the metric points."""
        interval = self.main_interval
        if interval is None or self.direction is None:
            return None, None, None
        if self.direction == "lower":
            return interval.estimate, interval.low, interval.high
        low, high = interval.low, interval.high
        return -interval.estimate, None if high is None else -high, None if low is None else -low


class FamilyPart(Part):
    """Tests that are corrected together, in the order their p-values were given."""

    id: str
    correction: str
    members: tuple[str, ...]
    tested: int


class PowerPart(Part):
    """What the pairs at hand could see, and how many would see the registered effect, from the observed SD of deltas."""

    comparison: str
    n: int
    delta_sd: float
    smallest_effect: float | None
    alpha: float
    detectable_80: float
    detectable_90: float
    pairs_80: int | None
    pairs_90: int | None
    pairs_80_conservative: int | None
    equivalence_pairs_80: int | None


class LedgerPart(Part):
    """How many pairs of runs were checked to differ in nothing but what their variants declare."""

    checked_pairs: int
    text: str


class DeviationPart(Part):
    """Something that is not as it was registered."""

    code: str
    about: str
    text: str


class Analysis(Record):
    """analysis.json."""

    KIND: ClassVar[str] = "analysis"
    study: str
    question: str
    source: Literal["records", "table"]
    source_hash: str
    criteria_hash: str | None
    baseline: str
    variants: tuple[str, ...]
    regimes: tuple[str, ...]
    seeds: tuple[Seed, ...]
    criteria: tuple[dict[str, Any], ...]
    primary: str | None
    tie_breakers: tuple[str, ...]
    resamples: int
    comparisons: tuple[ComparisonPart, ...]
    families: tuple[FamilyPart, ...]
    stability: StabilityPart | None
    sweep: SweepPart | None = None
    interactions: InteractionsPart | None = None
    power: tuple[PowerPart, ...]
    ledger: LedgerPart | None
    deviations: tuple[DeviationPart, ...]
    evaluation: EvaluationPart | None = None

    def comparison(self, metric: str, regime: str, variant: str, reference: str) -> ComparisonPart | None:
        """The comparison that speaks for a metric: its macro average where there are tasks, else the only one."""
        wanted = (metric, regime, variant, reference)
        found = [c for c in self.comparisons if (c.metric, c.regime, c.variant, c.reference) == wanted]
        whole = [c for c in found if c.task in (None, MACRO)] or (found if len(found) == 1 else [])
        return whole[0] if whole else None
