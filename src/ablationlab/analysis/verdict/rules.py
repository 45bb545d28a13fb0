"""The rules: seven answers, of which the first that applies is given, per variant and regime.

    not measured  the primary metric is missing or was not sensitive, and stability does not differ
    unstable      it fails more often than the baseline: shown, or as counted
    more stable   it is shown to fail less often
    worse         shown worse on the primary metric, by the smallest effect or more
    better        shown better, by the smallest effect or more
    same          two one-sided tests show the difference to lie within the smallest effect
    undecided     otherwise

"Shown" is by the registered test, corrected over its family as it was sealed. `stats.costs` says how lost and far-out runs
count, `failures` how missing records do. What must hold is in tests/analysis/verdict/test_properties.py, and the error rates
of whole studies in docs/validation-tables.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ablationlab.analysis.costs import lost_alone
from ablationlab.analysis.verdict.failures import Failures, failures_of
from ablationlab.records.analysis import Absence, Analysis, Comparison, DeviationCode
from ablationlab.records.settings import TUNED
from ablationlab.records.verdict import FAILURES, Advice, Answer, Guard, Lack, Standing, TieBreak, VariantVerdict
from ablationlab.stats import CaveatCode
from ablationlab.stats._common import MINIMUM_PAIRS

#: What to do about an answer that has one advice.
_ADVICE: Final = {
    Answer.NOT_MEASURED: Advice.NONE,
    Answer.UNSTABLE: Advice.KEEP,
    Answer.WORSE: Advice.KEEP,
    Answer.UNDECIDED: Advice.KEEP,
}


@dataclass(frozen=True)
class Evidence:
    """What the rules look at, of one variant in one regime. *missing*: why the primary metric cannot answer, if so."""

    primary: Comparison | None
    missing: Lack | None
    failures: Failures
    guards: tuple[tuple[str, Comparison | None], ...]
    secondaries: tuple[Comparison, ...]


def answer_of(evidence: Evidence) -> Answer:
    """The rules, in their order."""
    failures, primary = evidence.failures, evidence.primary
    differs = bool(failures.more or failures.counted or failures.fewer)
    if evidence.missing is not None and not differs:
        return Answer.NOT_MEASURED
    if failures.more or failures.counted:
        return Answer.UNSTABLE
    if failures.fewer and not failures.possible:
        return Answer.MORE_STABLE
    if evidence.missing is not None or primary is None:
        return Answer.UNDECIDED
    claim = claim_of(primary)
    return Answer.UNDECIDED if claim == Answer.BETTER and failures.possible else claim


def claim_of(comparison: Comparison) -> Answer:
    """What one comparison shows: worse, better, same, or nothing."""
    cost, smallest = comparison.cost, comparison.smallest_effect or 0.0
    if cost is None or comparison.at_grid_rates:
        return Answer.UNDECIDED
    least = smallest - cost.slack
    if comparison.outcome == "worse" and cost.size_worse is not None and cost.size_worse >= least:
        return Answer.WORSE
    if comparison.outcome == "better" and cost.size_better is not None and -cost.size_better >= least:
        return Answer.BETTER
    return Answer.SAME if cost.same else Answer.UNDECIDED


def standing_of(comparison: Comparison | None) -> Standing:
    """Whether the margin of a comparison is kept."""
    high = None if comparison is None else comparison.loss()[2]
    if comparison is not None and _nothing_to_lose(comparison):
        return Standing.KEPT
    if comparison is None or comparison.cost is None or missing_from(comparison) is not None:
        return Standing.OPEN
    if high is not None and high <= margin_of(comparison) + comparison.cost.slack:
        return Standing.KEPT
    cost, p = comparison.cost, comparison.p
    shown = cost.claim == "worse" and p is not None and p <= comparison.alpha
    return Standing.BROKEN if shown else Standing.OPEN


def _nothing_to_lose(comparison: Comparison) -> bool:
    """Whether every run of the baseline diverged, and none of the variant's is lost."""
    ends = [(lost.arm == comparison.reference, lost.reason == Absence.DIVERGED) for lost in comparison.missing]
    return not comparison.n and len(ends) >= MINIMUM_PAIRS and all(map(all, ends))


def exceeds(comparison: Comparison | None) -> bool:
    """Whether it is shown to cost more than its margin."""
    _, low, _ = (None,) * 3 if comparison is None else comparison.loss()
    return comparison is not None and low is not None and low > margin_of(comparison)


def margin_of(comparison: Comparison) -> float:
    margin = comparison.margin if comparison.margin is not None else comparison.smallest_effect
    return margin or 0.0


