"""What all charts share: colours that a colour-blind eye tells apart, one per variant everywhere, and the selection.

Charts have the light colours of `report.colours`. No chart tells variants apart by hue alone: each has a dash pattern and a
shape too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ablationlab.core.format import count
from ablationlab.records.storage import slug
from ablationlab.report import fonts
from ablationlab.report.colours import RING, emblems

if TYPE_CHECKING:
    import altair as alt

    from ablationlab.records.analysis import Seed
    from ablationlab.records.results import Results

#: More variants than this have smaller legends and wider charts.
MANY = 8
INK = "#1d2228"
QUIET = "#626b75"
GRID = "#e9e7e1"
RULE = "#8c939b"
BAND = "#efe9d9"
CALM = "#d3e6de"
GOOD = "#00936c"
BAD = "#c2410c"
WARN = "#b97a01"
GROUND = "#ffffff"

#: The baseline is a whole line, drawn first; in the gaps of the others it stays visible where curves coincide. Dashes and
#: gaps are long enough that two colours alternate there: shorter ones mix to grey.
DASHES = ([1, 0], [14, 5], [7, 9], [14, 5, 4, 5], [22, 5], [5, 7], [10, 4], [9, 4, 4, 4], [18, 9])
#: Each shape of a variant in Vega's words, and the dashes that go with it.
_VEGA: Mapping[str, str] = {
    "circle": "circle",
    "square": "square",
    "triangle": "triangle-up",
    "diamond": "diamond",
    "down": "triangle-down",
    "cross": "cross",
    "right": "triangle-right",
    "left": "triangle-left",
    RING: "circle",
}
SHAPES = tuple(dict.fromkeys(_VEGA.values()))


#: What most charts of a mean draw.
RANGE_OF_SEEDS = "Line: mean over seeds; band: their range."


@dataclass(frozen=True)
class Figure:
    """One chart with its words. ``key`` names its files; ``alt`` says in words what a reader would see; ``sentences``, the
    empty ones left out, are its caption.

    The chart names its tables, which are kept beside it; `spec` puts the two together. ``regime`` is set where a study has
    several and the figure shows one of them.
    """

    key: str
    title: str
    sentences: tuple[str, ...]
    chart: alt.TopLevelMixin
    data: Mapping[str, list[dict[str, Any]]]
    alt: str = ""
    height: int = 320
    regime: str = ""

    @property
    def caption(self) -> str:
        """What stands below it."""
        return " ".join(filter(None, self.sentences))

    @cached_property
    def bare(self) -> dict[str, Any]:
        """The Vega-Lite specification without its rows; its legends name the variants that have some."""
        made: dict[str, Any] = _log_labels(_named(self.chart.to_dict(validate=False), self.variants))
        return made

    @property
    def variants(self) -> frozenset[str]:
        """The variants that are drawn."""
        return frozenset(row["variant"] for rows in self.data.values() for row in rows if "variant" in row)

    def spec(self, *, width: int = 560) -> dict[str, Any]:
        """The whole specification; without zoom, which a file has no use for."""
        spec = {**self.bare, "width": width, "height": self.height, "config": config()}
        names: list[str] = next(
            (param["value"] for param in spec.get("params", ()) if param["name"] == "shown_variants"), []
        )
        spec["config"]["legend"] |= {"columns": legend_columns(names, width)}
        if len(names) > MANY:
            spec["config"]["legend"] |= {"labelFontSize": 10}
        spec["params"] = [param for param in spec.get("params", ()) if param.get("bind") != "scales"]
        spec["datasets"] = {name: list(rows) for name, rows in self.data.items()}
        return spec

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """What Jupyter shows."""
        return {"application/vnd.vegalite.v6+json": self.spec(), "text/plain": f"{self.title}. {self.alt}"}


def _named(part: Any, drawn: frozenset[str]) -> Any:
    """A specification whose legends of variants list these alone."""
    if isinstance(part, list):
        return [_named(item, drawn) for item in part]
    if not isinstance(part, dict):
        return part
    part = {key: _named(value, drawn) for key, value in part.items()}
    if part.get("field") == "variant" and isinstance(part.get("legend"), dict) and "domain" in part.get("scale", {}):
        listed = [name for name in part["scale"]["domain"] if name in drawn]
        # A legend without an entry breaks Vega, and names with other characters, given as values, can make no entry.
        if listed and all(re.fullmatch(r"[\w .:+-]+", name) for name in listed):
            part["legend"] = {**part["legend"], "values": listed}
    return part


def _log_labels(part: Any) -> Any:
    """A specification whose log axes name round numbers, unless they have marks or labels of their own."""
    if isinstance(part, list):
        return [_log_labels(item) for item in part]
    if not isinstance(part, dict):
        return part
    part = {key: _log_labels(value) for key, value in part.items()}
    for channel in ("x", "y"):
        given = part.get(channel)
        if isinstance(given, dict) and (given.get("scale") or {}).get("type") == "log":
            own = given.get("axis") or {}
            if not {"values", "labelExpr"} & set(own):
                part[channel] = {**given, "axis": {**own, "labelExpr": LOG_LABELS[channel]}}
    return part


def legend_columns(names: Sequence[str], width: float) -> int:
    """Entries of a legend that fit beside one another, smaller ones where variants are many."""
    size, rest = (10, 52) if len(names) > MANY else (12, 68)
    return max(1, int(width // (max((fonts.width(name, size) for name in names), default=0) + rest)))


#: Runs that charts of single runs draw.
MOST_DRAWN = 600


def drawn_seeds(results: Results) -> frozenset[Seed]:
    """The seeds whose runs are drawn one by one: all of them, or the study's first where there are very many runs.

    The same for every arm, so that a mean of what is drawn favours none.
    """
    arms = max(1, len(results.variants) * len(results.regimes))
    return frozenset(results.seeds[: max(10, MOST_DRAWN // arms)])


def drawn_words(drawn: int, there: int, more: str = "") -> str:
    """What a caption says where not every seed of its chart is drawn."""
    return "" if drawn >= there else f"The first {count(drawn)} of {count(there)} seeds are drawn{more}."


def drawn_values(arms: Mapping[Any, Sequence[tuple[Seed, float]]]) -> tuple[frozenset[Seed], str]:
    """Of a chart of one value per run, by arm: the seeds to draw, and what its caption says.

    All of them, or the first; those of each arm's smallest and largest value always, so that no extreme run is hidden.
    """
    seeds = list(dict.fromkeys(seed for values in arms.values() for seed, _ in values))
    first = seeds[: max(10, MOST_DRAWN // max(1, len(arms)))]
    ends = {pick(values, key=lambda item: item[1])[0] for values in arms.values() if values for pick in (min, max)}
    return frozenset(first) | ends, drawn_words(
        len(first), len(seeds), ", and those with an arm's smallest or largest value"
    )


def colours(results: Results) -> dict[str, str]:
    """Variant -> light colour."""
    return {name: emblem.colour() for name, emblem in emblems(results.variants, results.baseline).items()}


#: So many figures of one kind or more, one per regime, are drawn small, side by side, under one title.
FEWEST_MULTIPLES = 3


def variant_colour(results: Results, *, legend: bool = True, lines: bool = False) -> alt.Color:
    """The colour channel that every chart uses for variants; the legend of *lines* shows lines."""
    import altair as alt

    given = colours(results)
    return alt.Color(
        "variant:N",
        scale=alt.Scale(domain=list(given), range=list(given.values())),
        legend=_legend(lines) if legend else None,
    )


def _legend(lines: bool) -> alt.Legend:
    """One legend for colour, dash and shape: Vega-Lite merges them where they are alike."""
    import altair as alt

    if lines:
        return alt.Legend(title=None, orient="top", symbolType="stroke", symbolSize=1000, symbolStrokeWidth=2.6)
    return alt.Legend(title=None, orient="top", symbolOpacity=1)


def variant_dash(results: Results, *, legend: bool = True) -> alt.StrokeDash:
    """The dash pattern that goes with the colour; its *legend* shows lines."""
    import altair as alt

    places = list(_VEGA)
    patterns = {
        name: DASHES[0] if emblem.shape == RING else DASHES[1 + places.index(emblem.shape)]
        for name, emblem in emblems(results.variants, results.baseline).items()
    }
    scale = alt.Scale(domain=list(patterns), range=list(patterns.values()))
    return alt.StrokeDash("variant:N", scale=scale, legend=_legend(lines=True) if legend else None)


#: How a chart of lines and marks resolves its legend: that of the marks, whose outlines would be dashed like the lines.
MARKS_ALONE: Mapping[str, Any] = dict.fromkeys(("color", "shape", "strokeDash"), "independent")


def variant_shape(results: Results, *, legend: bool = False) -> alt.Shape:
    """The shape that goes with the colour."""
    import altair as alt

    found = {name: _VEGA[emblem.shape] for name, emblem in emblems(results.variants, results.baseline).items()}
    scale = alt.Scale(domain=list(found), range=list(found.values()))
    return alt.Shape("variant:N", scale=scale, legend=_legend(False) if legend else None)


#: Numbers of a tooltip in d3's words, as `core.format` prints them on the page. The digits of a difference follow from its
#: interval, and small settings are powers of ten: rows bring such as text.
NUMBERS: Mapping[str, str] = {
    "value": ",.5r",  # of a run: `number(value, 5)`
    "reading": ",.4r",  # of a probe: `number(value, 4)`
    "score": ",.3r",  # `number(value)`
    "percentage": ",.1f",  # `fixed(value, 1)`
    "points": "+,.1f",  # `fixed(value, 1, sign=True)`
    "count": ",",  # `count(value)`
}


def tip(field: str, kind: str, title: str | None = None) -> alt.Tooltip:
    """A line of a tooltip: a field that holds a number of this kind, under its name or a *title*."""
    import altair as alt

    return alt.Tooltip(f"{field}:Q", title=title or field, format=NUMBERS[kind])


def variant_rows(
    results: Results, *, field: str = "variant", order: Sequence[str] | None = None, room: int = 260
) -> alt.Y:
    """The vertical axis of a chart with one row per variant; *room* for its labels, in pixels."""
    import altair as alt

    y = alt.Y(f"{field}:N", title=None, sort=list(results.variants if order is None else order))
    return y.axis(ticks=False, domain=False, labelFontWeight=600, labelPadding=10, labelLimit=room)


def level_or_turned(names: Sequence[str]) -> dict[str, Any]:
    """The labels of a horizontal axis of names: level where each has room, else turned."""
    import altair as alt

    widest = max((fonts.width(name, 12, "Semibold") for name in names), default=0)
    turned = f"width < {len(names) * (widest + 6):.0f}"
    return {
        "labelAngle": alt.ExprRef(f"{turned} ? -40 : 0"),
        "labelAlign": alt.ExprRef(f"{turned} ? 'right' : 'center'"),
        "labelBaseline": alt.ExprRef(f"{turned} ? 'middle' : 'top'"),
        "labelOverlap": False,
    }


#: Marks on each line, so that lines which coincide are told apart.
MARKS = 5
#: Slots along a line, one per mark and variant, each with a point or more; and the slot of a point (or of the one before).
_SLOTS = f"(length(shown_variants) * min({MARKS}, max(1, floor(datum.points / length(shown_variants)))))"
_SLOT, _SLOT_BEFORE = (f"floor((datum.place - {behind}) * {_SLOTS} / datum.points)" for behind in (1, 2))
#: The first point of every slot of a variant's own: one arm's marks stand between those of the others.
MARKED = (
    f"{_SLOT} % length(shown_variants) == indexof(shown_variants, datum.variant) "
    f"&& (datum.place == 1 || {_SLOT} != {_SLOT_BEFORE})"
)


def mean_and_range(
    results: Results, base: Any, x: alt.X, title: str, scale: alt.Scale, ticks: Mapping[str, Any] | None = None
) -> list[Any]:
    """Per variant: the range of ``y`` over the seeds shown as a band, their mean as a line, and marks on it."""
    import altair as alt

    field = x.shorthand.partition(":")[0]
    grouped = base.transform_aggregate(mean="mean(y)", low="min(y)", high="max(y)", groupby=["variant", field])
    placed = grouped.transform_window(
        place="row_number()", sort=[alt.SortField(field)], groupby=["variant"]
    ).transform_joinaggregate(points="count()", groupby=["variant"])
    colour = variant_colour(results, lines=True)
    mean = alt.Y("mean:Q", title=title, scale=scale)
    return [
        grouped.mark_area(fillOpacity=0.16, opacity=1).encode(
            x=x, y=alt.Y("low:Q", title=title, scale=scale).axis(**ticks or {}), y2=alt.Y2("high:Q"), color=colour
        ),
        grouped.mark_line().encode(
            x=x,
            y=mean,
            color=colour,
            strokeDash=variant_dash(results),
            strokeWidth=alt.StrokeWidthValue(2.2, condition={"test": "datum.variant == shown_baseline", "value": 3.2}),
        ),
        placed.transform_filter(MARKED)
        .mark_point(shape="circle", filled=True, size=46, opacity=1, stroke=GROUND, strokeWidth=1)
        .encode(x=x, y=mean, color=colour),
    ]


def readable_text(base: Any, *, mark: Mapping[str, Any], **channels: Any) -> list[Any]:
    """Text that stays readable where it crosses lines: once as a halo in the ground's colour, once as itself."""
    halo = {key: value for key, value in channels.items() if key != "color"}
    plain = {key: value for key, value in mark.items() if key != "color"}
    return [
        base.mark_text(**plain, color=GROUND, stroke=GROUND, strokeWidth=4, strokeJoin="round").encode(**halo),
        base.mark_text(**mark).encode(**channels),
    ]


