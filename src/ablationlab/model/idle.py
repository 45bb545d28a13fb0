"""Settings that others leave without effect. Importing this loads no torch."""

from __future__ import annotations

from typing import Any

from ablationlab.records.settings import ModelConfig, TrainingConfig, flattened

_NO_TABLE = ("rotary", "alibi", "none")
_NO_NORM: dict[str, tuple[Any, ...]] = {"model.norm_place": ("none",), "model.final_norm": (False,)}
#: Settings, and the values of others that together leave them idle. A value that a study's own code registers is not among
#: them: that code may use any setting.
_IDLE: tuple[tuple[tuple[str, ...], dict[str, tuple[Any, ...]]], ...] = (
    (("model.rotary_base", "model.rotary_fraction"), {"model.position": ("learned", "sinusoidal", "alibi", "none")}),
    (("model.position_init_std", "model.front.place"), {"model.position": _NO_TABLE}),
    (("model.front.place",), {"model.front.norm": ("none",), "model.front.scale": (1.0,)}),
    (("model.front.eps",), {"model.front.norm": ("none", "center")}),
    (("model.qk_norm_over",), {"model.qk_norm": ("none",)}),
    (("model.norm",), _NO_NORM),
    (("model.norm_eps", "model.norm_gain"), {**_NO_NORM, "model.qk_norm": ("none",)}),
    (("model.scaled_residual_init",), {"model.zero_init": (True,)}),
    (("training.momentum",), {"training.optimizer": ("adamw", "adam", "lion")}),
    (("training.betas",), {"training.optimizer": ("sgd",)}),
    (("training.eps",), {"training.optimizer": ("lion", "sgd")}),
    (("training.decay",), {"training.weight_decay": (0.0,)}),
    (("training.decay_share",), {"training.schedule": ("warmup-cosine", "linear", "inverse-sqrt", "constant")}),
    (("training.final_lr",), {"training.schedule": ("inverse-sqrt", "constant")}),
    (("training.warmup",), {"training.schedule": ("constant",)}),
)


def settings_of(model: ModelConfig, training: TrainingConfig | None = None) -> dict[str, Any]:
    """Every setting by its dotted key."""
    return flattened({"model": model.model_dump(), "training": {} if training is None else training.model_dump()})


def idle(settings: dict[str, Any]) -> dict[str, str]:
    """Those of `settings_of` that have no effect, each with the settings that leave it without one."""
    found = {
        name: " and ".join(f"{key} = {settings[key]!r}" for key in others)
        for names, others in _IDLE
        if all(key in settings and settings[key] in values for key, values in others.items())
        for name in names
    }
    if settings["model.window"] is None or settings["model.window"] >= settings["model.context"]:
        found["model.window"] = f"model.context = {settings['model.context']}"
    return found
