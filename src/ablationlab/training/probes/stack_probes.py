"""The probes of one stack in training: when they are due, what they write, and what happens when one fails.

A probe that raises is switched off for the stack, with a line in every run's probes.jsonl and a note to the user; training
continues. Numbers stay on the device until the loop drains; a run that has diverged is no longer recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.data.batches import batch_offsets, shares_of
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.model.device import Fetch
from ablationlab.records.probes import HEADER, ProbeLine, failures, parse, row_starts, written_line
from ablationlab.records.run import Checkpoint
from ablationlab.records.storage import RunFolder
from ablationlab.study.probes import OWN_MEASUREMENTS, PROBES, is_due
from ablationlab.training.checkpoints import AppendLog, pinned_part
from ablationlab.training.probes import activations, data_order, embedding, gradient_bound, optimizer
from ablationlab.training.probes.data_order import SeenData, Vocabulary
from ablationlab.training.probes.snapshot import Reading, Snapshot
from ablationlab.training.stack import Stack

if TYPE_CHECKING:
    from ablationlab.training.distributed.stack import DistributedStack


# Every probe by its name in the catalog (`study.probes`).
MEASUREMENTS: Mapping[str, Callable[[Snapshot], list[Reading]]] = {
    "gradient-norm": optimizer.gradient_norm,
    "update-ratio": optimizer.update_ratio,
    "second-moment": optimizer.second_moment,
    "embedding-norm": embedding.embedding_norm,
    "token-frequency": embedding.token_frequency,
    "cosine": activations.cosine,
    "effective-rank": embedding.effective_rank,
    "residual": activations.residual,
    "embedding-gain": embedding.embedding_gain,
    "attention": activations.attention,
    "output": activations.output,
    "centering": activations.centering,
    "gradient-bound": gradient_bound.gradient_bound,
    "data-mixture": data_order.data_mixture,
    "duplicate-ngrams": data_order.duplicate_ngrams,
}
_LONGEST_ERROR = 300


def _measurement(name: str) -> Callable[[Snapshot], list[Reading]]:
    return OWN_MEASUREMENTS[name] if name in OWN_MEASUREMENTS else MEASUREMENTS[name]


class _Arriving:
    """Values of a probe's readings, copied, for the stack's buffers move on. Those on a GPU travel together: many small
    copies would cost more than what they carry."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        there = [r.values.double().reshape(len(r.values), -1) for r in readings if r.values.is_cuda]
        self._here = [None if r.values.is_cuda else r.values.clone() for r in readings]
        self._widths = [values.shape[1] for values in there]
        self._packed = Fetch(torch.cat(there, dim=1)) if there else None

    def get(self) -> list[Tensor]:
        """The values of each reading, on the host."""
        packed = () if self._packed is None else torch.split(self._packed.get(), self._widths, dim=1)
        arrived = iter(packed)
        return [next(arrived) if here is None else here for here in self._here]


@dataclass(frozen=True)
class _Measured:
    """What one probe read after one step, on its way to the host, or the error that ended it."""

    step: int
    probe: str
    alive: Fetch
    readings: tuple[Reading, ...] = ()
    values: _Arriving | None = None
    error: str | None = None


