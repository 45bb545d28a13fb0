"""What transformers calls our models: which architectures can hold a model, their configs, and the names of their weights."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ablationlab.core.errors import ExportError
from ablationlab.model.idle import idle, settings_of
from ablationlab.records.settings import FrontEnd, ModelConfig

Weights = Mapping[str, Tensor]
#: Any value of a setting will do.
ANY = "any"
#: Settings that decide over the shape, the start or the training of a model, but not over which architecture it is.
_FREE = frozenset(
    [
        *(
            "preset",
            "layers",
            "width",
            "heads",
            "context",
            "vocabulary",
            "loss_terms",
            "options",
            "mlp_ratio",
            "norm_eps",
        ),
        *("token_init_std", "position_init_std", "init_std", "head_init_std", "scaled_residual_init", "zero_init"),
        *("redraw", "mup_base", "dropout", "front"),
    ]
)
#: transformers' names of the activations of `MLPS`.
_ACTIVATIONS = {
    "gelu": "gelu_new",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swiglu": "silu",
    "geglu": "gelu_pytorch_tanh",
}
_UNGATED = ("gelu", "relu", "relu2", "silu")


@dataclass(frozen=True)
class Format:
    """One architecture of transformers. ``holds`` has the values of settings that it can hold, where they are not ours by
    default alone; ``front`` the front end that it computes."""

    name: str
    kind: str
    architecture: str
    holds: Mapping[str, Any]
    config: Callable[[ModelConfig], dict[str, Any]]
    tensors: Callable[[Weights, ModelConfig], dict[str, Tensor]]
    front: FrontEnd = field(default_factory=FrontEnd)

    def obstacles(self, model: ModelConfig) -> list[str]:
        """What of a model it has no place for."""
        found, unused = [], idle(settings_of(model))
        for key, setting in ModelConfig.model_fields.items():
            value, allowed = getattr(model, key), self.holds.get(key, (setting.default,))
            if key == "final_norm" and value == model.norm:
                value = True
            if key == "kv_heads" and value == model.heads:
                value = None
            if key not in _FREE and allowed != ANY and value not in allowed and f"model.{key}" not in unused:
                found.append(f"{key} = {value!r}")
        ours, theirs = (front.model_dump(exclude={"gradient", "place", "eps"}) for front in (model.front, self.front))
        if ours != theirs or (model.front.norm != "none" and model.front.eps != model.norm_eps):
            found.append(f"the front end ({_front_words(model.front)})")
        return found

    def whole_config(self, model: ModelConfig) -> dict[str, Any]:
        """Everything that config.json says."""
        return {
            "model_type": self.kind,
            "architectures": [self.architecture],
            "vocab_size": model.vocabulary,
            "tie_word_embeddings": model.tied,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            "dtype": "float32",
        } | self.config(model)


def _front_words(front: FrontEnd) -> str:
    changed = {k: v for k, v in front.model_dump().items() if v != getattr(FrontEnd(), k)}
    return ", ".join(f"{key} = {value}" for key, value in changed.items()) or "none"


def format_of(model: ModelConfig) -> Format:
    """The architecture that holds a model; `ExportError` names what the nearest one has no place for."""
    obstacles = {each.name: each.obstacles(model) for each in FORMATS}
    nearest = min(FORMATS, key=lambda each: len(obstacles[each.name]))
    if obstacles[nearest.name]:
        others = ", ".join(each.name for each in FORMATS if each is not nearest)
        raise ExportError(
            f"none of the architectures that export knows holds this model. The nearest, {nearest.name}, has no place for "
            f"{'; '.join(obstacles[nearest.name])} (also compared: {others}). "
            "ablationlab.load(run) gives the model as a module"
        )
    return nearest


# GPT-2 ---------------------------------------------------------------------------------------------------------------


def _gpt2_config(model: ModelConfig) -> dict[str, Any]:
    return {
        "n_layer": model.layers,
        "n_embd": model.width,
        "n_head": model.heads,
        "n_positions": model.context,
        "n_inner": model.hidden,
        "activation_function": _ACTIVATIONS[model.mlp],
        "layer_norm_epsilon": model.norm_eps,
        "attn_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "resid_pdrop": model.dropout,
    }


_GPT2_NAMES = (
    ("tok.weight", "wte.weight"),
    ("pos.weight", "wpe.weight"),
    ("final_norm.", "ln_f."),
    ("blocks.", "h."),
    ("norm1.", "ln_1."),
    ("norm2.", "ln_2."),
    ("attn.qkv.", "attn.c_attn."),
    ("attn.out.", "attn.c_proj."),
    ("mlp.up.", "mlp.c_fc."),
    ("mlp.down.", "mlp.c_proj."),
    (".gain", ".weight"),
)


def _gpt2_tensors(weights: Weights, model: ModelConfig) -> dict[str, Tensor]:
    """Its Conv1D stores matrices as (inputs, outputs), as we do."""
    tensors = {}
    for name, value in weights.items():
        for ours, theirs in _GPT2_NAMES:
            name = name.replace(ours, theirs)
        tensors["lm_head.weight" if name == "head.weight" else f"transformer.{name}"] = value
    return tensors


# The family of Llama -------------------------------------------------------------------------------------------------


def _llama_config(model: ModelConfig) -> dict[str, Any]:
    return {
        "hidden_size": model.width,
        "intermediate_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads,
        "head_dim": model.head_width,
        "hidden_act": _ACTIVATIONS[model.mlp],
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rotary_base},
        "attention_bias": model.biases,
        "mlp_bias": model.biases,
        "attention_dropout": model.dropout,
    }


def _gemma2_config(model: ModelConfig) -> dict[str, Any]:
    config = _llama_config(model)
    kind = "full_attention" if model.window is None else "sliding_attention"
    return config | {
        "hidden_activation": config.pop("hidden_act"),
        "query_pre_attn_scalar": model.head_width,
        "attn_logit_softcapping": model.attention_softcap,
        "final_logit_softcapping": model.head_softcap,
        "sliding_window": model.window or model.context,
        "layer_types": [kind] * model.layers,
    }


def _llama_names(**blocks: str) -> Callable[[Weights, ModelConfig], dict[str, Tensor]]:
    """Matrices as (outputs, inputs); *blocks*: their names of our norms and layers in a block, with __ for a dot."""
    names = {"attn.out": "self_attn.o_proj", "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj"}
    names |= {"mlp.down": "mlp.down_proj", "attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm"}
    names |= {ours.replace("__", "."): theirs for ours, theirs in blocks.items()}

    def tensors(weights: Weights, model: ModelConfig) -> dict[str, Tensor]:
        whole = {"tok": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
        renamed = {}
        for name, value in weights.items():
            place, _, leaf = name.rpartition(".")
            leaf = "weight" if leaf == "gain" else leaf
            if not (match := re.fullmatch(r"blocks\.(\d+)\.(.+)", place)):
                renamed[f"{whole[place]}.{leaf}"] = value
                continue
            layer, part = f"model.layers.{match[1]}", match[2]
            turned = value.T if value.dim() == 2 else value
            if part == "attn.qkv":
                kept = (model.kv_heads or model.heads) * model.head_width
                for letter, piece in zip("qkv", torch.split(turned, [model.width, kept, kept]), strict=True):
                    renamed[f"{layer}.self_attn.{letter}_proj.{leaf}"] = piece
            else:
                renamed[f"{layer}.{names[part]}.{leaf}"] = turned
        return renamed

    return tensors


_pre_norms = _llama_names(norm1="input_layernorm", norm2="post_attention_layernorm")
_output_norms = _llama_names(norm1_out="post_attention_layernorm", norm2_out="post_feedforward_layernorm")
_all_norms = _llama_names(
    norm1="input_layernorm",
    norm1_out="post_attention_layernorm",
    norm2="pre_feedforward_layernorm",
    norm2_out="post_feedforward_layernorm",
)
_nanochat_names = _llama_names(mlp__up="mlp.fc1", mlp__down="mlp.fc2")


def _gemma2_tensors(weights: Weights, model: ModelConfig) -> dict[str, Tensor]:
    """Its norms multiply by 1 + weight."""
    tensors = _all_norms(weights, model)
    return {name: value - 1 if name.endswith("norm.weight") else value for name, value in tensors.items()}


def _nanochat_tensors(weights: Weights, model: ModelConfig) -> dict[str, Tensor]:
    """It turns queries and keys the other way round: the halves of every head change places."""

    def swapped(value: Tensor) -> Tensor:
        halves: Tensor = value.reshape(-1, 2, model.head_width // 2, value.shape[1])
        return halves.flip(1).flatten(0, 2)

    turned = re.compile(r".*\.(q|k)_proj\.weight")
    tensors = _nanochat_names(weights, model)
    return {name: swapped(value) if turned.fullmatch(name) else value for name, value in tensors.items()}


# GPT-NeoX ------------------------------------------------------------------------------------------------------------


def _neox_config(model: ModelConfig) -> dict[str, Any]:
    factor = model.rotary_fraction
    if int(model.head_width * factor) != model.rotated:  # transformers truncates
        factor = math.nextafter(model.rotated / model.head_width, 1.0)
    rope = {"rope_type": "default", "rope_theta": model.rotary_base, "partial_rotary_factor": factor}
    return {
        "hidden_size": model.width,
        "intermediate_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "hidden_act": _ACTIVATIONS[model.mlp],
        "max_position_embeddings": model.context,
        "layer_norm_eps": model.norm_eps,
        "rope_parameters": rope,
        "use_parallel_residual": model.parallel,
        "attention_bias": True,
        "attention_dropout": model.dropout,
        "hidden_dropout": model.dropout,
    }


_NEOX_NAMES = {
    "norm1": "input_layernorm",
    "norm2": "post_attention_layernorm",
    "attn.qkv": "attention.query_key_value",
    "attn.out": "attention.dense",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}


def _neox_tensors(weights: Weights, model: ModelConfig) -> dict[str, Tensor]:
    """Queries, keys and values of one head stand together."""
    whole = {"tok": "gpt_neox.embed_in", "final_norm": "gpt_neox.final_layer_norm", "head": "embed_out"}
    found = {}
    for name, value in weights.items():
        place, _, leaf = name.rpartition(".")
        leaf = "weight" if leaf == "gain" else leaf
        match = re.fullmatch(r"blocks\.(\d+)\.(.+)", place)
        turned = value.T if match and value.dim() == 2 else value
        if match and match[2] == "attn.qkv":
            turned = turned.reshape(3, model.heads, -1, *turned.shape[1:]).transpose(0, 1).flatten(0, 2)
        owner = f"gpt_neox.layers.{match[1]}.{_NEOX_NAMES[match[2]]}" if match else whole[place]
        found[f"{owner}.{leaf}"] = turned
    return found


_LLAMA: Mapping[str, Any] = {
    "norm": ("rmsnorm",),
    "position": ("rotary",),
    "rotary_base": ANY,
    "mlp": ("swiglu", "geglu"),
    "biases": (False,),
    "tied": ANY,
    "kv_heads": ANY,
}
_QK_RMSNORM = {"qk_norm": ("rmsnorm",)}
_SCALED = FrontEnd(scale="sqrt-width")
_NORMED = FrontEnd(norm="rmsnorm")

FORMATS = (
    Format("GPT-2", "gpt2", "GPT2LMHeadModel", {"mlp": _UNGATED, "tied": ANY}, _gpt2_config, _gpt2_tensors),
    Format("Llama", "llama", "LlamaForCausalLM", {**_LLAMA, "biases": ANY}, _llama_config, _pre_norms),
    Format(
        "Mistral",
        "mistral",
        "MistralForCausalLM",
        {**_LLAMA, "window": ANY},
        lambda model: _llama_config(model) | {"sliding_window": model.window},
        _pre_norms,
    ),
    Format("Qwen3", "qwen3", "Qwen3ForCausalLM", {**_LLAMA, **_QK_RMSNORM}, _llama_config, _pre_norms),
    Format(
        "OLMo-2",
        "olmo2",
        "Olmo2ForCausalLM",
        {**_LLAMA, **_QK_RMSNORM, "qk_norm_over": ("width",), "norm_place": ("output",)},
        _llama_config,
        _output_norms,
    ),
    Format(
        "Gemma-2",
        "gemma2",
        "Gemma2ForCausalLM",
        {
            **_LLAMA,
            "norm_place": ("sandwich",),
            "attention_softcap": ANY,
            "head_softcap": ANY,
            "window": ANY,
        },
        _gemma2_config,
        _gemma2_tensors,
        _SCALED,
    ),
    Format(
        "nanochat",
        "nanochat",
        "NanoChatForCausalLM",
        {**_LLAMA, **_QK_RMSNORM, "mlp": _UNGATED, "norm_gain": (False,), "head_softcap": ANY},
        lambda model: _llama_config(model) | {"final_logit_softcapping": model.head_softcap},
        _nanochat_tensors,
        _NORMED,
    ),
    Format(
        "GPT-NeoX",
        "gpt_neox",
        "GPTNeoXForCausalLM",
        {
            "mlp": _UNGATED,
            "position": ("rotary",),
            "rotary_base": ANY,
            "rotary_fraction": ANY,
            "parallel": ANY,
            "tied": ANY,
        },
        _neox_config,
        _neox_tensors,
    ),
)


def tensors_of(weights: Weights, model: ModelConfig) -> dict[str, Tensor]:
    """The weights of one run by transformers' names."""
    with torch.no_grad():
        named = format_of(model).tensors(weights, model)
        return {name: value.detach().contiguous() for name, value in named.items()}


def config_of(model: ModelConfig) -> dict[str, Any]:
    """The content of config.json."""
    return format_of(model).whole_config(model)
