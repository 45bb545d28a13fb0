"""One GPU: tokens/s and memory of a stack against its width, for the sizes of the ladder, and the width that a plan chooses.

    python benchmarks/gpu_widths.py [--preset ladder-1m ...] [--widths 1 2 4 ...] [--precision bf16] [--seconds 120]

A stack of so many equal runs takes a few dozen steps, fed as in training, without probes and curves. Widths grow until memory
ends or the time is up. The plan's choice is that for as many runs as the widest stack here.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from ablationlab.model.device import compute_dtype, prepare
from ablationlab.model.machine import gpu_memory
from ablationlab.model.parameters import parameter_count
from ablationlab.model.rules import step_flops
from ablationlab.records.plan import Execution
from ablationlab.records.settings import PRESETS, ModelConfig, TrainingConfig, validated
from ablationlab.study.plan import STACK_MEMORY, WIDEST_STACK, best_width, run_bytes
from ablationlab.training.loop import no_room
from ablationlab.training.stack import Member, Stack
from gpu_step import milliseconds, stepper

LADDER = [name for name in PRESETS if name.startswith("ladder-")]


def measure(
    model: ModelConfig, training: TrainingConfig, width: int, tokens: np.ndarray, device: torch.device
) -> tuple[float, int]:
    """Tokens per second of a stack, and the most bytes that it held."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    dtype = compute_dtype(training.precision)
    stack = Stack([Member("one", 1, 3e-4, model)], width, training, 1000, tokens, device, dtype)
    step = stepper(stack)
    step()
    if device.type == "cpu":  # to see that it runs
        began = time.perf_counter()
        step()
        return width * training.batch * model.context / (time.perf_counter() - began), 0
    each = milliseconds(step, 3)
    each = min(milliseconds(step, max(3, min(32, int(150 / each)))) for _ in range(2))
    return width * training.batch * model.context / each * 1e3, torch.cuda.max_memory_allocated()


def main() -> None:
    """One table per preset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=["char-mini", *LADDER])
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    device = torch.device(options.device)
    execution = Execution(device=device.type, device_name="", precision=options.precision, stack_width=1, threads=1)
    prepare(execution)
    training = TrainingConfig(steps=1000, batch=options.batch, precision=options.precision)
    for number, preset in enumerate(options.preset):
        model = validated(ModelConfig, {"preset": preset})
        model = model if model.vocabulary is not None else model.changed(vocabulary=65)
        tokens = np.random.default_rng(0).integers(0, model.vocabulary, 1_000_000)
        print(f"{preset}: {parameter_count(model):,} parameters, batch {options.batch} x {model.context}")
        # Each preset has its share of the time that is left.
        share = time.monotonic() + (until - time.monotonic()) / (len(options.preset) - number)
        rates: dict[int, float] = {}
        for width in options.widths:
            if time.monotonic() > share:
                print(f"  {width:4d}: no time left")
                break
            try:
                rates[width], held = measure(model, training, width, tokens, device)
            except Exception as error:
                if not no_room(error) and "memory" not in str(error):
                    raise
                print(f"  {width:4d}: out of memory")
                break
            print(f"  {width:4d}: {rates[width]:12,.0f} tokens/s  {held / 1e9:7.2f} GB", flush=True)
        best = max(rates, key=lambda width: rates[width])
        widest = WIDEST_STACK
        if device.type == "cuda":
            widest = max(1, min(widest, int(STACK_MEMORY * gpu_memory() / run_bytes(model, training))))
        chosen = best_width([(max(rates), step_flops(model, training))], widest)
        near = min(rates, key=lambda width: abs(width - chosen))
        print(
            f"  best {best}; a plan of {max(rates)} runs chooses {chosen}: {rates[near] / rates[best]:.2f} of the best"
        )


if __name__ == "__main__":
    main()