def missing_from(comparison: Comparison | None) -> Lack | None:
    """Why a comparison cannot answer, if so."""
    if comparison is None:
        return Lack.PRIMARY
    lost = (lost_alone(comparison, arm) for arm in (comparison.variant, comparison.reference))
    if not comparison.n and not any(lost):
        return Lack.PRIMARY
    if comparison.direction is None:
        return Lack.DIRECTION
    if comparison.sensitivity is not None and not comparison.sensitivity.sensitive:
        return Lack.SENSITIVITY
    return Lack.BEST_RATES if comparison.at_grid_rates else None


def judge(analysis: Analysis, variant: str, regime: str) -> VariantVerdict:
    """The answer with what follows from it and what it rests on."""
    evidence = gather(analysis, variant, regime)
    answer, primary, failures = answer_of(evidence), evidence.primary, evidence.failures
    guards = (
        *(
            Guard(name=name, comparison=None if found is None else found.id, standing=standing_of(found))
            for name, found in evidence.guards
        ),
        failures.guard(),
    )
    if answer == Answer.MORE_STABLE and primary is not None:  # what it may cost in return
        guards = (Guard(name=primary.metric, comparison=primary.id, standing=standing_of(primary)), *guards)
    costs = _costs(evidence, answer, guards)
    tie = _break_tie(analysis, evidence, variant, regime, guards) if answer == Answer.SAME else None
    unknown, reused = variant in analysis.budget_unknown, analysis.reused.get(regime, 0)
    kept = all(guard.standing == Standing.KEPT for guard in guards)
    return VariantVerdict(
        variant=variant,
        reference=analysis.baseline,
        regime=regime,
        label=primary.label if primary is not None else "exploratory",
        comparison=primary.id if primary is not None else None,
        answer=answer,
        advice=_advice(evidence, answer, costs, tie),
        as_counted=answer == Answer.UNSTABLE and not failures.more,
        at_a_cost=costs,
        confirmed=answer == Answer.BETTER and not unknown and not reused and kept,
        budget_unknown=unknown,
        unequal_seeds=any(
            known.code == DeviationCode.UNEQUAL_SEEDS and known.about in (variant, f"{variant} in {regime}")
            for known in analysis.deviations
        ),
        again=variant in analysis.again,
        reused=reused,
        guards=guards,
        lacks=_lacks(evidence, answer),
        tie_break=tie,
        evidence=tuple(_evidence(evidence, answer, tie)),
    )


def gather(analysis: Analysis, variant: str, regime: str) -> Evidence:
    """What there is on one variant against the baseline."""
    primary = analysis.primary_comparison(regime, variant)
    here = {
        comparison.metric: comparison
        for comparison in analysis.comparisons
        if (comparison.regime, comparison.variant, comparison.reference) == (regime, variant, analysis.baseline)
        and comparison.role is not None
    }
    registered = [
        criterion
        for criterion in analysis.criteria
        if criterion.regime == regime
        and (criterion.contrast is None or set(criterion.contrast) == {variant, analysis.baseline})
    ]
    guards = dict.fromkeys(criterion.metric for criterion in registered if criterion.role == "guard")
    guards |= dict.fromkeys(metric for metric, comparison in here.items() if comparison.role == "guard")
    missing = missing_from(primary)
    sweep = analysis.sweep
    if missing is None and regime == TUNED and sweep is not None and not sweep.knows_best_rate(variant):
        missing = Lack.BEST_RATES
    return Evidence(
        primary=primary,
        missing=missing,
        failures=failures_of(analysis, variant, regime),
        # The comparisons of a variant that joined the study later are exploratory, and its guards count all the same.
        guards=tuple((name, analysis.comparison(name, regime, variant, analysis.baseline)) for name in guards),
        secondaries=tuple(comparison for comparison in here.values() if comparison.role == "secondary"),
    )


def look_that_helps(analysis: Analysis, verdicts: Iterable[VariantVerdict]) -> int | None:
    """Seeds of the next planned look at which an answer may be decided, or an open guard of a gain closed.

    It need not be the next of all: without a failure, *failures* closes at one that is large enough.
    """
    if analysis.look is None:
        return None
    futile = {found.comparison for found in analysis.look.findings if found.finding == "futile"}
    needed = []
    for judged in verdicts:
        if judged.label != "registered":
            continue
        opened = {guard.name for guard in judged.guards if guard.standing == Standing.OPEN}
        gains = judged.answer in (Answer.BETTER, Answer.MORE_STABLE)
        if (judged.waits and judged.comparison not in futile) or (gains and opened.difference({FAILURES})):
            needed.append(0)
        elif gains and opened and analysis.stability is not None:
            needed.append(analysis.stability.seeds_for_margin or 0)
    later = (seeds for seeds in analysis.look.later if seeds >= min(needed))
    return next(later, None) if needed else None


