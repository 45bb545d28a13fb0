"""What a terminal shows of a study before and while it runs: plan, status, first results, text that corpora share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from ablationlab.core.format import (
    amount,
    byte_size,
    count,
    duration,
    mean_sd,
    number,
    percent,
    plain,
    setting,
)
from ablationlab.core.grouping import grouped
from ablationlab.records.metrics import metric_name
from ablationlab.records.plan import Corpus, Plan, PlannedRun
from ablationlab.records.results import Run
from ablationlab.records.settings import flattened
from ablationlab.report.naming import main_metrics
from ablationlab.report.slots import Slot, Statement
from ablationlab.report.table import Table

if TYPE_CHECKING:
    from ablationlab.instrument.costing.estimate import Estimate


def plan_tables(plan: Plan) -> list[RenderableType]:
    """The arms of a plan, and whose runs it reuses; `status` lists its runs."""
    arms = _own_trainer_table(plan) if plan.study.trainer is not None else planned_arms(plan)
    return [arms.terminal(), *_reused(plan)]


def _reused(plan: Plan) -> list[RenderableType]:
    """Where runs come from that are not trained here, and how many studies rest on them."""
    rows = [
        (each.study, each.created[:10], each.plan_hash[:12], len(each.files), each.studies, "exploratory")
        for each in plan.reused
    ]
    heads = ["study", "sealed", "plan", "runs", "studies on them", "answers"]
    return [Table.simple("Reused baseline runs", heads, rows, heads[3:5]).terminal()] if rows else []


def planned_arms(plan: Plan) -> Table:
    """The arms of a plan: how many runs, and what one costs."""
    arms: dict[tuple[str, str, str], list[PlannedRun]] = {}
    for run in plan.runs:
        kind = f" ({run.role})" if run.role in ("gate", "noise") else ""
        arms.setdefault((run.regime, run.variant, kind), []).append(run)
    rows = [
        (
            regime,
            variant + (kind or _marked(plan, variant)),
            len(runs),
            count(runs[0].budget.parameters),
            count(runs[0].budget.steps),
            count(runs[0].budget.tokens),
            amount(runs[0].budget.matmul_flops),
            _rates(runs),
        )
        for (regime, variant, kind), runs in sorted(arms.items(), key=lambda arm: arm[1][0].regime)
    ]
    heads = ["regime", "variant", "runs", "parameters", "steps", "tokens", "FLOPs", "learning rate"]
    return _regimes(Table.simple("Arms, per run", heads, rows, heads[2:]), plan)


def _marked(plan: Plan, variant: str) -> str:
    table = plan.study.tables.get(variant)
    if variant == plan.study.baseline:
        return " (baseline)"
    return " (A/A)" if table is not None and table.empty else ""


def _regimes(arms: Table, plan: Plan) -> Table:
    """A table of arms, without the column of regimes where there is one."""
    return arms if len({run.regime for run in plan.runs}) > 1 else arms.without("regime")


def _own_trainer_table(plan: Plan) -> Table:
    """The same of a study with its own trainer: what each arm writes, for nothing else of it is known here."""
    arms = grouped(((run.regime, run.variant), run) for run in plan.runs)
    rows = [
        (
            regime,
            variant + _marked(plan, variant),
            len(runs),
            ", ".join(f"{key} = {flattened(runs[0].settings)[key]}" for key in plan.variants[variant].settings),
        )
        for (regime, variant), runs in arms.items()
    ]
    return _regimes(Table.simple("Arms", ["regime", "variant", "runs", "changes"], rows, ["runs"]), plan)


def _rates(runs: Sequence[PlannedRun]) -> str:
    rates = sorted({run.lr for run in runs})
    if len(rates) == 1:
        return setting(rates[0])
    return f"{len(rates)} from {setting(rates[0])} to {setting(rates[-1])}"


def precisions(plan: Plan) -> str:
    """The precision of the study, and of every regime that has another."""
    if plan.study.trainer is not None:
        return "precision as the trainer sets it"
    others = dict.fromkeys(
        f"{run.training.precision} in {run.regime}"
        for run in plan.runs
        if run.training.precision != plan.execution.precision
    )
    bits = [] if plan.study.execution.deterministic else ["not the same bits twice (deterministic = false)"]
    return ", ".join([plan.execution.precision, *others, *bits])


def _what(corpus: Corpus) -> str:
    """Its name; of a mixture also what is mixed, by weight."""
    return f"{corpus.name} ({corpus.source})" if len(corpus.components) > 1 else corpus.name


def plan_facts(
    plan: Plan, cost: Estimate | None, workers: int | None, assumed: str
) -> dict[str, tuple[Statement, ...]]:
    """What a plan is and takes, as clauses by the name of their line; *cost* is not known of a study's own trainer."""
    how, study, most = plan.execution, plan.study, max(map(len, plan.stacks), default=1)
    trained = [run for run in plan.runs if plan.reused_from(run.id) is None]
    runs = [Statement("plan.runs", {"n": Slot(count(len(trained)))})]
    place = [Statement("plan.device", {"name": Slot(how.device_name), "precision": Slot(precisions(plan))})]
    if workers is not None:
        place.append(
            Statement("plan.processes", {"workers": Slot(count(workers)), "threads": Slot(count(how.threads))})
        )
    takes: list[Statement] = []
    data: list[Statement] = []
    if study.trainer is not None:
        runs.append(Statement("plan.trainer", {"title": Slot(study.trainer.name or study.trainer.title)}))
        runs.append(Statement("plan.asked", {"metrics": Slot(", ".join(study.trainer.metrics))}))
    else:
        if most > 1:
            runs.append(
                Statement(
                    "plan.stacks", {"n": Slot(count(len({run.stack for run in trained}))), "most": Slot(count(most))}
                )
            )
        tokens = sum(run.budget.tokens for run in trained)
        flops = sum(run.budget.matmul_flops for run in trained)
        runs.append(Statement("plan.tokens", {"tokens": Slot(amount(tokens)), "flops": Slot(amount(flops, "FLOP"))}))
        corpus = plan.corpus
        sizes = {"train": Slot(count(corpus.train_tokens)), "validation": Slot(count(corpus.validation_tokens))}
        data.append(Statement("plan.corpus", {"name": Slot(_what(corpus)), **sizes}))
        data.append(Statement("plan.vocabulary", {"n": Slot(count(corpus.vocabulary))}))
    if cost is not None:
        takes.append(Statement("plan.time", {"time": Slot(time_needed(cost)), "basis": Slot(cost.basis)}))
        sizes = {"end": Slot(byte_size(cost.disk_bytes)), "peak": Slot(byte_size(cost.peak_disk_bytes))}
        takes.append(Statement("plan.disk", sizes))
        takes += [Statement("plan.not-counted", {"what": Slot(what)}) for what in _not_counted(plan)]
    if study.execution.parallel is not None:
        from ablationlab.study.plan import possible_processes

        counts = Slot(", ".join(map(str, possible_processes(study))))
        takes.append(Statement("plan.torchrun", {"layout": Slot(study.execution.parallel), "counts": counts}))
    hashes = {"plan": plan.plan_hash, "study": plan.study_hash, "criteria": plan.criteria_hash}
    sealed = [
        Statement("plan.sealed", {name: Slot(value[:12], f"plan.lock#/{name}_hash") for name, value in hashes.items()})
    ]
    if plan.files:
        sealed.append(Statement("plan.files", {"names": Slot(", ".join(plan.files))}))
    lines = {
        "runs": runs,
        "on": place,
        "takes": takes,
        "data": data,
        "assumed": [Statement("plan.assumed", {"settings": Slot(assumed)})] if assumed else [],
        "sealed": sealed,
    }
    return {name: tuple(clauses) for name, clauses in lines.items()}


