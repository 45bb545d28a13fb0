"""Tables that probes need on the device, brought there once: a copy from the host makes a GPU wait."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def on_device(table: NDArray[Any], device: torch.device) -> Tensor:
    """The table as a tensor there; the same one every time, so it is not to be written to."""
    return _kept(table.tobytes(), table.dtype.str, table.shape, device)


@lru_cache(maxsize=64)
def _kept(data: bytes, dtype: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=dtype).reshape(shape).copy()).to(device)
