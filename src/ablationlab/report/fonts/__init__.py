"""The font of figures and pages, which comes with the package: what is drawn then depends on no machine.

It is a subset of Source Sans 3, made by dev/fonts.py, under a name that no system has.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Container, Set
from functools import cache
from itertools import groupby
from pathlib import Path

FAMILY = "Ablation Sans"
#: Where the files are: TrueType for figures and papers, WOFF2 for pages.
FOLDER = Path(__file__).parent
#: Each file's weight; a browser and Vega take the nearest.
WEIGHTS = {"Regular": 400, "Semibold": 600}


def paths() -> list[Path]:
    """The TrueType files."""
    return [_path(style, "ttf") for style in WEIGHTS]


def _path(style: str, kind: str) -> Path:
    return FOLDER / f"{FAMILY.replace(' ', '')}-{style}.{kind}"


@cache
def css() -> str:
    """The rules that give a page or an SVG the font, files included."""
    return "".join(
        f'@font-face{{font-family:"{FAMILY}";font-weight:{weight};src:url(data:font/woff2;base64,'
        f'{base64.b64encode(_path(style, "woff2").read_bytes()).decode()}) format("woff2")}}\n'
        for style, weight in WEIGHTS.items()
    )


def signs() -> Set[str]:
    """Every character that the font has."""
    return _advances("Regular").keys()


def legible(text: str) -> str:
    """A line in signs that the font has: any other would be drawn in a font of the machine, if that has it."""
    return text if text.isascii() and text.isprintable() else spelled(text, signs())


def spelled(text: str, known: Container[str]) -> str:
    """Text whose signs that are not *known* are written by number, as ‹U+52A0 70ED›; different texts stay different."""
    written = ""
    for lacking, run in groupby(enumerate(text), lambda at: at[1] not in known or text.startswith("‹U+", at[0])):
        signs = [sign for _, sign in run]
        written += f"‹U+{' '.join(f'{ord(sign):04X}' for sign in signs)}›" if lacking else "".join(signs)
    return written


def width(text: str, size: float, style: str = "Regular") -> float:
    """How wide the font sets a line, without kerning."""
    advances = _advances(style)
    return size * sum(advances[sign] for sign in legible(text))


@cache
def _advances(style: str) -> dict[str, float]:
    """Each character's width in shares of the size, from the file's tables (cmap in format 12: ranges of code points)."""
    data = _path(style, "ttf").read_bytes()
    (tables,) = struct.unpack_from(">4xH", data)
    at = dict(struct.unpack_from(">4s4xI", data, 12 + 16 * place) for place in range(tables))
    (unit,) = struct.unpack_from(">18xH", data, at[b"head"])
    (measured,) = struct.unpack_from(">34xH", data, at[b"hhea"])
    widths = [struct.unpack_from(">H", data, at[b"hmtx"] + 4 * glyph)[0] / unit for glyph in range(measured)]
    (count,) = struct.unpack_from(">2xH", data, at[b"cmap"])
    offsets = [at[b"cmap"] + struct.unpack_from(">4xI", data, at[b"cmap"] + 4 + 8 * place)[0] for place in range(count)]
    (chosen,) = [offset for offset in offsets if struct.unpack_from(">H", data, offset) == (12,)]
    (groups,) = struct.unpack_from(">12xI", data, chosen)
    ranges = [struct.unpack_from(">III", data, chosen + 16 + 12 * place) for place in range(groups)]
    return {
        chr(code): widths[min(glyph + code - first, measured - 1)]
        for first, last, glyph in ranges
        for code in range(first, last + 1)
    }
