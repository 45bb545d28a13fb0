"""Text that the corpora of a mixture have in common: found once, remembered in the cache, left out of what is trained on.

A training document is

    leaked     if it equals, nearly equals, contains or is contained in a held-out document of any component
    repeated   if it equals or nearly equals a training document of a smaller component

The first would let a model see what it is validated on, the second only weighs a text twice. Documents are compared as
words (`runs.py`): equal, by a hash of all of them; nearly, by MinHash over runs of 5 (`duplicates.py`); contained, if half of
the runs of `LONG` words of the shorter one, and `FEWEST` of them at least, stand in the other. Whatever is removed, ``seen``
says how much of the held-out text stands in training text: the share of its words that are in a run of `LONG` words (the
length that Brown et al. 2020 looked for) which is there too.

Training text is streamed. Memory grows with the held-out text, and with the documents of all components but the largest.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.errors import RecordError, StorageError
from ablationlab.core.processes import Pool
from ablationlab.data.duplicates import PERMUTATIONS, WORDS, Index, digest, minima
from ablationlab.data.manifest import Manifest
from ablationlab.data.ngrams import Hashes, runs_of, word_hashes, words_of
from ablationlab.data.prepared import Prepared
from ablationlab.data.sources import cache_folder
from ablationlab.data.tokens import Span
from ablationlab.records.corpus import Shared
from ablationlab.records.schema import Record
from ablationlab.records.storage import content_hash

#: The estimated Jaccard similarity from which on two documents are nearly the same.
NEAR = 0.8
#: Words of the runs by which text is found inside other text, and the share of them that makes a document contained.
LONG, CONTAINED = 13, 0.5
#: So many runs at least make a document contained: a sentence or two in common do not.
FEWEST = 50
#: A longer document is looked at in pieces of so many tokens, each like a document.
LONGEST = 2**20
#: Raised when the same text would be found to overlap in another way.
_METHOD = 1
# Tokens of what a process is asked at a time, about.
_BATCH = 2**18


class Found(Record):
    """What was found: counts, and for each component the spans of its training text that stand elsewhere too."""

    KIND: ClassVar[str] = "mixture-overlap"
    key: str
    components: tuple[Shared, ...]
    spans: tuple[tuple[Span, ...], ...]


@dataclass(frozen=True)
class Side:
    """A component: the prepared folder, and where its held-out part begins."""

    prepared: Prepared
    cut: int

    def spans(self, *, held_out: bool) -> Iterator[Span]:
        """The documents of one part, in order; one that the cut falls into is in both, each with its own tokens."""
        low, high = (self.cut, self.prepared.manifest.tokens) if held_out else (0, self.cut)
        ends = self.prepared.ends
        start = low
        for end in ends[np.searchsorted(ends, low, side="right") :].tolist():
            while start < min(end, high):
                stop = min(end, high, start + LONGEST)
                yield start, stop
                start = stop
            if end >= high:
                return


def overlap_of(sides: Sequence[Side], *, processes: int = 1, report: Callable[[float], None] = lambda _: None) -> Found:
    """What the components have in common: from the cache, or found now and kept there."""
    key = content_hash(
        [
            [_METHOD, NEAR, LONG, CONTAINED, FEWEST, LONGEST, WORDS, PERMUTATIONS],
            [[side.prepared.manifest.tokens_sha256, _layout(side), side.cut] for side in sides],
        ]
    )
    path = cache_folder() / "overlaps" / f"{key[:24]}.json"
    if path.is_file():
        with suppress(RecordError):  # a damaged one is made again
            found = Found.read(path)
            if found.key == key:
                return found
    found = _Search(sides, key, processes, report).make()
    with suppress(StorageError):  # a cache that cannot be written costs time, not a study
        found.replace(path)
    return found


def _layout(side: Side) -> str:
    """Where the documents end, and by which tokenizer tokens are text."""
    manifest = side.prepared.manifest
    return content_hash([manifest.tokenizer.identity, [shard.index_sha256 for shard in manifest.shards]])


class Looked(NamedTuple):
    """What a process saw in one document; ``hits``: which runs of held-out text are in it."""

    digest: bytes
    signature: Hashes | None
    runs: int
    hits: NDArray[np.int64]


class _Reader:
    """Looks at documents of any component; *held* is a file with the runs of the held-out text, sorted."""

    def __init__(self, sides: Sequence[tuple[Path, Manifest]], held: Path | None) -> None:
        self.corpora = [Prepared(folder, manifest) for folder, manifest in sides]
        self.tokenizers = [manifest.tokenizer.make() for _, manifest in sides]
        self.held: Hashes = np.zeros(0, dtype=np.uint64) if held is None else np.load(held, mmap_mode="r")

    def __call__(self, component: int, spans: Sequence[Span]) -> list[Looked]:
        """One after another."""
        found = []
        for start, stop in spans:
            text, hashes = self.read(component, start, stop)
            runs = np.unique(runs_of(hashes, LONG))
            at = np.searchsorted(self.held, runs)
            at[at == len(self.held)] = 0
            hits = at[self.held[at] == runs] if len(self.held) else at[:0]
            near = np.unique(runs_of(hashes, WORDS) >> np.uint64(32)).tolist()
            found.append(Looked(digest(text), minima(near) if near else None, len(runs), hits.astype(np.int64)))
        return found

    def read(self, component: int, start: int, stop: int) -> tuple[str, Hashes]:
        """What is compared exactly, which is the words, or all of it where it has none; and the words' hashes."""
        tokenizer, tokens = self.tokenizers[component], self.corpora[component].tokens[start:stop]
        if tokenizer.end_of_document is not None and tokens[-1] == tokenizer.end_of_document:
            tokens = tokens[:-1]
        text = tokenizer.decode(tokens)
        words = words_of(text)
        return " ".join(words) or text, word_hashes(words)


