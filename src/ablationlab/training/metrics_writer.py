"""Measurements of steps on their way into the records: read from the device in chunks, written, checked for divergence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ablationlab.model.device import Fetch
from ablationlab.records.run import Divergence, StepLine
from ablationlab.stats.stability import EarlyWarning
from ablationlab.training.probes.stack_probes import StackProbes
from ablationlab.training.run_state import RunState


@dataclass(frozen=True)
class Chunk:
    """Steps that were handed over together, and what is known of them."""

    steps: range
    lr_SR: NDArray[np.float32]  # the learning rates that the steps used
    measured: Fetch
    orders: list[tuple[str, ...]]  # of each step, the hash of every run's data order up to it
    curve: Fetch | None


@dataclass(frozen=True)
class Latest:
    """The newest step that was read, each run's loss and gradient norm there, and early warnings."""

    step: int
    losses: list[float]
    norms: list[float]
    warnings: list[str]


class MetricsWriter:
    """Writes what the steps of one stack measured; holds the chunks that the host has not read yet."""

    def __init__(self, runs: Sequence[RunState], tokens_per_step: int, probes: StackProbes) -> None:
        self.runs, self.tokens_per_step, self.probes = runs, tokens_per_step, probes
        self._pending: list[Chunk] = []
        self._warning = EarlyWarning([run.planned.id for run in runs])

    def add(self, chunk: Chunk) -> None:
        """Waits for nothing."""
        self._pending.append(chunk)

    def drain(self, keep: int = 0) -> Latest | None:
        """Bring the numbers to the host, all but the newest *keep* chunks; write them and notice divergence."""
        pending = self._pending[: len(self._pending) - keep]
        self._pending = self._pending[len(pending) :]
        if not pending:
            return None
        rows = [(chunk, position) for chunk in pending for position in range(len(chunk.steps))]
        measured = [chunk.measured.get().tolist() for chunk in pending]  # [field of Measured][step][run]
        values: list[list[list[float]]] = [
            [field[position] for field in found]
            for chunk, found in zip(pending, measured, strict=True)
            for position in range(len(chunk.steps))
        ]
        curves = {chunk.steps[-1]: chunk.curve.get().tolist() for chunk in pending if chunk.curve is not None}
        warnings: list[str] = []
        for slot, run in enumerate(self.runs):
            lines: list[StepLine] = []
            for (chunk, position), measures in zip(rows, values, strict=True):
                if run.divergence is not None:
                    break
                step = chunk.steps[position]
                curve = curves[step][slot] if step in curves else None
                lr = chunk.lr_SR[position, slot]
                lines.append(self._line(step, lr, [field[slot] for field in measures], curve))
                loss, norm = lines[-1].loss, lines[-1].gradient_norm
                run.last_norm = norm
                warnings += filter(None, [self._warning.feed(slot, step, loss, norm)])
                if not (math.isfinite(loss) and math.isfinite(norm)):
                    what, value = ("loss", loss) if not math.isfinite(loss) else ("gradient norm", norm)
                    run.divergence = Divergence(step=step, cause=f"{what} is {value}")
                    run.order_at_divergence = chunk.orders[position][slot]
            if run.log is not None and lines:
                run.log.append(lines)
        last = rows[-1][0].steps[-1]
        for run, probed in zip(self.runs, self.probes.drain(last), strict=True):
            if run.probe_log is not None and probed:
                run.probe_log.write("".join(probed))
        losses, norms, *_ = values[-1]
        return Latest(last, losses, norms, warnings)

    def _line(self, step: int, lr: np.float32, measures: list[float], curve: float | None) -> StepLine:
        loss, norm, second_mean, second_max = measures
        return StepLine(
            step=step,
            loss=loss,
            lr=float(str(lr)),  # the shortest decimal that is this float32
            gradient_norm=norm,
            second_moment_mean=second_mean,
            second_moment_max=second_max,
            tokens=step * self.tokens_per_step,
            curve_loss=curve,
        )
