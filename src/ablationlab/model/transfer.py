"""Numbers to a device and back without waiting for what it is doing; on the CPU they are simply there."""

from __future__ import annotations

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


class Mark:
    """A place in a device's work: all that it was given before the mark was set."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    @property
    def reached(self) -> bool:
        """Whether the device has come so far."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Until it has."""
        if self._event is not None:
            self._event.synchronize()


class Fetch:
    """A tensor on its way to the host; nothing waits for it until it is asked for."""

    def __init__(self, values: Tensor) -> None:
        self._host, self._mark = to_host(values), Mark(values.device)

    def get(self) -> Tensor:
        """The values, on the host."""
        self._mark.wait()
        return self._host
