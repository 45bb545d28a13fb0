"""The host's side of one run in training: its files, how far they are, and how it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from ablationlab.core.errors import RecordError
from ablationlab.data.batches import DataOrderHash, drawn_samples
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.records.folders import RunFolder
from ablationlab.records.metrics import checked_metrics
from ablationlab.records.plan import PlannedRun
from ablationlab.records.probes import read_probes, to_parquet
from ablationlab.records.run import Checkpoint, Divergence, Result, Start, Timing
from ablationlab.records.storage import replace
from ablationlab.training import checkpoints
from ablationlab.training.append_log import AppendLog
from ablationlab.training.metrics_log import MetricsLog
from ablationlab.training.perplexity import Totals, run_metrics

FINAL_METRICS = (
    "validation_loss",
    "perplexity",
    "bits_per_byte",
    "next_token_accuracy",
    "final_gradient_norm",
    "mean_embedding_norm",
)


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
        """Close the logs."""
        for log in (self.log, self.probe_log):
            if log is not None:
                log.close()

    def checkpoint(self, plan_hash: str, step: int, seconds: float, history: tuple[Start, ...]) -> Checkpoint:
        """The record of where the run stands; its logs are settled on disk first."""
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
    ) -> None:
        """Write result.json: *totals* are of the whole validation split, or None where no run of the stack lives."""
        if not self.folder.record.exists():
            raise RecordError(f"{self.folder.path} has gone while it was being trained; run again")
        saved = checkpoints.load(self.folder, checkpoints.steps_on_disk(self.folder)[-1])
        if totals is not None and self.divergence is None and not math.isfinite(float(totals.nll_R[slot])):
            # The last update broke it: no training step is left to notice.
            cause = f"validation loss is {float(totals.nll_R[slot])}"
            self.divergence = Divergence(step=last_step, cause=cause)
        steps = self.divergence.step if self.divergence else last_step
        budget = self.planned.budget
        measured: dict[str, float | None] = dict.fromkeys(FINAL_METRICS)
        if totals is not None and self.divergence is None:
            measured |= run_metrics(totals, slot, corpus.record.validation_bytes)
            measured["final_gradient_norm"] = self.last_norm
        if self.probe_log is not None:
            replace(self.folder.probe_table, to_parquet(self.planned.id, read_probes(self.folder)))
        seconds = saved.record.train_seconds
        Result(
            id=self.planned.id,
            status="diverged" if self.divergence else "finished",
            steps=steps,
            tokens=budget.tokens // budget.steps * steps,
            matmul_flops=budget.matmul_flops // budget.steps * steps,
            data_order_hash=saved.record.data_order_hash,
            divergence=self.divergence,
            metrics=checked_metrics(measured),
            checkpoint=checkpoints.path_of(self.folder, saved.record.step).name,
            weights_sha256=saved.record.files[checkpoints.WEIGHTS],
            history=history,  # with this start, which validates, even if it trained nothing
            fed=drawn_samples(
                corpus,
                self.planned.seed,
                steps=steps,
                batch=self.planned.training.batch,
                context=self.planned.model.context,
            ),
            timing=Timing(
                train_seconds=seconds,
                tokens_per_second=last_step * tokens_per_step / max(seconds, 1e-9),
                starts=len(saved.record.history),
            ),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        ).create(self.folder.result)
