"""Loss and gradient norm along training: the mean and the range over seeds, every seed under the pointer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from ablationlab.core.format import count
from ablationlab.records.analysis import LedgerInput
from ablationlab.records.metrics import metric_name
from ablationlab.records.storage import slug
from ablationlab.records.table_curves import TableRun
from ablationlab.report.charts.theme import (
    LOG_WORDS,
    QUIET,
    RULE,
    Figure,
    Tables,
    drawn_seeds,
    drawn_words,
    figure,
    mean_and_range,
    powers,
    readable_text,
    robust_scale,
    thinned,
    variant_colour,
)
from ablationlab.report.naming import as_title, axis
from ablationlab.stats.curves import POINTS

if TYPE_CHECKING:
    from ablationlab.records.results import Results, Run
    from ablationlab.records.run import FloatArray
    from ablationlab.stats.results import ThinnedCurve

#: What a run may leave out to save room.
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class ResultRun(TableRun):
    """A run whose curve is that of its result.json; *whole*: with every point of the longest, so with the same windows."""

    whole: bool = True


#: Points of one chart, and of one line, before curves are thinned; and steps around spikes that are always drawn.
MOST_POINTS, MOST_STEPS, MOST_KEPT = 24_000, 600, 80


def curves(results: Results) -> tuple[Figure, ...]:
    """Per regime: training loss, the difference to the baseline, the gradient norm."""
    made: list[Figure | None] = []
    if results.plan is None:
        return _table_curves(results)
    seeds = drawn_seeds(results)
    for regime in results.regimes:
        every = [run for run in results.compared if run.regime == regime and run.seed in seeds]
        runs: list[Run | TableRun] = [run for run in every if run.curves]
        runs += _from_results([run for run in every if run.left_out(METRICS)])
        made += [
            _curve(results, runs, regime, "loss"),
            _gap(results, runs, regime),
            _curve(results, runs, regime, "gradient_norm", log=True),
        ]
    return tuple(figure for figure in made if figure is not None)


def _from_results(runs: Iterable[Run]) -> list[ResultRun]:
    """Runs that left out metrics.jsonl, with the thinned curves of their results, read at the steps of the longest."""
    kept = [(run, run.result.course.curve) for run in runs if run.result is not None]
    curves = [(run, curve) for run, curve in kept if curve is not None]
    longest: dict[str, ThinnedCurve] = {}
    for _, curve in sorted(curves, key=lambda item: item[1].steps[-1]):
        longest[curve.metric] = curve
    made = []
    for run, curve in curves:
        steps = np.array(longest[curve.metric].steps, dtype=np.float64)
        steps = steps[(steps >= curve.steps[0]) & (steps <= curve.steps[-1])]
        columns = {"step": steps, curve.metric: np.interp(steps, curve.steps, curve.losses)}
        whole = curve.steps == longest[curve.metric].steps
        made.append(ResultRun(run.id, run.variant, run.regime, str(run.seed), columns, whole=whole))
    return made


def _table_curves(results: Results) -> tuple[Figure, ...]:
    """Per regime: every metric of a user's table that has curves."""
    made = []
    for regime in results.regimes:
        runs = [run for run in results.table_runs if run.regime == regime]
        names = dict.fromkeys(name for run in runs for name in run.curves if name != "step")
        made += [_curve(results, runs, regime, name) for name in names]
    return tuple(figure for figure in made if figure is not None)


def _whole(steps: FloatArray) -> list[float]:
    """Steps as they are drawn: whole ones without a fraction."""
    return [int(step) if step.is_integer() else step for step in steps.tolist()]


