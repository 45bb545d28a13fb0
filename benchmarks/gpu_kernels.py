"""One GPU: each kernel of a block at the default study's size, beside the time its bytes need at the measured bandwidth.

    python benchmarks/gpu_kernels.py [--tune]

Times are the device's own, from the profiler. --tune also tries other tilings.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ablationlab.model import ops
from ablationlab.model.kernels import attention, gelu, norm
from gpu_step import milliseconds

RUNS, BATCH, TIME, WIDTH, HEADS = 15, 16, 128, 128, 8
UNIT = RUNS * BATCH * TIME * WIDTH  # elements of one activation


def bandwidth() -> float:
    """Bytes a millisecond of a large copy, read and written."""
    big = torch.randn(1 << 28, device="cuda")
    other = torch.empty_like(big)
    return 2 * big.numel() * 4 / min(milliseconds(lambda: other.copy_(big), 5) for _ in range(3))


def microseconds(work: Callable[[], object]) -> float:
    """Device time of one call, all its kernels together."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(10):
            work()
        torch.cuda.synchronize()
    return float(sum(row.self_device_time_total for row in found.key_averages())) / 10


def both(name: str, work: Callable[[], Tensor], inputs: list[Tensor], ahead: float, back: float) -> None:
    """Forward and backward, and how long *ahead* and *back* bytes alone would take."""
    output = work()
    seed = torch.randn_like(output)
    forward = microseconds(work)
    backward = microseconds(lambda: torch.autograd.grad(output, inputs, seed, retain_graph=True))
    print(f"{name:30} forward {forward:6.1f} us ({ahead:5.1f}), backward {backward:6.1f} us ({back:5.1f})")


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers that want a gradient."""
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_()


def one_precision(dtype: torch.dtype, rate: float, *, tune: bool) -> None:
    """All kernels in one precision."""
    unit = UNIT * dtype.itemsize / rate * 1e3
    wide = UNIT * 4 / rate * 1e3
    x, o = draw(RUNS, BATCH, TIME, WIDTH), draw(RUNS, BATCH, TIME, WIDTH, dtype=dtype)
    gain, shift, bias = (draw(RUNS, WIDTH) for _ in range(3))
    h, hb = draw(RUNS, BATCH, TIME, 4 * WIDTH, dtype=dtype), draw(RUNS, 4 * WIDTH)
    qkv, qb = draw(RUNS, BATCH, TIME, 3 * WIDTH, dtype=dtype), draw(RUNS, 3 * WIDTH)

    def normed() -> Tensor:
        return ops.add_norm(x, o, bias, gain, shift, 1e-5, dtype)[1]

    def bent() -> Tensor:
        return ops.bias_gelu(h, hb)

    def attended() -> Tensor:
        return ops.causal_attention(qkv, qb, HEADS)

    name = str(dtype).removeprefix("torch.")
    norms = product((1024, 2048, 4096), (16, 32, 64, 128)) if tune else [(norm.ELEMENTS[0], norm.ROWS_PER_PROGRAM)]
    for elements, norm.ROWS_PER_PROGRAM in norms:
        norm.ELEMENTS = elements, elements
        label = f"norm {elements}/{norm.ROWS_PER_PROGRAM} {name}"
        both(label, normed, [x, o, bias, gain, shift], 2 * wide + 2 * unit, 2 * wide + 2 * unit)
    gelus = (
        product((8, 16), (128, 256, 512), (16, 32, 64)) if tune else [(gelu.ROWS, gelu.BLOCK, gelu.ROWS_PER_PROGRAM)]
    )
    for gelu.ROWS, gelu.BLOCK, gelu.ROWS_PER_PROGRAM in gelus:
        label = f"gelu {gelu.ROWS}x{gelu.BLOCK}/{gelu.ROWS_PER_PROGRAM} {name}"
        both(label, bent, [h, hb], 8 * unit, 12 * unit)
    tiles = product((16, 32, 64, 128), (1, 2, 4, 8)) if tune else [(attention.QUERIES, attention.WARPS)]
    for attention.QUERIES, attention.WARPS in tiles:
        label = f"attention {attention.QUERIES}/{attention.WARPS} {name}"
        both(label, attended, [qkv, qb], 4 * unit, 7 * unit)


def main() -> None:
    """One line per kernel, tiling and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    rate = bandwidth()
    print(f"copy: {rate / 1e9:.2f} TB/s; in brackets: the bytes' own time")
    torch.backends.cuda.matmul.allow_tf32 = True
    for dtype in (torch.bfloat16, torch.float32):
        one_precision(dtype, rate, tune=options.tune)


if __name__ == "__main__":
    main()
