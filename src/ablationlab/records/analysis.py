"""analysis.json: what was compared, and what the statistics found; comparison.json: two sets of answers, item by item.

None holds a clock time or a path, so the same records
give the same bytes. A number that could not be had is null, and a status, a note or a caveat beside it says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from ablationlab.core.format import several
from ablationlab.records.fairness import FairCondition
from ablationlab.records.metrics import Direction, Metric
from ablationlab.records.plan import LookResult
from ablationlab.records.run import Divergence
from ablationlab.records.seal import SealedRecord
from ablationlab.records.settings import Criterion, Hypothesis
from ablationlab.records.storage import Record, StoredValue
from ablationlab.stats.results import (
    NO_DOUBT,
    Caveat,
    CaveatCode,
    CrossedMean,
    Doubt,
    EffectSize,
    Equivalence,
    FittedMinimum,
    Gain,
    GeometricRatio,
    Interval,
    McNemar,
    PValue,
    Sensitivity,
    Status,
    SurvivalStep,
    VarianceComponent,
)

Seed = int | str
Label = Literal["registered", "exploratory"]
#: "stability": a registered measure of smooth training.
Role = Literal["primary", "secondary", "guard", "stability"]
#: "gated": a secondary that was not tested, since no primary comparison of its arms, or an earlier secondary, was shown.
Outcome = Literal["better", "worse", "different", "not-shown", "not-tested", "gated"]
StabilityOutcome = Literal["more-stable", "less-stable", "not-shown", "not-tested"]


@dataclass(frozen=True, order=True)
class ComparedTask:
    """A task of a comparison, and the number of examples in its prompts. *planned*: the sealed plan scores it in this way."""

    name: str
    fewshot: int = 0
    planned: bool = True

    @property
    def asked(self) -> str:
        """How it was asked, in words: ``2-shot, exploratory``; nothing where that is as usual."""
        shots = [f"{self.fewshot}-shot"] if self.fewshot else []
        return ", ".join([*shots, *([] if self.planned else ["exploratory"])])

    @property
    def label(self) -> str:
        """``punctuation``, ``punctuation, 2-shot``."""
        return f"{self.name}, {self.asked}" if self.asked else self.name


#: What a macro average over tasks stands under, in the place of a task.
MACRO = ComparedTask("macro average")


class Absence(StrEnum):
    """Why an arm has no value of a metric on a seed."""

    NOT_RECORDED = "not-recorded"
    OTHER_TOKENIZER = "other-tokenizer"
    NOT_IN_CURVE = "not-in-curve"
    NOT_REACHED = "not-reached"  # a target, by the last step of a curve
    NOT_FINITE = "not-finite"
    BEYOND_RANGE = "beyond-range"  # a finite number, and too large for any sum of squares
    METRIC_FAILED = "metric-failed"
    NOT_FINISHED = "not-finished"
    DIVERGED = "diverged"
    NOT_IN_TABLE = "not-in-table"
    NOT_EVALUATED = "not-evaluated"
    NOT_EVALUABLE = "not-evaluable"
    EVALUATED_OTHERWISE = "evaluated-otherwise"
    TASK_NOT_EVALUATED = "task-not-evaluated"
    OTHER_TASK_VERSION = "other-task-version"
    TASKS_INCOMPLETE = "tasks-incomplete"
    RATES_MISSING = "rates-missing"
    NO_BEST_RATE = "no-best-rate"
    OWN_RATES = "own-rates"
    RUN_MISSING = "run-missing"


class Instability(StrEnum):
    """Why a run counts as unstable, or why not."""

    NOT_FINISHED = "not-finished"
    DIVERGED = "diverged"
    ENDED_WORSE = "ended-worse"
    SPIKED = "spiked"
    CALM = "calm"
    TOO_SHORT = "too-short"
    # Of a table of values, which shows no curve.
    NOT_A_NUMBER = "not-a-number"
    SPIKES_UNKNOWN = "spikes-unknown"


class DeviationCode(StrEnum):
    """What is not as it was registered."""

    TAMPERED_PLAN = "tampered-plan"
    ALTERED_RECORDS = "altered-records"
    MISSING_RUNS = "missing-runs"
    EXTRA_RUNS = "extra-runs"
    DIVERGED_RUNS = "diverged-runs"
    DRIFT = "drift"
    CHANGED_CRITERIA = "changed-criteria"
    CHANGED_SETTINGS = "changed-settings"
    NOT_REGISTERED = "not-registered"
    LEDGER_UNKNOWN = "ledger-unknown"
    UNEQUAL_STEPS = "unequal-steps"
    UNEQUAL_SEEDS = "unequal-seeds"
    HELD_EQUAL = "held-equal"  # what the user says that the arms of a table share instead of their budget
    BEST_OF_CURVE = "best-of-curve"
    COARSE_CURVES = "coarse-curves"  # of a table: around a target, the values of one arm are farther apart
    COPIED_RUNS = "copied-runs"  # of a table: runs with the same curve
    SEVERAL_RUNS = "several-runs"  # of a table: a log begins again, so it holds several runs
    UNREACHED_TARGET = "unreached-target"  # of a table: runs that never reach a target
    UNFINISHED_RUNS = "unfinished-runs"
    EMPTY_VALUES = "empty-values"
    UNREAD_COLUMNS = "unread-columns"
    MISSING_METRIC = "missing-metric"
    NOT_SCORED = "tasks-not-scored"
    SCORED_OTHERWISE = "scored-otherwise"
    NO_CRITERIA = "no-criteria"
    OTHER_CORRECTION = "other-correction"  # than the registered one, which is no longer offered
    NOT_A_LOOK = "not-a-look"
    EXTENDED = "extended"
    ADDED_VARIANTS = "added-variants"
    REUSED = "reused"  # baseline runs of an earlier study
    OFF_TARGET = "off-target"  # a calibrated regime that breaks no share of baselines near the one asked for


class EvaluationNoteCode(StrEnum):
    """What to know about the scores of tasks."""

    OTHER_CONDITIONS = "other-conditions"  # runs that were evaluated in another way than the others
    UNSPELLABLE = "unspellable"  # templates whose characters the vocabulary lacks
    NOT_PLANNED = "not-planned"
    OPENED_BY_HARNESS = "opened-by-harness"  # planned groups whose tasks only the harness knows
    NOT_IN_ITEMS = "not-in-items"  # runs that the item-level statistics leave out, with an `Absence`


class Pair(StoredValue):
    """The two values of one seed, as recorded, and their delta on the tested scale."""

    seed: Seed
    variant: float
    reference: float
    delta: float


class SingleRun(StoredValue):
    """A run of an unpaired comparison, as recorded."""

    arm: str
    seed: Seed
    value: float


class Missing(StoredValue):
    """A seed that could not be paired, and why; *details* are the values that the reason mentions."""

    seed: Seed
    arm: str
    reason: Absence
    details: dict[str, JsonValue] = Field(default_factory=dict)


class CostRecord(StoredValue):
    """What the variant costs by the claims that can be made (`stats.costs`); positive is worse.

    *claim*: that for which they speak more. *better* and *worse*: the mean that each rests on. *size_better*,
    *size_worse*: what is compared with the smallest effect: these means less the doubt; at planned looks the farthest
    so far of one-sided bounds whose levels are one half over all looks; null where the claim is out of reach. *low*,
    *high*: the interval at 1 - alpha, by its own variance, lost runs counted; null where a claim is out of reach.
    *same*: two one-sided tests show it to lie within the smallest effect. *lost*: seeds that the variant alone lost,
    *lost_by_reference* those of the reference; *far_out*: finite runs that count as lost in the claim. *slack*: what
    two numbers may differ by and be equal. *kept_by*: seeds that would show a guard's margin kept with 80 % power if
    the effect is as large as seen; null beyond ten times those at hand.
    """

    claim: Literal["better", "worse"] | None
    better: float | None
    worse: float | None
    size_better: float | None
    size_worse: float | None
    low: float | None
    high: float | None
    same: bool
    lost: tuple[Seed, ...] = ()
    lost_by_reference: tuple[Seed, ...] = ()
    far_out: tuple[Seed, ...] = ()
    slack: float = 0.0
    kept_by: int | None = None


class Comparison(StoredValue):
    """One variant against one reference on one metric in one regime; delta = variant - reference.

    Paired by seed, unless the arms of a user's table share no seed: then Welch's test compares their means, `n` is the
    smaller number of runs, `runs` has every value, and `delta_sd` is the SD of a difference between two single runs.
    """

    id: str
    metric: str
    task: ComparedTask | None
    averaged: tuple[ComparedTask, ...] = ()  # the tasks that a macro average is over; empty for every other metric
    regime: str
    variant: str
    reference: str
    direction: Direction | None
    unit: str
    transform: Literal["identity", "log"]
    label: Label
    role: Role | None
    design: Literal["paired", "unpaired"] = "paired"
    n: int
    planned_pairs: int
    pairs: tuple[Pair, ...] = ()
    runs: tuple[SingleRun, ...] = ()
    missing: tuple[Missing, ...]
    variant_mean: float | None = None
    variant_sd: float | None = None
    reference_mean: float | None = None
    reference_sd: float | None = None
    delta: float | None = None
    doubt: Doubt = NO_DOUBT  # how far delta may be off because best rates are not known; intervals and p count it
    delta_sd: float | None = None
    variant_median: float | None = None
    reference_median: float | None = None
    delta_median: float | None = None
    told_by: Literal["mean", "median"] = "mean"  # median: the difference of means is that of a few unstable runs
    skewed: tuple[
        str, ...
    ] = ()  # arms whose mean is more than ten times their median, of a metric tested as a logarithm
    correlation: float | None = None
    variance_reduction: float | None = None
    interval: str
    test: str
    alpha: float
    intervals: dict[str, Interval] = Field(default_factory=dict)
    tests: dict[str, PValue] = Field(default_factory=dict)
    effects: dict[str, EffectSize] = Field(default_factory=dict)
    ratios: dict[str, GeometricRatio] = Field(default_factory=dict)
    p: float | None
    p_adjusted: float | None
    correction: str
    family: str
    family_size: int
    variance: Literal["own", "shared"] = "own"
    shared_with: tuple[
        float, ...
    ] = ()  # SDs of the other arms' costs, far-out runs left out, where variances are shared
    outcome: Outcome
    deciding: Interval | None = None  # agrees with p_adjusted: `stats.families`; null where nothing was tested
    median_interval: Interval | None = None  # of the median of pairs, lost runs counted, where `told_by` is it
    shares_test_of: str | None = None  # the comparison whose p and outcome these are, of a metric it is a function of
    smallest_effect: float | None
    margin: float | None
    equivalence: Equivalence | None = None
    cost: CostRecord | None = None  # null without a direction or a value
    sensitivity: Sensitivity | None = None
    caveats: tuple[Caveat, ...]

    @property
    def task_label(self) -> str | None:
        return None if self.task is None else self.task.label

    @property
    def estimate(self) -> float | None:
        """The difference that its interval is about: delta, or what the claim rests on where runs are lost or far out."""
        cost = self.cost
        if self.delta is None or cost is None or not (cost.lost or cost.lost_by_reference or cost.far_out):
            return self.delta
        counted = cost.better if cost.claim == "better" else cost.worse if cost.claim == "worse" else None
        if counted is None:
            return self.delta
        return counted if self.direction == "lower" else -counted

    @property
    def doubt_of_cost(self) -> Doubt:
        return self.doubt.mirrored if self.direction == "higher" else self.doubt

    @property
    def estimate_at(self) -> str:
        """The field that `estimate` is."""
        return "delta" if self.cost is None or self.estimate == self.delta else f"cost/{self.cost.claim}"

    @property
    def main_interval(self) -> Interval | None:
        """The interval that decides; None without pairs."""
        return self.deciding or self.intervals.get(self.interval)

    @property
    def undecided(self) -> bool:
        """Whether nothing was tested and an interval is shown, which is uncorrected and decides nothing."""
        shown = self.main_interval
        return self.deciding is None and shown is not None and shown.low is not None and not self.told_by_medians

    @property
    def at_grid_rates(self) -> bool:
        """Whether tuned arms are compared at the grid rates that were chosen, not at fitted best ones."""
        return any(caveat.code == CaveatCode.GRID_RATES for caveat in self.caveats)

    @property
    def unstable_means(self) -> dict[str, Caveat]:
        """The arms whose mean is that of a few unstable runs, each with its median and how many of its runs are unstable."""
        return {caveat.about: caveat for caveat in self.caveats if caveat.code == CaveatCode.UNSTABLE_MEAN}

    @property
    def told_by_medians(self) -> bool:
        """Whether its difference is that of a few unstable runs; one of logarithms is not."""
        return self.told_by == "median"

    @property
    def sample(self) -> str:
        """What stands behind it: `5 pairs`, or `5 and 4 runs, unpaired`."""
        if self.design == "paired":
            return several(self.n, "pair")
        return "{} and {} runs, unpaired".format(*self.arm_sizes)

    @property
    def asked_unpaired(self) -> bool:
        """Whether it is unpaired because the user said so, whatever the seeds are."""
        return any(caveat.code == CaveatCode.UNPAIRED and caveat.details.get("asked") for caveat in self.caveats)

    @property
    def arm_sizes(self) -> tuple[int, int]:
        """The number of runs of the variant and of the reference."""
        if self.design == "paired":
            return self.n, self.n
        sizes = [sum(run.arm == arm for run in self.runs) for arm in (self.variant, self.reference)]
        return sizes[0], sizes[1]

    @property
    def ratio(self) -> GeometricRatio | None:
        """The interval of one test as a ratio, for metrics tested on logs."""
        return self.ratios.get(self.interval)

    def loss(self) -> tuple[float | None, float | None, float | None]:
        """(estimate, low, high) of what the variant costs: positive is worse, whichever way the metric points.

        The bounds are those of one test at 1 - alpha: a cost must keep every margin, so none is corrected for the others.
        """
        if self.cost is None or self.delta is None:
            return None, None, None
        estimate = self.estimate
        assert estimate is not None
        return estimate if self.direction == "lower" else -estimate, self.cost.low, self.cost.high


class Family(StoredValue):
    """Tests that are corrected together, in the order their p-values were given.

    *tested*: so many they are corrected for; those that were registered and could not be made are among them, as p = 1.
    """

    id: str
    correction: str
    members: tuple[str, ...]
    tested: int


class Power(StoredValue):
    """What these pairs see with 80 % power, at the observed SD of deltas (a shared one where it is larger).

    *limit*: what `detectable_80` is mostly made of, the seeds' part or the doubt of fitted rates. *decided_by*: seeds to
    decide with 80 % power if the effect is as large as seen; null where that is more than ten times those at hand. *arms*: so
    many share their variance.
    """

    comparison: str
    n: int
    sd: float
    smallest_effect: float | None
    alpha: float
    arms: int = 1
    detectable_80: float
    limit: Literal["seeds", "doubt"]
    decided_by: int | None


class LedgerInput(StrEnum):
    """What the runs of a pair may share beside their settings."""

    TIME = "training time"
    TOKENS = "tokens"
    FLOPS = "FLOPs"
    STEPS = "steps"
    ORDER = "data order"
    START = "initial weights"
    KERNELS = "GPU kernels"


class InputDifference(StoredValue):
    """Something that arms do not share: *variants* that declare it, with the relative difference where it is a number;
    or, of a user's own trainer, the number of *pairs* in which it differed.
    """

    name: LedgerInput
    variants: dict[str, float | None] = Field(default_factory=dict)
    pairs: int | None = None


class LedgerCheck(StoredValue):
    """How many pairs of runs were checked to differ in nothing but what their variants declare.

    *nearly*: shared as far as whole steps allow, the data order up to the end of the shorter run. *unmatched*: what the
    budget does not make equal. *reported*: the user's own trainer said what is known of its runs, and
    nothing of *not_reported*.
    """

    checked_pairs: int
    shared: tuple[LedgerInput, ...]
    nearly: tuple[LedgerInput, ...] = ()
    differs: tuple[InputDifference, ...] = ()
    unmatched: tuple[LedgerInput, ...] = ()
    reported: bool = False
    not_reported: tuple[LedgerInput, ...] = ()


class Deviation(StoredValue):
    """Something that is not as it was registered; *details* are the values that the code mentions."""

    code: DeviationCode
    about: str
    details: dict[str, JsonValue] = Field(default_factory=dict)


# --- evaluation -----------------------------------------------------------------------------------------------


class ItemTask(StoredValue):
    """One task: item-level statistics of variant - reference."""

    task: str
    metric: str
    items: int
    unpaired_variant: int
    unpaired_reference: int
    variant_mean: float
    reference_mean: float
    delta: float
    item_intervals: dict[str, Interval]
    mcnemar: dict[str, McNemar]
    crossed: CrossedMean | None
    crossed_check: Interval | None  # the crossed bootstrap
    seed_interval: Interval | None
    seed_p: float | None
    p: float | None
    p_test: str
    p_adjusted: float | None
    needs_items: int | None
    caveats: tuple[Caveat, ...]


class ItemComparison(Record):
    """comparison.json: two sets of lm-eval samples, paired item by item and seed by seed."""

    KIND: ClassVar[str] = "item-comparison"
    variant: str
    reference: str
    seeds: tuple[str, ...]
    source_hash: str
    correction: str
    tasks: tuple[ItemTask, ...]
    macro_delta: float
    macro_item_intervals: dict[str, Interval]
    macro_crossed: CrossedMean | None
    macro_crossed_check: Interval | None
    macro_seed_interval: Interval | None
    macro_seed_p: float | None
    macro_p: float | None
    macro_p_test: str
    caveats: tuple[Caveat, ...]


class TaskSensitivity(StoredValue):
    """One task in one regime: what needs no comparison to be known of it.

    The gate was decided on the baseline runs of ``gate_seeds``, which are never compared; accuracies here are theirs, and
    the control's those of the same runs at half of their steps.
    """

    task: ComparedTask
    regime: str
    gate_seeds: tuple[int, ...]
    templates: tuple[str, ...]
    items: int
    chance: float | None
    ngrams: dict[str, float]
    baseline_accuracy: float | None
    control_accuracy: float | None
    template_spread: float | None  # SD over templates of the baseline's mean accuracy; null with one template
    sensitivity: Sensitivity


class ItemContrast(StoredValue):
    """Item-level statistics of one contrast in one regime, over the tasks with that many examples."""

    regime: str
    fewshot: int
    comparison: ItemComparison


class TextContrast(StoredValue):
    """The difference in validation loss over random seeds and random text: seeds x documents, weighted by their tokens.

    ``kind``: documents of the corpus, or contiguous blocks of a text that has none; blocks of one text are not an unlimited
    supply of others, so their interval speaks of text like this one.
    """

    variant: str
    reference: str
    regime: str
    kind: Literal["documents", "blocks"]
    crossed: CrossedMean


class EvaluationNote(StoredValue):
    """Something to know about the scores of tasks; *details* are the values that the code mentions."""

    code: EvaluationNoteCode
    details: dict[str, JsonValue]


class EvaluationAnalysis(StoredValue):
    """What the evaluation of the runs adds: which tasks can tell models apart, and the comparisons item by item."""

    harness: str
    precision: str
    tasks: tuple[TaskSensitivity, ...]
    contrasts: tuple[ItemContrast, ...]
    texts: tuple[TextContrast, ...] = ()
    notes: tuple[EvaluationNote, ...] = ()


# --- stability ------------------------------------------------------------------------------------------------


class RunStability(StoredValue):
    """One run: how it ended, its largest spike, and whether it counts as unstable (null: it is not there).

    *loss* and *initial_loss* say whether it ended worse than it began. *measures* holds the other numbers of its course, by
    the names of the metric registry.
    """

    run: str
    variant: str
    regime: str
    seed: Seed
    state: str
    spike_score: float | None
    spike_step: int | None
    unstable: bool | None
    reason: Instability
    lr: float | None = None
    loss: float | None = None
    initial_loss: float | None = None
    divergence: Divergence | None = None
    steps: int | None = None  # of its budget
    failed_at: int | None = None  # an unstable run: its divergence, else its largest spike, else where it stays worse
    measures: dict[str, float | None] = Field(default_factory=dict)

    @property
    def diverged_at(self) -> int | None:
        return None if self.divergence is None else self.divergence.step

    @property
    def worse_than_start(self) -> bool:
        return self.reason == Instability.ENDED_WORSE


class ArmStability(StoredValue):
    """One variant in one regime; unstable if at least one of its runs is.

    *failed*: runs that ended worse than they began; *spiked*: unstable for their spike score alone. *diverged_at*:
    the steps at which runs diverged, in order.
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
    diverged_at: tuple[int, ...] = ()


