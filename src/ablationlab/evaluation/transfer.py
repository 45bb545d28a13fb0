"""Numbers to a device and back without waiting for what it is doing; on the CPU they are simply there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device, from memory that it can read by itself."""
    host = torch.from_numpy(values)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def to_host(values: Tensor) -> Tensor:
    """A copy on the host, which is there when a mark set after it is reached."""
    if values.device.type != "cuda":
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)


def mark(device: torch.device) -> Callable[[], None]:
    """Waits, when called, until the device has done all that it was given so far."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event.synchronize
