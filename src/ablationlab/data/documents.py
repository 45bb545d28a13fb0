"""The documents of a corpus before it is tokenized, as a stream that never holds more than a part of a file in memory.

A corpus is a named source, or a file or folder of these:

| file | a document is |
|---|---|
| .txt, .txt.gz | the whole file; a long one is read in several pieces |
| .jsonl, .jsonl.gz | the text of one line's object, by its key |
| .parquet | one row's text, by its column |
"""

from __future__ import annotations

import codecs
import gzip
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from ablationlab.core.errors import DataError
from ablationlab.core.paths import did_you_mean_beside, user_path
from ablationlab.data.sources import SOURCES, Source, fetch
from ablationlab.records.settings import looks_like_path
from ablationlab.records.storage import content_hash, parse_json

ENDINGS = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet")
#: Characters of a text file read at a time; a longer document is read in pieces.
PIECE = 2**20
_PARQUET_ROWS = 256


class Piece(NamedTuple):
    """A document, or a part of one: whether it is the first part, and whether it is the last."""

    text: str
    first: bool = True
    last: bool = True


def files_of(path: Path) -> list[Path]:
    """The files of a corpus, in the order of their paths."""
    try:
        files = _walk(path) if path.is_dir() else []
        there = path.exists()
    except OSError as error:
        where = error.filename or path
        raise DataError(f"{where}: cannot be read ({error.strerror}); no file is skipped silently") from error
    if not there:
        raise DataError(f"{path}: no such file or folder{did_you_mean_beside(path)}")
    if path.is_file():
        if not path.name.endswith(ENDINGS):
            raise DataError(f"{path}: unsupported kind of file; supported: {', '.join(ENDINGS)}")
        return [path]
    if not files:
        raise DataError(f"{path}: the folder has no file that ends in {', '.join(ENDINGS)}")
    return files


def _walk(folder: Path) -> list[Path]:
    """The files of a folder and its subfolders; a folder that cannot be read is an error."""

    def stop(error: OSError) -> None:
        raise error

    places = os.walk(folder, onerror=stop)
    files = (Path(place) / name for place, _, names in places for name in names if name.endswith(ENDINGS))
    return sorted(file for file in files if file.is_file())


def read_file(file: Path, key: str) -> Iterator[Piece]:
    """The documents of one file; *key* names the text in JSON Lines and Parquet."""
    try:
        if file.name.endswith(".parquet"):
            yield from _parquet(file, key)
        elif ".jsonl" in file.suffixes:
            yield from _json_lines(file, key)
        else:
            yield from _text(file)
    except (OSError, EOFError) as error:
        raise DataError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def _open(file: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")


def _text(file: Path) -> Iterator[Piece]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest, done, first = "", 0, True
    with _open(file) as stream:
        while data := stream.read(PIECE):
            try:
                rest += decoder.decode(data)
            except UnicodeDecodeError as error:
                raise DataError(f"{file}: not UTF-8 near byte {done + error.start}; convert it first") from error
            done += len(data)
            while len(rest) > PIECE:
                cut = _cut_position(rest)
                if cut is None:
                    break
                yield Piece(rest[:cut], first, last=False)
                rest, first = rest[cut:], False
    try:
        rest += decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 at its end; convert it first") from error
    yield Piece(rest, first, last=True)


def _cut_position(text: str) -> int | None:
    """After the last line break between two visible characters in the first `PIECE` characters: none of our tokenizers
    merges characters across it. None if there is no such place, so that more is read, up to a limit.
    """
    end = PIECE
    while (at := text.rfind("\n", 1, end)) > 0:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at + 1
        end = at
    return PIECE if len(text) > 16 * PIECE else None


def _json_lines(file: Path, key: str) -> Iterator[Piece]:
    with _open(file) as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = parse_json(line)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{file}, line {number}: not {error.encoding.upper()} at byte {error.start}; convert it first"
                ) from error
            except ValueError as error:
                raise DataError(f"{file}, line {number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise DataError(f"{file}, line {number}: not a JSON object, but {_kind(row)}")
            yield Piece(_checked(row.get(key), f"{file}, line {number}", key, list(row)))


def _parquet(file: Path, key: str) -> Iterator[Piece]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        if key not in names:
            raise DataError(f"{file}: has no column {key!r}; it has: {', '.join(names)}; choose one with --text-key")
        kind = table.schema_arrow.field(key).type
        text = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(text) or pa.types.is_large_string(text) or pa.types.is_string_view(text)):
            others = [field.name for field in table.schema_arrow if pa.types.is_string(field.type)]
            raise DataError(
                f"{file}: column {key!r} is of type {kind}, not text"
                + (f"; columns of text: {', '.join(others)}; choose one with --text-key" if others else "")
                + ("; copy nested text to its own column" if pa.types.is_nested(kind) else "")
            )
        number = 0
        for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=[key]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield Piece(_checked(value, f"{file}, row {number}", key, names))
    except pa.ArrowException as error:
        raise DataError(f"{file}: not a readable Parquet file: {error}") from error


