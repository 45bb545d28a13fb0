"""Every comparison of a study as one row of slots: the shape that terminal, notebook and tables share.

What is shown of a comparison is decided here and nowhere else: which estimate and interval, how many digits, the word, the
flags. A row names the fields that it was made from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ablationlab.core.format import DASH, Difference, amount, count, difference, level, number, p_value, setting
from ablationlab.records.analysis import Analysis, Comparison, Power
from ablationlab.records.metrics import Metric, metric_name
from ablationlab.records.verdict import FAILURES, Answer, Guard, Standing, VariantVerdict, Verdict
from ablationlab.report.slots import NOTHING, Scale, Slot

#: Why an effect may have no interval: a few runs make its means; runs are lost.
MEDIANS, LOST = "medians", "lost runs"
#: A value as large has a prefix.
_MANY: Final = 1e5
#: Beyond ten times the seeds at hand.
TOO_CLOSE: Final = "too close"


@dataclass(frozen=True)
class GuardState:
    """A guard of an answer; *seeds* would close it where it is open."""

    name: str
    standing: Standing
    seeds: Slot = NOTHING


@dataclass(frozen=True)
class Effect:
    """One comparison: variant - reference on one metric in one regime.

    *baseline*: the reference's own value, *value*: the variant's. *drawn*: (estimate, low, high) as costs, positive is
    worse; *ticks*: the cost on each seed; *smallest*: the smallest effect on that scale, *margin*: the registered one.
    *word*: the answer where the rules gave one, else the outcome of the test. *seeds*: those that would decide it. *failed*:
    unstable runs of the reference and of the variant, of as many *pairs* of runs, where any is.
    """

    id: str
    metric: str
    name: str
    unit: str
    variant: str
    reference: str
    regime: str
    role: str
    label: str
    estimate: Slot = NOTHING
    low: Slot = NOTHING
    high: Slot = NOTHING
    level: Slot = NOTHING
    p: Slot = NOTHING
    n: Slot = NOTHING
    baseline: Slot = NOTHING
    value: Slot = NOTHING
    word: Slot = NOTHING
    answer: Answer | None = None
    advice: Slot = NOTHING
    guards: tuple[GuardState, ...] = ()
    failed: tuple[Slot, Slot] | None = None
    pairs: Slot = NOTHING
    flags: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    seeds: Slot = NOTHING
    without: tuple[tuple[Slot, Slot], ...] = ()
    left_out: int = 0
    far_out: tuple[Slot, ...] = ()
    drawn: tuple[float, float | None, float | None] | None = None
    ticks: tuple[float, ...] = ()
    smallest: float | None = None
    margin: float | None = None

    @property
    def interval(self) -> str:
        """``+0.116 .. +0.125``; where there is none, why."""
        if DASH not in (self.low.text, self.high.text):
            return f"{self.low} .. {self.high}"
        return next((flag for flag in (MEDIANS, LOST) if flag in self.flags), DASH)

    def slots(self) -> list[Slot]:
        """Everything that it prints."""
        own = [self.estimate, self.low, self.high, self.level, self.p, self.n, self.baseline, self.value, self.word]
        own.append(self.advice)
        own += [self.seeds, self.pairs, *self.far_out, *(guard.seeds for guard in self.guards), *(self.failed or ())]
        return [slot for slot in (*own, *(slot for pair in self.without for slot in pair)) if slot.at]


def effects_of(analysis: Analysis, verdict: Verdict | None) -> tuple[Effect, ...]:
    """A row per comparison, registered ones first; with those that have an answer and nothing to compare."""
    judged = {} if verdict is None else {v.comparison: (i, v) for i, v in enumerate(verdict.verdicts) if v.comparison}
    rows = [
        _effect(analysis, comparison, place, judged.get(comparison.id))
        for place, comparison in enumerate(analysis.comparisons)
    ]
    asked = {row.id for row in rows}
    for place, known in enumerate(() if verdict is None else verdict.verdicts):
        if known.comparison not in asked:
            rows.append(_unmeasured(analysis, known, place))
    return tuple(sorted(rows, key=lambda row: (row.label != "registered", not row.role)))


def answers_of(
    analysis: Analysis, verdict: Verdict, verdicts: Sequence[VariantVerdict] | None = None
) -> tuple[Effect, ...]:
    """The row of each verdict, in the order given, else in that of verdict.json."""
    places = {comparison.id: place for place, comparison in enumerate(analysis.comparisons)}
    rows = []
    for known in verdict.verdicts if verdicts is None else verdicts:
        at, place = verdict.verdicts.index(known), places.get(known.comparison or "")
        if place is None:
            rows.append(_unmeasured(analysis, known, at))
        else:
            rows.append(_effect(analysis, analysis.comparisons[place], place, (at, known)))
    return tuple(rows)


def _effect(analysis: Analysis, it: Comparison, place: int, judged: tuple[int, VariantVerdict] | None) -> Effect:
    at = f"analysis.json#/comparisons/{place}"
    shown, low, high, estimate_at, interval_at = _shown(it)
    interval = it.median_interval if it.told_by_medians else it.main_interval
    found = Effect(
        id=it.id,
        metric=it.metric,
        name=label_of(it.metric, analysis.metrics, it),
        unit="%" if shown.unit == "%" else "" if it.unit == "1" else it.unit,
        variant=it.variant,
        reference=it.reference,
        regime=it.regime,
        role=it.role or "",
        label=it.label,
        estimate=_slot(shown.delta, f"{at}/{estimate_at}", _estimate(it), shown),
        low=_slot(shown.low, f"{at}/{interval_at}/low", low, shown),
        high=_slot(shown.high, f"{at}/{interval_at}/high", high, shown),
        level=NOTHING
        if interval is None or low is None
        else Slot(level(interval.level), f"{at}/{interval_at}/level", interval.level, "percent"),
        p=NOTHING if it.p_adjusted is None else Slot(p_value(it.p_adjusted), f"{at}/p_adjusted", it.p_adjusted),
        n=Slot(count(it.n), f"{at}/n", it.n),
        baseline=_own(it, it.reference, "reference", at),
        value=_own(it, it.variant, "variant", at),
        word=Slot(_outcome(it), f"{at}/{'cost/same' if _same(it) else 'outcome'}", it.outcome),
        flags=_flags_of(it),
        far_out=tuple(
            Slot(str(s), f"{at}/cost/far_out/{i}", s) for i, s in enumerate(it.cost.far_out if it.cost else ())
        ),
        drawn=_drawn(it, low, high),
        ticks=tuple(_turned(it) * pair.delta for pair in it.pairs),
        smallest=it.smallest_effect,
        margin=it.margin,
    )
    return found if judged is None else _answered(analysis, found, *judged)


def _unmeasured(analysis: Analysis, known: VariantVerdict, place: int) -> Effect:
    """An answer that rests on no comparison of the primary metric."""
    metric = analysis.primary or ""
    empty = Effect(
        id="",
        metric=metric,
        name=metric_name(metric) if metric else "",
        unit="",
        variant=known.variant,
        reference=known.reference,
        regime=known.regime,
        role="primary",
        label=known.label,
    )
    return _answered(analysis, empty, place, known)


def _answered(analysis: Analysis, effect: Effect, place: int, known: VariantVerdict) -> Effect:
    """The row with what the rules say of it."""
    at = f"verdict.json#/verdicts/{place}"
    favoured = known.tie_break.favours if known.tie_break is not None else None
    return replace(
        effect,
        label=known.label,
        word=Slot(known.answer.value, f"{at}/answer", known.answer.value),
        answer=known.answer,
        advice=Slot(
            favoured or known.advice.value,
            f"{at}/{'tie_break/favours' if favoured else 'advice'}",
            favoured or known.advice.value,
        ),
        guards=tuple(
            GuardState(guard.name.replace("_", " "), guard.standing, _closed_by(analysis, guard))
            for guard in known.guards
        ),
        **_failed(analysis, known),
        flags=(*answer_flags(known), *(flag for flag in effect.flags if flag != "exploratory")),
        lacks=tuple(lack.value for lack in known.lacks),
        seeds=_decided_by(analysis, known),
        without=tuple(
            (
                Slot(str(other.seed), f"{at}/without/{i}/seed", other.seed),
                Slot(other.answer.value, f"{at}/without/{i}/answer", other.answer.value),
            )
            for i, other in enumerate(known.without)
        ),
        left_out=known.left_out,
    )


# --- numbers --------------------------------------------------------------------------------------------------


def _shown(it: Comparison) -> tuple[Difference, float | None, float | None, str, str]:
    """The difference as printed, the interval's ends, and the fields of both; medians where a few runs make the means."""
    log = it.transform == "log"
    if it.told_by_medians:
        median = it.median_interval
        low, high = (None, None) if median is None else (median.low, median.high)
        at = "delta_median" if median is None else "median_interval/estimate"
        return difference(_estimate(it), low, high, log=log, unit=it.unit), low, high, at, "median_interval"
    interval, at = it.main_interval, "deciding" if it.deciding is not None else f"intervals/{it.interval}"
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return difference(it.estimate, low, high, log=log, unit=it.unit), low, high, it.estimate_at, at


