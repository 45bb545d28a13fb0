"""The median of pairs with its interval, where single runs make the mean absurd."""

from __future__ import annotations

from math import inf

from ablationlab.records.analysis import Comparison
from ablationlab.stats._common import complement
from ablationlab.stats.intervals import median_interval


def with_median(comparison: Comparison) -> Comparison:
    """At the level of the interval that it stands for. A seed that one arm alone lost counts as that arm's worst."""
    if not comparison.told_by_medians or comparison.design != "paired":
        return comparison
    cost, worst = comparison.cost, -inf if comparison.direction == "higher" else inf
    deltas = [pair.delta for pair in comparison.pairs]
    if cost is not None:
        deltas += [worst] * len(cost.lost) + [-worst] * len(cost.lost_by_reference)
    deciding = comparison.deciding
    level = complement(comparison.alpha) if deciding is None else deciding.level
    return comparison.model_copy(update={"median_interval": median_interval(deltas, level=level)})
