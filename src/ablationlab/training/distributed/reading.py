"""Reading checkpoints of any number of ranks: every reader asks for the parts of tensors that it needs.

What is read is safetensors alone (see `writing.py`): nothing in it can run code.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from ablationlab.core.errors import RecordError

PARTS = ("weights", "m", "v")


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
    state: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    for name, value in flat.items():
        part, _, rest = name.partition(".")
        if part in ("m", "v"):
            state[part][rest] = value
        else:
            state["weights"][name] = value
    return state


@contextmanager
def quiet() -> Iterator[None]:
    """torch tells every save and load to its log; errors are still told."""
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
