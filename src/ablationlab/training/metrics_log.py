"""metrics.jsonl of one run: appended step by step, cut back to the checkpoint when a run goes on."""

from __future__ import annotations

import hashlib
import os
from io import BufferedRandom

from ablationlab.errors import RecordError
from ablationlab.records import METRICS_HEADER, Checkpoint, RunFolder, StepLine
from ablationlab.storage import storage_errors, sync_folder


class MetricsLog:
    """An open metrics file with the running hash of its content."""

    def __init__(self, run: RunFolder, checkpoint: Checkpoint | None) -> None:
        self.path = run.metrics
        head = METRICS_HEADER.encode() if checkpoint is None else kept_part(run, checkpoint)
        with storage_errors(self.path):
            self._file: BufferedRandom = open(self.path, "r+b" if self.path.exists() else "w+b")  # noqa: PTH123, SIM115
            self._file.truncate(0 if checkpoint is None else len(head))
            self._file.seek(0, os.SEEK_END)
            if checkpoint is None:
                self._file.write(head)
            sync_folder(run.path)
        self._hash = hashlib.sha256(head)
        self._bytes = len(head)

    def append(self, lines: list[StepLine]) -> None:
        """Write lines through to the operating system."""
        data = "".join(line.to_line() for line in lines).encode()
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


def kept_part(run: RunFolder, checkpoint: Checkpoint) -> bytes:
    """The bytes of metrics.jsonl that belong to a checkpoint; `RecordError` if they are not what it pinned."""
    try:
        with run.metrics.open("rb") as file:
            data = file.read(checkpoint.metrics_bytes)
    except OSError as error:
        raise RecordError(f"{run.metrics} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != checkpoint.metrics_sha256:
        raise RecordError(f"{run.metrics} does not match the checkpoint of step {checkpoint.step}")
    return data
