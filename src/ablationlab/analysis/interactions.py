"""Factorial studies: main effects and interactions of the settings that [factors] cross, or that the regimes cross.

The value of a cell is, per seed, the primary metric of the arm with these levels ([factors]), or a variant - the baseline in
the regime with these levels. `stats.factorial` gives each effect as one number per seed, so its interval is the paired t
interval over seeds: what seeds share cancels in every effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final, Literal

from ablationlab.analysis.dataset import Absent, Arm, Crossing, Dataset
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import (
    MACRO,
    AliasedEffect,
    Comparison,
    Factor,
    FactorCell,
    InteractionContrast,
    Interactions,
    Seed,
    SeedValue,
    SimpleEffect,
)
from ablationlab.records.settings import DEFAULT_REGIME, Study, flattened
from ablationlab.stats import adjust, paired_t_interval, paired_t_test
from ablationlab.stats.factorial import FactorialModel, Term
from ablationlab.stats.results import NO_DOUBT, Doubt
from ablationlab.stats.tuned import beyond_doubt, widened

LEVEL: Final = 0.95


def crossing_of(study: Study) -> Crossing | None:
    """The settings of [factors]; else two that the regimes cross completely, each pair of levels once; None without."""
    if study.factors is not None:
        cells = {tuple(map(str, cell.values())): name for name, cell in study.factors.cells().items()}
        levels = tuple(tuple(map(str, values)) for values in study.factors.levels.values())
        present = {cell: name for cell, name in cells.items() if name in study.variants}
        asked = [criterion.regime for criterion in study.criteria if criterion.role == "primary"]
        return Crossing(
            "arms",
            tuple(study.factors.levels),
            levels,
            present,
            study.factors.registered_effects(),
            asked[0] if asked else DEFAULT_REGIME,
        )
    if study.trainer is not None:
        return None
    settings = {}
    for name in study.regime_names():
        model, training = study.in_regime(name)
        tables = {"model": model.model_dump(mode="json"), "training": training.model_dump(mode="json")}
        settings[name] = {key: value for key, value in flattened(tables).items() if key != "model.preset"}
    keys = list(dict.fromkeys(key for table in settings.values() for key in table))
    varied = [key for key in keys if len({str(table.get(key)) for table in settings.values()}) > 1]
    if len(varied) != 2:
        return None
    by_regime = {name: tuple(str(table.get(key)) for key in varied) for name, table in settings.items()}
    first, second = (tuple(dict.fromkeys(cell[position] for cell in by_regime.values())) for position in (0, 1))
    if len(set(by_regime.values())) != len(by_regime) or len(by_regime) != len(first) * len(second):
        return None
    return Crossing("regimes", tuple(varied), (first, second), {cell: name for name, cell in by_regime.items()})


def interactions(dataset: Dataset) -> Interactions | None:
    """The table for the primary metric; None where nothing is crossed, or nothing was measured."""
    crossing, metric = dataset.crossing, dataset.primary
    if crossing is None or metric is None:
        return None
    transform = _transform(dataset, metric, crossing)
    of_regimes = crossing.kind == "regimes"
    variants = [name for name in dataset.variants if name != dataset.baseline] if of_regimes else [None]
    effects = {name: _cell_values(dataset, metric, transform, crossing, name) for name in variants}
    if not any(by_seed for cells in effects.values() for by_seed in cells.values()) and not _at_grid_rates(
        dataset, metric, crossing
    ):
        return None
    # Of the planned cells: without the value of a cell an effect has no estimate, instead of another meaning.
    model = FactorialModel.of(crossing.levels, crossing.names)
    contrasts = [
        contrast for name in variants for contrast in _contrasts(name, crossing, model, effects[name], dataset, metric)
    ]
    return Interactions(
        metric=metric,
        transform=transform,
        factors=tuple(
            Factor(key=key, levels=levels) for key, levels in zip(crossing.keys, crossing.levels, strict=True)
        ),
        cells=tuple(
            _cell(name, regime, cell, effects[name][cell])
            for name in variants
            if name is not None
            for cell, regime in sorted(crossing.names.items(), key=lambda item: _place(crossing, item[0]))
        ),
        contrasts=tuple(_adjusted(_labelled(contrasts, crossing.registered if dataset.registered else ()))),
        aliases=() if of_regimes else tuple(_aliases(crossing, model)),
    )


def with_bounds(contrast: InteractionContrast) -> InteractionContrast:
    """With the bounds at the level at which they exclude 0 just where its adjusted p shows an effect."""
    low, high = contrast.low, contrast.high
    if low is None or high is None:
        return contrast
    levels = contrast.level, _deciding_level(contrast.level, contrast.p, contrast.p_adjusted)
    one, all_tests = (paired_t_interval([known.value for known in contrast.values], level=each) for each in levels)
    if one.low is None or one.high is None or all_tests.low is None or all_tests.high is None:
        return contrast.model_copy(update={"deciding_low": low, "deciding_high": high})
    # A fitted rate's doubt stays in both.
    ends = {"deciding_low": low + all_tests.low - one.low, "deciding_high": high + all_tests.high - one.high}
    return contrast.model_copy(update=ends)


def _deciding_level(level: float, p: float | None, adjusted: float | None) -> float:
    """Holm multiplies p by the tests that are left; 1 - the level of one test is divided by as many."""
    return 1 - (1 - level) * p / adjusted if p and adjusted else level


def with_simple_effects(
    crossed: Interactions | None, comparisons: Iterable[Comparison], baseline: str
) -> Interactions | None:
    """With those of two settings that the regimes cross, from the pairs of the comparisons with the baseline; none of
    crossed arms."""
    if crossed is None or not crossed.cells or len(crossed.factors) != 2:
        return crossed
    found = {
        (comparison.regime, comparison.variant): comparison
        for comparison in comparisons
        if (comparison.metric, comparison.reference) == (crossed.metric, baseline) and comparison.task in (None, MACRO)
    }
    values: dict[tuple[str, tuple[str, ...]], dict[Seed, float]] = {}
    for cell in crossed.cells:
        there = found.get((cell.regime, cell.variant))
        values[cell.variant, cell.levels] = {} if there is None else {pair.seed: pair.delta for pair in there.pairs}
    effects = []
    for position, factor in enumerate(crossed.factors):
        other = crossed.factors[1 - position]
        steps: dict[tuple[str, str, str], list[float]] = {}
        variants = dict.fromkeys(cell.variant for cell in crossed.cells)
        for level, at, variant in product(factor.levels[1:], other.levels, variants):
            after, before = (
                values[variant, (step, at) if position == 0 else (at, step)] for step in (level, factor.levels[0])
            )
            steps[level, at, variant] = [after[seed] - before[seed] for seed in sorted(after.keys() & before.keys())]
        tests = [paired_t_test(per_seed).p if per_seed else None for per_seed in steps.values()]
        adjusted = adjust(tests, method="holm").adjusted
        for ((level, at, variant), per_seed), p, p_adjusted in zip(steps.items(), tests, adjusted, strict=True):
            at_level = _deciding_level(LEVEL, p, p_adjusted)
            interval = paired_t_interval(per_seed, level=at_level) if per_seed else None
            effects.append(
                SimpleEffect(
                    variant=variant,
                    factor=factor.key,
                    reference=factor.levels[0],
                    level=level,
                    other=other.key,
                    at=at,
                    n=len(per_seed),
                    estimate=None if interval is None else interval.estimate,
                    low=None if interval is None else interval.low,
                    high=None if interval is None else interval.high,
                    p=p,
                    p_adjusted=p_adjusted,
                )
            )
    return crossed.model_copy(update={"simple": tuple(effects)})


CellValues = Mapping[tuple[str, ...], Mapping[Seed, float]]


def _place(crossing: Crossing, cell: tuple[str, ...]) -> list[int]:
    return [levels.index(level) for levels, level in zip(crossing.levels, cell, strict=True)]


def _arm(metric: str, crossing: Crossing, name: str, variant: str | None) -> Arm:
    return Arm(metric, None, crossing.regime, name) if variant is None else Arm(metric, None, name, variant)


def _at_grid_rates(dataset: Dataset, metric: str, crossing: Crossing) -> bool:
    arms = [_arm(metric, crossing, name, None) for name in crossing.names.values()]
    return crossing.kind == "arms" and dataset.at_grid_rates(*arms)


def _transform(dataset: Dataset, metric: str, crossing: Crossing) -> Literal["identity", "log"]:
    variants = dataset.variants if crossing.kind == "regimes" else [None]
    arms = [_arm(metric, crossing, name, variant) for name in crossing.names.values() for variant in variants]
    numbers = [value for arm in arms for value in dataset.values.get(arm, {}).values() if not isinstance(value, Absent)]
    wanted = dataset.metrics[metric].transform
    return "log" if wanted == "log" and min(numbers, default=0.0) > 0 else "identity"


def _cell_values(dataset: Dataset, metric: str, transform: str, crossing: Crossing, variant: str | None) -> CellValues:
    """Per cell and seed, on the tested scale: variant - baseline in a regime; or an arm's value, where arms are crossed."""
    scale: Callable[[float], float] = math.log if transform == "log" else float
    effects: dict[tuple[str, ...], dict[Seed, float]] = {}
    for cell, name in crossing.names.items():
        arm = _arm(metric, crossing, name, variant)
        ours = {} if dataset.at_grid_rates(arm) else dataset.values.get(arm, {})  # a difference may be the grid's
        base = {} if variant is None else dataset.values.get(Arm(metric, None, name, dataset.baseline), {})
        effects[cell] = {}
        for seed in dataset.seeds_of(crossing.regime):
            a, b = ours.get(seed), base.get(seed)
            if isinstance(a, float) and variant is None:
                effects[cell][seed] = scale(a)
            elif isinstance(a, float) and isinstance(b, float):
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


