"""Looking at a paired comparison several times while its seeds come in, without spending more than alpha.

At look k of K there are n_k pairs and a paired t-test with p-value p_k. Lan and DeMets (1983): let a(s) be the share of alpha
that may be spent once the share s = n_k / n_K of the pairs is in,

    O'Brien-Fleming    a(s) = 4 - 4 Phi(z / sqrt(s)),  z = Phi^-1(1 - alpha / 4)    almost nothing early
    Pocock             a(s) = alpha ln(1 + (e - 1) s)                               about evenly
    front-loaded       a(s) = alpha (0.9 + 0.1 (s - s_1) / (1 - s_1))               0.9 alpha at the first look

and choose a level l_k for each look such that, under the null,

    P(p_1 > l_1, ..., p_(k-1) > l_(k-1), p_k <= l_k) = a(s_k) - a(s_(k-1)).

The usual levels are for known variances. These are for Student's t with few pairs, by exact integration. Let S and Q be the
sum and the sum of squares of n normal deltas of mean 0. Then u = S / sqrt(n Q) is a function of t alone, and independent of Q
(Basu). So m more deltas, whose own u is w, give

    u' = (u sqrt(n b) + w sqrt(m (1 - b))) / sqrt(n + m),   b = Q / Q' ~ Beta(n / 2, m / 2),

with u, b and w independent: t is a Markov chain from look to look, and its distribution is carried forward on a grid.

The p-value of the whole procedure is the smallest alpha at which some look so far would have crossed its level (a
*sequential p-value*, Liu and Anderson 2008). It is at most alpha exactly when the design has shown a difference, whatever the
reason for stopping, so Holm's correction over variants applies to it as to any p-value (Ye et al. 2013). The interval that
goes with it is the t-interval of level 1 - l_k (a *repeated interval*, Jennison and Turnbull 1989): all K of them together
cover the true mean with probability 1 - alpha, so the one at which the study stopped does, too.

Where the true mean is d SDs, the chain's mass at look k is that under the null times the likelihood ratio of t alone,
noncentral to central: t_k is sufficient for d among t_1 .. t_k (Hall, Wijsman and Ghosh 1965). So one grid gives the power of
every d.

Whether a difference is as large as the smallest effect s is a one-sided test: (estimate - s) / error has, at a true effect of
s, the same chain with its sign. Its levels spend one half over the looks, so a size is claimed in half of all studies at s,
whenever they stop; with one look the level is one half, and the estimate is compared with s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
from scipy import special
from scipy.optimize import brentq

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import FloatArray, fraction
from ablationlab.stats.costs import AT_SMALLEST
from ablationlab.stats.results import Spending

#: Edges of the cells of |z|, the normal score of t: fine enough that levels are right to 1 part in 1,000.
_EDGES: Final[FloatArray] = np.arange(0.0, 8.5001, 0.05)
#: Edges of the cells of z: coarser ones spend one half to 1 part in 1,000.
_SIGNED_EDGES: Final[FloatArray] = np.arange(-60, 61) / 10
#: Nodes of the integral over b.
_NODES: Final = 48
#: Share of alpha that a front-loaded design spends at its first look.
FIRST: Final = 0.9
#: No true mean beyond so many SDs is looked for.
_LARGEST: Final = 1e3
#: Values of alpha between which a p-value is interpolated.
_ALPHAS: Final[FloatArray] = np.concatenate([np.geomspace(1e-12, 0.5, 240)[:-1], np.linspace(0.5, 1 - 1e-9, 40)])


@dataclass(frozen=True)
class Looks:
    """Numbers of pairs at which a comparison is looked at, and how alpha is spent over them."""

    pairs: tuple[int, ...]
    spending: Spending = "obrien-fleming"

    def __post_init__(self) -> None:
        rising = all(first < second for first, second in pairwise(self.pairs))
        if not self.pairs or self.pairs[0] < 3 or not rising:
            raise StatisticsError(f"looks must rise from at least 3 pairs, got {list(self.pairs)}")

    def spent(self, alpha: float) -> FloatArray:
        """a(s_k): what may be spent up to and including each look; alpha at the last."""
        alpha = fraction("alpha", alpha)
        share = np.array(self.pairs) / self.pairs[-1]
        if self.spending == "pocock":
            return np.asarray(alpha * np.log1p((np.e - 1) * share))
        if self.spending == "front-loaded":
            rest = (share - share[0]) / (1 - share[0]) if len(share) > 1 else np.ones(1)
            return np.asarray(alpha * (FIRST + (1 - FIRST) * rest))
        return np.asarray(4 * special.ndtr(special.ndtri(alpha / 4) / np.sqrt(share)))

    def levels(self, alpha: float) -> FloatArray:
        """l_k: at look k a difference is shown where the p-value of the paired t-test is at most this."""
        return _levels(self, alpha)

    def size_levels(self) -> FloatArray:
        """At look k an effect is at least s where the one-sided p-value of "at most s" is at most this: one half in all."""
        return _size_levels(self)

    def usable(self, alpha: float, able: Callable[[int, float], bool]) -> tuple[tuple[float, bool], ...]:
        """What a claim without exact levels may spend at each look, and whether it is *able* to use it with so many pairs.

        What it cannot use is left to the next look, so all looks together spend alpha at most (Bonferroni).
        """
        found, left = [], 0.0
        for n, share in zip(self.pairs, np.diff(self.spent(alpha), prepend=0.0), strict=True):
            left += float(share)
            found.append((left, able(n, left)))
            left *= not found[-1][1]
        return tuple(found)

    def shown_by(self, effect: float, alpha: float) -> FloatArray:
        """P(a difference is shown by look k), whichever its sign, where the true mean is *effect* SDs."""
        levels, shown = self.levels(alpha), []
        mass = 2 * np.diff(special.ndtr(_EDGES))
        for n, level, transition in zip(self.pairs, levels, (*_transitions(self.pairs), None), strict=True):
            inside = _without(mass, -special.ndtri(level / 2))
            shown.append(1 - float(inside @ _likelihood_ratio(n, effect)))
            if transition is not None:
                tails = inside @ transition
                mass = tails[:-1] - tails[1:]
        return np.maximum.accumulate(np.clip(shown, 0.0, 1.0))

    def seen_by(self, look: int, alpha: float, power: float) -> float | None:
        """The true mean, in SDs, that is shown by this look (from 0) with this power; None beyond 1,000."""
        if self.shown_by(_LARGEST, alpha)[look] < power:
            return None
        return float(brentq(lambda d: self.shown_by(d, alpha)[look] - power, 0.0, _LARGEST, xtol=1e-4))

    def expected_pairs(self, effect: float, alpha: float) -> FloatArray:
        """Pairs of a study that ends at look k at the latest, and before it where a difference is shown."""
        more = np.diff(self.pairs) * (1 - self.shown_by(effect, alpha)[:-1])
        return np.asarray(self.pairs[0] + np.cumsum([0.0, *more]))

    def p_value(self, p_values: tuple[float | None, ...]) -> float | None:
        """The sequential p-value, from the p-values of the looks so far; None if no look could be tested."""
        found = [
            float(np.exp(np.interp(np.log(max(p, 1e-300)), np.log(levels), np.log(_ALPHAS), right=0.0)))
            for p, levels in zip(p_values, _table(self).T, strict=False)
            if p is not None
        ]
        return min(found, default=None)


@lru_cache(maxsize=1024)
def _levels(looks: Looks, alpha: float) -> FloatArray:
    increments = np.diff(looks.spent(alpha), prepend=0.0)
    levels = increments[:1].tolist()
    # Mass of each cell of |z| among studies that go on.
    mass = 2 * np.diff(special.ndtr(_EDGES))
    for transition, increment in zip(_transitions(looks.pairs), increments[1:], strict=True):
        tails = _without(mass, -special.ndtri(levels[-1] / 2)) @ transition
        z = _crossing(tails, float(increment))
        levels.append(2 * float(special.ndtr(-z)))
        mass = tails[:-1] - tails[1:]
    return np.array(levels)


@lru_cache(maxsize=32)
def _size_levels(looks: Looks) -> FloatArray:
    if len(looks.pairs) == 1:
        return np.array([AT_SMALLEST])
    increments = np.diff(looks.spent(AT_SMALLEST), prepend=0.0)
    levels = increments[:1].tolist()
    edges = _SIGNED_EDGES
    mass = np.diff(special.ndtr(edges))
    for (n, total), increment in zip(pairwise(looks.pairs), increments[1:], strict=True):
        tails = _without(mass, -special.ndtri(levels[-1]), edges) @ _tails(n, total, edges)
        z = _crossing(tails, float(increment), edges)
        levels.append(float(special.ndtr(-z)))
        mass = tails[:-1] - tails[1:]
    return np.array(levels)


@lru_cache(maxsize=8)
def _table(looks: Looks) -> FloatArray:
    """Levels by alpha (rows) and look; never falling in alpha, so that they can be inverted."""
    rows = np.array([looks.levels(float(alpha)) for alpha in _ALPHAS])
    return np.asarray(np.maximum.accumulate(np.maximum(rows, 1e-299), axis=0))


@lru_cache(maxsize=8)
def _transitions(pairs: tuple[int, ...]) -> tuple[FloatArray, ...]:
    """P(|z'| > edge) at the next look, by cell of |z| at this one and edge."""
    return tuple(_tails(n, total, _EDGES) + _tails(n, total, _EDGES, mirrored=True) for n, total in pairwise(pairs))


def _tails(n: int, total: int, edges: FloatArray, *, mirrored: bool = False) -> FloatArray:
    """P(z' > edge) with *total* pairs, by cell of z with the first n of them and edge; *mirrored*: P(z' < -edge)."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    m = total - n
    u, v = _cosine((edges[:-1] + edges[1:]) / 2, n)[:, None], _cosine(edges, total)[None, :] * np.sqrt(total)
    u = -u if mirrored else u
    tails = np.zeros((u.size, v.size))
    for share, weight in zip(special.betaincinv(n / 2, m / 2, (nodes + 1) / 2), weights / 2, strict=True):
        tails += weight * _below((u * np.sqrt(n * share) - v) / np.sqrt(m * (1 - share)), m)
    return tails


def _likelihood_ratio(n: int, effect: float) -> FloatArray:
    """Of |t| with n pairs, a mean of *effect* SDs against none, in each cell of |z|: their probabilities, divided."""
    within, weights = _within(n)
    centre = abs(effect) * np.sqrt(n)
    inside = weights @ (special.ndtr(within - centre) - special.ndtr(-within - centre))
    return np.asarray(np.diff(inside) / -np.diff(2 * special.ndtr(-_EDGES)))


@lru_cache(maxsize=16)
def _within(n: int) -> tuple[FloatArray, FloatArray]:
    """The edges as means of n deltas of SD 1, in standard errors, over quantiles of the sample's SD; and their weights.

    The noncentral t of scipy is no number where the mean is large.
    """
    nodes, weights = np.polynomial.legendre.leggauss(4 * _NODES)
    sds = np.sqrt(2 * special.gammaincinv((n - 1) / 2, (nodes + 1) / 2) / (n - 1))
    return -special.stdtrit(n - 1, special.ndtr(-_EDGES)) * sds[:, None], weights / 2


def _cosine(z: FloatArray, n: int) -> FloatArray:
    """u = S / sqrt(n Q) of n pairs whose t has the normal score z."""
    t = -special.stdtrit(n - 1, special.ndtr(-np.abs(z)))
    # Far out t overflows nothing: u tends to 1.
    return np.asarray(np.copysign(t / np.sqrt(t**2 + n - 1), z))


def _below(w: FloatArray, m: int) -> FloatArray:
    """P(W <= w) for the u of m pairs: (1 + W) / 2 ~ Beta((m - 1) / 2, (m - 1) / 2); +-1 for a single pair."""
    if m == 1:
        return np.where(w < -1, 0.0, np.where(w < 1, 0.5, 1.0))
    return np.asarray(special.betainc((m - 1) / 2, (m - 1) / 2, np.clip((1 + w) / 2, 0.0, 1.0)))


def _without(mass: FloatArray, z: float, edges: FloatArray = _EDGES) -> FloatArray:
    """The mass below *z*; of the cell that holds z, its share."""
    return np.asarray(mass * np.clip((z - edges[:-1]) / np.diff(edges), 0.0, 1.0))


def _crossing(tails: FloatArray, probability: float, edges: FloatArray = _EDGES) -> float:
    """The edge, interpolated, whose tail is *probability*."""
    if probability >= tails[0]:
        return float(edges[0])
    falling = np.log(np.maximum(tails[::-1], 1e-300))
    return float(np.interp(np.log(max(probability, 1e-300)), falling, edges[::-1]))


def chance_of_showing(
    looks: Looks, look: int, mean: float, sd: float, *, alpha: float, smallest_effect: float | None
) -> float:
    """Predictive probability that the last look shows a difference or equivalence, from what look number *look* saw.

    Given n pairs, the mean of all n_K is mean + sd sqrt((n_K - n) / (n n_K)) t_(n-1) under a flat prior; the spread is taken
    to stay as it is. It decides over futility alone, which costs no alpha: the levels hold whether or not it is followed.
    """
    n, total = looks.pairs[look], looks.pairs[-1]
    error = sd / np.sqrt(total)
    scale = sd * np.sqrt((total - n) / (n * total))
    if scale == 0:
        raise StatisticsError("the last look has nothing left to predict")

    def below(value: float) -> float:
        return float(special.stdtr(n - 1, (value - mean) / scale))

    needed = -float(special.stdtrit(total - 1, looks.levels(alpha)[-1] / 2)) * error
    shown = 1 - below(needed) + below(-needed)
    if smallest_effect is None:
        return shown
    room = smallest_effect + float(special.stdtrit(total - 1, looks.levels(2 * alpha)[-1] / 2)) * error
    inside = min(room, needed)  # a mean beyond *needed* is counted already
    return shown + (below(inside) - below(-inside) if room > 0 else 0.0)
