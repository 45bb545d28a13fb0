"""Tables of a study: what was registered and run, arms, verdicts, stability, power, and a published table beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ablationlab.analysis import wording
from ablationlab.analysis.wording import cause
from ablationlab.analysis.wording import name_of as metric_of
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
    ranges,
    setting,
)
from ablationlab.instrument.replication import ReplicatedDirection, ReplicatedFigure, Replication, words
from ablationlab.records.analysis import (
    MACRO,
    Analysis,
    Comparison,
    InteractionContrast,
    Interactions,
    NoiseSources,
    StabilityGain,
    SweepAnalysis,
)
from ablationlab.records.metrics import metric_name
from ablationlab.records.plan import Budget, Declaration, Plan
from ablationlab.records.results import Results, Run
from ablationlab.records.storage import content_hash
from ablationlab.records.verdict import Verdict
from ablationlab.report.charts import colours
from ablationlab.report.naming import printed_unit
from ablationlab.report.table import Cell, Column, Row, Table, Tone

#: What a decision is called in a sentence and in a table.
DECISIONS = {
    "adopt": "adopt the variant",
    "adopt-in-regime": "adopt the variant in this regime",
    "adopt-provisionally": "adopt the variant provisionally",
    "trade-off": "trade-off",
    "keep-provisionally": "keep the baseline for now",
    "keep-baseline": "keep the baseline",
    "tie": "tie",
    "inconclusive": "inconclusive",
    "no-verdict": "no verdict",
}


def criteria_table(analysis: Analysis) -> Table:
    """What was registered."""
    rows = []
    for criterion in analysis.criteria:
        against = (
            f"{criterion.contrast[0]} − {criterion.contrast[1]}"
            if criterion.contrast
            else f"each − {analysis.baseline}"
        )
        rows.append(
            (
                Cell.of(criterion.role),
                Cell.of(criterion.metric, metric_name(criterion.metric)),
                Cell.name(criterion.regime),
                Cell(against, against, code=True),
                Cell.of(criterion.test),
                Cell.of(criterion.alpha, setting(criterion.alpha)),
                Cell.of(criterion.correction),
                Cell.of(
                    criterion.smallest_effect,
                    DASH if criterion.smallest_effect is None else f"±{setting(criterion.smallest_effect)}",
                ),
                Cell.of(criterion.margin, setting(criterion.margin)),
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
        Column(
            "margin", "Margin", "right", printed=any(criterion.margin is not None for criterion in analysis.criteria)
        ),
    )
    return Table("criteria", "Criteria of the sealed plan.", columns, tuple(rows))


def variant_table(results: Results, plan: Plan) -> Table:
    """The arms, one row per variant and regime: formula, parameters, budget of one run, and what the variant declares."""
    cells: dict[tuple[str, str], list[Run]] = {}
    for run in results.runs:
        cells.setdefault((run.variant, run.regime), []).append(run)
    names = list(dict.fromkeys(run.variant for run in results.runs))
    order = sorted(cells, key=lambda cell: names.index(cell[0]))
    ours = plan.study.trainer is None
    rows = []
    for variant, regime in order:
        declared, recipe = plan.variants.get(variant, Declaration()), cells[variant, regime][0].planned.recipe
        budget = None if recipe is None else recipe.budget
        changes = (*declared.settings, *declared.parameters)
        rows.append(
            (
                *(Cell.name(variant), Cell.name(regime), Cell.of(declared.formula), Cell.of(declared.about)),
                *((Cell.of(None),) * 4 if budget is None else _costs(budget)),
                Cell.of(len(cells[variant, regime])),
                Cell(", ".join(changes), ", ".join(changes) or "nothing", code=bool(changes)),
            )
        )
    columns = (
        Column("variant", "Variant"),
        Column("regime", "Regime", printed=len({regime for _, regime in order}) > 1),
        Column(
            "formula", "Input to block 1", printed=ours or any(variant.formula for variant in plan.variants.values())
        ),
        Column("meaning", "Meaning"),
        Column("parameters", "Parameters", "right", printed=ours),
        Column("steps", "Steps", "right", printed=ours),
        Column("tokens", "Tokens", "right", printed=ours),
        Column("matmul_flops", "Matrix-product FLOPs", "right", printed=ours),
        Column("runs", "Runs", "right"),
        Column("declares", "Declares"),
    )
    title = (
        "The arms: input of the first block, parameters, the budget of one run, and the settings a variant may change."
        if ours
        else "The arms, and the settings a variant may change. Budgets are the trainer's and not checked."
    )
    return Table("variants", title, columns, tuple(rows))


def _costs(budget: Budget) -> tuple[Cell, ...]:
    return (
        Cell.of(budget.parameters, count(budget.parameters)),
        Cell.of(budget.steps, count(budget.steps)),
        Cell.of(budget.tokens, count(budget.tokens)),
        Cell.of(budget.matmul_flops, amount(budget.matmul_flops)),
    )


def run_table(results: Results) -> Table:
    """Every run with its state and its metrics."""
    names = list(dict.fromkeys(name for run in results.runs if run.result for name in run.result.metrics))
    columns = (
        Column("run", "Run"),
        Column("variant", "Variant"),
        Column("regime", "Regime"),
        Column("seed", "Seed", "right"),
        Column("lr", "Learning rate", "right", printed=any(run.planned.recipe is not None for run in results.runs)),
        Column("state", "State"),
        Column("steps", "Steps", "right"),
        *(Column(name, metric_name(name), "right") for name in names),
    )
    colour_of = colours(results)
    rows = []
    for run in results.runs:
        end = None if run.result is None else run.result.divergence
        steps = run.step or run.steps
        rows.append(
            (
                Cell.name(run.id, colour=colour_of.get(run.variant, "")),
                *(Cell.name(run.variant), Cell.name(run.regime), Cell.of(run.seed)),
                Cell.of(None) if run.planned.recipe is None else Cell.of(run.lr, setting(run.lr)),
                Cell.of(
                    run.state,
                    note="" if end is None else f"step {count(end.step)}: {cause(end)}",
                    tone=_STATES.get(run.state, ""),
                ),
                Cell.of(steps, count(steps) if run.done else f"{count(run.step)} of {count(run.steps)}"),
                *(Cell.of(run.metric(name), number(run.metric(name), 5)) for name in names),
            )
        )
    return Table("runs", "Every planned run.", columns, tuple(rows))


_STATES: dict[str, Tone] = {
    "finished": "good",
    "diverged": "bad",
    "damaged": "bad",
    "running": "warn",
    "started": "warn",
    "failed": "bad",
}


def data_table(results: Results) -> Table | None:
    """The parts of a mixture: their weight, what the runs were really fed, and how much was found twice."""
    corpus = results.plan.lab_corpus if results.plan is not None else None
    if corpus is None or not corpus.components:
        return None
    fed: dict[str, list[float]] = {}
    for run in results.runs:
        for given in run.result.fed if run.result is not None else ():
            fed.setdefault(given.name, []).append(given.share)
    rows = []
    for part in corpus.components:
        shares = fed.get(part.name, [])
        share = sum(shares) / len(shares) if shares else None
        seen = None if part.shared is None else part.shared.seen
        rows.append(
            (
                *(
                    Cell.name(part.name),
                    Cell.of(part.weight, percent(part.weight, 1)),
                    Cell.of(share, percent(share, 1)),
                ),
                *(
                    Cell.of(part.documents, count(part.documents)),
                    Cell.of(part.train_tokens, amount(part.train_tokens)),
                ),
                Cell.of(part.validation_tokens, amount(part.validation_tokens)),
                *(Cell.of(part.duplicates, percent(part.duplicates, 2)), Cell.of(seen, percent(seen, 2))),
            )
        )
    columns = (
        Column("part", "Part"),
        Column("weight", "Weight", "right"),
        Column("fed", "Fed", "right", printed=bool(fed)),
        Column("documents", "Documents", "right"),
        Column("train_tokens", "Training tokens", "right"),
        Column("validation_tokens", "Held-out tokens", "right"),
        Column("duplicates", "Duplicates removed", "right"),
        Column("seen", "Held-out words in training text", "right"),
    )
    title = "The data: the share that each part should have and had, and what was found twice."
    return Table("data", title, columns, tuple(rows), note="A dash: was not looked for.")


def hash_table(results: Results) -> Table:
    """Per regime and seed: whether data order and shared initial weights are equal across all arms."""
    cells: dict[tuple[str, int], list[Run]] = {}
    for run in results.runs:
        if run.record is not None:
            cells.setdefault((run.regime, run.seed), []).append(run)

    def equal(reported: list[str | None]) -> Cell:
        hashes = [digest for digest in reported if digest is not None]
        if len(hashes) < len(reported):
            return Cell(None, "not checked: not reported", tone="warn")
        same = len(set(hashes)) == 1
        text = f"{min(hashes)[:12]} {'equal' if same else 'differs'}"
        return Cell(min(hashes), text, tone="good" if same else "bad")

    rows = tuple(
        (
            *(Cell.of(seed), Cell.name(regime), Cell.of(len(runs))),
            equal([_order(run) for run in runs]),
            equal([_start(run) for run in runs]),
        )
        for (regime, seed), runs in cells.items()
    )
    columns = (
        Column("seed", "Seed"),
        Column("regime", "Regime", printed=len({regime for regime, _ in cells}) > 1),
        Column("arms", "Arms", "right"),
        Column("data_order", "Data order"),
        Column("shared_weights", "Shared initial weights"),
    )
    return Table("hashes", "By seed: the data order and the shared initial weights, across all arms.", columns, rows)


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


def arm_table(analysis: Analysis) -> Table:
    """Mean and SD over seeds of every metric for every arm; from the comparisons with the baseline."""
    baseline = analysis.baseline
    arms: dict[tuple[str, str], dict[str, tuple[Comparison, float | None, float | None]]] = {}
    for comparison in analysis.comparisons:
        if comparison.reference != baseline or comparison.task not in (None, MACRO):
            continue
        row = arms.setdefault((comparison.metric, comparison.regime), {})
        row[comparison.variant] = (comparison, comparison.variant_mean, comparison.variant_sd)
        # Where pairs are missing, the baseline's mean is that of the contrast with the most of them.
        if baseline not in row or row[baseline][0].n < comparison.n:
            row[baseline] = (comparison, comparison.reference_mean, comparison.reference_sd)
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
    times = {(timed.variant, timed.regime): timed for timed in stability.survival}
    for arm in stability.arms:
        gain = stability.gain(arm.variant, analysis.baseline, arm.regime)
        text = DASH
        if gain is not None and gain.estimate is not None:
            text = f"{percent(gain.estimate)} ({percent(gain.low)} to {percent(gain.high)})"
        word = DASH if arm.unstable is None else "unstable" if arm.unstable else "stable"
        timed = times.get((arm.variant, arm.regime))
        p = None if timed is None else timed.p
        rows.append(
            (
                *(Cell.name(arm.regime), Cell.name(arm.variant), Cell.of(arm.runs), Cell.of(arm.diverged)),
                *(Cell.of(arm.failed), Cell.of(arm.spiked), Cell.of(arm.unstable_runs)),
                Cell.of(arm.unstable, word),
                Cell.of(arm.largest_spike_score, number(arm.largest_spike_score)),
                Cell.of(None if gain is None else gain.estimate, text),
                *map(Cell.of, _gain_bounds(gain)),
                Cell.of(" ".join(map(str, arm.diverged_at)), _steps(arm.diverged_at)),
                Cell.of(p, p_value(p)),
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
        Column("gain_p", printed=False),
        Column("diverged_at", "Diverged at step", "right", printed=any(arm.diverged_at for arm in stability.arms)),
        Column("survival_p", "Earlier p", "right", printed=any(timed.p is not None for timed in stability.survival)),
    )
    note = ""
    if stability.survival:
        kinds = dict.fromkeys(gain.failure for gain in (*stability.parts, *stability.gains) if gain.registered)
        registered = (
            f"Registered: {', '.join(kinds)} runs, by exact McNemar tests." if kinds else "Nothing is registered."
        )
        note = (
            f"{registered} Earlier p asks whether runs diverge earlier or more often than {analysis.baseline}'s of the same "
            "seeds (exact paired log-rank test); it is exploratory and decides nothing."
        )
    title = (
        "Stability. A run is unstable if it diverged, ended worse than it began, or has a spike score above "
        f"{setting(stability.threshold)}; the gain is the share of unstable runs of {analysis.baseline} minus the arm's own."
    )
    return Table("stability", title, columns, tuple(rows), note=note)


def _steps(steps: Sequence[int]) -> str:
    """Each of a few steps, the first and the last of many."""
    known = sorted(set(steps))
    return ", ".join(map(count, known)) if len(known) <= 3 else f"{count(known[0])} to {count(known[-1])}"


def _gain_bounds(gain: StabilityGain | None) -> tuple[float | None, ...]:
    return (None, None, None) if gain is None else (gain.low, gain.high, gain.p)


def gain_table(analysis: Analysis) -> Table | None:
    """Unstable runs of every pair of arms."""
    if analysis.stability is None:
        return None
    rows = tuple(
        (
            Cell.of(gain.variant, f"{gain.variant} against {gain.reference}"),
            Cell.of(gain.reference),
            Cell.name(gain.regime),
            Cell.of(
                None, f"{gain.reference_unstable}/{gain.reference_runs} → {gain.variant_unstable}/{gain.variant_runs}"
            ),
            Cell.of(gain.estimate, percent(gain.estimate)),
            Cell.of(gain.low, f"{percent(gain.low)} to {percent(gain.high)}"),
            Cell.of(gain.p, p_value(gain.p)),
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
        Column(
            "p",
            "McNemar p" if all(gain.test == "mcnemar" for gain in analysis.stability.gains) else "Fisher p",
            "right",
        ),
    )
    return Table("gains", "Unstable runs, reference → variant.", columns, rows)


def verdict_table(analysis: Analysis, verdict: Verdict) -> Table:
    """One decision per variant and regime."""
    rows = tuple(
        (
            *(Cell.name(decided.regime), Cell.name(decided.variant), Cell.name(decided.reference)),
            *(
                Cell.of(decided.decision, DECISIONS[decided.decision]),
                Cell.of(decided.rule),
                Cell.of(decided.label),
                Cell.of(wording.verdict_words(analysis, decided).why),
            ),
        )
        for decided in verdict.verdicts
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


def power_table(analysis: Analysis, links: Mapping[str, str] | None = None) -> Table:
    """Power at this number of seeds; *links* are the page's anchors of comparisons."""
    comparisons = {comparison.id: comparison for comparison in analysis.comparisons}
    rows = []
    for power in analysis.power:
        comparison = comparisons[power.comparison]
        unit = "log" if comparison.transform == "log" else printed_unit(comparison.unit)
        effect = power.smallest_effect
        reached = effect is not None and power.detectable_80 <= effect
        size = None if comparison.delta is None else abs(comparison.delta)
        rows.append(
            (
                *(Cell.name(power.comparison), Cell.of(comparison.metric, metric_of(comparison))),
                Cell.name(comparison.regime),
                Cell.contrast(comparison.variant, comparison.reference, anchor=(links or {}).get(comparison.id)),
                *(Cell.name(comparison.reference), Cell.of(power.n)),
                Cell.of(power.delta_sd, number(power.delta_sd)),
                Cell.of(power.detectable_80, number(power.detectable_80)),
                Cell.of(power.detectable_90, number(power.detectable_90)),
                Cell.of(
                    effect,
                    setting(effect),
                    note="" if effect is None else "within reach" if reached else "out of reach",
                    tone="" if effect is None else "good" if reached else "warn",
                ),
                Cell.of(power.pairs_80, count(power.pairs_80)),
                Cell.of(power.pairs_80_conservative, count(power.pairs_80_conservative)),
                Cell.of(power.equivalence_pairs_80, count(power.equivalence_pairs_80)),
                Cell.of(size, number(size), note=unit),
            )
        )
    columns = (
        Column("comparison", printed=False),
        Column("metric", "Metric", printed=len({row[1].text for row in rows}) > 1),
        Column("regime", "Regime", printed=len(analysis.regimes) > 1),
        Column("variant", "Contrast"),
        Column("reference", printed=False),
        Column("n", "n", "right"),
        Column("delta_sd", "SD of differences", "right"),
        Column("detectable_80", "Detectable, 80 % power", "right"),
        Column("detectable_90", "90 %", "right", below=True, prefix="90 %:"),
        Column("smallest_effect", "Smallest effect", "right"),
        Column("pairs_80", "Seeds needed", "right"),
        Column("pairs_80_conservative", "conservative", "right", below=True, prefix="conservative:"),
        Column("equivalence_pairs_80", "Seeds for equivalence", "right"),
        Column("observed", "Observed", "right"),
    )
    title = (
        "Power of the pairs at hand, from the observed SD of the differences, at the corrected level of one test. Seeds "
        "needed: for 80 % power at the smallest effect; conservative: at the upper bound of the SD."
    )
    return Table("power", title, columns, tuple(rows))


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
    for summary in sweep.summaries:
        chosen = best.get(summary.variant)
        shown = difference(summary.mean, summary.low, summary.high, sign=False)
        known = chosen is not None and chosen.lr is not None
        edge = "edge of the sweep" if chosen is not None and chosen.edge and known else ""
        rows.append(
            (
                Cell.name(summary.variant),
                Cell.of(summary.n),
                Cell.of(summary.mean, shown.delta),
                Cell.of(summary.low, shown.interval),
                Cell.of(chosen.lr if chosen else None, setting(chosen.lr if chosen else None), note=edge),
                Cell.of(chosen.mean_loss if chosen else None, number(chosen.mean_loss if chosen else None, 4)),
                Cell.of(ranges(chosen.chosen_on) if chosen else ""),
                Cell.of(ranges(chosen.judged_on) if chosen else ""),
                Cell.of(wording.about_rate(chosen) if chosen else ""),
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
        Column("why", "Note", printed=any(wording.about_rate(chosen) for chosen in sweep.best)),
    )
    return Table("rates", "Learning-rate sensitivity, and the best rate of each variant.", columns, tuple(rows))


def noise_table(noise: Sequence[NoiseSources], metric: str | None = None) -> Table | None:
    """A row per metric and arm or difference: the SD that each source makes, its interval and its share of the variance.

    *metric*: of that one alone.
    """
    shown = [sources for sources in noise if metric in (None, sources.metric)]
    names = list(dict.fromkeys(part.source for sources in shown for part in sources.components))
    if not shown:
        return None
    rows = []
    for sources in shown:
        parts = {part.source: part for part in sources.components}
        cells = []
        for name in names:
            part = parts.get(name)
            reach = f"{number(part.low, 2)} to {number(part.high, 2)}" if part is not None else DASH
            cells += [
                Cell.of(part.sd if part else None, number(part.sd if part else None, 3)),
                Cell.of(part.low if part else None, reach),
                Cell.of(part.high if part else None),
                Cell.of(part.share if part else None, percent(part.share if part else None)),
            ]
        what = sources.variant if sources.reference is None else f"{sources.variant} − {sources.reference}"
        scale = " (log)" if sources.transform == "log" else ""
        note = f"{sources.missing} runs are missing" if sources.missing else ""
        rows.append(
            (
                Cell.name(metric_name(sources.metric) + scale),
                Cell.of(what),
                Cell.of(sources.runs),
                *cells,
                Cell.of(note),
            )
        )
    columns = [Column("metric", "Metric"), Column("of", "Of"), Column("n", "Cells", "right")]
    for name in names:
        columns += [
            Column(f"{name}_sd", f"SD by {NOISE[name]}", "right"),
            Column(f"{name}_low", "Interval", "right", below=True),
            Column(f"{name}_high", printed=False),
            Column(f"{name}_share", "Share", "right"),
        ]
    columns.append(Column("note", "Note", printed=any(sources.missing for sources in shown)))
    title = "Where the noise comes from: standard deviations by source, over every combination of seeds"
    return Table("noise", title, tuple(columns), tuple(rows))


#: Sources of variance in words.
NOISE: Final = {"init": "initial weights", "data": "data order", "dropout": "dropout", "rest": "all else"}


def factor_table(interactions: Interactions) -> Table:
    """A row per variant, a column per cell of the factorial."""
    places = list(dict.fromkeys(cell.levels for cell in interactions.cells))
    by_cell = {(cell.variant, cell.levels): cell for cell in interactions.cells}
    columns = (
        Column("variant", "Variant"),
        *(Column(name, name, "right", name=True) for name in map(", ".join, places)),
    )
    rows = []
    for variant in dict.fromkeys(cell.variant for cell in interactions.cells):
        shown = [by_cell[variant, levels] for levels in places]
        texts = [difference(cell.effect, cell.low, cell.high) for cell in shown]
        effects = [Cell.of(cell.effect, _estimate(text)) for cell, text in zip(shown, texts, strict=True)]
        rows.append((Cell.name(variant), *effects))
    keys = " × ".join(factor.key for factor in interactions.factors)
    return Table(
        "factors", f"Effect on {metric_name(interactions.metric)} in each cell of {keys}", columns, tuple(rows)
    )


def interaction_table(interactions: Interactions) -> Table:
    """Main effects and interactions of the factors."""
    rows = []
    for contrast in interactions.contrasts:
        steps = zip(
            (key.rpartition(".")[2] for key in contrast.factors), contrast.references, contrast.levels, strict=True
        )
        what = " × ".join(f"{key} {before} → {after}" for key, before, after in steps)
        shown = difference(contrast.estimate, contrast.low, contrast.high)
        rows.append(
            (
                *(Cell.name(contrast.variant or ""), Cell.of(contrast.kind), Cell.of(what)),
                *(Cell.of(contrast.label), Cell.of(contrast.n)),
                *(
                    Cell.of(contrast.estimate, shown.delta),
                    Cell.of(contrast.low, shown.interval),
                    Cell.of(contrast.high),
                ),
                *(Cell.of(contrast.p_adjusted, p_value(contrast.p_adjusted)), Cell.of(_seeds_used(contrast))),
            )
        )
    columns = (
        Column("variant", "Variant", printed=any(contrast.variant for contrast in interactions.contrasts)),
        Column("kind", "Contrast"),
        Column("of", "Of"),
        Column("label", "Label", printed=any(contrast.label == "registered" for contrast in interactions.contrasts)),
        Column("n", "n", "right"),
        Column("estimate", "Estimate", "right"),
        Column("low", "Interval", "right", below=True),
        Column("high", printed=False),
        Column("p_adjusted", "Adjusted p", "right"),
        Column("note", "Note", printed=any(map(_seeds_used, interactions.contrasts))),
    )
    title = "Main effects and interactions (differences of differences)"
    return Table("interactions", title, columns, tuple(rows), note=_alias_note(interactions))


def _alias_note(interactions: Interactions) -> str:
    """Which effects the cells cannot tell apart."""
    pairs = [
        f"{_settings_of(alias.factors)} with {', '.join(map(_settings_of, alias.aliases)) or 'the mean'}"
        for alias in interactions.aliases
    ]
    return f"Aliased, so that each estimate is of both effects together: {'; '.join(pairs)}." if pairs else ""


def _settings_of(keys: Sequence[str]) -> str:
    return " × ".join(key.rpartition(".")[2] for key in keys)


def _seeds_used(contrast: InteractionContrast) -> str:
    """What to know about a contrast; nothing where every seed counts."""
    if not contrast.n:
        return "no seed has a value in every cell that it needs"
    fewer = f"{count(contrast.n)} of {count(contrast.planned)} seeds have every cell"
    return wording.no_number(contrast.status, contrast.n) or (fewer if contrast.n < contrast.planned else "")


def _estimate(shown: Difference) -> str:
    return shown.delta if shown.interval == DASH else f"{shown.delta} {shown.interval}"


_WITHIN: dict[str, Tone] = {"within": "good", "outside": "bad"}
_TRANSFERS: dict[str, Tone] = {"transfers": "good", "reversed": "bad", "absent": "bad"}


def figure_table(
    replication: Replication,
    figures: Sequence[ReplicatedFigure] | None = None,
    title: str = "",
    *,
    definitions: bool = False,
) -> Table:
    """Published values, ours, the difference with its interval; with *definitions*, how each is defined there."""
    shown = replication.figures if figures is None else figures
    first = {figure.published_as: figure for figure in reversed(shown)}
    rows = tuple(
        (
            Cell.of(figure.published_as, words.figure_name(figure)),
            Cell.of(figure.definition, figure.definition if figure is first[figure.published_as] else ""),
            Cell.name(figure.regime),
            Cell.name(figure.variant),
            Cell.of(figure.published, words.published(figure)),
            Cell.of(figure.mean, words.ours(figure)),
            Cell.of(figure.difference, words.difference(figure).delta),
            *(Cell.of(figure.low, words.difference(figure).interval), Cell.of(figure.high)),
            Cell.of(figure.outcome, words.WITHIN[figure.outcome], tone=_WITHIN.get(figure.outcome, "")),
        )
        for figure in shown
    )
    columns = (
        Column("figure", "Figure"),
        Column("definition", "Definition", printed=definitions, below=True),
        Column("regime", "Regime", printed=len({figure.regime for figure in shown}) > 1),
        Column("variant", "Variant"),
        Column("published", "Published", "right"),
        Column("ours", "Ours", "right"),
        Column("difference", "Difference", "right"),
        Column("low", f"{level(replication.level)} interval", "right"),
        Column("high", printed=False),
        Column("within", "0 within"),
    )
    caption = title or (
        f"Published figures ({replication.title}) beside ours: mean ± SD (runs); difference = ours − published, with its "
        f"{level(replication.level)} interval. A star: another definition, or none is given."
    )
    return Table("replication_figures", caption, columns, rows)


def direction_table(
    replication: Replication, links: Mapping[str, str] | None = None, *, reasons: bool = False
) -> Table:
    """Published signs beside our comparisons; with *reasons*, notes and why a sign does not transfer."""

    def row(direction: ReplicatedDirection) -> Row:
        anchor = (links or {}).get(direction.comparison or "")
        outcome = words.transfers(direction) if reasons else words.TRANSFERS[direction.outcome]
        return (
            Cell.of(direction.published_as, words.claim(direction)),
            Cell.of(direction.note),
            Cell.contrast(direction.variant, direction.reference, anchor=anchor),
            Cell.of(direction.reference),
            Cell.of(
                direction.metric, metric_name(direction.metric), note="log" if direction.transform == "log" else ""
            ),
            Cell.name(direction.regime),
            Cell.of(direction.sign),
            Cell.of(direction.delta, words.difference(direction).delta),
            *(Cell.of(direction.low, words.difference(direction).interval), Cell.of(direction.high)),
            Cell.of(direction.p_adjusted, p_value(direction.p_adjusted)),
            Cell.of(direction.outcome, outcome, tone=_TRANSFERS.get(direction.outcome, "")),
        )

    columns = (
        Column("published", "Published"),
        Column(
            "note", "Note", printed=reasons and any(direction.note for direction in replication.directions), below=True
        ),
        Column("variant", "Contrast"),
        Column("reference", printed=False),
        Column("metric", "Metric", below=True),
        Column("regime", "Regime"),
        Column("sign", "Sign"),
        Column("ours", "Ours", "right"),
        Column("low", f"{level(replication.level)} interval", "right", below=True),
        Column("high", printed=False),
        Column("p_adjusted", "Adjusted p", "right"),
        Column("outcome", "Transfers"),
    )
    title = f"Published signs ({replication.title}) beside ours, decided by the corrected test of the analysis."
    return Table("replication_directions", title, columns, tuple(map(row, replication.directions)))
