"""What each table holds. Every number is one of analysis.json, verdict.json, plan.lock or a run's result."""

from __future__ import annotations

from collections.abc import Sequence

from ablationlab.conclusions import MACRO, Analysis, ComparisonPart
from ablationlab.conclusions_verdict import Verdict
from ablationlab.records import Plan
from ablationlab.report.material import RunMaterial
from ablationlab.report.numbers import (
    NONE,
    count,
    equivalence_word,
    mean_sd,
    metric_name,
    metric_of,
    number,
    outcome_word,
    p_value,
    percent,
    scaled,
    setting,
    shown,
    unit_of,
)
from ablationlab.report.tables.render import Cell, Column, Table, Value
from ablationlab.variants import VARIANTS

#: What a decision is called in a sentence and in a table.
DECISIONS = {
    "adopt": "adopt the variant",
    "adopt-in-regime": "adopt the variant in this regime",
    "trade-off": "trade-off",
    "keep-baseline": "keep the baseline",
    "tie": "tie",
    "inconclusive": "inconclusive",
}


def comparisons(name: str, caption: str, found: Sequence[ComparisonPart], regimes: int) -> Table:
    """Comparisons with both means, the difference, its interval, the adjusted p and equivalence."""
    columns = (
        Column("metric", "Metric"),
        Column("regime", "Regime"),
        Column("contrast", "Contrast"),
        Column("n", "n", "right"),
        Column("reference_mean", "Reference", "right"),
        Column("variant_mean", "Variant", "right"),
        Column("delta", "Difference", "right"),
        Column("interval", "Interval", "right"),
        Column("p_adjusted", "Adj. p", "right"),
        Column("equivalence", "Equiv."),
        Column("outcome", "Outcome"),
    )
    table = Table(
        name,
        caption,
        columns,
        tuple(_comparison(one) for one in found),
        csv_columns=tuple(key for key, _ in _full(found[0])) if found else (),
        csv_rows=tuple(tuple(value for _, value in _full(one)) for one in found),
    )
    gone = [] if regimes > 1 else ["regime"]
    gone += [] if any(one.equivalence for one in found) else ["equivalence"]
    return table.without(*gone)


def _comparison(one: ComparisonPart) -> tuple[Cell, ...]:
    unit = unit_of(one)
    difference = shown(one)
    tost = one.equivalence
    delta = difference.delta + ("%" if difference.style == "percent" else "")
    return (
        Cell.of(one.metric, metric_of(one) + (f" ({unit})" if unit else "")),
        Cell.name(one.regime),
        Cell(f"{one.variant} - {one.reference}", f"{one.variant} − {one.reference}", code=True),
        Cell.of(one.n, str(one.n) if one.n == one.planned_pairs else f"{one.n} of {one.planned_pairs}"),
        Cell.of(one.reference_mean, mean_sd(one.reference_mean, one.reference_sd)),
        Cell.of(one.variant_mean, mean_sd(one.variant_mean, one.variant_sd)),
        Cell.of(one.delta, delta),
        Cell.of(None, difference.interval.replace(" ", "\N{NO-BREAK SPACE}")),
        Cell.of(one.p_adjusted, p_value(one.p_adjusted)),
        Cell.of(None if tost is None else tost.equivalent, equivalence_word(one)),
        Cell.of(one.outcome, outcome_word(one)),
    )


def _full(one: ComparisonPart) -> list[tuple[str, Value]]:
    """Everything about a comparison that is one number or word."""
    interval, tost = one.main_interval, one.equivalence
    dz = one.effects.get("d_z")
    return [
        ("id", one.id),
        ("metric", one.metric),
        ("task", one.task),
        ("regime", one.regime),
        ("variant", one.variant),
        ("reference", one.reference),
        ("unit", one.unit),
        ("direction", one.direction),
        ("transform", one.transform),
        ("label", one.label),
        ("role", one.role),
        ("n", one.n),
        ("planned_pairs", one.planned_pairs),
        ("reference_mean", one.reference_mean),
        ("reference_sd", one.reference_sd),
        ("variant_mean", one.variant_mean),
        ("variant_sd", one.variant_sd),
        ("delta", one.delta),
        ("delta_sd", one.delta_sd),
        ("interval", one.interval),
        ("level", None if interval is None else interval.level),
        ("low", None if interval is None else interval.low),
        ("high", None if interval is None else interval.high),
        ("test", one.test),
        ("p", one.p),
        ("p_adjusted", one.p_adjusted),
        ("correction", one.correction),
        ("family", one.family),
        ("family_size", one.family_size),
        ("alpha", one.alpha),
        ("outcome", one.outcome),
        ("smallest_effect", one.smallest_effect),
        ("margin", one.margin),
        ("equivalent", None if tost is None else tost.equivalent),
        ("equivalence_p", None if tost is None else tost.p),
        ("d_z", None if dz is None else dz.estimate),
        ("sensitive", None if one.sensitivity is None else one.sensitivity.sensitive),
        ("caveats", " ".join(dict.fromkeys(caveat.code for caveat in one.caveats))),
    ]


