"""The hypotheses of a study file, judged by their rules. In what follows the metric is the hypothesis's own.

no-change              supported if every variant is equivalent to the baseline where the baseline trains stably; rejected if
                       one is better or worse there
worse-though-smoother  supported if a variant is worse although its training is smoother: a registered measure of smoothness
                       is shown lower, or a stability gain is shown; rejected if every variant is better or equivalent
restores-stability     supported if a stability gain is shown somewhere, corrected for every place looked at, by the very rule
                       that decides adopt-in-regime and trade-off, and no registered failure is more frequent there;
                       rejected if every variant is shown less stable wherever
                       the baseline is unstable

A metric that is scored on tasks counts only where it was shown to be sensitive, and only registered comparisons count.
Better and worse must hold with lost runs counted, as in the rules; equivalent is nothing that lost runs. Nothing is shown at
grid rates.
A guard's p is not corrected elsewhere, for a guard is no claim; a hypothesis is one, so Holm corrects it over the hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ablationlab.analysis.stability import UNSTABLE_SHARE, is_swept_place
from ablationlab.analysis.verdict.evidence import (
    holds_with_lost,
    lost_alone,
    perhaps_less_stable,
    standing_of,
)
from ablationlab.records.analysis import Analysis, Comparison, StabilityGain
from ablationlab.records.settings import TUNED, Hypothesis
from ablationlab.records.verdict import HypothesisReason, HypothesisVerdict
from ablationlab.stats import adjust

#: The family of metrics that are scored on tasks.
TASK_FAMILY: Final = "accuracy"
Status = Literal["supported", "rejected", "undecided"]


@dataclass(frozen=True)
class Judgement:
    """What a rule says of a hypothesis, by ids of the comparisons and stability gains it rests on."""

    status: Status
    reason: HypothesisReason
    evidence: tuple[str, ...] = ()


def judge_hypotheses(analysis: Analysis) -> dict[str, HypothesisVerdict]:
    """Each hypothesis of the study supported, rejected or undecided, with the comparisons that say so."""
    verdicts = {}
    for hypothesis in analysis.hypotheses:
        judgement = RULES[hypothesis.rule](analysis, hypothesis)
        verdicts[hypothesis.name] = HypothesisVerdict(
            statement=hypothesis.statement,
            rule=hypothesis.rule,
            metric=hypothesis.metric,
            status=judgement.status,
            reason=judgement.reason,
            evidence=judgement.evidence,
        )
    return verdicts


def _judged(status: Status, reason: HypothesisReason, *by: Comparison | StabilityGain) -> Judgement:
    return Judgement(status, reason, tuple(part.id for part in by))


# --- what may count -------------------------------------------------------------------------------------------


def _usable(analysis: Analysis, metric: str) -> list[Comparison] | Judgement:
    """Comparisons of the metric with the baseline that may count; without any, why there are none."""
    every = [c for c in analysis.comparisons if (c.metric, c.reference) == (metric, analysis.baseline)]
    if not every:
        return _judged("undecided", HypothesisReason.NOT_IN_RECORDS)
    scored = analysis.metrics[metric].family == TASK_FAMILY
    usable = [c for c in every if (c.sensitivity.sensitive if c.sensitivity is not None else not scored)]
    if not usable:
        return _judged("undecided", HypothesisReason.NOT_SENSITIVE)
    registered = [comparison for comparison in usable if comparison.label == "registered"]
    if registered and all(comparison.at_grid_rates for comparison in registered):
        return _judged("undecided", HypothesisReason.GRID_RATES)
    return _guards_corrected(registered) or _judged("undecided", HypothesisReason.NOT_REGISTERED)


def comparisons_of(analysis: Analysis, metric: str) -> list[Comparison]:
    """What a hypothesis on the metric rests on, corrected as it is judged."""
    usable = _usable(analysis, metric)
    return [] if isinstance(usable, Judgement) else usable


def _guards_corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Those of a hypothesis, the guards among them with Holm's correction."""
    guards = [c for c in comparisons if c.role == "guard"]
    corrected = adjust([1.0 if c.p is None else c.p for c in guards]).adjusted  # what is not tested counts all the same
    adjusted = {c.id: p for c, p in zip(guards, corrected, strict=True) if c.p is not None}
    return [_corrected(c, adjusted[c.id], len(guards)) if c.id in adjusted else c for c in comparisons]


