"""What all charts share: colours that a colour-blind eye tells apart, one per variant everywhere, and the selection.

Colours come in pairs, for light and for dark ground. Charts are built with the light ones; the page exchanges them by
`DARK_OF`. The first hues are those of Okabe and Ito (2008), darkened or lightened until they stand out from either ground
and, six of them, from one another for a colour-blind eye; the others are for studies of many variants. No chart tells
variants apart by hue alone: each has a dash pattern and a shape too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from ablationlab.core.format import count
from ablationlab.records.storage import slug
from ablationlab.report import fonts

if TYPE_CHECKING:
    import altair as alt

    from ablationlab.records.analysis import Seed
    from ablationlab.records.results import Results

#: (light, dark), the baseline's first: it is grey, the changes have colours.
HUES = (
    ("#59626d", "#a9b3bd"),
    ("#0072b2", "#4ba9e3"),
    ("#d55e00", "#f2894a"),
    ("#00936b", "#37c89c"),
    ("#c05c9b", "#f5a8e8"),
    ("#7b5b2c", "#cba872"),
    ("#6f3cc4", "#b694ff"),
    ("#b97a00", "#efb840"),
    ("#a80f2d", "#ff6479"),
    ("#4a8c10", "#8fdc52"),
    ("#00818a", "#3fe0ea"),
    ("#cc2fa6", "#ff7be6"),
    ("#232f7d", "#6f86ff"),
    ("#dc6a75", "#ffc2b8"),
    ("#2a4a3a", "#d9f2c0"),
    ("#8f9000", "#dfe04a"),
)
#: More variants than this have smaller legends and wider charts.
MANY = 8
INK = ("#1d2228", "#e9e6e0")
QUIET = ("#626b75", "#9ba5af")
GRID = ("#e9e7e1", "#262d34")
RULE = ("#8c939b", "#6f7983")
BAND = ("#efe9d9", "#35301f")
CALM = ("#d3e6de", "#1f4538")
GOOD = ("#00936c", "#37c89d")
BAD = ("#c2410c", "#f2894b")
WARN = ("#b97a01", "#efb841")
GROUND = ("#ffffff", "#14191e")

DARK_OF: Mapping[str, str] = dict((*HUES, INK, QUIET, GRID, RULE, BAND, CALM, GOOD, BAD, WARN, GROUND))

#: The baseline is a whole line, drawn first; in the gaps of the others it stays visible where curves coincide. Dashes and
#: gaps are long enough that two colours alternate there: shorter ones mix to grey.
DASHES = ([1, 0], [14, 5], [7, 9], [14, 5, 4, 5], [22, 5], [5, 7], [10, 4], [9, 4, 4, 4])
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")


class PageSentence(str):
    """A sentence of a caption on the page, and what is *printed* in its place.

    *once*: how to read marks that many charts have; the page says it below the first chart of a section.
    """

    printed: str
    once: bool

    def __new__(cls, text: str, *, printed: str = "", once: bool = False) -> Self:
        made = super().__new__(cls, text)
        made.printed, made.once = printed, once
        return made


def said_once(text: str) -> PageSentence:
    """A sentence that the page says below the first chart of a section, and paper below each."""
    return PageSentence(text, printed=text, once=True)


#: What most charts of a mean draw.
RANGE_OF_SEEDS = PageSentence(
    "Line: mean over the seeds shown; band: their range.",
    printed="Line: mean over seeds; band: their range.",
    once=True,
)


@dataclass(frozen=True)
class Figure:
    """One chart with its words. ``key`` names its files; ``alt`` says in words what a reader would see; ``sentences``, the
    empty ones left out, are its caption.

    The chart names its tables, which are kept beside it; `spec` puts the two together. ``regime`` is set where a study has
    several and the figure shows one of them; ``family`` is the title that its figures of all regimes share. *switched*:
    the title of the vertical axis, without its scale, of a chart that the page lets readers smooth and switch to a logarithm.
    """

    key: str
    title: str
    sentences: tuple[str, ...]
    chart: alt.TopLevelMixin
    data: Mapping[str, list[dict[str, Any]]]
    alt: str = ""
    height: int = 320
    regime: str = ""
    family: str = ""
    switched: str = ""

    @property
    def caption(self) -> str:
        """What stands below it on the page."""
        return " ".join(filter(None, self.sentences))

    @property
    def printed_caption(self) -> str:
        """What stands below it on paper."""
        texts = (text.printed if isinstance(text, PageSentence) else text for text in self.sentences)
        return " ".join(filter(None, texts))

    @cached_property
    def bare(self) -> dict[str, Any]:
        """The Vega-Lite specification without its rows; its legends name the variants that have some."""
        made: dict[str, Any] = _log_labels(_named(self.chart.to_dict(validate=False), self.variants))
        return made

    @property
    def variants(self) -> frozenset[str]:
        """The variants that are drawn."""
        return frozenset(row["variant"] for rows in self.data.values() for row in rows if "variant" in row)

    @cached_property
    def legend(self) -> int:
        """How many variants its legend names."""
        return _legend_names(self.bare)

    def spec(self, *, width: int = 560, dark: bool = False) -> dict[str, Any]:
        """The whole specification, for light ground unless *dark*; without zoom, which a file has no use for."""
        spec = {**self.bare, "width": width, "height": self.height, "config": config(dark=dark)}
        names: list[str] = next(
            (param["value"] for param in spec.get("params", ()) if param["name"] == "shown_variants"), []
        )
        spec["config"]["legend"] |= {"columns": legend_columns(names, width)}
        if len(names) > MANY:
            spec["config"]["legend"] |= {"labelFontSize": 10}
        spec["params"] = [param for param in spec.get("params", ()) if param.get("bind") != "scales"]
        spec["datasets"] = {name: list(rows) for name, rows in self.data.items()}
        return recoloured(spec) if dark else spec

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


def _legend_names(part: Any) -> int:
    if isinstance(part, list):
        return max(map(_legend_names, part), default=0)
    if not isinstance(part, dict):
        return 0
    own = part.get("legend")
    named = len(own.get("values", ())) if isinstance(own, dict) else 0
    return max(named, *map(_legend_names, part.values()), 0)


def legend_columns(names: Sequence[str], width: float) -> int:
    """Entries of a legend that fit beside one another, smaller ones where variants are many; `page.js` does the same."""
    size, rest = (10, 52) if len(names) > MANY else (12, 68)
    return max(1, int(width // (max((fonts.width(name, size) for name in names), default=0) + rest)))


def _turned(place: int, looks: int) -> int:
    """The dash or shape of a variant: another one each time the colours start again, so that no two variants look alike."""
    return (place + place // len(HUES)) % looks


def recoloured(spec: Any) -> Any:
    """A specification with every light colour exchanged for its dark one."""
    if isinstance(spec, dict):
        return {key: recoloured(value) for key, value in spec.items() if key != "datasets"} | (
            {"datasets": spec["datasets"]} if "datasets" in spec else {}
        )
    if isinstance(spec, list):
        return [recoloured(value) for value in spec]
    return DARK_OF.get(spec, spec) if isinstance(spec, str) else spec


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
    """Variant -> light colour, by the study's order."""
    return {name: HUES[place % len(HUES)][0] for place, name in enumerate(results.variants)}