def split(analysis: Analysis) -> tuple[list[ComparisonPart], list[ComparisonPart]]:
    """(what a criterion asks, everything else), each in the analysis's order."""
    asked = [one for one in analysis.comparisons if one.label == "registered" or one.role is not None]
    return asked, [one for one in analysis.comparisons if one not in asked]


def arms(analysis: Analysis) -> Table:
    """Mean and SD over seeds of every metric for every arm; from the comparisons with the baseline."""
    baseline = analysis.baseline
    against = [one for one in analysis.comparisons if one.reference == baseline and one.task in (None, MACRO)]
    rows: dict[tuple[str, str], dict[str, tuple[ComparisonPart, float | None, float | None]]] = {}
    for one in against:
        row = rows.setdefault((one.metric, one.regime), {})
        row[one.variant] = (one, one.variant_mean, one.variant_sd)
        # Where pairs are missing, the baseline's mean is that of the contrast with the most of them.
        if baseline not in row or row[baseline][0].n < one.n:
            row[baseline] = (one, one.reference_mean, one.reference_sd)
    names = [name for name in (baseline, *analysis.variants) if any(name in row for row in rows.values())]
    names = list(dict.fromkeys(names))
    columns = [Column("metric", "Metric"), Column("regime", "Regime")]
    columns += [Column(name, name, "right") for name in names]
    shown_rows, plain_rows = [], []
    for (metric, regime), row in rows.items():
        one = next(iter(row.values()))[0]
        unit = unit_of(one)
        cells = [Cell.of(metric, metric_name(metric) + (f" ({unit})" if unit else "")), Cell.name(regime)]
        cells += [_mean(row.get(name)) for name in names]
        shown_rows.append(tuple(cells))
        plain: list[Value] = [metric, regime, one.unit]
        for name in names:
            found = row.get(name)
            plain += [None, None, None] if found is None else [found[0].n, found[1], found[2]]
        plain_rows.append(tuple(plain))
    heads = [f"{name}_{part}" for name in names for part in ("n", "mean", "sd")]
    table = Table(
        "arms",
        "Mean and standard deviation over seeds, per arm.",
        tuple(columns),
        tuple(shown_rows),
        csv_columns=("metric", "regime", "unit", *heads),
        csv_rows=tuple(plain_rows),
    )
    return table if len(analysis.regimes) > 1 else table.without("regime")


def _mean(found: tuple[ComparisonPart, float | None, float | None] | None) -> Cell:
    return Cell.of(None) if found is None else Cell.of(found[1], mean_sd(found[1], found[2]))


def stability(analysis: Analysis) -> Table | None:
    """Unstable runs per arm, the largest spike score, and the gain over the baseline."""
    part = analysis.stability
    if part is None:
        return None
    rows, plain = [], []
    for arm in part.arms:
        gain = part.gain(arm.variant, analysis.baseline, arm.regime)
        text = NONE
        if gain is not None and gain.estimate is not None:
            text = f"{percent(gain.estimate)}\N{NO-BREAK SPACE}[{percent(gain.low)},\N{NO-BREAK SPACE}{percent(gain.high)}]"
        rows.append(
            (
                Cell.name(arm.regime),
                Cell.name(arm.variant),
                Cell.of(arm.runs),
                Cell.of(arm.diverged),
                Cell.of(arm.spiked),
                Cell.of(arm.largest_spike_score, number(arm.largest_spike_score)),
                Cell.of(None if gain is None else gain.estimate, text),
            )
        )
        bounds = [None] * 4 if gain is None else [gain.estimate, gain.low, gain.high, gain.mcnemar_p]
        plain.append(
            (
                arm.regime,
                arm.variant,
                arm.runs,
                arm.diverged,
                arm.spiked,
                arm.unstable_runs,
                arm.unstable,
                arm.largest_spike_score,
                *bounds,
            )
        )
    table = Table(
        "stability",
        f"Stability. A run is unstable if it diverged or its spike score is above {setting(part.threshold)}; the gain is "
        "the share of unstable baseline runs minus the arm's own.",
        (
            Column("regime", "Regime"),
            Column("variant", "Arm"),
            Column("runs", "Runs", "right"),
            Column("diverged", "Diverged", "right"),
            Column("spiked", "Spiked", "right"),
            Column("largest_spike_score", "Largest score", "right"),
            Column("gain", "Gain", "right"),
        ),
        tuple(rows),
        csv_columns=(
            "regime",
            "variant",
            "runs",
            "diverged",
            "spiked",
            "unstable_runs",
            "unstable",
            "largest_spike_score",
            "gain",
            "gain_low",
            "gain_high",
            "mcnemar_p",
        ),
        csv_rows=tuple(plain),
    )
    return table if len(analysis.regimes) > 1 else table.without("regime")


