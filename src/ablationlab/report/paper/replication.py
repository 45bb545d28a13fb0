"""The published table beside ours, where the results folder holds one."""

from __future__ import annotations

from ablationlab.instrument.replication import Replication, words
from ablationlab.report.paper.render import table_figure
from ablationlab.report.paper.typst import Typst, say, sentences
from ablationlab.report.tables import direction_table, figure_table


def paragraphs(found: Replication | None) -> list[Typst]:
    """What was published, by whom, and what follows from the comparison; nothing where there is none."""
    if found is None:
        return []
    source = say(
        "These runs were held against published figures: {title} ({citation}, {date}). {about}",
        title=found.title,
        citation=found.citation,
        date=found.date,
        about=found.about,
    )
    said = [say("{text}", text=text) for text in (*words.warnings(found), *found.conclusions)]
    return [source, sentences(said)]


def tables(found: Replication | None) -> Typst:
    """Figures and directions, over both columns."""
    made = [] if found is None else [figure_table(found), direction_table(found)]
    labels = ("replication-figures", "replication-directions")
    return Typst(
        "\n\n".join(
            table_figure(table, label, wide=True) for table, label in zip(made, labels, strict=False) if table.rows
        )
    )
