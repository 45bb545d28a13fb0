"""The figures of the paper: the page's charts, drawn at the width of a column so that their text can be read."""

from __future__ import annotations

from dataclasses import dataclass

from ablationlab.report.material import Material


@dataclass(frozen=True)
class Picture:
    """One figure: its file, its place, its words."""

    key: str
    section: str
    caption: str
    pdf: bytes
    wide: bool = False
    alt: str = ""

    @property
    def path(self) -> str:
        """Where the file goes, relative to the paper."""
        return f"figures/paper-{self.key}.pdf"

    @property
    def label(self) -> str:
        """What the text refers to it by."""
        return f"fig-{self.key}"


def pictures(material: Material) -> list[Picture]:
    """Those that there are data for."""
    return []
