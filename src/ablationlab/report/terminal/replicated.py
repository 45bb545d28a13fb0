"""What a terminal shows of a replication: published, ours, the difference, what is found here too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from ablationlab.core.format import count
from ablationlab.instrument.replication import Replication
from ablationlab.records.replication import ChangedSetting
from ablationlab.report.slots import Slot, Statement
from ablationlab.report.table import Table
from ablationlab.report.tables.replication import direction_table, figure_table
from ablationlab.report.terminal.run import value_text


def replication_view(replication: Replication, folder: Path) -> Iterator[RenderableType]:
    """The figures, then the signs, each with what came of it."""
    yield Text(f"{replication.title}\n{replication.source.citation} ({replication.source.date})")
    if replication.runs_ended < replication.runs_planned:
        yield _said("sure.interim", ended=replication.runs_ended, planned=replication.runs_planned)
    for code, changed in (("changed", replication.changed), ("changed-beside", replication.changed_beside)):
        if changed:
            yield _said(f"replication.{code}", n=len(changed))
            yield _changes(changed)
    for regime in dict.fromkeys(figure.regime for figure in replication.figures):
        figures = [figure for figure in replication.figures if figure.regime == regime]
        beside = any(figure.beside for figure in figures)
        yield ""
        yield figure_table(replication, figures, f"Regime {regime}{' (not published)' * beside}").terminal()
    if replication.directions:
        yield ""
        yield direction_table(replication).terminal()
    yield ""
    own = [figure for figure in replication.figures if not figure.beside]
    known = [figure for figure in own if figure.outcome in ("within", "outside")]
    if known:
        yield _said("replication.within", n=sum(figure.outcome == "within" for figure in known), of=len(known))
    signs = [direction for direction in replication.directions if not direction.beside]
    if signs:
        yield _said("replication.signs", n=sum(sign.outcome == "transfers" for sign in signs), of=len(signs))
    yield Text(str(folder / "replication.json"))


def _said(code: str, **counts: int) -> Text:
    return Text(Statement(code, {name: Slot(count(n), value=n) for name, n in counts.items()}).text)


def _changes(changed: Sequence[ChangedSetting]) -> RenderableType:
    rows = [(each.key, value_text(each.ours), value_text(each.asked)) for each in changed]
    return Table.simple("", ["setting", "ours", "the table's"], rows).terminal()
