"""One H200: `gpt2-small` (124 M) in bf16, tokens/s of a stack of one against the plain model, compiled, at the same batch;
with the same bits twice, and with `execution.deterministic = false`.

    python benchmarks/gpu_124m.py [--batch 64] [--rounds 5] [--profile]

Interleaved in one process. Also the share of the bf16 matrix-product peak, measured here on 8192³, counting products as the
budget does (the causal half of attention is not discounted). Tokens are random: speed does not depend on them.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

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
    how = Execution(device="cuda", device_name="", precision="bf16", stack_width=1, threads=1)
    tokens = np.random.default_rng(0).integers(0, 50257, 2_000_000)
    device = torch.device("cuda")
    sides: dict[str, Callable[[], object]] = {}
    for name, deterministic in (("stack of one", True), ("stack of one, deterministic = false", False)):
        prepare(how, deterministic=deterministic)  # the plain model's user has not asked for it either
        stack = Stack([Member("one", 1, 3e-4, model)], 1, training, 1000, tokens, device, torch.bfloat16)
        sides[name] = stepper(stack)
        for _ in range(3):
            sides[name]()
    sides["plain, compiled"] = trainer(model, training, torch.from_numpy(tokens).cuda(), "bf16", compiled=True)
    for _ in range(5):
        sides["plain, compiled"]()
    torch.cuda.synchronize()
    rounds = [{name: milliseconds(step, 6) for name, step in sides.items()} for _ in range(options.rounds)]
    count = options.batch * model.context
    best = peak()
    for name in sides:
        each = statistics.median(times[name] for times in rounds)
        share = count * matmul_flops_per_token(model) / each / best
        ratios = [times["plain, compiled"] / times[name] for times in rounds]
        print(
            f"{name}: {each:.1f} ms a step, {count / each * 1e3:,.0f} tokens/s, {share:.1%} of {best / 1e9:.0f} TFLOP/s; "
            f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    if options.profile:
        for name in list(sides)[:2]:
            print(name)
            profile(sides[name])


if __name__ == "__main__":
    main()
