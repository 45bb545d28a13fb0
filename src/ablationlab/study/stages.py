"""The two stages of a sweep, each a small study of its own that is trained and sealed before the plan.

What the second trains follows from the losses of the first, and the rate of each arm from those of both (`stats.tuned`): a
sweep that was killed continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ablationlab.records.plan import TwoStages
from ablationlab.records.settings import EvaluationConfig, Study, Sweep, Trial
from ablationlab.stats.rates import best_trial
from ablationlab.stats.results import FittedMinimum
from ablationlab.stats.tuned import best_of_stages, best_pair_of_stages

#: The counted losses of a stage: variant -> trial -> one of each seed, in the same order.
StageLosses = Mapping[str, Mapping[Trial, Sequence[float]]]


def stage_study(study: Study, first: StageLosses | None = None) -> Study:
    """The first stage of a study's sweep, or after the losses of the *first*, the second."""
    sweep = study.sweep
    assert sweep is not None
    assert sweep.finer is not None
    if first is None:
        coarse = sweep.first_stage
        seeds, trials = sweep.selection_seeds, {name: coarse.trials(name) for name in study.variants}
    else:
        best = {name: _centre(sweep, name, first) for name in study.variants}
        seeds, trials = sweep.finer.seeds, {name: sweep.about(centre) for name, centre in best.items()}
    stage: Literal[1, 2] = 1 if first is None else 2
    settings = "learning rate" if sweep.second is None else f"learning rate and {sweep.second.setting}"
    points = {name: tuple(trial for trial in each if isinstance(trial, tuple)) for name, each in trials.items()}
    rates = {name: tuple(sorted({sweep.settings_of(trial)["lr"] for trial in each})) for name, each in trials.items()}
    return study.changed(
        name=f"{study.name[:40]} sweep {stage}",
        question=f"Which {settings} is best for each variant? Stage {stage} of 2 of study {study.hash}.",
        seeds=seeds,
        sweep=Sweep(
            lr=rates[study.baseline],
            variant_lr=rates,
            stage=stage,
            second=sweep.first_stage.second,
            points={} if sweep.second is None else points,
        ),
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


def _centre(sweep: Sweep, variant: str, first: StageLosses) -> Trial:
    """The first stage's best trial; the middle one of a variant that has none."""
    trials = sweep.first_stage.trials(variant)
    return best_trial(first[variant]) if variant in first else trials[len(trials) // 2]


def found(study: Study, plans: Sequence[str], first: StageLosses, second: StageLosses) -> TwoStages:
    """What both stages found; *plans* are the seals of theirs. A variant with a run that has no loss is not measured."""
    assert study.sweep is not None
    minima = {name: _minimum(study.sweep, name, first, second) for name in study.variants}
    return TwoStages(plans=tuple(plans), minima=minima)


def _minimum(sweep: Sweep, variant: str, first: StageLosses, second: StageLosses) -> FittedMinimum:
    assert sweep.finer is not None
    if variant not in first or variant not in second:
        settings = list(sweep.settings_of(_centre(sweep, variant, first)).values())
        return FittedMinimum("no-loss", settings[0], (), (), second=None if sweep.second is None else settings[1])
    stages = first[variant], second[variant]
    if sweep.second is None:
        a, b = ({lr: losses for lr, losses in stage.items() if isinstance(lr, float)} for stage in stages)
        return best_of_stages(a, b)
    c, d = ({pair: losses for pair, losses in stage.items() if isinstance(pair, tuple)} for stage in stages)
    return best_pair_of_stages(c, d, (sweep.finer.factor, sweep.second.factor))
