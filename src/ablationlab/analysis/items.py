"""Item-level comparison of two arms: per task and macro-averaged, over items, over seeds, and over both.

The interface is small and in memory: per task, scores of shape (seeds, items) of both arms. Where they came from (lm-eval's
samples, a run's own evaluation) is the reader's matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from ablationlab.core.seeding import stream
from ablationlab.records.analysis import ItemComparison, ItemTask
from ablationlab.stats import (
    Crossed,
    ItemPairs,
    adjust,
    crossed_bootstrap,
    interval_caveats,
    item_bootstrap,
    item_pairs,
    items_needed,
    mcnemar_tests,
    paired_deltas,
    paired_t_interval,
    paired_t_test,
)
from ablationlab.stats.results import Caveat, CaveatCode, Interval

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TaskScores:
    """Scores of one task: variant[s, i] and reference[s, i] answer the same item after training with the same seed."""

    task: str
    metric: str
    variant: FloatArray
    reference: FloatArray
    unpaired_variant: int = 0
    unpaired_reference: int = 0
    chance: float | None = None


@dataclass(frozen=True)
class ItemScores:
    """All tasks of two arms; every task has the same seeds in the same order."""

    tasks: tuple[TaskScores, ...]
    seeds: tuple[str, ...]
    source_hash: str
    notes: tuple[str, ...] = ()


def compare_items(
    scores: ItemScores,
    variant: str,
    reference: str,
    *,
    alpha: float = 0.05,
    correction: str = "holm",
    smallest_effect: float | None = None,
    resamples: int = 10_000,
) -> ItemComparison:
    """Everything about variant - reference on these items; the same scores give the same bytes."""
    level = round(1 - alpha, 12)
    pairs = {task.task: item_pairs(task.variant, task.reference) for task in scores.tasks}
    rng = stream(0, "analysis", scores.source_hash, "crossed")
    several = len(scores.seeds) >= 3
    crossed = crossed_bootstrap(pairs, level=level, resamples=resamples, rng=rng) if several else None
    tasks = [_task(scores, task, pairs[task.task], crossed, level, smallest_effect, resamples) for task in scores.tasks]
    adjusted = adjust([task.p for task in tasks], method=correction).adjusted
    tasks = [task.model_copy(update={"p_adjusted": p}) for task, p in zip(tasks, adjusted, strict=True)]
    over_seeds = np.mean([pair.deltas.mean(axis=1) for pair in pairs.values()], axis=0)
    zeros = np.zeros_like(over_seeds)
    return ItemComparison(
        variant=variant,
        reference=reference,
        seeds=scores.seeds,
        source_hash=scores.source_hash,
        correction=correction,
        tasks=tuple(tasks),
        macro_delta=float(over_seeds.mean()),
        macro_item_intervals={seed: _macro_over_items(pairs, row, level) for row, seed in enumerate(scores.seeds)},
        macro_crossed=crossed.macro if crossed else None,
        macro_seed_interval=paired_t_interval(paired_deltas(over_seeds, zeros), level=level),
        macro_seed_p=paired_t_test(paired_deltas(over_seeds, zeros)).p,
        caveats=tuple(_caveats(scores, crossed)),
    )


def _task(
    scores: ItemScores,
    task: TaskScores,
    pairs: ItemPairs,
    crossed: Crossed | None,
    level: float,
    smallest_effect: float | None,
    resamples: int,
) -> ItemTask:
    rng = stream(0, "analysis", scores.source_hash, "items", task.task)
    binary = bool(np.isin(task.variant, (0, 1)).all() and np.isin(task.reference, (0, 1)).all())
    mcnemar = mcnemar_tests(pairs) if binary else ()
    over_items = item_bootstrap(pairs, level=level, resamples=resamples, rng=rng)
    deltas = paired_deltas(task.variant.mean(axis=1), task.reference.mean(axis=1))
    over_seeds = paired_t_test(deltas)
    if len(scores.seeds) == 1:
        p, test = (mcnemar[0].p, "mcnemar") if mcnemar else (None, "none")
    else:
        p, test = over_seeds.p, "paired-t over seeds"
    crossed_interval = crossed.tasks[task.task] if crossed else None
    caveats = interval_caveats(crossed_interval) if crossed_interval else ()
    return ItemTask(
        task=task.task,
        metric=task.metric,
        items=pairs.items,
        unpaired_variant=task.unpaired_variant,
        unpaired_reference=task.unpaired_reference,
        variant_mean=float(task.variant.mean()),
        reference_mean=float(task.reference.mean()),
        delta=float(pairs.deltas.mean()),
        item_intervals=dict(zip(scores.seeds, over_items, strict=True)),
        mcnemar=dict(zip(scores.seeds, mcnemar, strict=bool(mcnemar))),
        crossed=crossed_interval,
        seed_interval=paired_t_interval(deltas, level=level),
        seed_p=over_seeds.p,
        p=p,
        p_test=test,
        p_adjusted=None,
        needs_items=_items_needed(pairs, smallest_effect, 1 - level) if binary else None,
        caveats=(*_about_chance(task), *caveats),
    )


def _macro_over_items(pairs: dict[str, ItemPairs], row: int, level: float) -> Interval:
    """mean_t(delta_t) ± z sqrt(sum_t s_t^2 / I_t) / T: these trained models on other items of the same tasks."""
    deltas = [pair.deltas[row] for pair in pairs.values()]
    estimate = float(np.mean([delta.mean() for delta in deltas]))
    items = sum(delta.size for delta in deltas)
    interval = Interval("items-normal", level, estimate, None, None, items, exact=True)
    if any(delta.size < 2 for delta in deltas) or all(np.ptp(delta) == 0 for delta in deltas):
        return replace(interval, status="degenerate", note="item deltas do not vary")
    error = float(np.sqrt(sum(delta.var(ddof=1) / delta.size for delta in deltas))) / len(deltas)
    half = NormalDist().inv_cdf((1 + level) / 2) * error
    return replace(interval, low=estimate - half, high=estimate + half)


def _items_needed(pairs: ItemPairs, effect: float | None, alpha: float) -> int | None:
    """Items for McNemar's test of one pair of models to see *effect*, at the share of items they disagree on here."""
    discordance = float(np.mean(pairs.deltas != 0))
    if effect is None or not effect <= discordance:
        return None
    return items_needed(effect, discordance, alpha=alpha)


