"""The records of runs in training: run.json, open files, the checkpoint to resume from, measurements of steps, result.json.

`MetricsWriter` reads what the steps of a stack measured from the device in chunks, writes it and notices divergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.errors import PlanError, RecordError
from ablationlab.data.batches import DataOrderHash, drawn_samples, planned_data_order
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.model.device import Fetch
from ablationlab.model.rules import WITH_WARMUP
from ablationlab.model.weights import joint_digest
from ablationlab.records.environment import Drift, changes
from ablationlab.records.metrics import MEASURED_METRICS, checked_metrics
from ablationlab.records.plan import Corpus, Execution, Plan, PlannedRun
from ablationlab.records.probes import read_probes, to_parquet
from ablationlab.records.run import (
    Checkpoint,
    Divergence,
    MetricFailure,
    Result,
    RunRecord,
    Start,
    StepLine,
    Timing,
    read_curves,
)
from ablationlab.records.seal import close_evaluation, seal_evaluation, seal_run
from ablationlab.records.settings import Stability
from ablationlab.records.storage import Lock, ResultsFolder, RunFolder, replace, sweep, timestamp
from ablationlab.stats.spikes import EarlyWarning, StackWatch, measure_curve
from ablationlab.training import checkpoints
from ablationlab.training.checkpoints import AppendLog, MetricsLog, Saved, kept_part
from ablationlab.training.finished import FinishedRun, own_metrics
from ablationlab.training.perplexity import RunMetrics, Totals, run_metrics
from ablationlab.training.probes.stack_probes import StackProbes, kept_probes


def begin_record(
    plan: Plan, run: PlannedRun, folder: RunFolder, digests: dict[str, str], execution: Execution, **found: Any
) -> None:
    """Create the run's record, or make sure that the one on disk is of this very plan.

    *digests* are of the weights that the stack really starts from, *execution* is what was found, not what was asked.
    """
    corpus = plan.corpus_of(run.variant)
    declared = plan.variants.values()
    shared = [name for name in digests if not any(variant.covers_parameter(name) for variant in declared)]
    RunRecord.begin(
        plan,
        run,
        folder,
        corpus=corpus,
        data_order_hash=data_order(plan, run),
        initial_weights=digests,
        shared_init_hash=joint_digest(digests, shared),
        execution=execution,
        **found,
    )


def layout_drift(
    plan: Plan, results: ResultsFolder, folders: Sequence[RunFolder], execution: Execution, *, accept: bool
) -> tuple[Drift, ...]:
    """How this process lays a run out on devices, against what these runs, or the first of the study, began with.

    Sums over another number of ranks round differently, so continuing with it is refused unless it is accepted.
    """
    first = next((folder for run in plan.runs if (folder := results.run(run.id)).record.exists()), None)
    for folder in [folder for folder in folders if folder.record.exists()] or filter(None, [first]):
        began = RunRecord.read(folder.record).execution
        if began.layout() != execution.layout():
            if not accept:
                raise PlanError(
                    f"run {folder.path.name} of this study began on {_layout(began)}, and this is {_layout(execution)}: sums "
                    "round differently. Use the same executor and number of processes, make a new plan with --out, or "
                    "continue with --accept-drift, which is recorded"
                )
            return changes(dict(began), dict(began.over(execution.layout())))
    return ()


def _layout(execution: Execution) -> str:
    if execution.parallel == "none":
        return "one process"
    again = " with activation checkpointing" if execution.activation_checkpointing else ""
    return f"{execution.ranks} rank{'s' if execution.ranks > 1 else ''} ({execution.parallel}{again})"


def data_order(plan: Plan, run: PlannedRun) -> str:
    """The hash of all batches that a run will see; it takes long for many steps, and is remembered."""
    corpus = plan.corpus_of(run.variant)
    return _order(run.seed_triple[1], corpus, run.budget.steps, run.training.batch, run.model.context)


@lru_cache(maxsize=256)
def _order(seed: int, corpus: Corpus, steps: int, batch: int, context: int) -> str:
    return planned_data_order(seed, corpus, steps=steps, batch=batch, context=context)


@dataclass
class RunState:
    """One member of a stack."""

    planned: PlannedRun
    folder: RunFolder
    order: DataOrderHash
    done: bool  # it has its result already
    log: MetricsLog | None  # None when it is done, and in a process that writes no records
    probe_log: AppendLog | None = None  # None in a study without probes, too
    divergence: Divergence | None = None
    last_norm: float | None = None
    order_at_divergence: str | None = None

    def close(self) -> None:
        for log in (self.log, self.probe_log):
            if log is not None:
                log.close()

    def checkpoint(self, plan_hash: str, step: int, seconds: float, history: tuple[Start, ...]) -> Checkpoint:
        """The record of a checkpoint after *step*; the logs are flushed to disk first."""
        assert self.log is not None
        size, digest = self.log.settle()
        pinned = None if self.probe_log is None else self.probe_log.settle()
        return Checkpoint(
            id=self.planned.id,
            plan_hash=plan_hash,
            step=step,
            files={},
            metrics_bytes=size,
            metrics_sha256=digest,
            probes_bytes=None if pinned is None else pinned[0],
            probes_sha256=None if pinned is None else pinned[1],
            data_order_hash=self.order_at_divergence or self.order.value,
            divergence=self.divergence,
            last_gradient_norm=self.last_norm,
            train_seconds=seconds,
            history=history,
        )

    def finish(
        self,
        totals: Totals | None,
        slot: int,
        last_step: int,
        *,
        corpus: TokenizedCorpus,
        tokens_per_step: int,
        history: tuple[Start, ...],
        rules: Stability,
    ) -> None:
        """Write result.json: *totals* are of the whole validation split, or None where no run of the stack lives."""
        if not self.folder.record.exists():
            raise RecordError(f"{self.folder.path} was removed during training; run again")
        saved = checkpoints.load(self.folder, checkpoints.steps_on_disk(self.folder)[-1])
        if totals is not None and self.divergence is None and not math.isfinite(float(totals.nll_R[slot])):
            # The last update broke it: no training step is left to notice.
            self.divergence = Divergence.of(last_step, "validation_loss", float(totals.nll_R[slot]))
        steps = self.divergence.step if self.divergence else last_step
        budget = self.planned.budget
        measured: dict[str, float | None] = dict.fromkeys(
            [*RunMetrics._fields, "final_gradient_norm", *MEASURED_METRICS]
        )
        failures: dict[str, MetricFailure] = {}
        if totals is not None and self.divergence is None:
            measured |= run_metrics(totals, slot, corpus.record.validation_bytes)._asdict()
            measured["final_gradient_norm"] = self.last_norm
            if len(MEASURED_METRICS):
                values, failures = own_metrics(finished_run(self.planned, self.folder, saved, corpus))
                measured |= values
        if self.probe_log is not None:
            replace(self.folder.probe_table, to_parquet(self.planned.id, read_probes(self.folder)))
        seconds = saved.record.train_seconds
        result = Result(
            id=self.planned.id,
            status="diverged" if self.divergence else "finished",
            steps=steps,
            tokens=budget.tokens // budget.steps * steps,
            matmul_flops=budget.matmul_flops // budget.steps * steps,
            data_order_hash=saved.record.data_order_hash,
            divergence=self.divergence,
            metrics=checked_metrics(measured),
            unmeasured=failures,
            course=measure_curve(
                read_curves(self.folder.metrics),
                loss_threshold=rules.loss_threshold,
                spike_threshold=rules.spike_score,
            ),
            checkpoint=checkpoints.path_of(self.folder, saved.record.step).name,
            weights_sha256=saved.record.files[checkpoints.WEIGHTS],
            history=history,  # with this start, which validates, even if it trained nothing
            fed=drawn_samples(
                corpus,
                self.planned.seed_triple[1],
                steps=steps,
                batch=self.planned.training.batch,
                context=self.planned.model.context,
            ),
            timing=Timing(
                train_seconds=seconds,
                tokens_per_second=last_step * tokens_per_step / max(seconds, 1e-9),
                starts=len(saved.record.history),
            ),
            finished=timestamp(),
        )
        files = checkpoints.sealed_files(self.folder, saved.record)
        seal_run(self.folder, self.planned.id, saved.record.plan_hash, files, result.to_bytes())
        result.create(self.folder.result)


def finished_run(run: PlannedRun, folder: RunFolder, saved: Saved, corpus: TokenizedCorpus) -> FinishedRun:
    """What the metrics of the study's own code see of a run."""
    return FinishedRun(
        id=run.id,
        variant=run.variant,
        seed=run.seed,
        model=run.model,
        training=run.training,
        weights=saved.state["weights"],
        losses=tuple(read_curves(folder.metrics)["loss"].tolist()),
        validation=corpus.validation,
        tokenizer=corpus.tokenizer,
    )