def figure(results: Results, tables: Tables, chart: Any, *, regime: str = "", **words: Any) -> Figure:
    """A figure; where a study has several regimes, it names the *regime* it shows."""
    import altair as alt

    if regime and len(results.regimes) > 1:
        words["key"] += f"-{slug(regime)}"
        words["title"] += f", regime {regime}"
        words["regime"] = regime
    selection = {
        "shown_variants": list(results.variants),
        "shown_baseline": results.baseline,
    }
    own = [] if chart.params is alt.Undefined else chart.params
    # As chart.add_params, which would first copy the chart several times, down to every colour.
    chart.params = [*own, *(alt.VariableParameter(name=name, value=value) for name, value in selection.items())]
    return Figure(chart=chart, data=tables.rows, **words)


class Tables:
    """The rows behind one figure, kept beside the chart, which names them: Altair would copy and check every one."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def __call__(self, records: Iterable[Mapping[str, object]]) -> alt.NamedData:
        """Keep rows, and give what a chart takes for data."""
        import altair as alt

        name = f"table{len(self.rows)}"
        self.rows[name] = [dict(record) for record in records]
        return alt.NamedData(name=name)


#: What the title of an axis says of its scale.
LOG_WORDS, SYMLOG_WORDS = ", log scale", ", symmetric log scale"


def explodes(values: Iterable[float | None]) -> bool:
    """Whether a few values are so large that the others would be one line on a linear axis."""
    sizes = sorted(abs(value) for value in values if value is not None and math.isfinite(value) and value)
    return bool(sizes) and sizes[-1] > 20 * sizes[len(sizes) // 2]


def robust_scale(values: Iterable[float | None], **scale: Any) -> tuple[alt.Scale, dict[str, Any], str]:
    """(scale, axis, words for its title): linear; where some values explode, logarithmic, with a sign if there are signs."""
    import altair as alt

    known = [value for value in values if value is not None and math.isfinite(value)]
    if not explodes(known):
        return alt.Scale(**scale), {}, ""
    room = {"padding": scale["padding"]} if scale.get("padding") else {}
    if min(known) > 0:
        return alt.Scale(type="log", nice=False, **room), powers(known), LOG_WORDS
    sizes = sorted(abs(value) for value in known if value)
    usual = sizes[len(sizes) // 2]
    return alt.Scale(type="symlog", constant=usual, **room), decades(known, usual), SYMLOG_WORDS


_MANTISSA = "round(datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9)))"
#: The labels of a log axis at any zoom: all within a decade, 1, 2 and 5 within two and a half, else powers of ten.
LOG_LABELS: Mapping[str, str] = {
    axis: f"{decades} < 1 || {_MANTISSA} == 1 || {decades} < 2.5 && indexof([2, 5], {_MANTISSA}) >= 0 "
    "? format(datum.value, datum.value < 0.001 ? '~e' : ',~g') : ''"
    for axis in ("x", "y")
    for decades in [f"log(domain('{axis}')[1] / domain('{axis}')[0]) / LN10"]
}

#: Beyond this number of decades, an axis marks powers of ten alone: the nine lines of every decade would be a grey band.
MOST_DECADES = 4


def powers(values: Iterable[float]) -> dict[str, Any]:
    """The marks of a log axis: Vega's own; over many decades, powers of ten."""
    known = [value for value in values if value > 0 and math.isfinite(value)]
    first, last = (math.floor(math.log10(end(known, default=1.0))) for end in (min, max))
    if last - first <= MOST_DECADES:
        return {}
    stride = 1 + (last - first) // 6
    return {"values": [10.0**power for power in range(first, last + 1, stride)], "format": "~e" if last > 6 else ",~r"}


