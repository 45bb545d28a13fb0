"""From text to token ids and back."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ablationlab.data.archives import GPT2_BPE
from ablationlab.errors import DataError
from ablationlab.registry import Registry


class Tokenizer(Protocol):
    """What a corpus needs; ``characters`` is the vocabulary of a character tokenizer, and None for others."""

    @property
    def characters(self) -> str | None:
        """The vocabulary, where it is made of characters."""
        ...

    @classmethod
    def of(cls, text: str) -> Self:
        """The tokenizer for a text."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        ...

    def encode(self, text: str) -> NDArray[np.int64]:
        """Token ids of a text."""
        ...

    def decode(self, tokens: NDArray[np.int64]) -> str:
        """Text of token ids."""
        ...


class CharTokenizer:
    """One token per character, numbered by code point, as in nanoGPT's character data."""

    def __init__(self, characters: str) -> None:
        self._characters = characters
        self._points = _code_points(characters)

    @property
    def characters(self) -> str:
        """The vocabulary, in the order of its ids."""
        return self._characters

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


class GPT2Tokenizer:
    """GPT-2's byte-level BPE: 50,257 tokens, the last of which ends a document. Needs two files, fetched by checksum."""

    characters: None = None
    vocabulary = 50_257
    end_of_document = 50_256

    @classmethod
    def of(cls, text: str) -> GPT2Tokenizer:
        """The same for every text."""
        return cls()

    @cached_property
    def _bpe(self) -> Any:
        from tokenizers import Tokenizer as Bpe
        from tokenizers import decoders, models, pre_tokenizers

        merges, vocabulary = (str(GPT2_BPE.fetch(member)) for member in GPT2_BPE.members)
        bpe = Bpe(models.BPE.from_file(vocabulary, merges))
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        return bpe

    def encode(self, text: str) -> NDArray[np.int64]:
        """Token ids of a text; there is no unknown character."""
        return np.asarray(self._bpe.encode(text).ids, dtype=np.int64)

    def decode(self, tokens: NDArray[np.int64]) -> str:
        """Text of token ids; bytes that are no whole character become the replacement character."""
        return str(self._bpe.decode([int(token) for token in tokens], skip_special_tokens=False))


TOKENIZERS: Registry[type[Tokenizer]] = Registry("tokenizer")
TOKENIZERS.add("char", CharTokenizer)
TOKENIZERS.add("gpt2", GPT2Tokenizer)
