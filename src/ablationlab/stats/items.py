"""Item-level scores of both arms: paired bootstraps over items, over seeds and items, and McNemar's test.

Shapes: S seeds, I items, P distinct patterns, T tasks, R resamples. An item's delta over the seeds is a
column of delta_SI. For right/wrong items a column is one of at most 3^S patterns and, once the seeds of a
resample are drawn, the item's contribution one of at most 2 S + 1 values. Resampling items is then one
multinomial draw of how often each value occurs: the same distribution as drawing items one by one, without
touching them.

A task that cannot tell models apart at this scale says nothing by "no difference". It is sensitive when baselines on other
seeds beat chance and a positive control, trained on half the steps, is told apart from the baseline in the right direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import (
    MINIMUM_PAIRS,
    FloatArray,
    IntArray,
    count,
    finite,
    fraction,
    paired_deltas,
    sample,
)
from ablationlab.stats.intervals import RESAMPLES
from ablationlab.stats.results import ControlOutcome, Interval, McNemar, Sensitivity, StatisticalResult, Status
from ablationlab.stats.significance import paired_t_test

#: Up to this many distinct values the counts are drawn, beyond it the items themselves.
_FEW_VALUES: Final = 256
#: Items drawn at a time where they have to be; 2 million indices are 16 MB.
_CHUNK: Final = 2_000_000


@dataclass(frozen=True, eq=False)
class ItemPairs:
    """Scores of the same items under both arms: variant_SI[s, i] pairs with reference_SI[s, i]."""

    variant: FloatArray
    reference: FloatArray

    @property
    def deltas(self) -> FloatArray:
        """variant - reference, delta_SI."""
        return self.variant - self.reference

    @property
    def seeds(self) -> int:
        """Number of seed pairs."""
        return int(self.variant.shape[0])

    @property
    def items(self) -> int:
        """Number of items."""
        return int(self.variant.shape[1])


@dataclass(frozen=True)
class Crossed(StatisticalResult):
    """Crossed seeds x items bootstrap: an interval for each task's mean delta and for their macro average."""

    tasks: dict[str, Interval]
    macro: Interval
    resamples: int


def item_pairs(variant: ArrayLike, reference: ArrayLike) -> ItemPairs:
    """Check two arrays of shape (seeds, items); one dimension means one seed."""
    a, b = (np.atleast_2d(finite(name, values)) for name, values in (("variant", variant), ("reference", reference)))
    if a.ndim != 2 or a.shape != b.shape or 0 in a.shape:
        raise StatisticsError(f"variant and reference must both have shape (seeds, items), got {a.shape} and {b.shape}")
    return ItemPairs(a, b)


def mcnemar_tests(pairs: ItemPairs) -> tuple[McNemar, ...]:
    """p = P(X as far from its mean as variant_only), X ~ Binomial(disagreements, 1/2), for each seed pair."""
    for name, scores in (("variant", pairs.variant), ("reference", pairs.reference)):
        if not np.isin(scores, (0.0, 1.0)).all():
            raise StatisticsError(f"{name} must hold only 0 and 1 for McNemar's test, got values like {scores.max()}")
    gained = np.count_nonzero(pairs.deltas > 0, axis=1)
    lost = np.count_nonzero(pairs.deltas < 0, axis=1)
    p = np.minimum(1.0, 2 * special.bdtr(np.minimum(gained, lost), gained + lost, 0.5))
    floor = np.minimum(1.0, 2.0 ** (1.0 - (gained + lost)))
    return tuple(
        McNemar(int(b), int(c), pairs.items, float(q), float(m))
        for b, c, q, m in zip(gained, lost, p, floor, strict=True)
    )


def item_bootstrap(
    pairs: ItemPairs, *, level: float = 0.95, resamples: int = RESAMPLES, rng: np.random.Generator
) -> tuple[Interval, ...]:
    """Percentile interval of the mean item delta of each seed pair, its items drawn with replacement.

    It speaks about these trained models on other items, not about other seeds.
    """
    level, resamples = fraction("level", level), count("resamples", resamples, minimum=100)
    intervals = []
    for delta_I in pairs.deltas:
        values, counts = np.unique(delta_I, return_counts=True)
        estimate = float(delta_I.mean())
        if values.size == 1:
            intervals.append(_none("item-bootstrap", level, estimate, delta_I.size, "degenerate"))
            continue
        means = _resampled_means(values, counts, resamples, rng)
        intervals.append(_percentile("item-bootstrap", level, estimate, delta_I.size, means))
    return tuple(intervals)


