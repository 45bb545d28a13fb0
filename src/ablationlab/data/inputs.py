"""What can be prepared: a named corpus, or a file or folder of text, JSON Lines or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ablationlab.core.errors import DataError
from ablationlab.data.documents import Piece, files_of, pieces_of
from ablationlab.data.sources import SOURCES, Source, fetch
from ablationlab.records.settings import looks_like_path
from ablationlab.records.storage import content_hash


class Read(NamedTuple):
    """A piece, and how much of the input is behind it, from 0 to 1."""

    piece: Piece
    share: float


@dataclass(frozen=True)
class Input:
    """A corpus before it is prepared. ``stamp`` changes when the input does; ``read`` gives it from the beginning.

    ``text_sha256`` is what its documents must come to, where that is known.
    """

    name: str
    source: str
    stamp: str
    read: Callable[[], Iterator[Read]]
    text_sha256: str | None = None


def input_of(corpus: str, text_key: str = "text") -> Input:
    """A corpus by its name, or by its path."""
    if not looks_like_path(corpus) and corpus in SOURCES:
        return _named(SOURCES[corpus])
    path = Path(corpus).expanduser()
    if not looks_like_path(corpus) and not path.exists():
        SOURCES[corpus]  # raises, with the nearest name
    return _path(path, text_key)


def _named(source: Source) -> Input:
    path = fetch(source)

    def read() -> Iterator[Read]:
        texts = source.documents(path) if source.documents is not None else iter([path.read_bytes().decode()])
        done = 0
        for text in texts:
            done += len(text)
            yield Read(Piece(text), min(1.0, done / source.size))

    where = "" if source.url is None else f", canonical address {source.url}"
    stamp = content_hash([source.name, source.sha256])
    return Input(source.name, f"named source{where}", stamp, read, source.text_sha256)


def _path(path: Path, text_key: str) -> Input:
    path = path.resolve()
    files = files_of(path)
    try:
        facts = [(file, file.stat()) for file in files]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    names = [file.name if file == path else file.relative_to(path).as_posix() for file in files]
    stamp = content_hash([[n, s.st_size, s.st_mtime_ns] for n, (_, s) in zip(names, facts, strict=True)])
    total = max(1, sum(stat.st_size for _, stat in facts))

    def read() -> Iterator[Read]:
        before = 0
        for file, stat in facts:
            inside = 0
            for piece in pieces_of(file, text_key):
                inside += len(piece.text)
                yield Read(piece, (before + min(inside, stat.st_size)) / total)
            before += stat.st_size

    origin = f"path {path.name}" if len(files) == 1 else f"path {path.name} ({len(files)} files)"
    return Input(path.name, origin, stamp, read)
