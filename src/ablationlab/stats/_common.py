"""What every statistic here shares: argument checks, the canonical form of a sample, plain output.

The checks raise :class:`StatisticsError` with the argument's name and value. The canonical form makes
results exactly invariant to the order of the pairs and exactly antisymmetric in the arms, even where
random numbers are drawn, and keeps squares from underflowing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ablationlab.core.errors import StatisticsError
from ablationlab.stats.results import Status

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: With one or two differences an interval is all assumption and no data.
MINIMUM_PAIRS: Final = 3

#: Beyond this, squares and their sums overflow; no metric of a run that did not diverge is near it.
LARGEST: Final = 1e100
#: Differences this many units in the last place of the inputs apart are rounding, not data.
_ROUNDING_ULPS: Final = 8


def sample(name: str, values: ArrayLike) -> FloatArray:
    """*values* as a finite, non-empty, one-dimensional float array."""
    array = finite(name, values)
    if array.ndim != 1:
        raise StatisticsError(f"{name} must be one-dimensional, got shape {array.shape}")
    if array.size == 0:
        raise StatisticsError(f"{name} is empty: at least one value is needed")
    return array


def finite(name: str, values: ArrayLike) -> FloatArray:
    """*values* as a float array without NaN or infinity; the first bad position is named."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise StatisticsError(f"{name} must hold numbers, got {values!r} ({error})") from None
    bad = np.argwhere(~(np.abs(array) <= LARGEST))
    if bad.size:
        position = tuple(int(index) for index in bad[0])
        shown = position[0] if len(position) == 1 else position
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        must = "lie within 1e100 of zero" if np.isfinite(array[position]) else "be finite"
        raise StatisticsError(f"{name}[{shown}] is {array[position]}: values must {must}{more}")
    return array


def complement(share: float) -> float:
    """1 - *share*, as written: the level of alpha 0.05 is 0.95, not 0.95 and a rounding error."""
    return round(1 - share, 12)


def number(name: str, value: float) -> float:
    """*value* if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise StatisticsError(f"{name} must be a number, got {value!r}")
    if not np.isfinite(value):
        raise StatisticsError(f"{name} must be finite, got {value!r}")
    return float(value)


def fraction(name: str, value: float) -> float:
    """*value* if it lies strictly between 0 and 1."""
    if not 0.0 < number(name, value) < 1.0:
        raise StatisticsError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """*value* if it is finite and above zero."""
    if number(name, value) <= 0:
        raise StatisticsError(f"{name} must be above 0, got {value!r}")
    return float(value)


def count(name: str, value: int, minimum: int = 1) -> int:
    """*value* if it is a whole number of at least *minimum*."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise StatisticsError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    return int(value)


def paired_deltas(variant: ArrayLike, reference: ArrayLike) -> FloatArray:
    """variant - reference, pair by pair, with differences that are only rounding set to zero.

    0.3 - 0.1 and 0.4 - 0.2 differ by one unit in the last place; without care that unit becomes a
    standard deviation of 1e-17 and a p-value of 0. Where all deltas agree within rounding of the
    inputs they are made exactly equal, and the statistics then say that they are constant.
    """
    a, b = pair("variant", variant, "reference", reference)
    deltas = a - b
    # Pair by pair: a run that blew up must not make rounding of what the others differ by.
    rounding = _ROUNDING_ULPS * np.finfo(np.float64).eps * np.maximum(np.abs(a), np.abs(b))
    deltas[np.abs(deltas) <= rounding] = 0.0
    if (deltas - rounding / 2).max() <= (deltas + rounding / 2).min():  # one value lies within rounding of all
        deltas[:] = np.median(deltas)
    return deltas


def pair(name_a: str, a: ArrayLike, name_b: str, b: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Two samples of equal length."""
    first, second = sample(name_a, a), sample(name_b, b)
    if first.size != second.size:
        raise StatisticsError(
            f"{name_a} and {name_b} must pair one to one by seed, got {first.size} and {second.size} values"
        )
    return first, second


def average_ranks(values: FloatArray) -> FloatArray:
    """Ranks from 1 upward; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], dtype=np.float64)


def power_of_two(values: FloatArray) -> float:
    """A power of two near the largest magnitude, so that dividing by it is exact; 1 for zeros."""
    largest = float(np.abs(values).max())
    # Never a subnormal factor, whose inverse would overflow.
    return float(2.0 ** max(int(np.frexp(largest)[1]), -1000)) if largest > 0 else 1.0


def standard_deviation(values: FloatArray) -> float | None:
    """Sample standard deviation (ddof 1), safe from underflow; None for one value."""
    if values.size < 2:
        return None
    if np.ptp(values) == 0:
        return 0.0
    scale = power_of_two(values)
    return float(np.std(values / scale, ddof=1) * scale)


def correlation(a: FloatArray, b: FloatArray) -> float:
    """Pearson's correlation of two samples that both vary."""
    x, y = (np.asarray(values / power_of_two(values)) for values in (a, b))
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


@dataclass(frozen=True, eq=False)
class Canonical:
    """deltas = factor * values in some order: sorted, of magnitude about 1, of fixed orientation.

    Swapping the arms changes only the sign of *factor*; permuting the pairs changes nothing.
    """

    values: FloatArray
    factor: float

    @property
    def n(self) -> int:
        """Number of pairs."""
        return int(self.values.size)

    @property
    def constant(self) -> bool:
        """Whether the deltas do not vary (to within rounding of their own size)."""
        return bool(np.ptp(self.values) <= _ROUNDING_ULPS * np.finfo(np.float64).eps * np.abs(self.values).max())

    @property
    def mean(self) -> float:
        """Mean of the canonical values."""
        return float(self.values.mean())

    @property
    def sd(self) -> float:
        """Standard deviation of the canonical values."""
        return float(self.values.std(ddof=1))

    @property
    def estimate(self) -> float:
        """Mean delta in the units of the input."""
        return self.mean * self.factor

    def interval(self, low: float, high: float) -> tuple[float, float]:
        """An interval for the canonical mean, in the units and orientation of the input."""
        ends = sorted((low * self.factor, high * self.factor))
        return ends[0], ends[1]

    def problem(self) -> Status | None:
        """Why no inference can be made from these deltas, if so."""
        if self.n < MINIMUM_PAIRS:
            return "too-few-pairs"
        return "degenerate" if self.constant else None


def canonical(deltas: ArrayLike) -> Canonical:
    """The canonical form of a sample of deltas."""
    array = sample("deltas", deltas)
    scale = power_of_two(array)
    upward = np.sort(array / scale)
    downward = np.sort(-array / scale)
    differs = upward != downward
    if differs.any() and downward[differs.argmax()] > upward[differs.argmax()]:
        return Canonical(values=downward + 0.0, factor=-scale)  # + 0.0 turns -0.0 into 0.0
    return Canonical(values=upward + 0.0, factor=scale)