class ArmSurvival(StoredValue):
    """When runs of an arm diverged within *length* steps: the share that is left after each step (Kaplan and Meier).

    *p* asks whether they diverge earlier or more often than the baseline's runs of the same seeds: exact, two-sided,
    exploratory whatever was registered. Null for the baseline.
    """

    variant: str
    regime: str
    length: int
    runs: int
    steps: tuple[SurvivalStep, ...]
    p: float | None = None
    minimum_p: float | None = None


class Failure(StrEnum):
    """How badly a run must have failed to count; each holds the one before it, so a worse run never counts less."""

    DIVERGED = "diverged"
    FAILED = "failed"  # diverged, or ended worse than it began
    UNSTABLE = "unstable"  # diverged, ended worse than it began, or spiked


@dataclass(frozen=True, kw_only=True)
class StabilityGain(Gain):
    """The stability gain of one contrast in one regime, on one kind of failure.

    *registered*: it is one of the places where a difference may be claimed. p is exact and two-sided: McNemar's, or
    Fisher's of independent arms. p_adjusted is that times *places*: the registered ones, or for a gain that is not
    registered all that were looked at; null where it is not asked.

    *single*: seeds of which one arm alone has a run, or of independent arms runs that are missing. What speaks for the
    variant counts its missing run as failed and the reference's as stable, which makes *single_broken* of them broken pairs;
    what speaks against it the other way round, which makes *single_rescued* of them rescued ones. Of independent arms these
    are the runs that the variant lacks, and those that the reference lacks.
    """

    id: str
    failure: Failure = Failure.UNSTABLE
    variant: str
    reference: str
    regime: str
    planned_pairs: int
    single: int = 0
    single_broken: int = 0
    single_rescued: int = 0
    test: Literal["mcnemar", "fisher"] = "mcnemar"
    p: float | None
    registered: bool = False
    places: int | None = None
    p_adjusted: float | None = None
    outcome: StabilityOutcome = "not-tested"
    worst: float | None = None  # so large a share of runs may fail with the variant beyond the reference's
    caveats: tuple[Caveat, ...] = ()

    @property
    def contradicted(self) -> bool:
        """Whether its interval, which is not corrected, excludes 0 and the test that decides shows no difference."""
        return self.outcome == "not-shown" and self.low is not None and not self.low <= 0 <= (self.high or 0.0)