@dataclass
class _Held:
    """The held-out text of all components."""

    digests: set[bytes] = field(default_factory=set)
    near: Index = field(default_factory=lambda: Index(NEAR))
    words: list[tuple[int, int]] = field(default_factory=list)  # of each document: its component, its words
    runs: list[Hashes] = field(default_factory=list)  # of each document, in the order of its text

    def settle(self) -> None:
        """All runs are known: number them, and remember which documents each is in."""
        every = np.concatenate([*self.runs, np.zeros(0, dtype=np.uint64)])
        self.known, self.number = np.unique(every, return_inverse=True)
        owners = np.repeat(np.arange(len(self.runs)), [len(runs) for runs in self.runs])
        pairs = np.unique(np.stack([self.number, owners]), axis=1)
        self.owners, self.firsts = pairs[1], np.searchsorted(pairs[0], np.arange(len(self.known) + 1))
        self.distinct = np.bincount(pairs[1], minlength=len(self.runs))

    def contained(self, looked: Looked) -> bool:
        """Whether a document and one of these share `CONTAINED` of the runs of the shorter one."""
        if len(looked.hits) < FEWEST:
            return False
        owners = np.concatenate([self.owners[self.firsts[hit] : self.firsts[hit + 1]] for hit in looked.hits])
        shared = np.bincount(owners, minlength=len(self.runs))
        shorter = np.minimum(self.distinct, looked.runs)
        return bool(np.any((shared >= FEWEST) & (shared >= CONTAINED * shorter)))

    def share(self, seen: NDArray[np.bool_], component: int) -> float:
        """Of the words of a component's held-out text, those in a run that was *seen*."""
        covered, total, start = 0, 0, 0
        for (owner, words), runs in zip(self.words, self.runs, strict=True):
            flags = seen[self.number[start : start + len(runs)]]
            start += len(runs)
            if owner == component:
                total += words
                covered += _covered(flags)
        return covered / total if total else 0.0


def _covered(flags: NDArray[np.bool_]) -> int:
    """Words inside the runs that are flagged."""
    places = np.flatnonzero(flags)
    return int(np.minimum(np.diff(places, append=np.iinfo(np.int64).max), LONG).sum())


