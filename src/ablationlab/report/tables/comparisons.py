"""Tables of comparisons: one row type for every medium, every pair, every interval and test, items of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablationlab.core.format import DASH, Difference, count, difference, mean_sd, number, p_value, percent, setting
from ablationlab.records.analysis import Analysis, Comparison, ItemComparison
from ablationlab.report.naming import metric_of, printed_unit
from ablationlab.report.table import Cell, Column, Row, Table, Tone
from ablationlab.stats.results import Caveat, Interval

#: What each medium prints; CSV holds all columns.
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
NARROW_TERMINAL = ("metric", "regime", "variant", "n", "delta", "low", "p_adjusted", "outcome", "equivalent")
TERMINAL = (*PAPER, "p", "caveats")
PAGE = (*PAPER, "label", "family_size", "sensitive")

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
    Column("reference_mean", "Reference", "right"),
    Column("reference_sd"),
    Column("variant_mean", "Variant", "right", below=True),
    Column("variant_sd"),
    Column("delta", "Difference", "right"),
    Column("delta_sd"),
    Column("interval"),
    Column("level"),
    Column("low", "Interval", "right", below=True),
    Column("high"),
    Column("test"),
    Column("p", "p", "right"),
    Column("p_adjusted", "Adjusted p", "right"),
    Column("correction"),
    Column("family"),
    Column("family_size", below=True),
    Column("alpha"),
    Column("outcome", "Outcome"),
    Column("smallest_effect"),
    Column("margin"),
    Column("equivalent", "Equivalent", below=True),
    Column("equivalence_p"),
    Column("d_z"),
    Column("sensitive", below=True),
    Column("caveats", "Caveats"),
)


def comparison_table(
    key: str,
    title: str,
    comparisons: Sequence[Comparison],
    regimes: int,
    *,
    columns: Sequence[str] = PAPER,
    links: Mapping[str, str] | None = None,
    all_caveats: bool = False,
) -> Table:
    """Comparisons with both means, the difference, its interval, the adjusted p and equivalence.

    *columns* are those that are printed, *regimes* how many there are, *links* where the page has a comparison.
    """
    rows = tuple(_row(one, links or {}, all_caveats) for one in comparisons)
    gone = [] if regimes > 1 else ["regime"]
    gone += [] if any(one.equivalence for one in comparisons) else ["equivalent"]
    return Table(key, title, _COLUMNS, rows).only(*(name for name in columns if name not in gone))


def _row(one: Comparison, links: Mapping[str, str], all_caveats: bool) -> Row:
    interval, tost, d_z = one.main_interval, one.equivalence, one.effects.get("d_z")
    shown = difference_of(one)
    sensitive = None if one.sensitivity is None else one.sensitivity.sensitive
    anchor = links.get(one.id)
    cells = {
        "metric": Cell.of(
            one.metric,
            metric_of(one),
            note=printed_unit(one.unit),
            link=f"#{anchor}" if anchor is not None else "",
        ),
        "regime": Cell.name(one.regime),
        "variant": Cell(one.variant, f"{one.variant} − {one.reference}", code=True),
        "label": Cell.of(
            one.label, ", ".join(filter(None, (one.label, one.role))), tone="warn" if one.label == "exploratory" else ""
        ),
        "role": Cell.of(one.role, one.role or ""),
        "n": _size(one),
        "reference_mean": Cell.of(one.reference_mean, mean_sd(one.reference_mean, one.reference_sd)),
        "variant_mean": Cell.of(one.variant_mean, mean_sd(one.variant_mean, one.variant_sd)),
        "delta": Cell.of(one.delta, shown.text),
        "level": Cell.of(None if interval is None else interval.level),
        "low": Cell.of(None if interval is None else interval.low, _interval(interval, shown)),
        "high": Cell.of(None if interval is None else interval.high),
        "p": Cell.of(one.p, p_value(one.p)),
        "p_adjusted": Cell.of(one.p_adjusted, p_value(one.p_adjusted)),
        "family_size": Cell.of(one.family_size, f"of {one.family_size}"),
        "outcome": Cell.of(one.outcome, one.outcome.replace("-", " "), tone=TONES.get(one.outcome, "")),
        "equivalent": _equivalent(one),
        "equivalence_p": Cell.of(None if tost is None else tost.p),
        "d_z": Cell.of(None if d_z is None else d_z.estimate),
        "sensitive": Cell.of(sensitive, "not sensitive" if sensitive is False else "", tone="warn"),
        "caveats": Cell(
            " ".join(dict.fromkeys(caveat.code for caveat in one.caveats)),
            ", ".join(dict.fromkeys(caveat.code for caveat in important(one, all_caveats))),
        ),
    }
    return tuple(cells[c.key] if c.key in cells else Cell.of(getattr(one, c.key)) for c in _COLUMNS)


def _size(one: Comparison) -> Cell:
    """The pairs, of those planned; of an unpaired comparison the runs of both arms."""
    if one.design == "unpaired":
        return Cell.of(one.n, one.sample.removesuffix(" runs, unpaired"), note="unpaired")
    return Cell.of(one.n, str(one.n) if one.n == one.planned_pairs else f"{one.n} of {one.planned_pairs}")


TONES: Mapping[str, Tone] = {"better": "good", "worse": "bad", "different": "warn"}


def difference_of(one: Comparison) -> Difference:
    """A comparison's difference and the interval that decides, as text."""
    interval = one.main_interval
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return difference(one.delta, low, high, log=one.transform == "log", unit=one.unit)


