"""The positive control: a baseline run's weights at half of its steps, kept beside its checkpoints.

A task that cannot tell these weights from the final ones cannot be expected to tell variants apart. They are the run's own
past, on its own schedule: not what a run planned for half the steps would end with, whose learning rate would have
decayed by then. Such a run would be somewhat better, so this control is somewhat easier to tell apart than that one.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import safetensors.torch
from torch import Tensor

from ablationlab.core.errors import RecordError
from ablationlab.records.folders import RunFolder
from ablationlab.records.run import Checkpoint
from ablationlab.records.storage import new_folder, storage_errors, write_bytes
from ablationlab.training.checkpoints import RECORD, WEIGHTS, verified

FOLDER = "halfway"


def step_of(steps: int) -> int | None:
    """The step that is kept: half of them; None for a run of one step."""
    return steps // 2 or None


def path_of(run: RunFolder) -> Path:
    """Where it stands."""
    return run.path / FOLDER


def keep(run: RunFolder, record: Checkpoint, weights: dict[str, Tensor]) -> None:
    """Write it whole; one of an earlier start, which trained up to this step before, is replaced."""
    blob = safetensors.torch.save(weights)
    sealed = record.model_copy(update={"files": {WEIGHTS: hashlib.sha256(blob).hexdigest()}}).sealed()
    target = path_of(run)
    if target.exists():
        with storage_errors(target):
            shutil.rmtree(target)
    with new_folder(target) as folder:
        write_bytes(folder / WEIGHTS, blob)
        write_bytes(folder / RECORD, sealed.to_bytes())


def load(run: RunFolder, plan_hash: str) -> tuple[Checkpoint, dict[str, Tensor]]:
    """Read and verify it; `RecordError` says what is wrong."""
    folder = path_of(run)
    record = Checkpoint.read(folder / RECORD)
    if (record.id, record.plan_hash) != (run.path.name, plan_hash):
        raise RecordError(f"{folder} belongs to another run or another plan")
    return record, verified(folder / WEIGHTS, record)