class UsableRates(StoredValue):
    """The longest row of neighbouring rates of the sweep at which no run of a variant was unstable; null: there is none."""

    variant: str
    low: float | None
    high: float | None
    rates: int


class StabilityAnalysis(StoredValue):
    """Stability of runs, arms and contrasts; *threshold* is the registered spike score.

    *gains* count every unstable run, *parts* runs that failed worse. *places*: sealed variants x regimes x registered
    failures, and registered comparisons over a sweep; a difference is shown if its p times this number is at most
    *alpha*. *margin*: the share of runs by which a variant may fail more often and still be no less stable; *margin_alpha*:
    the level of that bound, null at a look that does not ask. *seeds_for_margin*: so many seeds without a failure show that
    the margin is kept, at a planned look. *smoothness*: the registered measures.
    *survival*: arms of regimes in which a run diverged, where its step is known.
    """

    threshold: float
    alpha: float = 0.05
    margin: float = 0.2
    margin_alpha: float | None = 0.05
    seeds_for_margin: int | None = None
    places: int = 1
    smoothness: tuple[str, ...] = ()
    runs: tuple[RunStability, ...]
    arms: tuple[ArmStability, ...]
    gains: tuple[StabilityGain, ...]
    parts: tuple[StabilityGain, ...] = ()
    rates: tuple[UsableRates, ...] = ()
    survival: tuple[ArmSurvival, ...] = ()

    def arm(self, variant: str, regime: str) -> ArmStability | None:
        """The arm of that name, if there is one."""
        return next((a for a in self.arms if (a.variant, a.regime) == (variant, regime)), None)

    def gain(self, variant: str, reference: str, regime: str) -> StabilityGain | None:
        """The gain of that contrast, if there is one."""
        wanted = (variant, reference, regime)
        return next((g for g in self.gains if (g.variant, g.reference, g.regime) == wanted), None)

    def vector(self, variant: str, reference: str, regime: str) -> tuple[StabilityGain, ...]:
        """That contrast on every kind of failure, the worst first."""
        wanted = (variant, reference, regime)
        return tuple(g for g in (*self.parts, *self.gains) if (g.variant, g.reference, g.regime) == wanted)


