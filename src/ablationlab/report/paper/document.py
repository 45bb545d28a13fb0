"""A paper as data: blocks of text, tables and figures. The templates write it, `printing.py` prints it.

The templates are Markdown of a small kind: ``# Heading``, paragraphs, ``- items``, ``0. items``, ``> notes``, ``*emphasis*``,
``**strong**``, `` `code` `` and citations ``[@key]``. What a template puts in with ``{{ }}`` is never markup: `Marks` keeps
it and leaves a mark in the text, which `parse` exchanges for what was kept. A number keeps the record that it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jinja2
from markupsafe import Markup

from ablationlab.records.settings import Author
from ablationlab.report.table import Table
from ablationlab.study.text import spans

Style = Literal["", "emphasis", "strong"]
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b\u2028\u2029\ue000\ue001\ufeff]+")


@dataclass(frozen=True)
class NumberSource:
    """Where a number stands: a record of a study, a JSON pointer into it, and the value there."""

    study: str
    file: str
    field: str
    value: Any
    command: str


@dataclass(frozen=True)
class Inline:
    """A piece of a paragraph. The text of a citation is its key, of a reference that of its float, of a formula its name."""

    kind: Literal["text", "code", "cite", "ref", "math"]
    text: str
    style: Style = ""
    source: NumberSource | None = None


@dataclass(frozen=True)
class Picture:
    """A drawn figure; the files are ``figures/<key>.svg`` and, for LaTeX, ``.pdf``."""

    key: str
    section: str
    kind: str  # the start of the keys of such charts
    title: str
    caption: str
    alt: str
    svg: str
    wide: bool = False

    @property
    def shape(self) -> float:
        """Height over width."""
        width, height = (float(size) for size in re.findall(r'\s(?:width|height)="([\d.]+)"', self.svg[:500])[:2])
        return height / width


Words = tuple[Inline, ...]


@dataclass(frozen=True)
class Heading:
    level: int
    words: Words
    appendix: bool = False


@dataclass(frozen=True)
class Paragraph:
    words: Words


@dataclass(frozen=True)
class Items:
    """A list, with the numbers of its items where they have some."""

    items: tuple[Words, ...]
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Remark:
    """A box that nobody overlooks."""

    words: Words


@dataclass(frozen=True)
class Float:
    """A table or a figure with its caption; a wide one spans both columns. *rows*: the records behind the rows of a table."""

    key: str
    body: Table | Picture
    caption: Words = ()
    wide: bool = False
    rows: tuple[NumberSource, ...] = ()


Block = Heading | Paragraph | Items | Remark | Float


@dataclass(frozen=True)
class PaperDocument:
    title: Words
    authors: tuple[Author, ...]
    byline: Words
    abstract: tuple[Block, ...]
    body: tuple[Block, ...]
    header: str
    day: tuple[int, int, int] | None
    references: str
    hashes: tuple[tuple[str, dict[str, str]], ...]  # of the records of each study

    def blocks(self) -> Iterator[Block]:
        yield Paragraph(self.title)
        yield Paragraph(self.byline)
        yield from self.abstract
        yield from self.body

    def parts(self) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
        """The body up to its appendix, and the appendix."""
        for place, block in enumerate(self.body):
            if isinstance(block, Heading) and block.appendix:
                return self.body[:place], self.body[place:]
        return self.body, ()

    def cited(self) -> list[str]:
        """The keys of the citations, in the order of the text."""
        keys = (piece.text for block in self.blocks() for piece in words_of(block) if piece.kind == "cite")
        return list(dict.fromkeys(keys))


def words_of(block: Block) -> Words:
    """Everything that a block says outside of a table or a picture."""
    if isinstance(block, Items):
        return tuple(piece for item in block.items for piece in (*item, Inline("text", " ")))
    return block.caption if isinstance(block, Float) else block.words


def plain(words: Sequence[Inline]) -> str:
    """The text without its styles, citations and references."""
    return "".join(piece.text for piece in words if piece.kind in ("text", "code"))


def printable(text: str) -> str:
    """Control characters and line breaks become spaces."""
    return _INVISIBLE.sub(" ", text)


class Marks:
    """Keeps what templates put into the text."""

    def __init__(self) -> None:
        self.kept: list[Inline | Float] = []

    def keep(self, value: Inline | Float) -> Markup:
        self.kept.append(value)
        return Markup(f"{_OPEN}{len(self.kept) - 1}{_CLOSE}")  # noqa: S704

    def __call__(self, value: Any) -> Markup:
        """What stands for a value in the text; the output of a macro is text already."""
        if isinstance(value, Markup):
            return value
        if isinstance(value, jinja2.Undefined):
            str(value)  # raises
        if isinstance(value, Inline | Float):
            return self.keep(value)
        if isinstance(value, tuple | list):
            return Markup("").join(map(self, value))
        return Markup("") if value is None else self.keep(Inline("text", printable(str(value))))

    def parse(self, text: str) -> tuple[Block, ...]:
        """The blocks of a rendered template."""
        blocks: list[Block] = []
        separated = re.sub(r"^(#.*)$", r"\n\1\n", text, flags=re.MULTILINE)
        for chunk in re.split(r"\n\s*\n", separated):
            if chunk.strip():
                blocks += self._block(chunk.strip())
        return tuple(blocks)

    def words(self, text: str) -> Words:
        """A line of a rendered template."""
        line = " ".join(text.split())
        line = re.sub(r" +(?=[,.;:)])", "", line)
        return tuple(self._words(line.strip()))

    def _block(self, chunk: str) -> Iterator[Block]:
        if start := re.match(r"(#+)(!?) ", chunk):
            yield Heading(len(start[1]), self.words(chunk[start.end() :]), bool(start[2]))
        elif start := re.match(rf"!{_OPEN}(\d+){_CLOSE}", chunk):
            held = self.kept[int(start[1])]
            assert isinstance(held, Float)
            yield replace(held, caption=self.words(chunk[start.end() :]))
        elif start := re.match(r"(-|\d+\.) ", chunk):
            _, *marked = re.split(r"^\s*(-|\d+\.) +", chunk, flags=re.MULTILINE)
            numbers = tuple(int(mark[:-1]) for mark in marked[::2] if mark != "-")
            yield Items(tuple(map(self.words, marked[1::2])), numbers)
        elif chunk.startswith("> "):
            yield Remark(self.words(chunk[2:]))
        elif words := self.words(chunk):
            yield Paragraph(words)

    def _words(self, text: str, style: Style = "") -> Iterator[Inline]:
        for span in spans(text):
            match span.kind:
                case "cite":
                    yield Inline("cite", span.text)
                case "strong" | "emphasis":
                    yield from self._words(span.text, span.kind)
                case _:
                    yield from self._filled(span.text, style, span.kind)

    def _filled(self, text: str, style: Style, kind: Literal["text", "code"] = "text") -> Iterator[Inline]:
        """Text with every mark exchanged for what it stands for."""
        for place, piece in enumerate(_MARK.split(text)):
            if place % 2:
                held = self.kept[int(piece)]
                assert isinstance(held, Inline)
                yield replace(held, kind=kind if held.kind == "text" else held.kind, style=style or held.style)
            elif piece:
                yield Inline(kind, piece, style)
