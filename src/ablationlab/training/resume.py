"""Where a stack stands on disk: the last step at which every member has a sound checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ablationlab.core.errors import RecordError
from ablationlab.records.folders import RunFolder
from ablationlab.records.run import Checkpoint
from ablationlab.records.storage import sweep
from ablationlab.training import checkpoints
from ablationlab.training.checkpoints import Saved
from ablationlab.training.metrics_log import kept_part
from ablationlab.training.probing import kept_probes


@dataclass(frozen=True)
class ResumePoint:
    """Step 0 and nothing saved, or a step and one checkpoint per member. ``trained``: only the results are missing."""

    step: int = 0
    saved: tuple[Saved, ...] = ()
    trained: bool = False
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> Any:
        """All of it but the tensors."""
        records = [saved.record.model_dump(mode="json") for saved in self.saved]
        return {"step": self.step, "records": records, "trained": self.trained, "notes": self.notes}

    @classmethod
    def from_json(cls, told: Any) -> ResumePoint:
        """The same again, without the tensors."""
        saved = tuple(Saved(Checkpoint.model_validate(record), {}) for record in told["records"])
        return cls(told["step"], saved, told["trained"], tuple(told["notes"]))


def resume_point(folders: list[RunFolder], plan_hash: str, *, tensors: bool = True) -> ResumePoint:
    """Find it, passing over damaged checkpoints; what is newer than it is removed. Needs the stack's lock.

    Without *tensors* the checkpoints are verified and left on disk.
    """
    for folder in folders:
        sweep(folder.path)
        if folder.checkpoints.is_dir():
            sweep(folder.checkpoints)
    common = set.intersection(*(set(checkpoints.steps_on_disk(folder)) for folder in folders))
    notes: list[str] = []
    found = ResumePoint()
    for step in sorted(common, reverse=True):
        try:
            saved = tuple(_sound(folder, step, plan_hash, tensors) for folder in folders)
        except RecordError as error:
            notes.append(f"passed over: {error}")
            continue
        finals = [one.final for one in saved]
        if any(finals) and not all(finals):
            notes.append(f"passed over step {step}: some members lack their optimizer state")
            continue
        found = ResumePoint(step, saved, trained=all(finals))
        break
    for folder in folders:
        if not folder.done:
            checkpoints.drop(folder, [step for step in checkpoints.steps_on_disk(folder) if step > found.step])
    if found.step:
        notes.append(f"going on from step {found.step}")
    return ResumePoint(found.step, found.saved, found.trained, tuple(notes))


def _sound(folder: RunFolder, step: int, plan_hash: str, tensors: bool) -> Saved:
    saved = checkpoints.load(folder, step, tensors=tensors)
    if (saved.record.id, saved.record.plan_hash) != (folder.path.name, plan_hash):
        raise RecordError(f"{checkpoints.path_of(folder, step)} belongs to another run or another plan")
    kept_part(folder, saved.record)
    kept_probes(folder, saved.record)
    return saved
