"""A prepared corpus on disk: its manifest, and reading it as memory maps with verified checksums.

A prepared folder has ``shard-00000.bin`` (token ids, little-endian uint16 or uint32, nothing else), ``shard-00000.docs``
(little-endian int64: the number of tokens of each document, with the token that ends it), and so on, and ``manifest.json``.
Shards are pieces of one stream: a window may cross from one to the next.

The checksums of a corpus of up to `ALWAYS_VERIFIED` bytes are verified every time it is opened. Those of a larger one are
verified once and remembered in the cache with the size and time of each file; a file that changes either is read again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.errors import DataError, RecordError
from ablationlab.core.format import count
from ablationlab.core.paths import real_path
from ablationlab.data.sources import Source, cache_folder
from ablationlab.data.tokenizers import TOKENIZERS, CharTokenizer, Tokenizer
from ablationlab.data.tokens import Tokens
from ablationlab.records.storage import Record, StoredValue, read_json, replace, sha256_file

MANIFEST = "manifest.json"
#: In the folder until the manifest is written.
PROGRESS = "progress.json"
#: Raised when the same text would be prepared to other tokens.
FORMAT = 1
ALWAYS_VERIFIED = 2**28


def shard_files(number: int) -> tuple[str, str]:
    """File names of a shard and of the index of its documents."""
    return f"shard-{number:05d}.bin", f"shard-{number:05d}.docs"


class Shard(StoredValue):
    """One piece of the stream of tokens, and the index of its documents."""

    file: str
    sha256: str
    tokens: int
    index: str
    index_sha256: str
    documents: int


class TokenizerRecord(StoredValue):
    """A tokenizer as the manifest stores it."""

    name: str
    identity: str
    vocabulary: int
    end_of_document: int | None
    characters: str | None = None

    @classmethod
    def of(cls, name: str, tokenizer: Tokenizer) -> TokenizerRecord:
        return cls(
            name=name,
            identity=tokenizer.identity,
            vocabulary=tokenizer.vocabulary,
            end_of_document=tokenizer.end_of_document,
            characters=tokenizer.characters,
        )

    def make(self) -> Tokenizer:
        return TOKENIZERS[self.name].of("") if self.characters is None else CharTokenizer(self.characters)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest that fits every id."""
        return np.dtype("<u2" if self.vocabulary <= 2**16 else "<u4")


class Duplicates(StoredValue):
    """``rate``: share of the documents that were removed as duplicates."""

    exact: bool = False
    near: float | None = None  # two documents with at least this estimated Jaccard similarity are duplicates
    exact_removed: int = 0
    near_removed: int = 0
    rate: float = 0.0


class PrepareSettings(StoredValue):
    """How a corpus is prepared; a corpus prepared with other settings is another corpus."""

    tokenizer: str
    shard_tokens: int
    text_key: str = "text"
    exact_duplicates: bool = False
    near_duplicates: float | None = None


class Manifest(Record):
    KIND: ClassVar[str] = "prepared-corpus"
    VERSION: ClassVar[int] = 1
    format: int = FORMAT
    name: str
    source: str
    stamp: str  # hash of the input's file names, sizes and times, or of a named source's checksum
    settings: PrepareSettings
    tokenizer: TokenizerRecord
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