def _grid(results: Results, runs: Iterable[Run | TableRun], column: str) -> list[float]:
    """The steps to draw, the same for every run; those around a run's largest spike always."""
    there = [run for run in runs if column in run.curves]
    steps: set[float] = set()
    for run in there:
        steps.update(_whole(run.curves["step"][np.isfinite(run.curves[column])]))
    keep: set[int] = set()
    own = {run.id for run in there}
    stability = results.analysis.stability if results.analysis is not None else None
    for seen in stability.runs if stability is not None else ():
        if seen.run in own and seen.unstable and seen.spike_step is not None and len(keep) < MOST_KEPT:
            keep.update(range(seen.spike_step - 1, seen.spike_step + 3))
    # Charts of many regimes are small, and there are many of them.
    room = MOST_POINTS // max(1, len(results.regimes) - 1)
    return thinned(sorted(steps), max(30, min(MOST_STEPS, room // max(1, len(there)))), keep)


def _points(runs: Iterable[Run | TableRun], column: str, grid: list[float], positive: bool) -> list[dict[str, Any]]:
    wanted = np.asarray(grid)
    found = []
    for run in runs:
        values = run.curves.get(column)
        if values is None:
            continue
        steps = run.curves["step"]
        at = np.isin(steps, wanted) & np.isfinite(values) & ((values > 0) | (not positive))
        for step, value in zip(_whole(steps[at]), values[at].tolist(), strict=True):
            found.append(
                {"run": run.id, "variant": run.variant, "seed": str(run.seed), "step": step, "y": round_to(value)}
            )
    return found


def round_to(value: float, significant: int = 5) -> float:
    """A number to so many digits: more than a screen shows, less than a file need carry."""
    return float(f"{value:.{significant}g}")


def _curve(
    results: Results, runs: Sequence[Run | TableRun], regime: str, column: str, *, log: bool = False
) -> Figure | None:
    grid = _grid(results, runs, column)
    data = _points(runs, column, grid, log)
    if not data:
        return None
    kept = Tables()
    values = [row["y"] for row in data]
    always: tuple[alt.Scale, dict[str, Any], str] = (alt.Scale(type="log"), powers(values), LOG_WORDS)
    scale, ticks, words = always if log else robust_scale(values, zero=False)
    # A table's own `loss` may be any loss.
    name = "training_loss" if column == "loss" and results.plan is not None else column
    levels = _reference_rows(results, column, min(values), max(values))
    title = axis(name, results.unit(column))
    chart = _lines(results, kept, data, title + words, scale, ticks=ticks, levels=levels)
    steps = max((run.steps for run in runs), default=0)
    return figure(
        results,
        kept,
        chart,
        regime=regime,
        key=f"curve-{slug(column)}",
        title=as_title(metric_name(name)),
        sentences=(
            *_BAND,
            _thinning(column, grid, steps, runs),
            _levels(levels),
            _drawn(results, regime),
        ),
        alt=f"{metric_name(name)} against step for {', '.join(dict.fromkeys(run.variant for run in runs))}.",
        height=320,
    )


def _reference_rows(results: Results, column: str, low: float, high: float) -> list[dict[str, Any]]:
    """What chance and n-gram models reach on the validation text, within the range of the chart; where all arms read it."""
    plan = results.plan
    if plan is None or plan.lab_corpus is None or plan.corpora or column not in ("loss", "curve_loss"):
        return []
    losses = plan.reference_losses or {"uniform": math.log(plan.lab_corpus.vocabulary)}
    room = 0.05 * (high - low)
    return [
        {"level": "chance" if name == "uniform" else name, "loss": round_to(loss)}
        for name, loss in losses.items()
        if low - room <= loss <= high + room
    ]


def _levels(levels: list[dict[str, Any]]) -> str:
    """What the dotted lines of a chart are, of those that it has."""
    names = [row["level"] for row in levels]
    kinds = [*(["chance"] if "chance" in names else []), *(["n-gram models"] if set(names) - {"chance"} else [])]
    return f"Dotted: {' and '.join(kinds)}, on the validation text." if kinds else ""


_BAND = (
    "Line: mean over seeds.",
    ("Band: their range, lowest to highest; it is not a confidence interval."),
)


def _thinning(column: str, grid: list[float], steps: int, runs: Sequence[Run | TableRun]) -> str:
    """Which steps are drawn, and on paper from which file where it is not metrics.jsonl: the page says that above."""
    if any(isinstance(run, ResultRun) for run in runs):
        smoothed = "" if column == "curve_loss" else "a mean over 4 % of the run around its step"
        drawn = f"drawn from the thinned curves in result.json, at most {POINTS} points of each run"
        return f"metrics.jsonl is not kept: {drawn}{', each ' if smoothed else ''}{smoothed}."
    if column == "curve_loss" or len(grid) >= steps or len(grid) < 2:
        return ""
    return f"Not all of the {count(steps)} steps are drawn, more of them around spikes."


def _drawn(results: Results, regime: str) -> str:
    seeds = {run.seed for run in results.compared if run.regime == regime}
    return drawn_words(len(seeds & drawn_seeds(results)), len(seeds))


def _gap(results: Results, runs: Sequence[Run | TableRun], regime: str) -> Figure | None:
    """loss(variant) - loss(baseline) on the same batch of the same seed; None where the batches may be others."""
    if LedgerInput.ORDER not in results.shared_inputs:
        return None
    every, runs = runs, [run for run in runs if not isinstance(run, ResultRun) or run.whole]
    base = {run.seed: run for run in runs if run.variant == results.baseline}
    grid = _grid(results, runs, "loss")
    data: list[dict[str, Any]] = []
    for run in runs:
        other = base.get(run.seed)
        if run.variant == results.baseline or other is None or "loss" not in run.curves or "loss" not in other.curves:
            continue
        shared = min(run.curves["loss"].size, other.curves["loss"].size)
        gap = run.curves["loss"][:shared] - other.curves["loss"][:shared]
        steps = run.curves["step"][:shared]
        if not np.array_equal(steps, other.curves["step"][:shared]):
            continue
        at = np.isin(steps, np.asarray(grid)) & np.isfinite(gap)
        data += [
            {"run": run.id, "variant": run.variant, "seed": str(run.seed), "step": step, "y": round_to(value, 4)}
            for step, value in zip(_whole(steps[at]), gap[at].tolist(), strict=True)
        ]
    if not data:
        return None
    longest = max(run.steps for run in runs)
    kept = Tables()
    scale, ticks, words = robust_scale((row["y"] for row in data), zero=True)
    title = axis("loss − baseline's loss", results.unit("loss"))
    chart = _lines(results, kept, data, title + words, scale, ticks=ticks, zero=True)
    return figure(
        results,
        kept,
        chart,
        regime=regime,
        key="curve-gap",
        title="Training loss minus the baseline's, on the same batch",
        sentences=(
            "Both runs of a pair see the same batch at the same step, so the noise of the batches cancels.",
            *_BAND,
            _thinning("loss", grid, longest, runs),
            "" if len(runs) == len(every) else "Left out: pairs with a run that made fewer steps than others.",
            _drawn(results, regime),
        ),
        alt="Difference of training losses against step.",
        height=280,
    )


#: Between two names of levels, at least so many pixels.
NAME_GAP = 14


def _named(levels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The levels from the highest down, each with the one *above* it: a name is shown where that leaves it room."""
    ranked = sorted(levels, key=lambda row: -row["loss"])
    return [{**row, "above": above and above["loss"]} for row, above in zip(ranked, [None, *ranked], strict=False)]


#: Whether a name has room, at any zoom; lines are drawn all the same.
HAS_ROOM = f"datum.above === null || scale('y', datum.loss) - scale('y', datum.above) >= {NAME_GAP} ? 1 : 0"


def _lines(
    results: Results,
    kept: Tables,
    data: list[dict[str, Any]],
    title: str,
    y_scale: alt.Scale,
    *,
    ticks: Mapping[str, Any],
    zero: bool = False,
    levels: Sequence[Mapping[str, Any]] = (),
) -> Any:
    x = alt.X("step:Q", title="training step").scale(nice=False)
    base = alt.Chart(kept(data))
    under = alt.selection_point(name="under", fields=["run"], on="pointerover", clear="pointerout", empty=False)
    band, mean, marks = mean_and_range(results, base, x, title, y_scale, ticks)
    y = alt.Y("y:Q", title=title, scale=y_scale)
    single = (
        base.properties(name="seeds")
        .mark_line()
        .encode(
            x=x,
            y=y,
            color=variant_colour(results, lines=True),
            detail=alt.Detail("run:N"),
            strokeOpacity=alt.StrokeOpacityValue(0.1, condition={"param": "under", "value": 1.0, "empty": False}),
            strokeWidth=alt.StrokeWidthValue(1.0, condition={"param": "under", "value": 2.4, "empty": False}),
        )
    )
    # Wide and invisible, on top: what the pointer meets.
    meet = (
        base.properties(name="seeds-under")
        .mark_line(strokeWidth=8, stroke="transparent")
        .encode(
            x=x,
            y=y,
            detail=alt.Detail("run:N"),
            tooltip=[alt.Tooltip("run:N"), alt.Tooltip("variant:N"), alt.Tooltip("seed:N")],
        )
    )
    # A finger that passes over a chart scrolls the page, and moves nothing in the chart.
    drag = "[pointerdown[event.pointerType !== 'touch'], window:pointerup] > window:pointermove!"
    zoom = alt.selection_interval(name="zoom", bind="scales", translate=drag, zoom="wheel![event.shiftKey]")
    layers: list[Any] = [band.add_params(zoom), single, mean, marks, meet.add_params(under)]
    if zero:
        layers.insert(0, alt.Chart(kept([{"zero": 0}])).mark_rule(color=RULE).encode(y=alt.Y("zero:Q")))
    if levels:
        other = alt.Chart(kept(levels))
        low, high = min(row["y"] for row in data), max(row["y"] for row in data)
        middle = fmean((low, high))
        # A name stands on the side of its line where it stays within the chart, and where curves that fall are far from it:
        # at the right above their end, at the left below their start.
        sides = [
            (
                [row for row in levels if row["loss"] > middle],
                {"align": "right", "dx": -4, "dy": 8},
                alt.ExprRef("width"),
            ),
            ([row for row in levels if row["loss"] <= middle], {"align": "left", "dx": 4, "dy": -7}, 0),
        ]
        layers = [
            other.mark_rule(color=QUIET, strokeDash=[1, 3], strokeWidth=1.3).encode(y=alt.Y("loss:Q")),
            *layers,
            *(
                text
                for rows, where, at in sides
                if rows
                for text in readable_text(
                    alt.Chart(kept(_named(rows))),
                    mark={**where, "color": QUIET, "fontSize": 11, "opacity": alt.ExprRef(HAS_ROOM)},
                    x=alt.XValue(at),
                    y=alt.Y("loss:Q"),
                    text=alt.Text("level:N"),
                )
            ),
        ]
    return alt.layer(*layers)
