"""Failed runs of two arms, paired by seed: a bound on how much more often the variant fails, and when runs fail.

**Non-inferiority.** With b pairs in which only the variant failed and c in which only the reference did, D = P(variant
fails) - P(reference fails) and q = P(only the reference fails), (b, c) is trinomial with probabilities q + D, q and the
rest. The upper bound at level 1 - alpha is the largest D that is not rejected:

    exact   max over q of P_(q,D)(S <= observed S) > alpha, S Tango's score for D (1998): at least 1 - alpha whatever q is
    score   S(D) = -z_alpha: shorter, and near 1 - alpha on average over q

The exact one is the default up to 60 pairs, the score one beyond. 0 failures in n pairs of runs give an exact bound of
about 1 - alpha^(1/n), which is that of one arm, and never less: 45 % at 5 pairs, 14 % at 20 with alpha = 0.05. Counts are
discrete, so the exact bound of n pairs is not monotone in n (20.8 % at 16 pairs, 21.0 % at 17, alpha = 0.025). What is
returned is the largest of those of n to n + 6 pairs: one more pair without a failure never makes it larger.

**When runs fail.** Runs of one length T are followed until they diverge; those that do not are censored at T. The
product-limit estimate (Kaplan and Meier 1958) is then one step per divergence. The p asks whether the variant diverges
earlier or more often than its partner of the same seed: the log-rank score of each run (Prentice's, which is the rank of
its failure among all runs) is differenced within pairs and its signs are flipped, exactly up to 16 pairs that differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from scipy import special

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import FloatArray, count, fraction
from ablationlab.stats.intervals import RESAMPLES
from ablationlab.stats.results import FailureBound, PairedSurvival, SurvivalStep
from ablationlab.stats.significance import sign_flip_test

#: Beyond this many pairs the exact bound takes seconds, and the score bound is as good.
EXACT_UP_TO: Final = 60
#: Values of q at which the exact bound maximizes.
_GRID: Final = 101
#: Counts are discrete, so a bound from one pair more may be larger. None from more than six more ever is (n to 50).
_AHEAD: Final = 6


def failure_bound(variant: Sequence[bool], reference: Sequence[bool], *, alpha: float = 0.05) -> FailureBound:
    """Upper bound, one-sided at level 1 - alpha, of the variant's failure rate less the reference's; place i is one seed."""
    if len(variant) != len(reference):
        raise StatisticsError(f"variant and reference must pair by seed, got {len(variant)} and {len(reference)} runs")
    n, alpha = len(variant), fraction("alpha", alpha)
    only_variant = sum(bool(v) and not r for v, r in zip(variant, reference, strict=True))
    only_reference = sum(bool(r) and not v for v, r in zip(variant, reference, strict=True))
    exact = n <= EXACT_UP_TO
    bound = exact_upper_bound if exact else score_upper_bound
    upper = bound(only_variant, only_reference, n, alpha) if n else None
    estimate = (only_variant - only_reference) / n if n else None
    return FailureBound(
        "exact" if exact else "score",
        n,
        sum(map(bool, variant)),
        sum(map(bool, reference)),
        only_variant,
        only_reference,
        estimate,
        upper,
        alpha,
    )


@lru_cache(maxsize=256)
def pairs_without_failure(margin: float, *, alpha: float) -> int:
    """The fewest pairs that, with no failure in either arm, bound the difference by *margin*."""
    margin, alpha = fraction("margin", margin), fraction("alpha", alpha)
    # The bound of a single arm, 1 - alpha^(1/n), is never above the exact one.
    n = min(math.ceil(math.log(alpha) / math.log1p(-margin)), EXACT_UP_TO + 1)
    while (failure_bound([False] * n, [False] * n, alpha=alpha).upper or 1.0) > margin:
        n += 1
    return n


def score_upper_bound(only_variant: int, only_reference: int, n: int, alpha: float) -> float:
    """Tango's one-sided score bound."""
    _check(only_variant, only_reference, n)
    if only_variant == n:
        return 1.0
    z = float(special.ndtri(1 - alpha))
    low, high = (only_variant - only_reference) / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        score = float(_scores(np.array([only_variant]), np.array([only_reference]), n, middle)[0])
        low, high = (middle, high) if score > -z else (low, middle)
    return high


@lru_cache(maxsize=4096)
def exact_upper_bound(only_variant: int, only_reference: int, n: int, alpha: float) -> float:
    """The largest D that the exact score test does not reject, to 1e-5, with n pairs or up to six more without a failure."""
    _check(only_variant, only_reference, n)
    if only_variant == n:
        return 1.0
    bound = _not_rejected(only_variant, only_reference, n, alpha, (only_variant - only_reference) / n)
    for more in range(n + 1, n + _AHEAD + 1):
        if _largest_p(only_variant, only_reference, more, bound) > alpha:
            bound = _not_rejected(only_variant, only_reference, more, alpha, bound)
    return bound


def _not_rejected(only_variant: int, only_reference: int, n: int, alpha: float, low: float) -> float:
    """The largest D above *low* that n pairs do not reject."""
    high = 1.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (middle, high) if _largest_p(only_variant, only_reference, n, middle) > alpha else (low, middle)
    return high


