"""The device: how its arithmetic is fixed, and how it is kept busy (`machine` chooses it).

Numbers go to it and back without waiting for what it is doing (on the CPU they are simply there); work that repeats is
recorded once as a CUDA graph and replayed, without launches and traffic with the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
import torch.utils.deterministic
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.core.errors import PlanError
from ablationlab.model.machine import choose_device
from ablationlab.model.ops import has_kernels, use_kernels
from ablationlab.records.plan import Execution


def compute_dtype(precision: str) -> torch.dtype:
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


def prepare(
    execution: Execution, kernels: Literal["fused", "plain"] = "fused", *, deterministic: bool = True
) -> torch.device:
    """Fix threads, determinism, matrix arithmetic and kernels of this process as the plan sealed them."""
    use_kernels(kernels == "fused")
    torch.set_num_threads(execution.threads)
    # The switch behind torch.use_deterministic_algorithms, which itself would import the compiler (2 s) to tell it so.
    torch._C._set_deterministic_algorithms(deterministic, warn_only=False)
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


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device, from memory that it can read by itself."""
    host = torch.from_numpy(values)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def to_host(values: Tensor) -> Tensor:
    """A copy on the host, which is there when a mark set after it is reached."""
    if values.device.type != "cuda":
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)


class Mark:
    """A place in a device's work: all that it was given before the mark was set."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    @property
    def reached(self) -> bool:
        """Whether the device has come so far."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Until it has."""
        if self._event is not None:
            self._event.synchronize()


class Fetch:
    """A tensor on its way to the host; nothing waits for it until it is asked for."""

    def __init__(self, values: Tensor) -> None:
        self._host, self._mark = to_host(values), Mark(values.device)

    def get(self) -> Tensor:
        """The values, on the host."""
        self._mark.wait()
        return self._host


T = TypeVar("T")


def compile_kernels(work: Callable[[], None]) -> None:
    """Compile all kernels of *work*, in parallel, without running them: what they would write is undefined."""
    if not has_kernels():
        return
    from ablationlab.model.kernels import launch

    with launch.compiling():
        work()


def on_side_stream(work: Callable[[], T]) -> T:
    """Run *work* once outside the main stream, as must be done before it is recorded: workspaces are made then."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = work()
    torch.cuda.current_stream().wait_stream(side)
    return result


def recorded(work: Callable[[], None], pool: Any = None) -> torch.cuda.CUDAGraph:
    """*work* as a graph; graphs that are never replayed at the same time may share a pool of memory."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph


def recorded_meanwhile(work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """The same while the device is busy: it is not waited for, and no memory is given back first.

    *pool* is that of a graph that was `recorded`. *work* must have run once before, so that its kernels and tables are there.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.graph.default_capture_stream  # memory of a pool is shared within a stream
    with torch.cuda.stream(stream):
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph
