"""From values to comparisons: which to make and by which criterion, pair by seed, compute, correct each family.

Families. *primary*: every variant against the baseline on the primary metric, at the full alpha, by the registered
correction. *secondary*: tested only behind a primary comparison of the same variant that is shown, in registered
order, each behind the one before it (`stats.families.gatekeep`). *guard*: tests of non-inferiority that must all
pass, so none costs alpha. *stability*: the registered measures of smooth training and over a sweep, Holm.
*exploratory*: all the rest, one family, Benjamini-Hochberg; *exploratory/timed*: what a clock measured, apart from it, so
that a study that repeats to the bit has the same adjusted p-values. Metrics that are functions of one another share one test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean, median, stdev
from typing import Any, Final, Literal, TypeVar

from ablationlab.analysis.costs import interval_at, sharing, with_claims
from ablationlab.analysis.dataset import Absent, Arm, Dataset, absent
from ablationlab.analysis.looks import TEST as SEQUENTIAL_TEST
from ablationlab.analysis.looks import at_look, deciding_at_look, shared_at_looks
from ablationlab.core.grouping import grouped
from ablationlab.core.seeding import stream
from ablationlab.records.analysis import (
    MACRO,
    Absence,
    ComparedTask,
    Comparison,
    Family,
    Label,
    Missing,
    Outcome,
    Pair,
    Role,
    Seed,
    SingleRun,
)
from ablationlab.records.metrics import Metric
from ablationlab.records.settings import Criterion
from ablationlab.stats import (
    Caveat,
    CaveatCode,
    PairedComparison,
    compare,
    compare_unpaired,
    family_inference,
    gatekeep,
)
from ablationlab.stats._common import complement
from ablationlab.stats.comparison import as_ratio
from ablationlab.stats.results import NO_DOUBT, Doubt, FamilyMember, Transform
from ablationlab.stats.simulation import BRIEF_RESAMPLES, brief_inference
from ablationlab.stats.tuned import beyond_doubt, sure_p, widened

RESAMPLES: Final = 10_000
EXPLORATORY: Final = "exploratory"
TIMED: Final = "exploratory/timed"
_CORRECTIONS: Final[Mapping[Role | None, str]] = {
    "secondary": "gatekeeping",
    "guard": "none",
    "stability": "holm",
    None: "benjamini-hochberg",
}
#: Registered before the runs, stated by the user now, or made unasked.
Standing = Literal["registered", "stated", "exploratory"]
#: What a criterion says in the unit of the tested scale.
_IN_UNITS: Final = ("smallest_effect", "margin")
#: (seed, variant's value, reference's value)
Pairs = list[tuple[Seed, float, float]]


@dataclass(frozen=True)
class PlannedComparison:
    """One comparison to make, by the criterion that covers it, or else as its metric is tested elsewhere."""

    metric: Metric
    task: ComparedTask | None
    regime: str
    variant: str
    reference: str
    criterion: Criterion
    standing: Standing
    order: int = 0  # of its criterion among the registered ones
    stability: bool = False  # a measure of smooth training, or of how wide the range of usable rates is

    @property
    def id(self) -> str:
        """Its name everywhere: metric/[task/]regime/variant:reference."""
        parts = [self.metric.name, *([self.task.label] if self.task is not None else []), self.regime]
        return "/".join([*parts, f"{self.variant}:{self.reference}"])

    @property
    def label(self) -> Label:
        return "registered" if self.standing == "registered" else "exploratory"

    @property
    def role(self) -> Role | None:
        if self.stability:
            return "stability"
        return None if self.standing == "exploratory" else self.criterion.role

    @property
    def family(self) -> str:
        """Tests of one family are corrected together; primary tests that register other corrections are other families."""
        if self.role is None:
            return TIMED if self.metric.family == "throughput" else EXPLORATORY
        if self.role != "primary":
            return self.role
        return f"primary/{self.correction}"

    @property
    def correction(self) -> str:
        if self.role != "primary":
            return _CORRECTIONS[self.role]
        return "holm" if self.corrected_otherwise else self.criterion.correction

    @property
    def corrected_otherwise(self) -> bool:
        """Whether an older plan registered Dunnett's correction, which no analysis applies: Holm's replaces it."""
        return self.role == "primary" and self.criterion.correction == "dunnett"

    @property
    def arms(self) -> tuple[Arm, Arm]:
        """(variant, reference)"""
        task, regime, name = self.task, self.regime, self.metric.name
        return Arm(name, task, regime, self.variant), Arm(name, task, regime, self.reference)


def planned_comparisons(dataset: Dataset) -> list[PlannedComparison]:
    """Every metric and task, in every regime, for every pair of arms; in a fixed order."""
    return [
        _planned(dataset, metric, task, regime, pair)
        for metric, task in dict.fromkeys((arm.metric, arm.task) for arm in dataset.values)
        for regime in dataset.compared_regimes()
        for pair in dataset.pairs()
    ]


def _planned(
    dataset: Dataset, name: str, task: ComparedTask | None, regime: str, pair: tuple[str, str]
) -> PlannedComparison:
    """By the criterion that covers it, the most particular first; else, exploratory, as the first one of its metric says."""
    metric = dataset.metrics[name]
    registered: Standing = "registered" if dataset.registered else "stated"
    same = [criterion for criterion in dataset.criteria if criterion.metric == name]
    covering = [c for c in same if c.regime == regime and _covers(c, pair, dataset.baseline)]
    # Tasks under a macro average are detail.
    summarized = task not in (None, MACRO) and Arm(name, MACRO, regime, pair[1]) in dataset.values
    added = bool(dataset.added.intersection(pair))
    unasked = added or (task is not None and not task.planned)
    if covering and not unasked and not summarized:
        best = next((c for c in covering if c.contrast is not None), covering[0])
        order, over_rates = dataset.criteria.index(best), metric.level == "sweep"
        return PlannedComparison(metric, task, regime, *pair, best, registered, order, over_rates)
    criterion = (same[0] if same else Criterion(metric=name)).model_copy(update={"alpha": dataset.alpha})
    measured = name in dataset.stability.smoothness and pair[1] == dataset.baseline and regime in dataset.regimes
    smooth = measured and not added
    standing: Standing = registered if smooth else "exploratory"
    return PlannedComparison(metric, task, regime, *pair, criterion, standing, stability=smooth)


def _covers(criterion: Criterion, pair: tuple[str, str], baseline: str) -> bool:
    return pair[1] == baseline if criterion.contrast is None else set(criterion.contrast) == set(pair)


def compare_all(dataset: Dataset) -> tuple[list[Comparison], list[Family]]:
    """Every comparison that a run of either arm has a value for, corrected within its family."""
    planned = [
        question for question in planned_comparisons(dataset) if any(arm in dataset.values for arm in question.arms)
    ]
    sources = {name: metric.derived_from for name, metric in dataset.metrics.items() if metric.derived_from is not None}
    found = _with_variances([_comparison(dataset, question) for question in planned], sources)
    shared = shared_at_looks(dataset, found)
    resamples = BRIEF_RESAMPLES if dataset.brief else RESAMPLES
    made = [at_look(dataset, with_claims(comparison, resamples=resamples), shared) for comparison in sharing(found)]
    order = {question.id: question.order for question in planned}
    sealed = sealed_sizes(dataset, sources)
    waiting = unmeasured(made, dataset.criteria)
    comparisons, families = corrected(made, order, sources, sealed, waiting, intervals=not dataset.brief)
    tests = {comparison.id: comparison.test for comparison in comparisons}
    return [
        deciding_at_look(dataset, comparison, shared)
        if tests[comparison.shares_test_of or comparison.id] == SEQUENTIAL_TEST
        else comparison
        for comparison in comparisons
    ], families


def _with_variances(comparisons: Sequence[Comparison], sources: Mapping[str, str]) -> list[Comparison]:
    """A comparison that shares the test of another has its variance, too."""
    variances, shares = {c.id: c.variance for c in comparisons}, _shared_tests(comparisons, sources)
    return [c.model_copy(update={"variance": variances[shares[c.id]]}) if c.id in shares else c for c in comparisons]


def sealed_sizes(dataset: Dataset, sources: Mapping[str, str]) -> dict[str, int]:
    """How many tests each family was sealed with, whichever runs are there; metrics that share a test count once.

    A measure of smoothness that no run of the study has, as of a trainer that reports none, is no test.
    """
    measured = {arm.metric for arm in dataset.values}
    asked = [(criterion.metric, criterion.regime) for criterion in dataset.criteria]
    asked += [(name, regime) for name in dataset.stability.smoothness if name in measured for regime in dataset.regimes]
    tests = {
        (question.family, sources.get(name, name), regime, pair)
        for name, regime in asked
        if name in dataset.metrics
        for pair in dataset.pairs()
        if (question := _planned(dataset, name, None, regime, pair)).role is not None and question.label == "registered"
    }
    return Counter(family for family, *_ in tests)


def _comparison(dataset: Dataset, planned: PlannedComparison) -> Comparison:
    if unpaired(dataset, planned):
        return _unpaired_comparison(dataset, planned)
    pairs, missing = paired(dataset, planned)
    diverged = [m for m in missing if m.reason == Absence.DIVERGED]
    refused = dataset.stability.diverged == "refuse" and bool(diverged)
    promised = len(dataset.seeds_of(planned.regime))
    promised = promised if dataset.source == "records" else len(pairs) + len({m.seed for m in missing})
    if refused:
        pairs = []
    transform, caveats = _transform(planned.metric, [value for _, *both in pairs for value in both])
    planned = _without_margins(planned) if caveats else planned
    caveats += _about_diverged(diverged, refused)
    if dataset.at_grid_rates(*planned.arms):
        caveats.append(Caveat(CaveatCode.GRID_RATES))
    numbers: dict[str, Any] = {}
    doubt = dataset.doubt_of(*planned.arms)
    if pairs:
        if dataset.brief:
            numbers = _brief_numbers(planned.criterion, pairs, transform, doubt)
        else:
            result = _computed(planned, pairs, transform, promised, doubt)
            numbers = _numbers(result, pairs)
            caveats += _unstable_means(dataset, planned, pairs)
            caveats += result.caveats
            if doubt:
                moved = _beyond(pairs, transform, doubt)
                tests = _computed(planned, moved, transform, promised).tests
                intervals = {name: widened(made, doubt) for name, made in result.intervals.items()}
                deltas = _deltas(pairs, transform)
                numbers |= {
                    "tests": {name: sure_p(test, deltas, doubt) for name, test in tests.items()},
                    "intervals": intervals,
                    "ratios": {name: as_ratio(i.estimate, i.low, i.high) for name, i in intervals.items()}
                    if result.ratios
                    else {},
                }
        numbers["doubt"] = doubt
        if (
            doubt
            and (equivalence := numbers["equivalence"]) is not None
            and planned.criterion.smallest_effect is not None
        ):
            effect = planned.criterion.smallest_effect
            numbers["equivalence"] = replace(equivalence, bounds=(-effect, effect))
    elif not refused:
        caveats.append(Caveat(CaveatCode.NO_PAIRS))
    return _recorded(dataset, planned, transform, len(pairs), promised, missing, caveats, numbers)


def _recorded(
    dataset: Dataset,
    planned: PlannedComparison,
    transform: Transform,
    n: int,
    promised: int,
    missing: Sequence[Missing],
    caveats: Sequence[Caveat],
    numbers: dict[str, Any],
) -> Comparison:
    """The comparison before its family is corrected; *numbers* may name another test and interval than the criterion's."""
    criterion = planned.criterion
    unstable = any(caveat.code == CaveatCode.UNSTABLE_MEAN for caveat in caveats)
    numbers["told_by"] = "median" if unstable and transform == "identity" else "mean"
    arms = {planned.variant: "variant", planned.reference: "reference"}
    if transform == "log" and n > 2:
        numbers["skewed"] = tuple(
            name
            for name, arm in arms.items()
            if (middle := numbers.get(f"{arm}_median")) is not None and numbers[f"{arm}_mean"] > 10 * middle
        )
    if planned.corrected_otherwise:
        caveats = [*caveats, Caveat(CaveatCode.OTHER_CORRECTION, details={"registered": criterion.correction})]
    numbers = {"interval": criterion.interval, "test": criterion.test} | numbers
    tests = numbers.get("tests")
    make = Comparison.model_construct if dataset.brief else Comparison
    return make(
        id=planned.id,
        metric=planned.metric.name,
        task=planned.task,
        averaged=_averaged(dataset, planned),
        regime=planned.regime,
        variant=planned.variant,
        reference=planned.reference,
        direction=planned.metric.direction,
        unit=planned.metric.unit,
        transform=transform,
        label=planned.label,
        role=planned.role,
        n=n,
        planned_pairs=promised,
        missing=tuple(missing),
        alpha=criterion.alpha,
        p=tests[numbers["test"]].p if tests else None,
        p_adjusted=None,
        correction=planned.correction,
        family=planned.family,
        family_size=0,
        outcome="not-tested",
        smallest_effect=criterion.smallest_effect,
        margin=criterion.margin,
        sensitivity=dataset.sensitivity.get((planned.metric.name, planned.task, planned.regime)),
        caveats=tuple(caveats),
        variance=criterion.variance if planned.role == "primary" else "own",
        **numbers,
    )