def _slot(text: str, at: str, value: float | None, shown: Difference) -> Slot:
    scale: Scale = "change" if shown.unit == "%" else "factor" if text.startswith("×") else "as it is"
    return NOTHING if value is None else Slot(text, at, value, scale)


def _own(it: Comparison, arm: str, side: str, at: str) -> Slot:
    """An arm's own value: its median where a few runs make its mean."""
    middle = it.told_by_medians or arm in it.unstable_means or arm in it.skewed
    name = f"{side}_{'median' if middle else 'mean'}"
    value: float | None = getattr(it, name)
    if value is None:
        return NOTHING
    return Slot(amount(value) if abs(value) >= _MANY else number(value, 4), f"{at}/{name}", value)


def _estimate(it: Comparison) -> float | None:
    """The difference that is shown: lost runs are counted in a median where one can be had with them."""
    if not it.told_by_medians:
        return it.estimate
    return it.delta_median if it.median_interval is None else it.median_interval.estimate


def _turned(it: Comparison) -> float:
    return -1.0 if it.direction == "higher" else 1.0


def _drawn(it: Comparison, low: float | None, high: float | None) -> tuple[float, float | None, float | None] | None:
    estimate = _estimate(it)
    if estimate is None or not math.isfinite(estimate):
        return None
    if it.direction == "higher":
        low, high = None if high is None else -high, None if low is None else -low
    return _turned(it) * estimate, low, high


