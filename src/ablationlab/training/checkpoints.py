"""Checkpoints of one run, and its logs.

A checkpoint is safetensors and a sealed JSON record in a folder that appears whole or not at all. Logs only grow while a run
trains; a checkpoint pins their length and hash, and they are cut back to it when the run continues.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from ablationlab.core.errors import RecordError
from ablationlab.records.run import METRICS_HEADER, Checkpoint, StepLine
from ablationlab.records.storage import (
    RunFolder,
    new_folder,
    not_a_link,
    open_regular,
    read_regular,
    sha256_file,
    storage_errors,
    sync_folder,
    write_bytes,
)

WEIGHTS, OPTIMIZER, RECORD = "weights.safetensors", "optimizer.safetensors", "checkpoint.json"
# What torch.distributed.checkpoint writes, one file a rank: each tensor's part, and its place in the header.
SHARD = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
_NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True)
class Saved:
    """A checkpoint verified and, unless it was only looked at, read back. ``state`` has weights, the optimizer's state and,
    where one is kept, their average; a final one has weights alone."""

    record: Checkpoint
    state: dict[str, dict[str, Tensor]]

    @property
    def final(self) -> bool:
        """Whether it is the end of a run: it has no optimizer state to continue with."""
        return self.record.files.keys() == {WEIGHTS}


def path_of(run: RunFolder, step: int) -> Path:
    """The folder of the checkpoint after *step*."""
    return run.checkpoints / f"step-{step:08d}"


def step_of(name: str) -> int:
    """The step of a checkpoint by the name of its folder."""
    matched = _NAME.fullmatch(name)
    if matched is None:
        raise RecordError(f"{name!r} is not the name of a checkpoint, such as step-00000012")
    return int(matched[1])


def steps_on_disk(run: RunFolder) -> list[int]:
    """Steps that have a checkpoint folder, ascending, whether or not it is sound."""
    if not run.checkpoints.is_dir():
        return []
    return sorted(int(m.group(1)) for m in map(_NAME.fullmatch, (p.name for p in run.checkpoints.iterdir())) if m)


def save(run: RunFolder, record: Checkpoint, state: dict[str, dict[str, Tensor]]) -> Checkpoint:
    """Write a checkpoint durably; moments are left out where *state* has none."""
    make_place(run)
    blobs = {WEIGHTS: safetensors.torch.save(state["weights"])}
    if len(state) > 1:
        moments = {
            f"{part}.{name}": value for part in state if part != "weights" for name, value in state[part].items()
        }
        blobs[OPTIMIZER] = safetensors.torch.save(moments)
    files = {name: hashlib.sha256(blob).hexdigest() for name, blob in blobs.items()}
    record = record.model_copy(update={"files": files}).sealed()
    with new_folder(path_of(run, record.step)) as folder:
        for name, blob in blobs.items():
            write_bytes(folder / name, blob)
        write_bytes(folder / RECORD, record.to_bytes())
    return record


def make_place(run: RunFolder) -> None:
    """Make the folder of the checkpoints; refuse if the run's own folder was removed."""
    if not run.record.exists():
        raise RecordError(f"{run.path} was removed during training; run again")
    with storage_errors(run.checkpoints):
        run.checkpoints.mkdir(exist_ok=True)
        sync_folder(run.path)


def load(run: RunFolder, step: int, *, tensors: bool = True) -> Saved:
    """Verify one checkpoint and, with *tensors*, read it; `RecordError` names the file that is damaged."""
    folder = path_of(run, step)
    record = Checkpoint.read(folder / RECORD)
    if record.step != step:
        raise RecordError(f"{folder / RECORD} is of step {record.step}, not {step}")
    sharded = any(SHARD.fullmatch(name) for name in record.files)
    if sharded or not tensors:
        _check_files(folder, record)
    if not tensors:
        return Saved(record, {})
    if sharded:
        from ablationlab.training.distributed.shards import read_whole

        return Saved(record, read_whole(folder))
    state = {"weights": verified(folder / WEIGHTS, record)}
    if OPTIMIZER in record.files:
        moments = verified(folder / OPTIMIZER, record)
        for name, tensor in moments.items():
            part, _, parameter = name.partition(".")
            state.setdefault(part, {})[parameter] = tensor
    return Saved(record, state)