def _contrasts(
    variant: str | None, crossing: Crossing, model: FactorialModel, values: CellValues, dataset: Dataset, metric: str
) -> list[InteractionContrast]:
    doubts = {
        cell: dataset.doubts.get(_arm(metric, crossing, name, variant), NO_DOUBT).larger
        for cell, name in crossing.names.items()
    }
    planned = len(dataset.seeds_of(crossing.regime))
    doubt = model.doubts({cell: doubts[cell] for cell, by_seed in values.items() if by_seed})
    seeds = dict.fromkeys(seed for by_seed in values.values() for seed in by_seed)
    estimates = {
        seed: model.estimates({cell: by_seed[seed] for cell, by_seed in values.items() if seed in by_seed})
        for seed in sorted(seeds)
    }
    return [
        _contrast(
            variant,
            crossing,
            term,
            {seed: effects[term] for seed, effects in estimates.items() if term in effects},
            planned,
            doubt.get(term, 0.0),
            "grid-rates" if _at_grid_rates(dataset, metric, crossing) else "too-few-pairs",
        )
        for term in model.terms
    ]


def _named(crossing: Crossing, term: Term) -> tuple[str, ...]:
    return tuple(crossing.keys[factor] for factor in term.factors)


def _aliases(crossing: Crossing, model: FactorialModel) -> list[AliasedEffect]:
    """By settings: two levels are all that a fraction has."""
    aliases = {
        _named(crossing, term): tuple(dict.fromkeys(_named(crossing, other) for other in others))
        for term, others in model.aliases.items()
    }
    return [AliasedEffect(factors=factors, aliases=others) for factors, others in aliases.items()]


