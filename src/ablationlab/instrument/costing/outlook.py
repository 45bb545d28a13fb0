"""The cost of a study on named hardware: GPU-hours, wall time, memory by layout, disk and money. Nothing is sealed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import cast

from ablationlab.core.errors import PlanError
from ablationlab.core.format import count
from ablationlab.core.grouping import grouped
from ablationlab.data.corpus import load_corpus
from ablationlab.data.tokenizers import TOKENIZERS, CharTokenizer
from ablationlab.instrument.costing.disk import Spread, study_bytes
from ablationlab.instrument.costing.estimate import judges
from ablationlab.instrument.costing.hardware import START_SECONDS, Accelerator, Hardware
from ablationlab.instrument.costing.layouts import Layout, Placed, layouts, place
from ablationlab.model.machine import Precision
from ablationlab.model.parameters import parameter_count
from ablationlab.records.plan import Corpus, Declaration, PlannedRun
from ablationlab.records.settings import DEFAULT_REGIME, DataConfig, ModelConfig, Study, TrainingConfig, steps_of
from ablationlab.study.plan import (
    batch_refusal,
    best_stack_width,
    optimizer_refusal,
    probes_refusal,
    stackable,
    study_cells,
)

#: Two layouts' times count as different if they differ by more than this share, as the network's part is assumed.
TELLING = 0.05


@dataclass(frozen=True)
class RunGroup:
    """Runs of one shape, which cost the same, such as those of a regime."""

    runs: tuple[PlannedRun, ...]
    model: ModelConfig
    training: TrainingConfig

    @property
    def steps(self) -> int:
        return self.runs[0].budget.steps


@dataclass(frozen=True)
class LayoutCost:
    """The whole study in one layout: how its largest group is placed, and what all groups cost."""

    placed: Placed
    tokens_per_second: float  # of one GPU, over its runs
    gpu_hours: float
    seed_hours: float  # GPU-hours of one more seed of every arm, at every rate of a sweep that it judges
    wall_hours: float
    peak_disk: float  # with the checkpoints of all runs in training at the same time
    change: str  # settings that this layout needs and the study does not have; empty if it has them


@dataclass(frozen=True)
class Impossible:
    """A number of GPUs that a run cannot use, with the executor's reason for refusing it."""

    gpus: int
    why: str
    kinds: str = "ddp, fsdp"


@dataclass(frozen=True)
class Outlook:
    study: Study
    hardware: Hardware
    corpus: DeclaredCorpus
    cells: tuple[PlannedRun, ...]
    groups: tuple[RunGroup, ...]
    rows: tuple[LayoutCost, ...]
    impossible: tuple[Impossible, ...]
    validation_share: float  # of the time of training
    disk: float
    data_bytes: float

    @property
    def precisions(self) -> list[Precision]:
        """What the runs would train in."""
        return list(dict.fromkeys(cast("Precision", group.training.precision) for group in self.groups))

    @property
    def written(self) -> LayoutCost | None:
        """The study as written: distributed as ``execution.parallel`` says, if it says so and that fits, else on one GPU.

        The study does not say how many GPUs share a run: of those numbers, the one that ends first.
        """
        fitting = [row for row in self.rows if row.placed.fits and not row.change]
        spread = [row for row in fitting if row.placed.layout.kind != "stack"]
        return _first(spread or fitting)

    @property
    def sooner(self) -> LayoutCost | None:
        """Another layout that fits and ends earlier by more than `TELLING`; if the study as written does not fit, any."""
        fitting = _first([row for row in self.rows if row.placed.fits])
        written = self.written
        if written is None or fitting is None:
            return fitting
        return fitting if fitting.wall_hours < (1 - TELLING) * written.wall_hours else None


def _first(rows: list[LayoutCost]) -> LayoutCost | None:
    """The row that ends first; of those within `TELLING` of it, the one that changes least, and then the cheapest."""
    soonest = min((row.wall_hours for row in rows), default=0.0)
    near = [row for row in rows if row.wall_hours * (1 - TELLING) <= soonest]
    return min(near, key=lambda row: (row.change.count("="), row.gpu_hours), default=None)


def outlook(study: Study, hardware: Hardware) -> Outlook:
    """Resolve the study as a plan would, with every check between its arms, and estimate every layout."""
    corpus = declared_corpus(study)
    cells = study_cells(study, corpus, partial(_precision, hardware.kind))
    every = [*cells.own, *cells.swept]
    groups = _groups(every, cells.declared)
    largest = max(groups, key=lambda group: parameter_count(group.model))
    width = best_stack_width(study, cells, hardware.kind.memory)
    candidates = layouts(hardware, width)
    numbers = dict.fromkeys(layout.gpus for layout in candidates)
    refused = {gpus: batch_refusal(study, gpus) for gpus in numbers}
    impossible = [Impossible(gpus, why) for gpus, why in refused.items() if why is not None]
    unseen = probes_refusal(study, "fsdp") or optimizer_refusal(study, "fsdp")
    if unseen is not None:
        impossible += [Impossible(gpus, unseen, "fsdp") for gpus in numbers if gpus > 1 and refused[gpus] is None]
    rows = [
        _row(layout, study, groups, largest, hardware, corpus, every, _change(layout, study, width))
        for layout in candidates
        if refused[layout.gpus] is None and not (layout.kind == "fsdp" and unseen is not None)
    ]
    size = 2 if corpus.record.vocabulary <= 65536 else 4
    return Outlook(
        study=study,
        hardware=hardware,
        corpus=corpus,
        cells=tuple(every),
        groups=groups,
        rows=tuple(rows),
        impossible=tuple(impossible),
        validation_share=_validation(study, largest, corpus),
        disk=study_bytes(study, every, 1).end,
        data_bytes=float(size) * (corpus.record.train_tokens + corpus.record.validation_tokens),
    )


