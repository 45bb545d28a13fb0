"""Diagnostics: what the probes saw inside the models, along training and through the depth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablationlab.report.charts.curves import round_to
from ablationlab.report.charts.theme import (
    BY_SEED,
    BY_VARIANT,
    Figure,
    Tables,
    selectable,
    thinned,
    variant_colour,
    variant_dash,
    variant_shape,
)
from ablationlab.report.probes import Readings, read_probes

if TYPE_CHECKING:
    from ablationlab.records.results import Results

CLASSES = ("all", "alphabetic", "numeric", "punctuation", "whitespace", "end-of-document")
MOST_POINTS = 12_000


@dataclass(frozen=True)
class View:
    """One chart: a measure of a probe, along the steps of one group, or over groups at the last step."""

    key: str
    probe: str
    measure: str
    title: str
    axis: str
    caption: str
    over: str  # "steps" | "depth" | "classes" | "dimension"
    group: str | None = None
    log: bool = False


VIEWS = (
    View(
        "embedding-norm",
        "embedding-norm",
        "mean",
        "Length of the token table's rows",
        "mean L2 norm",
        "Mean L2 norm of the rows of the token embedding, before any norm is applied to them.",
        "steps",
        "all",
    ),
    View(
        "embedding-norm-classes",
        "embedding-norm",
        "mean",
        "The same by token class, at the last step",
        "mean L2 norm",
        "Rows of the token embedding, by what their tokens are.",
        "classes",
    ),
    View(
        "cosine",
        "cosine",
        "mean",
        "Cosine between embeddings",
        "mean pairwise cosine",
        "Mean pairwise cosine of the rows of the token table; near 1 they point the same way (over-smoothing).",
        "steps",
        "tokens",
    ),
    View(
        "cosine-depth",
        "cosine",
        "mean",
        "Cosine through the depth, at the last step",
        "mean pairwise cosine",
        "From what enters block 1 to what leaves the last block.",
        "depth",
    ),
    View(
        "residual-depth",
        "residual",
        "norm",
        "Residual norm through the depth, at the last step",
        "mean L2 norm, log scale",
        "Mean norm of the residual stream over tokens.",
        "depth",
        log=True,
    ),
    View(
        "residual-input",
        "residual",
        "norm",
        "Residual norm entering block 1",
        "mean L2 norm",
        "Along training.",
        "steps",
        "input",
    ),
    View(
        "second-moment",
        "second-moment",
        "mean",
        "Adam's second moment",
        "mean of v̂, log scale",
        "Mean over all parameters, bias-corrected.",
        "steps",
        "total",
        True,
    ),
    View(
        "second-moment-embedding",
        "second-moment",
        "mean",
        "Adam's second moment of the token embedding",
        "mean of v̂, log scale",
        "Mean over the token table, bias-corrected.",
        "steps",
        "embedding",
        True,
    ),
    View(
        "embedding-gain",
        "embedding-gain",
        "mean",
        "Learned gain of the embedding norm",
        "mean gain",
        "Only variants that learn one.",
        "steps",
        "gain",
    ),
    View(
        "embedding-gain-values",
        "embedding-gain",
        "value",
        "Learned gain by dimension, at the last step",
        "gain",
        "One point per dimension of the embedding.",
        "dimension",
        "gain",
    ),
    View(
        "attention-logits",
        "attention",
        "logit_max",
        "Largest attention logit by block, at the last step",
        "largest logit",
        "Logits that grow with training announce instability.",
        "depth",
    ),
    View(
        "output-logits",
        "output",
        "logit_max",
        "Largest output logit",
        "largest |logit|",
        "Along training.",
        "steps",
        None,
    ),
    View(
        "update-ratio",
        "update-ratio",
        "ratio",
        "Relative size of a step",
        "‖Δθ‖ / ‖θ‖, log scale",
        "Over all parameters.",
        "steps",
        "total",
        True,
    ),
    View(
        "effective-rank",
        "effective-rank",
        "entropy",
        "Effective rank of the token table",
        "exp of the singular values' entropy",
        "How many directions the embeddings really use.",
        "steps",
        None,
    ),
)


def diagnostics(material: Results) -> tuple[tuple[Figure, ...], dict[str, list[str]]]:
    """The figures that the records allow, and what failed while probing."""
    readings, failures = read_probes(material, {(view.probe, view.measure) for view in VIEWS})
    made = [figure for view in VIEWS for figure in _figures(material, view, readings)]
    return tuple(made), failures


def _figures(material: Results, view: View, readings: Readings) -> list[Figure]:
    found = []
    for regime in material.regimes:
        data = _rows(view, readings, regime)
        if not data:
            continue
        several = len(material.regimes) > 1
        kept = Tables()
        draw = _steps if view.over == "steps" else _snapshot
        chart = draw(material, kept, view, data)
        found.append(
            Figure(
                key=f"probe-{view.key}" + (f"-{regime}" if several else ""),
                title=view.title + (f", regime {regime}" if several else ""),
                caption=f"{view.caption} {_HOW[view.over]}",
                chart=selectable(chart, material),
                data=kept.kept,
                regime=regime if len(material.regimes) > 1 else "",
                alt=f"{view.title}, by variant.",
                height=260,
            )
        )
    return found


_HOW = {
    "steps": "Line: mean over the selected seeds; band: their range.",
    "depth": "Line: mean over the selected seeds; marks: seeds.",
    "classes": "Marks: seeds.",
    "dimension": "One seed's dimensions are one column of marks.",
}


def _rows(view: View, readings: Readings, regime: str) -> list[dict[str, Any]]:
    there = [reading for reading in readings.get((view.probe, view.measure), []) if reading.run.regime == regime]
    if view.over in ("steps", "dimension"):
        there = [reading for reading in there if reading.group == view.group]
    if view.log:
        there = [reading for reading in there if reading.value > 0]
    if view.over == "steps":
        runs = len({reading.run.id for reading in there})
        steps = set(thinned(sorted({reading.step for reading in there}), max(10, MOST_POINTS // max(1, runs))))
        there = [reading for reading in there if reading.step in steps]
    else:
        last: dict[str, int] = {}
        for reading in there:
            last[reading.run.id] = max(reading.step, last.get(reading.run.id, 0))
        there = [reading for reading in there if reading.step == last[reading.run.id]]
        if view.over == "dimension" and len(there) > MOST_POINTS:
            chosen = sorted({reading.run.id for reading in there})[: max(1, MOST_POINTS // 128)]
            there = [reading for reading in there if reading.run.id in chosen]
    return [
        {
            "run": reading.run.id,
            "variant": reading.run.variant,
            "seed": str(reading.run.seed),
            "step": reading.step,
            "group": reading.group or "",
            "place": _depth(reading.group),
            "at": reading.at,
            "y": round_to(reading.value),
        }
        for reading in there
        if view.over != "depth" or _depth(reading.group) is not None
    ]


def _depth(group: str | None) -> int | None:
    if group == "input":
        return 0
    found = re.fullmatch(r"block-(\d+)", group or "")
    return int(found[1]) if found else None


def _steps(material: Results, kept: Tables, view: View, data: list[dict[str, Any]]) -> Any:
    import altair as alt

    scale = alt.Scale(type="log") if view.log else alt.Scale(zero=False)
    x = alt.X("step:Q", title="training step").scale(nice=False)
    base = alt.Chart(kept(data)).transform_filter(f"{BY_VARIANT} && {BY_SEED}")
    grouped = base.transform_aggregate(mean="mean(y)", low="min(y)", high="max(y)", groupby=["variant", "step"])
    colour = variant_colour(material)
    return alt.layer(
        grouped.mark_area(fillOpacity=0.16, opacity=1).encode(
            x=x, y=alt.Y("low:Q", title=view.axis, scale=scale), y2="high:Q", color=colour
        ),
        grouped.mark_line(strokeWidth=2.2).encode(
            x=x, y=alt.Y("mean:Q", title=view.axis, scale=scale), color=colour, strokeDash=variant_dash(material)
        ),
    )


def _snapshot(material: Results, kept: Tables, view: View, data: list[dict[str, Any]]) -> Any:
    import altair as alt

    scale = alt.Scale(type="log") if view.log else alt.Scale(zero=False)
    y = alt.Y("y:Q", title=view.axis, scale=scale)
    base = alt.Chart(kept(data)).transform_filter(f"{BY_VARIANT} && {BY_SEED}")
    colour, shape = variant_colour(material), variant_shape(material, legend=True)
    names = list(material.variants)
    if view.over == "depth":
        whole = any(row["place"] == 0 for row in data)
        title = "after block (0: what enters block 1)" if whole else "block"
        places = sorted({row["place"] for row in data})
        x = alt.X("place:Q", title=title).scale(padding=10)
        x = x.axis(values=places) if len(places) <= 12 else x.axis(tickMinStep=1)
        grouped = base.transform_aggregate(mean="mean(y)", groupby=["variant", "place"])
        return alt.layer(
            grouped.mark_line(strokeWidth=2).encode(
                x=x, y=alt.Y("mean:Q", title=view.axis, scale=scale), color=colour, strokeDash=variant_dash(material)
            ),
            base.mark_point(size=30, filled=False, opacity=0.8).encode(
                x=x, y=y, color=colour, shape=shape, tooltip=["run:N", "group:N", alt.Tooltip("y:Q", format=".4g")]
            ),
        )
    if view.over == "classes":
        x_name = alt.X("group:N", title=None, sort=list(CLASSES)).axis(labelAngle=0, labelOverlap=True)
        return base.mark_point(size=42, filled=False, opacity=0.85, strokeWidth=1.5).encode(
            x=x_name,
            xOffset=alt.XOffset("variant:N", sort=names),
            y=y,
            color=colour,
            shape=shape,
            tooltip=["run:N", "group:N", alt.Tooltip("y:Q", format=".4g")],
        )
    return base.mark_tick(thickness=1.2, opacity=0.35, size=24, orient="horizontal").encode(
        x=alt.X("variant:N", title=None, sort=names).axis(labelAngle=0),
        xOffset=alt.XOffset("seed:N"),
        y=y,
        color=variant_colour(material, legend=False),
        tooltip=["run:N", alt.Tooltip("at:Q", title="dimension"), alt.Tooltip("y:Q", format=".4g")],
    )
