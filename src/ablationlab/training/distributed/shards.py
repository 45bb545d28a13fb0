"""Checkpoints of a run that lies on several ranks: torch.distributed.checkpoint, in safetensors.

torch's default writer pickles; its metadata file is a pickle as well. Its safetensors writer is used instead: every rank
writes one file with its parts of the tensors, and the place of each part stands as JSON in that file's header. There is no
other file, so nothing that is read back can run code. A reader asks for the parts that it needs, so a checkpoint of one
number of ranks, of ddp or fsdp, or of a single process (whose two safetensors files are parts that happen to be whole)
loads into any other. The parameters stand under their names, the moments under ``m.<name>`` and ``v.<name>``, the average of
the weights under ``average.<name>``.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

from ablationlab.core.errors import RecordError
from ablationlab.records.run import Checkpoint
from ablationlab.records.storage import TEMPORARY, RunFolder, sha256_file, storage_errors, sync_folder, write_bytes
from ablationlab.training.checkpoints import RECORD, make_place, path_of
from ablationlab.training.distributed.ranks import Ranks


def save(ranks: Ranks, run: RunFolder, record: Checkpoint | None, state: Mapping[str, Tensor]) -> None:
    """Write a checkpoint of all ranks; it appears whole under its name, or not at all. *record* is the leader's."""
    if ranks.leads:
        assert record is not None
        make_place(run)
    step = ranks.share(lambda: record.step if record is not None else None)
    target = path_of(run, step)
    folder = target.with_name(f"{TEMPORARY}{target.name}")
    if ranks.leads:
        shutil.rmtree(folder, ignore_errors=True)
    ranks.agree(True)  # no rank writes before the leader has made room
    with quiet(), storage_errors(target):
        try:
            state_dict_saver.save(
                dict(state), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True)
            )
        except CheckpointException as error:
            raise _disk_error(error) from error
    # Whoever wrote a file has it in the page cache: each rank hashes one of every *world* of them.
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    mine = {name: sha256_file(folder / name) for name in names[ranks.rank :: ranks.world]}
    files = {name: digest for digests in ranks.gather(mine) for name, digest in digests.items()}
    if ranks.leads:
        assert record is not None
        sealed = record.model_copy(update={"files": dict(sorted(files.items()))}).sealed()
        write_bytes(folder / RECORD, sealed.to_bytes(), of=target)
        with storage_errors(target):
            sync_folder(folder)
            folder.rename(target)
            sync_folder(target.parent)
    ranks.agree(True)  # no rank continues, and perhaps dies, before the checkpoint is complete


def _disk_error(error: CheckpointException) -> BaseException:
    """The operating system's own words, where one of the ranks had trouble with the disk."""
    causes = [cause for cause, _ in error.failures.values() if isinstance(cause, OSError)]
    return causes[0] if causes else error


def load(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Read into *state*, in place, whatever part of each tensor it holds; every rank calls it."""
    with quiet():
        try:
            state_dict_loader.load(dict(state), storage_reader=HuggingFaceStorageReader(str(folder)))
        except (CheckpointException, SafetensorError, RuntimeError) as error:
            raise RecordError(f"{folder} cannot be read back: {error}") from error


def read_whole(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Weights and moments put together again, in one process."""
    reader = HuggingFaceStorageReader(str(folder))
    with quiet():
        try:
            sizes: Any = reader.read_metadata().state_dict_metadata
            flat = {name: torch.empty(there.size, dtype=there.properties.dtype) for name, there in sizes.items()}
            state_dict_loader.load(flat, storage_reader=reader, no_dist=True)
        except (CheckpointException, SafetensorError, RuntimeError) as error:
            raise RecordError(f"{folder} cannot be read back: {error}") from error
    state: dict[str, dict[str, Tensor]] = {}
    for name, value in flat.items():
        part, _, rest = name.partition(".")  # a tensor of the optimizer's state is named after its parameter
        state.setdefault(part if rest in flat else "weights", {})[rest if rest in flat else name] = value
    return state


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log of torch, which reports every save and load; errors are still shown."""
    log = logging.getLogger("torch.distributed.checkpoint")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Reading in one process is meant, not a group that was forgotten.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            yield
    finally:
        log.setLevel(before)
