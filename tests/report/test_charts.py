"""The charts: what is drawn is what was recorded; what is not there is not drawn."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest

import ablationlab
import warm
from ablationlab.analysis.wording import difference_of
from ablationlab.core.format import count, fixed, number
from ablationlab.records.analysis import ComparedTask, EvaluationAnalysis, TaskSensitivity
from ablationlab.records.results import Results
from ablationlab.report import fonts
from ablationlab.report.charts import (
    curves,
    evaluation,
    factors,
    paired,
    stability,
    sweeps,
    theme,
    tradeoff,
)
from ablationlab.report.charts.diagnostics import diagnostics
from ablationlab.report.charts.theme import (
    NUMBERS,
    Figure,
    colours,
    decades,
    legend_columns,
    robust_scale,
    thinned,
    variant_dash,
    variant_shape,
)
from ablationlab.report.colours import HUES
from ablationlab.report.convert import svg_of
from ablationlab.report.figures import Figures, draw_figures, saving
from ablationlab.report.make import with_analysis
from ablationlab.report.probes import read_probes
from ablationlab.report.tables.tasks import task_table
from ablationlab.stats.results import Sensitivity
from ablationlab.study.load import parse_study
from analysis.builder import build, study
from report.maker import VARIANTS, full, made


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return made(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return full(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def drawn(rich: Results) -> Figures:
    return draw_figures(rich)


def table(figure: Any, *columns: str) -> list[dict[str, Any]]:
    """The first table of a figure that has these columns."""
    return next(rows for rows in figure.data.values() if rows and set(columns) <= set(rows[0]))


def test_paired_differences_are_those_of_the_records(results: Results):
    figure = paired.differences(results)[0]
    points = {(row["variant"], row["seed"]): row["delta"] for row in table(figure, "seed", "delta")}
    for run in results.runs:
        if run.variant != "none":
            base = results.run_of("none", run.regime, run.seed)
            expected = run.metric("validation_loss") - base.metric("validation_loss")
            assert points[run.variant, str(run.seed)] == pytest.approx(expected)
    band = table(figure, "low", "high")
    assert (band[0]["low"], band[0]["high"]) == (-0.05, 0.05)


def test_curves_hold_every_step_of_every_run(results: Results):
    figure = next(f for f in curves.curves(results) if f.key == "curve-loss")
    drawn = table(figure, "run", "step", "y")
    assert len(drawn) == 12 * 60
    run = results.runs[0]
    mine = [row["y"] for row in drawn if row["run"] == run.id]
    np.testing.assert_allclose(mine, run.curves["loss"], rtol=1e-4)


def test_the_gap_is_paired_by_seed_and_step(results: Results):
    figure = next(f for f in curves.curves(results) if f.key == "curve-gap")
    drawn = table(figure, "run", "step", "y")
    assert {row["variant"] for row in drawn} == {"layernorm", "rmsnorm"}
    # The made-up curves depend on the seed alone, so a true pair differs by nothing.
    assert max(abs(row["y"]) for row in drawn) == 0


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["chance", "bigram"], "Dotted: chance and n-gram models, on the validation text."),
        (["unigram", "bigram"], "Dotted: n-gram models, on the validation text."),
        (["chance"], "Dotted: chance, on the validation text."),
        ([], ""),
    ],
)
def test_a_caption_names_the_levels_that_are_drawn(names: list[str], told: str):
    assert curves._levels([{"level": name, "loss": 2.0} for name in names]) == told


def axis_labels(chart: Any, values: list[float]) -> list[str]:
    """The labels of a chart of these values along x, as they are drawn 560 pixels wide."""
    drawn = Figure("made", "made", (), chart, {"table": [{"x": value} for value in values]}, height=120)
    texts = re.findall(r">([^<>]+)</text>", svg_of(drawn.spec()))
    return [text.replace("−", "-") for text in texts if re.fullmatch(r"[−\d.e-]+", text)]


def test_no_label_of_an_axis_is_dropped_with_the_zero():
    points = alt.Chart(alt.NamedData(name="table")).mark_point()
    labels = [float(text) for text in axis_labels(points.encode(x=alt.X("x:Q", title=None)), [-0.01, 0.13])]
    assert 0.0 in labels
    np.testing.assert_allclose(np.diff(labels), labels[1] - labels[0])


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([0.1, 10], ["0.1", "0.2", "0.5", "1.0", "2.0", "5.0", "10.0"]),
        ([1e-6, 1e-2], ["1e-6", "1e-5", "1e-4", "0.001", "0.010"]),
    ],
)
def test_a_log_axis_names_round_numbers(ends: list[float], expected: list[str]):
    points = alt.Chart(alt.NamedData(name="table")).mark_point()
    x = alt.X("x:Q", title=None).scale(type="log")
    assert [float(text) for text in axis_labels(points.encode(x=x), ends)] == [float(text) for text in expected]


def without_metrics(folder: Path) -> Results:
    for path in folder.glob("runs/*/metrics.jsonl"):
        path.unlink()
    return Results.open(folder)


def test_without_metrics_losses_are_drawn_from_the_results(tmp_path: Path):
    made(tmp_path)
    results = without_metrics(tmp_path)
    figures = curves.curves(results)
    assert [figure.key for figure in figures] == ["curve-loss", "curve-gap"]  # no gradient norm
    run = results.runs[0]
    drawn = {row["step"]: row["y"] for row in table(figures[0], "run", "step", "y") if row["run"] == run.id}
    curve = run.result.course.curve
    assert list(drawn) == list(curve.steps)
    np.testing.assert_allclose(list(drawn.values()), curve.losses, rtol=1e-4)
    for figure in figures:
        assert "drawn from the thinned curves in result.json, at most 100 points of each run" in figure.caption
        assert "Left out" not in figure.caption
    assert run.curves == {}  # nobody takes it for the file


def test_runs_that_ended_early_are_drawn_at_the_steps_of_the_others(tmp_path: Path):
    """Else a mean would jump wherever only they have a point."""

    def early(variant: str, regime: str, seed: int) -> list[float]:
        return [4.0 - 0.01 * step for step in range(37 if (variant, seed) == ("layernorm", 2) else 300)]

    build(tmp_path, study(variants=["none", "layernorm"], seeds=[1, 2, 3]), curves=early)
    with_analysis(Results.open(tmp_path), say=lambda text: None)
    loss, gap = curves.curves(without_metrics(tmp_path))
    steps = {}
    for row in table(loss, "run", "step", "y"):
        steps.setdefault((row["variant"], row["seed"]), []).append(row["step"])
        assert row["y"] == pytest.approx(4.0 - 0.01 * (row["step"] - 1), abs=0.04)
    short = steps.pop(("layernorm", "2"))
    assert len(steps) == 5
    assert {tuple(found) for found in steps.values()} == {tuple(steps["none", "1"])}
    assert short == [step for step in steps["none", "1"] if step <= 37]
    assert {row["seed"] for row in table(gap, "run", "step", "y")} == {"1", "3"}
    assert "Left out: pairs with a run that made fewer steps than others." in gap.caption


def test_thinning_keeps_ends_spikes_and_the_budget():
    steps = list(range(1, 100_001))
    kept = thinned(steps, 500, keep=[777, 778])
    assert len(kept) <= 502
    assert {1, 100_000, 777, 778} <= set(kept)
    assert kept == sorted(set(kept))
    assert max(np.diff(kept)) <= 202
    assert thinned([1, 2, 3], 500) == [1, 2, 3]


def test_charts_of_the_regime_that_decides_stand_before_those_that_are_exploratory(tmp_path: Path):
    criteria = [{"metric": "validation_loss", "regime": "hot", "role": "primary", "smallest_effect": 0.05}]
    results = made(tmp_path, regimes={"hot": {"training": {"lr": 0.01}}}, criteria=criteria)
    assert results.regimes == ("default", "hot")
    for drawn in (paired.differences(results),):
        regimes = [figure.regime for figure in drawn if "loss" in figure.title.lower()]
        assert regimes[0] == "hot"
        assert set(regimes) <= {"hot", "default"}
    over = next(c for c in results.analysis.comparisons if (c.metric, c.regime) == ("validation_loss", "default"))
    swept = over.model_copy(update={"regime": "sweep"})
    analysis = results.analysis.model_copy(update={"comparisons": (swept, *results.analysis.comparisons)})
    groups = paired.decisive(results.changed(analysis=analysis))
    assert [group[0].regime for group in groups if group[0].metric == "validation_loss"] == ["hot", "default", "sweep"]


def test_the_plane_shows_gain_and_cost_with_their_intervals(rich: Results):
    drawn = tradeoff.plane_rows(rich)
    assert {(row["variant"], row["regime"]) for row in drawn} == {
        (v, r) for v in ("layernorm", "rmsnorm") for r in ("default", "hot")
    }
    hot = next(row for row in drawn if row["regime"] == "hot")
    assert hot["gain"] == 100
    assert 0 < hot["gain_low"] < 100
    assert hot["cost"] == rich.analysis.primary_comparison("hot", hot["variant"]).loss()[0]


def test_a_cost_without_an_upper_bound_has_the_bar_below_its_ring(tmp_path: Path):
    def ended(variant: str, regime: str, seed: int) -> dict[str, float] | None:
        broke = variant == "layernorm" and seed == 1
        return None if broke else {"validation_loss": 2.0 + 0.001 * seed**2 * len(variant)}

    build(tmp_path, study(variants=VARIANTS, seeds=[1, 2, 3, 4, 5]), outcomes=ended)
    (plane,) = tradeoff.tradeoff(with_analysis(Results.open(tmp_path), say=lambda text: None))
    rows = {row["variant"]: row for row in table(plane, "gain", "bar_low")}
    assert rows["layernorm"]["cost_high"] is None
    assert rows["layernorm"]["bar_high"] == rows["layernorm"]["cost"]
    assert rows["rmsnorm"]["bar_high"] == rows["rmsnorm"]["cost_high"] > rows["rmsnorm"]["cost"]


def test_many_rings_of_several_regimes_are_left_to_tables_and_those_of_one_named_in_a_column(tmp_path: Path):

    def ended(variant: str, regime: str, seed: int) -> dict[str, float] | None:
        broke = regime != "default" and variant == "none" and seed < 3
        return None if broke else {"validation_loss": 2.0 + 0.001 * seed + (0.1 if variant != "none" else 0.0)}

    regimes = {name: {"training": {"lr": 0.01 * place}} for place, name in enumerate(("hot", "hotter"), 1)}
    build(tmp_path, study(variants=VARIANTS, seeds=[1, 2, 3, 4], regimes=regimes), outcomes=ended)
    made = with_analysis(Results.open(tmp_path), say=lambda text: None)
    assert len(tradeoff.plane_rows(made)) == 6
    assert tradeoff.tradeoff(made) == ()
    rows = [{**tradeoff.plane_rows(made)[0], "cost": cost, "label": f"v{cost}"} for cost in range(10)]
    column = tradeoff._plane(made, rows)
    names = [layer for layer in column.bare["layer"] if layer.get("name", "").startswith("corner-name")]
    ranks = table(column, "rank", "column")
    assert [row["label"] for row in ranks] == [f"v{cost}" for cost in reversed(range(10))]  # as the rings, top down
    assert {abs(row["column"]) for row in ranks} == {tradeoff.COLUMN}
    texts = re.findall(r"<text[^>]*translate\(([-\d.]+),([-\d.]+)\)[^>]*>(v\d)<", svg_of(column.spec()))
    heights = sorted({float(y) for _, y, _ in texts})
    assert len(names) == 3
    assert len(heights) == 10
    assert min(np.diff(heights)) >= 12


def test_labels_of_the_trade_off_never_overlap():
    rng = np.random.default_rng(3)
    rows = [
        {
            "gain": gain,
            "cost": cost,
            "cost_low": cost - 0.01,
            "cost_high": cost + 0.01,
            "label": f"variant-{place}, hot",
        }
        for place, (gain, cost) in enumerate(
            zip(rng.choice([0, 20, 60], 8), rng.choice([-0.02, 0.12, 0.13], 8), strict=True)
        )
    ]
    bottom, top = min(row["cost_low"] for row in rows), max(row["cost_high"] for row in rows)
    boxes = []
    for row, (align, dx, dy) in zip(rows, tradeoff.label_places(rows), strict=True):
        width = fonts.width(row["label"], 12, "Semibold")
        left = (row["gain"] + 100) / 200 * tradeoff.VIEW[0] + dx - (width if align == "right" else 0)
        boxes.append((left, left + width, (top - row["cost"]) / (top - bottom) * tradeoff.VIEW[1] + dy))
    for place, (left, right, middle) in enumerate(boxes):
        for other_left, other_right, other_middle in boxes[:place]:
            apart = left > other_right or right < other_left or abs(middle - other_middle) >= tradeoff.LINE
            assert apart


def test_charts_of_one_value_per_run_hide_no_extreme_run_and_say_only_what_they_leave_out(tmp_path: Path, monkeypatch):
    def ended(variant: str, regime: str, seed: int) -> dict[str, float]:
        return {"validation_loss": 2.0 + 0.01 * (seed % 3) - (0.5 if (variant, seed) == ("layernorm", 14) else 0.0)}

    regimes = {name: {"training": {"warmup": steps}} for steps, name in enumerate("abcd")}
    build(tmp_path, study(seeds=[*range(1, 16)], regimes=regimes), outcomes=ended)
    results = with_analysis(Results.open(tmp_path), say=lambda text: None)
    monkeypatch.setattr("ablationlab.report.charts.theme.MOST_DRAWN", 30)  # all arms and regimes have 150 runs
    figure = paired.differences(results)[0]
    assert "seeds are drawn" not in figure.caption
    assert {row["seed"] for row in table(figure, "seed")} == set(map(str, range(1, 16)))
    monkeypatch.setattr("ablationlab.report.charts.theme.MOST_DRAWN", 10)
    figure = paired.differences(results)[0]
    assert "The first 10 of 15 seeds are drawn, and those with an arm's smallest or largest value." in figure.caption
    assert {row["seed"] for row in table(figure, "seed")} == {*map(str, range(1, 11)), "14"}


def test_the_map_tells_how_runs_ended(rich: Results):
    figure = stability.ends(rich)[0]
    ends = {(row["variant"], row["regime"], row["seed"]): row["end"] for row in table(figure, "end")}
    assert ends["none", "hot", "1"] == "diverged"
    assert ends["none", "hot", "4"] == "spiked"
    assert ends["layernorm", "hot", "1"] == "steady"


def test_sweeps_count_unstable_runs_by_rate(rich: Results):
    cells = {(row["variant"], row["rate"]): row["text"] for row in table(sweeps.divergence_map(rich)[0], "text")}
    assert cells["none", "0.01"] == "3/4"
    assert cells["layernorm", "0.01"] == "0/4"
    assert len(sweeps.sweep_curves(rich)) == 1
    assert sweeps.divergence_map(rich)[0].caption.endswith(
        "diverged, spiked beyond the registered threshold, or ended worse than it began."
    )


def test_diagnostics_come_from_the_probes(rich: Results):
    figures = diagnostics(rich)
    assert {"probe-embedding-norm-default", "probe-residual-depth-hot"} <= {figure.key for figure in figures}
    depth = next(f for f in figures if f.key == "probe-residual-depth-default")
    assert {row["place"] for row in table(depth, "place")} == {0, 1, 2, 3}
    assert {row["step"] for row in table(depth, "place")} == {60}


def test_probes_are_those_of_the_compared_runs(rich: Results):
    """A gate trains the baseline on seeds of its own: they would enter its mean alone."""
    first, *others = rich.runs
    gate = dataclasses.replace(first, planned=first.planned.model_copy(update={"role": "gate"}))
    measured, _ = read_probes(dataclasses.replace(rich, runs=(gate, *others)), [("residual", "norm")])
    assert {reading.run.id for values in measured.values() for reading in values} == {run.id for run in others}


def test_evaluation_averages_templates_and_shows_chance(rich: Results):
    drawn = evaluation.task_rows(rich, "default")
    run = next(one for one in rich.runs if one.id == drawn[0]["run"])
    mine = [task.accuracy for task in run.evaluation.tasks if task.fewshot == 0]
    assert drawn[0]["accuracy"] == pytest.approx(100 * sum(mine) / len(mine))
    levels = {row["level"] for row in evaluation.reference_rows(rich, "default")}
    assert levels == {"chance", "unigram", "bigram", "trigram"}
    assert len(evaluation.reliability(rich)) == 2


def test_the_gate_reaches_tasks_with_and_without_examples(rich: Results):
    """On the page's table of tasks, by the names that the analysis gives them."""
    listed = tuple(
        TaskSensitivity(
            task=ComparedTask("last-word", shots),
            regime="default",
            templates=("plain",),
            items=200,
            chance=0.25,
            ngrams={},
            baseline_accuracy=0.6,
            control_accuracy=0.5,
            template_spread=None,
            gate_seeds=(),
            sensitivity=Sensitivity(sensitive, sensitive, control="told-apart"),
        )
        for shots, sensitive in ((0, True), (2, False))
    )
    found = EvaluationAnalysis(harness="lm_eval 0", precision="fp32", tasks=listed, contrasts=(), notes=())
    shown = task_table(rich.changed(analysis=rich.analysis.model_copy(update={"evaluation": found}), suite=None))
    notes = {row[0].value: row[1].text for row in shown.rows}
    assert notes == {"last-word": "", "last-word, 2-shot": "not sensitive at this scale"}


