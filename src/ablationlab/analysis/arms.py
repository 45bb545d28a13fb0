"""Stability of arms and contrasts, from the stability of their runs."""

from __future__ import annotations

from collections.abc import Sequence

from ablationlab.analysis.material import Material
from ablationlab.records.analysis import ArmStability, RunStability, StabilityAnalysis, StabilityGain
from ablationlab.stats import Gain, item_pairs, mcnemar_tests
from ablationlab.stats.results import Caveat, CaveatCode
from ablationlab.stats.stability import stability_gain


def stability(material: Material) -> StabilityAnalysis | None:
    """All of it; None where nothing is known of the runs' course (a table of values)."""
    if not material.runs:
        return None
    arms = [
        _arm(variant, regime, [r for r in material.runs if (r.variant, r.regime) == (variant, regime)])
        for regime in material.regimes
        for variant in material.variants
    ]
    gains = [
        _gain(material, variant, reference, regime)
        for regime in material.regimes
        for variant, reference in material.pairs()
    ]
    return StabilityAnalysis(
        threshold=material.spike_threshold, runs=material.runs, arms=tuple(arms), gains=tuple(gains)
    )


def _arm(variant: str, regime: str, runs: Sequence[RunStability]) -> ArmStability:
    known = [run for run in runs if run.unstable is not None]
    scores = [run.spike_score for run in known if run.spike_score is not None]
    diverged = sum(run.state == "diverged" for run in known)
    failed = sum(run.worse_than_start for run in known)
    unstable = sum(bool(run.unstable) for run in known)
    return ArmStability(
        variant=variant,
        regime=regime,
        runs=len(known),
        diverged=diverged,
        spiked=unstable - diverged - failed,
        failed=failed,
        unstable_runs=unstable,
        unstable=unstable > 0 if known else None,
        largest_spike_score=max(scores, default=None),
    )


def _gain(material: Material, variant: str, reference: str, regime: str) -> StabilityGain:
    flags = {(r.variant, r.seed): r.unstable for r in material.runs if r.regime == regime and r.unstable is not None}
    promised = material.seeds_of(regime)
    seeds = [s for s in promised if (variant, s) in flags and (reference, s) in flags]
    a, b = ([bool(flags[arm, s]) for s in seeds] for arm in (variant, reference))
    gain = stability_gain(a, b)
    p = mcnemar_tests(item_pairs([float(v) for v in a], [float(v) for v in b]))[0].p if seeds else None
    return StabilityGain(
        **vars(gain),
        id=f"stability/{regime}/{variant}:{reference}",
        variant=variant,
        reference=reference,
        regime=regime,
        planned_pairs=len(promised),
        mcnemar_p=p,
        caveats=tuple(_caveats(gain, len(promised))),
    )


def _caveats(gain: Gain, planned: int) -> list[Caveat]:
    found = []
    if gain.n < planned:
        text = f"Judged on {gain.n} of the {planned} planned pairs."
        found.append(Caveat(code=CaveatCode.FEWER_PAIRS_THAN_PLANNED, about="", text=text))
    if gain.n < 4:
        text = f"{gain.n} pairs cannot exclude a gain of 0, however they fall; it takes 5 to do so with fair coverage."
        found.append(Caveat(code=CaveatCode.CANNOT_EXCLUDE_ZERO, about="tango", text=text))
    elif gain.n == 4:
        text = "With 4 pairs the interval excludes a true gain of 0 in up to 12.5 % of studies instead of 5 %."
        found.append(Caveat(code=CaveatCode.UNDERCOVERAGE, about="tango", text=text))
    return found
