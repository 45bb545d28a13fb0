"""The page in a real browser: short, quiet, offline, readable in both themes, by keyboard, on a phone and on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablationlab.report.page.build import write_page
from report.answers import made

KINDS = ("clean", "undecided", "unstable", "regimes", "swept")
#: Screens that a page may be high, on a desk and on a phone, and words outside tables, pictures and closed parts.
MOST_SCREENS, MOST_ON_A_PHONE, MOST_WORDS = 6, 9, 350

#: Words of what is seen: no table, picture, closed part or control.
WORDS = """() => {
  const texts = [];
  const walk = (node) => {
    if (node.nodeType === Node.TEXT_NODE) { texts.push(node.textContent); return; }
    if (node.nodeType !== Node.ELEMENT_NODE) return;
    if (node.matches('table, svg, script, style, button, .vh, [hidden], .forest, .ch')) return;
    if (node.matches('details:not([open])')) { walk(node.querySelector('summary')); return; }
    node.childNodes.forEach(walk);
  };
  walk(document.body);
  return texts.join(' ').split(/\\s+/).filter((word) => /[\\p{L}\\p{N}]/u.test(word)).length;
}"""
#: Texts that stand out from their ground by less than 4.5, with both colours.
FAINT = """() => {
  const channels = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const linear = [r, g, b].map((v) => v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const faint = new Set();
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest('script, style, .skip')) continue;
    const style = getComputedStyle(element);
    const drawn = element.namespaceURI.endsWith('svg') ? style.fill : style.color;
    if (drawn === 'none') continue;
    const [low, high] = [light(channels(drawn)), light(ground(element))].sort((a, b) => a - b);
    if ((high + 0.05) / (low + 0.05) < 4.5) faint.add(`${element.textContent.trim().slice(0, 30)} ${drawn}`);
  }
  return [...faint];
}"""


@pytest.fixture(scope="module", params=KINDS)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(made(request.param), tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def seen(visit_once: Callable[..., Any], page: Path) -> Any:
    return visit_once(page.as_uri(), width=1440, height=900)


def test_it_is_short_quiet_and_offline(seen: Any, page: Path):
    assert seen.page.evaluate("document.documentElement.scrollHeight") <= MOST_SCREENS * 900
    assert seen.page.evaluate(WORDS) <= MOST_WORDS
    assert seen.said == []
    assert seen.asked == [page.as_uri()]


def test_a_phone_shows_all_of_it_without_scrolling_sideways(visit: Callable[..., Any], page: Path):
    shown = visit(page.as_uri(), width=390, height=844, touch=True).page
    assert shown.evaluate("document.documentElement.scrollHeight") <= MOST_ON_A_PHONE * 844
    assert shown.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    for part in shown.locator("details").all():
        part.evaluate("part => { part.open = true; }")
    assert shown.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_every_text_stands_out_from_its_ground_in_both_themes(visit: Callable[..., Any], page: Path):
    for dark in (False, True):
        shown = visit(page.as_uri(), dark=dark).page
        for part in shown.locator("details").all():
            part.evaluate("part => { part.open = true; }")
        assert shown.evaluate(FAINT) == []


def test_the_keyboard_reaches_everything_that_opens(visit: Callable[..., Any], page: Path):
    shown = visit(page.as_uri()).page
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(400):
        shown.keyboard.press("Tab")
        name = shown.evaluate(
            "() => { const at = document.activeElement; at.dataset.reached = ''; return at.tagName + at.textContent; }"
        )
        if name in reached and shown.evaluate("document.activeElement === document.body"):
            break
        reached.add(name)
    left = """() => [...document.querySelectorAll('summary, button:not([hidden])')].filter(
      (element) => element.checkVisibility() && !('reached' in element.dataset)).length"""
    assert shown.evaluate(left) == 0
    first = shown.locator("details.chip").first
    first.locator("summary").focus()
    shown.keyboard.press("Enter")
    assert first.locator("table").is_visible()


def test_the_theme_is_the_reader_s(visit: Callable[..., Any], page: Path):
    shown = visit(page.as_uri(), dark=True).page
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = shown.evaluate(ground)
    assert shown.locator("#theme").inner_text() == "Light"
    shown.locator("#theme").click()
    assert shown.evaluate(ground) != dark
    assert shown.locator("#theme").inner_text() == "Dark"


def test_paper_is_light_and_has_the_open_sections(visit: Callable[..., Any], page: Path):
    shown = visit(page.as_uri(), dark=True).page
    shown.emulate_media(media="print", color_scheme="dark")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(253, 252, 250)"
    assert shown.locator("#answer h1").is_visible()
    assert shown.locator("#fair").is_visible()
    assert not shown.locator("#theme").is_visible()
    assert not shown.locator("#rest").is_visible()


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_forest_can_be_saved(visit: Callable[..., Any], page: Path, kind: str):
    shown = visit(page.as_uri())
    with shown.page.expect_download() as caught:
        shown.page.locator(f"[data-save={kind}]").click()
    saved = Path(caught.value.path()).read_bytes()
    assert caught.value.suggested_filename.endswith(f"-forest.{kind}")
    assert saved.startswith(b"\x89PNG" if kind == "png" else b"<svg")
    assert len(saved) > 10_000
    assert shown.said == []
