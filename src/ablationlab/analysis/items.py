"""Item-level comparison of two arms: per task and macro-averaged, over items, over seeds, and over both.

`compare_items` takes scores of shape (seeds, items) of both arms per task; `item_contrasts` has them for every
contrast of a study. analysis/lm_eval.py reads them from lm-eval's own files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ablationlab.analysis.dataset import Absent, Dataset
from ablationlab.core.errors import RecordError
from ablationlab.core.processes import usable_cores
from ablationlab.core.seeding import stream
from ablationlab.records.analysis import (
    EvaluationNote,
    EvaluationNoteCode,
    ItemComparison,
    ItemContrast,
    ItemTask,
    Seed,
)
from ablationlab.records.plan import Plan
from ablationlab.records.storage import content_hash
from ablationlab.stats import (
    ItemPairs,
    adjust,
    crossed_bootstrap,
    crossed_means,
    item_bootstrap,
    item_pairs,
    items_needed,
    mcnemar_tests,
    paired_deltas,
    paired_t_interval,
    paired_t_test,
)
from ablationlab.stats._common import FloatArray, complement
from ablationlab.stats.results import Caveat, CaveatCode, Interval

if TYPE_CHECKING:
    from ablationlab.analysis.evaluation import AskedTask, Evaluated


#: What a p speaks of: retrained models on these items, or these models on other items.
OVER_SEEDS = "paired-t over seeds"
OVER_ITEMS = "paired-t over items"


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
    left_out: tuple[str, ...] = ()  # tasks that are not in every run


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
    level = complement(alpha)
    pairs = {task.task: item_pairs(task.variant, task.reference) for task in scores.tasks}
    rng = stream(0, "analysis", scores.source_hash, "crossed")
    several = len(scores.seeds) >= 3
    crossed = crossed_means(pairs, level=level) if several else None
    check = crossed_bootstrap(pairs, level=level, resamples=resamples, rng=rng) if several else None
    tasks = [_task(scores, task, pairs[task.task], level, smallest_effect, resamples) for task in scores.tasks]
    if crossed and check:
        tasks = [
            task.model_copy(update={"crossed": crossed.tasks[task.task], "crossed_check": check.tasks[task.task]})
            for task in tasks
        ]
    adjusted = adjust([task.p for task in tasks], method=correction).adjusted
    tasks = [task.model_copy(update={"p_adjusted": p}) for task, p in zip(tasks, adjusted, strict=True)]
    over_seeds = np.mean([pair.deltas.mean(axis=1) for pair in pairs.values()], axis=0)
    zeros = np.zeros_like(over_seeds)
    over_items = {seed: _macro_over_items(pairs, row, level) for row, seed in enumerate(scores.seeds)}
    macro_seed_p = paired_t_test(paired_deltas(over_seeds, zeros)).p
    macro_p, macro_test = macro_seed_p, OVER_SEEDS
    if len(scores.seeds) == 1:
        (_, macro_p), macro_test = next(iter(over_items.values())), OVER_ITEMS
    return ItemComparison(
        variant=variant,
        reference=reference,
        seeds=scores.seeds,
        source_hash=scores.source_hash,
        correction=correction,
        tasks=tuple(tasks),
        macro_delta=float(over_seeds.mean()),
        macro_item_intervals={seed: interval for seed, (interval, _) in over_items.items()},
        macro_crossed=crossed.macro if crossed else None,
        macro_crossed_check=check.macro if check else None,
        macro_seed_interval=paired_t_interval(paired_deltas(over_seeds, zeros), level=level),
        macro_seed_p=macro_seed_p,
        macro_p=macro_p,
        macro_p_test=macro_test,
        caveats=tuple(_caveats(scores)),
    )


def corrected_together(comparisons: Sequence[ItemComparison], correction: str) -> list[ItemComparison]:
    """Several comparisons as one family: the p-values of all their tasks adjusted together."""
    every = [task.p for comparison in comparisons for task in comparison.tasks]
    adjusted = iter(adjust(every, method=correction).adjusted)
    return [
        comparison.model_copy(
            update={
                "correction": correction,
                "tasks": tuple(task.model_copy(update={"p_adjusted": next(adjusted)}) for task in comparison.tasks),
            }
        )
        for comparison in comparisons
    ]


def _task(
    scores: ItemScores,
    task: TaskScores,
    pairs: ItemPairs,
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
        p, test = (mcnemar[0].p, "mcnemar") if mcnemar else (paired_t_test(pairs.deltas[0]).p, OVER_ITEMS)
    else:
        p, test = over_seeds.p, OVER_SEEDS
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
        crossed=None,
        crossed_check=None,
        seed_interval=paired_t_interval(deltas, level=level),
        seed_p=over_seeds.p,
        p=p,
        p_test=test,
        p_adjusted=None,
        needs_items=_items_needed(pairs, smallest_effect, 1 - level) if binary else None,
        caveats=tuple(_about_chance(task)),
    )


def _macro_over_items(pairs: dict[str, ItemPairs], row: int, level: float) -> tuple[Interval, float | None]:
    """mean_t(delta_t) ± t_f sqrt(sum_t s_t^2 / I_t) / T: these trained models on other items of the same tasks.

    f is Satterthwaite's: (sum_t v_t)^2 / sum_t v_t^2 / (I_t - 1), v_t = s_t^2 / I_t.
    """
    deltas = [pair.deltas[row] for pair in pairs.values()]
    estimate = float(np.mean([delta.mean() for delta in deltas]))
    items = sum(delta.size for delta in deltas)
    interval = Interval("items-t", level, estimate, None, None, items, exact=True)
    if any(delta.size < 2 for delta in deltas) or all(np.ptp(delta) == 0 for delta in deltas):
        return replace(interval, status="degenerate"), None
    parts = [(float(delta.var(ddof=1)) / delta.size, delta.size - 1) for delta in deltas]
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / of for part, of in parts)
    error = float(np.sqrt(variance)) / len(deltas)
    half = float(special.stdtrit(freedom, (1 + level) / 2)) * error
    p = float(2 * special.stdtr(freedom, -abs(estimate) / error))
    return replace(interval, low=estimate - half, high=estimate + half), p


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
    p = float(special.bdtrc(right - 1, items, task.chance))
    if p < 0.05:
        return []
    return [Caveat(CaveatCode.AT_CHANCE, task.task, {"chance": task.chance, "items": items, "best": best, "p": p})]


def _caveats(scores: ItemScores) -> list[Caveat]:
    caveats = [Caveat(CaveatCode.LEFT_OUT, task) for task in scores.left_out]
    for task in scores.tasks:
        if task.unpaired_variant + task.unpaired_reference:
            caveats.append(
                Caveat(
                    CaveatCode.UNPAIRED_ITEMS,
                    task.task,
                    {"variant": task.unpaired_variant, "reference": task.unpaired_reference},
                )
            )
    if len(scores.seeds) < 3:
        caveats.append(Caveat(CaveatCode.TOO_FEW_SEEDS, details={"seeds": len(scores.seeds)}))
    return caveats


def item_contrasts(
    dataset: Dataset, plan: Plan, evaluated: Evaluated
) -> tuple[list[ItemContrast], list[EvaluationNote]]:
    """Item-level statistics of every contrast on the planned tasks; and who is left out, and why.

    An item that was put in several templates scores its mean over them, as the task does.
    """
    answers = _Answers(evaluated)
    by_cell: dict[tuple[str, str, Seed], str] = {(run.variant, run.regime, run.seed): run.id for run in plan.compared}
    planned = [task for task in evaluated.tasks if task.compared.planned]
    asked: list[tuple[str, int, tuple[ItemScores, str, str]]] = []
    left_out: dict[str, tuple[Absent, dict[str, None]]] = {}
    for regime in dataset.regimes:
        for variant, reference in dataset.pairs():
            for fewshot in sorted({task.compared.fewshot for task in planned}):
                tasks = [task for task in planned if task.compared.fewshot == fewshot]
                whole: dict[Seed, tuple[str, str]] = {}
                for seed in dataset.seeds:
                    pair = [by_cell.get((name, regime, seed)) for name in (variant, reference)]
                    ids = [run for run in pair if run is not None]
                    whys = {run: answers.lacks(run, tasks) for run in ids}
                    if len(ids) == 2 and not any(whys.values()):
                        whole[seed] = (ids[0], ids[1])
                    for run, why in whys.items():
                        if why is not None and run in evaluated.runs:
                            left_out.setdefault(repr(why), (why, {}))[1][run] = None
                if whole:
                    asked.append((regime, fewshot, (_item_scores(answers, tasks, whole), variant, reference)))
    # Drawing resamples, which takes longest, waits for no interpreter; every comparison has a random stream of its own.
    with ThreadPoolExecutor(usable_cores()) as threads:
        compared = threads.map(lambda each: compare_items(*each[2]), asked)
        contrasts = [
            ItemContrast(regime=regime, fewshot=fewshot, comparison=comparison)
            for (regime, fewshot, _), comparison in zip(asked, compared, strict=True)
        ]
    return contrasts, [
        EvaluationNote(
            code=EvaluationNoteCode.NOT_IN_ITEMS,
            details={**why.details, "reason": why.reason.value, "runs": list(runs)},
        )
        for why, runs in left_out.values()
    ]


def _item_scores(answers: _Answers, tasks: Sequence[AskedTask], pairs: Mapping[Seed, tuple[str, str]]) -> ItemScores:
    task_scores = []
    for task in tasks:
        columns = [[answers.correct(ids[side], task) for ids in pairs.values()] for side in (0, 1)]
        task_scores.append(
            TaskScores(
                task=task.compared.label,
                metric="acc",
                variant=np.stack(columns[0]),
                reference=np.stack(columns[1]),
                chance=answers.evaluated.any_result(task).chance,
            )
        )
    used = [answers.evaluated.runs[run].samples_sha256 for ids in pairs.values() for run in ids]
    return ItemScores(
        tuple(task_scores), tuple(str(seed) for seed in pairs), content_hash([*used, [t.compared.label for t in tasks]])
    )


class _Answers:
    """Which items each run answered rightly. A task's hash covers its items, so equal hashes are the same items."""

    def __init__(self, evaluated: Evaluated) -> None:
        self.evaluated = evaluated
        self._results = {
            (run, result.task_hash): result
            for run, evaluation in evaluated.runs.items()
            for result in evaluation.tasks
            if result.weights == "final"
        }

    def lacks(self, run: str, tasks: Sequence[AskedTask]) -> Absent | None:
        """Why a run has not answered all of these; None where it has."""
        accuracy = (self.evaluated.score(run, task, lambda result: result.accuracy) for task in tasks)
        return next((value for value in accuracy if isinstance(value, Absent)), None)

    def correct(self, run: str, task: AskedTask) -> NDArray[np.float64]:
        """Per item 1 where it was answered rightly, in several templates the share of them."""
        templates = [self._results[run, digest].correct for digest in task.hashes.values()]
        scores = [correct.astype(float) for correct in templates if correct is not None]
        if len({len(correct) for correct in scores}) != 1:
            raise RecordError(f"{run}: {task.compared.label} has other items in another template; evaluate again")
        share: NDArray[np.float64] = np.stack(scores).mean(axis=0)
        return share
