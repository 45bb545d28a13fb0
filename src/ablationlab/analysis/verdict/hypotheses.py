"""The hypotheses of a study file, judged by the answers, each on its own metric.

no-change              supported if every variant is the *same* where the baseline trains stably; rejected if one is *better*
                       or *worse* there
worse-though-smoother  supported if a variant is *worse* although a registered measure of smoothness is shown lower, or it is
                       shown to fail less often; rejected if every variant is *better* or the *same*
restores-stability     supported if a variant is *more stable* somewhere, or is so over the rates of a sweep; rejected if
                       every variant is *unstable* wherever the baseline fails

A metric that is scored on tasks counts only where it was shown to be sensitive, and only registered comparisons count. A
guard's p is not corrected elsewhere, for a guard is no claim; a hypothesis is one, so Holm corrects it over the hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ablationlab.analysis.costs import lost_alone
from ablationlab.analysis.stability import is_swept_place
from ablationlab.analysis.verdict.failures import failures_of
from ablationlab.analysis.verdict.rules import claim_of
from ablationlab.records.analysis import Analysis, Comparison
from ablationlab.records.settings import TUNED, Hypothesis
from ablationlab.records.verdict import Answer, HypothesisVerdict
from ablationlab.stats import adjust

#: The family of metrics that are scored on tasks.
TASK_FAMILY: Final = "accuracy"
Status = Literal["supported", "rejected", "undecided"]


@dataclass(frozen=True)
class Judgement:
    """What a rule says of a hypothesis: the answers by place, and the ids that they rest on."""

    status: Status
    answers: Mapping[str, Answer] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()


def judge_hypotheses(analysis: Analysis) -> dict[str, HypothesisVerdict]:
    """Each hypothesis of the study supported, rejected or undecided, with the answers that say so."""
    verdicts = {}
    for hypothesis in analysis.hypotheses:
        judgement = RULES[hypothesis.rule](analysis, hypothesis)
        verdicts[hypothesis.name] = HypothesisVerdict(
            statement=hypothesis.statement,
            rule=hypothesis.rule,
            metric=hypothesis.metric,
            status=judgement.status,
            answers=dict(judgement.answers),
            evidence=judgement.evidence,
        )
    return verdicts


def _place(comparison: Comparison) -> str:
    return f"{comparison.regime}/{comparison.variant}"


def _usable(analysis: Analysis, metric: str) -> list[Comparison]:
    """Registered comparisons of the metric with the baseline that can answer, as a hypothesis corrects them."""
    every = [c for c in analysis.comparisons if (c.metric, c.reference) == (metric, analysis.baseline)]
    scored = bool(every) and analysis.metrics[metric].family == TASK_FAMILY
    usable = [c for c in every if (c.sensitivity.sensitive if c.sensitivity is not None else not scored)]
    return _guards_corrected([c for c in usable if c.label == "registered"])


def _guards_corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The guards among them with Holm's correction."""
    guards = [c for c in comparisons if c.role == "guard"]
    adjusted = adjust([1.0 if c.p is None else c.p for c in guards]).adjusted  # what is not tested counts all the same
    by_id = dict(zip((c.id for c in guards), adjusted, strict=True))

    def corrected(comparison: Comparison) -> Comparison:
        p = by_id.get(comparison.id)
        shown = comparison.id not in by_id or (p is not None and p <= comparison.alpha)
        return comparison if shown else comparison.model_copy(update={"outcome": "not-shown"})

    return [corrected(comparison) for comparison in comparisons]


def _unstable(analysis: Analysis, regime: str) -> bool | None:
    arm = analysis.stability.arm(analysis.baseline, regime) if analysis.stability else None
    return None if arm is None else arm.unstable


def _left_open(analysis: Analysis, metric: str, answers: Mapping[str, Answer]) -> bool:
    """Whether the metric is registered at a place that has no answer, and no regime that the baseline breaks in."""
    return any(
        f"{criterion.regime}/{variant}" not in answers
        for criterion in analysis.criteria
        if criterion.metric == metric
        and criterion.regime != TUNED
        and _unstable(analysis, criterion.regime) is not True
        for variant in (analysis.variants if criterion.contrast is None else criterion.contrast)
        if variant != analysis.baseline
    )


