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


def published(one: ReplicatedFigure) -> str:
    """The published value as it was printed, and of how many runs."""
    mean = f"{one.published:g}" if one.digits is None else f"{one.published:.{one.digits}f}"
    sd = "" if one.published_sd is None else f" ± {one.published_sd:.{2 if one.digits is None else one.digits}f}"
    return f"{mean}{sd} ({one.published_n})"


def ours(one: ReplicatedFigure) -> str:
    """Mean and spread of our runs, to one digit more, and how many they are."""
    if one.mean is None:
        return "-"
    digits = 3 if one.digits is None else one.digits + 1
    spread = "" if one.sd is None else f" ± {one.sd:.{digits}f}"
    return f"{one.mean:.{digits}f}{spread} ({len(one.values)})"


def difference(one: ReplicatedFigure | ReplicatedDirection) -> str:
    """Ours − published, or variant − reference, with its sign."""
    value = one.difference if isinstance(one, ReplicatedFigure) else one.delta
    return "-" if value is None else _signed(value, 4)


def interval(one: ReplicatedFigure | ReplicatedDirection) -> str:
    """The interval of that difference."""
    return "" if one.low is None or one.high is None else f"{_signed(one.low, 3)} to {_signed(one.high, 3)}"


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}g}".replace("-", "\N{MINUS SIGN}")


def figure_name(one: ReplicatedFigure) -> str:
    """What was published; a star where it is defined otherwise than ours, or not at all."""
    return one.published_as + ("" if one.same_definition else " *")


def claim(one: ReplicatedDirection) -> str:
    """What was published, and how many of its own numbers say otherwise."""
    contrary = f"; {one.contrary} of {one.pairs} published pairs the other way" if one.contrary else ""
    return one.published_as + contrary


def transfers(one: ReplicatedDirection) -> str:
    """The outcome with its reason."""
    return TRANSFERS[one.outcome] + (f" ({one.why})" if one.why else "")


def figures_title(parts: Sequence[ReplicatedFigure], regime: str) -> str:
    """What a table of figures shows."""
    beside = "; beside, the publication does not speak of it" if any(one.beside for one in parts) else ""
    other = "; * another definition, or none" if any(not one.same_definition for one in parts) else ""
    return f"Regime {regime}{beside}: mean ± SD (runs); difference = ours − published{other}"


def warnings(found: Replication) -> Iterator[str]:
    """Where the runs are not those that the table asks for, or not all there."""
    if found.runs_ended < found.runs_planned:
        yield f"Interim: {found.runs_ended} of {found.runs_planned} runs have ended. This is no inference yet."
    if found.changed:
        yield f"NOT A REPLICATION: these runs were made with other settings than the table's study: {_few(found.changed)}."
    if found.changed_beside:
        text = "The runs beside were made with other settings than the table's study; its own figures are not touched"
        yield f"{text}: {_few(found.changed_beside)}."


def _few(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - _FEW} more" if len(lines) > _FEW else ""
    return "; ".join(lines[:_FEW]) + more
