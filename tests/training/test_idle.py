"""Settings without effect: training with them is training without them, and the plan says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ablationlab.records.settings import ModelConfig, Study, TrainingConfig, merged, validated
from ablationlab.study.checks import study_warnings
from ablationlab.study.load import parse_study
from ablationlab.training.stack import Member, Stack

MODEL = {"layers": 1, "width": 8, "heads": 2, "context": 8}
TRAINING = {"steps": 4, "batch": 2, "lr": 0.01, "warmup": 1, "precision": "fp32"}
TOKENS = np.random.default_rng(0).integers(0, 13, 400)
BARE = {"model": {"norm_place": "none", "final_norm": False}}
ROTARY = {"model": {"position": "rotary"}}


def schedule(name: str) -> dict[str, Any]:
    return {"training": {"schedule": name}}


def optimizer(name: str) -> dict[str, Any]:
    return {"training": {"optimizer": name}}


def trained(*changes: dict[str, Any]) -> torch.Tensor:
    """The weights after three steps."""
    torch.set_num_threads(1)
    tables: dict[str, Any] = {"model": MODEL | {"vocabulary": 13}, "training": TRAINING}
    for change in changes:
        tables = merged(tables, change)
    model, training = validated(ModelConfig, tables["model"]), validated(TrainingConfig, tables["training"])
    stack = Stack([Member("a", 1, 0.01, model)], 1, training, 4, TOKENS, torch.device("cpu"), torch.float32)
    for step in (1, 2, 3):
        stack.train_step(step, stack.offsets(step))
    return stack.weights_RP.detach()


@pytest.mark.parametrize(
    ("base", "key", "value", "used"),
    [
        ({}, "model.rotary_base", 500.0, ROTARY),
        ({}, "model.rotary_fraction", 0.5, ROTARY),
        (ROTARY, "model.position_init_std", 0.5, {"model": {"position": "sinusoidal"}}),
        (ROTARY, "model.front.place", "token", {"model": {"position": "learned", "front": {"norm": "rmsnorm"}}}),
        ({}, "model.front.place", "token", {"model": {"front": {"scale": 2.0}}}),
        ({}, "model.front.eps", 0.1, {"model": {"front": {"norm": "rmsnorm"}}}),
        ({}, "model.qk_norm_over", "width", {"model": {"qk_norm": "rmsnorm"}}),
        (BARE, "model.norm", "rmsnorm", {"model": {"norm_place": "pre"}}),
        (BARE, "model.norm_eps", 0.1, {"model": {"qk_norm": "rmsnorm"}}),
        (BARE, "model.norm_gain", False, {"model": {"qk_norm": "rmsnorm"}}),
        ({"model": {"zero_init": True}}, "model.scaled_residual_init", False, {"model": {"zero_init": False}}),
        ({}, "model.window", 8, {"model": {"context": 16}}),
        ({}, "training.momentum", 0.5, optimizer("muon")),
        (optimizer("sgd"), "training.betas", [0.5, 0.5], optimizer("lion")),
        (optimizer("lion"), "training.eps", 0.1, optimizer("adam")),
        ({"training": {"weight_decay": 0.0}}, "training.decay", "all", {"training": {"weight_decay": 0.5}}),
        (schedule("linear"), "training.decay_share", 0.5, schedule("warmup-stable-decay")),
        (schedule("inverse-sqrt"), "training.final_lr", 0.5, schedule("linear")),
        (schedule("constant"), "training.warmup", 2, schedule("inverse-sqrt")),
    ],
)
def test_what_has_no_effect_is_said_and_has_none(base, key, value, used):
    table, *path = key.split(".")
    change: dict[str, Any] = {path[-1]: value}
    change = {table: {path[0]: change} if path[1:] else change}
    assert torch.equal(trained(base, change), trained(base))
    with_effect, without = trained(base, used, change), trained(base, used)
    assert with_effect.shape != without.shape or not torch.equal(with_effect, without)

    study = {"name": "idle", "baseline": "plain", "seeds": [1, 2, 3], "model": MODEL, "training": TRAINING}
    study["variants"] = {"plain": {"about": "as it is"} | base, "odd": merged(base, change)}
    warnings = " ".join(study_warnings(parse_study(study)))
    assert f"variants.odd.{key} = " in warnings
    assert "odd trains the same model as plain" in warnings
    written = merged(merged(study, base), change) | {"baseline": "none", "variants": ["none", "gradient-shrink"]}
    if key != "model.front.eps":  # which a file leaves to variants
        whole = parse_study(written)
        assert f"{key} = " in " ".join(study_warnings(whole))
        sealed = validated(Study, whole.model_dump(mode="json"))  # with every default written out
        assert study_warnings(sealed) == study_warnings(whole)
    study["variants"] = {"plain": {"about": "as it is"}, "odd": merged(merged(base, used), change)}
    assert f"{key} = " not in " ".join(study_warnings(parse_study(study)))
