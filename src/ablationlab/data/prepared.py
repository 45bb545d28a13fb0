"""Reading a prepared corpus: shards as memory maps, verified, and where their documents end.

Checksums of all shards together up to `ALWAYS_VERIFIED` bytes are taken at every load. Larger ones are taken once and
remembered in the cache with size and time of the file; a file that changes either is read again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ablationlab.data.manifest import FORMAT, MANIFEST, Manifest, Settings, Shard
from ablationlab.data.sources import Source, cache_folder
from ablationlab.data.tokens import Tokens
from ablationlab.errors import DataError, RecordError
from ablationlab.storage import read_json, replace, sha256_file

ALWAYS_VERIFIED = 2**28


def is_prepared(path: Path) -> bool:
    """Whether a path is a prepared folder."""
    return (path / MANIFEST).is_file()


def cached_folder(source: Source, settings: Settings) -> Path:
    """Where a named corpus is kept once it is prepared with the settings of a study."""
    return cache_folder() / "prepared" / f"{source.name}-{source.sha256[:12]}-{settings.tokenizer}-{FORMAT}"


@dataclass(frozen=True)
class Prepared:
    """A prepared folder that was found whole."""

    folder: Path
    manifest: Manifest

    @cached_property
    def tokens(self) -> Tokens:
        """All of them; nothing is read until it is asked for."""
        dtype = self.manifest.tokenizer.dtype
        return Tokens([np.memmap(self.folder / one.file, dtype=dtype, mode="r") for one in self.manifest.shards])

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Where each document ends: the place behind its last token."""
        lengths = [np.fromfile(self.folder / one.index, dtype="<i8") for one in self.manifest.shards]
        return np.cumsum(np.concatenate(lengths)).astype(np.int64)

    def cut(self, validation: float) -> int:
        """Where the held-out part begins: the end of a document nearest to the last share.

        Where documents are so long that this would be off by more than half of the share, the exact place inside one.
        """
        total = self.manifest.tokens
        target = int(total * (1 - validation))
        inner = self.ends[:-1]
        if len(inner):
            nearest = int(inner[np.argmin(np.abs(inner - target))])
            if abs(nearest - target) <= 0.5 * validation * total:
                return nearest
        return target


def open_prepared(folder: Path, *, anew: bool = False) -> Prepared:
    """Read the manifest and verify every shard, *anew* whatever is remembered; a wrong one is refused by name."""
    try:
        manifest = Manifest.read(folder / MANIFEST)
    except RecordError as error:
        raise DataError(f"prepared corpus {folder}: {error}") from error
    if manifest.format != FORMAT:
        raise DataError(
            f"prepared corpus {folder}: format {manifest.format}; this program reads {FORMAT}; prepare it again"
        )
    tokenizer = manifest.tokenizer.make()
    if tokenizer.identity != manifest.tokenizer.identity:
        raise DataError(
            f"prepared corpus {folder}: made with another {manifest.tokenizer.name} tokenizer than this one"
        )
    width = manifest.tokenizer.dtype.itemsize
    for shard in manifest.shards:
        path = folder / shard.file
        size = path.stat().st_size if path.is_file() else None
        if size != shard.tokens * width:
            found = "is missing" if size is None else f"has {size:,} bytes instead of {shard.tokens * width:,}"
            raise DataError(f"prepared corpus: {path} {found}; restore it, or prepare the corpus again")
    _verify(folder, manifest.shards, large=not anew and manifest.tokens * width > ALWAYS_VERIFIED)
    return Prepared(folder, manifest)


def _verify(folder: Path, shards: tuple[Shard, ...], *, large: bool) -> None:
    memory = cache_folder() / "verified" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]}.json"
    known = _remembered(memory) if large else {}
    stamps = {}
    for shard in shards:
        for name, expected in ((shard.file, shard.sha256), (shard.index, shard.index_sha256)):
            path = folder / name
            try:
                facts = path.stat()
                stamps[name] = [facts.st_size, facts.st_mtime_ns, expected]
                right = known.get(name) == stamps[name] or sha256_file(path) == expected
            except OSError as error:
                raise DataError(f"prepared corpus: {path} cannot be read ({error.strerror})") from error
            if not right:
                raise DataError(
                    f"prepared corpus: {path} has a wrong checksum; restore it, or prepare the corpus again"
                )
    if large and stamps != known:
        replace(memory, json.dumps(stamps).encode())


def _remembered(memory: Path) -> dict[str, list[object]]:
    try:
        found = read_json(memory)
    except RecordError:
        return {}
    return found if isinstance(found, dict) else {}
