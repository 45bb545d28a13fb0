"""Factorial studies: where the regimes cross two settings, how each variant's effect depends on them.

Per variant v and seed s let d(a, b) be v - baseline on the primary metric, in the regime with level a of the first setting
and b of the second. For a level a against the first setting's reference level a₀, and b against b₀, per seed:

    main effect of the setting   mean over b of d(a, b) - d(a₀, b)
    interaction                  (d(a, b) - d(a₀, b)) - (d(a, b₀) - d(a₀, b₀))

Each is one number per seed, so its interval is the paired t interval over seeds: what seeds share cancels twice, in the
effect and in the contrast. Seeds that lack a cell are left out of the contrasts that need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from statistics import fmean
from typing import Any, Final, Literal

from ablationlab.analysis.dataset import Absent, Arm, Crossing, Dataset
from ablationlab.records.analysis import Factor, FactorCell, InteractionContrast, Interactions, Seed, SeedValue
from ablationlab.records.settings import Study, flattened
from ablationlab.stats import adjust, paired_t_interval, paired_t_test

LEVEL: Final = 0.95
_TEXT: Final = (
    "Effects are variant - {baseline} on {metric}{scale}, paired by seed, with {level:.0%} t intervals over seeds. A main "
    "effect says how the effect changes with one setting, averaged over the other; an interaction, whether that change "
    "depends on the other. p is adjusted (Holm) over the variants, per kind of contrast. Exploratory."
)


def crossing_of(study: Study) -> Crossing | None:
    """The two settings that the regimes cross completely, each pair of levels once; None if they do anything else."""
    settings = {}
    for name in study.regime_names():
        model, training = study.in_regime(name)
        tables = {"model": model.model_dump(mode="json"), "training": training.model_dump(mode="json")}
        settings[name] = {key: value for key, value in flattened(tables).items() if key != "model.preset"}
    keys = list(dict.fromkeys(key for table in settings.values() for key in table))
    varied = [key for key in keys if len({str(table.get(key)) for table in settings.values()}) > 1]
    if len(varied) != 2:
        return None
    first, second = varied
    cells = {name: (str(table.get(first)), str(table.get(second))) for name, table in settings.items()}
    levels = tuple(tuple(dict.fromkeys(cell[position] for cell in cells.values())) for position in (0, 1))
    if len(set(cells.values())) != len(cells) or len(cells) != len(levels[0]) * len(levels[1]):
        return None
    return Crossing((first, second), (levels[0], levels[1]), {cell: name for name, cell in cells.items()})


def interactions(dataset: Dataset) -> Interactions | None:
    """The table for the primary metric; None where the regimes cross nothing, or nothing was measured."""
    crossing, metric = dataset.crossing, dataset.primary
    if crossing is None or metric is None:
        return None
    transform = _transform(dataset, metric, crossing)
    variants = [name for name in dataset.variants if name != dataset.baseline]
    effects = {name: _effects(dataset, metric, transform, crossing, name) for name in variants}
    if not any(by_seed for cells in effects.values() for by_seed in cells.values()):
        return None
    contrasts = [
        contrast for name in variants for contrast in _contrasts(name, crossing, effects[name], len(dataset.seeds))
    ]
    scale = " (of logarithms)" if transform == "log" else ""
    return Interactions(
        metric=metric,
        transform=transform,
        factors=tuple(
            Factor(key=key, levels=levels) for key, levels in zip(crossing.keys, crossing.levels, strict=True)
        ),
        cells=tuple(
            _cell(name, crossing.regimes[cell], cell, effects[name][cell])
            for name in variants
            for cell in product(*crossing.levels)
        ),
        contrasts=tuple(_adjusted(contrasts)),
        text=_TEXT.format(baseline=dataset.baseline, metric=metric, scale=scale, level=LEVEL),
    )


Effects = Mapping[tuple[str, ...], Mapping[Seed, float]]


def _transform(dataset: Dataset, metric: str, crossing: Crossing) -> Literal["identity", "log"]:
    arms = [Arm(metric, None, regime, name) for regime in crossing.regimes.values() for name in dataset.variants]
    numbers = [value for arm in arms for value in dataset.values.get(arm, {}).values() if not isinstance(value, Absent)]
    wanted = dataset.metrics[metric].transform
    return "log" if wanted == "log" and min(numbers, default=0.0) > 0 else "identity"


def _effects(dataset: Dataset, metric: str, transform: str, crossing: Crossing, variant: str) -> Effects:
    """variant - baseline per cell and seed, on the tested scale."""
    scale: Callable[[float], float] = math.log if transform == "log" else float
    effects: dict[tuple[str, ...], dict[Seed, float]] = {}
    for cell, regime in crossing.regimes.items():
        ours, base = (dataset.values.get(Arm(metric, None, regime, arm), {}) for arm in (variant, dataset.baseline))
        effects[cell] = {}
        for seed in dataset.seeds:
            a, b = ours.get(seed), base.get(seed)
            if isinstance(a, float) and isinstance(b, float):
                effects[cell][seed] = scale(a) - scale(b)
    return effects


def _cell(variant: str, regime: str, levels: tuple[str, ...], by_seed: Mapping[Seed, float]) -> FactorCell:
    values = list(by_seed.values())
    interval = paired_t_interval(values, level=LEVEL) if values else None
    return FactorCell(
        variant=variant,
        regime=regime,
        levels=levels,
        n=len(values),
        effect=None if interval is None else interval.estimate,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
    )


def _contrasts(variant: str, crossing: Crossing, effects: Effects, planned: int) -> list[InteractionContrast]:
    (first, second), (rows, columns) = crossing.keys, crossing.levels
    contrasts = []
    for a in rows[1:]:
        per_seed = _per_seed(
            effects,
            [(a, b) for b in columns] + [(rows[0], b) for b in columns],
            lambda d, a=a: fmean(d[a, b] - d[rows[0], b] for b in columns),
        )
        contrasts.append(_contrast(variant, "main", (first,), (a,), (rows[0],), per_seed, planned))
    for b in columns[1:]:
        per_seed = _per_seed(
            effects,
            [(a, b) for a in rows] + [(a, columns[0]) for a in rows],
            lambda d, b=b: fmean(d[a, b] - d[a, columns[0]] for a in rows),
        )
        contrasts.append(_contrast(variant, "main", (second,), (b,), (columns[0],), per_seed, planned))
    for a, b in product(rows[1:], columns[1:]):
        a0, b0 = rows[0], columns[0]
        per_seed = _per_seed(
            effects,
            [(a, b), (a0, b), (a, b0), (a0, b0)],
            lambda d, a=a, b=b, a0=a0, b0=b0: (d[a, b] - d[a0, b]) - (d[a, b0] - d[a0, b0]),
        )
        contrasts.append(_contrast(variant, "interaction", (first, second), (a, b), (a0, b0), per_seed, planned))
    return contrasts


def _per_seed(effects: Effects, needed: list[tuple[str, str]], formula: Callable[..., float]) -> dict[Seed, float]:
    """The contrast of every seed that has all of its cells."""
    seeds = [seed for seed in effects[needed[0]] if all(seed in effects[cell] for cell in needed)]
    return {seed: formula({cell: effects[cell][seed] for cell in needed}) for seed in seeds}


def _contrast(
    variant: str,
    kind: Literal["main", "interaction"],
    factors: tuple[str, ...],
    levels: tuple[str, ...],
    references: tuple[str, ...],
    per_seed: Mapping[Seed, float],
    planned: int,
) -> InteractionContrast:
    values = list(per_seed.values())
    numbers: dict[str, Any] = {"estimate": None, "low": None, "high": None, "p": None, "status": "too-few-pairs"}
    if values:
        interval = paired_t_interval(values, level=LEVEL)
        test = paired_t_test(values)
        numbers = {
            "estimate": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "p": test.p,
            "status": interval.status,
        }
    return InteractionContrast(
        variant=variant,
        kind=kind,
        factors=factors,
        levels=levels,
        references=references,
        n=len(values),
        planned=planned,
        values=tuple(SeedValue(seed=int(seed), value=value) for seed, value in per_seed.items()),
        level=LEVEL,
        p_adjusted=None,
        **numbers,
    )


def _adjusted(contrasts: list[InteractionContrast]) -> list[InteractionContrast]:
    """Holm over the contrasts of one kind and one set of settings."""
    families: dict[tuple[str, ...], list[int]] = {}
    for position, contrast in enumerate(contrasts):
        families.setdefault((contrast.kind, *contrast.factors), []).append(position)
    adjusted = dict[int, float | None]()
    for members in families.values():
        p = adjust([contrasts[position].p for position in members], method="holm").adjusted
        adjusted |= dict(zip(members, p, strict=True))
    return [
        contrast.model_copy(update={"p_adjusted": adjusted[position]}) for position, contrast in enumerate(contrasts)
    ]
