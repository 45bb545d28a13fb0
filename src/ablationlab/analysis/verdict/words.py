"""Numbers and decisions in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ablationlab.records.analysis import Analysis, Comparison
from ablationlab.records.verdict import HypothesisVerdict, VariantVerdict


def number(value: float | None) -> str:
    """Three significant digits, or a dash."""
    return "-" if value is None else f"{value:.3g}"


def share(value: float | None) -> str:
    """A share in percent, or a dash."""
    return "-" if value is None else f"{100 * value:.0f} %"


def p_text(p: float | None) -> str:
    """A p-value as one writes it."""
    return "no p" if p is None else "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def amount(one: Comparison, value: float | None) -> str:
    """A difference with its sign, on the metric's scale; a difference of logs as a percentage, or a factor if large."""
    if value is None:
        return "-"
    if one.transform != "log":
        return f"{value:+.3g}"
    # Delta and both bounds in one style, chosen by the delta.
    large = abs(one.delta if one.delta is not None else value) >= math.log(2)
    return f"×{math.exp(value):.3g}" if large else f"{100 * math.expm1(value):+.3g} %"


def bound(one: Comparison, value: float | None) -> str:
    """The same with its unit."""
    unit = "" if one.transform == "log" or one.unit in ("", "1") else f" {one.unit}"
    return f"{amount(one, value)}{unit}"


def measured(one: Comparison) -> str:
    """Delta, interval and p of a comparison, in one clause."""
    if one.delta is None:
        return f"{one.metric} could not be compared"
    interval = one.main_interval
    text = f"{name_of(one)} {bound(one, one.delta)}"
    if interval is not None and interval.low is not None:
        text += f" ({interval.level:.0%} interval {amount(one, interval.low)} to {amount(one, interval.high)}"
        text += f", {one.n} pairs)"
    else:
        text += f" ({one.n} pair{'s' if one.n != 1 else ''}, no interval)"
    how = f"{one.correction}-adjusted over {one.family_size}" if one.correction != "none" else "not adjusted"
    return text + (f", {p_text(one.p_adjusted)} ({how})" if one.p_adjusted is not None else ", no p-value")


def name_of(one: Comparison) -> str:
    """The metric, with its task where it has one."""
    return one.metric if one.task is None else f"{one.metric} ({one.task})"


def overall(analysis: Analysis, verdicts: Sequence[VariantVerdict]) -> str:
    """The recommendation of the whole study, one sentence a variant and regime."""
    if not verdicts:
        return "There is no variant beside the baseline, so there is nothing to decide."
    lines = []
    for verdict in verdicts:
        where = f" ({verdict.regime})" if len(analysis.regimes) > 1 else ""
        lines.append(f"{verdict.variant}{where}: {verdict.recommendation}")
    if any(verdict.label == "exploratory" for verdict in verdicts):
        lines.append(
            "Not all of this was registered beforehand: treat the exploratory verdicts as leads to be tested anew."
        )
    return "\n".join(lines)


def asked(hypotheses: Mapping[str, HypothesisVerdict]) -> dict[str, HypothesisVerdict]:
    """The hypotheses whose question the study puts."""
    return {name: found for name, found in hypotheses.items() if found.status != "not-asked"}


def not_asked(hypotheses: Mapping[str, HypothesisVerdict]) -> str:
    """The others in one sentence, with why; empty where there are none."""
    by_why: dict[str, list[str]] = {}
    for name, found in hypotheses.items():
        if found.status == "not-asked":
            by_why.setdefault(found.why, []).append(name)
    said = "; ".join(f"{' and '.join(names)} ({why})" for why, names in by_why.items())
    return f"Not asked here: {said}." if said else ""


def hypothesis_lines(hypotheses: Mapping[str, HypothesisVerdict]) -> list[str]:
    """A line for each hypothesis that was asked, and one for all that were not."""
    lines = [f"{name} {one.status}. {one.statement} Because: {one.why}." for name, one in asked(hypotheses).items()]
    left = not_asked(hypotheses)
    return [*lines, left] if left else lines
