"""What is drawn depends on no font of the machine: its own are hidden, left as they are, or replaced by others."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import warm
from ablationlab.report import fonts
from ablationlab.report.page.build import write_page

from .conftest import mupdf
from .kinds import table_study

#: Names that differ in a ligature alone, in Greek, Chinese and Korean, of a picture, with what no file of XML may have.
ARMS = ("a", "naïve ﬁne", "naïve fine", "βήτα ∇", "加热", "한국", "🔥 hot", "bell \x07", "wide\u200bless", "wideless")
CONFIG = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}</dir></fontconfig>
"""
REPORT = ("-m", "ablationlab", "report")
#: A chart in a common font, which it is not drawn in where the machine has none.
CONTROL = """
import sys, vl_convert
title = {"text": "加热 hot", "font": "Arial", "fontWeight": "normal"}
spec = {"title": title, "data": {"values": [{}]}, "mark": "point"}
sys.stdout.buffer.write(vl_convert.vegalite_to_png(spec))
"""


def named(font: bytes, name: str) -> bytes:
    """A TrueType font under another name."""
    text = name.encode("utf-16-be")
    records = [struct.pack(">6H", 3, 1, 0x409, place, len(text), 0) for place in (1, 4, 6)]
    table = struct.pack(">3H", 0, len(records), 6 + 12 * len(records)) + b"".join(records) + text
    entry = font.index(b"name", 12)
    padded = font + bytes(-len(font) % 4)
    return padded[:entry] + struct.pack(">4s3I", b"name", 0, len(padded), len(table)) + padded[entry + 16 :] + table


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The environment of a machine without fonts, of this one, and of one whose only font, Arial, has Chinese letters too."""
    made = {"as it is": dict(os.environ)}
    for name in ("without", "another"):
        home = tmp_path_factory.mktemp(name)
        (home / "fonts").mkdir()
        (home / "fonts.conf").write_text(CONFIG.format(folder=home / "fonts"))
        if name == "another":
            (home / "fonts" / "arial.ttf").write_bytes(named(mupdf().Font("cjk").buffer, "Arial"))
        made[name] = {**os.environ, "HOME": str(home), "FONTCONFIG_FILE": str(home / "fonts.conf")}
    return made


def test_figures_tables_papers_and_pages_are_the_same_bytes_on_machines_with_other_fonts(machines, tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{arm},{seed},{2 + rng.normal(0, 0.01)}" for seed in range(6) for arm in ARMS]
    table_study(tmp_path / "study", "variant,seed,val_loss", rows)
    controls, written = {}, []
    for name, environment in machines.items():
        drawn = subprocess.run([warm.FRESH, "-c", CONTROL], env=environment, capture_output=True, check=True)
        controls[name] = hashlib.sha256(drawn.stdout).hexdigest()
        folder = tmp_path / name
        shutil.copytree(tmp_path / "study", folder)
        before = set(folder.rglob("*"))
        subprocess.run([warm.FRESH, *REPORT, folder], env=environment, capture_output=True, check=True)
        files = [path for path in folder.rglob("*") if path.is_file() and path not in before]
        written.append({path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
    assert controls["without"] != controls["another"]  # else these machines are not as they say
    assert {path.suffix for path in written[0]} >= {".svg", ".png", ".pdf", ".html", ".csv", ".tex", ".typ"}
    for other in written[1:]:
        assert other == written[0]
    shown = (folder / "figures" / "paired-val-loss.svg").read_text()
    for text in (
        "naïve ﬁne",
        "naïve fine",
        "βήτα ‹U+2207›",
        "‹U+52A0 70ED›",
        "‹U+D55C AD6D›",
        "‹U+1F525› hot",
        "bell ‹U+0007›",
    ):
        assert f">{text} − a<" in shown
    assert shown.count(">wide") == 2 * shown.count(">wideless − a<") > 0  # no two arms are drawn as one


@given(st.lists(st.text(st.sampled_from("a0 A加热\u1d40\U0001d400‹›U+52A\x07"), max_size=9), unique=True))
@example(["加热", "加 热", "‹U+52A0 70ED›", "‹U+2039›U+52A0 70ED›"])
def test_different_names_are_drawn_differently_in_signs_of_the_font(names):
    drawn = [fonts.legible(name) for name in names]
    assert len(set(drawn)) == len(names)
    assert set("".join(drawn)) <= fonts.signs()


def test_the_signs_of_the_font_are_those_that_another_reader_finds_in_its_files():
    every = [chr(code) for code in range(0x20, 0x30000)]
    for path in fonts.paths():
        font = mupdf().Font(fontfile=str(path))
        assert {sign for sign in every if font.has_glyph(ord(sign))} == fonts.signs() - {"\ufffd"}


def test_a_line_is_as_wide_as_another_reader_of_the_font_says():
    for path, style in zip(fonts.paths(), fonts.WEIGHTS, strict=True):
        text = "validation loss (nats/token), β₁ − 0.25 ± naïve"
        measured = mupdf().Font(fontfile=str(path)).text_length(text, fontsize=12)
        assert fonts.width(text, 12, style) == pytest.approx(measured, rel=1e-3)


def test_a_page_and_its_charts_are_set_in_the_font_that_it_brings(visit, tmp_path: Path):
    results = table_study(
        tmp_path,
        "variant,seed,val_loss",
        [f"{arm},{s},{2 + s / 9 + 0.1 * (arm != 'a') * (s + 1)}" for s in range(5) for arm in "aβ"],
    )
    write_page(results, tmp_path)
    page = visit((tmp_path / "report.html").as_uri()).page
    protocol = page.context.new_cdp_session(page)
    protocol.send("DOM.enable")
    protocol.send("CSS.enable")
    root = protocol.send("DOM.getDocument", {"depth": -1})["root"]["nodeId"]
    used: set[str] = set()
    for kind in ("h1", "h2", "p", "td", "th", "code", "button", "summary", "select", "svg text"):
        for node in protocol.send("DOM.querySelectorAll", {"nodeId": root, "selector": kind})["nodeIds"]:
            found = protocol.send("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"]
            used |= {font["familyName"] for font in found}
    assert used == {fonts.FAMILY, f"{fonts.FAMILY} Semibold"}
    assert page.locator("svg text").count() > 3
