"""Bootstrap kernels: many samples at once, with the exact bootstrap distribution where n is small.

A resample of n deltas is n draws with replacement, so it is known by how often each delta was drawn: a
composition of n into n parts, with multinomial probability n! / (k_1! ... k_n!) / n^n. There are
C(2n - 1, n) of them, 126 at n = 5 and 6,435 at n = 8. For such n all are enumerated, and the bootstrap
has no Monte-Carlo error and needs no seed. Shapes: S samples, n deltas, K resamples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ablationlab.stats._common import FloatArray

#: The exact bootstrap distribution is enumerated up to this many pairs.
EXACT_UP_TO: Final = 8
#: Cumulative probabilities closer than this are equal.
_TIE: Final = 1e-12


#: Resamples are drawn in chunks of about this many counts, so that memory stays flat, and kept up to so many (64 MB).
_CHUNK: Final = 500_000
_KEPT: Final = 8_000_000


@dataclass(frozen=True, eq=False)
class Resamples:
    """K resamples of n deltas with their probabilities, which sum to 1.

    counts_Kn says how often each delta occurs in each; random ones are not kept but drawn again from *seed*.
    """

    n: int
    probability: FloatArray
    counts: FloatArray | None = None
    seed: int = 0

    @property
    def exact(self) -> bool:
        """Whether these are all possible resamples."""
        return self.counts is not None

    @property
    def total(self) -> int:
        """Resamples this stands for: n^n where enumerated, else K."""
        return self.n**self.n if self.exact else len(self.probability)

    def sums(self, x_Mn: FloatArray) -> FloatArray:
        """Sum over each resample, for each row of *x_Mn*; shape (M, K)."""
        if self.counts is not None:
            return np.asarray(x_Mn @ self.counts.T, dtype=np.float64)
        size = len(self.probability)
        if size * self.n <= _KEPT:
            return np.asarray(x_Mn @ _drawn(self.n, size, self.seed).T, dtype=np.float64)
        sums_MK = np.empty((len(x_Mn), size))
        for rows, counts in _chunks(self.n, size, self.seed):
            sums_MK[:, rows] = x_Mn @ counts.T.astype(np.float64)
        return sums_MK


@lru_cache(maxsize=1)
def _drawn(n: int, size: int, seed: int) -> FloatArray:
    """Random resamples of one seed; the intervals and tests of a comparison ask for the same ones one after the other."""
    counts_Kn = np.empty((size, n))
    for rows, counts in _chunks(n, size, seed):
        counts_Kn[rows] = counts
    return counts_Kn


def _chunks(n: int, size: int, seed: int) -> Iterator[tuple[slice, NDArray[np.intp]]]:
    """How often each of n deltas occurs in each of *size* resamples, some rows at a time."""
    rng, rows = np.random.default_rng(seed), max(1, _CHUNK // n)
    for start in range(0, size, rows):
        drawn = rng.integers(0, n, size=(min(rows, size - start), n))
        # Row r counts its n draws in places r n ... r n + n - 1 of one long histogram.
        places = drawn + n * np.arange(len(drawn))[:, None]
        counts = np.bincount(places.ravel(), minlength=places.size).reshape(places.shape)
        yield slice(start, start + len(drawn)), counts


def draw(n: int, resamples: int, rng: np.random.Generator) -> Resamples:
    """All resamples of n deltas where n is small, else *resamples* random ones."""
    if n <= EXACT_UP_TO:
        return every(n)
    seed = int(rng.integers(2**63))
    return Resamples(n=n, probability=np.full(resamples, 1.0 / resamples), seed=seed)


@lru_cache(maxsize=EXACT_UP_TO)
def every(n: int) -> Resamples:
    """Every composition of n into n parts, with its multinomial probability."""
    # Stars and bars: n - 1 bars among 2n - 1 places; part i is the gap between bar i - 1 and bar i.
    bars = np.array(list(combinations(range(2 * n - 1), n - 1)), dtype=np.int64).reshape(-1, n - 1)
    edges = np.pad(bars, ((0, 0), (1, 1)), constant_values=(-1, 2 * n - 1))
    counts = (np.diff(edges, axis=1) - 1).astype(np.float64)
    logs = special.gammaln(n + 1) - special.gammaln(counts + 1).sum(axis=1) - n * np.log(n)
    probability = np.exp(logs)
    probability /= probability.sum()
    counts.flags.writeable = probability.flags.writeable = False
    return Resamples(n=n, probability=probability, counts=counts)


def percentile_bounds(x_Sn: FloatArray, resamples: Resamples, level: float) -> tuple[FloatArray, FloatArray]:
    """Quantiles alpha/2 and 1 - alpha/2 of the bootstrap distribution of the mean."""
    tail = np.full((len(x_Sn), 1), (1 - level) / 2)
    return _quantiles(_means(x_Sn, resamples), resamples.probability, tail, 1 - tail)


def bca_bounds(x_Sn: FloatArray, resamples: Resamples, level: float) -> tuple[FloatArray, FloatArray]:
    """Bias-corrected and accelerated interval of the mean (Efron 1987).

    z0 = Phi^-1(P(mean* < mean) + P(mean* = mean) / 2);  a = sum(e^3) / (6 sum(e^2)^1.5), e = x - mean.
    """
    n = x_Sn.shape[1]
    centred = x_Sn - x_Sn.mean(axis=1, keepdims=True)
    means = _means(centred, resamples)
    tie = 1e-12 * np.abs(centred).max(axis=1, keepdims=True) * n
    below = (means < -tie) @ resamples.probability
    equal = (np.abs(means) <= tie) @ resamples.probability
    z0 = special.ndtri(below + equal / 2)[:, None]
    acceleration = (centred**3).sum(axis=1) / (6 * (centred**2).sum(axis=1) ** 1.5)
    z = special.ndtri((1 - level) / 2)
    low, high = (
        special.ndtr(z0 + (z0 + end) / np.maximum(1 - acceleration[:, None] * (z0 + end), 1e-6)) for end in (z, -z)
    )
    lower, upper = _quantiles(means, resamples.probability, low, high)
    shift = x_Sn.mean(axis=1)
    return lower + shift, upper + shift


def studentized_bounds(x_Sn: FloatArray, resamples: Resamples, level: float) -> tuple[FloatArray, FloatArray]:
    """Bootstrap-t: mean - t*_(1 - alpha/2) se, mean - t*_(alpha/2) se, t* = (mean* - mean) / se*.

    A resample whose values are all equal has se* = 0 and t* = +-infinity. At n = 3 they make up 11 % of
    all resamples and the 95 % interval is unbounded, returned as infinite ends.
    """
    n = x_Sn.shape[1]
    mean = x_Sn.mean(axis=1, keepdims=True)
    centred = x_Sn - mean
    variance = (centred**2).sum(axis=1, keepdims=True) / (n - 1)
    sums, squares = np.split(resamples.sums(np.concatenate([centred, centred**2])), 2)
    means = sums / n
    variance_star = (squares - n * means**2) / (n - 1)
    flat = variance_star <= 1e-12 * variance
    sign = np.where(np.abs(means) <= 1e-12 * np.sqrt(variance), 0.0, np.sign(means))
    finite = np.where(flat, 1.0, variance_star)
    with np.errstate(invalid="ignore"):
        infinite = np.where(sign == 0, 0.0, sign * np.inf)
    t_star = np.where(flat, infinite, means / np.sqrt(finite / n))
    tail = np.full((len(x_Sn), 1), (1 - level) / 2)
    low_t, high_t = _quantiles(t_star, resamples.probability, tail, 1 - tail)
    error = np.sqrt(variance[:, 0] / n)
    return mean[:, 0] - high_t * error, mean[:, 0] - low_t * error


def shifted_p(x_Sn: FloatArray, resamples: Resamples) -> FloatArray:
    """Two-sided p of mean = 0: P(|mean*| >= |mean|) among resamples of x - mean, with the +1 correction.

    p = (1 + B P) / (1 + B) where B counts the resamples (n^n where enumerated), so that it is never 0.
    """
    mean = x_Sn.mean(axis=1, keepdims=True)
    centred = x_Sn - mean
    tie = 1e-12 * np.abs(x_Sn).max(axis=1, keepdims=True)
    extreme = (np.abs(_means(centred, resamples)) >= np.abs(mean) - tie) @ resamples.probability
    total = float(resamples.total)
    return np.asarray(np.minimum((1 + total * extreme) / (1 + total), 1.0), dtype=np.float64)


def _means(x_Sn: FloatArray, resamples: Resamples) -> FloatArray:
    return resamples.sums(x_Sn) / resamples.n


def _quantiles(
    values_SK: FloatArray, probability_K: FloatArray, low_S1: FloatArray, high_S1: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Smallest value with P(X <= value) >= low, and its mirror image: largest with P(X >= value) >= 1 - high.

    The mirrored definition of the upper end makes the interval antisymmetric when the sample changes sign.
    """
    order = np.argsort(values_SK, axis=1)
    ordered = np.take_along_axis(values_SK, order, axis=1)
    weight = probability_K[order]
    upward = np.cumsum(weight, axis=1)
    downward = np.cumsum(weight[:, ::-1], axis=1)
    first = np.argmax(upward >= np.minimum(low_S1, 1.0 - 2 * _TIE) - _TIE, axis=1)
    last = -1 - np.argmax(downward >= np.minimum(1 - high_S1, 1.0 - 2 * _TIE) - _TIE, axis=1)
    rows = np.arange(len(ordered))
    return ordered[rows, first], ordered[rows, last]
