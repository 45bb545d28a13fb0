"""The figures of the paper: the page's charts, drawn to the width of a column so that their text can be read."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from ablationlab.analysis.wording import listed
from ablationlab.core.format import several
from ablationlab.core.grouping import grouped
from ablationlab.records.metrics import metric_name
from ablationlab.records.results import Results
from ablationlab.records.storage import slug
from ablationlab.report import fonts
from ablationlab.report.charts.stability import ENDS
from ablationlab.report.charts.theme import BAD, GOOD, MANY, RULE, WARN, Figure, Tables
from ablationlab.report.colours import HUES
from ablationlab.report.convert import NOT_DRAWN, PROCESSES, not_drawn, svg_of
from ablationlab.report.naming import axis
from ablationlab.report.paper.document import Picture
from ablationlab.report.paper.facts import StudyView
from ablationlab.report.paper.programme import decided_in, drawn_in_forest
from ablationlab.report.tables.effects import TONES

if TYPE_CHECKING:
    import altair as alt

    from ablationlab.report.figures import Figures

#: Width of a column in CSS pixels: (210 mm − 2 · 17.5 mm − 6.5 mm) / 2 at 96 dots per inch.
COLUMN = 318
#: Both columns and the space between them.
FULL = 661
#: Names of arms side by side above a chart.
LEGEND_COLUMNS = 3


@dataclass(frozen=True)
class Kind:
    """Charts of the page whose key begins with *start*: at most *most* of them, in this section of the paper.

    What they show in words, and some captions, are in `template/macros.md.j2`.
    """

    start: str
    section: str
    most: int = 1
    height: int = 200
    only_unstable: bool = False  # where no run was unstable, the chart shows nothing but dots at rest
    one_regime: bool = False  # with several, the chart shows one of them and another chart shows all


# Two charts of probes are named because a paper has room for few, and for these it has words; the table of last readings has
# all that are over steps or depth. No criterion names a probe that could choose others, and sealed plans do not say which.
KINDS = (
    Kind("paired-", "results", height=150, one_regime=True),
    Kind("curve-loss", "results", height=145),
    Kind("curve-gap", "results", height=145),
    Kind("tradeoff", "stability", height=230, only_unstable=True),
    Kind("survival-", "stability", height=130, only_unstable=True),
    Kind("sweep-curves", "sweep"),
    Kind("interaction", "factors", height=170),
    Kind("tasks", "evaluation", height=225),
    Kind("reliability", "evaluation", height=225),
    Kind("curve-gradient-norm", "diagnostics", height=145),
    Kind("probe-embedding-norm", "diagnostics", height=145),
    Kind("probe-residual-depth", "diagnostics", height=150),
)


def pictures(results: Results, figures: Figures | None = None, say: Callable[[str], None] = print) -> list[Picture]:
    """The figures of a paper on one study that there are data for; *figures* spares making them again."""
    from ablationlab.report.figures import draw_figures

    drawn = (figures or draw_figures(results)).every()
    stability = results.analysis.stability if results.analysis is not None else None
    unstable = stability is not None and any(arm.unstable for arm in stability.arms)
    chosen = [
        (kind, in_panels(results, figure) if kind.start == "sweep-curves" else figure)
        for kind in KINDS
        if (unstable or not kind.only_unstable) and not (kind.one_regime and len(results.regimes) > 1)
        for figure in [figure for figure in drawn if figure.key.startswith(kind.start) and not _crowded(figure)][
            : kind.most
        ]
    ]
    decided = () if results.verdict is None else results.verdict.verdicts
    forest = forest_of([results]) if len(results.regimes) > 1 and len(decided) <= MOST_FOREST else None
    if forest is not None:
        chosen.insert(0, (FOREST, forest))
    if (ended := ends_of(results, drawn)) is not None:
        chosen.append((ENDED, ended))
    return _drawn(chosen, say)


def regimes_shown(results: Results) -> list[str]:
    """The regimes in which a variant is shown more or less stable than the baseline."""
    if results.analysis is None or results.verdict is None:
        return []
    more, less = StudyView(results).shown_stability
    shown = {place.regime for place in (*more, *less)}
    return [regime for regime in results.regimes if regime in shown]


def _crowded(figure: Figure) -> bool:
    """Whether one point of a trade-off lies so far away that the others cannot be told apart: tables have them all."""
    costs = [abs(row["cost"]) for rows in figure.data.values() for row in rows if isinstance(row.get("cost"), float)]
    costs = sorted(cost for cost in costs if cost)
    return figure.key == "tradeoff" and len(costs) > 2 and costs[-1] > _FAR * costs[len(costs) // 2]


#: What of the inside of training is shown of one study among several.
NORMS = ("curve-gradient-norm", "probe-embedding-norm")
#: Of more answers the forest would fill a page beside their table, which has the same numbers.
MOST_FOREST = 20
#: Differences beside all answers, and how runs ended; their height is that of their rows.
FOREST, ENDED = Kind("forest", "results", height=2000), Kind("ends", "stability", height=2000)


def programme_pictures(
    studies: Sequence[Results], labels: Mapping[str, str], say: Callable[[str], None] = print
) -> dict[str, list[Picture]]:
    """The figures of a paper on several studies: all answers, and the chart that says most of a question; of one study
    the norms of gradients and embeddings, too.

    *labels* are the names that the paper gives to studies.
    """
    from ablationlab.report.figures import draw_figures

    made: dict[str, list[Picture]] = {}
    forest = forest_of(studies, labels)
    if forest is not None:
        made[""] = _drawn([(replace(FOREST, section="programme"), forest)], say)
    asked, inside = Counter(results.question for results in studies), False
    for results in studies:
        if results.question and asked[results.question] > 1:
            continue  # one of many alike
        unstable = (
            results.analysis is not None
            and results.analysis.stability is not None
            and any(arm.unstable for arm in results.analysis.stability.arms)
        )
        if (
            len(results.regimes) > 1
            and not unstable
            and results.analysis is not None
            and results.analysis.sweep is None
        ):
            continue  # the forest has it
        drawn = draw_figures(results).every()
        order = ("sweep-curves", "curve-loss") if not unstable else ("sweep-curves",)
        chosen = ends_of(results, drawn) if unstable else None
        chosen = chosen or next((figure for start in order for figure in drawn if figure.key.startswith(start)), None)
        shown = [] if chosen is None else [in_panels(results, chosen) if "sweep" in chosen.key else chosen]
        norms = [figure for start in NORMS for figure in drawn if figure.key.startswith(start)][: len(NORMS)]
        if shown and not inside and results.replication is None and len(norms) == len(NORMS):
            shown, inside = [*shown, *norms], True
        kinds = [next(kind for kind in (*KINDS, ENDED) if figure.key.startswith(kind.start)) for figure in shown]
        name = results.analysis.study if results.analysis is not None else ""
        made[name] = [
            replace(picture, key=f"{slug(name)}-{picture.key}")
            for picture in _drawn([(replace(k, section="study"), f) for k, f in zip(kinds, shown, strict=True)], say)
        ]
    return made


def _drawn(chosen: Sequence[tuple[Kind, Figure]], say: Callable[[str], None]) -> list[Picture]:
    with ThreadPoolExecutor(PROCESSES) as drawing:  # each waits for a worker
        svgs = [
            drawing.submit(column_svg, figure, kind.height, FULL if _wide(kind, figure) else COLUMN)
            for kind, figure in chosen
        ]
    made, failed = [], {}
    for (kind, figure), svg in zip(chosen, svgs, strict=True):
        try:
            content = svg.result()
        except NOT_DRAWN as error:
            failed[figure.key] = error
            continue
        made.append(
            Picture(
                key=re.sub(r"[^a-z0-9-]", "-", figure.key.lower()),
                section=kind.section,
                kind=kind.start,
                title=figure.title.rstrip("."),
                caption=figure.caption,
                alt=figure.alt,
                svg=content,
                wide=_wide(kind, figure),
            )
        )
    for note in not_drawn(failed):
        say(f"{note} (paper)")
    return made


def _wide(kind: Kind, figure: Figure) -> bool:
    return kind.start == "forest" or isinstance(figure.chart, _Spec)


#: From this ratio of the farthest bound to a usual one, the axis is compressed away from zero.
_FAR = 20
#: Answers that one figure can show; of more, it shows the registered ones.
_MOST_ROWS = 40


#: The colours of answers; answers of one colour differ in shape.
_TONES: Mapping[str, str] = {"good": GOOD, "warn": WARN, "bad": BAD}


def _end(row: dict[str, Any]) -> float:
    return max(abs(float(row["low"])), abs(float(row["high"])))


def _signed_powers(low: float, high: float) -> list[float]:
    """Zero and at most four powers of ten on either side, from about *low* to below *high*."""
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high))
    first += last - first > 2  # over many decades, the power below *low* would stand on zero
    step = max(1, math.ceil((last - first) / 3))
    powers = [10.0**exponent for exponent in range(first, last + 1, step)]
    return [*(-power for power in reversed(powers)), 0.0, *powers]


def forest_of(studies: Sequence[Results], labels: Mapping[str, str] | None = None) -> Figure | None:
    """The difference beside every answer on the metric that most of them rest on, with its deciding interval."""
    import altair as alt

    views = [StudyView(results) for results in studies]
    every, metric = drawn_in_forest(views)
    registered = [(view, decided) for view, decided in every if not decided.exploratory]
    chosen = len(every) > _MOST_ROWS and len(registered) > 1
    every = registered if chosen else every
    leads = bool(registered) and len(registered) < len(every)
    drawn = {view.name for view, _ in every}
    unasked = len(views) > 1 and any(len(decided_in(view)) < len(view.decided) for view in views)
    without = [
        (labels or {}).get(view.name, view.name) for view in views if decided_in(view) and view.name not in drawn
    ]
    labels = labels or {}
    rows: list[dict[str, Any]] = []
    for view, decided in every:
        comparison = decided.primary
        if comparison is None or comparison.delta is None:
            continue
        interval = comparison.main_interval
        names = [comparison.variant, *([comparison.regime] if len(view.regimes) > 1 else [])]
        names[-1] += "*" if leads and decided.exploratory else ""
        label = ", ".join(names) if len(views) == 1 else f"{labels.get(view.name, view.name)}: {', '.join(names)}"
        low, high = (None, None) if interval is None else (interval.low, interval.high)
        rows.append(
            {
                "row": label,
                "delta": comparison.estimate,
                "low": comparison.estimate if low is None else low,
                "high": comparison.estimate if high is None else high,
                "answer": decided.verdict.answer.said,
            }
        )
    unknown = len(every) - len(rows)
    if len(rows) < 2:
        return None
    ends = sorted(map(_end, rows))
    usual = ends[len(ends) // 4]
    near = [row for row in rows if _end(row) <= _FAR * ends[len(ends) // 2]]
    left_out = 0 if len(near) < 0.75 * len(rows) else len(rows) - len(near)
    if left_out:
        rows, ends = near, sorted(map(_end, near))
    far = usual > 0 and ends[-1] > _FAR * usual
    scale = alt.Scale(type="symlog", constant=usual) if far else alt.Scale(zero=True)
    first = next(decided.primary for _, decided in every if decided.primary is not None)
    unit = "log ratio" if first.transform == "log" else first.unit
    kept = Tables()
    base = alt.Chart(kept(rows))
    y = alt.Y("row:N", title=None, sort=[row["row"] for row in rows]).axis(labelLimit=420, grid=True)
    tones = {answer.said: _TONES[tone] for answer, tone in TONES.items()}
    answers = list(dict.fromkeys(row["answer"] for row in rows))
    colour = alt.Color(
        "answer:N",
        scale=alt.Scale(domain=answers, range=[tones.get(answer, HUES[0][0]) for answer in answers]),
        legend=alt.Legend(title=None, orient="top"),
    )
    x_axis = alt.Axis(values=_signed_powers(usual, ends[-1]), labelOverlap=False, format=",~g") if far else alt.Axis()
    title = f"difference in {axis(metric, unit)}" + (", compressed away from zero" if far else "")
    layers = [
        base.mark_rule(color=RULE, strokeDash=[3, 3]).encode(x=alt.datum(0)),
        base.mark_rule(strokeWidth=2).encode(
            x=alt.X("low:Q", title=title, scale=scale, axis=x_axis), x2="high:Q", y=y, color=colour
        ),
        base.mark_point(filled=True, size=45, opacity=1).encode(
            x=alt.X("delta:Q", scale=scale),
            y=y,
            color=colour,
            shape=alt.Shape("answer:N", scale=alt.Scale(domain=answers), legend=alt.Legend(title=None, orient="top")),
        ),
    ]
    return Figure(
        key="forest",
        title=f"The difference in {metric_name(metric)} beside every {'registered ' if chosen else ''}answer"
        + (" that rests on it" if without else ""),
        sentences=(
            "Variant minus baseline: estimate and deciding interval, at the level of the adjusted test.",
            "Colour and shape: the answer.",
            "A star marks a lead: it was not registered." if leads else "",
            "Not drawn: exploratory answers beside registered ones." if unasked and not chosen else "",
            f"Not drawn: {listed(without)}, whose primary metric is another one." if without else "",
            f"Not drawn: {several(unknown, 'answer')} whose difference is not known." if unknown else "",
            "Where nothing was tested, the interval is uncorrected and decides nothing."
            if any(decided.primary is not None and decided.primary.undecided for _, decided in every)
            else "",
            f"Not drawn: {several(left_out, 'answer')} whose intervals reach more than {_FAR} times as far as the median "
            "one."
            if left_out
            else "",
        ),
        chart=alt.layer(*layers),
        data=kept.rows,
        alt=f"Estimates and intervals of {len(rows)} differences in {metric_name(metric)}.",
        height=16 * len(rows),
    )


#: Colours that differ side by side in a bar, as those of the page's cells, which have letters, need not.
_ENDED = {"ended worse": HUES[6][0]}


def ends_of(results: Results, drawn: Sequence[Figure]) -> Figure | None:
    """How many runs of every arm ended how, in the regimes in which a difference in stability is shown: the page's map of
    single runs, counted."""
    import altair as alt

    regimes = regimes_shown(results)
    kept = Tables()
    every = [row for figure in drawn if figure.key == "divergence-map" for rows in figure.data.values() for row in rows]
    ended = [row for row in every if row["regime"] in regimes]
    if not ended:
        return None
    several_regimes = len(regimes) > 1
    names = {
        (regime, arm): f"{arm}, {regime}" if several_regimes else arm for regime in regimes for arm in results.variants
    }
    counted = Counter((row["regime"], row["variant"], row["end"]) for row in ended)
    order = [end for end in ENDS if any(key[2] == end for key in counted)]
    rows = [
        {"row": names[regime, arm], "end": end, "place": order.index(end), "runs": many}
        for (regime, arm, end), many in sorted(counted.items())
    ]
    left = len({row["regime"] for row in every}) - len(regimes)
    chart = (
        alt.Chart(kept(rows))
        .mark_bar()
        .encode(
            x=alt.X("runs:Q", title="runs", stack="zero"),
            y=alt.Y("row:N", title=None, sort=list(names.values())).axis(labelLimit=200),
            color=alt.Color(
                "end:N",
                scale=alt.Scale(domain=order, range=[_ENDED.get(end, ENDS[end]) for end in order]),
                legend=alt.Legend(title=None, orient="top", columns=len(order)),
            ),
            order=alt.Order("place:Q"),
        )
    )
    where = f"Regime {regimes[0]}." if len(regimes) == 1 and len(results.regimes) > 1 else ""
    return Figure(
        key="ends",
        title="How runs ended",
        sentences=(
            "All but steady runs are unstable.",
            where,
            f"Not drawn: {several(left, 'regime')} in which no difference in stability is shown." if left else "",
        ),
        chart=chart,
        data=kept.rows,
        alt="; ".join(f"{names[place[:2]]}: {many} {place[2]}" for place, many in sorted(counted.items())) + ".",
        height=17 * len(names),
    )


#: Arms that can be told apart in a column; of more, a chart of a sweep has panels.
_MOST_LINES = 6
#: Marks of an axis for which a column, or a panel, has room.
_MOST_MARKS = 6


@dataclass(frozen=True)
class _Spec:
    """A specification in place of a chart."""

    made: dict[str, Any]

    def to_dict(self, **_: object) -> dict[str, Any]:
        return self.made


def in_panels(results: Results, figure: Figure) -> Figure:
    """A chart of many arms as panels side by side, by the first factor that the study crosses; without factors, with the
    arms that are farthest from the baseline alone."""
    arms = [name for name in results.variants if name in figure.variants]
    factors = None if results.plan is None else results.plan.study.factors
    if len(arms) <= _MOST_LINES:
        return figure
    if factors is None:
        return _fewer(results, figure, arms)
    cells = factors.cells()
    panels = grouped((next(iter(cells[name].values())), name) for name in arms if name in cells)
    rows = [row for rows in figure.data.values() for row in rows]
    made = []
    for number, (level, within) in enumerate(panels.items()):
        rates = sorted({row["lr"] for row in rows if row["variant"] in within})
        layers = _restricted(figure.bare["layer"], within, rates, first=number == 0)
        made.append({"title": {"text": str(level), "fontSize": 10}, "layer": layers})
    bare = {key: value for key, value in figure.bare.items() if key != "layer"}
    independent = {"scale": {"y": "independent", "color": "independent", "strokeDash": "independent"}}
    return replace(
        figure,
        chart=cast("alt.TopLevelMixin", _Spec({**bare, "hconcat": made, "resolve": independent})),
        sentences=(f"Panels: {next(iter(factors.levels))}, each with a vertical axis of its own.", *figure.sentences),
    )


def _fewer(results: Results, figure: Figure, arms: Sequence[str]) -> Figure:
    """The chart with the baseline and the arms that are farthest from it; the caption says how many are left out."""
    analysis = results.analysis
    found = () if analysis is None else analysis.comparisons
    size = {c.variant: abs(c.delta or 0.0) for c in found if c.metric == results.primary}
    others = sorted((name for name in arms if name != results.baseline), key=lambda name: -size.get(name, 0.0))
    kept = [name for name in arms if name == results.baseline or name in others[: _MOST_LINES - 1]]
    data = {key: [row for row in rows if row.get("variant", kept[0]) in kept] for key, rows in figure.data.items()}
    left = several(len(arms) - len(kept), "arm")
    note = f"Not drawn: {left} nearer to {results.baseline} in {metric_name(results.primary or '')}."
    return replace(figure, data=data, sentences=(*figure.sentences, note))


def _restricted(part: Any, arms: Sequence[str], rates: Sequence[float], *, first: bool) -> Any:
    """A specification of these arms alone, in the first colours and dashes; only the first panel names the vertical axis."""
    if isinstance(part, list):
        return [_restricted(item, arms, rates, first=first) for item in part]
    if not isinstance(part, dict):
        return part
    part = {key: _restricted(value, arms, rates, first=first) for key, value in part.items()}
    if "mark" in part and "encoding" in part:
        part["transform"] = [*part.get("transform", ()), {"filter": {"field": "variant", "oneOf": list(arms)}}]
        if not first and "y" in part["encoding"]:
            part["encoding"]["y"] = {**part["encoding"]["y"], "title": None}
    if isinstance(part.get("axis"), dict) and "values" in part["axis"]:
        part["axis"] = {**part["axis"], "values": list(rates)}
    scale = part.get("scale")
    if part.get("field") == "variant" and isinstance(scale, dict) and "domain" in scale:
        part["scale"] = {**scale, "domain": list(arms), "range": scale["range"][: len(arms)]}
        if isinstance(part.get("legend"), dict):
            part["legend"] = {**part["legend"], "values": list(arms), "columns": 1}
    return part


def _thinned(part: Any) -> Any:
    """A specification whose axes have few marks."""
    if isinstance(part, list):
        return [_thinned(item) for item in part]
    if not isinstance(part, dict):
        return part
    part = {key: _thinned(value) for key, value in part.items()}
    values = part["axis"].get("values") if isinstance(part.get("axis"), dict) else None
    if isinstance(values, list) and len(values) > _MOST_MARKS:
        part["axis"] = {**part["axis"], "values": values[:: math.ceil(len(values) / _MOST_MARKS)]}
    return part


def _plain(spec: dict[str, Any]) -> dict[str, Any]:
    """Without the words in a chart's corners, for which a column is too narrow."""
    layers = [layer for layer in spec.get("layer", ()) if not layer.get("name", "").startswith("corner")]
    return {**spec, "layer": layers} if layers else spec


