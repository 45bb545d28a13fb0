"""Tables of what was registered, planned and run. Every number is one of analysis.json, plan.lock or a run's result."""

from __future__ import annotations

from collections.abc import Sequence

from ablationlab.records.analysis import Analysis
from ablationlab.records.plan import Plan
from ablationlab.report.material import RunMaterial
from ablationlab.report.naming import metric_name
from ablationlab.report.numbers import NONE, number, scaled, setting
from ablationlab.report.tables.render import Cell, Column, Table
from ablationlab.study.variants import VARIANTS


def criteria(analysis: Analysis) -> Table | None:
    """What was registered."""
    if not analysis.criteria:
        return None
    rows = []
    for one in analysis.criteria:
        contrast = one.get("contrast")
        against = f"{contrast[0]} − {contrast[1]}" if contrast else f"each − {analysis.baseline}"
        effect, margin = one.get("smallest_effect"), one.get("margin")
        rows.append(
            (
                Cell.of(str(one["role"])),
                Cell.of(str(one["metric"]), metric_name(str(one["metric"]))),
                Cell.name(str(one["regime"])),
                Cell(against, against, code=True),
                Cell.of(str(one["test"])),
                Cell.of(float(one["alpha"]), setting(float(one["alpha"]))),
                Cell.of(str(one["correction"])),
                Cell.of(effect, NONE if effect is None else f"±{setting(float(effect))}"),
                Cell.of(margin, NONE if margin is None else setting(float(margin))),
            )
        )
    table = Table(
        "criteria",
        "Criteria as they stand in the sealed plan.",
        (
            Column("role", "Role"),
            Column("metric", "Metric"),
            Column("regime", "Regime"),
            Column("contrast", "Contrast"),
            Column("test", "Test"),
            Column("alpha", "Level", "right"),
            Column("correction", "Correction"),
            Column("smallest_effect", "Smallest effect", "right"),
            Column("margin", "Margin", "right"),
        ),
        tuple(rows),
    )
    gone = [] if len(analysis.regimes) > 1 else ["regime"]
    gone += [] if any(one.get("margin") is not None for one in analysis.criteria) else ["margin"]
    return table.without(*gone)


def variants(plan: Plan, names: Sequence[str]) -> Table:
    """The arms: formula, parameters, budget."""
    rows = []
    for name in names:
        runs = [run for run in plan.runs if run.variant == name]
        known = next((variant for key, variant in VARIANTS.items() if key == name), None)
        if not runs:
            continue
        budget = runs[0].budget
        rows.append(
            (
                Cell.name(name),
                Cell.of(known.formula if known else None),
                Cell.of(known.meaning if known else None),
                Cell.of(budget.parameters, f"{budget.parameters:,}"),
                Cell.of(budget.tokens, f"{budget.tokens:,}"),
                Cell.of(budget.matmul_flops, scaled(budget.matmul_flops)),
                Cell.of(len(runs)),
            )
        )
    return Table(
        "variants",
        "The arms: what enters the first block, parameters, and the budget of one run in the first regime.",
        (
            Column("variant", "Variant"),
            Column("formula", "Input to block 1"),
            Column("meaning", "Meaning"),
            Column("parameters", "Parameters", "right"),
            Column("tokens", "Tokens", "right"),
            Column("matmul_flops", "Matrix-product FLOPs", "right"),
            Column("runs", "Runs", "right"),
        ),
        tuple(rows),
    )


def runs(found: Sequence[RunMaterial]) -> Table:
    """Every run with its state and its metrics."""
    names = list(dict.fromkeys(name for run in found if run.result for name in run.result.metrics))
    columns = [Column("run", "Run"), Column("variant", "Variant"), Column("regime", "Regime"), Column("seed", "Seed")]
    columns += [Column("lr", "Learning rate", "right"), Column("state", "State"), Column("steps", "Steps", "right")]
    columns += [Column(name, metric_name(name), "right") for name in names]
    rows = []
    for run in found:
        cells = [Cell.name(run.id), Cell.name(run.variant), Cell.name(run.regime), Cell.of(run.seed)]
        cells += [Cell.of(run.lr, setting(run.lr)), Cell.of(run.state), Cell.of(run.step or run.steps)]
        cells += [Cell.of(run.metric(name), number(run.metric(name), 5)) for name in names]
        rows.append(tuple(cells))
    return Table("runs", "Every planned run.", tuple(columns), tuple(rows))
