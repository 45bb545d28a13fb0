"""The verdict in sentences: one per variant and regime, with the numbers it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablationlab.analysis.answer import main_comparison, verdict_sentence
from ablationlab.analysis.wording import (
    DECISIONS,
    Clause,
    adjusted,
    difference_of,
    hypothesis_clauses,
    medians_of,
    method_name,
    unstable_means,
    verdict_words,
)
from ablationlab.analysis.wording import name_of as metric_of
from ablationlab.core.format import counted, difference, level, mean_beside, number, p_value, setting, with_unit
from ablationlab.records.verdict import Decision
from ablationlab.report.charts.theme import colours
from ablationlab.report.naming import printed_unit
from ablationlab.report.tables.ablation import DECISION_TONES

if TYPE_CHECKING:
    from ablationlab.records.analysis import Analysis, Comparison
    from ablationlab.records.results import Results
    from ablationlab.records.verdict import HypothesisVerdict, VariantVerdict

#: More verdicts than this are first shown as a table.
MOST_IN_A_ROW = 4


@dataclass(frozen=True)
class Fact:
    """One number of the evidence, with where it comes from."""

    label: str
    value: str
    note: str = ""
    link: str = ""


@dataclass(frozen=True)
class Mini:
    """A small picture of an interval, in the units of a 0..1000 wide view."""

    bar: tuple[float, float] | None
    equal: tuple[float, float] | None  # of the equivalence test, where it is what decides
    mean: float
    zero: float
    band: tuple[float, float] | None
    seeds: tuple[float, ...]
    label: str
    zero_label: str
    zero_words: str
    value: str
    apart: bool

    @staticmethod
    def side(place: float) -> str:
        """Which way a label at that place runs, so as to stay within the picture."""
        return "start" if place < 330 else "end" if place > 670 else "middle"


@dataclass(frozen=True)
class VerdictView:
    """What the page shows of one verdict."""

    variant: str
    reference: str
    regime: str
    colour: str
    badge: str
    tone: str
    label: str
    lead: str
    rest: str
    why: str
    facts: tuple[Fact, ...]
    mini: Mini | None
    checks: tuple[tuple[int, bool, str], ...]
    notes: str
    tie_break: str
    trade_off: str
    evidence: tuple[tuple[str, str], ...]

    @property
    def anchor(self) -> str:
        """Where the page has it."""
        return f"verdict-{self.regime}-{self.variant}"


@dataclass(frozen=True)
class Overview:
    """Variants by regimes, for a study with more verdicts than one reads in a row."""

    regimes: tuple[str, ...]
    rows: tuple[tuple[str, tuple[VerdictView | None, ...]], ...]


def overview_of(views: list[VerdictView]) -> Overview | None:
    """The table, where there are more than `MOST_IN_A_ROW` verdicts."""
    if len(views) <= MOST_IN_A_ROW:
        return None
    regimes = tuple(dict.fromkeys(view.regime for view in views))
    by_place = {(view.variant, view.regime): view for view in views}
    variants = dict.fromkeys(view.variant for view in views)
    return Overview(
        regimes, tuple((name, tuple(by_place.get((name, regime)) for regime in regimes)) for name in variants)
    )


def verdict_views(results: Results, anchors: dict[str, str]) -> list[VerdictView]:
    """One view per verdict, registered ones first; none without the analysis that it follows from."""
    if results.analysis is None or results.verdict is None:
        return []
    registered_first = sorted(results.verdict.verdicts, key=lambda verdict: verdict.label != "registered")
    return [_view(results, results.analysis, verdict, anchors) for verdict in registered_first]


def _view(results: Results, analysis: Analysis, verdict: VariantVerdict, anchors: dict[str, str]) -> VerdictView:
    assert results.verdict is not None
    comparison, words = main_comparison(analysis, verdict), verdict_words(analysis, verdict, results.verdict)
    lead, rest = verdict_sentence(analysis, results.verdict, verdict)
    return VerdictView(
        variant=verdict.variant,
        reference=verdict.reference,
        regime=verdict.regime,
        colour=colours(results).get(verdict.variant, "#626b75"),
        badge=DECISIONS[verdict.decision].capitalize(),
        tone=DECISION_TONES.get(verdict.decision, "plain"),
        label=verdict.label,
        lead=lead,
        rest=rest,
        why=words.why,
        facts=tuple(_facts(results, verdict, comparison, anchors)),
        mini=None if comparison is None else mini(comparison),
        checks=tuple((check.rule, check.applies, why) for check, why in zip(verdict.checks, words.checks, strict=True)),
        notes=" ".join(filter(None, (words.notes, words.more_seeds, words.needs, words.fragility))),
        tie_break=words.tie_break,
        trade_off=words.trade_off,
        evidence=tuple((name, anchors.get(name, "")) for name in verdict.evidence),
    )


def _facts(
    results: Results, verdict: VariantVerdict, comparison: Comparison | None, anchors: dict[str, str]
) -> list[Fact]:
    arms = f"{verdict.reference} → {verdict.variant}"
    facts: list[Fact] = []
    if comparison is not None:
        link = anchors.get(comparison.id, "")
        unit = printed_unit(comparison.unit)
        interval, shown, pairs = comparison.main_interval, difference_of(comparison), comparison.n
        unpaired = comparison.design == "unpaired"
        note = f"no interval from {comparison.sample if unpaired else counted(pairs, 'pair')}"
        if comparison.told_by_medians:
            note = unstable_means(comparison)
        elif interval is not None and interval.low is not None:
            note = f"{level(interval.level)} interval {shown.range}" + (", unpaired (Welch)" if unpaired else "")
        tost = comparison.equivalence
        if tost is not None and tost.equivalent and tost.low is not None:
            equal = difference(comparison.delta, tost.low, tost.high)
            within = f"{level(1 - 2 * tost.alpha)} interval of the equivalence test {equal.range}"
            decides = verdict.decision == Decision.TIE
            note = f"{within}, which decides the tie; test for a difference: {note}" if decides else f"{note}; {within}"
        name = metric_of(comparison)
        percent = shown.unit == "%"  # a longer unit would not fit beside the number
        within = "" if percent or shown.unit in ("", "1") else f" ({shown.unit})"
        value = with_unit(shown.delta, "%") if percent else shown.delta
        facts.append(Fact(f"difference in {name}{within}", value, note, link))
        means = (
            mean_beside(comparison.reference_mean, comparison.reference_sd),
            mean_beside(comparison.variant_mean, comparison.variant_sd),
        )
        middle = "means"
        if comparison.told_by_medians:
            means, middle = medians_of(comparison), "medians"
        runs = comparison.sample if unpaired else counted(pairs, "seed")
        facts.append(Fact(arms, " → ".join(means), f"{middle} over {runs}" + (f", {unit}" if unit else ""), link))
        if comparison.smallest_effect and comparison.delta is not None and not comparison.told_by_medians:
            times = abs(comparison.delta) / comparison.smallest_effect
            effect = with_unit(setting(comparison.smallest_effect), unit)
            many = "> 1,000" if times > 1000 else "< 0.01" if times < 0.01 else number(times, 2)
            facts.append(Fact("times the smallest effect", f"{many} ×", f"that matters, {effect}", link))
        facts.append(
            Fact(
                f"p, {method_name(comparison.test)}",
                p_value(comparison.p if comparison.p_adjusted is None else comparison.p_adjusted),
                "" if comparison.p_adjusted is None else adjusted(comparison),
                link,
            )
        )
    stability = results.analysis.stability if results.analysis is not None else None
    gain = None if stability is None else stability.gain(verdict.variant, verdict.reference, verdict.regime)
    if gain is not None:
        counts = f"{gain.reference_unstable} of {gain.reference_runs} → {gain.variant_unstable} of {gain.variant_runs}"
        facts.append(Fact("unstable runs", counts, arms, "stability"))
    return facts


def mini(comparison: Comparison) -> Mini | None:
    """The interval, the seeds and the band of the smallest effect on one line, zero in view."""
    if comparison.delta is None or comparison.told_by_medians:
        return None
    interval, tost = comparison.main_interval, comparison.equivalence
    bounds = [value for value in (interval.low, interval.high) if value is not None] if interval is not None else []
    shown_equal = tost is not None and bool(tost.equivalent)
    equal = [value for value in (tost.low, tost.high) if value is not None] if tost is not None and shown_equal else []
    effect = comparison.smallest_effect
    points = [0.0, comparison.delta, *bounds, *equal, *(pair.delta for pair in comparison.pairs)]
    points += [effect, -effect] if effect else []
    low, high = min(points), max(points)
    pad = (high - low) * 0.06 or 1.0
    low, high = low - pad, high + pad

    def place(value: float) -> float:
        return round((value - low) / (high - low) * 1000, 2)

    shown = difference_of(comparison)
    value = with_unit(shown.delta, shown.unit)
    return Mini(
        bar=(place(bounds[0]), place(bounds[1])) if len(bounds) == 2 else None,
        equal=(place(equal[0]), place(equal[1])) if len(equal) == 2 else None,
        mean=place(comparison.delta),
        zero=place(0.0),
        band=(place(-effect), place(effect)) if effect else None,
        seeds=tuple(place(pair.delta) for pair in comparison.pairs[:60]),
        label=f"Difference {value}, interval {shown.range}, zero and the smallest effect that matters in view",
        zero_label=f"0 ± {setting(effect)}" if effect else "0",
        zero_words=", the smallest effect that matters" if effect else "",
        value=value,
        apart=_apart(place(0.0), 340.0 if effect else 30.0, place(comparison.delta), 200.0),
    )


def _apart(first: float, its_width: float, second: float, second_width: float) -> bool:
    """Whether two labels leave each other room; a width is about what its text takes of the view at a usual size."""

    def span(place: float, width: float) -> tuple[float, float]:
        shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[Mini.side(place)]
        return place - shift * width, place + (1 - shift) * width

    (a, b), (c, d) = span(first, its_width), span(second, second_width)
    return b < c or d < a


STATUS = {"supported": "good", "rejected": "bad", "undecided": "warn"}


def hypothesis_views(results: Results) -> list[tuple[str, HypothesisVerdict, list[Clause], str]]:
    """(name, verdict, why in clauses, tone) of every hypothesis of the study."""
    if results.analysis is None or results.verdict is None:
        return []
    return [
        (name, hypothesis, hypothesis_clauses(results.analysis, hypothesis), STATUS[hypothesis.status])
        for name, hypothesis in results.verdict.hypotheses.items()
    ]
