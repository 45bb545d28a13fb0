"""The hypotheses of a study file, judged by their rules. In what follows the metric is the hypothesis's own.

no-change              supported if every variant is equivalent to the baseline where the baseline trains stably; rejected if
                       one is better or worse there
worse-though-smoother  supported if a variant is worse although its training is smoother (a lower spike score, or a stability
                       gain); rejected if every variant is better or equivalent
restores-stability     supported if a variant is more stable somewhere where the baseline is unstable; rejected if it is shown
                       nowhere to be

A metric that is scored on tasks counts only where it was shown to be sensitive, and only registered comparisons count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ablationlab.analysis.wording import compared, measured, share
from ablationlab.records.analysis import Analysis, Comparison, StabilityGain
from ablationlab.records.settings import SWEEP, TUNED, Hypothesis
from ablationlab.records.verdict import HypothesisVerdict
from ablationlab.stats.stability import tango_interval

#: Per seed, over all rates of a sweep.
UNSTABLE_SHARE: Final = "unstable_share"
#: The family of metrics that are scored on tasks.
TASK_FAMILY: Final = "accuracy"


@dataclass(frozen=True)
class Judgement:
    """What a rule says of a hypothesis."""

    status: Literal["supported", "rejected", "undecided"]
    why: str
    evidence: tuple[str, ...] = ()


def judge_hypotheses(analysis: Analysis) -> dict[str, HypothesisVerdict]:
    """Each hypothesis of the study supported, rejected or undecided, with the comparisons that say so."""
    found = {}
    for hypothesis in analysis.hypotheses:
        judgement = RULES[hypothesis.rule](analysis, hypothesis)
        found[hypothesis.name] = HypothesisVerdict(
            statement=hypothesis.statement,
            rule=hypothesis.rule,
            metric=hypothesis.metric,
            status=judgement.status,
            why=judgement.why,
            evidence=judgement.evidence,
        )
    return found


def _undecided(why: str, comparisons: Sequence[Comparison] = ()) -> Judgement:
    return Judgement("undecided", why, tuple(one.id for one in comparisons))


def _shown(status: Literal["supported", "rejected"], comparisons: Sequence[Comparison]) -> Judgement:
    return Judgement(status, compared(comparisons), tuple(one.id for one in comparisons))


# --- what may count -------------------------------------------------------------------------------------------


def _usable(analysis: Analysis, metric: str) -> tuple[list[Comparison], str]:
    """Comparisons of the metric with the baseline that may count; without any, why there are none."""
    found = [one for one in analysis.comparisons if (one.metric, one.reference) == (metric, analysis.baseline)]
    if not found:
        return [], f"{metric} is not in the records"
    scored = analysis.metrics[metric].family == TASK_FAMILY
    usable = [one for one in found if (one.sensitivity.sensitive if one.sensitivity is not None else not scored)]
    if not usable:
        reasons = {reason for one in found if one.sensitivity for reason in one.sensitivity.reasons}
        return [], f"{metric} is not shown to be sensitive at this scale: " + (
            "; ".join(sorted(reasons)) or "no baseline beyond chance and no positive control on record"
        )
    registered = [one for one in usable if one.label == "registered"]
    return (registered, "") if registered else ([], f"{metric} was compared, but not registered")


def _unstable(analysis: Analysis, regime: str) -> bool | None:
    arm = analysis.stability.arm(analysis.baseline, regime) if analysis.stability else None
    return None if arm is None else arm.unstable


def _equivalent(comparison: Comparison) -> bool:
    return comparison.equivalence is not None and bool(comparison.equivalence.equivalent)


# --- the rules ------------------------------------------------------------------------------------------------


def _no_change(analysis: Analysis, hypothesis: Hypothesis) -> Judgement:
    metric = hypothesis.metric or ""
    usable, reason = _usable(analysis, metric)
    if not usable:
        return _undecided(reason)
    stable = [one for one in usable if _unstable(analysis, one.regime) is False]
    if not stable:
        return _undecided(f"the baseline is not shown to train stably in any regime with {metric}")
    changed = [one for one in stable if one.outcome in ("better", "worse")]
    if changed:
        return _shown("rejected", changed)
    if all(map(_equivalent, stable)):
        return _shown("supported", stable)
    return _undecided("neither a difference nor equivalence is shown for every variant", stable)


def _worse_though_smoother(analysis: Analysis, hypothesis: Hypothesis) -> Judgement:
    metric = hypothesis.metric or ""
    usable, reason = _usable(analysis, metric)
    if not usable:
        return _undecided(reason)
    worse = [one for one in usable if one.outcome == "worse"]
    smoother = [one for one in worse if _is_smoother(analysis, one)]
    if smoother:
        return _shown("supported", smoother)
    if worse:
        return _undecided(f"{metric} is worse, but training is not shown to be smoother (spike score)", worse)
    harmless = [one for one in usable if one.outcome == "better" or _equivalent(one)]
    if len(harmless) == len(usable):
        return _shown("rejected", harmless)
    return _undecided(f"neither a loss of {metric} nor its absence is shown for every variant", usable)


def _is_smoother(analysis: Analysis, one: Comparison) -> bool:
    """A significantly lower spike score, or a stability gain whose lower bound is above 0."""
    score = analysis.comparison("spike_score", one.regime, one.variant, one.reference)
    gain = analysis.stability.gain(one.variant, one.reference, one.regime) if analysis.stability else None
    return (score is not None and score.outcome == "better") or (
        gain is not None and gain.low is not None and gain.low > 0
    )


def _restores_stability(analysis: Analysis, _: Hypothesis) -> Judgement:
    """Regimes where the baseline is unstable, each with its gain; and a sweep in which it is, as one comparison.

    One place is enough, so all of them together may err no more often than one (Bonferroni): with m places, a gain counts
    if its interval at level 1 - alpha / m lies above 0. Tuned arms do not count: where the rates differ, a gain in stability
    may be the rate's.
    """
    if analysis.stability is None:
        return _undecided("nothing is known of the runs' stability")
    gains = [
        gain
        for gain in analysis.stability.gains
        if gain.reference == analysis.baseline and gain.regime != TUNED and _unstable(analysis, gain.regime)
    ]
    swept = _swept(analysis)
    if not gains and not swept:
        return _undecided(_nowhere(analysis))
    places = len(gains) + len(swept)
    restored = [gain for gain in gains if _is_restored(gain, places)]
    steadier = [one for one in swept if one.outcome == "better" and one.p is not None and one.p * places <= one.alpha]
    if restored or steadier:
        shown = _in_places("supported", restored, steadier)
        if places == 1:
            return shown
        count = len(restored) + len(steadier)
        where = f" (shown in {count} of the {places} places where the baseline is unstable, corrected for their number)"
        return Judgement(shown.status, shown.why + where, shown.evidence)
    if all(gain.high is not None and gain.high <= 0 for gain in gains) and all(map(_has_no_gain, swept)):
        return _in_places("rejected", gains, swept)
    found = _in_places("undecided", gains, swept)
    return Judgement("undecided", f"the baseline is unstable, but no gain is shown: {found.why}", found.evidence)


def _is_restored(gain: StabilityGain, places: int) -> bool:
    if gain.n < 2:
        return False
    level = 1 - (1 - gain.level) / places
    return tango_interval(gain.rescued, gain.broken, gain.n, level=level)[0] > 0


def _swept(analysis: Analysis) -> list[Comparison]:
    """Share of a sweep's rates at which runs are unstable, against the baseline: registered, and where it is not always 0."""
    return [
        one
        for one in analysis.comparisons
        if (one.metric, one.regime, one.reference) == (UNSTABLE_SHARE, SWEEP, analysis.baseline)
        and one.label == "registered"
        and one.reference_mean
    ]