def _averaged(dataset: Dataset, planned: PlannedComparison) -> tuple[ComparedTask, ...]:
    metric, regime = planned.metric.name, planned.regime
    if planned.task == MACRO:
        tasks = {arm.task for arm in dataset.values if (arm.metric, arm.regime) == (metric, regime)} - {MACRO, None}
        return tuple(sorted(task for task in tasks if task is not None))
    return dataset.averaged.get((metric, regime), ()) if planned.task is None else ()


def _without_margins(planned: PlannedComparison) -> PlannedComparison:
    """Margins that are differences of logarithms say nothing of values that are tested as they are."""
    return replace(planned, criterion=planned.criterion.model_copy(update=dict.fromkeys(_IN_UNITS)))


def _about_diverged(diverged: Sequence[Missing], refused: bool) -> list[Caveat]:
    if not diverged:
        return []
    code = CaveatCode.REFUSED_FOR_DIVERGENCE if refused else CaveatCode.SURVIVORS_ONLY
    return [Caveat(code, details={"runs": tuple(f"{m.arm} seed {m.seed}" for m in diverged)})]


def _unstable_means(dataset: Dataset, planned: PlannedComparison, pairs: Pairs) -> list[Caveat]:
    """Arms whose mean is that of a few unstable runs: no stable run reaches it, and the SD is larger than the median."""
    caveats = []
    arms = {planned.variant: {seed: a for seed, a, _ in pairs}, planned.reference: {seed: b for seed, _, b in pairs}}
    for arm, values in arms.items():
        here = [run for run in dataset.runs if (run.variant, run.regime) == (arm, planned.regime)]
        unstable = {run.seed for run in here if run.unstable}
        if len(values) < 3 or not unstable & values.keys():
            continue
        mean, middle = fmean(values.values()), median(values.values())
        stable = [value for seed, value in values.items() if seed not in unstable]
        reached = bool(stable) and min(stable) <= mean <= max(stable)
        if not reached and stdev(values.values()) > abs(middle):
            known = sum(run.unstable is not None for run in here)
            caveats.append(
                Caveat(CaveatCode.UNSTABLE_MEAN, arm, {"median": middle, "unstable": len(unstable), "of": known})
            )
    return caveats


