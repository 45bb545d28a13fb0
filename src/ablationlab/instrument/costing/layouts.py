"""One run on one or several GPUs: the memory per GPU, and how long a step takes.

Follows `training/stack.py` (whole runs on one GPU) and, for ddp and fsdp, the distributed stack: fp32 weights, gradients and
moments, the blocks' matrices gathered in the products' precision, gradients reduced in fp32; ddp reduces once per step, fsdp
gathers and reduces in every pass.

The time that the ranks of a run wait for each other is the time of their collectives without what overlaps with compute. A
collective of ``b`` bytes over ``W`` GPUs takes ``b · (W - 1) / W / rate + latency``; between nodes the rings use all network
cards of a node, so the rate is ``min(link, cards · network)``. What overlaps (`training/distributed/`):

- ddp sums gradients once per step, in buckets, during the last backward pass. The embedding's gradient is ready only when
  that ends, so its sum overlaps with nothing.
- fsdp, in every pass, gathers a block while the one before it computes, forward and again backward, and sums a block's
  gradients while the next one computes. Gathering the embedding and the first block, and summing their gradients, overlap
  with nothing.

Communication overlaps with the share ``overlap`` of that compute: collectives use the same memory and some of the same
multiprocessors. Rates, latency and overlap are assumed (`CALIBRATION`), not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from ablationlab.instrument.costing.hardware import (
    CALIBRATION,
    CONTEXT_BYTES,
    FILL,
    Accelerator,
    Hardware,
)
from ablationlab.instrument.costing.step import BYTES_PER_SHARD, BYTES_PER_UPDATE, Shape
from ablationlab.model.machine import Precision
from ablationlab.records.settings import ModelConfig, TrainingConfig, divisors_of

#: Bytes of gradients that ddp sums at a time: torch's default.
BUCKET = 25 * 2**20


@dataclass(frozen=True)
class Layout:
    """How a run uses GPUs; ``runs`` of them share one where they are stacked."""

    kind: Literal["stack", "ddp", "fsdp"]
    gpus: int
    checkpointing: bool = False
    runs: int = 1

    def __str__(self) -> str:
        if self.kind == "stack":
            return "one GPU" if self.runs == 1 else f"one GPU, stack of {self.runs}"
        return f"{self.kind} over {self.gpus}" + (", recomputing" if self.checkpointing else "")


@dataclass(frozen=True)
class Placed:
    """A layout with the sequences of one pass: bytes per GPU, whether they fit, and seconds per step."""

    layout: Layout
    micro_batch: int
    memory: float
    fits: bool
    would_fit: int | None  # if it does not fit: the largest micro-batch that would
    seconds: float
    waiting: float  # seconds of these spent waiting for the network
    utilization: float  # counted FLOPs over the data sheet's peak


def layouts(hardware: Hardware, width: int) -> list[Layout]:
    """One GPU, a node, all GPUs; each with and without recomputing activations."""
    candidates = [Layout("stack", 1, runs=width)] + ([Layout("stack", 1)] if width > 1 else [])
    for gpus in dict.fromkeys((min(hardware.kind.node, hardware.count), hardware.count)):
        if gpus > 1:
            kinds: tuple[Literal["ddp", "fsdp"], ...] = ("ddp", "fsdp")
            candidates += [Layout(kind, gpus, again) for kind in kinds for again in (False, True)]
    return candidates


def place(
    layout: Layout,
    model: ModelConfig,
    batch: int,
    precision: Precision,
    gpu: Accelerator,
    *,
    micro_batch: int | None = None,
    training: TrainingConfig | None = None,
) -> Placed:
    """The layout with the study's micro-batch, or with a GPU's whole share of the batch in one pass."""
    share = batch // layout.gpus
    size = micro_batch or share
    assert layout.gpus * size * (share // size) == batch, "a layout that torchrun refuses (see study/plan.py)"

    def needed(samples: int) -> float:
        return memory(layout, Shape(model, samples, layout.runs, precision, training), share // samples)

    room = FILL * gpu.memory - CONTEXT_BYTES
    fits = needed(size) <= room
    smaller = [] if fits else [n for n in divisors_of(share) if n < size and needed(n) <= room]
    shape = Shape(model, size, layout.runs, precision, training)
    seconds, waiting = _step(layout, shape, share // size, gpu)
    counted = (shape.linear_flops + shape.attention_flops) * (share // size)
    used = counted / seconds / gpu.peak(precision)
    return Placed(layout, size, needed(size), fits, max(smaller, default=None), seconds, waiting, used)


def memory(layout: Layout, shape: Shape, passes: int) -> float:
    """Peak bytes of one GPU's tensors."""
    every, matrices, block = shape.counts
    if layout.kind == "stack":
        return shape.stack_memory() + (4.0 * shape.runs * every if passes > 1 else 0.0)
    if layout.kind == "ddp":
        state = shape.state_bytes + 4.0 * every + shape.copies
    else:
        root = every - matrices  # gathered whole, in fp32, with its gradient
        state = (shape.state_bytes + 4.0 * every) / layout.gpus + 8.0 * root + 2 * block * (shape.size + 4)
    kept = shape.model.layers * shape.layer_activations
    if layout.checkpointing:
        inputs = float(shape.tokens) * shape.model.width * (4 + shape.size)
        kept = shape.model.layers * inputs + shape.layer_activations
    kept += shape.outer_activations
    return state + kept + max(shape.head_workspace, shape.layer_workspace)


