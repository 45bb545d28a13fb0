"""Frozen, typed settings: a study and its model, training, data, evaluation and execution.

They are checked for shape and range alone. Names (of variants, metrics, probes, tasks, corpora) are checked when a study file
is loaded (`study.load`), so that a plan is read where one of them is unknown. A change is a new object (`changed`).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, count, islice, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from ablationlab.core.errors import StudyError, did_you_mean
from ablationlab.core.format import setting as in_figures
from ablationlab.core.problems import problems_of
from ablationlab.core.registry import Registry
from ablationlab.core.seeding import stream
from ablationlab.records.storage import ON_DISK, content_hash, slug
from ablationlab.stats.results import FittedMinimum, Spending

if TYPE_CHECKING:
    from ablationlab.records.plan import PlannedRun
    from ablationlab.records.run import RunRecord

M = TypeVar("M", bound=BaseModel)
#: Seeds of a study, at most, that are given as a range.
MOST_SEEDS = 100_000
#: The regime without overrides; every study has it.
DEFAULT_REGIME = "default"
#: Names that comparisons made from a sweep stand under, in the place of a regime's: over all of its rates, and each variant
#: at its own best one.
SWEEP, TUNED = "sweep", "tuned"
#: The arm of [factors] that has the first level of each.
BASELINE_CELL = "first-levels"
#: A run spikes when its spike score is above this.
SPIKE_SCORE = 7.0
#: A run whose final loss exceeds this many times that of its start has failed.
WORSE_THAN_START = 1.1
#: The corpus of a study that draws from several.
MIXTURE = "mixture"
#: Level of a criterion that names none, and the largest that may be named.
ALPHA, LARGEST_ALPHA = 0.05, 0.2
# Above these a setting is a slip, and its plan would take hours or all memory. Whole numbers stay exact in JSON.
LARGEST_COUNT, LARGEST_INTEGER = 10**9, 2**53 - 1
#: What fp32 holds.
LARGEST_FLOAT = 1e38
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Natural = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_FLOAT)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST_FLOAT)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
HalfOpen = Annotated[float, Field(ge=0, lt=1)]


def seed_list(seeds: Any) -> Any:
    """Seeds as a study file may give them: a list, or {first = 1, count = 1000} for many in a row; else as it stands."""
    if not isinstance(seeds, Mapping) or seeds.keys() != {"first", "count"}:
        return seeds
    first, count = seeds["first"], seeds["count"]
    if not all(type(value) is int for value in (first, count)) or not 1 <= count <= MOST_SEEDS:
        return seeds
    return list(range(first, first + count))


def _seeds(given: Any) -> Any:
    seeds = seed_list(given)
    if isinstance(seeds, dict):
        raise ValueError(f"a range of seeds is {{first = 1, count = 1000}}, two whole numbers, count 1 to {MOST_SEEDS}")
    # A value that went through a validator of ours no longer counts as JSON, where a list is a tuple.
    return tuple(seeds) if isinstance(seeds, list) else seeds


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    repeated = sorted(value for value, count in Counter(values).items() if count > 1)
    if repeated:
        raise ValueError(f"given more than once: {', '.join(map(str, repeated))}")
    return values


Distinct = AfterValidator(_unique)
Seeds = Annotated[tuple[Natural, ...], BeforeValidator(_seeds), Distinct]
SomeSeeds = Annotated[tuple[Natural, ...], Field(min_length=1), BeforeValidator(_seeds), Distinct]
#: One path, or several.
SomePaths = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    ),
    Distinct,
]
SeveralSeeds = Annotated[tuple[Natural, ...], Field(min_length=2), BeforeValidator(_seeds), Distinct]


class Frozen(BaseModel):
    """A settings table: no unknown keys, no coercion, no mutation, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def changed(self, **fields: Any) -> Self:
        """A validated copy with *fields* replaced; `StudyError` names what cannot be, and what can."""
        data = {**dict(self), **fields}
        try:
            return type(self).model_validate(data)
        except ValidationError as error:
            raise StudyError(type(self).__name__, problems_of(error, type(self), data)) from error


