"""What a training step does, counted from the code: FLOPs, bytes moved, kernels launched, memory used. No torch.

The counts follow `model/` and `training/stack.py` on a GPU: residual stream and norms in fp32, products in the
registered precision of ``s`` bytes, logits in pieces, weights as one fp32 buffer and a copy of the blocks' matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ablationlab.instrument.costing.hardware import CALIBRATION, Accelerator
from ablationlab.model.machine import Precision
from ablationlab.model.parameters import parameters
from ablationlab.model.parts import NORM_PLACES, PartCost, other_kernels, parts_of
from ablationlab.model.rules import OPTIMIZERS, kept_numbers, update_flops
from ablationlab.records.settings import ModelConfig, TrainingConfig

#: Elements of one piece of the logits, as in `model/`.
LOGITS_PER_PIECE = 1 << 30
#: A vocabulary up to this is read once by the loss, a larger one twice (`model/kernels/`).
ONE_TILE = 8192
#: Passes over one parameter in a step, in bytes: AdamW 28, the norm 4, the copy in bf16 6, the gradient's way from the
#: products into one fp32 buffer 18.
BYTES_PER_UPDATE = 56
#: What an update rule in plain tensor operations takes in the place of AdamW's 28, and what an average of the weights takes.
BYTES_PER_RULE, BYTES_PER_AVERAGE = 150, 24
#: Of these, what a GPU with a shard of the parameters does to its shard alone: AdamW and the norm.
BYTES_PER_SHARD = 32
#: Memory that libraries reserve.
WORKSPACE_BYTES = 7e7
KERNELS_PER_LAYER, KERNELS_PER_STEP = 30, 40
SHORT_HEAD = 64


@dataclass(frozen=True)
class Shape:
    """One step: *runs* models at once, each on *samples* contexts."""

    model: ModelConfig
    samples: int
    runs: int = 1
    precision: Precision = "bf16"
    training: TrainingConfig | None = None  # None: AdamW, and nothing else

    @property
    def tokens(self) -> int:
        """Tokens of a step, over all runs."""
        return self.runs * self.samples * self.model.context

    @property
    def size(self) -> int:
        """Bytes of one number in a product."""
        return 2 if self.precision == "bf16" else 4

    @cached_property
    def counts(self) -> tuple[int, int, int]:
        """Parameters of one run: all, those of the blocks' matrices, those of the largest block."""
        every = parameters(self.model)
        block = [p.size for p in every if p.block == 0]
        return sum(p.size for p in every), sum(p.size for p in every if p.in_products), sum(block)

    @cached_property
    def parts(self) -> tuple[PartCost, ...]:
        """Of one token, in the parts of one block."""
        return tuple(part.cost(self.model) for _, part in parts_of(self.model))

    @property
    def extra_norms(self) -> int:
        """Norms of a part beside the one in front of it or in its place: each keeps its input and its output in fp32."""
        return max(0, len(NORM_PLACES[self.model.norm_place]) - 1)

    @cached_property
    def embedding_count(self) -> int:
        """Parameters of the embeddings and the front end: the last whose gradients a backward pass finishes."""
        return sum(p.size for p in parameters(self.model) if p.name.startswith(("tok.", "pos.", "front.")))

    @property
    def vocabulary(self) -> int:
        """Of the model; it is resolved by now."""
        assert self.model.vocabulary is not None
        return self.model.vocabulary

    # Time ------------------------------------------------------------------------------------------------------------

    @property
    def linear_flops(self) -> float:
        """Forward and backward, all linear layers and the head."""
        block = sum(part.linear_flops for part in self.parts)
        return 3.0 * self.tokens * (self.model.layers * block + 2 * self.vocabulary * self.model.width)

    @property
    def attention_flops(self) -> float:
        """Forward and backward; the causal half is not discounted."""
        return 3.0 * self.tokens * self.model.layers * sum(part.attention_flops for part in self.parts)

    @property
    def block_bytes(self) -> float:
        """What the blocks' products, norms and activations read and write: what the parts move, and per part four tensors of
        the residual stream, written once and read once."""
        block = sum(part.moved * self.size + (4 + 2 * self.extra_norms) * self.model.width * 4 for part in self.parts)
        return 2.0 * self.tokens * self.model.layers * block

    @property
    def head_bytes(self) -> float:
        """Logits: written, read by the loss, written over by their gradient, read by two products."""
        return float(self.tokens) * self.vocabulary * self.size * (5 if self.vocabulary <= ONE_TILE else 6)

    @property
    def update_bytes(self) -> float:
        each = BYTES_PER_UPDATE
        if self.training is not None:
            each += BYTES_PER_RULE - 28 if OPTIMIZERS[self.training.optimizer] is not None else 0
            each += BYTES_PER_AVERAGE if self.training.ema else 0
        return float(self.runs) * self.counts[0] * each

    @property
    def update_flops(self) -> float:
        return 0.0 if self.training is None else float(self.runs) * update_flops(self.model, self.training)

    @property
    def state_bytes(self) -> float:
        """Weights, optimizer state and average of one run."""
        return 4.0 * self.counts[0] * (3 if self.training is None else kept_numbers(self.training))

    @property
    def gathering_bytes(self) -> float:
        """What a pass over shards moves beside its arithmetic: what was gathered is copied into place (the blocks' matrices
        forward and backward, the rest once), and gradients into one buffer of fp32 each time they are summed."""
        every, matrices, _ = self.counts
        return matrices * (2 * 2.0 * self.size + self.size + 4) + (every - matrices) * (2 * 4.0 + 2 * 4)

    @property
    def kernels(self) -> int:
        """Launches of a step; a graph saves the host's work, not the device's."""
        return KERNELS_PER_LAYER * self.model.layers + KERNELS_PER_STEP

    def terms(self, gpu: Accelerator) -> tuple[float, float, float, float]:
        """Seconds of a step's three parts at the data sheet's rates, and its kernels: what calibration weighs."""
        moved = self.block_bytes + self.head_bytes + self.update_bytes
        head = min(1.0, self.model.width / self.model.heads / SHORT_HEAD)
        peak = gpu.peak(self.precision)
        return (
            (self.linear_flops + self.update_flops) / peak,
            self.attention_flops / (peak * head),
            moved / gpu.bandwidth,
            float(self.kernels),
        )

    def seconds(self, gpu: Accelerator) -> float:
        linear, attention, moved, kernels = self.terms(gpu)
        return (
            linear / CALIBRATION.linear
            + attention / CALIBRATION.attention
            + moved / CALIBRATION.bytes
            + kernels * CALIBRATION.launch
        )

    def update_seconds(self, gpu: Accelerator) -> float:
        """The part of a step that is the optimizer's."""
        products = self.update_flops / gpu.peak(self.precision) / CALIBRATION.linear
        return self.update_bytes / gpu.bandwidth / CALIBRATION.bytes + products

    # Memory ----------------------------------------------------------------------------------------------------------

    @property
    def layer_activations(self) -> float:
        """Bytes that one block keeps for its backward pass, over all tokens.

        Per part: a sum of the residual stream in fp32, its norm in the products' precision with a mean and a deviation, and
        what the part keeps.
        """
        width = self.model.width
        per_token = sum(4 * width + self.size * (width + part.kept) + 8 + 4 * part.kept_fp32 for part in self.parts)
        return float(self.tokens) * (per_token + len(self.parts) * self.extra_norms * (2 * 4 * width + 8))

    @property
    def outer_activations(self) -> float:
        """Bytes kept outside the blocks: tokens, the embedding and its norm, the last norm's output and its gradient."""
        return float(self.tokens) * (2 * 8 + self.model.width * (2 * 4 + 4 + 2 * self.size))

    @property
    def head_workspace(self) -> float:
        """Bytes that the head takes while the loss is made: a piece of the logits beside the one before it, the head in the
        products' precision, padded, and its gradient, one piece's and their sum."""
        matrix = float(self.runs) * self.vocabulary * self.model.width
        if "loss" in other_kernels(self.model):
            # All logits at once: as the product gives them, and in fp32 as they are, capped, as probabilities, as a gradient.
            return float(self.tokens) * self.vocabulary * (self.size + 4 * 4) + matrix * (self.size + 4)
        piece = min(self.tokens * self.vocabulary, 2 * LOGITS_PER_PIECE) * self.size
        return piece + matrix * (3 * self.size + 2 * 4)

    @property
    def layer_workspace(self) -> float:
        """Bytes in flight while one block goes backward: gradients of the largest part's inner tensors and of the stream."""
        largest = max(part.kept for part in self.parts)
        return float(self.tokens) * (largest * self.size + self.model.width * (2 * 4 + 2 * self.size))

    @property
    def copies(self) -> float:
        """Bytes of the blocks' matrices in the products' precision; none where that is fp32."""
        return 0.0 if self.size == 4 else float(self.runs) * self.counts[1] * self.size

    @property
    def gradient_tail(self) -> float:
        """Bytes of gradients at the end of the backward pass, when the pieces become one buffer."""
        every, matrices, _ = self.counts
        return float(self.runs) * (matrices * (2 * self.size + (4 if self.size == 2 else 0)) + 4 * every)

    def stack_memory(self) -> float:
        """Peak bytes of a `Stack` on one GPU: weights and moments, their copies while the graph is recorded, and the largest
        of three moments: the loss, the first block backward, the gradient at the end."""
        state = self.runs * self.state_bytes
        kept = self.model.layers * self.layer_activations + self.outer_activations
        head = float(self.runs) * self.vocabulary * self.model.width * (4 + self.size)
        moments = (self.head_workspace + kept, kept + head + self.layer_workspace, self.gradient_tail)
        return 2 * state + self.copies + max(moments) + WORKSPACE_BYTES
