"""A text as what task items are cut from: lines, words, speeches. Nothing here knows a particular book."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_SPEAKER = re.compile(r"[A-Z][A-Za-z' ]{1,24}")


@dataclass(frozen=True)
class Speech:
    """A heading such as ``FIRST CITIZEN`` and where in the text it begins (its first letter)."""

    speaker: str
    start: int


@dataclass(frozen=True)
class Passages:
    """One part of a corpus (held out, or training)."""

    text: str

    @cached_property
    def lines(self) -> tuple[tuple[int, str], ...]:
        """(start, line) of every line of running text: not empty, no heading, complete."""
        found, start = [], 0
        pieces = self.text.split("\n")
        for number, line in enumerate(pieces):
            inside = 0 < number < len(pieces) - 1  # the first and the last may be cut by the split
            if inside and line.strip() == line and len(line) >= 8 and not line.endswith(":"):
                found.append((start, line))
            start += len(line) + 1
        return tuple(found)

    @cached_property
    def speeches(self) -> tuple[Speech, ...]:
        """Every heading: a line of its own that ends in a colon, after an empty line."""
        found, start, before = [], 0, "text"
        for line in self.text.split("\n"):
            if not before and line.endswith(":") and _SPEAKER.fullmatch(line[:-1]):
                found.append(Speech(line[:-1], start))
            start, before = start + len(line) + 1, line
        return tuple(found)

    @cached_property
    def words(self) -> Counter[str]:
        """How often each word occurs."""
        return Counter(_WORD.findall(self.text))

    @cached_property
    def letters(self) -> Letters:
        """Its character unigram model."""
        return Letters.of(self.text)

    def before(self, end: int, room: int) -> str:
        """The text just before *end*, at most *room* characters, beginning with a whole word."""
        start = max(0, end - room)
        piece = self.text[start:end]
        if start > 0 and not self.text[start - 1].isspace():
            cut = re.search(r"\s", piece)
            piece = piece[cut.end() :] if cut else ""
        return piece.lstrip()


@dataclass(frozen=True)
class Letters:
    """log p of each character, with one added to every count."""

    logp: dict[str, float]
    unseen: float

    @classmethod
    def of(cls, text: str) -> Letters:
        """Relative frequencies of a text."""
        counts = Counter(text)
        total = len(text) + len(counts) + 1
        logs: NDArray[np.float64] = np.log([(count + 1) / total for count in counts.values()])
        return cls(dict(zip(counts, map(float, logs), strict=True)), float(np.log(1 / total)))

    def score(self, text: str) -> float:
        """Sum over the characters."""
        return sum(self.logp.get(character, self.unseen) for character in text)


def head_of(line: str, room: int) -> str:
    """The beginning of a line, whole words, at most *room* characters."""
    if len(line) <= room:
        return line
    cut = line.rfind(" ", 0, room + 1)
    return line[:cut] if cut > 0 else ""