def time_needed(cost: Estimate) -> str:
    """How long a study takes, to train and to score."""
    training, scoring = duration(cost.training_seconds), duration(cost.scoring_seconds)
    return f"{training} to train and {scoring} to score" if cost.scoring_seconds else f"{training} to train"


def _not_counted(plan: Plan) -> list[str]:
    """What the estimate leaves out, of what this study does."""
    unknown = bool(plan.study.evaluation.tasks) and plan.study.evaluation.items is None  # without their number, no time
    return ["probes"] * bool(plan.study.probes) + ["tasks"] * unknown


def status_table(plan: Plan, runs: Sequence[Run]) -> RenderableType:
    """The state of every run, and the two metrics that matter most."""
    metrics = main_metrics(runs, plan)[:2]
    heads = ["run", "state", "step", "of", *map(metric_name, metrics)]
    rows = [
        (
            *(run.id, run.state, count(run.step), count(run.steps)),
            *("" if run.metric(name) is None else number(run.metric(name), 5) for name in metrics),
        )
        for run in runs
    ]
    return Table.simple("Runs", heads, rows, heads[2:]).terminal()


def failures_view(runs: Sequence[Run]) -> list[RenderableType]:
    """Why runs of the study's own trainer failed, one line per run."""
    return [Text(f"{run.id}: {run.failure.error}") for run in runs if run.state == "failed" and run.failure is not None]


