"""The two stages of a sweep, each a small study of its own that is trained and sealed before the plan.

What the second trains follows from the losses of the first, and the rate of each arm from those of both (`stats.tuned`): a
sweep that was killed continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ablationlab.records.plan import TwoStages
from ablationlab.records.settings import EvaluationConfig, Study, Sweep
from ablationlab.stats.rates import best_rate
from ablationlab.stats.results import FittedMinimum
from ablationlab.stats.tuned import best_of_stages

#: The counted losses of a stage: variant -> rate -> one of each seed, in the same order.
StageLosses = Mapping[str, Mapping[float, Sequence[float]]]


def stage_study(study: Study, first: StageLosses | None = None) -> Study:
    """The first stage of a study's sweep, or after the losses of the *first*, the second."""
    sweep = study.sweep
    assert sweep is not None
    assert sweep.finer is not None
    if first is None:
        coarse = sweep.changed(finer=None)
        seeds, rates = sweep.selection_seeds, {name: coarse.rates(name) for name in study.variants}
    else:
        best = {name: _centre(sweep, name, first) for name in study.variants}
        seeds, rates = sweep.finer.seeds, {name: sweep.finer.about(lr) for name, lr in best.items()}
    stage: Literal[1, 2] = 1 if first is None else 2
    return study.changed(
        name=f"{study.name[:40]} sweep {stage}",
        question=f"Which learning rate is best for each variant? Stage {stage} of 2 of study {study.hash}.",
        seeds=seeds,
        sweep=Sweep(lr=rates[study.baseline], variant_lr=rates, stage=stage),
        factors=None,
        contrasts=(),
        regimes={},
        design=None,
        noise=None,
        evaluation=EvaluationConfig(
            curve_every=study.evaluation.curve_every, curve_windows=study.evaluation.curve_windows
        ),
        probes={},
        criteria=(),
        hypotheses=(),
    )


def _centre(sweep: Sweep, variant: str, first: StageLosses) -> float:
    """The first stage's best rate; the middle one of a variant that has none."""
    rates = sorted(sweep.variant_lr.get(variant, sweep.lr))
    return best_rate(first[variant]).lr if variant in first else rates[len(rates) // 2]


def found(study: Study, plans: Sequence[str], first: StageLosses, second: StageLosses) -> TwoStages:
    """What both stages found; *plans* are the seals of theirs. A variant with a run that has no loss is not measured."""
    assert study.sweep is not None
    minima = {
        name: best_of_stages(first[name], second[name])
        if name in first and name in second
        else FittedMinimum("no-loss", _centre(study.sweep, name, first), (), ())
        for name in study.variants
    }
    return TwoStages(plans=tuple(plans), minima=minima)
