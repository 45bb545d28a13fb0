"""How many seeds a comparison would take, from the SD of its deltas."""

from __future__ import annotations

from collections.abc import Iterable

from ablationlab.core.errors import StatisticsError
from ablationlab.records.analysis import Comparison, Power
from ablationlab.stats import detectable_effect, pairs_needed, sd_interval, tost_pairs_needed


def power_of(found: Iterable[Comparison], primary: str | None) -> tuple[Power, ...]:
    """What the primary comparisons could see; none where their deltas do not vary."""
    return tuple(_power(one, one.delta_sd) for one in found if one.metric == primary and one.n >= 3 and one.delta_sd)


def _power(one: Comparison, sd: float) -> Power:
    alpha, effect = alpha_per_test(one), one.smallest_effect
    upper = sd_interval(sd, one.n, level=0.6).high
    return Power(
        comparison=one.id,
        n=one.n,
        delta_sd=sd,
        smallest_effect=effect,
        alpha=alpha,
        detectable_80=detectable_effect(one.n, power=0.8, alpha=alpha) * sd,
        detectable_90=detectable_effect(one.n, power=0.9, alpha=alpha) * sd,
        pairs_80=seeds_for(effect, sd, alpha, 0.8),
        pairs_90=seeds_for(effect, sd, alpha, 0.9),
        pairs_80_conservative=seeds_for(effect, upper, alpha, 0.8),
        equivalence_pairs_80=seeds_for_equivalence(effect, sd, one.alpha, 0.8),
    )


def alpha_per_test(one: Comparison) -> float:
    """alpha / m: what the smallest p of a family of m must stay below, whatever the others are (Holm, Bonferroni)."""
    corrects = one.correction in ("holm", "bonferroni")
    return one.alpha / max(1, one.family_size) if corrects else one.alpha


def seeds_for(effect: float | None, sd: float | None, alpha: float, power: float) -> int | None:
    """Pairs for the paired t-test to see *effect* with that power; None where no number can be given."""
    if not effect or not sd:
        return None
    try:
        return pairs_needed(effect / sd, power=power, alpha=alpha)
    except StatisticsError:
        return None


def seeds_for_equivalence(effect: float | None, sd: float | None, alpha: float, power: float) -> int | None:
    """Pairs to show equivalence within +-effect when there is no difference; None where no number can be given."""
    if not effect or not sd:
        return None
    try:
        return tost_pairs_needed(effect / sd, power=power, alpha=alpha)
    except StatisticsError:
        return None
