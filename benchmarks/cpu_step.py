"""Two CPU cores: a training step of `char-mini` as the study makes it, against the plain eager fp32 model.

    python benchmarks/cpu_step.py [--precision auto] [--rounds 5] [--steps 4]      (taskset -c 0,1 where there are more cores)

The plain model is one process with two threads, as a user would start it; the study is two processes of one thread, as the
executor starts them. Both sides take turns; the figure is seconds a step of one model: wall-clock time over all steps
that were made. Beside it: plain with one thread against a stack of one in this process, by processor time, which a busy
neighbour disturbs less.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
import torch

from ablationlab.model.device import compute_dtype, prepare
from ablationlab.model.machine import choose_precision
from ablationlab.model.parameters import matmul_flops_per_token
from ablationlab.records.plan import Execution
from ablationlab.records.settings import ModelConfig, TrainingConfig, validated
from ablationlab.training.stack import Member, Stack
from plain import trainer

MODEL = validated(ModelConfig, {"preset": "char-mini", "vocabulary": 65})
TRAINING = TrainingConfig(steps=300)
TOKENS = np.random.default_rng(0).integers(0, 65, 100_000)


def stepper(precision: str) -> Callable[[], object]:
    """A step of a stack of one, on one thread."""
    chosen = choose_precision(precision, "cpu")  # type: ignore[arg-type]
    prepare(Execution(device="cpu", device_name="", precision=chosen, stack_width=1, threads=1))
    stack = Stack([Member("one", 1, 3e-4, MODEL)], 1, TRAINING, 300, TOKENS, torch.device("cpu"), compute_dtype(chosen))
    return lambda: stack.train_step(1, stack.offsets(1))


def work(channel: Connection, precision: str) -> None:
    """A worker: as many steps as it is told, then an answer."""
    step = stepper(precision)
    step()
    channel.send(0)
    while count := channel.recv():
        for _ in range(count):
            step()
        channel.send(count)


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    context = mp.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    crew = [context.Process(target=work, args=(theirs, options.precision), daemon=True) for _, theirs in pipes]
    for process in crew:
        process.start()
    plain = trainer(MODEL, TRAINING, torch.from_numpy(TOKENS), "fp32")
    torch.set_num_threads(2)
    plain()
    for ours, _ in pipes:
        ours.recv()
    wall = []
    for _ in range(options.rounds):
        began = time.perf_counter()
        for ours, _ in pipes:
            ours.send(options.steps)
        for ours, _ in pipes:
            ours.recv()
        study = (time.perf_counter() - began) / (2 * options.steps)
        began = time.perf_counter()
        for _ in range(options.steps):
            plain()
        wall.append((study, (time.perf_counter() - began) / options.steps))
    for ours, _ in pipes:
        ours.send(0)
    tell("two cores, wall clock", wall, options.precision)
    alone = stepper(options.precision)
    alone()
    pairs = []
    for _ in range(options.rounds):
        pairs.append((processor_time(alone), processor_time(plain)))
    tell("one thread each, processor time", pairs, options.precision)
    flops = TRAINING.batch * MODEL.context * matmul_flops_per_token(MODEL)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = min(processor_time(lambda: a @ b) for _ in range(5))
    rate = 2 * 1024**3 / best
    print(f"floor of one fp32 thread: {flops / rate:.3f} s, the step's products at {rate / 1e9:.0f} GFLOP/s")


def processor_time(step: Callable[[], object]) -> float:
    """Seconds of this process's threads."""
    began = time.process_time()
    step()
    return time.process_time() - began


def tell(what: str, pairs: list[tuple[float, float]], precision: str) -> None:
    """One line: both sides and their ratio."""
    ratios = [plain / ours for ours, plain in pairs]
    print(
        f"{what}: ours ({choose_precision(precision, 'cpu')}) {statistics.median(o for o, _ in pairs):.3f} s a step, "  # type: ignore[arg-type]
        f"plain fp32 {statistics.median(p for _, p in pairs):.3f} s; ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