def _no_change(analysis: Analysis, hypothesis: Hypothesis) -> Judgement:
    stable = [c for c in _usable(analysis, hypothesis.metric or "") if _unstable(analysis, c.regime) is False]
    answers = {_place(c): claim_of(c) for c in stable}
    ids = tuple(c.id for c in stable)
    if {Answer.BETTER, Answer.WORSE} & set(answers.values()):
        return Judgement("rejected", answers, ids)
    same = bool(answers) and set(answers.values()) == {Answer.SAME}
    settled = same and not _left_open(analysis, hypothesis.metric or "", answers)
    return Judgement("supported" if settled else "undecided", answers, ids)


def _worse_though_smoother(analysis: Analysis, hypothesis: Hypothesis) -> Judgement:
    usable = _usable(analysis, hypothesis.metric or "")
    answers = {_place(c): claim_of(c) for c in usable}
    smoother = {c.id: smoother_training(analysis, c) for c in usable if answers[_place(c)] == Answer.WORSE}
    both = [name for id, names in smoother.items() if names for name in (id, *names)]
    if both:
        return Judgement("supported", answers, tuple(both))
    harmless = bool(answers) and set(answers.values()) <= {Answer.BETTER, Answer.SAME}
    settled = harmless and not _left_open(analysis, hypothesis.metric or "", answers)
    return Judgement("rejected" if settled else "undecided", answers, tuple(c.id for c in usable))


def smoother_training(analysis: Analysis, comparison: Comparison) -> list[str]:
    """Ids of registered measures of smoothness that are shown lower, and of registered kinds of failure that are shown
    rarer, of the same arms."""
    stability = analysis.stability
    if stability is None:
        return []
    place = (comparison.regime, comparison.variant, comparison.reference)
    measures = [analysis.comparison(name, *place) for name in stability.smoothness]
    lower = [c.id for c in measures if c is not None and c.label == "registered" and claim_of(c) == Answer.BETTER]
    gains = stability.vector(comparison.variant, comparison.reference, comparison.regime)
    return lower + [gain.id for gain in gains if gain.registered and gain.outcome == "more-stable"]


def _restores_stability(analysis: Analysis, _: Hypothesis) -> Judgement:
    """Every registered place, corrected for their number. Tuned arms are none: where the rates differ, so may stability."""
    stability = analysis.stability
    if stability is None:
        return Judgement("undecided")
    answers, ids = {}, []
    for gain in stability.gains:
        failures = failures_of(analysis, gain.variant, gain.regime)
        asked = [known for known in failures.gains if known.registered and known.reference_unstable]
        if gain.reference != analysis.baseline or not asked:
            continue
        steady = bool(failures.fewer) and not failures.more and not failures.possible
        unsteady = bool(failures.more) and not failures.fewer
        place = f"{gain.regime}/{gain.variant}"
        answers[place] = Answer.MORE_STABLE if steady else Answer.UNSTABLE if unsteady else Answer.UNDECIDED
        ids += [known.id for known in asked]
    for c in analysis.comparisons:
        if not is_swept_place(c, analysis.baseline) or not c.reference_mean:
            continue
        shown = c.p is not None and c.p * stability.places <= stability.alpha and c.regime != TUNED
        lower = shown and c.cost is not None and c.cost.claim == "better" and not lost_alone(c, c.variant)
        higher = shown and c.cost is not None and c.cost.claim == "worse"
        answers[_place(c)] = Answer.MORE_STABLE if lower else Answer.UNSTABLE if higher else Answer.UNDECIDED
        ids.append(c.id)
    found = set(answers.values())
    status: Status = "undecided"
    if Answer.MORE_STABLE in found:
        status = "supported"
    elif found == {Answer.UNSTABLE}:
        status = "rejected"
    return Judgement(status, answers, tuple(ids))


RULES: Final[Mapping[str, Callable[[Analysis, Hypothesis], Judgement]]] = {
    "no-change": _no_change,
    "worse-though-smoother": _worse_though_smoother,
    "restores-stability": _restores_stability,
}