def unpaired(dataset: Dataset, planned: PlannedComparison) -> bool:
    """Whether the arms of a user's table share no seed, or share it by accident alone; a run that diverged has its seed."""
    if dataset.source != "table":
        return False
    variant, reference = (dataset.values.get(arm, {}) for arm in planned.arms)
    return dataset.unpaired or bool(variant and reference and not variant.keys() & reference.keys())


def _unpaired_comparison(dataset: Dataset, planned: PlannedComparison) -> Comparison:
    """The means of two independent arms by Welch's test, whatever paired test was asked for."""
    arms = {arm.variant: dataset.values.get(arm, {}) for arm in planned.arms}
    runs = tuple(
        SingleRun(arm=name, seed=seed, value=value)
        for name, values in arms.items()
        for seed, value in values.items()
        if not isinstance(value, Absent)
    )
    missing = [
        Missing(seed=seed, arm=name, reason=value.reason, details=dict(value.details))
        for name, values in arms.items()
        for seed, value in values.items()
        if isinstance(value, Absent)
    ]
    transform, caveats = _transform(planned.metric, [run.value for run in runs])
    planned = _without_margins(planned) if caveats else planned
    why: dict[str, Any] = {"variant": planned.variant, "reference": planned.reference}
    why |= {"asked": True} if dataset.unpaired else {}
    caveats.insert(0, Caveat(CaveatCode.UNPAIRED, details=why))
    caveats += _about_diverged([m for m in missing if m.reason == Absence.DIVERGED], refused=False)
    samples = [[run.value for run in runs if run.arm == name] for name in (planned.variant, planned.reference)]
    numbers: dict[str, Any] = {"design": "unpaired", "runs": runs, "interval": "welch", "test": "welch"}
    if all(samples):
        criterion = planned.criterion
        result = compare_unpaired(
            *samples,
            level=complement(criterion.alpha),
            alpha=criterion.alpha,
            smallest_effect=criterion.smallest_effect,
            transform=transform,
        )
        numbers |= {
            name: getattr(result, name)
            for name in ("variant_mean", "variant_sd", "reference_mean", "reference_sd", "delta", "equivalence")
        }
        numbers |= {"delta_sd": result.difference_sd, "intervals": {"welch": result.interval}}
        numbers |= {"tests": {"welch": result.test}, "ratios": {} if result.ratio is None else {"welch": result.ratio}}
    promised = min(len(values) for values in arms.values())
    return _recorded(dataset, planned, transform, min(map(len, samples)), promised, missing, caveats, numbers)


