"""Where the files of a study lie: ``results/<study>/`` and ``runs/<id>/`` in it, and names that are safe for folders."""

from __future__ import annotations

import re
from pathlib import Path


class RunFolder:
    """The paths inside ``runs/<id>/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.probes = path / "probes.jsonl"
        self.probe_table = path / "probes.parquet"
        self.result = path / "result.json"
        self.checkpoints = path / "checkpoints"

    @property
    def done(self) -> bool:
        """Whether the run has its result, and the record that the result belongs to."""
        return self.result.exists() and self.record.exists()


class ResultsFolder:
    """The paths inside ``results/<study>/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan = path / "plan.lock"
        self.runs = path / "runs"
        self.locks = path / "locks"

    def run(self, run_id: str) -> RunFolder:
        """The folder of one run."""
        return RunFolder(self.runs / run_id)

    def stack_lock(self, stack: int) -> Path:
        """The lock file of one stack."""
        return self.locks / f"stack-{stack:04d}"


def slug(text: str) -> str:
    """A readable, safe folder name: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
