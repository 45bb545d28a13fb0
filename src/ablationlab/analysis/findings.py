"""What a study asks besides its verdicts, answered in a sentence each: a publication's results, crossed settings.

Each sentence is made from the record that judged it; where there is none, there is no sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ablationlab.analysis.wording import capital, listed
from ablationlab.core.format import count_word, counted, difference, level, part, with_unit
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Analysis, InteractionContrast, Interactions
from ablationlab.records.metrics import metric_name
from ablationlab.records.replication import DirectionOutcome, ReplicatedDirection, ReplicatedFigure, Replication
from ablationlab.records.settings import TUNED

#: More places than this are counted.
MOST_PLACES: Final = 4


def at_places(regimes: Sequence[str]) -> str:
    """``in deep and hot``, ``in six regimes``, ``at tuned rates``."""
    own = [regime for regime in regimes if regime != TUNED]
    places = []
    if own:
        places.append(f"in {listed(own) if len(own) <= MOST_PLACES else counted(len(own), 'regime')}")
    if TUNED in regimes:
        places.append("at tuned rates")
    return " and ".join(places)


# --- a publication --------------------------------------------------------------------------------------------

_OUTCOMES: Final[Mapping[DirectionOutcome, str]] = {
    "reversed": "{n} {are} reversed",
    "absent": "{n} {are} shown to be smaller than what matters",
    "undecided": "{n} {stay} undecided",
    "not-measured": "{n} could not be measured",
}


_ALL_OUTCOMES: Final[Mapping[DirectionOutcome, str]] = {"transfers": "{n} {are} found too", **_OUTCOMES}


def replicated(replication: Replication) -> str:
    """Whether the published results come back."""
    directions = [direction for direction in replication.directions if not direction.beside]
    known = [figure for figure in replication.figures if not figure.beside and figure.outcome in ("within", "outside")]
    texts = [_directions(directions)] if directions else []
    if known:
        texts.append(f"{compatible(known, replication.level)}.")
    if replication.changed and texts:
        return f"Not a replication, for settings differ from the published ones. {' '.join(texts)}"
    return " ".join(texts)


def compatible(known: Sequence[ReplicatedFigure], of: float) -> str:
    """How many published figures the interval of the difference to ours, at level *of*, allows; without a full stop."""
    within = sum(figure.outcome == "within" for figure in known)
    interval = f"the {level(of)} interval of the difference"
    other = sum(not figure.published.same_definition for figure in known)
    note = f" ({count_word(other)} {'is' if other == 1 else 'are'} not defined as ours)" if other else ""
    if len(known) == 1:
        return f"For the one published figure, {interval} {'includes' if within else 'does not include'} 0{note}"
    figures = f"For {part(within, len(known))} published figures"
    return f"{figures}, {interval} includes 0{note}" if within else f"{figures} does {interval} include 0{note}"


def _directions(directions: Sequence[ReplicatedDirection]) -> str:
    """What became of the published directions; those that were asked in several regimes are told regime by regime."""
    published = {
        (asked.metric, asked.variant, asked.reference, asked.sign)
        for asked in (direction.published for direction in directions)
    }
    places = grouped((direction.regime, direction) for direction in directions)
    if len(places) == 1 or len(published) == len(directions):
        return _in_one_regime(directions)
    texts = []
    for regime, here in places.items():
        by_outcome = grouped((direction.outcome, direction.published.variant) for direction in here)
        parts = [
            words.format(
                n=count_word(len(names)), are="is" if len(names) == 1 else "are", stay=_verb(len(names), "stay")
            )
            + (f" ({listed(dict.fromkeys(names))})" if outcome == "transfers" else "")
            for outcome, words in _ALL_OUTCOMES.items()
            if (names := by_outcome.get(outcome, []))
        ]
        none = [] if "transfers" in by_outcome else ["none is found"]
        texts.append(f"{at_places([regime])}, {listed([*none, *parts])}")
    many = f"{capital(counted(len(published), 'published direction'))} were"
    many = "The published direction was" if len(published) == 1 else many
    return f"{many} tested {at_places(list(places))}: {'; '.join(texts)}."


def _in_one_regime(directions: Sequence[ReplicatedDirection]) -> str:
    by_outcome = grouped((direction.outcome, direction) for direction in directions)
    transferred = by_outcome.get("transfers", [])
    whole = f"{part(len(transferred), len(directions))} published directions"
    if len(directions) == 1:
        whole = "the published direction" if transferred else "the published direction is not shown here"
    text = capital(whole)
    if transferred:
        text += f" {'is' if len(transferred) == 1 else 'are'} found here too"
        if len(transferred) < len(directions):
            regimes = dict.fromkeys(direction.regime for direction in directions)
            places = grouped((direction.regime, direction.published.variant) for direction in transferred)
            where = [
                f"{listed(dict.fromkeys(names))}{f' {at_places([regime])}' if len(regimes) > 1 else ''}"
                for regime, names in places.items()
            ]
            text += f" ({'; '.join(where)})"
    elif len(directions) > 1:
        text += " are found here"
    rest = [
        words.format(n=count_word(len(alike)), are="is" if len(alike) == 1 else "are", stay=_verb(len(alike), "stay"))
        for outcome, words in _OUTCOMES.items()
        if (alike := by_outcome.get(outcome, [])) and len(directions) > 1
    ]
    return f"{text}; {listed(rest)}." if rest else f"{text}."


def _verb(n: int, verb: str) -> str:
    return f"{verb}s" if n == 1 else verb


# --- crossed settings -----------------------------------------------------------------------------------------


def crossed(analysis: Analysis) -> str:
    """All that is known of the crossed settings, as one text."""
    return " ".join(crossed_effects(analysis))


def _is_shown(contrast: InteractionContrast) -> bool:
    return contrast.p_adjusted is not None and contrast.p_adjusted <= 1 - contrast.level


def crossed_effects(analysis: Analysis) -> list[str]:
    """Which of the crossed settings have an effect, of what size and with the interval that decides, and which have none
    that is shown; then whether they interact."""
    crossing = analysis.interactions
    tested = (
        [] if crossing is None else [contrast for contrast in crossing.contrasts if contrast.p_adjusted is not None]
    )
    if crossing is None or not tested:
        return []
    shown = [contrast for contrast in tested if _is_shown(contrast)]
    effects = {factor.key: _effects(analysis, crossing, factor.key, shown) for factor in crossing.factors}
    asked = {contrast.factors[0] for contrast in tested if contrast.kind == "main"}
    flat = [_short(key) for key, text in effects.items() if not text and key in asked]
    name = metric_name(crossing.metric)
    what = f"the difference from {analysis.baseline} in {name}" if crossing.cells else name
    main = [
        f"{_short(key)} changes {'it, too' if place else what}: {text}."
        for place, (key, text) in enumerate((key, text) for key, text in effects.items() if text)
    ]
    at_levels = _at_levels(analysis, crossing, flat) if flat else []
    if flat:
        whole = f"neither {listed(flat, 'nor')} is" if len(flat) == 2 else f"none of {listed(flat)} is"
        which = f"{flat[0]} is not" if len(flat) == 1 else whole
        average = " on average" if at_levels else ""
        main += [f"{which} shown to change {'it' if main else what}{average}.", *at_levels]
    together = _together(tested, shown)
    registered = {contrast.kind for contrast in tested if contrast.label == "registered"}
    first = together if registered == {"interaction"} else []  # what was registered comes first
    if at_levels and together == [
        _NO_INTERACTION
    ]:  # next to an effect at one level that would read as if there were none
        together = ["Whether the effect differs between levels of the other setting is not shown."]
    rest_of = main if first else [*main, *together]
    if not rest_of:
        return first
    others = "setting" if len(crossing.factors) == 2 else "settings"
    lead = [] if "main" in registered else ["exploratory"]
    lead += [f"averaged over the other {others}"] if main and len(crossing.factors) > 1 else []
    begin = capital(f"{', '.join(lead)}: ") if lead else ""
    return [*first, " ".join([f"{begin}{rest_of[0]}", *rest_of[1:]])]


_NO_INTERACTION = "No interaction of the settings is shown."


def _together(tested: Sequence[InteractionContrast], shown: Sequence[InteractionContrast]) -> list[str]:
    mixed = [contrast for contrast in shown if contrast.kind == "interaction"]
    if mixed:
        names = list(dict.fromkeys(contrast.variant for contrast in mixed if contrast.variant))
        return [f"The settings {_interacting_sets(mixed)} interact{f' for {listed(names)}' if names else ''}."]
    asked = any(contrast.kind == "interaction" for contrast in tested)
    return [_NO_INTERACTION] if asked else []


def _interacting_sets(contrasts: Sequence[InteractionContrast]) -> str:
    return listed(dict.fromkeys(" and ".join(map(_short, contrast.factors)) for contrast in contrasts))


def _at_levels(analysis: Analysis, crossing: Interactions, flat: Sequence[str]) -> list[str]:
    """What is shown of a setting at single levels of the other, where it is not shown on average."""
    shown = [effect for effect in crossing.simple if _short(effect.factor) in flat and effect.p_adjusted is not None]
    steps = grouped(
        ((effect.other, effect.at, effect.factor, effect.reference, effect.level), effect)
        for effect in shown
        if (effect.p_adjusted or 0.0) <= 0.05 and effect.estimate
    )
    unit = analysis.metrics[crossing.metric].unit
    sentences = []
    for (other, at, factor, before, after), effects in steps.items():
        ways = _ways([_Effect(e.variant, e.estimate, e.low, e.high) for e in effects], crossing, unit, bounds=False)
        sentences.append(f"At {_short(other)} {at} alone, from {_short(factor)} {before} to {after} it {listed(ways)}.")
    return sentences


class _Effect(NamedTuple):
    """An effect with its interval; *variant*: none where arms are crossed."""

    variant: str | None
    estimate: float | None
    low: float | None
    high: float | None


def _ways(effects: Sequence[_Effect], crossing: Interactions, unit: str, *, bounds: bool = True) -> list[str]:
    """``falls by 0.01 to 0.12 nats/token (a and b; deciding intervals within −0.14 to −0.002)``, ``rises by ...``"""
    ways = []
    for word, alike in grouped(
        (("falls", "rises")[(effect.estimate or 0.0) > 0], effect) for effect in effects
    ).items():
        ordered = sorted(alike, key=lambda effect: abs(effect.estimate or 0.0))
        names = [effect.variant for effect in ordered if effect.variant]
        ends = (ordered[0], ordered[-1])
        sizes = [
            difference(effect.estimate, effect.low, effect.high, log=crossing.transform == "log", unit=unit)
            for effect in ends
        ]
        amount = with_unit(" to ".join(dict.fromkeys(size.size for size in sizes)), sizes[0].unit)
        notes = [listed(names)] if names else []
        lows = [effect.low for effect in ordered if effect.low is not None]
        highs = [effect.high for effect in ordered if effect.high is not None]
        if bounds and lows and highs:
            reach = difference(None, min(lows), max(highs), log=crossing.transform == "log", unit=unit).range
            notes.append(f"deciding interval{'' if len(ordered) == 1 else 's within'} {reach}")
        note = f" ({'; '.join(notes)})" if notes else ""
        ways.append(f"{word} by {amount}{note}")
    return ways


def _short(key: str) -> str:
    return key.rpartition(".")[2]


def _effects(analysis: Analysis, crossing: Interactions, key: str, shown: Sequence[InteractionContrast]) -> str:
    """What the main effects of one setting are, falls and rises apart; nothing where none is shown."""
    mine = [
        contrast for contrast in shown if contrast.kind == "main" and contrast.factors == (key,) and contrast.estimate
    ]
    steps = grouped(((contrast.references[0], contrast.levels[0]), contrast) for contrast in mine)
    unit = analysis.metrics[crossing.metric].unit
    clauses = []
    for (before, after), contrasts in steps.items():
        found = [_Effect(c.variant, c.estimate, c.deciding_low, c.deciding_high) for c in contrasts]
        clauses.append(f"from {before} to {after} it {listed(_ways(found, crossing, unit))}")
    return "; ".join(clauses)