def _legend(names: Collection[str], wanted: int) -> dict[str, float]:
    """As many columns as fit; of many variants smaller ones, else the legend would be higher than the chart."""
    many = len(names) > MANY
    size, rest = (8, 44) if many else (12, 40)
    columns = max(1, int(wanted // (max((fonts.width(name, size) for name in names), default=0) + rest)))
    small = {"labelFontSize": 8, "rowPadding": 0, "columnPadding": 6}
    return {"columns": columns if many else min(LEGEND_COLUMNS, columns), **(small if many else {})}


def column_svg(figure: Figure, height: int, wanted: int = COLUMN) -> str:
    """The chart as wide as a column, axes and legend included; the second drawing knows how wide those are.

    SVG, from which Typst makes the PDF: the bytes of both repeat, where those of the converter's PDFs do not.
    """
    svg, width = "", wanted - 60
    for _ in range(2):
        spec = {**_plain(figure.spec(width=max(190, width))), "height": min(height, figure.height)}
        if figure.key.startswith("sweep-curves"):
            spec = _thinned(spec)
        config = spec.get("config", {})
        legend = {**config.get("legend", {}), **_legend(figure.variants, wanted)}
        if "hconcat" in spec:
            size = {"width": width // len(spec["hconcat"]), "height": spec.pop("height")}
            spec["hconcat"] = [{**panel, **size} for panel in spec["hconcat"]]
            spec.pop("width")
            legend.pop("columns")
        spec["config"] = {**config, "legend": legend}
        svg = svg_of(spec)
        found = re.search(r'<svg[^>]*\swidth="([\d.]+)"', svg)
        if found is None or abs(float(found[1]) - wanted) < 2:
            break
        width -= round(float(found[1]) - wanted)
    return svg
