"""Prepare a corpus: from documents to token shards on disk, in parallel, with memory that does not grow with the input.

Documents are read one after another, encoded in batches by a pool of processes, and written in their order. Each is followed
by the token that ends a document (a newline for a character tokenizer, which has none). What is written does not depend on
the number of processes. After every shard ``progress.json`` records how much of the input was read, so a killed command
continues with the next shard.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.errors import DataError
from ablationlab.core.processes import Pool
from ablationlab.data.documents import Documents, Piece, Read
from ablationlab.data.duplicates import DuplicateFilter, digest, signature
from ablationlab.data.prepared import (
    MANIFEST,
    PROGRESS,
    Duplicates,
    Manifest,
    PrepareSettings,
    Shard,
    TokenizerRecord,
    shard_files,
)
from ablationlab.data.tokenizers import TOKENIZERS, CharTokenizer, Tokenizer
from ablationlab.records.storage import (
    TEMPORARY,
    Lock,
    Record,
    StoredValue,
    replace,
    sha256_file,
    storage_errors,
    sweep,
    sync_folder,
)

#: Approximate tokens per shard: a shard ends with the document that fills it.
SHARD_TOKENS = 2**26
# Approximate characters per batch.
_BATCH = 2**20
_BLOCK = 2**22
_LIBRARIES = ("ablationlab", "numpy", "tokenizers", "datasketch")


class FinishedShard(StoredValue):
    """A shard on disk, and how many pieces of the input had been read when it was finished."""

    shard: Shard
    pieces: int


class PrepareState(Record):
    """progress.json, which is removed when the manifest is written."""

    KIND: ClassVar[str] = "preparing"
    VERSION: ClassVar[int] = 1
    stamp: str
    settings: PrepareSettings
    tokenizer: TokenizerRecord
    finished: tuple[FinishedShard, ...] = ()


@dataclass(frozen=True)
class PrepareProgress:
    """``share``: of the input, from 0 to 1."""

    share: float
    documents: int = 0
    tokens: int = 0
    shards: int = 0


Report = Callable[[PrepareProgress], None]


def prepare(
    documents: Documents,
    settings: PrepareSettings,
    folder: Path,
    *,
    processes: int = 1,
    report: Report = lambda _: None,
) -> Manifest:
    """Make the prepared folder, or continue; one that is finished is verified and left as it is."""
    _check(settings)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder / ".lock")
    if not lock.acquire():
        raise DataError(f"{folder} is being prepared by another process ({lock.holder()}); wait for it")
    try:
        manifest = _finished_manifest(documents, settings, folder)
        if manifest is not None:
            return manifest
        return _Preparation(documents, settings, folder, processes, report).make()
    finally:
        lock.release()


def _check(settings: PrepareSettings) -> None:
    TOKENIZERS[settings.tokenizer]
    if settings.near_duplicates is not None and not 0 < settings.near_duplicates <= 1:
        raise DataError(f"near-duplicates {settings.near_duplicates}: a similarity above 0 and up to 1 is needed")
    if settings.shard_tokens < 1:
        raise DataError(f"shard-tokens {settings.shard_tokens}: at least one is needed")


def _finished_manifest(documents: Documents, settings: PrepareSettings, folder: Path) -> Manifest | None:
    path = folder / MANIFEST
    if path.exists():
        manifest = Manifest.read(path)
        if (manifest.stamp, manifest.settings) != (documents.stamp, settings):
            raise DataError(
                f"{folder} is another prepared corpus ({manifest.name}, {manifest.settings.tokenizer}), or its input or "
                "settings have changed since; choose another folder with --out, or remove this one"
            )
        for shard in manifest.shards:
            if not _intact(folder, shard):
                raise DataError(f"{folder / shard.file} has a wrong checksum; remove {folder} and prepare it again")
        return manifest
    foreign = [p.name for p in folder.iterdir() if not p.name.startswith((".lock", ".tmp-", "shard-", PROGRESS))]
    if foreign:
        raise DataError(
            f"{folder} is not empty and not a prepared corpus (it has {foreign[0]}); choose another with --out"
        )
    return None


def _intact(folder: Path, shard: Shard) -> bool:
    """Whether a shard and its index are there with the right checksums."""
    try:
        checksums = sha256_file(folder / shard.file), sha256_file(folder / shard.index)
    except OSError:
        return False
    return checksums == (shard.sha256, shard.index_sha256)


class _Preparation:
    """One pass over the documents."""

    def __init__(
        self, documents: Documents, settings: PrepareSettings, folder: Path, processes: int, report: Report
    ) -> None:
        self.documents, self.settings, self.folder, self.report = documents, settings, folder, report
        self.processes = processes
        sweep(folder)
        self.finished = self._resume()
        self.skip = self.finished[-1].pieces if self.finished else 0
        self.counts = Counter[str]()
        self.duplicates = DuplicateFilter(exact=settings.exact_duplicates, near=settings.near_duplicates)
        self.text_hash, self.token_hash = hashlib.sha256(), hashlib.sha256()
        self.tokens = 0
        for finished in self.finished:
            self._hash_shard(finished.shard)

    def _resume(self) -> list[FinishedShard]:
        """Finished shards of the same input and settings, up to the first that is not intact; others are removed."""
        kept: list[FinishedShard] = []
        path = self.folder / PROGRESS
        state = PrepareState.read(path) if path.exists() else None
        if state is not None and (state.stamp, state.settings) == (self.documents.stamp, self.settings):
            self.tokenizer = state.tokenizer
            for finished in state.finished:
                if not _intact(self.folder, finished.shard):
                    break
                kept.append(finished)
        else:
            self.tokenizer = TokenizerRecord.of(self.settings.tokenizer, self._make_tokenizer())
        names = {name for finished in kept for name in (finished.shard.file, finished.shard.index)}
        for file in self.folder.glob("shard-*"):
            if file.name not in names:
                file.unlink()
        return kept

    def _make_tokenizer(self) -> Tokenizer:
        if self.settings.tokenizer != "char":
            return TOKENIZERS[self.settings.tokenizer].of("")
        characters = {"\n"}
        for read in self.documents.read():
            characters.update(read.piece.text)
        return CharTokenizer("".join(sorted(characters)))

    def _hash_shard(self, shard: Shard) -> None:
        tokens = np.memmap(self.folder / shard.file, dtype=self.tokenizer.dtype, mode="r")
        for start in range(0, len(tokens), _BLOCK):
            self.token_hash.update(tokens[start : start + _BLOCK].astype("<i8").tobytes())
        self.tokens += shard.tokens

    def make(self) -> Manifest:
        """Read, encode, write; the manifest is written last."""
        self._save()
        writer = ShardWriter(self.folder, self.tokenizer.dtype, self.settings.shard_tokens, first=len(self.finished))
        try:
            arguments = (self.tokenizer, self.settings)
            with Pool(
                _Encoder, arguments, processes=self.processes, name="encoding", inline=self.processes == 1
            ) as encoders:
                for batch, encoded in encoders.in_order(_encoder_calls(self.documents.read(), self.skip)):
                    self._take(batch, encoded, writer)
            last = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        if last is not None:
            self._add(last)
        return self._manifest()

    def _take(self, batch: Sequence[Read], encoded: Encoded, writer: ShardWriter) -> None:
        """Write one batch, in the order of the input; what was written before a resume is only hashed and counted again."""
        start, counts = 0, self.counts
        for number, (piece, _) in enumerate(batch):
            new = counts["pieces"] >= self.skip
            tokens = encoded.tokens[start : start + encoded.lengths[number]]
            start += encoded.lengths[number]
            counts["pieces"] += 1
            counts["documents"] += int(piece.last)
            whole = piece.first and piece.last
            if whole and not piece.text:
                counts["empty"] += 1
                continue
            kind = self.duplicates.check(encoded.digests[number], encoded.signatures[number]) if whole else None
            if kind is not None:
                counts[kind] += 1
                continue
            data = piece.text.encode()
            counts["text_bytes"] += len(data)
            self.text_hash.update(data + (b"\0" if piece.last else b""))
            if new:
                self.token_hash.update(tokens.astype("<i8").tobytes())
                self.tokens += len(tokens)
                shard = writer.write(tokens, ends=piece.last)
                if shard is not None:
                    self._add(shard)
        self.report(PrepareProgress(batch[-1].share, counts["documents"], self.tokens, len(self.finished)))

    def _add(self, shard: Shard) -> None:
        self.finished.append(FinishedShard(shard=shard, pieces=self.counts["pieces"]))
        self._save()

    def _save(self) -> None:
        state = PrepareState(
            stamp=self.documents.stamp,
            settings=self.settings,
            tokenizer=self.tokenizer,
            finished=tuple(self.finished),
        )
        state.replace(self.folder / PROGRESS)

    def _manifest(self) -> Manifest:
        if not self.tokens:
            raise DataError(f"{self.documents.name}: it contains no text")
        counts, expected = self.counts, self.documents.text_sha256
        if expected not in (None, self.text_hash.hexdigest()) and not counts["exact"] + counts["near"]:
            raise DataError(f"corpus {self.documents.name!r}: its documents are not those that its name stands for")
        shards = tuple(finished.shard for finished in self.finished)
        manifest = Manifest(
            name=self.documents.name,
            source=self.documents.source,
            stamp=self.documents.stamp,
            settings=self.settings,
            tokenizer=self.tokenizer,
            dtype="uint16" if self.tokenizer.dtype.itemsize == 2 else "uint32",
            shards=shards,
            tokens=self.tokens,
            documents=sum(shard.documents for shard in shards),
            text_bytes=counts["text_bytes"],
            text_sha256=self.text_hash.hexdigest(),
            tokens_sha256=self.token_hash.hexdigest(),
            empty=counts["empty"],
            duplicates=Duplicates(
                exact=self.settings.exact_duplicates,
                near=self.settings.near_duplicates,
                exact_removed=counts["exact"],
                near_removed=counts["near"],
                rate=(counts["exact"] + counts["near"]) / max(1, counts["documents"] - counts["empty"]),
            ),
            versions=_versions(),
        )
        replace(self.folder / MANIFEST, manifest.to_bytes())
        (self.folder / PROGRESS).unlink()
        return manifest


def _versions() -> dict[str, str]:
    versions = {}
    for library in _LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[library] = version(library)
    return versions


def _batches(reads: Iterator[Read]) -> Iterator[list[Read]]:
    batch: list[Read] = []
    size = 0
    for read in reads:
        batch.append(read)
        size += len(read.piece.text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Encoded(NamedTuple):
    """A batch as a process encoded it; pieces that were encoded before a resume have no tokens."""

    tokens: NDArray[Any]
    lengths: list[int]
    digests: list[bytes | None]
    signatures: list[NDArray[np.uint64] | None]


class _Encoder:
    """Tokens, digests and signatures of a batch; it runs in this process or in another."""

    def __init__(self, record: TokenizerRecord, settings: PrepareSettings) -> None:
        self.tokenizer, self.dtype, self.settings = record.make(), record.dtype, settings
        end = record.end_of_document
        self.end = np.array([end]) if end is not None else self.tokenizer.encode("\n")

    def __call__(self, batch: Sequence[Piece], skip: int) -> Encoded:
        """*skip*: pieces at the beginning that were encoded before a resume."""
        encoded, lengths = [], []
        for number, (text, _, last) in enumerate(batch):
            tokens = np.zeros(0, dtype=np.int64)
            if number >= skip:
                parts = [self.tokenizer.encode(text), *([self.end] if last else [])]
                tokens = np.concatenate(parts)
            encoded.append(tokens.astype(self.dtype))
            lengths.append(len(tokens))
        whole = [text if first and last and text else None for text, first, last in batch]
        exact, near = self.settings.exact_duplicates, self.settings.near_duplicates is not None
        return Encoded(
            np.concatenate(encoded),
            lengths,
            [digest(text) if exact and text else None for text in whole],
            [signature(text) if near and text else None for text in whole],
        )


def _encoder_calls(reads: Iterator[Read], skip: int) -> Iterator[tuple[list[Read], tuple[list[Piece], int]]]:
    """Each batch with the encoder's arguments: its pieces, and how many of them were encoded before."""
    for batch in _batches(reads):
        old = min(skip, len(batch))
        skip -= old
        yield batch, ([read.piece for read in batch], old)


