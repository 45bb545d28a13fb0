"""Tables for the terminal: plans, status, variants, presets, corpora, a first look at results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from ablationlab.data.sources import SOURCES, cached_path, is_cached
from ablationlab.instrument.costing.estimate import Estimate
from ablationlab.model.parameters import matmul_flops_per_token, parameter_count
from ablationlab.records.corpus import Corpus
from ablationlab.records.metrics import METRICS
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.results import Run
from ablationlab.records.run import Result
from ablationlab.records.settings import PRESETS, ModelConfig
from ablationlab.report.terminal.data import shared_text
from ablationlab.study.batch_split import possible
from ablationlab.study.variants import VARIANTS


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> Table:
    """A plain table; cells are text, never markup. Columns named in *numbers* are right-aligned."""
    made = Table(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for column in columns:
        made.add_column(Text(column), justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))
    return made


def big(number: float, unit: str = "") -> str:
    """A number with a metric prefix: 1.6 M, 95 T."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}".strip()


def duration(seconds: float) -> str:
    """A time in the unit a person would use."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plan_tables(plan: Plan) -> list[Table]:
    """The arms of a plan, and its runs."""
    arms: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan.runs:
        arms.setdefault((run.regime, run.variant), []).append(run)
    numbers = ["runs", "parameters", "steps", "tokens a run", "FLOPs a run", "lr"]
    rows = [
        (
            regime,
            variant + (" (baseline)" if variant == plan.study.baseline else ""),
            len(runs),
            f"{runs[0].budget.parameters:,}",
            f"{runs[0].budget.steps:,}",
            f"{runs[0].budget.tokens:,}",
            big(runs[0].budget.matmul_flops),
            _rates(runs),
        )
        for (regime, variant), runs in sorted(arms.items(), key=lambda arm: arm[1][0].regime)
    ]
    columns = ["regime", "variant", "runs", "parameters", "steps", "tokens a run", "FLOPs a run", "lr"]
    each = [(run.id, run.seed, run.stack, run.slot) for run in plan.runs]
    return [
        table("Arms", columns, rows, numbers),
        table("Runs", ["id", "seed", "stack", "slot"], each, ["seed", "stack", "slot"]),
    ]


def _rates(runs: Sequence[PlannedRun]) -> str:
    rates = sorted({run.lr for run in runs})
    return f"{rates[0]:g}" if len(rates) == 1 else f"{len(rates)} from {rates[0]:g} to {rates[-1]:g}"


def precisions(plan: Plan) -> str:
    """The precision of the study, and of every regime that has another."""
    others = dict.fromkeys(
        f"{run.training.precision} in {run.regime}"
        for run in plan.runs
        if run.training.precision != plan.execution.precision
    )
    return ", ".join([plan.execution.precision, *others])


def _what(corpus: Corpus) -> str:
    """Its name; of a mixture also what is mixed, by weight."""
    return f"{corpus.name} ({corpus.source})" if len(corpus.components) > 1 else corpus.name


def plan_summary(plan: Plan, cost: Estimate, workers: int) -> str:
    """The plan in a few sentences."""
    tokens = sum(run.budget.tokens for run in plan.runs)
    flops = sum(run.budget.matmul_flops for run in plan.runs)
    how = plan.execution
    return (
        f"{len(plan.runs)} runs in {len(plan.stacks)} stacks of width {how.stack_width}; "
        f"{big(tokens)} tokens, {big(flops, 'FLOP')} of matrix products in all.\n"
        f"{how.device_name}, {precisions(plan)}, {how.threads} thread(s) a process, {workers} process(es).\n"
        f"Roughly {duration(cost.seconds)} ({cost.basis}); disk {big(cost.disk_bytes, 'B')} at the end, "
        f"{big(cost.peak_disk_bytes, 'B')} at most.{_not_in_it(plan)}\n{_under_torchrun(plan)}"
        f"Corpus {_what(plan.corpus)}: {plan.corpus.train_tokens:,} training and {plan.corpus.validation_tokens:,} "
        f"validation tokens, vocabulary {plan.corpus.vocabulary}.\n{shared_text(plan.corpus)}"
        f"Sealed: plan {plan.plan_hash[:12]}, study {plan.study_hash[:12]}, criteria {plan.criteria_hash[:12]}."
    )


def _under_torchrun(plan: Plan) -> str:
    """For a study that torchrun may train: with how many processes."""
    study = plan.study
    if study.execution.parallel is None:
        return ""
    counts = ", ".join(map(str, possible(study)))
    return f"With --executor torchrun: {study.execution.parallel}, --nproc {counts}; the time above is of whole runs here.\n"


def _not_in_it(plan: Plan) -> str:
    """What the estimate leaves out, of what this study does."""
    left = ["probes"] * bool(plan.study.probes) + ["tasks"] * bool(plan.study.evaluation.tasks)
    return f" Time for {' and '.join(left)} is not in it." if left else ""


def status_table(rows: Sequence[Run]) -> Table:
    """Where every run stands."""
    columns = ["run", "state", "step", "of", "validation loss", "perplexity"]
    cells = [
        (
            s.id,
            s.state,
            f"{s.step:,}",
            f"{s.steps:,}",
            _number(s.result, "validation_loss"),
            _number(s.result, "perplexity"),
        )
        for s in rows
    ]
    return table("Runs", columns, cells, ["step", "of", "validation loss", "perplexity"])


def _number(result: Result | None, metric: str) -> str:
    value = result.metrics.get(metric) if result is not None else None
    return "" if value is None else f"{value:.4f}" if abs(value) < 100_000 else f"{value:.4g}"


def results_table(plan: Plan, rows: Sequence[Run]) -> Table:
    """Mean and spread per arm of the main metrics: description, not inference."""
    names = (
        "validation_loss",
        "perplexity",
        "next_token_accuracy",
        "final_gradient_norm",
        "mean_embedding_norm",
    )
    by_id = {run.id: run for run in plan.runs}
    swept = len({(run.regime, run.variant, run.lr) for run in plan.runs}) > len(
        {(run.regime, run.variant) for run in plan.runs}
    )
    arms: dict[tuple[str, str, float], list[Run]] = {}
    for row in sorted(rows, key=lambda row: by_id[row.id].lr) if swept else rows:
        run = by_id[row.id]
        arms.setdefault((run.regime, run.variant, run.lr), []).append(row)
    if swept:
        places = list(dict.fromkeys((run.regime, run.variant) for run in plan.runs))
        arms = dict(sorted(arms.items(), key=lambda arm: places.index(arm[0][:2])))
    cells = []
    for (regime, variant, lr), members in arms.items():
        finished = [m.result for m in members if m.result is not None and m.result.status == "finished"]
        diverged = sum(m.state == "diverged" for m in members)
        values = [_spread([r.metrics[name] for r in finished if r.metrics.get(name) is not None]) for name in names]
        rate = (f"{lr:g}",) if swept else ()
        cells.append((regime, variant, *rate, len(finished), diverged, *values))
    columns = ["regime", "variant", *(["lr"] if swept else []), "finished", "diverged"]
    columns += [n.replace("_", " ") for n in names]
    return table("Mean ± standard deviation over seeds (a description, not yet inference)", columns, cells, columns[2:])


def _spread(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "-"
    mean = statistics.fmean(numbers)
    style = ".4f" if abs(mean) < 10 else ".3f" if abs(mean) < 100_000 else ".3g"
    spread = statistics.stdev(numbers) if len(numbers) > 1 else math.nan
    return f"{mean:{style}}" + ("" if math.isnan(spread) else f" ± {spread:{style}}")


def variants_table() -> Table:
    """Every variant with its formula."""
    rows = [(v.name, v.declares.formula, v.declares.meaning) for _, v in VARIANTS.items()]
    return table("Variants: what enters block 1", ["name", "formula", "meaning"], rows)


def presets_table() -> Table:
    """Every preset with its true parameter count."""
    rows = []
    for name, preset in PRESETS.items():
        model = ModelConfig.model_validate({"preset": name, "vocabulary": preset.shape.get("vocabulary", 65)})
        vocabulary = f"{model.vocabulary:,}" if "vocabulary" in preset.shape else "from the text (65 counted)"
        flops = big(matmul_flops_per_token(model))
        cells = (name, model.layers, model.width, model.heads, model.context, vocabulary)
        rows.append((*cells, f"{parameter_count(model):,}", flops, preset.meaning))
    columns = [
        "name",
        "layers",
        "width",
        "heads",
        "context",
        "vocabulary",
        "parameters",
        "FLOPs a token",
        "meaning",
    ]
    return table("Presets", columns, rows, columns[1:8])


def metrics_table() -> Table:
    """Every metric that records can hold."""
    rows = [(m.name, m.unit, m.direction or "-", m.level, m.meaning) for _, m in METRICS.items()]
    return table("Metrics", ["name", "unit", "better", "level", "meaning"], rows)


def corpora_table() -> Table:
    """Every named corpus and whether it is here."""
    rows = [
        (s.name, f"{s.size:,}", str(cached_path(s)) if is_cached(s) else "not fetched", s.meaning)
        for _, s in SOURCES.items()
    ]
    return table("Corpora", ["name", "bytes", "cached at", "meaning"], rows, ["bytes"])