# --- learning-rate sweeps -------------------------------------------------------------------------------------


class SweepPoint(RunStability):
    """One run of the sweep: variant x rate x seed. The divergence map is the list of these.

    *counted* is what the sweep counts: the smaller of *loss* and *initial_loss*, and *initial_loss* for a run that diverged.
    null: the run is not there.
    """

    lr: float
    seed: int
    use: Literal["selection", "judging"]
    counted: float | None
    clipped: bool


class SweepCurve(StoredValue):
    """One variant at one rate, over all seeds of the sweep: mean and SD of the counted losses, and what went wrong."""

    variant: str
    lr: float
    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    diverged: int
    clipped: int
    unstable: int


class RateSensitivity(StoredValue):
    """Learning-rate sensitivity of one variant on one seed; null where there is no loss at the rates *missing*."""

    variant: str
    seed: int
    sensitivity: float | None = None
    best_lr: float | None = None
    best_loss: float | None = None
    unstable_share: float | None
    missing: tuple[float, ...] = ()


class RateSensitivitySummary(StoredValue):
    """Learning-rate sensitivity of one variant: mean over seeds with its t interval."""

    variant: str
    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    level: float


class ChosenRate(StoredValue):
    """The rate chosen for a variant: lowest mean counted loss over the selection seeds, the lower rate on a tie.

    *judged_on* are other seeds. *edge*: it is the lowest or the highest rate of the sweep, so a better one may lie beyond.
    None is chosen where a selection seed has no loss at the rates *missing*.
    """

    variant: str
    lr: float | None = None
    mean_loss: float | None = None
    chosen_on: tuple[int, ...]
    judged_on: tuple[int, ...]
    edge: bool = False
    missing: tuple[float, ...] = ()


