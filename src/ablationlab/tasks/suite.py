"""The project's own tasks, built from the text that was held out: the same text gives the same items, on every machine.

Choices differ from the truth in what is asked and in little else. Where a choice is another word, line or name, wrong ones
are matched to the right one in length and in frequency, and picked so that the right one stands equally often at every rank,
both by frequency and by the character unigram model: a model that knows nothing but frequencies is at chance. A minimal pair
holds the same characters in another order, so a unigram model cannot tell its members apart at all.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.errors import DataError
from ablationlab.core.grouping import grouped
from ablationlab.core.registry import Registry
from ablationlab.core.seeding import stream
from ablationlab.records.storage import content_hash

VERSION = "1"
#: Fewer characters than this an item cannot be built from.
SMALLEST_ROOM = 22
#: What templates may add to an item.
TEMPLATE_ROOM = 8
#: Items that a text must give, at least.
FEWEST_ITEMS = 10
EXAMPLES = 64
#: Characters at the end of the training text that examples are cut from.
EXAMPLE_TEXT = 60_000
#: How many of the most alike candidates wrong choices are picked from.
CLOSEST = 60
WRONG = 3
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
        lines, start = [], 0
        pieces = self.text.split("\n")
        for number, line in enumerate(pieces):
            inside = 0 < number < len(pieces) - 1  # the first and the last may be cut by the split
            if inside and line.strip() == line and len(line) >= 8 and not line.endswith(":"):
                lines.append((start, line))
            start += len(line) + 1
        return tuple(lines)

    @cached_property
    def speeches(self) -> tuple[Speech, ...]:
        """Every heading: a line of its own that ends in a colon, after an empty line."""
        speeches, start, before = [], 0, "text"
        for line in self.text.split("\n"):
            if not before and line.endswith(":") and _SPEAKER.fullmatch(line[:-1]):
                speeches.append(Speech(line[:-1], start))
            start, before = start + len(line) + 1, line
        return tuple(speeches)

    @cached_property
    def words(self) -> Counter[str]:
        return Counter(_WORD.findall(self.text))

    @cached_property
    def letters(self) -> Letters:
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
        return sum(map(self.logp.get, text, repeat(self.unseen)))


def head_of(line: str, room: int) -> str:
    """The beginning of a line, whole words, at most *room* characters."""
    if len(line) <= room:
        return line
    cut = line.rfind(" ", 0, room + 1)
    return line[:cut] if cut > 0 else ""


@dataclass(frozen=True)
class Template:
    """How an item is worded: ``before + text + after``, then *delimiter* and a choice, with *ending* after it."""

    name: str
    before: str = ""
    after: str = ""
    delimiter: str = " "
    ending: str = ""

    @property
    def characters(self) -> set[str]:
        return set(self.before + self.after + self.delimiter + self.ending)


@dataclass(frozen=True)
class Item:
    """A text, its possible continuations, and which of them is real."""

    text: str
    choices: tuple[str, ...]
    target: int

    @property
    def longest(self) -> int:
        """Characters of the text and the longest choice."""
        return len(self.text) + max(map(len, self.choices))


Builder = Callable[[Passages, Passages, int, np.random.Generator], Iterator[Item]]


@dataclass(frozen=True)
class TaskKind:
    """One kind of task: what it asks, how it may be worded, and how its items are cut from a text."""

    name: str
    meaning: str
    templates: tuple[Template, ...]
    build: Builder


KINDS: Registry[TaskKind] = Registry("task")


def kind(name: str, meaning: str, *templates: Template) -> Callable[[Builder], Builder]:
    """Register a builder: (text to cut from, training text, room, generator) -> items."""

    def register(build: Builder) -> Builder:
        KINDS.add(name, TaskKind(name, meaning, templates, build))
        return build

    return register


@dataclass(frozen=True)
class BuiltTask:
    """A task ready to be asked: worded items, and worded examples from the training text."""

    kind: TaskKind
    template: Template
    fewshot: int
    items: tuple[Item, ...]
    examples: tuple[Item, ...]

    @property
    def hash(self) -> str:
        """Of everything that a score depends on."""
        return content_hash(
            {
                "version": VERSION,
                "task": self.kind.name,
                "template": vars(self.template),
                "fewshot": self.fewshot,
                "items": [self._plain(item) for item in self.items],
                "examples": [self._plain(item) for item in self.examples],
            }
        )

    @staticmethod
    def _plain(item: Item) -> list[Any]:
        return [item.text, list(item.choices), item.target]

    def rows(self, which: Sequence[Item]) -> list[dict[str, Any]]:
        """Items as the harness reads them: plain columns."""
        template = self.template
        return [
            {
                "text": f"{template.before}{item.text}{template.after}",
                "choices": [f"{choice}{template.ending}" for choice in item.choices],
                "target": item.target,
            }
            for item in which
        ]


def room_of(context: int, fewshot: int, *, worded: bool) -> int:
    """Characters that an item may take so that it and *fewshot* examples of its length fit the context.

    One token goes to the newline that stands for an empty context, one to each line break between examples.
    """
    room = (context - 1) // (fewshot + 1) - 1
    return room - TEMPLATE_ROOM if worded else room


def room_for(task: TaskKind, context: int, fewshot: int) -> int:
    """The room of an item of that kind; `DataError` if nothing can be built in it."""
    room = room_of(context, fewshot, worded=len(task.templates) > 1)
    if room < SMALLEST_ROOM:
        raise DataError(
            f"task {task.name!r} with {fewshot} examples: a context of {context} leaves {max(room, 0)} characters per item, "
            f"and {SMALLEST_ROOM} are needed; ask for fewer examples (evaluation.fewshot, --fewshot) or use a longer "
            "model.context"
        )
    return room


def check_items(name: str, train: Passages, held_out: Passages, context: int, fewshot: int) -> None:
    """`DataError` if `build` would find too few items: they are cut as it cuts them, but no more than are needed."""
    task = KINDS[name]
    room = room_for(task, context, fewshot)
    items: set[Item] = set()
    for item in task.build(held_out, train, room, _stream(task, "items", fewshot)):
        items.add(item)
        if len(items) == FEWEST_ITEMS:
            return
    raise _too_few(name, len(items))


def _too_few(name: str, items: int) -> DataError:
    return DataError(f"task {name!r}: the held-out text gives {items} items, which is too few to score")


def _stream(task: TaskKind, purpose: str, fewshot: int) -> np.random.Generator:
    return stream(0, "suite", VERSION, task.name, purpose, fewshot)


def build(
    name: str, train: str, held_out: str, context: int, fewshot: int, template: str, limit: int | None = None
) -> BuiltTask:
    """Cut a task from the held-out text, and its examples from the training text; `DataError` if they do not give any."""
    task = KINDS[name]
    chosen = next((t for t in task.templates if t.name == template), None)
    if chosen is None:
        raise DataError(
            f"task {name!r} has no template {template!r}; it has {', '.join(t.name for t in task.templates)}"
        )
    room = room_for(task, context, fewshot)
    source, known = Passages(held_out), Passages(train)
    items = _shuffled(task, source, known, room, "items", fewshot)
    if len(items) < FEWEST_ITEMS:
        raise _too_few(name, len(items))
    examples = (
        _shuffled(task, Passages(train[-EXAMPLE_TEXT:]), known, room, "examples", fewshot)[:EXAMPLES] if fewshot else ()
    )
    if fewshot and len(examples) < fewshot:
        raise DataError(f"task {name!r}: the training text gives only {len(examples)} examples")
    return BuiltTask(task, chosen, fewshot, items[:limit], examples)


def _shuffled(
    task: TaskKind, source: Passages, known: Passages, room: int, purpose: str, fewshot: int
) -> tuple[Item, ...]:
    """Distinct items in a fixed random order, the right choice at a random place."""
    rng = _stream(task, purpose, fewshot)
    items = list(dict.fromkeys(task.build(source, known, room, rng)))
    assert all(item.longest <= room for item in items), f"an item of {task.name} is too long"
    return tuple(_placed(items[number], rng) for number in rng.permutation(len(items)))


def _placed(item: Item, rng: np.random.Generator) -> Item:
    order = rng.permutation(len(item.choices))
    return Item(item.text, tuple(item.choices[i] for i in order), int(np.argmax(order == item.target)))


@dataclass(frozen=True)
class _Candidate:
    """A possible wrong choice: its text, its frequency, its unigram score."""

    text: str
    frequency: float
    score: float


def _matched(truth: _Candidate, candidates: Sequence[_Candidate], rng: np.random.Generator) -> tuple[str, ...] | None:
    """Three wrong choices, the most alike first, among which the truth has a random rank in frequency and in score."""
    by_frequency, by_score = (int(rank) for rank in rng.integers(0, WRONG + 1, size=2))
    least, most = max(0, by_frequency + by_score - WRONG), min(by_frequency, by_score)
    both = int(rng.integers(least, most + 1))
    wanted = {
        (True, True): both,
        (True, False): by_frequency - both,
        (False, True): by_score - both,
        (False, False): WRONG - by_frequency - by_score + both,
    }
    chosen: list[str] = []
    for candidate in candidates:
        tie = candidate.frequency == truth.frequency
        higher = bool(rng.integers(2)) if tie else candidate.frequency > truth.frequency
        cell = (higher, candidate.score > truth.score)
        if wanted[cell] > 0 and candidate.text != truth.text and candidate.text not in chosen:
            wanted[cell] -= 1
            chosen.append(candidate.text)
            if len(chosen) == WRONG:
                break
    return tuple(chosen) if len(chosen) == WRONG else None


@kind(
    "last-word",
    "which word really ends the line",
    Template("plain"),
    Template("say", before="Say: "),
    Template("dots", after=" ..."),
)
def last_word(source: Passages, known: Passages, room: int, rng: np.random.Generator) -> Iterator[Item]:
    """The true last word among words of its length and about its frequency."""
    by_length = grouped(
        (len(word), _Candidate(word, math.log(count), known.letters.score(word)))
        for word, count in known.words.items()
        if count >= 2 and word.isalpha() and word.islower()
    )
    for candidates in by_length.values():
        candidates.sort(key=lambda c: (c.frequency, c.text))
    for start, line in source.lines:
        match = re.search(r" ([a-z]{3,9})[^A-Za-z]*$", line)
        count = known.words[match[1]] if match else 0
        if match is None or count < 2:
            continue
        truth = _Candidate(match[1], math.log(count), known.letters.score(match[1]))
        wrong = _matched(truth, _closest(by_length[len(truth.text)], truth), rng)
        text = source.before(start + match.start(), min(80, room - 1 - len(truth.text)))
        if wrong is not None and len(text) >= 10:
            yield Item(text, (truth.text, *wrong), 0)


def _closest(by_frequency: Sequence[_Candidate], truth: _Candidate) -> list[_Candidate]:
    """The candidates nearest in frequency, nearest first, from a list in the order of frequency."""
    place = bisect_left(by_frequency, truth.frequency, key=lambda c: c.frequency)
    around = by_frequency[max(0, place - CLOSEST) : place + CLOSEST]
    return sorted(around, key=lambda c: (abs(c.frequency - truth.frequency), c.text))[:CLOSEST]


@kind(
    "next-line",
    "which line really comes next",
    Template("plain", delimiter="\n"),
    Template("then", after="\nThen:", delimiter="\n"),
    Template("after", before="After: ", delimiter="\n"),
)
def next_line(source: Passages, known: Passages, room: int, rng: np.random.Generator) -> Iterator[Item]:
    """The true next line, or its beginning, among other lines of the text of about its length."""
    size = min(32, (room - 2) // 2)
    heads = [(start, head_of(line, size)) for start, line in source.lines]
    pool = [_line(head, known.letters) for _, head in heads if len(head) >= size // 2]
    by_length = grouped((len(candidate.text), candidate) for candidate in pool)
    for start, head in heads:
        goes_on = source.text[start - 2 : start - 1] not in ("\n", ":")  # the line before is running text too
        if len(head) < size // 2 or not goes_on:
            continue
        near = [c for offset in (0, 1, -1, 2, -2) for c in by_length.get(len(head) + offset, ())]
        wrong = _matched(_line(head, known.letters), [near[i] for i in rng.permutation(len(near))[:CLOSEST]], rng)
        text = source.before(start - 1, min(60, room - 1 - max(map(len, (head, *(wrong or ()))))))
        if wrong is not None and len(text) >= 8:
            yield Item(text, (head, *wrong), 0)


def _line(text: str, letters: Letters) -> _Candidate:
    return _Candidate(text, float(len(text)), letters.score(text))


@kind(
    "who-speaks-next",
    "whose name really heads the next speech",
    Template("plain", delimiter="\n\n", ending=":"),
    Template("enter", after="\n\nEnter", delimiter=" "),
    Template("who", after="\n\nWho?", delimiter="\n", ending=":"),
)
def who_speaks_next(source: Passages, known: Passages, room: int, rng: np.random.Generator) -> Iterator[Item]:
    """The true speaker among others of the same text, of about the same length and frequency."""
    counts = Counter(speech.speaker for speech in source.speeches)
    names = [_Candidate(n, math.log(c), known.letters.score(n)) for n, c in counts.items() if len(n) <= 14]
    by_name = {candidate.text: candidate for candidate in names}
    for speech in source.speeches:
        truth = by_name.get(speech.speaker)
        if truth is None:
            continue

        def unlike(candidate: _Candidate, truth: _Candidate = truth) -> tuple[float, str]:
            size = abs(len(candidate.text) - len(truth.text))
            return abs(candidate.frequency - truth.frequency) + size / 2, candidate.text

        wrong = _matched(truth, sorted(names, key=unlike), rng)
        longest = max(map(len, (truth.text, *(wrong or ())))) + len("\n\n:")
        text = source.before(speech.start, min(80, room - longest)).rstrip()
        if wrong is not None and len(text) >= 6:
            yield Item(text, (truth.text, *wrong), 0)


def _pairs(source: Passages, room: int, most: int) -> Iterator[tuple[str, list[str]]]:
    """Lines, or their beginnings, that fit, with their words."""
    for _, line in source.lines:
        head = head_of(line, min(room, most))
        words = head.split(" ")
        if len(words) >= 4 and len(head) >= 18:
            yield head, words


@kind("spelling", "the real line against one with two letters of a word exchanged", Template("plain", delimiter=""))
def spelling(source: Passages, known: Passages, room: int, rng: np.random.Generator) -> Iterator[Item]:
    """Two neighbouring letters inside a word change places, and the result is no word of the training text."""
    for line, words in _pairs(source, room, 44):
        place = int(rng.integers(1, len(words)))
        word = words[place]
        spots = [i for i in range(1, len(word) - 2) if word[i : i + 2].isalpha() and word[i] != word[i + 1]]
        if not word.isalpha() or len(word) < 4 or not spots:
            continue
        spot = spots[int(rng.integers(len(spots)))]
        wrong = word[:spot] + word[spot + 1] + word[spot] + word[spot + 2 :]
        if wrong not in known.words:
            yield Item("", (line, " ".join([*words[:place], wrong, *words[place + 1 :]])), 0)


@kind("word-order", "the real line against one with two neighbouring words exchanged", Template("plain", delimiter=""))
def word_order(source: Passages, known: Passages, room: int, rng: np.random.Generator) -> Iterator[Item]:
    """Two neighbouring lower-case words, not the first, change places."""
    for line, words in _pairs(source, room, 44):
        spots = [
            i
            for i in range(1, len(words) - 1)
            if words[i] != words[i + 1] and all(w.isalpha() and w.islower() for w in words[i : i + 2])
        ]
        if spots:
            spot = spots[int(rng.integers(len(spots)))]
            wrong = [*words[:spot], words[spot + 1], words[spot], *words[spot + 2 :]]
            yield Item("", (line, " ".join(wrong)), 0)


@kind("punctuation", "the real line against one whose mark stands one word off", Template("plain", delimiter=""))
def punctuation(source: Passages, known: Passages, room: int, rng: np.random.Generator) -> Iterator[Item]:
    """A comma, semicolon, colon or full stop inside the line moves to a neighbouring word."""
    for line, words in _pairs(source, room, 44):
        marked = [i for i in range(len(words) - 1) if re.fullmatch(r"[A-Za-z']+[,;:.?!]", words[i])]
        moves = [(i, j) for i in marked for j in (i - 1, i + 1) if 0 <= j < len(words) - 1 and words[j].isalpha()]
        if moves:
            i, j = moves[int(rng.integers(len(moves)))]
            wrong = list(words)
            wrong[i], wrong[j] = words[i][:-1], words[j] + words[i][-1]
            yield Item("", (line, " ".join(wrong)), 0)
