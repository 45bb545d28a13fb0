"""One GPU: what `ablationlab plan --hardware` would say of a step's time and peak memory, over what real stacks take.

    python benchmarks/gpu_estimates.py [--out FOLDER] [--large] [--only TEXT] [--hardware h200]
    python benchmarks/gpu_estimates.py --tiny          # any machine: tiny shapes, to see that the script runs

Every configuration is a real `Stack` fed as the training loop feeds it, on random tokens. Prints estimate over measured
for both (goal: 0.8 to 1.2), and the constants that a least-squares fit to these runs would put into `costing/calibration.py`;
writes all of it to FOLDER/gpu_estimates.json. `--large` adds a model of 1.3 B; `--only` takes those
configurations whose names have that text.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import lsq_linear

from ablationlab.instrument.costing.hardware import ACCELERATORS, CALIBRATION, Accelerator
from ablationlab.instrument.costing.step import Shape
from ablationlab.model.device import compute_dtype, prepare
from ablationlab.model.machine import Precision
from ablationlab.records.plan import Execution
from ablationlab.records.settings import FrontEnd, ModelConfig, TrainingConfig, validated
from ablationlab.training.stack import FEED, Member, Stack

NANO = {"layers": 6, "width": 384, "heads": 6}
# name -> model, samples of a step, runs of the stack
CONFIGURATIONS: dict[str, tuple[dict[str, Any], int, int]] = {
    "default study: 15 x char-mini": ({"preset": "char-mini", "vocabulary": 65}, 16, 15),
    "one char-mini": ({"preset": "char-mini", "vocabulary": 65}, 16, 1),
    "6 x 384, context 256, characters": ({**NANO, "context": 256, "vocabulary": 65}, 64, 1),
    "6 x 384, context 512, BPE": ({**NANO, "context": 512, "vocabulary": 50257}, 32, 1),
    "9 of 6 x 384, context 512, BPE": ({**NANO, "context": 512, "vocabulary": 50257}, 32, 9),
    "gpt2-small, 16 samples": ({"preset": "gpt2-small"}, 16, 1),
    "gpt2-small, 32 samples": ({"preset": "gpt2-small"}, 32, 1),
    "gpt2-small, 64 samples": ({"preset": "gpt2-small"}, 64, 1),
    "gpt2-medium, 16 samples": ({"preset": "gpt2-medium"}, 16, 1),
}
LARGE: dict[str, tuple[dict[str, Any], int, int]] = {
    "gpt3-xl, 4 samples": ({"preset": "gpt3-xl"}, 4, 1),
    "gpt3-xl, 8 samples": ({"preset": "gpt3-xl"}, 8, 1),
}
TINY_MODEL = {"layers": 1, "width": 16, "heads": 2, "context": 8, "vocabulary": 65}
TINY: dict[str, tuple[dict[str, Any], int, int]] = {
    "tiny": (TINY_MODEL, 2, 1),
    "tiny, stack of 3": (TINY_MODEL, 2, 3),
    "tiny, two layers": ({**TINY_MODEL, "layers": 2, "vocabulary": 300}, 2, 1),
}
ROUNDS, SECONDS_A_ROUND = 3, 0.6
# Of the data sheet's peak, reached by a product of 8192³ alone (766 of 989 TFLOP/s on an H200).
PRODUCT_SHARE = 0.775


def stack_of(shape: Shape, device: torch.device) -> Stack:
    """Runs of the study's three kinds, one seed each."""
    fronts = (
        FrontEnd(),
        FrontEnd(norm="layernorm", gain=True, bias=True),
        FrontEnd(norm="rmsnorm", gain=True, eps=1e-6),
    )
    members = [
        Member(f"r{i}", i, 3e-4, shape.model.changed(front=fronts[3 * i // shape.runs])) for i in range(shape.runs)
    ]
    training = TrainingConfig(steps=10_000, batch=shape.samples, precision=shape.precision)
    tokens = np.random.default_rng(0).integers(0, shape.vocabulary, 500_000)
    return Stack(members, shape.runs, training, 10_000, tokens, device, compute_dtype(shape.precision))


def stepper(stack: Stack) -> Callable[[], None]:
    """One step of a stack, fed as the training loop feeds it."""
    state = {"step": 0, "left": 0}

    def step() -> None:
        if not state["left"]:
            first = state["step"] + 1
            stack.feed(first, np.stack([stack.offsets(first + i) for i in range(FEED)]))
            state["left"] = FEED
        stack.advance()
        state["step"], state["left"] = state["step"] + 1, state["left"] - 1

    return step


def settle(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(shape: Shape, device: torch.device) -> tuple[float, float | None]:
    """(median seconds a step over rounds, peak bytes of the stack or None where nobody counts them)."""
    gc.collect()
    before = 0
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    step = stepper(stack_of(shape, device))
    for _ in range(3):
        step()
    settle(device)
    began = time.perf_counter()
    step()
    settle(device)
    count = max(3, min(200, int(SECONDS_A_ROUND / max(time.perf_counter() - began, 1e-6))))
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(count):
            step()
        settle(device)
        rounds.append((time.perf_counter() - began) / count)
    peak = float(torch.cuda.max_memory_allocated() - before) if device.type == "cuda" else None
    return statistics.median(rounds), peak


def fitted(shapes: Sequence[Shape], seconds: Sequence[float], gpu: Accelerator) -> dict[str, float]:
    """The constants that make the estimates fit best, by relative error.

    Attention is too small a part of these steps to be told from the rest, so its share, timed by itself, is held; linear
    layers stay below the share that a large product alone reaches.
    """
    terms = np.array([shape.terms(gpu) for shape in shapes]) / np.array(seconds)[:, None]
    terms *= np.array([1.0, 1 / CALIBRATION.attention, 1.0, 1e-6])  # microseconds a kernel
    rest = terms[:, [0, 2, 3]]
    found = lsq_linear(rest, 1 - terms[:, 1], bounds=([1 / PRODUCT_SHARE, 1, 0.5], [20, 20, 20]))
    ratios = rest @ found.x + terms[:, 1]
    return {
        "linear": 1 / found.x[0],
        "attention": CALIBRATION.attention,
        "bytes": 1 / found.x[1],
        "launch": found.x[2] * 1e-6,
        "lowest_ratio": float(ratios.min()),
        "highest_ratio": float(ratios.max()),
    }


def hardware_here(device: torch.device) -> Accelerator:
    """The table's entry for this GPU."""
    name = torch.cuda.get_device_name().lower() if device.type == "cuda" else ""
    for key in ("h200", "h100", "l4", "4090"):
        if key in name.replace("l40", ""):
            return ACCELERATORS[key]
    return ACCELERATORS["a100-40" if "40gb" in name else "a100-80" if "a100" in name else "h200"]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--hardware", choices=list(ACCELERATORS))
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() and not options.tiny else "cpu")
    if device.type == "cpu" and not options.tiny:
        parser.error("no GPU here; --tiny runs small shapes on a CPU")
    gpu = ACCELERATORS[options.hardware] if options.hardware else hardware_here(device)
    precision: Precision = "bf16" if device.type == "cuda" else "fp32"
    prepare(Execution(device=device.type, device_name="", precision=precision, stack_width=1, threads=1))
    chosen: Mapping[str, Any] = TINY if options.tiny else {**CONFIGURATIONS, **(LARGE if options.large else {})}
    chosen = {name: value for name, value in chosen.items() if options.only in name}
    rows, shapes, measured = [], [], []
    where = torch.cuda.get_device_name() if device.type == "cuda" else "cpu (ratios mean nothing here)"
    print(f"{where}, torch {torch.__version__}, {precision}, estimates for {gpu.title}")
    print(
        f"{'configuration':36} {'ms a step':>10} {'estimate':>10} {'ratio':>6} {'peak GB':>9} {'estimate':>9} {'ratio':>6}"
    )
    for name, (model, samples, runs) in chosen.items():
        shape = Shape(validated(ModelConfig, model), samples, runs, precision)
        try:
            seconds, peak = measure(shape, device)
        except torch.OutOfMemoryError:
            print(f"{name:36} out of memory; estimate {shape.stack_memory() / 1e9:.1f} GB")
            continue
        row = {
            "name": name,
            "model": shape.model.model_dump(mode="json"),
            "samples": samples,
            "runs": runs,
            "precision": precision,
            "seconds": seconds,
            "estimated_seconds": shape.seconds(gpu),
            "peak_bytes": peak,
            "estimated_bytes": shape.stack_memory(),
            "tokens_per_second": shape.tokens / seconds,
            "model_flops_utilization": (shape.linear_flops + shape.attention_flops) / seconds / gpu.peak(precision),
            "terms": shape.terms(gpu),
        }
        rows.append(row)
        shapes.append(shape)
        measured.append(seconds)
        held = f"{peak / 1e9:9.2f}" if peak is not None else f"{'-':>9}"
        share = f"{row['estimated_bytes'] / peak:6.2f}" if peak else f"{'-':>6}"
        print(
            f"{name:36} {seconds * 1e3:10.3f} {row['estimated_seconds'] * 1e3:10.3f} "
            f"{row['estimated_seconds'] / seconds:6.2f} {held} {row['estimated_bytes'] / 1e9:9.2f} {share}",
            flush=True,
        )
    fit = fitted(shapes, measured, gpu) if rows else {}
    print("fit to these runs: " + ", ".join(f"{key} {value:.4g}" for key, value in fit.items()))
    report = {
        "device": where,
        "hardware": gpu.name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "calibration": vars(CALIBRATION),
        "rows": rows,
        "fit": fit,
    }
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "gpu_estimates.json").write_text(json.dumps(report, indent=1))
    return report


if __name__ == "__main__":
    main()
