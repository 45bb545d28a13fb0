"""The records of a study as TensorBoard event files, once or while it runs. Needs the extra ``ablationlab[track]``.

One folder a run, named by its id; scalars under the names of the metric registry: every step of metrics.jsonl, and the
result's metrics at the last step. Only what is new is appended, so that a running study can be mirrored again and again.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ablationlab.core.errors import AblationLabError
from ablationlab.records.results import Cache, Results, Run
from ablationlab.records.storage import storage_errors

SKIPPED = ("step", "tokens")


class Mirror:
    """Event files in *out* that follow the records in *folder*."""

    def __init__(self, folder: Path, out: Path) -> None:
        if find_spec("tensorboard") is None:
            raise AblationLabError("TensorBoard is not installed: pip install 'ablationlab[track]'")
        if any(out.glob("*/events.out.tfevents.*")):
            raise AblationLabError(f"{out} holds event files already; choose another place for them")
        self.folder, self.out = folder, out
        self.cache: Cache = {}
        self.written: dict[str, int] = {}
        self.closed: set[str] = set()
        self.writers: dict[str, Any] = {}

    def update(self) -> int:
        """Append what is new; the number of steps written."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        steps = 0
        with storage_errors(self.out):
            for run in Results.open(self.folder, cache=self.cache).runs:
                for step, values in self._new(run):
                    scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
                    event = Event(step=step, wall_time=float(step), summary=Summary(value=scalars))
                    self._writer(run.id).add_event(event)
                    steps += 1
            for writer in self.writers.values():
                writer.flush()
        return steps

    def close(self) -> None:
        """Finish the files."""
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()

    def _new(self, run: Run) -> list[tuple[int, dict[str, float]]]:
        found: list[tuple[int, dict[str, float]]] = []
        at = run.curves.get("step")
        before = self.written.get(run.id, 0)
        if at is not None:
            for place, step in enumerate(at.astype(int).tolist()):
                if step > before:
                    values = {
                        f"training/{name}": float(column[place])
                        for name, column in run.curves.items()
                        if name not in SKIPPED and math.isfinite(column[place])
                    }
                    found.append((step, values))
                    self.written[run.id] = step
        if run.result is not None and run.id not in self.closed:
            self.closed.add(run.id)
            ended = {name: value for name, value in run.result.metrics.items() if value is not None}
            found.append((run.result.steps, {f"result/{name}": value for name, value in ended.items()}))
        return found

    def _writer(self, run: str) -> Any:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if run not in self.writers:
            (self.out / run).mkdir(parents=True, exist_ok=True)
            self.writers[run] = EventFileWriter(str(self.out / run))
        return self.writers[run]
