"""Tie-breakers, in the registered order: the first metric that is significantly better on one side decides."""

from __future__ import annotations

from ablationlab.analysis.verdict.case import Case
from ablationlab.analysis.verdict.words import measured
from ablationlab.records.analysis import Comparison
from ablationlab.records.verdict import TieBreak


def break_tie(case: Case) -> TieBreak:
    """Ask each tie-breaker; *asked* lists the comparisons that were looked at."""
    asked: list[str] = []
    said: list[str] = []
    for name in case.analysis.tie_breakers:
        found = _comparisons(case, name)
        if not found:
            said.append(f"{name} was not measured")
        for one in found:
            asked.append(one.id)
            if one.outcome in ("better", "worse"):
                favours = case.variant if one.outcome == "better" else case.analysis.baseline
                said.append(f"{measured(one)}: favours {favours}")
                return TieBreak(asked=tuple(asked), metric=one.metric, favours=favours, text=_sentence(said))
            said.append(f"{one.metric} does not decide")
    return TieBreak(asked=tuple(asked), metric=None, favours=None, text=_sentence(said))


def _comparisons(case: Case, name: str) -> list[Comparison]:
    """The comparisons that a tie-breaker names: a metric, or all metrics of a family that have a better direction."""
    analysis = case.analysis
    metrics = dict.fromkeys(one.metric for one in analysis.comparisons)
    named = [name] if name in metrics else [metric for metric in metrics if analysis.metrics[metric].family == name]
    found = [analysis.comparison(metric, case.regime, case.variant, analysis.baseline) for metric in named]
    return [one for one in found if one is not None and one.direction is not None]


def _sentence(said: list[str]) -> str:
    return f"Tie-breakers: {'; '.join(said)}." if said else "No tie-breaker is registered."
