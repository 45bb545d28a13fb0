"""The noncentral t distribution by quadrature: scipy's ``nct`` returns NaN at ordinary values from 50 degrees of freedom on.

T = (Z + d) / U with Z standard normal and U = sqrt(chi2_f / f), so P(T <= t) = E[Phi(t U - d)]. For t > 0, Phi(t u - d)
is 0 or 1 to 16 digits beyond 9 / t from u = d / t, where the probability of U alone is exact; the smooth rest is integrated.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from scipy import optimize, special

from ablationlab.stats._common import FloatArray

#: Gauss-Legendre nodes; 200 give at least 11 digits up to 1e6 degrees of freedom.
NODES: Final = 200
#: Normal deviates beyond which a tail is below rounding.
_FAR: Final = 9.0


def noncentral_t_cdf(t: float, freedom: float, noncentrality: float) -> float:
    """P(T <= t); the error is below 1e-11 for 1 to 1e6 degrees of freedom and any finite t and noncentrality."""
    if t < 0:
        return 1.0 - noncentral_t_cdf(-t, freedom, -noncentrality)
    if t == 0:
        return float(special.ndtr(-noncentrality))
    lowest, highest = support(freedom)
    low = float(np.clip((noncentrality - _FAR) / t, lowest, highest))
    high = float(np.clip((noncentrality + _FAR) / t, lowest, highest))
    nodes, weights = legendre()
    u = low + (high - low) * (nodes + 1) / 2
    smooth = float((weights * special.ndtr(t * u - noncentrality) * scale_density(u, freedom)).sum() * (high - low) / 2)
    return float(np.clip(smooth + special.chdtrc(freedom, freedom * high**2), 0.0, 1.0))


def noncentrality(t: float, freedom: float, probability: float) -> float:
    """The noncentrality at which P(T <= t) is *probability*."""
    if abs(t) > 1e8:
        # T is noncentrality / U to 1 part in t^2, and t u - noncentrality is lost to rounding.
        tail = probability if t > 0 else 1 - probability
        return float(t * np.sqrt(special.chdtri(freedom, tail) / freedom))

    def excess(value: float) -> float:
        return noncentral_t_cdf(t, freedom, value) - probability

    # P(T <= t) falls as the noncentrality grows; widen the bracket until it holds the root.
    width = 4.0 + abs(t)
    while excess(t - width) < 0 or excess(t + width) > 0:
        width *= 2
    return float(optimize.brentq(excess, t - width, t + width, xtol=1e-12, rtol=1e-12))


def scale_density(u: FloatArray, freedom: float) -> FloatArray:
    """Density of U = sqrt(chi2_f / f), the sample SD in units of the true one."""
    half = freedom / 2
    if half < 25:
        constant = half * np.log(half) - half - special.gammaln(half)
    else:  # Stirling: the three terms above are large and cancel
        constant = np.log(half / (2 * np.pi)) / 2 - 1 / (12 * half) + 1 / (360 * half**3) - 1 / (1260 * half**5)
    return np.asarray(2 * np.exp(constant + special.xlogy(freedom - 1, u) - half * (u**2 - 1)), dtype=np.float64)


@cache
def support(freedom: float) -> tuple[float, float]:
    """Where U lies but for 1e-15 on either side."""
    low, high = (float(np.sqrt(special.chdtri(freedom, tail) / freedom)) for tail in (1 - 1e-15, 1e-15))
    return low, high


@cache
def legendre() -> tuple[FloatArray, FloatArray]:
    """Nodes and weights on [-1, 1]."""
    return np.polynomial.legendre.leggauss(NODES)
