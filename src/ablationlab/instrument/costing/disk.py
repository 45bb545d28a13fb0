"""Disk space of a study's records: at the end, and at most during training. Counted from what is written. No torch.

A finished run has its records and one checkpoint of weights alone (and the baseline's weights at half of the steps, if the
study keeps them). In training it has checkpoints of weights, optimizer state and average: two that are kept, in case one is
damaged, and the next, which is complete before the oldest is removed. All runs of a stack write before any of them removes.
Under torchrun every rank writes a file with its parts. Together these have the numbers of one file, plus a header with the
position of each part; ddp writes every tensor once, fsdp a part of every tensor in every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ablationlab.model.parameters import parameters
from ablationlab.model.rules import kept_numbers
from ablationlab.records.plan import PlannedRun
from ablationlab.records.settings import Study
from ablationlab.stats.curves import POINTS

NUMBER = 4
#: Bytes of one line of metrics.jsonl; of the header of one tensor, and of one part of a sharded tensor.
METRICS_LINE, TENSOR_HEADER, PART_HEADER = 193, 80, 140
#: Bytes of run.json per tensor; of the rest of run.json and result.json; of checkpoint.json; of a point of the thinned curve.
TENSOR_RECORD, RUN_RECORDS, CHECKPOINT_RECORD, CURVE_POINT = 115, 4500, 1200, 24
#: Checkpoints on disk at the same time: two that are kept and a new one.
MOST_CHECKPOINTS = 3


@dataclass(frozen=True)
class Spread:
    """How a run is distributed over processes, as far as its checkpoints depend on it: ``none``, ``ddp`` or ``fsdp``."""

    parallel: str = "none"
    ranks: int = 1

    def headers(self, tensors: int) -> int:
        if self.parallel == "none":
            return tensors * TENSOR_HEADER
        return tensors * PART_HEADER * (self.ranks if self.parallel == "fsdp" else 1)


@dataclass(frozen=True)
class DiskBytes:
    """Of a study's runs: at the end, and at most."""

    end: int
    most: int


def study_bytes(study: Study, runs: Iterable[PlannedRun], at_once: int, spread: Spread | None = None) -> DiskBytes:
    """*at_once* runs train at the same time; of runs of unequal size the largest are counted."""
    sized = [(run, len(parameters(run.model))) for run in runs]
    end = sum(_end(run, tensors) for run, tensors in sized)
    beyond = [_in_training(study, run, tensors, spread or Spread()) - _weights(run, tensors) for run, tensors in sized]
    return DiskBytes(end, end + sum(sorted(beyond, reverse=True)[: max(1, at_once)]))


def _weights(run: PlannedRun, tensors: int) -> int:
    return NUMBER * run.budget.parameters + tensors * TENSOR_HEADER + CHECKPOINT_RECORD


def checkpoint_bytes(numbers: int, tensors: int, spread: Spread, kept: int = 3) -> int:
    """A checkpoint to resume from, of a model with *numbers* parameters in *tensors* tensors: *kept* numbers of each, such as
    the weight and both moments."""
    return kept * NUMBER * numbers + spread.headers(kept * tensors) + CHECKPOINT_RECORD


def _end(run: PlannedRun, tensors: int) -> int:
    keeps = run.role == "gate" and run.budget.steps > 1
    points = min(run.budget.steps, POINTS)
    records = RUN_RECORDS + TENSOR_RECORD * tensors + METRICS_LINE * run.budget.steps + CURVE_POINT * points
    return _weights(run, tensors) * (2 if keeps else 1) + records


def _in_training(study: Study, run: PlannedRun, tensors: int, spread: Spread) -> int:
    """The most that the checkpoints of one run take: while a new one is written, or the last one, of weights alone."""
    every, kept = study.execution.checkpoint_every, kept_numbers(run.training)
    whole = checkpoint_bytes(run.budget.parameters, tensors, spread, kept)
    made = MOST_CHECKPOINTS if every == "auto" else (run.budget.steps - 1) // every
    return max(min(made, MOST_CHECKPOINTS) * whole, min(made, MOST_CHECKPOINTS - 1) * whole + _weights(run, tensors))