# --- words ----------------------------------------------------------------------------------------------------


def label_of(metric: str, metrics: Mapping[str, Metric], it: Comparison | None = None) -> str:
    """The metric in words, with its task."""
    task = None if it is None else it.averaged[0].label if len(it.averaged) == 1 else it.task_label
    return f"{metric_name(metric)}, {task}" if task else metric_name(metric)


def _same(it: Comparison) -> bool:
    return it.outcome == "not-shown" and it.cost is not None and it.cost.same


def _outcome(it: Comparison) -> str:
    return Answer.SAME.value if _same(it) else it.outcome.replace("-", " ")


def _flags_of(it: Comparison) -> tuple[str, ...]:
    cost = it.cost
    known = {
        "exploratory": it.label == "exploratory",
        "unpaired": it.design == "unpaired",
        MEDIANS: it.told_by_medians,
        "grid rates": it.at_grid_rates,
        LOST: cost is not None and bool(cost.lost or cost.lost_by_reference),
        "fewer pairs": it.n < it.planned_pairs and not (cost is not None and (cost.lost or cost.lost_by_reference)),
        "uncorrected": it.undecided,
        "not sensitive": it.sensitivity is not None and not it.sensitivity.sensitive,
    }
    return tuple(flag for flag, there in known.items() if there)


def answer_flags(judged: VariantVerdict) -> list[str]:
    """What stands beside an answer."""
    known = {
        "as counted": judged.as_counted,
        "at a cost": bool(judged.at_a_cost),
        "confirmed": judged.confirmed,
        "A/A": judged.again,
        "unequal seeds": judged.unequal_seeds,
        "budget unknown": judged.budget_unknown,
        f"reused ({count(judged.reused)})": bool(judged.reused),
        "exploratory": judged.label == "exploratory",
    }
    return [flag for flag, there in known.items() if there]


def _failed(analysis: Analysis, known: VariantVerdict) -> dict[str, Any]:
    for place, gain in enumerate(() if analysis.stability is None else analysis.stability.gains):
        if (gain.variant, gain.reference, gain.regime) == (known.variant, known.reference, known.regime):
            at = f"analysis.json#/stability/gains/{place}"
            reference = Slot(count(gain.reference_unstable), f"{at}/reference_unstable", gain.reference_unstable)
            variant = Slot(count(gain.variant_unstable), f"{at}/variant_unstable", gain.variant_unstable)
            pairs = Slot(count(gain.n), f"{at}/n", gain.n)
            return {"failed": (reference, variant), "pairs": pairs} if reference.value or variant.value else {}
    return {}


def _closed_by(analysis: Analysis, guard: Guard) -> Slot:
    """Seeds that would show its margin kept: with 80 % power if the effect is as large as seen, or without a failure."""
    if guard.standing != Standing.OPEN:
        return NOTHING
    if guard.name != FAILURES:
        for place, known in enumerate(analysis.comparisons):
            if known.id == guard.comparison and known.cost is not None and known.cost.kept_by is not None:
                return Slot(
                    count(known.cost.kept_by), f"analysis.json#/comparisons/{place}/cost/kept_by", known.cost.kept_by
                )
        return NOTHING
    stability = analysis.stability
    if stability is None or stability.seeds_for_margin is None:
        return NOTHING
    gain = next((gain for gain in (*stability.parts, *stability.gains) if gain.id == guard.comparison), None)
    calm = gain is not None and gain.rescued is not None and not gain.variant_unstable
    if gain is None or not calm or gain.n >= stability.seeds_for_margin:
        return NOTHING
    return Slot(
        count(stability.seeds_for_margin), "analysis.json#/stability/seeds_for_margin", stability.seeds_for_margin
    )


def _decided_by(analysis: Analysis, judged: VariantVerdict) -> Slot:
    """Of an undecided answer, the seeds that would decide it with 80 % power."""
    found: tuple[int, Power] | None = next(
        ((place, power) for place, power in enumerate(analysis.power) if power.comparison == judged.comparison), None
    )
    if not judged.waits or found is None:
        return NOTHING
    place, power = found
    at = f"analysis.json#/power/{place}/decided_by"
    return Slot(TOO_CLOSE if power.decided_by is None else count(power.decided_by), at, power.decided_by)


def smallest_text(effects: Sequence[Effect]) -> str:
    """``0.01 nats/token``: the smallest effect, where all these share one."""
    known = {(effect.smallest, effect.unit) for effect in effects if effect.smallest is not None}
    if len(known) != 1:
        return ""
    smallest, unit = known.pop()
    return f"{setting(smallest)} {'(of logarithms)' if unit == '%' else unit}".strip()
