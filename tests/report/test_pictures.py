"""The pictures of the page: where marks and lines stand, what coincides, which order, and that no name breaks out."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablationlab.records.analysis import Instability
from ablationlab.records.courses import ArmCourse, Courses, Diagnostic, DiagnosticLine, LossCurves
from ablationlab.records.verdict import Answer
from ablationlab.report.charts.chart import Chart
from ablationlab.report.charts.difference import difference_chart
from ablationlab.report.charts.failures import failure_times_chart, failures_chart
from ablationlab.report.charts.grid import grid_chart
from ablationlab.report.charts.inside import inside_chart
from ablationlab.report.charts.plot import SAME, Line, Scale, merged, plot_svg, stylesheet
from ablationlab.report.charts.rows import FAR, axis_in_units, shown_variants
from ablationlab.report.charts.sections import pictures
from ablationlab.report.charts.side_effects import side_effects_chart
from ablationlab.report.colours import emblems
from ablationlab.report.effects import Effect
from ablationlab.report.failures import FAILED, RunEnd
from ablationlab.report.interval import MARGIN, Axis
from ablationlab.report.slots import Slot
from ablationlab.report.study_report import StudyReport, study_report
from report.answers import KINDS, made
from report.test_answers import field, says

DRAWS = (
    difference_chart,
    side_effects_chart,
    inside_chart,
    failures_chart,
    failure_times_chart,
    grid_chart,
    lambda report: grid_chart(report, every=True),
)
STEPS = tuple(float(step) for step in range(1, 21))


def report_of(kind: str) -> StudyReport:
    results = made(kind)
    return study_report(results, results.analysis, results.verdict)


def charts_of(report: StudyReport) -> list[Chart]:
    return [chart for draw in DRAWS if (chart := draw(report)) is not None]


class Tags(HTMLParser):
    """Every tag with its attributes, and whether they close in order."""

    VOID = ("br", "line", "rect", "path", "circle")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def arm(variant, difference=(), *, losses=None, regime="default", low=(), high=()):
    losses = losses if losses is not None else tuple(3 - step / 20 for step in STEPS)
    return ArmCourse(
        variant=variant,
        regime=regime,
        n=5,
        centre="mean",
        level=0.95 if low else None,
        places=STEPS,
        losses=losses,
        difference=tuple(difference),
        low=tuple(low),
        high=tuple(high),
    )


def effect(variant, estimate, *, low=None, high=None, regime="default", answer=Answer.WORSE, **changes):
    values = {
        "id": f"{variant}/{regime}",
        "metric": "validation_loss",
        "name": "validation loss",
        "unit": "nats/token",
        "variant": variant,
        "reference": "none",
        "regime": regime,
        "role": "primary",
        "label": "registered",
        "estimate": Slot(f"{estimate:+.3f}", "analysis.json#/x", estimate),
        "baseline": Slot("2.500", "analysis.json#/y", 2.5),
        "answer": answer,
        "word": Slot(answer.value if answer else ""),
        "drawn": (estimate, low, high),
        "smallest": 0.1,
    }
    return Effect(**{**values, **changes})


def synthetic(effects, arms=(), ends=(), diagnostics=(), variants=("none", "a", "b")) -> StudyReport:
    curves = LossCurves(metric="loss", along="steps", steps_per_point=1.0, arms=tuple(arms)) if arms else None
    answers = tuple(row for row in effects if row.answer is not None)
    return replace(
        StudyReport.empty("made"),
        effects=tuple(effects),
        answers=answers,
        baseline="none",
        variants=tuple(variants),
        courses=Courses(analysis_hash="", curves=curves, diagnostics=tuple(diagnostics)),
        ends=tuple(ends),
        unit="nats/token",
    )


# --- every kind of study ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_picture_is_whole_has_a_table_behind_it_and_is_reached_by_keyboard(kind):
    for chart in charts_of(report_of(kind)):
        tags = Tags(chart.svg)
        assert not tags.open
        assert chart.table.rows
        assert "nan" not in chart.svg.lower()
        assert "inf" not in re.sub(r"info|inference|infinit", "", chart.svg.lower())
        rows = [attrs for tag, attrs in tags.found if tag == "div" and "ch-row" in (attrs.get("class") or "").split()]
        quiet = {"head", "foot", "base"}
        for attrs in rows:
            if not quiet & set((attrs["class"] or "").split()):
                assert attrs["tabindex"] == "0"
                assert attrs["aria-label"]
        for name, share in re.findall(r'\b(x|x1|x2|cx)="(-?[\d.]+)%"', chart.svg):
            assert -0.01 <= float(share) <= 100.01, name


def test_sections_stand_in_their_order_and_only_where_there_is_something():
    keys = {
        kind: [key for key, _, _ in pictures(report_of(kind))] for kind in ("clean", "unstable", "table", "regimes")
    }
    order = ["regimes", "when", "side", "inside"]
    for found in keys.values():
        assert found == [key for key in order if key in found]
    assert "when" in keys["clean"]


def test_nothing_is_smaller_than_eleven_pixels():
    sizes = [float(size) for size in re.findall(r"font-size:\s*([\d.]+)px", stylesheet())]
    assert sizes
    assert min(sizes) >= 11
    for kind in ("clean", "unstable"):
        for chart in charts_of(report_of(kind)):
            assert all(float(size) >= 11 for size in re.findall(r'font-size="([\d.]+)"', chart.svg))


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=y>', "a&b;c", "</div>{{x}}", "‮x'"])
def test_hostile_names_stay_text(name):
    stays_text(name)
    assert all(name not in chart.svg for chart in charts_of(hostile(name))) or escape(name) == name


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=20).filter(lambda name: name not in ("none", "b")))
def test_any_name_stays_text(name):
    stays_text(name)


def hostile(name: str) -> StudyReport:
    """A study with that name in every picture."""
    rows = [effect(name, 0.2, low=0.1, high=0.3), effect("b", 0.1, low=0.0, high=0.2)]
    rows += [replace(row, regime="<b>hot", id=f"{row.id}2") for row in rows]
    rows += [
        replace(row, metric="token_ece", name="<i>ece", role="guard", answer=None, word=Slot("worse"), id=f"{row.id}3")
        for row in rows[:2]
    ]
    arms = [arm("none"), arm(name, [0.2] * 20), arm("b", [0.1] * 20)]
    arms += [one.model_copy(update={"regime": "<b>hot"}) for one in arms]
    lines = tuple(DiagnosticLine(variant=v, values=(1.0, 2.0)) for v in ("none", name))
    ends = [
        RunEnd("r", v, regime, "1", Instability.DIVERGED, Slot("5", "x", 5.0), 20)
        for v in ("none", name)
        for regime in ("default", "<b>hot")
    ]
    return synthetic(rows, arms, ends, [diagnostic(name, 3.0, lines=lines)], ("none", name, "b"))


def stays_text(name: str) -> None:
    report = hostile(name)
    plain = {tag for chart in charts_of(synthetic_like(report)) for tag, _ in Tags(chart.svg).found}
    for chart in charts_of(report):
        tags = Tags(chart.svg)
        assert not tags.open
        assert {tag for tag, _ in tags.found} <= plain
        assert not any(attribute.startswith("on") for _, attrs in tags.found for attribute in attrs)
        chart.table.html()


def synthetic_like(report: StudyReport) -> StudyReport:
    """The same with tame names."""
    calm = dict(zip(report.variants, ("none", "a", "b"), strict=True))

    def tame(row):
        return replace(row, variant=calm[row.variant], regime=row.regime.replace("<b>", ""), name="name")

    courses = report.courses
    assert courses is not None
    assert courses.curves is not None
    arms = tuple(
        one.model_copy(update={"variant": calm[one.variant], "regime": one.regime.replace("<b>", "")})
        for one in courses.curves.arms
    )
    diagnostics = tuple(
        one.model_copy(
            update={
                "variant": calm[one.variant],
                "lines": tuple(line.model_copy(update={"variant": calm[line.variant]}) for line in one.lines),
            }
        )
        for one in courses.diagnostics
    )
    return replace(
        report,
        variants=tuple(calm.values()),
        effects=tuple(map(tame, report.effects)),
        answers=tuple(map(tame, report.answers)),
        ends=tuple(replace(e, variant=calm[e.variant], regime=e.regime.replace("<b>", "")) for e in report.ends),
        courses=courses.model_copy(
            update={"curves": courses.curves.model_copy(update={"arms": arms}), "diagnostics": diagnostics}
        ),
    )


# --- lines --------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(-50, 50, allow_nan=False), min_size=2, max_size=30),
    st.floats(-50, 50, allow_nan=False),
)
def test_a_point_of_a_line_stands_where_its_value_is(values, more):
    y = Scale.around([*values, more, more + 1.0])
    assert y is not None
    slack = 1e-6 * (y.high - y.low)
    assert y.low <= min(values) + slack
    assert y.high >= max(values) - slack
    places = tuple(float(place) for place in range(len(values)))
    x = Scale(0.0, places[-1])
    svg = plot_svg(
        [Line(("a",), places, tuple(values))], emblems(["a"], ""), x=x, y=y, x_ticks=[], y_text=str, height=220
    )
    path = re.search(r'<path d="M([^"]*)" stroke', svg)
    assert path is not None
    points = [tuple(map(float, point.split())) for point in path[1].split("L")]
    assert len(points) == len(values)
    for (px, py), place, value in zip(points, places, values, strict=True):
        assert px == pytest.approx(1000 * place / places[-1], abs=0.51)
        assert py == pytest.approx(210 - 200 * (value - y.low) / (y.high - y.low), abs=0.06)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=12))
def test_lines_merge_just_where_they_are_nowhere_two_percent_apart(points):
    scale = Scale(0.0, 10.0)
    places = tuple(map(float, range(len(points))))
    lines = [Line((name,), places, values) for name, values in zip("abc", zip(*points, strict=True), strict=True)]
    found = merged(lines, scale)
    assert [name for line in found for name in line.names].count("a") == 1
    assert sorted(name for line in found for name in line.names) == ["a", "b", "c"]
    by_name = {line.names[0]: line.values for line in lines}
    for line in found:
        first = by_name[line.names[0]]
        for name in line.names[1:]:
            assert max(abs(a - b) for a, b in zip(first, by_name[name], strict=True)) < SAME * 10
    for one, other in [(a, b) for a in found for b in found if a is not b]:
        gap = max(abs(a - b) for a, b in zip(one.values, other.values, strict=True))
        assert gap >= SAME * 10


def test_lines_with_other_gaps_do_not_merge():
    lines = [Line(("a",), (0.0, 1.0), (1.0, None)), Line(("b",), (0.0, 1.0), (1.0, 1.0))]
    assert len(merged(lines, Scale(0.0, 2.0))) == 2


def test_coinciding_variants_are_one_striped_line_with_both_names():
    gap = [0.3 - step / 100 for step in STEPS]
    near = [value + 0.001 for value in gap]
    rows = [effect("a", 0.1), effect("b", 0.1)]
    chart = difference_chart(synthetic(rows, [arm("none"), arm("a", gap), arm("b", near)]))
    assert chart is not None
    first, _, second = chart.svg.partition("</figure>")
    assert first.count("<path") == 2  # the line, and its stripes
    assert first.count("stroke-dasharray") == 1
    assert len(re.findall('class="ch-name"', first)) == 1
    assert len(re.findall('class="ch-name"', second)) == 1  # the baseline coincides, too
    assert [statement.code for statement in chart.statements] == ["when.peak"]
    assert chart.statements[0].slots["peak"].at == "courses.json#/curves/arms/1/difference/0"
    far = difference_chart(synthetic(rows, [arm("none"), arm("a", gap), arm("b", [2 * value for value in gap])]))
    assert far is not None
    assert len(re.findall('class="ch-name"', far.svg.partition("</figure>")[0])) == 2
    assert not far.statements


def test_a_peak_at_the_end_is_no_peak():
    chart = difference_chart(synthetic([effect("a", 0.1)], [arm("none"), arm("a", [step / 100 for step in STEPS])]))
    assert chart is not None
    assert [statement.code for statement in chart.statements] == ["when.end"]


def test_a_wild_point_does_not_flatten_a_curve():
    calm = [0.1] * 19 + [50.0]
    chart = difference_chart(synthetic([effect("a", 0.1)], [arm("none"), arm("a", calm, low=calm, high=calm)]))
    assert chart is not None
    drawn = [float(y) for _, y in re.findall(r"([\d.]+) (-?[\d.]+)", chart.svg.split('<path d="M')[2])][:19]
    zero = 270.0
    assert zero - drawn[0] > 40


def test_decided_variants_are_drawn_before_others_and_the_largest_first():
    rows = [effect(f"v{k}", k / 10, answer=Answer.UNDECIDED if k % 2 else Answer.WORSE) for k in range(1, 9)]
    report = synthetic(rows, variants=("none", *(f"v{k}" for k in range(1, 9))))
    assert shown_variants(report) == ("v2", "v4", "v6", "v8")
    undecided = [replace(row, answer=Answer.UNDECIDED) for row in rows]
    assert shown_variants(synthetic(undecided, variants=report.variants)) == ("v4", "v5", "v6", "v7", "v8")


@given(st.floats(1e-6, 1e6), st.floats(1.01, 1e6))
def test_the_ticks_of_factors_lie_within(low, factor):
    scale = Scale(low, low * factor, log=True)
    assert all(-0.01 <= scale.place(tick) <= 1.01 for tick in scale.ticks)
    assert scale.place(low) == 0
    assert scale.place(low * factor) == pytest.approx(1)


# --- side effects -------------------------------------------------------------------------------------------------


def rows_of(svg: str) -> list[ElementTree.Element]:
    whole = ElementTree.fromstring(unescaped(svg))
    return [element for element in whole.iter("div") if "ch-row" in (element.get("class") or "").split()]


def unescaped(svg: str) -> str:
    return svg.replace("&nbsp;", " ").replace("<br>", "<br/>")


def marks_of(row: ElementTree.Element) -> list[float]:
    strip = next(element for element in row.iter("div") if element.get("class") == "pl")
    return [float((svg.get("x") or "").rstrip("%")) for svg in strip.iter("svg") if (svg.get("x") or "").endswith("%")]


def test_a_side_effect_stands_at_its_size_in_margins():
    guard = {"metric": "token_ece", "name": "token ECE", "role": "guard", "answer": None, "word": Slot("worse")}
    rows = [
        effect("a", 0.3, low=0.2, high=0.4),
        effect("a", 0.004, id="2", smallest=None, margin=0.01, **guard),
        effect("a", -0.5, id="3", smallest=None, **{**guard, "metric": "training_speed", "name": "speed", "role": ""}),
    ]
    chart = side_effects_chart(synthetic(rows, variants=("none", "a")))
    assert chart is not None
    units = {"validation loss": 0.3 / 0.1, "token ECE": 0.004 / 0.01, "speed": -0.5 / (0.05 * 2.5)}
    axis = axis_in_units([(3.0, 2.0, 4.0), (0.4, None, None), (-4.0, None, None)])
    assert axis is not None
    found = {}
    for row in rows_of(chart.svg):
        name = next(element for element in row.iter("div") if element.get("class") == "nm").text
        if name in units:
            found[name] = marks_of(row)
    assert {name: len(marks) for name, marks in found.items()} == dict.fromkeys(units, 1)
    for name, unit in units.items():
        share = (unit - axis.low) / (axis.high - axis.low)
        assert found[name][0] == pytest.approx(MARGIN + (100 - 2 * MARGIN) * share, abs=0.01)
    hollow = [row for row in chart.svg.split('<div class="ch-row"') if "speed" in row]
    assert "fill:var(--paper" in hollow[0]


def test_a_loss_whose_runs_failed_is_told_by_its_values():
    failed = (Slot("0", "x", 0), Slot("7", "x", 7))
    rows = [
        effect("a", 0.3, failed=failed, value=Slot("2.800", "x", 2.8)),
        effect(
            "a", 0.8, id="f", metric="failures", name="failed runs", answer=None, failed=failed, n=Slot("8", "x", 8)
        ),
    ]
    chart = side_effects_chart(synthetic(rows, variants=("none", "a")))
    assert chart is not None
    assert re.findall(r'class="df">(\d[^<]*)<', chart.svg) == ["2.500 → 2.800", "0 → 7"]


def test_an_absurd_effect_does_not_flatten_the_others():
    axis = axis_in_units([(1.0, 0.5, 1.5), (10_000.0, None, None), (2.0, -1e9, 1e9)])
    assert axis is not None
    assert axis.high <= 1.3 * FAR
    assert axis.low >= -1.3 * FAR


# --- failures -----------------------------------------------------------------------------------------------------


def ends_for(variant, reasons, regime="default"):
    return [
        RunEnd(
            f"{variant}{k}",
            variant,
            regime,
            k,
            reason,
            Slot(str(10 * k), "x", 10.0 * k) if reason in FAILED else Slot("–"),
            100,
        )
        for k, reason in enumerate(reasons)
    ]


def test_squares_are_one_per_run_and_as_many_of_each_kind_as_there_are():
    reasons = [Instability.DIVERGED, Instability.ENDED_WORSE, *[Instability.SPIKED] * 2, *[Instability.CALM] * 3]
    report = synthetic([effect("a", 0.1)], ends=[*ends_for("none", [Instability.CALM] * 7), *ends_for("a", reasons)])
    chart = failures_chart(report)
    assert chart is not None
    strips = re.findall(r'<div class="ch-sq"[^>]*>(.*?)</div>', chart.svg)
    assert [strip.count("<i") for strip in strips] == [7, 7]
    kinds = re.findall(r'<i(?: class="([\w-]+)")?>', strips[1])
    assert kinds == ["diverged", "ended-worse", "spiked", "spiked", "", "", ""]
    assert [row[2].text for row in chart.table.rows] == ["0", "1", "2", "3"]
    assert failures_chart(synthetic([effect("a", 0.1)], ends=ends_for("a", [Instability.CALM]))) is None


@pytest.mark.parametrize("kind", ["unstable", "lost-runs", "all-diverged"])
def test_runs_stand_with_the_worst_first_and_of_these_the_earliest(kind):
    report = report_of(kind)
    ranks = [FAILED.index(end.reason) if end.failed else len(FAILED) for end in report.ends]
    assert ranks == sorted(ranks)
    assert any(end.failed for end in report.ends)
    for reason in FAILED:
        steps = [end.at.value for end in report.ends if end.reason == reason and end.at.at]
        assert steps == sorted(steps)


def test_a_tick_stands_at_the_step_of_its_failure_on_an_axis_of_the_whole_run():
    ends = ends_for("a", [Instability.SPIKED] * 4)
    chart = failure_times_chart(synthetic([effect("a", 0.1)], ends=ends))
    assert chart is not None
    marks = re.findall(r'<line x1="([\d.]+)%" x2="\1%" y1="2"', chart.svg)
    assert [float(mark) for mark in marks] == [0.0, 10.0, 20.0, 30.0]


# --- regimes ------------------------------------------------------------------------------------------------------


def regimes_report(*, wild=0.5):
    rows = [
        effect(variant, size, low=size - 0.05, high=size + 0.05, regime=regime)
        for regime, sizes in (("cold", (0.1, 0.2)), ("hot", (-0.1, 0.3)))
        for variant, size in zip("ab", sizes, strict=True)
    ]
    rows[-1] = replace(rows[-1], drawn=(0.3, -wild, wild))
    return synthetic(rows)


def test_all_regimes_share_one_axis():
    chart = grid_chart(regimes_report())
    assert chart is not None
    zeros = re.findall(
        r'<line x1="([\d.]+%)" x2="\1" y1="0" y2="\d+" stroke="currentColor" opacity="0.75"/>', chart.svg
    )
    assert len(zeros) == 6
    assert len(set(zeros)) == 1
    assert [row[0].text for row in chart.table.rows] == ["cold", "cold", "hot", "hot"]
    assert grid_chart(synthetic([effect("a", 0.1)])) is None


def test_an_interval_that_leaves_the_axis_ends_in_an_arrow_and_flattens_no_other():
    chart = grid_chart(regimes_report(wild=16_000.0))
    assert chart is not None
    rows = [row for row in rows_of(chart.svg) if row.get("tabindex") == "0"]
    places = [marks_of(row)[-1] for row in rows]
    assert max(places) - min(places) > 20
    assert len(marks_of(rows[-1])) == 3  # two arrows and the mark


# --- inside -------------------------------------------------------------------------------------------------------


def diagnostic(variant, ratio, *, probe="residual", lines=(), group="block-1", measure="norm"):
    return Diagnostic(
        probe=probe,
        measure=measure,
        group=group,
        regime="default",
        variant=variant,
        n=5,
        ratio=ratio,
        low=ratio * 0.9,
        high=ratio * 1.1,
        level=0.95,
        moved=1.0,
        over="depth" if probe else None,
        places=(1.0, 2.0) if lines else (),
        lines=lines,
    )


def test_the_three_that_moved_most_are_drawn_each_with_one_clause():
    lines = (DiagnosticLine(variant="none", values=(1.0, 2.0)), DiagnosticLine(variant="a", values=(3.0, 9.0)))
    ranked = [diagnostic("a", ratio, probe=f"p{k}", lines=lines) for k, ratio in enumerate((24.0, 0.125, 2.5, 1.2))]
    chart = inside_chart(synthetic([effect("a", 0.1)], diagnostics=ranked, variants=("none", "a")))
    assert chart is not None
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", chart.svg)
    assert captions == [
        "<b>p0 norm</b><br>×24.0 at block 1, a",
        "<b>p1 norm</b><br>÷8.00 at block 1, a",
        "<b>p2 norm</b><br>×2.50 at block 1, a",
    ]


def test_a_diagnostic_that_nothing_moved_has_no_picture():
    still = effect("a", 0.0, metric="mean_gradient_norm", answer=None, id="g", role="stability")
    one = diagnostic("a", 1.0, probe=None, group=None, measure="mean_gradient_norm")
    assert inside_chart(synthetic([effect("a", 0.1), still], diagnostics=[one])) is None


def test_without_probes_metrics_of_runs_are_drawn_as_factors():
    ratios = [
        effect(
            variant,
            size,
            metric="mean_gradient_norm",
            name="mean gradient norm",
            role="stability",
            answer=None,
            id=f"g{variant}",
            unit="%",
        )
        for variant, size in (("a", 0.6931471805599453), ("b", -0.6931471805599453))
    ]
    one = diagnostic("a", 2.0, probe=None, group=None, measure="mean_gradient_norm")
    chart = inside_chart(synthetic([effect("a", 0.1), effect("b", 0.2), *ratios], diagnostics=[one]))
    assert chart is not None
    text = unescape(re.sub(r"<[^>]+>", " ", chart.svg))
    assert "×2.00" in text
    assert "÷2.00" in text
    strips = [marks_of(row)[0] for row in rows_of(chart.svg) if row.get("tabindex") == "0"]
    assert sum(strips) == pytest.approx(100, abs=0.02)  # mirror images


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8))
def test_an_axis_holds_zero_and_keeps_its_ends_apart(values):
    axis = axis_in_units([(value, None, None) for value in values])
    assert axis is not None
    assert axis.low < 0 < axis.high
    assert isinstance(axis, Axis)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_clause_prints_is_the_field_it_names(kind):
    results = made(kind)
    for chart in charts_of(report_of(kind)):
        for statement in chart.statements:
            for slot in statement.slots.values():
                if slot.at:
                    assert field(results, slot.at) == slot.value
                    assert says(slot, slot.value)
