"""What the runs of a stack have been trained on, from the first step on, and the probes that report it.

The offsets of every step are counted. After a resume, the steps before it are drawn again from their named streams: the
checkpoint's data-order hash says that these were the ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from ablationlab.data.tokenizers import TOKEN_CLASSES, Tokenizer, token_classes
from ablationlab.data.tokens import Tokens, token_counts, windows
from ablationlab.study.probes import NGRAM
from ablationlab.training.probes.snapshot import Reading, Snapshot


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id: their text, their class (an index into `TOKEN_CLASSES`) and their count in the training text."""

    texts: tuple[str, ...]
    class_V: NDArray[np.int64]
    counts_V: NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: Tokenizer, train: NDArray[np.int64] | Tokens) -> Vocabulary:
        """The vocabulary of a tokenized corpus."""
        size = tokenizer.vocabulary
        texts = tuple(tokenizer.decode(np.array([token], dtype=np.int64)) for token in range(size))
        return cls(texts, token_classes(tokenizer), token_counts(train, size))

    @cached_property
    def members(self) -> dict[str, NDArray[np.int64]]:
        """Token ids of every class that has any."""
        ids_of = {name: np.flatnonzero(self.class_V == number) for number, name in enumerate(TOKEN_CLASSES)}
        return {name: ids for name, ids in ids_of.items() if len(ids)}

    @cached_property
    def by_frequency(self) -> NDArray[np.int64]:
        """Token ids, the most frequent first; ties by id."""
        return np.argsort(-self.counts_V, kind="stable")

    def points(self, most: int) -> Sequence[NDArray[np.int64]]:
        """Tokens by falling frequency, one per point; past *most* tokens, points are bins of about equally many."""
        return np.array_split(self.by_frequency, min(most, len(self.texts)))


# Distinct n-grams remembered per seed, about. Past it, only those whose hash falls into one of `_keep` classes are counted:
# a sample of kinds of n-grams, drawn by content, so that the rate stays unbiased and memory small.
REMEMBERED = 2**15
_BASE = 0x9E3779B97F4A7C15  # an odd constant: 2**64 / golden ratio
# Up to this many training tokens, what windows will be asked is worked out once for every place of the text.
INDEXED = 2**22


