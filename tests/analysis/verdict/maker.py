"""Analyses by hand: the few numbers that the rules look at, everything else plain."""

from __future__ import annotations

from typing import Any

from scipy.stats import binomtest

from ablationlab.records.analysis import (
    Analysis,
    ArmStability,
    Comparison,
    CostRecord,
    Missing,
    StabilityAnalysis,
    StabilityGain,
)
from ablationlab.records.metrics import METRICS, Metric
from ablationlab.records.settings import Hypothesis
from ablationlab.stats import failure_bound
from ablationlab.stats.gains import stability_gain
from ablationlab.stats.results import Equivalence, Interval, Sensitivity

VARIANT, BASELINE = "layernorm", "none"
SMOOTHNESS = ("final_gradient_norm", "mean_gradient_norm")
HYPOTHESES = (
    Hypothesis(name="H0", statement="Nothing changes.", rule="no-change", metric="macro_accuracy"),
    Hypothesis(name="H1a", statement="Worse, though smoother.", rule="worse-though-smoother", metric="macro_accuracy"),
    Hypothesis(name="H1b", statement="Stability is restored.", rule="restores-stability"),
)


def comparison(
    metric: str = "validation_loss",
    outcome: str = "not-shown",
    *,
    delta: float | None = 0.0,
    low: float | None = -0.1,
    high: float | None = 0.1,
    equivalent: bool | None = False,
    direction: str | None = "lower",
    regime: str = "default",
    role: str | None = "primary",
    n: int = 5,
    sd: float | None = 0.05,
    smallest_effect: float | None = 0.02,
    margin: float | None = None,
    label: str = "registered",
    missing: tuple[Missing, ...] = (),
    sensitive: bool | None = None,
    variant: str = VARIANT,
    **more: Any,
) -> Comparison:
    """One comparison of *variant* with the baseline."""
    interval = None
    if delta is not None:
        interval = Interval(method="paired-t", level=0.95, estimate=delta, low=low, high=high, n=n, exact=True)
    tost = None
    if smallest_effect is not None:
        bounds = (-smallest_effect, smallest_effect)
        tost = Equivalence(
            bounds=bounds, alpha=0.05, p=0.5, p_low=0.5, p_high=0.5, low=low, high=high, equivalent=equivalent, n=n
        )
    gate = None
    if sensitive is not None:
        gate = Sensitivity(
            sensitive=sensitive,
            beats_chance=sensitive,
            chance_p=0.5,
            accuracy=0.5,
            items=100,
            chance=0.5,
            control="told-apart" if sensitive else "not-told-apart",
            control_p=0.5,
            control_delta=-0.1,
            control_pairs=3,
        )
    sign = -1.0 if direction == "higher" else 1.0
    ends = [None if end is None else sign * end for end in ((low, high) if sign > 0 else (high, low))]
    lost = tuple(one.seed for one in missing if one.arm == variant)
    cost = CostRecord(
        claim=outcome
        if outcome in ("better", "worse")
        else None
        if not delta
        else "worse"
        if sign * delta > 0
        else "better",
        better=None if delta is None else sign * delta,
        worse=None if delta is None else sign * delta,
        size_better=None if delta is None else sign * delta,
        size_worse=None if delta is None else sign * delta,
        low=ends[0],
        high=None if lost else ends[1],
        same=bool(equivalent) and not missing,
        lost=lost,
    )
    values: dict[str, Any] = {
        "cost": None if delta is None or direction is None else cost,
        "id": f"{metric}/{regime}/{variant}:{BASELINE}",
        "metric": metric,
        "task": None,
        "regime": regime,
        "variant": variant,
        "reference": BASELINE,
        "direction": direction,
        "unit": "1",
        "transform": "identity",
        "label": label,
        "role": role,
        "n": n,
        "planned_pairs": 5,
        "pairs": (),
        "missing": missing,
        "variant_mean": 1.0,
        "variant_sd": 0.1,
        "reference_mean": 1.0,
        "reference_sd": 0.1,
        "delta": delta,
        "delta_sd": sd,
        "correlation": None,
        "variance_reduction": None,
        "interval": "paired-t",
        "test": "paired-t",
        "alpha": 0.05,
        "intervals": {} if interval is None else {"paired-t": interval},
        "tests": {},
        "effects": {},
        "ratios": {},
        "p": 0.5,
        "p_adjusted": 0.5,
        "correction": "holm",
        "family": "f",
        "family_size": 2,
        "outcome": outcome,
        "smallest_effect": smallest_effect,
        "margin": margin,
        "equivalence": tost,
        "sensitivity": gate,
        "caveats": (),
    }
    return Comparison.model_validate({**values, **more})


def stability(
    unstable_baseline: int = 0,
    unstable_variant: int = 0,
    n: int = 5,
    diverged: bool = True,
    places: int = 1,
    margin: float = 0.2,
) -> StabilityAnalysis:
    """The first so many runs of each arm are unstable, in the default regime; *places* is what p is corrected for."""
    flags = {
        BASELINE: [i < unstable_baseline for i in range(n)],
        VARIANT: [i < unstable_variant for i in range(n)],
    }
    gain = stability_gain(flags[VARIANT], flags[BASELINE])
    p = binomtest(gain.rescued, gain.rescued + gain.broken).pvalue if gain.rescued + gain.broken else 1.0
    adjusted = min(1.0, p * places)
    arms = [
        ArmStability(
            variant=name,
            regime="default",
            runs=n,
            diverged=sum(bad) if diverged else 0,
            spiked=0 if diverged else sum(bad),
            unstable_runs=sum(bad),
            unstable=any(bad),
            largest_spike_score=1.0,
        )
        for name, bad in flags.items()
    ]
    part = StabilityGain(
        id="stability/default/layernorm:none",
        variant=VARIANT,
        reference=BASELINE,
        regime="default",
        planned_pairs=n,
        **vars(gain),
        p=p,
        registered=True,
        places=places,
        p_adjusted=adjusted,
        outcome="not-shown" if adjusted > 0.05 else "more-stable" if gain.rescued > gain.broken else "less-stable",
        worst=failure_bound(flags[VARIANT], flags[BASELINE], alpha=0.025).upper,
    )
    return StabilityAnalysis(
        threshold=7.0, places=places, margin=margin, runs=(), arms=tuple(arms), gains=(part,), smoothness=SMOOTHNESS
    )


def analysis(*found: Comparison, stable: StabilityAnalysis | None = None, **changes: Any) -> Analysis:
    """An analysis of these comparisons; stable arms unless told otherwise."""
    names = [one.metric for one in found] + [one["metric"] for one in changes.get("criteria", ())]
    own = Metric("own", "a metric of the test", "1", "lower", "own")
    values: dict[str, Any] = {
        "study": "made",
        "question": "",
        "source": "records",
        "source_hash": "0",
        "criteria_hash": None,
        "baseline": BASELINE,
        "variants": (BASELINE, VARIANT),
        "regimes": ("default",),
        "seeds": (1, 2, 3, 4, 5),
        "criteria": (),
        "primary": "validation_loss",
        "tie_breakers": ("calibration", "throughput"),
        "hypotheses": HYPOTHESES,
        "resamples": 10_000,
        "metrics": {name: dict(METRICS.items()).get(name, own) for name in names},
        "comparisons": found,
        "families": (),
        "stability": stability() if stable is None else stable,
        "power": (),
        "ledger": None,
        "deviations": (),
    }
    return Analysis.model_validate({**values, **changes})
