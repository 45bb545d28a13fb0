"""What every section of the paper asks of the material, and the clauses that several of them share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ablationlab.records.analysis import MACRO, Analysis, Comparison, StabilityGain
from ablationlab.records.corpus import Component
from ablationlab.records.metrics import METRICS
from ablationlab.records.plan import Plan
from ablationlab.records.settings import ModelConfig, Study, looks_like_path
from ablationlab.records.verdict import Verdict
from ablationlab.report.material import Material
from ablationlab.report.naming import in_sentence, metric_of
from ablationlab.report.numbers import THIN, counted, level, p_clause, part, percent, setting, shown, signed, with_unit
from ablationlab.report.paper.typst import Typst, code, say

#: The words for a correction in front of "adjusted".
CORRECTIONS = {"holm": "Holm", "bonferroni": "Bonferroni", "benjamini-hochberg": "Benjamini–Hochberg"}


@dataclass(frozen=True)
class Facts:
    """A material that has its conclusions."""

    material: Material
    analysis: Analysis
    verdict: Verdict
    plan: Plan | None

    @classmethod
    def of(cls, material: Material) -> Facts:
        """The caller has checked that both conclusions are there."""
        assert material.analysis is not None
        assert material.verdict is not None
        return cls(material, material.analysis, material.verdict, material.plan)

    @property
    def interim(self) -> bool:
        """Whether a planned run is still missing."""
        return self.material.interim

    @cached_property
    def registered(self) -> bool:
        """Whether something was registered and the seal holds."""
        return any(one.label == "registered" for one in self.analysis.comparisons)

    @property
    def from_table(self) -> bool:
        """Whether the runs are a user's own, of which nothing but their values is known."""
        return self.plan is None

    @property
    def baseline(self) -> str:
        """The reference arm."""
        return self.analysis.baseline

    @cached_property
    def changed(self) -> tuple[str, ...]:
        """Every arm but the baseline."""
        return tuple(name for name in self.analysis.variants if name != self.baseline)

    @property
    def several_regimes(self) -> bool:
        """Whether a regime must be named at all."""
        return len(self.analysis.regimes) > 1

    @cached_property
    def study(self) -> Study | None:
        """The resolved study of the plan; none for a table."""
        return self.plan.study if self.plan is not None else None

    @property
    def swept(self) -> bool:
        """Whether arms were trained at several learning rates."""
        return self.study is not None and self.study.sweep is not None

    def model_of(self, variant: str) -> ModelConfig | None:
        """The resolved model of a variant in the first regime that has it; None for a table."""
        if self.study is None or self.plan is None:
            return None
        for run in self.plan.runs:
            if run.variant == variant:
                return run.model
        return None

    def primary_of(self, variant: str, regime: str) -> Comparison | None:
        """The comparison that decides on a variant in a regime."""
        here = (regime, variant, self.baseline)
        role = [one for one in self.analysis.comparisons if (one.regime, one.variant, one.reference) == here]
        metric = next((one.metric for one in role if one.role == "primary"), self.analysis.primary)
        return self.analysis.comparison(metric, *here) if metric else None

    def gain_of(self, variant: str, regime: str) -> StabilityGain | None:
        """Its stability gain over the baseline."""
        stability = self.analysis.stability
        return stability.gain(variant, self.baseline, regime) if stability is not None else None

    @cached_property
    def corpus(self) -> str:
        """The text's name, without the folder it lay in; of a mixture what is mixed."""
        if self.mixture:
            parts = [f"{100 * part.weight:.3g} % {part.name}" for part in self.mixture]
            return f"a mixture ({', '.join(parts)})"
        name = self.plan.corpus.name if self.plan is not None else ""
        return Path(name).name if looks_like_path(name) else name

    @property
    def mixture(self) -> tuple[Component, ...]:
        """The components of a mixture; none of one text."""
        parts = self.plan.corpus.components if self.plan is not None else ()
        return parts if len(parts) > 1 else ()

    def family(self, *names: str) -> list[Comparison]:
        """Comparisons with the baseline in metrics of these families, whole metrics and macro averages first."""
        found = [
            one
            for one in self.analysis.comparisons
            if one.reference == self.baseline and one.metric in METRICS and METRICS[one.metric].family in names
        ]
        return sorted(found, key=lambda one: one.task not in (None, MACRO))

    def tasks(self) -> list[Comparison]:
        """Comparisons of single tasks."""
        return [one for one in self.analysis.comparisons if one.task not in (None, MACRO)]

    def where(self, regime: str) -> Typst:
        """`` in the regime NAME``, where there are several."""
        return say(" in the regime {name}", name=code(regime)) if self.several_regimes else Typst("")

    def readable(self, text: str) -> str:
        """A sentence of the verdict with metrics and signs as a paper prints them."""
        text = in_sentence(text, {one.metric for one in self.analysis.comparisons})
        text = re.sub(r"(?<=\d) ?%", f"{THIN}%", text)
        return re.sub(r"(?<![\w.])-(?=\d)", signed("-"), text)