def crossed_bootstrap(
    tasks: Mapping[str, ItemPairs],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    rng: np.random.Generator,
) -> Crossed:
    """Resample seeds (jointly for all tasks) and items (within each task), pairs kept whole on both.

    The tasks themselves are fixed. Percentile intervals: with few seeds they undercover where seeds dominate
    the noise, and are conservative where seed-by-item noise does (Owen 2007); see docs/validation.md.
    """
    level, resamples = fraction("level", level), count("resamples", resamples, minimum=100)
    seeds = common_seeds(tasks)
    estimates = {name: float(pairs.deltas.mean()) for name, pairs in tasks.items()}
    macro = float(np.mean(list(estimates.values())))
    if seeds < MINIMUM_PAIRS:
        return Crossed(
            {name: _none("crossed", level, value, seeds, "too-few-pairs") for name, value in estimates.items()},
            _none("crossed", level, macro, seeds, "too-few-pairs"),
            resamples,
        )
    drawn_RS = rng.multinomial(seeds, np.full(seeds, 1.0 / seeds), size=resamples)
    # Resamples with the same seeds see the same item contributions, so they are drawn together.
    weights_KS, group_R = np.unique(drawn_RS, axis=0, return_inverse=True)
    order_R = np.argsort(group_R.ravel(), kind="stable")
    sizes_K = np.bincount(group_R.ravel(), minlength=len(weights_KS))
    means_TR = np.empty((len(tasks), resamples))
    for row, pairs in enumerate(tasks.values()):
        means_TR[row, order_R] = _crossed_means(pairs.deltas, weights_KS.astype(np.float64), sizes_K, rng)
    flat = {name: bool(np.ptp(pairs.deltas) == 0) for name, pairs in tasks.items()}
    intervals = {
        name: _crossed_interval(level, estimates[name], seeds, means, flat[name])
        for name, means in zip(tasks, means_TR, strict=True)
    }
    whole = _crossed_interval(level, macro, seeds, means_TR.mean(axis=0), all(flat.values()))
    return Crossed(intervals, whole, resamples)


def common_seeds(tasks: Mapping[str, ItemPairs]) -> int:
    """How many seeds every task has; they must agree."""
    if not tasks:
        raise StatisticsError("tasks is empty: at least one task is needed")
    seeds = {name: pairs.seeds for name, pairs in tasks.items()}
    if len(set(seeds.values())) > 1:
        raise StatisticsError(f"tasks must all have the same seeds in the same order, got numbers of seeds {seeds}")
    return next(iter(seeds.values()))


def _crossed_means(
    delta_SI: FloatArray, weights_KS: FloatArray, sizes_K: IntArray, rng: np.random.Generator
) -> FloatArray:
    """Means of the resamples of one task, those of seed group 0 first, then group 1 ..."""
    seeds, items = delta_SI.shape
    if seeds <= 39 and np.isin(delta_SI, (-1.0, 0.0, 1.0)).all():  # 3^39 is the last to fit in 64 bits
        patterns_SP, counts_P = _patterns(delta_SI)
        sums = np.arange(-seeds, seeds + 1).astype(np.float64)
        populations = ((sums, _count(weights_S @ patterns_SP + seeds, counts_P, sums.size)) for weights_S in weights_KS)
    else:
        ones = np.ones(items, dtype=np.int64)
        populations = ((weights_S @ delta_SI, ones) for weights_S in weights_KS)
    means = [
        _resampled_means(values, counts, int(size), rng)
        for (values, counts), size in zip(populations, sizes_K, strict=True)
    ]
    return np.asarray(np.concatenate(means) / seeds, dtype=np.float64)


def _count(position_P: FloatArray, counts_P: IntArray, size: int) -> IntArray:
    """How many items lie at each position; positions are whole numbers held as floats, for a fast product."""
    return np.bincount(position_P.astype(np.int64), counts_P, size).astype(np.int64)


def _patterns(delta_SI: FloatArray) -> tuple[FloatArray, IntArray]:
    """Distinct columns of a matrix of -1, 0, 1, and how often each occurs."""
    signs_SI = delta_SI.astype(np.int64)
    code_I = 3 ** np.arange(len(signs_SI), dtype=np.int64) @ (signs_SI + 1)
    _, first, counts = np.unique(code_I, return_index=True, return_counts=True)
    return delta_SI[:, first], counts


