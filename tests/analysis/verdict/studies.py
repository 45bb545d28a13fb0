"""Whole studies of made-up values: a dataset, its analysis and its verdict, without any run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ablationlab.analysis import analyze
from ablationlab.analysis.dataset import Absent, Arm, Dataset, absent, value_or_absent
from ablationlab.analysis.stability import diverged
from ablationlab.analysis.verdict import decide
from ablationlab.records.analysis import Absence, Analysis, Instability, RunStability
from ablationlab.records.metrics import METRICS
from ablationlab.records.run import Divergence
from ablationlab.records.settings import Criterion, Hypothesis, Stability
from ablationlab.records.verdict import VariantVerdict

LOSS = Criterion(metric="validation_loss", role="primary", smallest_effect=0.01)
RESTORES = Hypothesis(name="H1b", statement="Stability is restored.", rule="restores-stability")
#: A run's ending, by the letter that the tests write.
ENDINGS = {
    ".": ("finished", Instability.CALM),
    "s": ("finished", Instability.SPIKED),
    "w": ("finished", Instability.ENDED_WORSE),
    "d": ("diverged", Instability.DIVERGED),
    "m": ("missing", Instability.NOT_FINISHED),
}
DIVERGED = Divergence.of(9, "loss", float("nan"))
#: Endings that leave no value.
ABSENCES = {
    "d": diverged(DIVERGED),
    "m": absent(Absence.NOT_FINISHED),
}


def deltas(mean: float, sd: float, n: int) -> np.ndarray:
    """*n* differences of exactly that mean and SD, evenly spread."""
    z = np.linspace(-1, 1, n)
    return mean + sd * (z - z.mean()) / z.std(ddof=1)


def dataset(
    metrics: Mapping[str, Mapping[str, Sequence[float]]],
    criteria: Sequence[Criterion] = (LOSS,),
    endings: Mapping[str, str] | None = None,
    regimes: Mapping[str, Mapping[str, str]] | None = None,
    settings: Stability | None = None,
    **more: Any,
) -> Dataset:
    """Values by metric and variant, the baseline "none" first; *endings* by variant, one letter per seed (see `ENDINGS`)."""
    variants = tuple(next(iter(metrics.values())))
    n = len(next(iter(next(iter(metrics.values())).values())))
    places = regimes if regimes is not None else {"default": endings or dict.fromkeys(variants, "." * n)}
    values: dict[Arm, dict[Any, Any]] = {}
    for metric, by_variant in metrics.items():
        for variant, numbers in by_variant.items():
            for regime, ended in places.items():
                by_seed: dict[Any, float | Absent] = {
                    seed: ABSENCES.get(how) or value_or_absent(float(number))
                    for seed, (number, how) in enumerate(zip(numbers, ended[variant], strict=True), start=1)
                }
                values[Arm(metric, None, regime, variant)] = by_seed
    runs = tuple(
        RunStability(
            run=f"{regime}-{variant}-{seed}",
            variant=variant,
            regime=regime,
            seed=seed,
            state=ENDINGS[how][0],
            spike_score=9.0 if how == "s" else 1.0,
            spike_step=5,
            unstable=None if how == "m" else how != ".",
            reason=ENDINGS[how][1],
            divergence=DIVERGED if how == "d" else None,
        )
        for regime, ended in places.items()
        for variant in variants
        for seed, how in enumerate(ended[variant], start=1)
    )
    return Dataset(
        name="made",
        question="",
        source="records",
        source_hash="0",
        criteria_hash=None,
        baseline="none",
        variants=variants,
        regimes=tuple(places),
        seeds=tuple(range(1, n + 1)),
        contrasts=(),
        criteria=tuple(criteria),
        registered=True,
        metrics=dict(METRICS.items()),
        values=values,
        runs=runs,
        stability=settings or Stability(),
        **more,
    )


def study(*given: Any, **more: Any) -> Analysis:
    """The analysis of such a dataset."""
    return analyze(dataset(*given, **more))


def verdict_of(*given: Any, **more: Any) -> VariantVerdict:
    """The verdict on its first variant in its first regime."""
    return decide(study(*given, **more)).verdicts[0]


def arms(mean: float, sd: float = 0.002, n: int = 10, start: float = 2.0) -> dict[str, list[float]]:
    """A baseline and a variant whose paired differences have that mean and SD."""
    base = start + 0.05 * np.sin(np.arange(n))
    rng = np.random.default_rng(5)
    return {"none": list(base), "layernorm": list(base + rng.permutation(deltas(mean, sd, n)))}