def _step(layout: Layout, shape: Shape, passes: int, gpu: Accelerator) -> tuple[float, float]:
    """(seconds per step, those of them spent waiting for the network)."""
    update = shape.update_seconds(gpu)
    one_pass = shape.seconds(gpu) - update
    forward = one_pass / 3
    if layout.checkpointing:  # the forward pass of the blocks again: a third of a pass without the head
        head = 6.0 * shape.tokens * shape.vocabulary * shape.model.width
        one_pass *= 1 + (1 - head / (shape.linear_flops + shape.attention_flops)) / 3
    if layout.kind == "stack":
        return passes * one_pass + update, 0.0
    computing = (forward, one_pass - forward)
    if layout.kind == "fsdp":
        update *= BYTES_PER_SHARD / BYTES_PER_UPDATE / layout.gpus
        one_pass += shape.gathering_bytes / gpu.bandwidth / CALIBRATION.bytes
    lost = waiting(layout.kind, shape, passes, computing, Network.of(layout.gpus, gpu), CALIBRATION.overlap)
    return passes * one_pass + update + lost, lost


@dataclass(frozen=True)
class Network:
    """How fast a number of GPUs communicate."""

    gpus: int
    rate: float
    latency: float

    @classmethod
    def of(cls, gpus: int, gpu: Accelerator) -> Network:
        """Inside one node, or over several."""
        rate = gpu.link if gpus <= gpu.node else min(gpu.link, gpu.node * gpu.network)
        return cls(gpus, CALIBRATION.collective * rate, CALIBRATION.latency)

    def seconds(self, size: float, collectives: int = 1) -> float:
        """To gather, or to sum and scatter, this many bytes."""
        return size * (self.gpus - 1) / self.gpus / self.rate + collectives * self.latency


def waiting(
    kind: Literal["ddp", "fsdp"],
    shape: Shape,
    passes: int,
    computing: tuple[float, float],
    network: Network,
    overlap: float,
) -> float:
    """Seconds per step spent waiting; *computing*: the time of one pass, forward and backward."""
    forward, backward = (overlap * seconds for seconds in computing)
    if kind == "ddp":
        late = 4.0 * shape.embedding_count
        early = 4.0 * shape.counts[0] - late
        # An all-reduce is two collectives: reduce-scatter, then all-gather.
        hidden = 2 * network.seconds(early, ceil(early / BUCKET))
        return 2 * network.seconds(late) + max(0.0, hidden - backward)
    layers, block = shape.model.layers, shape.counts[2]
    root = shape.counts[0] - layers * block
    matrices = shape.counts[1] / max(1, layers)
    # A block is two modules, and so two collectives: its matrices in the products' precision, gains and biases in fp32.
    gather = network.seconds(shape.size * matrices + 4 * (block - matrices), 2) if layers else 0.0
    reduce = network.seconds(4.0 * block, 2) if layers else 0.0
    alone = 2 * network.seconds(4.0 * root) + gather + reduce
    behind = max(0.0, (layers - 1) * gather - forward) if layers else 0.0
    behind += max(0.0, layers * gather + (layers - 1) * reduce - backward) if layers else 0.0
    return passes * (alone + behind)
