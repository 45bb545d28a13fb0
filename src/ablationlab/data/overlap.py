"""Text that the corpora of a mixture have in common: found once, kept in the cache, left out of the training text.

A training document is

    leaked     if it equals, nearly equals, contains or is contained in a held-out document of any component
    repeated   if it equals or nearly equals a training document of a smaller component

A leaked document would let a model see what it is validated on; a repeated one only counts a text twice. Documents are
compared as words (`duplicates.py`): equal, by a hash of all words; nearly equal, by MinHash over n-grams of 5 words;
contained, if half of the n-grams of `LONG` words of the shorter one, and at least `FEWEST` of them, are in the other.
Whatever is removed, ``seen`` is the share of the words of the held-out text that are in an n-gram of `LONG` words (the
length of Brown et al. 2020) which is in training text too.

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
from ablationlab.data.duplicates import (
    PERMUTATIONS,
    WORDS,
    Hashes,
    SimilarityIndex,
    digest,
    minhash_values,
    ngram_hashes,
    word_hashes,
    words_of,
)
from ablationlab.data.prepared import Manifest, Prepared
from ablationlab.data.sources import cache_folder
from ablationlab.data.tokens import Span
from ablationlab.records.plan import Shared
from ablationlab.records.storage import Record, content_hash

#: Documents with at least this estimated Jaccard similarity are nearly equal.
NEAR = 0.8
#: Words of the n-grams by which text is found inside other text, and the share of them that makes a document contained.
LONG, CONTAINED = 13, 0.5
#: The fewest n-grams that make a document contained: a sentence or two in common are not enough.
FEWEST = 50
#: A longer document is compared in pieces of this many tokens, each like a document.
LONGEST = 2**20
#: Raised when the same text would give another overlap.
_METHOD = 1
# Approximate tokens per task of a worker process.
_BATCH = 2**18


class Overlap(Record):
    """Counts, and for each component the spans of its training text that are leaked or repeated."""

    KIND: ClassVar[str] = "mixture-overlap"
    VERSION: ClassVar[int] = 1
    key: str
    components: tuple[Shared, ...]
    spans: tuple[tuple[Span, ...], ...]


@dataclass(frozen=True)
class SplitCorpus:
    """A component: the prepared folder, and where its held-out part begins."""

    prepared: Prepared
    cut: int

    def spans(self, *, held_out: bool) -> Iterator[Span]:
        """The documents of one part, in order; a document that is cut is in both parts, each with its own tokens."""
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


def find_overlap(
    corpora: Sequence[SplitCorpus], *, processes: int = 1, report: Callable[[float], None] = lambda _: None
) -> Overlap:
    """What the components have in common: from the cache, or computed and kept there."""
    key = content_hash(
        [
            [_METHOD, NEAR, LONG, CONTAINED, FEWEST, LONGEST, WORDS, PERMUTATIONS],
            [[corpus.prepared.manifest.tokens_sha256, _layout(corpus), corpus.cut] for corpus in corpora],
        ]
    )
    path = cache_folder() / "overlaps" / f"{key[:24]}.json"
    if path.is_file():
        with suppress(RecordError):  # a damaged record is computed again
            overlap = Overlap.read(path)
            if overlap.key == key:
                return overlap
    overlap = _Search(corpora, key, processes, report).run()
    with suppress(StorageError):  # a cache that cannot be written costs time, not the study
        overlap.replace(path)
    return overlap


def _layout(corpus: SplitCorpus) -> str:
    """Hash of the tokenizer and of where the documents end."""
    manifest = corpus.prepared.manifest
    return content_hash([manifest.tokenizer.identity, [shard.index_sha256 for shard in manifest.shards]])


class DocumentHashes(NamedTuple):
    """``ngrams``: how many distinct ones the document has; ``hits``: which n-grams of held-out text are in it."""

    digest: bytes
    signature: Hashes | None
    ngrams: int
    hits: NDArray[np.int64]


class _Reader:
    """Hashes documents of any component; *held_out* is a file with the n-grams of the held-out text, sorted."""

    def __init__(self, folders: Sequence[tuple[Path, Manifest]], held_out: Path | None) -> None:
        self.corpora = [Prepared(folder, manifest) for folder, manifest in folders]
        self.tokenizers = [manifest.tokenizer.make() for _, manifest in folders]
        self.held_out: Hashes = np.zeros(0, dtype=np.uint64) if held_out is None else np.load(held_out, mmap_mode="r")

    def __call__(self, component: int, spans: Sequence[Span]) -> list[DocumentHashes]:
        documents = []
        for start, stop in spans:
            text, hashes = self.read(component, start, stop)
            ngrams = np.unique(ngram_hashes(hashes, LONG))
            at = np.searchsorted(self.held_out, ngrams)
            at[at == len(self.held_out)] = 0
            hits = at[self.held_out[at] == ngrams] if len(self.held_out) else at[:0]
            documents.append(DocumentHashes(digest(text), _signature(hashes), len(ngrams), hits.astype(np.int64)))
        return documents

    def read(self, component: int, start: int, stop: int) -> tuple[str, Hashes]:
        """The words, or the whole text if it has none, to be compared exactly; and the words' hashes."""
        tokenizer, tokens = self.tokenizers[component], self.corpora[component].tokens[start:stop]
        if tokenizer.end_of_document is not None and tokens[-1] == tokenizer.end_of_document:
            tokens = tokens[:-1]
        text = tokenizer.decode(tokens)
        words = words_of(text)
        return " ".join(words) or text, word_hashes(words)


