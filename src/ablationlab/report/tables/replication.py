"""A published table beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from ablationlab.core.format import level, p_value
from ablationlab.instrument.replication import ReplicatedFigure, Replication, words
from ablationlab.records.metrics import metric_name
from ablationlab.report.table import Cell, Cells, Column, Table, Tone

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
                Column("reason", "Reason", printed=not reasons): direction.reason.replace("-", " "),
                Column("outcome", "Transfers"): Cell.of(
                    direction.outcome, outcome, tone=_TRANSFERS.get(direction.outcome, "")
                ),
            }
        )
    title = f"Published signs ({replication.title}) beside ours."
    return Table.of("replication_directions", title, rows)
