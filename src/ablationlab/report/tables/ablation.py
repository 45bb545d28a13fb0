"""The ablation table: every arm with its loss, the difference that decides, accuracy, speed, stability and the answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import fmean, median, stdev

from ablationlab.analysis.wording import (
    CORRECTIONS,
    arm_text,
    capital,
    difference_of,
    listed,
    name_of,
    no_spread,
    spikes_known,
    undecided,
)
from ablationlab.core.format import DASH, amount, difference, level, mean_sd, number, percent, several
from ablationlab.records.analysis import MACRO, Analysis, Comparison, Seed, StabilityAnalysis
from ablationlab.records.metrics import is_accuracy
from ablationlab.records.settings import TUNED
from ablationlab.records.verdict import Verdict
from ablationlab.report.naming import as_title, printed_unit
from ablationlab.report.table import Cell, Cells, Column, Row, Table
from ablationlab.report.tables.answers import answer_cell
from ablationlab.report.tables.setup import regime_column

#: From so many variants on they are ranked, the best first, unless factors arrange them.
FEWEST_RANKED = 5
#: Metrics that may stand as *the* accuracy and *the* speed, the first that was compared.
ACCURACIES = ("macro_accuracy", "mean_task_accuracy", "next_token_accuracy")
SPEEDS = ("training_speed",)


def ablation_table(
    analysis: Analysis, verdict: Verdict | None, colours: dict[str, str] | None = None, *, most: int | None = None
) -> Table | None:
    """A row per arm and regime, the baseline first, many arms ranked; None where the primary metric was not compared.

    *colours*: of the page's variants. Of more comparisons than *most*, those that are not registered are left out.
    """
    primary = _primary(analysis)
    if not primary:
        return None
    asked = [comparison for comparison in primary if comparison.label == "registered"]
    left_out = dict.fromkeys(c.regime for c in primary if c.label != "registered")
    if asked and left_out and most is not None and len(primary) > most:
        primary = asked
    else:
        left_out = {}
    first = primary[0]
    unit, stability = printed_unit(first.unit), analysis.stability
    speed = _chosen(analysis, SPEEDS)
    own = [name for name, metric in analysis.metrics.items() if metric.family == name and is_accuracy(metric)]
    accuracy = next((name for name in map(partial(_chosen, analysis), (ACCURACIES, own)) if name), None)
    accuracy = None if accuracy == first.metric else accuracy
    answers = {} if verdict is None else {(judged.regime, judged.variant): judged for judged in verdict.verdicts}
    registered = {comparison.regime for comparison in primary if comparison.label == "registered"}
    regimes = dict.fromkeys(comparison.regime for comparison in primary)
    unstable = Column(
        "unstable",
        "Unstable runs" if spikes_known(analysis) else "Diverged runs",
        "right",
        printed=stability is not None and any(arm.runs for arm in stability.arms),
    )
    scored = Column(
        "accuracy",
        "Accuracy",
        "right",
        printed=accuracy is not None,
        spare="below",
        note="" if accuracy in (None, "accuracy") else f"Accuracy: {_accuracy_name(analysis, accuracy)}.",
    )
    timed = speed and analysis.source == "records" and analysis.metrics[speed].family == "throughput"
    fast = Column(
        "speed",
        "Training speed (tokens/s)",
        "right",
        printed=speed is not None,
        spare=True,
        note="Speed: a benchmark of its own after training, not the rate of the runs." if timed else "",
    )
    rows: list[Cells] = []
    elsewhere: list[str] = []
    sizes: set[int] = set()
    for regime in sorted(regimes, key=lambda name: name not in registered):
        here = [comparison for comparison in primary if comparison.regime == regime]
        widest = max(here, key=lambda comparison: comparison.n)
        for comparison in (None, *(sorted(here, key=_rank) if _ranked(analysis, primary) else here)):
            arm = analysis.baseline if comparison is None else comparison.variant
            mean, sd, n = arm_mean(analysis, widest if comparison is None else comparison, arm)
            sizes.add(n)
            # The loss of such an arm is not that of the runs at its chosen rate.
            away = regime == TUNED and analysis.sweep is not None and analysis.sweep.chosen_elsewhere(arm)
            elsewhere += [arm] if away else []
            delta, low, high, at = (Cell.of(None, ""),) * 4 if comparison is None else _difference_cells(comparison)
            rows.append(
                {
                    Column("variant", "Variant"): Cell.name(arm, colour=(colours or {}).get(arm, "")),
                    Column("regime", "Regime", printed=len(regimes) > 1, below=True): Cell.name(regime),
                    Column("mean", as_title(name_of(first)) + (f" ({unit})" if unit else ""), "right"): Cell.of(
                        mean, arm_words(analysis, widest if comparison is None else comparison, arm, beside=here)
                    ),
                    Column("sd", printed=False): Cell.of(sd),
                    Column("n", printed=False): Cell.of(n),
                    Column("delta", "Δ", "right"): delta,
                    Column("low", "Interval", "right"): low,
                    Column("high", printed=False): high,
                    Column("level", printed=False): at,
                    scored: Cell.of(None) if away else _accuracy(analysis, accuracy, regime, arm),
                    fast: _speed(analysis, speed, regime, arm),
                    unstable: Cell.of(None) if away else _failures(stability, regime, arm),
                    Column("answer", "Answer", printed=bool(answers)): "baseline"
                    if comparison is None
                    else answer_cell(answers.get((regime, arm))),
                }
            )
    note = _note(analysis, primary, accuracy, sorted(sizes))
    if any(_incomplete(analysis, comparison) for comparison in primary):
        note += f" Δ{' and changes of speed' if speed else ''} over pairs in which both runs have a value."
    note += median_note(primary)
    missing = [column.small_title for column in (scored, unstable) if column.printed]
    if elsewhere and missing:
        note += (
            f" Left out: {' and '.join(missing)} of {listed(elsewhere)}, whose chosen rate is a step of the sweep or "
            "more away from the fitted best one."
        )
    note += f" Regimes that are not registered are in the other tables: {', '.join(left_out)}." if left_out else ""
    return Table.of("ablation", f"Every arm against {analysis.baseline}.", rows, note)


def _primary(analysis: Analysis) -> list[Comparison]:
    """What speaks for the primary metric in every regime, against the baseline."""
    if analysis.primary is None:
        return []
    pairs = dict.fromkeys(
        (comparison.regime, comparison.variant)
        for comparison in analysis.comparisons
        if comparison.metric == analysis.primary and comparison.reference == analysis.baseline
    )
    found = (analysis.comparison(analysis.primary, regime, arm, analysis.baseline) for regime, arm in pairs)
    return [comparison for comparison in found if comparison is not None]


def _ranked(analysis: Analysis, primary: Sequence[Comparison]) -> bool:
    variants = {comparison.variant for comparison in primary}
    directed = all(comparison.direction is not None for comparison in primary)
    return len(variants) >= FEWEST_RANKED and directed and analysis.interactions is None


def _rank(comparison: Comparison) -> float:
    """The smaller the better; what has no difference comes last."""
    if comparison.estimate is None:
        return math.inf
    return comparison.estimate if comparison.direction == "lower" else -comparison.estimate


def arm_mean(analysis: Analysis, comparison: Comparison, arm: str) -> tuple[float | None, float | None, int]:
    """Mean, SD and n of an arm; where pairs are missing, over all its runs that have a value, in a pair or not."""
    if _incomplete(analysis, comparison):
        values = _values(analysis, comparison, arm)
        return fmean(values) if values else None, stdev(values) if len(values) > 1 else None, len(values)
    of_variant, of_reference = comparison.arm_sizes
    if arm == comparison.reference:
        return comparison.reference_mean, comparison.reference_sd, of_reference
    return comparison.variant_mean, comparison.variant_sd, of_variant


def arm_words(analysis: Analysis, comparison: Comparison, arm: str, *, beside: Iterable[Comparison] = ()) -> str:
    """``mean ± SD`` of an arm; its median where unstable runs make the mean, or that of an arm *beside* it."""
    medians = any(other.unstable_means for other in (comparison, *beside))
    if medians and _incomplete(analysis, comparison) and (values := _values(analysis, comparison, arm)):
        return f"median {number(median(values))}"
    if medians or arm in comparison.skewed:
        return arm_text(comparison, arm, as_median=medians)
    mean, sd, _ = arm_mean(analysis, comparison, arm)
    return mean_sd(mean, sd)


def median_note(comparisons: Sequence[Comparison]) -> str:
    """What a median stands for in a table, where one does."""
    arms = [(comparison, arm) for comparison in comparisons for arm in (comparison.variant, comparison.reference)]
    skewed = " Where a few runs make a mean more than ten times its median, the median is shown."
    skewed = skewed if any(arm[1] in arm[0].skewed and arm[1] not in arm[0].unstable_means for arm in arms) else ""
    if not any(comparison.unstable_means for comparison in comparisons):
        return skewed
    differs = " No difference of such means is shown; it is tested as registered, and analysis.json has it."
    return (
        " Medians: unstable runs dominate the mean of one of these arms (its SD is above its median, and none of its stable "
        f"runs reaches the mean).{differs if any(comparison.told_by_medians for comparison in comparisons) else ''}{skewed}"
    )


def _incomplete(analysis: Analysis, comparison: Comparison) -> bool:
    """Whether an arm may have more runs than pairs; at fitted rates, no run has the value that is compared."""
    fitted = analysis.sweep is not None and analysis.sweep.tuned_at == "fitted-minima" and comparison.regime == TUNED
    return comparison.design == "paired" and comparison.n < comparison.planned_pairs and not fitted


def _values(analysis: Analysis, comparison: Comparison, arm: str) -> list[float]:
    """The values of an arm's runs: from every pair that they are in, and the loss of those that are in none."""
    found: dict[Seed, float] = {}
    if comparison.metric == "validation_loss" and analysis.stability is not None:
        here = (run for run in analysis.stability.runs if (run.variant, run.regime) == (arm, comparison.regime))
        found = {run.seed: run.loss for run in here if run.state == "finished" and run.loss is not None}
    same = (comparison.metric, comparison.task, comparison.regime)
    for other in analysis.comparisons:
        if (other.metric, other.task, other.regime) == same and arm in (other.variant, other.reference):
            found |= {pair.seed: pair.variant if arm == other.variant else pair.reference for pair in other.pairs}
    return list(found.values())


