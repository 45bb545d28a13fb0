"""What was registered, and every run with its data and hashes."""

from __future__ import annotations

from ablationlab.analysis import wording
from ablationlab.analysis.wording import cause
from ablationlab.core.format import (
    DASH,
    amount,
    count,
    number,
    percent,
    setting,
)
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Analysis
from ablationlab.records.metrics import metric_name
from ablationlab.records.plan import Declaration, Plan
from ablationlab.records.results import Results, Run
from ablationlab.records.storage import content_hash
from ablationlab.report.table import Cell, Cells, Column, Table, Tone

_STATES: dict[str, Tone] = {
    "finished": "good",
    "diverged": "bad",
    "damaged": "bad",
    "running": "warn",
    "started": "warn",
    "failed": "bad",
}


def regime_column(analysis: Analysis) -> Column:
    """Where there are several."""
    return Column("regime", "Regime", printed=len(analysis.regimes) > 1)


def criteria_table(analysis: Analysis) -> Table:
    """What was registered."""
    margins = any(criterion.margin is not None for criterion in analysis.criteria)
    rows: list[Cells] = []
    for criterion in analysis.criteria:
        contrast, effect = criterion.contrast, criterion.smallest_effect
        against = f"{contrast[0]} − {contrast[1]}" if contrast else f"each − {analysis.baseline}"
        rows.append(
            {
                Column("role", "Role"): criterion.role,
                Column("metric", "Metric"): Cell.of(criterion.metric, metric_name),
                regime_column(analysis): Cell.name(criterion.regime),
                Column("contrast", "Contrast"): Cell(against, against, code=True),
                Column("test", "Test"): Cell.of(criterion.test, wording.method_name),
                Column("alpha", "Level", "right"): Cell.of(criterion.alpha, setting),
                Column("correction", "Correction"): Cell.of(
                    criterion.correction, wording.CORRECTIONS.get(criterion.correction, criterion.correction)
                ),
                Column("smallest_effect", "Smallest effect", "right"): Cell.of(
                    effect, DASH if effect is None else f"±{setting(effect)}"
                ),
                Column("margin", "Margin", "right", printed=margins): Cell.of(criterion.margin, setting),
            }
        )
    return Table.of("criteria", "Criteria of the sealed plan.", rows)


def variant_table(results: Results, plan: Plan) -> Table:
    """The arms, one row per variant and regime: formula, parameters, budget of one run, and what the variant declares."""
    cells = grouped(((run.variant, run.regime), run) for run in results.runs)
    names = list(dict.fromkeys(run.variant for run in results.runs))
    several = len({regime for _, regime in cells}) > 1
    ours = plan.study.trainer is None
    formulas = ours or any(variant.formula for variant in plan.variants.values())
    rows: list[Cells] = []
    for (variant, regime), runs in sorted(cells.items(), key=lambda arm: names.index(arm[0][0])):
        declared, recipe = plan.variants.get(variant, Declaration()), runs[0].planned.recipe
        budget = None if recipe is None else recipe.budget
        changes = (*declared.settings, *declared.parameters)
        rows.append(
            {
                Column("variant", "Variant"): Cell.name(variant),
                Column("regime", "Regime", printed=several): Cell.name(regime),
                Column("formula", "Formula", printed=formulas): declared.formula_in(
                    None if recipe is None else recipe.model
                ),
                Column("meaning", "Meaning"): declared.about,
                Column("parameters", "Parameters", "right", printed=ours): Cell.of(
                    None if budget is None else budget.parameters, count
                ),
                Column("steps", "Steps", "right", printed=ours): Cell.of(
                    None if budget is None else budget.steps, count
                ),
                Column("tokens", "Tokens", "right", printed=ours): Cell.of(
                    None if budget is None else budget.tokens, count
                ),
                Column("matmul_flops", "Matrix-product FLOPs", "right", printed=ours): Cell.of(
                    None if budget is None else budget.matmul_flops, amount
                ),
                Column("runs", "Runs", "right"): len(runs),
                Column("declares", "Declares"): Cell(
                    ", ".join(changes), ", ".join(changes) or "nothing", code=bool(changes)
                ),
            }
        )
    if not ours:
        about = "Budgets are the trainer's and not checked."
        return Table.of("variants", "The arms, and the settings a variant may change.", rows, about=about)
    title = "The arms: formula, parameters, the budget of one run, and the settings a variant may change."
    return Table.of("variants", title, rows)


