"""How many seeds: power of the paired t-test, of the same with a shared variance, and of TOST.

Effects are in units of the standard deviation of the delta (d_z). Power is exact for normal deltas; under a shared variance
it is the mean over fixed draws of the arms' variances, exact given each of them (`benchmarks/power.py` simulates it).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from scipy import optimize, special

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import FloatArray, count, fraction, number, positive
from ablationlab.stats._noncentral import legendre, noncentral_t_cdf
from ablationlab.stats.costs import CAPPED

#: No plan asks for more seeds than this; beyond it the answer is "no affordable number".
MOST_PAIRS: Final = 1_000_000
#: Draws of the variances of arms that share one: the error of a power is at most 0.3 points.
DRAWS: Final = 4096


def paired_t_power(effect: float, n: int, *, alpha: float = 0.05, arms: int = 1) -> float:
    """P(|T| > t_crit), T noncentral t with n - 1 degrees of freedom and noncentrality effect * sqrt(n).

    *arms*: so many variants, this one among them, share their variance.
    """
    effect, n, alpha = number("effect", effect), count("n", n, minimum=2), fraction("alpha", alpha)
    return _power(abs(effect), n, alpha, count("arms", arms, minimum=1))


def pairs_needed(effect: float, *, power: float = 0.8, alpha: float = 0.05, arms: int = 1) -> int:
    """Smallest number of pairs (at least 3) at which the two-sided paired t-test has that power."""
    effect, power, alpha = _nonzero(effect), fraction("power", power), fraction("alpha", alpha)
    found = _smallest(lambda n: _power(abs(effect), n, alpha, arms), power)
    if found is None:
        raise StatisticsError(f"effect {effect!r} needs more than {MOST_PAIRS} pairs for power {power}")
    return found


def detectable_effect(n: int, *, power: float = 0.8, alpha: float = 0.05, arms: int = 1) -> float:
    """Effect, in SDs of the delta, that n pairs detect with that power: 3.26, 1.68, 1.00 at n = 3, 5, 10."""
    n, power, alpha = count("n", n, minimum=2), fraction("power", power), fraction("alpha", alpha)
    if power <= alpha:
        raise StatisticsError(f"power must be above alpha = {alpha}, got {power!r}")
    high = 1.0
    while _power(high, n, alpha, arms) < power:
        high *= 2
    root: float = optimize.brentq(lambda d: _power(d, n, alpha, arms) - power, 0.0, high, xtol=1e-12)
    return float(root)


def tost_power(bound: float, n: int, *, effect: float = 0.0, alpha: float = 0.05) -> float:
    """P(TOST shows |mean delta| < bound) when the true effect is *effect*, both in SDs of the delta.

    Integrates P(-bound + t s / sqrt(n) < mean < bound - t s / sqrt(n)) over the sample SD s, exactly the
    event in which both one-sided tests reject; the usual sum of two noncentral t probabilities is wrong at
    small n.
    """
    bound, n = positive("bound", bound), count("n", n, minimum=2)
    return _tost_power(bound, n, number("effect", effect), fraction("alpha", alpha))


def tost_pairs_needed(bound: float, *, effect: float = 0.0, power: float = 0.8, alpha: float = 0.05) -> int:
    """Smallest number of pairs (at least 3) at which TOST within +-bound SDs has that power."""
    bound, effect = positive("bound", bound), number("effect", effect)
    power, alpha = fraction("power", power), fraction("alpha", alpha)
    if abs(effect) >= bound:
        raise StatisticsError(f"effect must lie inside +-{bound}, got {effect!r}: no number of pairs suffices")
    found = _smallest(lambda n: _tost_power(bound, n, effect, alpha), power)
    if found is None:
        raise StatisticsError(f"bound {bound!r} needs more than {MOST_PAIRS} pairs for power {power}")
    return found


def claim_power(
    effect: float, n: int, *, at_least: float = 0.0, doubt: float = 0.0, alpha: float = 0.05, arms: int = 1
) -> float:
    """P(T is beyond t_crit on the side of *effect*, and the estimate is *at_least* so large): the power of *better*.

    *doubt*: what the mean is taken to be less, in the test alone. All in SDs of the delta.
    """
    root, freedom = float(np.sqrt(n)), n - 1
    if arms == 1:
        scale, (nodes, weights) = 1 / np.sqrt(freedom), legendre()
        lower, upper = (_chi_quantile(tail, freedom) for tail in (1e-15, 1 - 1e-15))
        x = lower + (upper - lower) * (nodes + 1) / 2
        errors, weights = x * scale, weights * _chi_density(x, freedom) * (upper - lower) / 2
    else:
        freedom, errors = 2 * freedom, _shared_errors(arms, n).ravel()
        weights = np.full(errors.size, 1 / errors.size)
    least = np.maximum(at_least, doubt + special.stdtrit(freedom, 1 - alpha / 2) * errors / root)
    return float(np.clip((weights * special.ndtr(root * (effect - least))).sum(), 0.0, 1.0))


def pairs_to_decide(
    effect: float,
    smallest: float | None,
    *,
    doubt: float = 0.0,
    power: float = 0.8,
    alpha: float = 0.05,
    arms: int = 1,
    most: int = MOST_PAIRS,
) -> int | None:
    """Fewest pairs that give *better* (from the smallest effect on) or *same* (below it) with that power; None beyond *most*.

    *effect*: the true difference, as *smallest* and *doubt* in SDs of the delta.
    """
    size = abs(effect)
    if smallest is not None and size < smallest:
        bound = smallest - doubt
        return None if size >= bound else _smallest(lambda n: _tost_power(bound, n, size, alpha), power, most)
    least = smallest or 0.0
    if size <= max(least, doubt):
        return None
    return _smallest(lambda n: claim_power(size, n, at_least=least, doubt=doubt, alpha=alpha, arms=arms), power, most)


def items_needed(difference: float, discordance: float, *, power: float = 0.8, alpha: float = 0.05) -> int:
    """Items for McNemar's test to see *difference* in accuracy of one pair of models (Connor 1987).

    n = (z_(1-alpha/2) sqrt(q) + z_power sqrt(q - difference^2))^2 / difference^2, where q, the *discordance*,
    is the share of items that just one of the two models gets right. It says nothing about other seeds.
    """
    difference, q = abs(_nonzero(difference, "difference")), _discordance(difference, discordance)
    z_alpha, z_power = _z(alpha, power)
    root = z_alpha * np.sqrt(q) + z_power * np.sqrt(q - difference**2)
    return int(np.ceil((root / difference) ** 2))


def _power(effect: float, n: int, alpha: float, arms: int) -> float:
    if arms == 1:
        return _t_power(effect, n, alpha)
    reach = special.stdtrit(2 * (n - 1), 1 - alpha / 2) * _shared_errors(arms, n)
    shift = effect * np.sqrt(n)
    return float((special.ndtr(shift - reach) + special.ndtr(-shift - reach)).mean())


@lru_cache(maxsize=256)
def _shared_errors(arms: int, n: int) -> FloatArray:
    """Standard errors of n pairs, in units of the true one: the larger of an arm's own and of all arms' mean variance.

    Every arm of every draw is one. Costs of two arms correlate at 0.5 through the baseline's runs, so a sum of squares is
    noncentral chi-square given that of the baseline.
    """
    rng = np.random.default_rng([arms, n])
    baseline = rng.chisquare(n - 1, (DRAWS, 1))
    variances = rng.noncentral_chisquare(n - 1, np.broadcast_to(baseline, (DRAWS, arms))) / (2 * (n - 1))
    pooled = np.sort(variances, axis=1)
    if arms >= CAPPED[0] and n >= CAPPED[1]:
        pooled[:, -1] = pooled[:, -2]
    return np.asarray(np.sqrt(np.maximum(variances, pooled.mean(axis=1, keepdims=True))))


def _t_power(effect: float, n: int, alpha: float) -> float:
    critical = special.stdtrit(n - 1, 1 - alpha / 2)
    noncentrality = effect * np.sqrt(n)
    near = 1 - noncentral_t_cdf(critical, n - 1, noncentrality)
    return float(np.clip(near + noncentral_t_cdf(-critical, n - 1, noncentrality), 0.0, 1.0))


def _tost_power(bound: float, n: int, effect: float, alpha: float) -> float:
    t, root = special.stdtrit(n - 1, 1 - alpha), float(np.sqrt(n))
    # u = s / sigma has density chi; both tests can reject only for u below the crossing of the two lines.
    scale = 1 / np.sqrt(n - 1)
    upper = min(bound * root / t, _chi_quantile(1 - 1e-15, n - 1) * scale)
    lower = min(_chi_quantile(1e-15, n - 1) * scale, upper)
    nodes, weights = legendre()
    u = lower + (upper - lower) * (nodes + 1) / 2
    inside = special.ndtr(root * (bound - effect) - t * u) - special.ndtr(-root * (bound + effect) + t * u)
    density = _chi_density(u / scale, n - 1) / scale
    return float(np.clip((weights * np.maximum(inside, 0.0) * density).sum() * (upper - lower) / 2, 0.0, 1.0))


def _chi_quantile(p: float, freedom: int) -> float:
    return float(np.sqrt(2 * special.gammaincinv(freedom / 2, p)))


def _chi_density(x: FloatArray, freedom: int) -> FloatArray:
    """2^(1 - k/2) x^(k - 1) exp(-x^2 / 2) / Gamma(k / 2)."""
    constant = (1 - freedom / 2) * np.log(2) - special.gammaln(freedom / 2)
    return np.asarray(np.exp(constant + special.xlogy(freedom - 1, x) - x**2 / 2))


def _smallest(power_at: Callable[[int], float], power: float, most: int = MOST_PAIRS) -> int | None:
    """Smallest n >= 3 with that power, by doubling and bisection; None beyond *most*."""
    low, high = 2, 3
    while power_at(high) < power:
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_at(middle) >= power else (middle, high)
    return high


def _nonzero(value: float, name: str = "effect") -> float:
    if number(name, value) == 0:
        raise StatisticsError(f"{name} must not be 0: no number of pairs or items detects it")
    return float(value)


def _discordance(difference: float, discordance: float) -> float:
    q = float(discordance)
    if not (abs(difference) <= q <= 1 and q > 0):
        raise StatisticsError(
            f"discordance must lie between |difference| = {abs(difference)} and 1, got {discordance!r}"
        )
    return q


def _z(alpha: float, power: float) -> tuple[float, float]:
    z_alpha = special.ndtri(1 - fraction("alpha", alpha) / 2)
    return float(z_alpha), float(special.ndtri(fraction("power", power)))