def _signature(hashes: Hashes) -> Hashes | None:
    ngrams = np.unique(ngram_hashes(hashes, WORDS) >> np.uint64(32)).tolist()
    return minhash_values(ngrams) if ngrams else None


@dataclass
class _HeldOut:
    """The held-out text of all components."""

    digests: set[bytes] = field(default_factory=set)
    near: SimilarityIndex = field(default_factory=lambda: SimilarityIndex(NEAR))
    words: list[tuple[int, int]] = field(default_factory=list)  # of each document: its component, its number of words
    ngrams: list[Hashes] = field(default_factory=list)  # of each document, in the order of its text

    def index(self) -> None:
        """Once all n-grams are known: number them, and note which documents each is in."""
        every = np.concatenate([*self.ngrams, np.zeros(0, dtype=np.uint64)])
        self.known, self.number = np.unique(every, return_inverse=True)
        owners = np.repeat(np.arange(len(self.ngrams)), [len(ngrams) for ngrams in self.ngrams])
        pairs = np.unique(np.stack([self.number, owners]), axis=1)
        self.owners, self.firsts = pairs[1], np.searchsorted(pairs[0], np.arange(len(self.known) + 1))
        self.distinct = np.bincount(pairs[1], minlength=len(self.ngrams))

    def contained(self, document: DocumentHashes) -> bool:
        """Whether a document and one of these share `CONTAINED` of the n-grams of the shorter one."""
        if len(document.hits) < FEWEST:
            return False
        owners = np.concatenate([self.owners[self.firsts[hit] : self.firsts[hit + 1]] for hit in document.hits])
        shared = np.bincount(owners, minlength=len(self.ngrams))
        shorter = np.minimum(self.distinct, document.ngrams)
        return bool(np.any((shared >= FEWEST) & (shared >= CONTAINED * shorter)))

    def share(self, seen: NDArray[np.bool_], component: int) -> float:
        """Share of the words of a component's held-out text that are in an n-gram that was *seen*."""
        covered, total, start = 0, 0, 0
        for (owner, words), ngrams in zip(self.words, self.ngrams, strict=True):
            flags = seen[self.number[start : start + len(ngrams)]]
            start += len(ngrams)
            if owner == component:
                total += words
                covered += _covered(flags)
        return covered / total if total else 0.0


def _covered(flags: NDArray[np.bool_]) -> int:
    """Words inside the n-grams that are flagged."""
    places = np.flatnonzero(flags)
    return int(np.minimum(np.diff(places, append=np.iinfo(np.int64).max), LONG).sum())


