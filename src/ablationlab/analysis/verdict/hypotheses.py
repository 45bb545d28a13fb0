"""The hypotheses that were fixed before any run: H0, H1a, H1b.

H0 and H1a speak of zero-/few-shot macro accuracy, and are judged on it alone, only where it was shown to be sensitive. H1b
speaks of regimes in which the baseline is unstable, and of a sweep over learning rates in which it is. A study that names no
tasks does not ask H0 and H1a; one without a stress regime, a sweep or a registered measure of stability does not ask H1b,
unless its baseline broke all the same. Not asked is not undecided: no evidence is missing.
"""

from __future__ import annotations

from typing import Final

from ablationlab.analysis.verdict.words import measured, share
from ablationlab.records.analysis import NOT_SCORED, Analysis, Comparison, StabilityGain
from ablationlab.records.settings import DEFAULT_REGIME, SWEEP, TUNED
from ablationlab.records.verdict import HypothesisVerdict
from ablationlab.stats.stability import tango_interval

#: The run-level metric of the task evaluation, macro-averaged over tasks.
MACRO_ACCURACY: Final = "macro_accuracy"
#: Per seed, over all rates of a sweep.
UNSTABLE_SHARE: Final = "unstable_share"

H0: Final = "The change does not alter zero-/few-shot macro accuracy where the baseline trains stably."
H1A: Final = "The change lowers macro accuracy even though it smooths training."
H1B: Final = "Where the baseline is unstable, the change restores stability, possibly at some cost in accuracy."


def hypotheses(analysis: Analysis) -> dict[str, HypothesisVerdict]:
    """Each supported, rejected or undecided, with the comparisons that say so; or not asked by this study."""
    found = {"H1b": _h1b(analysis) if _asks_stability(analysis) else _not_asked(H1B, _no_stress(analysis))}
    if not _asks_accuracy(analysis):
        why = "no tasks in this study"
        return {"H0": _not_asked(H0, why), "H1a": _not_asked(H1A, why), **found}
    usable, reason = _accuracy(analysis)
    return {"H0": _h0(analysis, usable, reason), "H1a": _h1a(analysis, usable, reason), **found}


def _asks_accuracy(analysis: Analysis) -> bool:
    """Whether tasks were named, registered or scored."""
    return (
        any(one.metric == MACRO_ACCURACY for one in analysis.comparisons)
        or any(str(one.get("metric")).startswith(MACRO_ACCURACY) for one in analysis.criteria)
        or (analysis.evaluation is not None and bool(analysis.evaluation.tasks))
        or any(one.code == NOT_SCORED for one in analysis.deviations)
    )


def _asks_stability(analysis: Analysis) -> bool:
    """Whether there is a regime beside the default one, a sweep, a registered measure of stability, or a baseline that broke.

    Which regimes are meant to break the baseline a study does not say, so any of them counts.
    """
    return (
        any(regime not in (DEFAULT_REGIME, TUNED) for regime in analysis.regimes)
        or analysis.sweep is not None
        or any(one.regime == SWEEP for one in analysis.comparisons)
        or analysis.stability is None
        or any(analysis.metrics[one["metric"]].family == "stability" for one in analysis.criteria)
        or any(bool(_unstable(analysis, regime)) for regime in analysis.regimes)
    )


def _no_stress(analysis: Analysis) -> str:
    stable = any(_unstable(analysis, regime) is False for regime in analysis.regimes)
    return "no stress regime and no sweep in this study" + (", and its baseline is stable" if stable else "")


def _accuracy(analysis: Analysis) -> tuple[list[Comparison], str]:
    """Comparisons of macro accuracy that may count; without any, why there are none."""
    found = [one for one in analysis.comparisons if one.metric == MACRO_ACCURACY and one.reference == analysis.baseline]
    if not found:
        return [], "zero-/few-shot macro accuracy is not in the records"
    usable = [one for one in found if one.sensitivity is not None and one.sensitivity.sensitive]
    if not usable:
        reasons = {reason for one in found if one.sensitivity for reason in one.sensitivity.reasons}
        return [], "macro accuracy is not shown to be sensitive at this scale: " + (
            "; ".join(sorted(reasons)) or "no baseline beyond chance and no positive control on record"
        )
    registered = [one for one in usable if one.label == "registered"]
    return (registered, "") if registered else ([], "macro accuracy was compared, but not registered")


def _unstable(analysis: Analysis, regime: str) -> bool | None:
    arm = analysis.stability.arm(analysis.baseline, regime) if analysis.stability else None
    return None if arm is None else arm.unstable


def _h0(analysis: Analysis, usable: list[Comparison], reason: str) -> HypothesisVerdict:
    if not usable:
        return _undecided(H0, reason)
    stable = [one for one in usable if _unstable(analysis, one.regime) is False]
    if not stable:
        return _undecided(H0, "the baseline is not shown to train stably in any regime with macro accuracy")
    changed = [one for one in stable if one.outcome in ("better", "worse")]
    if changed:
        return _said(H0, "rejected", changed)
    if all(one.equivalence is not None and one.equivalence.equivalent for one in stable):
        return _said(H0, "supported", stable)
    return _undecided(H0, "neither a difference nor equivalence is shown for every variant", stable)


