"""From text to tokens on disk: in parallel processes, in the order of the input, in memory that does not grow with it.

Documents are read one after another, encoded in batches by a pool of processes, and written in their order, each followed by
the token that ends a document (a newline for a character tokenizer, which has none). What is written does not depend on the
number of processes. ``progress.json`` says after every shard how far the input was read, so a killed command goes on with the
next one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.errors import DataError
from ablationlab.core.processes import Pool
from ablationlab.data.documents import Piece
from ablationlab.data.duplicates import Seen, digest, signature
from ablationlab.data.inputs import Input, Read
from ablationlab.data.manifest import PROGRESS, Duplicates, Manifest, Settings, Shard, TokenizerPart
from ablationlab.data.shards import ShardWriter
from ablationlab.data.tokenizers import TOKENIZERS, CharTokenizer, Tokenizer
from ablationlab.records.schema import Part, Record
from ablationlab.records.storage import Lock, replace, sha256_file, storage_errors, sweep

#: Tokens of a shard, about: it ends with the document that fills it.
SHARD_TOKENS = 2**26
# Characters of a batch, about.
_BATCH = 2**20
_BLOCK = 2**22
_LIBRARIES = ("ablationlab", "numpy", "tokenizers", "datasketch")


class Finished(Part):
    """A shard on disk, and how many pieces of the input had been read at its end."""

    shard: Shard
    pieces: int


class State(Record):
    """progress.json: removed when the manifest is written."""

    KIND: ClassVar[str] = "preparing"
    stamp: str
    settings: Settings
    tokenizer: TokenizerPart
    finished: tuple[Finished, ...] = ()


@dataclass(frozen=True)
class Progress:
    """What a display needs."""

    share: float
    documents: int = 0
    tokens: int = 0
    shards: int = 0


Report = Callable[[Progress], None]


def prepare(
    source: Input,
    settings: Settings,
    folder: Path,
    *,
    processes: int = 1,
    report: Report = lambda _: None,
) -> Manifest:
    """Make the prepared folder, or go on making it; one that is done already is verified and left alone."""
    _check(settings)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder / ".lock")
    if not lock.acquire():
        raise DataError(f"{folder} is being prepared by another process ({lock.holder()}); wait for it")
    try:
        done = _done(source, settings, folder)
        if done is not None:
            return done
        return _Preparation(source, settings, folder, processes, report).make()
    finally:
        lock.release()


def _check(settings: Settings) -> None:
    TOKENIZERS[settings.tokenizer]
    if settings.near_duplicates is not None and not 0 < settings.near_duplicates <= 1:
        raise DataError(f"near-duplicates {settings.near_duplicates}: a similarity above 0 and up to 1 is needed")
    if settings.shard_tokens < 1:
        raise DataError(f"shard-tokens {settings.shard_tokens}: at least one is needed")


def _done(source: Input, settings: Settings, folder: Path) -> Manifest | None:
    path = Manifest.path(folder)
    if path.exists():
        found = Manifest.read(path)
        if (found.stamp, found.settings) != (source.stamp, settings):
            raise DataError(
                f"{folder} holds another prepared corpus ({found.name}, {found.settings.tokenizer}), or its input or "
                "settings have changed since; choose another folder with --out, or remove this one"
            )
        for shard in found.shards:
            if not _sound(folder, shard):
                raise DataError(f"{folder / shard.file} has a wrong checksum; remove {folder} and prepare it again")
        return found
    foreign = [p.name for p in folder.iterdir() if not p.name.startswith((".lock", ".tmp-", "shard-", PROGRESS))]
    if foreign:
        raise DataError(f"{folder} is not empty and holds no prepared corpus ({foreign[0]}); choose another with --out")
    return None


def _sound(folder: Path, shard: Shard) -> bool:
    """Whether a shard and its index are there with the right bytes."""
    try:
        found = sha256_file(folder / shard.file), sha256_file(folder / shard.index)
    except OSError:
        return False
    return found == (shard.sha256, shard.index_sha256)


class _Preparation:
    """One run over the input."""

    def __init__(self, source: Input, settings: Settings, folder: Path, processes: int, report: Report) -> None:
        self.source, self.settings, self.folder, self.report = source, settings, folder, report
        self.processes = processes
        sweep(folder)
        self.finished = self._resume()
        self.skip = self.finished[-1].pieces if self.finished else 0
        self.counts = Counter[str]()
        self.seen = Seen(exact=settings.exact_duplicates, near=settings.near_duplicates)
        self.text_hash, self.token_hash = hashlib.sha256(), hashlib.sha256()
        self.tokens = 0
        for one in self.finished:
            self._hash_shard(one.shard)

    def _resume(self) -> list[Finished]:
        """Finished shards of the same input and settings, up to the first that is not sound; others are removed."""
        kept: list[Finished] = []
        path = self.folder / PROGRESS
        state = State.read(path) if path.exists() else None
        if state is not None and (state.stamp, state.settings) == (self.source.stamp, self.settings):
            self.tokenizer_part = state.tokenizer
            for one in state.finished:
                if not _sound(self.folder, one.shard):
                    break
                kept.append(one)
        else:
            self.tokenizer_part = TokenizerPart.of(self.settings.tokenizer, self._make_tokenizer())
        names = {name for one in kept for name in (one.shard.file, one.shard.index)}
        for file in self.folder.glob("shard-*"):
            if file.name not in names:
                file.unlink()
        return kept

    def _make_tokenizer(self) -> Tokenizer:
        if self.settings.tokenizer != "char":
            return TOKENIZERS[self.settings.tokenizer].of("")
        characters = {"\n"}
        for read in self.source.read():
            characters.update(read.piece.text)
        return CharTokenizer("".join(sorted(characters)))

    def _hash_shard(self, shard: Shard) -> None:
        found = np.memmap(self.folder / shard.file, dtype=self.tokenizer_part.dtype, mode="r")
        for start in range(0, len(found), _BLOCK):
            self.token_hash.update(found[start : start + _BLOCK].astype("<i8").tobytes())
        self.tokens += shard.tokens

    def make(self) -> Manifest:
        """Read, encode, write; the manifest comes last."""
        self._save()
        writer = ShardWriter(
            self.folder, self.tokenizer_part.dtype, self.settings.shard_tokens, first=len(self.finished)
        )
        try:
            arguments = (self.tokenizer_part, self.settings)
            with Pool(
                _Encoder, arguments, processes=self.processes, name="encoding", inline=self.processes == 1
            ) as encoders:
                for batch, made in encoders.in_order(_questions(self.source.read(), self.skip)):
                    self._take(batch, made, writer)
            last = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        if last is not None:
            self._add(last)
        return self._manifest()

    def _take(self, batch: Sequence[Read], made: Encoded, writer: ShardWriter) -> None:
        """One batch, in the order of the input; what was written before a resume is only hashed and remembered again."""
        start, counts = 0, self.counts
        for number, (piece, _) in enumerate(batch):
            new = counts["pieces"] >= self.skip
            tokens = made.tokens[start : start + made.lengths[number]]
            start += made.lengths[number]
            counts["pieces"] += 1
            counts["documents"] += int(piece.last)
            whole = piece.first and piece.last
            if whole and not piece.text:
                counts["empty"] += 1
                continue
            again = self.seen.again(made.digests[number], made.signatures[number]) if whole else None
            if again is not None:
                counts[again] += 1
                continue
            data = piece.text.encode()
            counts["text_bytes"] += len(data)
            self.text_hash.update(data + (b"\0" if piece.last else b""))
            if new:
                self.token_hash.update(tokens.astype("<i8").tobytes())
                self.tokens += len(tokens)
                done = writer.write(tokens, ends=piece.last)
                if done is not None:
                    self._add(done)
        self.report(Progress(batch[-1].share, counts["documents"], self.tokens, len(self.finished)))

    def _add(self, shard: Shard) -> None:
        self.finished.append(Finished(shard=shard, pieces=self.counts["pieces"]))
        self._save()

    def _save(self) -> None:
        state = State(
            stamp=self.source.stamp,
            settings=self.settings,
            tokenizer=self.tokenizer_part,
            finished=tuple(self.finished),
        )
        state.replace(self.folder / PROGRESS)

    def _manifest(self) -> Manifest:
        if not self.tokens:
            raise DataError(f"{self.source.name}: there is no text in it")
        counts, expected = self.counts, self.source.text_sha256
        if expected not in (None, self.text_hash.hexdigest()) and not counts["exact"] + counts["near"]:
            raise DataError(f"corpus {self.source.name!r}: its documents are not those that its name stands for")
        shards = tuple(one.shard for one in self.finished)
        made = Manifest(
            name=self.source.name,
            source=self.source.source,
            stamp=self.source.stamp,
            settings=self.settings,
            tokenizer=self.tokenizer_part,
            dtype="uint16" if self.tokenizer_part.dtype.itemsize == 2 else "uint32",
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
        replace(Manifest.path(self.folder), made.to_bytes())
        (self.folder / PROGRESS).unlink()
        return made


def _versions() -> dict[str, str]:
    found = {}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


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
    """What a process made of a batch; pieces that were only read again have no tokens."""

    tokens: NDArray[Any]
    lengths: list[int]
    digests: list[bytes | None]
    signatures: list[NDArray[np.uint64] | None]


class _Encoder:
    """Tokens, hashes and signatures of a batch; the same in this process and in another."""

    def __init__(self, part: TokenizerPart, settings: Settings) -> None:
        self.tokenizer, self.dtype, self.settings = part.make(), part.dtype, settings
        end = part.end_of_document
        self.end = np.array([end]) if end is not None else self.tokenizer.encode("\n")

    def __call__(self, batch: Sequence[Piece], skip: int) -> Encoded:
        """*skip*: pieces at the beginning that were encoded before and are only looked at again."""
        found, lengths = [], []
        for number, (text, _, last) in enumerate(batch):
            tokens = np.zeros(0, dtype=np.int64)
            if number >= skip:
                parts = [self.tokenizer.encode(text), *([self.end] if last else [])]
                tokens = np.concatenate(parts)
            found.append(tokens.astype(self.dtype))
            lengths.append(len(tokens))
        whole = [text if first and last and text else None for text, first, last in batch]
        exact, near = self.settings.exact_duplicates, self.settings.near_duplicates is not None
        return Encoded(
            np.concatenate(found),
            lengths,
            [digest(text) if exact and text else None for text in whole],
            [signature(text) if near and text else None for text in whole],
        )


def _questions(source: Iterator[Read], skip: int) -> Iterator[tuple[list[Read], tuple[list[Piece], int]]]:
    """Each batch with what an encoder is asked: its pieces, and how many of them were encoded before."""
    for batch in _batches(source):
        old = min(skip, len(batch))
        skip -= old
        yield batch, ([read.piece for read in batch], old)
