"""Tables of comparisons: one row type for every medium, every pair, every interval and test, items of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablationlab.analysis.wording import arm_text, difference_of
from ablationlab.analysis.wording import name_of as metric_of
from ablationlab.core.format import (
    DASH,
    Difference,
    count,
    difference,
    number,
    p_value,
    percent,
    setting,
    several,
)
from ablationlab.records.analysis import Analysis, Comparison, ItemComparison
from ablationlab.report.naming import printed_unit
from ablationlab.report.table import Cell, Column, Row, Table, Tone
from ablationlab.report.tables.arms import median_note
from ablationlab.stats.results import Interval

#: What the paper prints.
PAPER = (
    "metric",
    "regime",
    "variant",
    "n",
    "reference_mean",
    "variant_mean",
    "delta",
    "low",
    "p_adjusted",
    "outcome",
    "equivalent",
)

_COLUMNS = (
    Column("id"),
    Column("metric", "Metric"),
    Column("task"),
    Column("regime", "Regime"),
    Column("variant", "Contrast"),
    Column("reference"),
    Column("unit"),
    Column("direction"),
    Column("transform"),
    Column("label", below=True),
    Column("role", "Role"),
    Column("n", "n", "right"),
    Column("planned_pairs"),
    Column("reference_mean", "Reference", "right", spare="below"),
    Column("reference_sd"),
    Column("variant_mean", "Variant", "right", below=True, spare="below"),
    Column("variant_sd"),
    Column("delta", "Difference", "right"),
    Column("delta_sd"),
    Column("interval"),
    Column("level"),
    Column("low", "Interval", "right", below=True),
    Column("high"),
    Column("test"),
    Column("p", "p", "right", spare=True),
    Column("p_adjusted", "Adjusted p", "right"),
    Column("correction"),
    Column("family"),
    Column("family_size", below=True),
    Column("alpha"),
    Column("outcome", "Outcome"),
    Column("smallest_effect"),
    Column("margin"),
    Column("equivalent", "Equivalent", below=True, prefix="equivalent:"),
    Column("equivalence_p"),
    Column("d_z"),
    Column("sensitive", below=True),
    Column("caveats", "Caveats", spare=True),
)


def comparison_table(
    key: str,
    title: str,
    comparisons: Sequence[Comparison],
    regimes: int,
) -> Table:
    """Comparisons with both means, the difference, its interval, the adjusted p and equivalence; *regimes*: how many."""
    rows = tuple(_row(comparison) for comparison in comparisons)
    gone = [] if regimes > 1 else ["regime"]
    gone += [] if any(comparison.equivalence for comparison in comparisons) else ["equivalent"]
    return Table(key, title, _COLUMNS, rows, median_note(comparisons).strip()).only(
        *(name for name in PAPER if name not in gone)
    )


def _row(comparison: Comparison) -> Row:
    interval, tost, d_z = comparison.main_interval, comparison.equivalence, comparison.effects.get("d_z")
    shown = difference_of(comparison)
    sensitive = None if comparison.sensitivity is None else comparison.sensitivity.sensitive
    # A median and a mean cannot be compared by eye.
    as_median = any(
        arm in comparison.unstable_means or arm in comparison.skewed
        for arm in (comparison.reference, comparison.variant)
    )
    about = ("", comparison.test, comparison.interval)  # caveats about what decides; the rest are in analysis.json
    cells = {
        "metric": Cell.of(
            comparison.metric,
            metric_of(comparison),
            note=printed_unit(comparison.unit),
        ),
        "task": Cell.of(comparison.task_label),
        "regime": Cell.name(comparison.regime),
        "variant": Cell.contrast(comparison.variant, comparison.reference),
        "label": Cell.of(
            comparison.label,
            ", ".join(filter(None, (comparison.label, comparison.role))),
            tone="warn" if comparison.label == "exploratory" else "",
        ),
        "role": Cell.of(comparison.role, comparison.role or ""),
        "n": _size(comparison),
        "reference_mean": Cell.of(
            comparison.reference_mean, arm_text(comparison, comparison.reference, as_median=as_median)
        ),
        "variant_mean": Cell.of(comparison.variant_mean, arm_text(comparison, comparison.variant, as_median=as_median)),
        "delta": Cell.of(comparison.estimate, shown.text),
        "level": Cell.of(None if interval is None else interval.level),
        "low": Cell.of(None if interval is None else interval.low, _interval(interval, shown)),
        "high": Cell.of(None if interval is None else interval.high),
        "p": Cell.of(comparison.p, p_value(comparison.p)),
        "p_adjusted": Cell.of(comparison.p_adjusted, p_value(comparison.p_adjusted)),
        "family_size": Cell.of(comparison.family_size, _family(comparison)),
        "outcome": Cell.of(
            comparison.outcome, comparison.outcome.replace("-", " "), tone=TONES.get(comparison.outcome, "")
        ),
        "equivalent": _equivalent(comparison),
        "equivalence_p": Cell.of(None if tost is None else tost.p),
        "d_z": Cell.of(None if d_z is None else d_z.estimate),
        "sensitive": Cell.of(sensitive, "not sensitive" if sensitive is False else "", tone="warn"),
        "caveats": Cell(
            " ".join(dict.fromkeys(caveat.code for caveat in comparison.caveats)),
            ", ".join(dict.fromkeys(c.code for c in comparison.caveats if c.about in about)),
        ),
    }
    return tuple(cells[c.key] if c.key in cells else Cell.of(getattr(comparison, c.key)) for c in _COLUMNS)


def _family(comparison: Comparison) -> str:
    """Of how many tests an adjusted p is one; nothing beside a test that was not made."""
    if comparison.p_adjusted is None:
        return ""
    return "not adjusted" if comparison.correction == "none" else f"of {comparison.family_size}"


def _size(comparison: Comparison) -> Cell:
    """The pairs, of those planned; of an unpaired comparison the runs of both arms."""
    n, planned = comparison.n, comparison.planned_pairs
    if comparison.design == "unpaired":
        return Cell.of(n, "{} and {}".format(*comparison.arm_sizes), note="unpaired")
    return Cell.of(n, count(n) if n == planned else f"{count(n)} of {count(planned)}")


TONES: Mapping[str, Tone] = {"better": "good", "worse": "bad", "different": "warn"}


_NO_BOUNDS: Mapping[str, str] = {"too-few-pairs": "too few", "degenerate": "no spread", "unbounded": "unbounded"}


def _interval(interval: Interval | None, shown: Difference) -> str:
    if interval is None or interval.low is None:
        return DASH if interval is None or interval.status == "ok" else f"none ({_NO_BOUNDS[interval.status]})"
    return shown.interval


def _equivalent(comparison: Comparison) -> Cell:
    tost = comparison.equivalence
    if tost is None:
        return Cell.of(None)
    word = "untested" if tost.equivalent is None else "yes" if tost.equivalent else "not shown"
    return Cell.of(tost.equivalent, word, note=f"±{setting(tost.bounds[1])}")


def split(analysis: Analysis) -> tuple[list[Comparison], list[Comparison]]:
    """(what a criterion asks, everything else), each in the analysis's order."""
    asked = [
        comparison
        for comparison in analysis.comparisons
        if comparison.label == "registered" or comparison.role is not None
    ]
    return asked, [comparison for comparison in analysis.comparisons if comparison not in asked]