#: So many figures of one kind or more, one per regime, are drawn small, side by side, under one title.
FEWEST_MULTIPLES = 3


def variant_colour(
    results: Results, *, legend: bool = True, lines: bool = False, drawn: Collection[str] | None = None
) -> alt.Color:
    """The colour channel that every chart uses for variants; the legend of *lines* shows lines, and of all variants those
    that are *drawn*."""
    import altair as alt

    given = colours(results)
    return alt.Color(
        "variant:N",
        scale=alt.Scale(domain=list(given), range=list(given.values())),
        legend=_legend(lines, drawn) if legend else None,
    )


def _legend(lines: bool, drawn: Collection[str] | None = None) -> alt.Legend:
    """One legend for colour, dash and shape: Vega-Lite merges them where they are alike."""
    import altair as alt

    some: dict[str, Any] = {} if drawn is None else {"values": list(drawn)}
    if lines:
        return alt.Legend(title=None, orient="top", symbolType="stroke", symbolSize=1000, symbolStrokeWidth=2.6, **some)
    return alt.Legend(title=None, orient="top", symbolOpacity=1, **some)


def variant_dash(results: Results, *, legend: bool = True) -> alt.StrokeDash:
    """The dash pattern that goes with the colour; its *legend* shows lines."""
    import altair as alt

    names = list(results.variants)
    patterns = [DASHES[_turned(place, len(DASHES))] for place in range(len(names))]
    scale = alt.Scale(domain=names, range=patterns)
    return alt.StrokeDash("variant:N", scale=scale, legend=_legend(lines=True) if legend else None)


