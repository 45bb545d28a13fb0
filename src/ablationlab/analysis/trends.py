"""One contrast in several results folders, of three or more sizes or budgets: how its effect changes with scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ablationlab.analysis import wording
from ablationlab.core.errors import TableError, did_you_mean
from ablationlab.core.format import setting
from ablationlab.records.analysis import Comparison
from ablationlab.records.results import Results
from ablationlab.records.settings import DEFAULT_REGIME, SWEEP, TUNED
from ablationlab.stats.results import Trend
from ablationlab.stats.trend import FEWEST, trend

#: What the sizes of the studies are.
Scale = Literal["parameters", "tokens", "matmul_flops"]


@dataclass(frozen=True)
class StudyEffect:
    """The effect of one study, and the size of its baseline runs."""

    folder: Path
    study: str
    size: float
    comparison: Comparison


@dataclass(frozen=True)
class StudyTrend:
    """The same contrast in studies of several sizes, the smallest first."""

    scale: Scale
    studies: tuple[StudyEffect, ...]
    fit: Trend


def study_trend(
    folders: Sequence[Path],
    *,
    variant: str | None = None,
    metric: str | None = None,
    regime: str = DEFAULT_REGIME,
    scale: Scale = "parameters",
    at: float | None = None,
    level: float = 0.95,
) -> StudyTrend:
    """Fit the trend of *variant* against the baseline over these folders; raises `TableError` with every problem."""
    problems: list[str] = []
    effects = [effect for folder in folders if (effect := _effect(folder, variant, metric, regime, scale, problems))]
    problems += _unlike(effects)
    sizes = {effect.size for effect in effects}
    if not problems and len(sizes) < FEWEST:
        listed = ", ".join(setting(size) for size in sorted(sizes))
        problems.append(
            f"a trend needs studies of {FEWEST} different sizes ({scale}) or more, got {len(sizes)}: {listed}"
        )
    if at is not None and not at > 0:
        problems.append(f"--at {setting(at)}: must be above 0")
    if problems:
        raise TableError("trend", problems)
    effects.sort(key=lambda effect: effect.size)
    errors = []
    for effect in effects:
        assert effect.comparison.delta_sd is not None
        errors.append(effect.comparison.delta_sd / effect.comparison.n**0.5)
    deltas = [effect.comparison.delta or 0.0 for effect in effects]
    doubts = [effect.comparison.doubt.larger for effect in effects]
    fit = trend([effect.size for effect in effects], deltas, errors, doubts=doubts, at=at, level=level)
    return StudyTrend(scale, tuple(effects), fit)


def _effect(
    folder: Path, variant: str | None, metric: str | None, regime: str, scale: Scale, problems: list[str]
) -> StudyEffect | None:
    results = Results.open(folder)
    plan, analysis, damage = results.plan, results.analysis, results.reader.damage
    if damaged := [damage[file] for file in ("plan.lock", "analysis.json") if file in damage]:
        problems += [f"{folder / file.file} {file.text}" for file in damaged]
        return None
    if plan is None or analysis is None:
        missing = "plan.lock" if plan is None else "analysis.json; run ablationlab analyze first"
        problems.append(f"{folder}: holds no {missing}")
        return None
    if outdated := [reason for reason in results.stale if reason.code != "other-analysis"]:
        problems.append(f"{folder}: {wording.stale(outdated[0])}; run ablationlab analyze first")
        return None
    others = [name for name in analysis.variants if name != analysis.baseline]
    chosen = variant or (others[0] if len(others) == 1 else None)
    if chosen is None:
        problems.append(f"{folder}: has several variants; name one with --variant: {', '.join(others)}")
        return None
    if chosen not in others:
        problems.append(f"{folder}: has no variant {chosen!r}{did_you_mean(chosen, others)}")
        return None
    name = metric or analysis.primary
    comparison = analysis.comparison(name, regime, chosen, analysis.baseline) if name else None
    if comparison is None:
        problems.append(
            f"{folder}: compares no {name or 'primary metric'} of {chosen} with {analysis.baseline} in {regime}"
        )
        return None
    if comparison.at_grid_rates:
        problems.append(
            f"{folder}: {comparison.id} is known at the chosen grid rates only, where a difference may be the grid's; a "
            "trend of tuned arms takes the validation loss at fitted best rates, or a function of it"
        )
        return None
    if comparison.n < 3 or not comparison.delta_sd:
        problems.append(f"{folder}: {comparison.id} has {comparison.n} pairs that differ; 3 are needed for its error")
        return None
    trained_in = DEFAULT_REGIME if regime in (SWEEP, TUNED) else regime
    baselines = [run for run in plan.runs if (run.variant, run.regime) == (analysis.baseline, trained_in)]
    budgets = {float(getattr(run.budget, scale)) for run in baselines}
    if len(budgets) != 1:
        problems.append(f"{folder}: its baseline runs have {len(budgets)} different sizes ({scale})")
        return None
    return StudyEffect(folder, plan.study.name, budgets.pop(), comparison)


def _unlike(effects: Sequence[StudyEffect]) -> list[str]:
    """What must be the same in every study, and is not."""
    problems = []
    for what in ("metric", "variant", "reference", "transform", "direction", "unit"):
        values = {str(getattr(effect.comparison, what)): effect.folder for effect in effects}
        if len(values) > 1:
            listed = ", ".join(f"{value} ({folder})" for value, folder in values.items())
            problems.append(f"the studies differ in {what}: {listed}")
    return problems
