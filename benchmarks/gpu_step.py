"""One H200: a model-step of the default study's stack against the plain model trained alone, interleaved in one process.

    python benchmarks/gpu_step.py [--preset char-mini llama-mini nanochat-mini] [--precision bf16 tf32 fp32] [--rounds 7]
                                  [--profile] [--optimizer muon lion ...]

With another preset the default study trains that model; the plain model has the same parts.

Prints milliseconds a model-step of both sides, their ratio with its spread over rounds, and the floor: the time that the
step's matrix products need at the rate measured for their shapes, plus the time that the fewest bytes need at the measured
bandwidth. Also the peak memory of the stack against the sum of its runs trained alone. With --optimizer, the same stack with
other optimizers beside AdamW's, in turns.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import torch

from ablationlab.data.corpus import load_corpus
from ablationlab.model.device import compute_dtype, prepare
from ablationlab.model.parameters import matmul_flops_per_token, parameter_count
from ablationlab.records.plan import Plan
from ablationlab.study.load import load_study
from ablationlab.study.plan import make_plan
from ablationlab.training.stack import FEED, Member, Stack
from plain import trainer

# Without the runs of the gate, so that the 15 compared runs are one stack.
UNGATED = ["evaluation.gate_seeds=[]"]
STUDY = Path(__file__).parents[1] / "studies" / "embedding-norm.toml"


def milliseconds(work: Callable[[], object], count: int) -> float:
    """Of one call, by device events around many."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(count):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / count


def stack_of(plan: Plan, runs: int, tokens: np.ndarray, optimizer: str = "adamw") -> Stack:
    """The first *runs* runs of the plan, as one stack of that width."""
    chosen = [plan.run(run_id) for run_id in plan.stacks[0][:runs]]
    members = [Member(r.id, r.seed, r.lr, r.model) for r in chosen]
    training = chosen[0].training.changed(optimizer=optimizer)
    dtype = compute_dtype(plan.execution.precision)
    return Stack(members, runs, training, 300, tokens, torch.device("cuda"), dtype)


def stepper(stack: Stack) -> Callable[[], object]:
    """One step of a stack, fed as the training loop feeds it."""
    state = {"step": 0, "left": 0}

    def step() -> None:
        if not state["left"]:
            first = state["step"] % 256 + 1
            stack.feed(first, np.stack([stack.offsets(first + i) for i in range(FEED)]))
            state["left"] = FEED
        stack.advance()
        state["step"], state["left"] = state["step"] + 1, state["left"] - 1

    return step


