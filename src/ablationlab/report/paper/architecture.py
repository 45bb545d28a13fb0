"""What the paper's methods say of a model: GPT-2's parts and what takes their place, in words and in formulas."""

from __future__ import annotations

from ablationlab.core import format
from ablationlab.records.settings import ModelConfig

#: By name, for Typst and for LaTeX.
FORMULAS = {
    "layernorm": (
        '$"LN"(x) = (x - "mean"(x)) \\/ sqrt("var"(x) + epsilon) dot.o g + b$',
        r"$\mathrm{LN}(x) = (x - \mathrm{mean}(x)) / \sqrt{\mathrm{var}(x) + \epsilon} \odot g + b$",
    ),
    "rmsnorm": (
        '$"RMSNorm"(x) = x \\/ sqrt("mean"(x^2) + epsilon) dot.o g$',
        r"$\mathrm{RMSNorm}(x) = x / \sqrt{\mathrm{mean}(x^2) + \epsilon} \odot g$",
    ),
    "residual": ("$sqrt(2 L)$", r"$\sqrt{2L}$"),
    "blocks": ("$L$", "$L$"),
    "width": ("$d$", "$d$"),
    "beta": ("$beta$", r"$\beta$"),
    "epsilon": ("$epsilon$", r"$\epsilon$"),
    "d_z": ("$d_z$", "$d_z$"),
}
_MLPS = {"gelu": "GELU", "relu": "ReLU", "relu2": "squared-ReLU", "silu": "SiLU", "swiglu": "SwiGLU", "geglu": "GeGLU"}
_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_PLACES = {
    "pre": "in front of each part",
    "post": "on the stream behind each part",
    "sandwich": "in front of each part and on its output",
    "output": "on the output of each part",
}
_POSITIONS = {
    "learned": "learned token and absolute position embeddings",
    "sinusoidal": "learned token and fixed sinusoidal position embeddings",
    "rotary": "learned token embeddings and rotary positions",
    "alibi": "learned token embeddings and ALiBi",
    "none": "learned token embeddings and no positions",
}
#: Settings that a sentence of the methods names already.
_TOLD = frozenset(
    "preset layers width heads context vocabulary mlp mlp_ratio norm norm_place norm_eps position tied final_norm "  # noqa: SIM905
    "head_bias init_std token_init_std position_init_std scaled_residual_init dropout front loss_terms redraw".split()
)


def architecture(model: ModelConfig) -> dict[str, str]:
    """The blocks, the norms, the positions and the final norm, and every other setting that is not GPT-2's."""
    norm = _NORMS.get(model.norm, model.norm)
    final = _NORMS.get(str(model.final_norm), str(model.final_norm)) if isinstance(model.final_norm, str) else norm
    ratio = format.setting(float(model.mlp_ratio))
    fields = type(model).model_fields
    further = [
        f"{key} = {format.setting(float(value)) if type(value) in (int, float) else value}"
        for key, value in model.model_dump(mode="json").items()
        if key not in _TOLD and value != fields[key].get_default(call_default_factory=True)
    ]
    placed = f"{norm} {_PLACES[model.norm_place]}" if model.norm_place in _PLACES else "no norms inside"
    eps = f" (ε = {format.setting(model.norm_eps)})" if model.norm_place in _PLACES or model.final_norm else ""
    return {
        "like_gpt2": "yes" if (model.norm, model.norm_place, model.position) == ("layernorm", "pre", "learned") else "",
        "mlp_words": f"{_MLPS.get(model.mlp, model.mlp)} MLP of {ratio} times the width",
        "norm_words": placed + eps,
        "position_words": _POSITIONS.get(model.position, f"learned token embeddings and {model.position} positions"),
        "final_words": f"a final {final}" if model.final_norm else "no final norm",
        "further": "; ".join(further),
    }
