"""How long the ranks of one run wait for each other in a step: what their collectives take, less what computing can hide.

A collective of ``b`` bytes over ``W`` GPUs takes ``b · (W - 1) / W / rate + latency``; between nodes the rings go through all
network cards of a node, so the rate is ``min(link, cards · network)``. What can be hidden follows from who waits for what
(`training/distributed/`):

- ddp sums gradients once a step, in pieces, while the last pass goes backward; the embedding's gradient is there only when
  that ends, so its sum hides behind nothing.
- fsdp, in every pass, gathers a block while the one before it computes, forward and once more backward, and sums a block's
  gradients while the next one computes. Nothing computes yet while the embedding and the first block are gathered, and
  nothing any more while their gradients are summed.

Of the computing that there is to hide behind, the share ``overlap`` hides: collectives use the same memory and some of the
same multiprocessors. Rates, latency and overlap are assumed (`calibration.py`), not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from ablationlab.instrument.costing.calibration import Calibration
from ablationlab.instrument.costing.hardware import Accelerator
from ablationlab.instrument.costing.work import Shape

#: Bytes of gradients that ddp sums at a time: torch's default.
BUCKET = 25 * 2**20


@dataclass(frozen=True)
class Network:
    """So many GPUs, and how fast they speak."""

    gpus: int
    rate: float
    latency: float

    @classmethod
    def of(cls, gpus: int, gpu: Accelerator, calibration: Calibration) -> Network:
        """Inside a node, or over several."""
        rate = gpu.link if gpus <= gpu.node else min(gpu.link, gpu.node * gpu.network)
        return cls(gpus, calibration.collective * rate, calibration.latency)

    def seconds(self, size: float, collectives: int = 1) -> float:
        """To gather, or to sum and share out, that many bytes."""
        return size * (self.gpus - 1) / self.gpus / self.rate + collectives * self.latency


def waiting(
    kind: Literal["ddp", "fsdp"],
    shape: Shape,
    passes: int,
    computing: tuple[float, float],
    network: Network,
    overlap: float,
) -> float:
    """Seconds of a step; *computing* is what one pass takes forward and backward."""
    forward, backward = (overlap * seconds for seconds in computing)
    if kind == "ddp":
        late = 4.0 * shape.embedding_count
        early = 4.0 * shape.counts[0] - late
        # A sum that all have is two collectives: summed and shared out, then gathered.
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
