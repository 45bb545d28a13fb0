"""The measured constants behind every estimate, in one place.

A step takes

    linear FLOPs / (peak · linear) + attention FLOPs / (peak · attention · min(1, head size / 64))
    + bytes / (bandwidth · bytes) + kernels · launch

`benchmarks/gpu_estimates.py` measures real stacks on a GPU, prints estimate over measured, and fits these numbers anew.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """Shares of a data sheet's rates that training reaches, and what one kernel costs at least."""

    linear: float
    attention: float
    bytes: float
    launch: float
    #: Where the numbers come from, in words.
    source: str
    #: Share of the computing that there is to hide behind (`network.py`) in which the network works unnoticed. Assumed.
    overlap: float = 0.5
    #: Seconds that a collective takes at least. Assumed.
    latency: float = 3e-5
    #: Share of the data sheet's link and network rates that collectives reach. Assumed, not measured.
    collective: float = 0.7


CALIBRATION = Calibration(
    linear=0.75,
    attention=0.30,  # of flash attention's deterministic backward, timed by itself
    bytes=0.65,
    launch=3e-6,
    source="nine stacks of 1.6 M to 350 M parameters on one H200 (torch 2.11), met within 20 %",
)

#: From the start of a stack to its first step, and from its last step to its checkpoint: the default study's 8.4 s on an H200
#: less its 300 steps.
START_SECONDS = 7.0
#: Memory beyond what tensors take: the CUDA context, workspaces, what the allocator cannot use. Bytes.
CONTEXT_BYTES = 1.0e9
#: Share of a GPU's memory that a plan may fill.
FILL = 0.92
