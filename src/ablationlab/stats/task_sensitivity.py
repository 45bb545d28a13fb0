"""Can this task tell models apart at this scale? If not, "no difference" on it means nothing.

A task is sensitive when baselines on other seeds beat chance and a positive control, trained on half the
steps, is told apart from the baseline in the right direction. A task that is not sensitive is shown as such
and never counts as evidence of equivalence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import count, fraction, paired_deltas, sample
from ablationlab.stats.results import Sensitivity
from ablationlab.stats.significance import paired_t_test


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
    beats, chance_p, reasons = _beats_chance(baseline_accuracies, items, chance, alpha)
    apart, control_p, reason = _control(control, alpha, higher_is_better)
    reasons.append(reason)
    return Sensitivity(
        sensitive=beats is not False and apart,
        beats_chance=beats,
        chance_p=chance_p,
        control_told_apart=apart,
        control_p=control_p,
        reasons=tuple(reasons),
    )


def _beats_chance(
    accuracies: ArrayLike, items: int | Sequence[int], chance: float | None, alpha: float
) -> tuple[bool | None, float | None, list[str]]:
    if chance is None:
        return None, None, ["the metric has no chance level; only the positive control was asked"]
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
    p = float(stats.binom.sf(right - 1, fewest, chance))
    beats = p < alpha
    verb = "beats" if beats else "does not beat"
    shown = f"{verb} chance {chance:.4f} (one-sided p = {p:.3g})"
    return beats, p, [f"mean baseline accuracy {mean:.4f} on {fewest} items {shown}"]


def _control(
    control: tuple[ArrayLike, ArrayLike] | None, alpha: float, higher_is_better: bool
) -> tuple[bool, float | None, str]:
    if control is None:
        return False, None, "no positive control was given"
    deltas = paired_deltas(*control)
    test = paired_t_test(deltas)
    if test.p is None:
        return False, None, f"the positive control cannot be judged: {test.note}"
    worse = (deltas.mean() < 0) == higher_is_better
    shown = f"(mean delta {deltas.mean():.4g}, n = {test.n}, two-sided p = {test.p:.3g})"
    if test.p >= alpha:
        return False, test.p, f"the positive control is not told apart from the baseline {shown}"
    if not worse:
        return False, test.p, f"the positive control differs in the wrong direction {shown}"
    return True, test.p, f"the positive control is told apart from the baseline {shown}"