def paired(dataset: Dataset, planned: PlannedComparison) -> tuple[Pairs, list[Missing]]:
    """The pairs where both values are there, and every reason why one is not."""
    variant, reference = (dataset.values.get(arm, {}) for arm in planned.arms)
    pairs: Pairs = []
    missing = []
    for seed in dataset.seeds_of(planned.regime):
        if dataset.source == "table" and (seed not in variant or seed not in reference):
            continue  # a table says nothing of what was planned: the seeds that both have are compared
        unknown = absent(Absence.NOT_RECORDED)
        a, b = variant.get(seed, unknown), reference.get(seed, unknown)
        for arm, value in ((planned.variant, a), (planned.reference, b)):
            if isinstance(value, Absent):
                missing.append(Missing(seed=seed, arm=arm, reason=value.reason, details=dict(value.details)))
        if not isinstance(a, Absent) and not isinstance(b, Absent):
            pairs.append((seed, a, b))
    return pairs, missing


def _transform(metric: Metric, values: Sequence[float]) -> tuple[Transform, list[Caveat]]:
    if metric.transform == "log" and any(value <= 0 for value in values):
        return "identity", [Caveat(CaveatCode.NOT_POSITIVE)]
    return metric.transform, []


def _deltas(pairs: Pairs, transform: Transform) -> list[float]:
    """Differences on the tested scale."""
    return [log(a / b) if transform == "log" else a - b for _, a, b in pairs]


