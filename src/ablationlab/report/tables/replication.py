"""Tables of a replication: published figures and directions beside ours. Every number is one of replication.json."""

from __future__ import annotations

from ablationlab.instrument.replication import Replication, words
from ablationlab.report.tables.render import Cell, Column, Table


def figures(found: Replication) -> Table:
    """Published values, ours, the difference with its interval."""
    columns = (
        Column("figure", "Figure"),
        Column("regime", "Regime"),
        Column("variant", "Variant"),
        Column("published", "Published", "right"),
        Column("ours", "Ours", "right"),
        Column("difference", "Difference", "right"),
        Column("interval", "Interval", "right"),
        Column("within", "0 within"),
    )
    rows = tuple(
        (
            Cell.of(one.published_as, words.figure_name(one)),
            Cell.name(one.regime),
            Cell.name(one.variant),
            Cell.of(one.published, words.published(one)),
            Cell.of(one.mean, words.ours(one)),
            Cell.of(one.difference, words.difference(one)),
            Cell(words.interval(one), words.interval(one)),
            Cell.of(one.outcome, words.WITHIN[one.outcome]),
        )
        for one in found.figures
    )
    caption = (
        f"Published figures ({found.title}) beside ours: mean ± SD (runs); difference = ours − published, with its "
        f"{found.level:.0%} interval. A star: another definition, or none is given."
    )
    table = Table("replication_figures", caption, columns, rows)
    return table if len({one.regime for one in found.figures}) > 1 else table.without("regime")


def directions(found: Replication) -> Table:
    """Published signs beside our comparisons."""
    columns = (
        Column("published", "Published"),
        Column("contrast", "Contrast"),
        Column("metric", "Metric"),
        Column("regime", "Regime"),
        Column("sign", "Sign"),
        Column("ours", "Ours", "right"),
        Column("interval", "Interval", "right"),
        Column("p_adjusted", "Adj. p", "right"),
        Column("outcome", "Transfers"),
    )
    rows = tuple(
        (
            Cell.of(one.published_as, words.claim(one)),
            Cell(f"{one.variant} - {one.reference}", f"{one.variant} − {one.reference}", code=True),
            Cell.of(one.metric, one.metric.replace("_", " ")),
            Cell.name(one.regime),
            Cell.of(one.sign),
            Cell.of(one.delta, words.difference(one)),
            Cell(words.interval(one), words.interval(one)),
            Cell.of(one.p_adjusted, "" if one.p_adjusted is None else f"{one.p_adjusted:.3g}"),
            Cell.of(one.outcome, words.TRANSFERS[one.outcome]),
        )
        for one in found.directions
    )
    caption = f"Published signs ({found.title}) beside ours, decided by the corrected test of the analysis."
    return Table("replication_directions", caption, columns, rows)
