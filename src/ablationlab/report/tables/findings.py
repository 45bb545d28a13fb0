"""Tables of what was found of the arms: means, stability, decisions, power; from analysis.json and verdict.json."""

from __future__ import annotations

from ablationlab.records.analysis import MACRO, Analysis, Comparison
from ablationlab.records.verdict import Verdict
from ablationlab.report.naming import metric_name
from ablationlab.report.numbers import NONE, mean_sd, number, percent, setting, unit_of
from ablationlab.report.tables.render import Cell, Column, Table, Value

#: What a decision is called in a sentence and in a table.
DECISIONS = {
    "adopt": "adopt the variant",
    "adopt-in-regime": "adopt the variant in this regime",
    "trade-off": "trade-off",
    "keep-baseline": "keep the baseline",
    "tie": "tie",
    "inconclusive": "inconclusive",
}


def arms(analysis: Analysis) -> Table:
    """Mean and SD over seeds of every metric for every arm; from the comparisons with the baseline."""
    baseline = analysis.baseline
    against = [one for one in analysis.comparisons if one.reference == baseline and one.task in (None, MACRO)]
    rows: dict[tuple[str, str], dict[str, tuple[Comparison, float | None, float | None]]] = {}
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


def _mean(found: tuple[Comparison, float | None, float | None] | None) -> Cell:
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
