"""Writing the shards of a prepared corpus: each appears whole or not at all, and the index of its documents before it."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ablationlab.data.manifest import Shard, shard_files
from ablationlab.records.storage import TEMPORARY, replace, storage_errors, sync_folder


class ShardWriter:
    """One shard after another, closed at the end of the document that fills it."""

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
        """Of the shard that is being written."""
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
        """Complete the shard; None where nothing was written."""
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
        made = Shard(
            file=self.path.name,
            sha256=self._hash.hexdigest(),
            tokens=self.tokens,
            index=index_path.name,
            index_sha256=hashlib.sha256(index).hexdigest(),
            documents=len(self._documents),
        )
        self.number += 1
        self._begin()
        return made

    def abandon(self) -> None:
        """Remove what was written of an unfinished shard."""
        if self._file is not None:
            with suppress(OSError):  # a full disk also fails the last flush; the file goes anyway
                self._file.close()
            self._file = None
        self._temporary.unlink(missing_ok=True)
