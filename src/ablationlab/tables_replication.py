"""A replication for the terminal: published, ours, the difference with its interval, and what follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from ablationlab.replication import DirectionPart, FigurePart, PublishedTable, Replication
from ablationlab.tables import table

_WITHIN = {"within": "yes", "outside": "no", "no-interval": "no interval", "not-measured": "not measured"}
_SIGNS = {
    "transfers": "transfers",
    "reversed": "does not: opposite sign",
    "absent": "does not: no effect",
    "undecided": "undecided",
    "not-measured": "not measured",
}


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
    if found.runs_ended < found.runs_planned:
        yield f"Interim: {found.runs_ended} of {found.runs_planned} runs have ended. This is no inference yet."
    if found.changed:
        more = f" and {len(found.changed) - 6} more" if len(found.changed) > 6 else ""
        yield (
            "NOT A REPLICATION: these runs were made with other settings than the table's study. "
            f"{'; '.join(found.changed[:6])}{more}."
        )
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
            one.published_as + ("" if one.same_definition else " *"),
            one.variant,
            published(one),
            ours(one),
            "" if one.difference is None else f"{one.difference:+.4g}",
            "" if one.low is None or one.high is None else f"{one.low:+.4g} to {one.high:+.4g}",
            _WITHIN[one.outcome],
        )
        for one in parts
    ]
    beside = "; beside, the publication does not speak of it" if any(one.beside for one in parts) else ""
    other = "; * another definition, or none" if any(not one.same_definition for one in parts) else ""
    title = f"Regime {regime}{beside}: mean ± SD (runs); difference = ours − published{other}"
    columns = ["figure", "variant", "published", "ours", "difference", f"{level:.0%} interval", "0 within"]
    return table(title, columns, rows, columns[2:6])


def published(one: FigurePart) -> str:
    """The published value as it was printed."""
    mean = f"{one.published:g}" if one.digits is None else f"{one.published:.{one.digits}f}"
    sd = "" if one.published_sd is None else f" ± {one.published_sd:.{one.digits or 2}f}"
    return f"{mean}{sd} ({one.published_n})"


def ours(one: FigurePart) -> str:
    """Mean and spread of our runs, to one digit more."""
    if one.mean is None:
        return "-"
    digits = 3 if one.digits is None else one.digits + 1
    spread = "" if one.sd is None else f" ± {one.sd:.{digits}f}"
    return f"{one.mean:.{digits}f}{spread} ({len(one.values)})"


def directions_table(parts: Sequence[DirectionPart], level: float) -> Table:
    """Published signs beside our comparisons."""
    rows = [
        (
            one.published_as
            + (f"; {one.contrary} of {one.pairs} published pairs the other way" if one.contrary else ""),
            f"{one.variant} − {one.reference}",
            one.metric + (" (log)" if one.transform == "log" else ""),
            one.regime,
            one.sign,
            "-" if one.delta is None else f"{one.delta:+.3g}",
            "" if one.low is None or one.high is None else f"{one.low:+.3g} to {one.high:+.3g}",
            "" if one.p_adjusted is None else f"{one.p_adjusted:.3g}",
            _SIGNS[one.outcome] + (f" ({one.why})" if one.why else ""),
        )
        for one in parts
    ]
    columns = [
        "published",
        "contrast",
        "metric",
        "regime",
        "sign",
        "ours",
        f"{level:.0%} interval",
        "adjusted p",
        "transfers",
    ]
    return table("Directions: the sign is decided by the corrected test of the analysis", columns, rows, columns[5:8])
