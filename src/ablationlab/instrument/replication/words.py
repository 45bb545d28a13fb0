"""How a replication's numbers and outcomes are written, in the terminal and in reports alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablationlab.records.replication import ReplicatedDirection, ReplicatedFigure, Replication

WITHIN = {"within": "yes", "outside": "no", "no-interval": "no interval", "not-measured": "not measured"}
TRANSFERS = {
    "transfers": "transfers",
    "reversed": "does not: opposite sign",
    "absent": "does not: no effect",
    "undecided": "undecided",
    "not-measured": "not measured",
}
_FEW = 6


def published(figure: ReplicatedFigure) -> str:
    """The published value as it was printed, and of how many runs."""
    mean = f"{figure.published:g}" if figure.digits is None else f"{figure.published:.{figure.digits}f}"
    sd = (
        ""
        if figure.published_sd is None
        else f" ± {figure.published_sd:.{2 if figure.digits is None else figure.digits}f}"
    )
    return f"{mean}{sd} ({figure.published_n})"


def ours(figure: ReplicatedFigure) -> str:
    """Mean and spread of our runs, to one digit more, and how many they are."""
    if figure.mean is None:
        return "-"
    digits = 3 if figure.digits is None else figure.digits + 1
    spread = "" if figure.sd is None else f" ± {figure.sd:.{digits}f}"
    return f"{figure.mean:.{digits}f}{spread} ({len(figure.values)})"


def difference(row: ReplicatedFigure | ReplicatedDirection) -> str:
    """Ours − published, or variant − reference, with its sign."""
    value = row.difference if isinstance(row, ReplicatedFigure) else row.delta
    return "-" if value is None else _signed(value, 4)


def interval(row: ReplicatedFigure | ReplicatedDirection) -> str:
    """The interval of that difference."""
    return "" if row.low is None or row.high is None else f"{_signed(row.low, 3)} to {_signed(row.high, 3)}"


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}g}".replace("-", "\N{MINUS SIGN}")


def figure_name(figure: ReplicatedFigure) -> str:
    """What was published; a star where it is defined otherwise than ours, or not at all."""
    return figure.published_as + ("" if figure.same_definition else " *")


def claim(direction: ReplicatedDirection) -> str:
    """What was published, and how many of its own numbers say otherwise."""
    contrary = (
        f"; {direction.contrary} of {direction.pairs} published pairs the other way" if direction.contrary else ""
    )
    return direction.published_as + contrary


def transfers(direction: ReplicatedDirection) -> str:
    """The outcome with its reason."""
    return TRANSFERS[direction.outcome] + (f" ({direction.why})" if direction.why else "")


def figures_title(parts: Sequence[ReplicatedFigure], regime: str) -> str:
    """What a table of figures shows."""
    beside = "; beside, the publication does not speak of it" if any(figure.beside for figure in parts) else ""
    other = "; * another definition, or none" if any(not figure.same_definition for figure in parts) else ""
    return f"Regime {regime}{beside}: mean ± SD (runs); difference = ours − published{other}"


def warnings(replication: Replication) -> Iterator[str]:
    """Where the runs are not those that the table asks for, or not all there."""
    if replication.runs_ended < replication.runs_planned:
        yield f"Interim: {replication.runs_ended} of {replication.runs_planned} runs have ended. This is no inference yet."
    if replication.changed:
        changed = _few(replication.changed)
        yield f"NOT A REPLICATION: these runs were made with other settings than the table's study: {changed}."
    if replication.changed_beside:
        text = "The runs beside were made with other settings than the table's study; its own figures are not touched"
        yield f"{text}: {_few(replication.changed_beside)}."


def _few(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - _FEW} more" if len(lines) > _FEW else ""
    return "; ".join(lines[:_FEW]) + more