def _beyond(pairs: Pairs, transform: Transform, doubt: Doubt) -> Pairs:
    """The pairs with the variant moved towards the reference by what may be doubted."""
    sure = beyond_doubt(_deltas(pairs, transform), doubt)
    return [
        (seed, b * exp(delta) if transform == "log" else b + delta, b)
        for (seed, _, b), delta in zip(pairs, sure, strict=True)
    ]


def _sure_effect(criterion: Criterion, doubt: Doubt) -> tuple[float, float] | None:
    """Within these bounds a difference is less than the smallest effect, whatever the doubt hides."""
    effect = criterion.smallest_effect
    return None if effect is None or effect <= doubt.larger else (doubt.below - effect, effect - doubt.above)


def _computed(
    planned: PlannedComparison, pairs: Pairs, transform: Transform, promised: int, doubt: Doubt = NO_DOUBT
) -> PairedComparison:
    # One fixed stream per comparison: adding a metric or a variant, or planning again, changes no other number.
    rng = stream(0, "analysis", planned.id)
    return compare(
        [a for _, a, _ in pairs],
        [b for _, _, b in pairs],
        rng=rng,
        level=complement(planned.criterion.alpha),
        alpha=planned.criterion.alpha,
        resamples=RESAMPLES,
        smallest_effect=_sure_effect(planned.criterion, doubt),
        transform=transform,
        planned_pairs=promised,
    )


