"""What a reader sees of a page, as text: closed parts by their titles alone, pictures and their tables left out."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_VOID = {"meta", "link", "img", "br", "input", "circle", "path", "line", "rect", "progress"}
_SKIPPED = {"svg", "script", "style", "button", "head"}
_LINES = {"h1", "h2", "p", "summary", "dt", "figcaption", "section", "tr", "li"}


class PageText(HTMLParser):
    """``text``: a line per row, paragraph and summary; tables only of what was equal."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[tuple[str, bool, bool]] = []  # tag, whether it hides its inside, whether it shows it again
        self.parts: list[str] = []
        self.feed(page)
        lines = (re.sub(r"\s+", " ", line).strip() for line in "".join(self.parts).split("\n"))
        self.text = "\n".join(line for line in lines if line) + "\n"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            return
        given = dict(attrs)
        classes = set((given.get("class") or "").split())
        closed = tag == "details" and "open" not in given
        in_fair = any(name == "fair" for name, *_ in self.open)
        hides = closed or tag in _SKIPPED or "vh" in classes or (tag == "table" and not in_fair)
        shows = tag == "summary" and bool(self.open) and self.open[-1][0] == "details"
        self.open.append(("fair" if "fair" in classes else tag, hides, shows))
        if tag in _LINES or classes & {"row", "ch-row", "legend", "ch-legend", "ch-name", "live"}:
            self.parts.append("\n")
        elif tag in ("td", "th", "dd", "div", "span", "small"):
            self.parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        self.open.pop()

    def handle_data(self, data: str) -> None:
        shown = True
        for place, (_, hides, shows) in enumerate(self.open):
            if hides:
                shown = any(again for *_, again in self.open[place + 1 : place + 2])
            if hides and not shown:
                return
            if shows and place == len(self.open):
                return
        self.parts.append(data)


def page_text(page: str) -> str:
    return PageText(page).text


def section(page: str, key: str) -> str:
    """One section of a page, as HTML."""
    start = page.index(f'id="{key}"')
    return page[start : page.index("</section>", start)]