def test_what_is_not_there_is_not_drawn(tmp_path: Path):
    build(tmp_path, study(), only=lambda run: False)
    assert draw_figures(Results.open(tmp_path)).every() == ()


def test_colours_follow_variants_everywhere(rich: Results, drawn: Figures):
    given = colours(rich)
    assert list(given) == ["none", "layernorm", "rmsnorm"]
    assert len(set(given.values())) == 3
    for figure in drawn.every():
        for scale in _scales(figure.bare):
            if scale.get("domain") == list(given) and str(scale["range"][0]).startswith("#"):
                assert scale["range"] == list(given.values())


def _scales(spec: Any) -> list[dict[str, Any]]:
    if isinstance(spec, dict):
        own = [spec["scale"]] if isinstance(spec.get("scale"), dict) else []
        return own + [scale for value in spec.values() for scale in _scales(value)]
    return [scale for value in spec for scale in _scales(value)] if isinstance(spec, list) else []


def _linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def luminance(colour: str) -> float:
    linear = _linear(colour)
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("ground", "place"), [("#fbfaf7", 0), ("#0f1317", 1)])
def test_every_hue_stands_out_from_its_ground(ground: str, place: int):
    for pair in HUES:
        light, dark = sorted((luminance(ground), luminance(pair[place])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3


def test_no_channel_is_left_to_altair_to_infer(rich: Results, monkeypatch: pytest.MonkeyPatch):
    """A string or a plain value makes Altair hash each of its 600 classes: 80 of those took a fifth of a report's time."""
    made_from: list[Any] = []
    monkeypatch.setattr(alt.SchemaBase, "from_dict", lambda given, **_: made_from.append(given))
    draw_figures(rich)
    assert made_from == []


def test_axes_are_titled(drawn: Figures):
    for figure in drawn.every():
        titled = str(figure.bare)
        assert "'title': '" in titled, figure.key
        assert figure.caption.endswith(".")
        assert figure.alt


def test_figures_become_files(results: Results, tmp_path: Path):
    figures = draw_figures(results)
    with saving(Figures(figures.every()[:1]), tmp_path, print):
        pass
    key = figures.every()[0].key
    assert (tmp_path / f"{key}.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / f"{key}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / f"{key}.svg").read_text()


SHORT_OF_MEMORY = """
import resource, subprocess, sys
from pathlib import Path
from ablationlab.report.convert import converting
start, started = subprocess.Popen, []
subprocess.Popen = lambda *words, **options: started.append(words) or start(*words, **options)
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
spec = {"data": {"values": [{"x": 1}]}, "mark": "point", "encoding": {"x": {"field": "x", "type": "quantitative"}}}
with converting({"a": spec, "b": spec, "c": spec}, Path(sys.argv[1]), ("svg",), print):
    print("the page")
print(len(started))
"""


def test_charts_that_kill_their_converter_are_a_note(tmp_path: Path):
    done = subprocess.run([warm.FRESH, "-c", SHORT_OF_MEMORY, tmp_path], capture_output=True, text=True, check=True)
    first, second, started = done.stdout.splitlines()
    assert first == "the page"
    assert second.startswith("Not drawn: a, b, c; the chart converter was killed by signal ")
    assert started == "2", "where no engine lives through its first chart, no other is started"
    assert done.stderr == ""


TOO_LITTLE_MEMORY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv.pop(1)),) * 2)
from ablationlab.cli import main
main()
"""


@pytest.mark.parametrize("verb", ["report", "paper"])
def test_with_too_little_memory_a_report_is_refused_before_a_library_crashes(
    results: Results, tmp_path: Path, verb: str
):
    words = [warm.FRESH, "-c", TOO_LITTLE_MEMORY, str(4 * 10**8), verb, results.folder, "--out", tmp_path / "out"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, (tmp_path / "out").exists()) == (2, "", False)
    told = " ".join(done.stderr.split())
    assert f"the {verb} needs at least 1.00 GB of memory, and this process may have 400 MB. Raise" in told


LITTLE_ADDRESS_SPACE = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]) * 10**9,) * 2)
from ablationlab.report.make import make_report
written = make_report(Path(sys.argv[1]), out=Path(sys.argv[2]), parts=("page", "figures", "tables"), say=print)
print("Written:", *(path.name for path in written))
"""


