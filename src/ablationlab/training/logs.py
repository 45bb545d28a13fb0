"""Files of one run that only grow while it trains, and are cut back to the checkpoint when it continues."""

from __future__ import annotations

import hashlib
import os
from io import BufferedRandom
from pathlib import Path

from ablationlab.core.errors import RecordError
from ablationlab.records.run import METRICS_HEADER, Checkpoint, StepLine
from ablationlab.records.storage import RunFolder, storage_errors, sync_folder


class AppendLog:
    """An open file with the running hash of its content. *kept* is what the checkpoint pinned, None at the start."""

    def __init__(self, path: Path, header: str, kept: bytes | None) -> None:
        self.path = path
        head = header.encode() if kept is None else kept
        with storage_errors(self.path):
            self._file: BufferedRandom = open(self.path, "r+b" if self.path.exists() else "w+b")  # noqa: PTH123, SIM115
            self._file.truncate(0 if kept is None else len(head))
            self._file.seek(0, os.SEEK_END)
            if kept is None:
                self._file.write(head)
            sync_folder(path.parent)
        self._hash = hashlib.sha256(head)
        self._bytes = len(head)

    def write(self, text: str) -> None:
        """Write whole lines through to the operating system."""
        data = text.encode()
        with storage_errors(self.path):
            self._file.write(data)
            self._file.flush()
        self._hash.update(data)
        self._bytes += len(data)

    def settle(self) -> tuple[int, str]:
        """Flush to the device; returns the length and hash that a checkpoint pins."""
        with storage_errors(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._bytes, self._hash.hexdigest()

    def close(self) -> None:
        """Close the file; what a full disk refuses here is not pinned by any checkpoint and not missed."""
        try:
            self._file.close()
        except OSError:
            return


def pinned_part(path: Path, size: int, sha256: str, step: int) -> bytes:
    """The bytes of *path* that belong to a checkpoint; `RecordError` if they are not what it pinned."""
    try:
        with path.open("rb") as file:
            data = file.read(size)
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise RecordError(f"{path} does not match the checkpoint of step {step}")
    return data


class MetricsLog(AppendLog):
    """An open metrics file."""

    def __init__(self, run: RunFolder, checkpoint: Checkpoint | None) -> None:
        super().__init__(run.metrics, METRICS_HEADER, None if checkpoint is None else kept_part(run, checkpoint))

    def append(self, lines: list[StepLine]) -> None:
        """Write lines through to the operating system."""
        self.write("".join(line.to_line() for line in lines))


def kept_part(run: RunFolder, checkpoint: Checkpoint) -> bytes:
    """The bytes of metrics.jsonl that belong to a checkpoint; `RecordError` if they are not what it pinned."""
    return pinned_part(run.metrics, checkpoint.metrics_bytes, checkpoint.metrics_sha256, checkpoint.step)
