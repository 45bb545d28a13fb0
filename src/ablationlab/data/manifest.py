"""manifest.json of a prepared corpus: what it was made of, by what, and the checksum of every shard.

A prepared folder holds ``shard-00000.bin`` (token ids, little-endian uint16 or uint32, nothing else), ``shard-00000.docs``
(little-endian int64: tokens of each of its documents, with the one that ends it), and so on, and ``manifest.json``.
Shards are pieces of one stream: a window may cross from one to the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from ablationlab.data.tokenizers import TOKENIZERS, CharTokenizer, Tokenizer
from ablationlab.records.schema import Part, Record

MANIFEST = "manifest.json"
#: In its place while a folder is being prepared.
PROGRESS = "progress.json"
#: Raised when the same text would be prepared to other tokens.
FORMAT = 1


def shard_files(number: int) -> tuple[str, str]:
    """Names of a shard and of the index of its documents."""
    return f"shard-{number:05d}.bin", f"shard-{number:05d}.docs"


class Shard(Part):
    """One piece of the stream of tokens, and the index of its documents."""

    file: str
    sha256: str
    tokens: int
    index: str
    index_sha256: str
    documents: int


class TokenizerPart(Part):
    """Which text becomes which tokens."""

    name: str
    identity: str
    vocabulary: int
    end_of_document: int | None
    characters: str | None = None

    @classmethod
    def of(cls, name: str, tokenizer: Tokenizer) -> TokenizerPart:
        """Of a tokenizer."""
        return cls(
            name=name,
            identity=tokenizer.identity,
            vocabulary=tokenizer.vocabulary,
            end_of_document=tokenizer.end_of_document,
            characters=tokenizer.characters,
        )

    def make(self) -> Tokenizer:
        """The tokenizer."""
        return TOKENIZERS[self.name].of("") if self.characters is None else CharTokenizer(self.characters)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest that holds every id."""
        return np.dtype("<u2" if self.vocabulary <= 2**16 else "<u4")


class Duplicates(Part):
    """What was removed. ``rate``: share of the documents that were removed as duplicates."""

    exact: bool = False
    near: float | None = None  # the estimated Jaccard similarity from which on two documents count as the same
    exact_removed: int = 0
    near_removed: int = 0
    rate: float = 0.0


class Settings(Part):
    """How a corpus is prepared; another setting makes another corpus."""

    tokenizer: str
    shard_tokens: int
    text_key: str = "text"
    exact_duplicates: bool = False
    near_duplicates: float | None = None


class Manifest(Record):
    """manifest.json."""

    KIND: ClassVar[str] = "prepared-corpus"
    format: int = FORMAT
    name: str
    source: str
    stamp: str  # of the input: names, sizes and times of files, or a named source's checksum
    settings: Settings
    tokenizer: TokenizerPart
    dtype: Literal["uint16", "uint32"]
    shards: tuple[Shard, ...]
    tokens: int
    documents: int
    text_bytes: int
    text_sha256: str
    tokens_sha256: str
    empty: int
    duplicates: Duplicates
    versions: dict[str, str]

    @classmethod
    def path(cls, folder: Path) -> Path:
        """Its place."""
        return folder / MANIFEST