class TunedMinimum(StoredValue):
    """A variant's loss at its fitted best rate, over the judging seeds; null where one of them lacks a loss."""

    variant: str
    minimum: FittedMinimum | None


class SweepAnalysis(StoredValue):
    """The sweep over learning rates. *comparisons* are ids of `Analysis.comparisons` in the regimes sweep and tuned."""

    metric: str
    rates: tuple[float, ...]
    selection_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    points: tuple[SweepPoint, ...]
    curves: tuple[SweepCurve, ...]
    sensitivities: tuple[RateSensitivity, ...]
    summaries: tuple[RateSensitivitySummary, ...]
    best: tuple[ChosenRate, ...]
    tuned_at: (
        Literal["fitted-minima", "grid-rates"] | None
    )  # what the loss of tuned arms is; null where no rate is chosen
    minima: tuple[TunedMinimum, ...]
    comparisons: tuple[str, ...]
    second: str | None = None  # the setting that was tuned together with the rate
    stages: Literal[1, 2] = 1  # of two, points and curves are those of the runs that are judged

    def knows_best_rate(self, variant: str) -> bool:
        """Whether the tuned loss of *variant* is that at its fitted best rate."""
        fits = {tuned.variant: tuned.minimum for tuned in self.minima}
        minimum = fits.get(variant)
        return self.tuned_at == "fitted-minima" and minimum is not None and minimum.status == "ok"

    def chosen_elsewhere(self, variant: str) -> bool:
        """Whether the chosen rate of *variant* is a whole step of the sweep away from the fitted best one, or more."""
        chosen = {rate.variant: rate.lr for rate in self.best}.get(variant)
        fitted = {tuned.variant: tuned.minimum for tuned in self.minima}.get(variant)
        if not self.knows_best_rate(variant) or chosen is None or fitted is None or not fitted.lr:
            return False
        away = abs(math.log(chosen / fitted.lr))
        steps = (abs(math.log(chosen / rate)) for rate in self.rates if rate != chosen)
        return away > 0.98 * min(steps, default=math.inf)  # rates are rounded