def results_table(plan: Plan, rows: Sequence[Run]) -> RenderableType:
    """Mean and spread per arm of the main metrics: description, not inference."""
    names = main_metrics(rows, plan)
    by_id = {run.id: run for run in plan.runs}
    swept = plan.study.sweep is not None
    rows = [row for row in rows if row.planned.role not in ("gate", "noise")]
    arms: dict[tuple[str, str, float], list[Run]] = {}
    for row in sorted(rows, key=lambda row: by_id[row.id].lr) if swept else rows:
        run = by_id[row.id]
        arms.setdefault((run.regime, run.variant, run.lr if swept else 0.0), []).append(row)
    if swept:
        places = list(dict.fromkeys((run.regime, run.variant) for run in plan.runs))
        arms = dict(sorted(arms.items(), key=lambda arm: places.index(arm[0][:2])))
    cells = []
    for (regime, variant, lr), members in arms.items():
        finished = [m.result for m in members if m.result is not None and m.result.status == "finished"]
        diverged = sum(m.state == "diverged" for m in members)
        values = [_spread([result.metrics.get(name) for result in finished]) for name in names]
        rate = (setting(lr),) if swept else ()
        cells.append((regime, variant, *rate, len(finished), diverged, *values))
    heads = ["regime", "variant", *(["lr"] if swept else []), "finished", "diverged", *map(metric_name, names)]
    title = "Mean ± standard deviation over seeds (a description, not yet inference)"
    table = Table.simple(title, heads, cells, heads[2:])
    return (table if len({cell[0] for cell in cells}) > 1 else table.without("regime")).terminal()


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    mean = statistics.fmean(known) if known else None
    return mean_sd(mean, statistics.stdev(known) if len(known) > 1 else None)


def shared_text(corpus: Corpus) -> str:
    """A line for a mixture: what its components have in common; nothing for other texts."""
    looked = [(part, part.shared) for part in corpus.components if part.shared is not None]
    if not looked:
        return ""
    leaked, repeated, tokens = (
        sum(getattr(shared, field) for _, shared in looked) for field in ("leaked", "repeated", "tokens")
    )
    removed = corpus.overlap == "remove-from-training"
    what = f"{'left out of' if removed else 'kept in'} training" if tokens else "nothing to leave out of training"
    seen = ", ".join(
        f"{percent(shared.seen_without if removed else shared.seen, 2)} of {part.name}'s" for part, shared in looked
    )
    return plain(
        f"Shared text: {count(leaked)} training documents that are held out elsewhere, {count(repeated)} that a smaller "
        f"component has too ({count(tokens)} tokens): {what}. Held-out words seen in training, in runs of 13: {seen}.\n"
    )


def overlap_table(corpus: Corpus) -> RenderableType:
    """Each component: its training documents that stand elsewhere too, and how much of its held-out text was seen."""
    names = ("documents", "leaked: exact", "near", "contained", "repeated: exact", "near", "tokens", "seen", "after")
    rows = []
    for part in corpus.components:
        if (shared := part.shared) is not None:
            counts = (
                *(part.documents, shared.leaked_exact, shared.leaked_near, shared.leaked_contained),
                *(shared.repeated_exact, shared.repeated_near, shared.tokens),
            )
            shares = (percent(shared.seen, 3), percent(shared.seen_without, 3))
            rows.append((part.name, *map(count, counts), *shares))
    return Table.simple("Shared text", ["component", *names], rows, names).terminal()