def decades(values: Iterable[float], usual: float) -> dict[str, Any]:
    """The marks of a symmetric log axis, which Vega spaces as on a linear one: 0, and powers of ten from *usual* on."""
    known = list(values)
    marks = [0.0]
    for sign in (-1, 1):
        far = max((sign * value for value in known), default=0.0)
        powers = range(math.ceil(math.log10(usual)), math.floor(math.log10(far)) + 1) if far > 0 else ()
        marks += [sign * 10.0**power for power in powers[:: 1 + len(powers) // 4]]
    return {"values": sorted(marks), "format": ",~r"}


def thinned(steps: Sequence[float], most: int, keep: Iterable[float] = ()) -> list[float]:
    """At most about *most* of the steps, evenly spaced, with the first, the last and those to *keep*."""
    if len(steps) <= most:
        return list(steps)
    stride = (len(steps) - 1) / (most - 1)
    chosen = {steps[round(place * stride)] for place in range(most)}
    return sorted(chosen | (set(keep) & set(steps)))


def config() -> dict[str, Any]:
    """Vega-Lite's settings: quiet grid, no frame, type like the page's."""
    return {
        "font": f"{fonts.FAMILY}, sans-serif",  # the latter where a notebook draws
        "background": None,
        "view": {"stroke": None},
        "axis": {
            "gridColor": GRID,
            "domainColor": RULE,
            "tickColor": RULE,
            "labelColor": QUIET,
            "titleColor": INK,
            "titleFontWeight": 500,
            "titleFontSize": 12,
            "labelFontSize": 11,
            "titlePadding": 10,
            "labelPadding": 6,
            "tickSize": 4,
            "labelOverlap": True,
            "labelFlush": False,
            "labelLimit": 150,
        },
        "axisX": {"labelSeparation": 6, "labelFlush": True},
        # So few marks that every one keeps its label: Vega would drop every other one, and the 0 with them.
        "axisXQuantitative": {"tickCount": {"expr": "max(2, ceil(width / 90))"}},
        "axisY": {"domain": False, "ticks": False},
        "legend": {
            "labelColor": INK,
            "titleColor": QUIET,
            "labelFontSize": 12,
            "symbolSize": 90,
            "labelLimit": 260,
        },
        "text": {"color": INK, "fontSize": 12},
        "line": {"strokeJoin": "round"},
    }