# --- factorial studies ----------------------------------------------------------------------------------------


class Factor(StoredValue):
    """A setting that the regimes vary, with its levels in the order of the regimes; the first is the reference."""

    key: str
    levels: tuple[str, ...]


class FactorCell(StoredValue):
    """The effect of one variant (variant - baseline, on the tested scale) in one cell of the factorial."""

    variant: str
    regime: str
    levels: tuple[str, ...]
    n: int
    effect: float | None
    low: float | None
    high: float | None


class SeedValue(StoredValue):
    """One seed's value of a contrast."""

    seed: int
    value: float


class InteractionContrast(StoredValue):
    """An effect of the factors: a contrast of cells, per seed, then a t interval over seeds.

    *main*: mean over the other factors of value(level) - value(reference level). *interaction*: the difference of those
    differences between the other factors' levels and their references. p is adjusted over all registered contrasts, or over
    the exploratory ones of that kind.
    """

    variant: str | None  # None where the arms themselves are crossed, by [factors]
    kind: Literal["main", "interaction"]
    label: Literal["registered", "exploratory"] = "exploratory"
    factors: tuple[str, ...]
    levels: tuple[str, ...]
    references: tuple[str, ...]
    n: int
    planned: int
    values: tuple[SeedValue, ...]
    estimate: float | None
    low: float | None
    high: float | None
    level: float
    deciding_low: float | None = None  # at the level at which they exclude 0 just where the adjusted p shows an effect
    deciding_high: float | None = None
    p: float | None
    p_adjusted: float | None
    status: Status | Literal["grid-rates"]  # of tuned arms without fitted best rates, which test nothing