class SeenData:
    """Running counts per seed; runs of one seed see the same data and share them."""

    def __init__(
        self,
        seeds: Sequence[int],
        train: NDArray[np.int64] | Tokens,
        context: int,
        vocabulary: Vocabulary,
        sources: Sequence[tuple[str, int]],
        planned_windows: int,
        *,
        ngrams: bool = True,
    ) -> None:
        self.seeds, self._train, self._context, self._ngrams = tuple(seeds), train, context, ngrams
        self._vocabulary = vocabulary
        self._names = tuple(name for name, _ in sources)
        self._starts = np.array([start for _, start in sources], dtype=np.int64)
        per_window = max(context + 1 - NGRAM + 1, 1)
        self._keep = max(1, -(-planned_windows * per_window // REMEMBERED))
        distinct = dict.fromkeys(seeds)
        self._class_counts = {seed: np.zeros(len(TOKEN_CLASSES), dtype=np.int64) for seed in distinct}
        self._source_counts = {seed: np.zeros(len(sources), dtype=np.int64) for seed in distinct}
        self._seen: dict[int, set[int]] = {seed: set() for seed in distinct}
        self._counted = dict.fromkeys(distinct, 0)
        self._waiting: dict[int, list[NDArray[np.int64]]] = {seed: [] for seed in distinct}
        self._index: _Index | None = None  # made when first asked

    def take(self, offsets_RB: NDArray[np.int64]) -> None:
        """One step's offsets; counted when somebody asks."""
        for position, seed in enumerate(self.seeds):
            if self.seeds.index(seed) == position:
                self._waiting[seed].append(offsets_RB[position])

    def replay(self, steps: int, offsets: Callable[[int], NDArray[np.int64]]) -> None:
        """The steps before a resume."""
        for step in range(1, steps + 1):
            self.take(offsets(step))

    def classes(self, seed: int) -> dict[str, float]:
        """Share of the tokens so far, by token class."""
        self._count(seed)
        counts = self._class_counts[seed]
        return {
            name: float(counts[TOKEN_CLASSES.index(name)] / max(counts.sum(), 1)) for name in self._vocabulary.members
        }

    def sources(self, seed: int) -> dict[str, float]:
        """Share of the tokens so far, by source."""
        self._count(seed)
        counts = self._source_counts[seed]
        return {name: float(count / max(counts.sum(), 1)) for name, count in zip(self._names, counts, strict=True)}

    def duplicates(self, seed: int) -> float:
        """1 - distinct / all, over the n-grams so far (of a sample of kinds where there are many)."""
        self._count(seed)
        counted = self._counted[seed]
        return 1 - len(self._seen[seed]) / counted if counted else 0.0

    def _count(self, seed: int) -> None:
        waiting, self._waiting[seed] = self._waiting[seed], []
        if not waiting:
            return
        starts = np.concatenate(waiting)
        if len(self._train) <= INDEXED and self._index is None:
            self._index = _Index(self._train, self._vocabulary.class_V, self._keep, ngrams=self._ngrams)
        if self._index is not None:
            classes, kept = self._index.of(starts, self._context)
        else:
            classes, kept = self._read(starts)
        self._class_counts[seed] += classes
        self._source_counts[seed] += self._by_source(starts)
        self._counted[seed] += kept.size
        self._seen[seed].update(kept.tolist())

    def _read(self, starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Tokens by class, and hashes of the n-grams that count, from the text itself."""
        tokens = windows(self._train, starts, self._context + 1)
        inputs = tokens[:, :-1]  # the last target is no input
        counts = np.bincount(inputs.reshape(-1), minlength=len(self._vocabulary.texts))
        classes = np.bincount(self._vocabulary.class_V, weights=counts, minlength=len(TOKEN_CLASSES)).astype(np.int64)
        if not self._ngrams:
            return classes, np.zeros(0, dtype=np.uint64)
        hashes = _hashes(tokens)
        return classes, hashes[hashes % np.uint64(self._keep) == 0]

    def _by_source(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Input tokens by the source that they lie in; a window may reach over into the next ones."""
        count = len(self._starts)
        first = np.searchsorted(self._starts, starts, side="right") - 1
        last = np.searchsorted(self._starts, starts + self._context - 1, side="right") - 1
        counts = np.bincount(first[first == last], minlength=count) * self._context
        for start in starts[first != last]:
            places = np.searchsorted(self._starts, start + np.arange(self._context), side="right") - 1
            counts += np.bincount(places, minlength=count)
        return counts


class _Index:
    """A text in memory, prepared: windows are then counted by their ends instead of by their tokens."""

    def __init__(
        self, train: NDArray[np.int64] | Tokens, class_V: NDArray[np.int64], keep: int, *, ngrams: bool
    ) -> None:
        tokens = windows(train, np.zeros(1, dtype=np.int64), len(train))[0]
        classes = class_V[tokens]
        self._before = np.zeros(
            (len(TOKEN_CLASSES), len(tokens) + 1), dtype=np.int32
        )  # tokens of a class before each place
        for number in range(len(TOKEN_CLASSES)):
            np.cumsum(classes == number, out=self._before[number, 1:])
        hashes = _hashes(tokens[None]) if ngrams else np.zeros(0, dtype=np.uint64)
        self._places = np.flatnonzero(hashes % np.uint64(keep) == 0)
        self._hashes = hashes[self._places]

    def of(self, starts: NDArray[np.int64], context: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """The same as from the text itself."""
        classes = (self._before[:, starts + context] - self._before[:, starts]).sum(axis=1, dtype=np.int64)
        # An n-gram counts where it lies wholly inside the window with its last target.
        ends = starts + max(context + 1 - NGRAM + 1, 0)
        low, high = np.searchsorted(self._places, starts), np.searchsorted(self._places, ends)
        kept = [self._hashes[a:b] for a, b in zip(low, high, strict=True)]
        return classes, np.concatenate(kept)


def _hashes(windows_NT: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A 64-bit polynomial hash of every n-gram inside every window, mixed so that its remainders are even."""
    length = windows_NT.shape[1] - NGRAM + 1
    if length < 1:
        return np.zeros(0, dtype=np.uint64)
    tokens = windows_NT.astype(np.uint64) + np.uint64(1)
    total = np.zeros((len(tokens), length), dtype=np.uint64)
    for place in range(NGRAM):
        total = total * np.uint64(_BASE) + tokens[:, place : place + length]
    total ^= total >> np.uint64(31)
    total *= np.uint64(0xBF58476D1CE4E5B9)
    total ^= total >> np.uint64(27)
    return total.reshape(-1)


def data_mixture(snapshot: Snapshot) -> list[Reading]:
    """Shares of the tokens up to and including this step, by source and by token class."""
    seen = snapshot.seen
    shares = [
        {f"source:{name}": share for name, share in seen.sources(seed).items()}
        | {f"class:{name}": share for name, share in seen.classes(seed).items()}
        for seed in snapshot.seeds
    ]
    values = torch.tensor([list(run.values()) for run in shares], dtype=torch.float64)
    return [Reading("share", values, tuple(shares[0]))]


def duplicate_ngrams(snapshot: Snapshot) -> list[Reading]:
    """Share of the n-grams up to and including this step that had occurred before."""
    rates = [snapshot.seen.duplicates(seed) for seed in snapshot.seeds]
    return [Reading("rate", torch.tensor(rates, dtype=torch.float64))]