def _difference_cells(comparison: Comparison) -> Row:
    """The difference, and the interval that decides."""
    shown, interval = difference_of(comparison), comparison.main_interval
    low, high, at = (None,) * 3 if interval is None else (interval.low, interval.high, interval.level)
    return Cell.of(comparison.estimate, shown.text), Cell.of(low, shown.interval), Cell.of(high), Cell.of(at)


def _chosen(analysis: Analysis, metrics: Sequence[str]) -> str | None:
    compared = {comparison.metric for comparison in analysis.comparisons if comparison.n}
    return next((name for name in metrics if name in compared), None)


def _arm(analysis: Analysis, metric: str | None, regime: str, arm: str) -> tuple[Comparison | None, float | None]:
    """The comparison that an arm's mean of a metric is from, and the mean."""
    arms = [] if metric is None else [arm] if arm != analysis.baseline else analysis.variants
    against = [analysis.comparison(metric or "", regime, variant, analysis.baseline) for variant in arms]
    widest = max((comparison for comparison in against if comparison), key=lambda it: it.n, default=None)
    return (None, None) if widest is None else (widest, arm_mean(analysis, widest, arm)[0])


def _accuracy(analysis: Analysis, metric: str | None, regime: str, arm: str) -> Cell:
    _, mean = _arm(analysis, metric, regime, arm)
    # Whether an accuracy that a user gave is a share or in percent is not known.
    share = metric is None or analysis.metrics[metric].unit == "1"
    return Cell.of(mean, percent(mean, 1) if share else number(mean))


