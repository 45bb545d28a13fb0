"""The page, in a real browser: quiet, offline, readable, and every control does what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ablationlab.core.errors import RecordError, StorageError
from ablationlab.core.format import plain
from ablationlab.records.results import Results, Run
from ablationlab.records.verdict import Advice, Answer, VariantVerdict, WithoutSeed
from ablationlab.report.charts import curves
from ablationlab.report.charts.theme import DARK_OF
from ablationlab.report.make import make_report, with_analysis
from ablationlab.report.page.build import SECTIONS, page_html, write_page
from ablationlab.report.page.design import _budgets, runs_words, strip
from ablationlab.report.page.embed import by_column, json_for_script, packed, policy
from ablationlab.report.page.verdicts import linked_answers
from ablationlab.report.tables import write_tables
from ablationlab.report.tables.answers import answer_line
from analysis.builder import HYPOTHESES, build, outcome, seal_again, study
from report.maker import full, made, sweep, unfolded

EVIL = "<script>alert(1)</script><!-- <img src=x onerror=alert(2)> {{ 7*7 }} \"'&"
ORDER = [
    "verdict",
    "replication",
    "tradeoff",
    "paired",
    "curves",
    "comparisons",
    "stability",
    "diagnostics",
    "evaluation",
    "calibration",
    "power",
    "controls",
    "runs",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a finished study with nothing optional."""
    folder = tmp_path_factory.mktemp("small")
    return write_page(made(folder), folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study in two regimes with every optional part."""
    folder = tmp_path_factory.mktemp("whole")
    return write_page(full(folder), folder)


# Tests that share an open page leave rows and charts as they were, or ask for the state they need first.


@pytest.fixture(scope="module")
def small_seen(visit_once: Callable[..., Any], small: Path) -> Any:
    return visit_once(small.as_uri())


@pytest.fixture(scope="module")
def whole_seen(visit_once: Callable[..., Any], whole: Path) -> Any:
    """On a phone, in the dark."""
    return visit_once(whole.as_uri(), width=390, height=844, dark=True, touch=True)


def test_it_loads_without_a_word_and_without_a_request(whole_seen: Any, whole: Path):
    assert whole_seen.said == []
    assert whole_seen.asked == [whole.as_uri()]
    drawn = whole_seen.page.locator(".plot svg.marks").count()
    assert drawn == whole_seen.page.locator("[data-chart]").count() > 30
    assert whole_seen.page.locator("svg.marks:not([aria-label])").count() == 0


def test_sections_stand_in_the_order_of_the_questions(small_seen: Any, whole_seen: Any):
    assert [key for key, _ in SECTIONS] == ORDER
    page = whole_seen.page
    found = page.eval_on_selector_all("main > section", "all => all.map(one => one.id)")
    assert found == [key for key in ORDER if key != "replication"]
    page = small_seen.page
    found = page.eval_on_selector_all("main > section", "all => all.map(one => one.id)")
    left_out = ("replication", "tradeoff", "diagnostics", "evaluation", "calibration")  # no run of it was unstable
    assert found == [key for key in ORDER if key not in left_out]
    linked = page.eval_on_selector_all(".toc a", "all => all.map(one => one.hash.slice(1))")
    assert linked == found


def test_the_contents_mark_the_section_in_view_and_none_above_the_first(small_seen: Any):
    page = small_seen.page
    page.locator("main > section").last.evaluate("one => one.scrollIntoView()")
    page.wait_for_selector(".toc a[aria-current]")
    assert page.eval_on_selector_all(".toc a[aria-current]", "all => all.length") == 1
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_selector(".toc a[aria-current]", state="detached", timeout=20_000)


@pytest.mark.parametrize(("form", "first"), [("markdown", "| Variant |"), ("latex", "% Needs")])
def test_the_ablation_table_can_be_copied(small_seen: Any, form: str, first: str):
    page = small_seen.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(f"[data-copy={form}]").click()
    page.locator("#copied", has_text="Copied.").wait_for()
    text = page.evaluate("navigator.clipboard.readText()")
    assert text.startswith(first)
    assert "layernorm" in text


def test_a_phone_never_scrolls_sideways(whole_seen: Any):
    page = whole_seen.page
    extra = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert extra == 0
    widest = page.eval_on_selector_all(".plot svg.marks", "all => Math.max(...all.map(one => one.clientWidth))")
    assert 0 < widest <= 390


def _column(page: Any, place: int) -> list[str]:
    return page.eval_on_selector_all(
        "#comparisons-table > tbody:not([hidden]) > tr:first-child",
        f"all => all.map(row => row.cells[{place}].dataset.value ?? row.cells[{place}].textContent.trim())",
    )


def test_sorting_orders_by_number_and_says_so(whole_seen: Any):
    page = whole_seen.page
    head = page.locator("#comparisons-table thead th", has_text="difference")
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    up = [float(value) for value in _column(page, 4) if value]
    assert up == sorted(up)
    assert len(up) > 5
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert [float(value) for value in _column(page, 4) if value] == sorted(up, reverse=True)
    others = page.eval_on_selector_all("#comparisons-table thead th[aria-sort=none]", "all => all.length")
    assert others == 6, "the regime stands below the metric"


def test_filters_leave_what_they_name(whole_seen: Any):
    page = whole_seen.page
    total = page.locator("#comparisons-table > tbody").count()
    shown = page.locator("#comparisons-table > tbody:not([hidden])")
    page.select_option("#comparison-filters select[name=metric]", "validation_loss")
    page.select_option("#comparison-filters select[name=regime]", "hot")
    metrics = shown.evaluate_all("all => all.map(one => [one.dataset.metric, one.dataset.regime])")
    assert metrics == [["validation_loss", "hot"]] * 2
    assert page.locator("#comparison-count").text_content() == f"2 of {total} comparisons"
    page.select_option("#comparison-filters select[name=regime]", "")
    page.select_option("#comparison-filters select[name=metric]", "")
    page.select_option("#comparison-filters select[name=label]", "exploratory")
    assert 0 < shown.count() < total
    assert set(shown.evaluate_all("all => all.map(one => one.dataset.label)")) == {"exploratory"}
    page.select_option("#comparison-filters select[name=label]", "")
    assert shown.count() == total


def _marks(page: Any, key: str, kind: str) -> int:
    return page.locator(f'[data-chart="{key}"] svg.marks .mark-{kind} path').count()


def test_selecting_a_variant_and_a_seed_reaches_charts_and_tables(small_seen: Any):
    page = small_seen.page
    statistics = page.locator("#comparisons-table .c-delta").all_text_contents()
    points = _marks(page, "slopes", "symbol")
    assert points == 3 * 4
    page.locator("[data-pick=variants][value=rmsnorm]").click()
    page.wait_for_selector("""body[data-selected*='"variants":["none","layernorm"]']""", state="attached")
    assert page.locator("[data-pick=variants][value=rmsnorm]").get_attribute("aria-pressed") == "false"
    assert _marks(page, "slopes", "symbol") == 2 * 4
    assert page.locator('[data-chart="curve-loss"] .off').all_text_contents() == ["rmsnorm"]
    assert page.locator("#runs-table > tbody:not([hidden])").count() == 2 * 4
    rows = page.eval_on_selector_all(
        "#comparisons-table > tbody:not([hidden])", "all => all.map(one => one.dataset.variant)"
    )
    assert set(rows) == {"layernorm"}
    judged = page.locator("#verdict tbody tr:not([hidden])")
    assert judged.evaluate_all("all => all.map(one => one.dataset.variant)") == ["layernorm"]
    assert page.locator("#verdict .picture:not([hidden])").count() == 1
    page.locator("[data-pick=seeds][value='2']").click()
    page.wait_for_selector("""body[data-selected*='"seeds":["1","3","4"]']""", state="attached")
    assert page.locator("#comparisons-table .c-delta").all_text_contents() == statistics
    assert _marks(page, "slopes", "symbol") == 2 * 3
    assert _marks(page, "spikes", "symbol") == 2 * 3
    assert page.locator("#runs-table > tbody:not([hidden])").count() == 2 * 3
    page.locator("#reset").click()
    page.wait_for_selector("""body[data-selected*='"seeds":["1","2","3","4"]']""", state="attached")
    assert _marks(page, "slopes", "symbol") == points
    assert page.locator("#reset").is_disabled()


ADDRESS = "#~variants=none&variants=layernorm&smooth=10&only-metric=validation_loss"


@pytest.fixture(scope="module")
def small_again(visit_once: Callable[..., Any], small: Path) -> Any:
    """Opened by the address of a view; nothing on it is clicked but the theme."""
    return visit_once(small.as_uri() + ADDRESS)


def test_the_address_holds_the_view(small_seen: Any, small_again: Any):
    page = small_seen.page
    page.evaluate("history.replaceState(null, '', location.pathname)")  # another test followed a link
    page.locator("[data-pick=variants][value=rmsnorm]").click()
    page.wait_for_selector("""body[data-selected*='"variants":["none","layernorm"]']""", state="attached")
    page.select_option("#curve-tools select[name=smooth]", "10")
    page.select_option("#comparison-filters select[name=metric]", "validation_loss")
    address = page.evaluate("location.hash")
    assert address == ADDRESS
    page.select_option("#comparison-filters select[name=metric]", "")
    page.select_option("#curve-tools select[name=smooth]", "0")
    page.locator("#reset").click()
    page.wait_for_selector("""body[data-selected*='"variants":["none","layernorm","rmsnorm"]']""", state="attached")
    again = small_again.page
    assert again.locator("[data-pick=variants][value=rmsnorm]").get_attribute("aria-pressed") == "false"
    assert again.eval_on_selector("#curve-tools select[name=smooth]", "choice => choice.value") == "10"
    shown = again.locator("#comparisons-table > tbody:not([hidden])")
    assert shown.evaluate_all("all => all.map(body => [body.dataset.variant, body.dataset.metric])") == [
        ["layernorm", "validation_loss"]
    ]


def test_curves_are_smoothed_zoomed_and_drawn_on_a_log_axis(small_seen: Any):
    page = small_seen.page
    curve = page.locator('[data-chart="curve-loss"]')
    curve.scroll_into_view_if_needed()

    def drawn() -> list[str]:
        page.wait_for_timeout(600)
        lines = "chart => [...chart.querySelectorAll('path[d]')].map(path => path.getAttribute('d'))"
        return sorted(path for path in curve.evaluate(lines) if len(path) > 200)

    def ticks() -> set[str]:
        page.wait_for_timeout(600)
        return set(curve.locator(".role-axis-label text").all_text_contents())

    plain = ticks()
    box = curve.locator("svg.marks").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.keyboard.down("Shift")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Shift")
    zoomed = ticks()
    assert zoomed != plain
    assert any("zoom=curve-loss" in page.evaluate("location.hash") for _ in range(50) if ticks())
    address = page.evaluate("location.hash")
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert any("zoom" not in page.evaluate("location.hash") for _ in range(50) if ticks())
    assert ticks() == plain
    page.evaluate("address => { location.hash = address }", address)  # a link to the view
    assert any(ticks() == zoomed for _ in range(50))
    page.select_option("#curve-tools select[name=axis]", "linear")  # a range belongs to its axis
    page.select_option("#curve-tools select[name=axis]", "")
    assert any(ticks() == plain for _ in range(50))
    assert "zoom" not in page.evaluate("location.hash")
    page.mouse.move(0, 0)  # lines under the pointer are drawn in other ways
    page.wait_for_timeout(600)
    for name, value, *usual in (("smooth", "10", "0"), ("axis", "log", "linear", "")):
        before = drawn()
        page.select_option(f"#curve-tools select[name={name}]", value)
        page.wait_for_timeout(1500)
        assert drawn() != before, name
        for value in usual:
            page.select_option(f"#curve-tools select[name={name}]", value)
    broken = page.locator('[data-chart="curve-gap"]')  # the title of its axis has two lines
    for value, words in (("log", "log scale"), ("linear", ""), ("", "")):
        page.select_option("#curve-tools select[name=axis]", value)
        page.wait_for_timeout(1000)
        for chart in (curve, broken):
            shown = " ".join(chart.locator(".role-axis-title text").all_text_contents())
            assert ("log scale" in shown) is bool(words), (value, shown)


def test_a_finger_scrolls_past_a_chart_and_a_part_of_the_run_is_chosen_by_name(whole_seen: Any):
    page = whole_seen.page
    assert not page.locator("#curve-tools .mouse").is_visible()
    curve = page.locator('[data-chart^="curve-loss"]').first
    curve.scroll_into_view_if_needed()
    ticks = lambda: curve.locator(".role-axis-label text").all_text_contents()  # noqa: E731
    plain, top = ticks(), page.evaluate("scrollY")
    box = curve.locator("svg.marks").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    finger = page.context.new_cdp_session(page)
    finger.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for step in range(1, 9):
        finger.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [{"x": x, "y": y - 12 * step}]})
        page.wait_for_timeout(20)
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_timeout(600)
    assert page.evaluate("scrollY") > top
    assert (ticks(), page.evaluate("location.hash")) == (plain, "")
    page.select_option("#curve-tools select[name=part]", "50-100")
    assert any(ticks() != plain for _ in range(50) if page.wait_for_timeout(100) is None)
    assert page.evaluate("location.hash") == "#~part=50-100"
    steps = [int(text.replace(",", "")) for text in ticks() if re.fullmatch(r"[\d,]+", text)]
    assert min(steps) >= max(steps) / 2
    page.select_option("#curve-tools select[name=part]", "")
    assert any(ticks() == plain for _ in range(50) if page.wait_for_timeout(100) is None)


def test_notes_below_tables_are_small_whatever_stands_between(whole_seen: Any):
    """A table that is wider than the screen has words below it, before its note."""
    sizes = whole_seen.page.eval_on_selector_all(
        "main .scroll ~ .note", "all => all.map(one => getComputedStyle(one).fontSize)"
    )
    cued = whole_seen.page.locator("main .cue + .note").count()
    assert cued
    assert set(sizes) == {"13.12px"}


def test_charts_near_the_window_come_first_and_lines_of_many_seeds_wait_for_the_pointer(
    visit: Callable[..., Any], tmp_path: Path
):
    seen = visit(write_page(made(tmp_path, seeds=list(range(1, 19))), tmp_path).as_uri())
    assert seen.said == []
    page = seen.page
    near, ready = page.evaluate("[document.body.dataset.near, document.body.dataset.ready].map(Number)")
    assert near < ready == page.locator("[data-chart]").count()  # the far ones too: they are printed
    curve = page.locator('[data-chart="curve-loss"]')
    lines = curve.locator("svg.marks .mark-line path")
    assert lines.count() == 3
    curve.scroll_into_view_if_needed()
    curve.hover()
    lines.nth(3 + 2 * 3 * 18 - 1).wait_for(state="attached")


def test_a_single_seed_can_be_followed_under_the_pointer(small_seen: Any):
    page = small_seen.page
    page.locator('[data-chart="curve-loss"]').scroll_into_view_if_needed()
    box = page.locator('[data-chart="curve-loss"] svg.marks').bounding_box()
    tip = page.locator("#vg-tooltip-element.visible")
    for height in range(40, int(box["height"]) - 40, 4):
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + height)
        if tip.count():
            break
    assert "seed" in tip.inner_text()
    page.wait_for_timeout(300)
    strong = page.eval_on_selector_all(
        '[data-chart="curve-loss"] svg.marks path',
        "all => all.filter(one => one.getAttribute('stroke-opacity') === '1').length",
    )
    assert strong >= 1


def test_numbers_lead_to_where_they_come_from(small_seen: Any, small: Path):
    page = small_seen.page
    link = page.locator("#verdict td.c-delta a").first
    target = link.get_attribute("href")
    link.click()
    detail = page.locator(f"{target}-more")
    detail.wait_for(state="visible")
    assert "validation_loss/default/layernorm:none" in detail.inner_text()
    run = detail.locator("a[href^='#r']").first
    opened = run.get_attribute("href")
    run.click()
    files = page.locator(f"{opened}-more a")
    files.first.wait_for(state="visible")
    for address in files.evaluate_all("all => all.map(one => one.getAttribute('href'))"):
        assert (small.parent / address).is_file()


def test_charts_of_a_dark_page_are_printed_in_light_colours(visit: Callable[..., Any], small: Path):
    page = visit(small.as_uri(), dark=True).page
    used = "() => [...document.querySelectorAll('.plot svg [fill]')].map(one => one.getAttribute('fill'))"
    dark = page.evaluate(used)
    assert DARK_OF["#0072b2"] in dark
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert not set(page.evaluate(used)) & (set(DARK_OF.values()) - set(DARK_OF))
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(used) == dark


def test_paper_has_every_chart_and_every_column(visit: Callable[..., Any], small: Path):
    page = visit(small.as_uri(), ready=False).page
    page.add_init_script("window.requestIdleCallback = () => 0")  # never idle: charts wait
    page.reload()
    page.wait_for_function("() => document.body.dataset.near !== undefined")
    undrawn = (
        "() => [...document.querySelectorAll('[data-chart]')].filter(one => !one.querySelector('svg.marks')).length"
    )
    assert page.evaluate(undrawn) > 0
    page.evaluate("() => { window.dispatchEvent(new Event('beforeprint')); }")
    assert page.evaluate(undrawn) == 0
    page.set_viewport_size({"width": 720, "height": 1000})  # A4 within its margins
    page.emulate_media(media="print")
    wide = """() => [...document.querySelectorAll('.scroll')].map(one => [one.querySelector('table').id,
        getComputedStyle(one).overflowY, getComputedStyle(one).borderRightWidth, one.scrollWidth > one.clientWidth + 1])
        .filter(([, over, edge, cut]) => over !== 'visible' || edge !== '0px' || cut)"""
    assert page.evaluate(wide) == []


def test_theme_and_keyboard(small_again: Any):
    page = small_again.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    unreached = page.evaluate(
        "[...document.querySelectorAll('button, select, a[href], .scroll')].filter(one => one.tabIndex < 0).length"
    )
    assert unreached == 0
    nameless = page.evaluate(
        "[...document.querySelectorAll('main button, main select')].filter("
        "one => !one.textContent.trim() && !one.labels?.length).length"
    )
    assert nameless == 0


def _renamed(run: Run) -> Run:
    names = {"id": f"{EVIL}{run.seed}", "variant": run.variant + EVIL}
    return run.changed(planned=run.planned.model_copy(update=names))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose every free text is markup."""
    folder = tmp_path_factory.mktemp("hostile")
    build(folder, study(name=EVIL, question=f"Is {EVIL} shown?", seeds=[1, 2, 3]))
    results = with_analysis(Results.open(folder), say=lambda text: None)
    runs = tuple(_renamed(run) for run in results.runs)
    hostile_study = results.plan.study.model_copy(update={"variants": (EVIL, "none", "layernorm" + EVIL)})
    plan = results.plan.model_copy(update={"study": hostile_study})
    swept = sweep()
    curves = (swept.curves[0].model_copy(update={"variant": EVIL}),)
    nothing = {"points": (), "sensitivities": (), "summaries": (), "best": ()}
    swept = swept.model_copy(update={**nothing, "curves": curves})
    analysis = results.analysis.model_copy(update={"sweep": swept})
    return write_page(results.changed(runs=runs, plan=plan, analysis=analysis, stale=()), folder)


def test_markup_in_names_shows_as_text(visit: Callable[..., Any], hostile: Path):
    seen = visit(hostile.as_uri())
    dialogs = []
    seen.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    assert seen.page.locator("h1").text_content() == EVIL
    assert seen.page.title().startswith(EVIL[:20])
    assert EVIL in seen.page.locator(".question").text_content()
    assert seen.page.locator("[data-pick=variants]").nth(1).text_content() == EVIL
    seen.page.evaluate("document.querySelectorAll('.more').forEach((button) => button.click())")
    assert seen.page.locator("#comparisons-table tr.detail").count() > 0
    assert seen.page.locator("#comparisons-table tr.detail > td:empty").count() == 0
    assert seen.page.locator("main img, header img").count() == 0
    # Data, compressed data, the compressed library and the library, and the page's own two.
    assert seen.page.locator("script").count() == 6
    assert dialogs == []
    # Charts whose every mark is of an unknown variant are empty, which Vega warns of.
    assert [text for text in seen.said if not (text.startswith("warning: WARN") and "Infinity" in text)] == []
    assert seen.asked == [hostile.as_uri()]


def test_compressed_text_is_smaller_and_comes_back():
    import base64
    import zlib

    text = "a ± b </script> " * 100
    assert len(packed(text)) < len(text) / 5
    assert zlib.decompress(base64.b64decode(packed(text))).decode() == text
    assert packed(text) == packed(text)


def test_json_inside_a_script_cannot_end_it():
    text = json_for_script({"a": "</script><!--<script>\u2028&"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--<script>\u2028&"}


def test_the_policy_allows_these_scripts_and_no_network():
    import base64
    import hashlib

    found = policy("let a = 1")
    digest = base64.b64encode(hashlib.sha256(b"let a = 1").digest()).decode()
    assert f"script-src 'sha256-{digest}';" in found
    assert found.startswith("default-src 'none'")
    for word in ("connect-src", "unsafe-eval", "http", "*"):
        assert word not in found


def test_columns_hold_what_the_rows_held():
    rows = [{"a": 1.5, "b": "x"}, {"a": float("nan"), "b": "x"}, {"b": "y", "c": None}]
    found = by_column(rows)
    assert found["length"] == 3
    assert found["columns"]["a"]["values"] == [1.5, None, None]
    column = found["columns"]["b"]
    assert [column["words"][place] for place in column["at"]] == ["x", "x", "y"]


def test_a_changed_record_changes_the_page(tmp_path: Path):
    made(tmp_path)
    before = page_html(Results.open(tmp_path), tmp_path)
    run = next((tmp_path / "runs").glob("default-layernorm-s1*")) / "result.json"
    record = json.loads(run.read_text())
    record["metrics"]["validation_loss"] = 1.2345
    run.write_text(json.dumps(record))
    seal_again(tmp_path)
    said: list[str] = []
    make_report(tmp_path, parts=["page"], say=said.append)
    after = (tmp_path / "report.html").read_text()
    assert "1.2345" in after
    assert "1.2345" not in before
    assert any("regenerated" in text for text in said)


def test_the_page_names_the_learning_rate(tmp_path: Path):
    results = made(tmp_path / "one")
    assert results.plan is not None
    assert f"learning rate {results.plan.runs[0].lr:g}" in " ".join(note for *_, note in strip(results))
    results = made(tmp_path / "two", regimes={"hot": {"training": {"lr": 0.03}}})
    assert "to 0.03" in " ".join(note for *_, note in strip(results))


def test_every_answer_stands_with_its_sign_in_the_table_and_with_its_names_in_one_line(tmp_path: Path):
    results = made(tmp_path)
    assert results.verdict is not None
    text = page_html(results, tmp_path)
    table = text[text.index('<section id="verdict"') :].partition("</table>")[0]
    words = re.findall(r'<tr data-variant="(\w+)".*?<td class="c-answer[^>]*>([^<]*)<', table)
    assert dict(words) == {judged.variant: judged.answer.said for judged in results.verdict.verdicts}
    (line,) = re.findall(r'<p class="answer" id="answer">([^<]*)</p>', text)
    assert line == answer_line(results.verdict)
    for judged in results.verdict.verdicts:
        assert re.search(rf"\b{judged.answer}: [^.]*\b{judged.variant}\b", line)


def test_many_seeds_that_change_an_answer_are_counted(tmp_path: Path):
    results = made(tmp_path, seeds=list(range(1, 15)))
    assert results.analysis is not None
    assert results.verdict is not None

    def told(seeds: int) -> str:
        others = tuple(WithoutSeed(seed=seed, answer=Answer.UNDECIDED) for seed in range(1, seeds + 1))
        first = results.verdict.verdicts[0].model_copy(update={"without": others, "left_out": 14})
        verdict = results.verdict.model_copy(update={"verdicts": (first,)})
        table = linked_answers(results.analysis, verdict, {}, {})
        return next(cells[0].text for column, cells in table.printed() if column.key == "without")

    assert told(2) == "1: undecided, 2: undecided"
    assert told(13) == "13 of 14"


def test_names_are_grouped_by_their_answer_and_by_regime_where_there_are_several():
    def line(*judged: tuple[str, str, Answer], registered: str = "default") -> str:
        rows = [
            VariantVerdict(
                regime=regime,
                variant=variant,
                reference="none",
                comparison=None,
                answer=answer,
                advice=Advice.NONE,
                label="registered" if regime == registered else "exploratory",
            )
            for regime, variant, answer in judged
        ]
        return answer_line(SimpleNamespace(verdicts=rows))

    one = [("default", "b", Answer.UNDECIDED), ("default", "a", Answer.WORSE), ("default", "muon", Answer.BETTER)]
    assert line(*one) == "better: muon. worse: a. undecided: b."
    assert line(*one, ("default", "c", Answer.BETTER)) == "better: muon, c. worse: a. undecided: b."
    first, second = "default — better: muon. worse: a. undecided: b.", "hot — more stable (exploratory): a."
    two = [*one, ("hot", "a", Answer.MORE_STABLE)]
    assert line(*two) == f"{first}\n{second}"
    assert line(*two, registered="hot").startswith("hot — more stable: a.\ndefault — better (exploratory): muon.")
    assert line() == ""


def test_the_page_shows_the_hypotheses_of_the_study_and_no_others(tmp_path: Path):
    assert 'aria-label="Hypotheses"' not in page_html(made(tmp_path / "plain"), tmp_path)
    text = page_html(made(tmp_path / "asked", hypotheses=HYPOTHESES[2:]), tmp_path)
    table = text[text.index('aria-label="Hypotheses"') :].partition("</table>")[0]
    assert re.findall(r'<th scope="row"[^>]*>([^<]*)</th>', table) == ["H1b"]
    assert "Stability is restored." in table


def test_a_half_finished_study_is_marked_interim(visit: Callable[..., Any], tmp_path: Path):
    build(tmp_path, study(), only=lambda run: run.seed <= 3)
    said: list[str] = []
    make_report(tmp_path, parts=["page", "tables"], say=said.append)
    assert any(text.startswith("Interim: 6 of 10 runs") for text in said)
    page = visit((tmp_path / "report.html").as_uri(), ready=False).page
    assert "Interim: 6 of 10 runs have ended" in page.locator("#interim").inner_text()
    assert page.locator("#runs-table td", has_text="waiting").count() == 4


def test_a_study_without_a_finished_run_has_a_page(tmp_path: Path):
    build(tmp_path, study(), only=lambda run: False)
    text = make_report(tmp_path, parts=["page"], say=lambda text: None)[0].read_text()
    assert "No run has ended yet" in text


def test_a_damaged_record_is_named_and_the_rest_is_shown(tmp_path: Path):
    build(tmp_path, study())
    broken = sorted((tmp_path / "runs").iterdir())[0]
    (broken / "result.json").write_text("{ not json")
    said: list[str] = []
    written = make_report(tmp_path, parts=["page", "tables", "paper"], say=said.append)
    assert any(f"runs/{broken.name}/result.json" in text for text in said)
    text = written[0].read_text()
    assert f"runs/{broken.name}/result.json" in text
    assert "9 of 10" in text
    assert said[-1] == "No tables and no paper: there is no analysis to print."
    assert sum("`ablationlab analyze`" in text or "ablationlab analyze " in text for text in said) <= 2, said
    assert not any("regenerated" in text for text in said)
    with pytest.raises(RecordError, match=r"cannot be made from these records(?!.*make it with)"):
        write_tables(with_analysis(Results.open(tmp_path), said.append), tmp_path)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (lambda path: path.write_text(path.read_text().replace('"step":30,', '"step":"x",')), "metrics.jsonl"),
        (lambda path: path.write_text('{"kind": "other"}\n'), "metrics.jsonl"),
    ],
)
def test_damaged_curves_are_named(tmp_path: Path, damage: Any, name: str):
    build(tmp_path, study())
    folder = sorted((tmp_path / "runs").iterdir())[0]
    damage(folder / "metrics.jsonl")
    seal_again(tmp_path, courses=False)
    results = Results.open(tmp_path)
    for run in results.runs:
        assert run.curves is not None
    assert list(results.reader.damage) == [f"runs/{folder.name}/{name}"]


def test_a_torn_last_line_of_a_run_in_progress_is_no_damage(tmp_path: Path):
    build(tmp_path, study())
    folder = sorted((tmp_path / "runs").iterdir())[0]
    (folder / "result.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 61, "lo')
    assert not Results.open(tmp_path).problems


def test_arms_that_do_not_match_are_refused_on_the_page_too(tmp_path: Path):
    made(tmp_path)
    run = next((tmp_path / "runs").glob("default-layernorm-s1*")) / "run.json"
    record = json.loads(run.read_text())
    run.write_text(json.dumps({**record, "data_order_hash": "another"}))
    seal_again(tmp_path)
    (tmp_path / "analysis.json").unlink()
    written = make_report(tmp_path, parts=["page"], say=lambda text: None)
    text = written[0].read_text()
    assert "cannot be made from these records" in text
    assert "c-answer" not in re.sub(r"<style>.*?</style>", "", text, flags=re.S)


def test_what_is_no_results_folder_is_refused(tmp_path: Path):
    with pytest.raises(RecordError, match=r"neither plan\.lock nor analysis\.json"):
        make_report(tmp_path, say=lambda text: None)
    with pytest.raises(RecordError, match="no such folder"):
        make_report(tmp_path / "nowhere", say=lambda text: None)
    (tmp_path / "my.csv").write_text("variant,seed,loss")
    with pytest.raises(RecordError, match=r"a file, not a results folder\. .*: ablationlab analyze .*my\.csv"):
        make_report(tmp_path / "my.csv", say=lambda text: None)
    (tmp_path / "plan.lock").write_text("{}")
    with pytest.raises(RecordError, match=r"plan\.lock"):
        make_report(tmp_path, say=lambda text: None)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    made(tmp_path / "results")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file"):
        make_report(tmp_path / "results", tmp_path / "file", parts=["page"], say=lambda text: None)


def test_links_hold_when_the_report_lies_elsewhere(tmp_path: Path):
    results = made(tmp_path / "results")
    path = write_page(results, tmp_path / "elsewhere")
    assert "../results/runs/" in unfolded(path.read_text())


def test_a_table_of_runs_has_a_page(tmp_path: Path):
    from ablationlab.analysis import TableOptions, analyze, read_table
    from ablationlab.analysis.verdict import decide

    rows = ["variant,seed,metric,value"]
    rng = np.random.default_rng(0)
    rows += [f"{v},{s},val_loss,{2 + rng.normal(0, 0.1) + (v == 'b')}" for s in range(5) for v in ("a", "b")]
    (tmp_path / "runs.csv").write_text("\n".join(rows) + "\n")
    options = TableOptions.checked(baseline="a", primary="val_loss", lower=("val_loss",))
    analysis = analyze(read_table(tmp_path / "runs.csv", options))
    analysis.replace(tmp_path / "analysis.json")
    decide(analysis).replace(tmp_path / "verdict.json")
    text = make_report(tmp_path, parts=["page"], say=lambda text: None)[0].read_text()
    assert '<p class="answer" id="answer">worse (budget unknown, exploratory): b.</p>' in text
    assert 'id="runs"' not in text


def test_many_runs_still_make_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a hundredth of the runs of benchmarks/large_folder.py, with as little of the points that a chart may have."""
    monkeypatch.setattr(curves, "MOST_POINTS", curves.MOST_POINTS // 12)
    seeds = list(range(1, 29))
    build(tmp_path, study(variants=["none", "layernorm", "rmsnorm"], seeds=seeds), outcomes=outcome)
    (page,) = make_report(tmp_path, parts=["page"], say=lambda text: None)
    assert len(Results.open(tmp_path).runs) == 84
    assert page.stat().st_size < 1e6  # 0.6 MB
    text = page.read_text()
    assert text[text.index('id="runs-table"') :].count("<tbody") == 84
    assert "steps are drawn" in text[text.index('id="fig-curve-loss"') :]


def test_report_says_what_it_wrote_and_what_is_wrong(tmp_path: Path, cli: Callable[..., Any]):
    made(tmp_path / "results")
    code, said, _ = cli("report", tmp_path / "results", "--only", "page", "--out", tmp_path / "there")
    assert (code, (tmp_path / "there" / "report.html").is_file()) == (0, True)
    assert "report.html" in said
    code, _, errors = cli("report", tmp_path)
    assert code == 2
    assert "neither plan.lock nor analysis.json" in errors
    assert "Traceback" not in errors


def test_the_runs_at_a_glance_are_a_product_only_of_what_is_compared():
    """A gate's seeds and a sweep's rates are no factor of the comparisons."""

    class Shown(SimpleNamespace):
        compared = Results.compared

    def runs(role: str, *names: tuple[str, int]) -> list[SimpleNamespace]:
        planned = SimpleNamespace(role=role)
        return [SimpleNamespace(variant=arm, seed=seed, regime="default", planned=planned) for arm, seed in names]

    compared = runs("compared", *((arm, seed) for arm in ("none", "norm") for seed in (1, 2, 3)))
    gate = runs("gate", ("none", 101), ("none", 102))
    assert runs_words(Shown(runs=[*compared, *gate])) == "2 variants × 3 seeds, 2 for the gate"
    assert runs_words(Shown(runs=compared[1:])) == "2 variants, 3 seeds"


def test_arms_with_another_budget_are_named_with_it_and_with_what_is_matched():
    usual = SimpleNamespace(steps=60, tokens=4000, match="flops")
    fewer = SimpleNamespace(steps=55, tokens=3000, match="flops")

    def others(*, regimes: tuple[str, ...], fewer_in: Callable[[str, str], bool]) -> str:
        arms = [(variant, regime) for variant in ("none", "muon", "relu2") for regime in regimes]
        runs = [
            SimpleNamespace(variant=variant, regime=regime, budget=fewer if fewer_in(variant, regime) else usual)
            for variant, regime in arms
        ]
        tokens, steps, text = _budgets(SimpleNamespace(runs=runs))
        assert (tokens, steps) == (4000, 60)
        return plain(text)

    told = "55 steps and 3,000 tokens, matched by FLOPs"
    two = ("default", "tuned", "deep")
    assert others(regimes=two, fewer_in=lambda variant, regime: False) == ""
    assert others(regimes=two, fewer_in=lambda variant, regime: variant == "muon") == f"; muon {told}"
    assert others(regimes=two, fewer_in=lambda variant, regime: regime == "deep") == f"; in deep {told}"
    one = others(regimes=two, fewer_in=lambda variant, regime: (variant, regime) == ("muon", "deep"))
    assert one == f"; muon in deep {told}"