class _Search:
    """One pass over all text: held-out text first, then training text, the smallest component first."""

    def __init__(
        self, corpora: Sequence[SplitCorpus], key: str, processes: int, report: Callable[[float], None]
    ) -> None:
        self.corpora, self.key, self.processes, self.report = corpora, key, processes, report
        self.total = sum(corpus.prepared.manifest.tokens for corpus in corpora)
        self.done = 0

    def run(self) -> Overlap:
        folders = [(corpus.prepared.folder, corpus.prepared.manifest) for corpus in self.corpora]
        held_out = self._read_held_out(_Reader(folders, None))
        counts = [Counter[str]() for _ in self.corpora]
        spans: list[list[Span]] = [[] for _ in self.corpora]
        seen, seen_without = (np.zeros(len(held_out.known), dtype=bool) for _ in range(2))
        first: dict[bytes, int] = {}
        near = SimilarityIndex(NEAR)
        order = sorted(range(len(self.corpora)), key=lambda number: self.corpora[number].cut)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "held.npy"
            np.save(file, held_out.known)
            with Pool(
                _Reader,
                (folders, file),
                processes=self.processes,
                name="comparing texts",
                inline=self.processes == 1,
            ) as readers:
                for (component, batch), documents in readers.in_order(self._reader_calls(order)):
                    for span, document in zip(batch, documents, strict=True):
                        seen[document.hits] = True
                        kind = _leaked(document, held_out) or _repeated(document, component, first, near)
                        if kind is not None:
                            counts[component][kind] += 1
                            counts[component]["tokens"] += span[1] - span[0]
                            spans[component].append(span)
                            continue
                        seen_without[document.hits] = True
                        if component != order[-1]:
                            first.setdefault(document.digest, component)
                            if document.signature is not None:
                                near.add(component, document.signature)
                    self._advance(batch)
        shared = tuple(
            Shared(
                leaked_exact=count["leaked exact"],
                leaked_near=count["leaked near"],
                leaked_contained=count["leaked contained"],
                repeated_exact=count["repeated exact"],
                repeated_near=count["repeated near"],
                tokens=count["tokens"],
                seen=held_out.share(seen, number),
                seen_without=held_out.share(seen_without, number),
            )
            for number, count in enumerate(counts)
        )
        return Overlap(key=self.key, components=shared, spans=tuple(map(tuple, spans)))

    def _read_held_out(self, reader: _Reader) -> _HeldOut:
        held_out = _HeldOut()
        for component, corpus in enumerate(self.corpora):
            for span in corpus.spans(held_out=True):
                text, hashes = reader.read(component, *span)
                held_out.digests.add(digest(text))
                if (signature := _signature(hashes)) is not None:
                    held_out.near.add(component, signature)
                held_out.words.append((component, len(hashes)))
                held_out.ngrams.append(ngram_hashes(hashes, LONG))
                self._advance([span])
        held_out.index()
        return held_out

    def _reader_calls(self, order: Sequence[int]) -> Iterator[tuple[tuple[int, list[Span]], tuple[int, list[Span]]]]:
        for component in order:
            batch: list[Span] = []
            for span in self.corpora[component].spans(held_out=False):
                batch.append(span)
                if span[1] - batch[0][0] >= _BATCH:
                    yield (component, batch), (component, batch)
                    batch = []
            if batch:
                yield (component, batch), (component, batch)

    def _advance(self, spans: Sequence[Span]) -> None:
        self.done += sum(stop - start for start, stop in spans)
        self.report(self.done / self.total)


def _leaked(document: DocumentHashes, held_out: _HeldOut) -> str | None:
    if document.digest in held_out.digests:
        return "leaked exact"
    if document.signature is not None and held_out.near.contains(document.signature):
        return "leaked near"
    return "leaked contained" if held_out.contained(document) else None


def _repeated(document: DocumentHashes, component: int, first: dict[bytes, int], near: SimilarityIndex) -> str | None:
    if first.get(document.digest, component) != component:
        return "repeated exact"
    if document.signature is not None and near.contains(document.signature, other_than=component):
        return "repeated near"
    return None
