"""How many seeds: power of the paired t-test and of TOST, and what a pilot's SD is worth.

Effects are in units of the standard deviation of the delta (d_z). Power is exact for normal deltas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from scipy import optimize, special

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import FloatArray, count, fraction, number, positive
from ablationlab.stats._noncentral import legendre, noncentral_t_cdf
from ablationlab.stats.results import PowerPlan, StandardDeviation

#: No plan asks for more seeds than this; beyond it the answer is "no affordable number".
MOST_PAIRS: Final = 1_000_000


def paired_t_power(effect: float, n: int, *, alpha: float = 0.05) -> float:
    """P(|T| > t_crit), T noncentral t with n - 1 degrees of freedom and noncentrality effect * sqrt(n)."""
    effect, n, alpha = number("effect", effect), count("n", n, minimum=2), fraction("alpha", alpha)
    return _t_power(abs(effect), n, alpha)


def pairs_needed(effect: float, *, power: float = 0.8, alpha: float = 0.05) -> int:
    """Smallest number of pairs (at least 3) at which the two-sided paired t-test has that power."""
    effect, power, alpha = _nonzero(effect), fraction("power", power), fraction("alpha", alpha)
    found = _smallest(lambda n: _t_power(abs(effect), n, alpha), power)
    if found is None:
        raise StatisticsError(f"effect {effect!r} needs more than {MOST_PAIRS} pairs for power {power}")
    return found


def detectable_effect(n: int, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """Effect, in SDs of the delta, that n pairs detect with that power: 3.26, 1.68, 1.00 at n = 3, 5, 10."""
    n, power, alpha = count("n", n, minimum=2), fraction("power", power), fraction("alpha", alpha)
    if power <= alpha:
        raise StatisticsError(f"power must be above alpha = {alpha}, got {power!r}")
    high = 1.0
    while _t_power(high, n, alpha) < power:
        high *= 2
    root: float = optimize.brentq(lambda d: _t_power(d, n, alpha) - power, 0.0, high, xtol=1e-12)
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


def sd_interval(sd: float, n: int, *, level: float = 0.95) -> StandardDeviation:
    """How well n pairs know the SD of the delta (normal deltas): within a factor of 0.52 to 6.3 at n = 3."""
    sd, n, level = positive("sd", sd), count("n", n, minimum=2), fraction("level", level)
    freedom = n - 1
    low, high = (
        sd * float(np.sqrt(freedom / special.chdtri(freedom, tail))) for tail in ((1 - level) / 2, (1 + level) / 2)
    )
    return StandardDeviation(sd, n, low, high, level)


def plan(
    effect: float,
    sd: float,
    *,
    pilot_pairs: int | None = None,
    planned: int | None = None,
    powers: Sequence[float] = (0.8, 0.9),
    alpha: float = 0.05,
    level: float = 0.6,
) -> PowerPlan:
    """Seeds needed to see *effect* (in the metric's units) when the deltas have that *sd*.

    With *pilot_pairs* the SD comes from that many pilot pairs and is itself uncertain; *level* 0.6 makes the
    conservative SD its 80 % upper bound (Browne 1995). needed_equivalence is for TOST within +-effect at a
    true difference of zero.
    """
    effect, sd, alpha = positive("effect", abs(effect)), positive("sd", sd), fraction("alpha", alpha)
    interval = None if pilot_pairs is None else sd_interval(sd, pilot_pairs, level=level)
    targets = [fraction("powers", power) for power in powers]

    def needed(power_at: Callable[[int], float]) -> dict[float, int | None]:
        return {target: _smallest(power_at, target) for target in targets}

    def of_t(spread: float) -> dict[float, int | None]:
        return needed(lambda n: _t_power(effect / spread, n, alpha))

    detectable = {p: detectable_effect(planned, power=p, alpha=alpha) * sd for p in targets} if planned else None
    return PowerPlan(
        effect=effect,
        assumed_sd=sd,
        alpha=alpha,
        sd=interval,
        needed=of_t(sd),
        needed_conservative=of_t(interval.high) if interval else None,
        needed_equivalence=needed(lambda n: _tost_power(effect / sd, n, 0.0, alpha)),
        planned=planned,
        planned_power=paired_t_power(effect / sd, planned, alpha=alpha) if planned else None,
        planned_detectable=detectable,
    )


def items_needed(difference: float, discordance: float, *, power: float = 0.8, alpha: float = 0.05) -> int:
    """Items for McNemar's test to see *difference* in accuracy of one pair of models (Connor 1987).

    n = (z_(1-alpha/2) sqrt(q) + z_power sqrt(q - difference^2))^2 / difference^2, where q, the *discordance*,
    is the share of items that just one of the two models gets right. It says nothing about other seeds.
    """
    difference, q = abs(_nonzero(difference, "difference")), _discordance(difference, discordance)
    z_alpha, z_power = _z(alpha, power)
    root = z_alpha * np.sqrt(q) + z_power * np.sqrt(q - difference**2)
    return int(np.ceil((root / difference) ** 2))


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


def _smallest(power_at: Callable[[int], float], power: float) -> int | None:
    """Smallest n >= 3 with that power, by doubling and bisection; None beyond MOST_PAIRS."""
    low, high = 2, 3
    while power_at(high) < power:
        if high >= MOST_PAIRS:
            return None
        low, high = high, min(2 * high, MOST_PAIRS)
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
