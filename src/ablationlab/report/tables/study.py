"""Tables of a study: what was registered and run, arms, verdicts, stability, power, and a published table beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablationlab.core.format import (
    DASH,
    Difference,
    amount,
    count,
    difference,
    level,
    mean_sd,
    number,
    p_value,
    percent,
    setting,
)
from ablationlab.instrument.replication import ReplicatedDirection, ReplicatedFigure, Replication, words
from ablationlab.records.analysis import MACRO, Analysis, Comparison, Interactions, StabilityGain, SweepAnalysis
from ablationlab.records.plan import Plan
from ablationlab.records.results import Run
from ablationlab.records.verdict import Verdict
from ablationlab.report.naming import metric_name, printed_unit
from ablationlab.report.table import Cell, Column, Row, Table, Tone

#: What a decision is called in a sentence and in a table.
DECISIONS = {
    "adopt": "adopt the variant",
    "adopt-in-regime": "adopt the variant in this regime",
    "trade-off": "trade-off",
    "keep-baseline": "keep the baseline",
    "tie": "tie",
    "inconclusive": "inconclusive",
}


def criteria_table(analysis: Analysis) -> Table:
    """What was registered."""
    rows = []
    for one in analysis.criteria:
        against = f"{one.contrast[0]} − {one.contrast[1]}" if one.contrast else f"each − {analysis.baseline}"
        rows.append(
            (
                Cell.of(one.role),
                Cell.of(one.metric, metric_name(one.metric)),
                Cell.name(one.regime),
                Cell(against, against, code=True),
                Cell.of(one.test),
                Cell.of(one.alpha, setting(one.alpha)),
                Cell.of(one.correction),
                Cell.of(
                    one.smallest_effect, DASH if one.smallest_effect is None else f"±{setting(one.smallest_effect)}"
                ),
                Cell.of(one.margin, setting(one.margin)),
            )
        )
    columns = (
        Column("role", "Role"),
        Column("metric", "Metric"),
        Column("regime", "Regime", printed=len(analysis.regimes) > 1),
        Column("contrast", "Contrast"),
        Column("test", "Test"),
        Column("alpha", "Level", "right"),
        Column("correction", "Correction"),
        Column("smallest_effect", "Smallest effect", "right"),
        Column("margin", "Margin", "right", printed=any(one.margin is not None for one in analysis.criteria)),
    )
    return Table("criteria", "Criteria of the sealed plan.", columns, tuple(rows))


def variant_table(plan: Plan, names: Sequence[str]) -> Table:
    """The arms: formula, parameters, budget."""
    rows = []
    for name in names:
        runs = [run for run in plan.runs if run.variant == name]
        if not runs:
            continue
        budget = runs[0].budget
        rows.append(
            (
                Cell.name(name),
                Cell.of(plan.variants[name].formula),
                Cell.of(plan.variants[name].about),
                Cell.of(budget.parameters, count(budget.parameters)),
                Cell.of(budget.tokens, count(budget.tokens)),
                Cell.of(budget.matmul_flops, amount(budget.matmul_flops)),
                Cell.of(len(runs)),
            )
        )
    columns = (
        Column("variant", "Variant"),
        Column("formula", "Input to block 1"),
        Column("meaning", "Meaning"),
        Column("parameters", "Parameters", "right"),
        Column("tokens", "Tokens", "right"),
        Column("matmul_flops", "Matrix-product FLOPs", "right"),
        Column("runs", "Runs", "right"),
    )
    title = "The arms: input of the first block, parameters, and the budget of one run in the first regime."
    return Table("variants", title, columns, tuple(rows))


def run_table(runs: Sequence[Run]) -> Table:
    """Every run with its state and its metrics."""
    names = list(dict.fromkeys(name for run in runs if run.result for name in run.result.metrics))
    columns = [Column("run", "Run"), Column("variant", "Variant"), Column("regime", "Regime"), Column("seed", "Seed")]
    columns += [Column("lr", "Learning rate", "right"), Column("state", "State"), Column("steps", "Steps", "right")]
    columns += [Column(name, metric_name(name), "right") for name in names]
    rows = []
    for run in runs:
        cells = [Cell.name(run.id), Cell.name(run.variant), Cell.name(run.regime), Cell.of(run.seed)]
        steps = run.step or run.steps
        cells += [Cell.of(run.lr, setting(run.lr)), Cell.of(run.state), Cell.of(steps, count(steps))]
        cells += [Cell.of(run.metric(name), number(run.metric(name), 5)) for name in names]
        rows.append(tuple(cells))
    return Table("runs", "Every planned run.", tuple(columns), tuple(rows))


def arm_table(analysis: Analysis) -> Table:
    """Mean and SD over seeds of every metric for every arm; from the comparisons with the baseline."""
    baseline = analysis.baseline
    arms: dict[tuple[str, str], dict[str, tuple[Comparison, float | None, float | None]]] = {}
    for one in analysis.comparisons:
        if one.reference != baseline or one.task not in (None, MACRO):
            continue
        row = arms.setdefault((one.metric, one.regime), {})
        row[one.variant] = (one, one.variant_mean, one.variant_sd)
        # Where pairs are missing, the baseline's mean is that of the contrast with the most of them.
        if baseline not in row or row[baseline][0].n < one.n:
            row[baseline] = (one, one.reference_mean, one.reference_sd)
    names = [
        name for name in dict.fromkeys((baseline, *analysis.variants)) if any(name in row for row in arms.values())
    ]
    columns = [Column("metric", "Metric"), Column("regime", "Regime", printed=len(analysis.regimes) > 1)]
    columns.append(Column("unit", printed=False))
    for name in names:
        columns += [
            Column(f"{name}_n", printed=False),
            Column(f"{name}_mean", name, "right", name=True),
            Column(f"{name}_sd", printed=False),
        ]
    rows = []
    for (metric, regime), row in arms.items():
        unit = next(iter(row.values()))[0].unit
        cells = [Cell.of(metric, metric_name(metric), note=printed_unit(unit)), Cell.name(regime), Cell.of(unit)]
        for name in names:
            pairs, mean, sd = (row[name][0].n, *row[name][1:]) if name in row else (None, None, None)
            cells += [Cell.of(pairs), Cell.of(mean, mean_sd(mean, sd)), Cell.of(sd)]
        rows.append(tuple(cells))
    return Table("arms", "Mean and standard deviation over seeds, per arm.", tuple(columns), tuple(rows))


def stability_table(analysis: Analysis) -> Table | None:
    """Unstable runs per arm, the largest spike score, and the gain over the baseline."""
    stability = analysis.stability
    if stability is None:
        return None
    rows = []
    for arm in stability.arms:
        gain = stability.gain(arm.variant, analysis.baseline, arm.regime)
        text = DASH
        if gain is not None and gain.estimate is not None:
            text = f"{percent(gain.estimate)} ({percent(gain.low)} to {percent(gain.high)})"
        word = DASH if arm.unstable is None else "unstable" if arm.unstable else "stable"
        rows.append(
            (
                *(Cell.name(arm.regime), Cell.name(arm.variant), Cell.of(arm.runs), Cell.of(arm.diverged)),
                *(Cell.of(arm.failed), Cell.of(arm.spiked), Cell.of(arm.unstable_runs)),
                Cell.of(arm.unstable, word),
                Cell.of(arm.largest_spike_score, number(arm.largest_spike_score)),
                Cell.of(None if gain is None else gain.estimate, text),
                *map(Cell.of, _gain_bounds(gain)),
            )
        )
    columns = (
        Column("regime", "Regime", printed=len(analysis.regimes) > 1),
        Column("variant", "Arm"),
        Column("runs", "Runs", "right"),
        Column("diverged", "Diverged", "right"),
        Column("failed", "Worse than start", "right", printed=any(arm.failed for arm in stability.arms)),
        Column("spiked", "Spiked", "right"),
        Column("unstable_runs", printed=False),
        Column("unstable", "Arm is"),
        Column("largest_spike_score", "Largest spike score", "right"),
        Column("gain", "Stability gain", "right"),
        Column("gain_low", printed=False),
        Column("gain_high", printed=False),
        Column("mcnemar_p", printed=False),
    )
    title = (
        "Stability. A run is unstable if it diverged, ended worse than it began, or has a spike score above "
        f"{setting(stability.threshold)}; the gain is the share of unstable runs of {analysis.baseline} minus the arm's own."
    )
    return Table("stability", title, columns, tuple(rows))


def _gain_bounds(gain: StabilityGain | None) -> tuple[float | None, ...]:
    return (None, None, None) if gain is None else (gain.low, gain.high, gain.mcnemar_p)


def gain_table(analysis: Analysis) -> Table | None:
    """Unstable runs of every pair of arms."""
    if analysis.stability is None:
        return None
    rows = tuple(
        (
            Cell.of(gain.variant, f"{gain.variant} against {gain.reference}"),
            Cell.of(gain.reference),
            Cell.name(gain.regime),
            Cell.of(None, f"{gain.reference_unstable}/{gain.n} → {gain.variant_unstable}/{gain.n}"),
            Cell.of(gain.estimate, percent(gain.estimate)),
            Cell.of(gain.low, f"{percent(gain.low)} to {percent(gain.high)}"),
            Cell.of(gain.mcnemar_p, p_value(gain.mcnemar_p)),
        )
        for gain in analysis.stability.gains
    )
    columns = (
        Column("variant", "Stability gain"),
        Column("reference", printed=False),
        Column("regime", "Regime", printed=len(analysis.regimes) > 1, below=True),
        Column("unstable", "Unstable runs", "right"),
        Column("gain", "Difference", "right"),
        Column("interval", "Interval", "right", below=True),
        Column("p", "McNemar p", "right"),
    )
    return Table("gains", "Unstable runs, reference → variant.", columns, rows)


def verdict_table(analysis: Analysis, verdict: Verdict) -> Table:
    """One decision per variant and regime."""
    rows = tuple(
        (
            *(Cell.name(one.regime), Cell.name(one.variant), Cell.name(one.reference)),
            *(Cell.of(one.decision, DECISIONS[one.decision]), Cell.of(one.rule), Cell.of(one.label), Cell.of(one.why)),
        )
        for one in verdict.verdicts
    )
    columns = (
        Column("regime", "Regime", printed=len(analysis.regimes) > 1),
        Column("variant", "Variant"),
        Column("reference", printed=False),
        Column("decision", "Decision"),
        Column("rule", "Rule", "right"),
        Column("label", "Label"),
        Column("why", "Why", printed=False),
    )
    title = f"Decisions against the baseline {analysis.baseline}, and the rule that made them."
    return Table("verdicts", title, columns, rows)


def power_table(analysis: Analysis) -> Table:
    """Power at this number of seeds."""
    rows = []
    for one in analysis.power:
        reached = one.smallest_effect is not None and one.detectable_80 <= one.smallest_effect
        rows.append(
            (
                Cell.name(one.comparison),
                Cell.of(one.n),
                Cell.of(one.delta_sd, number(one.delta_sd)),
                Cell.of(one.detectable_80, number(one.detectable_80)),
                Cell.of(one.detectable_90, number(one.detectable_90)),
                Cell.of(one.smallest_effect, setting(one.smallest_effect), tone=_reach(one.smallest_effect, reached)),
                Cell.of(one.pairs_80, count(one.pairs_80)),
                Cell.of(one.pairs_80_conservative, count(one.pairs_80_conservative)),
                Cell.of(one.equivalence_pairs_80, count(one.equivalence_pairs_80)),
            )
        )
    columns = (
        Column("comparison", "Comparison"),
        Column("n", "n", "right"),
        Column("delta_sd", "SD of differences", "right"),
        Column("detectable_80", "Detectable, 80 %", "right"),
        Column("detectable_90", "90 %", "right"),
        Column("smallest_effect", "Smallest effect", "right"),
        Column("pairs_80", "Pairs for it", "right"),
        Column("pairs_80_conservative", "at the SD's upper bound", "right"),
        Column("equivalence_pairs_80", "for equivalence", "right"),
    )
    title = "Power of the pairs at hand, from the observed SD of the differences, at the corrected level of one test."
    return Table("power", title, columns, tuple(rows))


def _reach(effect: float | None, reached: bool) -> Tone:
    return "" if effect is None else "good" if reached else "warn"


def sweep_table(sweep: SweepAnalysis, variants: Sequence[str]) -> Table:
    """A row per rate, a column per variant: mean counted loss, and how many runs were unstable."""
    curves = {(curve.variant, curve.lr): curve for curve in sweep.curves}
    rows = []
    for lr in sweep.rates:
        cells = [Cell.of(lr, setting(lr))]
        for variant in variants:
            curve = curves[variant, lr]
            marks = [f"{curve.diverged} diverged"] if curve.diverged else []
            marks += [f"{curve.unstable} unstable"] if curve.unstable > curve.diverged else []
            cells.append(Cell.of(curve.mean, mean_sd(curve.mean, curve.sd), note=", ".join(marks)))
        rows.append(tuple(cells))
    seeds = len(sweep.selection_seeds) + len(sweep.seeds)
    columns = (Column("lr", "Learning rate", "right"), *(Column(name, name, "right", name=True) for name in variants))
    return Table("sweep", f"Sweep: {metric_name(sweep.metric)}, {seeds} seeds", columns, tuple(rows))


def rate_table(sweep: SweepAnalysis) -> Table:
    """Learning-rate sensitivity and the best rate of every variant."""
    best = {chosen.variant: chosen for chosen in sweep.best}
    rows = []
    for one in sweep.summaries:
        chosen = best.get(one.variant)
        shown = difference(one.mean, one.low, one.high, sign=False)
        known = chosen is not None and chosen.lr is not None
        edge = "edge of the sweep" if chosen is not None and chosen.edge and known else ""
        rows.append(
            (
                Cell.name(one.variant),
                Cell.of(one.n),
                Cell.of(one.mean, shown.delta),
                Cell.of(one.low, shown.interval),
                Cell.of(chosen.lr if chosen else None, setting(chosen.lr if chosen else None), note=edge),
                Cell.of(chosen.mean_loss if chosen else None, number(chosen.mean_loss if chosen else None, 4)),
                Cell.of(", ".join(map(str, chosen.chosen_on)) if chosen else ""),
                Cell.of(", ".join(map(str, chosen.judged_on)) if chosen else ""),
                Cell.of(chosen.why if chosen else ""),
            )
        )
    columns = (
        Column("variant", "Variant"),
        Column("n", "n", "right"),
        Column("sensitivity", "Sensitivity", "right"),
        Column("interval", "Interval", "right", below=True),
        Column("lr", "Best rate", "right"),
        Column("mean_loss", "Mean loss", "right"),
        Column("chosen_on", "Chosen on seeds"),
        Column("judged_on", "Judged on seeds"),
        Column("why", "Note", printed=any(chosen.why for chosen in sweep.best)),
    )
    return Table("rates", "Learning-rate sensitivity, and the best rate of each variant.", columns, tuple(rows))


def factor_table(found: Interactions) -> Table:
    """A row per variant, a column per cell of the factorial."""
    cells = list(dict.fromkeys(one.levels for one in found.cells))
    by_cell = {(one.variant, one.levels): one for one in found.cells}
    columns = (
        Column("variant", "Variant"),
        *(Column(name, name, "right", name=True) for name in map(", ".join, cells)),
    )
    rows = []
    for variant in dict.fromkeys(one.variant for one in found.cells):
        shown = [by_cell[variant, levels] for levels in cells]
        texts = [difference(one.effect, one.low, one.high) for one in shown]
        effects = [Cell.of(one.effect, _estimate(text)) for one, text in zip(shown, texts, strict=True)]
        rows.append((Cell.name(variant), *effects))
    keys = " × ".join(factor.key for factor in found.factors)
    return Table("factors", f"Effect on {metric_name(found.metric)} in each cell of {keys}", columns, tuple(rows))


def interaction_table(found: Interactions) -> Table:
    """Main effects and interactions of the factors."""
    rows = []
    for one in found.contrasts:
        steps = zip((key.rpartition(".")[2] for key in one.factors), one.references, one.levels, strict=True)
        what = " × ".join(f"{key} {before} → {after}" for key, before, after in steps)
        shown = difference(one.estimate, one.low, one.high)
        rows.append(
            (
                *(Cell.name(one.variant), Cell.of(one.kind), Cell.of(what), Cell.of(one.n)),
                *(Cell.of(one.estimate, shown.delta), Cell.of(one.low, shown.interval), Cell.of(one.high)),
                *(Cell.of(one.p_adjusted, p_value(one.p_adjusted)), Cell.of(one.note)),
            )
        )
    columns = (
        Column("variant", "Variant"),
        Column("kind", "Contrast"),
        Column("of", "Of"),
        Column("n", "n", "right"),
        Column("estimate", "Estimate", "right"),
        Column("low", "Interval", "right", below=True),
        Column("high", printed=False),
        Column("p_adjusted", "Adjusted p", "right"),
        Column("note", "Note", printed=any(one.note for one in found.contrasts)),
    )
    return Table("interactions", "Main effects and interaction (difference of differences)", columns, tuple(rows))


def _estimate(shown: Difference) -> str:
    return shown.delta if shown.interval == DASH else f"{shown.delta} {shown.interval}"


_WITHIN: dict[str, Tone] = {"within": "good", "outside": "bad"}
_TRANSFERS: dict[str, Tone] = {"transfers": "good", "reversed": "bad", "absent": "bad"}


def figure_table(found: Replication, figures: Sequence[ReplicatedFigure] | None = None, title: str = "") -> Table:
    """Published values, ours, the difference with its interval."""
    shown = found.figures if figures is None else figures
    rows = tuple(
        (
            Cell.of(one.published_as, words.figure_name(one)),
            Cell.name(one.regime),
            Cell.name(one.variant),
            Cell.of(one.published, words.published(one)),
            Cell.of(one.mean, words.ours(one)),
            Cell.of(one.difference, words.difference(one)),
            Cell(words.interval(one), words.interval(one)),
            Cell.of(one.outcome, words.WITHIN[one.outcome], tone=_WITHIN.get(one.outcome, "")),
        )
        for one in shown
    )
    columns = (
        Column("figure", "Figure"),
        Column("regime", "Regime", printed=len({one.regime for one in shown}) > 1),
        Column("variant", "Variant"),
        Column("published", "Published", "right"),
        Column("ours", "Ours", "right"),
        Column("difference", "Difference", "right"),
        Column("interval", f"{level(found.level)} interval", "right"),
        Column("within", "0 within"),
    )
    caption = title or (
        f"Published figures ({found.title}) beside ours: mean ± SD (runs); difference = ours − published, with its "
        f"{level(found.level)} interval. A star: another definition, or none is given."
    )
    return Table("replication_figures", caption, columns, rows)


def direction_table(found: Replication, links: Mapping[str, str] | None = None, *, reasons: bool = False) -> Table:
    """Published signs beside our comparisons; with *reasons*, why a sign does not transfer."""

    def row(one: ReplicatedDirection) -> Row:
        anchor = (links or {}).get(one.comparison or "")
        outcome = words.transfers(one) if reasons else words.TRANSFERS[one.outcome]
        return (
            Cell.of(one.published_as, words.claim(one)),
            Cell(one.variant, f"{one.variant} − {one.reference}", code=True, link=f"#{anchor}" if anchor else ""),
            Cell.of(one.reference),
            Cell.of(one.metric, metric_name(one.metric), note="log" if one.transform == "log" else ""),
            Cell.name(one.regime),
            Cell.of(one.sign),
            Cell.of(one.delta, words.difference(one)),
            Cell(words.interval(one), words.interval(one)),
            Cell.of(one.p_adjusted, p_value(one.p_adjusted)),
            Cell.of(one.outcome, outcome, tone=_TRANSFERS.get(one.outcome, "")),
        )

    columns = (
        Column("published", "Published"),
        Column("variant", "Contrast"),
        Column("reference", printed=False),
        Column("metric", "Metric", below=True),
        Column("regime", "Regime"),
        Column("sign", "Sign"),
        Column("ours", "Ours", "right"),
        Column("interval", f"{level(found.level)} interval", "right", below=True),
        Column("p_adjusted", "Adjusted p", "right"),
        Column("outcome", "Transfers"),
    )
    title = f"Published signs ({found.title}) beside ours, decided by the corrected test of the analysis."
    return Table("replication_directions", title, columns, tuple(map(row, found.directions)))