def _interval(interval: Interval | None, shown: Difference) -> str:
    if interval is None or interval.low is None:
        return DASH if interval is None or interval.status == "ok" else f"none ({interval.status})"
    return shown.interval


def _equivalent(one: Comparison) -> Cell:
    tost = one.equivalence
    if tost is None:
        return Cell.of(None)
    word = "untested" if tost.equivalent is None else "yes" if tost.equivalent else "not shown"
    return Cell.of(tost.equivalent, word, note=f"±{setting(tost.bounds[1])}")


def important(one: Comparison, all_caveats: bool = False) -> list[Caveat]:
    """Caveats about the pairs, and about the interval and the test that decide; the rest are in analysis.json."""
    return [c for c in one.caveats if all_caveats or c.about in ("", one.test, one.interval)]


def split(analysis: Analysis) -> tuple[list[Comparison], list[Comparison]]:
    """(what a criterion asks, everything else), each in the analysis's order."""
    asked = [one for one in analysis.comparisons if one.label == "registered" or one.role is not None]
    return asked, [one for one in analysis.comparisons if one not in asked]


def pair_table(analysis: Analysis) -> Table:
    """The two values of every seed and their difference, for every comparison."""
    rows = tuple(
        (
            Cell.name(one.id),
            Cell.of(pair.seed),
            Cell.of(pair.reference, number(pair.reference, 5)),
            Cell.of(pair.variant, number(pair.variant, 5)),
            Cell.of(pair.delta, number(pair.delta, sign=True)),
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


def method_table(analysis: Analysis) -> Table:
    """Every interval and test of every comparison, the deciding ones marked."""
    rows: list[Row] = []
    for one in analysis.comparisons:
        for name, interval in one.intervals.items():
            shown = difference(interval.estimate, interval.low, interval.high)
            bounds = (Cell.of(interval.low, shown.low), Cell.of(interval.high, shown.high))
            rows.append(
                (
                    *(Cell.name(one.id), Cell.of("interval"), Cell.of(name), *bounds, Cell.of(None)),
                    Cell.of(name == one.interval, "yes" if name == one.interval else ""),
                    Cell.of(interval.note if interval.status != "ok" else ""),
                )
            )
        for name, test in one.tests.items():
            rows.append(
                (
                    *(Cell.name(one.id), Cell.of("test"), Cell.of(name), Cell.of(None), Cell.of(None)),
                    Cell.of(test.p, p_value(test.p)),
                    Cell.of(name == one.test, "yes" if name == one.test else ""),
                    Cell.of(test.note if test.status != "ok" else ""),
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


def item_table(found: ItemComparison) -> Table:
    """Two arms on the same items, per task and on average: intervals over items, seeds and both."""
    rows: list[Row] = []
    for task in found.tasks:
        rows.append(
            (
                Cell.of(task.task, task.task, note=task.metric),
                Cell.of(task.items, count(task.items)),
                Cell.of(task.reference_mean, number(task.reference_mean, 4)),
                Cell.of(task.variant_mean, number(task.variant_mean, 4)),
                Cell.of(task.delta, number(task.delta, sign=True)),
                Cell.of(None, _over_items(task.item_intervals)),
                Cell.of(None, _bounds(task.seed_interval)),
                Cell.of(None, _bounds(task.crossed.interval if task.crossed else None)),
                Cell.of(None, " ".join(p_value(test.p) for test in task.mcnemar.values()) or DASH),
                Cell.of(task.p, p_value(task.p)),
                Cell.of(task.p_adjusted, p_value(task.p_adjusted)),
                Cell.of(", ".join(dict.fromkeys(caveat.code for caveat in task.caveats))),
            )
        )
    items = sum(task.items for task in found.tasks)
    rows.append(
        (
            *(Cell.of("macro average"), Cell.of(items, count(items)), Cell.of(None, ""), Cell.of(None, "")),
            Cell.of(found.macro_delta, number(found.macro_delta, sign=True)),
            Cell.of(None, _over_items(found.macro_item_intervals)),
            Cell.of(None, _bounds(found.macro_seed_interval)),
            Cell.of(None, _bounds(found.macro_crossed.interval if found.macro_crossed else None)),
            *(Cell.of(None, ""), Cell.of(found.macro_p, p_value(found.macro_p)), Cell.of(None, "")),
            Cell.of(""),
        )
    )
    heads = ["items", found.reference, found.variant, "delta", "over items", "over seeds (t)", "crossed"]
    heads += ["McNemar p", "p", "adjusted p"]
    title = f"{found.variant} − {found.reference}, {count(len(found.seeds))} seed{'s' if len(found.seeds) != 1 else ''}"
    return Table.simple(title, ["task", *heads, "caveats"], rows, heads)


def text_table(analysis: Analysis) -> Table | None:
    """Validation loss over seeds and text: the interval, and the share of its variance that seeds and documents make."""
    if analysis.evaluation is None or not analysis.evaluation.texts:
        return None
    rows: list[Row] = []
    for contrast in analysis.evaluation.texts:
        crossed = contrast.crossed
        parts = (crossed.seed_variance, crossed.item_variance, crossed.rest_variance)
        total = sum(part for part in parts if part is not None)
        shares = [part / total if part is not None and total > 0 else None for part in parts]
        rows.append(
            (
                Cell(contrast.variant, f"{contrast.variant} − {contrast.reference}", code=True),
                Cell.of(contrast.reference),
                Cell.name(contrast.regime),
                Cell.of(crossed.seeds, count(crossed.seeds)),
                Cell.of(crossed.items, count(crossed.items), note=contrast.kind),
                Cell.of(crossed.interval.estimate, number(crossed.interval.estimate, sign=True)),
                Cell.of(None, _bounds(crossed.interval)),
                Cell.of(crossed.p, p_value(crossed.p)),
                *(Cell.of(share, percent(share)) for share in shares),
            )
        )
    columns = (
        Column("variant", "Contrast"),
        Column("reference", printed=False),
        Column("regime", "Regime"),
        Column("seeds", "Seeds", "right"),
        Column("documents", "Text", "right"),
        Column("difference", "Difference", "right"),
        Column("interval", "Interval", "right"),
        Column("p", "p", "right"),
        Column("from_seeds", "From seeds", "right"),
        Column("from_text", "From text", "right"),
        Column("from_both", "From both", "right"),
    )
    title = "Validation loss on other seeds and other text like this (seeds × documents), and what makes its variance."
    return Table("text", title, columns, tuple(rows))


def _bounds(interval: Interval | None) -> str:
    return DASH if interval is None else difference(interval.estimate, interval.low, interval.high).range


def _over_items(intervals: Mapping[str, Interval]) -> str:
    """The interval over items; of several seeds, the range of their intervals."""
    lows = [one.low for one in intervals.values() if one.low is not None]
    highs = [one.high for one in intervals.values() if one.high is not None]
    return difference(None, min(lows), max(highs)).range if lows and highs else DASH