def _h1a(analysis: Analysis, usable: list[Comparison], reason: str) -> HypothesisVerdict:
    if not usable:
        return _undecided(H1A, reason)
    lower = [one for one in usable if one.outcome == "worse"]
    smooth = [one for one in lower if _smoother(analysis, one)]
    if smooth:
        return _said(H1A, "supported", smooth)
    if lower:
        return _undecided(H1A, "accuracy is lower, but training is not shown to be smoother (spike score)", lower)
    harmless = [
        one for one in usable if one.outcome == "better" or (one.equivalence is not None and one.equivalence.equivalent)
    ]
    if len(harmless) == len(usable):
        return _said(H1A, "rejected", harmless)
    return _undecided(H1A, "neither a loss of accuracy nor its absence is shown for every variant", usable)


def _smoother(analysis: Analysis, one: Comparison) -> bool:
    """A significantly lower spike score, or a stability gain whose lower bound is above 0."""
    score = analysis.comparison("spike_score", one.regime, one.variant, one.reference)
    gain = analysis.stability.gain(one.variant, one.reference, one.regime) if analysis.stability else None
    return (score is not None and score.outcome == "better") or (
        gain is not None and gain.low is not None and gain.low > 0
    )


def _h1b(analysis: Analysis) -> HypothesisVerdict:
    """Regimes where the baseline is unstable, each with its gain; and a sweep in which it is, as one comparison.

    One place is enough, so all of them together may err no more often than one (Bonferroni): with m places, a gain counts
    if its interval at level 1 - alpha / m lies above 0. Tuned arms do not count: where the rates differ, a gain in stability
    may be the rate's.
    """
    if analysis.stability is None:
        return _undecided(H1B, "nothing is known of the runs' stability")
    gains = [
        gain
        for gain in analysis.stability.gains
        if gain.reference == analysis.baseline and gain.regime != TUNED and _unstable(analysis, gain.regime)
    ]
    swept = _swept(analysis)
    if not gains and not swept:
        return _undecided(H1B, _nowhere(analysis))
    places = len(gains) + len(swept)
    restored = [gain for gain in gains if _restored(gain, places)]
    steadier = [one for one in swept if one.outcome == "better" and one.p is not None and one.p * places <= one.alpha]
    if restored or steadier:
        return _h1b_said("supported", restored, steadier, _looked_at(gains, swept, restored, steadier))
    if all(gain.high is not None and gain.high <= 0 for gain in gains) and all(map(_no_gain, swept)):
        return _h1b_said("rejected", gains, swept, "")
    found = _h1b_said("undecided", gains, swept, "")
    return found.model_copy(update={"why": f"the baseline is unstable, but no gain is shown: {found.why}"})


def _restored(gain: StabilityGain, places: int) -> bool:
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


def _no_gain(one: Comparison) -> bool:
    """The variant's share is shown not to be lower: the lower bound of its loss is at 0 or above."""
    low = one.loss()[1]
    return low is not None and low >= 0


def _nowhere(analysis: Analysis) -> str:
    text = "the baseline is stable in every regime that was run"
    unasked = [one for one in analysis.comparisons if one.metric == UNSTABLE_SHARE and one.reference_mean]
    if unasked:
        return f"{text}; it is unstable at some rates of the sweep, but {UNSTABLE_SHARE} was not registered"
    return f"{text}; this needs one where it is not"


def _looked_at(
    gains: list[StabilityGain], swept: list[Comparison], restored: list[StabilityGain], steadier: list[Comparison]
) -> str:
    """In how many of the places it is shown, after the correction for their number."""
    asked, shown = len(gains) + len(swept), len(restored) + len(steadier)
    return (
        ""
        if asked <= 1
        else (f" (shown in {shown} of the {asked} places where the baseline is unstable, corrected for their number)")
    )


def _h1b_said(status: str, gains: list[StabilityGain], swept: list[Comparison], after: str) -> HypothesisVerdict:
    said = [_gains(gains)] if gains else []
    said += [f"{one.variant} over the rates of the sweep: {measured(one)}" for one in swept]
    ids = [*(gain.id for gain in gains), *(one.id for one in swept)]
    return HypothesisVerdict.model_validate(
        {"statement": H1B, "status": status, "why": "; ".join(said) + after, "evidence": ids}
    )


def _gains(gains: list[StabilityGain]) -> str:
    return "; ".join(
        f"{gain.variant} in {gain.regime}: {gain.reference_unstable} of {gain.n} baseline and {gain.variant_unstable} of "
        f"{gain.n} variant runs unstable, gain {share(gain.estimate)} ({share(gain.low)} to {share(gain.high)})"
        for gain in gains
    )


def _not_asked(statement: str, why: str) -> HypothesisVerdict:
    return HypothesisVerdict(statement=statement, status="not-asked", why=why, evidence=())


def _undecided(statement: str, why: str, found: list[Comparison] | None = None) -> HypothesisVerdict:
    evidence = tuple(one.id for one in found or [])
    return HypothesisVerdict(statement=statement, status="undecided", why=why, evidence=evidence)


def _said(statement: str, status: str, found: list[Comparison]) -> HypothesisVerdict:
    why = "; ".join(f"{one.variant} in {one.regime}: {measured(one)}" for one in found)
    return HypothesisVerdict.model_validate(
        {"statement": statement, "status": status, "why": why, "evidence": [one.id for one in found]}
    )