def _about_chance(task: TaskScores) -> list[Caveat]:
    """Whether guessing explains both arms: then "no difference" on this task means nothing."""
    if task.chance is None or not (np.isin(task.variant, (0, 1)).all() and np.isin(task.reference, (0, 1)).all()):
        return []
    items = task.variant.shape[1]
    best = max(float(task.variant.mean()), float(task.reference.mean()))
    right = int(np.floor(best * items + 1e-9))
    p = float(distributions.binom.sf(right - 1, items, task.chance))
    if p < 0.05:
        return []
    text = (
        f"Neither arm beats guessing ({task.chance:.3g}) on these {items} items (best {best:.3g}, one-sided p = {p:.2g}): "
        "not sensitive, so no difference here is no evidence of equivalence."
    )
    return [Caveat(code=CaveatCode.AT_CHANCE, about=task.task, text=text)]


def _caveats(scores: ItemScores, crossed: Crossed | None) -> list[Caveat]:
    found = [Caveat(code=CaveatCode.LEFT_OUT, about="", text=f"{note}.") for note in scores.notes]
    for task in scores.tasks:
        lost = task.unpaired_variant + task.unpaired_reference
        if lost:
            text = f"{task.task}: {task.unpaired_variant} and {task.unpaired_reference} items did not pair and are left out."
            found.append(Caveat(code=CaveatCode.UNPAIRED_ITEMS, about=task.task, text=text))
    if len(scores.seeds) < 3:
        text = (
            f"{len(scores.seeds)} run(s) an arm: this speaks about these trained models on other items, not about training "
            "them again with other seeds. 3 seeds give a first interval over seeds."
        )
        found.append(Caveat(code=CaveatCode.TOO_FEW_SEEDS, about="", text=text))
    if crossed is not None:
        found += interval_caveats(crossed.macro)
    return found
