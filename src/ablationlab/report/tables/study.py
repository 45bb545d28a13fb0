"""Tables of a study: what was registered and run, arms, stability, power, and a published table beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ablationlab.analysis import wording
from ablationlab.analysis.interactions import LEVEL
from ablationlab.analysis.wording import cause, difference_of
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
from ablationlab.core.grouping import grouped
from ablationlab.instrument.replication import ReplicatedFigure, Replication, words
from ablationlab.records.analysis import (
    MACRO,
    Analysis,
    Comparison,
    Failure,
    InteractionContrast,
    Interactions,
    NoiseSources,
    SweepAnalysis,
)
from ablationlab.records.metrics import metric_name
from ablationlab.records.plan import Declaration, Plan
from ablationlab.records.results import Results, Run
from ablationlab.records.storage import content_hash
from ablationlab.report.effects import TOO_CLOSE
from ablationlab.report.naming import placed, printed_unit
from ablationlab.report.table import Cell, Cells, Column, Table, Tone
from ablationlab.report.tables.arms import arm_mean, arm_words, median_note


def _regime(analysis: Analysis) -> Column:
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
                _regime(analysis): Cell.name(criterion.regime),
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


def arm_table(analysis: Analysis) -> Table:
    """Mean and SD over seeds of every metric for every arm that is compared with the baseline."""
    baseline = analysis.baseline
    arms: dict[tuple[str, str], dict[str, Comparison]] = {}
    for comparison in analysis.comparisons:
        if comparison.reference != baseline or comparison.task not in (None, MACRO):
            continue
        row = arms.setdefault((comparison.metric, comparison.regime), {})
        row[comparison.variant] = comparison
        if baseline not in row or row[baseline].n < comparison.n:
            row[baseline] = comparison
    names = [
        name for name in dict.fromkeys((baseline, *analysis.variants)) if any(name in row for row in arms.values())
    ]
    rows: list[Cells] = []
    for (metric, regime), row in arms.items():
        first = next(iter(row.values()))
        unit = first.unit
        cells: dict[Column, Cell] = {
            Column("metric", "Metric"): Cell.of(metric, metric_of(first), note=printed_unit(unit)),
            _regime(analysis): Cell.name(regime),
            Column("unit", printed=False): Cell.of(unit),
        }
        for name in names:
            mean, sd, n = arm_mean(analysis, row[name], name) if name in row else (None, None, None)
            cells |= {
                Column(f"{name}_n", printed=False): Cell.of(n),
                Column(f"{name}_mean", name, "right", name=True): Cell.of(
                    mean, arm_words(analysis, row[name], name, beside=row.values()) if name in row else DASH
                ),
                Column(f"{name}_sd", printed=False): Cell.of(sd),
            }
        rows.append(cells)
    shown = [comparison for row in arms.values() for comparison in row.values()]
    return Table.of("arms", "Mean and standard deviation over seeds, per arm.", rows, median_note(shown).strip())


def stability_table(analysis: Analysis) -> Table | None:
    """Unstable runs per arm, the largest spike score, and the gain over the baseline."""
    stability = analysis.stability
    if stability is None:
        return None
    times = {(timed.variant, timed.regime): timed for timed in stability.survival}
    failed, ended = any(arm.failed for arm in stability.arms), any(arm.diverged_at for arm in stability.arms)
    timed = any(timed.p is not None for timed in stability.survival)
    rows: list[Cells] = []
    spikes = any(run.spike_score is not None for run in stability.runs)
    for arm in stability.arms:
        gain = stability.gain(arm.variant, analysis.baseline, arm.regime)
        text = DASH
        if gain is not None and gain.estimate is not None:
            text = f"{percent(gain.estimate)} ({wording.printed_gain_interval(gain)})"
        word = DASH if arm.unstable is None else "unstable" if arm.unstable else "stable"
        survival = times.get((arm.variant, arm.regime))
        rows.append(
            {
                _regime(analysis): Cell.name(arm.regime),
                Column("variant", "Arm"): Cell.name(arm.variant),
                Column("runs", "Runs", "right"): arm.runs,
                Column("diverged", "Diverged", "right"): arm.diverged,
                Column("failed", "Worse than start", "right", printed=failed): arm.failed,
                Column("spiked", "Spiked", "right", printed=spikes): arm.spiked,
                Column("unstable_runs", printed=False): arm.unstable_runs,
                Column("unstable", "Arm is"): Cell.of(arm.unstable, word),
                Column("largest_spike_score", "Largest spike score", "right", printed=spikes): Cell.of(
                    arm.largest_spike_score, number
                ),
                Column("gain", "Stability gain", "right"): Cell.of(None if gain is None else gain.estimate, text),
                Column("gain_low", printed=False): None if gain is None else gain.low,
                Column("gain_high", printed=False): None if gain is None else gain.high,
                Column("gain_p", printed=False): None if gain is None else gain.p,
                Column("gain_p_adjusted", "Corrected p", "right"): Cell.of(
                    None if gain is None else gain.p_adjusted, p_value
                ),
                Column("diverged_at", "Diverged at step", "right", printed=ended): Cell.of(
                    " ".join(map(str, arm.diverged_at)), _steps(arm.diverged_at)
                ),
                Column("survival_p", "Earlier p", "right", printed=timed): Cell.of(
                    None if survival is None else survival.p, p_value
                ),
            }
        )
    note = ""
    if stability.survival:
        kinds = dict.fromkeys(gain.failure for gain in (*stability.parts, *stability.gains) if gain.registered)
        registered = (
            f"Registered, by exact McNemar tests: runs that {'; that '.join(map(_failed, kinds))}."
            if kinds
            else "Nothing is registered."
        )
        note = (
            f"{registered} Earlier p asks whether runs diverge earlier or more often than {analysis.baseline}'s of the same "
            "seeds (exact paired log-rank test); it is exploratory and decides nothing."
        )
    began = any(run.loss is not None and run.initial_loss is not None for run in stability.runs)
    rules = ["diverged", *(["ended worse than it began"] if began else [])]
    rules += [f"has a spike score above {setting(stability.threshold)}"] if spikes else []
    about = (
        f"A run is unstable if it {', '.join(rules[:-1])}{',' if len(rules) > 2 else ''}"
        f"{' or ' if len(rules) > 1 else ''}{rules[-1]}; the gain is the share of unstable runs of {analysis.baseline} minus "
        f"the arm's own. {wording.gain_intervals(stability.gains)}"
    )
    return Table.of("stability", "Stability.", rows, note, about)


def _steps(steps: Sequence[int]) -> str:
    """Each of a few steps, the first and the last of many."""
    known = sorted(set(steps))
    return ", ".join(map(count, known)) if len(known) <= 3 else f"{count(known[0])} to {count(known[-1])}"


def _failed(kind: Failure) -> str:
    return "were unstable" if kind == Failure.UNSTABLE else wording.FAILURES[kind]


def power_table(analysis: Analysis) -> Table:
    """Power at this number of seeds."""
    comparisons = {comparison.id: comparison for comparison in analysis.comparisons}
    metrics = len({metric_of(comparisons[power.comparison]) for power in analysis.power}) > 1
    rows: list[Cells] = []
    asked = any(power.smallest_effect is not None for power in analysis.power)
    known = [power for power in analysis.power if not comparisons[power.comparison].told_by_medians]
    for power in known:
        comparison = comparisons[power.comparison]
        unit = "log" if comparison.transform == "log" else printed_unit(comparison.unit)
        effect = power.smallest_effect
        reached = effect is not None and power.detectable_80 <= effect
        contrast = Cell.contrast(comparison.variant, comparison.reference)
        rows.append(
            {
                Column("comparison", printed=False): Cell.name(power.comparison),
                Column("metric", "Metric", printed=metrics): Cell.of(comparison.metric, metric_of(comparison)),
                _regime(analysis): Cell.name(comparison.regime),
                Column("variant", "Contrast"): contrast,
                Column("reference", printed=False): Cell.name(comparison.reference),
                Column("n", "n", "right"): power.n,
                Column("sd", "SD", "right"): Cell.of(power.sd, number),
                Column("detectable_80", "Detectable", "right"): Cell.of(power.detectable_80, number, note=unit),
                Column("alpha", "at level", "right", below=True, prefix="at level"): Cell.of(
                    power.alpha, wording.power_level(power, comparison)
                ),
                Column("limit", "Limited by"): Cell.of(power.limit),
                Column("smallest_effect", "Smallest effect", "right", printed=asked): Cell.of(
                    effect,
                    setting,
                    note="" if effect is None else "within reach" if reached else "out of reach",
                    tone="" if effect is None else "good" if reached else "warn",
                ),
                Column("decided_by", "Seeds to decide", "right"): Cell.of(
                    power.decided_by, count if power.decided_by is not None else TOO_CLOSE
                ),
            }
        )
    title = f"What these pairs see with {percent(0.8)} power, at the observed SD of the differences."
    about = "Seeds to decide: if the effect is as large as seen."
    left_out = [comparisons[p.comparison] for p in analysis.power if p not in known]
    where = placed(analysis.regimes, left_out)
    note = f"Left out, since unstable runs dominate the differences: {where}." if left_out else ""
    return Table.of("power", title, rows, note, about)


def sweep_table(sweep: SweepAnalysis, variants: Sequence[str]) -> Table:
    """A row per rate, a column per variant: mean counted loss, and how many runs were unstable."""
    curves = {(curve.variant, curve.lr): curve for curve in sweep.curves}
    rows = []
    for lr in sweep.rates:
        cells = {Column("lr", "Learning rate", "right"): Cell.of(lr, setting)}
        for variant in variants:
            column, curve = Column(variant, variant, "right", name=True), curves.get((variant, lr))
            if curve is None:  # the variant has rates of its own
                cells[column] = Cell.of(None, DASH)
                continue
            marks = [f"{curve.diverged} diverged"] if curve.diverged else []
            marks += [f"{curve.unstable} unstable"] if curve.unstable > curve.diverged else []
            cells[column] = Cell.of(curve.mean, mean_sd(curve.mean, curve.sd), note=", ".join(marks))
        rows.append(cells)
    seeds = len(sweep.seeds) + (len(sweep.selection_seeds) if sweep.stages == 1 else 0)
    return Table.of("sweep", f"Sweep: {metric_name(sweep.metric)}, {seeds} seeds", rows)


def rate_table(sweep: SweepAnalysis) -> Table:
    """Learning-rate sensitivity and the rate of the sweep that was chosen for every variant."""
    best, select = {chosen.variant: chosen for chosen in sweep.best}, bool(sweep.best)
    if sweep.stages == 2:
        return _found_table(sweep)
    notes = any(wording.about_rate(sweep, chosen) for chosen in sweep.best)
    rows: list[Cells] = []
    for summary in sweep.summaries:
        chosen = best.get(summary.variant)
        shown = difference(summary.mean, summary.low, summary.high, sign=False)
        known = chosen is not None and chosen.lr is not None
        edge = "edge of the sweep" if chosen is not None and chosen.edge and known else ""
        loss = None if chosen is None else chosen.mean_loss
        rows.append(
            {
                Column("variant", "Variant"): Cell.name(summary.variant),
                Column("n", "n", "right"): summary.n,
                Column("sensitivity", "Sensitivity", "right"): Cell.of(summary.mean, shown.delta),
                Column("interval", "Interval", "right", below=True): Cell.of(summary.low, shown.interval),
                Column("lr", "Chosen rate", "right", printed=select): Cell.of(
                    None if chosen is None else chosen.lr, setting, note=edge
                ),
                Column("mean_loss", "Mean loss", "right", printed=select): Cell.of(loss, number(loss, 4)),
                Column("chosen_on", "Chosen on seeds", printed=select): ranges(chosen.chosen_on) if chosen else "",
                Column("judged_on", "Judged on seeds", printed=select): ranges(chosen.judged_on) if chosen else "",
                Column("why", "Note", printed=notes): wording.about_rate(sweep, chosen) if chosen else "",
            }
        )
    chosen_too = ", and the rate of the sweep that was chosen for each variant" if select else ""
    return Table.of("rates", f"Learning-rate sensitivity{chosen_too}.", rows)


def _found_table(sweep: SweepAnalysis) -> Table:
    minima = {tuned.variant: tuned.minimum for tuned in sweep.minima if tuned.minimum is not None}
    rows: list[Cells] = [
        {
            Column("variant", "Variant"): Cell.name(chosen.variant),
            Column("lr", "Rate", "right"): Cell.of(chosen.lr, setting),
            Column("second", sweep.second or "", "right", printed=sweep.second is not None): Cell.of(
                minima[chosen.variant].second, setting
            ),
            Column("doubt", "Doubt", "right"): Cell.of(minima[chosen.variant].doubt or None, number),
            Column("chosen_on", "Found on seeds"): ranges(chosen.chosen_on),
            Column("judged_on", "Judged on seeds"): ranges(chosen.judged_on),
            Column("why", "Note", printed=any(rate.edge for rate in sweep.best)): wording.about_rate(sweep, chosen),
        }
        for chosen in sweep.best
    ]
    return Table.of("rates", "The rate that two stages found for each variant.", rows)


def noise_table(noise: Sequence[NoiseSources], metric: str | None = None) -> Table | None:
    """A row per metric and arm or difference: the SD that each source makes, its interval and its share of the variance.

    *metric*: of that one alone.
    """
    shown = [sources for sources in noise if metric in (None, sources.metric)]
    if not shown:
        return None
    names = list(dict.fromkeys(part.source for sources in shown for part in sources.components))
    gaps = any(sources.missing for sources in shown)
    rows: list[Cells] = []
    for sources in shown:
        what = sources.variant if sources.reference is None else f"{sources.variant} − {sources.reference}"
        scale = " (log)" if sources.transform == "log" else ""
        row: dict[Column, Cell] = {
            Column("metric", "Metric"): Cell.name(metric_name(sources.metric) + scale),
            Column("of", "Of"): Cell.of(what),
            Column("n", "Cells", "right"): Cell.of(sources.runs),
        }
        parts = {part.source: part for part in sources.components}
        for name in names:
            part = parts.get(name)
            reach = f"{number(part.low, 2)} to {number(part.high, 2)}" if part is not None else DASH
            row |= {
                Column(f"{name}_sd", f"SD by {NOISE[name]}", "right"): Cell.of(
                    None if part is None else part.sd, number
                ),
                Column(f"{name}_low", "Interval", "right", below=True): Cell.of(
                    None if part is None else part.low, reach
                ),
                Column(f"{name}_high", printed=False): Cell.of(None if part is None else part.high),
                Column(f"{name}_share", "Share", "right"): Cell.of(None if part is None else part.share, percent),
            }
        note = f"{sources.missing} runs are missing" if sources.missing else ""
        rows.append({**row, Column("note", "Note", printed=gaps): Cell.of(note)})
    title = "Where the noise comes from: standard deviations by source, over every combination of seeds"
    return Table.of("noise", title, rows)


#: Sources of variance in words.
NOISE: Final = {"init": "initial weights", "data": "data order", "dropout": "dropout", "rest": "all else"}


def factor_table(analysis: Analysis, crossed: Interactions) -> Table:
    """A row per variant, a column per cell of the factorial."""
    places = list(dict.fromkeys(cell.levels for cell in crossed.cells))
    by_cell = {(cell.variant, cell.levels): cell for cell in crossed.cells}
    rows = []
    for variant in dict.fromkeys(cell.variant for cell in crossed.cells):
        cells = {Column("variant", "Variant"): Cell.name(variant)}
        for levels in places:
            cell, name = by_cell[variant, levels], ", ".join(levels)
            compared = analysis.comparison(crossed.metric, cell.regime, variant, analysis.baseline)
            text = DASH if compared is None else _estimate(difference_of(compared))
            cells[Column(name, name, "right", name=True)] = Cell.of(cell.effect, text)
        rows.append(cells)
    keys = " × ".join(factor.key for factor in crossed.factors)
    return Table.of("factors", f"Effect on {metric_name(crossed.metric)} in each cell of {keys}", rows)


def interaction_table(interactions: Interactions) -> Table:
    """Main effects and interactions of the factors."""
    contrasts = interactions.contrasts
    variants = any(contrast.variant for contrast in contrasts)
    labels = any(contrast.label == "registered" for contrast in contrasts)
    notes = any(map(_seeds_used, contrasts))
    rows: list[Cells] = []
    for contrast in contrasts:
        steps = zip(
            (key.rpartition(".")[2] for key in contrast.factors), contrast.references, contrast.levels, strict=True
        )
        what = " × ".join(f"{key} {before} → {after}" for key, before, after in steps)
        low, high = contrast.deciding_low, contrast.deciding_high
        shown = difference(contrast.estimate, low, high)
        rows.append(
            {
                Column("variant", "Variant", printed=variants): Cell.name(contrast.variant or ""),
                Column("kind", "Contrast"): contrast.kind,
                Column("of", "Of"): what,
                Column("label", "Label", printed=labels): contrast.label,
                Column("n", "n", "right"): contrast.n,
                Column("estimate", "Estimate", "right"): Cell.of(contrast.estimate, shown.delta),
                Column("low", "Interval", "right", below=True): Cell.of(low, shown.interval),
                Column("high", printed=False): high,
                Column("p_adjusted", "Adjusted p", "right"): Cell.of(contrast.p_adjusted, p_value),
                Column("note", "Note", printed=notes): _seeds_used(contrast),
            }
        )
    title, about = "Main effects and interactions (differences of differences).", wording.effect_intervals(interactions)
    return Table.of("interactions", title, rows, _alias_note(interactions), about)


def simple_table(analysis: Analysis) -> Table | None:
    """The effect of each crossed setting at each level of the other; nothing where arms are crossed instead of regimes."""
    rows: list[Cells] = []
    for effect in () if analysis.interactions is None else analysis.interactions.simple:
        shown = difference(effect.estimate, effect.low, effect.high)
        rows.append(
            {
                Column("variant", "Variant"): Cell.name(effect.variant),
                Column("at", "At"): f"{_settings_of([effect.other])} {effect.at}",
                Column("of", "Of"): f"{_settings_of([effect.factor])} {effect.reference} → {effect.level}",
                Column("n", "n", "right"): effect.n,
                Column("estimate", "Estimate", "right"): Cell.of(effect.estimate, shown.delta),
                Column("low", "Interval", "right", below=True): Cell.of(effect.low, shown.interval),
                Column("high", printed=False): effect.high,
                Column("p_adjusted", "Adjusted p", "right"): Cell.of(effect.p_adjusted, p_value),
            }
        )
    if not rows or analysis.interactions is None:
        return None
    metric = metric_name(analysis.interactions.metric)
    what = f"variant − {analysis.baseline} in {metric}"
    title = f"Simple effects: how {what} changes with one setting at each level of the other."
    about = f"Exploratory; p and its {level(LEVEL)} interval are adjusted (Holm) over the effects of a setting."
    return Table.of("simple_effects", title, rows, about=about)


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
    if contrast.status == "grid-rates":
        return "not tested: a cell that it needs has no fitted best rate"
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
    first = {figure.published.published_as: figure for figure in reversed(shown)}
    several = len({figure.regime for figure in shown}) > 1
    rows: list[Cells] = []
    for figure in shown:
        published, printed = figure.published, words.difference(figure)
        delta, low, high = figure.estimate
        rows.append(
            {
                Column("figure", "Figure"): Cell.of(published.published_as, words.figure_name(figure)),
                Column("definition", "Definition", printed=definitions, below=True): Cell.of(
                    published.definition, published.definition if figure is first[published.published_as] else ""
                ),
                Column("regime", "Regime", printed=several): Cell.name(figure.regime),
                Column("variant", "Variant"): Cell.name(figure.variant),
                Column("published", "Published", "right"): Cell.of(
                    figure.published_value.mean, words.published(figure)
                ),
                Column("ours", "Ours", "right"): Cell.of(figure.mean, words.ours(figure)),
                Column("difference", "Difference", "right"): Cell.of(delta, printed.delta),
                Column("low", f"{level(replication.level)} interval", "right"): Cell.of(low, printed.interval),
                Column("high", printed=False): Cell.of(high),
                Column("within", "0 within"): Cell.of(
                    figure.outcome, words.WITHIN[figure.outcome], tone=_WITHIN.get(figure.outcome, "")
                ),
            }
        )
    if title:
        return Table.of("replication_figures", title, rows)
    what = f"mean ± SD (runs); difference = ours − published, with its {level(replication.level)} interval."
    return Table.of(
        "replication_figures",
        f"Published figures ({replication.title}) beside ours: {what}",
        rows,
        about="A star: another definition, or none is given.",
    )


def direction_table(replication: Replication, *, reasons: bool = False) -> Table:
    """Published signs beside our comparisons; with *reasons*, notes and why a sign does not transfer."""
    notes = reasons and any(direction.published.note for direction in replication.directions)
    rows: list[Cells] = []
    for direction in replication.directions:
        published, comparison = direction.published, direction.comparison
        outcome = words.transfers(direction) if reasons else words.TRANSFERS[direction.outcome]
        delta, low, high = direction.estimate
        printed = words.difference(direction)
        rows.append(
            {
                Column("published", "Published"): Cell.of(published.published_as, words.claim(direction)),
                Column("note", "Note", printed=notes, below=True): published.note,
                Column("variant", "Contrast"): Cell.contrast(published.variant, published.reference),
                Column("reference", printed=False): published.reference,
                Column("metric", "Metric", below=True): Cell.of(
                    published.metric, metric_name, note="log" if direction.transform == "log" else ""
                ),
                Column("regime", "Regime"): Cell.name(direction.regime),
                Column("sign", "Sign"): published.sign,
                Column("ours", "Ours", "right"): Cell.of(delta, printed.delta),
                Column("low", "Deciding interval", "right", below=True): Cell.of(low, printed.interval),
                Column("high", printed=False): high,
                Column("p_adjusted", "Adjusted p", "right"): Cell.of(
                    None if comparison is None else comparison.p_adjusted, p_value
                ),
                Column("outcome", "Transfers"): Cell.of(
                    direction.outcome, outcome, tone=_TRANSFERS.get(direction.outcome, "")
                ),
            }
        )
    title = f"Published signs ({replication.title}) beside ours, decided by the corrected test of the analysis."
    return Table.of("replication_directions", title, rows)
