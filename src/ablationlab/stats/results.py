"""The results of the statistics, as they are stored in analysis.json and comparison.json. Loads neither numpy nor scipy.

A number that could not be computed is None, and *status* says why; none is ever NaN or infinite. Words are made elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final, Literal

#: "ok", or why there is no number: not enough pairs, no variation, or no finite bound.
Status = Literal["ok", "too-few-pairs", "degenerate", "unbounded"]
Transform = Literal["identity", "log"]
#: How a sequential design spends alpha over its looks.
Spending = Literal["obrien-fleming", "pocock", "front-loaded"]


class StatisticalResult:
    """A result that a record can hold: pydantic reads it back and refuses fields that it does not have."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}


@dataclass(frozen=True)
class ThinnedCurve(StatisticalResult):
    """A loss curve at few of its steps, to be read between them: the validation loss where it was taken, else the training
    loss, smoothed.
    """

    metric: Literal["curve_loss", "loss"]
    steps: tuple[int, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class CurveMeasures(StatisticalResult):
    """The measures of one run's course; None where its curve is too short, or no threshold was registered."""

    initial_loss: float | None
    spike_score: float | None
    spike_step: int | None
    gradient_spike_score: float | None
    gradient_spikes: int | None
    largest_loss_rise: float | None
    steps_to_loss: int | None
    mean_training_loss: float | None
    mean_gradient_norm: float | None
    curve: ThinnedCurve | None

    def measure(self, name: str) -> float | None:
        """One of them, by its name in the metric registry."""
        value: float | None = getattr(self, name)
        return None if value is None else float(value)


@dataclass(frozen=True)
class PairedSample(StatisticalResult):
    """Summary of n pairs; delta = variant - reference, standard deviations with n - 1.

    correlation is Pearson's, over seeds; variance_reduction = 1 - Var(delta) / (Var(variant) +
    Var(reference)) is the share of the unpaired variance that pairing removed (negative where pairing hurt).
    Both are None where an arm does not vary; the standard deviations are None for one pair.
    """

    n: int
    variant_mean: float
    reference_mean: float
    variant_sd: float | None
    reference_sd: float | None
    deltas: tuple[float, ...]
    delta: float
    delta_sd: float | None
    correlation: float | None
    variance_reduction: float | None


@dataclass(frozen=True)
class GeometricRatio(StatisticalResult):
    """exp(mean(log variant) - mean(log reference)): below 1 the variant's values are smaller."""

    ratio: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Interval(StatisticalResult):
    """low <= mean delta <= high at *level*; without bounds where *status* is not "ok".

    exact: no random draws were made (a formula, or the full bootstrap distribution).
    """

    method: str
    level: float
    estimate: float
    low: float | None
    high: float | None
    n: int
    exact: bool
    status: Status = "ok"

    def excludes(self, value: float) -> bool | None:
        """Whether *value* lies outside; None where there is no interval."""
        return None if self.low is None or self.high is None else not self.low <= value <= self.high


@dataclass(frozen=True)
class PValue(StatisticalResult):
    """A two-sided p-value; None where *status* is not "ok".

    minimum_p is the smallest value the test could have given for pairs like these (None: no floor).
    """

    test: str
    p: float | None
    statistic: float | None
    n: int
    exact: bool
    minimum_p: float | None = None
    status: Status = "ok"


@dataclass(frozen=True)
class FamilyMember(StatisticalResult):
    """One test of a family: its own p, the adjusted one, and the interval that decides.

    *level* is the two-sided alpha that *interval* stands for (0: never reached, so it was not tested). The interval holds 0
    exactly if the member is not rejected. None: there was no p.
    """

    p: float | None
    p_adjusted: float | None
    level: float
    rejected: bool | None
    interval: Interval | None


@dataclass(frozen=True)
class EffectSize(StatisticalResult):
    """A standardized mean delta with its interval; None where *status* is not "ok"."""

    name: str
    estimate: float | None
    low: float | None
    high: float | None
    level: float
    n: int
    status: Status = "ok"


@dataclass(frozen=True)
class Equivalence(StatisticalResult):
    """Two one-sided tests against *bounds*; low and high bound the interval at level 1 - 2 alpha.

    *equivalent*: False means "not shown", not "different"; None means that it could not be tested.
    """

    bounds: tuple[float, float]
    alpha: float
    p: float | None
    p_low: float | None
    p_high: float | None
    low: float | None
    high: float | None
    equivalent: bool | None
    n: int
    status: Status = "ok"


class CaveatCode(StrEnum):
    """What there is to know."""

    # Of the pairs and their statistics.
    TOO_FEW_PAIRS = "too-few-pairs"
    CONSTANT_DELTAS = "constant-deltas"
    FEWER_PAIRS_THAN_PLANNED = "fewer-pairs-than-planned"
    PAIRING_DID_NOT_HELP = "pairing-did-not-help"
    UNBOUNDED_INTERVAL = "unbounded-interval"
    UNDERCOVERAGE = "undercoverage"
    CANNOT_REACH_ALPHA = "cannot-reach-alpha"
    FALSE_POSITIVES = "false-positives"
    CANNOT_EXCLUDE_ZERO = "cannot-exclude-zero"
    # Of the values that were compared.
    NO_PAIRS = "no-pairs"
    UNPAIRED = "unpaired"
    NOT_POSITIVE = "not-positive"
    SURVIVORS_ONLY = "survivors-only"
    UNSTABLE_MEAN = "unstable-mean"
    REFUSED_FOR_DIVERGENCE = "refused-for-divergence"
    OTHER_CORRECTION = "other-correction"
    GRID_RATES = "grid-rates"
    # Of single items.
    AT_CHANCE = "at-chance"
    LEFT_OUT = "left-out"
    UNPAIRED_ITEMS = "unpaired-items"
    TOO_FEW_SEEDS = "too-few-seeds"


@dataclass(frozen=True)
class Caveat(StatisticalResult):
    """One thing to know before believing a number, with the values it mentions.

    *about* is the method or task it concerns, "" for the whole comparison. `analysis.wording` has the sentences.
    """

    code: CaveatCode
    about: str = ""
    details: dict[str, int | float | str | tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class PairedComparison(StatisticalResult):
    """Everything about variant - reference over paired seeds.

    All inference is on the scale of *transform*; *sample* describes that scale and *original* the values as
    given (the same object for "identity"). *ratios* shows each interval of a "log" comparison as a
    ratio of geometric means, by method, and is empty otherwise.
    """

    n: int
    transform: Transform
    level: float
    alpha: float
    sample: PairedSample
    original: PairedSample
    intervals: dict[str, Interval]
    tests: dict[str, PValue]
    effects: dict[str, EffectSize]
    equivalence: Equivalence | None
    ratios: dict[str, GeometricRatio]
    caveats: tuple[Caveat, ...]


@dataclass(frozen=True)
class UnpairedComparison(StatisticalResult):
    """Everything about mean(variant) - mean(reference) of two independent samples, by Welch's test.

    All inference is on the scale of *transform*; the means and standard deviations of the arms are of the values as given.
    *difference_sd* is that of a difference between two single runs: sqrt(s1² + s2²).
    """

    n_variant: int
    n_reference: int
    transform: Transform
    variant_mean: float
    variant_sd: float | None
    reference_mean: float
    reference_sd: float | None
    delta: float
    difference_sd: float | None
    interval: Interval
    test: PValue
    equivalence: Equivalence | None
    ratio: GeometricRatio | None


@dataclass(frozen=True)
class McNemar(StatisticalResult):
    """Exact two-sided McNemar test of one seed pair: only items that the arms disagree on count."""

    variant_only: int
    reference_only: int
    items: int
    p: float
    minimum_p: float


@dataclass(frozen=True)
class VarianceComponent(StatisticalResult):
    """A source's part of the variance, as an SD with its interval, and as a share of the whole."""

    source: str
    levels: int
    sd: float
    low: float
    high: float
    share: float | None


@dataclass(frozen=True)
class CrossedMean(StatisticalResult):
    """A mean difference over random seeds and random items (or documents): interval, two-sided p, and what makes the noise.

    The three variances are the parts of the mean's variance that more seeds, more items, or either would reduce; None without
    an interval. *degrees_of_freedom* are Satterthwaite's.
    """

    interval: Interval
    p: float | None
    degrees_of_freedom: float | None
    seeds: int
    items: int
    seed_variance: float | None
    item_variance: float | None
    rest_variance: float | None


#: How a positive control came out; the last four speak of why it was not told apart.
ControlOutcome = Literal["told-apart", "not-told-apart", "wrong-direction", "not-testable", "not-given"]


@dataclass(frozen=True)
class Sensitivity(StatisticalResult):
    """Whether a task can tell models apart at this scale; one that cannot never counts as evidence.

    *accuracy* is the baselines' mean on *items* items; a p is None where there was no test. *gate_runs* of
    *planned_gate_runs* have a value; it is set where they are too few to ask. A mean over tasks is over the
    *sensitive_tasks* of all *tasks*, or over all of them where none is sensitive.
    """

    sensitive: bool
    beats_chance: bool | None = None
    chance_p: float | None = None
    accuracy: float | None = None
    items: int | None = None
    chance: float | None = None
    control: ControlOutcome = "not-given"
    control_p: float | None = None
    control_delta: float | None = None
    control_pairs: int = 0
    gate_runs: int | None = None
    planned_gate_runs: int | None = None
    sensitive_tasks: tuple[str, ...] = ()
    tasks: int | None = None


@dataclass(frozen=True)
class Gain(StatisticalResult):
    """reference share - variant share of unstable runs over n pairs, with Tango's interval.

    *rescued*: pairs where only the reference is unstable; *broken*: only the variant. low and high are None below 2 pairs.
    Of independent arms the interval is Newcombe's, n is the smaller number of runs, and there are no pairs to count.
    """

    n: int
    reference_runs: int
    variant_runs: int
    reference_unstable: int
    variant_unstable: int
    rescued: int | None
    broken: int | None
    estimate: float | None
    low: float | None
    high: float | None
    level: float


@dataclass(frozen=True)
class FailureBound(StatisticalResult):
    """The variant fails at most *upper* more often than the reference, at level 1 - alpha, one-sided; a share of runs.

    only_variant and only_reference count the pairs in which one arm alone failed. None without pairs.
    """

    method: Literal["exact", "score"]
    n: int
    variant_failed: int
    reference_failed: int
    only_variant: int
    only_reference: int
    estimate: float | None
    upper: float | None
    alpha: float

    def non_inferior(self, margin: float) -> bool | None:
        """Whether the variant is shown to fail less than *margin* more often; None without pairs."""
        return None if self.upper is None else self.upper < margin


@dataclass(frozen=True)
class SurvivalStep(StatisticalResult):
    """How many of the runs at risk failed at this step; *survival* is the share that is left after it."""

    step: int
    at_risk: int
    failed: int
    survival: float


@dataclass(frozen=True)
class PairedSurvival(StatisticalResult):
    """When the runs of two arms of n pairs fail within *length* steps, and the paired p that they fail alike."""

    length: int
    n: int
    variant: tuple[SurvivalStep, ...]
    reference: tuple[SurvivalStep, ...]
    p: float | None
    minimum_p: float | None


@dataclass(frozen=True)
class Doubt(StatisticalResult):
    """How far values may be off, all by the same amount: the true ones lie between *below* less and *above* more."""

    below: float = 0.0
    above: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.below or self.above)

    @property
    def larger(self) -> float:
        return max(self.below, self.above)

    @property
    def mirrored(self) -> Doubt:
        return Doubt(self.above, self.below)

    def minus(self, other: Doubt) -> Doubt:
        """That of the difference."""
        return Doubt(self.below + other.above, self.above + other.below)


NO_DOUBT: Final = Doubt()


@dataclass(frozen=True)
class FittedMinimum(StatisticalResult):
    """The best rate by a cubic through four rates, and each seed's loss there; *status* says why there is none.

    *doubt*: how far the losses may be off, since no curve through a few rates is the true one. Of a sweep of two stages
    *lr* is the rate that is judged, whatever the status, and its losses are those of the judged runs.
    """

    status: Literal["ok", "grid-edge", "coarse-grid", "no-loss"]
    lr: float | None
    window: tuple[float, ...]
    values: tuple[float, ...]
    doubt: float = 0.0  # how far values may be off, all by the same amount
    second: float | None = None  # the best value of a second setting, where one was swept with the rate


@dataclass(frozen=True)
class TrendPrediction(StatisticalResult):
    """The effect predicted at one size, and the probability that its sign is the one seen at the largest size."""

    size: float
    estimate: float
    low: float
    high: float
    sign_holds: float


@dataclass(frozen=True)
class Trend(StatisticalResult):
    """Change of an effect per factor of ten in size over a few studies; between_sd: what they differ by beyond it."""

    studies: int
    slope: float
    low: float
    high: float
    p: float
    level: float
    between_sd: float
    degrees_of_freedom: int
    prediction: TrendPrediction | None


@dataclass(frozen=True)
class DifferenceOfMeans(StatisticalResult):
    """low <= mean(ours) - mean(theirs) <= high at *level*; without bounds where *status* is not "ok"."""

    method: Literal["welch", "prediction"]
    level: float
    estimate: float
    low: float | None
    high: float | None
    n: int
    published_n: int
    degrees_of_freedom: float | None
    status: Status = "ok"

    @property
    def holds_zero(self) -> bool | None:
        """Whether no difference is within the interval; None where there is none."""
        return None if self.low is None or self.high is None else self.low <= 0.0 <= self.high
