"""Training one stack, from its start or its last checkpoint to its results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

from ablationlab.core.errors import OutOfMemory, PlanError
from ablationlab.core.processes import in_threads
from ablationlab.data.batches import DataOrderHash, curve_windows
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.model.device import Fetch, compute_dtype, observe, prepare
from ablationlab.model.weights import weight_digest
from ablationlab.records.environment import changes, current
from ablationlab.records.metrics import MEASURED_METRICS
from ablationlab.records.plan import PlannedRun
from ablationlab.records.run import Checkpoint, Start
from ablationlab.records.settings import TrainingConfig, divisors_of
from ablationlab.records.storage import ResultsFolder, RunFolder
from ablationlab.study.probes import expanded
from ablationlab.training import checkpoints
from ablationlab.training.checkpoints import MetricsLog
from ablationlab.training.probes.stack_probes import StackProbes
from ablationlab.training.progress import Progress, Reporter, Stopped
from ablationlab.training.run_state import (
    Chunk,
    MetricsWriter,
    ResumePoint,
    RunState,
    begin_record,
    data_order,
    layout_drift,
    resume_point,
)
from ablationlab.training.stack import Member, Stack

if TYPE_CHECKING:
    from ablationlab.training.distributed.ranks import Ranks
    from ablationlab.training.distributed.stack import DistributedStack
    from ablationlab.training.executors.job import Job

REPORT_SECONDS = 0.5
CHECKPOINT_SECONDS = 30.0
PARAMETERS_AT_ONCE = 5_000_000


class StackTrainer:
    """Drives one stack: steps, records, checkpoints, results.

    With *ranks*, several processes each drive their part of one run in step with the others; one of them writes.
    """

    def __init__(
        self,
        job: Job,
        stack_index: int,
        corpus: TokenizedCorpus,
        *,
        executor: str,
        ranks: Ranks | None = None,
        report: Callable[[Progress], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        plan, results, environment = job.plan, ResultsFolder(job.folder), current()
        self.plan, self.index, self.corpus = plan, stack_index, corpus
        self.should_stop = should_stop
        planned = [plan.run(run_id) for run_id in plan.stacks[stack_index]]
        sealed = plan.corpus_of(planned[0].variant)
        if (corpus.record.tokens_sha256, corpus.record.train_tokens) != (sealed.tokens_sha256, sealed.train_tokens):
            raise PlanError(f"corpus {sealed.name!r} is not the one that the plan was sealed with")
        self.study = plan.study
        self.model = planned[0].model
        self.training = planned[0].training
        self.steps = planned[0].budget.steps
        asked = plan.execution_of(planned[0])
        device = prepare(asked, self.study.execution.kernels, deterministic=self.study.execution.deterministic)
        members = [Member(run.id, run.seed, run.lr, run.model, run.seed_triple) for run in planned]
        dtype = compute_dtype(asked.precision)
        self.stack: Stack | DistributedStack
        if ranks is None:
            self.stack = Stack(
                members, plan.execution.stack_width, self.training, self.steps, corpus.train, device, dtype
            )
        else:
            from ablationlab.training.distributed.stack import DistributedStack

            self.stack = DistributedStack(
                members, self.study.execution, ranks, self.training, self.steps, corpus.train, dtype
            )
        self.validation = torch.from_numpy(corpus.validation).to(self.stack.device)
        self._curve_windows = curve_windows(corpus.record, self.model.context, self.study.evaluation.curve_windows)
        execution = observe(asked, len(self.stack.seeds))
        changed = changes(dict(asked), dict(execution))
        if changed and not job.accept_drift:
            listed = ", ".join(map(str, changed))
            raise PlanError(f"this is not what the plan was sealed for: {listed}; make a new plan with --out")
        execution = execution.over(self.stack.layout_on_devices)
        folders = [results.run(run.id) for run in planned]
        moved = layout_drift(plan, results, folders, execution, accept=job.accept_drift)
        drift = (*job.drift, *changed, *moved)

        def begin(slot: int) -> None:
            weights = self.stack.weights(slot)
            if self.stack.leads:
                digests = {name: weight_digest(value.numpy()) for name, value in weights.items()}
                found = {"executor": executor, "environment": environment, "drift": drift}
                begin_record(plan, planned[slot], folders[slot], digests, execution, **found)

        if self.stack.leads:
            for run in planned:  # threads that miss together would each compute it
                data_order(plan, run)
        self._for_each(begin, range(len(planned)))
        self.start, self.train_seconds = 0, 0.0
        self.history: tuple[Start, ...] = ()
        self._open(planned, folders)
        self.history += (Start.of(self.start, environment, execution, drift),)
        self.metrics = MetricsWriter(self.runs, self._tokens_per_step() // len(self.runs), self.probes)
        self.reporter = Reporter(
            report,
            self._living,
            stack=stack_index,
            start=self.start,
            steps=self.steps,
            runs=len(self.runs),
            tokens_per_step=self._tokens_per_step(),
        )
        self._saved_step = self.start
        self._drained_at = self._saved_at = time.monotonic()

    def _open(self, planned: list[PlannedRun], folders: list[RunFolder]) -> None:
        """Find the last checkpoint, restore the state from it, and open the run files there."""
        point = self.stack.share(
            lambda: resume_point(folders, self.plan.plan_hash, tensors=isinstance(self.stack, Stack)),
            ResumePoint.to_json,
            ResumePoint.from_json,
        )
        self.start, self.trained = point.step, point.trained
        shape = {"batch": self.training.batch, "context": self.model.context}
        self.runs: list[RunState] = []
        intervals = expanded(self.study.probes, (run.model for run in self.plan.runs))
        # Of several processes that hold the same the leader looks; the others wait for it at their next sum.
        self.probes = StackProbes(intervals if self.stack.leads else {}, self.stack, self.corpus, self.start)
        for slot, (run, folder) in enumerate(zip(planned, folders, strict=True)):
            saved = point.saved[slot] if point.saved else None
            record = saved.record if saved else None
            order = (
                DataOrderHash.start(self.corpus.record, **shape)
                if record is None
                else DataOrderHash(record.data_order_hash)
            )
            done = folder.done
            log = None if done or not self.stack.leads else MetricsLog(folder, record)
            probe_log = None if log is None else self.probes.open_log(folder, record)
            member = RunState(run, folder, order, done, log, probe_log)
            if saved is not None and record is not None:
                self.stack.resume(slot, folder, saved)
                member.divergence, member.last_norm = record.divergence, record.last_gradient_norm
                member.order_at_divergence = record.data_order_hash if record.divergence else None
                self.train_seconds = max(self.train_seconds, record.train_seconds)
                self.history = record.history
            self.runs.append(member)
        self.notes = point.notes

    def _for_each(self, work: Callable[[int], None], slots: Iterable[int]) -> None:
        """Have something done for each run: at once, unless copies of several would fill the host's memory, or several
        processes have to do it in the same order."""
        if isinstance(self.stack, Stack) and sum(self.stack.layout.sizes) <= PARAMETERS_AT_ONCE:
            in_threads(work, slots)
        else:
            for slot in slots:
                work(slot)

    def train(self) -> None:
        """Run to the end, or to a step boundary when asked to stop (raises `Stopped`)."""
        try:
            self._train()
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not no_room(error):
                raise
            execution = self.stack.layout_on_devices
            raise out_of_memory(error, self.training, width=len(self.stack.seeds), ranks=execution[1]) from error

    def _train(self) -> None:
        for note in self.notes:
            self.reporter.report(note=note, note_kind="notice")
        began = time.monotonic()
        step = self.start
        try:
            while step < self.steps and not self._all_diverged():
                stop, save = self.stack.agree(self.should_stop(), step > self.start and self._checkpoint_due(step))
                if stop or save:
                    self._checkpoint(step, began)
                if stop:
                    raise Stopped
                step = self._advance(step)
                if step == self._control_step:
                    self._keep_control(step, began)
            self._drain()
            if self._all_diverged():
                # Frozen runs do not change, so the last divergence is the true end, however late it was noticed.
                step = max(run.divergence.step for run in self.runs if run.divergence)
            if not self.trained:
                self._checkpoint(step, began, final=True)
            self._finish(step)
        finally:
            for run in self.runs:
                run.close()

    def _all_diverged(self) -> bool:
        return all(run.divergence is not None for run in self.runs)

    def _advance(self, done: int) -> int:
        """Hand the next steps to the stack, up to where the host has something to do; returns the last of them.

        On a GPU the numbers of one chunk are read while the device works on the next.
        """
        last = self._next_stop(done)
        steps = range(done + 1, last + 1)
        offsets = np.stack([self.stack.offsets(step) for step in steps])
        due = self.probes.due(last)
        self.stack.feed(done + 1, offsets)
        for step in steps:
            self.stack.advance(watch=step == last and bool(due))
        orders = []
        for step_offsets in offsets:
            self.probes.take(step_offsets)
            for slot, run in enumerate(self.runs):
                run.order.update(step_offsets[slot])
            orders.append(tuple(run.order.value for run in self.runs))
        if due:
            for note in self.probes.observe(last, due):
                self.reporter.report(last, note=note, note_kind="notice")
        every = self.study.evaluation.curve_every
        curve = self._curve() if every is not None and (last % every == 0 or last == self.steps) else None
        self.metrics.add(
            Chunk(steps, self.stack.learning_rates(steps), Fetch(torch.stack(self.stack.measured())), orders, curve)
        )
        if self.stack.reach > 1:
            self._drain(keep=1)
        elif time.monotonic() - self._drained_at > REPORT_SECONDS:
            self._drain()
        return last

    def _next_stop(self, done: int) -> int:
        """The CPU stops after every step; a GPU at the next checkpoint, curve point or probe, or at its reach."""
        if self.stack.reach == 1:
            return done + 1
        stops = [done + self.stack.reach, self.steps]
        stops += [step for step in range(done + 1, min(stops)) if step == self._control_step or self.probes.due(step)]
        for every in (self.study.execution.checkpoint_every, self.study.evaluation.curve_every):
            if isinstance(every, int):
                stops.append((done // every + 1) * every)
        return min(stops)

    def _checkpoint_due(self, step: int) -> bool:
        """At the steps that the study names, or when a crash would cost more than `CHECKPOINT_SECONDS` of work.

        Where checkpoints fall changes no bit of the outcome.
        """
        every = self.study.execution.checkpoint_every
        if every == "auto":
            return time.monotonic() - self._saved_at > CHECKPOINT_SECONDS
        return step % every == 0

    def _curve(self) -> Fetch:
        totals = self.stack.validate(self.validation, self._curve_windows)
        return Fetch(totals.nll_R / totals.tokens)

    def _drain(self, keep: int = 0) -> None:
        """Bring pending numbers into the records, all but the newest *keep* chunks, and report."""
        self._drained_at = time.monotonic()
        latest = self.metrics.drain(keep)
        if latest is not None:
            self.reporter.report(latest.step, latest.losses, latest.norms, warnings=latest.warnings)

    def _living(self) -> list[int]:
        return [slot for slot, run in enumerate(self.runs) if run.divergence is None]

    def _tokens_per_step(self) -> int:
        return self.training.batch * self.model.context * len(self.runs)

    def _checkpoint(self, step: int, began: float, *, final: bool = False) -> None:
        """Save every member at the same step; the one before is kept, so that a damaged one can be skipped."""
        self._drain()
        if not final and (step == self._saved_step or self._all_diverged()):
            return
        self._saved_step, self._saved_at = step, time.monotonic()

        def save(slot: int) -> None:
            run = self.runs[slot]
            record = None if run.log is None else self._record_of(run, step, began)
            self.stack.save(slot, run.folder, record, final=final)

        self._for_each(save, [slot for slot, run in enumerate(self.runs) if not run.done])
        for run in self.runs:
            if run.log is not None:
                checkpoints.drop(run.folder, checkpoints.steps_on_disk(run.folder)[:-2])

    def _record_of(self, run: RunState, step: int, began: float) -> Checkpoint:
        return run.checkpoint(self.plan.plan_hash, step, self.train_seconds + time.monotonic() - began, self.history)

    @property
    def _control_step(self) -> int | None:
        gate = any(run.planned.role == "gate" for run in self.runs)
        return checkpoints.halfway_step(self.steps) if gate else None

    def _keep_control(self, step: int, began: float) -> None:
        """Keep the weights of the gate's runs at this step, before any later checkpoint could make it unreachable."""
        self._drain()
        for slot, run in enumerate(self.runs):
            if not run.done and run.divergence is None and run.planned.role == "gate":
                weights = self.stack.weights(slot)
                if run.log is not None:
                    checkpoints.save_halfway(run.folder, self._record_of(run, step, began), weights)

    def _finish(self, last_step: int) -> None:
        """Validate over the whole split and write the results; then the older checkpoints may go."""
        totals = None
        if not self._all_diverged():
            self.reporter.report(last_step, note="validating")
            totals = self.stack.validate(self.validation)

        def finish(slot: int) -> None:
            self.runs[slot].finish(
                totals,
                slot,
                last_step,
                corpus=self.corpus,
                tokens_per_step=self._tokens_per_step(),
                history=self.history,
                rules=self.plan.study.stability,
            )

        ending = [slot for slot, run in enumerate(self.runs) if run.log is not None]
        if len(MEASURED_METRICS):  # code of the study, which need not bear threads
            for slot in ending:
                finish(slot)
        else:
            self._for_each(finish, ending)
        for run in self.runs:
            if self.stack.leads:
                checkpoints.drop(run.folder, checkpoints.steps_on_disk(run.folder)[:-1])