def test_a_report_with_little_address_space_is_written_without_its_charts(results: Results, tmp_path: Path):
    words = [warm.FRESH, "-c", LITTLE_ADDRESS_SPACE, results.folder, tmp_path, "4"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    *notes, last = done.stdout.splitlines()
    assert any(note.startswith("Not drawn: ") and "was killed by signal" in note for note in notes)
    assert last == "Written: report.html tables"
    assert results.question in (tmp_path / "report.html").read_text()


def test_the_figure_of_unpaired_runs_speaks_of_means_and_of_no_pairs(tmp_path):
    rows = [("none", seed, 2.0 + 0.01 * seed) for seed in range(1, 6)]
    rows += [("wide", seed, 1.9 + 0.01 * seed) for seed in range(11, 15)]
    frame = pd.DataFrame(rows, columns=["variant", "seed", "val_loss"])
    ablationlab.analyze(frame, baseline="none").write(tmp_path)
    results = Results.open(tmp_path)
    (drawn,) = paired.differences(results)
    assert drawn.title == "Differences in val loss, unpaired"
    assert drawn.caption.startswith("Diamond and bar: difference of the two means and its 95")
    assert "(welch)" in drawn.caption
    assert not any(word in drawn.caption.lower() for word in ("pair", "seed"))


def test_an_axis_turns_logarithmic_only_where_values_explode():
    assert robust_scale([1.0, 2.0, 3.0], zero=False)[1:] == ({}, "")
    assert robust_scale([1.0, 2.0, 1e4])[1:] == ({}, ", log scale")
    assert robust_scale([0.0, 0.0])[1:] == ({}, "")
    assert robust_scale([1.0, 2.0, 1e10])[1]["values"] == [1.0, 1e2, 1e4, 1e6, 1e8, 1e10]  # no grey band of grid lines


def test_a_symmetric_log_axis_is_marked_at_powers_of_ten():
    """Vega marks it as it would a linear one: 0 and the far end, nothing between."""
    _, axis, words = robust_scale([-12.0, -1.0, 2.0, 3e4])
    assert words == ", symmetric log scale"
    assert axis["values"] == [0, 100, 1_000, 10_000]
    assert decades([-1e6, 5.0], 7.0)["values"] == [-1e5, -1e3, -10, 0]


def test_changes_of_many_powers_of_ten_are_marked_in_words_that_fit():
    chart = {
        "mark": "point",
        "encoding": {"x": {"field": "x", "type": "quantitative", "axis": paired.changes([-7, 7])}},
    }
    spec = {**chart, "width": 300, "data": {"values": [{"x": -7.0}, {"x": 7.0}]}}
    assert re.findall(r">(×[^<]+)</text>", svg_of(spec)) == ["×0.001", "×1", "×1,000"]
    spec["encoding"]["x"]["axis"] = paired.changes([-0.5, 0.5])
    assert ">0\u202f%<" not in svg_of(spec)
    assert ">0 %<" in svg_of(spec)


def _apart(one: str, other: str) -> float:
    return math.dist(*([int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in (one, other)))


def test_ways_to_end_are_told_apart_by_colour():
    shown = list(stability.ENDS.values())
    assert min(_apart(one, other) for place, one in enumerate(shown) for other in shown[:place]) > 20


def test_dashes_and_gaps_are_so_long_that_lines_which_coincide_show_both_colours():
    assert min(length for pattern in theme.DASHES[1:] for length in pattern) >= 4


def test_levels_of_intervals_are_told_alike_in_every_regime():
    levels = [SimpleNamespace(level=level) for level in (0.9979, 0.95, 0.9875, 0.95)]
    assert paired._levels(levels).replace("\u202f", " ") == "95 % to 99.79 %"
    assert paired._levels([*levels[1:3], None]).replace("\u202f", " ") == "95 % or 98.75 %"


def test_a_legend_lists_the_variants_that_are_drawn_and_no_other():
    colour = alt.Color("variant:N", scale=alt.Scale(domain=["none", "a", "b"]), legend=alt.Legend(title=None))
    lines = alt.Chart(alt.NamedData("rows")).mark_line().encode(x="step:Q", color=colour)
    drawn = Figure("key", "title", ("caption",), alt.layer(lines), {"rows": [{"variant": "b", "step": 1}, {"step": 2}]})
    (layer,) = drawn.bare["layer"]
    assert layer["encoding"]["color"]["scale"]["domain"] == ["none", "a", "b"], "colours stay those of the study"
    assert layer["encoding"]["color"]["legend"]["values"] == ["b"]
    assert drawn.variants == {"b"}


def test_no_two_of_many_variants_look_alike():
    names = tuple(f"variant-{number}" for number in range(30))
    crowd = SimpleNamespace(variants=names, baseline=names[0])
    for channel in (variant_dash(crowd), variant_shape(crowd)):
        looks = zip(colours(crowd).values(), map(str, channel.to_dict()["scale"]["range"]), strict=True)
        assert len(set(looks)) == len(names)


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_fourteen_arms_have_fourteen_colours_that_an_eye_tells_apart(place: int):
    names = tuple(f"variant-{number}" for number in range(14))
    crowd = SimpleNamespace(variants=names, baseline=names[0])
    dark = dict(HUES)
    given = [colour if place == 0 else dark[colour] for colour in colours(crowd).values()]
    for one, other in itertools.combinations(given, 2):
        assert math.dist(_lab(one), _lab(other)) > 18, (one, other)


#: What dichromats see of linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
DICHROMATS = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("eye", DICHROMATS)
def test_six_arms_have_colours_that_a_colour_blind_eye_tells_apart(place: int, eye: str):
    for one, other in itertools.combinations([pair[place] for pair in HUES[:6]], 2):
        seen = [_lab(colour, DICHROMATS[eye]) for colour in (one, other)]
        assert math.dist(*seen) > 9, (one, other)


def _lab(colour: str, eye: tuple[tuple[float, ...], ...] = ((1, 0, 0), (0, 1, 0), (0, 0, 1))) -> tuple[float, ...]:
    """CIELAB under D65, in which 2.3 is a difference that is just noticed."""
    linear = np.clip(np.array(eye) @ _linear(colour), 0, 1)
    weights = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in weights @ linear / (0.95047, 1, 1.08883))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_a_legend_of_many_variants_has_several_columns():
    names = [f"nanochat-small-norm-{number:02}" for number in range(15)]
    assert (legend_columns(names, 360), legend_columns(names[:8], 360)) == (2, 1)


def test_names_of_levels_are_hidden_where_they_would_overprint_one_another(results: Results):
    values = [row["y"] for row in table(curves.curves(results)[0], "run", "step", "y")]
    low, high = min(values), max(values)
    near = high - 0.01 * (high - low)  # a pixel or two below
    plan = results.plan.model_copy(update={"reference_losses": {"uniform": high, "unigram": near, "bigram": low}})
    svg = svg_of(curves.curves(dataclasses.replace(results, plan=plan))[0].spec())
    shown = {
        name: set(re.findall(rf'<text[^>]* opacity="([\d.]+)"[^>]*>{name}<', svg)) for name in plan.reference_losses
    }
    assert shown == {"uniform": set(), "unigram": {"0"}, "bigram": {"1"}}
    assert re.findall(r'<text[^>]* opacity="1"[^>]*>chance<', svg)


def test_lines_that_coincide_have_marks_at_steps_of_their_own(results: Results):
    """The made-up curves depend on the seed alone, so the means of all three arms are one line."""
    svg = svg_of(next(figure for figure in curves.curves(results) if figure.key == "curve-loss").spec())
    marks = re.findall(r'<path[^>]*translate\(([\d.]+),[\d.]+\)[^>]* fill="(#\w+)"[^>]* stroke="#ffffff"', svg)
    steps = {hue: {float(x) for x, found in marks if found == hue} for hue in colours(results).values()}
    assert [len(found) for found in steps.values()] == [5, 5, 5]
    assert all(not one & other for one, other in itertools.combinations(steps.values(), 2))


def test_changes_of_logarithms_are_marked_in_percent_and_as_factors_from_ten_on():
    ticks = paired.changes([math.log(0.39), math.log(1.25), None])
    assert [round(100 * math.expm1(value)) for value in ticks["values"]] == [-60, -40, -20, 0]
    assert "' %'" in ticks["labelExpr"]
    wide = paired.changes([math.log(0.004), math.log(1370)])
    assert [round(value / math.log(10)) for value in wide["values"]] == [-2, -1, 0, 1, 2, 3]
    assert "'×'" in wide["labelExpr"]


def test_settings_that_regimes_cross_are_drawn_together(tmp_path):
    token, large = {"front": {"place": "token"}}, {"token_init_std": 1.0}
    regimes = {"token": {"model": token}, "large": {"model": large}, "both": {"model": token | large}}
    results = made(tmp_path, regimes=regimes)
    (drawn,) = factors.interaction(results)
    cells = {(row["variant"], row["across"], row["line"]): row["delta"] for row in drawn.data["table0"]}
    assert len(cells) == 8
    found = results.analysis.comparison("validation_loss", "large", "rmsnorm", "none")
    assert cells["rmsnorm", "1.0", "place sum"] == pytest.approx(found.delta)
    place = ("rmsnorm", "1.0", "place sum")
    shown = next(row for row in drawn.data["table0"] if (row["variant"], row["across"], row["line"]) == place)
    assert shown["change"] == difference_of(found).text
    assert (shown["low"], shown["high"]) == (found.main_interval.low, found.main_interval.high)
    svg_of(drawn.spec())


PRINTED = {
    "value": (lambda value: number(value, 5), (0.00012345, 0.5, -1.65, 3.4617, 9.99999, 12.5, 5029.4, 42_195.4)),
    "reading": (lambda value: number(value, 4), (0.00012345, 0.25, -1.65, 3.4617, 99.996, 5029.4)),
    "score": (number, (0.0123, 0.5, -1.65, 3.4617, 12.5, 999.4)),
    "percentage": (lambda value: fixed(value, 1), (0.04, 15.26, 99.96, -3.0)),
    "points": (lambda value: fixed(value, 1, sign=True), (40.0, -12.54, 0.36)),
    "count": (count, (7, 1234, 614_400)),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_tooltips_print_numbers_as_the_page_does(kind: str):
    printed, values = PRINTED[kind]
    rows = [{"value": value, "place": place} for place, value in enumerate(values)]
    text = alt.Text("value:Q", format=NUMBERS[kind])
    chart = alt.Chart(alt.InlineData(values=rows)).mark_text().encode(y=alt.Y("place:O", axis=None), text=text)
    shown = re.findall(r">([^<>]+)</text>", svg_of(chart.to_dict()))
    assert shown == list(map(printed, values))


def test_arms_that_cross_two_settings_are_drawn_against_the_first(tmp_path):
    table = study().model_dump(mode="json", exclude_defaults=True, exclude={"variants", "baseline"})
    levels = {"training.weight_decay": [0.1, 0.0], "model.front.norm": ["none", "layernorm", "rmsnorm"]}
    build(tmp_path, parse_study({**table, "factors": levels}))
    results = with_analysis(Results.open(tmp_path), say=lambda text: None)
    (drawn,) = factors.interaction(results)
    rows = {row["variant"]: row for row in drawn.data["table0"]}
    assert len(rows) == 6
    assert rows[results.baseline] | {"delta": 0.0, "change": "0", "range": ""} == rows[results.baseline]
    for comparison in results.analysis.comparisons:
        if comparison.metric == "validation_loss":
            told = difference_of(comparison)
            assert (rows[comparison.variant]["change"], rows[comparison.variant]["range"]) == (told.text, told.range)
    svg_of(drawn.spec())
