"""Every study through the shipped analysis and rules, and what they said, counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ablationlab.analysis import analyze
from ablationlab.analysis.verdict import decide
from ablationlab.core.errors import StatisticsError
from ablationlab.core.format import setting
from ablationlab.core.grouping import grouped
from ablationlab.instrument.validation.cut import Cut, Dose, cut, doses, read_exchangeable
from ablationlab.instrument.validation.rates import (
    SIGNIFICANT,
    answer_counts,
    comparison_rates,
    compatibility,
    counted,
    found_in,
    gain_rates,
    method_rates,
)
from ablationlab.instrument.validation.records import (
    AnswerRates,
    DoseCalibration,
    DoseRates,
    FamilyRates,
    GainRates,
    Validation,
)
from ablationlab.records.analysis import Analysis, Comparison
from ablationlab.records.verdict import Verdict
from ablationlab.stats import cohens_d_z, paired_t_power


def validate(folder: Path, pairs: int = 5) -> Validation:
    """Cut *folder* into studies of *pairs* pairs, analyse and judge each, and count."""
    whole, study, sealed = read_exchangeable(folder)
    made = cut(whole, pairs)
    analyses, verdicts = concluded(made)
    changes = tuple(name for name in study.variants if name != study.baseline)
    compared = [
        comparison_rates(comparisons, pairs)
        for comparisons in _each_comparison(analyses)
        if comparisons[0].label == "registered" or comparisons[0].role is not None
    ]
    base, injected = doses(whole, study, folder)
    diverged = [run for run in made.dataset.runs if run.state == "diverged"]
    hit = {run.seed for run in diverged}
    return Validation(
        study=study.name,
        source_hash=sealed.plan_hash,
        baseline=study.baseline,
        variants=study.variants,
        pairs=pairs,
        seeds=len(made.dataset.seeds),
        studies=len(made.groups),
        incomplete=made.incomplete,
        left_over=made.left_over,
        diverged_runs=len(diverged),
        diverged_studies=sum(bool(hit.intersection(group)) for group in made.groups),
        comparisons=tuple(compared),
        compatibility=tuple(compatibility(rates) for rates in compared),
        families=_families(analyses),
        answers=tuple(AnswerRates(variant=name, answers=answer_counts(verdicts, name)) for name in changes),
        gains=_gains(analyses),
        doses=tuple(_dose(dose, base, pairs) for dose in injected),
        diverged_rule=whole.stability.diverged,
        deviations=whole.deviations,
    )


def concluded(made: Cut) -> tuple[list[Analysis], list[Verdict]]:
    """The shipped analysis and the shipped rules on every study."""
    analyses = [analyze(dataset) for dataset in made.studies()]
    return analyses, [decide(analysis) for analysis in analyses]


def _each_comparison(analyses: Sequence[Analysis]) -> list[list[Comparison]]:
    every = (comparison for analysis in analyses for comparison in analysis.comparisons)
    return list(grouped((comparison.id, comparison) for comparison in every).values())


def _families(analyses: Sequence[Analysis]) -> tuple[FamilyRates, ...]:
    families = []
    for family in analyses[0].families:
        flags, alphas = [], set()
        for analysis in analyses:
            members = [comparison for comparison in analysis.comparisons if comparison.family == family.id]
            flags.append(any(comparison.outcome in SIGNIFICANT for comparison in members))
            alphas |= {comparison.alpha for comparison in members if comparison.label == "registered"}
        if (
            family.correction == "none" or not alphas
        ):  # guards spend no alpha; nothing is promised of what was not asked
            continue
        share, alpha = counted(flags), max(alphas)
        families.append(
            FamilyRates(
                id=family.id,
                correction=family.correction,
                members=family.members,
                alpha=alpha,
                any=share,
                compatible=share.low is not None and share.low <= alpha,
            )
        )
    return tuple(families)


def _gains(analyses: Sequence[Analysis]) -> tuple[GainRates, ...]:
    every = (gain for analysis in analyses if analysis.stability is not None for gain in analysis.stability.gains)
    return tuple(gain_rates(gains) for gains in grouped((gain.id, gain) for gain in every).values())


def _dose(dose: Dose, base: float, pairs: int) -> DoseRates:
    calibration = _calibrated(dose)
    made = cut(dose.dataset, pairs)
    analyses, verdicts = concluded(made)
    comparisons = _each_comparison(analyses)[0]
    # What Holm asks of the smallest p of a family, as `ablationlab power` does.
    first = comparisons[0]
    alpha = first.alpha / max(first.family_size, 1) if first.correction != "none" else first.alpha
    injected = dose.lr != base
    planned, low, high = alpha, alpha, alpha
    if injected:
        planned = paired_t_power(calibration.mean / calibration.sd, pairs, alpha=alpha)
        low, high = _ends(calibration, pairs, alpha)
    detected = counted(comparison.outcome in SIGNIFICANT for comparison in comparisons)
    expected = "worse" if (calibration.mean > 0) == (comparisons[0].direction == "lower") else "better"
    expects = None
    if injected and comparisons[0].test == "paired-t":
        expects = found_in(np.array([a - b for a, b in dose.calibration]), pairs, alpha, dose.dataset.source_hash)
    wrong = counted(comparison.outcome in SIGNIFICANT and comparison.outcome != expected for comparison in comparisons)
    fits = detected.low is not None and detected.high is not None and detected.low <= high and detected.high >= low
    deltas = [pair.delta for comparison in comparisons for pair in comparison.pairs]
    return DoseRates(
        variant=dose.variant,
        lr=dose.lr,
        base_lr=base,
        calibration=calibration,
        judged_d=cohens_d_z(deltas).estimate if len(deltas) >= 3 else None,
        planned=planned,
        planned_low=low,
        planned_high=high,
        expected=expects,
        detected=detected,
        wrong_way=wrong,
        methods=method_rates(comparisons, pairs, null=False),
        answers=answer_counts(verdicts, dose.variant),
        compatible=fits,
    )


def _calibrated(dose: Dose) -> DoseCalibration:
    """The size of the effect on the selection seeds."""
    deltas = np.array([a - b for a, b in dose.calibration])
    size = cohens_d_z(deltas) if deltas.size >= 3 else None
    if size is None or size.estimate is None or size.low is None or size.high is None:
        raise StatisticsError(
            f"{dose.variant} at {setting(dose.lr)}: {deltas.size} finished pairs of selection seeds do not "
            "calibrate an effect"
        )
    return DoseCalibration(
        n=deltas.size,
        lost=dose.lost,
        mean=float(deltas.mean()),
        sd=float(deltas.std(ddof=1)),
        d=size.estimate,
        d_low=size.low,
        d_high=size.high,
    )


def _ends(calibration: DoseCalibration, pairs: int, alpha: float) -> tuple[float, float]:
    """Power over the interval of d: two-sided, so it grows with |d| and is alpha at 0."""
    ends = sorted(abs(d) for d in (calibration.d_low, calibration.d_high))
    smallest = 0.0 if calibration.d_low <= 0 <= calibration.d_high else ends[0]
    low, high = (alpha if d == 0 else paired_t_power(d, pairs, alpha=alpha) for d in (smallest, ends[1]))
    return low, high