def verdicts(analysis: Analysis, verdict: Verdict) -> Table:
    """One decision a variant and regime."""
    rows = tuple(
        (
            Cell.name(one.regime),
            Cell.name(one.variant),
            Cell.of(one.decision, DECISIONS[one.decision]),
            Cell.of(one.rule),
            Cell.of(one.label),
        )
        for one in verdict.verdicts
    )
    columns = (
        Column("regime", "Regime"),
        Column("variant", "Variant"),
        Column("decision", "Decision"),
        Column("rule", "Rule", "right"),
        Column("label", "Label"),
    )
    plain = tuple((o.regime, o.variant, o.reference, o.decision, o.rule, o.label, o.why) for o in verdict.verdicts)
    table = Table(
        "verdicts",
        f"Decisions against the baseline {analysis.baseline}, and the rule that made them.",
        columns,
        rows,
        csv_columns=("regime", "variant", "reference", "decision", "rule", "label", "why"),
        csv_rows=plain,
    )
    return table if len(analysis.regimes) > 1 else table.without("regime")


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


def power(analysis: Analysis) -> Table | None:
    """What the pairs at hand could see."""
    if not analysis.power:
        return None
    rows = tuple(
        (
            Cell.name(one.comparison),
            Cell.of(one.n),
            Cell.of(one.delta_sd, number(one.delta_sd)),
            Cell.of(one.detectable_80, number(one.detectable_80)),
            Cell.of(one.detectable_90, number(one.detectable_90)),
            Cell.of(one.smallest_effect, number(one.smallest_effect)),
            Cell.of(one.pairs_80, NONE if one.pairs_80 is None else f"{one.pairs_80:,}"),
            Cell.of(one.pairs_80_conservative, _pairs(one.pairs_80_conservative)),
            Cell.of(one.equivalence_pairs_80, _pairs(one.equivalence_pairs_80)),
        )
        for one in analysis.power
    )
    return Table(
        "power",
        "What the pairs at hand could see, from the observed SD of the differences, at the corrected level of one test.",
        (
            Column("comparison", "Comparison"),
            Column("n", "n", "right"),
            Column("delta_sd", "SD of differences", "right"),
            Column("detectable_80", "Detectable, 80 %", "right"),
            Column("detectable_90", "90 %", "right"),
            Column("smallest_effect", "Smallest effect", "right"),
            Column("pairs_80", "Pairs for it", "right"),
            Column("pairs_80_conservative", "at the SD's upper bound", "right"),
            Column("equivalence_pairs_80", "for equivalence", "right"),
        ),
        rows,
    )


def _pairs(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


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


def pairs(analysis: Analysis) -> Table:
    """The two values of every seed and their difference, for every comparison."""
    rows = tuple(
        (
            Cell.name(one.id),
            Cell.of(pair.seed),
            Cell.of(pair.reference, number(pair.reference, 5)),
            Cell.of(pair.variant, number(pair.variant, 5)),
            Cell.of(pair.delta, number(pair.delta)),
        )
        for one in analysis.comparisons
        for pair in one.pairs
    )
    columns = (
        Column("comparison", "Comparison"),
        Column("seed", "Seed", "right"),
        Column("reference", "Reference", "right"),
        Column("variant", "Variant", "right"),
        Column("delta", "Difference", "right"),
    )
    return Table("pairs", "Every pair; the difference is on the tested scale.", columns, rows)


def methods(analysis: Analysis) -> Table:
    """Every interval and test of every comparison, the deciding ones marked."""
    rows: list[tuple[Cell, ...]] = []
    for one in analysis.comparisons:
        for name, interval in one.intervals.items():
            note = interval.note if interval.status != "ok" else ""
            rows.append(
                (
                    Cell.name(one.id),
                    Cell.of("interval"),
                    Cell.of(name),
                    Cell.of(interval.low, number(interval.low)),
                    Cell.of(interval.high, number(interval.high)),
                    Cell.of(None),
                    Cell.of(name == one.interval, "yes" if name == one.interval else ""),
                    Cell.of(note),
                )
            )
        for name, test in one.tests.items():
            note = test.note if test.status != "ok" else ""
            rows.append(
                (
                    Cell.name(one.id),
                    Cell.of("test"),
                    Cell.of(name),
                    Cell.of(None),
                    Cell.of(None),
                    Cell.of(test.p, p_value(test.p)),
                    Cell.of(name == one.test, "yes" if name == one.test else ""),
                    Cell.of(note),
                )
            )
    columns = (
        Column("comparison", "Comparison"),
        Column("kind", "Kind"),
        Column("method", "Method"),
        Column("low", "Low", "right"),
        Column("high", "High", "right"),
        Column("p", "p", "right"),
        Column("decides", "Decides"),
        Column("note", "Note"),
    )
    return Table("methods", "Every interval and every test; those that decide are marked.", columns, tuple(rows))


def row_limit(table: Table, most: int) -> tuple[Table, str]:
    """The first rows of a long table, and a sentence on the rest (empty if nothing was left out)."""
    left = len(table.rows) - most
    if left <= 0:
        return table, ""
    short = Table(
        table.name, table.caption, table.columns, table.rows[:most], table.note, table.csv_columns, table.csv_rows
    )
    return short, f"The other {count(left)} rows are in tables/{table.name}.csv."
