"""The named changes to a model: each a function from one model config to another, and what it may change.

A variant declares the settings it touches (``changes``) and the parameters that may differ from the baseline's
(``parameters``): everything else must be equal, and comparisons are refused where it is not.

To add one, write its few lines here; nothing else needs to know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ablationlab.core.registry import Registry
from ablationlab.records.plan import Declaration
from ablationlab.records.settings import FrontEnd, ModelConfig

Change = Callable[[ModelConfig], ModelConfig]


@dataclass(frozen=True)
class Variant:
    """A named change. The formula it declares is what enters block 1, unless it says otherwise."""

    name: str
    declares: Declaration
    change: Change

    def apply(self, model: ModelConfig) -> ModelConfig:
        """The changed model."""
        return self.change(model)


VARIANTS: Registry[Variant] = Registry("variant")


def variant(
    name: str, *, formula: str, meaning: str, changes: tuple[str, ...], parameters: tuple[str, ...] = ()
) -> Callable[[Change], Change]:
    """Register a change under a name."""

    def register(change: Change) -> Change:
        declares = Declaration(formula=formula, meaning=meaning, settings=changes, parameters=parameters)
        VARIANTS.add(name, Variant(name, declares, change))
        return change

    return register


def _front(model: ModelConfig, **fields: object) -> ModelConfig:
    return model.changed(front=FrontEnd.model_validate({**dict(model.front), **fields}))


AFFINE = ("front.gain", "front.bias")


@variant("none", formula="E_tok + E_pos", meaning="the baseline: no embedding normalization", changes=())
def none(model: ModelConfig) -> ModelConfig:
    """Nothing changes."""
    return model


@variant(
    "layernorm",
    formula="LN(E_tok + E_pos) = (x - mean) / sqrt(var + 1e-5) · g + b",
    meaning="LayerNorm with gain and bias on the summed embedding",
    changes=("front",),
    parameters=AFFINE,
)
def layernorm(model: ModelConfig) -> ModelConfig:
    """LayerNorm after token + position."""
    return _front(model, norm="layernorm", gain=True, bias=True, eps=1e-5)


@variant(
    "rmsnorm",
    formula="RMSNorm(E_tok + E_pos) = x / sqrt(mean(x²) + 1e-6) · g",
    meaning="RMSNorm with gain, no bias, on the summed embedding",
    changes=("front",),
    parameters=AFFINE,
)
def rmsnorm(model: ModelConfig) -> ModelConfig:
    """RMSNorm after token + position."""
    return _front(model, norm="rmsnorm", gain=True, bias=False, eps=1e-6)


@variant(
    "layernorm-token",
    formula="LN(E_tok) + E_pos",
    meaning="LayerNorm on the token embedding only, before the position is added (BLOOM, Le Scao et al.)",
    changes=("front",),
    parameters=AFFINE,
)
def layernorm_token(model: ModelConfig) -> ModelConfig:
    """LayerNorm before the position is added."""
    return _front(layernorm(model), place="token")


@variant(
    "rmsnorm-token",
    formula="RMSNorm(E_tok) + E_pos",
    meaning="RMSNorm on the token embedding only, before the position is added",
    changes=("front",),
    parameters=AFFINE,
)
def rmsnorm_token(model: ModelConfig) -> ModelConfig:
    """RMSNorm before the position is added."""
    return _front(rmsnorm(model), place="token")


@variant(
    "rmsnorm-nogain",
    formula="x / sqrt(mean(x²) + 1e-6), x = E_tok + E_pos",
    meaning="RMSNorm without a learned gain (nanochat): rescaling alone",
    changes=("front",),
)
def rmsnorm_nogain(model: ModelConfig) -> ModelConfig:
    """RMSNorm with nothing to learn."""
    return _front(rmsnorm(model), gain=False)


def _scaled_rmsnorm(factor: float) -> None:
    @variant(
        f"rmsnorm-x{factor:g}",
        formula=f"{factor:g} · RMSNorm(E_tok + E_pos)",
        meaning=f"RMSNorm whose output is {factor:g} times as large; an N(0, 0.02²) baseline enters block 1 at about 0.03",
        changes=("front",),
        parameters=AFFINE,
    )
    def scaled(model: ModelConfig) -> ModelConfig:
        """RMSNorm, then a fixed factor: what normalizing does apart from making the input large."""
        return _front(rmsnorm(model), scale=factor)


for _factor in (0.3, 0.1, 0.03):
    _scaled_rmsnorm(_factor)


@variant(
    "layernorm-nobias",
    formula="(x - mean) / sqrt(var + 1e-5) · g, x = E_tok + E_pos",
    meaning="LayerNorm without its bias: against `layernorm` it shows what the bias does",
    changes=("front",),
    parameters=AFFINE,
)
def layernorm_nobias(model: ModelConfig) -> ModelConfig:
    """LayerNorm with gain only."""
    return _front(layernorm(model), bias=False)


@variant(
    "center-only",
    formula="x - mean(x), x = E_tok + E_pos",
    meaning="subtracts the mean and does not rescale: the part of LayerNorm that RMSNorm lacks",
    changes=("front",),
)
def center_only(model: ModelConfig) -> ModelConfig:
    """Centering without rescaling."""
    return _front(model, norm="center", gain=False, bias=False)


@variant(
    "sqrt-d",
    formula="sqrt(d) · E_tok + E_pos",
    meaning="scales the token embedding by the square root of the width (Gemma; Takase et al.'s scaled embedding)",
    changes=("front",),
)
def sqrt_d(model: ModelConfig) -> ModelConfig:
    """A fixed scale instead of a norm."""
    return _front(model, scale="sqrt-width", place="token")


@variant(
    "sqrt-d-scale",
    formula="sqrt(d) · (E_tok + E_pos)",
    meaning="scales by the square root of the width where the study places it: on the sum, or on the token alone (as sqrt-d)",
    changes=("front",),
)
def sqrt_d_scale(model: ModelConfig) -> ModelConfig:
    """A fixed scale that keeps the study's place."""
    return _front(model, scale="sqrt-width")


