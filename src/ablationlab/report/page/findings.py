"""What was found, as plain rows for the template: comparisons and power."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablationlab.core.format import difference, mean_sd, number, p_value
from ablationlab.report.naming import metric_name, metric_of, printed_unit
from ablationlab.report.tables.comparisons import difference_of

if TYPE_CHECKING:
    from ablationlab.records.analysis import Comparison
    from ablationlab.records.results import Results

TONES = {"better": "good", "worse": "bad", "different": "warn"}
CALIBRATION = ("ece", "brier", "temperature", "calibration")


@dataclass(frozen=True)
class ComparisonView:
    """One row of the table of comparisons, and what unfolds below it."""

    part: Comparison
    anchor: str
    metric: str
    unit: str
    task: str
    means: tuple[str, str]
    delta: str
    interval: str
    p: str
    p_adjusted: str
    outcome: str
    tone: str
    pairs: tuple[tuple[str, str, str, str, str, str], ...]
    intervals: tuple[tuple[str, str, str], ...]
    tests: tuple[tuple[str, str, str], ...]
    effects: tuple[tuple[str, str], ...]
    equivalence: str


def anchors_of(material: Results) -> tuple[dict[str, str], dict[str, str]]:
    """Comparison id -> anchor, run id -> anchor; by number, since ids may hold any character."""
    comparisons = material.analysis.comparisons if material.analysis is not None else ()
    return (
        {one.id: f"c{number}" for number, one in enumerate(comparisons)},
        {run.id: f"r{number}" for number, run in enumerate(material.runs)},
    )


def comparison_views(material: Results, anchors: Mapping[str, str], runs: Mapping[str, str]) -> list[ComparisonView]:
    """Every comparison; the registered ones first, those of the primary metric foremost."""
    if material.analysis is None:
        return []
    made = [_comparison(material, one, anchors[one.id], runs) for one in material.analysis.comparisons]
    return sorted(made, key=lambda view: (view.part.label != "registered", view.part.metric != material.primary))


def _comparison(material: Results, one: Comparison, anchor: str, runs: Mapping[str, str]) -> ComparisonView:
    main = one.main_interval
    shown = difference_of(one)
    pairs = []
    for pair in one.pairs[:200]:
        mine = material.run_of(one.variant, one.regime, pair.seed)
        theirs = material.run_of(one.reference, one.regime, pair.seed)
        pairs.append(
            (
                str(pair.seed),
                number(pair.variant, 5),
                number(pair.reference, 5),
                number(pair.delta, 4, sign=True),
                runs.get(mine.id, "") if mine is not None else "",
                runs.get(theirs.id, "") if theirs is not None else "",
            )
        )
    intervals = []
    for name, interval in one.intervals.items():
        bounds = difference(interval.estimate, interval.low, interval.high)
        text = bounds.range if interval.status == "ok" else interval.note or interval.status
        intervals.append((name, text, "" if interval.exact else "resampled"))
    tests = []
    for name, test in one.tests.items():
        least = f"cannot go below {p_value(test.minimum_p)}" if test.minimum_p is not None else ""
        tests.append((name, p_value(test.p) if test.status == "ok" else test.note or test.status, least))
    effects = tuple(
        (name, f"{number(effect.estimate)} ({number(effect.low)} to {number(effect.high)})")
        for name, effect in one.effects.items()
    )
    return ComparisonView(
        part=one,
        anchor=anchor,
        metric=metric_of(one) if one.averaged else metric_name(one.metric),
        unit=printed_unit(one.unit),
        task=one.task or "",
        means=(mean_sd(one.variant_mean, one.variant_sd), mean_sd(one.reference_mean, one.reference_sd)),
        delta=shown.text,
        interval=shown.range if main is not None and main.low is not None else "",
        p=p_value(one.p),
        p_adjusted=p_value(one.p_adjusted),
        outcome=one.outcome.replace("-", " "),
        tone=TONES.get(one.outcome, ""),
        pairs=tuple(pairs),
        intervals=tuple(intervals),
        tests=tuple(tests),
        effects=effects,
        equivalence=_equivalence(one),
    )


def _equivalence(one: Comparison) -> str:
    found = one.equivalence
    if found is None:
        return ""
    bounds = f"±{found.bounds[1]:g}"
    if found.equivalent is None:
        return f"could not be tested within {bounds}: {found.note or found.status}"
    return f"{'shown' if found.equivalent else 'not shown'} within {bounds} (TOST, p {p_value(found.p)})"


def sections_of(material: Results, views: Iterable[ComparisonView]) -> dict[str, list[ComparisonView]]:
    """The comparisons that belong to evaluation and to calibration, for tables of their own."""
    found: dict[str, list[ComparisonView]] = {"evaluation": [], "calibration": []}
    for view in views:
        metric = material.metric(view.part.metric)
        family = "" if metric is None else metric.family
        if family == "calibration" or any(word in view.part.metric for word in CALIBRATION):
            found["calibration"].append(view)
        elif view.part.task is not None or "macro" in view.part.metric or family in ("tasks", "accuracy", "evaluation"):
            found["evaluation"].append(view)
    return found


def power_rows(material: Results, anchors: Mapping[str, str]) -> list[dict[str, Any]]:
    """What each primary comparison could see."""
    found = []
    for part in material.analysis.power if material.analysis is not None else ():
        one = material.comparison(part.comparison)
        if one is None:
            continue
        unit = "(log)" if one.transform == "log" else printed_unit(one.unit)
        found.append(
            {
                "variant": one.variant,
                "reference": one.reference,
                "regime": one.regime,
                "anchor": anchors.get(one.id, ""),
                "unit": unit,
                "observed": number(abs(one.delta)) if one.delta is not None else "–",
                "sd": number(part.delta_sd),
                "n": part.n,
                "detectable": number(part.detectable_80),
                "detectable_90": number(part.detectable_90),
                "effect": "–" if part.smallest_effect is None else f"{part.smallest_effect:g}",
                "pairs": part.pairs_80 if part.pairs_80 is not None else "–",
                "conservative": part.pairs_80_conservative if part.pairs_80_conservative is not None else "–",
                "equivalence": part.equivalence_pairs_80 if part.equivalence_pairs_80 is not None else "–",
                "seen": part.smallest_effect is not None and part.detectable_80 <= part.smallest_effect,
            }
        )
    return found