def measure_again(plan: Plan, results: ResultsFolder, texts: Callable[[int], TokenizedCorpus | None]) -> None:
    """Try metrics of the study's own code that raised when their runs ended; *texts* gives the text of a stack.

    A stack that another process works on is left alone.
    """
    for stack, members in enumerate(plan.stacks):
        lock = Lock(results.stack_lock(stack))
        ended = [folder for run_id in members if (folder := results.run(run_id)).done]
        if not any(Result.read(folder.result).unmeasured for folder in ended) or not lock.acquire():
            continue
        try:
            for folder in ended:
                _measure_again(plan, folder, texts(stack))
        finally:
            lock.release()


def _measure_again(plan: Plan, folder: RunFolder, corpus: TokenizedCorpus | None) -> None:
    result = Result.read(folder.result)
    if not result.unmeasured or result.checkpoint is None or corpus is None:
        return
    saved = checkpoints.load(folder, checkpoints.step_of(result.checkpoint))
    values, failures = own_metrics(finished_run(plan.run(result.id), folder, saved, corpus))
    metrics = checked_metrics({**result.metrics, **{name: values[name] for name in result.unmeasured}})
    failures = {name: failures[name] for name in result.unmeasured if name in failures}
    data = result.model_copy(update={"metrics": metrics, "unmeasured": failures}).to_bytes()
    seal_evaluation(folder, {folder.result.name: data})
    replace(folder.result, data)
    close_evaluation(folder)


