"""One H200: `gpt2-small` (124 M) in bf16, tokens/s of a stack of one against the plain model, compiled, at the same batch.

    python benchmarks/gpu_124m.py [--batch 64] [--rounds 5] [--profile]

Interleaved in one process. Also the share of the bf16 matrix-product peak, measured here on 8192³, counting products as the
budget does (the causal half of attention is not discounted). Tokens are random: speed does not depend on them.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
import torch

from ablationlab.model.device import prepare
from ablationlab.model.parameters import matmul_flops_per_token
from ablationlab.records.plan import Execution
from ablationlab.records.settings import ModelConfig, TrainingConfig, validated
from ablationlab.training.stack import Member, Stack
from gpu_step import milliseconds, profile, stepper
from plain import trainer


def peak() -> float:
    """FLOP/ms of the best of several large bf16 products."""
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    for _ in range(3):
        a @ b
    return 2 * 8192**3 / min(milliseconds(lambda: a @ b, 10) for _ in range(5))


def main() -> None:
    """Print both sides, their ratio, and the share of the peak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    model = validated(ModelConfig, {"preset": "gpt2-small", "vocabulary": 50257})
    training = TrainingConfig(steps=1000, batch=options.batch, precision="bf16")
    prepare(Execution(device="cuda", device_name="", precision="bf16", stack_width=1, threads=1))
    tokens = np.random.default_rng(0).integers(0, 50257, 2_000_000)
    device = torch.device("cuda")
    stack = Stack([Member("one", 1, 3e-4, model)], 1, training, 1000, tokens, device, torch.bfloat16)
    ours = stepper(stack)
    for _ in range(3):
        ours()
    torch._C._set_deterministic_algorithms(False, warn_only=False)  # the plain model's user has not asked for it
    plain = trainer(model, training, torch.from_numpy(tokens).cuda(), "bf16", compiled=True)
    for _ in range(5):
        plain()
    torch.cuda.synchronize()
    pairs = []
    for _ in range(options.rounds):
        pairs.append((milliseconds(ours, 6), milliseconds(plain, 6)))
    count = options.batch * model.context
    ratios = [other / own for own, other in pairs]
    best = peak()
    for name, side in (("stack of one", 0), ("plain, compiled", 1)):
        each = statistics.median(pair[side] for pair in pairs)
        share = count * matmul_flops_per_token(model) / each / best
        print(
            f"{name}: {each:.1f} ms a step, {count / each * 1e3:,.0f} tokens/s, {share:.1%} of {best / 1e9:.0f} TFLOP/s"
        )
    print(f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    if options.profile:
        profile(ours)


if __name__ == "__main__":
    main()
