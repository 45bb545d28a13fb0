"""The probes of one stack in training: when they are due, what they write, and what happens when one fails.

A probe that raises is switched off for the stack, with a line in every run's probes.jsonl and a note to the user; training
continues. Numbers stay on the device until the loop drains; a run that has diverged is no longer recorded. On a GPU a look
is recorded as a CUDA graph and replayed, and its numbers come to the host in one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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


Measurement = Callable[[Snapshot], list[Reading]]
# By name in the catalog (`study.probes`): probes that read tensors on the device alone, so that a look can be recorded there,
# and those that count on the host.
_ON_DEVICE: Mapping[str, Measurement] = {
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
}
_ON_HOST: Mapping[str, Measurement] = {
    "data-mixture": data_order.data_mixture,
    "duplicate-ngrams": data_order.duplicate_ngrams,
}
MEASUREMENTS: Mapping[str, Measurement] = {**_ON_DEVICE, **_ON_HOST}
_LONGEST_ERROR = 300


def _measurement(name: str) -> Measurement:
    return OWN_MEASUREMENTS[name] if name in OWN_MEASUREMENTS else MEASUREMENTS[name]


class _Packed:
    """Values of readings side by side, (R, N) in double precision, one tensor per device."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        flat = [reading.values.reshape(len(reading.values), -1) for reading in readings]
        parts: dict[torch.device, list[Tensor]] = {}
        self._columns: dict[int, tuple[torch.device, int, int]] = {}  # by id of the reading
        kinds = {place: (values.device, values.dtype) for place, values in enumerate(flat)}
        for device, dtype in dict.fromkeys(kinds.values()):
            places = [place for place, kind in kinds.items() if kind == (device, dtype)]
            end = sum(part.shape[1] for part in parts.setdefault(device, []))
            for place in places:
                start, end = end, end + flat[place].shape[1]
                self._columns[id(readings[place])] = device, start, end
            parts[device].append(torch.cat([flat[place] for place in places], dim=1).double())
        self._values = {device: torch.cat(several, dim=1) for device, several in parts.items()}
        self._readings = tuple(readings)  # their ids are theirs as long as they live

    def send(self) -> Callable[[Reading], Tensor]:
        """Send the values to the host, in one copy; what is returned waits for them and gives those of one reading."""
        # A copy, for a recorded look writes over them.
        arriving = {device: Fetch(values.clone()) for device, values in self._values.items()}

        def arrived(reading: Reading) -> Tensor:
            device, start, end = self._columns[id(reading)]
            return arriving[device].get()[:, start:end]

        return arrived


@dataclass(frozen=True)
class _Probed:
    """What one probe read after one step, on its way to the host, or the error that ended it."""

    step: int
    probe: str
    alive: Fetch
    readings: tuple[Reading, ...] = ()
    values: Callable[[Reading], Tensor] | None = None
    error: str | None = None


@dataclass(frozen=True)
class _RecordedLook:
    """Probes that look again at the same tensors, whatever is in them by then."""

    replay: Callable[[], None]
    readings: Mapping[str, tuple[Reading, ...]]
    packed: _Packed


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
        self._pending: list[_Probed] = []
        self._looks: dict[tuple[str, ...], _RecordedLook | None] = {}  # by the probes that looked at least once
        self._recording = True
        self._v_correction = torch.zeros((), dtype=torch.float64, device=stack.device)
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
            **{**vars(watched), "alive_R": watched.alive_R.clone()},
            v_correction=self._v_correction.fill_(1 - stack.training.betas[1] ** step),
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
        repeated = self._repeat(snapshot, tuple(name for name in due if name in _ON_DEVICE), notes)
        for name in due:
            if name in repeated:
                readings, values = repeated[name]
            else:
                try:
                    with torch.no_grad():
                        readings = tuple(_measurement(name)(snapshot))
                        values = _Packed(readings).send()
                except Exception as error:
                    text, note = self._switch_off(name, snapshot.step, error)
                    self._pending.append(_Probed(snapshot.step, name, alive, error=text))
                    notes.append(note)
                    continue
            self._pending.append(_Probed(snapshot.step, name, alive, readings, values))
        return notes

    def _repeat(
        self, snapshot: Snapshot, names: tuple[str, ...], notes: list[str]
    ) -> Mapping[str, tuple[tuple[Reading, ...], Callable[[Reading], Tensor]]]:
        """What these probes read, and their values on the way, by replaying a recorded look; nothing where there is none.

        The second look of the same probes is recorded: the first has made their tables and compiled their kernels.
        """
        if names not in self._looks:
            self._looks[names] = None
            return {}
        look = self._looks[names]
        if look is None and self._recording:
            try:
                look = self._looks[names] = self._record(snapshot, names)
            except Exception as error:
                self._recording = False
                notes.append(f"probes are not recorded as one launch: {type(error).__name__}: {error}"[:_LONGEST_ERROR])
        if look is None:
            return {}
        look.replay()
        values = look.packed.send()
        return {name: (readings, values) for name, readings in look.readings.items()}

    def _record(self, snapshot: Snapshot, names: tuple[str, ...]) -> _RecordedLook | None:
        made: list[tuple[dict[str, tuple[Reading, ...]], _Packed]] = []
        backward = any(PROBES[name].backward for name in names)

        def work() -> None:
            with torch.no_grad():
                here = replace(snapshot, backward=backward)
                readings = {name: tuple(_ON_DEVICE[name](here)) for name in names}
                made[:] = [(readings, _Packed([reading for several in readings.values() for reading in several]))]

        replay = self.stack.record(work) if isinstance(self.stack, Stack) else None
        return None if replay is None else _RecordedLook(replay, *made[0])

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
                    tables = [reading.on_host(measured.values(reading)).tolist() for reading in measured.readings]
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
            self.failed |= failures(parse(kept, folder.probes)).keys()
        return AppendLog(folder.probes, HEADER, kept)


def kept_probes(folder: RunFolder, checkpoint: Checkpoint) -> bytes | None:
    """The bytes of probes.jsonl that belong to a checkpoint; None where it has no probes."""
    if checkpoint.probes_bytes is None or checkpoint.probes_sha256 is None:
        return None
    return pinned_part(folder.probes, checkpoint.probes_bytes, checkpoint.probes_sha256, checkpoint.step)
