"""Named accelerators, from their public data sheets, and ``64xh100`` read as a wish for some of them.

Peaks are for dense products (no sparsity). Prices are a rounded guess at on-demand list prices, per GPU and hour: they vary
by a factor of three between providers and by the month, so `--price` takes the real one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ablationlab.core.errors import AblationLabError
from ablationlab.core.registry import Registry

#: When the prices below were noted.
PRICES_OF = "November 2026"
Precision = Literal["fp32", "tf32", "bf16"]


@dataclass(frozen=True)
class Accelerator:
    """One kind of GPU: peak FLOP/s, memory and its bandwidth in bytes, and how it speaks to its neighbours.

    ``link`` is bytes/s one way to a GPU of the same node, ``network`` to one of another node; ``node`` is GPUs a node.
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

    def peak(self, precision: Precision) -> float:
        """Dense FLOP/s of matrix products; TF32 runs at half the rate of bf16 on all of these."""
        return {"bf16": self.bf16, "tf32": self.bf16 / 2, "fp32": self.fp32}[precision]


ACCELERATORS: Registry[Accelerator] = Registry("hardware")


def _add(name: str, title: str, *numbers: float, node: int, link: str, price: float) -> None:
    bf16, fp32, memory, bandwidth, inside, between = numbers
    rates = (bf16 * 1e12, fp32 * 1e12, memory * 1e9, bandwidth * 1e12, inside * 1e9, between * 1e9)
    ACCELERATORS.add(name, Accelerator(name, title, *rates, node, link, price))


HOPPER, AMPERE, CARDS = "NVLink, 400 Gb/s a GPU", "NVLink, 200 Gb/s a GPU", "PCIe, 200 Gb/s a node"
#    name, title; TFLOP/s in bf16 and fp32; GB; TB/s; GB/s one way in a node and between nodes
_add("h100", "NVIDIA H100 SXM", 989, 67, 80, 3.35, 450, 50, node=8, link=HOPPER, price=3.0)
_add("h200", "NVIDIA H200 SXM", 989, 67, 141, 4.8, 450, 50, node=8, link=HOPPER, price=3.8)
_add("a100-80", "NVIDIA A100 SXM 80 GB", 312, 19.5, 80, 2.039, 300, 25, node=8, link=AMPERE, price=1.8)
_add("a100-40", "NVIDIA A100 SXM 40 GB", 312, 19.5, 40, 1.555, 300, 25, node=8, link=AMPERE, price=1.4)
_add("l4", "NVIDIA L4", 121, 30.3, 24, 0.3, 25, 3, node=8, link=CARDS, price=0.7)
_add("4090", "NVIDIA GeForce RTX 4090", 165, 82.6, 24, 1.008, 20, 3, node=8, link=CARDS, price=0.45)


@dataclass(frozen=True)
class Hardware:
    """So many of one kind."""

    count: int
    kind: Accelerator

    def __str__(self) -> str:
        return f"{self.count} x {self.kind.title}"


def parse_hardware(text: str) -> Hardware:
    """``64xh100``, or ``h100`` for one of them."""
    found = re.fullmatch(r"(?:(\d{1,6})\s*[x×*]\s*)?(\S+)", text.strip().lower())
    if found is None or (found[1] is not None and int(found[1]) < 1):
        raise AblationLabError(
            f"--hardware {text!r}: expected a number and a name, as 64xh100, or a name; names: {', '.join(ACCELERATORS)}"
        )
    return Hardware(int(found[1] or 1), ACCELERATORS[found[2]])