def run_table(results: Results) -> Table:
    """Every run with its state and its metrics."""
    names = list(dict.fromkeys(name for run in results.runs if run.result for name in run.result.metrics))
    rates = any(run.planned.recipe is not None for run in results.runs)
    metrics = {name: Column(name, metric_name(name), "right") for name in names}
    rows: list[Cells] = []
    for run in results.runs:
        end = None if run.result is None else run.result.divergence
        note = "" if end is None else f"step {count(end.step)}: {cause(end)}"
        steps = run.step or run.steps
        rows.append(
            {
                Column("run", "Run"): Cell.name(run.id),
                Column("variant", "Variant"): Cell.name(run.variant),
                Column("regime", "Regime"): Cell.name(run.regime),
                Column("seed", "Seed", "right"): run.seed,
                Column("lr", "Learning rate", "right", printed=rates): Cell.of(
                    None if run.planned.recipe is None else run.lr, setting
                ),
                Column("state", "State"): Cell.of(run.state, note=note, tone=_STATES.get(run.state, "")),
                Column("steps", "Steps", "right"): Cell.of(
                    steps, count(steps) if run.done else f"{count(run.step)} of {count(run.steps)}"
                ),
                **{column: Cell.of(run.metric(name), number(run.metric(name), 5)) for name, column in metrics.items()},
            }
        )
    return Table.of("runs", "Every planned run.", rows)


def data_table(results: Results) -> Table | None:
    """The parts of a mixture: their weight, what the runs were really fed, and how much was found twice."""
    corpus = results.plan.lab_corpus if results.plan is not None else None
    if corpus is None or not corpus.components:
        return None
    arms = grouped(
        (run.record.corpus.components, run)
        for run in results.runs
        if run.record is not None and run.record.corpus is not None
    ) or {corpus.components: []}
    rows: list[Cells] = []
    for parts, runs in arms.items():
        fed = grouped((part.name, part.share) for run in runs if run.result is not None for part in run.result.fed)
        variants = ", ".join(dict.fromkeys(run.variant for run in runs))
        for part in parts:
            share = sum(fed[part.name]) / len(fed[part.name]) if part.name in fed else None
            seen = None if part.shared is None else part.shared.seen
            rows.append(
                {
                    Column("variants", "Variants", printed=len(arms) > 1): Cell.name(variants),
                    Column("part", "Part"): Cell.name(part.name),
                    Column("weight", "Weight", "right"): Cell.of(part.weight, percent(part.weight, 1)),
                    Column("fed", "Fed", "right", printed=bool(fed)): Cell.of(share, percent(share, 1)),
                    Column("documents", "Documents", "right"): Cell.of(part.documents, count),
                    Column("train_tokens", "Training tokens", "right"): Cell.of(part.train_tokens, amount),
                    Column("validation_tokens", "Held-out tokens", "right"): Cell.of(part.validation_tokens, amount),
                    Column("duplicates", "Duplicates removed", "right"): Cell.of(
                        part.duplicates, percent(part.duplicates, 2)
                    ),
                    Column("seen", "Held-out words in training text", "right"): Cell.of(seen, percent(seen, 2)),
                }
            )
    title = "The data: the share that each part should have and had, and what was found twice."
    return Table.of("data", title, rows, "A dash: was not looked for.")


def hash_table(results: Results) -> Table:
    """Per regime and seed: whether data order and shared initial weights are equal across all arms."""
    cells = grouped(((run.regime, run.seed), run) for run in results.runs if run.record is not None)
    several = len({regime for regime, _ in cells}) > 1

    def equal(reported: list[str | None], *, unlike: bool = False) -> Cell:
        hashes = [digest for digest in reported if digest is not None]
        if len(hashes) < len(reported):
            return Cell(None, "not checked: not reported", tone="warn")
        same = len(set(hashes)) == 1
        if unlike and not same:
            return Cell(None, "runs differ in length", tone="warn")
        if len(hashes) == 1:
            return Cell(hashes[0], hashes[0][:12])
        text = f"{min(hashes)[:12]} {'equal' if same else 'differs'}"
        return Cell(min(hashes), text, tone="good" if same else "bad")

    unlike = {
        cell: len({run.result.steps for run in runs if run.result is not None}) > 1 for cell, runs in cells.items()
    }
    all_unlike = bool(unlike) and all(unlike.values())
    rows = [
        {
            Column("seed", "Seed"): Cell.of(seed),
            Column("regime", "Regime", printed=several): Cell.name(regime),
            Column("runs", "Runs", "right"): Cell.of(len(runs)),
            Column("data_order", "Data order", printed=not all_unlike): equal(
                [_order(run) for run in runs], unlike=unlike[regime, seed]
            ),
            Column("shared_weights", "Shared initial weights"): equal([_start(run) for run in runs]),
        }
        for (regime, seed), runs in cells.items()
    ]
    what = "the shared initial weights" if all_unlike else "the data order and the shared initial weights"
    note = (
        "Where runs differ in length, so do their data orders: what pairs share is listed above."
        if any(unlike.values())
        else ""
    )
    return Table.of("hashes", f"By seed: {what}, across all runs.", rows, note)


def _order(run: Run) -> str | None:
    own = run.record is None or run.record.recipe is None
    return (
        None if run.record is None else run.result.data_order_hash if own and run.result else run.record.data_order_hash
    )


def _start(run: Run) -> str | None:
    if run.record is not None and run.record.recipe is not None:
        return run.record.shared_init_hash
    weights = None if run.result is None else run.result.initial_weights
    return None if weights is None else content_hash(weights)
