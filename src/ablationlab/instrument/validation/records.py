"""validation.json: how often the shipped analysis said what, where the truth is known. docs/validation.md describes it."""

from __future__ import annotations

from typing import ClassVar, Literal

from ablationlab.records.analysis import Deviation
from ablationlab.records.storage import Record, StoredValue


class Rate(StoredValue):
    """hits of n studies, with the exact (Clopper-Pearson) 95 % interval of the rate; no rate where n = 0."""

    hits: int
    n: int
    rate: float | None
    low: float | None
    high: float | None


class MethodRate(StoredValue):
    """How often one interval excluded zero, or one test had p <= alpha, before any correction.

    *unavailable*: studies in which it gave no answer; they count as no rejection. *simulated*: the rate under a true null
    that benchmarks/coverage.py found for so many pairs, by distribution of the differences, and in the same way for
    differences "as these": of the shape of those judged. Empty at another alpha than 0.05, and where the null is not true.
    """

    kind: Literal["test", "interval"]
    method: str
    rate: Rate
    unavailable: int
    simulated: dict[str, float | None]


class DeltaSummary(StoredValue):
    """The paired differences of all studies together: what the instrument had to judge."""

    n: int
    mean: float | None
    low: float | None
    high: float | None
    sd: float | None
    skewness: float | None
    excess_kurtosis: float | None
    correlation: float | None


class ComparisonRates(StoredValue):
    """One registered comparison over all studies. *significant* is the registered test after its correction."""

    id: str
    metric: str
    variant: str
    reference: str
    role: str | None
    test: str
    alpha: float
    deltas: DeltaSummary
    significant: Rate
    methods: tuple[MethodRate, ...]
    smallest_effect: float | None
    equivalent: Rate | None
    equivalent_planned: float | None


class Compatibility(StoredValue):
    """Whether the registered test rejects a true null as often as its alpha says. *p*: exact binomial, two-sided.

    *expected*: the rate for differences of the shape of those judged, as *simulated* of that test gives it.
    """

    comparison: str
    test: str
    alpha: float
    rate: Rate
    p: float
    compatible: bool
    expected: float | None
    as_expected: bool | None


class FamilyRates(StoredValue):
    """How often at least one test of a family was significant after its correction: at most alpha is promised."""

    id: str
    correction: str
    members: tuple[str, ...]
    alpha: float
    any: Rate
    compatible: bool


class AnswerRates(StoredValue):
    """How often each answer was given on one variant."""

    variant: str
    answers: dict[str, Rate]


class GainRates(StoredValue):
    """How often the interval of the stability gain excluded zero, and how many runs were unstable at all."""

    variant: str
    reference: str
    excludes_zero: Rate
    unstable_runs: int
    runs: int


class DoseCalibration(StoredValue):
    """The effect as measured on seeds that no study judges: d = mean / SD with its exact interval."""

    n: int
    lost: int
    mean: float
    sd: float
    d: float
    d_low: float
    d_high: float


class DoseRates(StoredValue):
    """One injected effect: *variant* at *lr* against the baseline at *base_lr*. At lr = base_lr there is none.

    *planned*: power of the registered test for the calibrated effect, with its values at both ends of the interval of d.
    *expected*: how often the registered paired t finds differences of the calibrated shape, drawn from them: what the
    power of normal differences does not know. *judged_d*: the effect on the seeds that were judged, to see what the
    calibration missed.
    """

    variant: str
    lr: float
    base_lr: float
    calibration: DoseCalibration
    judged_d: float | None
    planned: float
    planned_low: float
    planned_high: float
    expected: float | None
    detected: Rate
    wrong_way: Rate
    methods: tuple[MethodRate, ...]
    answers: dict[str, Rate]
    compatible: bool


class Validation(Record):
    """validation.json. Every study counts: *incomplete* ones (a run is not finished) are the only ones set aside."""

    KIND: ClassVar[str] = "validation"
    study: str
    source_hash: str
    baseline: str
    variants: tuple[str, ...]
    pairs: int
    seeds: int
    studies: int
    incomplete: int
    left_over: int
    diverged_runs: int
    diverged_studies: int
    comparisons: tuple[ComparisonRates, ...]
    compatibility: tuple[Compatibility, ...]
    families: tuple[FamilyRates, ...]
    answers: tuple[AnswerRates, ...]
    gains: tuple[GainRates, ...]
    doses: tuple[DoseRates, ...]
    diverged_rule: Literal["survivors", "refuse"]
    deviations: tuple[Deviation, ...]
