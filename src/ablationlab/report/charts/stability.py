"""Stability: the spike score of every run against the registered threshold, and the map of how every run ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ablationlab.analysis.wording import instability
from ablationlab.core.format import p_clause
from ablationlab.records.settings import TUNED
from ablationlab.report.charts.theme import (
    BAD,
    CALM,
    GRID,
    GROUND,
    QUIET,
    WARN,
    Figure,
    Tables,
    figure,
    tip,
    variant_colour,
    variant_dash,
    variant_rows,
)
from ablationlab.report.colours import HUES

if TYPE_CHECKING:
    from ablationlab.records.analysis import ArmSurvival
    from ablationlab.records.results import Results

#: So many rows of the map stand far apart; more of them stand closer.
FEW_ROWS = 10
UNFINISHED = "not finished"
ENDS = {
    "steady": CALM,
    "spiked": WARN,
    "ended worse": HUES[6][0],
    "diverged": BAD,
    UNFINISHED: GRID,
}
MARKS = {"diverged": "D", "spiked": "S", "ended worse": "W", UNFINISHED: "·"}


_SIGNS = {"steady": "blank", **{end: "a dot" if mark == "·" else mark for end, mark in MARKS.items()}}


def calm(results: Results) -> bool:
    """Whether every run ended and none was unstable: a map of them would show one colour."""
    stability = results.analysis.stability if results.analysis is not None else None
    return stability is not None and all(run.unstable is False for run in stability.runs)


def ends(results: Results) -> tuple[Figure, ...]:
    """How every run ended: one cell per run."""
    kept = Tables()
    data = _ended(results)
    if not data or calm(results):
        return ()
    seen = [end for end in ENDS if any(row["end"] == end for row in data)]
    several = len(results.regimes) > 1
    many = len(results.seeds) > 24
    for row in data:
        row["row"] = f"{row['variant']}, {row['regime']}" if several else row["variant"]
    order = [f"{v}, {r}" if several else v for r in results.regimes for v in results.variants]
    x = alt.X("seed:N", title="seed", sort=[str(seed) for seed in results.seeds]).axis(
        labelAngle=0, labelFlush=False, ticks=False, domain=False, labels=not many
    )
    y = variant_rows(results, field="row", order=order, room=300)
    base = alt.Chart(kept(data))
    cells = base.mark_rect(stroke=GROUND, strokeWidth=0 if many else 3, cornerRadius=0 if many else 4).encode(
        x=x,
        y=y,
        color=alt.Color(
            "end:N",
            scale=alt.Scale(domain=seen, range=[ENDS[end] for end in seen]),
            legend=alt.Legend(title=None, orient="top"),
        ),
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("end:N"), alt.Tooltip("why:N", title="reading")],
    )
    layers: list[Any] = [cells]
    if not many:
        layers.append(
            base.mark_text(fontSize=11, fontWeight=600).encode(
                x=x,
                y=y,
                text=alt.Text("mark:N"),
                color=alt.ColorValue(GROUND, condition={"test": f"datum.end == '{UNFINISHED}'", "value": QUIET}),
            )
        )
    return (
        figure(
            results,
            kept,
            alt.layer(*layers),
            key="divergence-map",
            title="How every run ended",
            sentences=(
                "One cell is one run.",
                "" if many else f"Signs: {', '.join(f'{_SIGNS[end]} {end}' for end in seen)}.",
            ),
            alt="Map of variants by seeds: "
            + ", ".join(f"{sum(row['end'] == end for row in data)} {end}" for end in ENDS)
            + ".",
            height=max(140, (40 if len(order) <= FEW_ROWS else 26) * len({row["row"] for row in data}) + 70),
        ),
    )


def survival(results: Results) -> tuple[Figure, ...]:
    """The share of runs that have not diverged, step by step: one figure per regime in which a run did."""
    analyzed = results.analysis.stability if results.analysis is not None else None
    arms = analyzed.survival if analyzed is not None else ()
    regimes = dict.fromkeys(arm.regime for arm in arms)
    return tuple(_survival(results, [arm for arm in arms if arm.regime == regime]) for regime in regimes)


def _survival(results: Results, arms: list[ArmSurvival]) -> Figure:
    kept, rows = Tables(), []
    for arm in arms:
        left = [(0, 1.0, arm.runs), *((at.step, at.survival, at.at_risk - at.failed) for at in arm.steps)]
        left.append((arm.length, *left[-1][1:]))
        rows += [
            {
                "variant": arm.variant,
                "regime": arm.regime,
                "step": step,
                "share": share,
                "runs": f"{runs} of {arm.runs}",
            }
            for step, share, runs in left
        ]
    chart = (
        alt.Chart(kept(rows))
        .mark_line(interpolate="step-after", strokeWidth=2, point=True)
        .encode(
            x=alt.X("step:Q", title="step"),
            y=alt.Y("share:Q", title="runs that have not diverged").scale(domain=[0, 1]).axis(format="%"),
            color=variant_colour(results, lines=True),
            strokeDash=variant_dash(results),
            tooltip=[alt.Tooltip("variant:N"), tip("step", "count"), alt.Tooltip("runs:N", title="left")],
        )
    )
    tests = () if len(results.regimes) > 1 else arms  # of several regimes the table below has them
    shown = "; ".join(f"{arm.variant} {p_clause(arm.p)}" for arm in tests if arm.p is not None)
    tested = f"Against {results.baseline}, exact paired log-rank test, exploratory: {shown}." if shown else ""
    return figure(
        results,
        kept,
        chart,
        regime=arms[0].regime,
        key="survival",
        title="When runs diverged",
        sentences=("The share of runs that are left after each step; a line falls where a run diverged.", tested),
        alt="; ".join(f"{arm.variant}: {sum(at.failed for at in arm.steps)} of {arm.runs} diverged" for arm in arms)
        + ".",
        height=220,
    )


def _ended(results: Results) -> list[dict[str, Any]]:
    analysis = results.analysis
    if analysis is None or analysis.stability is None:
        return []
    own = {run.id for run in results.compared}
    rows = []
    for run in analysis.stability.runs:
        if run.run not in own and run.regime != TUNED and own:
            continue  # a sweep's other rates have a map of their own
        end = {None: UNFINISHED, True: "spiked", False: "steady"}[run.unstable]
        end = "diverged" if run.state == "diverged" else "ended worse" if run.worse_than_start else end
        rows.append(
            {
                "run": run.run,
                "variant": run.variant,
                "regime": run.regime,
                "seed": str(run.seed),
                "end": end,
                "mark": MARKS.get(end, ""),
                "why": instability(analysis, run),
            }
        )
    return rows
