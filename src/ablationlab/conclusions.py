"""analysis.json and verdict.json: what the statistics found, and what follows from it.

docs/analysis.md describes both field by field. Neither holds a clock time or a path, so the same records give the same
bytes. A number that could not be had is null, and a status, a note or a caveat beside it says why.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from ablationlab.conclusions_sweeps import InteractionsPart, SweepPart
from ablationlab.records import Part, Record

Seed = int | str
Label = Literal["registered", "exploratory"]
Role = Literal["primary", "secondary", "guard"]
Direction = Literal["lower", "higher"]
Outcome = Literal["better", "worse", "different", "not-shown", "not-tested"]
Decision = Literal["adopt", "adopt-in-regime", "trade-off", "keep-baseline", "tie", "inconclusive"]

#: The name that a macro average over tasks stands under, in the place of a task's name.
MACRO = "macro average"
#: Code of the deviation that says that tasks which the study names were never scored.
NOT_SCORED = "tasks-not-scored"


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


class RunStabilityPart(Part):
    """One run: how it ended, its largest spike, and whether it counts as unstable (null: it is not there).

    *measures* holds the other numbers of its course, by the names of the metric registry.
    """

    run: str
    variant: str
    regime: str
    seed: Seed
    state: str
    spike_score: float | None
    spike_step: int | None
    unstable: bool | None
    why: str
    lr: float | None = None
    worse_than_start: bool = False
    diverged_at: int | None = None
    cause: str | None = None
    measures: dict[str, float | None] = Field(default_factory=dict)


class ArmStabilityPart(Part):
    """One variant in one regime; unstable if at least one of its runs is.

    *failed*: runs that ended worse than they began; *spiked*: unstable for their spike score alone.
    """

    variant: str
    regime: str
    runs: int
    diverged: int
    spiked: int
    failed: int = 0
    unstable_runs: int
    unstable: bool | None
    largest_spike_score: float | None


class GainPart(Part):
    """Share of unstable reference runs - share of unstable variant runs, with Tango's interval."""

    id: str
    variant: str
    reference: str
    regime: str
    n: int
    planned_pairs: int
    reference_unstable: int
    variant_unstable: int
    rescued: int
    broken: int
    estimate: float | None
    low: float | None
    high: float | None
    level: float
    mcnemar_p: float | None
    caveats: tuple[CaveatPart, ...] = ()


class StabilityPart(Part):
    """Stability of runs, arms and contrasts; *threshold* is the registered spike score."""

    threshold: float
    runs: tuple[RunStabilityPart, ...]
    arms: tuple[ArmStabilityPart, ...]
    gains: tuple[GainPart, ...]

    def arm(self, variant: str, regime: str) -> ArmStabilityPart | None:
        """The arm of that name, if there is one."""
        return next((a for a in self.arms if (a.variant, a.regime) == (variant, regime)), None)

    def gain(self, variant: str, reference: str, regime: str) -> GainPart | None:
        """The gain of that contrast, if there is one."""
        wanted = (variant, reference, regime)
        return next((g for g in self.gains if (g.variant, g.reference, g.regime) == wanted), None)


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


class ItemTaskPart(Part):
    """One task: item-level statistics of variant - reference."""

    task: str
    metric: str
    items: int
    unpaired_variant: int
    unpaired_reference: int
    variant_mean: float
    reference_mean: float
    delta: float
    item_intervals: dict[str, IntervalPart]
    mcnemar: dict[str, dict[str, float | int]]
    crossed: IntervalPart | None
    seed_interval: IntervalPart | None
    seed_p: float | None
    p: float | None
    p_test: str
    p_adjusted: float | None
    needs_items: int | None
    caveats: tuple[CaveatPart, ...]


class ItemComparison(Record):
    """comparison.json: two sets of lm-eval samples, paired item by item and seed by seed."""

    KIND: ClassVar[str] = "item-comparison"
    variant: str
    reference: str
    seeds: tuple[str, ...]
    source_hash: str
    correction: str
    tasks: tuple[ItemTaskPart, ...]
    macro_delta: float
    macro_item_intervals: dict[str, IntervalPart]
    macro_crossed: IntervalPart | None
    macro_seed_interval: IntervalPart | None
    macro_seed_p: float | None
    caveats: tuple[CaveatPart, ...]


class TaskSensitivityPart(Part):
    """One task in one regime: what needs no comparison to be known of it. ``task`` is the label of its comparisons."""

    task: str
    name: str
    fewshot: int
    regime: str
    templates: tuple[str, ...]
    items: int
    chance: float | None
    ngrams: dict[str, float]
    baseline_accuracy: float | None
    control_accuracy: float | None
    template_spread: float | None  # SD over templates of the baseline's mean accuracy; null with one template
    sensitivity: SensitivityPart


class ItemContrastPart(Part):
    """Item-level statistics of one contrast in one regime, over the tasks with that many examples."""

    regime: str
    fewshot: int
    comparison: ItemComparison


class EvaluationPart(Part):
    """What the evaluation of the runs adds: which tasks can tell models apart, and the comparisons item by item."""

    harness: str
    precision: str
    tasks: tuple[TaskSensitivityPart, ...]
    contrasts: tuple[ItemContrastPart, ...]
    notes: tuple[str, ...]


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


class RuleCheck(Part):
    """One of the five rules, asked in its turn."""

    rule: int
    applies: bool
    why: str


class CostPart(Part):
    """What a variant may cost on one metric (positive is worse): the estimate, its upper bound, the margin it must keep."""

    metric: str
    comparison: str | None
    estimate: float | None
    low: float | None
    high: float | None
    margin: float | None
    within: bool | None
    why: str


class TradeOffPart(Part):
    """Stability against accuracy, both sides with their bounds."""

    gain: float | None
    gain_low: float | None
    gain_high: float | None
    costs: tuple[CostPart, ...]
    text: str


class TieBreakPart(Part):
    """What the registered tie-breakers said, in their order, until one of them decided."""

    asked: tuple[str, ...]
    metric: str | None
    favours: str | None
    text: str


class NeedsPart(Part):
    """What it would take to decide; a number is null where none could be computed."""

    seeds_for_difference: int | None = None
    seeds_for_equivalence: int | None = None
    seeds_at_observed_effect: int | None = None
    power: float = 0.8
    text: str


class VariantVerdict(Part):
    """The first rule that applied to one variant in one regime."""

    variant: str
    reference: str
    regime: str
    decision: Decision
    rule: int
    label: Label
    why: str
    evidence: tuple[str, ...]
    checks: tuple[RuleCheck, ...]
    trade_off: TradeOffPart | None = None
    tie_break: TieBreakPart | None = None
    needs: NeedsPart | None = None
    recommendation: str


class HypothesisVerdict(Part):
    """One of the hypotheses that were fixed before any run; "not-asked" where the study does not put its question."""

    statement: str
    status: Literal["supported", "rejected", "undecided", "not-asked"]
    why: str
    evidence: tuple[str, ...]


class Verdict(Record):
    """verdict.json."""

    KIND: ClassVar[str] = "verdict"
    study: str
    source_hash: str
    analysis_hash: str
    primary: str | None
    verdicts: tuple[VariantVerdict, ...]
    hypotheses: dict[str, HypothesisVerdict]
    recommendation: str
