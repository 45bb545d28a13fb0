"""The verdict in sentences: one per variant and regime, with the numbers it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ablationlab.core.format import number, p_value, plain, with_unit
from ablationlab.report.charts.theme import colours
from ablationlab.report.naming import in_sentence, metric_of, printed_unit
from ablationlab.report.tables.comparisons import difference_of

if TYPE_CHECKING:
    from ablationlab.records.analysis import Comparison
    from ablationlab.records.results import Results
    from ablationlab.records.verdict import HypothesisVerdict, VariantVerdict

#: More verdicts than this are first shown as a table.
MOST_IN_A_ROW = 4
#: decision -> (what the badge says, its tone)
BADGES = {
    "adopt": ("Adopt", "good"),
    "adopt-in-regime": ("Adopt in this regime", "good"),
    "trade-off": ("Trade-off", "warn"),
    "keep-baseline": ("Keep the baseline", "bad"),
    "tie": ("Tie", "plain"),
    "inconclusive": ("Inconclusive", "warn"),
}


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
    needs: str
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


def in_words(text: str, metrics: Iterable[str]) -> str:
    """A sentence of the verdict with metrics named as one says them."""
    text = in_sentence(text, metrics)
    return text.replace("holm-adjusted", "Holm-adjusted").replace("95%", "95 %")


def verdict_views(material: Results, anchors: dict[str, str]) -> list[VerdictView]:
    """One view per verdict, in the order of verdict.json."""
    return [
        _view(material, one, anchors) for one in (material.verdict.verdicts if material.verdict is not None else ())
    ]


def _view(material: Results, one: VariantVerdict, anchors: dict[str, str]) -> VerdictView:
    comparison, readable = _main(material, one), partial(in_words, metrics=material.metrics)
    badge, tone = BADGES[one.decision]
    analysis = material.analysis
    one_rate = analysis is not None and analysis.source == "records" and analysis.sweep is None
    lead, rest = _sentence(one, comparison, one_rate)
    return VerdictView(
        variant=one.variant,
        reference=one.reference,
        regime=one.regime,
        colour=colours(material).get(one.variant, "#626b75"),
        badge=badge,
        tone=tone,
        label=one.label,
        lead=lead,
        rest=rest,
        why=readable(one.why[:1].upper() + one.why[1:]) + ("" if one.why.endswith(".") else "."),
        facts=tuple(_facts(material, one, comparison, anchors)),
        mini=None if comparison is None else mini(comparison),
        checks=tuple((check.rule, check.applies, readable(check.why)) for check in one.checks),
        needs="" if one.needs is None else readable(one.needs.text),
        tie_break="" if one.tie_break is None else readable(one.tie_break.text),
        trade_off="" if one.trade_off is None else readable(one.trade_off.text),
        evidence=tuple((name, anchors.get(name, "")) for name in one.evidence),
    )


def _main(material: Results, one: VariantVerdict) -> Comparison | None:
    """The comparison that the verdict speaks of: that of the primary metric, else the first of its evidence."""
    if material.analysis is not None and material.primary is not None:
        found = material.analysis.comparison(material.primary, one.regime, one.variant, one.reference)
        if found is not None and found.n:
            return found
    there = (material.comparison(name) for name in one.evidence)
    return next((found for found in there if found is not None and found.n), None)


def _sentence(one: VariantVerdict, comparison: Comparison | None, one_rate: bool) -> tuple[str, str]:
    """The verdict's sentence: what to do, and why in a few words, from its decision and the size of the main difference."""
    size = "" if comparison is None else _size(comparison)
    rate = ", at this learning rate" if one_rate else ""
    where = f" in regime {one.regime}" if one.regime != "default" else ""
    base = f"the baseline ({one.reference})"
    sentences = {
        "adopt": (f"Use {one.variant}{where}{rate}.", f"It is better than {base}{size}, and no less stable."),
        "adopt-in-regime": (
            f"Use {one.variant}{where}.",
            f"It trains stably where {base} does not, and costs no more than the registered margins allow.",
        ),
        "trade-off": (
            f"{one.variant} buys stability{where} at a price.",
            f"It trains stably where {base} does not, but may cost more than the registered margins allow.",
        ),
        "keep-baseline": (f"Keep {base}{where}.", f"{one.variant} is worse{size}."),
        "tie": (
            f"{one.variant} and {base} tie{where}.",
            "They are equivalent within the smallest effect that matters.",
        ),
        "inconclusive": (f"Undecided{where}.", f"This study does not tell {one.variant} from {base}."),
    }
    return sentences[one.decision]