def _corrected(comparison: Comparison, p: float | None, tests: int) -> Comparison:
    shown = p is not None and p <= comparison.alpha
    outcome = comparison.outcome if shown else "not-shown"
    corrected = {"p_adjusted": p, "correction": "holm", "family_size": tests, "outcome": outcome}
    return comparison.model_copy(update=corrected)


def _unstable(analysis: Analysis, regime: str) -> bool | None:
    arm = analysis.stability.arm(analysis.baseline, regime) if analysis.stability else None
    return None if arm is None else arm.unstable


def _left_open(analysis: Analysis, metric: str) -> bool:
    """Whether the metric is registered where an arm has no pair, or nothing is known of the baseline's stability."""
    known = {
        (c.variant, c.regime)
        for c in analysis.comparisons
        if (c.metric, c.reference) == (metric, analysis.baseline)
        and (c.n or c.at_grid_rates)
        and _unstable(analysis, c.regime) is not None
    }
    return any(
        (variant, criterion.regime) not in known
        for criterion in analysis.criteria
        if criterion.metric == metric and criterion.regime != TUNED
        for variant in (analysis.variants if criterion.contrast is None else criterion.contrast)
        if variant != analysis.baseline
    )


def _equivalent(comparison: Comparison) -> bool:
    """With every run of the variant there: a run that it alone lost may be the change."""
    if comparison.at_grid_rates or lost_alone(comparison, comparison.variant):
        return False
    return comparison.equivalence is not None and bool(comparison.equivalence.equivalent)


def _is_shown(analysis: Analysis, comparison: Comparison, outcome: Literal["better", "worse"]) -> bool:
    standing = standing_of(analysis, comparison.variant, comparison.regime)
    shown = comparison.outcome == outcome and not comparison.at_grid_rates
    return shown and holds_with_lost(analysis, comparison, standing)


# --- the rules ------------------------------------------------------------------------------------------------


def _no_change(analysis: Analysis, hypothesis: Hypothesis) -> Judgement:
    usable = _usable(analysis, hypothesis.metric or "")
    if isinstance(usable, Judgement):
        return usable
    stable = [comparison for comparison in usable if _unstable(analysis, comparison.regime) is False]
    if not stable:
        return _judged("undecided", HypothesisReason.NO_STABLE_BASELINE)
    changed = [c for c in stable if _is_shown(analysis, c, "better") or _is_shown(analysis, c, "worse")]
    if changed:
        return _judged("rejected", HypothesisReason.CHANGED, *changed)
    if all(map(_equivalent, stable)) and not _left_open(analysis, hypothesis.metric or ""):
        return _judged("supported", HypothesisReason.EQUIVALENT, *stable)
    return _judged("undecided", HypothesisReason.NOTHING_SHOWN, *stable)


def _worse_though_smoother(analysis: Analysis, hypothesis: Hypothesis) -> Judgement:
    usable = _usable(analysis, hypothesis.metric or "")
    if isinstance(usable, Judgement):
        return usable
    worse = [comparison for comparison in usable if _is_shown(analysis, comparison, "worse")]
    smoother = {comparison.id: smoother_training(analysis, comparison) for comparison in worse}
    both = [(comparison, *smoother[comparison.id]) for comparison in worse if any(smoother[comparison.id])]
    if both:
        parts: list[Comparison | StabilityGain] = []
        for comparison, measures, gains in both:
            parts += [comparison, *measures, *gains]
        return _judged("supported", HypothesisReason.WORSE_AND_SMOOTHER, *parts)
    if worse:
        return _judged("undecided", HypothesisReason.WORSE_NOT_SMOOTHER, *worse)
    harmless = [c for c in usable if _is_shown(analysis, c, "better") or _equivalent(c)]
    if len(harmless) == len(usable) and not _left_open(analysis, hypothesis.metric or ""):
        return _judged("rejected", HypothesisReason.NOT_WORSE, *harmless)
    return _judged("undecided", HypothesisReason.NOTHING_SHOWN, *usable)


