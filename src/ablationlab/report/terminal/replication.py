"""A replication for the terminal: published, ours, the difference with its interval, and what follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from ablationlab.instrument.replication import DirectionPart, FigurePart, PublishedTable, Replication, words
from ablationlab.report.terminal.base import table


def library_view(found: Sequence[tuple[str, PublishedTable]]) -> Table:
    """The tables that there are."""
    rows = [
        (
            name,
            one.title,
            len(one.figures),
            len(one.directions),
            one.study,
            f"{one.source.citation} ({one.source.date})",
        )
        for name, one in found
    ]
    columns = ["name", "what", "figures", "directions", "study", "source"]
    return table("Published tables to replicate", columns, rows, ["figures", "directions"])


def replication_view(found: Replication, folder: Path) -> Iterator[Table | str]:
    """Everything in the order of reading."""
    yield f"{found.title}\n{found.citation} ({found.date})\n{found.about}"
    yield from words.warnings(found)
    for regime in dict.fromkeys(one.regime for one in found.figures):
        yield figures_table([one for one in found.figures if one.regime == regime], regime, found.level)
    if found.directions:
        yield directions_table(found.directions, found.level)
    yield "\n".join(f"- {text}" for text in found.conclusions)
    yield f"Written to {folder / 'replication.json'}"


def figures_table(parts: Sequence[FigurePart], regime: str, level: float) -> Table:
    """Published figures of one regime beside ours."""
    rows = [
        (
            words.figure_name(one),
            one.variant,
            words.published(one),
            words.ours(one),
            words.difference(one),
            words.interval(one),
            words.WITHIN[one.outcome],
        )
        for one in parts
    ]
    columns = ["figure", "variant", "published", "ours", "difference", f"{level:.0%} interval", "0 within"]
    return table(words.figures_title(parts, regime), columns, rows, columns[2:6])


def directions_table(parts: Sequence[DirectionPart], level: float) -> Table:
    """Published signs beside our comparisons."""
    rows = [
        (
            words.claim(one),
            f"{one.variant} − {one.reference}",
            one.metric + (" (log)" if one.transform == "log" else ""),
            one.regime,
            one.sign,
            words.difference(one),
            words.interval(one),
            "" if one.p_adjusted is None else f"{one.p_adjusted:.3g}",
            words.transfers(one),
        )
        for one in parts
    ]
    columns = ["published", "contrast", "metric", "regime", "sign", "ours", f"{level:.0%} interval", "adjusted p"]
    title = "Directions: the sign is decided by the corrected test of the analysis"
    return table(title, [*columns, "transfers"], rows, columns[5:])