#: How a chart of lines and marks resolves its legend: that of the marks, whose outlines would be dashed like the lines.
MARKS_ALONE: Mapping[str, Any] = dict.fromkeys(("color", "shape", "strokeDash"), "independent")


def variant_shape(results: Results, *, legend: bool = False, drawn: Collection[str] | None = None) -> alt.Shape:
    """The shape that goes with the colour."""
    import altair as alt

    names = list(results.variants)
    shapes = [SHAPES[_turned(place, len(SHAPES))] for place in range(len(names))]
    return alt.Shape(
        "variant:N", scale=alt.Scale(domain=names, range=shapes), legend=_legend(False, drawn) if legend else None
    )


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
        .mark_point(shape="circle", filled=True, size=46, opacity=1, stroke=GROUND[0], strokeWidth=1)
        .encode(x=x, y=mean, color=colour),
    ]


def readable_text(base: Any, *, mark: Mapping[str, Any], **channels: Any) -> list[Any]:
    """Text that stays readable where it crosses lines: once as a halo in the ground's colour, once as itself."""
    halo = {key: value for key, value in channels.items() if key != "color"}
    plain = {key: value for key, value in mark.items() if key != "color"}
    return [
        base.mark_text(**plain, color=GROUND[0], stroke=GROUND[0], strokeWidth=4, strokeJoin="round").encode(**halo),
        base.mark_text(**mark).encode(**channels),
    ]


#: The filters of the page's selection, for rows that carry the fields they speak of.
BY_VARIANT = "indexof(shown_variants, datum.variant) >= 0"
BY_SEED = "indexof(shown_seeds, datum.seed) >= 0"
BY_REGIME = "indexof(shown_regimes, datum.regime) >= 0"
#: A contrast is hidden with its variant, and with its reference unless that is the baseline.
BY_CONTRAST = f"{BY_VARIANT} && (datum.reference == shown_baseline || indexof(shown_variants, datum.reference) >= 0)"


def figure(results: Results, tables: Tables, chart: Any, *, regime: str = "", **words: Any) -> Figure:
    """A figure that follows the page's selection; where a study has several regimes, it names the *regime* it shows."""
    import altair as alt

    if regime and len(results.regimes) > 1:
        words["key"] += f"-{slug(regime)}"
        words["family"] = words["title"]
        words["title"] += f", regime {regime}"
        words["regime"] = regime
    selection = {
        "shown_variants": list(results.variants),
        "shown_seeds": [str(seed) for seed in results.seeds],
        "shown_regimes": list(results.regimes),
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


def config(*, dark: bool = False) -> dict[str, Any]:
    """Vega-Lite's settings: quiet grid, no frame, type like the page's."""
    pick = 1 if dark else 0
    return {
        "font": f"{fonts.FAMILY}, sans-serif",  # the latter where a notebook draws
        "background": None,
        "view": {"stroke": None},
        "axis": {
            "gridColor": GRID[pick],
            "domainColor": RULE[pick],
            "tickColor": RULE[pick],
            "labelColor": QUIET[pick],
            "titleColor": INK[pick],
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
            "labelColor": INK[pick],
            "titleColor": QUIET[pick],
            "labelFontSize": 12,
            "symbolSize": 90,
            "labelLimit": 260,
        },
        "text": {"color": INK[pick], "fontSize": 12},
        "line": {"strokeJoin": "round"},
    }
