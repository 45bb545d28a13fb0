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

from ablationlab.core.errors import DataError, RecordError
from ablationlab.data.manifest import FORMAT, MANIFEST, PROGRESS, Manifest, Settings, Shard, shard_files
from ablationlab.data.sources import Source, cache_folder
from ablationlab.data.tokenizers import Tokenizer
from ablationlab.data.tokens import Tokens
from ablationlab.records.storage import read_json, replace, sha256_file

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
            f"prepared corpus {folder}: made with another {manifest.tokenizer.name} tokenizer than this one"
        )
    _check(folder, manifest, tokenizer)
    width = manifest.tokenizer.dtype.itemsize
    for shard in manifest.shards:
        path = folder / shard.file
        size = path.stat().st_size if path.is_file() else None
        if size != shard.tokens * width:
            found = "is missing" if size is None else f"has {size:,} bytes instead of {shard.tokens * width:,}"
            raise DataError(f"prepared corpus: {path} {found}; restore it, or prepare the corpus again")
    _verify(folder, manifest.shards, large=not anew and manifest.tokens * width > ALWAYS_VERIFIED)
    opened = Prepared(folder, manifest)
    if len(opened.ends) != manifest.documents or (len(opened.ends) and int(opened.ends[-1]) != manifest.tokens):
        raise DataError(
            f"prepared corpus {folder}: its indices hold {len(opened.ends):,} documents of "
            f"{int(opened.ends[-1]) if len(opened.ends) else 0:,} tokens, and manifest.json says {manifest.documents:,} of "
            f"{manifest.tokens:,}; prepare it again"
        )
    if anew:
        _verify_tokens(opened)
    return opened


def _unprepared(folder: Path) -> str:
    if not folder.exists():
        return "no such folder"
    if not folder.is_dir():
        return "is a file; a prepared corpus is a folder, made with: ablationlab data prepare INPUT --out FOLDER"
    if (folder / PROGRESS).exists():
        return "is not prepared to its end; run the same data prepare again, it goes on where it was"
    return f"no prepared corpus (it has no {MANIFEST}); make one with: ablationlab data prepare INPUT --out FOLDER"


def _check(folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
    """What the manifest says must be true of itself: a record edited by hand is no record."""
    part, shards = manifest.tokenizer, manifest.shards
    wrong = [
        name
        for name, right in (
            ("tokenizer.vocabulary", part.vocabulary == tokenizer.vocabulary),
            ("tokenizer.end_of_document", part.end_of_document == tokenizer.end_of_document),
            ("dtype", np.dtype(manifest.dtype) == part.dtype),
            ("tokens", manifest.tokens == sum(shard.tokens for shard in shards)),
            ("documents", manifest.documents == sum(shard.documents for shard in shards)),
            ("shards", all(_named(number, shard) for number, shard in enumerate(shards))),
        )
        if not right
    ]
    if wrong:
        raise DataError(
            f"prepared corpus {folder}: {MANIFEST} contradicts itself in {', '.join(wrong)}; restore it, or prepare again"
        )


def _named(number: int, shard: Shard) -> bool:
    """Whether its files are those of the folder, and no others."""
    return (shard.file, shard.index) == shard_files(number)


def _verify_tokens(found: Prepared) -> None:
    made = hashlib.sha256()
    for block in found.tokens.blocks():
        made.update(block.astype("<i8").tobytes())
    if made.hexdigest() != found.manifest.tokens_sha256:
        raise DataError(
            f"prepared corpus {found.folder}: its tokens are not those of tokens_sha256 in {MANIFEST}; prepare it again"
        )


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
        found = read_json(memory)
    except RecordError:
        return {}
    return found if isinstance(found, dict) else {}
