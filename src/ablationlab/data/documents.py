"""Documents of text, JSON Lines and Parquet files, one after another: a stream that never holds more than a part of a file.

| file | a document is |
|---|---|
| .txt, .txt.gz | the whole file; a long one comes in several pieces |
| .jsonl, .jsonl.gz | the text of one line's object, by its key |
| .parquet | one row's text, by its column |
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from ablationlab.core.errors import DataError

ENDINGS = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet")
#: Characters of a text file read at a time; a longer document comes in pieces.
PIECE = 2**20
_ROWS = 256


class Piece(NamedTuple):
    """A document, or a part of one: whether it is the first, and whether it is the last."""

    text: str
    first: bool = True
    last: bool = True


def files_of(path: Path) -> list[Path]:
    """The files of a corpus, in the order of their paths."""
    try:
        found = _walk(path) if path.is_dir() else []
        there = path.exists()
    except OSError as error:
        where = error.filename or path
        raise DataError(f"{where}: cannot be read ({error.strerror}); nothing is left out unsaid") from error
    if not there:
        raise DataError(f"{path}: no such file or folder")
    if path.is_file():
        if not path.name.endswith(ENDINGS):
            raise DataError(f"{path}: not a kind of file that is read here; allowed: {', '.join(ENDINGS)}")
        return [path]
    if not found:
        raise DataError(f"{path}: the folder holds no file that ends in {', '.join(ENDINGS)}")
    return found


def _walk(folder: Path) -> list[Path]:
    """The files of a folder and of those in it; one that cannot be opened is an error, not a gap."""

    def stop(error: OSError) -> None:
        raise error

    places = os.walk(folder, onerror=stop)
    files = (Path(place) / name for place, _, names in places for name in names if name.endswith(ENDINGS))
    return sorted(file for file in files if file.is_file())


def pieces_of(file: Path, key: str) -> Iterator[Piece]:
    """All documents of one file."""
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
                cut = _seam(rest)
                if cut is None:
                    break
                yield Piece(rest[:cut], first, last=False)
                rest, first = rest[cut:], False
    try:
        rest += decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 at its end; convert it first") from error
    yield Piece(rest, first, last=True)


def _seam(text: str) -> int | None:
    """Where to cut: after a line break between two visible characters, where no tokenizer of ours joins the two sides.

    The last such place of the first `PIECE` characters; None where there is none, so that more is read, up to a limit.
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
                row = json.loads(line)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{file}, line {number}: not {error.encoding.upper()} at byte {error.start}; convert it first"
                ) from error
            except ValueError as error:
                raise DataError(f"{file}, line {number}: is not JSON: {error}") from error
            except RecursionError as error:
                raise DataError(f"{file}, line {number}: is JSON nested too deep to be read") from error
            if not isinstance(row, dict):
                raise DataError(f"{file}, line {number}: is no JSON object, but {_kind(row)}")
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
                + ("; nested text must be a column of its own" if pa.types.is_nested(kind) else "")
            )
        number = 0
        for batch in table.iter_batches(batch_size=_ROWS, columns=[key]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield Piece(_checked(value, f"{file}, row {number}", key, names))
    except pa.ArrowException as error:
        raise DataError(f"{file}: is no Parquet file that can be read: {error}") from error


def _checked(value: object, where: str, key: str, keys: list[str]) -> str:
    if not isinstance(value, str):
        if key not in keys:
            raise DataError(f"{where}: has no {key!r}; it has: {', '.join(keys)}; choose one with --text-key")
        raise DataError(
            f"{where}: {key!r} is no text, but {_kind(value)}; leave such documents out, or give them a text"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: {key!r} holds half of a character (a lone surrogate) at {error.start}") from error
    return value


def _kind(value: object) -> str:
    """What a value of JSON or of a column is, in words."""
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
