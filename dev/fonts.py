"""Make the font files of the package (src/ablationlab/report/fonts) from those of Source Sans 3.

    pip install fonttools brotli
    python dev/fonts.py FOLDER      # with SourceSans3-Regular.ttf and SourceSans3-Semibold.ttf, release 3.052

The files hold Latin, Greek, Cyrillic and signs, without hints and alternates. They have a name of their own: the licence
asks for one, and a font that is installed under the same name could be another.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont
from fontTools.ttLib.tables._c_m_a_p import CmapSubtable

FAMILY = "Ablation Sans"
TARGET = Path(__file__).parent.parent / "src" / "ablationlab" / "report" / "fonts"
BLOCKS = ((0x0020, 0x024F), (0x02B0, 0x052F), (0x1E00, 0x1FFF), (0x2000, 0x27BF), (0xFB00, 0xFB06))


def make(source: Path, weight: str) -> None:
    """One weight, as TrueType for figures and papers and as WOFF2 for pages."""
    font = TTFont(source, recalcTimestamp=False)
    known = font.getBestCmap()
    options = subset.Options()
    options.layout_features = ["kern", "locl", "mark", "mkmk"]
    options.hinting = False
    options.notdef_outline = True
    options.name_IDs = [0, 1, 2, 3, 4, 5, 6, 13, 14]
    options.recalc_timestamp = False
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=[code for first, last in BLOCKS for code in range(first, last + 1) if code in known])
    subsetter.subset(font)
    for table in font["cmap"].tables:
        table.cmap[0xFFFD] = ".notdef"
    whole = CmapSubtable.newSubtable(12)  # one list of ranges, which `signs` of the package reads
    whole.platformID, whole.platEncID, whole.language, whole.cmap = 3, 10, 0, dict(font.getBestCmap())
    font["cmap"].tables.append(whole)
    names = font["name"]
    names.names = [name for name in names.names if name.platformID == 3 and name.langID == 0x409]
    regular = weight == "Regular"
    spelled = {1: FAMILY if regular else f"{FAMILY} {weight}", 2: "Regular", 4: f"{FAMILY} {weight}"}
    spelled |= {3: f"{FAMILY} {weight}; Source Sans 3.052", 6: f"{FAMILY.replace(' ', '')}-{weight}"}
    spelled |= {} if regular else {16: FAMILY, 17: weight}
    for place, text in spelled.items():
        names.setName(text, place, 3, 1, 0x409)
    for flavor in (None, "woff2"):
        font.flavor = flavor
        font.save(TARGET / f"{FAMILY.replace(' ', '')}-{weight}.{flavor or 'ttf'}")


if __name__ == "__main__":
    for weight in ("Regular", "Semibold"):
        make(Path(sys.argv[1]) / f"SourceSans3-{weight}.ttf", weight)