class SimpleEffect(StoredValue):
    """How a variant's effect changes with one setting where the other stays at one level; exploratory.

    Per seed value(level) - value(reference level), then a t interval over seeds. The mean over the other setting's levels
    is the main effect, the differences between them are the interactions. p is adjusted (Holm) over the effects of one
    setting, and the interval with it.
    """

    variant: str
    factor: str
    reference: str
    level: str
    other: str
    at: str
    n: int
    estimate: float | None
    low: float | None
    high: float | None
    p: float | None
    p_adjusted: float | None


class AliasedEffect(StoredValue):
    """An effect that the cells at hand cannot tell from *aliases*, which are estimated in its place."""

    factors: tuple[str, ...]
    aliases: tuple[tuple[str, ...], ...]


class Interactions(StoredValue):
    """Main effects and interactions of settings that the regimes cross, with each variant's effect in every cell; or of
    those that [factors] cross, without cells, for each is an arm."""

    metric: str
    transform: Literal["identity", "log"]
    factors: tuple[Factor, ...]
    cells: tuple[FactorCell, ...]
    contrasts: tuple[InteractionContrast, ...]
    aliases: tuple[AliasedEffect, ...] = ()
    simple: tuple[SimpleEffect, ...] = ()


# --- other readings of the curves ------------------------------------------------------------------------------

#: Difference in loss at equal tokens, FLOPs or time; ratio of the tokens that take both arms to one loss.
ReadingKind = Literal["tokens", "flops", "time", "efficiency"]


class ReadingGap(StrEnum):
    """Why a reading cannot be had."""

    NO_PAIR = "no-pair"
    OTHER_TEXT = "other-text"
    NOT_REPORTED = "not-reported"
    SHARED_STACK = "shared-stack"
    OTHER_CONDITIONS = "other-conditions"
    TOO_COARSE = "too-coarse"


class CurveReading(StoredValue):
    """One reading of the curves of a variant and the baseline, paired by seed.

    The shares say how much of each run lies before the place where the curves are read, on average. *efficiency*: tokens of
    the variant / tokens of the baseline to the higher of their final losses, geometric mean; *reached*: on how many seeds
    the variant reaches the baseline's final loss.
    """

    kind: ReadingKind
    variant: str
    regime: str
    n: int = 0
    planned: int
    values: tuple[SeedValue, ...] = ()
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    variant_share: float | None = None
    baseline_share: float | None = None
    reached: int | None = None
    gap: ReadingGap | None = None


