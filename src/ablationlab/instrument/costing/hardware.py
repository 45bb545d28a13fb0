"""Named accelerators from their public data sheets, and the measured shares of those rates that training reaches.

Peaks are for dense products (no sparsity). Prices are rounded guesses of on-demand list prices, per GPU and hour: they vary
by a factor of three between providers and from month to month, so `--price` takes the real one.

A step takes

    linear FLOPs / (peak · linear) + attention FLOPs / (peak · attention · min(1, head size / 64))
    + bytes / (bandwidth · bytes) + kernels · launch

`benchmarks/gpu_estimates.py` measures real stacks on a GPU, prints estimate over measured, and fits `CALIBRATION`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from ablationlab.core.errors import AblationLabError
from ablationlab.core.registry import Registry
from ablationlab.model.machine import Precision

#: When the prices below were noted.
PRICES_OF = "November 2026"


@dataclass(frozen=True)
class Accelerator:
    """One kind of GPU: peak FLOP/s, memory and its bandwidth in bytes, and how fast it reaches other GPUs.

    ``link`` is bytes/s one way to a GPU of the same node, ``network`` to one of another node; ``node`` is GPUs per node.
    """

    name: str
    title: str
    bf16: float
    fp32: float
    memory: float
    bandwidth: float
    link: float
    network: float
    node: int
    interconnect: str
    price: float

    @property
    def has_bf16(self) -> bool:
        return self.bf16 > self.fp32

    def peak(self, precision: Precision) -> float:
        """Dense FLOP/s of matrix products; TF32 runs at half the rate of bf16 where there are units for either."""
        return {"bf16": self.bf16, "tf32": max(self.bf16 / 2, self.fp32), "fp32": self.fp32}[precision]


ACCELERATORS: Registry[Accelerator] = Registry("hardware")


def _add(name: str, title: str, *numbers: float, node: int, link: str, price: float) -> None:
    bf16, fp32, memory, bandwidth, inside, between = numbers
    rates = (bf16 * 1e12, fp32 * 1e12, memory * 1e9, bandwidth * 1e12, inside * 1e9, between * 1e9)
    ACCELERATORS.add(name, Accelerator(name, title, *rates, node, link, price))


HOPPER, AMPERE, CARDS = "NVLink, 400 Gb/s per GPU", "NVLink, 200 Gb/s per GPU", "PCIe, 200 Gb/s per node"
#    name, title; TFLOP/s in bf16 and fp32; GB; TB/s; GB/s one way in a node and between nodes
_add("h100", "NVIDIA H100 SXM", 989, 67, 80, 3.35, 450, 50, node=8, link=HOPPER, price=3.0)
_add("h200", "NVIDIA H200 SXM", 989, 67, 141, 4.8, 450, 50, node=8, link=HOPPER, price=3.8)
_add("a100-80", "NVIDIA A100 SXM 80 GB", 312, 19.5, 80, 2.039, 300, 25, node=8, link=AMPERE, price=1.8)
_add("a100-40", "NVIDIA A100 SXM 40 GB", 312, 19.5, 40, 1.555, 300, 25, node=8, link=AMPERE, price=1.4)
_add("l4", "NVIDIA L4", 121, 30.3, 24, 0.3, 25, 3, node=8, link=CARDS, price=0.7)
_add("4090", "NVIDIA GeForce RTX 4090", 165, 82.6, 24, 1.008, 20, 3, node=8, link=CARDS, price=0.45)
# Its tensor cores know fp16 alone, in which nothing is trained here: it has no bf16, and TF32 runs as fp32.
_add("t4", "NVIDIA T4", 8.1, 8.1, 16, 0.32, 12, 3, node=8, link="PCIe 3, 200 Gb/s per node", price=0.35)
#: Names that leave the memory open mean the smaller one: what fits there fits on both.
SHORT_NAMES = {"a100": "a100-40"}


@dataclass(frozen=True)
class Hardware:
    count: int
    kind: Accelerator

    def __str__(self) -> str:
        return f"{self.count} x {self.kind.title}"


def parse_hardware(text: str) -> Hardware:
    """``64xh100``, or ``h100`` for one of them."""
    match = re.fullmatch(r"(?:(\d{1,6})\s*[x×*]\s*)?(\S+)", text.strip().lower())
    if match is None or (match[1] is not None and int(match[1]) < 1):
        raise AblationLabError(
            f"--hardware {text!r}: expected a number and a name such as 64xh100, or a name; names: {', '.join(ACCELERATORS)}"
        )
    name = SHORT_NAMES.get(match[2], match[2])
    if name not in ACCELERATORS:
        near = get_close_matches(name, [*ACCELERATORS, *SHORT_NAMES], n=1, cutoff=0.5)  # these names are short
        guess = f"; did you mean {near[0]!r}?" if near else ""
        raise AblationLabError(f"--hardware {text!r}: unknown{guess} (names: {', '.join(ACCELERATORS)})")
    return Hardware(int(match[1] or 1), ACCELERATORS[name])


@dataclass(frozen=True)
class Calibration:
    """Shares of a data sheet's rates that training reaches, and the least time of one kernel."""

    linear: float
    attention: float
    bytes: float
    launch: float
    #: Where the numbers come from.
    source: str
    #: Share of the compute that communication can overlap with (`layouts.py`) in which it really does. Assumed.
    overlap: float = 0.5
    #: Least seconds of a collective. Assumed.
    latency: float = 3e-5
    #: Share of the data sheet's link and network rates that collectives reach. Assumed.
    collective: float = 0.7


CALIBRATION = Calibration(
    linear=0.75,
    attention=0.30,  # of flash attention's deterministic backward, timed by itself
    bytes=0.65,
    launch=3e-6,
    source="nine stacks of 1.6 M to 350 M parameters on one H200 (torch 2.11), predicted within 20 %",
)

#: From the start of a stack to its first step, and from its last step to its checkpoint: the default study's 8.4 s on an H200
#: without its 300 steps.
START_SECONDS = 7.0
#: Memory beyond what tensors take: the CUDA context, workspaces, what the allocator cannot use. Bytes.
CONTEXT_BYTES = 1.0e9
#: Share of a GPU's memory that a plan may fill.
FILL = 0.92