def _size(comparison: Comparison) -> str:
    if comparison.delta is None:
        return ""
    unit = printed_unit(comparison.unit)
    if comparison.transform == "log":
        change = (math.exp(comparison.delta) - 1) * 100
        return f" by {number(abs(change), 2)} % in {metric_of(comparison)}"
    amount = number(abs(comparison.delta))
    return f" by {amount}{f' {unit}' if unit else ''} in {metric_of(comparison)}"


def _facts(
    material: Results, one: VariantVerdict, comparison: Comparison | None, anchors: dict[str, str]
) -> list[Fact]:
    found: list[Fact] = []
    if comparison is not None:
        link = anchors.get(comparison.id, "")
        unit = printed_unit(comparison.unit)
        interval = comparison.main_interval
        shown = difference_of(comparison)
        level = f"no interval from {comparison.n} pair{'s' if comparison.n != 1 else ''}"
        if interval is not None and interval.low is not None:
            level = f"{interval.level * 100:g} % interval {shown.range}, for one test"
        found.append(
            Fact(
                f"difference in {metric_of(comparison)}",
                plain(with_unit(shown.delta, shown.unit)),
                level,
                link,
            )
        )
        found.append(
            Fact(
                f"{one.reference} → {one.variant}",
                f"{number(comparison.reference_mean, 4)} → {number(comparison.variant_mean, 4)}",
                f"means over {comparison.n} seed{'s' if comparison.n != 1 else ''}" + (f", {unit}" if unit else ""),
                link,
            )
        )
        if comparison.smallest_effect and comparison.delta is not None:
            times = abs(comparison.delta) / comparison.smallest_effect
            found.append(
                Fact(
                    "times the smallest effect",
                    f"{number(times, 2)} ×",
                    f"that matters, {comparison.smallest_effect:g}{f' {unit}' if unit else ''}",
                    link,
                )
            )
        corrected = f"{comparison.correction}-adjusted over {comparison.family_size}".capitalize()
        found.append(
            Fact(
                f"p, {comparison.test}",
                p_value(comparison.p_adjusted if comparison.p_adjusted is not None else comparison.p),
                corrected if comparison.p_adjusted is not None else "",
                link,
            )
        )
    stability = material.analysis.stability if material.analysis is not None else None
    gain = None if stability is None else stability.gain(one.variant, one.reference, one.regime)
    if gain is not None:
        found.append(
            Fact(
                "unstable runs",
                f"{gain.reference_unstable} of {gain.n} → {gain.variant_unstable} of {gain.n}",
                f"{one.reference} → {one.variant}",
                "stability",
            )
        )
    return found


def mini(comparison: Comparison) -> Mini | None:
    """The interval, the seeds and the band of the smallest effect on one line, zero in view."""
    if comparison.delta is None:
        return None
    interval = comparison.main_interval
    bounds = [value for value in (interval.low, interval.high) if value is not None] if interval is not None else []
    effect = comparison.smallest_effect
    points = [0.0, comparison.delta, *bounds, *(pair.delta for pair in comparison.pairs)]
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
        mean=place(comparison.delta),
        zero=place(0.0),
        band=(place(-effect), place(effect)) if effect else None,
        seeds=tuple(place(pair.delta) for pair in comparison.pairs[:60]),
        label=f"Difference {value}, interval {shown.range}, zero and the smallest effect that matters in view",
        zero_label=f"0 ± {effect:g}" if effect else "0",
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


def hypothesis_views(material: Results) -> list[tuple[str, HypothesisVerdict, str]]:
    """(name, verdict, tone) of every hypothesis of the study."""
    if material.verdict is None:
        return []
    return [(name, found, STATUS[found.status]) for name, found in material.verdict.hypotheses.items()]