# The words of torch's allocator on the CPU, which raises a plain RuntimeError.
_CPU_WORDS = "DefaultCPUAllocator"


def no_room(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a GPU or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _CPU_WORDS in str(error)


def out_of_memory(error: BaseException, training: TrainingConfig, *, width: int = 1, ranks: int = 1) -> OutOfMemory:
    """The error to raise instead: it names the micro-batch to set, and what else would help."""
    share = training.batch // ranks
    now = min(training.micro_batch or share, share)
    smaller = [size for size in divisors_of(share) if size <= now // 2]
    where = f"each of {ranks} ranks" if ranks > 1 else f"a stack of {width} runs" if width > 1 else "one device"
    why = (str(error).splitlines() or ["the host has none left"])[0]  # Python's own MemoryError has no words
    text = f"out of memory: {now} sequences of a forward pass do not fit on {where} ({why}). "
    if smaller:
        text += f"Set training.micro_batch = {smaller[-1]} in the study (now {training.micro_batch or 'all at once'})"
    else:
        text += "A single sequence does not fit either"
    other = []
    if width > 1:
        other.append("a smaller execution.stack_width")
    other += ["execution.activation_checkpointing = true with execution.parallel = 'fsdp' (--executor torchrun)"]
    text += f"; or use {', or '.join(other)}. Such a setting applies to all arms, so it needs a new plan: use --out"
    return OutOfMemory(text)
