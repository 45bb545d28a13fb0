"""Text to token ids for scoring: characters that a tokenizer lacks are replaced, and counted."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Tokens(Protocol):
    """What scoring needs of a tokenizer."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        ...

    def encode(self, text: str) -> NDArray[np.int64]:
        """Token ids."""
        ...

    def decode(self, tokens: NDArray[np.int64]) -> str:
        """Text."""
        ...


class ScoringTokens:
    """A tokenizer, its unknown characters replaced by a space, and the token that stands for an empty context.

    A character model has no special tokens: the empty context is a newline, or the first token where there is none.
    """

    def __init__(self, tokenizer: Tokens) -> None:
        self.tokenizer = tokenizer
        characters = getattr(tokenizer, "characters", None)
        self._known = None if characters is None else frozenset(characters)
        stand_in = " " if self._known is None or " " in self._known else min(self._known)
        self._stand_in = stand_in
        special = getattr(tokenizer, "end_of_document", None)
        newline = self._known is None or "\n" in self._known
        self.empty_context = special if special is not None else int(tokenizer.encode("\n")[0]) if newline else 0

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        if self._known is not None:
            for character in set(text) - self._known:
                text = text.replace(character, self._stand_in)
        ids: list[int] = self.tokenizer.encode(text).tolist()
        return ids

    def count_unknown(self, text: str) -> int:
        """Characters of a text that the vocabulary lacks."""
        if self._known is None or self._known.issuperset(text):
            return 0
        return sum(character not in self._known for character in text)

    def decode(self, ids: list[int]) -> str:
        """Text of ids."""
        return self.tokenizer.decode(np.asarray(ids, dtype=np.int64))


def token_classes(tokenizer: Tokens) -> NDArray[np.int64]:
    """The class of every token id, as an index into `CLASSES`."""
    special = getattr(tokenizer, "end_of_document", None)
    found = [_class_of(tokenizer.decode(np.asarray([token]))) for token in range(tokenizer.vocabulary)]
    if special is not None:
        found[special] = CLASSES.index("end-of-document")
    return np.asarray(found, dtype=np.int64)


CLASSES = ("alphabetic", "numeric", "punctuation", "whitespace", "end-of-document")


def _class_of(text: str) -> int:
    if any(character.isalpha() for character in text):
        name = "alphabetic"
    elif any(character.isdigit() for character in text):
        name = "numeric"
    elif not text.strip():
        name = "whitespace"
    else:
        name = "punctuation"
    return CLASSES.index(name)
