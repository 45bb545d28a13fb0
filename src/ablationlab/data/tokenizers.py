"""From text to token ids and back."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.errors import DataError
from ablationlab.core.registry import Registry
from ablationlab.data.sources import GPT2_BPE


class Tokenizer(Protocol):
    """What a corpus needs of a tokenizer."""

    @property
    def characters(self) -> str | None:
        """The vocabulary of a character tokenizer, in the order of its ids; None for others."""
        ...

    @property
    def end_of_document(self) -> int | None:
        """The token that follows every document of a prepared corpus, if there is one."""
        ...

    @property
    def identity(self) -> str:
        """SHA-256 of everything that decides which text becomes which tokens."""
        ...

    @property
    def byte_lengths(self) -> NDArray[np.int64]:
        """Bytes of text of each token; an end of document has none."""
        ...

    @classmethod
    def of(cls, text: str) -> Self:
        """The tokenizer for a text."""
        ...

    @property
    def vocabulary(self) -> int: ...

    def encode(self, text: str) -> NDArray[np.int64]: ...

    def decode(self, tokens: NDArray[np.int64]) -> str: ...


class CharTokenizer:
    """One token per character, numbered by code point, as in nanoGPT's character data."""

    end_of_document: None = None

    def __init__(self, characters: str) -> None:
        self._characters = characters
        self._points = _code_points(characters)

    @property
    def characters(self) -> str:
        return self._characters

    @classmethod
    def of(cls, text: str) -> CharTokenizer:
        """The tokenizer of all characters that occur in *text*."""
        return cls("".join(map(chr, np.unique(_code_points(text)))))

    @property
    def vocabulary(self) -> int:
        return len(self._points)

    @property
    def identity(self) -> str:
        return hashlib.sha256(f"char {self._characters}".encode()).hexdigest()

    @property
    def byte_lengths(self) -> NDArray[np.int64]:
        return np.array([len(character.encode()) for character in self._characters], dtype=np.int64)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Token ids of a text; a character outside the vocabulary is an error."""
        points = _code_points(text)
        ids = np.searchsorted(self._points, points)
        known = self._points[np.minimum(ids, len(self._points) - 1)] == points
        if not known.all():
            unknown = text[int(np.argmin(known))]
            raise DataError(f"character {unknown!r} is not in the vocabulary of {self.vocabulary} characters")
        return ids.astype(np.int64)

    def decode(self, tokens: NDArray[np.int64]) -> str:
        return "".join(map(chr, self._points[np.asarray(tokens)]))


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.uint32)


class GPT2Tokenizer:
    """GPT-2's byte-level BPE: 50,257 tokens, the last of which ends a document. Needs two files, fetched by checksum."""

    characters: None = None
    name = "gpt2"
    vocabulary = 50_257

    @property
    def end_of_document(self) -> int:
        return self.vocabulary - 1

    @classmethod
    def of(cls, text: str) -> Self:
        return cls()

    @cached_property
    def _bpe(self) -> Any:
        from tokenizers import Tokenizer as Bpe
        from tokenizers import decoders, models, pre_tokenizers

        merges, vocabulary = (str(GPT2_BPE.fetch(member)) for member in GPT2_BPE.members)
        tokens, pairs = models.BPE.read_file(vocabulary, merges)
        # Ids are the 256 bytes, then one per merge in its order, then the end of a document.
        kept = {token: number for token, number in tokens.items() if number < self.vocabulary - 1}
        bpe = Bpe(models.BPE(kept | {END_OF_DOCUMENT: self.end_of_document}, pairs[: self.vocabulary - 257]))
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        return bpe

    @property
    def identity(self) -> str:
        return hashlib.sha256(f"{self.name} {sorted(GPT2_BPE.members.values())}".encode()).hexdigest()

    @cached_property
    def byte_lengths(self) -> NDArray[np.int64]:
        # The vocabulary file writes a token with one letter per byte.
        lengths = np.zeros(self.vocabulary, dtype=np.int64)
        for token, number in self._bpe.get_vocab().items():
            lengths[number] = len(token)
        lengths[self.end_of_document] = 0
        return lengths

    def encode(self, text: str) -> NDArray[np.int64]:
        return np.asarray(self._bpe.encode(text).ids, dtype=np.int64)

    def decode(self, tokens: NDArray[np.int64]) -> str:
        """Text of token ids; bytes that are not a whole character become the replacement character."""
        return str(self._bpe.decode([int(token) for token in tokens], skip_special_tokens=False))


class SmallGPT2Tokenizer(GPT2Tokenizer):
    """GPT-2's first 3,839 merges: 4,096 tokens, so that a model of a few million parameters is not mostly its vocabulary."""

    name = "gpt2-4096"
    vocabulary = 4_096


class ByteTokenizer:
    """One token per byte of UTF-8, and one that ends a document: 257 tokens."""

    characters: None = None
    vocabulary = 257
    end_of_document = 256
    identity = hashlib.sha256(b"byte 256").hexdigest()

    @classmethod
    def of(cls, text: str) -> ByteTokenizer:
        return cls()

    @property
    def byte_lengths(self) -> NDArray[np.int64]:
        return np.array([1] * 256 + [0], dtype=np.int64)

    def encode(self, text: str) -> NDArray[np.int64]:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def decode(self, tokens: NDArray[np.int64]) -> str:
        """Text of token ids; bytes that are not a whole character become the replacement character."""
        ends = np.flatnonzero(np.asarray(tokens) == self.end_of_document)
        parts = np.split(np.asarray(tokens), ends)
        texts = [bytes(part[part < 256].astype(np.uint8)).decode(errors="replace") for part in parts]
        return END_OF_DOCUMENT.join(texts)


#: Classes of tokens, by their characters.
TOKEN_CLASSES = ("alphabetic", "numeric", "punctuation", "whitespace", "end-of-document")


def token_classes(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """The class of every token id, as an index into `TOKEN_CLASSES`."""
    texts = (tokenizer.decode(np.array([token], dtype=np.int64)) for token in range(tokenizer.vocabulary))
    classes = np.array([TOKEN_CLASSES.index(token_class(text)) for text in texts], dtype=np.int64)
    if tokenizer.end_of_document is not None:
        classes[tokenizer.end_of_document] = TOKEN_CLASSES.index("end-of-document")
    return classes


def token_class(text: str) -> str:
    """A letter anywhere makes a token alphabetic, else a numeral numeric; blanks are whitespace.

    Everything else (punctuation, symbols, bytes that are not text by themselves) counts as punctuation.
    """
    if any(character.isalpha() for character in text):
        return "alphabetic"
    if any(character.isnumeric() for character in text):
        return "numeric"
    return "whitespace" if text.isspace() else "punctuation"


#: The end of a document in decoded text, as in GPT-2's vocabulary.
END_OF_DOCUMENT = "<|endoftext|>"
TOKENIZERS: Registry[type[Tokenizer]] = Registry("tokenizer")
TOKENIZERS.add("char", CharTokenizer)
TOKENIZERS.add("gpt2", GPT2Tokenizer)
TOKENIZERS.add("gpt2-4096", SmallGPT2Tokenizer)
TOKENIZERS.add("byte", ByteTokenizer)
