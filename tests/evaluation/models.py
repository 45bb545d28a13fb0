"""Small models with weights worth telling apart, as the evaluation sees them."""

from __future__ import annotations

import torch

from ablationlab.evaluation.runs import RunWeights, ScoredStack
from ablationlab.model.parameters import parameters
from ablationlab.records.plan import Budget, PlannedRun, Recipe
from ablationlab.records.settings import ModelConfig, TrainingConfig
from ablationlab.study.variants import VARIANTS

MODEL = ModelConfig(layers=2, width=16, heads=2, context=24, vocabulary=13, token_init_std=0.6, init_std=0.25)


def member(seed: int, variant: str = "none", model: ModelConfig = MODEL) -> RunWeights:
    changed = VARIANTS[variant].apply(model)
    weights = {p.name: torch.from_numpy(p.draw(seed)) for p in parameters(changed)}
    if "front.gain" in weights:
        weights["front.gain"] = weights["front.gain"] + 0.1 * seed
    run = PlannedRun(
        id=f"{variant}-s{seed}",
        role="compared",
        variant=variant,
        regime="default",
        seed=seed,
        stack=0,
        slot=0,
        recipe=Recipe(
            model=changed,
            training=TrainingConfig(steps=1, lr=1e-3),
            budget=Budget(steps=1, tokens=1, matmul_flops=1, parameters=1),
        ),
    )
    return RunWeights(run, "final", changed, weights, "step-00000001", f"{seed:064d}")


def stack(*members: RunWeights, width: int | None = None) -> ScoredStack:
    return ScoredStack.of(members, torch.device("cpu"), width)
