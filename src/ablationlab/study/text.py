"""A study's own text for its paper: a small Markdown file that the study file names.

::

    # Introduction
    Practice is divided on where a norm belongs [@xiong2020].

    # Related work
    **Normalization.** RMSNorm [@zhang2019] drops the centering.

    # References
    @article{zhang2019, title = {...}, author = {...}, year = {2019}}

A paper over several studies also reads ``# Title``, and under ``# Studies`` what to call them, as ``- my-study: Short runs``.
Other sections are paragraphs with ``*emphasis*``, ``**strong**``, `` `code` `` and citations ``[@key]`` or ``[@one; @two]``;
the references are BibTeX. Nothing else is markup, and nothing in the file is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ablationlab.core.errors import AblationLabError, Problem, StudyError
from ablationlab.records.settings import StudyText
from ablationlab.records.storage import user_text

#: Bytes of a paper's own text.
LARGEST_TEXT = 1 << 20
#: Heading -> field of `StudyText`.
SECTIONS = {
    "Title": "title",
    "Introduction": "introduction",
    "Related work": "related_work",
    "Studies": "studies",
    "References": "references",
}
_STUDY = re.compile(r"- +(\S+): +(\S.*)")
_HEADING = re.compile(r"^# +(.*?)\s*$", re.MULTILINE)
_MARKUP = re.compile(
    r"\[(?P<cite>@[\w:.-]+(?:; *@[\w:.-]+)*)\]|\*\*(?P<strong>[^*]+)\*\*|\*(?P<emphasis>[^*\s][^*]*)\*|`(?P<code>[^`]+)`"
)
_ENTRY = re.compile(r"@(\w+)\s*\{\s*([^\s,{}]+)\s*,")


@dataclass(frozen=True)
class TextSpan:
    """A piece of a paragraph; the text of a citation is its key."""

    kind: Literal["text", "emphasis", "strong", "code", "cite"]
    text: str


def read_text(path: Path, source: str) -> dict[str, Any]:
    """The sections of a text file, by field of `StudyText`; *source* is the study that names it."""

    def refused(message: str) -> StudyError:
        return StudyError(source, [Problem("text", f"{path}: {message}")])

    try:
        text = user_text(path, "text file", LARGEST_TEXT)
    except AblationLabError as error:
        raise refused(str(error)) from error
    before, *rest = _HEADING.split(text)
    titles = rest[::2]
    if before.strip():
        raise refused("text before the first heading; begin with '# Introduction' or '# Related work'")
    unknown = [Problem.unknown("text", "heading", title, SECTIONS) for title in titles if title not in SECTIONS]
    if unknown:
        raise StudyError(source, unknown)
    if len(set(titles)) < len(titles):
        raise refused("a heading is given twice")
    sections: dict[str, Any] = {SECTIONS[title]: body.strip() for title, body in zip(titles, rest[1::2], strict=True)}
    if "title" in sections:
        sections["title"] = " ".join(sections["title"].split())
    if "studies" in sections:
        found = [(line, _STUDY.fullmatch(line.strip())) for line in sections["studies"].splitlines() if line.strip()]
        wrong = [line for line, match in found if match is None]
        if wrong:
            raise refused(f"under '# Studies' expected lines such as '- my-study: Short training', found {wrong[0]!r}")
        sections["studies"] = {match[1]: match[2] for _, match in found if match is not None}
    return sections


def text_problems(text: StudyText) -> Iterator[Problem]:
    """Citations without a reference, and references that could not be printed."""
    try:
        known = entries(text.references)
    except ValueError as error:
        yield Problem("text.references", str(error))
        return
    for key, prose in (("introduction", text.introduction), ("related_work", text.related_work)):
        cited = [span.text for spans in paragraphs(prose) for span in spans if span.kind == "cite"]
        for name in dict.fromkeys(cited):
            if name not in known:
                yield Problem.unknown(f"text.{key}", "reference", name, known)


def paragraphs(text: str) -> tuple[tuple[TextSpan, ...], ...]:
    """The paragraphs of a section, which blank lines divide, as spans."""
    found = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip()))
    return tuple(tuple(spans(paragraph)) for paragraph in found if paragraph)


def spans(paragraph: str) -> Iterator[TextSpan]:
    """The pieces of a paragraph."""
    end = 0
    for markup in _MARKUP.finditer(paragraph):
        if markup.start() > end:
            yield TextSpan("text", paragraph[end : markup.start()])
        end = markup.end()
        if markup["cite"]:
            yield from (TextSpan("cite", key.strip(" @")) for key in markup["cite"].split(";"))
        elif markup["strong"]:
            yield TextSpan("strong", markup["strong"])
        elif markup["emphasis"]:
            yield TextSpan("emphasis", markup["emphasis"])
        else:
            yield TextSpan("code", markup["code"])
    if end < len(paragraph):
        yield TextSpan("text", paragraph[end:])


def entries(bibliography: str) -> dict[str, str]:
    """BibTeX entries by key, each as it is written; ValueError for what is not a list of entries."""
    found: dict[str, str] = {}
    rest = re.sub(r"^\s*%.*$", "", bibliography, flags=re.MULTILINE).strip()
    while rest:
        start = _ENTRY.match(rest)
        if start is None:
            raise ValueError(f"expected a BibTeX entry such as @article{{key, ...}}, found {rest[:30]!r}")
        kind, key = start[1], start[2]
        end = _closing_brace(rest, rest.index("{"))
        if end is None:
            raise ValueError(f"the entry {key!r} has no closing brace")
        entry = rest[: end + 1]
        if kind.lower() in ("string", "preamble", "comment"):
            raise ValueError(f"@{kind} is not supported; write every entry out")
        if "$" in entry:
            raise ValueError(f"the entry {key!r} holds a '$'; write formulas in words or Unicode")
        if key in found:
            raise ValueError(f"the entry {key!r} is given twice")
        found[key] = entry
        rest = rest[end + 1 :].lstrip(" \t\r\n,")
    return found


def _closing_brace(text: str, start: int) -> int | None:
    depth = 0
    for position in range(start, len(text)):
        if text[position] in "{}" and text[position - 1] != "\\":
            depth += 1 if text[position] == "{" else -1
            if depth == 0:
                return position
    return None