def _brief_numbers(criterion: Criterion, pairs: Pairs, transform: Transform, doubt: Doubt) -> dict[str, Any]:
    """What decides, and nothing else: the registered interval and test, and equivalence."""
    deltas = _deltas(pairs, transform)
    decided = brief_inference(
        deltas,
        interval=criterion.interval,
        test=criterion.test,
        alpha=criterion.alpha,
        smallest_effect=_sure_effect(criterion, doubt),
    )
    interval, test = decided.interval, decided.test
    if doubt:
        sure = brief_inference(
            beyond_doubt(deltas, doubt),
            interval=criterion.interval,
            test=criterion.test,
            alpha=criterion.alpha,
            smallest_effect=None,
        )
        interval, test = widened(interval, doubt), sure_p(sure.test, deltas, doubt)
    return {
        "delta": decided.interval.estimate,
        "pairs": tuple(
            Pair.model_construct(seed=seed, variant=a, reference=b, delta=delta)
            for (seed, a, b), delta in zip(pairs, deltas, strict=True)
        ),
        "delta_sd": stdev(deltas) if len(deltas) > 1 else None,
        "intervals": {criterion.interval: interval},
        "tests": {criterion.test: test},
        "equivalence": decided.equivalence,
    }


def _numbers(result: PairedComparison, pairs: Pairs) -> dict[str, Any]:
    """Arms as recorded; delta, spread and all inference on the tested scale."""
    original, sample = result.original, result.sample
    return {
        "variant_mean": original.variant_mean,
        "variant_sd": original.variant_sd,
        "reference_mean": original.reference_mean,
        "reference_sd": original.reference_sd,
        "delta": sample.delta,
        "delta_sd": sample.delta_sd,
        "variant_median": median(a for _, a, _ in pairs),
        "reference_median": median(b for _, _, b in pairs),
        "delta_median": median(sample.deltas),
        "correlation": sample.correlation,
        "variance_reduction": sample.variance_reduction,
        "pairs": tuple(
            Pair(seed=seed, variant=a, reference=b, delta=delta)
            for (seed, a, b), delta in zip(pairs, sample.deltas, strict=True)
        ),
        "intervals": result.intervals,
        "tests": result.tests,
        "effects": result.effects,
        "ratios": result.ratios,
        "equivalence": result.equivalence,
    }


