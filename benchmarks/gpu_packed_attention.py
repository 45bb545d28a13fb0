"""Packed attention in fp32 on a GPU: error against float64 and time, ours beside torch's fused one.

python benchmarks/gpu_packed_attention.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton.testing
from torch import Tensor

from ablationlab.model.attention import PackedAttention, plain_attention
from ablationlab.model.kernels.attention import packed_attention

# runs, rows, tokens a row, heads, size of a head
SHAPES = ((10, 102, 128, 8, 16), (10, 102, 128, 4, 32), (10, 50, 256, 6, 64), (10, 25, 512, 6, 64))


def segments_of(rows: int, time: int) -> Tensor:
    """Half of every row a prefix, the rest four tails."""
    segments, tail = torch.zeros(rows, time, dtype=torch.int64, device="cuda"), time // 8
    for number in range(4):
        start = time - tail * (4 - number)
        segments[:, start : start + tail] = number + 1
    return segments


def main() -> None:
    """One line a shape."""
    torch.manual_seed(0)
    for runs, rows, time, heads, size in SHAPES:
        qkv = torch.randn(runs, rows, time, 3 * heads * size, device="cuda")
        b = torch.randn(runs, 3 * heads * size, device="cuda")
        segments, whole = segments_of(rows, time), qkv + b[:, None, None]
        added = PackedAttention(segments, runs).added
        exact = plain_attention(whole[:1].double(), added[:rows].double(), heads)
        forms: dict[str, Callable[[], Tensor]] = {
            "ours": lambda: packed_attention(qkv, b, segments, heads),  # noqa: B023
            "torch": lambda: plain_attention(whole, added, heads),  # noqa: B023
        }
        for name, form in forms.items():
            error = (form()[:1] - exact).abs()
            took = triton.testing.do_bench(form, warmup=5, rep=20)
            print(
                f"{runs} x {rows} x {time}, {heads} heads of {size}, {name}: {took:.3f} ms, "
                f"error {error.max():.2e} at most, {error.mean():.2e} on average"
            )


if __name__ == "__main__":
    main()
