"""Metrics and units in words: one spelling for terminal, page, figures, tables and paper; and which metrics come first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ablationlab.core.grouping import grouped
from ablationlab.records.metrics import metric_name
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results, Run

if TYPE_CHECKING:
    from ablationlab.records.analysis import Comparison

#: Metrics of a run that are shown at a glance.
MOST_METRICS = 6


def main_metrics(runs: Sequence[Run], plan: Plan) -> list[str]:
    """The metrics of runs that are shown first: those of the criteria, then others that are not a function of one."""
    recorded = dict.fromkeys(name for run in runs if run.result is not None for name in run.result.metrics)
    criteria = sorted(plan.study.criteria, key=lambda criterion: criterion.role != "primary")
    asked = [criterion.metric for criterion in criteria]
    own = [name for name in recorded if name in plan.metrics and plan.metrics[name].derived_from is None]
    return [name for name in dict.fromkeys((*asked, *own)) if name in recorded][:MOST_METRICS]


def shared_inputs(results: Results) -> list[str]:
    """What both runs of every pair share beside the seed; of initial weights, those that both have."""
    from ablationlab.records.analysis import LedgerInput

    declared = {} if results.plan is None else results.plan.variants
    own = any(declared[name].parameters for name in results.variants if name in declared)
    return [
        f"{name} that both have" if own and name == LedgerInput.START else name.value for name in results.shared_inputs
    ]


def placed(regimes: Sequence[str], comparisons: Iterable[Comparison]) -> str:
    """The variants of comparisons, and where: ``layernorm and rmsnorm in deep; rmsnorm in hot``; of one regime, names."""
    from ablationlab.analysis.wording import listed

    places = grouped((comparison.regime, comparison.variant) for comparison in comparisons)
    names = {regime: listed(dict.fromkeys(variants)) for regime, variants in places.items()}
    several = len(regimes) > 1
    return "; ".join(f"{words} in {regime}" if several else words for regime, words in names.items())


def printed_unit(unit: str) -> str:
    """The unit as it is printed; empty for a pure number."""
    return "" if unit == "1" else unit


def as_title(name: str) -> str:
    """A name at the beginning of a title; names of a user's own, such as ``val/loss``, stay as they are."""
    return name if "/" in name or "_" in name else name[:1].upper() + name[1:]


def axis(metric: str, unit: str) -> str:
    """An axis title: the metric in words, with its unit."""
    shown = printed_unit(unit)
    return f"{metric_name(metric)} ({shown})" if shown else metric_name(metric)
