"""Optimizers and learning-rate schedules by name, each as its formula. Importing this loads no torch.

State is flat: row r of ``x_RP`` holds all parameters of run r, so that one element-wise pass updates the whole stack. In the
formulas η is the learning rate, λ the weight decay and g the clipped gradient; the state m, v starts at zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from ablationlab.core.code import place_of, written
from ablationlab.core.errors import CodeError, Problem
from ablationlab.core.format import number, setting
from ablationlab.core.registry import Registry
from ablationlab.model.parameters import matmul_flops_per_token, parameters
from ablationlab.model.weights import Parameter
from ablationlab.records.settings import ModelConfig, RateScale, TrainingConfig

if TYPE_CHECKING:
    from torch import Tensor

#: (training, step 1 .. steps, steps) -> the factor of the peak learning rate.
Schedule = Callable[[TrainingConfig, int, int], float]
SCHEDULES: Registry[Schedule] = Registry("schedule")


def _after_warmup(training: TrainingConfig, step: int, steps: int) -> float:
    """The share of the steps after warmup that are done, from above 0 to 1."""
    return (step - training.warmup) / max(1, steps - training.warmup)


def warmup_cosine(training: TrainingConfig, step: int, steps: int) -> float:
    """k / warmup up to warmup, then from 1 down to ``final_lr`` along half a cosine, reached at the last step."""
    if step <= training.warmup:
        return step / training.warmup
    progress = _after_warmup(training, step, steps)
    return training.final_lr + (1 - training.final_lr) * 0.5 * (1 + math.cos(math.pi * progress))


def linear(training: TrainingConfig, step: int, steps: int) -> float:
    """The same warmup, then straight down to ``final_lr``, reached at the last step."""
    if step <= training.warmup:
        return step / training.warmup
    return 1 - (1 - training.final_lr) * _after_warmup(training, step, steps)


def warmup_stable_decay(training: TrainingConfig, step: int, steps: int) -> float:
    """The same warmup, then 1, and in the last ``decay_share`` of the steps straight down to ``final_lr``."""
    if step <= training.warmup:
        return step / training.warmup
    falling = decay_steps(training, steps)
    left = steps - step
    return 1.0 if left >= falling else training.final_lr + (1 - training.final_lr) * left / falling


def decay_steps(training: TrainingConfig, steps: int) -> int:
    """Steps in which the rate of "warmup-stable-decay" falls."""
    return round(training.decay_share * steps)


def inverse_sqrt(training: TrainingConfig, step: int, steps: int) -> float:
    """The same warmup, then sqrt(warmup / k); ``final_lr`` is not used (Vaswani et al. 2017)."""
    if step <= training.warmup:
        return step / training.warmup
    return math.sqrt(max(1, training.warmup) / step)


def constant(training: TrainingConfig, step: int, steps: int) -> float:
    """1, without a warmup."""
    return 1.0


SCHEDULES.add("warmup-cosine", warmup_cosine)
SCHEDULES.add("linear", linear)
SCHEDULES.add("warmup-stable-decay", warmup_stable_decay)
SCHEDULES.add("inverse-sqrt", inverse_sqrt)
SCHEDULES.add("constant", constant)
#: The names of these, as against those that a study's own code registers.
SHIPPED_SCHEDULES = frozenset(SCHEDULES)
WITH_WARMUP = ("warmup-cosine", "linear", "warmup-stable-decay", "inverse-sqrt")


def warmup_refusal(training: TrainingConfig, steps: int) -> Problem | None:
    """What is wrong with a warmup, or with the end of "warmup-stable-decay", in a run of so many steps."""
    if training.schedule not in WITH_WARMUP:
        return None
    falling = decay_steps(training, steps) if training.schedule == "warmup-stable-decay" else 0
    if training.warmup >= steps:
        given = f"{training.warmup}{'' if 'warmup' in training.model_fields_set else ', the default'}"
        return Problem("warmup", "must be shorter than the run", given, f"below {steps}")
    if training.warmup + falling > steps:
        text = f"leaves no room: {training.warmup} of {steps} steps warm up and the rate falls in {falling}"
        allowed = f"up to {number((steps - training.warmup) / steps)}"
        return Problem("decay_share", text, setting(training.decay_share), allowed)
    return None


def schedule_refusal(training: TrainingConfig, steps: int) -> str | None:
    """What is wrong with the factors of a study's own schedule in a run of so many steps."""
    name = training.schedule
    if name in SHIPPED_SCHEDULES:
        return None
    schedule = SCHEDULES[name]
    for step in range(1, steps + 1):
        try:
            factor = schedule(training, step, steps)
        except Exception as error:
            text = f"schedule {name!r} raises at step {step} of {steps}: {type(error).__name__}: {error}"
            return f"{place_of(error) or written(schedule) or 'your code'}: {text}"
        if not _is_factor(factor):
            text = f"schedule {name!r} gives {str(factor)[:40]} ({type(factor).__name__}) at step {step} of {steps}"
            return f"{written(schedule) or 'your code'}: {text}; it must be a finite number of at least 0"
    return None


