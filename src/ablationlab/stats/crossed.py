"""Seeds x items: an interval for a mean difference over other seeds and other items at once.

delta_SI = mean + seed_s + item_i + rest_si, both random. With the mean squares of seeds, items and rest,

    Var(mean) = (MS_seed + MS_item - MS_rest) / (S I),   mean +- t_f sqrt(Var)
    f = (MS_seed + MS_item - MS_rest)^2 / (MS_seed^2 / (S - 1) + MS_item^2 / (I - 1) + MS_rest^2 / ((S - 1) (I - 1)))

(Satterthwaite 1946). A source whose mean square is below the rest's counts as absent. The macro average over T tasks
shares its seeds and has items of its own in each task: Var = Var_seeds(macro of a seed) / S + sum_t (MS_item,t -
MS_rest,t) / (S I_t) / T^2, with degrees of freedom alike. Items may be documents with weights p_i that sum to 1 (their
tokens): the corpus mean is sum_i p_i delta_i, and with e_i = delta_i - mean

    MS_item / (S I) becomes P sum_i p_i e_i^2 / (1 - P),   P = sum_i p_i^2,

MS_rest alike. Both are unbiased where the variance is the same for all documents, and too large where long documents vary
less. The degrees of freedom are those of such a weighted sum of squares instead of I - 1: a few long documents count as few.
With equal weights these are the formulas above.

Where items make the noise, the crossed bootstrap of `stats.items` counts the rest about three times and covers 98 to 100
%; this covers what it says (docs/validation.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import MINIMUM_PAIRS, FloatArray, finite, fraction, power_of_two
from ablationlab.stats.items import ItemPairs, common_seeds
from ablationlab.stats.results import CrossedMean, Interval, StatisticalResult, Status

METHOD = "seeds-x-items"
#: A smaller share of the weight has no square.
_NO_SHARE: Final = 1e-100


@dataclass(frozen=True)
class CrossedMeans(StatisticalResult):
    """The crossed interval of each task's mean delta and of their macro average."""

    tasks: dict[str, CrossedMean]
    macro: CrossedMean


def crossed_mean(delta_SI: ArrayLike, *, weights: ArrayLike | None = None, level: float = 0.95) -> CrossedMean:
    """Interval and p of a mean difference over seeds by items; *weights* of the items, such as tokens of documents."""
    table = np.atleast_2d(finite("delta_SI", delta_SI))
    if table.ndim != 2 or 0 in table.shape:
        raise StatisticsError(f"delta_SI must have shape (seeds, items), got {table.shape}")
    w = np.ones(table.shape[1]) if weights is None else finite("weights", weights)
    if w.shape != table.shape[1:] or (w < 0).any() or not w.sum() > 0:
        raise StatisticsError(f"weights must be one number of at least 0 per item, got shape {w.shape}")
    return _crossed([table], [w / w.sum()], fraction("level", level))


def crossed_means(tasks: Mapping[str, ItemPairs], *, level: float = 0.95) -> CrossedMeans:
    """Every task and the macro average; the tasks are fixed and share their seeds, in one order."""
    common_seeds(tasks)
    level = fraction("level", level)
    tables = {name: pairs.deltas for name, pairs in tasks.items()}
    shares = {name: np.full(table.shape[1], 1 / table.shape[1]) for name, table in tables.items()}
    return CrossedMeans(
        {name: _crossed([table], [shares[name]], level) for name, table in tables.items()},
        _crossed(list(tables.values()), list(shares.values()), level),
    )


def _crossed(tables: list[FloatArray], shares: list[FloatArray], level: float) -> CrossedMean:
    """*shares*: of the items of each table, which sum to 1."""
    seeds, items = tables[0].shape[0], sum(table.shape[1] for table in tables)
    scale = max(power_of_two(table) for table in tables)  # so that no square underflows
    scaled = [table / scale for table in tables]
    macro_S = np.mean([table @ share for table, share in zip(scaled, shares, strict=True)], axis=0)
    estimate = float(macro_S.mean() * scale)

    def none(status: Status) -> CrossedMean:
        interval = Interval(METHOD, level, estimate, None, None, seeds, exact=True, status=status)
        return CrossedMean(interval, None, None, seeds, items, None, None, None)

    if seeds < MINIMUM_PAIRS:
        return none("too-few-pairs")
    if all(np.ptp(table) == 0 for table in scaled):
        return none("degenerate")
    # Each term of Var(mean): (signed value, degrees of freedom).
    seed = float(macro_S.var(ddof=1)) / seeds
    parts = [
        _mean_squares(table, share, len(tables))
        for table, share in zip(scaled, shares, strict=True)
        if np.count_nonzero(share > _NO_SHARE) > 1
    ]
    item, rest = sum(part[0] for part in parts), sum(part[1] for part in parts)
    terms = [(seed, seeds - 1.0)] if seed >= rest else []
    if item > rest or not terms:
        terms += [(value, freedom) for value, _, freedom, _ in parts]
    if len(terms) > 1 and seed >= rest:
        terms += [(-value, freedom) for _, value, _, freedom in parts]
    variance = sum(value for value, _ in terms)
    if not variance > 0:
        return none("degenerate")
    freedom = variance**2 / sum(value**2 / freedom for value, freedom in terms)
    error = float(np.sqrt(variance)) * scale
    half = float(special.stdtrit(freedom, (1 + level) / 2)) * error
    interval = Interval(METHOD, level, estimate, estimate - half, estimate + half, seeds, exact=True)
    p = float(2 * special.stdtr(freedom, -abs(estimate) / error))
    excess = (max(seed - rest, 0.0), max(item - rest, 0.0), min(rest, variance))
    return CrossedMean(interval, p, float(freedom), seeds, items, *(value * scale**2 for value in excess))


def _mean_squares(table: FloatArray, share_I: FloatArray, tasks: int) -> tuple[float, float, float, float]:
    """(MS_item, MS_rest) over S I T^2, and their degrees of freedom."""
    seeds = table.shape[0]
    item_I, seed_S = table.mean(axis=0), table @ share_I
    mean = seed_S.mean()
    rest = table - item_I - seed_S[:, None] + mean
    factor_I = share_I * (share_I @ share_I) / (share_I @ _others(share_I)[0])
    item = float(factor_I @ (item_I - mean) ** 2) / tasks**2
    of_rest = float(factor_I @ (rest**2).sum(axis=0)) / ((seeds - 1.0) * seeds * tasks**2)
    freedom = _freedom(share_I)
    return item, of_rest, freedom, (seeds - 1.0) * freedom


def _freedom(share_I: FloatArray) -> float:
    """Of sum_i p_i e_i^2: tr(C V)^2 / tr(C V C V), C = diag(p), V_ij = [i = j] - p_i - p_j + sum p^2, the covariance of e.

    As sums without differences: (1 - sum p^2)^2 / (sum p^2 + (sum p^2)^2 - 2 sum p^3) is 0 / 0 where one item has nearly all.
    """
    rest_I, squares_I = _others(share_I)
    return float((share_I @ rest_I) ** 2 / (share_I**2 @ (rest_I**2 + squares_I)))


def _others(share_I: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Per item, the sum of all other shares and of their squares."""
    rest_I, squares_I = 1 - share_I, share_I @ share_I - share_I**2
    most = int(share_I.argmax())
    others = np.delete(share_I, most)
    rest_I[most], squares_I[most] = others.sum(), others @ others
    return rest_I, squares_I
