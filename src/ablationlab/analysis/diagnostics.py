"""Which measures of the inside of runs a variant moved the most: the ranking from which a page draws the first few.

How far a measure moved is a ratio, the same whichever unit it has: variant / baseline, per seed, at the last step. The rank
is by the end of its t interval that is nearer to 1, so that noise moves nothing. Measures that are not positive on every
seed have no such ratio and no rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import exp, isfinite, log
from statistics import fmean
from typing import Final

from ablationlab.core.errors import RecordError
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Analysis, RunStability
from ablationlab.records.courses import Diagnostic, DiagnosticLine
from ablationlab.records.probes import ProbeDefinition, depth_of
from ablationlab.records.results import Run
from ablationlab.stats import paired_t_interval

LEVEL: Final = 0.95
#: So many have their lines stored.
DRAWN: Final = 6
#: Of the data, which no variant moves; a bound, which nobody measures; and what follows from the gradients.
_NOT_INSIDE: Final = ("token-frequency", "data-mixture", "duplicate-ngrams", "gradient-bound", "second-moment")
#: The largest logarithm that has a number.
_WIDEST: Final = 700.0
#: (probe, measure, group)
Series = tuple[str, str, str | None]


def probe_diagnostics(
    regimes: Sequence[str],
    runs: Iterable[RunStability],
    records: Mapping[str, Run],
    probes: Mapping[str, ProbeDefinition],
    baseline: str,
    variants: Sequence[str],
) -> tuple[Diagnostic, ...]:
    """Of the first of *regimes* whose runs were probed: for each probe the measure and group that moved most.

    Of a probe that declares charts, those measures that it draws over steps or depth.
    """
    drawn = {
        name: {chart.measure for chart in probe.charts if chart.over in ("steps", "depth")}
        if probe.charts
        else {measure.name for measure in probe.measures}
        for name, probe in probes.items()
        if name not in _NOT_INSIDE
    }
    runs = [run for run in runs if run.run in records and run.variant in variants and run.state == "finished"]
    for regime in regimes:
        here = {(run.variant, run.seed): _readings(records[run.run], drawn) for run in runs if run.regime == regime}
        if any(here.values()):
            return tuple(_ranked(regime, here, baseline, variants))
    return ()


def _readings(run: Run, drawn: Mapping[str, Collection[str]]) -> dict[Series, dict[int, float]]:
    """By series and step; of a measure that is taken over the depth, its places alone."""
    found: dict[Series, dict[int, float]] = {}
    try:
        table = run.probe_table()
    except RecordError:
        return {}
    for step, probe, row in table.rows:
        if row.at is None and row.measure in drawn.get(probe, ()):
            found.setdefault((probe, row.measure, row.group), {})[step] = row.value
    deep = {(probe, measure) for probe, measure, group in found if depth_of(group) is not None}
    return {key: values for key, values in found.items() if key[:2] not in deep or depth_of(key[2]) is not None}


Readings = Mapping[tuple[str, int | str], Mapping[Series, Mapping[int, float]]]


def _ranked(regime: str, readings: Readings, baseline: str, variants: Sequence[str]) -> Iterable[Diagnostic]:
    series = dict.fromkeys(key for run in readings.values() for key in run)
    found = [
        moved
        for key in series
        for variant in variants
        if variant != baseline and (moved := _moved(regime, readings, baseline, variant, key)) is not None
    ]
    found.sort(key=_how_far)
    widest: dict[str | None, Diagnostic] = {}
    for one in found:
        widest.setdefault(one.probe, one)
    for place, one in enumerate(widest.values()):
        yield one if place >= DRAWN else _with_lines(one, readings, variants)


def _how_far(one: Diagnostic) -> tuple[float, float]:
    return -one.moved, -abs(log(one.ratio))


def _moved(regime: str, readings: Readings, baseline: str, variant: str, key: Series) -> Diagnostic | None:
    ours, theirs = _at_the_end(readings, variant, key), _at_the_end(readings, baseline, key)
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    if not pairs or any(not (isfinite(value) and value > 0) for pair in pairs for value in pair):
        return None
    return _diagnostic(*key, regime, variant, [log(a / b) for a, b in pairs])


def _diagnostic(
    probe: str | None, measure: str, group: str | None, regime: str, variant: str, logs: Sequence[float]
) -> Diagnostic:
    interval = paired_t_interval(logs, level=LEVEL)
    low, high = interval.low, interval.high
    return Diagnostic(
        probe=probe,
        measure=measure,
        group=group,
        regime=regime,
        variant=variant,
        n=len(logs),
        ratio=_factor(interval.estimate),
        low=None if low is None else _factor(low),
        high=None if high is None else _factor(high),
        level=LEVEL,
        moved=_least(low, high),
    )


def _factor(value: float) -> float:
    """What a logarithm is of, as far as a number holds it."""
    return exp(min(max(value, -_WIDEST), _WIDEST))


def _least(low: float | None, high: float | None) -> float:
    """What an interval of a logarithm leaves of its size."""
    return 0.0 if low is None or high is None or low <= 0 <= high else min(abs(low), abs(high))


def _at_the_end(readings: Readings, variant: str, key: Series) -> dict[int | str, float]:
    found = {}
    for (name, seed), run in readings.items():
        values = run.get(key)
        if name == variant and values:
            found[seed] = values[max(values)]
    return found


def _with_lines(one: Diagnostic, readings: Readings, variants: Sequence[str]) -> Diagnostic:
    """Over the depth where the group is a place of it, else over the steps."""
    assert one.probe is not None
    deep = depth_of(one.group) is not None
    points: dict[str, dict[float, list[float]]] = {}
    for (variant, _), run in readings.items():
        for (probe, measure, group), values in run.items():
            if (probe, measure) != (one.probe, one.measure) or not values:
                continue
            depth = depth_of(group)
            if deep and depth is not None:
                points.setdefault(variant, {}).setdefault(float(depth), []).append(values[max(values)])
            elif not deep and group == one.group:
                for step, value in values.items():
                    points.setdefault(variant, {}).setdefault(float(step), []).append(value)
    places = sorted({place for known in points.values() for place in known})
    lines = [
        DiagnosticLine(variant=variant, values=tuple(_mean(points[variant].get(place, ())) for place in places))
        for variant in variants
        if variant in points
    ]
    over = "depth" if deep else "steps"
    return one.model_copy(update={"over": over, "places": tuple(places), "lines": tuple(lines)})


def _mean(values: Sequence[float]) -> float | None:
    """Geometric; None where a value has no logarithm."""
    if not values or any(not (isfinite(value) and value > 0) for value in values):
        return None
    return float(f"{exp(fmean(map(log, values))):.5g}")


def metric_diagnostics(analysis: Analysis) -> tuple[Diagnostic, ...]:
    """Of studies without probes: the metrics of runs that only describe them, tested as logarithms; of each the widest
    difference, in the regimes that were asked about, if any were."""
    asked = {c.regime for c in analysis.comparisons if (c.role, c.label) == ("primary", "registered")}
    described = [
        comparison
        for comparison in analysis.comparisons
        if comparison.transform == "log"
        and comparison.reference == analysis.baseline
        and comparison.pairs
        and (not asked or comparison.regime in asked)
        and analysis.metrics[comparison.metric].family in ("smoothness", "diagnostics")
    ]
    found = []
    for group in grouped((comparison.metric, comparison) for comparison in described).values():
        made = [_diagnostic(None, c.metric, None, c.regime, c.variant, [pair.delta for pair in c.pairs]) for c in group]
        found.append(min(made, key=_how_far))
    return tuple(sorted(found, key=_how_far))