def _is_factor(value: object) -> bool:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return False
    try:
        return 0 <= float(value) < math.inf
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor of several numbers
        return False


@dataclass(frozen=True)
class Matrix:
    """Where a matrix of a block stands in a row: some columns of a parameter of that shape, which begins at ``start``. Axes
    before the last two count more matrices."""

    start: int
    shape: tuple[int, ...]
    columns: tuple[int, int]

    @classmethod
    def all_of(cls, parameter: Parameter, start: int) -> tuple[Matrix, ...]:
        """Those of a parameter that begins there."""
        widths = parameter.sections or parameter.shape[-1:]
        return tuple(
            cls(start, parameter.shape, (end - width, end))
            for width, end in zip(widths, accumulate(widths), strict=True)
        )

    @property
    def update_size(self) -> float:
        """What Muon multiplies an orthogonal update with, so that it has the size of AdamW's."""
        first, end = self.columns
        return 0.2 * math.sqrt(max(self.shape[-2], end - first))

    def of(self, flat_RP: Tensor) -> Tensor:
        """A view of it, for every run."""
        first, end = self.columns
        whole = flat_RP[:, self.start : self.start + math.prod(self.shape)].view(-1, *self.shape)
        return whole[..., first:end]


@dataclass(frozen=True, eq=False)
class OptimizerStep:
    """What an update rule gets: flat tensors, one row per run of the stack."""

    weights: Tensor  # (R, P)
    gradient: Tensor  # (R, P), clipped
    state: Mapping[str, Tensor]  # (R, P) each, zero at the start; to be changed in place
    lr: Tensor  # (R, 1), or (R, P) where groups of parameters have their own
    step: Tensor  # a scalar that counts from 1
    decay: Tensor  # (P,): weight_decay where it applies, else 0
    training: TrainingConfig
    views: Callable[[Tensor], dict[str, Tensor]]  # of a flat tensor: each parameter by name, with its run axis
    matrices: tuple[Matrix, ...] = ()  # those of the blocks; they stand first in a row
    rest: int = 0  # the column behind them

    def columns(self, part: slice) -> OptimizerStep:
        """The same for a part of every row."""
        return replace(
            self,
            weights=self.weights[:, part],
            gradient=self.gradient[:, part],
            state={name: value[:, part] for name, value in self.state.items()},
            lr=self.lr[:, part] if self.lr.shape[1] > 1 else self.lr,
            decay=self.decay[part],
        )


@dataclass(frozen=True)
class UpdateRule:
    """``update`` returns the new weights (R, P); ``state`` names the tensors that it keeps between steps.

    ``second_moment``: a state called ``v`` is one of every parameter, for the records and probes. ``matrix_flops``: of the
    products that an update makes with an A x B matrix of a block, which it needs whole.
    """

    state: tuple[str, ...]
    update: Callable[[OptimizerStep], Tensor]
    second_moment: bool = True
    matrix_flops: Callable[[int, int], int] | None = None

    def moved(self, step: OptimizerStep) -> Tensor:
        """The new weights, or `CodeError` for what cannot be: another shape would be spread over all of them."""
        weights = self.update(step)
        want, got = ((tuple(x.shape), x.dtype) if hasattr(x, "dtype") else None for x in (step.weights, weights))
        if got != want:
            returned = type(weights).__name__ if got is None else f"{got[1]} of shape {got[0]}"
            raise CodeError(
                f"{written(self.update) or 'your code'}: optimizer {step.training.optimizer!r} must return the new weights, "
                f"{step.weights.dtype} of shape {tuple(step.weights.shape)}, not {returned}"
            )
        return weights