class StackProbes:
    """All probes of a stack. ``intervals`` is empty in a study without probes: then nothing is done."""

    def __init__(
        self, intervals: Mapping[str, int], stack: Stack | DistributedStack, corpus: TokenizedCorpus, start: int
    ) -> None:
        models = [member.model for member in stack.members]
        self.intervals = {
            name: every
            for name, every in intervals.items()
            if any(PROBES[name].need(model) is None for model in models)
        }
        self.stack, self.steps = stack, stack.steps
        self.failed: set[str] = set()
        self._late: list[str] = []  # notes on probes that failed after their look, on the host
        self._pending: list[_Measured] = []
        self._seen: SeenData | None = None
        if not self.intervals:
            return
        self._vocabulary = Vocabulary.of(corpus.tokenizer, corpus.train)
        shape = {
            "batch": stack.training.batch,
            "context": stack.model.context,
            "train_tokens": len(corpus.train),
        }
        self._seen = SeenData(
            stack.seeds,
            corpus.train,
            stack.model.context,
            self._vocabulary,
            corpus.sources,
            self.steps * stack.training.batch,
            ngrams="duplicate-ngrams" in self.intervals,
        )
        shares = shares_of(corpus.record)
        self._seen.replay(
            start, lambda step: np.stack([batch_offsets(seed, step, **shape, shares=shares) for seed in stack.seeds])
        )

    def due(self, step: int) -> tuple[str, ...]:
        """Names of the probes that look after this step."""
        return tuple(
            name
            for name, every in self.intervals.items()
            if name not in self.failed and is_due(step, every, self.steps)
        )

    def take(self, offsets_RB: NDArray[np.int64]) -> None:
        """The offsets of a step's batch; of every step, due or not."""
        if self._seen is not None:
            self._seen.take(offsets_RB)

    def observe(self, step: int, due: Sequence[str]) -> list[str]:
        """Let the probes that are due look at the stack after *step*, which was watched; notes on those that failed."""
        stack, watched = self.stack, self.stack.watched
        assert self._seen is not None
        assert watched is not None
        snapshot = Snapshot(
            step=step,
            model=stack.model,
            training=stack.training,
            fronts=stack.fronts,
            layout=stack.layout,
            weights_RP=watched.weights_RP,
            before_RP=watched.before_RP,
            gradient_RP=watched.gradient_RP,
            v_RP=watched.v_RP,
            alive_R=watched.alive_R.clone(),
            windows_RBT=watched.windows_RBT,
            dtype=stack.dtype,
            seeds=stack.seeds,
            vocabulary=self._vocabulary,
            seen=self._seen,
            backward=any(PROBES[name].backward for name in due),
        )
        return self.look(snapshot, due)

    def look(self, snapshot: Snapshot, due: Sequence[str]) -> list[str]:
        """Measure; a probe that raises is switched off and reported."""
        notes, self._late = self._late, []
        alive = Fetch(snapshot.alive_R)
        for name in due:
            try:
                with torch.no_grad():
                    readings = tuple(_measurement(name)(snapshot))
                    values = _Arriving(readings)
                self._pending.append(_Measured(snapshot.step, name, alive, readings, values))
            except Exception as error:
                text, note = self._switch_off(name, snapshot.step, error)
                self._pending.append(_Measured(snapshot.step, name, alive, error=text))
                notes.append(note)
        return notes

    def _switch_off(self, name: str, step: int, error: Exception) -> tuple[str, str]:
        self.failed.add(name)
        text = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
        return text, f"probe {name} failed at step {step} and is off from here on: {text}"

    def drain(self, last: int | None = None) -> list[list[str]]:
        """Lines of every member since the last time, up to step *last*; waits for those steps alone."""
        ready = [measured for measured in self._pending if last is None or measured.step <= last]
        self._pending = self._pending[len(ready) :]
        lines_of: list[list[str]] = [[] for _ in self.stack.members]
        for measured in ready:
            alive, failure = measured.alive.get().tolist(), measured.error
            tables: list[list[list[float]]] = []
            if measured.values is not None:
                try:
                    pairs = zip(measured.readings, measured.values.get(), strict=True)
                    tables = [reading.on_host(values).tolist() for reading, values in pairs]
                except Exception as error:
                    failure, note = self._switch_off(measured.probe, measured.step, error)
                    self._late.append(note)
            for slot, lines in enumerate(lines_of):
                if not alive[slot]:
                    continue
                if failure is not None:
                    lines.append(ProbeLine(step=measured.step, probe=measured.probe, error=failure).to_line())
                    continue
                starts: list[str] = []
                numbers: list[float] = []
                for reading, table in zip(measured.readings, tables, strict=True):
                    if reading.has_R is None or reading.has_R[slot]:
                        starts += row_starts(reading.measure, *reading.columns)
                        numbers += table[slot]
                if numbers:
                    lines.append(written_line(measured.step, measured.probe, starts, numbers))
        return lines_of

    def open_log(self, folder: RunFolder, checkpoint: Checkpoint | None) -> AppendLog | None:
        """A run's probes.jsonl, cut back to its checkpoint; probes that had failed by then stay off."""
        if not self.intervals:
            return None
        kept = None if checkpoint is None else kept_probes(folder, checkpoint)
        if kept is not None:
            self.failed |= failures(parse(kept, str(folder.probes))).keys()
        return AppendLog(folder.probes, HEADER, kept)


def kept_probes(folder: RunFolder, checkpoint: Checkpoint) -> bytes | None:
    """The bytes of probes.jsonl that belong to a checkpoint; None where it has no probes."""
    if checkpoint.probes_bytes is None or checkpoint.probes_sha256 is None:
        return None
    return pinned_part(folder.probes, checkpoint.probes_bytes, checkpoint.probes_sha256, checkpoint.step)