def _resampled_means(values: FloatArray, counts: IntArray, resamples: int, rng: np.random.Generator) -> FloatArray:
    """Means of resamples of a population that holds values[v] counts[v] times."""
    items = int(counts.sum())
    if values.size <= _FEW_VALUES:
        drawn = rng.multinomial(items, counts / items, size=resamples)
        return np.asarray(drawn @ values / items, dtype=np.float64)
    population = np.repeat(values, counts)
    means = np.empty(resamples)
    rows = max(1, _CHUNK // items)
    for start in range(0, resamples, rows):
        stop = min(start + rows, resamples)
        chosen = rng.integers(0, items, size=(stop - start, items), dtype=np.int32)
        means[start:stop] = population[chosen].mean(axis=1)
    return means


def _crossed_interval(level: float, estimate: float, seeds: int, means_R: FloatArray, constant: bool) -> Interval:
    if constant:
        return _none("crossed", level, estimate, seeds, "degenerate")
    return _percentile("crossed", level, estimate, seeds, means_R)


def _percentile(method: str, level: float, estimate: float, n: int, means_R: FloatArray) -> Interval:
    low, high = np.quantile(means_R, [(1 - level) / 2, (1 + level) / 2])
    return Interval(method, level, estimate, float(low), float(high), n, exact=False)


def _none(method: str, level: float, estimate: float, n: int, status: Status) -> Interval:
    return Interval(method, level, estimate, None, None, n, exact=True, status=status)


def sensitivity(
    baseline_accuracies: ArrayLike,
    *,
    items: int | Sequence[int],
    chance: float | None,
    control: tuple[ArrayLike, ArrayLike] | None,
    alpha: float = 0.05,
    higher_is_better: bool = True,
) -> Sensitivity:
    """Gate one task.

    baseline_accuracies: accuracies of baseline runs on seeds other than the compared ones, each on *items*
    items. chance: accuracy of guessing, the larger of uniform guessing and the majority answer; None for a
    metric without one (a perplexity), which leaves only the control. control: (scores of the control, scores
    of the baseline), paired by seed; None where it was not run, which makes the task not sensitive.
    """
    alpha = fraction("alpha", alpha)
    asked = _beats_chance(baseline_accuracies, items, chance, alpha) if chance is not None else {}
    judged = _control(control, alpha, higher_is_better)
    told_apart = judged["control"] == "told-apart"
    return Sensitivity(sensitive=asked.get("beats_chance", True) and told_apart, **asked, **judged)


def _beats_chance(accuracies: ArrayLike, items: int | Sequence[int], chance: float, alpha: float) -> dict[str, Any]:
    chance = fraction("chance", chance)
    values = sample("baseline_accuracies", accuracies)
    if ((values < 0) | (values > 1)).any():
        raise StatisticsError(f"baseline_accuracies must lie between 0 and 1, got {values.tolist()}")
    counts = [items] * values.size if isinstance(items, int | np.integer) else list(items)
    if len(counts) != values.size:
        raise StatisticsError(f"items must be one number or one per accuracy, got {len(counts)} for {values.size}")
    # The runs answer the same items, so they count as one run of average accuracy: under chance the average
    # varies no more than one run does, and the binomial test errs on the safe side.
    fewest = min(count("items", number) for number in counts)
    mean = float(values.mean())
    right = int(np.floor(mean * fewest + 1e-9))
    p = float(special.bdtrc(right - 1, fewest, chance))
    return {"beats_chance": p < alpha, "chance_p": p, "accuracy": mean, "items": fewest, "chance": chance}


def _control(control: tuple[ArrayLike, ArrayLike] | None, alpha: float, higher_is_better: bool) -> dict[str, Any]:
    if control is None:
        return {"control": "not-given"}
    deltas = paired_deltas(*control)
    test = paired_t_test(deltas)
    outcome: ControlOutcome = "told-apart"
    if test.p is None:
        outcome = "not-testable"
    elif test.p >= alpha:
        outcome = "not-told-apart"
    elif (deltas.mean() < 0) != higher_is_better:
        outcome = "wrong-direction"
    return {
        "control": outcome,
        "control_p": test.p,
        "control_delta": float(deltas.mean()),
        "control_pairs": test.n,
    }