class _Search:
    """One pass over everything: held-out text first, then training text, the smallest component first."""

    def __init__(self, sides: Sequence[Side], key: str, processes: int, report: Callable[[float], None]) -> None:
        self.sides, self.key, self.processes, self.report = sides, key, processes, report
        self.total = sum(side.prepared.manifest.tokens for side in sides)
        self.done = 0

    def make(self) -> Found:
        """Look at all of it."""
        folders = [(side.prepared.folder, side.prepared.manifest) for side in self.sides]
        held = self._held_out(_Reader(folders, None))
        counts = [Counter[str]() for _ in self.sides]
        spans: list[list[Span]] = [[] for _ in self.sides]
        seen, still = (np.zeros(len(held.known), dtype=bool) for _ in range(2))
        first: dict[bytes, int] = {}
        near = Index(NEAR)
        order = sorted(range(len(self.sides)), key=lambda number: self.sides[number].cut)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "held.npy"
            np.save(file, held.known)
            with Pool(
                _Reader,
                (folders, file),
                processes=self.processes,
                name="comparing texts",
                inline=self.processes == 1,
            ) as readers:
                for (component, batch), answers in readers.in_order(self._questions(order)):
                    for span, looked in zip(batch, answers, strict=True):
                        seen[looked.hits] = True
                        kind = _leaked(looked, held) or _repeated(looked, component, first, near)
                        if kind is not None:
                            counts[component][kind] += 1
                            counts[component]["tokens"] += span[1] - span[0]
                            spans[component].append(span)
                            continue
                        still[looked.hits] = True
                        if component != order[-1]:
                            first.setdefault(looked.digest, component)
                            if looked.signature is not None:
                                near.add(component, looked.signature)
                    self._advance(batch)
        shared = tuple(
            Shared(
                leaked_exact=found["leaked exact"],
                leaked_near=found["leaked near"],
                leaked_contained=found["leaked contained"],
                repeated_exact=found["repeated exact"],
                repeated_near=found["repeated near"],
                tokens=found["tokens"],
                seen=held.share(seen, number),
                seen_without=held.share(still, number),
            )
            for number, found in enumerate(counts)
        )
        return Found(key=self.key, components=shared, spans=tuple(tuple(one) for one in spans))

    def _held_out(self, reader: _Reader) -> _Held:
        held = _Held()
        for component, side in enumerate(self.sides):
            for span in side.spans(held_out=True):
                text, hashes = reader.read(component, *span)
                held.digests.add(digest(text))
                if near := np.unique(runs_of(hashes, WORDS) >> np.uint64(32)).tolist():
                    held.near.add(component, minima(near))
                held.words.append((component, len(hashes)))
                held.runs.append(runs_of(hashes, LONG))
                self._advance([span])
        held.settle()
        return held

    def _questions(self, order: Sequence[int]) -> Iterator[tuple[tuple[int, list[Span]], tuple[int, list[Span]]]]:
        for component in order:
            batch: list[Span] = []
            for span in self.sides[component].spans(held_out=False):
                batch.append(span)
                if span[1] - batch[0][0] >= _BATCH:
                    yield (component, batch), (component, batch)
                    batch = []
            if batch:
                yield (component, batch), (component, batch)

    def _advance(self, spans: Sequence[Span]) -> None:
        self.done += sum(stop - start for start, stop in spans)
        self.report(self.done / self.total)


def _leaked(looked: Looked, held: _Held) -> str | None:
    if looked.digest in held.digests:
        return "leaked exact"
    if looked.signature is not None and held.near.holds(looked.signature):
        return "leaked near"
    return "leaked contained" if held.contained(looked) else None


def _repeated(looked: Looked, component: int, first: dict[bytes, int], near: Index) -> str | None:
    if first.get(looked.digest, component) != component:
        return "repeated exact"
    if looked.signature is not None and near.holds(looked.signature, but=component):
        return "repeated near"
    return None