def _change(layout: Layout, study: Study, width: int) -> str:
    """Settings to change in the study for this layout. The local and Ray executors train one stack per GPU anyway."""
    execution = study.execution
    if layout.kind == "stack":
        return "" if layout.runs == width else f"execution.stack_width = {layout.runs}"
    changes = [] if execution.parallel == layout.kind else [f"execution.parallel = '{layout.kind}'"]
    if execution.activation_checkpointing != layout.checkpointing:
        changes.append(f"execution.activation_checkpointing = {str(layout.checkpointing).lower()}")
    if execution.stack_width not in ("auto", 1):
        changes.append("execution.stack_width = 1")
    return ", ".join(changes)


def _precision(gpu: Accelerator, asked: str) -> Precision:
    """What that GPU would train in, as `choose_precision` decides it there."""
    if asked == "auto":
        return "bf16" if gpu.has_bf16 else "fp32"
    if asked == "bf16" and not gpu.has_bf16:
        raise PlanError(f"training.precision = 'bf16': {gpu.title} has no bf16; use 'fp32' or 'auto'")
    return cast("Precision", asked)


def _groups(runs: list[PlannedRun], declared: Mapping[str, Declaration]) -> tuple[RunGroup, ...]:
    groups = grouped((stackable(run, declared), run) for run in runs)
    return tuple(RunGroup(tuple(members), members[0].model, members[0].training) for members in groups.values())


def _validation(study: Study, group: RunGroup, corpus: DeclaredCorpus) -> float:
    """Tokens of validation in units of training tokens: a forward pass alone is a third of a step."""
    context, held_out = group.model.context, corpus.record.validation_tokens
    tokens = float(held_out)
    if study.evaluation.curve_every:
        tokens += group.steps / study.evaluation.curve_every * min(study.evaluation.curve_windows * context, held_out)
    return tokens / 3 / group.runs[0].budget.tokens


def _row(
    layout: Layout,
    study: Study,
    groups: tuple[RunGroup, ...],
    largest: RunGroup,
    hardware: Hardware,
    corpus: DeclaredCorpus,
    runs: list[PlannedRun],
    change: str,
) -> LayoutCost:
    shown: Placed | None = None
    gpu_seconds = seed_seconds = wall = 0.0
    for group in groups:
        precision = _precision(hardware.kind, str(group.training.precision))
        batch = group.training.batch
        micro_batch, training = group.training.micro_batch, group.training
        at = place(layout, group.model, batch, precision, hardware.kind, micro_batch=micro_batch, training=training)
        if group is largest:
            shown = at
        seconds = at.seconds * group.steps * (1 + _validation(study, group, corpus)) + START_SECONDS
        stacks = ceil(len(group.runs) / layout.runs)
        gpu_seconds += seconds * layout.gpus * stacks
        own = sum(run.role == "compared" or judges(study, run) for run in group.runs) / len(study.seeds)
        seed_seconds += seconds * layout.gpus * own / layout.runs
        wall += seconds * ceil(stacks / max(1, hardware.count // layout.gpus))
    assert shown is not None
    tokens = layout.runs * largest.training.batch * largest.model.context / layout.gpus / shown.seconds
    spread = Spread("none" if layout.kind == "stack" else layout.kind, layout.gpus)
    at_once = max(1, hardware.count // layout.gpus) * layout.runs
    most = study_bytes(study, runs, at_once, spread).most
    return LayoutCost(shown, tokens, gpu_seconds / 3600, seed_seconds / 3600, wall / 3600, most, change)


@dataclass(frozen=True)
class DeclaredCorpus:
    """The record of a corpus as the study declares it, and where its size comes from. Nothing is tokenized."""

    record: Corpus
    basis: str


def declared_corpus(study: Study) -> DeclaredCorpus:
    """The record of the study's text, which need not be on this machine.

    A character vocabulary depends on the text, so the text is read (such texts are small). For other tokenizers the size
    follows from the study's budget: the training tokens of the longest run, and the held-out share in addition.
    """
    tokenizer, own = TOKENIZERS[study.data.tokenizer], study.in_regime(DEFAULT_REGIME)[0]
    if tokenizer is CharTokenizer and own.vocabulary is None:
        counted = load_corpus(study.data).record
        return DeclaredCorpus(counted, f"{count(counted.train_tokens)} training tokens, counted")
    vocabulary = own.vocabulary or tokenizer.of("").vocabulary
    longest = max(
        steps_of(model, training) * training.batch * model.context
        for model, training in (study.in_regime(name) for name in study.regime_names())
    )
    held_out = max(int(longest * study.data.validation / (1 - study.data.validation)), own.context + 1)
    record = Corpus(
        name=_name(study.data),
        source="declared",
        sha256="",
        tokenizer=study.data.tokenizer,
        vocabulary=vocabulary,
        tokens_sha256="",
        train_tokens=max(longest, own.context + 1),
        validation_tokens=held_out,
        validation_bytes=0,
    )
    return DeclaredCorpus(
        record, f"{count(longest)} training tokens assumed, the tokens of the longest run; the text was not read"
    )


def _name(data: DataConfig) -> str:
    return data.corpus.rstrip("/").rpartition("/")[2] or data.corpus
