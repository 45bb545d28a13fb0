"""What a token is, for probes: its text, its class, its frequency in the training text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ablationlab.data.tokens import Tokens, token_counts

CLASSES = ("alphabetic", "numeric", "punctuation", "whitespace", "end-of-document")


class _Tokenizer(Protocol):
    @property
    def vocabulary(self) -> int: ...
    def decode(self, tokens: NDArray[np.int64]) -> str: ...


def token_class(text: str) -> str:
    """Class of a token by its text: a letter anywhere makes it alphabetic, else a digit numeric; blanks are whitespace.

    Everything else (punctuation, symbols, bytes that are no text by themselves) counts as punctuation.
    """
    if any(character.isalpha() for character in text):
        return "alphabetic"
    if any(character.isnumeric() for character in text):
        return "numeric"
    return "whitespace" if text and text.isspace() else "punctuation"


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id. ``counts_V``: occurrences in the training text. ``end``: the end-of-document token, if there is one."""

    texts: tuple[str, ...]
    counts_V: NDArray[np.int64]
    end: int | None = None

    @classmethod
    def of(cls, tokenizer: _Tokenizer, train: NDArray[np.int64] | Tokens) -> Vocabulary:
        """The vocabulary of a tokenized corpus."""
        size = tokenizer.vocabulary
        texts = tuple(tokenizer.decode(np.array([token], dtype=np.int64)) for token in range(size))
        end = getattr(tokenizer, "end_of_document", None)
        return cls(texts, token_counts(train, size), end if isinstance(end, int) else None)

    @cached_property
    def class_V(self) -> NDArray[np.int64]:
        """Position in `CLASSES` of every token."""
        found = np.array([CLASSES.index(token_class(text)) for text in self.texts], dtype=np.int64)
        if self.end is not None:
            found[self.end] = CLASSES.index("end-of-document")
        return found

    @cached_property
    def members(self) -> dict[str, NDArray[np.int64]]:
        """Token ids of every class that has any."""
        found = {name: np.flatnonzero(self.class_V == number) for number, name in enumerate(CLASSES)}
        return {name: ids for name, ids in found.items() if len(ids)}

    @cached_property
    def by_frequency(self) -> NDArray[np.int64]:
        """Token ids, the most frequent first; ties by id."""
        return np.argsort(-self.counts_V, kind="stable")

    def points(self, most: int) -> Sequence[NDArray[np.int64]]:
        """Tokens by falling frequency, one a point; past *most* tokens, points are bins of about equally many."""
        return np.array_split(self.by_frequency, min(most, len(self.texts)))
