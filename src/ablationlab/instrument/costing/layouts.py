"""One run laid out over GPUs: what each of them holds and how long a step takes.

Follows `training/stack.py` (whole runs on one GPU) and, for ddp and fsdp, the distributed stack: fp32 weights, gradients and
moments, the blocks' matrices gathered in the products' precision, gradients reduced in fp32; ddp reduces once a step, fsdp
gathers and reduces in every pass. What the network costs stands in `network.py`: assumed, not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ablationlab.instrument.costing.calibration import CALIBRATION, CONTEXT_BYTES, FILL, Calibration
from ablationlab.instrument.costing.hardware import Accelerator, Hardware, Precision
from ablationlab.instrument.costing.network import Network, waiting
from ablationlab.instrument.costing.work import BYTES_PER_SHARD, BYTES_PER_UPDATE, Shape
from ablationlab.records.settings import ModelConfig, divisors_of


@dataclass(frozen=True)
class Layout:
    """How a run lies on GPUs; ``runs`` of them share one where they are stacked."""

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
    """A layout with the sequences of one pass: bytes a GPU, whether they fit, and seconds a step."""

    layout: Layout
    micro_batch: int
    memory: float
    fits: bool
    would_fit: int | None  # where it does not fit: the largest micro-batch that would
    seconds: float
    waiting: float  # seconds of these in which the network is not hidden behind arithmetic
    utilization: float  # counted FLOPs over the data sheet's peak


def layouts(hardware: Hardware, width: int) -> list[Layout]:
    """Those worth looking at: one GPU, a node, everything; each with and without recomputing activations."""
    found = [Layout("stack", 1, runs=width)] + ([Layout("stack", 1)] if width > 1 else [])
    for gpus in dict.fromkeys((min(hardware.kind.node, hardware.count), hardware.count)):
        if gpus > 1:
            kinds: tuple[Literal["ddp", "fsdp"], ...] = ("ddp", "fsdp")
            found += [Layout(kind, gpus, again) for kind in kinds for again in (False, True)]
    return found


def place(
    layout: Layout,
    model: ModelConfig,
    batch: int,
    precision: Precision,
    gpu: Accelerator,
    *,
    micro_batch: int | None = None,
    calibration: Calibration = CALIBRATION,
) -> Placed:
    """The layout as it would be run: with the study's micro-batch, or a GPU's whole share of the batch in one pass."""
    share = batch // layout.gpus
    size = micro_batch or share
    assert layout.gpus * size * (share // size) == batch, "a layout that torchrun refuses (see spreading.py)"

    def held(samples: int) -> float:
        return memory(layout, Shape(model, samples, layout.runs, precision), share // samples)

    room = FILL * gpu.memory - CONTEXT_BYTES
    fits = held(size) <= room
    smaller = [] if fits else [n for n in divisors_of(share) if n < size and held(n) <= room]
    shape = Shape(model, size, layout.runs, precision)
    seconds, waiting = _step(layout, shape, share // size, gpu, calibration)
    counted = (shape.linear_flops + shape.attention_flops) * (share // size)
    used = counted / seconds / gpu.peak(precision)
    return Placed(layout, size, held(size), fits, max(smaller, default=None), seconds, waiting, used)


def memory(layout: Layout, shape: Shape, passes: int) -> float:
    """Peak bytes of one GPU's tensors."""
    every, matrices, block = shape.counts
    if layout.kind == "stack":
        return shape.stack_memory() + (4.0 * shape.runs * every if passes > 1 else 0.0)
    if layout.kind == "ddp":
        state = 16.0 * every + shape.copies
    else:
        root = every - matrices  # gathered whole, in fp32, with its gradient
        state = 16.0 * every / layout.gpus + 8.0 * root + 2 * block * (shape.size + 4)
    kept = shape.model.layers * shape.layer_activations
    if layout.checkpointing:
        inputs = float(shape.tokens) * shape.model.width * (4 + shape.size)
        kept = shape.model.layers * inputs + shape.layer_activations
    kept += shape.outer_activations
    return state + kept + max(shape.head_workspace, shape.layer_workspace)


def _step(layout: Layout, shape: Shape, passes: int, gpu: Accelerator, c: Calibration) -> tuple[float, float]:
    """(seconds of a step, those of them that wait for the network)."""
    update = shape.update_seconds(gpu, c)
    one_pass = shape.seconds(gpu, c) - update
    forward = one_pass / 3
    if layout.checkpointing:  # the forward pass of the blocks once more: a third of a pass, less the head
        head = 6.0 * shape.tokens * shape.vocabulary * shape.model.width
        one_pass *= 1 + (1 - head / (shape.linear_flops + shape.attention_flops)) / 3
    if layout.kind == "stack":
        return passes * one_pass + update, 0.0
    computing = (forward, one_pass - forward)
    if layout.kind == "fsdp":
        update *= BYTES_PER_SHARD / BYTES_PER_UPDATE / layout.gpus
        one_pass += shape.gathering_bytes / gpu.bandwidth / c.bytes
    lost = waiting(layout.kind, shape, passes, computing, Network.of(layout.gpus, gpu, c), c.overlap)
    return passes * one_pass + update + lost, lost
