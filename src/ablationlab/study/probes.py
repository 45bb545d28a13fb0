"""Every probe, declared once: what it means, what it writes, what it needs. No torch: studies are checked against this.

To add one, declare it here, write a function of a snapshot in `training/probes/`, and list it in `MEASUREMENTS` there
(`stack_probes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ablationlab.core.registry import Registry
from ablationlab.model.parts import parts_of
from ablationlab.records.probes import AT_THE_END, Measure, ProbeChart, ProbeDefinition
from ablationlab.records.settings import ModelConfig, Study
from ablationlab.study.variants import variants_of

#: In a study: every probe that the study's models have anything to show to.
ALL = "all"
# Length of the n-grams that are counted as duplicates; 13 tokens is what contamination checks have used since GPT-3.
NGRAM = 13

Need = Callable[[ModelConfig], str | None]


@dataclass(frozen=True)
class Probe:
    """One diagnostic. ``need`` says what a model lacks for it, if anything; ``forward``: it reads the tapped pass."""

    definition: ProbeDefinition
    need: Need
    forward: bool = False
    backward: bool = False  # the tapped pass is differentiated with respect to the residual stream


def _nothing(model: ModelConfig) -> str | None:
    return None


def _blocks(model: ModelConfig) -> str | None:
    return None if model.layers else "needs a model with blocks (layers = 0 here)"


def _gain(model: ModelConfig) -> str | None:
    return None if model.front.gain else "needs an embedding norm with a learned gain, which no variant here has"


def _bounded_parts(model: ModelConfig) -> str | None:
    unknown = [part.group for _, part in parts_of(model) if not part.has_gradient_bound]
    if unknown:
        return f"has no bound for this kind of {' and '.join(unknown)} (model.mlp = {model.mlp!r})"
    plain = ModelConfig(layers=1, width=1, heads=1, context=1)
    for setting in _BOUND_NEEDS:
        if (value := getattr(model, setting)) != (needed := getattr(plain, setting)):
            return f"bounds Pre-LN blocks of GPT-2 alone, with model.{setting} = {needed!r}, not {value!r}"
    return _blocks(model)


#: Settings whose default the bound of `gradient-bound` is written for.
_BOUND_NEEDS = (
    *("norm", "norm_gain", "norm_place", "parallel", "kv_heads", "attention_gate"),
    *("residual_scale", "branch_scale", "embedding_skip"),
)


def _ngram(model: ModelConfig) -> str | None:
    return None if model.context + 1 >= NGRAM else f"needs a context of at least {NGRAM - 1} tokens"


PROBES: Registry[Probe] = Registry("probe")
#: What measures the probes that a study's own code declares: functions of a snapshot.
OWN_MEASUREMENTS: Registry[Callable[..., Any]] = Registry("function of a probe")


def _declare(
    name: str,
    meaning: str,
    *measures: Measure,
    need: Need = _nothing,
    forward: bool = False,
    backward: bool = False,
    charts: tuple[ProbeChart, ...] = (),
) -> None:
    PROBES.add(name, Probe(ProbeDefinition(meaning, measures, charts), need, forward or backward, backward))


_PARAMETERS = "total, embedding, position, front, attention, mlp, norms, head; block-n"
_STREAM = "input (what enters block 1), block-n (after block n)"
_LEVEL = "quantile level"
_SUBLAYERS = "block-n.attention, block-n.mlp"

_declare(
    "gradient-norm",
    "L2 norm of the gradient before clipping, per group of parameters",
    Measure("norm", "square root of the sum of squares over the group", _PARAMETERS),
)
_declare(
    "update-ratio",
    "size of one update against the weights it moves",
    Measure("ratio", "‖θ after - θ before‖ / ‖θ before‖", _PARAMETERS),
    charts=(
        ProbeChart(
            "update-ratio",
            "ratio",
            "Relative size of an update",
            "‖Δθ‖ / ‖θ‖, log scale",
            "Over all parameters.",
            group="total",
            log=True,
        ),
    ),
)
_declare(
    "second-moment",
    "Adam's second moment v̂ = v / (1 - β₂ᵏ)",
    Measure("mean", "mean of v̂", _PARAMETERS),
    Measure("max", "largest v̂", _PARAMETERS),
    Measure(
        "near_eps", "share of weights where eps is a tenth of the denominator or more: sqrt(v̂) <= 9 eps", _PARAMETERS
    ),
    charts=(
        ProbeChart(
            "second-moment",
            "mean",
            "Adam's second moment",
            "mean of v̂, log scale",
            "Mean over all parameters, bias-corrected.",
            group="total",
            log=True,
        ),
        ProbeChart(
            "second-moment-embedding",
            "mean",
            "Adam's second moment of the token embedding",
            "mean of v̂, log scale",
            "Mean over the token embedding, bias-corrected.",
            group="embedding",
            log=True,
        ),
    ),
)
_declare(
    "embedding-norm",
    "L2 norms of the rows of the token embedding, by token class",
    Measure("mean", "mean over the rows", "all, or a token class"),
    Measure("quantile", "quantiles over the rows", "all, or a token class", _LEVEL),
    charts=(
        ProbeChart(
            "embedding-norm",
            "mean",
            "Norm of the token embeddings",
            "mean L2 norm",
            "Mean L2 norm of the rows of the token embedding, before any norm is applied to them.",
            group="all",
        ),
        ProbeChart(
            "embedding-norm-spread",
            "quantile",
            f"Distribution of the token embeddings' norms{AT_THE_END}",
            "L2 norm of a row",
            "Over the rows of the token embedding, by the class of their tokens.",
            over="spread",
        ),
        ProbeChart(
            "embedding-norm-classes",
            "mean",
            f"Norm of the token embeddings by token class{AT_THE_END}",
            "mean L2 norm",
            "Mean L2 norm of the rows, by the class of their tokens.",
            over="groups",
        ),
    ),
)
_declare(
    "token-frequency",
    "frequency of a token in the training text against the norm of its embedding row",
    Measure("frequency", "share of the training text (mean over the tokens of a point)", "the token's text", "rank"),
    Measure("norm", "L2 norm of the row (mean over the tokens of a point)", "the token's text", "rank"),
    Measure("correlation", "Spearman's rank correlation of the two over tokens that occur"),
)
_declare(
    "cosine",
    "mean pairwise cosine similarity: 1 when everything has collapsed to one direction (over-smoothing)",
    Measure("mean", "mean of cos(x_i, x_j) over all pairs i ≠ j", f"tokens (rows of the embedding), {_STREAM}"),
    forward=True,
    charts=(
        ProbeChart(
            "cosine",
            "mean",
            "Cosine between token embeddings",
            "mean pairwise cosine",
            "Mean pairwise cosine of the rows of the token embedding. Near 1, all rows point the same way (over-smoothing).",
            group="tokens",
        ),
        ProbeChart(
            "cosine-depth",
            "mean",
            f"Cosine by depth{AT_THE_END}",
            "mean pairwise cosine",
            "Mean pairwise cosine of the residual stream, from the input of block 1 to the output of the last block.",
            over="depth",
        ),
    ),
)
_declare(
    "effective-rank",
    "how many directions the token embedding uses",
    Measure("entropy", "exp of the entropy of the singular values, scaled to sum 1 (Roy & Vetterli 2007)"),
    Measure("participation", "(Σσ²)² / Σσ⁴"),
    charts=(
        ProbeChart(
            "effective-rank",
            "entropy",
            "Effective rank of the token embedding",
            "exp of the singular values' entropy",
            "How many directions the rows use.",
        ),
    ),
)
_declare(
    "residual",
    "size of the residual stream",
    Measure("norm", "mean L2 norm over tokens", _STREAM),
    Measure("variance", "mean over tokens of the variance over features", _STREAM),
    Measure("quantile", "quantiles of the L2 norm over tokens", _STREAM, _LEVEL),
    forward=True,
    charts=(
        ProbeChart(
            "residual-depth",
            "norm",
            f"Residual norm by depth{AT_THE_END}",
            "mean L2 norm, log scale",
            "Mean L2 norm of the residual stream over tokens.",
            over="depth",
            log=True,
        ),
        ProbeChart(
            "residual-spread",
            "quantile",
            f"Distribution of the residual norm by depth{AT_THE_END}",
            "L2 norm of a token's vector, log scale",
            "Over tokens.",
            over="spread",
            log=True,
        ),
        ProbeChart(
            "residual-input",
            "norm",
            "Residual norm entering block 1",
            "mean L2 norm",
            "Mean L2 norm of the residual stream over tokens, before block 1.",
            group="input",
        ),
    ),
)
_declare(
    "embedding-gain",
    "learned gain and bias of the embedding norm",
    Measure("mean", "mean over dimensions", "gain, bias"),
    Measure("std", "standard deviation over dimensions", "gain, bias"),
    Measure("value", "the vector itself", "gain, bias", "dimension"),
    need=_gain,
    charts=(
        ProbeChart(
            "embedding-gain",
            "mean",
            "Learned gain of the embedding norm",
            "mean gain",
            "Mean over dimensions. Only variants with a learned gain have one.",
            group="gain",
        ),
        ProbeChart(
            "embedding-gain-values",
            "value",
            f"Learned gain by dimension{AT_THE_END}",
            "gain",
            "The gain of every dimension.",
            over="values",
            group="gain",
        ),
    ),
)
_declare(
    "attention",
    "how large attention logits are, and how spread attention is",
    Measure("logit_max", "largest logit q·k / sqrt(d_head) of any head, query and visible key", "block-n"),
    Measure("entropy", "mean entropy of a query's attention, in nats", "block-n"),
    Measure("entropy_share", "mean of entropy / log t over queries that see t >= 2 keys; 1 is uniform", "block-n"),
    Measure("head_entropy", "mean entropy, per head", "block-n", "head"),
    need=_blocks,
    forward=True,
    charts=(
        ProbeChart(
            "attention-logits",
            "logit_max",
            f"Largest attention logit by block{AT_THE_END}",
            "largest logit",
            "Largest logit of any head. Logits that grow during training are a sign of instability.",
            over="depth",
        ),
    ),
)
_declare(
    "output",
    "scale of the output logits",
    Measure("logit_std", "mean over tokens of the standard deviation over the vocabulary"),
    Measure("logit_max", "largest absolute logit"),
    Measure("log_partition", "mean over tokens of log Σ exp(logit)"),
    Measure("log_partition_std", "standard deviation of the same over tokens"),
    Measure("quantile", "quantiles of logit minus the token's mean logit, over tokens and vocabulary", "all", _LEVEL),
    forward=True,
    charts=(
        ProbeChart(
            "output-spread",
            "quantile",
            f"Distribution of the output logits{AT_THE_END}",
            "logit − the token's mean logit",
            "Over tokens and the vocabulary; a constant added to all logits of a token changes nothing.",
            over="spread",
        ),
        ProbeChart(
            "output-logits",
            "logit_max",
            "Largest output logit",
            "largest |logit|",
            "Largest absolute logit.",
        ),
        ProbeChart(
            "output-logit-std",
            "logit_std",
            "Spread of the output logits",
            "SD over the vocabulary",
            "Standard deviation of a token's logits over the vocabulary, mean over tokens.",
        ),
    ),
)
_declare(
    "centering",
    "how much LayerNorm's centering removes of a vector: d · mean(x)² / ‖x‖², which RMSNorm keeps; 1/d for white noise",
    Measure("share", "mean over vectors", "rows (token embedding), sum (E_tok + E_pos), input (entering block 1)"),
    forward=True,
    charts=(
        ProbeChart(
            "centering",
            "share",
            f"What centering would remove{AT_THE_END}",
            "share of ‖x‖²",
            "The share of a vector's squared norm that subtracting its mean removes: LayerNorm does so, RMSNorm does not.",
            over="groups",
        ),
    ),
)
_declare(
    "gradient-bound",
    "growth of the gradient through blocks, as Takase et al. 2023 bound it from the scale of the stream, and as measured",
    Measure("input_std", "mean over tokens of the SD of what enters the sub-layer", _SUBLAYERS),
    Measure("predicted", "1 + (norms of the sub-layer's matrices, from their SDs) / input_std", _SUBLAYERS),
    Measure("bound", "product of both factors of a block, and of all blocks", "block-n, all"),
    Measure("growth", "measured: ‖dL/dx‖ entering the block / ‖dL/dx‖ leaving it", "block-n, all"),
    Measure("jacobian", "measured: spectral norm of block 1's MLP sub-layer, largest of a few tokens", "block-1.mlp"),
    Measure("gradient", "measured: ‖dL/dx‖ over the sampled sequences", _STREAM),
    need=_bounded_parts,
    backward=True,
)
_declare(
    "data-mixture",
    "the training text that was seen, from the first step on",
    Measure("share", "share of the tokens", "source:NAME (a file of the corpus), class:NAME (a token class)"),
    charts=(
        ProbeChart(
            "data-mixture",
            "share",
            "Training text seen, up to the last step",
            "share of the tokens",
            "By file of the corpus and by class of token, counted from the first step on.",
            over="groups",
        ),
    ),
)
_declare(
    "duplicate-ngrams",
    f"repetition in the training text that was seen, from the first step on: n-grams of n = {NGRAM} tokens",
    Measure("rate", "share of the n-grams that had been seen before, in this step or an earlier one"),
    need=_ngram,
    charts=(
        ProbeChart(
            "duplicate-ngrams",
            "rate",
            "Repetition in the training text seen",
            "share of n-grams seen before",
            f"The share of all {NGRAM}-grams up to a step that had been seen before.",
        ),
    ),
)


def expanded(chosen: Mapping[str, int], models: Iterable[ModelConfig]) -> dict[str, int]:
    """Interval by probe, in the order of the catalog; ``all`` stands for those that at least one of the models feeds."""
    intervals = dict(chosen)
    every = intervals.pop(ALL, None)
    if every is not None:
        arms = tuple(models)
        usable = [name for name, probe in PROBES.items() if any(probe.need(model) is None for model in arms)]
        intervals = dict.fromkeys(usable, every) | intervals
    return {name: intervals[name] for name in PROBES if name in intervals}


def probe_intervals(study: Study) -> dict[str, int]:
    """Interval by probe of a study, with ``all`` written out."""
    models = [
        variant.apply(study.in_regime(regime)[0])
        for variant in variants_of(study).values()
        for regime in study.regime_names()
    ]
    return expanded(study.probes, models)


def is_due(step: int, every: int, steps: int) -> bool:
    """Probes look after the first step, after every multiple of their interval, and after the last."""
    return step == 1 or step == steps or step % every == 0