def corrected(
    comparisons: Sequence[Comparison],
    order: Mapping[str, int],
    sources: Mapping[str, str],
    sealed: Mapping[str, int],
    waiting: Sequence[Unmeasured] = (),
    *,
    intervals: bool = True,
) -> tuple[list[Comparison], list[Family]]:
    """Adjust p within each family, in the order given, and say what came of each test.

    *order*: of a comparison's criterion among the registered ones, by id. *sources*: a derived metric's own source. *sealed*:
    the least number of tests of a family, by its name; what was not tested counts as p = 1. *waiting*: see `Unmeasured`.
    Without *intervals* none is made: a decision needs only p.
    """
    shares = _shared_tests(comparisons, sources)
    own = [comparison for comparison in comparisons if comparison.id not in shares]
    members = grouped((comparison.family, comparison) for comparison in own)
    gated: list[Comparison | Unmeasured] = [*own, *waiting]
    chains = chains_of(gated, {**order, **{unmeasured.id: unmeasured.order for unmeasured in waiting}})
    decided: dict[str, FamilyMember] = {}
    methods: dict[str, str] = {}
    families = []
    for name, family in members.items():
        method = methods[name] = family[0].correction
        tested = sum(comparison.p is not None for comparison in family)
        counted = tested if method == "benjamini-hochberg" else max(tested, sealed.get(name, 0))
        if method != "gatekeeping":
            decided |= _decided(family, method, chains, counted - tested)
        elif not chains:  # no primary comparison keeps a gate
            decided |= _decided(family, "holm", {}, counted - tested)
        families.append(Family(id=name, correction=method, members=tuple(c.id for c in family), tested=counted))
    sizes = {family.id: family.tested for family in families}
    judged = {c.id: _judged(c, decided[c.id], sizes[c.family], methods[c.family], intervals) for c in own}
    return [
        _sharing(comparison, judged[shares[comparison.id]]) if comparison.id in shares else judged[comparison.id]
        for comparison in comparisons
    ], families


@dataclass(frozen=True)
class Unmeasured:
    """A registered secondary that no run of its arms has a value of: those behind it in the gate wait for it."""

    id: str
    regime: str
    variant: str
    reference: str
    order: int
    role: Final = "secondary"


def unmeasured(comparisons: Sequence[Comparison], criteria: Sequence[Criterion]) -> list[Unmeasured]:
    """The registered secondaries of arms with a primary comparison that are not among the comparisons."""
    there = {(c.metric, c.regime, c.variant, c.reference) for c in comparisons}
    places = dict.fromkeys((c.variant, c.reference) for c in comparisons if c.role == "primary")
    return [
        Unmeasured(
            f"{criterion.metric}/{criterion.regime}/{variant}:{reference}", criterion.regime, variant, reference, at
        )
        for at, criterion in enumerate(criteria)
        if criterion.role == "secondary"
        for variant, reference in places
        if criterion.contrast is None or set(criterion.contrast) == {variant, reference}
        if (criterion.metric, criterion.regime, variant, reference) not in there
    ]


#: A comparison, planned or made.
Q = TypeVar("Q", bound=PlannedComparison | Comparison | Unmeasured)


def chains_of(comparisons: Sequence[Q], order: Mapping[str, int]) -> dict[str, list[Q]]:
    """Primary comparison -> the secondaries behind its gate, in registered order, contrasts between variants last.

    A secondary of a regime without a primary comparison stands behind the first one of its variant.
    """
    primaries = [comparison for comparison in comparisons if comparison.role == "primary"]
    chains: dict[str, list[Q]] = {primary.id: [] for primary in primaries}
    references = {primary.reference for primary in primaries}
    asked = [comparison for comparison in comparisons if comparison.role == "secondary"]
    for comparison in sorted(asked, key=lambda c: (c.reference not in references, order[c.id])):
        arms = (comparison.variant, comparison.reference)
        mine = [primary for primary in primaries if primary.variant in arms] or primaries
        here = [primary for primary in mine if primary.regime == comparison.regime] or mine
        if here:
            chains[here[0].id].append(comparison)
    return chains