class Readings(StoredValue):
    """The same curves at other budgets than the one that *match* made equal.

    *curve*: the validation curve, or the smoothed training loss. *clock*: whether the evaluation timed all runs in turn, or
    each was timed while it trained.
    """

    curve: Literal["curve_loss", "loss"]
    match: Literal["tokens", "flops", "time"]
    clock: Literal["evaluation", "training"]
    level: float
    label: Literal["exploratory"] = "exploratory"
    readings: tuple[CurveReading, ...]


class NoiseSources(StoredValue):
    """Where the variance of a metric comes from over the runs of ``[noise]``, on the scale that it is tested on.

    Of one arm's value, or of variant - reference in the same combination of seeds. ``components``: empty where runs of the
    layout are missing or diverged, for it must be whole.
    """

    metric: str
    variant: str
    reference: str | None
    transform: Literal["identity", "log"]
    runs: int
    missing: int
    level: float
    components: tuple[VarianceComponent, ...]


# --- the whole ------------------------------------------------------------------------------------------------


class Analysis(SealedRecord):
    """analysis.json. *about*: what each variant is, in the study's words."""

    KIND: ClassVar[str] = "analysis"
    VERSION: ClassVar[int] = 10
    MEND: ClassVar[str] = "`ablationlab analyze` writes it again"
    study: str
    question: str
    source: Literal["records", "table"]
    source_hash: str
    criteria_hash: str | None
    baseline: str
    variants: tuple[str, ...]
    regimes: tuple[str, ...]
    seeds: tuple[Seed, ...]
    criteria: tuple[Criterion, ...]
    primary: str | None
    tie_breakers: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...] = ()
    resamples: int
    metrics: dict[str, Metric]  # as defined when the plan was sealed, or by the user's table
    comparisons: tuple[Comparison, ...]
    families: tuple[Family, ...]
    stability: StabilityAnalysis | None
    sweep: SweepAnalysis | None = None
    interactions: Interactions | None = None
    readings: Readings | None = None
    noise: tuple[NoiseSources, ...] = ()
    fair: tuple[FairCondition, ...] = ()
    about: dict[str, str] = Field(default_factory=dict)
    power: tuple[Power, ...]
    ledger: LedgerCheck | None
    deviations: tuple[Deviation, ...]
    evaluation: EvaluationAnalysis | None = None
    look: LookResult | None = None  # None without a design, and where the runs are no planned look
    again: tuple[str, ...] = ()  # variants that are the baseline once more (A/A)
    budget_unknown: tuple[str, ...] = ()  # variants of which, or of the baseline, nothing says how long they trained
    reused: dict[str, int] = Field(default_factory=dict)  # by regime, how many studies rest on its baseline runs
    inputs: dict[str, str] = Field(default_factory=dict)  # SHA-256 of the files it was made from; runs by their seals
    altered: dict[str, str] = Field(default_factory=dict)  # files used on request although not as sealed; "": missing

    @property
    def own_trainer(self) -> bool:
        """Whether the user's own code trained the runs, so that only what it reports is known of them."""
        return self.ledger is not None and self.ledger.reported

    @property
    def unpaired_runs(self) -> int:
        """How many runs are compared where no seed pairs any; 0 where seeds do."""
        if any(comparison.design == "paired" for comparison in self.comparisons):
            return 0
        there = {(c.regime, run.arm, run.seed) for c in self.comparisons for run in c.runs}
        return len(there | {(c.regime, run.arm, run.seed) for c in self.comparisons for run in c.missing})

    @property
    def rest_of_sweep(self) -> list[SweepPoint]:
        """The runs of a sweep that stand in no comparison of single arms, of which it is known whether they were unstable."""
        compared = set() if self.stability is None else {run.run for run in self.stability.runs}
        points = () if self.sweep is None else self.sweep.points
        return list({p.run: p for p in points if p.unstable is not None and p.run not in compared}.values())

    def primary_comparison(self, regime: str, variant: str) -> Comparison | None:
        """A variant against the baseline on the metric that is primary in that regime, else in the study."""
        here = (regime, variant, self.baseline)
        asked = (c for c in self.comparisons if c.role == "primary" and (c.regime, c.variant, c.reference) == here)
        metric = next((comparison.metric for comparison in asked), self.primary)
        return None if metric is None else self.comparison(metric, *here)

    def comparison(self, metric: str, regime: str, variant: str, reference: str) -> Comparison | None:
        """The comparison that speaks for a metric: its macro average where there are tasks, else the only one."""
        wanted = (metric, regime, variant, reference)
        matching = [c for c in self.comparisons if (c.metric, c.regime, c.variant, c.reference) == wanted]
        whole = [c for c in matching if c.task in (None, MACRO)] or (matching if len(matching) == 1 else [])
        return whole[0] if whole else None