def finding(one: Comparison, *, bare: bool = False) -> Typst:
    """A comparison as a clause: who, on what, by how much, with which certainty."""
    if one.delta is None:
        return say(
            "{variant} and {reference} could not be compared on {metric}",
            variant=code(one.variant),
            reference=code(one.reference),
            metric=metric_of(one),
        )
    seen = shown(one)
    values = {"metric": metric_of(one), "variant": code(one.variant), "reference": code(one.reference)}
    zero = not any(sign in "123456789" for sign in seen.size)
    if seen.delta.startswith("×"):
        text = say(
            "with {variant}, {metric} is {times} times that with {reference}", times=seen.size.lstrip("×"), **values
        )
    elif zero:
        text = say("{metric} is the same with {variant} as with {reference} to the digits shown", **values)
    else:
        way = "higher" if one.delta > 0 else "lower"
        amount = with_unit(seen.size, seen.unit)
        text = say("with {variant}, {metric} is {amount} {way} than with {reference}", amount=amount, way=way, **values)
    return text if bare else Typst(f"{text} ({certainty(one)})")


def certainty(one: Comparison) -> Typst:
    """Interval, pairs and adjusted p of a comparison."""
    seen, interval = shown(one), one.main_interval
    parts = []
    if interval is not None and interval.low is not None:
        bounds = with_unit(seen.range, seen.unit) if seen.unit == "%" else seen.range
        parts.append(say("{level} interval {range}", level=level(interval.level), range=bounds))
    else:
        parts.append(Typst("no interval"))
    parts.append(say("{n}", n=counted(one.n, "pair")))
    if one.p_adjusted is not None:
        how = CORRECTIONS.get(one.correction)
        words = f"{how}-adjusted {p_clause(one.p_adjusted)}" if how else p_clause(one.p_adjusted)
        parts.append(say("{p}", p=_unbroken(words)))
    return Typst(", ".join(parts))


def _unbroken(text: str) -> str:
    """A p-value that no line break parts."""
    return re.sub(r" ([<=]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text)


def outcome(one: Comparison) -> Typst:
    """What a comparison came to, as a clause that follows `finding`."""
    tost = one.equivalence
    effect = "" if tost is None else f"±{setting(tost.bounds[1])}"
    equivalent = tost is not None and tost.equivalent
    if one.sensitivity is not None and not one.sensitivity.sensitive:
        return Typst("no evidence, since the measure is not sensitive at this scale")
    if one.outcome in ("better", "worse"):
        text = say("a significant {way}", way="gain" if one.outcome == "better" else "loss")
        return (
            say("{text}, though equivalent within the {e} that was set as mattering", text=text, e=effect)
            if (equivalent)
            else text
        )
    if one.outcome == "different":
        return Typst("a significant difference in a metric that has no better direction")
    if one.outcome == "not-tested":
        return Typst("without a test")
    if equivalent:
        return say("equivalent within {e}", e=effect)
    if tost is not None and tost.equivalent is False:
        return say("neither a difference nor equivalence within {e} is shown", e=effect)
    return Typst("no difference is shown")


def unstable_counts(gain: StabilityGain) -> Typst:
    """How many runs of each side were unstable."""
    return say(
        "{reference} baseline runs and {variant} {name} runs were unstable",
        reference=part(gain.reference_unstable, gain.n),
        variant=part(gain.variant_unstable, gain.n),
        name=code(gain.variant),
    )


def gain_clause(gain: StabilityGain) -> Typst:
    """The stability gain with its interval."""
    if gain.estimate is None:
        return Typst("the stability gain is not known")
    text = say("the stability gain is {estimate}", estimate=percent(gain.estimate))
    if gain.low is None or gain.high is None:
        return text
    bounds = f"{percent(gain.low)} to {percent(gain.high)}"
    return say("{text} ({level} interval {bounds})", text=text, level=level(gain.level), bounds=bounds)
