"""Bytes that a study's records take: at the end, and at most while it is trained. Counted from what is written. No torch.

At its end a run has its records and one checkpoint of weights alone (and the baseline's weights of half the steps, where the
study keeps them). In training it has checkpoints of weights and both moments: two that are kept, so that a damaged one can
be passed over, and the next, which is whole before the oldest goes. All runs of a stack write before any of them removes.
Under torchrun every rank writes a file of its own with its parts: their numbers are those of one file, each part beside a
header that tells its place; ddp writes every tensor once, fsdp a part of every tensor in every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ablationlab.model.parameters import parameters
from ablationlab.records.plan import PlannedRun
from ablationlab.records.settings import Study

NUMBER = 4
#: Of one line of metrics.jsonl; of what stands in a header for one tensor, and for one part of a tensor in shards.
METRICS_LINE, TENSOR_HEADER, PART_HEADER = 193, 80, 140
#: Of run.json for one tensor; of the rest of run.json and result.json; of checkpoint.json.
TENSOR_RECORD, RUN_RECORDS, CHECKPOINT_RECORD = 115, 3800, 1200
#: Checkpoints on disk for a moment: two kept and a new one.
MOST_CHECKPOINTS = 3


@dataclass(frozen=True)
class Spread:
    """How a run lies on processes, as far as its checkpoints show: ``none``, ``ddp`` or ``fsdp``, over so many."""

    parallel: str = "none"
    ranks: int = 1

    def headers(self, tensors: int) -> int:
        """Bytes of what stands beside the numbers of a checkpoint."""
        if self.parallel == "none":
            return tensors * TENSOR_HEADER
        return tensors * PART_HEADER * (self.ranks if self.parallel == "fsdp" else 1)


@dataclass(frozen=True)
class Bytes:
    """Of a study's runs: at the end, and at most."""

    end: int
    most: int


def study_bytes(study: Study, runs: Iterable[PlannedRun], at_once: int, spread: Spread | None = None) -> Bytes:
    """*at_once* runs are in training at a time; of unequal ones the largest are counted."""
    every = list(runs)
    end = sum(_end(study, run) for run in every)
    beyond = [_in_training(study, run, spread or Spread()) - _weights(run) for run in every]
    return Bytes(end, end + sum(sorted(beyond, reverse=True)[: max(1, at_once)]))


def _tensors(run: PlannedRun) -> int:
    return len(parameters(run.model))


def _weights(run: PlannedRun) -> int:
    """A checkpoint of weights alone."""
    return NUMBER * run.budget.parameters + _tensors(run) * TENSOR_HEADER + CHECKPOINT_RECORD


def checkpoint_bytes(numbers: int, tensors: int, spread: Spread) -> int:
    """A checkpoint to go on from, of a model of so many parameters in so many tensors: weights and both moments."""
    return 3 * NUMBER * numbers + spread.headers(3 * tensors) + CHECKPOINT_RECORD


def _end(study: Study, run: PlannedRun) -> int:
    keeps = study.evaluation.positive_control and run.variant == study.baseline and run.budget.steps > 1
    records = RUN_RECORDS + TENSOR_RECORD * _tensors(run) + METRICS_LINE * run.budget.steps
    return _weights(run) * (2 if keeps else 1) + records


def _in_training(study: Study, run: PlannedRun, spread: Spread) -> int:
    """The most that the checkpoints of one run take: while a new one is written, or the last, of weights alone."""
    every, whole = study.execution.checkpoint_every, checkpoint_bytes(run.budget.parameters, _tensors(run), spread)
    made = MOST_CHECKPOINTS if every == "auto" else (run.budget.steps - 1) // every
    return max(min(made, MOST_CHECKPOINTS) * whole, min(made, MOST_CHECKPOINTS - 1) * whole + _weights(run))