def floor_ms(stack: Stack, dtype: torch.dtype) -> tuple[float, float]:
    """(matrix products at the rate measured for their shapes, fewest bytes at the measured bandwidth), per model-step."""
    model, training, runs = stack.model, stack.training, len(stack.members)
    rows = training.batch * model.context
    x = torch.randn(runs, rows, model.width, device="cuda").to(dtype)
    w = torch.randn(runs, model.width, 4 * model.width, device="cuda").to(dtype)
    torch.bmm(x, w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()  # launched one by one, products this small wait for the host
    with torch.cuda.graph(graph):
        for _ in range(50):
            torch.bmm(x, w)
    graph.replay()
    rate = 2 * runs * rows * 4 * model.width**2 / (min(milliseconds(graph.replay, 3) for _ in range(3)) / 50)
    big = torch.empty(1 << 28, device="cuda")
    other = torch.empty_like(big)
    bandwidth = 2 * big.numel() * 4 / min(milliseconds(lambda: other.copy_(big), 5) for _ in range(3))
    products = rows * matmul_flops_per_token(model) / rate
    size = 2 if dtype == torch.bfloat16 else 4
    # Per block: what the backward pass must find again, written once and read once, and the gradients that cross between
    # products; 9 tensors of one width in the products' precision for attention, 16 for the MLP, 8 of the residual stream.
    # These are char-mini's; other parts add what a kernel would not have to move.
    activations = rows * model.width * model.layers * 2 * ((9 + 16) * size + 8 * 4)
    optimizer = parameter_count(model) * 4 * 7
    return products, (activations + optimizer) / bandwidth


def peak_bytes(work: Callable[[], object]) -> int:
    """Most memory held at once while it works."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def profile(step: Callable[[], object]) -> None:
    """Where the device's time goes, by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows)
    print(f"  {total / 1e4:.3f} ms a step in kernels")
    for row in rows[:30]:
        name = re.sub(r"at::native::|\(anonymous namespace\)::|void ", "", row.key)
        each = row.self_device_time_total / row.count
        print(f"  {row.self_device_time_total / total:6.1%} {row.count / 10:6.1f} x {each:7.1f} us  {name[:100]}")


def against_adamw(
    name: str,
    adamw: Callable[[], object],
    plan: Plan,
    runs: int,
    tokens: np.ndarray,
    rounds: int,
    *,
    profiled: bool,
) -> None:
    """A step of the stack with another optimizer over one with AdamW, interleaved."""
    other = stepper(stack_of(plan, runs, tokens, name))
    for _ in range(20):
        other()
    pairs = [(milliseconds(adamw, 64) / runs, milliseconds(other, 64) / runs) for _ in range(rounds)]
    ratios = [theirs / ours for ours, theirs in pairs]
    print(
        f"  {name}: {statistics.median(theirs for _, theirs in pairs):.3f} ms a model-step, adamw "
        f"{statistics.median(ours for ours, _ in pairs):.3f}; ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )
    if profiled:
        profile(other)


def main() -> None:
    """One block per precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--preset", nargs="+", default=["char-mini"], choices=["char-mini", "llama-mini", "nanochat-mini"]
    )
    parser.add_argument("--precision", nargs="+", default=["bf16", "tf32", "fp32"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--optimizer", nargs="+", default=[], help="optimizers to time beside AdamW")
    options = parser.parse_args()
    study = load_study(STUDY)
    corpus = load_corpus(study.data)
    train = np.asarray(corpus.train)
    for preset, precision in product(options.preset, options.precision):
        chosen = load_study(STUDY, [f"model.preset={preset}", f"training.precision={precision}", *UNGATED])
        plan = make_plan(chosen, corpus, "cuda")
        prepare(plan.execution)
        runs = len(plan.stacks[0])
        stack = stack_of(plan, runs, train)
        ours = stepper(stack)
        torch._C._set_deterministic_algorithms(False, warn_only=False)  # the plain model's user has not asked for it
        model = stack.model
        plain = trainer(model, stack.training, torch.from_numpy(train).cuda(), precision)
        torch._C._set_deterministic_algorithms(True, warn_only=False)
        for _ in range(20):
            ours()
        for _ in range(10):
            plain()
        pairs = []
        for _ in range(options.rounds):
            stacked = milliseconds(ours, 64) / runs
            torch._C._set_deterministic_algorithms(False, warn_only=False)
            alone = milliseconds(plain, 30)
            torch._C._set_deterministic_algorithms(True, warn_only=False)
            pairs.append((stacked, alone))
        ratios = [alone / stacked for stacked, alone in pairs]
        products, bytes_ms = floor_ms(stack, compute_dtype(plan.execution.precision))
        print(
            f"{preset}, {precision}: stack of {runs}: {statistics.median(s for s, _ in pairs):.3f} ms a model-step; "
            f"plain {statistics.median(a for _, a in pairs):.2f} ms; ratio {statistics.median(ratios):.1f} "
            f"({min(ratios):.1f} to {max(ratios):.1f}); floor: products {products:.3f} ms + bytes {bytes_ms:.3f} ms"
        )
        for name in options.optimizer:
            against_adamw(name, ours, plan, runs, train, options.rounds, profiled=options.profile)
        if options.profile:
            profile(ours)
        del stack, ours, plain
        alone_bytes = sum(_stack_peak(plan, 1, train) for _ in range(1)) * runs
        whole = _stack_peak(plan, runs, train)
        print(f"  peak memory: stack {whole / 1e9:.2f} GB, {runs} runs alone {alone_bytes / 1e9:.2f} GB: "
              f"ratio {whole / alone_bytes:.2f}")  # fmt: skip


def _stack_peak(plan: Plan, runs: int, tokens: np.ndarray) -> int:
    def work() -> None:
        step = stepper(stack_of(plan, runs, tokens))
        for _ in range(3):
            step()

    return peak_bytes(work)


if __name__ == "__main__":
    main()
