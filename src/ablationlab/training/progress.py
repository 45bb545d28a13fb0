"""What training tells those who wait for it. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """What a display needs to know about a stack: means over its living runs."""

    stack: int
    start: int
    step: int
    steps: int
    runs: int
    diverged: int
    loss: float
    gradient_norm: float
    tokens_per_second: float
    note: str = ""


class Stopped(Exception):
    """Training ended at a step boundary because it was asked to; a checkpoint of that step is on disk."""
