"""Tables of comparisons: the overview, every pair, every interval and test. Every number is one of analysis.json."""

from __future__ import annotations

from collections.abc import Sequence

from ablationlab.records.analysis import Analysis, Comparison
from ablationlab.report.naming import metric_of
from ablationlab.report.numbers import equivalence_word, mean_sd, number, outcome_word, p_value, shown, unit_of
from ablationlab.report.tables.render import Cell, Column, Table, Value


def table(name: str, caption: str, found: Sequence[Comparison], regimes: int) -> Table:
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
    whole = Table(
        name,
        caption,
        columns,
        tuple(_comparison(one) for one in found),
        csv_columns=tuple(key for key, _ in _full(found[0])) if found else (),
        csv_rows=tuple(tuple(value for _, value in _full(one)) for one in found),
    )
    gone = [] if regimes > 1 else ["regime"]
    gone += [] if any(one.equivalence for one in found) else ["equivalence"]
    return whole.without(*gone)


def _comparison(one: Comparison) -> tuple[Cell, ...]:
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


def _full(one: Comparison) -> list[tuple[str, Value]]:
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


def split(analysis: Analysis) -> tuple[list[Comparison], list[Comparison]]:
    """(what a criterion asks, everything else), each in the analysis's order."""
    asked = [one for one in analysis.comparisons if one.label == "registered" or one.role is not None]
    return asked, [one for one in analysis.comparisons if one not in asked]


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