def _check(only_variant: int, only_reference: int, n: int) -> None:
    count("n", n)
    if only_variant < 0 or only_reference < 0 or only_variant + only_reference > n:
        raise StatisticsError(f"{only_variant} and {only_reference} must be counts among n = {n} pairs")


def _scores(b: FloatArray, c: FloatArray, n: int, difference: float) -> FloatArray:
    """Tango's score of D at each (b, c): (b - c - n D) / sqrt(n (2 q + D (1 - D))), q its estimate under D."""
    middle = -b - c + (2 * n - b + c) * difference
    q = (np.sqrt(np.maximum(middle**2 + 8 * n * c * difference * (1 - difference), 0.0)) - middle) / (4 * n)
    variance = n * (2 * q + difference * (1 - difference))
    distance = b - c - n * difference
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(variance > 0, distance / np.sqrt(variance), np.sign(distance) * np.inf))


@lru_cache(maxsize=128)
def _tables(n: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """All (b, c) with b + c <= n, and the logarithm of their number of arrangements."""
    b, c = (table.ravel().astype(np.float64) for table in np.meshgrid(range(n + 1), range(n + 1), indexing="ij"))
    inside = b + c <= n
    b, c = b[inside], c[inside]
    ways = special.gammaln(n + 1) - special.gammaln(b + 1) - special.gammaln(c + 1) - special.gammaln(n - b - c + 1)
    return b, c, np.asarray(ways)


def _largest_p(only_variant: int, only_reference: int, n: int, difference: float) -> float:
    """max over q of P(S <= observed)."""
    b, c, ways = _tables(n)
    observed = float(_scores(np.array([float(only_variant)]), np.array([float(only_reference)]), n, difference)[0])
    extreme = _scores(b, c, n, difference) <= observed + 1e-9
    b, c, ways = b[extreme], c[extreme], ways[extreme]
    # q + D and q are probabilities with 2 q + D <= 1.
    grid = np.linspace(max(0.0, -difference), (1 - difference) / 2, _GRID)
    best = 0.0
    for _ in range(2):  # a grid, then a finer one about its best
        gain = grid + difference
        gains, losses, rest = (_log(share)[:, None] for share in (gain, grid, 1 - gain - grid))
        logs = b * gains  # in place from here on: new arrays of this size take as long as the sums
        logs += ways
        logs += c * losses
        logs += (n - b - c) * rest
        p = np.exp(logs, out=logs).sum(axis=1)
        at = int(p.argmax())
        best = max(best, float(p[at]))
        grid = np.linspace(grid[max(at - 1, 0)], grid[min(at + 1, grid.size - 1)], 21)
    return best


def _log(share: FloatArray) -> FloatArray:
    """The logarithm; of 0 a number so low that 0 times it is 0, and its exponential too."""
    return np.asarray(np.maximum(special.xlogy(1.0, np.maximum(share, 0.0)), -1e300))


# --- when runs fail -------------------------------------------------------------------------------------------


def survival_curve(failed_at: Sequence[int | None], length: int) -> tuple[SurvivalStep, ...]:
    """Kaplan-Meier estimate of runs that fail at a step, or not within *length* steps (None); one row per failure step."""
    length = count("length", length)
    steps = [step for step in failed_at if step is not None]
    if any(not 0 <= step <= length for step in steps):
        raise StatisticsError(f"a run of {length} steps fails at a step from 0 to {length}, got {sorted(steps)}")
    survival, rows = 1.0, []
    for step in sorted(set(steps)):
        failed, at_risk = steps.count(step), len(failed_at) - sum(other < step for other in steps)
        survival *= 1 - failed / at_risk
        rows.append(SurvivalStep(step, at_risk, failed, survival))
    return tuple(rows)


def paired_survival(
    variant: Sequence[int | None],
    reference: Sequence[int | None],
    *,
    length: int,
    resamples: int = RESAMPLES,
    rng: np.random.Generator,
) -> PairedSurvival:
    """Survival of both arms, and the exact paired p that they fail alike; place i of both is one seed."""
    if len(variant) != len(reference):
        raise StatisticsError(f"variant and reference must pair by seed, got {len(variant)} and {len(reference)} runs")
    curves = survival_curve(variant, length), survival_curve(reference, length)
    scores = _log_rank_scores([*variant, *reference], length)
    differences = scores[: len(variant)] - scores[len(variant) :]
    differences = differences[np.abs(differences) > 1e-12]
    p = minimum_p = None
    if len(variant):
        p = minimum_p = 1.0
    if differences.size:
        test = sign_flip_test(differences, resamples=resamples, rng=rng)
        p, minimum_p = test.p, test.minimum_p
    return PairedSurvival(length, len(variant), *curves, p, minimum_p)


def _log_rank_scores(failed_at: Sequence[int | None], length: int) -> FloatArray:
    """Nelson-Aalen hazard up to a run's end, less 1 if it failed: the log-rank statistic is their sum over one arm."""
    ends = np.array([length + 1 if step is None else step for step in failed_at], dtype=np.float64)
    scores = np.zeros(ends.size)
    for step in sorted({step for step in failed_at if step is not None}):
        hazard = np.count_nonzero(ends == step) / np.count_nonzero(ends >= step)
        scores[ends >= step] += hazard
    scores[ends <= length] -= 1.0
    return scores