def _moved(step: OptimizerStep, lr: Tensor, direction: Tensor) -> Tensor:
    """θ(1-ηλ) - lr · direction."""
    return (step.weights * (1 - step.lr * step.decay)).addcmul_(lr, direction, value=-1)


def adamw(step: OptimizerStep) -> Tensor:
    """m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; θ = θ(1-ηλ) - η m̂ / (sqrt(v̂) + ε), where m̂ = m / (1-β₁ᵏ) and v̂ = v / (1-β₂ᵏ) at
    step k (Loshchilov & Hutter 2019)."""
    (beta1, beta2), m, v = step.training.betas, step.state["m"], step.state["v"]
    m.lerp_(step.gradient, 1 - beta1)
    v.mul_(beta2).addcmul_(step.gradient, step.gradient, value=1 - beta2)
    root = (v / (1 - beta2**step.step)).sqrt() + step.training.eps
    return _moved(step, step.lr / (1 - beta1**step.step), m / root)


def adam(step: OptimizerStep) -> Tensor:
    """AdamW of g + λθ instead of g, with λ = 0 in the last formula (Kingma & Ba 2015)."""
    coupled = step.gradient + step.decay * step.weights
    return adamw(replace(step, gradient=coupled, decay=step.decay * 0))


def lion(step: OptimizerStep) -> Tensor:
    """θ = θ(1-ηλ) - η sign(β₁m + (1-β₁)g); m = β₂m + (1-β₂)g (Chen et al. 2023)."""
    (beta1, beta2), m = step.training.betas, step.state["m"]
    direction = m.lerp(step.gradient, 1 - beta1).sign()
    m.lerp_(step.gradient, 1 - beta2)
    return _moved(step, step.lr, direction)


def sgd(step: OptimizerStep) -> Tensor:
    """m = μm + g + λθ; θ = θ - ηm (Polyak 1964)."""
    m = step.state["m"]
    m.mul_(step.training.momentum).add_(step.gradient + step.decay * step.weights)
    return step.weights - step.lr * m


def muon(step: OptimizerStep) -> Tensor:
    """m = μm + (1-μ)g; θ = θ(1-ηλ) - 0.2 η sqrt(max(A, B)) NS(μm + (1-μ)g) for the A x B matrices of the blocks, AdamW for
    the rest (Jordan et al. 2024).

    NS makes all singular values about 1, and the factor gives an update the size of AdamW's (Liu et al. 2025), so that both
    have the same η and λ.
    """
    import torch

    from ablationlab.model.orthogonal import orthogonalized

    ours, mu = step.columns(slice(None, step.rest)), step.training.momentum
    m = ours.state["m"].lerp_(ours.gradient, 1 - mu)
    ahead = ours.gradient.lerp(m, mu)
    found = orthogonalized(
        [matrix.of(ahead) for matrix in step.matrices],
        bf16=step.training.precision == "bf16",
    )
    for matrix, direction in zip(step.matrices, found, strict=True):
        matrix.of(ahead).copy_(direction).mul_(matrix.update_size)
    return torch.cat([_moved(ours, ours.lr, ahead), adamw(step.columns(slice(step.rest, None)))], dim=1)


#: Newton-Schulz iterations of Muon.
ITERATIONS = 5


def muon_flops(rows: int, columns: int) -> int:
    """Of G = XXᵀ, G² and the product with X, with X lying on its long side."""
    short, long = sorted((rows, columns))
    return ITERATIONS * (4 * short**2 * long + 2 * short**3)


#: None stands for the fused AdamW of `optimizers.py`.
OPTIMIZERS: Registry[UpdateRule | None] = Registry("optimizer")
OPTIMIZERS.add("adamw", None)
OPTIMIZERS.add("adam", UpdateRule(("m", "v"), adam))
OPTIMIZERS.add("lion", UpdateRule(("m",), lion))
OPTIMIZERS.add("sgd", UpdateRule(("m",), sgd))
OPTIMIZERS.add("muon", UpdateRule(("m", "v"), muon, second_moment=False, matrix_flops=muon_flops))
#: The names of these, as against those that a study's own code registers.
SHIPPED = frozenset(OPTIMIZERS)
#: Those whose updates have a size of their own, whatever the gradient's: the ones that µP's rates here are for.
_NORMALIZED = ("adamw", "adam", "lion", "muon")