def pair_table(analysis: Analysis) -> Table:
    """The two values of every seed and their difference, for every comparison."""
    rows = [
        {
            Column("comparison", "Comparison"): Cell.name(comparison.id),
            Column("seed", "Seed", "right"): Cell.of(pair.seed),
            Column("reference", "Reference", "right"): Cell.of(pair.reference, number(pair.reference, 5)),
            Column("variant", "Variant", "right"): Cell.of(pair.variant, number(pair.variant, 5)),
            Column("delta", "Difference", "right"): Cell.of(pair.delta, number(pair.delta, sign=True)),
        }
        for comparison in analysis.comparisons
        for pair in comparison.pairs
    ]
    return Table.of("pairs", "Every pair; the difference is on the tested scale.", rows)


def item_table(items: ItemComparison) -> Table:
    """Two arms on the same items, per task and on average: intervals over items, seeds and both."""
    rows: list[Row] = []
    for task in items.tasks:
        rows.append(
            (
                Cell.of(task.task, task.task, note=task.metric),
                Cell.of(task.items, count),
                Cell.of(task.reference_mean, number(task.reference_mean, 4)),
                Cell.of(task.variant_mean, number(task.variant_mean, 4)),
                Cell.of(task.delta, number(task.delta, sign=True)),
                Cell.of(None, _over_items(task.item_intervals)),
                Cell.of(None, _bounds(task.seed_interval)),
                Cell.of(None, _bounds(task.crossed.interval if task.crossed else None)),
                Cell.of(None, " ".join(p_value(test.p) for test in task.mcnemar.values()) or DASH),
                Cell.of(task.p, p_value),
                Cell.of(task.p_adjusted, p_value),
                Cell.of(task.needs_items, DASH if task.needs_items is None else count(task.needs_items)),
                Cell.of(", ".join(dict.fromkeys(caveat.code for caveat in task.caveats))),
            )
        )
    total = sum(task.items for task in items.tasks)
    nothing = Cell.of(None, "")
    rows.append(
        (
            *(Cell.of("macro average"), Cell.of(total, count), nothing, nothing),
            Cell.of(items.macro_delta, number(items.macro_delta, sign=True)),
            Cell.of(None, _over_items(items.macro_item_intervals)),
            Cell.of(None, _bounds(items.macro_seed_interval)),
            Cell.of(None, _bounds(items.macro_crossed.interval if items.macro_crossed else None)),
            *(nothing, Cell.of(items.macro_p, p_value), nothing, nothing, Cell.of("")),
        )
    )
    heads = ["items", items.reference, items.variant, "delta", "over items", "over seeds (t)", "crossed"]
    heads += ["McNemar p", "p", "adjusted p", "items needed"]
    seeds = several(len(items.seeds), "seed")
    return Table.simple(f"{items.variant} − {items.reference}, {seeds}", ["task", *heads, "caveats"], rows, heads)