def _has_no_gain(one: Comparison) -> bool:
    """The variant's share is shown not to be lower: the lower bound of its loss is at 0 or above."""
    low = one.loss()[1]
    return low is not None and low >= 0


def _nowhere(analysis: Analysis) -> str:
    text = "the baseline is stable in every regime that was run"
    if any(one.metric == UNSTABLE_SHARE and one.reference_mean for one in analysis.comparisons):
        return f"{text}; it is unstable at some rates of the sweep, but {UNSTABLE_SHARE} was not registered"
    return f"{text}; this needs one where it is not"


def _in_places(
    status: Literal["supported", "rejected", "undecided"], gains: Sequence[StabilityGain], swept: Sequence[Comparison]
) -> Judgement:
    texts = [
        f"{gain.variant} in {gain.regime}: {gain.reference_unstable} of {gain.n} baseline and {gain.variant_unstable} of "
        f"{gain.n} variant runs unstable, gain {share(gain.estimate)} ({share(gain.low)} to {share(gain.high)})"
        for gain in gains
    ]
    texts += [f"{one.variant} over the rates of the sweep: {measured(one)}" for one in swept]
    return Judgement(status, "; ".join(texts), (*(gain.id for gain in gains), *(one.id for one in swept)))


RULES: Final[Mapping[str, Callable[[Analysis, Hypothesis], Judgement]]] = {
    "no-change": _no_change,
    "worse-though-smoother": _worse_though_smoother,
    "restores-stability": _restores_stability,
}