def _accuracy_name(analysis: Analysis, metric: str | None) -> str:
    known = [comparison for comparison in analysis.comparisons if comparison.metric == metric]
    whole = [comparison for comparison in known if comparison.task is None or comparison.averaged]
    return name_of((whole or known)[0]) if known else ""


def _speed(analysis: Analysis, metric: str | None, regime: str, arm: str) -> Cell:
    comparison, mean = _arm(analysis, metric, regime, arm)
    if comparison is None or arm == analysis.baseline:
        return Cell.of(mean, amount(mean))
    change = difference(comparison.delta, log=comparison.transform == "log", unit=comparison.unit)
    return Cell.of(mean, amount(mean), note=change.text)


def _failures(stability: StabilityAnalysis | None, regime: str, arm: str) -> Cell:
    known = None if stability is None else stability.arm(arm, regime)
    if known is None or not known.runs:
        return Cell.of(None)
    return Cell.of(
        known.unstable_runs, f"{known.unstable_runs} of {known.runs}", tone="bad" if known.unstable_runs else ""
    )


def _note(
    analysis: Analysis,
    primary: Sequence[Comparison],
    accuracy: str | None,
    sizes: Sequence[int],
) -> str:
    """What the numbers are: of which runs, at which level, and how they were corrected."""
    first = primary[0]
    unpaired = all(comparison.design == "unpaired" for comparison in primary)
    some = [size for size in sizes if size] or [0]  # an arm whose every run diverged has no mean
    runs = f"{some[0]}" if len(some) == 1 else f"{some[0]} to {some[-1]}"
    over = f"Mean ± SD over {runs} {'runs' if unpaired else 'seeds'}" if some[-1] != 1 else "One run per arm"
    text = f"{over}. Δ: arm − {first.reference}, "
    text += "unpaired" if unpaired else "paired by seed"
    text += ", as a change in percent or a factor" if first.transform == "log" else ""
    text += ", best first" if _ranked(analysis, primary) else ""
    scored = ""
    fitted = analysis.sweep is not None and analysis.sweep.tuned_at == "fitted-minima"
    if fitted and any(comparison.regime == TUNED for comparison in primary):
        other = "" if accuracy is None else ", accuracy at the rate of the sweep that was chosen for it"
        scored = f" Tuned arms: {name_of(first)} at each arm's fitted best rate{other}."
    bounded = [c for c in primary if c.main_interval is not None and c.main_interval.low is not None]
    known = [comparison for comparison in bounded if not comparison.undecided]
    untested = undecided(primary)
    scored = f" {untested}{scored}" if untested else scored
    alike = [words for c in primary if c.variant not in analysis.again if (words := no_spread(c))]
    scored += f" {capital(listed(alike))}: check that seeds vary the runs." if alike else ""
    few = "" if untested or len(alike) == len(primary) or analysis.again else "; too few for an interval"
    if not known:
        return f"{text}{few}.{scored}"
    levels = sorted({comparison.main_interval.level for comparison in known if comparison.main_interval is not None})
    at = level(levels[0]) if len(levels) == 1 else f"{level(levels[0])} to {level(levels[-1])}"
    families = {(comparison.correction, comparison.family_size) for comparison in known if comparison.family_size > 1}
    corrected = sorted(
        f"{CORRECTIONS[name]} for {several(size, 'test')}" for name, size in families if name in CORRECTIONS
    )
    how = f", corrected by {' or '.join(corrected)}" if corrected else ""
    return f"{text}. Interval: the one that decides ({at}{how}).{scored}"


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
            Column("metric", "Metric"): Cell.of(metric, name_of(first), note=printed_unit(unit)),
            regime_column(analysis): Cell.name(regime),
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
