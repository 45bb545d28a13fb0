"""What follows from a replication, in sentences: what comes out, what does not, where a sign flips, what transfers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablationlab.records.replication import DirectionPart, FigurePart

_SAYS = {
    "transfers": "Found here too",
    "reversed": "The opposite is found here",
    "absent": "Not found here, and shown to be smaller than what matters",
    "undecided": "Undecided here",
    "not-measured": "Not measured",
}


def conclusions(figures: Sequence[FigurePart], directions: Sequence[DirectionPart], level: float) -> Iterator[str]:
    """Sentences for terminal, page and paper."""
    own = [one for one in figures if not one.beside]
    if own:
        yield from _of_figures(own, level)
    for regime in dict.fromkeys(one.regime for one in figures if one.beside):
        rest = [one for one in figures if one.beside and one.regime == regime]
        known = [one for one in rest if one.outcome in ("within", "outside")]
        if known:
            within = [one for one in known if one.outcome == "within"]
            names = f": {_listed(within)}" if within else ""
            where = f"In regime {regime}, of which the publication does not speak,"
            yield f"{where} {len(within)} of {len(known)} lie within{names}."
    yield from _flips(directions)
    for outcome, words in _SAYS.items():
        told = [one for one in directions if not one.beside and one.outcome == outcome]
        if told:
            yield f"{words}: " + "; ".join(_contrast(one) for one in told) + "."


def _of_figures(own: Sequence[FigurePart], level: float) -> Iterator[str]:
    within = [one for one in own if one.outcome == "within"]
    outside = [one for one in own if one.outcome == "outside"]
    known = len(within) + len(outside)
    if within:
        yield f"{len(within)} of {known} published figures lie within the interval of our runs: {_listed(within)}."
    if outside:
        yield f"These do not come out: {_listed(outside, values=True)}."
    yield from dict.fromkeys(one.note for one in outside if one.note)
    if known > 1:
        chance = (1 - level) * known
        text = f"At {level:.0%} each, about {chance:.1g} of {known} would lie outside by chance alone"
        yield f"{text}; figures of one seed depend on each other."
    for word, text in (("no-interval", "No interval could be made for"), ("not-measured", "Not measured")):
        rest = [one for one in own if one.outcome == word]
        if rest:
            yield f"{text}: {_listed(rest)}."


def _flips(directions: Sequence[DirectionPart]) -> Iterator[str]:
    """Where a sign is shown both in the publication's regime and, the other way, beside it."""
    for one in directions:
        if one.beside or one.outcome not in ("transfers", "reversed") or one.delta is None:
            continue
        same = (one.metric, one.variant, one.reference)
        for other in directions:
            if not other.beside or (other.metric, other.variant, other.reference) != same or other.delta is None:
                continue
            if other.outcome in ("transfers", "reversed") and other.outcome != one.outcome:
                yield (
                    f"The sign flips: {one.variant} − {one.reference} in {one.metric} is {one.delta:+.3g} in regime "
                    f"{one.regime} and {other.delta:+.3g} in regime {other.regime}."
                )


def _listed(parts: Sequence[FigurePart], *, values: bool = False) -> str:
    by_metric: dict[str, list[str]] = {}
    for one in parts:
        shown = f" ({one.published:g} published, {one.mean:.4g} here)" if values and one.mean is not None else ""
        by_metric.setdefault(one.published_as, []).append(f"{one.variant}{shown}")
    return "; ".join(f"{metric} of {', '.join(names)}" for metric, names in by_metric.items())


def _contrast(one: DirectionPart) -> str:
    where = "" if one.regime == "default" else f" ({one.regime})"
    return f"{one.variant} {one.sign} in {one.metric} than {one.reference}{where}"
