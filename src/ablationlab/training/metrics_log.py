"""metrics.jsonl of one run: appended step by step, cut back to the checkpoint when a run goes on."""

from __future__ import annotations

from ablationlab.records.folders import RunFolder
from ablationlab.records.run import METRICS_HEADER, Checkpoint, StepLine
from ablationlab.training.append_log import AppendLog, pinned_part


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
