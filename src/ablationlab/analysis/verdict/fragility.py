"""Does a verdict hang on one seed? The analysis is made again without each seed in turn, from its own record, and
decided again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ablationlab.analysis.comparisons import corrected, unmeasured
from ablationlab.analysis.looks import TEST as SEQUENTIAL_TEST
from ablationlab.analysis.power import alpha_per_test, can_show, sure_effect
from ablationlab.analysis.stability import StabilityQuestion, swept_places
from ablationlab.analysis.verdict.evidence import gather
from ablationlab.analysis.verdict.rules import decision_of
from ablationlab.core.seeding import stream
from ablationlab.records.analysis import Absence, Analysis, Comparison, Seed
from ablationlab.records.verdict import OtherDecision, VariantVerdict, VerdictFragility
from ablationlab.stats import all_intervals, all_tests, paired_t_interval, paired_t_test, paired_tost
from ablationlab.stats._common import complement
from ablationlab.stats.robustness import exaggeration, stragglers
from ablationlab.stats.tuned import beyond_doubt, sure_bounds, sure_p, widened

#: Draws of the bootstrap where a criterion registers one, per seed left out.
RESAMPLES = 2_000
#: Beyond so many seeds none of them can carry a verdict alone, and leaving out each would take long.
MOST_SEEDS = 60


def with_fragility(analysis: Analysis, verdicts: Sequence[VariantVerdict]) -> tuple[VariantVerdict, ...]:
    """Each verdict with what becomes of it without each seed."""
    primaries = [comparison for comparison in analysis.comparisons if comparison.role == "primary"]
    seeds = sorted({seed for comparison in primaries for seed in _seeds(comparison)}, key=str)
    seeds = seeds if 4 <= len(seeds) <= MOST_SEEDS and not _at_look(analysis) else []
    reduced = {seed: without(analysis, seed) for seed in seeds}
    return tuple(
        verdict.model_copy(update={"fragility": _fragility(analysis, verdict, reduced)}) for verdict in verdicts
    )


def _seeds(comparison: Comparison) -> set[Seed]:
    """Those that it rests on: its pairs, and the runs that diverged instead."""
    return {pair.seed for pair in comparison.pairs} | {
        lost.seed for lost in comparison.missing if lost.reason == Absence.DIVERGED
    }


def _at_look(analysis: Analysis) -> bool:
    """Whether planned looks decide: the design has no look with one seed less, so no seed is left out in turn."""
    return any(comparison.test == SEQUENTIAL_TEST for comparison in analysis.comparisons)


def _fragility(analysis: Analysis, verdict: VariantVerdict, reduced: dict[Seed, Analysis]) -> VerdictFragility | None:
    primary = gather(analysis, verdict.variant, verdict.regime).primary
    if (
        primary is None
        or primary.design == "unpaired"
        or len(_seeds(primary)) < 4
        or not (reduced or _at_look(analysis))
    ):
        return None
    changes = tuple(
        OtherDecision(seed=seed, decision=decision)
        for seed, less in reduced.items()
        if (decision := decision_of(gather(less, verdict.variant, verdict.regime))) != verdict.decision
    )
    power = over = None
    alpha = alpha_per_test(primary)
    shows = primary.n >= 3 and can_show(primary.test, primary.n, alpha)
    effect = sure_effect(primary)
    if reduced and effect is not None and primary.delta_sd and shows:
        expected = exaggeration(effect / primary.delta_sd, primary.n, alpha=alpha)
        # What is tested is the difference less its doubt; what is reported, and overstated, is the whole of it.
        power = expected.power
        if expected.ratio is not None:
            over = (expected.ratio * effect + primary.doubt) / (effect + primary.doubt)
    return VerdictFragility(
        left_out=len(reduced),
        changes=changes,
        stragglers=tuple(primary.pairs[at].seed for at in stragglers([pair.delta for pair in primary.pairs]))
        if primary.n >= 4
        else (),
        power=power,
        exaggeration=over,
    )


def without(analysis: Analysis, seed: Seed) -> Analysis:
    """The analysis as it would be without one seed, as far as a decision depends on it."""
    kept = [_reduced(comparison, seed) for comparison in analysis.comparisons if comparison.role is not None]
    order = {comparison.id: _order(analysis, comparison) for comparison in kept}
    sources = {
        name: metric.derived_from for name, metric in analysis.metrics.items() if metric.derived_from is not None
    }
    sealed = {family.id: family.tested for family in analysis.families}
    waiting = unmeasured(analysis.comparisons, analysis.criteria)
    comparisons, families = corrected(kept, order, sources, sealed, waiting, intervals=False)
    # What breaks a tie does not change which rule decides; it stays as it is.
    rest = [comparison for comparison in analysis.comparisons if comparison.role is None]
    stability = analysis.stability
    if stability is not None:
        others = [run for run in stability.runs if run.seed != seed]
        contrasts = StabilityQuestion(
            regimes=analysis.regimes,
            variants=analysis.variants,
            baseline=analysis.baseline,
            pairs=[(gain.variant, gain.reference) for gain in stability.gains if gain.regime == analysis.regimes[0]],
            seeds={
                regime: list(dict.fromkeys(run.seed for run in others if run.regime == regime))
                for regime in analysis.regimes
            },
            pairing="never" if any(gain.test == "fisher" for gain in stability.gains) else "always",
            failures={gain.failure for gain in (*stability.parts, *stability.gains) if gain.places},
            alpha=stability.alpha,
            swept=swept_places(comparisons, analysis.baseline),
            sealed={gain.variant for gain in (*stability.parts, *stability.gains) if gain.registered},
        ).answered(others)
        stability = stability.model_copy(update=vars(contrasts))
    return analysis.model_copy(
        update={"comparisons": (*comparisons, *rest), "families": tuple(families), "stability": stability}
    )


def _order(analysis: Analysis, comparison: Comparison) -> int:
    """Of the criterion among the registered ones; comparisons stand in the order of their metrics, not of the criteria."""
    pair = {comparison.variant, comparison.reference}
    for position, criterion in enumerate(analysis.criteria):
        if (criterion.metric, criterion.regime) == (comparison.metric, comparison.regime) and (
            criterion.contrast is None or set(criterion.contrast) == pair
        ):
            return position
    return len(analysis.criteria)


def _reduced(comparison: Comparison, seed: Seed) -> Comparison:
    """The comparison without the seed: its registered test and interval, and equivalence, from the other pairs."""
    pairs = tuple(pair for pair in comparison.pairs if pair.seed != seed)
    missing = tuple(lost for lost in comparison.missing if lost.seed != seed)
    if len(pairs) == len(comparison.pairs):
        return comparison.model_copy(update={"missing": missing})
    if not pairs:
        nothing = {"pairs": (), "n": 0, "delta": None, "intervals": {}, "tests": {}, "p": None, "equivalence": None}
        return comparison.model_copy(update={**nothing, "deciding": None, "missing": missing})
    deltas, level = [pair.delta for pair in pairs], complement(comparison.alpha)
    sure = beyond_doubt(deltas, comparison.doubt)
    rng = stream(0, "analysis", comparison.id, "without", seed)
    interval, test, tost = paired_t_interval(deltas, level=level), paired_t_test(sure), comparison.equivalence
    if comparison.interval != "paired-t":
        interval = all_intervals(deltas, level=level, resamples=RESAMPLES, rng=rng)[comparison.interval]
    if comparison.test != "paired-t":
        test = all_tests(sure, resamples=RESAMPLES, rng=rng)[comparison.test]
    test = sure_p(test, deltas, comparison.doubt)
    return comparison.model_copy(
        update={
            "pairs": pairs,
            "n": len(pairs),
            "missing": missing,
            "delta": interval.estimate,
            "delta_sd": float(np.std(deltas, ddof=1)) if len(deltas) > 1 else None,
            "intervals": {comparison.interval: widened(interval, comparison.doubt)},
            "tests": {comparison.test: test},
            "p": test.p,
            "equivalence": None
            if tost is None
            else replace(
                paired_tost(deltas, smallest_effect=sure_bounds(tost.bounds, comparison.doubt), alpha=comparison.alpha),
                bounds=tost.bounds,
            ),
            "deciding": None,
        }
    )