class FrontEnd(Frozen):
    """What happens between the embedding tables and block 1: ``scale · norm(x)``.

    ``x`` is ``E_tok + E_pos`` (place = "sum") or ``E_tok`` alone, with ``E_pos`` added after (place = "token").
    """

    norm: Literal["none", "layernorm", "rmsnorm", "center"] = "none"
    """The normalization of the input to block 1. `center` subtracts the mean and does not rescale."""
    gain: bool = False
    """Whether the norm has a learned gain. Needs `layernorm` or `rmsnorm`."""
    bias: bool = False
    """Whether the norm has a learned bias. Needs `layernorm` with a gain."""
    eps: Positive = 1e-5
    """Added to the variance (`layernorm`) or the mean square (`rmsnorm`) before the root."""
    place: Literal["sum", "token"] = "sum"
    """What is normalized and scaled: the sum of token and position embedding, or the token embedding alone."""
    scale: Positive | Literal["sqrt-width"] = 1.0
    """Factor after the norm. `sqrt-width` is the square root of the width."""
    gradient: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the gradient that reaches the token embedding through the input. Values are untouched (GLM-130B: 0.1).
    """

    @model_validator(mode="after")
    def _affine_belongs_to_a_norm(self) -> Self:
        if self.gain and self.norm not in ("layernorm", "rmsnorm"):
            raise ValueError(f"gain needs norm = 'layernorm' or 'rmsnorm', not {self.norm!r}")
        if self.bias and (self.norm != "layernorm" or not self.gain):
            raise ValueError(f"bias needs norm = 'layernorm' with gain = true, not {self.norm!r}")
        return self


class ModelConfig(Frozen):
    """A decoder-only transformer; the defaults are GPT-2's. ``preset`` fills what is not given; ``vocabulary`` is left to the
    tokenizer if unset. docs/model.md has the formula of every setting."""

    preset: str | None = None
    """A named model that fills every setting you do not give."""
    layers: Annotated[int, Field(ge=0, le=1_000)]
    """Number of blocks. 0 gives a model without blocks."""
    width: Annotated[int, Field(ge=1, le=2**17)]
    """Width of the residual stream, d."""
    heads: Count
    """Attention heads; must divide the width."""
    context: Annotated[int, Field(ge=1, le=2**20)]
    """Tokens per sequence."""
    vocabulary: Annotated[int, Field(ge=1, le=2**24)] | None = None
    """Size of the vocabulary. Without it, the tokenizer decides."""
    attention: str = "causal"
    """Kind of attention, by name. Your own code can register more."""
    mlp: str = "gelu"
    """Kind of MLP: a(y U) D for `gelu` (tanh), `relu`, `relu2` and `silu`; (a(y G) · y U) D for `swiglu` and `geglu`.
    """
    norm: str = "layernorm"
    """Kind of norm inside the blocks: `layernorm` or `rmsnorm`."""
    position: str = "learned"
    """Position scheme: `learned`, `sinusoidal`, `rotary`, `alibi` or `none`."""
    head: str = "linear"
    """Kind of output head, by name."""
    loss_terms: tuple[str, ...] = ()
    """Names of additional loss terms that your own code registers."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Settings of model parts that your own code registers, under the names that it declares."""
    mlp_ratio: Annotated[int, Field(ge=1, le=256)] | Annotated[float, Field(gt=0, le=256)] = 4
    """Hidden units per unit of width. A fractional value gives the nearest multiple of 8."""
    biases: bool = True
    """Whether linear layers and LayerNorms have biases."""
    tied: bool = True
    """Whether the head uses the token embedding."""
    final_norm: bool | str = True
    """Whether there is a norm before the head; a name chooses its kind."""
    head_bias: bool = False
    """Whether the head has a bias."""
    norm_eps: Positive = 1e-5
    """Epsilon of the norms inside the blocks and before the head."""
    norm_gain: bool = True
    """Whether these norms have learned gains (and biases, if `biases` is true)."""
    norm_place: Literal["pre", "post", "sandwich", "output", "none"] = "pre"
    """Where a block has its norms: `pre` x + f(N(x)), `post` N(x + f(x)), `sandwich` x + N(f(N(x))), `output` x +
    N(f(x)), `none` x + f(x)."""
    kv_heads: Annotated[int, Field(ge=1)] | None = None
    """Number of key and value heads, each shared by heads / kv_heads queries. Without it, as many as `heads`."""
    qk_norm: Literal["none", "layernorm", "rmsnorm"] = "none"
    """Norm of queries and keys, before rotation. No bias."""
    qk_norm_over: Literal["head", "width"] = "head"
    """Whether that norm is taken over each head or over the whole width."""
    attention_scale: Positive = 1.0
    """Factor of the attention scores, in addition to 1/√(head width)."""
    attention_softcap: Positive | None = None
    """c in c · tanh(score / c). Without it, scores are not capped."""
    attention_gate: Literal["none", "head", "element"] = "none"
    """Sigmoid gate on the attended values: one per head or one per element."""
    window: Count | None = None
    """Number of keys that a query sees, its own included. Without it, all."""
    parallel: bool = False
    """Whether attention and MLP read the same stream and are added to it together."""
    residual_scale: Positive | Literal["deepnorm"] = 1.0
    """Factor of the stream where a part is added: residual_scale · x + branch_scale · f(x). `deepnorm` is (2 ·
    layers)^¼, with smaller initial matrices; it needs `norm_place = "post"`."""
    branch_scale: Positive = 1.0
    """Factor of the part that is added."""
    embedding_skip: NonNegative | None = None
    """Initial value of a learned weight per block that adds the input of block 1 to the stream again. Without it, there
    is no skip."""
    zero_init: bool = False
    """Whether the layers that write to the residual stream start at zero."""
    head_init_std: NonNegative | None = None
    """Initial standard deviation of an untied head. Without it, `init_std`."""
    head_softcap: Positive | None = None
    """c in c · tanh(logits / c). Without it, logits are not capped."""
    rotary_base: Positive = 10_000.0
    """Base of the rotary frequencies."""
    rotary_fraction: Annotated[float, Field(gt=0, le=1, validate_default=True)] = 1.0
    """Share of each head's width that is rotated."""
    token_init_std: NonNegative = 0.02
    """Initial standard deviation of the token embedding."""
    position_init_std: NonNegative = 0.02
    """Initial standard deviation of the position embedding."""
    init_std: NonNegative = 0.02
    """Initial standard deviation of the matrices."""
    scaled_residual_init: bool = True
    """Whether matrices that write to the stream start smaller by 1/√(2 · layers)."""
    redraw: Natural = 0
    """Which draw of the MLP matrices a run starts from: 0 is the ordinary one, k the k-th from streams of their own.
    For arms that must be exchangeable (validation)."""
    mup_base: Count | None = None
    """Width for which standard deviations and learning rates are meant. At another width they follow the rules of µP.
    """
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout probability."""
    front: FrontEnd = FrontEnd()
    """The front end: what happens between the embeddings and block 1."""

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def rotated(self) -> int:
        """How many numbers of a head are rotated, two by two."""
        return _rotated(self.head_width, self.rotary_fraction)

    @property
    def hidden(self) -> int:
        if isinstance(self.mlp_ratio, int):
            return self.mlp_ratio * self.width
        return 8 * max(1, round(self.mlp_ratio * self.width / 8))

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, data: Any, info: ValidationInfo) -> Any:
        if info.context == ON_DISK:  # what a record does not say was not set, whatever the preset is today
            return data
        if isinstance(data, dict) and isinstance(data.get("preset"), str) and data["preset"] in PRESETS:
            return {**PRESETS[data["preset"]].shape, **data}
        return data

    @model_validator(mode="after")
    def _something_to_redraw(self) -> Self:
        if self.redraw and not self.layers:
            raise ValueError("redraw needs a block, whose MLP it redraws; this model has layers = 0")
        return self

    @field_validator("loss_terms", mode="before")
    @classmethod
    def _listed(cls, names: Any) -> Any:
        # Filling from a preset left JSON, where a list is a tuple.
        return tuple(names) if isinstance(names, list) else names

    @field_validator("heads")
    @classmethod
    def _heads_divide_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("width")  # absent when width itself is wrong
        if width is not None and heads >= 1 and width % heads:
            below = next(h for h in range(min(heads, width), 0, -1) if width % h == 0)
            above = next((h for h in range(heads, min(width, heads + 10_000) + 1) if width % h == 0), width)
            raise ValueError(f"{heads} does not divide width = {width}; the nearest that do: {below} and {above}")
        return heads

    @field_validator("kv_heads")
    @classmethod
    def _groups_of_heads(cls, kv_heads: int | None, info: ValidationInfo) -> int | None:
        heads = info.data.get("heads")
        if kv_heads is not None and heads is not None and heads % kv_heads:
            allowed = ", ".join(map(str, divisors_of(heads)))
            raise ValueError(f"{kv_heads} does not divide heads = {heads}; allowed: {allowed}")
        return kv_heads

    @field_validator("parallel")
    @classmethod
    def _sum_without_norm(cls, parallel: bool, info: ValidationInfo) -> bool:
        if parallel and info.data.get("norm_place") == "post":
            raise ValueError(
                "parallel parts are added at once, and norm_place = 'post' norms the stream after each of them; "
                "allowed: pre, sandwich, output, none"
            )
        return parallel

    @field_validator("residual_scale")
    @classmethod
    def _deepnorm_norms_the_sum(cls, scale: float | str, info: ValidationInfo) -> float | str:
        place = info.data.get("norm_place")
        if scale == "deepnorm" and place not in ("post", None):
            raise ValueError(f"'deepnorm' needs norm_place = 'post', not {place!r}; a number scales at any place")
        if scale == "deepnorm" and not info.data.get("layers"):
            raise ValueError("'deepnorm' follows from the number of layers, and there are none")
        return scale

    @field_validator("head_init_std")
    @classmethod
    def _own_head(cls, std: float | None, info: ValidationInfo) -> float | None:
        if std is not None and info.data.get("tied"):
            raise ValueError(f"{in_figures(std)} starts an untied head; this head is tied to the token embedding")
        return std

    @field_validator("rotary_fraction")
    @classmethod
    def _pairs_to_rotate(cls, fraction: float, info: ValidationInfo) -> float:
        given = info.data
        if given.get("position") != "rotary" or "width" not in given or "heads" not in given:
            return fraction
        size = given["width"] // given["heads"]
        if (rotated := _rotated(size, fraction)) % 2 or not rotated:
            share = in_figures(fraction)
            text = f"rotary positions turn pairs of numbers, and {share} of a head's width of {size} is {rotated}"
            counts = (rotated - 1, rotated + 1) if rotated else (2,)
            even = [in_figures(count / size) for count in counts if 2 <= count <= size]
            nearest = " and ".join(even) or "none: give fewer heads or a larger width"
            raise ValueError(f"{text}; the nearest fractions with an even number: {nearest}")
        return fraction


def _rotated(size: int, fraction: float) -> int:
    """The whole part of *fraction* of a head's width; six digits of a fraction are enough to name an even number."""
    close = int(size * (fraction + 1e-6))
    return int(size * fraction) if close % 2 else close