class ShardWriter:
    """Writes one shard after another, each closed at the end of the document that fills it.

    A shard appears whole or not at all, and the index of its documents before it.
    """

    def __init__(self, folder: Path, dtype: np.dtype[Any], shard_tokens: int, first: int) -> None:
        self.folder, self.dtype, self.shard_tokens, self.number = folder, dtype, shard_tokens, first
        self._file: IO[bytes] | None = None
        self._begin()

    def _begin(self) -> None:
        self._hash, self.tokens = hashlib.sha256(), 0
        self._documents: list[int] = []
        self._open_document = 0

    @property
    def path(self) -> Path:
        return self.folder / shard_files(self.number)[0]

    @property
    def _temporary(self) -> Path:
        return self.folder / f"{TEMPORARY}{self.path.name}"

    def write(self, tokens: NDArray[np.int64], *, ends: bool) -> Shard | None:
        """Append tokens of a document; its end may complete the shard, which is then returned."""
        data = tokens.astype(self.dtype).tobytes()
        with storage_errors(self.path):
            if self._file is None:
                self._file = self._temporary.open("wb")
            self._file.write(data)
        self._hash.update(data)
        self.tokens += len(tokens)
        self._open_document += len(tokens)
        if not ends:
            return None
        self._documents.append(self._open_document)
        self._open_document = 0
        return self.finish() if self.tokens >= self.shard_tokens else None

    def finish(self) -> Shard | None:
        """Complete the shard; None if nothing was written."""
        if self._file is None:
            return None
        index = np.array(self._documents, dtype="<i8").tobytes()
        index_path = self.folder / shard_files(self.number)[1]
        with storage_errors(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        self._file = None
        replace(index_path, index)
        with storage_errors(self.path):
            self._temporary.rename(self.path)
            sync_folder(self.folder)
        shard = Shard(
            file=self.path.name,
            sha256=self._hash.hexdigest(),
            tokens=self.tokens,
            index=index_path.name,
            index_sha256=hashlib.sha256(index).hexdigest(),
            documents=len(self._documents),
        )
        self.number += 1
        self._begin()
        return shard

    def abandon(self) -> None:
        """Remove what was written of an unfinished shard."""
        if self._file is not None:
            with suppress(OSError):  # on a full disk the last flush fails too; the file is removed anyway
                self._file.close()
            self._file = None
        self._temporary.unlink(missing_ok=True)
