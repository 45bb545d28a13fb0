"""How a replication's numbers and outcomes are written, in the terminal and in reports alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablationlab.analysis.findings import compatible
from ablationlab.analysis.wording import sensitivity_reasons
from ablationlab.core.format import DASH, Difference, fixed, mean_sd, number, percent, setting
from ablationlab.core.format import difference as format_difference
from ablationlab.core.grouping import grouped
from ablationlab.records.metrics import metric_name
from ablationlab.records.replication import ChangedSetting, ReplicatedDirection, ReplicatedFigure, Replication

WITHIN = {"within": "yes", "outside": "no", "no-interval": "no interval", "not-measured": "not measured"}
TRANSFERS = {
    "transfers": "transfers",
    "reversed": "does not: opposite sign",
    "absent": "does not: no effect",
    "undecided": "undecided",
    "not-measured": "not measured",
}
_SAYS = {
    "transfers": "Found here too",
    "reversed": "The opposite is found here",
    "absent": "Not found here, and shown to be smaller than what matters",
    "undecided": "Undecided here",
    "not-measured": "Not measured",
}
_FEW = 6


def published(figure: ReplicatedFigure) -> str:
    """The published value as it was printed, and of how many runs."""
    value, digits = figure.published_value, figure.published.digits

    def printed(number: float) -> str:
        return setting(number) if digits is None else fixed(number, digits)

    return f"{printed(value.mean)}{'' if value.sd is None else f' ± {printed(value.sd)}'} ({value.n})"


def ours(figure: ReplicatedFigure) -> str:
    """Mean and spread of our runs, and how many they are."""
    return DASH if figure.mean is None else f"{mean_sd(figure.mean, figure.sd)} ({len(figure.values)})"


def difference(part: ReplicatedFigure | ReplicatedDirection) -> Difference:
    """Ours − published, or variant − reference, with its interval."""
    return format_difference(*part.estimate)


def figure_name(figure: ReplicatedFigure) -> str:
    """What was published; a star where it is defined otherwise than ours, or not at all."""
    return figure.published.published_as + ("" if figure.published.same_definition else " *")


def claim(direction: ReplicatedDirection) -> str:
    """What was published, and how many of its own numbers say otherwise."""
    published = direction.published
    pairs = f"{published.contrary} of {len(published.pairs)} published pairs"
    return published.published_as + (f"; {pairs} the other way" if published.contrary else "")


def transfers(direction: ReplicatedDirection) -> str:
    """The outcome with its reason."""
    reason = "; ".join(_direction_reasons(direction))
    return TRANSFERS[direction.outcome] + (f" ({reason})" if reason else "")


def _direction_reasons(direction: ReplicatedDirection) -> Iterator[str]:
    comparison = direction.comparison
    if comparison is None:
        yield "the records hold no such comparison"
    elif direction.reason == "no-comparison":
        yield "no seed has a value in both arms"
    elif direction.reason == "not-sensitive":
        yield "not sensitive at this scale: " + "; ".join(sensitivity_reasons(comparison.sensitivity))
    elif direction.reason == "equivalent":
        yield f"equivalent within {setting(comparison.smallest_effect)}"
    elif direction.reason == "no-difference-shown":
        yield "no difference is shown"
    if direction.survivors_only and direction.reason not in ("no-comparison", "not-sensitive"):
        yield "surviving pairs only"
    if direction.unstable:
        yield "unstable: " + ", ".join(f"{arm.unstable} of {arm.runs} {arm.variant} runs" for arm in direction.unstable)


def figures_title(figures: Sequence[ReplicatedFigure], regime: str) -> str:
    """What a table of figures shows."""
    beside = "; for contrast: the publication does not cover it" if any(figure.beside for figure in figures) else ""
    other = "; * another definition, or none" if any(not figure.published.same_definition for figure in figures) else ""
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


def _few(changes: Sequence[ChangedSetting]) -> str:
    more = f" and {len(changes) - _FEW} more" if len(changes) > _FEW else ""
    return "; ".join(map(_changed, changes[:_FEW])) + more


def _changed(change: ChangedSetting) -> str:
    asked = "the study's own" if change.asked is None else repr(change.asked)
    return f"{change.key} = {change.ours!r} instead of {asked}"


def conclusions(replication: Replication) -> Iterator[str]:
    """What follows, in sentences for terminal, page and paper."""
    figures, directions = replication.figures, replication.directions
    own = [figure for figure in figures if not figure.beside]
    if own:
        yield from _of_figures(own, replication.level)
    for regime in dict.fromkeys(figure.regime for figure in figures if figure.beside):
        rest = [figure for figure in figures if figure.beside and figure.regime == regime]
        known = [figure for figure in rest if figure.outcome in ("within", "outside")]
        if known:
            within = [figure for figure in known if figure.outcome == "within"]
            names = f": {_listed(within)}" if within else ""
            where = f"In regime {regime}, which the publication does not cover,"
            yield f"{where} {len(within)} of {len(known)} intervals include 0{names}."
    yield from _flips(directions)
    for outcome, words in _SAYS.items():
        same = [direction for direction in directions if not direction.beside and direction.outcome == outcome]
        if same:
            yield f"{words}: " + "; ".join(_contrast(direction) for direction in same) + "."


def _of_figures(own: Sequence[ReplicatedFigure], level: float) -> Iterator[str]:
    within = [figure for figure in own if figure.outcome == "within"]
    outside = [figure for figure in own if figure.outcome == "outside"]
    known = len(within) + len(outside)
    if within:
        yield f"{compatible([*within, *outside], level)}: {_listed(within)}."
    if missed := [figure for figure in outside if figure.published.same_definition]:
        yield f"These are not reproduced: {_listed(missed, values=True)}."
    if unlike := [figure for figure in outside if not figure.published.same_definition]:
        yield f"These differ, but are defined in another way there, or not at all: {_listed(unlike, values=True)}."
    yield from dict.fromkeys(figure.published.note for figure in outside if figure.published.note)
    if known > 1:
        chance = (1 - level) * known
        text = f"At {percent(level)} each, about {number(chance, 1)} of {known} would exclude 0 by chance alone"
        yield f"{text}; figures of one seed depend on each other."
    for word, text in (("no-interval", "No interval could be made for"), ("not-measured", "Not measured")):
        rest = [figure for figure in own if figure.outcome == word]
        if rest:
            yield f"{text}: {_listed(rest)}."


def _flips(directions: Sequence[ReplicatedDirection]) -> Iterator[str]:
    """Where a sign is shown both in the publication's regime and, the other way, beside it."""
    shown = [direction for direction in directions if direction.outcome in ("transfers", "reversed")]
    for own in (direction for direction in shown if not direction.beside):
        variant, reference, metric = own.published.variant, own.published.reference, own.published.metric
        for other in (direction for direction in shown if direction.beside and direction.outcome != own.outcome):
            if (other.published.variant, other.published.reference, other.published.metric) == (
                variant,
                reference,
                metric,
            ):
                here, there = (f"{number(d.estimate[0], sign=True)} in regime {d.regime}" for d in (own, other))
                yield f"The sign flips: {variant} − {reference} in {metric_name(metric)} is {here} and {there}."


def _listed(parts: Sequence[ReplicatedFigure], *, values: bool = False) -> str:
    def shown(figure: ReplicatedFigure) -> str:
        if not values or figure.mean is None:
            return figure.variant
        theirs = figure.published_value.mean
        apart = (n for n in range(4, 16) if number(figure.mean, n) != number(theirs, n))
        mean = number(figure.mean, next(apart, 4))
        return f"{figure.variant} ({setting(theirs)} published, {mean} here)"

    by_metric = grouped((figure.published.published_as, shown(figure)) for figure in parts)
    return "; ".join(f"{metric} of {', '.join(names)}" for metric, names in by_metric.items())


def _contrast(direction: ReplicatedDirection) -> str:
    where = "" if direction.regime == "default" else f" ({direction.regime})"
    published = direction.published
    return f"{published.variant} {published.sign} in {metric_name(published.metric)} than {published.reference}{where}"