def _contrast(
    variant: str | None,
    crossing: Crossing,
    term: Term,
    per_seed: Mapping[Seed, float],
    planned: int,
    doubt: float,
    without: Literal["grid-rates", "too-few-pairs"],
) -> InteractionContrast:
    """*without* says why, where no seed has a value."""
    values = list(per_seed.values())
    numbers: dict[str, Any] = {"estimate": None, "low": None, "high": None, "p": None, "status": without}
    if values:
        interval = widened(paired_t_interval(values, level=LEVEL), Doubt(doubt, doubt))
        test = paired_t_test(beyond_doubt(values, Doubt(doubt, doubt)))
        numbers = {
            "estimate": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "p": test.p,
            "status": interval.status,
        }
    return InteractionContrast(
        variant=variant,
        kind="main" if len(term.factors) == 1 else "interaction",
        factors=_named(crossing, term),
        levels=term.levels,
        references=tuple(crossing.levels[factor][0] for factor in term.factors),
        n=len(values),
        planned=planned,
        values=tuple(SeedValue(seed=int(seed), value=value) for seed, value in per_seed.items()),
        level=LEVEL,
        p_adjusted=None,
        **numbers,
    )


def _labelled(contrasts: list[InteractionContrast], registered: Sequence[frozenset[str]]) -> list[InteractionContrast]:
    return [
        contrast.model_copy(update={"label": "registered"}) if frozenset(contrast.factors) in registered else contrast
        for contrast in contrasts
    ]


def _adjusted(contrasts: list[InteractionContrast]) -> list[InteractionContrast]:
    """Holm over all registered contrasts, and over the others of one kind; where regimes are crossed, of one kind and one
    set of settings.
    """

    def family(contrast: InteractionContrast) -> tuple[str, ...]:
        of = contrast.factors if contrast.variant is not None else ()
        return ("registered",) if contrast.label == "registered" else (contrast.kind, *of)

    adjusted = dict[int, float | None]()
    for members in grouped((family(contrast), position) for position, contrast in enumerate(contrasts)).values():
        p = adjust([contrasts[position].p for position in members], method="holm").adjusted
        adjusted |= dict(zip(members, p, strict=True))
    return [
        with_bounds(contrast.model_copy(update={"p_adjusted": adjusted[position]}))
        for position, contrast in enumerate(contrasts)
    ]
