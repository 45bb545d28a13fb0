"""Numbers on their way from the device to the host."""

from __future__ import annotations

import torch
from torch import Tensor


class Fetch:
    """A tensor on its way to the host; nothing waits for it until it is asked for."""

    def __init__(self, values: Tensor) -> None:
        self._ready: torch.cuda.Event | None = None
        self._host = values
        if values.is_cuda:
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()

    def get(self) -> Tensor:
        """The values, on the host."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._host
