"""How a replication's numbers and outcomes are written, in the terminal and in reports alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablationlab.core.format import DASH, Difference, fixed, mean_sd, setting
from ablationlab.core.format import difference as format_difference
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
    if figure.digits is None:
        mean, sd = setting(figure.published), None if figure.published_sd is None else setting(figure.published_sd)
    else:
        mean = fixed(figure.published, figure.digits)
        sd = None if figure.published_sd is None else fixed(figure.published_sd, figure.digits)
    return f"{mean}{'' if sd is None else f' ± {sd}'} ({figure.published_n})"


def ours(figure: ReplicatedFigure) -> str:
    """Mean and spread of our runs, and how many they are."""
    return DASH if figure.mean is None else f"{mean_sd(figure.mean, figure.sd)} ({len(figure.values)})"


def difference(part: ReplicatedFigure | ReplicatedDirection) -> Difference:
    """Ours − published, or variant − reference, with its interval."""
    if isinstance(part, ReplicatedFigure):
        return format_difference(part.difference, part.low, part.high)
    return format_difference(part.delta, part.low, part.high)


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


def figures_title(figures: Sequence[ReplicatedFigure], regime: str) -> str:
    """What a table of figures shows."""
    beside = "; for contrast: the publication does not cover it" if any(figure.beside for figure in figures) else ""
    other = "; * another definition, or none" if any(not figure.same_definition for figure in figures) else ""
    return f"Regime {regime}{beside}: mean ± SD (runs); difference = ours − published{other}"


def warnings(replication: Replication) -> Iterator[str]:
    """Where the runs are not those that the table asks for, or not all there."""
    if replication.runs_ended < replication.runs_planned:
        yield f"Interim: {replication.runs_ended} of {replication.runs_planned} runs have ended. This is not inference."
    if replication.changed:
        changed = _few(replication.changed)
        yield f"NOT A REPLICATION: these runs were made with other settings than the table's study: {changed}."
    if replication.changed_beside:
        text = "The runs beside were made with other settings than the table's study; its own figures are not touched"
        yield f"{text}: {_few(replication.changed_beside)}."


def _few(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - _FEW} more" if len(lines) > _FEW else ""
    return "; ".join(lines[:_FEW]) + more