@dataclass(frozen=True)
class ResumePoint:
    """Step 0 and nothing saved, or a step and one checkpoint per member. ``trained``: only the results are missing."""

    step: int = 0
    saved: tuple[Saved, ...] = ()
    trained: bool = False
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> Any:
        """All of it but the tensors."""
        records = [saved.record.model_dump(mode="json") for saved in self.saved]
        return {"step": self.step, "records": records, "trained": self.trained, "notes": self.notes}

    @classmethod
    def from_json(cls, data: Any) -> ResumePoint:
        """The same again, without the tensors."""
        saved = tuple(Saved(Checkpoint.model_validate(record), {}) for record in data["records"])
        return cls(data["step"], saved, data["trained"], tuple(data["notes"]))


def resume_point(folders: list[RunFolder], plan_hash: str, *, tensors: bool = True) -> ResumePoint:
    """Find it, skipping damaged checkpoints; what is newer than it is removed. Needs the stack's lock.

    Without *tensors* the checkpoints are verified and left on disk.
    """
    for folder in folders:
        sweep(folder.path)
        if folder.checkpoints.is_dir():
            sweep(folder.checkpoints)
    common = set.intersection(*(set(checkpoints.steps_on_disk(folder)) for folder in folders))
    notes: list[str] = []
    point = ResumePoint()
    for step in sorted(common, reverse=True):
        try:
            saved = tuple(_sound(folder, step, plan_hash, tensors) for folder in folders)
        except RecordError as error:
            notes.append(f"skipped: {error}")
            continue
        finals = [checkpoint.final for checkpoint in saved]
        if any(finals) and not all(finals):
            notes.append(f"skipped step {step}: some runs lack their optimizer state")
            continue
        point = ResumePoint(step, saved, trained=all(finals))
        break
    for folder in folders:
        if not folder.done:
            checkpoints.drop(folder, [step for step in checkpoints.steps_on_disk(folder) if step > point.step])
    if point.step:
        notes.append(f"continuing from step {point.step}")
    return ResumePoint(point.step, point.saved, point.trained, tuple(notes))


def _sound(folder: RunFolder, step: int, plan_hash: str, tensors: bool) -> Saved:
    saved = checkpoints.load(folder, step, tensors=tensors)
    if (saved.record.id, saved.record.plan_hash) != (folder.path.name, plan_hash):
        raise RecordError(f"{checkpoints.path_of(folder, step)} belongs to another run or another plan")
    kept_part(folder, saved.record)
    kept_probes(folder, saved.record)
    return saved


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
    warnings: list[EarlyWarning]


class MetricsWriter:
    """Writes what the steps of one stack measured; holds the chunks that the host has not read yet."""

    def __init__(self, runs: Sequence[RunState], tokens_per_step: int, probes: StackProbes) -> None:
        self.runs, self.tokens_per_step, self.probes = runs, tokens_per_step, probes
        self._pending: list[Chunk] = []
        training = runs[0].planned.training
        warming = training.warmup if training.schedule in WITH_WARMUP else 0
        self._watch = StackWatch([run.planned.id for run in runs], warming + 1)

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
            [field[position] for field in measurement]
            for chunk, measurement in zip(pending, measured, strict=True)
            for position in range(len(chunk.steps))
        ]
        curves = {chunk.steps[-1]: chunk.curve.get().tolist() for chunk in pending if chunk.curve is not None}
        warnings: list[EarlyWarning] = []
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
                if (warning := self._watch.feed(slot, step, loss, norm)) is not None:
                    warnings.append(warning)
                if not (math.isfinite(loss) and math.isfinite(norm)):
                    what, value = ("loss", loss) if not math.isfinite(loss) else ("gradient_norm", norm)
                    run.divergence = Divergence.of(step, what, value)
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
            second_moment_mean=None if math.isnan(second_mean) else second_mean,
            second_moment_max=None if math.isnan(second_max) else second_max,
            tokens=step * self.tokens_per_step,
            curve_loss=curve,
        )