def text_table(analysis: Analysis) -> Table | None:
    """Validation loss over seeds and text: the interval, and the share of its variance that seeds and documents make."""
    if analysis.evaluation is None or not analysis.evaluation.texts:
        return None
    rows = []
    for contrast in analysis.evaluation.texts:
        crossed = contrast.crossed
        parts = (crossed.seed_variance, crossed.item_variance, crossed.rest_variance)
        total = sum(part for part in parts if part is not None)
        seeds, text, both = (part / total if part is not None and total > 0 else None for part in parts)
        rows.append(
            {
                Column("variant", "Contrast"): Cell.contrast(contrast.variant, contrast.reference),
                Column("reference", printed=False): Cell.of(contrast.reference),
                Column("regime", "Regime", printed=len(analysis.regimes) > 1): Cell.name(contrast.regime),
                Column("seeds", "Seeds", "right"): Cell.of(crossed.seeds, count),
                Column("documents", "Text", "right"): Cell.of(crossed.items, count, note=contrast.kind),
                Column("difference", "Difference", "right"): Cell.of(
                    crossed.interval.estimate, number(crossed.interval.estimate, sign=True)
                ),
                Column("interval", "Interval", "right"): Cell.of(None, _bounds(crossed.interval)),
                Column("p", "p", "right", spare=True): Cell.of(crossed.p, p_value),
                Column("from_seeds", "From seeds", "right"): Cell.of(seeds, percent),
                Column("from_text", "From text", "right"): Cell.of(text, percent),
                Column("from_both", "From both", "right"): Cell.of(both, percent),
            }
        )
    title = "Validation loss on other seeds and other text like this (seeds × documents), and what makes its variance."
    return Table.of("text", title, rows)


def _bounds(interval: Interval | None) -> str:
    return DASH if interval is None else difference(interval.estimate, interval.low, interval.high).range


def _over_items(intervals: Mapping[str, Interval]) -> str:
    """The interval over items; of several seeds, the range of their intervals."""
    lows = [interval.low for interval in intervals.values() if interval.low is not None]
    highs = [interval.high for interval in intervals.values() if interval.high is not None]
    return difference(None, min(lows), max(highs)).range if lows and highs else DASH