@variant(
    "gradient-shrink",
    formula="E_tok + E_pos, with dL/dE_tok through the input multiplied by 0.1",
    meaning="shrinks the gradient into the token embedding (GLM-130B); the forward pass is the baseline's",
    changes=("front",),
)
def gradient_shrink(model: ModelConfig) -> ModelConfig:
    """The same values, a tenth of the gradient."""
    return _front(model, gradient=0.1)


@variant(
    "token-init-1",
    formula="E_tok + E_pos, with E_tok ~ N(0, 1) instead of N(0, 0.02²)",
    meaning="starts the token embedding at standard deviation 1: large embeddings without a norm",
    changes=("token_init_std",),
    parameters=("tok.weight",),
)
def token_init_1(model: ModelConfig) -> ModelConfig:
    """The same draws, fifty times larger."""
    return model.changed(token_init_std=1.0)


@variant(
    "untied",
    formula="E_tok + E_pos, with an output head of its own",
    meaning="input and output embedding no longer share their weights (more parameters, equal FLOPs)",
    changes=("tied",),
    parameters=("head.weight",),
)
def untied(model: ModelConfig) -> ModelConfig:
    """An output matrix apart from the token embedding."""
    return model.changed(tied=False)


MLP = ("blocks.*.mlp.*.weight",)


@variant(
    "redrawn",
    formula="E_tok + E_pos, with the MLP matrices drawn again",
    meaning="another draw of the same init: exchangeable with `none`, so that every difference is chance (A/A studies)",
    changes=("redraw",),
    parameters=MLP,
)
def redrawn(model: ModelConfig) -> ModelConfig:
    """The same model and data order from other draws of a part of the init."""
    return model.changed(redraw=1)


@variant(
    "redrawn-2",
    formula="E_tok + E_pos, with the MLP matrices drawn a third time",
    meaning="a second such draw: with `none` and `redrawn` three exchangeable arms, one family of tests",
    changes=("redraw",),
    parameters=MLP,
)
def redrawn_2(model: ModelConfig) -> ModelConfig:
    """As `redrawn`, from streams of its own."""
    return model.changed(redraw=2)
