"""Which device trains, and how its arithmetic is fixed before the first step."""

from __future__ import annotations

import os
from typing import Literal

import torch
import torch.utils.deterministic

from ablationlab.core.errors import PlanError
from ablationlab.records.plan import Execution

DeviceName = Literal["cpu", "cuda"]
Precision = Literal["fp32", "tf32", "bf16"]


def choose_device(asked: Literal["auto", "cpu", "cuda"]) -> tuple[DeviceName, str]:
    """The device asked for and its full name; `auto` takes a GPU where there is one."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise PlanError(
            "--device cuda: this torch sees no CUDA GPU; use --device cpu, or install a CUDA build of torch"
        )
    if asked == "cpu" or not torch.cuda.is_available():
        return "cpu", f"cpu ({torch.backends.cpu.get_cpu_capability()})"
    return "cuda", torch.cuda.get_device_name(0)


def choose_precision(asked: Literal["auto", "fp32", "tf32", "bf16"], device: DeviceName) -> Precision:
    """`auto` is bf16 where the device has matrix units for it, else fp32; a precision that a GPU lacks is refused."""
    if device == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = torch.cpu._is_amx_tile_supported()
    if asked == "auto":
        return "bf16" if has_bf16 else "fp32"
    if asked == "tf32" and device != "cuda":
        raise PlanError("training.precision = 'tf32' exists on CUDA GPUs only; use 'fp32' or 'bf16'")
    if asked == "bf16" and device == "cuda" and not has_bf16:
        raise PlanError("training.precision = 'bf16': this GPU has no bf16; use 'fp32'")
    return asked


def compute_dtype(precision: Precision) -> torch.dtype:
    """The type of matrix products."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def observe(execution: Execution, stack_width: int) -> Execution:
    """What this process really computes with, after `prepare`."""
    _, name = choose_device(execution.device)
    return execution.model_copy(
        update={"device_name": name, "threads": torch.get_num_threads(), "stack_width": stack_width}
    )


def _onednn_has_bf16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def prepare(execution: Execution) -> torch.device:
    """Fix threads, determinism and matrix arithmetic of this process as the plan sealed them."""
    torch.set_num_threads(execution.threads)
    # The switch behind torch.use_deterministic_algorithms, which itself would import the compiler (2 s) to tell it so.
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    # No operation here reads memory it did not write; filling it first would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # On a processor without bf16 units oneDNN fails at its first such product, and torch then switches it off for good, in
    # fp32 too: what a process computed before would decide over bits. So it is on or off from the start, by precision.
    torch._C._set_mkldnn_enabled(execution.precision != "bf16" or _onednn_has_bf16())
    if execution.device == "cuda":
        # cuBLAS is deterministic only with a fixed workspace; it reads the variable when its first handle is made.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if not torch.cuda.is_available():
            raise PlanError("the plan was sealed for a CUDA GPU and this torch sees none; make a new plan with --out")
        torch.backends.cuda.matmul.allow_tf32 = execution.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = execution.precision == "tf32"
    return torch.device(execution.device)
