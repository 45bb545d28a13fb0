"""How far training is, for displays. No torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ablationlab.stats.spikes import EarlyWarning

#: What a note is about: where the stack stands ("state"), or something that happened to it ("notice").
NoteKind = Literal["state", "notice"]


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
    note_kind: NoteKind = "state"
    warnings: tuple[EarlyWarning, ...] = ()


class Stopped(Exception):
    """Training ended at a step boundary because it was asked to; a checkpoint of that step is on disk."""


class Reporter:
    """Sends the progress of a stack, with its speed since the last time."""

    def __init__(
        self,
        send: Callable[[Progress], None],
        living: Callable[[], Sequence[int]],
        *,
        stack: int,
        start: int,
        steps: int,
        runs: int,
        tokens_per_step: int,
    ) -> None:
        self.send, self.living, self.stack, self.start, self.steps, self.runs = send, living, stack, start, steps, runs
        self.tokens_per_step = tokens_per_step  # over all runs
        self._at, self._step = time.monotonic(), start

    def report(
        self,
        step: int | None = None,
        losses: Sequence[float] | None = None,
        norms: Sequence[float] | None = None,
        note: str = "",
        note_kind: NoteKind = "state",
        warnings: Sequence[EarlyWarning] = (),
    ) -> None:
        """Numbers are means over the slots of the living runs."""
        living = self.living()
        now, step = time.monotonic(), self.start if step is None else step
        rate = (step - self._step) * self.tokens_per_step / max(now - self._at, 1e-9)
        self._at, self._step = now, step
        self.send(
            Progress(
                stack=self.stack,
                start=self.start,
                step=step,
                steps=self.steps,
                runs=self.runs,
                diverged=self.runs - len(living),
                loss=_mean(losses, living),
                gradient_norm=_mean(norms, living),
                tokens_per_second=rate,
                note=note,
                note_kind=note_kind,
                warnings=tuple(warnings),
            )
        )


def _mean(values: Sequence[float] | None, slots: Sequence[int]) -> float:
    return math.nan if values is None or not slots else sum(values[slot] for slot in slots) / len(slots)
