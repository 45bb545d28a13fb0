"""Pairs that lie far from the others, and how far a significant estimate at this power exaggerates.

**Stragglers.** Pair i is flagged where |x_i - median| > k(n) 1.4826 MAD. k is set so that a sample of normal deltas has
any flag in 5 % of studies (simulated, benchmarks/procedures.py); at few pairs the MAD is rough and k large: 8.0 at 5
pairs, 3.8 at 50. Median and MAD, so that two stragglers do not hide each other. A flag is a reason to look at a run,
never to drop it.

**Bad runs that hide a loss.** The t-test is not monotone: a cost that grows without limit also grows the SD, and t falls
towards 1. `largest_cap` asks whether the costs would be shown above 0 were the largest of them smaller. Of all samples that
are nowhere worse, one capped at some c has the largest t: for a given mean it varies least. With g(c) the sum of v (v - c)
over the costs v below c, dt/dc has the sign of g, which is concave for c > 0 and not below 0 at c = 0: t rises to its
maximum, where c is the sum of squares over the sum of the uncapped costs, and falls beyond.

**Type M and type S** (Gelman and Carlin 2014). If the true effect is d SDs, the estimates that reach significance exceed
it on average by the exaggeration ratio E(|mean|; significant) / (d P(significant)), and have the wrong sign with
probability P(wrong sign | significant). Both by integration over the sample SD, so exact for normal deltas at any n.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.stats._common import MINIMUM_PAIRS, FloatArray, count, fraction, number, sample
from ablationlab.stats._noncentral import legendre, scale_density, support
from ablationlab.stats.results import Exaggeration

#: k(n): the 95 % quantile of max_i |x_i - median| / (1.4826 MAD) over normal samples. benchmarks/procedures.py.
STRAGGLER: Final[Mapping[int, float]] = {
    4: 6.93,
    5: 7.95,
    6: 5.55,
    7: 5.87,
    8: 4.91,
    10: 4.55,
    12: 4.36,
    15: 4.28,
    20: 3.99,
    30: 3.85,
    50: 3.76,
    100: 3.75,
    200: 3.81,
}


def stragglers(deltas: ArrayLike) -> tuple[int, ...]:
    """Places of the deltas that lie far from the others; none where there are fewer than 4 or most are equal."""
    values = sample("deltas", deltas)
    if values.size < min(STRAGGLER):
        return ()
    distance = np.abs(values - np.median(values))
    spread = 1.4826 * float(np.median(distance))
    if spread == 0:
        return ()
    sizes = sorted(STRAGGLER)
    cutoff = np.interp(np.log(values.size), np.log(sizes), [STRAGGLER[size] for size in sizes])
    return tuple(int(place) for place in np.flatnonzero(distance > cutoff * spread))


def largest_cap(costs: ArrayLike, *, alpha: float) -> float | None:
    """The largest c at which the two-sided t-test at *alpha* shows min(cost, c) to lie above 0; None where no c does."""
    values = np.sort(sample("costs", costs))
    critical = float(special.stdtrit(values.size - 1, 1 - fraction("alpha", alpha) / 2)) if values.size > 1 else np.inf

    def shown(cap: float) -> bool:
        capped = np.minimum(values, cap)
        mean, error = float(capped.mean()), float(capped.std(ddof=1)) / np.sqrt(values.size)
        return mean > 0 and mean >= critical * error

    high = float(values[-1])
    if values.size < MINIMUM_PAIRS or high <= 0 or shown(high):
        return high if values.size >= MINIMUM_PAIRS and shown(high) else None
    sums, squares = np.cumsum(values), np.cumsum(values**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        caps = squares / sums
    # One of these is where t is largest: each is the best cap between two neighbouring costs.
    best = np.clip(caps, values, np.append(values[1:], high))[sums > 0]
    low = next((float(cap) for cap in best if shown(float(cap))), None)
    if low is None:
        return None
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if shown(middle) else (low, middle)
    return low


def exaggeration(effect: float, n: int, *, alpha: float = 0.05) -> Exaggeration:
    """Power, type M and type S of the paired t-test with n pairs where the true effect is *effect* SDs of the delta."""
    effect, n, alpha = abs(number("effect", effect)), count("n", n, minimum=2), fraction("alpha", alpha)
    critical, root = float(special.stdtrit(n - 1, 1 - alpha / 2)), np.sqrt(n)
    low, high = support(n - 1)
    node, weight = legendre()
    u = low + (high - low) * (node + 1) / 2
    density = weight * scale_density(u, n - 1) * (high - low) / 2
    # In units of the standard error: mean ~ N(shift, 1), significant beyond +-c u.
    shift, edge = effect * root, critical * u
    above, below = special.ndtr(shift - edge), special.ndtr(-shift - edge)
    power, wrong = float(density @ (above + below)), float(density @ below)
    # E[X; X > c] = shift P(X > c) + phi(c - shift), and alike on the other side.
    size = shift * above + _normal(edge - shift) - shift * below + _normal(edge + shift)
    ratio = float(density @ size) / (power * shift) if shift > 0 else None
    return Exaggeration(effect, n, alpha, power, ratio, wrong / power)


def _normal(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi))