def _checked(value: object, where: str, key: str, keys: list[str]) -> str:
    if not isinstance(value, str):
        if key not in keys:
            raise DataError(f"{where}: has no {key!r}; it has: {', '.join(keys)}; choose one with --text-key")
        raise DataError(
            f"{where}: {key!r} is not text, but {_kind(value)}; leave such documents out, or give them a text"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: {key!r} holds half of a character (a lone surrogate) at {error.start}") from error
    return value


def _kind(value: object) -> str:
    if value is None:
        return "null"
    kinds = {
        dict: "an object",
        list: "a list",
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
    }
    return kinds.get(type(value), type(value).__name__)


class Read(NamedTuple):
    """A piece, and the share of the input read so far, from 0 to 1."""

    piece: Piece
    share: float


@dataclass(frozen=True)
class Documents:
    """A corpus before it is prepared. ``stamp`` changes when the input does; ``read`` reads it from the beginning.

    ``text_sha256`` is the checksum of its documents, where that is known.
    """

    name: str
    source: str
    stamp: str
    read: Callable[[], Iterator[Read]]
    text_sha256: str | None = None


def open_documents(corpus: str, text_key: str = "text") -> Documents:
    """The documents of a corpus, given its name or path."""
    if not looks_like_path(corpus) and corpus in SOURCES:
        return _from_source(SOURCES[corpus])
    path = user_path(corpus)
    if not looks_like_path(corpus) and not path.exists():
        SOURCES[corpus]  # raises, with the nearest name
    return _from_path(path, text_key)


def _from_source(source: Source) -> Documents:
    path = fetch(source)

    def read() -> Iterator[Read]:
        texts = source.documents(path) if source.documents is not None else iter([path.read_bytes().decode()])
        done = 0
        for text in texts:
            done += len(text)
            yield Read(Piece(text), min(1.0, done / source.size))

    where = "" if source.url is None else f", canonical address {source.url}"
    stamp = content_hash([source.name, source.sha256])
    return Documents(source.name, f"named source{where}", stamp, read, source.text_sha256)


def _from_path(path: Path, text_key: str) -> Documents:
    files = files_of(path)
    try:
        stats = [file.stat() for file in files]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    names = [file.name if file == path else file.relative_to(path).as_posix() for file in files]
    stamp = content_hash([[n, s.st_size, s.st_mtime_ns] for n, s in zip(names, stats, strict=True)])
    total = max(1, sum(stat.st_size for stat in stats))

    def read() -> Iterator[Read]:
        before = 0
        for file, stat in zip(files, stats, strict=True):
            inside = 0
            for piece in read_file(file, text_key):
                inside += len(piece.text)
                yield Read(piece, (before + min(inside, stat.st_size)) / total)
            before += stat.st_size

    origin = f"path {path.name}" if len(files) == 1 else f"path {path.name} ({len(files)} files)"
    return Documents(path.name, origin, stamp, read)
