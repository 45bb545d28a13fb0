"""Formats of the named corpora: from the files of a package to one file, and from that file to its documents.

Nothing here depends on tables that differ between versions of Python, so the documents are the same everywhere.
"""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path


def only_member(members: Mapping[str, bytes]) -> bytes:
    (data,) = members.values()
    return data


def json_lines(members: Mapping[str, bytes]) -> bytes:
    """One line of JSON per member, in the order of their names."""
    rows = [{"name": Path(name).stem, "text": members[name].decode()} for name in sorted(members)]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def json_lines_texts(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield str(json.loads(line)["text"])


def gunzip(members: Mapping[str, bytes]) -> bytes:
    return gzip.decompress(only_member(members))


def wikitext(members: Mapping[str, bytes]) -> bytes:
    """WikiText's train, valid and test splits one after another: the test split is at the end, where text is held out."""
    by_part = {Path(name).name.partition(".")[0]: data for name, data in members.items()}
    return b"".join(gzip.decompress(by_part[part]) for part in ("train", "valid", "test"))


# " = Title = " between two blank lines, and not " = = Section = = ", nor the middle of a formula.
_TITLE = re.compile(r"(?:^|(?<=\n)) \n = (?!= )[^\n]*(?<! =) = \n \n")


def wikitext_articles(path: Path) -> Iterator[str]:
    """Articles with their title lines; together they are the whole text except for blanks between them."""
    for piece in _cut_before(_TITLE, path.read_bytes().decode()):
        if article := piece.strip(" \n"):
            yield article


_PAGE = re.compile(r"^  <page>\n", re.MULTILINE)


def wikipedia_pages(path: Path) -> Iterator[str]:
    """The raw dump, cut before every page: together the documents are exactly its bytes."""
    yield from filter(None, _cut_before(_PAGE, path.read_bytes().decode()))


def _cut_before(heading: re.Pattern[str], text: str) -> Iterator[str]:
    starts = [0, *(match.start() for match in heading.finditer(text)), len(text)]
    for start, end in pairwise(starts):
        yield text[start:end]


_TEXT = re.compile(r"<text [^>]*>(.*?)(?:</text>|\Z)", re.DOTALL)
_NAME = re.compile(r"<title>(.*?)</title>")
#: Titles of pages that are not articles start with one of these.
_NAMESPACES = ("Wikipedia:", "Template:", "Image:", "MediaWiki:", "Category:", "Portal:", "Help:", "User:", "Talk:")
#: Articles with fewer characters of plain text are left out.
SHORTEST_ARTICLE = 200


def wikipedia_articles(path: Path) -> Iterator[str]:
    """Articles as plain text, each under its title, without redirects and very short articles."""
    for page in wikipedia_pages(path):
        title, body = _NAME.search(page), _TEXT.search(page)
        if title is None or body is None or title[1].startswith(_NAMESPACES):
            continue
        source = html.unescape(body[1])
        if source.lstrip()[:9].lower() == "#redirect":
            continue
        text = plain_text(source)
        if len(text) >= SHORTEST_ARTICLE:
            yield f"{html.unescape(title[1])}\n\n{text}"


_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_DROPPED = re.compile(r"<(math|ref|gallery|timeline|pre|code|nowiki)\b[^<>]*>.*?</\1>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_INNERMOST_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_INNERMOST_TABLE = re.compile(r"\{\|(?:(?!\{\|).)*?\|\}", re.DOTALL)
# [[Image:...|caption with [[links]]]], categories and links to other languages are not prose.
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


def plain_text(markup: str) -> str:
    """The prose of wiki markup, by regular expressions: good enough for training text, not a parser of the language."""
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
