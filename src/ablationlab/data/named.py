"""How the named corpora fall into documents: from the members of a package to one file, and from that file to texts.

Nothing here depends on tables that differ between versions of Python, so that the texts are the same everywhere.
"""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path


def json_lines(members: Mapping[str, bytes]) -> bytes:
    """One line of JSON a member, in the order of their names."""
    rows = [{"name": Path(name).stem, "text": members[name].decode()} for name in sorted(members)]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def from_json_lines(path: Path) -> Iterator[str]:
    """The texts of such a file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield str(json.loads(line)["text"])


def unzipped(members: Mapping[str, bytes]) -> bytes:
    """The only member, which is gzipped."""
    (data,) = members.values()
    return gzip.decompress(data)


def wikitext(members: Mapping[str, bytes]) -> bytes:
    """WikiText's three parts in a row, so that the official test part is at the end, where data is held out."""
    by_part = {Path(name).name.partition(".")[0]: data for name, data in members.items()}
    return b"".join(gzip.decompress(by_part[part]) for part in ("train", "valid", "test"))


# " = Title = " between two blank lines, and not " = = Section = = ", nor the middle of a formula.
_TITLE = re.compile(r"(?:^|(?<=\n)) \n = (?!= )[^\n]*(?<! =) = \n \n")


def wikitext_articles(path: Path) -> Iterator[str]:
    """Articles with their title lines; together they are the whole text, but for blanks at their ends."""
    yield from _cut_before(_TITLE, path.read_bytes().decode())


_PAGE = re.compile(r"^  <page>\n", re.MULTILINE)


def wikipedia_pages(path: Path) -> Iterator[str]:
    """The raw dump, cut before every page: together the documents are exactly its bytes."""
    text = path.read_bytes().decode()
    starts = [0, *(found.start() for found in _PAGE.finditer(text)), len(text)]
    for start, end in pairwise(starts):
        if end > start:
            yield text[start:end]


def _cut_before(heading: re.Pattern[str], text: str) -> Iterator[str]:
    starts = [0, *(found.start() for found in heading.finditer(text)), len(text)]
    for start, end in pairwise(starts):
        piece = text[start:end].strip(" \n")
        if piece:
            yield piece


_TEXT = re.compile(r"<text [^>]*>(.*?)(?:</text>|\Z)", re.DOTALL)
_NAME = re.compile(r"<title>(.*?)</title>")
#: Titles of pages that are no articles begin so.
_SPACES = ("Wikipedia:", "Template:", "Image:", "MediaWiki:", "Category:", "Portal:", "Help:", "User:", "Talk:")
#: An article has at least so many characters of plain text.
SHORTEST_ARTICLE = 200


def wikipedia_articles(path: Path) -> Iterator[str]:
    """Articles as plain text, each under its title; redirects and stubs of next to nothing are left out."""
    for page in wikipedia_pages(path):
        title, body = _NAME.search(page), _TEXT.search(page)
        if title is None or body is None or title[1].startswith(_SPACES):
            continue
        source = html.unescape(body[1])
        if source.lstrip()[:9].lower() == "#redirect":
            continue
        text = plain(source)
        if len(text) >= SHORTEST_ARTICLE:
            yield f"{html.unescape(title[1])}\n\n{text}"


_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_DROPPED = re.compile(r"<(math|ref|gallery|timeline|pre|code|nowiki)\b[^<>]*>.*?</\1>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_INNERMOST_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_INNERMOST_TABLE = re.compile(r"\{\|(?:(?!\{\|).)*?\|\}", re.DOTALL)
# [[Image:...|caption with [[links]]]], categories and links to other languages are no prose.
_FILE = re.compile(
    r"\[\[(?:Image|File|Category|Media|[a-z][a-z-]{1,11}):(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]", re.IGNORECASE
)
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_ADDRESS = re.compile(r"\[(?:https?|ftp)://[^\s\]]*\s*([^\]]*)\]")
_QUOTES = re.compile(r"'{2,5}")
_HEADING = re.compile(r"^(={2,6}) *(.*?) *\1 *$", re.MULTILINE)
_MARKS = re.compile(r"^[*#:;]+ *", re.MULTILINE)
_ROW = re.compile(r"^(?:\{\||\|[-}+|]?|!).*\n?", re.MULTILINE)
_RULE = re.compile(r"^-{4,} *$|__[A-Z]+__", re.MULTILINE)
_BLANKS = re.compile(r"[ \t]+")
_LINES = re.compile(r" ?\n ?(?:\n ?)+")
_DEEPEST = 8


def plain(markup: str) -> str:
    """Prose of wiki markup, by plain substitutions: good for training text, no parser of the whole language."""
    text = _DROPPED.sub("", _COMMENT.sub("", markup))
    for pattern in (_INNERMOST_TEMPLATE, _INNERMOST_TABLE):
        for _ in range(_DEEPEST):
            text, count = pattern.subn("", text)
            if not count:
                break
    text = _LINK.sub(r"\1", _FILE.sub("", text))
    text = _ADDRESS.sub(r"\1", text)
    text = html.unescape(_TAG.sub("", text))
    for pattern in (_QUOTES, _ROW, _RULE):
        text = pattern.sub("", text)
    text = _MARKS.sub("", _HEADING.sub(r"\2", text))
    return _LINES.sub("\n\n", _BLANKS.sub(" ", text)).strip()
