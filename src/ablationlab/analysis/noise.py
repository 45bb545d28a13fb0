"""Where the noise comes from: variance components over every combination of the seeds of `[noise]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

import numpy as np

from ablationlab.analysis.dataset import Absent
from ablationlab.analysis.stability import EndedRun, value_of
from ablationlab.core.seeding import stream
from ablationlab.records.analysis import NoiseSources
from ablationlab.records.plan import Plan
from ablationlab.records.settings import DEFAULT_REGIME, Noise, Study
from ablationlab.stats import variance_components
from ablationlab.stats.results import Transform, VarianceComponent

LEVEL = 0.95
Triple = tuple[int, int, int]


def noise_sources(
    study: Study, plan: Plan, done: Mapping[str, EndedRun], names: Sequence[str]
) -> tuple[NoiseSources, ...]:
    """Of every metric: the baseline's own values, then each variant's paired difference."""
    if study.noise is None:
        return ()
    cells: dict[str, dict[Triple, EndedRun | None]] = {}
    for run in plan.runs:
        if run.role in ("noise", "compared") and run.regime == DEFAULT_REGIME:
            cells.setdefault(run.variant, {})[run.seed_triple] = done.get(run.id)
    sources = []
    for name in names:
        values = {arm: _values(runs, name, study.noise.cells()) for arm, runs in cells.items()}
        known = [value for numbers in values.values() for value in numbers if value is not None]
        if not known:
            continue
        transform: Transform = "log" if plan.metrics[name].transform == "log" and min(known) > 0 else "identity"
        scaled = {
            arm: [None if value is None else log(value) if transform == "log" else value for value in numbers]
            for arm, numbers in values.items()
        }
        base = scaled[study.baseline]
        sources.append(_sources(study.noise, name, study.baseline, None, transform, base))
        for variant in study.variants:
            if variant != study.baseline:
                deltas = [None if a is None or b is None else a - b for a, b in zip(scaled[variant], base, strict=True)]
                sources.append(_sources(study.noise, name, variant, study.baseline, transform, deltas))
    return tuple(sources)


def _values(runs: Mapping[Triple, EndedRun | None], name: str, triples: Sequence[Triple]) -> list[float | None]:
    values = [value_of(runs.get(triple), name) for triple in triples]
    return [None if isinstance(value, Absent) else value for value in values]


def _sources(
    noise: Noise, metric: str, variant: str, reference: str | None, transform: Transform, values: list[float | None]
) -> NoiseSources:
    missing = sum(value is None for value in values)
    components: tuple[VarianceComponent, ...] = ()
    if not missing:
        shape = [len(getattr(noise, source)) for source in noise.streams]
        table = np.array(values, dtype=float).reshape(shape)
        rng = stream(0, "analysis", "noise", metric, variant, reference or "")
        components = variance_components(table, noise.streams, level=LEVEL, rng=rng)
    return NoiseSources(
        metric=metric,
        variant=variant,
        reference=reference,
        transform=transform,
        runs=len(values),
        missing=missing,
        level=LEVEL,
        components=components,
    )