def update_flops(model: ModelConfig, training: TrainingConfig) -> int:
    """Matrix-multiply FLOPs of one update, beside those of the tokens."""
    rule = OPTIMIZERS[training.optimizer]
    if rule is None or rule.matrix_flops is None:
        return 0
    return sum(
        math.prod(parameter.shape[:-2]) * rule.matrix_flops(parameter.shape[-2], width)
        for parameter in parameters(model)
        if parameter.in_products
        for width in parameter.sections or parameter.shape[-1:]
    )


def step_flops(model: ModelConfig, training: TrainingConfig) -> int:
    """Matrix-multiply FLOPs of one training step: forward, backward and update."""
    return training.batch * model.context * matmul_flops_per_token(model) + update_flops(model, training)


def has_second_moment(optimizer: str) -> bool:
    """Whether it keeps one of every parameter."""
    rule = OPTIMIZERS[optimizer]
    return rule is None or (rule.second_moment and "v" in rule.state)


def kept_numbers(training: TrainingConfig) -> int:
    """Numbers that training keeps of every parameter: the weight, the optimizer's state, the average."""
    rule = OPTIMIZERS[training.optimizer]
    return 1 + (2 if rule is None else len(rule.state)) + bool(training.ema)


def rate_group(parameter: Parameter) -> str:
    """The field of `RateScale` that a parameter's learning rate is multiplied with."""
    if parameter.in_products:
        return "matrices"
    named = {"embedding": "embedding", "position": "embedding", "head": "head"}
    return named.get(parameter.group, "rest")


def rate_and_decay(parameter: Parameter, training: TrainingConfig) -> tuple[float, float]:
    """A parameter's factor of the learning rate, and its weight decay.

    µP scales the update alone, so its factor is taken out of a decay that is multiplied with the rate; that of "adam" is part
    of the gradient, where no rate enters. An orthogonal update grows with the root of the width less than one of Adam's does,
    so µP scales it by the root.
    """
    own = parameter.rate
    if training.optimizer == "muon" and parameter.in_products:
        own = math.sqrt(own)
    decays = training.decay == "all" or parameter.is_matrix
    scale: float = getattr(training.lr_scale, rate_group(parameter))
    decay = training.weight_decay / (1.0 if training.optimizer == "adam" else own)
    return scale * own, decay if decays else 0.0


def combination_problems(model: ModelConfig, training: TrainingConfig) -> Iterator[Problem]:
    """What a model and a training that are right by themselves cannot have together; ``vocabulary`` may be unresolved."""
    optimizer = training.optimizer
    if optimizer == "muon" and not model.layers:
        text = "is for the matrices of blocks, and this model has none (model.layers = 0)"
        yield Problem("training.optimizer", text, repr(optimizer), "adamw, or a model with layers")
    if model.mup_base is not None and optimizer not in _NORMALIZED:
        text = f"has no rule for the rates of {optimizer!r}"
        yield Problem("model.mup_base", text, str(model.mup_base), f"the optimizers {', '.join(_NORMALIZED)}")
    every = parameters(model if model.vocabulary is not None else model.changed(vocabulary=1))
    if model.mup_base is not None and model.tied and "final_norm.gain" not in {parameter.name for parameter in every}:
        text = "scales a tied head by the gain of the final norm, and this model has none"
        yield Problem("model.mup_base", text, str(model.mup_base), "tied = false, or a final norm with a gain")
    owned = {rate_group(parameter) for parameter in every}
    for group in RateScale.model_fields:
        if getattr(training.lr_scale, group) != 1.0 and group not in owned:
            why = "the head is tied: the embedding's applies" if group == "head" else "the model has no such parameter"
            scale = getattr(training.lr_scale, group)
            yield Problem(f"training.lr_scale.{group}", f"has nothing to scale: {why}", str(scale))
