"""Does an answer hang on one seed? The analysis is made again without each seed in turn, from its own record, and
decided again. It says so by name, and changes no answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ablationlab.analysis.comparisons import corrected, unmeasured
from ablationlab.analysis.costs import sharing, with_claims
from ablationlab.analysis.looks import TEST as SEQUENTIAL_TEST
from ablationlab.analysis.stability import StabilityQuestion, swept_places
from ablationlab.analysis.verdict.rules import answer_of, gather
from ablationlab.records.analysis import Analysis, Comparison, Seed
from ablationlab.records.verdict import VariantVerdict, WithoutSeed

#: Draws of the bootstrap where a criterion registers one, per seed left out.
RESAMPLES = 2_000
#: With fewer seeds none can be spared; beyond so many none can carry an answer alone.
FEWEST, MOST = 4, 60


def with_seeds_left_out(analysis: Analysis, verdicts: Sequence[VariantVerdict]) -> tuple[VariantVerdict, ...]:
    """Each verdict with what becomes of its answer without each seed."""
    primaries = [comparison for comparison in analysis.comparisons if comparison.role == "primary"]
    seeds = sorted({seed for comparison in primaries for seed in _seeds(comparison)}, key=str)
    # At a planned look the design has none with one seed less.
    looked_at = any(comparison.test == SEQUENTIAL_TEST for comparison in analysis.comparisons)
    if looked_at or not FEWEST <= len(seeds) <= MOST or any(c.design == "unpaired" for c in primaries):
        return tuple(verdicts)
    reduced = {seed: without(analysis, seed) for seed in seeds}
    own = {comparison.id: _seeds(comparison) for comparison in primaries}
    return tuple(
        verdict.model_copy(
            update={
                "left_out": len(own[verdict.comparison]) if verdict.comparison in own else len(seeds),
                "without": tuple(
                    WithoutSeed(seed=seed, answer=answer)
                    for seed, less in reduced.items()
                    if (answer := answer_of(gather(less, verdict.variant, verdict.regime))) != verdict.answer
                ),
            }
        )
        for verdict in verdicts
    )


def _seeds(comparison: Comparison) -> set[Seed]:
    """Those that it rests on: its pairs, and the runs that were lost."""
    return {pair.seed for pair in comparison.pairs} | {lost.seed for lost in comparison.missing}


def without(analysis: Analysis, seed: Seed) -> Analysis:
    """The analysis as it would be without one seed, as far as an answer depends on it."""
    reduced = [_reduced(comparison, seed) for comparison in analysis.comparisons if comparison.role is not None]
    kept = [with_claims(comparison, resamples=RESAMPLES) for comparison in sharing(reduced)]
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
            margin_alpha=stability.margin_alpha,
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
    """The comparison without the seed; its p and its cost are those of the whole study still."""
    pairs = tuple(pair for pair in comparison.pairs if pair.seed != seed)
    missing = tuple(lost for lost in comparison.missing if lost.seed != seed)
    delta = float(np.mean([pair.delta for pair in pairs])) if pairs else None
    less = {"pairs": pairs, "n": len(pairs), "missing": missing, "delta": delta, "deciding": None}
    return comparison.model_copy(update=less if pairs else {**less, "p": None, "cost": None})