def _costs(evidence: Evidence, answer: Answer, guards: Iterable[Guard]) -> tuple[str, ...]:
    """What the variant costs beside what it gains."""
    if answer == Answer.MORE_STABLE:
        every = [("", evidence.primary), *evidence.guards]
        return tuple(found.id for _, found in every if found is not None and exceeds(found))
    if answer != Answer.BETTER:
        return ()
    broken = [guard.comparison for guard in guards if guard.standing == Standing.BROKEN and guard.comparison]
    shown = [other.id for other in evidence.secondaries if other.outcome == "worse" and not other.at_grid_rates]
    return (*broken, *shown)


def _advice(evidence: Evidence, answer: Answer, costs: tuple[str, ...], tie: TieBreak | None) -> Advice:
    if answer == Answer.BETTER:
        return Advice.TRADE_OFF if costs else Advice.ADOPT
    if answer == Answer.SAME:
        return Advice.FAVOURED if tie is not None and tie.favours is not None else Advice.SIMPLER
    if answer == Answer.MORE_STABLE:
        every = [evidence.primary, *(found for _, found in evidence.guards)]
        kept = all(standing_of(found) == Standing.KEPT for found in every)
        return Advice.ADOPT if kept else Advice.KEEP if costs else Advice.TRADE_OFF
    return _ADVICE[answer]


def _lacks(evidence: Evidence, answer: Answer) -> tuple[Lack, ...]:
    primary = evidence.primary
    if answer not in (Answer.UNDECIDED, Answer.NOT_MEASURED):
        return ()
    if evidence.missing is not None or primary is None:
        return (evidence.missing or Lack.PRIMARY,)
    if any(caveat.code == CaveatCode.REFUSED_FOR_DIVERGENCE for caveat in primary.caveats):
        return (Lack.REFUSED,)
    cost, smallest = primary.cost, primary.smallest_effect
    if primary.n < MINIMUM_PAIRS or cost is None:
        return (Lack.PAIRS,)
    known = {
        Lack.RUNS: evidence.failures.possible or cost.better is None or cost.worse is None,
        Lack.SIZE: primary.outcome in ("better", "worse"),
        Lack.SMALLEST_EFFECT: smallest is None,
        Lack.DOUBT: smallest is not None and primary.doubt.larger > smallest / 2,
    }
    return tuple(lack for lack, there in known.items() if there) or (Lack.SEEDS,)


def _break_tie(analysis: Analysis, evidence: Evidence, variant: str, regime: str, guards: Iterable[Guard]) -> TieBreak:
    """Ask each tie-breaker until one decides; it does not speak for a variant with a broken guard."""
    asked: list[Comparison] = []
    for name in analysis.tie_breakers:
        for comparison in _named(analysis, name, variant, regime):
            asked.append(comparison)
            if comparison.outcome not in ("better", "worse"):
                continue
            against = any(guard.standing == Standing.BROKEN for guard in guards)
            favours = analysis.baseline if comparison.outcome == "worse" else None if against else variant
            return TieBreak(asked=tuple(c.id for c in asked), metric=comparison.metric, favours=favours)
    return TieBreak(asked=tuple(c.id for c in asked), metric=None, favours=None)


def _named(analysis: Analysis, name: str, variant: str, regime: str) -> list[Comparison]:
    """The comparisons that a tie-breaker names: of a metric, or of all metrics of a family that have a better direction."""
    metrics = dict.fromkeys(comparison.metric for comparison in analysis.comparisons)
    named = [name] if name in metrics else [metric for metric in metrics if analysis.metrics[metric].family == name]
    there = [analysis.comparison(metric, regime, variant, analysis.baseline) for metric in named]
    return [c for c in there if c is not None and c.direction is not None and not c.at_grid_rates]


def _evidence(evidence: Evidence, answer: Answer, tie: TieBreak | None) -> Iterable[str]:
    """Ids of what the answer rests on, each once."""
    failures = evidence.failures
    rests: list[Comparison | None] = [evidence.primary]
    if answer in (Answer.BETTER, Answer.MORE_STABLE):
        rests += [*(found for _, found in evidence.guards), *evidence.secondaries]
    gains = dict.fromkeys(gain.id for gain in (*failures.more, *failures.counted, *failures.fewer))
    ids = [*(found.id for found in rests if found is not None), *gains, *(tie.asked if tie is not None else ())]
    return dict.fromkeys(ids)