def _check_files(folder: Path, record: Checkpoint) -> None:
    """The tensors' files are those of the record, no more and no fewer, and whole; nothing is held in memory."""
    there = {path.name for path in folder.glob("*.safetensors")}
    if there != record.files.keys():
        raise RecordError(f"{folder} holds {', '.join(sorted(there))}; its record names {', '.join(record.files)}")
    for name, digest in record.files.items():
        try:
            actual = sha256_file(folder / name)
        except OSError as error:
            raise RecordError(f"{folder / name} cannot be read: {error.strerror}") from error
        if actual != digest:
            raise RecordError(f"{folder / name} is damaged: its checksum does not match")


def verified(path: Path, record: Checkpoint) -> dict[str, Tensor]:
    """The tensors of a file whose checksum the record holds."""
    try:
        data = read_regular(path, most=None)
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != record.files.get(path.name):
        raise RecordError(f"{path} is damaged: its checksum does not match")
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except SafetensorError as error:
        raise RecordError(f"{path} is not a safetensors file: {error}") from error
    return tensors


def drop(run: RunFolder, steps: list[int]) -> None:
    """Remove checkpoints that are no longer needed."""
    for step in steps:
        shutil.rmtree(path_of(run, step), ignore_errors=True)
    if steps:
        sync_folder(run.checkpoints)


# The positive control: a baseline run's weights at half of its steps, kept beside its checkpoints. A task that cannot tell
# these weights from the final ones cannot be expected to tell variants apart. They are the run's own past, on its own
# schedule: not what a run planned for half the steps would end with, whose learning rate would have decayed by then. Such a
# run would be somewhat better, so this control is somewhat easier to tell apart than that one.
HALFWAY = "halfway"


def halfway_step(steps: int) -> int | None:
    """The step whose weights are kept: half of them; None for a run of one step."""
    return steps // 2 or None


def halfway_path(run: RunFolder) -> Path:
    return run.path / HALFWAY


def save_halfway(run: RunFolder, record: Checkpoint, weights: dict[str, Tensor]) -> None:
    """Write the positive control; one of an earlier start, which trained up to this step before, is replaced."""
    blob = safetensors.torch.save(weights)
    sealed = record.model_copy(update={"files": {WEIGHTS: hashlib.sha256(blob).hexdigest()}}).sealed()
    target = halfway_path(run)
    if target.exists():
        with storage_errors(target):
            shutil.rmtree(target)
    with new_folder(target) as folder:
        write_bytes(folder / WEIGHTS, blob)
        write_bytes(folder / RECORD, sealed.to_bytes())


def load_halfway(run: RunFolder, plan_hash: str) -> tuple[Checkpoint, dict[str, Tensor]]:
    """Read and verify the positive control; `RecordError` says what is wrong."""
    folder = halfway_path(run)
    record = Checkpoint.read(folder / RECORD)
    if (record.id, record.plan_hash) != (run.path.name, plan_hash):
        raise RecordError(f"{folder} belongs to another run or another plan")
    return record, verified(folder / WEIGHTS, record)


def sealed_files(run: RunFolder, last: Checkpoint) -> dict[str, str]:
    """SHA-256 of the files of a run that ends, by their path in its folder: logs and weights as its checkpoints pin them."""
    files = {run.metrics.name: last.metrics_sha256}
    if last.probes_sha256 is not None:
        files |= {run.probes.name: last.probes_sha256, run.probe_table.name: sha256_file(run.probe_table)}
    for folder in (path_of(run, last.step), halfway_path(run)):
        if folder.exists():
            name = folder.relative_to(run.path).as_posix()
            files |= {f"{name}/{file}": sha256 for file, sha256 in Checkpoint.read(folder / RECORD).files.items()}
            files[f"{name}/{RECORD}"] = sha256_file(folder / RECORD)
    return files


class AppendLog:
    """An open file with the running hash of its content. *kept* is what the checkpoint pinned, None at the start."""

    def __init__(self, path: Path, header: str, kept: bytes | None) -> None:
        self.path = path
        head = header.encode() if kept is None else kept
        not_a_link(self.path)
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
        with open_regular(path) as file:
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