class RateScale(Frozen):
    """Factors of the learning rate for groups of parameters; 0 leaves a group as it starts.

    ``embedding``: tokens and positions, and the head where it is tied; ``head``: one of its own; ``matrices``: those of the
    blocks; ``rest``: gains, biases and the front end.
    """

    embedding: NonNegative = 1.0
    """Token and position embeddings, and a tied head."""
    head: NonNegative = 1.0
    """An untied head."""
    matrices: NonNegative = 1.0
    """The matrices of the blocks."""
    rest: NonNegative = 1.0
    """Gains, biases and the front end."""

    @model_serializer(mode="wrap")
    def _changed_ones(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # So that the ledger sees a difference in the groups that a variant writes, and in no other.
        dumped: dict[str, Any] = dump(self)
        return {key: value for key, value in dumped.items() if value != 1.0}


class TrainingConfig(Frozen):
    """Budget, optimizer, schedule and loss of one run. Exactly one of ``steps`` and ``tokens`` is given."""

    steps: Count | None = None
    """Number of steps. Give either this or `tokens`."""
    tokens: Annotated[int, Field(ge=1, le=10**15)] | None = None
    """Number of tokens; steps follow from batch and context."""
    batch: Annotated[int, Field(ge=1, le=2**20)] = 16
    """Sequences per step."""
    micro_batch: Count | None = None
    """Sequences per forward pass on a device. Gradients are summed over as many passes as the batch needs. Without it,
    one pass."""
    lr: Positive = 3e-4
    """Peak learning rate."""
    lr_scale: RateScale = RateScale()
    """Factors of the learning rate for groups of parameters."""
    optimizer: str = "adamw"
    """`adamw`, `adam`, `lion`, `sgd` or `muon`; your own code can register more."""
    schedule: str = "warmup-cosine"
    """`warmup-cosine`, `linear`, `warmup-stable-decay`, `inverse-sqrt` or `constant`; your own code can register more.
    """
    warmup: Natural = 30
    """Steps of linear warmup."""
    decay_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Share of the steps, at the end, in which `warmup-stable-decay` lowers the rate."""
    final_lr: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the end, as a share of the peak."""
    betas: tuple[HalfOpen, HalfOpen] = (0.9, 0.95)
    """Decay of the first and second moment (`adamw`, `adam`, `lion`, `muon`)."""
    momentum: HalfOpen = 0.95
    """Momentum of `sgd` and `muon`."""
    eps: Positive = 1e-8
    """Epsilon of `adamw`, `adam` and `muon`."""
    weight_decay: NonNegative = 0.1
    """Weight decay."""
    decay: Literal["matrices", "all"] = "matrices"
    """Which parameters decay: matrices and embeddings, or all."""
    clip: Positive | Literal["off"] = 1.0
    """Largest L2 norm of the gradient of a run; larger ones are scaled down to it."""
    ema: HalfOpen = 0.0
    """Decay of an exponential average of the weights. Validation, evaluation and the last checkpoint then use the
    average. 0 keeps none."""
    z_loss: NonNegative = 0.0
    """Weight of log²Z in the minimized loss. Recorded losses are cross entropy without it."""
    label_smoothing: HalfOpen = 0.0
    """Share of the target spread over the vocabulary. Recorded losses are cross entropy without it."""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """Precision of matrix products. `auto` is bf16 on a GPU and, on a CPU, whatever is fast there; the plan seals what
    it chose."""

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if (self.steps is None) == (self.tokens is None):
            given = "both are given" if self.steps is not None else "neither is given"
            raise ValueError(f"give exactly one of steps and tokens; {given}")
        return self

    @field_validator("micro_batch")
    @classmethod
    def _whole_passes(cls, micro_batch: int | None, info: ValidationInfo) -> int | None:
        batch = info.data.get("batch")  # absent when batch itself is wrong
        if micro_batch is not None and batch is not None and batch % micro_batch:
            divisors = ", ".join(map(str, divisors_of(batch)))
            raise ValueError(f"{micro_batch} does not divide batch = {batch}; allowed: {divisors}")
        return micro_batch


class DataConfig(Frozen):
    """Which text, how it becomes tokens, and the share of its end that is held out.

    ``corpus = "mixture"`` draws samples from several prepared corpora (names or folders), by the weights of ``mixture``;
    ``overlap`` says what to do with training text that they have in common, or that is also held out.
    """

    corpus: str = "tiny-shakespeare"
    """A named corpus, a text file, a folder, a prepared folder, or `mixture`."""
    tokenizer: str = "char"
    """`char`, `byte`, `gpt2` or `gpt2-4096`."""
    validation: Fraction = 0.1
    """Share of the text, at its end, that is held out."""
    mixture: Annotated[dict[str, Annotated[float, Field(gt=0, le=LARGEST_INTEGER)]], Field(min_length=1)] | None = None
    """Corpora and their weights, for `corpus = "mixture"`. Weights are normalized."""
    overlap: Literal["remove-from-training", "keep"] = "remove-from-training"
    """What to do with training text that a mixture also holds out or repeats."""

    @model_validator(mode="after")
    def _mixture_is_named(self) -> Self:
        if (self.corpus == MIXTURE) != (self.mixture is not None):
            raise ValueError(f"corpus = {MIXTURE!r} and a [data.mixture] table of weights go together; one is missing")
        if self.mixture is None and self.overlap == "keep":
            raise ValueError("overlap = 'keep' is about the corpora of a mixture, and there is no [data.mixture]")
        return self


class EvaluationConfig(Frozen):
    """What is scored. The final validation pass over the whole split is always made and needs no setting."""

    curve_every: Count | None = None
    """Steps between two points of the validation curve. Without it, there is no curve."""
    curve_windows: Count = 64
    """Windows of the held-out text per point of the curve."""
    tasks: tuple[str, ...] = ()
    """Tasks, groups (`suite`, `benchmarks`) or YAML files to score."""
    fewshot: Annotated[tuple[Natural, ...], Field(min_length=1)] = (0,)
    """Numbers of examples in the prompt."""
    templates: Literal["one", "all"] = "one"
    """One prompt template per task, or all of them."""
    items: Annotated[int, Field(ge=10)] | None = None
    """The most items per task. Without it, all."""
    gate_seeds: Seeds = ()
    """Seeds of baseline runs that are never compared. They decide which tasks count. Without them, no task counts."""

    @field_validator("gate_seeds")
    @classmethod
    def _enough_for_a_test(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(seeds) in (1, 2):
            raise ValueError(f"{len(seeds)} seeds cannot show that a task tells models apart; give three or more")
        return seeds


class ExecutionConfig(Frozen):
    """How the bits are made. Sealed in the plan, equal for every arm, recorded in every run."""

    stack_width: Annotated[int, Field(ge=1, le=4_096)] | Literal["auto"] = "auto"
    """Runs that train in one program."""
    threads: Annotated[int, Field(ge=1, le=4_096)] | Literal["auto"] = "auto"
    """CPU threads per process."""
    checkpoint_every: Count | Literal["auto"] = "auto"
    """Steps between two checkpoints. `auto` saves when enough time has passed."""
    kernels: Literal["fused", "plain"] = "fused"
    """On a GPU: our Triton kernels, or plain torch operations for GPUs on which Triton does not work."""
    deterministic: bool = True
    """Whether a repeated run gives the same bits. `false` is faster for some models on a GPU; every report then says so."""
    parallel: Literal["ddp", "fsdp"] | None = None
    """How torchrun spreads one run over devices: whole copies (`ddp`) or shards (`fsdp`). Runs are then not stacked."""
    activation_checkpointing: bool = False
    """Under torchrun: recompute the activations inside a block in the backward pass instead of keeping them."""

    @model_validator(mode="after")
    def _parallel_runs_stand_alone(self) -> Self:
        if self.parallel is not None and self.stack_width not in ("auto", 1):
            raise ValueError(f"parallel = {self.parallel!r} needs stack_width = 1, not {self.stack_width}")
        if self.activation_checkpointing and self.parallel is None:
            raise ValueError("activation_checkpointing needs parallel = 'ddp' or 'fsdp'")
        return self


class Preset(BaseModel):
    """A named model: settings of `ModelConfig`. ``start``: where a search for batch and rate may begin; nothing uses it."""

    model_config = ConfigDict(frozen=True)

    meaning: str
    shape: dict[str, Any]
    start: dict[str, float] = {}


PRESETS: Registry[Preset] = Registry("preset")
_MINI = {"layers": 8, "width": 128, "heads": 8, "context": 128}
_LLAMA = {"position": "rotary", "norm": "rmsnorm", "mlp": "swiglu", "mlp_ratio": 2.6667, "biases": False, "tied": False}
_NANOCHAT = (
    {"position": "rotary", "norm": "rmsnorm", "norm_gain": False, "norm_eps": 1e-6, "qk_norm": "rmsnorm"}
    | {"mlp": "relu2", "biases": False, "tied": False, "zero_init": True, "head_softcap": 15.0}
    | {"token_init_std": 1.0, "head_init_std": 0.001, "init_std": 0.088}
)


def ladder(layers: int) -> Preset:
    """A rung of the ladder of sizes: as many heads of 32 as layers, so that the blocks have 12288 · layers³ parameters N.

    It starts from DeepSeek's rules (arXiv 2401.02954) at 20 tokens per parameter, C = 6 · N · 20 N FLOPs: a rate of
    0.3118 / C^0.125, and batches of 0.2920 · C^0.3271 tokens, to the nearest power of two sequences.
    """
    size, context = 12_288 * layers**3, 256
    flops = 6.0 * size * 20 * size
    start = {
        "tokens": 20.0 * size,
        "batch": 2.0 ** round(math.log2(0.2920 * flops**0.3271 / context)),
        "lr": float(f"{0.3118 * flops**-0.125:.1e}"),
    }
    shape = {"layers": layers, "width": 32 * layers, "heads": layers, "context": context}
    return Preset(meaning="a rung of the ladder of sizes, GPT-2's parts", shape=shape, start=start)


def _gpt(layers: int, width: int, heads: int, context: int) -> dict[str, Any]:
    return {"layers": layers, "width": width, "heads": heads, "context": context, "vocabulary": 50257}


_LADDER = {"0.4m": 3, "1.6m": 5, "6m": 8, "25m": 13, "100m": 20}
for _name, _preset in {
    "char-mini": Preset(
        meaning="the default study's model, for a laptop; the vocabulary comes from the text", shape=_MINI
    ),
    "llama-mini": Preset(
        meaning="char-mini with Llama's parts: rotary positions, RMSNorm, SwiGLU, no biases, untied head",
        shape=_MINI | _LLAMA,
    ),
    "nanochat-mini": Preset(
        meaning="char-mini with nanochat's parts; its embedding norm is the variant rmsnorm-nogain",
        shape=_MINI | _NANOCHAT,
    ),
    **{f"ladder-{size}": ladder(layers) for size, layers in _LADDER.items()},
    "gpt2-small": Preset(meaning="GPT-2 124 M", shape=_gpt(12, 768, 12, 1024)),
    "gpt2-medium": Preset(meaning="GPT-2 350 M", shape=_gpt(24, 1024, 16, 1024)),
    "gpt3-xl": Preset(meaning="1.3 B, the scale of Le Scao et al. 2022", shape=_gpt(24, 2048, 16, 2048)),
}.items():
    PRESETS.add(_name, _preset)


def divisors_of(number: int) -> list[int]:
    """Every whole number that divides it, ascending."""
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return [*low, *(number // n for n in reversed(low) if n * n != number)]


def validated(kind: type[M], data: Any, *, context: Mapping[str, Any] | None = None) -> M:
    """Read a settings table from plain values, by the rules of a study file."""
    # Through JSON, so that a TOML file and a plan.lock are read by the same strict rules (a list may be a tuple).
    return kind.model_validate_json(json.dumps(data, default=_no_json), context=context)


def _no_json(value: Any) -> Any:
    # TOML's dates and times: no setting is one, so they arrive as what no setting takes for a text or a table.
    return [[str(value)]]


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables, the second laid over the first."""
    both = dict(base)
    for key, value in over.items():
        inner = both.get(key)
        both[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def merged_model(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A regime's model over the study's; one that names a preset replaces it, for half a shape is nobody's wish."""
    return dict(over) if "preset" in over else merged(base, over)


def merged_training(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A regime's training over the study's; tokens take the place of steps, and the other way round."""
    kept = {k: v for k, v in base.items() if not (k in ("steps", "tokens") and {"steps", "tokens"} & over.keys())}
    return merged(kept, over)


def steps_of(model: ModelConfig, training: TrainingConfig) -> int:
    """Number of steps of a run, from its steps or its tokens."""
    if training.steps is not None:
        return training.steps
    assert training.tokens is not None
    return training.tokens // (training.batch * model.context)


class Calibrate(Frozen):
    """A setting that is bisected between ``low`` and ``high`` until about the share ``target`` of baselines breaks.

    Only baselines are trained for it, on ``seeds`` of its own, at ``tries`` values at most (both ends first). ``value`` is
    what was found: it is sealed with the plan, before the first compared run, and never given in a study file.
    """

    setting: Annotated[str, Field(pattern=r"^(model|training)\.[a-z_]+(\[\d\])?$")]
    """The setting to calibrate, such as `training.lr` or `training.betas[1]`."""
    low: float
    """Lower end of the search."""
    high: float
    """Upper end of the search."""
    seeds: SeveralSeeds
    """Seeds for the calibration only; they are never compared."""
    target: Fraction = 0.5
    """Share of baselines that should break."""
    scale: Literal["log", "linear"] = "log"
    """Whether values are spaced by ratio or by difference."""
    tries: Annotated[int, Field(ge=3)] = 8
    """The most values to try, both ends included."""
    value: float | None = None
    """What was found. Sealed with the plan; not a setting."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low = {in_figures(self.low)} must be below high = {in_figures(self.high)}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"low = {in_figures(self.low)} has no logarithm; use scale = 'linear'")
        return self

    @property
    def place(self) -> tuple[str, str, int | None]:
        """Where the setting is: its table, its key there, and its position where the key holds a list."""
        part, _, name = self.setting.partition(".")
        key, _, index = name.rstrip("]").partition("[")
        return part, key, int(index) if index else None

    def written(self, model: ModelConfig, training: TrainingConfig, value: float) -> tuple[ModelConfig, TrainingConfig]:
        """Model and training with the setting at a value; a whole number stays one."""
        tables = {"model": model.model_dump(mode="json"), "training": training.model_dump(mode="json")}
        part, key, index = self.place
        before = getattr(model if part == "model" else training, key)
        if index is not None:
            tables[part][key] = [value if i == index else item for i, item in enumerate(before)]
        else:
            tables[part][key] = round(value) if isinstance(before, int) else value
        return validated(ModelConfig, tables["model"]), validated(TrainingConfig, tables["training"])


class Regime(Frozen):
    """Named overrides of the model or the training; everything else is the study's."""

    meaning: str = ""
    """What the regime is for, in a few words."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Overrides of `[model]`."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Overrides of `[training]`."""
    calibrate: Calibrate | None = None
    """Finds the value of one setting at which baselines begin to break."""


class Design(Frozen):
    """Looks at the primary criteria while the seeds come in: after so many of them, in the study's order.

    At each look alpha is spent by ``spending``; the study stops when every variant is decided, or its seeds are trained.
    `ablationlab extend` takes the looks beyond them. ``futility``: a variant whose chance of being decided by the last look
    is below it counts as decided too (0: never).
    """

    looks: Annotated[tuple[Annotated[int, Field(ge=3, le=MOST_SEEDS)], ...], Field(min_length=2)]
    """Numbers of seeds after which the study is analyzed. One is all of `seeds`; larger ones are for `ablationlab extend`."""
    spending: Spending = "obrien-fleming"
    """How alpha is divided among the looks."""
    futility: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """A variant counts as decided if its chance of a decision by the last look is below this. 0 turns it off."""

    @field_validator("looks")
    @classmethod
    def _rising(cls, looks: tuple[int, ...]) -> tuple[int, ...]:
        if any(first >= second for first, second in pairwise(looks)):
            raise ValueError(f"looks must be increasing numbers of seeds, not {', '.join(map(str, looks))}")
        return looks


class VariantTable(Frozen):
    """``[variants.NAME]``: the settings that an arm changes. What it writes is what it declares; the rest is the study's.

    ``from`` names the variant that it starts from; ``about`` and ``formula`` are shown on the page and in the paper. An
    empty table beside a baseline that changes nothing makes an A/A study.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    base: str | None = Field(default=None, alias="from")
    """The variant that this one starts from."""
    about: str = ""
    """What the variant is for. Shown on the page and in the paper."""
    formula: str = ""
    """The change as a formula. Shown on the page and in the paper."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Overrides of `[model]`."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Overrides of `[training]`."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Overrides of `[data]`."""

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting that it writes, by its dotted key."""
        data = with_paths(self.data, file_name)
        return flattened({"model": self.model, "training": self.training, "data": data})

    @property
    def empty(self) -> bool:
        """Whether it says nothing at all: the study's own settings once more."""
        return self == VariantTable()


_SETTING: Final = re.compile(r"(model|training|data)(\.[\w-]+)+")


class Factors(Frozen):
    """``[factors]``: settings with their values, crossed. Every cell is an arm; the first level of each is the baseline.

    A factor may also be a name with named levels, each a table of settings ("architecture" with "gpt2" and "llama").
    ``design = "half"``, of three or more factors with two levels: the cells with an even number of second levels.
    ``effects`` are registered: a main effect by its setting ("weight_decay", or the whole key), an interaction as "a:b".
    """

    levels: dict[str, tuple[bool | int | float | str, ...]]
    """Each factor: a setting and its values, or a name and its levels. The first level of each is the baseline."""
    named: dict[str, dict[str, dict[str, Any]]] = {}
    """The settings of each level of a factor that has a name, by their keys."""
    design: Literal["full", "half"] = "full"
    """All cells, or the half with an even number of second levels (three or more factors with two levels)."""
    effects: tuple[str, ...] = ()
    """Registered effects: a setting's last word for a main effect, `a:b` for an interaction."""

    @model_validator(mode="after")
    def _settings_with_values(self) -> Self:
        setters: dict[str, str] = {}
        for key, values in self.levels.items():
            if key not in self.named and not _SETTING.fullmatch(key):
                raise ValueError(
                    f"{key!r} is not a setting of model, training or data, such as 'training.weight_decay', and no table of "
                    "named levels"
                )
            if len(values) < 2:
                raise ValueError(f"{key} has {len(values)} value; a factor needs two or more")
            _unique(tuple(map(str, values)))
            for setting in dict.fromkeys(chain.from_iterable(self.named[key].values()) if key in self.named else [key]):
                if not _SETTING.fullmatch(setting):
                    raise ValueError(f"{key}: {setting!r} is not a setting of model, training or data")
                if setting in setters:
                    raise ValueError(f"{setters[setting]} and {key} both set {setting}")
                setters[setting] = key
        if len(self.levels) < 2:
            raise ValueError("give two or more settings; one alone is a study with [variants.NAME] tables")
        return self

    @model_validator(mode="after")
    def _half_of_two_levels(self) -> Self:
        if self.design == "half" and (len(self.levels) < 3 or any(len(v) != 2 for v in self.levels.values())):
            raise ValueError("design = 'half' needs three or more factors with two values each; use design = 'full'")
        return self

    @model_validator(mode="after")
    def _effects_of_these_settings(self) -> Self:
        known = {word: key for key, word in zip(self.levels, self._words(), strict=True)} | {
            key: key for key in self.levels
        }
        for effect in self.effects:
            words = effect.split(":")
            strangers = [word for word in words if word not in known]
            if strangers:
                hint = did_you_mean(strangers[0], known)
                raise ValueError(f"effects: {strangers[0]!r} is none of {', '.join(self._words())}{hint}")
            if len({known[word] for word in words}) < len(words) or len(words) > 3:
                raise ValueError(f"effects: {effect!r} is not an effect of one, two or three different settings")
            if self.design == "half" and 2 * len(words) >= len(self.levels):
                rest = [
                    word
                    for key, word in zip(self.levels, self._words(), strict=True)
                    if known[word] not in {known[each] for each in words}
                ]
                raise ValueError(f"effects: design = 'half' cannot tell {effect!r} from {':'.join(rest)!r}")
        if len(set(self.registered_effects())) < len(self.effects):
            raise ValueError("effects: one is given twice")
        return self

    def registered_effects(self) -> tuple[frozenset[str], ...]:
        """The keys of the settings of each registered effect."""
        known = {word: key for key, word in zip(self.levels, self._words(), strict=True)}
        return tuple(frozenset(known.get(word, word) for word in effect.split(":")) for effect in self.effects)

    def _words(self) -> list[str]:
        """The settings by their last words, where these differ."""
        short = [key.rpartition(".")[2] for key in self.levels]
        return [name if short.count(name) == 1 else key for key, name in zip(self.levels, short, strict=True)]

    def settings(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """What a cell sets, by key."""
        chosen: dict[str, Any] = {}
        for key, level in cell.items():
            chosen |= self.named[key][level] if key in self.named else {key: level}
        return chosen

    def cells(self) -> dict[str, dict[str, Any]]:
        """The arms by name, each with its level of every factor; the baseline first."""
        found: dict[str, dict[str, Any]] = {}
        words = self._words()
        for chosen in product(*(range(len(values)) for values in self.levels.values())):
            if self.design == "half" and sum(chosen) % 2:
                continue
            cell = {key: values[i] for (key, values), i in zip(self.levels.items(), chosen, strict=True)}
            name = "-".join(
                _word(str(value) if word in self.named else f"{word}-{value}")
                for word, value, i in zip(words, cell.values(), chosen, strict=True)
                if i or word in self.named
            )
            found[name or BASELINE_CELL] = cell
        return found


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


class BudgetConfig(Frozen):
    """What is equal for all arms. ``flops``: an arm whose token costs more takes fewer steps, to within one of the baseline's
    FLOPs; its schedule ends with it, and its data order is a beginning of the baseline's. ``time``: the same by the time of a
    step, measured on the device that trains before the plan is sealed."""

    match: Literal["tokens", "flops", "time"] = "tokens"
    """What all arms share. With `flops` or `time`, an arm whose steps cost more takes fewer of them."""


class UsedCode(Frozen):
    """A file of ``use``, or the entry point of a package: what it is called, where it was found, and what it contains."""

    name: str
    """As the study file names it."""
    path: str
    """Where it was found."""
    sha256: str
    """Of its content."""
    entry_point: bool = False
    """Whether it is the entry point of an installed package."""


#: What a run draws at random, each from a stream of its own.
NoiseStream = Literal["init", "data", "dropout"]


class Finer(Frozen):
    """The second stage of a sweep: closer rates about the best of the first, of every variant, on seeds of its own.

    Both stages are trained before the plan is sealed; then each variant is judged at its best rate of both. ``found`` is
    that rate: it is sealed with the plan, before the first compared run, and never given in a study file.
    """

    seeds: Annotated[SeveralSeeds, Field(min_length=3)]
    """Seeds of the second stage only; they are never compared."""
    rates: Annotated[int, Field(ge=5, le=9)] = 5
    """Rates of each variant, an odd number: the middle one is the best of the first stage."""
    factor: Annotated[float, Field(ge=1.05, le=2)] = 1.19
    """From one rate to the next."""
    found: dict[str, Positive] = Field(default_factory=dict)
    """What was found. Sealed with the plan; not a setting."""

    @field_validator("rates")
    @classmethod
    def _has_a_middle(cls, rates: int) -> int:
        if rates % 2 == 0:
            raise ValueError(f"{rates} rates have no middle one; allowed: odd numbers")
        return rates

    def about(self, centre: float, rates: int | None = None) -> tuple[float, ...]:
        """The rates about the first stage's best one, which stays as it is."""
        each = (self.rates if rates is None else rates) // 2
        steps = range(-each, each + 1)
        return tuple(float(f"{centre * self.factor**step:.4g}") if step else centre for step in steps)


#: What a sweep trains a variant at: a rate, or a rate and the value of a second setting.
Trial = float | tuple[float, float]


class Second(Frozen):
    """A setting of [training] that a sweep of two stages tunes together with the learning rate.

    The first stage has every combination of the rates and the values, or so many points at random; the second the nine
    points about each variant's best. ``found`` is the value at which each variant is judged.
    """

    setting: Literal["warmup", "weight_decay", "eps", "clip", "z_loss"]
    """The setting."""
    values: Annotated[tuple[Positive, ...], Field(min_length=3), Distinct]
    """Its values in the first stage."""
    trials: Annotated[int, Field(ge=16, le=100)] | None = None
    """So many points at random between the lowest and the highest rate and value, the same for every variant, instead of
    every combination."""
    factor: Annotated[float, Field(ge=1.05, le=2)] = 1.41
    """From one value of the second stage to the next."""
    found: dict[str, Positive] = Field(default_factory=dict)
    """What was found. Sealed with the plan; not a setting."""

    @property
    def whole(self) -> bool:
        return self.setting == "warmup"

    def about(self, centre: float) -> tuple[float, float, float]:
        """The first stage's best value, and one on each side."""
        low, high = (float(f"{centre * self.factor**step:.4g}") for step in (-1, 1))
        if self.whole:
            low, high = min(round(low), centre - 1), max(round(high), centre + 1)
        return low, centre, high

    def between(self, share: float) -> float:
        """A value of the range, uniform in its logarithm."""
        value = _between(self.values, share)
        return float(round(value)) if self.whole else value


def _between(values: Sequence[float], share: float) -> float:
    low, high = min(values), max(values)
    return float(f"{low * (high / low) ** share:.4g}")


class Sweep(Frozen):
    """Learning rates that the variants are trained at, in the default regime, on every seed of the sweep.

    ``selection_seeds`` choose each variant's best rate; it is judged on ``seeds`` (the study's, unless given). With
    ``finer``, the rates are those of a first stage on the selection seeds, and judging seeds have the rate found alone.
    """

    lr: Annotated[tuple[Positive, ...], Field(min_length=1), Distinct]
    """Learning rates. Every variant is trained at each of them, unless it has rates of its own."""
    variant_lr: dict[str, Annotated[tuple[Positive, ...], Field(min_length=1), Distinct]] = Field(default_factory=dict)
    """Rates of single variants instead of `lr`, as many as `lr` has: for an optimizer whose best rate lies elsewhere."""
    selection_seeds: Seeds = ()
    """Seeds that choose each variant's best rate."""
    seeds: SomeSeeds | None = None
    """Seeds on which variants are judged at their best rate. Without them, the study's."""
    finer: Finer | None = None
    """A second stage of closer rates."""
    second: Second | None = None
    """A second setting that is tuned together with the rate. It needs `finer`."""
    stage: Literal[1, 2] | None = None
    """Which stage of a sweep of two this study is. Sealed with its plan; not a setting."""
    points: dict[str, tuple[tuple[Positive, Positive], ...]] = Field(default_factory=dict)
    """Rates and values of a second setting of a stage. Sealed with its plan; not a setting."""

    def trials(self, variant: str) -> tuple[Trial, ...]:
        """What one variant is trained at, in ascending order: rates, or rates with values of the second setting."""
        rates = self.rates(variant)
        if self.second is None:
            return rates
        if self.stage is not None:
            return self.points[variant]
        if variant in self.second.found:
            return ((rates[0], self.second.found[variant]),)
        if self.second.trials is None:
            return tuple(product(rates, sorted(self.second.values)))
        shares = stream(self.selection_seeds[0], "sweep", "points").random((self.second.trials, 2)).tolist()
        return tuple(sorted((_between(rates, lr), self.second.between(value)) for lr, value in shares))

    @property
    def first_stage(self) -> Self:
        """Without what was found."""
        return self.changed(finer=None, second=None if self.second is None else self.second.changed(found={}))

    def about(self, centre: Trial) -> tuple[Trial, ...]:
        """What the second stage trains about the first stage's best."""
        assert self.finer is not None
        if self.second is None or not isinstance(centre, tuple):
            assert not isinstance(centre, tuple)
            return self.finer.about(centre)
        return tuple(product(self.finer.about(centre[0], 3), self.second.about(centre[1])))

    def trial_of(self, training: TrainingConfig) -> Trial:
        """What a run was trained at."""
        return training.lr if self.second is None else (training.lr, float(getattr(training, self.second.setting)))

    def settings_of(self, trial: Trial) -> dict[str, float]:
        """The settings of [training] that it stands for."""
        if self.second is None or not isinstance(trial, tuple):
            assert not isinstance(trial, tuple)
            return {"lr": trial}
        return {"lr": trial[0], self.second.setting: int(trial[1]) if self.second.whole else trial[1]}

    @property
    def tunes(self) -> tuple[str, ...]:
        """The settings that tuned arms may differ in."""
        return ("training.lr", *(() if self.second is None else (f"training.{self.second.setting}",)))

    def rates(self, variant: str) -> tuple[float, ...]:
        """The rates of one variant, in ascending order; the one that two stages found, once they have."""
        if self.finer is not None and variant in self.finer.found:
            return (self.finer.found[variant],)
        return tuple(sorted(self.variant_lr.get(variant, self.lr)))

    def all_rates(self) -> tuple[float, ...]:
        """Every rate that some variant may be trained at, in ascending order."""
        if self.finer is not None and self.finer.found:
            return tuple(sorted({*self.finer.found.values()}))
        return tuple(sorted({*self.lr, *(lr for rates in self.variant_lr.values() for lr in rates)}))

    def stage_runs(self) -> tuple[int, ...]:
        """Runs of each variant before the plan is sealed, stage by stage; none without a second stage."""
        if self.finer is None:
            return ()
        first, finer = len(self.lr), self.finer.rates
        if self.second is not None:
            first, finer = self.second.trials or first * len(self.second.values), 9
        return first * len(self.selection_seeds), finer * len(self.finer.seeds)


class Noise(Frozen):
    """Runs that tell where the noise comes from: every combination of these seeds, for every variant, in the default regime.

    The study's own runs take all three streams from one seed, so that their pairs share nothing; these runs share streams,
    so they are never compared. Without ``dropout``, its masks have the seed of the data order.
    """

    init: SeveralSeeds
    """Seeds of the initial weights."""
    data: SeveralSeeds
    """Seeds of the data order."""
    dropout: SeveralSeeds | None = None
    """Seeds of the dropout masks. Without them, the data order's seed."""

    @property
    def streams(self) -> tuple[NoiseStream, ...]:
        """The streams that have seeds of their own here."""
        return ("init", "data") if self.dropout is None else ("init", "data", "dropout")

    def cells(self) -> list[tuple[int, int, int]]:
        """(init, data, dropout) of every run."""
        return [
            (init, data, dropout)
            for init in self.init
            for data in self.data
            for dropout in (self.dropout if self.dropout is not None else (data,))
        ]


class Criterion(Frozen):
    """One registered question. Without ``contrast`` it is asked of every variant against the baseline."""

    metric: str
    """A metric, by name."""
    regime: str = DEFAULT_REGIME
    """The regime in which it is tested."""
    contrast: tuple[str, str] | None = None
    """The two arms to compare, variant first. Without it, every variant is compared with the baseline."""
    role: Literal["primary", "secondary", "guard"] = "secondary"
    """`primary` decides. `secondary` is tested, in order, once the primary comparison of its variant is shown. `guard` must
    be shown non-inferior."""
    test: Literal["paired-t", "sign-flip", "bootstrap", "wilcoxon"] = "paired-t"
    """The paired test. `bootstrap` is known from older plans and refused in a new study."""
    interval: Literal["paired-t", "percentile", "bca", "bootstrap-t"] = "paired-t"
    """The confidence interval."""
    alpha: Fraction = ALPHA
    """Level of the test."""
    correction: Literal["holm", "bonferroni", "dunnett", "benjamini-hochberg", "none"] = "holm"
    """Correction for the number of comparisons in the family. `dunnett` is known from older plans and refused in a new
    study."""
    variance: Literal["own", "shared"] = "own"
    """`own` takes the noise of each comparison from its own pairs, `shared` from those of all variants. With few seeds and
    many variants that shows more. For one primary criterion with `correction = "bonferroni"`."""
    smallest_effect: Positive | None = None
    """The smallest difference that matters, in the metric's unit. Below it, arms are equivalent."""
    margin: NonNegative | None = None
    """By how much a guard, or in return for stability the primary metric, may be worse, in the metric's unit."""


def primary_criterion(criteria: Iterable[Criterion]) -> Criterion | None:
    """The first that is primary."""
    return next((criterion for criterion in criteria if criterion.role == "primary"), None)


def registered_alpha(criteria: Sequence[Criterion]) -> float:
    """That of the primary criterion, else of the first."""
    asked = primary_criterion(criteria) or next(iter(criteria), None)
    return ALPHA if asked is None else asked.alpha


class Hypothesis(Frozen):
    """A hypothesis that was fixed before any run, and the rule that judges it (analysis/verdict/hypotheses.py).

    ``no-change`` and ``worse-though-smoother`` speak of ``metric``; ``restores-stability`` speaks of none.
    """

    name: Annotated[str, Field(min_length=1, max_length=40)]
    """A short name, such as `H0`."""
    statement: Annotated[str, Field(min_length=1)]
    """The hypothesis in a sentence."""
    rule: Literal["no-change", "worse-though-smoother", "restores-stability"]
    """The rule that judges it."""
    metric: str | None = None
    """The metric it is about. `restores-stability` takes none."""

    @model_validator(mode="after")
    def _metric_belongs_to_the_rule(self) -> Self:
        if (self.metric is None) != (self.rule == "restores-stability"):
            needs = "takes no metric" if self.metric is not None else "needs a metric"
            raise ValueError(f"the rule {self.rule!r} {needs}")
        return self


FailureKind = Literal["diverged", "failed", "unstable"]
SmoothnessMeasure = Literal[
    "final_gradient_norm", "mean_gradient_norm", "spike_score", "gradient_spike_score", "largest_loss_rise"
]


class Stability(Frozen):
    """When a run counts as unstable: it diverged, its spike score (see `stability.py`) is above ``spike_score``, or its final
    validation loss is above ``worse_than_start`` times its first loss, for such a run has failed, however smoothly.

    ``failures`` are the kinds of failure on which a difference in stability may be claimed: "diverged", "failed"
    (diverged, or ended worse than it began) and "unstable" (that, or spiked); the others are reported alone.
    ``margin`` is the share of runs by which a variant may fail more often and still count as no less stable.
    ``smoothness`` names the measures of smooth training that are registered; without it, none is.

    ``diverged`` is the rule for metrics that a diverged run has no value of: compare the surviving pairs and say so
    ("survivors"), or compare nothing in that regime and contrast ("refuse").
    """

    spike_score: Positive = SPIKE_SCORE
    """A run with a higher spike score has spiked."""
    worse_than_start: Annotated[float, Field(ge=1)] | Literal["off"] = WORSE_THAN_START
    """A run whose final loss exceeds this many times its first loss has failed."""
    failures: Annotated[tuple[FailureKind, ...], Field(min_length=1), Distinct] = ("diverged", "unstable")
    """Kinds of failure on which a difference in stability may be claimed. The others are reported only."""
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of runs by which a variant may fail more often and still count as no less stable."""
    smoothness: Annotated[tuple[SmoothnessMeasure, ...], Distinct] = ()
    """Measures of smooth training that are registered."""
    diverged: Literal["survivors", "refuse"] = "survivors"
    """For metrics that a diverged run lacks: compare the surviving pairs and say so, or compare nothing there."""
    loss_threshold: Positive | None = None
    """Training loss, in nats, for the metric `steps_to_loss`. Without it, the metric is not measured."""


class StudyText(Frozen):
    """What a study says in its paper in its own words. study/text.py describes the notation; references are BibTeX."""

    introduction: str = ""
    """Introduction of the paper."""
    related_work: str = ""
    """Related work."""
    references: str = ""
    """References, in BibTeX."""
    title: str = ""
    """Title of a paper over several studies."""
    studies: dict[str, str] = Field(default_factory=dict)
    """What a paper over several studies calls them, by name."""


class Author(Frozen):
    """Who signs the paper."""

    name: Annotated[str, Field(min_length=1)]
    """Name as printed."""
    affiliation: str = ""
    """Where the author works."""


#: What the registration consists of; anything else in a study file is how the runs are made.
REGISTERED = (
    *("baseline", "variants", "tables", "factors", "contrasts", "seeds", "sweep", "design"),
    *("criteria", "stability", "tie_breakers", "hypotheses"),
)


class Trainer(Frozen):
    """Whose code trains the runs, where it is not this package's: a function that a ``use`` file registers, or a program.

    ``settings`` are the study's own tables ([model], [training], [data]), which only that code understands; a variant's
    tables are laid over them. ``metrics`` are what a run reports at its end, each with its better direction.
    """

    name: str | None = None
    """The trainer that a file of `use` registers."""
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The program that trains one run. `{seed}`, `{folder}` and `{training.lr}`, for example, are filled in."""
    directory: str = "."
    """Where the command runs, relative to the study file."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The study's tables as the trainer gets them."""
    metrics: Annotated[dict[str, Literal["lower", "higher"]], Field(min_length=1)]
    """What a run reports at its end, and which way is better."""
    patterns: dict[str, str] = Field(default_factory=dict)
    """For a program that only prints: a regular expression per name, with the groups `step` and `value`."""
    timeout: Positive | None = None
    """Time limit per run, in seconds. A run that takes longer has failed."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.name is None) == (self.command is None):
            raise ValueError("give either trainer = 'NAME' or command = [...], not both")
        return self

    @field_validator("patterns")
    @classmethod
    def _compile(cls, patterns: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        for name, pattern in patterns.items():
            try:
                groups = re.compile(pattern).groupindex
            except re.error as error:
                raise ValueError(f"{name}: {pattern!r} is not a regular expression: {error}") from error
            if "value" not in groups or ("step" not in groups and name not in info.data.get("metrics", {name})):
                raise ValueError(f"{name}: {pattern!r} needs the groups (?P<step>...) and (?P<value>...)")
        return patterns

    @property
    def title(self) -> str:
        """The trainer in a few words."""
        return self.name if self.name is not None else " ".join(self.moved(file_name).command or ())

    def moved(self, place: Callable[[str], str]) -> Self:
        """With other paths of its program and of the folder that this runs in."""
        words = [place(word) if word.startswith(("/", "./")) else word for word in self.command or ()]
        moved = {"directory": self.directory if self.directory == "." else place(self.directory)}
        return self.model_copy(update={**moved, "command": None if self.command is None else tuple(words)})


class Study(Frozen):
    """A whole study, resolved: what is asked, what is trained, how it will be judged.

    ``model`` and ``training`` are None where the user's own ``trainer`` trains.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """Names the study and its results folder."""
    question: str = ""
    """The question, as the page and the paper print it."""
    use: tuple[UsedCode, ...] = ()
    """Your own Python files, relative to the study file, or entry points. Their content is sealed with the plan."""
    reuse: SomePaths = ()
    """Results folders of earlier studies whose baseline runs serve here, relative to the study file or this folder."""
    baseline: str
    """The variant that the others are compared with."""
    variants: Annotated[tuple[str, ...], Field(min_length=1), Distinct]
    """Names of built-in variants, or `[variants.NAME]` tables."""
    tables: dict[str, VariantTable] = Field(default_factory=dict)
    """The variants that the study file defines."""
    factors: Factors | None = None
    """Settings with their values, crossed. Replaces `variants`."""
    contrasts: tuple[tuple[str, str], ...] = ()
    """More pairs of variants to compare."""
    seeds: SomeSeeds
    """Seeds, as a list or as `{ first = 1, count = 5 }`. Every variant is trained on each."""
    model: ModelConfig | None = None
    """The model."""
    training: TrainingConfig | None = None
    """Budget, optimizer, schedule and loss."""
    trainer: Trainer | None = None
    """Your own training code, by the name that it is registered under."""
    data: DataConfig = DataConfig()
    """The text and its tokens."""
    budget: BudgetConfig = BudgetConfig()
    """What all arms share."""
    execution: ExecutionConfig = ExecutionConfig()
    """What decides speed and rounding: stacks, threads, kernels, the layout over devices."""
    regimes: dict[str, Regime] = Field(default_factory=dict)
    """Named conditions that every variant is also trained in."""
    sweep: Sweep | None = None
    """Learning rates that every variant is trained at."""
    design: Design | None = None
    """Planned looks at the results as seeds come in."""
    noise: Noise | None = None
    """Additional runs that separate sources of noise."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """What is scored."""
    probes: dict[str, Count] = Field(default_factory=dict)
    """Steps between two readings, by probe. `all` switches on every probe that fits the models."""
    criteria: tuple[Criterion, ...] = ()
    """What decides. Sealed before the first step."""
    stability: Stability = Stability()
    """When a run counts as unstable."""
    tie_breakers: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Distinct] = ("calibration", "throughput")
    """Metrics, or families of metrics, that break a tie, in this order."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """Hypotheses, fixed before any run, each with the rule that judges it."""
    text: StudyText | None = None
    """Path of a Markdown file with your own text for the paper."""
    authors: tuple[Author, ...] = ()
    """The authors of the paper, in this order."""

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if not slug(name):
            raise ValueError(
                "the name needs at least one letter from a to z or a digit, since it names the results folder"
            )
        if not name.isprintable():
            raise ValueError(f"the name {name!r} has a character that cannot be printed")
        return name

    @field_validator("use")
    @classmethod
    def _code_names(cls, use: tuple[UsedCode, ...]) -> tuple[UsedCode, ...]:
        _unique(tuple(code.name for code in use))
        return use

    @field_validator("hypotheses")
    @classmethod
    def _hypothesis_names(cls, hypotheses: tuple[Hypothesis, ...]) -> tuple[Hypothesis, ...]:
        _unique(tuple(hypothesis.name for hypothesis in hypotheses))
        return hypotheses

    @field_validator("regimes")
    @classmethod
    def _regime_names(cls, regimes: dict[str, Regime]) -> dict[str, Regime]:
        for name, regime in regimes.items():
            if not name or slug(name) != name:
                raise ValueError(f"regime name {name!r}: use lower-case letters, digits and dashes")
            if name == DEFAULT_REGIME and (regime.model or regime.training or regime.calibrate):
                raise ValueError("the regime 'default' is the study without overrides; give this one another name")
            if name in (SWEEP, TUNED):
                raise ValueError(f"the name {name!r} is taken by what a [sweep] gives; give this regime another name")
        return regimes

    @property
    def hash(self) -> str:
        """Hash of the whole resolved study.

        Defaults are left out, so that a version with more settings still knows it; so are the folders of corpora and
        programs given by path, which may move: the plan pins what is in them. The paper's text and authors change no
        run: they are left out, and so is what a calibration or a sweep found, which the plan pins, too.
        """
        body = self._with_smoothness(self.model_dump(mode="json", exclude_defaults=True, exclude={"text", "authors"}))
        for regime in body.get("regimes", {}).values():
            (regime.get("calibrate") or {}).pop("value", None)
        _without_found(body)
        if self.reuse:
            body["reuse"] = [Path(path).name for path in self.reuse]
        if self.use:
            body["use"] = [[code.name, code.sha256] for code in self.use]
        if "data" in body:
            body["data"] = _hashed_data(body["data"])
        if "tables" in body:
            body["tables"] = self._hashed_tables()
        if self.trainer is not None:
            moved = self.trainer.moved(lambda path: f"path {Path(path).name}")
            body["trainer"] = moved.model_dump(mode="json", exclude_defaults=True)
        return content_hash(body)

    def _with_smoothness(self, body: dict[str, Any]) -> dict[str, Any]:
        """Plans that were sealed while two measures of smoothness were the default, which a hash leaves out, keep theirs."""
        named = list(self.stability.smoothness)
        table = {key: value for key, value in body.pop("stability", {}).items() if key != "smoothness"}
        table |= {"smoothness": named} if named != ["final_gradient_norm", "mean_gradient_norm"] else {}
        return body | ({"stability": table} if table else {})

    def _hashed_tables(self) -> dict[str, Any]:
        tables = {name: table.model_dump(mode="json", exclude_defaults=True) for name, table in self.tables.items()}
        return {
            name: {**table, "data": _hashed_data(table["data"])} if "data" in table and self.trainer is None else table
            for name, table in tables.items()
        }

    @property
    def criteria_hash(self) -> str:
        """Hash of what was registered: criteria, contrasts, sweep selection and the arms they speak of."""
        body = self._with_smoothness(self.model_dump(mode="json", include=set(REGISTERED), exclude_defaults=True))
        _without_found(body)
        return content_hash(body | ({"tables": self._hashed_tables()} if "tables" in body else {}))

    def regime_names(self) -> tuple[str, ...]:
        """The default regime, then the named ones."""
        return (DEFAULT_REGIME, *(name for name in self.regimes if name != DEFAULT_REGIME))

    def pair_of(self, run: PlannedRun | RunRecord) -> tuple[str, tuple[int, int, int], Trial | None]:
        """What makes runs of two variants a pair: their regime, the seed of every stream, and the trial of a sweep."""
        return run.regime, run.seed_triple, self.sweep.trial_of(run.training) if self.sweep is not None else None

    def judging_seeds(self) -> tuple[int, ...]:
        """The seeds of the sweep that variants are judged on, each at its best rate; none without a sweep."""
        if self.sweep is None:
            return ()
        return self.sweep.seeds if self.sweep.seeds is not None else self.seeds

    def sweep_seeds(self) -> tuple[int, ...]:
        """Every seed that is trained at every rate of the sweep: those that choose, then those that judge.

        Of a sweep of two stages those that judge: the others are trained before the plan.
        """
        if self.sweep is None or self.sweep.finer is not None:
            return self.judging_seeds()
        return (*self.sweep.selection_seeds, *self.judging_seeds())

    def choosing_seeds(self) -> tuple[int, ...]:
        """The seeds that choose the rates of the sweep, of both stages where it has two."""
        if self.sweep is None:
            return ()
        return (*self.sweep.selection_seeds, *(self.sweep.finer.seeds if self.sweep.finer is not None else ()))

    def own_seeds(self) -> dict[str, tuple[int, ...]]:
        """The seeds behind the comparisons of a sweep, by the name they stand under."""
        if self.sweep is None:
            return {}
        over = {} if self.sweep.finer is not None else {SWEEP: self.sweep_seeds()}
        return over | ({TUNED: self.judging_seeds()} if self.sweep.selection_seeds else {})

    def in_regime(self, name: str) -> tuple[ModelConfig, TrainingConfig]:
        """Model and training with one regime's overrides applied; of studies that this package trains."""
        assert self.model is not None, "the user's own trainer has its own settings"
        assert self.training is not None, "the user's own trainer has its own settings"
        if name == DEFAULT_REGIME:
            return self.model, self.training
        regime = self.regimes[name]
        model = validated(ModelConfig, merged_model(self.model.model_dump(mode="json"), regime.model))
        training = validated(TrainingConfig, merged_training(self.training.model_dump(mode="json"), regime.training))
        if regime.calibrate is None or regime.calibrate.value is None:
            return model, training
        return regime.calibrate.written(model, training, regime.calibrate.value)

    def calibrated(self, name: str, value: float) -> Self:
        """The study with the value that the calibration of a regime found, or tries."""
        regime = self.regimes[name]
        assert regime.calibrate is not None
        found = regime.changed(calibrate=regime.calibrate.changed(value=value))
        return self.changed(regimes={**self.regimes, name: found})

    def tuned(self, minima: Mapping[str, FittedMinimum]) -> Self:
        """The study with what both stages of its sweep found for each variant."""
        sweep = self.sweep
        assert sweep is not None
        assert sweep.finer is not None
        rates = {name: minimum.lr for name, minimum in minima.items() if minimum.lr is not None}
        sweep = sweep.changed(finer=sweep.finer.changed(found=rates))
        if sweep.second is not None:
            values = {name: minimum.second for name, minimum in minima.items() if minimum.second is not None}
            sweep = sweep.changed(second=sweep.second.changed(found=values))
        return self.changed(sweep=sweep)

    def later_seeds(self) -> tuple[int, ...]:
        """The seeds of looks beyond the study's own: the numbers above them that nothing else uses."""
        if self.design is None:
            return ()
        calibrated = [regime.calibrate.seeds for regime in self.regimes.values() if regime.calibrate is not None]
        taken = set(self.evaluation.gate_seeds).union(*calibrated)
        free = (seed for seed in count(max(self.seeds) + 1) if seed not in taken)
        return tuple(islice(free, max(0, self.design.looks[-1] - len(self.seeds))))

    def look_of(self, seed: int) -> int:
        """The look, from 1, that first counts a seed; 1 without a design, and for seeds that no look compares."""
        if self.design is None or seed not in self.seeds:
            return 1
        place = self.seeds.index(seed)
        return next((number for number, seeds in enumerate(self.design.looks, start=1) if place < seeds), 1)


def _without_found(body: Mapping[str, Any]) -> None:
    for stage in ("finer", "second"):
        ((body.get("sweep") or {}).get(stage) or {}).pop("found", None)


def looks_like_path(corpus: str) -> bool:
    """Whether a corpus is meant as a file or folder rather than a named source."""
    return "/" in corpus or corpus.startswith(("~", ".")) or corpus.endswith(".txt")


def file_name(path: str) -> str:
    """A path without its folder, as records have it."""
    return f"./{Path(path).name}"


def with_paths(data: Mapping[str, Any], place: Callable[[str], str]) -> dict[str, Any]:
    """A [data] table with other paths of its corpora; names of corpora stay."""

    def moved(corpus: Any) -> Any:
        return place(corpus) if isinstance(corpus, str) and looks_like_path(corpus) else corpus

    changed = dict(data)
    if "corpus" in data:
        changed["corpus"] = moved(data["corpus"])
    if isinstance(data.get("mixture"), Mapping):
        changed["mixture"] = {moved(corpus): weight for corpus, weight in data["mixture"].items()}
    return changed


def _hashed_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """A [data] table without the folders of its corpora, of which two may have one name."""
    hashed = with_paths({**data, "mixture": None}, lambda path: f"path {Path(path).name}")
    mixture = data.get("mixture")
    del hashed["mixture"]
    if isinstance(mixture, Mapping):
        named = [with_paths({"corpus": corpus}, lambda path: f"path {Path(path).name}") for corpus in mixture]
        hashed["mixture"] = [[name["corpus"], weight] for name, weight in zip(named, mixture.values(), strict=True)]
    return hashed
