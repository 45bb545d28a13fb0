"""The hypotheses of a study file, judged by their rules. In what follows the metric is the hypothesis's own.

no-change              supported if every variant is equivalent to the baseline where the baseline trains stably; rejected if
                       one is better or worse there
worse-though-smoother  supported if a variant is worse although its training is smoother: a registered measure of smoothness
                       is shown lower, or a stability gain is shown; rejected if every variant is better or equivalent
restores-stability     supported if a stability gain is shown somewhere, corrected for every place looked at, by the very rule
                       that decides adopt-in-regime and trade-off; rejected if every variant is shown less stable wherever
                       the baseline is unstable

A metric that is scored on tasks counts only where it was shown to be sensitive, and only registered comparisons count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ablationlab.analysis.stability import UNSTABLE_SHARE, is_swept_place
from ablationlab.analysis.wording import compared, counted_places, gained, sensitivity_reasons, smoother
from ablationlab.records.analysis import Analysis, Comparison, StabilityGain
from ablationlab.records.settings import TUNED, Hypothesis
from ablationlab.records.verdict import HypothesisReason, HypothesisVerdict

#: The family of metrics that are scored on tasks.
TASK_FAMILY: Final = "accuracy"
Status = Literal["supported", "rejected", "undecided"]


@dataclass(frozen=True)
class Judgement:
    """What a rule says of a hypothesis."""

    status: Status
    reason: HypothesisReason
    reasons: tuple[str, ...]
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
            reasons=judgement.reasons,
            evidence=judgement.evidence,
        )
    return verdicts


def _undecided(reason: HypothesisReason, *reasons: str, by: Sequence[Comparison] = ()) -> Judgement:
    return Judgement("undecided", reason, reasons, tuple(comparison.id for comparison in by))


def _shown(status: Status, reason: HypothesisReason, by: Sequence[Comparison]) -> Judgement:
    return Judgement(status, reason, compared(by), tuple(comparison.id for comparison in by))


# --- what may count -------------------------------------------------------------------------------------------


def _usable(analysis: Analysis, metric: str) -> list[Comparison] | Judgement:
    """Comparisons of the metric with the baseline that may count; without any, why there are none."""
    every = [c for c in analysis.comparisons if (c.metric, c.reference) == (metric, analysis.baseline)]
    if not every:
        return _undecided(HypothesisReason.NOT_IN_RECORDS, f"{metric} is not in the records")
    scored = analysis.metrics[metric].family == TASK_FAMILY
    usable = [c for c in every if (c.sensitivity.sensitive if c.sensitivity is not None else not scored)]
    if not usable:
        reasons = sorted({reason for c in every for reason in sensitivity_reasons(c.sensitivity)})
        reasons = reasons or ["no baseline beyond chance and no positive control on record"]
        return _undecided(
            HypothesisReason.NOT_SENSITIVE, f"{metric} is not shown to be sensitive at this scale", *reasons
        )
    registered = [comparison for comparison in usable if comparison.label == "registered"]
    return registered or _undecided(HypothesisReason.NOT_REGISTERED, f"{metric} was compared, but not registered")


def _unstable(analysis: Analysis, regime: str) -> bool | None:
    arm = analysis.stability.arm(analysis.baseline, regime) if analysis.stability else None
    return None if arm is None else arm.unstable


def _equivalent(comparison: Comparison) -> bool:
    return comparison.equivalence is not None and bool(comparison.equivalence.equivalent)


# --- the rules ------------------------------------------------------------------------------------------------


def _no_change(analysis: Analysis, hypothesis: Hypothesis) -> Judgement:
    metric = hypothesis.metric or ""
    usable = _usable(analysis, metric)
    if isinstance(usable, Judgement):
        return usable
    stable = [comparison for comparison in usable if _unstable(analysis, comparison.regime) is False]
    if not stable:
        reason = f"the baseline is not shown to train stably in any regime with {metric}"
        return _undecided(HypothesisReason.NO_STABLE_BASELINE, reason)
    changed = [comparison for comparison in stable if comparison.outcome in ("better", "worse")]
    if changed:
        return _shown("rejected", HypothesisReason.CHANGED, changed)
    if all(map(_equivalent, stable)):
        return _shown("supported", HypothesisReason.EQUIVALENT, stable)
    reason = "neither a difference nor equivalence is shown for every variant"
    return _undecided(HypothesisReason.NOTHING_SHOWN, reason, by=stable)


def _worse_though_smoother(analysis: Analysis, hypothesis: Hypothesis) -> Judgement:
    metric = hypothesis.metric or ""
    usable = _usable(analysis, metric)
    if isinstance(usable, Judgement):
        return usable
    worse = [comparison for comparison in usable if comparison.outcome == "worse"]
    by_smoothness = [(comparison, *_smoother(analysis, comparison)) for comparison in worse]
    both = [(comparison, norms, gains) for comparison, norms, gains in by_smoothness if norms or gains]
    if both:
        return Judgement(
            "supported",
            HypothesisReason.WORSE_AND_SMOOTHER,
            tuple(smoother(comparison, norms, gains) for comparison, norms, gains in both),
            tuple(
                name
                for comparison, norms, gains in both
                for name in (comparison.id, *(norm.id for norm in norms), *(gain.id for gain in gains))
            ),
        )
    if worse:
        measures = ", ".join(analysis.stability.smoothness) if analysis.stability else ""
        reason = f"{metric} is worse, but training is not shown to be smoother ({measures or 'no measure registered'})"
        return _undecided(HypothesisReason.WORSE_NOT_SMOOTHER, reason, by=worse)
    harmless = [comparison for comparison in usable if comparison.outcome == "better" or _equivalent(comparison)]
    if len(harmless) == len(usable):
        return _shown("rejected", HypothesisReason.NOT_WORSE, harmless)
    reason = f"neither a loss of {metric} nor its absence is shown for every variant"
    return _undecided(HypothesisReason.NOTHING_SHOWN, reason, by=usable)


def _smoother(analysis: Analysis, comparison: Comparison) -> tuple[list[Comparison], list[StabilityGain]]:
    """Registered measures of smoothness that are shown lower, and stability gains that are shown, of the same arms."""
    stability = analysis.stability
    if stability is None:
        return [], []
    place = (comparison.regime, comparison.variant, comparison.reference)
    measures = [analysis.comparison(name, *place) for name in stability.smoothness]
    gains = stability.vector(comparison.variant, comparison.reference, comparison.regime)
    return (
        [c for c in measures if c is not None and c.outcome == "better" and c.label == "registered"],
        [gain for gain in gains if gain.outcome == "more-stable"],
    )


def _restores_stability(analysis: Analysis, _: Hypothesis) -> Judgement:
    """Every registered place, corrected for their number. Tuned arms are none: where the rates differ, so may stability."""
    stability = analysis.stability
    if stability is None:
        return _undecided(HypothesisReason.STABILITY_UNKNOWN, "nothing is known of the runs' stability")
    gains = [gain for gain in (*stability.parts, *stability.gains) if gain.registered and gain.reference_unstable]
    swept = [c for c in analysis.comparisons if is_swept_place(c, analysis.baseline) and c.reference_mean]
    if not gains and not swept:
        return _nowhere(analysis)
    restored = [gain for gain in gains if gain.outcome == "more-stable"]
    steadier = [c for c in swept if _is_lower(c) and c.p is not None and c.p * stability.places <= stability.alpha]
    if restored or steadier:
        told = counted_places(len(restored) + len(steadier), stability.places)
        return _in_places("supported", HypothesisReason.RESTORED, restored, steadier, told)
    if all(gain.outcome == "less-stable" for gain in gains) and all(map(_has_no_gain, swept)):
        return _in_places("rejected", HypothesisReason.NOT_RESTORED, gains, swept)
    return _in_places(
        "undecided", HypothesisReason.GAIN_NOT_SHOWN, gains, swept, "the baseline is unstable, but no gain is shown"
    )


def _is_lower(comparison: Comparison) -> bool:
    return comparison.delta is not None and comparison.delta < 0 and comparison.regime != TUNED


def _has_no_gain(comparison: Comparison) -> bool:
    """The variant's share is shown not to be lower: the lower bound of its loss is at 0 or above."""
    low = comparison.loss()[1]
    return low is not None and low >= 0


def _nowhere(analysis: Analysis) -> Judgement:
    text = "the baseline is stable in every regime that was run"
    if any(comparison.metric == UNSTABLE_SHARE and comparison.reference_mean for comparison in analysis.comparisons):
        other = f"it is unstable at some rates of the sweep, but {UNSTABLE_SHARE} was not registered"
        return _undecided(HypothesisReason.SHARE_NOT_REGISTERED, text, other)
    return _undecided(HypothesisReason.STABLE_EVERYWHERE, text, "this needs one where it is not")


def _in_places(
    status: Status, reason: HypothesisReason, gains: Sequence[StabilityGain], swept: Sequence[Comparison], *first: str
) -> Judgement:
    reasons = (*first, *map(gained, gains), *compared(swept))
    return Judgement(status, reason, reasons, (*(gain.id for gain in gains), *(c.id for c in swept)))


RULES: Final[Mapping[str, Callable[[Analysis, Hypothesis], Judgement]]] = {
    "no-change": _no_change,
    "worse-though-smoother": _worse_though_smoother,
    "restores-stability": _restores_stability,
}