def is_prepared(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def cached_folder(source: Source, settings: PrepareSettings) -> Path:
    """The prepared folder of a named corpus in the cache."""
    return cache_folder() / "prepared" / f"{source.name}-{source.sha256[:12]}-{settings.tokenizer}-{FORMAT}"


@dataclass(frozen=True)
class Prepared:
    """A prepared folder whose files were verified."""

    folder: Path
    manifest: Manifest

    @cached_property
    def tokens(self) -> Tokens:
        """All tokens, as memory maps."""
        dtype = self.manifest.tokenizer.dtype
        return Tokens([np.memmap(self.folder / shard.file, dtype=dtype, mode="r") for shard in self.manifest.shards])

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """For each document, the position after its last token."""
        lengths = [np.fromfile(self.folder / shard.index, dtype="<i8") for shard in self.manifest.shards]
        return np.cumsum(np.concatenate(lengths)).astype(np.int64)

    def cut(self, validation: float) -> int:
        """Where the held-out part begins: at the end of the document that is nearest to the share asked for.

        If documents are so long that this would be off by more than half of the share, exactly at the share, inside one.
        """
        total = self.manifest.tokens
        target = int(total * (1 - validation))
        inner = self.ends[:-1]
        if len(inner):
            nearest = int(inner[np.argmin(np.abs(inner - target))])
            if abs(nearest - target) <= 0.5 * validation * total:
                return nearest
        return target


def open_prepared(folder: Path, *, verify_all: bool = False) -> Prepared:
    """Read the manifest and verify every shard, with *verify_all* also those that were verified before."""
    try:
        if not is_prepared(folder):
            raise DataError(f"{folder}: {_unprepared(folder)}")
        manifest = Manifest.read(folder / MANIFEST)
    except RecordError as error:
        raise DataError(f"prepared corpus {folder}: {error}") from error
    except OSError as error:
        raise DataError(f"prepared corpus {folder}: cannot be read ({error.strerror})") from error
    if manifest.format != FORMAT:
        raise DataError(
            f"prepared corpus {folder}: format {manifest.format}; this program reads {FORMAT}; prepare it again"
        )
    tokenizer = manifest.tokenizer.make()
    if tokenizer.identity != manifest.tokenizer.identity:
        raise DataError(
            f"prepared corpus {folder}: made with a different {manifest.tokenizer.name} tokenizer than the installed one"
        )
    _check(folder, manifest, tokenizer)
    width = manifest.tokenizer.dtype.itemsize
    for shard in manifest.shards:
        path = folder / shard.file
        size = path.stat().st_size if path.is_file() else None
        if size != shard.tokens * width:
            problem = (
                "is missing" if size is None else f"has {count(size)} bytes instead of {count(shard.tokens * width)}"
            )
            raise DataError(f"prepared corpus: {path} {problem}; restore it, or prepare the corpus again")
    _verify(folder, manifest.shards, large=not verify_all and manifest.tokens * width > ALWAYS_VERIFIED)
    opened = Prepared(folder, manifest)
    if len(opened.ends) != manifest.documents or (len(opened.ends) and int(opened.ends[-1]) != manifest.tokens):
        raise DataError(
            f"prepared corpus {folder}: its indices list {count(len(opened.ends))} documents of "
            f"{count(int(opened.ends[-1]) if len(opened.ends) else 0)} tokens, and manifest.json says "
            f"{count(manifest.documents)} of {count(manifest.tokens)}; prepare it again"
        )
    if verify_all:
        _verify_tokens(opened)
    return opened


def _unprepared(folder: Path) -> str:
    if not folder.exists():
        return "no such folder"
    if not folder.is_dir():
        return "is a file; a prepared corpus is a folder, made with: ablationlab data prepare INPUT --out FOLDER"
    if (folder / PROGRESS).exists():
        return "its preparation is not finished; run the same data prepare again to continue"
    return f"not a prepared corpus (it has no {MANIFEST}); make one with: ablationlab data prepare INPUT --out FOLDER"


def _check(folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
    """Refuse a manifest that contradicts itself, such as one edited by hand."""
    part, shards = manifest.tokenizer, manifest.shards
    wrong = [
        name
        for name, right in (
            ("tokenizer.vocabulary", part.vocabulary == tokenizer.vocabulary),
            ("tokenizer.end_of_document", part.end_of_document == tokenizer.end_of_document),
            ("dtype", np.dtype(manifest.dtype) == part.dtype),
            ("tokens", manifest.tokens == sum(shard.tokens for shard in shards)),
            ("documents", manifest.documents == sum(shard.documents for shard in shards)),
            ("shards", all((shard.file, shard.index) == shard_files(n) for n, shard in enumerate(shards))),
        )
        if not right
    ]
    if wrong:
        raise DataError(
            f"prepared corpus {folder}: {MANIFEST} contradicts itself in {', '.join(wrong)}; restore it, or prepare again"
        )


def _verify_tokens(prepared: Prepared) -> None:
    digest = hashlib.sha256()
    for block in prepared.tokens.blocks():
        digest.update(block.astype("<i8").tobytes())
    if digest.hexdigest() != prepared.manifest.tokens_sha256:
        raise DataError(
            f"prepared corpus {prepared.folder}: its tokens are not those of tokens_sha256 in {MANIFEST}; prepare it again"
        )


def _verify(folder: Path, shards: tuple[Shard, ...], *, large: bool) -> None:
    memory = cache_folder() / "verified" / f"{hashlib.sha256(str(real_path(folder)).encode()).hexdigest()[:24]}.json"
    known = _remembered(memory) if large else {}
    stamps = {}
    for shard in shards:
        for name, expected in ((shard.file, shard.sha256), (shard.index, shard.index_sha256)):
            path = folder / name
            try:
                stat = path.stat()
                stamps[name] = [stat.st_size, stat.st_mtime_ns, expected]
                right = known.get(name) == stamps[name] or sha256_file(path) == expected
            except OSError as error:
                raise DataError(
                    f"prepared corpus: {path} cannot be read ({error.strerror}); restore it, or prepare the corpus again"
                ) from error
            if not right:
                raise DataError(
                    f"prepared corpus: {path} has a wrong checksum; restore it, or prepare the corpus again"
                )
    if large and stamps != known:
        replace(memory, json.dumps(stamps).encode())


def _remembered(memory: Path) -> dict[str, list[object]]:
    try:
        remembered = read_json(memory)
    except RecordError:
        return {}
    return remembered if isinstance(remembered, dict) else {}
