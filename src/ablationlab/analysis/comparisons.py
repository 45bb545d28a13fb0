"""From values to comparisons: which to make and by which criterion, pair by seed, compute, correct each family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ablationlab.analysis import wording
from ablationlab.analysis.dataset import Absent, Arm, Dataset, absent
from ablationlab.analysis.looks import at_look
from ablationlab.core.seeding import stream
from ablationlab.records.analysis import (
    MACRO,
    Absence,
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
from ablationlab.stats import Caveat, CaveatCode, PairedComparison, adjust, compare, compare_unpaired
from ablationlab.stats.results import Transform

RESAMPLES: Final = 10_000
#: Registered before the runs, stated by the user now, or made unasked.
Standing = Literal["registered", "stated", "exploratory"]
#: (seed, variant's value, reference's value)
Pairs = list[tuple[Seed, float, float]]


@dataclass(frozen=True)
class PlannedComparison:
    """One comparison to make, by the criterion that covers it, or else as its metric is tested elsewhere."""

    metric: Metric
    task: str | None
    regime: str
    variant: str
    reference: str
    criterion: Criterion
    standing: Standing

    @property
    def id(self) -> str:
        """Its name everywhere: metric/[task/]regime/variant:reference."""
        parts = [self.metric.name, *([self.task] if self.task is not None else []), self.regime]
        return "/".join([*parts, f"{self.variant}:{self.reference}"])

    @property
    def label(self) -> Label:
        return "registered" if self.standing == "registered" else "exploratory"

    @property
    def role(self) -> Role | None:
        return None if self.standing == "exploratory" else self.criterion.role

    @property
    def family(self) -> str:
        """Tests of one family are corrected together: per metric family, over variants, regimes and tasks.

        The macro average summarizes the tasks, so it is not one more of them: it has a family over variants and regimes.
        """
        whole = "/macro" if self.task == MACRO else ""
        return f"{self.standing}/{self.metric.family}{whole}/{self.criterion.correction}"

    @property
    def arms(self) -> tuple[Arm, Arm]:
        """(variant, reference)"""
        task, regime, name = self.task, self.regime, self.metric.name
        return Arm(name, task, regime, self.variant), Arm(name, task, regime, self.reference)


def planned_comparisons(dataset: Dataset) -> list[PlannedComparison]:
    """Every metric and task, in every regime, for every pair of arms; in a fixed order."""
    return [
        PlannedComparison(
            dataset.metrics[metric], task, regime, *pair, *_criterion(dataset, metric, task, regime, pair)
        )
        for metric, task in dict.fromkeys((arm.metric, arm.task) for arm in dataset.values)
        for regime in dataset.compared_regimes()
        for pair in dataset.pairs()
    ]


def _criterion(
    dataset: Dataset, metric: str, task: str | None, regime: str, pair: tuple[str, str]
) -> tuple[Criterion, Standing]:
    """The criterion that covers this comparison, the most particular first; else the first one of its metric."""
    same = [criterion for criterion in dataset.criteria if criterion.metric == metric]
    covering = [c for c in same if c.regime == regime and _covers(c, pair, dataset.baseline)]
    if covering and task not in dataset.exploratory_tasks and not dataset.added.intersection(pair):
        best = next((c for c in covering if c.contrast is not None), covering[0])
        return best, "registered" if dataset.registered else "stated"
    return same[0] if same else Criterion(metric=metric), "exploratory"


def _covers(criterion: Criterion, pair: tuple[str, str], baseline: str) -> bool:
    return pair[1] == baseline if criterion.contrast is None else set(criterion.contrast) == set(pair)


def compare_all(dataset: Dataset) -> tuple[list[Comparison], list[Family]]:
    """Every comparison that a run of either arm has a value for, corrected within its family."""
    planned = [
        question for question in planned_comparisons(dataset) if any(arm in dataset.values for arm in question.arms)
    ]
    return corrected([at_look(dataset, _comparison(dataset, question)) for question in planned])


def _comparison(dataset: Dataset, planned: PlannedComparison) -> Comparison:
    if unpaired(dataset, planned):
        return _unpaired_comparison(dataset, planned)
    pairs, missing = paired(dataset, planned)
    diverged = [m for m in missing if m.reason == Absence.DIVERGED]
    refused = dataset.diverged == "refuse" and bool(diverged)
    if refused:
        pairs = []
    transform, caveats = _transform(planned.metric, [value for _, *both in pairs for value in both])
    caveats += _about_diverged(diverged, refused)
    promised = len(dataset.seeds_of(planned.regime))
    promised = promised if dataset.source == "records" else len(pairs) + len({m.seed for m in missing})
    numbers: dict[str, Any] = {}
    if pairs:
        result = _computed(planned, pairs, transform, promised)
        numbers = _numbers(result, pairs)
        caveats += result.caveats
    elif not refused:
        caveats.append(wording.caveat(CaveatCode.NO_PAIRS))
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
    numbers = {"interval": criterion.interval, "test": criterion.test} | numbers
    tests = numbers.get("tests")
    return Comparison(
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
        correction=criterion.correction,
        family=planned.family,
        family_size=0,
        outcome="not-tested",
        smallest_effect=criterion.smallest_effect,
        margin=criterion.margin,
        sensitivity=dataset.sensitivity.get((planned.metric.name, planned.task, planned.regime)),
        caveats=tuple(caveats),
        **numbers,
    )


def _averaged(dataset: Dataset, planned: PlannedComparison) -> tuple[str, ...]:
    """The tasks that a macro average is over."""
    metric, regime = planned.metric.name, planned.regime
    if planned.task == MACRO:
        tasks = {arm.task for arm in dataset.values if (arm.metric, arm.regime) == (metric, regime)} - {MACRO, None}
        return tuple(sorted(task for task in tasks if task is not None))
    return dataset.averaged.get((metric, regime), ()) if planned.task is None else ()


def _about_diverged(diverged: Sequence[Missing], refused: bool) -> list[Caveat]:
    if not diverged:
        return []
    code = CaveatCode.REFUSED_FOR_DIVERGENCE if refused else CaveatCode.SURVIVORS_ONLY
    return [wording.caveat(code, runs=", ".join(f"{m.arm} seed {m.seed}" for m in diverged))]


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
        Missing(seed=seed, arm=name, reason=value.reason, why=wording.absence(value))
        for name, values in arms.items()
        for seed, value in values.items()
        if isinstance(value, Absent)
    ]
    transform, caveats = _transform(planned.metric, [run.value for run in runs])
    caveats.insert(0, wording.caveat(CaveatCode.UNPAIRED, variant=planned.variant, reference=planned.reference))
    caveats += _about_diverged([m for m in missing if m.reason == Absence.DIVERGED], refused=False)
    samples = [[run.value for run in runs if run.arm == name] for name in (planned.variant, planned.reference)]
    numbers: dict[str, Any] = {"design": "unpaired", "runs": runs, "interval": "welch", "test": "welch"}
    if all(samples):
        criterion = planned.criterion
        result = compare_unpaired(
            *samples,
            level=round(1 - criterion.alpha, 12),
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
        if dataset.source == "table" and seed not in variant and seed not in reference:
            continue  # a table says nothing of what was planned
        unknown = absent(Absence.NOT_RECORDED)
        a, b = variant.get(seed, unknown), reference.get(seed, unknown)
        for arm, value in ((planned.variant, a), (planned.reference, b)):
            if isinstance(value, Absent):
                why = wording.absence(value)
                missing.append(Missing(seed=seed, arm=arm, reason=value.reason, why=why))
        if not isinstance(a, Absent) and not isinstance(b, Absent):
            pairs.append((seed, a, b))
    return pairs, missing


def _transform(metric: Metric, values: Sequence[float]) -> tuple[Transform, list[Caveat]]:
    if metric.transform == "log" and any(value <= 0 for value in values):
        return "identity", [wording.caveat(CaveatCode.NOT_POSITIVE)]
    return metric.transform, []


def _computed(planned: PlannedComparison, pairs: Pairs, transform: Transform, promised: int) -> PairedComparison:
    # One fixed stream per comparison: adding a metric or a variant, or planning again, changes no other number.
    rng = stream(0, "analysis", planned.id)
    return compare(
        [a for _, a, _ in pairs],
        [b for _, _, b in pairs],
        rng=rng,
        level=round(1 - planned.criterion.alpha, 12),
        alpha=planned.criterion.alpha,
        resamples=RESAMPLES,
        smallest_effect=planned.criterion.smallest_effect,
        transform=transform,
        planned_pairs=promised,
    )


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


def corrected(comparisons: Sequence[Comparison]) -> tuple[list[Comparison], list[Family]]:
    """Adjust p within each family, in the order given, and say what came of each test."""
    members: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        members.setdefault(comparison.family, []).append(comparison)
    families, adjusted = [], dict[str, tuple[float | None, int]]()
    for name, family in members.items():
        p_values: Sequence[float | None] = [comparison.p for comparison in family]
        method = family[0].correction
        tested = sum(p is not None for p in p_values)
        if method != "none":
            p_values = adjust(p_values, method=method).adjusted
        families.append(Family(id=name, correction=method, members=tuple(c.id for c in family), tested=tested))
        adjusted |= {c.id: (p, tested) for c, p in zip(family, p_values, strict=True)}
    return [_judged(comparison, *adjusted[comparison.id]) for comparison in comparisons], families


def _judged(comparison: Comparison, p: float | None, tested: int) -> Comparison:
    outcome = _outcome(comparison, p)
    return comparison.model_copy(update={"p_adjusted": p, "family_size": tested, "outcome": outcome})


def _outcome(comparison: Comparison, p: float | None) -> Outcome:
    if p is None or comparison.delta is None:
        return "not-tested"
    if p > comparison.alpha:
        return "not-shown"
    if comparison.direction is None:
        return "different"
    return "better" if (comparison.delta < 0) == (comparison.direction == "lower") else "worse"
