"""Reading samples from tokens on the host, in memory or memory-mapped: only what a rank is fed is ever copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def windows(tokens: NDArray[Any], starts: NDArray[np.int64], length: int) -> Tensor:
    """windows_BT: *length* tokens from each start."""
    return torch.from_numpy(np.stack([tokens[start : start + length] for start in starts]).astype(np.int64))