def _decided(
    family: Sequence[Comparison], method: str, chains: Mapping[str, Sequence[Comparison | Unmeasured]], untested: int
) -> dict[str, FamilyMember]:
    """What came of a family and, if it is a primary one, of the secondaries behind it."""
    alpha, behind = family[0].alpha, [chains.get(comparison.id, ()) for comparison in family]
    gates = method if method in ("holm", "bonferroni") else "holm"
    members = [_member(comparison) for comparison in family]
    rng = stream(0, "analysis", family[0].family)
    chained = [[_member(c) for c in chain] for chain in behind]
    kept = gatekeep(members, chained, alpha=alpha, correction=gates, untested=untested, rng=rng)
    primaries = kept.primaries
    if method != gates:
        primaries = family_inference(members, correction=method, alpha=alpha, untested=untested, rng=rng).members
    adjusted = dict(zip((c.id for c in family), primaries, strict=True))
    for chain, secondaries in zip(behind, kept.secondaries, strict=True):
        adjusted |= dict(zip((c.id for c in chain), secondaries, strict=True))
    return adjusted


def _member(comparison: Comparison | Unmeasured) -> tuple[None, float | None]:
    """Its p; `_judged` makes its interval, at the level that its family leaves it."""
    return None, None if isinstance(comparison, Unmeasured) else comparison.p


_STANDINGS: Final = ("primary", "secondary", "guard", "stability", None)


def _shared_tests(comparisons: Sequence[Comparison], sources: Mapping[str, str]) -> dict[str, str]:
    """Comparison -> the one whose test it shares: of metrics that are functions of one another, on the same seeds.

    The one with the weightiest role is tested, the source itself where none has more.
    """

    def tested_as(comparison: Comparison) -> tuple[object, ...]:
        source = sources.get(comparison.metric, comparison.metric)
        seeds = tuple(pair.seed for pair in comparison.pairs)
        return source, comparison.task, comparison.regime, comparison.variant, comparison.reference, seeds

    shares: dict[str, str] = {}
    for group in grouped((tested_as(comparison), comparison) for comparison in comparisons).values():
        tested = min(group, key=lambda c: (_STANDINGS.index(c.role), c.metric in sources))
        shares |= {c.id: tested.id for c in group if c is not tested and c.role in (None, tested.role)}
    return shares


def _sharing(comparison: Comparison, source: Comparison) -> Comparison:
    """The comparison with the p and the outcome of the one whose test it shares, and the interval at its level."""
    if comparison.p is None:
        return comparison
    outcome = source.outcome
    if outcome in ("better", "worse") and comparison.direction != source.direction:
        outcome = "different" if comparison.direction is None else _other(outcome)
    update = {
        "p": source.p,
        "p_adjusted": source.p_adjusted,
        "correction": source.correction,
        "family": source.family,
        "family_size": source.family_size,
        "outcome": outcome,
        "shares_test_of": source.id,
        "deciding": None if source.deciding is None else interval_at(comparison, complement(source.deciding.level)),
    }
    return comparison.model_copy(update=update)


def _other(outcome: Outcome) -> Outcome:
    return "worse" if outcome == "better" else "better"


def _judged(comparison: Comparison, member: FamilyMember, size: int, correction: str, intervals: bool) -> Comparison:
    gated = comparison.role == "secondary" and member.level == 0 and comparison.p is not None
    asked = comparison.p is not None and member.p_adjusted is not None and member.level > 0
    made = intervals and asked and (bool(comparison.pairs) or bool(comparison.runs))
    update = {
        "p_adjusted": None if gated else member.p_adjusted,
        "correction": correction,
        "family_size": size,
        "outcome": "gated" if gated else _outcome(comparison, member.p_adjusted),
        "deciding": interval_at(comparison, member.level) if made else None,
    }
    return comparison.model_copy(update=update)


def _outcome(comparison: Comparison, p: float | None) -> Outcome:
    if p is None or comparison.delta is None:
        return "not-tested"
    if p > comparison.alpha:
        return "not-shown"
    if comparison.direction is None:
        return "different"
    if comparison.cost is not None and comparison.cost.claim is not None:
        return comparison.cost.claim
    return "better" if (comparison.delta < 0) == (comparison.direction == "lower") else "worse"