def smoother_training(analysis: Analysis, comparison: Comparison) -> tuple[list[Comparison], list[StabilityGain]]:
    """Registered measures of smoothness that are shown lower, and stability gains that are shown, of the same arms."""
    stability = analysis.stability
    if stability is None:
        return [], []
    place = (comparison.regime, comparison.variant, comparison.reference)
    measures = [analysis.comparison(name, *place) for name in stability.smoothness]
    gains = stability.vector(comparison.variant, comparison.reference, comparison.regime)
    return (
        [c for c in measures if c is not None and c.label == "registered" and _is_shown(analysis, c, "better")],
        [gain for gain in gains if gain.registered and gain.outcome == "more-stable"],
    )


def _restores_stability(analysis: Analysis, _: Hypothesis) -> Judgement:
    """Every registered place, corrected for their number. Tuned arms are none: where the rates differ, so may stability."""
    stability = analysis.stability
    if stability is None:
        return _judged("undecided", HypothesisReason.STABILITY_UNKNOWN)
    looked_at = [gain for gain in (*stability.parts, *stability.gains) if gain.places and gain.reference_unstable]
    gains = [gain for gain in looked_at if gain.registered]
    swept = [c for c in analysis.comparisons if is_swept_place(c, analysis.baseline) and c.reference_mean]
    if not gains and not swept:
        return _judged("undecided", HypothesisReason.NOT_REGISTERED, *looked_at) if looked_at else _nowhere(analysis)
    shown = [gain for gain in gains if gain.outcome == "more-stable"]
    restored = [gain for gain in shown if not _undone(analysis, gain)]
    steadier = [c for c in swept if _is_lower(c) and c.p is not None and c.p * stability.places <= stability.alpha]
    if restored or steadier:
        return _judged("supported", HypothesisReason.RESTORED, *restored, *steadier)
    if all(gain.outcome == "less-stable" for gain in gains) and all(map(_has_no_gain, swept)):
        return _judged("rejected", HypothesisReason.NOT_RESTORED, *gains, *swept)
    reason = HypothesisReason.GAIN_UNDONE if shown else HypothesisReason.GAIN_NOT_SHOWN
    return _judged("undecided", reason, *gains, *swept)


def _undone(analysis: Analysis, gain: StabilityGain) -> bool:
    """Whether the same runs are less stable in another registered way, or would be, had the missing ones failed."""
    place = (gain.variant, gain.regime)
    return bool(standing_of(analysis, *place).lost) or perhaps_less_stable(analysis, *place)


def _is_lower(comparison: Comparison) -> bool:
    lower = comparison.delta is not None and comparison.delta < 0 and comparison.regime != TUNED
    return lower and not lost_alone(comparison, comparison.variant)


def _has_no_gain(comparison: Comparison) -> bool:
    """The variant's share is shown not to be lower: the lower bound of its loss is at 0 or above."""
    low = comparison.loss()[1]
    return low is not None and low >= 0


def _nowhere(analysis: Analysis) -> Judgement:
    at_some_rates = any(c.metric == UNSTABLE_SHARE and c.reference_mean for c in analysis.comparisons)
    reason = HypothesisReason.SHARE_NOT_REGISTERED if at_some_rates else HypothesisReason.STABLE_EVERYWHERE
    return _judged("undecided", reason)


RULES: Final[Mapping[str, Callable[[Analysis, Hypothesis], Judgement]]] = {
    "no-change": _no_change,
    "worse-though-smoother": _worse_though_smoother,
    "restores-stability": _restores_stability,
}
