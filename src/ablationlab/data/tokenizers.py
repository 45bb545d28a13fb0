"""From text to token ids and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ablationlab.errors import DataError
from ablationlab.registry import Registry


class CharTokenizer:
    """One token per character, numbered by code point, as in nanoGPT's character data."""

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self._points = _code_points(characters)

    @classmethod
    def of(cls, text: str) -> CharTokenizer:
        """The tokenizer of all characters that occur in *text*."""
        return cls("".join(map(chr, np.unique(_code_points(text)))))

    @property
    def vocabulary(self) -> int:
        """Number of distinct characters."""
        return len(self._points)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Token ids of a text; a character outside the vocabulary is an error."""
        points = _code_points(text)
        ids = np.searchsorted(self._points, points)
        known = self._points[np.minimum(ids, len(self._points) - 1)] == points
        if not known.all():
            strange = text[int(np.argmin(known))]
            raise DataError(f"character {strange!r} is not in the vocabulary of {self.vocabulary} characters")
        return ids.astype(np.int64)

    def decode(self, tokens: NDArray[np.int64]) -> str:
        """Text of token ids."""
        return "".join(map(chr, self._points[np.asarray(tokens)]))


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.uint32)


TOKENIZERS: Registry[type[CharTokenizer]] = Registry("tokenizer")
TOKENIZERS.add("char", CharTokenizer)
